//! Settings for a kind of host, from its needs.

use serde::{Deserialize, Serialize};

use super::budget::hash_heads;
use super::knobs::{Scope, numbers};
use super::need::{Need, View};

/// A kind of host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Profile {
    /// Room in the connection-tracking table for what comes, within the memory budget.
    NatGateway,
    /// Timeouts as RFC 4787, 5382 and 5508 demand them of a NAT.
    Rfc,
    /// Queues and buffers for high rates, where something was lost for want of them.
    Throughput,
    /// Published ports of containers without connection tracking. It is no setting: the caller brings the action with the request
    /// ([`super::wish`]).
    PublishedPorts,
}

impl Profile {
    /// All of them.
    pub const ALL: [Profile; 4] =
        [Profile::NatGateway, Profile::Rfc, Profile::Throughput, Profile::PublishedPorts];

    /// As on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Profile::NatGateway => "nat-gateway",
            Profile::Rfc => "rfc",
            Profile::Throughput => "throughput",
            Profile::PublishedPorts => "published-ports",
        }
    }
}

/// A proposed value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Proposal {
    pub(crate) name: String,
    pub(crate) value: String,
    pub(crate) why: String,
}

/// Input to a profile.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Given {
    /// Memory that all of it may take, bytes.
    pub(crate) budget_bytes: u64,
    /// Connections at once that are expected.
    pub(crate) peak: Option<u64>,
    /// Longest round trip over which one connection must be able to fill a link, ms.
    pub(crate) rtt_ms: u64,
}

/// The kernel's own value on a machine with more than 4 GiB (nf_conntrack_init_start): the least for a gateway that has the
/// memory for it.
const USUAL_MAX: u64 = 262_144;
/// Room over what was counted: a table that is just large enough is full at the next peak.
const HEADROOM: u64 = 2;
/// Factor to grow by if only an overflow was seen, so that the need is unknown; a later plan checks again.
const STEP: u64 = 4;
/// Seconds of a day; after five (the kernel's default) a dead connection is as dead as after one.
const ESTABLISHED_S: u64 = 86_400;
/// RFC 5382 REQ-5: not less than 2 hours 4 minutes.
const RFC_ESTABLISHED_S: u64 = 7440;
/// RFC 5382 REQ-5: connections that are being opened or closed, not less than 4 minutes.
const RFC_TRANSITORY_S: u64 = 240;
/// RFC 4787 REQ-5: not less than 2 minutes; 5 minutes or more recommended.
const RFC_UDP_S: u64 = 300;
/// RFC 5508 REQ-2: not less than 60 s.
const RFC_ICMP_S: u64 = 60;

/// The kernel's own values (IPFRAG_HIGH_THRESH and IP_FRAG_TIME): bytes, s.
const FRAGMENT_BYTES: u64 = 4 << 20;
const FRAGMENT_S: u64 = 30;

const MAX: &str = "net.netfilter.nf_conntrack_max";
const BUCKETS: &str = "net.netfilter.nf_conntrack_buckets";

fn timeout_name(which: &str) -> String {
    format!("net.netfilter.nf_conntrack_{which}")
}

/// Returns a profile's proposals, with notes about those that it cannot make.
pub(crate) fn propose(
    profile: Profile,
    view: &View,
    need: &Need,
    given: Given,
) -> (Vec<Proposal>, Vec<String>) {
    match profile {
        Profile::NatGateway => nat_gateway(view, need, given),
        Profile::Rfc => rfc(view, need),
        Profile::Throughput => throughput(view, need, given),
        Profile::PublishedPorts => (Vec::new(), Vec::new()),
    }
}

const NO_CONNTRACK: &str = "there is no connection tracking here: the module nf_conntrack is not loaded, or this network namespace has none";

