//! How an agent is started on a host.

use std::fmt;
use std::fs::File;
use std::io::{self, Read};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::OnceLock;

use weir_sys::NetNs;

/// A host as the scenario names it.
#[derive(Debug)]
pub enum Transport {
    /// A network namespace of the lab: the same binary, entered into it.
    Namespace(NetNs),
    /// A named network namespace of this machine (`/run/netns/NAME`).
    Named(String),
    /// This machine.
    Local,
    /// `ssh://[user@]host[:port]`: `ssh` with the user's own configuration, keys and agent.
    Ssh {
        /// `[user@]host` as ssh takes it.
        destination: String,
        /// Port, if not ssh's own default.
        port: Option<u16>,
    },
    /// `docker://CONTAINER`: `docker exec`.
    Docker {
        /// Name or id.
        container: String,
    },
    /// `kubectl://NAMESPACE/POD[/CONTAINER]`: `kubectl exec`.
    Kubectl {
        /// Namespace.
        namespace: String,
        /// Pod.
        pod: String,
        /// Container, if the pod has several.
        container: Option<String>,
    },
}

/// What a remote host's agent is started as.
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
            Transport::Named(name) => write!(f, "netns:{name}"),
            Transport::Local => write!(f, "local"),
            Transport::Ssh { destination, port: None } => write!(f, "ssh://{destination}"),
            Transport::Ssh { destination, port: Some(port) } => write!(f, "ssh://{destination}:{port}"),
            Transport::Docker { container } => write!(f, "docker://{container}"),
            Transport::Kubectl { namespace, pod, container: None } => {
                write!(f, "kubectl://{namespace}/{pod}")
            }
            Transport::Kubectl { namespace, pod, container: Some(c) } => {
                write!(f, "kubectl://{namespace}/{pod}/{c}")
            }
        }
    }
}

impl std::str::FromStr for Transport {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        // A name that begins with a dash would be an option to the program that gets it.
        let word = |s: &str| -> Result<String, String> {
            let bad =
                s.is_empty() || s.starts_with('-') || s.chars().any(|c| c.is_whitespace() || c.is_control());
            if bad { Err(format!("`{text}`: `{s}` is not a name")) } else { Ok(s.to_owned()) }
        };
        if text == "local" {
            return Ok(Transport::Local);
        }
        if let Some(name) = text.strip_prefix("netns:") {
            return Ok(Transport::Named(word(name)?));
        }
        if let Some(rest) = text.strip_prefix("ssh://") {
            // An IPv6 address needs its brackets to have a port.
            let (host, port) = match rest.rsplit_once(':') {
                Some((host, port)) if !port.contains(']') && (!host.contains(':') || host.ends_with(']')) => {
                    let number = port.parse().map_err(|_| format!("`{text}`: `{port}` is not a port"))?;
                    (host, Some(number))
                }
                _ => (rest, None),
            };
            let destination = host.replace(['[', ']'], "");
            return Ok(Transport::Ssh { destination: word(&destination)?, port });
        }
        if let Some(container) = text.strip_prefix("docker://") {
            return Ok(Transport::Docker { container: word(container)? });
        }
        if let Some(rest) = text.strip_prefix("kubectl://") {
            let parts: Vec<&str> = rest.split('/').collect();
            return match parts[..] {
                [namespace, pod] => {
                    Ok(Transport::Kubectl { namespace: word(namespace)?, pod: word(pod)?, container: None })
                }
                [namespace, pod, container] => Ok(Transport::Kubectl {
                    namespace: word(namespace)?,
                    pod: word(pod)?,
                    container: Some(word(container)?),
                }),
                _ => Err(format!("`{text}`: valid is kubectl://NAMESPACE/POD[/CONTAINER]")),
            };
        }
        Err(format!(
            "`{text}` is not a host; valid are netns:NAME, local, ssh://[user@]host[:port], docker://CONTAINER and \
             kubectl://NAMESPACE/POD[/CONTAINER]"
        ))
    }
}

/// First word of what [`Transport::start_command`] prints when the host has no copy of this binary yet.
pub(crate) const ABSENT: &str = "#weir-absent#";

