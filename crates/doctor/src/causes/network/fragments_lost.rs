//! Fragments do not come together.

use super::frames::first_pieces;
use super::ways::{Loss, name_of, such_as};
use crate::causes::{Cause, EvidenceView, Group};
use crate::command::nft::nft;
use crate::evidence::{EvidenceSource, Namespace};
use crate::finding::{Confidence, Finding, Fix, Severity};
use crate::recipe::{LabHost, Recipe, Step};

pub(super) const CAUSE: Cause = Cause {
    id: "fragments-lost",
    title: "fragments that are never reassembled",
    about: "A fragmented datagram is complete only when all of its fragments arrive. Firewalls, load balancers and NATs \
            often drop fragments, because only the first one has ports. Then the rest waits here until its time is over \
            (`ipfrag_time`, 30 s) and is dropped. DNS with long answers (DNSSEC), SIP, RADIUS, NFS over UDP and VPNs that \
            fragment suffer; small datagrams work. A router with connection tracking also reassembles fragments; then the \
            failure shows there and no ICMP error is sent.",
    must: &[
        "ReasmFails and ReasmTimeout grow, or many datagrams wait incomplete while hardly any is completed",
    ],
    should: &["packets dropped as FRAG_REASM_TIMEOUT"],
    must_not: &["a rule here drops fragments", "the memory for reassembly is used up"],
    lookalikes: &[
        (
            "reassembly-memory",
            "fragments are refused at once, because memory is full: ReasmFails without ReasmTimeout",
        ),
        ("mtu-mismatch", "long packets are lost whole"),
    ],
    yields_to: &["reassembly-memory"],
    remedy: "Avoid fragments: datagrams of at most 1232 bytes for DNS (EDNS buffer size), a smaller MTU in tunnels, TCP \
             instead. If you run the path, let fragments through.",
    sources: &["RFC 8900", "RFC 791 section 3.2", "net/ipv4/ip_fragment.c: ip_expire", "RFC 9715"],
    recipes,
    ..Cause::of(Group::Network, |view| view.each(in_namespace))
};

/// Datagrams that wait incomplete from which they are more than some that are on their way.
const WAITING: u64 = 16;

/// How reassembly went in the window.
#[derive(Debug, Clone, Copy, Default)]
struct Reassembly {
    arrived: u64,
    completed: u64,
    timed_out: u64,
    /// Datagrams that wait at the window's end.
    waiting: u64,
}

fn reassembly(namespace: &Namespace) -> Reassembly {
    let both = |name: &str| namespace.grew(&format!("ip.{name}")) + namespace.grew(&format!("ip6.{name}"));
    let waiting = |name: &str| namespace.gauge(name).unwrap_or(0);
    Reassembly {
        arrived: both("ReasmReqds"),
        completed: both("ReasmOKs"),
        timed_out: both("ReasmTimeout"),
        waiting: waiting("sockstat.FRAG.inuse") + waiting("sockstat6.FRAG6.inuse"),
    }
}

fn in_namespace(view: &EvidenceView<'_>, namespace: &Namespace) -> Option<Finding> {
    let seen = reassembly(namespace);
    let taken = view.take(namespace, |d| d.reason == "FRAG_REASM_TIMEOUT");
    let loss = Loss::of(view, namespace, taken, &["ip.ReasmTimeout", "ip6.ReasmTimeout"]);
    // Those that wait are not lost yet, but what came in the window and was not completed will be.
    // A datagram that was completed took two fragments at least.
    let unfinished = seen.arrived.saturating_sub(2 * seen.completed);
    let piled_up = seen.waiting >= WAITING && unfinished >= WAITING && seen.completed < seen.waiting;
    let mut finding = match loss.finding(view, CAUSE.id, namespace) {
        Some(finding) => finding,
        None if piled_up => view.finding(CAUSE.id, namespace, 0),
        None => return None,
    };
    if piled_up {
        finding.severity = finding.severity.max(Severity::Warning);
        finding.impact = seen.waiting as f64 / (seen.waiting + seen.completed) as f64;
        let text = format!(
            "{} datagrams wait for the rest of their fragments; {} fragments came in the window, and {} datagrams were completed",
            seen.waiting, seen.arrived, seen.completed
        );
        finding.seen(EvidenceSource::Counters, text);
    }
    if seen.timed_out > 0 && !loss.taken.is_empty() {
        finding.confidence = Confidence::High;
    }
    let example = loss.taken.example();
    let from = such_as(example);
    finding.object = example.map_or_else(|| interface_of_most(namespace), |t| t.source.to_string());
    finding.summary = if seen.timed_out > 0 || loss.packets > 0 {
        format!(
            "{} datagrams{from} were not reassembled: some of their fragments never arrived.",
            seen.timed_out.max(u64::from(loss.packets > 0))
        )
    } else {
        format!("{} datagrams wait for fragments that do not come.", seen.waiting)
    };
    if let Some(time) = namespace.setting("net.ipv4.ipfrag_time") {
        finding.seen(EvidenceSource::Settings, format!("net.ipv4.ipfrag_time = {time} s"));
    }
    finding.fixes.push(let_through());
    Some(finding)
}

