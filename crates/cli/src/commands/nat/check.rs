//! `weir nat check --stun`.

use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, ToSocketAddrs};

use weir_nat::stun::{self, StunError, UdpExchange};
use weir_nat::{Compliance, Table};
use weir_text::layout::Terminal;

use super::document::NatCheck;
use super::page;
use crate::args::nat::NatCheckArgs;
use crate::documents::print_json;
use crate::exit::{CommandResult, Failure};
use crate::output::{Color, print, printable, width};

/// Port of STUN (RFC 8489 section 18.6).
const PORT: u16 = 3478;

pub(crate) fn run(server: &str, args: &NatCheckArgs, color: Color) -> CommandResult {
    let server = address(server, PORT)?;
    let (server, observations) = stun::measure(&mut UdpExchange::default(), server).map_err(|e| match e {
        StunError::Silent => Failure::failed(format!("{e} {server}; is UDP blocked on the way?")),
        other => Failure::failed(format!("{server}: {other}")),
    })?;
    let Table { kind, rows } = Table::of(&observations);
    // A STUN server shows two rows; about the others nothing is known.
    let made = [observations.udp_mapping.is_some(), observations.udp_filtering.is_some()];
    let ids = ["udp-mapping", "udp-filtering"];
    let shown = |id: &str| ids.iter().zip(made).any(|(known, made)| made && *known == id);
    let rows = rows.into_iter().filter(|line| shown(line.id)).collect();
    let check = NatCheck {
        weir: env!("CARGO_PKG_VERSION"),
        time: jiff::Timestamp::now().to_string(),
        server,
        kind,
        rows,
    };
    if args.json {
        print_json(&check)?;
    } else {
        let terminal = Terminal { width: width(), color: color.stdout };
        print(&printable(&page::check(&check, terminal)))?;
    }
    super::verdict_of(args.fail_on_must, &check.rows)?;
    let unsure = check.rows.iter().any(|line| line.judgement.verdict == Compliance::NotSure);
    if unsure {
        Err(Failure::failed("answers were lost or contradict each other; repeat the check"))
    } else {
        Ok(())
    }
}

/// `HOST` or `HOST:PORT`, looked up.
pub(super) fn address(text: &str, usual: u16) -> Result<SocketAddrV4, Failure> {
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) => (host, port.parse().ok().filter(|port| *port > 0)),
        None => (text, Some(usual)),
    };
    let plausible = !host.is_empty() && host.len() <= 253 && host.bytes().all(|c| c.is_ascii_graphic());
    let Some(port) = port.filter(|_| plausible && !host.contains(['/', '@', '[', ']', ':'])) else {
        return Err(Failure::usage(format!("{text}: expected a host name or an IPv4 address, or HOST:PORT")));
    };
    let known = match host.parse::<Ipv4Addr>() {
        Ok(ip) => vec![SocketAddr::from((ip, port))],
        Err(_) => (host, port)
            .to_socket_addrs()
            .map_err(|e| Failure::failed(format!("cannot look up {host}: {e}")))?
            .collect(),
    };
    let ipv4 = known.into_iter().find_map(|address| match address {
        SocketAddr::V4(address) => Some(address),
        SocketAddr::V6(_) => None,
    });
    ipv4.ok_or_else(|| Failure::failed(format!("{host} has no IPv4 address")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_read_with_and_without_a_port() {
        let read = |text| address(text, PORT).map(|a| a.to_string()).ok();
        assert_eq!(read("192.0.2.7").as_deref(), Some("192.0.2.7:3478"));
        assert_eq!(read("192.0.2.7:19302").as_deref(), Some("192.0.2.7:19302"));
        for wrong in ["", ":3478", "192.0.2.7:0", "192.0.2.7:x", "http://a/", "[::1]:3478", "a b"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
    }
}