fn nat_gateway(view: &View, need: &Need, given: Given) -> (Vec<Proposal>, Vec<String>) {
    let (Some(max), Some(buckets)) = (need.max, need.buckets) else {
        return (vec![], vec![NO_CONNTRACK.into()]);
    };
    let (mut all, mut notes) = (Vec::new(), Vec::new());
    let (wanted, mut why) = wanted_entries(need, given, max);
    // Each entry, its extensions, and a head of a chain for it.
    let affordable = given.budget_bytes / (need.entry_bytes + size_of::<usize>() as u64);
    let target = wanted.min(affordable);
    let short = wanted > affordable;
    if short {
        notes.push(format!(
            "the memory budget has room for {affordable} entries, and {wanted} are wanted: --memory gives more"
        ));
        why = format!("{why}; the budget has room for {affordable}");
    }
    let target = if target > max {
        all.push(Proposal { name: MAX.into(), value: target.to_string(), why });
        target
    } else {
        max
    };
    let heads = hash_heads(target.min(affordable.max(max)));
    if heads > buckets {
        let chain = |b: u64| 2.0 * target as f64 / b as f64;
        let why = format!(
            "a full table has {:.0} entries in a chain now, {:.0} then; every packet walks one",
            chain(buckets),
            chain(heads)
        );
        all.push(Proposal { name: BUCKETS.into(), value: heads.to_string(), why });
    }
    let established = timeout_name("tcp_timeout_established");
    let keep = if short { RFC_ESTABLISHED_S } else { ESTABLISHED_S };
    lower(
        view,
        &mut all,
        &established,
        keep,
        "connections whose ends vanished stay for days; RFC 5382 asks for 2 h 4 min",
    );
    if short {
        let why =
            "entries of closed connections take room that is missing; RFC 5382 REQ-5 would have 4 minutes";
        lower(view, &mut all, &timeout_name("tcp_timeout_time_wait"), 30, why);
        lower(view, &mut all, &timeout_name("tcp_timeout_close_wait"), 30, why);
        lower(view, &mut all, &timeout_name("tcp_timeout_fin_wait"), 60, why);
    }
    (all, notes)
}

/// How many entries the table should have room for, and why.
fn wanted_entries(need: &Need, given: Given, max: u64) -> (u64, String) {
    let usual =
        (USUAL_MAX, "as many as the kernel itself takes on a machine with more than 4 GiB".to_owned());
    let counted = need.entries.unwrap_or(0);
    let by_count = (counted * HEADROOM, format!("twice the {counted} entries there are now"));
    let by_peak = given.peak.map(|p| (p.saturating_mul(HEADROOM), format!("twice the expected peak of {p}")));
    let by_overflow = need.table_overflowed().then(|| {
        let lost = match (need.lost.refused.unwrap_or(0), need.lost.evicted.unwrap_or(0)) {
            (0, 0) => "it is nearly full".to_owned(),
            (refused, evicted) => {
                format!("{refused} connections were refused and {evicted} evicted in {:.0} s", need.window_s)
            }
        };
        (max.saturating_mul(STEP), format!("{lost} with {max}: {STEP} times as many"))
    });
    let all = [Some(usual), Some(by_count), by_peak, by_overflow];
    // The first of equal ones names the need best.
    all.into_iter().flatten().rev().max_by_key(|(n, _)| *n).unwrap_or((max, String::new()))
}

fn current(view: &View, name: &str) -> Option<u64> {
    let value = view.get(name, Scope::Namespace)?;
    numbers(&value).filter(|n| n.len() == 1).map(|n| n[0])
}

/// Proposes a value if the one now is higher.
fn lower(view: &View, all: &mut Vec<Proposal>, name: &str, value: u64, why: &str) {
    if current(view, name).is_some_and(|now| now > value) {
        all.push(Proposal { name: name.into(), value: value.to_string(), why: why.into() });
    }
}

/// Proposes a value if the one now is lower.
fn raise(view: &View, all: &mut Vec<Proposal>, name: &str, value: u64, why: &str) {
    if current(view, name).is_some_and(|now| now < value) {
        all.push(Proposal { name: name.into(), value: value.to_string(), why: why.into() });
    }
}

