//! The target: a host, an address with or without a port, or a URL.

use std::net::{Ipv6Addr, SocketAddr, ToSocketAddrs};

use crate::args::probe::{Mode, ProbeArgs};
use crate::exit::Failure;

/// The port of `weir serve`.
pub(crate) const OWN_PORT: u16 = 9347;

/// The port of an iperf3 server.
const IPERF3_PORT: u16 = 5201;

/// The default port of `connect`.
const HTTPS_PORT: u16 = 443;

/// A target whose name has been looked up.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Target {
    /// At least one.
    pub(crate) addresses: Vec<SocketAddr>,
    /// The URL, if the target is one.
    pub(crate) url: Option<Url>,
}

/// The parts of a URL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Url {
    pub(crate) tls: bool,
    /// As it is written for `Host`, with the port if that is not the scheme's.
    pub(crate) authority: String,
    pub(crate) host: String,
    pub(crate) port: u16,
    pub(crate) path: String,
}

impl Target {
    /// Reads the target from the arguments, and looks up its name.
    pub(crate) fn read(args: &ProbeArgs) -> Result<Target, Failure> {
        let url = url(&args.target).map_err(Failure::usage)?;
        let (host, port) = match &url {
            Some(url) => {
                if args.port.is_some() {
                    return Err(Failure::usage("--port: a URL has its port in itself"));
                }
                (url.host.clone(), url.port)
            }
            None => {
                let (host, own) = host_and_port(&args.target).map_err(Failure::usage)?;
                if own.is_some() && args.port.is_some() {
                    return Err(Failure::usage(format!("{}: the port is given twice", args.target)));
                }
                let usual = match (args.iperf3, args.mode) {
                    (true, _) => IPERF3_PORT,
                    (_, Some(Mode::Connect)) => HTTPS_PORT,
                    _ => OWN_PORT,
                };
                (host, own.or(args.port).unwrap_or(usual))
            }
        };
        let mut addresses = look_up(&host, port, (args.ipv4, args.ipv6))?;
        addresses.dedup();
        Ok(Target { addresses, url })
    }
}

/// The addresses of a name, at least one: of IPv4 only, of IPv6 only, or of both.
pub(crate) fn look_up(host: &str, port: u16, (ipv4, ipv6): (bool, bool)) -> Result<Vec<SocketAddr>, Failure> {
    let unknown = |e| Failure::failed(format!("cannot look up {host}: {e}"));
    let fits = |a: &SocketAddr| (!ipv4 || a.is_ipv4()) && (!ipv6 || a.is_ipv6());
    let found: Vec<SocketAddr> = (host, port).to_socket_addrs().map_err(unknown)?.filter(fits).collect();
    if found.is_empty() {
        let family = if ipv4 { "IPv4" } else { "IPv6" };
        return Err(Failure::failed(format!("{host} has no {family} address")));
    }
    Ok(found)
}

/// `host`, `host:port`, `192.0.2.1:port`, `2001:db8::1`, `[2001:db8::1]:port`.
pub(crate) fn host_and_port(text: &str) -> Result<(String, Option<u16>), String> {
    let wrong = || format!("{text}: expected HOST, HOST:PORT or [ADDRESS]:PORT");
    let port = |text: &str| text.parse::<u16>().ok().filter(|p| *p > 0).ok_or_else(wrong);
    let (host, number) = if let Some(rest) = text.strip_prefix('[') {
        let (host, after) = rest.split_once(']').ok_or_else(wrong)?;
        let number = match after.strip_prefix(':') {
            Some(number) => Some(port(number)?),
            None if after.is_empty() => None,
            None => return Err(wrong()),
        };
        (host, number)
    } else if text.matches(':').count() > 1 {
        // IPv6 without brackets has no port; a link may follow it, as in fe80::1%eth0.
        let address = text.split('%').next().unwrap_or(text);
        address.parse::<Ipv6Addr>().map_err(|_| wrong())?;
        (text, None)
    } else if let Some((host, number)) = text.split_once(':') {
        (host, Some(port(number)?))
    } else {
        (text, None)
    };
    let plausible = !host.is_empty() && host.len() <= 253 && host.bytes().all(|c| c.is_ascii_graphic());
    if !plausible || host.contains(['/', '@', '[', ']']) {
        return Err(wrong());
    }
    Ok((host.to_owned(), number))
}

/// `http://host:port/path?query`; `None` if it is no URL.
fn url(text: &str) -> Result<Option<Url>, String> {
    let Some((scheme, rest)) = text.split_once("://") else { return Ok(None) };
    let tls = match scheme.to_ascii_lowercase().as_str() {
        "http" => false,
        "https" => true,
        _ => return Err(format!("{text}: valid are http:// and https://")),
    };
    let at = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(at);
    // Clients never send the part after # (RFC 9110 section 4.2.5).
    let path = path.split('#').next().unwrap_or_default();
    let path = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
    let (host, port) = host_and_port(authority)?;
    let port = port.unwrap_or(if tls { 443 } else { 80 });
    Ok(Some(Url { tls, authority: authority.to_owned(), host, port, path }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_and_ports_are_told_apart() {
        for (text, host, port) in [
            ("example.net", "example.net", None),
            ("example.net:80", "example.net", Some(80)),
            ("192.0.2.1:5201", "192.0.2.1", Some(5201)),
            ("2001:db8::1", "2001:db8::1", None),
            ("[2001:db8::1]:80", "2001:db8::1", Some(80)),
            ("[::1]", "::1", None),
            ("fe80::1%eth0", "fe80::1%eth0", None),
            ("[fe80::1%eth0]:80", "fe80::1%eth0", Some(80)),
        ] {
            assert_eq!(host_and_port(text), Ok((host.to_owned(), port)), "{text}");
        }
        for bad in [
            "", ":80", "a:0", "a:65536", "a:b", "[::1", "[::1]80", "a b", "a/b", "u@h", "[::1]:", "1:2:3",
            "\x1b[m",
        ] {
            assert!(host_and_port(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn urls_are_taken_apart() {
        let parts = |text: &str| url(text).unwrap().map(|u| (u.tls, u.host, u.port, u.path));
        assert_eq!(parts("http://h"), Some((false, "h".into(), 80, "/".into())));
        assert_eq!(parts("HTTPS://h:8443/a?b#c"), Some((true, "h".into(), 8443, "/a?b".into())));
        assert_eq!(parts("http://[::1]:8080?x"), Some((false, "::1".into(), 8080, "/?x".into())));
        assert_eq!(parts("host"), None);
        for bad in ["ftp://h", "http://", "http://u@h/", "http://h:x/"] {
            assert!(url(bad).is_err(), "{bad}");
        }
    }
}
