//! How an agent is started on a host.

use std::fmt;
use std::io;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use weir_sys::NetNs;
use weir_text::shell::word;

use crate::host::HostAddress;

/// A host and the way to it.
#[derive(Debug)]
pub enum Transport {
    /// A host of the lab: the same binary, entered into its network namespace.
    Namespace(NetNs),
    /// A host as the scenario names it: the same binary for `local` and `netns:NAME`; for the others `ssh` with the user's
    /// own configuration, keys and agent, `docker exec`, or `kubectl exec`.
    Host(HostAddress),
}

/// Options for starting a remote host's agent.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Options {
    /// Program on the host; without it this binary is copied there once, into the user's cache directory.
    pub program: Option<String>,
    /// Start it through `sudo -n`.
    pub sudo: bool,
}

impl fmt::Display for Transport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Transport::Namespace(_) => write!(f, "netns"),
            Transport::Host(host) => host.fmt(f),
        }
    }
}

/// First word of what [`Transport::start_command`] prints when the host has no copy of this binary yet.
pub(crate) const ABSENT: &str = "#weir-absent#";

impl Transport {
    /// True if the host is reached through another program, and may lack this binary.
    pub(crate) fn is_remote(&self) -> bool {
        match self {
            Transport::Namespace(_) | Transport::Host(HostAddress::Local | HostAddress::Netns(_)) => false,
            Transport::Host(_) => true,
        }
    }

    /// True if the host's network namespace outlives the agent, so that changes must be written down.
    pub fn outlives_agent(&self) -> bool {
        !matches!(self, Transport::Namespace(_))
    }

