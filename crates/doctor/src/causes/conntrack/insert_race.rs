//! Two packets at the same moment want the same tuple.

use super::refused::{Refused, Where, claims, fact};
use crate::causes::{Cause, EvidenceView, Group};
use crate::command::{nft::nft, sh};
use crate::evidence::{EvidenceSource, Namespace};
use crate::finding::{Confidence, Finding, Fix};
use crate::recipe::{LabHost, Recipe, Step, Traffic, UdpMode};

pub(super) const CAUSE: Cause = Cause {
    id: "conntrack-insert-race",
    title: "two packets raced for one connection-tracking entry",
    about: "A connection gets its entry when its first packet comes in, and the entry goes into the table when that packet \
            leaves. Between the two, a packet on another core can do the same with the same addresses and ports: two \
            queries of a resolver on one socket (A and AAAA), or two clients with the same source port that source NAT \
            gives the same outside port to. The second one to leave finds its place taken. The kernel resolves most of \
            these clashes; if translation made the two different, it drops the packet. A resolver then waits five seconds.",
    must: &[
        "conntrack `insert_failed` and `drop` grow by the same, small number",
        "ports of source NAT are free",
    ],
    should: &["`clash_resolve` grows: clashes that the kernel resolved"],
    must_not: &["chains that are too long (`chain_toolong`)"],
    lookalikes: &[
        (
            "snat-ports-exhausted",
            "there all ports towards the destination are taken, and every new connection fails",
        ),
        ("conntrack-hash-small", "there `chain_toolong` grows"),
    ],
    yields_to: &["snat-ports-exhausted"],
    remedy: "Let source NAT choose ports at random (`fully-random`), so that two connections hardly ever get the same. Let \
             resolvers ask one question at a time, or a cache on the host that is not tracked.",
    sources: &[
        "net/netfilter/nf_conntrack_core.c: nf_ct_resolve_clash, nf_ct_resolve_clash_harder",
        "resolv.conf(5): single-request-reopen",
    ],
    recipes,
    ..Cause::of(Group::Conntrack, |view| view.each(in_namespace))
};

fn in_namespace(view: &EvidenceView<'_>, namespace: &Namespace) -> Option<Finding> {
    let refused = Refused::of(namespace);
    if refused.clashed == 0 {
        return None;
    }
    let lost = refused.clashed;
    let mut finding = view.finding(CAUSE.id, namespace, lost);
    finding.claims = claims(view, namespace, lost, "conntrack.insert_failed", Where::Leaving);
    finding.missing = view.missing(namespace, &[EvidenceSource::Drops, EvidenceSource::Connections]);
    finding.confidence = match () {
        () if finding.missing.contains(&EvidenceSource::Connections) => Confidence::Low,
        () if refused.repaired > 0 => Confidence::High,
        () => Confidence::Medium,
    };
    finding.summary = format!(
        "{lost} packets were dropped because another packet had taken their connection's place in the same moment."
    );
    fact(&mut finding, namespace, "insert_failed", format!("{lost} packets found their tuple taken"));
    fact(&mut finding, namespace, "drop", "as many were dropped");
    let repaired = refused.repaired;
    fact(&mut finding, namespace, "clash_resolve", format!("{repaired} such clashes were resolved"));
    finding.not.push("not used-up ports: no range of source NAT is nearly full".into());
    finding.fixes.push(Fix::new(
        "let source NAT choose ports at random",
        "outside ports are no longer those of the clients, which some peers rely on",
        [
            nft!("-a list ruleset"),
            nft!("replace rule FAMILY TABLE CHAIN handle HANDLE ... masquerade fully-random"),
        ],
        [nft!("replace rule FAMILY TABLE CHAIN handle HANDLE ... masquerade")],
    ));
    finding.fixes.push(
        Fix::new(
            "let resolvers use one socket for each question (on the clients)",
            "names take one round trip longer; to be done on the clients, and only with glibc",
            [sh!("echo 'options single-request-reopen' >>/etc/resolv.conf")],
            [sh!("sed -i '/single-request-reopen/d' /etc/resolv.conf")],
        )
        .elsewhere(),
    );
    Some(finding)
}

/// Pairs of datagrams of two clients with the same source port to one service, back to back, each pair with a new port.
fn pairs(own: [u8; 6], peer: [u8; 6]) -> Vec<Vec<u8>> {
    use super::packet::frames::udp;
    let to = ([198, 19, 0, 2].into(), 7000);
    let of = |client: u8, port| udp((own, peer), ([198, 18, 0, client].into(), port), to);
    (10_000..30_000).flat_map(|port| [of(100, port), of(101, port)]).collect()
}

fn recipes() -> Vec<Recipe> {
    // A long list of rules between translation (priority 100) and the end of the hook makes the moment long enough for two
    // cores to meet in it; packet steering sends the two clients to different cores.
    let gateway = "nft 'add table ip nat; add chain ip nat post { type nat hook postrouting priority 100; }; \
                   add rule ip nat post oifname outside masquerade; \
                   add chain ip nat slow { type filter hook postrouting priority 200; }'
i=0; while [ $i -lt 4000 ]; do echo \"add rule ip nat slow ip saddr 203.0.113.1 udp sport $i\"; i=$((i+1)); done | nft -f -
unshare -m sh -c 'mount -t sysfs sysfs /sys; echo 3 >/sys/class/net/inside/queues/rx-0/rps_cpus'";
    vec![Recipe {
        setup: vec![Step::gateway(gateway)],
        traffic: vec![
            Traffic::udp_server(7000, UdpMode::Sink),
            Traffic::Frames { from: LabHost::Initiator, rate: 2000, frames: pairs },
        ],
        ..Recipe::default()
    }]
}

#[cfg(test)]
mod tests {
    use super::super::refused::tests::{counted, evidence, refusal};
    use super::*;
    use crate::finding::Claim;

    #[test]
    fn clashes_are_found_and_long_chains_are_not_them() {
        let namespace = counted(&[("drop", 4), ("insert_failed", 4), ("clash_resolve", 90)]);
        let seen = evidence(namespace, vec![refusal(4, 2)]);
        let [finding] = &(CAUSE.examine)(&EvidenceView::of(&seen))[..] else { panic!() };
        assert_eq!(finding.claims, [Claim::Drops { group: 0, packets: 4 }]);
        assert_eq!(finding.confidence, Confidence::High);
        let chains = evidence(counted(&[("insert_failed", 4), ("chain_toolong", 4)]), vec![]);
        assert_eq!((CAUSE.examine)(&EvidenceView::of(&chains)), []);
        let full = evidence(counted(&[("drop", 400)]), vec![]);
        assert_eq!((CAUSE.examine)(&EvidenceView::of(&full)), []);
        // Put right without a loss.
        assert_eq!(
            (CAUSE.examine)(&EvidenceView::of(&evidence(counted(&[("clash_resolve", 90)]), vec![]))),
            []
        );
    }
}
