//! Long segments to a host beyond this one vanish.

use super::{recipes, signs};
use crate::causes::{Cause, EvidenceView, Group};
use crate::command::nft::nft;
use crate::evidence::{EvidenceSource, Namespace, StuckHost, TransitNetwork};
use crate::finding::{Confidence, Finding, Fix, Severity};

pub(super) const CAUSE: Cause = Cause {
    id: "transit-mtu",
    title: "long segments vanish beyond this host: a path MTU black hole",
    about: "A link beyond this host carries less than the ends of the connections that pass here send, and the ICMP error that \
            reports it does not reach the sender: a firewall drops it, or a tunnel answers with none. Connections are set up, \
            because those packets are short; the first long segment passes here, vanishes, and passes here again and again. \
            To this host every packet went out.",
    must: &[
        "connections stand still at a segment of at least 600 bytes that passed here three times or more",
        "no segment as long as those was acknowledged by the same host",
        "short packets come from that host: it lives",
    ],
    should: &["several connections to the same host do so"],
    must_not: &["short segments are stuck as well", "this host drops the segments itself"],
    lookalikes: &[
        ("pmtu-blackhole-remote", "this host is the sender itself"),
        ("pmtu-blackhole-own", "this host's firewall drops the errors"),
        ("fragmentation-needed", "this host drops the segments and says so"),
        ("transit-loss-behind", "segments of any length are lost, and some arrive"),
    ],
    yields_to: &[
        "pmtu-blackhole-own",
        "fragmentation-needed",
        "mtu-mismatch",
        "xdp-drop",
        "checksum-offload",
        "bridge-blocked",
        "duplicate-address",
        "link-down",
    ],
    remedy: "Clamp the segment size of the connections that pass (`tcp option maxseg size set`) to what the path carries, 1,220 \
             bytes if it is unknown, and have the operator of the path let ICMP errors through.",
    sources: &["RFC 2923 section 2.1", "RFC 4821", "RFC 8899", "RFC 9293 section 3.7.1"],
    recipes: recipes::mtu,
    ..Cause::of(Group::Transit, examine)
};

fn examine(view: &EvidenceView<'_>) -> Vec<Finding> {
    let here = signs::lost_here(view).segments;
    let mut findings = Vec::new();
    for namespace in view.namespaces() {
        for network in signs::networks(namespace) {
            let hosts: Vec<&StuckHost> = network.stuck.iter().filter(|host| signs::swallows(host)).collect();
            let times: u64 = hosts.iter().map(|host| host.times).sum();
            if !hosts.is_empty() && !signs::explains(here, times) {
                findings.push(of(view, namespace, network, &hosts));
            }
        }
    }
    findings
}

fn of(
    view: &EvidenceView<'_>,
    namespace: &Namespace,
    network: &TransitNetwork,
    hosts: &[&StuckHost],
) -> Finding {
    let stuck: u64 = hosts.iter().map(|host| host.long).sum();
    let times: u64 = hosts.iter().map(|host| host.times).sum();
    let shortest = hosts.iter().map(|host| host.shortest).min().unwrap_or(0);
    let mut finding = view.finding(CAUSE.id, namespace, 0);
    finding.severity = if stuck >= 3 { Severity::Critical } else { Severity::Warning };
    finding.confidence = if stuck >= 2 { Confidence::High } else { Confidence::Medium };
    finding.object = match hosts {
        [one] => one.address.to_string(),
        _ => network.network.clone(),
    };
    finding.impact = stuck as f64 / network.flows.max(stuck).max(1) as f64;
    finding.summary = format!(
        "Segments of {shortest} bytes and more vanish between this host's {} and {}: {stuck} connections stand still at one that \
         passed here again and again, and short packets arrive. A link there carries less, and the error that reports it is lost.",
        network.interface, finding.object
    );
    for host in hosts {
        let carried = match host.carried {
            0 => "it acknowledged no longer one".to_owned(),
            bytes => format!("the longest one that it acknowledged had {bytes}"),
        };
        let text = format!(
            "{}: {} connections stand still at segments of {} to {} bytes, which came {} times more; {carried}",
            host.address, host.long, host.shortest, host.longest, host.times
        );
        finding.seen(EvidenceSource::Transit, text);
    }
    finding.not.push(format!("not on this machine: it dropped less than half of {times} segments"));
    finding.missing = view.missing(namespace, &[EvidenceSource::Drops, EvidenceSource::Transit]);
    if finding.missing.contains(&EvidenceSource::Drops) {
        finding.confidence = Confidence::Low;
    }
    finding.fixes = vec![clamp()];
    finding
}

/// Both ends learn the size while a connection is set up, so the rule meets each SYN and its answer.
fn clamp() -> Fix {
    Fix::new(
        "clamp the segment size of connections that pass to what any path carries",
        "for new connections only; those that could use longer segments carry a little less",
        [
            nft!("add table inet weir_mss"),
            nft!("add chain inet weir_mss forward { type filter hook forward priority -150; }"),
            nft!("add rule inet weir_mss forward tcp flags syn tcp option maxseg size set 1220"),
        ],
        [nft!("delete table inet weir_mss")],
    )
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{dropped, host, network};
    use super::*;

    fn stuck() -> StuckHost {
        StuckHost {
            address: "198.19.0.2".parse().unwrap(),
            long: 4,
            times: 14,
            shortest: 1448,
            longest: 1448,
            short: 0,
            carried: 0,
            answers: true,
        }
    }

    fn host_with(stuck: StuckHost) -> crate::evidence::Evidence {
        host(vec![TransitNetwork { stuck: vec![stuck], ..network(true) }])
    }

    fn found(stuck: StuckHost) -> Vec<Finding> {
        examine(&EvidenceView::of(&host_with(stuck)))
    }

    #[test]
    fn long_segments_that_never_arrive_convict() {
        let all = found(stuck());
        let found = &all[0];
        assert_eq!((found.severity, found.confidence), (Severity::Critical, Confidence::High));
        assert_eq!(found.object, "198.19.0.2");
        assert!(found.summary.contains("Segments of 1448 bytes and more vanish"), "{}", found.summary);
        let carries_short = examine(&EvidenceView::of(&host_with(StuckHost { carried: 300, ..stuck() })));
        assert_eq!(carries_short.len(), 1);
    }

    #[test]
    fn an_outage_a_long_one_that_arrives_and_a_drop_here_do_not() {
        assert_eq!(found(StuckHost { answers: false, ..stuck() }), []);
        assert_eq!(found(StuckHost { short: 4, ..stuck() }), []);
        assert_eq!(found(StuckHost { carried: 1448, ..stuck() }), []);
        let mut own = host_with(stuck());
        own.drops.push(dropped(0x18, 14));
        assert_eq!(examine(&EvidenceView::of(&own)), []);
    }
}
