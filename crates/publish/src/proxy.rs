//! The userland proxies of Docker: processes that accept connections themselves.

use std::net::{IpAddr, SocketAddr};

use weir_sys::{NetNs, ProcRoot};

use crate::{Protocol, Result};

/// A proxy that runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Proxy {
    pub(crate) protocol: Protocol,
    pub(crate) published: SocketAddr,
    pub(crate) to: SocketAddr,
}

/// Those in the calling thread's network namespace, as far as their command lines can be read.
///
/// # Errors
/// If `/proc` does not show that namespace.
pub(crate) fn running(root: &ProcRoot) -> Result<Vec<Proxy>> {
    let own = NetNs::current()?.inode()?;
    let mut found: Vec<Proxy> = Vec::new();
    for pid in root.names("proc").iter().filter_map(|name| name.parse::<u32>().ok()) {
        let line = root.read_optional(&format!("proc/{pid}/cmdline"));
        let Some(proxy) = line.and_then(|line| of_line(&line)) else { continue };
        // It may have ended by now.
        let is_here = NetNs::of_pid(pid).and_then(|ns| ns.inode()).is_ok_and(|inode| inode == own);
        if is_here && !found.contains(&proxy) {
            found.push(proxy);
        }
    }
    Ok(found)
}

/// `docker-proxy -proto tcp -host-ip 0.0.0.0 -host-port 80 -container-ip 172.17.0.2 -container-port 80`, words ended by zeros.
fn of_line(line: &str) -> Option<Proxy> {
    let mut words = line.split('\0');
    let program = words.next()?;
    if program.rsplit('/').next() != Some("docker-proxy") {
        return None;
    }
    let words: Vec<&str> = words.collect();
    let value = |option: &str| {
        let at = words.iter().position(|word| word.trim_start_matches('-') == option)?;
        words.get(at + 1).copied()
    };
    let end = |address: &str, port: &str| {
        Some(SocketAddr::new(value(address)?.parse::<IpAddr>().ok()?, value(port)?.parse().ok()?))
    };
    let protocol = match value("proto")? {
        "tcp" => Protocol::Tcp,
        "udp" => Protocol::Udp,
        _ => return None,
    };
    Some(Proxy {
        protocol,
        published: end("host-ip", "host-port")?,
        to: end("container-ip", "container-port")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proxy_says_by_its_command_line_what_it_publishes() {
        let words = "/usr/bin/docker-proxy -proto tcp -host-ip 0.0.0.0 -host-port 80 -container-ip 172.17.0.2 -container-port 8080 \
                     -use-listen-fd ";
        let proxy = of_line(&words.replace(' ', "\0")).unwrap();
        assert_eq!(proxy.protocol, Protocol::Tcp);
        assert_eq!(
            (proxy.published.to_string(), proxy.to.to_string()),
            ("0.0.0.0:80".into(), "172.17.0.2:8080".into())
        );
        assert_eq!(of_line("/usr/bin/docker-proxy\0-proto\0sctp\0"), None);
        assert_eq!(of_line("cat\0docker-proxy\0"), None);
        assert_eq!(of_line(""), None);
    }
}
