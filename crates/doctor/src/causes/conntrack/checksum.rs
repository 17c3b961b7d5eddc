//! Damaged packets count as INVALID.

use super::packet::has_bad_checksum;
use super::refused::{Refused, fact, sampled};
use super::relief;
use crate::causes::{Cause, Group, Scene};
use crate::evidence::{DropGroup, Interface, Namespace, Plane};
use crate::finding::{Confidence, Fact, Finding, Fix};
use crate::recipe::frames as whole;
use crate::recipe::{Place, Recipe, Step, Traffic, UdpMode};

pub(super) const CAUSE: Cause = Cause {
    id: "conntrack-checksum",
    group: Group::Conntrack,
    title: "packets with a wrong checksum count as INVALID",
    about: "Connection tracking checks the checksums of TCP, UDP and ICMP in packets that come in (nf_conntrack_checksum), and \
            calls a packet INVALID whose checksum is wrong. Such packets are not translated, and a rule for INVALID packets \
            throws them away. Where it happens all the time, the packets are seldom damaged: a card, a driver or a tunnel \
            before this host was to write the checksum and did not.",
    must: &["conntrack `invalid` grows", "packets dropped in netfilter have a wrong checksum"],
    should: &["only packets of one interface or one sender"],
    must_not: &["the checksum is right, or left to the card"],
    lookalikes: &[("conntrack-invalid-dropped", "there the checksums are right")],
    yields_to: &[],
    remedy: "Switch the checksum offload of the sender off, or mend its driver. nf_conntrack_checksum=0 only lets the packets \
             through to receivers that will throw them away.",
    sources: &[
        "net/netfilter/nf_conntrack_proto_udp.c: udp_error",
        "Documentation/networking/nf_conntrack-sysctl.rst: nf_conntrack_checksum",
    ],
    examine,
    recipes,
    not_injected: None,
};

const CHECKSUM: &str = "net.netfilter.nf_conntrack_checksum";

fn examine(scene: &Scene<'_>) -> Vec<Finding> {
    scene.namespaces().filter_map(|n| in_namespace(scene, n)).collect()
}

fn in_namespace(scene: &Scene<'_>, namespace: &Namespace) -> Option<Finding> {
    let invalid = Refused::of(namespace).invalid;
    if invalid == 0 || namespace.setting(CHECKSUM) == Some(0) {
        return None;
    }
    let of_netfilter = |d: &DropGroup| d.reason == "NETFILTER_DROP";
    let damaged = |s: &crate::evidence::Sample| has_bad_checksum(s) == Some(true);
    let (claims, lost) = sampled(scene.evidence, namespace, of_netfilter, damaged);
    if lost == 0 {
        return None;
    }
    let mut finding = scene.finding(CAUSE.id, namespace, lost);
    // Whether a rule asks for the state is in another plane; that the checksum is wrong was computed.
    finding.confidence = if lost <= 2 * invalid { Confidence::High } else { Confidence::Medium };
    finding.claims = claims;
    finding.summary = format!("{lost} packets were thrown away as INVALID: their checksums are wrong.");
    finding.evidence.extend(fact(namespace, "invalid", format!("{invalid} packets were INVALID")));
    let drops = scene.evidence.drops.iter().filter(|d| d.namespace == namespace.id && of_netfilter(d));
    let sample = drops.flat_map(|d| &d.samples).find(|s| damaged(s))?;
    let interface = namespace.interface(sample.came_in);
    if let Some(t) = sample.tuple() {
        let through = interface.map_or_else(String::new, |i| format!(", in through {}", i.name));
        let text = format!("{} to {} port {}{through}", t.source, t.destination, t.destination_port);
        finding.evidence.push(Fact::seen(Plane::Drops, text));
    }
    finding.not.push("not a checksum left to the card: that would hold the sum of the pseudo header".into());
    finding.fixes = fixes(scene, namespace, interface);
    Some(finding)
}

fn fixes(scene: &Scene<'_>, namespace: &Namespace, interface: Option<&Interface>) -> Vec<Fix> {
    let mut fixes = vec![Fix {
        title: "let the sender compute its checksums (on the sender)".into(),
        commands: vec!["ethtool -K SENDING_INTERFACE tx off".into()],
        risk: "more CPU on the sender".into(),
        undo: vec!["ethtool -K SENDING_INTERFACE tx on".into()],
        tune: Vec::new(),
    }];
    if let Some(name) = interface.map(|i| super::quoted(&i.name)) {
        fixes.push(Fix {
            title: "rule out that this host's card is wrong about them".into(),
            commands: vec![format!("ethtool -K {name} rx off")],
            risk: "more CPU for every packet that comes in".into(),
            undo: vec![format!("ethtool -K {name} rx on")],
            tune: Vec::new(),
        });
    }
    let setting =
        relief::setting(scene, namespace, CHECKSUM, 0, "packets count as INVALID for their checksums");
    fixes.extend(setting.map(|s| {
        let mut fix = relief::set(
            "let them through (to find out whether the receiver takes them)",
            "damaged packets are tracked and translated; receivers throw them away",
            vec![s],
        );
        // It hides the fault and mends nothing.
        fix.tune.clear();
        fix
    }));
    fixes
}

fn damaged(own: [u8; 6], peer: [u8; 6]) -> Vec<Vec<u8>> {
    use super::packet::frames;
    let to = ([198, 19, 0, 2].into(), 7000);
    (0..20)
        .map(|n| whole::damaged(frames::udp((own, peer), ([198, 18, 0, 2].into(), 42_000 + n), to)))
        .collect()
}

fn recipes() -> Vec<Recipe> {
    vec![Recipe {
        setup: vec![Step::Run(
            Place::Gateway,
            "nft 'add table inet f; add chain inet f c { type filter hook forward priority 0; }; \
             add rule inet f c ct state invalid counter drop'"
                .into(),
        )],
        traffic: vec![
            Traffic::UdpServer { on: Place::Responder, port: 7000, buffer: None, mode: UdpMode::Sink },
            Traffic::Frames { from: Place::Initiator, interface: "eth0", rate: 200, frames: damaged },
        ],
        also: vec!["conntrack-invalid-dropped"],
        ..Recipe::default()
    }]
}

#[cfg(test)]
mod tests {
    use super::super::packet::frames;
    use super::super::packet::tests::sampled as sample_of;
    use super::super::refused::tests::{counted, evidence};
    use super::*;
    use crate::evidence::Evidence;
    use crate::finding::Claim;

    fn seen(invalid: u64, frame: Vec<u8>) -> Evidence {
        let drops = DropGroup {
            namespace: 1,
            reason: "NETFILTER_DROP".into(),
            location: "nft_do_chain".into(),
            packets: 300,
            samples: vec![sample_of(&frame)],
            ..DropGroup::default()
        };
        evidence(counted(&[("invalid", invalid)]), vec![drops])
    }

    #[test]
    fn wrong_checksums_are_it_and_right_ones_are_not() {
        let good = frames::udp(([2; 6], [4; 6]), ([198, 18, 0, 2].into(), 1), ([198, 19, 0, 2].into(), 2));
        let bad = whole::damaged(good.clone());
        let evidence = seen(300, bad.clone());
        let [finding] = &examine(&Scene::of(&evidence))[..] else { panic!() };
        assert_eq!(finding.claims, [Claim::Drops { group: 0, packets: 300 }]);
        assert_eq!(examine(&Scene::of(&seen(300, good))), []);
        // Connection tracking had nothing against it.
        assert_eq!(examine(&Scene::of(&seen(0, bad))), []);
    }
}
