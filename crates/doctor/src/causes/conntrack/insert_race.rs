//! Two packets at the same moment want the same tuple.

use super::refused::{Refused, Where, claims, fact};
use crate::causes::{Cause, Group, Scene};
use crate::evidence::{Namespace, Plane};
use crate::finding::{Confidence, Finding, Fix};
use crate::recipe::{Place, Recipe, Step, Traffic, UdpMode};

pub(super) const CAUSE: Cause = Cause {
    id: "conntrack-insert-race",
    group: Group::Conntrack,
    title: "two packets raced for one connection-tracking entry",
    about: "A connection gets its entry when its first packet comes in, and the entry goes into the table when that packet \
            leaves. Between the two, a packet on another core can do the same with the same addresses and ports: two questions \
            of a resolver on one socket (A and AAAA), or two clients with the same source port that source NAT gives the same \
            outside port to. The second one to leave finds its place taken. The kernel puts most of these clashes right; where \
            translation made them different it throws the packet away. A resolver then waits five seconds.",
    must: &[
        "conntrack `insert_failed` and `drop` grow by the same, small number",
        "ports of source NAT are free",
    ],
    should: &["`clash_resolve` grows: clashes that were put right"],
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
    examine,
    recipes,
    not_injected: None,
};

fn examine(scene: &Scene<'_>) -> Vec<Finding> {
    scene.namespaces().filter_map(|n| in_namespace(scene, n)).collect()
}

fn in_namespace(scene: &Scene<'_>, namespace: &Namespace) -> Option<Finding> {
    let refused = Refused::of(namespace);
    if refused.clashed == 0 {
        return None;
    }
    let lost = refused.clashed;
    let mut finding = scene.finding(CAUSE.id, namespace, lost);
    finding.claims = claims(scene, namespace, lost, "conntrack.insert_failed", Where::Leaving);
    finding.missing = scene.missing(namespace, &[Plane::Drops, Plane::Connections]);
    finding.confidence = match () {
        () if finding.missing.contains(&Plane::Connections) => Confidence::Low,
        () if refused.repaired > 0 => Confidence::High,
        () => Confidence::Medium,
    };
    finding.summary = format!(
        "{lost} packets were thrown away because another packet had taken their connection's place in the same moment."
    );
    finding.evidence.extend(fact(
        namespace,
        "insert_failed",
        format!("{lost} packets found their tuple taken"),
    ));
    finding.evidence.extend(fact(namespace, "drop", "as many were thrown away"));
    let repaired = refused.repaired;
    finding.evidence.extend(fact(
        namespace,
        "clash_resolve",
        format!("{repaired} such clashes were put right"),
    ));
    finding.not.push("not used-up ports: no range of source NAT is nearly full".into());
    finding.fixes.push(Fix {
        title: "let source NAT choose ports at random".into(),
        commands: vec![
            "nft -a list ruleset".into(),
            "nft replace rule FAMILY TABLE CHAIN handle HANDLE ... masquerade fully-random".into(),
        ],
        risk: "outside ports are no longer those of the clients, which some peers rely on".into(),
        undo: vec!["nft replace rule FAMILY TABLE CHAIN handle HANDLE ... masquerade".into()],
        tune: Vec::new(),
    });
    finding.fixes.push(Fix {
        title: "let resolvers use a socket of its own for each question".into(),
        commands: vec!["echo 'options single-request-reopen' >>/etc/resolv.conf".into()],
        risk: "names take one round trip longer; to be done on the clients, and only with glibc".into(),
        undo: vec!["sed -i '/single-request-reopen/d' /etc/resolv.conf".into()],
        tune: Vec::new(),
    });
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
        setup: vec![Step::Run(Place::Gateway, gateway.into())],
        traffic: vec![
            Traffic::UdpServer { on: Place::Responder, port: 7000, buffer: None, mode: UdpMode::Sink },
            Traffic::Frames { from: Place::Initiator, interface: "eth0", rate: 2000, frames: pairs },
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
        let [finding] = &examine(&Scene::of(&seen))[..] else { panic!() };
        assert_eq!(finding.claims, [Claim::Drops { group: 0, packets: 4 }]);
        assert_eq!(finding.confidence, Confidence::High);
        let chains = evidence(counted(&[("insert_failed", 4), ("chain_toolong", 4)]), vec![]);
        assert_eq!(examine(&Scene::of(&chains)), []);
        let full = evidence(counted(&[("drop", 400)]), vec![]);
        assert_eq!(examine(&Scene::of(&full)), []);
        // Put right without a loss.
        assert_eq!(examine(&Scene::of(&evidence(counted(&[("clash_resolve", 90)]), vec![]))), []);
    }
}