fn rfc(view: &View, need: &Need) -> (Vec<Proposal>, Vec<String>) {
    if need.max.is_none() {
        return (vec![], vec![NO_CONNTRACK.into()]);
    }
    let mut all = Vec::new();
    let udp = "RFC 4787 REQ-5: at least 2 minutes, 5 recommended";
    for name in ["udp_timeout", "udp_timeout_stream"] {
        raise(view, &mut all, &timeout_name(name), RFC_UDP_S, udp);
    }
    let established = "RFC 5382 REQ-5: at least 2 hours 4 minutes";
    raise(view, &mut all, &timeout_name("tcp_timeout_established"), RFC_ESTABLISHED_S, established);
    let transitory = "RFC 5382 REQ-5: at least 4 minutes while a connection is opened or closed";
    for name in ["syn_sent", "syn_recv", "last_ack", "time_wait"] {
        raise(view, &mut all, &timeout_name(&format!("tcp_timeout_{name}")), RFC_TRANSITORY_S, transitory);
    }
    let reset = "RFC 7857 section 2.2: 4 minutes after a reset, which may be forged";
    raise(view, &mut all, &timeout_name("tcp_timeout_close"), RFC_TRANSITORY_S, reset);
    // The kernel's states after one FIN (nf_conntrack_proto_tcp.c): before and after its ACK.
    let half_closed = "RFC 5382 section 5: a connection with one FIN is established, so 2 hours 4 minutes";
    for name in ["fin_wait", "close_wait"] {
        raise(view, &mut all, &timeout_name(&format!("tcp_timeout_{name}")), RFC_ESTABLISHED_S, half_closed);
    }
    raise(view, &mut all, &timeout_name("icmp_timeout"), RFC_ICMP_S, "RFC 5508 REQ-2: at least 60 seconds");
    let fragments = "RFC 4787 REQ-14: room for fragments, as much as the kernel's own value gives";
    raise(view, &mut all, "net.ipv4.ipfrag_high_thresh", FRAGMENT_BYTES, fragments);
    raise(view, &mut all, "net.ipv4.ipfrag_time", FRAGMENT_S, fragments);
    let mut notes = vec![RFC_BEYOND.to_owned()];
    if !all.is_empty() {
        notes.push(rfc_price(view, need));
    }
    (all, notes)
}

/// Requirements that rows of `weir nat lab` find unmet with every setting.
const RFC_BEYOND: &str = "no setting reaches these: the rows listed as out of reach. `--silent-syn INTERFACE` meets RFC 5382 REQ-4. \
     Prove the others with `weir nat check SERVER`";

/// The price in entries: each new flow stays so much longer after its last packet.
fn rfc_price(view: &View, need: &Need) -> String {
    let now = current(view, &timeout_name("udp_timeout"));
    let longer = now.map(|now| RFC_UDP_S.saturating_sub(now)).filter(|s| *s > 0);
    let udp = longer.map_or_else(String::new, |s| {
        format!(
            ": 1,000 UDP flows per second that are not answered hold up to {} entries more ({} MiB)",
            s * 1_000,
            (s * 1_000 * need.entry_bytes).div_ceil(1 << 20)
        )
    });
    format!(
        "longer timeouts keep more entries{udp}; see `weir conntrack` and the profile nat-gateway for the room"
    )
}

fn throughput(view: &View, need: &Need, given: Given) -> (Vec<Proposal>, Vec<String>) {
    let (mut all, mut notes) = (Vec::new(), Vec::new());
    // Bounded growth: twice or four times as much, and only where something was lost for want of it.
    let grow = |all: &mut Vec<Proposal>, name: &str, by: u64, lost: Option<u64>, what: &str| {
        if let (Some(now), Some(lost)) = (current(view, name), lost.filter(|n| *n > 0)) {
            let value = now.saturating_mul(by).to_string();
            let why = format!("{lost} {what}, in {:.0} s", need.window_s);
            all.push(Proposal { name: name.into(), value, why });
        }
    };
    grow(
        &mut all,
        "net.core.netdev_max_backlog",
        STEP,
        need.lost.backlog_dropped,
        "packets dropped because a core's backlog was full",
    );
    // A squeeze now and then is how the kernel shares its time; more than 1 in 1,000 packets is want.
    let squeezed =
        need.lost.squeezed.zip(need.lost.processed).and_then(|(s, p)| (s >= 10 && s > p / 1000).then_some(s));
    grow(&mut all, "net.core.netdev_budget", 2, squeezed, "times packets were left for later");
    grow(&mut all, "net.core.netdev_budget_usecs", 2, squeezed, "times packets were left for later");
    grow(
        &mut all,
        "net.core.somaxconn",
        STEP,
        need.lost.listen_overflows,
        "connections refused by a full accept queue (the program's own backlog counts, too)",
    );
    grow(
        &mut all,
        "net.ipv4.tcp_max_syn_backlog",
        STEP,
        need.lost.syn_overflows,
        "SYNs that found the backlog full",
    );
    grow(
        &mut all,
        "net.core.rmem_max",
        STEP,
        need.lost.udp_buffer_errors,
        "datagrams refused by full receive buffers (the program must ask for more)",
    );
    buffers(view, need, given, &mut all, &mut notes);
    if all.is_empty() {
        notes.push(
            "nothing was lost for want of queues or buffers in the window, so nothing is changed".into(),
        );
    }
    (all, notes)
}

