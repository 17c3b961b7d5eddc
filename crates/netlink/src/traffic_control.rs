//! Queueing disciplines, their classes, filters and actions, as the kernel has them (include/uapi/linux/{rtnetlink,
//! pkt_sched,pkt_cls,gen_stats}.h).

use super::message::{Attributes, Message, Received, text, u32_ne, u64_ne};
use super::rtnetlink::Rtnetlink;
use weir_sys::error::{Context, Result};

/// Bytes of `struct tcmsg`: family and padding, interface, handle, parent, info.
pub(super) const TCMSG: usize = 20;
/// TCA_DUMP_INVISIBLE: the queues that a class has by default, too.
const DUMP_INVISIBLE: u16 = 10;
/// TCA_STATS_BASIC, TCA_STATS_QUEUE, TCA_STATS_PKT64 within TCA_STATS2.
const BASIC: u16 = 1;
const QUEUE: u16 = 3;
const PACKETS_64: u16 = 8;
/// TCA_ACT_KIND and TCA_ACT_STATS of an action.
const ACTION_KIND: u16 = 1;
const ACTION_STATS: u16 = 4;
/// TCA_BPF_NAME and TCA_BPF_ID of a `bpf` filter.
const BPF_NAME: u16 = 7;
const BPF_ID: u16 = 11;

/// Parents (TC_H_ROOT, TC_H_INGRESS) and the hooks of `clsact` (TC_H_MAKE(TC_H_CLSACT, TC_H_MIN_INGRESS) and its like). The
/// qdisc `ingress` answers to that of the ingress, too.
pub const ROOT: u32 = 0xffff_ffff;
/// See [`ROOT`].
pub const INGRESS_PARENT: u32 = 0xffff_fff1;
/// See [`ROOT`].
pub const INGRESS_HOOK: u32 = 0xffff_fff2;
/// See [`ROOT`].
pub const EGRESS_HOOK: u32 = 0xffff_fff3;

/// A queueing discipline, or a class of one. Counters since it was made.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct QueueingDiscipline {
    /// Number of its interface.
    pub interface: u32,
    /// Kind (`tbf`, `htb`).
    pub kind: String,
    /// True of a class.
    pub class: bool,
    /// Handle, major and minor number in 16 bits each.
    pub handle: u32,
    /// Its parent; see [`ROOT`].
    pub parent: u32,
    /// Packets sent on.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Packets thrown away. The kernel counts them in 32 bits.
    pub dropped: u64,
    /// Times that it had to wait, likewise.
    pub overlimits: u64,
    /// Packets that wait.
    pub backlog_packets: u64,
    /// Their bytes.
    pub backlog_bytes: u64,
    /// The most that it lets through, bit/s, of those that are set to a rate.
    pub rate_bps: Option<u64>,
    /// Limit in packets, of those that have one.
    pub limit_packets: Option<u64>,
    /// Limit in bytes, likewise.
    pub limit_bytes: Option<u64>,
}

/// A filter of tc.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Filter {
    /// Kind (`bpf`, `u32`, `matchall`).
    pub kind: String,
    /// Preference: lower ones are asked first.
    pub preference: u32,
    /// Handle.
    pub handle: u32,
    /// The program's number and the name that it was attached with, of `bpf`.
    pub program: Option<(u32, String)>,
    /// Actions: kind, packets that it saw, packets that it threw away (32 bits).
    pub actions: Vec<(String, u64, u64)>,
}

