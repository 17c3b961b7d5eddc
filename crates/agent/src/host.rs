//! The address of a testbed host, and how weir starts its agent there.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Address of a host in a scenario: `local`, `netns:NAME`, `ssh://[USER@]HOST[:PORT]`, `docker://CONTAINER` or
/// `kubectl://NAMESPACE/POD[/CONTAINER]`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum HostAddress {
    /// This machine, where weir runs.
    Local,
    /// A named network namespace of this machine (`ip netns`).
    Netns(String),
    /// Another machine, by ssh with the user's own configuration, keys and known hosts.
    Ssh {
        /// Login, where it is not the one that ssh takes by itself.
        user: Option<String>,
        /// Name or address; IPv6 without brackets here, with them when written.
        host: String,
        /// Port, where it is not the one that ssh takes by itself.
        port: Option<u16>,
    },
    /// A running container, by `docker exec`.
    Docker(String),
    /// A running pod, by `kubectl exec`.
    Kubectl {
        /// Namespace.
        namespace: String,
        /// Pod.
        pod: String,
        /// Container, where the pod has several.
        container: Option<String>,
    },
}

/// The syntax of each form, for messages.
const FORMS: &str = "local, netns:NAME, ssh://[USER@]HOST[:PORT], docker://CONTAINER or \
                                kubectl://NAMESPACE/POD[/CONTAINER]";

/// A word that may stand on the command line of ssh, docker or kubectl: never one that reads as an option, and nothing that
/// a shell at the other end could take for its own.
fn word(text: &str) -> Result<String, String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || "._-:%".contains(c);
    if text.is_empty() || text.starts_with('-') || !text.chars().all(allowed) {
        return Err(format!("`{text}` is not a name"));
    }
    Ok(text.to_owned())
}

fn ssh(rest: &str) -> Result<HostAddress, String> {
    let (user, place) = match rest.rsplit_once('@') {
        Some((user, place)) => (Some(word(user)?), place),
        None => (None, rest),
    };
    let (host, port) = match place.strip_prefix('[').and_then(|p| p.split_once(']')) {
        Some((host, "")) => (host, None),
        Some((host, port)) => (host, Some(port.strip_prefix(':').ok_or("a port follows `]` after `:`")?)),
        // More than one colon is an IPv6 address without a port.
        None if place.matches(':').count() == 1 => {
            place.split_once(':').map_or((place, None), |(host, port)| (host, Some(port)))
        }
        None => (place, None),
    };
    let port = match port {
        Some(port) => {
            Some(port.parse().ok().filter(|p| *p > 0).ok_or_else(|| format!("`{port}` is not a port"))?)
        }
        None => None,
    };
    Ok(HostAddress::Ssh { user, host: word(host)?, port })
}

impl FromStr for HostAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let parsed = if text == "local" {
            Ok(HostAddress::Local)
        } else if let Some(name) = text.strip_prefix("netns:") {
            word(name).map(HostAddress::Netns)
        } else if let Some(rest) = text.strip_prefix("ssh://") {
            ssh(rest)
        } else if let Some(name) = text.strip_prefix("docker://") {
            word(name).map(HostAddress::Docker)
        } else if let Some(rest) = text.strip_prefix("kubectl://") {
            kubectl(rest)
        } else {
            Err("not a form of host that weir knows".to_owned())
        };
        parsed.map_err(|why| format!("host \"{text}\": {why}; expected {FORMS}"))
    }
}

fn kubectl(rest: &str) -> Result<HostAddress, String> {
    let parts = rest.split('/').map(word).collect::<Result<Vec<_>, _>>()?;
    match <[String; 2]>::try_from(parts) {
        Ok([namespace, pod]) => Ok(HostAddress::Kubectl { namespace, pod, container: None }),
        Err(parts) => match <[String; 3]>::try_from(parts) {
            Ok([namespace, pod, container]) => {
                Ok(HostAddress::Kubectl { namespace, pod, container: Some(container) })
            }
            Err(_) => Err("a namespace and a pod are needed".to_owned()),
        },
    }
}

impl TryFrom<String> for HostAddress {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<HostAddress> for String {
    fn from(host: HostAddress) -> String {
        host.to_string()
    }
}

impl fmt::Display for HostAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            HostAddress::Local => write!(f, "local"),
            HostAddress::Netns(name) => write!(f, "netns:{name}"),
            HostAddress::Ssh { user, host, port } => {
                write!(f, "ssh://")?;
                if let Some(user) = user {
                    write!(f, "{user}@")?;
                }
                if host.contains(':') {
                    write!(f, "[{host}]")?
                } else {
                    write!(f, "{host}")?
                }
                port.map_or(Ok(()), |port| write!(f, ":{port}"))
            }
            HostAddress::Docker(name) => write!(f, "docker://{name}"),
            HostAddress::Kubectl { namespace, pod, container } => {
                write!(f, "kubectl://{namespace}/{pod}")?;
                container.as_ref().map_or(Ok(()), |container| write!(f, "/{container}"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_form_is_read_and_written_back() {
        for text in [
            "local",
            "netns:lab0",
            "ssh://gw",
            "ssh://root@10.0.1.5",
            "ssh://root@10.0.1.5:2222",
            "ssh://root@[2001:2::1]:22",
            "ssh://[fe80::1%eth0]",
            "docker://weir_1",
            "kubectl://default/pod-1",
            "kubectl://default/pod-1/sidecar",
        ] {
            let host: HostAddress = text.parse().unwrap_or_else(|e| panic!("{e}"));
            assert_eq!(host.to_string(), text);
        }
        assert_eq!(
            "ssh://2001:2::1".parse(),
            Ok(HostAddress::Ssh { user: None, host: "2001:2::1".into(), port: None })
        );
    }

    #[test]
    fn what_could_be_taken_for_an_option_or_a_command_is_refused() {
        for text in [
            "",
            "Local",
            "netns:",
            "10.0.0.1",
            "ssh://",
            "ssh://-oProxyCommand=id",
            "ssh://user@",
            "ssh://-l@host",
            "ssh://host:0",
            "ssh://host:70000",
            "ssh://[::1]22",
            "ssh://host;reboot",
            "docker://a b",
            "docker://--privileged",
            "kubectl://pod",
            "kubectl://a/b/c/d",
            "kubectl://a//c",
        ] {
            let error = text.parse::<HostAddress>().unwrap_err();
            assert!(error.contains("ssh://[USER@]HOST[:PORT]"), "{text}: {error}");
        }
    }
}