/// Twice the bandwidth-delay product of the fastest link, which one connection needs to fill it: the kernel offers half of the
/// buffer as window (tcp_adv_win_scale).
fn buffers(view: &View, need: &Need, given: Given, all: &mut Vec<Proposal>, notes: &mut Vec<String>) {
    let Some(bps) = need.link_bps else {
        notes.push("no link tells its speed, so buffers of TCP are not computed".into());
        return;
    };
    let product = bps / 8 * given.rtt_ms / 1000;
    // One connection is not to take more than an eighth of the budget.
    let wanted = (2 * product).min(given.budget_bytes / 8);
    for name in ["net.ipv4.tcp_rmem", "net.ipv4.tcp_wmem"] {
        let Some(now) = view.get(name, Scope::Namespace).and_then(|v| numbers(&v)) else { continue };
        if let [least, usual, most] = now[..]
            && wanted > most
        {
            let why = format!(
                "a link of {} Mbit/s over {} ms takes {product} bytes on the way",
                bps / 1_000_000,
                given.rtt_ms
            );
            all.push(Proposal { name: name.into(), value: format!("{least} {usual} {wanted}"), why });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::need::Lost;
    use super::*;
    use weir_testkit::Files;

    fn need(entries: u64, max: u64, buckets: u64) -> Need {
        Need {
            entries: Some(entries),
            max: Some(max),
            buckets: Some(buckets),
            entry_bytes: 384,
            entry_bytes_measured: true,
            window_s: 2.0,
            ..Need::default()
        }
    }

    fn given(budget_bytes: u64) -> Given {
        Given { budget_bytes, peak: None, rtt_ms: 100 }
    }

    /// A machine of files with these settings.
    fn view(settings: &[(&str, &str)]) -> (Files, View) {
        let files = Files::new(&[]);
        settings.iter().for_each(|(name, value)| files.set(name, value));
        let root = files.root();
        (files, View { root, namespace: None })
    }

    fn values(proposals: &[Proposal]) -> Vec<(&str, &str)> {
        let short = |p: &'_ Proposal| p.name.rsplit("nf_conntrack_").next().unwrap().len();
        proposals.iter().map(|p| (&p.name[p.name.len() - short(p)..], p.value.as_str())).collect()
    }

    #[test]
    fn a_gateway_gets_room_for_what_comes_within_the_budget() {
        let (_files, view) = view(&[("net.netfilter.nf_conntrack_tcp_timeout_established", "432000\n")]);
        let plan = |need: &Need, given| {
            values(&nat_gateway(&view, need, given).0)
                .iter()
                .map(|(n, v)| format!("{n}={v}"))
                .collect::<Vec<_>>()
        };
        // 1 GiB buys 2.7 million entries of 392 bytes; the kernel's own choice is wanted.
        assert_eq!(
            plan(&need(900, 1000, 512), given(1 << 30)),
            ["max=262144", "buckets=262144", "tcp_timeout_established=86400"]
        );
        // Twice what is there; 600,000 is 1171.875 pages of 512 heads.
        assert_eq!(
            plan(&need(300_000, 400_000, 262_144), given(1 << 30)),
            ["max=600000", "buckets=600064", "tcp_timeout_established=86400"]
        );
        // It overflowed: four times, and no more at once.
        let full =
            Need { lost: Lost { refused: Some(7), ..Lost::default() }, ..need(262_144, 262_144, 262_144) };
        assert_eq!(
            plan(&full, given(1 << 30)),
            ["max=1048576", "buckets=1048576", "tcp_timeout_established=86400"]
        );
        // 39.2 MB buy 100,000 entries, and 1,048,576 are wanted: timeouts shrink, the limit does not.
        assert_eq!(plan(&full, given(39_200_000)), ["tcp_timeout_established=7440"]);
        let expected = Given { peak: Some(1_000_000), ..given(1 << 30) };
        assert_eq!(plan(&need(0, 262_144, 262_144), expected)[0], "max=2000000");
        assert!(plan(&Need::default(), given(1 << 30)).is_empty());
    }

    #[test]
    fn timeouts_of_the_rfcs_are_only_ever_raised() {
        let set = |name: &str| format!("net.netfilter.nf_conntrack_{name}");
        let names: Vec<String> = [
            "udp_timeout",
            "udp_timeout_stream",
            "tcp_timeout_established",
            "tcp_timeout_syn_sent",
            "tcp_timeout_time_wait",
            "tcp_timeout_close",
            "tcp_timeout_close_wait",
            "icmp_timeout",
        ]
        .map(set)
        .into();
        let values: Vec<(&str, &str)> = names
            .iter()
            .map(String::as_str)
            .zip(["30", "600", "3600", "120", "300", "10", "60", "30"])
            .collect();
        let (_files, view) = view(&values);
        let (proposals, notes) = rfc(&view, &need(0, 1, 1));
        let got = proposals.iter().map(|p| (p.name.as_str(), p.value.as_str())).collect::<Vec<_>>();
        // RFC 4787 REQ-5, RFC 5382 REQ-5, RFC 7857 section 2.2, RFC 5508 REQ-2.
        assert_eq!(
            got,
            [
                (names[0].as_str(), "300"),
                (&names[2], "7440"),
                (&names[3], "240"),
                (&names[5], "240"),
                (&names[6], "7440"),
                (&names[7], "60")
            ]
        );
        assert!(notes[0].starts_with("no setting reaches these"), "{notes:?}");
        // 300 s instead of 30 s, 384 bytes each.
        assert!(notes[1].contains("up to 270000 entries more (99 MiB)"), "{notes:?}");
        let (_files, met) = super::tests::view(&[]);
        assert_eq!(rfc(&met, &need(0, 1, 1)).1.len(), 1, "nothing to raise has no price");
    }

    #[test]
    fn queues_grow_only_where_something_was_lost() {
        let settings = [
            ("net.core.netdev_max_backlog", "1000"),
            ("net.core.netdev_budget", "300"),
            ("net.ipv4.tcp_rmem", "4096\t131072\t6291456"),
        ];
        let (_files, view) = view(&settings);
        let calm = Lost {
            backlog_dropped: Some(0),
            squeezed: Some(5),
            processed: Some(1_000_000),
            ..Lost::default()
        };
        assert!(throughput(&view, &Need { lost: calm, ..Need::default() }, given(1 << 30)).0.is_empty());
        let lost = Lost { backlog_dropped: Some(9), squeezed: Some(5000), ..calm };
        let want = Need { lost, link_bps: Some(10_000_000_000), ..Need::default() };
        let (proposals, _) = throughput(&view, &want, given(1 << 31));
        let got: Vec<(&str, &str)> = proposals.iter().map(|p| (p.name.as_str(), p.value.as_str())).collect();
        // 10 Gbit/s x 100 ms = 125 MB on the way, twice that as buffer.
        assert_eq!(
            got,
            [
                ("net.core.netdev_max_backlog", "4000"),
                ("net.core.netdev_budget", "600"),
                ("net.ipv4.tcp_rmem", "4096 131072 250000000")
            ]
        );
    }
}
