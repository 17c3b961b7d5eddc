//! Packets that connection tracking itself refused: what its statistics say, and which drops they are.

use crate::causes::{EvidenceView, is_noise};
use crate::evidence::{DropGroup, EvidenceSource, Namespace, Sample};
use crate::finding::{Claim, Finding};

/// The statistics of a namespace in the window (net/netfilter/nf_conntrack_core.c).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Refused {
    /// Refused since no entry could be had: the table was full, or memory was (`resolve_normal_ct` counts `drop` alone).
    pub(super) no_entry: u64,
    /// Refused since another entry had taken one of its tuples (`nf_ct_resolve_clash` counts `drop` and `insert_failed`).
    pub(super) clashed: u64,
    /// Refused since a hash chain was too long (`__nf_conntrack_confirm` counts `chaintoolong` and `insert_failed`).
    pub(super) chain_too_long: u64,
    /// Entries thrown out to make room for new ones.
    pub(super) evicted: u64,
    /// Clashes that were put right without a loss.
    pub(super) repaired: u64,
    /// Packets that belong to no connection or break its rules.
    pub(super) invalid: u64,
}

impl Refused {
    pub(super) fn of(namespace: &Namespace) -> Self {
        let grew = |name: &str| namespace.grew(&format!("conntrack.{name}"));
        let chain_too_long = grew("chain_toolong");
        let failed = grew("insert_failed").saturating_sub(chain_too_long);
        let drop = grew("drop");
        Refused {
            no_entry: drop.saturating_sub(failed),
            clashed: failed.min(drop),
            chain_too_long,
            evicted: grew("early_drop"),
            repaired: grew("clash_resolve"),
            invalid: grew("invalid"),
        }
    }
}

/// The point on its way at which a packet was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Where {
    /// When it came in, or was made: an entry is looked for and allocated.
    Entering,
    /// When it was about to leave, or to be delivered: the entry is put into the table.
    Leaving,
}

/// Claims to `packets` that connection tracking refused there; to the counter if no drops were seen that can be these.
pub(super) fn claims(
    view: &EvidenceView<'_>,
    namespace: &Namespace,
    packets: u64,
    counter: &str,
    place: Where,
) -> Vec<Claim> {
    let mut left = packets;
    let mut claims = Vec::new();
    for (group, drops) in view.evidence.drops.iter().enumerate() {
        let mine = drops.namespace == namespace.id && !is_noise(drops) && is_refusal(drops, place);
        let take = nearly_all(drops.packets, left);
        if mine && take > 0 {
            left = left.saturating_sub(take);
            claims.push(Claim::Drops { group, packets: take });
        }
    }
    if claims.is_empty() && packets > 0 {
        claims.push(view.counted(namespace, counter, packets));
    }
    claims
}

/// As many of `packets` as were counted; all of them if the rest may be there only because counters and drops are not read at
/// the very same moment.
pub(super) fn nearly_all(packets: u64, counted: u64) -> u64 {
    if counted > 0 && packets <= counted + counted / 8 + 5 { packets } else { packets.min(counted) }
}

/// A verdict of a hook that is no rule's: rules of nftables let go of packets in `nft_do_chain`.
fn is_refusal(drops: &DropGroup, place: Where) -> bool {
    if drops.reason != "NETFILTER_DROP" || drops.location != "nf_hook_slow" {
        return false;
    }
    // After routing, skb->dev is where it would have left, and skb_iif where it came in.
    let forwarded = drops.samples.iter().filter(|s| s.came_in != 0);
    let (all, leaving) = forwarded
        .fold((0, 0), |(all, leaving), s| (all + 1, leaving + usize::from(s.came_in != drops.interface)));
    match place {
        _ if all == 0 => true,
        Where::Leaving => 2 * leaving > all,
        Where::Entering => 2 * leaving <= all,
    }
}