impl Rtnetlink {
    /// Queueing disciplines of all interfaces, and the classes of those that have such.
    ///
    /// # Errors
    /// `Interrupted` if some came or went meanwhile.
    pub fn queueing_disciplines(&mut self) -> Result<Vec<QueueingDiscipline>> {
        let mut found = Vec::new();
        let message =
            Message::new(libc::RTM_GETQDISC, libc::NLM_F_DUMP).raw(&[0; TCMSG]).attr(DUMP_INVISIBLE, &[]);
        self.socket
            .request_with(message, |received| found.extend(read_discipline(received)))
            .context(|| "list queueing disciplines".into())?;
        let has_classes = |q: &QueueingDiscipline| matches!(q.kind.as_str(), "htb" | "hfsc" | "drr" | "qfq");
        let mut with_classes: Vec<u32> =
            found.iter().filter(|q| has_classes(q)).map(|q| q.interface).collect();
        with_classes.dedup();
        for interface in with_classes {
            let message = Message::new(libc::RTM_GETTCLASS, libc::NLM_F_DUMP).raw(&tcmsg(interface, 0));
            self.socket
                .request_with(message, |received| found.extend(read_discipline(received)))
                .context(|| format!("list the classes of interface {interface}"))?;
        }
        Ok(found)
    }

    /// Filters below a parent ([`INGRESS_HOOK`], [`EGRESS_HOOK`] or the handle of a queueing discipline) of an interface; none
    /// where there is no such parent.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn filters(&mut self, interface: u32, parent: u32) -> Result<Vec<Filter>> {
        let mut filters = Vec::new();
        let message = Message::new(libc::RTM_GETTFILTER, libc::NLM_F_DUMP).raw(&tcmsg(interface, parent));
        self.socket
            .request_with(message, |received| filters.extend(read_filter(received)))
            .context(|| format!("list the filters of interface {interface}"))?;
        Ok(filters)
    }
}

/// `struct tcmsg` of an interface and a parent.
pub(super) fn tcmsg(interface: u32, parent: u32) -> [u8; TCMSG] {
    let mut header = [0; TCMSG];
    header[4..8].copy_from_slice(&interface.to_ne_bytes());
    header[12..16].copy_from_slice(&parent.to_ne_bytes());
    header
}

fn read_discipline(received: Received<'_>) -> Option<QueueingDiscipline> {
    let class = match received.kind {
        libc::RTM_NEWQDISC => false,
        libc::RTM_NEWTCLASS => true,
        _ => return None,
    };
    let header = received.payload.get(..TCMSG)?;
    let attributes = Attributes::after(received.payload, TCMSG);
    let mut found = QueueingDiscipline {
        interface: u32_ne(&header[4..])?,
        handle: u32_ne(&header[8..])?,
        parent: u32_ne(&header[12..])?,
        kind: attributes.get(libc::TCA_KIND).map(text)?,
        class,
        ..counted(attributes.get(libc::TCA_STATS2).unwrap_or_default())
    };
    if let Some(options) = attributes.get(libc::TCA_OPTIONS) {
        read_limits(&mut found, options);
    }
    Some(found)
}

/// The counters of a discipline, and of an action, which counts alike (TCA_STATS2, TCA_ACT_STATS); nothing else of it.
fn counted(payload: &[u8]) -> QueueingDiscipline {
    let attributes = Attributes(payload);
    let basic = attributes.get(BASIC).unwrap_or_default();
    // struct gnet_stats_queue: length, backlog, drops, requeues, overlimits.
    let queue = attributes.get(QUEUE).unwrap_or_default();
    let packets = attributes.get(PACKETS_64).and_then(u64_ne);
    QueueingDiscipline {
        bytes: u64_ne(basic).unwrap_or(0),
        packets: packets.unwrap_or_else(|| word(basic, 8)),
        backlog_packets: word(queue, 0),
        backlog_bytes: word(queue, 4),
        dropped: word(queue, 8),
        overlimits: word(queue, 16),
        ..QueueingDiscipline::default()
    }
}

/// A number of 32 bits at an offset, 0 beyond the end.
fn word(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..).and_then(u32_ne).map_or(0, u64::from)
}

