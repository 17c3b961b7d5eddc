//! `weir nat check --stun`.

use std::net::SocketAddr;

use weir_nat::stun::{self, StunError, UdpExchange};
use weir_nat::{Compliance, Table};

use super::document::NatCheck;
use super::page;
use crate::args::nat::{NatCheckArgs, VersionArgs};
use crate::commands::probe::{host_and_port, look_up};
use crate::exit::{CommandResult, Failure};
use crate::output::{Color, printable};

/// Port of STUN (RFC 8489 section 18.6).
const PORT: u16 = 3478;

pub(crate) fn run(server: &str, args: &NatCheckArgs, color: Color) -> CommandResult {
    let server = address(server, PORT, &args.version)?;
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
    let page = || Ok(printable(&page::check(&check, color.terminal())));
    super::tell(&check, (args.json, args.markdown, args.html), page)?;
    super::verdict_of(args.fail_on_must, &check.rows)?;
    let unsure = check.rows.iter().any(|line| line.judgement.verdict == Compliance::NotSure);
    if unsure {
        Err(Failure::failed("answers were lost or contradict each other; repeat the check"))
    } else {
        Ok(())
    }
}

/// A server and how it is reached: one version of IP, IPv4 where nothing else is asked for and there is one.
pub(super) fn address(text: &str, usual: u16, version: &VersionArgs) -> Result<SocketAddr, Failure> {
    let (host, port) = host_and_port(text).map_err(Failure::usage)?;
    let found = look_up(&host, port.unwrap_or(usual), (version.ipv4, version.ipv6))?;
    Ok(found.iter().copied().find(SocketAddr::is_ipv4).unwrap_or(found[0]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_read_with_and_without_a_port() {
        let any = VersionArgs::default();
        let read = |text| address(text, PORT, &any).map(|a| a.to_string()).ok();
        assert_eq!(read("192.0.2.7").as_deref(), Some("192.0.2.7:3478"));
        assert_eq!(read("192.0.2.7:19302").as_deref(), Some("192.0.2.7:19302"));
        assert_eq!(read("2001:db8::7").as_deref(), Some("[2001:db8::7]:3478"));
        assert_eq!(read("[2001:db8::7]:19302").as_deref(), Some("[2001:db8::7]:19302"));
        for wrong in ["", ":3478", "192.0.2.7:0", "192.0.2.7:x", "http://a/", "a b"] {
            assert_eq!(read(wrong), None, "{wrong}");
        }
        let ipv6 = VersionArgs { ipv4: false, ipv6: true };
        assert!(address("192.0.2.7", PORT, &ipv6).is_err() && address("::1", PORT, &ipv6).is_ok());
    }
}
