//! Ways to make room in a full table: more entries as far as memory allows, and entries that end sooner.

use crate::causes::EvidenceView;
use crate::command::nft::nft;
use crate::evidence::{Connections, Namespace};
use crate::finding::{Fact, Fix, Setting};
use weir_conntrack::names::{self, UDP};
use weir_text::order;

/// Bytes of an entry with extensions where this kernel does not tell: 256 + 128 on x86-64.
const ENTRY_BYTES: u64 = 384;
/// Bytes of the head of a hash chain.
const HEAD_BYTES: u64 = 8;
/// One in so many bytes of the machine's memory may go to the table when it is full: 5 %.
const MEMORY_PART: u64 = 20;
/// Heads in a page; the kernel rounds up to whole pages (`nf_ct_alloc_hashtable`).
const HEADS_PER_PAGE: u64 = 512;

const MAX: &str = "net.netfilter.nf_conntrack_max";
const BUCKETS: &str = "net.netfilter.nf_conntrack_buckets";

/// A setting with its value now, if it is there and not the proposed one already.
pub(super) fn setting(
    view: &EvidenceView<'_>,
    namespace: &Namespace,
    name: &str,
    proposed: u64,
    why: &str,
) -> Option<Setting> {
    let now = namespace.setting(name).or_else(|| view.evidence.machine.setting(name))?;
    (now != proposed).then(|| Setting::new(name, now, proposed, why))
}

/// The limit of entries: of the whole machine, but compared with each namespace's count. 0 is none.
pub(super) fn limit(view: &EvidenceView<'_>, namespace: &Namespace) -> Option<u64> {
    let table = namespace.connections.as_ref().and_then(|t| t.max);
    view.evidence.machine.setting(MAX).or(table).filter(|max| *max > 0)
}

/// Entries of the namespace at the window's end.
pub(super) fn count(namespace: &Namespace) -> Option<u64> {
    namespace.gauge("conntrack.count").or_else(|| Some(namespace.connections.as_ref()?.count))
}

/// Heads of hash chains, of all namespaces together.
pub(super) fn buckets(view: &EvidenceView<'_>, namespace: &Namespace) -> Option<u64> {
    let table = namespace.connections.as_ref().and_then(|t| t.buckets);
    view.evidence.machine.setting(BUCKETS).or(table).filter(|b| *b > 0)
}

/// Memory of an entry with its extensions, bytes.
pub(super) fn entry_bytes(namespace: &Namespace) -> u64 {
    namespace.connections.as_ref().and_then(|t| t.entry_bytes).unwrap_or(ENTRY_BYTES)
}

/// Room for four times as many entries, at least as many as the kernel gives a machine of this size by itself, and no more
/// than a twentieth of its memory holds. `None` if that is hardly more than now.
pub(super) fn more_entries(view: &EvidenceView<'_>, namespace: &Namespace, why: &str) -> Option<Fix> {
    let max = limit(view, namespace)?;
    let memory = view.evidence.machine.memory_bytes.get("MemTotal").copied();
    let each = entry_bytes(namespace) + HEAD_BYTES;
    let wanted = (4 * max).max(memory.map_or(0, kernels_own));
    let proposed = memory.map_or(wanted, |m| wanted.min(m / MEMORY_PART / each));
    if proposed < max + max / 4 {
        return None;
    }
    let proposed = proposed.next_multiple_of(HEADS_PER_PAGE);
    let mut settings = vec![setting(view, namespace, MAX, proposed, why)?];
    // Two entries in a chain on average is what the kernel's own choice comes to.
    if let Some(now) = buckets(view, namespace).filter(|now| 4 * now < proposed) {
        let why = format!(
            "chains of {:.0} entries would be walked for every packet",
            2.0 * proposed as f64 / now as f64
        );
        settings.extend(setting(view, namespace, BUCKETS, proposed, &why));
    }
    let risk = format!(
        "up to {} MB of kernel memory when it is full ({} bytes an entry); the limit holds for every namespace of this \
         machine, and can be set only in the machine's own",
        proposed * each / 1_000_000,
        entry_bytes(namespace)
    );
    Some(Fix::set("allow more entries", &risk, settings))
}

/// Returns the size that `nf_conntrack_init_start` chooses by memory.
fn kernels_own(memory: u64) -> u64 {
    const GIB: u64 = 1 << 30;
    match memory {
        m if m > 4 * GIB => 262_144,
        m if m > GIB => 65_536,
        m => (m / 16_384 / HEAD_BYTES).max(1024),
    }
}