/// Claims to the packets of drops that `is_mine` says yes to, by the share of their samples.
pub(super) fn sampled(
    view: &EvidenceView<'_>,
    namespace: &Namespace,
    of: impl Fn(&DropGroup) -> bool,
    is_mine: impl Fn(&Sample) -> bool,
) -> (Vec<Claim>, u64) {
    let taken = view.take(namespace, of).share(false, |_, sample| is_mine(sample));
    (taken.claims, taken.packets)
}

/// Adds a counter of connection tracking to a finding, if it is there.
pub(super) fn fact(finding: &mut Finding, namespace: &Namespace, name: &str, text: impl Into<String>) {
    let full = format!("conntrack.{name}");
    if let Some(delta) = namespace.counters.get(&full) {
        finding.counter(EvidenceSource::ConntrackStatistics, &full, *delta, text);
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::evidence::Evidence;
    use crate::evidence::{Connections, Delta, Sample, Sight};

    /// A namespace of which connection tracking counted this in the window.
    pub(crate) fn counted(counters: &[(&str, u64)]) -> Namespace {
        let of = |(name, n): &(&str, u64)| (format!("conntrack.{name}"), Delta { before: 10, after: 10 + n });
        Namespace {
            id: 1,
            name: "gateway".into(),
            counters: counters.iter().map(of).collect(),
            connections: Some(Connections::default()),
            ..Namespace::default()
        }
    }

    /// Evidence of three seconds about one namespace, in which drops were in sight.
    pub(crate) fn evidence(namespace: Namespace, drops: Vec<DropGroup>) -> Evidence {
        let mut evidence = Evidence { window_s: 3.0, drops, ..Evidence::default() };
        for source in [
            EvidenceSource::Drops,
            EvidenceSource::Connections,
            EvidenceSource::ConntrackStatistics,
            EvidenceSource::Rules,
        ] {
            evidence.evidence_sources.insert(source, Sight::Seen);
        }
        evidence.namespaces.push(namespace);
        evidence
    }

    /// Drops of netfilter that were no rule's, on interface 3, of packets that came in through `came_in`.
    pub(crate) fn refusal(packets: u64, came_in: u32) -> DropGroup {
        DropGroup {
            namespace: 1,
            reason: "NETFILTER_DROP".into(),
            location: "nf_hook_slow".into(),
            interface: 3,
            packets,
            samples: vec![Sample { came_in, ..Sample::default() }],
            ..DropGroup::default()
        }
    }

    /// Which statistic moves with which: 5 found no entry, 2 clashed, 3 had a long chain.
    #[test]
    fn statistics_are_taken_apart() {
        let namespace = counted(&[("drop", 7), ("insert_failed", 5), ("chain_toolong", 3)]);
        let refused = Refused::of(&namespace);
        assert_eq!((refused.no_entry, refused.clashed, refused.chain_too_long), (5, 2, 3));
        assert_eq!(Refused::of(&Namespace::default()), Refused::default());
    }

    #[test]
    fn claims_go_to_the_drops_of_that_side_and_no_further() {
        let namespace = counted(&[]);
        let evidence = evidence(namespace.clone(), vec![refusal(10, 3), refusal(20, 2)]);
        let view = EvidenceView::of(&evidence);
        let of = |packets, place| claims(&view, &namespace, packets, "conntrack.drop", place);
        assert_eq!(of(4, Where::Entering), [Claim::Drops { group: 0, packets: 4 }]);
        // Drops are counted a little longer than the statistics.
        assert_eq!(of(9, Where::Entering), [Claim::Drops { group: 0, packets: 10 }]);
        assert_eq!(of(70, Where::Leaving), [Claim::Drops { group: 1, packets: 20 }]);
        assert_eq!(of(0, Where::Leaving), []);
        let blind = Evidence::default();
        let claim = claims(&EvidenceView::of(&blind), &namespace, 7, "conntrack.drop", Where::Entering);
        assert_eq!(claim, [Claim::Counter { namespace: 1, counter: "conntrack.drop".into(), packets: 7 }]);
    }
}