/// Rate and limits out of the options of the kinds that have them.
fn read_limits(found: &mut QueueingDiscipline, options: &[u8]) {
    /// TCA_TBF_PARMS, TCA_TBF_RATE64; TCA_HTB_PARMS, TCA_HTB_CEIL64; TCA_CAKE_BASE_RATE64, TCA_CAKE_MEMORY.
    const TBF_PARAMETERS: u16 = 1;
    const TBF_RATE_64: u16 = 4;
    const HTB_PARAMETERS: u16 = 1;
    const HTB_CEIL_64: u16 = 7;
    const CAKE_RATE_64: u16 = 2;
    const CAKE_MEMORY: u16 = 10;
    /// Offsets in `struct tc_ratespec` (12 bytes) and in those that begin with two of them.
    const RATE: usize = 8;
    const SECOND_RATE: usize = 12 + RATE;
    const AFTER_RATES: usize = 24;
    let nested = Attributes(options);
    let number = |kind: u16| nested.get(kind).and_then(u32_ne).map(u64::from);
    // A rate beyond 32 bits stands in an attribute of its own.
    let rate = |wide: u16, narrow: Option<&[u8]>, at: usize| {
        let bytes = nested.get(wide).and_then(u64_ne).or_else(|| narrow.map(|n| word(n, at)));
        bytes.filter(|b| *b > 0).map(|b| b.saturating_mul(8))
    };
    match found.kind.as_str() {
        "tbf" => {
            let parameters = nested.get(TBF_PARAMETERS);
            found.rate_bps = rate(TBF_RATE_64, parameters, RATE);
            found.limit_bytes = parameters.map(|p| word(p, AFTER_RATES));
        }
        // A class may send up to the rate to which it may borrow.
        "htb" if found.class => {
            found.rate_bps = rate(HTB_CEIL_64, nested.get(HTB_PARAMETERS), SECOND_RATE);
        }
        "cake" => {
            found.rate_bps = rate(CAKE_RATE_64, None, 0);
            found.limit_bytes = number(CAKE_MEMORY);
        }
        "pfifo" | "pfifo_head_drop" => found.limit_packets = Some(word(options, 0)),
        "bfifo" | "red" | "gred" => found.limit_bytes = Some(word(options, 0)),
        // struct tc_sfq_qopt: quantum, perturb_period, limit; struct tc_netem_qopt: latency, limit.
        "sfq" => found.limit_packets = Some(word(options, 8)),
        "netem" => found.limit_packets = Some(word(options, 4)),
        "fq" => found.limit_packets = number(1),
        "fq_codel" | "codel" | "pie" | "fq_pie" => {
            // TCA_FQ_CODEL_LIMIT, TCA_CODEL_LIMIT and TCA_PIE_LIMIT are 2, TCA_FQ_PIE_LIMIT is 1.
            found.limit_packets = number(if found.kind == "fq_pie" { 1 } else { 2 });
        }
        _ => {}
    }
}

/// The attribute that holds a filter's actions, by kind (TCA_BPF_ACT, TCA_U32_ACT, ...).
fn actions_of(kind: &str) -> Option<u16> {
    Some(match kind {
        "bpf" | "cgroup" => 1,
        "matchall" => 2,
        "basic" | "flower" => 3,
        "fw" => 4,
        "flow" => 9,
        "u32" => 7,
        _ => return None,
    })
}