/// Entries of one state, the setting that says how long they live, what is enough for them, and why.
const SOONER: &[(&str, &str, u64, &str)] = &[
    // RFC 5382, REQ-5: no less than 2 hours 4 minutes.
    (
        "tcp established",
        "net.netfilter.nf_conntrack_tcp_timeout_established",
        7440,
        "idle connections are remembered for longer than RFC 5382 asks for",
    ),
    (
        "tcp time-wait",
        "net.netfilter.nf_conntrack_tcp_timeout_time_wait",
        30,
        "closed connections fill the table",
    ),
    (
        "tcp syn-sent",
        "net.netfilter.nf_conntrack_tcp_timeout_syn_sent",
        20,
        "unanswered connections fill the table",
    ),
    (
        "tcp syn-recv",
        "net.netfilter.nf_conntrack_tcp_timeout_syn_recv",
        20,
        "half-open connections fill the table",
    ),
    // RFC 4787, REQ-5: no less than two minutes.
    (
        "udp assured",
        "net.netfilter.nf_conntrack_udp_timeout_stream",
        120,
        "UDP is remembered for longer than RFC 4787 asks for",
    ),
    ("udp unreplied", "net.netfilter.nf_conntrack_udp_timeout", 10, "unanswered datagrams fill the table"),
];

/// Shorter lives for states that hold at least a third of the table.
pub(super) fn sooner(view: &EvidenceView<'_>, namespace: &Namespace) -> Option<Fix> {
    let table = namespace.connections.as_ref()?;
    let holds = |state: &str| table.states.get(state).copied().unwrap_or(0);
    let settings: Vec<Setting> = SOONER
        .iter()
        .filter(|(state, name, enough, _)| {
            3 * holds(state) >= table.read.max(1) && namespace.setting(name).is_some_and(|now| now > *enough)
        })
        .filter_map(|(state, name, enough, why)| {
            let why = format!("{why}: {} of {} entries are {state}", holds(state), table.read);
            setting(view, namespace, name, *enough, &why)
        })
        .collect();
    if settings.is_empty() {
        return None;
    }
    let risk = "connections that are quiet for longer are forgotten: their next packet is refused or translated anew";
    Some(Fix::set(
        "let entries end sooner (entries that are there keep the timeout they have)",
        risk,
        settings,
    ))
}

/// Leaving one UDP service untracked that holds a third of the table and needs no translation.
pub(super) fn untracked(namespace: &Namespace) -> Option<Fix> {
    let table = namespace.connections.as_ref()?;
    let of_service = |s: &&crate::evidence::Service| s.protocol == UDP && 3 * s.entries >= table.read.max(1);
    let service = table.services.iter().find(of_service)?;
    let mut groups = table.groups.iter().filter(|g| {
        g.protocol == UDP && g.destination == service.destination && g.destination_port == service.port
    });
    if groups.any(|g| g.source_nat || g.destination_nat || g.helper) {
        return None;
    }
    let (address, port) = (service.destination, service.port);
    let family = if address.is_ipv4() { "ip" } else { "ip6" };
    let chain = |name: &'static str| {
        nft!("add chain inet weir_untracked {} { type filter hook {} priority raw; }", name, name)
    };
    let rule = |name: &'static str, side: &'static str, ports: &'static str| {
        nft!(
            "add rule inet weir_untracked {} {} {} {} udp {} {} notrack",
            name,
            family,
            side,
            address,
            ports,
            port
        )
    };
    let mut commands = vec![nft!("add table inet weir_untracked"), chain("prerouting"), chain("output")];
    for name in ["prerouting", "output"] {
        commands.extend([rule(name, "daddr", "dport"), rule(name, "saddr", "sport")]);
    }
    Some(Fix::new(
        format!("do not track UDP to {address} port {port}, which needs no translation"),
        "rules that let answers pass by `ct state established` no longer match them: both directions must be \
               accepted by address and port first",
        commands,
        [nft!("delete table inet weir_untracked")],
    ))
}

/// Who holds the entries, in words.
pub(super) fn holders(namespace: &Namespace) -> Vec<Fact> {
    use crate::evidence::EvidenceSource::Connections as Table;
    let Some(table) = &namespace.connections else { return Vec::new() };
    if table.read == 0 {
        return Vec::new();
    }
    let of = |n: u64| format!("{n} ({:.0} %)", 100.0 * n as f64 / table.read as f64);
    let mut facts = Vec::new();
    let mut states: Vec<_> = table.states.iter().collect();
    order::by_key(&mut states, |(name, n)| (std::cmp::Reverse(**n), *name));
    let list: Vec<String> = states.iter().take(4).map(|(name, n)| format!("{name} {}", of(**n))).collect();
    facts.push(Fact::seen(Table, format!("of {} entries: {}", table.read, list.join(", "))));
    if !table.sources.is_empty() {
        let list: Vec<String> =
            table.sources.iter().take(3).map(|(a, n)| format!("{a} {}", of(*n))).collect();
        facts.push(Fact::seen(Table, format!("most were opened by {}", list.join(", "))));
    }
    if !table.services.is_empty() {
        let list: Vec<String> = table
            .services
            .iter()
            .take(3)
            .map(|s| format!("{} {} {}", s.destination, names::service(s.protocol, s.port), of(s.entries)))
            .collect();
        facts.push(Fact::seen(Table, format!("most go to {}", list.join(", "))));
    }
    facts.extend(table.partial.iter().map(|why| Fact::seen(Table, why.clone())));
    facts
}

