//! More waits for a neighbour's Ethernet address than may.

use super::neighbour_unresolved::{next_hop, silent, waits_for_neighbour};
use super::ways::{Loss, in_sysctl, name_of};
use crate::causes::{Cause, EvidenceView, Group};
use crate::evidence::{DropGroup, EvidenceSource, Namespace, Sample};
use crate::finding::{Finding, Fix, Setting};
use crate::recipe::{LabHost, Recipe, Step, Traffic, UdpMode};

pub(super) const CAUSE: Cause = Cause {
    id: "neighbour-queue-full",
    title: "queue for a neighbour that answers late is full",
    about: "While the kernel waits for the answer to an ARP request or a neighbour solicitation, packets to that host wait \
            in a queue (`unres_qlen_bytes`, about 200 KB by default, far less in old configurations that set \
            `unres_qlen`). If the host answers late, because its link or its CPU is busy, because a switch learns, or \
            because the first request was lost, a fast sender fills the queue, and the oldest packets are dropped. The \
            connection then continues normally.",
    must: &["packets dropped as NEIGH_QUEUEFULL", "the neighbour answers in the end"],
    should: &["the queue is shorter than usual"],
    must_not: &["the neighbour failed in the window"],
    lookalikes: &[(
        "neighbour-unresolved",
        "the neighbour never answers, and the waiting packets are dropped, too",
    )],
    yields_to: &["neighbour-unresolved", "link-down", "bridge-blocked"],
    remedy: "Find out why the answer is late. A longer queue bridges short delays; a permanent entry for a next hop that \
             never changes avoids the question.",
    sources: &[
        "net/core/neighbour.c: __neigh_event_send",
        "Documentation/networking/ip-sysctl.rst: unres_qlen_bytes",
    ],
    recipes,
    ..Cause::of(Group::Network, |view| view.each(in_namespace))
};

/// The kernel's default (SK_WMEM_DEFAULT, include/net/sock.h).
const USUAL_BYTES: u64 = 212_992;

fn in_namespace(view: &EvidenceView<'_>, namespace: &Namespace) -> Option<Finding> {
    let full = view.take(namespace, waits_for_neighbour);
    if !full.groups.iter().any(|g| g.reason == "NEIGH_QUEUEFULL") {
        return None;
    }
    let answers = |d: &DropGroup, s: &Sample| {
        next_hop(namespace, s).is_none_or(|hop| !silent(namespace, d.interface).contains(&hop))
    };
    let loss = Loss::of(view, namespace, full.share(true, answers), &[]);
    let mut finding = loss.finding(view, CAUSE.id, namespace)?;
    let largest = loss.taken.groups.iter().max_by_key(|g| g.packets)?;
    let name = name_of(namespace, largest.interface);
    let hop = largest.samples.iter().find_map(|s| next_hop(namespace, s));
    finding.object = hop.map_or_else(|| name.clone(), |h| h.to_string());
    let whom = hop.map_or("a neighbour".to_owned(), |h| h.to_string());
    finding.summary = format!(
        "{} packets were dropped while {whom} on {name} was asked for its Ethernet address: more came than the queue \
         holds.",
        loss.packets
    );
    finding.missing.extend(view.missing(namespace, &[EvidenceSource::Neighbours]));
    let family = if hop.is_none_or(|h| h.is_ipv4()) { "ipv4" } else { "ipv6" };
    let own = format!("net.{family}.neigh.{}.unres_qlen_bytes", in_sysctl(&name));
    let general = format!("net.{family}.neigh.default.unres_qlen_bytes");
    let now = namespace.setting(&own).or_else(|| namespace.setting(&general));
    if let Some(bytes) = now {
        finding.seen(EvidenceSource::Settings, format!("{own} = {bytes}"));
    }
    finding.fixes.push(longer(&own, now));
    Some(finding)
}

fn longer(setting: &str, now: Option<u64>) -> Fix {
    let proposed = now.map_or(4 * USUAL_BYTES, |n| n.saturating_mul(4)).max(USUAL_BYTES);
    let why = "packets were dropped while a neighbour was asked for its address";
    // If the setting cannot be read, assumes the kernel's default.
    let fix = Fix::set(
        "let more packets wait for the answer",
        "memory for each neighbour that does not answer",
        vec![Setting::new(setting, now.unwrap_or(USUAL_BYTES), proposed, why)],
    );
    if now.is_some() { fix } else { fix.not_tuned() }
}

fn recipes() -> Vec<Recipe> {
    vec![Recipe {
        setup: vec![Step::gateway(
            "sysctl -qw net.ipv4.neigh.outside.unres_qlen_bytes=4096; ip neigh flush dev outside nud permanent",
        )],
        traffic: vec![
            Traffic::udp_server(7000, UdpMode::Sink),
            Traffic::udp("198.19.0.2:7000", 400, 1000, 4),
            // The responder answers to no ARP request for half of the time, and the gateway forgets what it knew.
            Traffic::Script(
                LabHost::Responder,
                "while :; do sysctl -qw net.ipv4.conf.eth0.arp_ignore=8; sleep 0.7; \
                 sysctl -qw net.ipv4.conf.eth0.arp_ignore=0; sleep 0.7; done"
                    .into(),
            ),
            Traffic::Script(
                LabHost::Gateway,
                "while :; do ip neigh flush to 198.19.0.2 dev outside; sleep 0.3; done".into(),
            ),
        ],
        ..Recipe::default()
    }]
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{INSIDE, OUTSIDE, datagram, drops, healthy};
    use super::*;
    use crate::evidence::{Evidence, Neighbour};

    fn case() -> Evidence {
        let mut evidence = healthy();
        let mut group = drops(
            "NEIGH_QUEUEFULL",
            "__neigh_event_send",
            400,
            &[datagram("198.18.0.2", "198.19.0.2", INSIDE)],
        );
        group.interface = OUTSIDE;
        evidence.drops.push(group);
        evidence
    }

    #[test]
    fn a_short_queue_is_made_as_long_as_usual() {
        let mut evidence = case();
        evidence.namespaces[0]
            .settings
            .insert("net.ipv4.neigh.default.unres_qlen_bytes".into(), "4096".into());
        let found = (CAUSE.examine)(&EvidenceView::of(&evidence));
        assert_eq!(found[0].object, "198.19.0.2");
        assert_eq!(found[0].fixes[0].commands, ["sysctl -w net.ipv4.neigh.outside.unres_qlen_bytes=212992"]);
        assert_eq!(found[0].fixes[0].undo, ["sysctl -w net.ipv4.neigh.outside.unres_qlen_bytes=4096"]);
    }

    #[test]
    fn one_that_never_answers_is_another_cause() {
        let mut evidence = case();
        evidence.namespaces[0].neighbours.as_mut().unwrap().unanswered.push(Neighbour {
            address: [198, 19, 0, 2].into(),
            interface: OUTSIDE,
            state: "failed".into(),
            answered: false,
        });
        assert_eq!((CAUSE.examine)(&EvidenceView::of(&evidence)), []);
        assert_eq!((CAUSE.examine)(&EvidenceView::of(&healthy())), []);
    }
}