fn read_filter(received: Received<'_>) -> Option<Filter> {
    let header = received.payload.get(..TCMSG)?;
    if received.kind != libc::RTM_NEWTFILTER {
        return None;
    }
    let attributes = Attributes::after(received.payload, TCMSG);
    let kind = attributes.get(libc::TCA_KIND).map(text)?;
    // One without options is the mere place of a preference, named before its filters.
    let options = Attributes(attributes.get(libc::TCA_OPTIONS)?);
    let actions = actions_of(&kind).and_then(|attribute| options.get(attribute)).unwrap_or_default();
    let action = |(_, payload): (u16, &[u8])| {
        let action = Attributes(payload);
        let counted = counted(action.get(ACTION_STATS).unwrap_or_default());
        Some((text(action.get(ACTION_KIND)?), counted.packets, counted.dropped))
    };
    let program = (kind == "bpf").then(|| options.get(BPF_ID).and_then(u32_ne)).flatten();
    Some(Filter {
        handle: u32_ne(&header[8..])?,
        // TC_H_MAJ of the info: the lower half is the protocol.
        preference: u32_ne(&header[16..])? >> 16,
        program: program.map(|id| (id, options.get(BPF_NAME).map(text).unwrap_or_default())),
        actions: Attributes(actions).filter_map(action).collect(),
        kind,
    })
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::process::Command;

    use super::*;
    use crate::VethEnd;
    use weir_sys::NetNs;
    use weir_sys::privilege::test_needs_root;

    /// `tc` of iproute2 inside the namespace: who else knows what these numbers mean. False if there is none.
    fn tc(ns: &NetNs, arguments: &str) -> bool {
        let mut command = Command::new("tc");
        command.args(arguments.split_whitespace());
        ns.enter_on_spawn(&mut command);
        match command.output() {
            Ok(output) => {
                assert!(output.status.success(), "{arguments}: {}", String::from_utf8_lossy(&output.stderr));
                true
            }
            Err(_) => {
                println!("SKIP: tc is not installed");
                false
            }
        }
    }

    fn veth() -> (NetNs, Rtnetlink) {
        let ns = NetNs::create().unwrap();
        // An interface with IPv6 greets its neighbours by itself: only the tests' own packets are to be counted.
        let off = "/proc/sys/net/ipv6/conf/all/disable_ipv6";
        if std::path::Path::new(off).exists() {
            ns.run(|| std::fs::write(off, "1")).unwrap().unwrap();
        }
        let mut net = Rtnetlink::open_in(&ns).unwrap();
        let end = |name| VethEnd { name, namespace: None, mtu: 1500, mac: None };
        net.create_veth(end("a"), end("b")).unwrap();
        for name in ["a", "b"] {
            net.set_up(name).unwrap();
        }
        net.add_address("a", "198.18.0.1".parse().unwrap(), 24).unwrap();
        net.add_neighbour("a", "198.18.0.2".parse().unwrap(), [2, 0, 0, 0, 0, 7]).unwrap();
        (ns, net)
    }

    fn send(ns: &NetNs, datagrams: usize) {
        ns.run(|| {
            let socket = UdpSocket::bind("198.18.0.1:0").unwrap();
            // A full queue is an error of send(2) or none; both are what is looked at here.
            (0..datagrams).for_each(|_| drop(socket.send_to(&[0; 958], "198.18.0.2:9")));
        })
        .unwrap();
    }

    #[test]
    fn root_a_shaper_has_the_rate_and_limit_that_it_was_given_and_counts_what_it_drops() {
        if test_needs_root() {
            return;
        }
        let (ns, mut net) = veth();
        if !tc(&ns, "qdisc add dev a root handle 1: tbf rate 40kbit burst 2000 limit 5000") {
            return;
        }
        let a = net.interface("a").unwrap().index;
        let read = |net: &mut Rtnetlink| {
            let all = net.queueing_disciplines().unwrap();
            all.into_iter().find(|q| q.interface == a && q.kind == "tbf").unwrap()
        };
        let before = read(&mut net);
        assert_eq!((before.handle, before.parent, before.class), (0x1_0000, ROOT, false));
        assert_eq!((before.rate_bps, before.limit_bytes), (Some(40_000), Some(5_000)));
        // Frames of 1,000 bytes: two pass at once, five wait, the others have no room. 40 kbit/s lets one more pass in 200 ms.
        send(&ns, 50);
        let after = read(&mut net);
        let waits = after.backlog_packets;
        assert_eq!(after.backlog_bytes, waits * 1000);
        assert_eq!((after.packets - before.packets) + waits + (after.dropped - before.dropped), 50);
        assert!(after.dropped - before.dropped >= 30 && (1..=5).contains(&waits), "{after:?}");
    }

    #[test]
    fn root_rates_beyond_32_bits_and_classes_are_read() {
        if test_needs_root() {
            return;
        }
        let (ns, mut net) = veth();
        if !tc(&ns, "qdisc add dev a root handle 1: htb default 10") {
            return;
        }
        tc(&ns, "class add dev a parent 1: classid 1:10 htb rate 1mbit ceil 50gbit");
        tc(&ns, "qdisc add dev a parent 1:10 handle 10: pfifo limit 7");
        tc(&ns, "class add dev a parent 1: classid 1:20 htb rate 1mbit");
        let all = net.queueing_disciplines().unwrap();
        let class = all.iter().find(|q| q.class && q.handle == 0x1_0010).unwrap();
        assert_eq!((class.rate_bps, class.parent), (Some(50_000_000_000), ROOT));
        let leaf = all.iter().find(|q| q.handle == 0x10_0000).unwrap();
        assert_eq!((leaf.kind.as_str(), leaf.limit_packets, leaf.parent), ("pfifo", Some(7), 0x1_0010));
        assert!(
            all.iter().any(|q| !q.class && q.parent == 0x1_0020),
            "the queue a class has by default: {all:?}"
        );
    }

    #[test]
    fn root_filters_and_their_actions_are_read() {
        if test_needs_root() {
            return;
        }
        let (ns, mut net) = veth();
        if !tc(&ns, "qdisc add dev a clsact") {
            return;
        }
        let matching = "egress pref 7 protocol ip u32 match ip dst 198.18.0.2/32";
        tc(&ns, &format!("filter add dev a {matching} action mirred egress redirect dev b"));
        // Classic BPF, one instruction: return 0 (linux/filter.h).
        let mut command = Command::new("tc");
        command.args("filter add dev a ingress pref 9 bpf bytecode".split(' ')).arg("1,6 0 0 0,");
        ns.enter_on_spawn(&mut command);
        assert!(command.status().unwrap().success());
        let a = net.interface("a").unwrap().index;
        send(&ns, 11);
        let egress = net.filters(a, EGRESS_HOOK).unwrap();
        let dropping: Vec<_> = egress.iter().filter(|f| !f.actions.is_empty()).collect();
        assert_eq!(dropping.len(), 1, "{egress:?}");
        assert_eq!((dropping[0].kind.as_str(), dropping[0].preference), ("u32", 7));
        assert_eq!(dropping[0].actions, [("mirred".to_owned(), 11, 0)]);
        let ingress = net.filters(a, INGRESS_HOOK).unwrap();
        assert!(ingress.iter().any(|f| f.kind == "bpf" && f.preference == 9), "{ingress:?}");
        assert_eq!(net.filters(a, 0x5_0000).unwrap(), [], "there is no such parent");
    }

    #[test]
    fn limits_of_kinds_that_this_kernel_may_lack() {
        let options = |kind: &str, bytes: &[u8]| {
            let mut found = QueueingDiscipline { kind: kind.into(), ..QueueingDiscipline::default() };
            read_limits(&mut found, bytes);
            found
        };
        // As include/uapi/linux/pkt_sched.h lays them out: length 8, type, number.
        let attribute = |kind: u16, number: u32| {
            [&8u16.to_ne_bytes()[..], &kind.to_ne_bytes(), &number.to_ne_bytes()].concat()
        };
        assert_eq!(options("fq_codel", &attribute(2, 10240)).limit_packets, Some(10240));
        assert_eq!(options("fq", &attribute(1, 10000)).limit_packets, Some(10000));
        assert_eq!(options("bfifo", &3000u32.to_ne_bytes()).limit_bytes, Some(3000));
        assert_eq!(options("tbf", &[1]).rate_bps, None);
    }
}