/// The busiest interface, where no packet says more.
fn interface_of_most(namespace: &Namespace) -> String {
    let others = namespace.interfaces.iter().filter(|i| i.name != "lo");
    others.max_by_key(|i| i.grew("rx_packets")).map_or(String::new(), |i| name_of(namespace, i.index))
}

fn let_through() -> Fix {
    Fix::new(
        "let fragments through on the firewall that drops them, before rules that look at ports",
        "fragments pass without a look at their ports; with connection tracking the firewall sees whole datagrams and needs \
               no such rule",
        [nft!("insert rule FAMILY TABLE CHAIN ip frag-off & 0x1fff != 0 accept")],
        [nft!("delete rule FAMILY TABLE CHAIN handle HANDLE")],
    )
}

fn recipes() -> Vec<Recipe> {
    let firsts = first_pieces();
    vec![
        Recipe {
            name: "receiver",
            at: LabHost::Responder,
            setup: vec![Step::responder("sysctl -qw net.ipv4.ipfrag_time=1")],
            traffic: vec![firsts.clone()],
            ..Recipe::default()
        },
        Recipe {
            name: "waiting",
            at: LabHost::Responder,
            traffic: vec![firsts.clone()],
            ..Recipe::default()
        },
        Recipe::named(
            "tracked",
            vec![Step::gateway("sysctl -qw net.ipv4.ipfrag_time=1"), Step::tracking()],
            vec![firsts],
        ),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{INSIDE, blind, count, datagram, drops, healthy};
    use super::*;
    use crate::evidence::Evidence;

    fn case(completed: u64) -> Evidence {
        let mut evidence = healthy();
        let sample = datagram("198.18.0.2", "198.19.0.2", INSIDE);
        evidence.drops.push(drops("FRAG_REASM_TIMEOUT", "ip_expire", 400, &[sample]));
        count(&mut evidence, "ip.ReasmReqds", 400 + 2 * completed);
        count(&mut evidence, "ip.ReasmOKs", completed);
        count(&mut evidence, "ip.ReasmTimeout", 400);
        count(&mut evidence, "ip.ReasmFails", 400);
        evidence
    }

    #[test]
    fn what_timed_out_is_told_with_its_sender() {
        let found = (CAUSE.examine)(&EvidenceView::of(&case(5)));
        assert_eq!((found[0].confidence, found[0].object.as_str()), (Confidence::High, "198.18.0.2"));
        assert_eq!((CAUSE.examine)(&EvidenceView::of(&blind(case(5)))).len(), 1);
    }

    #[test]
    fn what_still_waits_is_seen_before_its_time_is_over() {
        let mut evidence = healthy();
        count(&mut evidence, "ip.ReasmReqds", 900);
        evidence.namespaces[0].gauges.insert("sockstat.FRAG.inuse".into(), 900);
        let found = (CAUSE.examine)(&EvidenceView::of(&evidence));
        assert_eq!((found[0].severity, found[0].claims.len()), (Severity::Warning, 0));
        count(&mut evidence, "ip.ReasmOKs", 9000);
        count(&mut evidence, "ip.ReasmReqds", 19_000);
        assert_eq!((CAUSE.examine)(&EvidenceView::of(&evidence)), [], "a busy host has some on their way");
    }

    #[test]
    fn fragments_that_come_together_are_fine() {
        let mut evidence = healthy();
        count(&mut evidence, "ip.ReasmReqds", 9000);
        count(&mut evidence, "ip.ReasmOKs", 4500);
        assert_eq!((CAUSE.examine)(&EvidenceView::of(&evidence)), []);
        count(&mut evidence, "ip.ReasmFails", 4500);
        assert_eq!((CAUSE.examine)(&EvidenceView::of(&evidence)), [], "no memory is another cause");
    }
}