    /// The command that starts the agent.
    ///
    /// # Errors
    /// If this binary cannot be read, or the named namespace does not exist.
    pub(crate) fn start_command(&self, options: &Options) -> io::Result<Command> {
        let sudo = if options.sudo { "sudo -n " } else { "" };
        let mut command = if self.is_remote() {
            match (&options.program, self.in_container()) {
                // An image may have no shell, as weir's own has none.
                (Some(program), Some(mut command)) if !options.sudo => {
                    command.args([program.as_str(), "agent"]);
                    command
                }
                (Some(program), _) => self.shell(&format!("exec {sudo}{} agent", word(program))),
                (None, _) => self.shell(&format!(
                    "f=\"{}\"; if [ -x \"$f\" ]; then exec {sudo}\"$f\" agent; fi; echo \"{ABSENT} $(uname -sm)\"",
                    cached_path()?
                )),
            }
        } else {
            let program = options.program.as_ref().map_or_else(own_binary, PathBuf::from);
            let mut command = Command::new(program);
            command.arg("agent");
            command
        };
        match self {
            Transport::Namespace(namespace) => namespace.enter_on_spawn(&mut command),
            Transport::Host(HostAddress::Netns(name)) => {
                NetNs::named(name).map_err(io::Error::other)?.enter_on_spawn(&mut command);
            }
            Transport::Host(_) => {}
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Ok(command)
    }

    /// The command that stores its standard input, which is `size` bytes, as this binary's copy on the host, in one step. A
    /// connection that breaks looks like the end of the input there: only a copy of the right size is taken for whole.
    pub(crate) fn install_command(&self, size: usize) -> io::Result<Command> {
        let script = format!(
            "f=\"{}\"; d=\"${{f%/*}}\"; n=\"$f.$$\"; umask 077; mkdir -p \"$d\" && cat > \"$n\" && \
             if [ $(wc -c < \"$n\") -eq {size} ]; then chmod 700 \"$n\" && mv -f \"$n\" \"$f\"; else rm -f \"$n\"; \
             echo \"only a part of it arrived\" >&2; exit 1; fi",
            cached_path()?
        );
        Ok(self.shell(&script))
    }

    /// The command to which a program and its arguments are added, where the host is a container.
    fn in_container(&self) -> Option<Command> {
        let mut command;
        match self {
            Transport::Host(HostAddress::Docker(container)) => {
                command = Command::new("docker");
                command.args(["exec", "-i", container]);
            }
            Transport::Host(HostAddress::Kubectl { namespace, pod, container }) => {
                command = Command::new("kubectl");
                command.args(["exec", "-i", "-n", namespace, pod]);
                if let Some(container) = container {
                    command.args(["-c", container]);
                }
                command.arg("--");
            }
            _ => return None,
        }
        Some(command)
    }

    /// A POSIX shell script on the host, with standard input and output passed through.
    fn shell(&self, script: &str) -> Command {
        if let Some(mut command) = self.in_container() {
            command.args(["sh", "-c", script]);
            return command;
        }
        let mut command;
        match self {
            Transport::Host(HostAddress::Ssh { user, host, port }) => {
                command = ssh();
                // The sshd of a busy host is late.
                command.args(["-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=20"]);
                // A host that vanishes is noticed within ten seconds.
                command.args(["-o", "ServerAliveInterval=2", "-o", "ServerAliveCountMax=4"]);
                if let Some(user) = user {
                    command.args(["-l", user]);
                }
                if let Some(port) = port {
                    command.args(["-p", &port.to_string()]);
                }
                // The login shell takes the script apart once more.
                command.args(["--", host, &format!("sh -c {}", word(script))]);
            }
            _ => {
                command = Command::new("sh");
                command.args(["-c", script]);
            }
        }
        command
    }
}

/// `ssh`, or what WEIR_SSH says instead (words separated by spaces, e.g. `ssh -F FILE`).
fn ssh() -> Command {
    let words = std::env::var("WEIR_SSH").unwrap_or_else(|_| "ssh".into());
    let mut words = words.split_whitespace();
    let mut command = Command::new(words.next().unwrap_or("ssh"));
    command.args(words);
    command
}

/// This binary. Not by its path, which may be replaced or removed (an upgrade, a rebuild) while this process runs; and not
/// `/proc/self`, which in a child before exec is the child.
pub(crate) fn own_binary() -> PathBuf {
    PathBuf::from(format!("/proc/{}/exe", std::process::id()))
}

/// The content of this binary.
pub(crate) fn own_bytes() -> io::Result<Vec<u8>> {
    std::fs::read(own_binary())
}

/// Returns the path of the copy on a host. The name contains a hash of the content, so another version is another file. `$HOME`
/// is the host's.
fn cached_path() -> io::Result<String> {
    static HASH: OnceLock<u64> = OnceLock::new();
    let hash = match HASH.get() {
        Some(hash) => *hash,
        None => {
            let bytes = own_bytes()?;
            *HASH.get_or_init(|| fnv1a(&bytes))
        }
    };
    Ok(format!("${{HOME:-/root}}/.cache/weir/agent-{}-{hash:016x}", env!("CARGO_PKG_VERSION")))
}

/// FNV-1a, 64 bits (draft-eastlake-fnv): tells builds apart; it does not defend against forgery, and the directory is the
/// user's own.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_lines_are_exact() {
        let line = |transport: &str| {
            let command = Transport::Host(transport.parse().unwrap()).shell("exec 'x' agent");
            let words = std::iter::once(command.get_program()).chain(command.get_args());
            words.map(|w| w.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(line("docker://web"), "docker exec -i web sh -c exec 'x' agent");
        assert_eq!(
            line("kubectl://prod/gw/main"),
            "kubectl exec -i -n prod gw -c main -- sh -c exec 'x' agent"
        );
        assert_eq!(
            line("ssh://me@gw:22"),
            "ssh -T -o BatchMode=yes -o ConnectTimeout=20 -o ServerAliveInterval=2 -o ServerAliveCountMax=4 -l me -p 22 -- gw \
             sh -c 'exec '\\''x'\\'' agent'"
        );
    }

    #[test]
    fn a_program_in_a_container_needs_no_shell_there() {
        let line = |transport: &str, sudo: bool| {
            let options = Options { program: Some("/usr/bin/weir".into()), sudo };
            let command = Transport::Host(transport.parse().unwrap()).start_command(&options).unwrap();
            let words = std::iter::once(command.get_program()).chain(command.get_args());
            words.map(|w| w.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(line("docker://web", false), "docker exec -i web /usr/bin/weir agent");
        assert_eq!(line("kubectl://prod/gw", false), "kubectl exec -i -n prod gw -- /usr/bin/weir agent");
        assert_eq!(line("docker://web", true), "docker exec -i web sh -c exec sudo -n /usr/bin/weir agent");
        assert!(line("ssh://gw", false).ends_with("sh -c 'exec /usr/bin/weir agent'"));
    }

    #[test]
    fn fnv_of_known_strings() {
        // Test vectors of the FNV reference code (Noll): "" and "a".
        assert_eq!(fnv1a(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a(b"a"), 0xaf63_dc4c_8601_ec8c);
    }
}