/// True if the table holds that share of its limit.
pub(super) fn is_filled(count: u64, max: u64, share: f64) -> bool {
    count as f64 >= share * max as f64
}

/// Evictable entries among those read, 0 to 1.
pub(super) fn evictable(table: &Connections) -> Option<f64> {
    (table.read > 0).then(|| 1.0 - table.assured as f64 / table.read as f64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::{Evidence, Service};

    fn gateway(max: u64, memory: u64) -> (Evidence, Namespace) {
        let mut evidence = Evidence::default();
        evidence.machine.settings.insert(MAX.into(), max.to_string());
        evidence.machine.settings.insert(BUCKETS.into(), "1024".into());
        evidence.machine.memory_bytes.insert("MemTotal".into(), memory);
        let table = Connections { entry_bytes: Some(384), ..Connections::default() };
        (evidence, Namespace { connections: Some(table), ..Namespace::default() })
    }

    fn proposed(max: u64, memory: u64) -> Option<Vec<(String, String)>> {
        let (evidence, namespace) = gateway(max, memory);
        let fix = more_entries(&EvidenceView::of(&evidence), &namespace, "it was full")?;
        Some(fix.tune.into_iter().map(|s| (s.name, s.proposed)).collect())
    }

    /// 8 GiB: the kernel's own 262,144, which take 262,144 x 392 = 103 MB, less than a twentieth of it.
    #[test]
    fn a_small_limit_grows_to_the_kernels_own_with_buckets() {
        let pair = |name: &str, n: &str| (name.to_owned(), n.to_owned());
        assert_eq!(proposed(1000, 8 << 30), Some(vec![pair(MAX, "262144"), pair(BUCKETS, "262144")]));
        // 4 x 262,144 x 392 bytes = 411 MB; a twentieth of 8 GiB is 429 MB.
        assert_eq!(proposed(262_144, 8 << 30).unwrap()[0].1, "1048576");
    }

    /// A twentieth of 1 GiB holds 136,956 entries of 392 bytes.
    #[test]
    fn memory_is_the_bound() {
        let expected = ((1_u64 << 30) / 20 / 392).next_multiple_of(512).to_string();
        assert_eq!(proposed(100_000, 1 << 30).unwrap()[0].1, expected);
        assert_eq!(proposed(120_000, 1 << 30), None);
    }

    #[test]
    fn what_is_set_is_put_back_in_reverse() {
        let (evidence, namespace) = gateway(1000, 8 << 30);
        let fix = more_entries(&EvidenceView::of(&evidence), &namespace, "it was full").unwrap();
        assert_eq!(fix.commands[0], "sysctl -w net.netfilter.nf_conntrack_max=262144");
        assert_eq!(
            fix.undo,
            [
                "sysctl -w net.netfilter.nf_conntrack_buckets=1024",
                "sysctl -w net.netfilter.nf_conntrack_max=1000"
            ]
        );
    }

    #[test]
    fn only_states_that_fill_the_table_end_sooner() {
        let (evidence, mut namespace) = gateway(1000, 8 << 30);
        let established = "net.netfilter.nf_conntrack_tcp_timeout_established";
        namespace.settings.insert(established.into(), "432000".into());
        namespace.settings.insert("net.netfilter.nf_conntrack_udp_timeout_stream".into(), "120".into());
        let table = namespace.connections.as_mut().unwrap();
        table.read = 100;
        table.states = [("tcp established".to_owned(), 50), ("udp assured".to_owned(), 50)].into();
        let fix = sooner(&EvidenceView::of(&evidence), &namespace).unwrap();
        assert_eq!(fix.tune.len(), 1);
        assert_eq!((fix.tune[0].name.as_str(), fix.tune[0].proposed.as_str()), (established, "7440"));
        namespace.connections.as_mut().unwrap().states.clear();
        assert_eq!(sooner(&EvidenceView::of(&evidence), &namespace), None);
    }

    #[test]
    fn only_what_needs_no_translation_is_left_untracked() {
        let (_, mut namespace) = gateway(1000, 8 << 30);
        let table = namespace.connections.as_mut().unwrap();
        let destination = "198.18.0.53".parse().unwrap();
        table.read = 100;
        table.services = vec![Service { destination, protocol: UDP, port: 53, entries: 40 }];
        let fix = untracked(&namespace).unwrap();
        assert_eq!(fix.commands.len(), 7);
        assert!(fix.commands[3].contains("prerouting ip daddr 198.18.0.53 udp dport 53 notrack"));
        let group = crate::evidence::ConnectionGroup {
            protocol: UDP,
            destination,
            destination_port: 53,
            source_nat: true,
            ..Default::default()
        };
        namespace.connections.as_mut().unwrap().groups.push(group);
        assert_eq!(untracked(&namespace), None);
    }
}
