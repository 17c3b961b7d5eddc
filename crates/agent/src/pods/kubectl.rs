//! Calls of `kubectl`, with the user's own configuration and context.

use std::io::ErrorKind;
use std::process::Command;
use std::time::Duration;

use weir_sys::process::{Output, run_with_input};

use super::error::Error;

/// An API server that answers does so within this time; kubectl itself gives up earlier, with better words.
const LIMIT: Duration = Duration::from_secs(30);
const REQUEST: &str = "--request-timeout=20s";

/// The permissions of a run: verb, resource, and whether it belongs to the namespace. `exec` is asked for by GET or by POST,
/// depending on kubectl's version (KEP-4006), and those are two verbs.
const NEEDS: [(&str, &str, bool); 7] = [
    ("list", "nodes", false),
    ("create", "pods", true),
    ("get", "pods", true),
    ("list", "pods", true),
    ("delete", "pods", true),
    ("create", "pods/exec", true),
    ("get", "pods/exec", true),
];

/// `kubectl` for the pods of one namespace.
#[derive(Debug, Clone)]
pub(super) struct Kubectl {
    pub(super) namespace: String,
}

impl Kubectl {
    fn call(&self, args: &[&str], input: &[u8]) -> Result<Output, Error> {
        let mut command = Command::new("kubectl");
        command.args(args).arg(REQUEST);
        let output = run_with_input(command, input, LIMIT).map_err(|error| match error.kind() {
            ErrorKind::NotFound => Error::NoKubectl,
            ErrorKind::TimedOut => Error::Unreachable { message: error.to_string() },
            _ => Error::Here(error.to_string()),
        })?;
        if output.truncated {
            return Err(Error::Here(format!("kubectl {} printed more than weir reads", args.join(" "))));
        }
        Ok(output)
    }

    /// Its standard output; `what` it does stands in the message of a failure.
    pub(super) fn run(&self, what: &str, args: &[&str], input: &[u8]) -> Result<String, Error> {
        let output = self.call(args, input)?;
        if output.status.success() {
            return Ok(output.stdout_text());
        }
        Err(Error::Kubectl {
            what: what.to_owned(),
            message: one_line(&output.message()),
            namespace: self.namespace.clone(),
        })
    }

    /// Asks the cluster for every permission that a run needs, before anything is made.
    pub(super) fn check_permissions(&self) -> Result<(), Error> {
        for (verb, resource, namespaced) in NEEDS {
            let mut args = vec!["auth", "can-i", verb, resource];
            if namespaced {
                args.extend(["-n", self.namespace.as_str()]);
            }
            let output = self.call(&args, b"")?;
            // It prints `yes`, or `no` with a reason and exit code 1. Without an answer of the server only its errors stand there.
            let answer = output.stdout_text();
            if answer.trim_start().starts_with("yes") {
                continue;
            }
            if !answer.trim_start().starts_with("no") {
                return Err(Error::Unreachable { message: one_line(&output.message()) });
            }
            let namespace = if namespaced { self.namespace.clone() } else { String::new() };
            return Err(Error::Forbidden { verb, resource, namespace });
        }
        Ok(())
    }
}

/// A message of kubectl as one line. It prints one for each object, and the first tells enough. Warnings may stand before it.
fn one_line(message: &str) -> String {
    let warns = |line: &str| line.starts_with("Warning: ");
    let lines = message.lines().map(str::trim).filter(|line| !line.is_empty());
    let mut lines = lines.filter(|line| !warns(line));
    let first = lines.next().unwrap_or("no message").to_owned();
    let first = first.strip_prefix("error: ").map(str::to_owned).unwrap_or(first);
    match lines.count() {
        0 => first,
        more => format!("{first} (and {more} more lines)"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_one_line() {
        assert_eq!(one_line("error: no context\n"), "no context");
        assert_eq!(one_line("a: forbidden\nb: forbidden\n"), "a: forbidden (and 1 more lines)");
        assert_eq!(one_line(""), "no message");
        assert_eq!(
            one_line("Warning: resource 'nodes' is not namespace scoped\n\nerror: refused\n"),
            "refused"
        );
    }
}