impl Transport {
    /// True if the host is reached through another program, and may lack this binary.
    pub(crate) fn is_remote(&self) -> bool {
        matches!(self, Transport::Ssh { .. } | Transport::Docker { .. } | Transport::Kubectl { .. })
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
            match &options.program {
                Some(program) => self.shell(&format!("exec {sudo}{} agent", quoted(program))),
                None => self.shell(&format!(
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
            Transport::Named(name) => {
                NetNs::named(name).map_err(io::Error::other)?.enter_on_spawn(&mut command)
            }
            _ => {}
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        Ok(command)
    }

    /// The command that stores its standard input as this binary's copy on the host, in one step: a copy that was
    /// interrupted is never taken for whole.
    pub(crate) fn install_command(&self) -> io::Result<Command> {
        let script = format!(
            "f=\"{}\"; d=\"${{f%/*}}\"; umask 077; mkdir -p \"$d\" && cat > \"$f.$$\" && chmod 700 \"$f.$$\" && \
             mv -f \"$f.$$\" \"$f\"",
            cached_path()?
        );
        let mut command = self.shell(&script);
        command.stdin(File::open(own_binary())?);
        Ok(command)
    }

    /// A POSIX shell script on the host, with standard input and output passed through.
    fn shell(&self, script: &str) -> Command {
        match self {
            Transport::Ssh { destination, port } => {
                let mut command = ssh();
                command.args(["-T", "-o", "BatchMode=yes", "-o", "ConnectTimeout=8"]);
                // A host that vanishes is noticed within ten seconds.
                command.args(["-o", "ServerAliveInterval=2", "-o", "ServerAliveCountMax=4"]);
                if let Some(port) = port {
                    command.args(["-p", &port.to_string()]);
                }
                // The login shell takes the script apart once more.
                command.args(["--", destination, &format!("sh -c {}", quoted(script))]);
                command
            }
            Transport::Docker { container } => {
                let mut command = Command::new("docker");
                command.args(["exec", "-i", container, "sh", "-c", script]);
                command
            }
            Transport::Kubectl { namespace, pod, container } => {
                let mut command = Command::new("kubectl");
                command.args(["exec", "-i", "-n", namespace, pod]);
                if let Some(container) = container {
                    command.args(["-c", container]);
                }
                command.args(["--", "sh", "-c", script]);
                command
            }
            Transport::Namespace(_) | Transport::Named(_) | Transport::Local => {
                let mut command = Command::new("sh");
                command.args(["-c", script]);
                command
            }
        }
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

/// One word for a POSIX shell.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// This binary. Not by its path, which may be replaced or removed (an upgrade, a rebuild) while this process runs; and not
/// `/proc/self`, which in a child before exec is the child.
fn own_binary() -> PathBuf {
    PathBuf::from(format!("/proc/{}/exe", std::process::id()))
}

/// Where the copy lies on a host: named by its content, so that another version is another file. `$HOME` is the host's.
fn cached_path() -> io::Result<String> {
    static HASH: OnceLock<u64> = OnceLock::new();
    let hash = match HASH.get() {
        Some(hash) => *hash,
        None => {
            let mut bytes = Vec::new();
            File::open(own_binary())?.read_to_end(&mut bytes)?;
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
    fn hosts_are_read_as_they_are_written() {
        for text in [
            "netns:blue",
            "local",
            "ssh://gw",
            "ssh://me@10.0.0.1:2222",
            "docker://web-1",
            "kubectl://default/pod-1",
            "kubectl://default/pod-1/main",
        ] {
            assert_eq!(text.parse::<Transport>().unwrap().to_string(), text);
        }
        let Transport::Ssh { destination, port } = "ssh://me@[2001:db8::1]:22".parse().unwrap() else {
            panic!("not ssh")
        };
        assert_eq!((destination.as_str(), port), ("me@2001:db8::1", Some(22)));
    }

    #[test]
    fn what_could_be_an_option_or_is_no_host_is_refused() {
        for text in [
            "",
            "gw",
            "ssh://",
            "ssh://-oProxyCommand=x",
            "ssh://a:b",
            "docker://a b",
            "kubectl://x",
            "netns:",
        ] {
            assert!(text.parse::<Transport>().is_err(), "{text}");
        }
    }

    #[test]
    fn command_lines_are_exact() {
        let line = |transport: &str| {
            let transport: Transport = transport.parse().unwrap();
            let command = transport.shell("exec 'x' agent");
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
            "ssh -T -o BatchMode=yes -o ConnectTimeout=8 -o ServerAliveInterval=2 -o ServerAliveCountMax=4 -p 22 -- me@gw \
             sh -c 'exec '\\''x'\\'' agent'"
        );
    }

    #[test]
    fn fnv_of_known_strings() {
        // Test vectors of the FNV reference code (Noll): "" and "a".
        assert_eq!(fnv1a(b""), 0xcbf2_9ce4_8422_2325);
        assert_eq!(fnv1a(b"a"), 0xaf63_dc4c_8601_ec8c);
    }
}
