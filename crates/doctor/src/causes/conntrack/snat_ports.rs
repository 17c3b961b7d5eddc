//! Source NAT has no port left towards one destination.

use super::refused::{Refused, Where, claims, fact};
use super::relief;
use crate::causes::{Cause, EvidenceView, Group};
use crate::command::nft::{self, nft, statement};
use crate::command::sh;
use crate::evidence::{Backend, Connections, EvidenceSource, Namespace, SnatPool};
use crate::finding::{Claim, Confidence, Fact, Finding, Fix, Severity};
use crate::recipe::{Recipe, Step, Traffic, UdpMode};
use weir_conntrack::names;

pub(super) const CAUSE: Cause = Cause {
    id: "snat-ports-exhausted",
    title: "no port left for source NAT",
    about: "Source NAT gives each connection an outside port that no other connection to the same destination has: outside \
            address, protocol, destination and destination port must be unique together. One busy destination (a name \
            server, a proxy, an API behind one address) can therefore use up all ports of one outside address while \
            everything else works. The first packet of a connection that finds no port is dropped when it is about to \
            leave.\n\n\
            Without a range in the rule there are 64,512 ports (1024 to 65535). The kernel does not try them all: it tries \
            248 at random, so that connections are refused now and then from about 98 % on. Closed connections keep their \
            port for as long as conntrack remembers them, two minutes of TIME_WAIT; only newer kernels (6.x) take it from \
            them when no other is left.",
    must: &[
        "conntrack `insert_failed` and `drop` grow by the same number",
        "the table holds nearly as many connections to one destination as there are ports",
    ],
    should: &[
        "packets dropped as NETFILTER_DROP in nf_hook_slow, on the interface through which they would have left",
    ],
    must_not: &["chains that are too long (`chain_toolong`)"],
    lookalikes: &[
        ("conntrack-full", "there every destination is refused, and `insert_failed` stands still"),
        (
            "conntrack-insert-race",
            "there ports are free, and only pairs of packets at the same moment are lost",
        ),
        ("conntrack-hash-small", "there `chain_toolong` grows"),
    ],
    remedy: "Give source NAT more outside addresses, or the rule a larger range. Let clients keep connections open instead of \
             making new ones, and let closed ones free their port sooner.",
    sources: &[
        "net/netfilter/nf_nat_core.c: nf_nat_l4proto_unique_tuple",
        "RFC 6056, section 3",
        "RFC 6888, REQ-4",
    ],
    recipes,
    ..Cause::of(Group::Conntrack, |view| view.each(in_namespace))
};

/// From here on tries may fail (0.95 to the power of 248 is 3 in a million, 0.98 is 7 in a thousand).
const USED_UP: f64 = 0.95;
/// Ranges that the kernel tries as a whole (`NF_NAT_MAX_ATTEMPTS`): a range of one port is full by design, and needs no warning.
const SMALL: u64 = 128;
/// Clashes without a known pool from which on it is no accident.
const MANY: u64 = 20;

/// Whether the table holds as many entries as the narrowest rule of source NAT has ports, also if none of them was read.
fn has_entries_for_a_pool(table: &Connections) -> bool {
    table.least_ports.is_none_or(|ports| table.count as f64 >= USED_UP * ports as f64)
}

fn in_namespace(view: &EvidenceView<'_>, namespace: &Namespace) -> Option<Finding> {
    let refused = Refused::of(namespace);
    let table = namespace.connections.as_ref();
    let full: Vec<&SnatPool> = table.map_or(&[][..], |t| &t.pools).iter().filter(|p| is_used_up(p)).collect();
    if refused.clashed == 0 {
        let large = full.into_iter().find(|p| p.available > SMALL)?;
        return Some(soon(view, namespace, large));
    }
    // If the table could not be read, the counters alone must do: the kernel repairs a race more often than it loses one.
    let unread = table.is_none_or(|t| t.partial.is_some() && has_entries_for_a_pool(t));
    if full.is_empty() && !(unread && refused.clashed >= MANY && refused.repaired < refused.clashed / 10) {
        return None;
    }
    let lost = refused.clashed;
    let mut finding = view.finding(CAUSE.id, namespace, lost);
    finding.claims = claims(view, namespace, lost, "conntrack.insert_failed", Where::Leaving);
    let seen = matches!(finding.claims[..], [Claim::Drops { .. }, ..]);
    finding.missing = view.missing(namespace, &[EvidenceSource::Drops, EvidenceSource::Connections]);
    finding.confidence = match (full.is_empty(), seen) {
        (false, true) => Confidence::High,
        (false, false) => Confidence::Medium,
        (true, _) => Confidence::Low,
    };
    fact(&mut finding, namespace, "insert_failed", format!("{lost} packets found their tuple taken"));
    fact(&mut finding, namespace, "drop", "as many were dropped");
    finding.evidence.extend(full.iter().take(4).map(|p| Fact::seen(EvidenceSource::Connections, words(p))));
    finding.summary = match full.first() {
        Some(pool) => {
            finding.object = object(pool);
            format!(
                "Source NAT has no port left: {} of {} ports of {} are in use towards {} {}, and {lost} packets that would \
                 have opened connections were dropped.",
                pool.used,
                pool.available,
                pool.outside,
                pool.destination,
                names::service(pool.protocol, pool.destination_port)
            )
        }
        None => format!("Source NAT found no free port for {lost} packets; their destination is unknown."),
    };
    finding.not.push("not a full table: packets that wanted an entry got one".into());
    finding.not.push(format!("not a race: {} clashes were resolved by the kernel", refused.repaired));
    finding.fixes = fixes(view, namespace, full.first().copied());
    Some(finding)
}

fn is_used_up(pool: &SnatPool) -> bool {
    let most = if pool.available <= SMALL { 1.0 } else { USED_UP };
    pool.used as f64 >= most * pool.available as f64
}

/// Nothing is lost yet.
fn soon(view: &EvidenceView<'_>, namespace: &Namespace, pool: &SnatPool) -> Finding {
    let mut finding = view.finding(CAUSE.id, namespace, 0);
    finding.severity = Severity::Warning;
    finding.confidence = Confidence::High;
    finding.object = object(pool);
    finding.summary = format!("Source NAT is about to run out of ports: {}.", words(pool));
    finding.seen(EvidenceSource::Connections, words(pool));
    finding.not.push("nothing was refused in the window".into());
    finding.fixes = fixes(view, namespace, Some(pool));
    finding
}

fn object(pool: &SnatPool) -> String {
    let service = names::service(pool.protocol, pool.destination_port);
    format!("{} to {} {service}", pool.outside, pool.destination)
}

fn words(pool: &SnatPool) -> String {
    format!(
        "{}: {} of {} ports ({} to {}) in use",
        object(pool),
        pool.used,
        pool.available,
        pool.first_port,
        pool.last_port
    )
}

fn fixes(view: &EvidenceView<'_>, namespace: &Namespace, pool: Option<&SnatPool>) -> Vec<Fix> {
    let mut fixes = Vec::new();
    let outside = pool.map_or_else(|| "OUTSIDE_ADDRESS".to_owned(), |p| p.outside.to_string());
    let device = pool.and_then(|p| {
        let has = |i: &&crate::evidence::Interface| i.addresses.iter().any(|(a, _)| *a == p.outside);
        namespace.interfaces.iter().find(has)
    });
    let family = if outside.contains(':') { ("ip6", 128) } else { ("ip", 32) };
    let out = device.map_or_else(|| statement!("OUTSIDE_INTERFACE"), |i| nft::interface(&i.name));
    let device = device.map_or("OUTSIDE_INTERFACE", |i| i.name.as_str());
    let address = match outside.parse::<std::net::IpAddr>() {
        Ok(address) => statement!("{}", address),
        Err(_) => statement!("OUTSIDE_ADDRESS"),
    };
    let restricted = pool.filter(|p| p.available < 60_000 && p.last_port >= 1024);
    fixes.extend(restricted.map(|pool| wider(namespace, pool)));
    fixes.push(Fix::new(
        "give source NAT a second outside address",
        "the address must be routed to this host; connections of one client may come from either address",
        [
            sh!("ip address add SECOND_ADDRESS/{} dev {}", family.1, device),
            nft!("add table {} weir_snat", family.0),
            nft!("add chain {} weir_snat postrouting { type nat hook postrouting priority 99; }", family.0),
            nft!(
                "add rule {} weir_snat postrouting oifname {} snat to {}-SECOND_ADDRESS",
                family.0,
                out,
                address
            ),
        ],
        [
            nft!("delete table {} weir_snat", family.0),
            sh!("ip address del SECOND_ADDRESS/{} dev {}", family.1, device),
        ],
    ));
    // Ports of connections that are over.
    let closed =
        namespace.connections.as_ref().and_then(|t| t.states.get("tcp time-wait")).copied().unwrap_or(0);
    if pool.is_none_or(|p| p.protocol == names::TCP && 4 * closed >= p.used) {
        let why = format!("{closed} closed connections keep their port");
        let name = "net.netfilter.nf_conntrack_tcp_timeout_time_wait";
        let shorter = namespace.setting(name).filter(|now| *now > 30);
        if let Some(setting) = shorter.and_then(|_| relief::setting(view, namespace, name, 30, &why)) {
            let risk = "a late segment of the old connection may meet a new one with the same port";
            fixes.push(Fix::set("free the ports of closed connections sooner", risk, vec![setting]));
        }
    }
    fixes
}

/// The rule without its range of ports.
fn wider(namespace: &Namespace, pool: &SnatPool) -> Fix {
    let (first, last) = (pool.first_port, pool.last_port);
    let ranges = [format!(" to :{first}-{last}"), format!(":{first}-{last}")];
    let rules = namespace.rules.as_ref().map_or(&[][..], |r| &r.rules);
    let nft = rules.iter().filter(|r| r.backend == Backend::Nft);
    let found = nft.into_iter().find(|rule| ranges.iter().any(|range| rule.text.contains(range.as_str())));
    let (commands, undo) = match found {
        Some(rule) => nft::edit(rule, "RULE_AS_LISTED_WITHOUT_ITS_RANGE_OF_PORTS"),
        None => (
            vec![
                nft!("-a list ruleset"),
                nft!("replace rule FAMILY TABLE CHAIN handle HANDLE MATCHES masquerade"),
            ],
            vec![nft!("replace rule FAMILY TABLE CHAIN handle HANDLE MATCHES masquerade to :FIRST-LAST")],
        ),
    };
    Fix::new(
        format!("let the rule give more ports than {first} to {last}: leave its range out"),
        "ports outside the old range may be in use by services of this host behind the same address",
        commands,
        undo,
    )
}

/// Ten ports for everything that leaves.
const TEN_PORTS: &str = "nft 'add table ip nat; add chain ip nat post { type nat hook postrouting priority 100; }; \
                         add rule ip nat post oifname outside ip protocol { tcp, udp } masquerade to :6000-6009'";

fn recipes() -> Vec<Recipe> {
    let setup = || vec![Step::gateway(TEN_PORTS)];
    vec![
        Recipe::named("udp", setup(), Traffic::datagrams(7000, UdpMode::Echo, 64, 500, 0)),
        // Held: since 6.x the kernel gives the port of a closed connection away again when none is free.
        Recipe::named("tcp-held", setup(), Traffic::connects("198.19.0.2:7000", 100, 64, true)),
    ]
}

#[cfg(test)]
mod tests {
    use super::super::refused::tests::{counted, evidence, refusal};
    use super::*;
    use crate::evidence::Evidence;

    fn pool(used: u64, available: u64) -> SnatPool {
        SnatPool {
            outside: "198.19.0.1".parse().unwrap(),
            protocol: names::UDP,
            destination: "198.19.0.2".parse().unwrap(),
            destination_port: 53,
            first_port: 1024,
            last_port: 65_535,
            used,
            available,
        }
    }

    fn seen(clashed: u64, pools: Vec<SnatPool>) -> Evidence {
        let mut namespace = counted(&[("drop", clashed), ("insert_failed", clashed)]);
        namespace.connections.as_mut().unwrap().pools = pools;
        let drops = if clashed > 0 { vec![refusal(clashed, 2)] } else { Vec::new() };
        evidence(namespace, drops)
    }

    #[test]
    fn a_used_up_pool_with_clashes_is_it() {
        let evidence = seen(400, vec![pool(64_000, 64_512)]);
        let [finding] = &(CAUSE.examine)(&EvidenceView::of(&evidence))[..] else { panic!() };
        assert_eq!(finding.claims, [Claim::Drops { group: 0, packets: 400 }]);
        assert_eq!((finding.severity, finding.confidence), (Severity::Critical, Confidence::High));
        assert_eq!(finding.object, "198.19.0.1 to 198.19.0.2 udp/53");
    }

    #[test]
    fn clashes_with_free_ports_are_a_race() {
        assert_eq!((CAUSE.examine)(&EvidenceView::of(&seen(3, vec![pool(40_000, 64_512)]))), []);
        assert_eq!((CAUSE.examine)(&EvidenceView::of(&seen(3, vec![]))), []);
        assert_eq!((CAUSE.examine)(&EvidenceView::of(&seen(3, vec![pool(9, 10)]))), []);
    }

    #[test]
    fn a_large_pool_warns_before_and_a_rule_of_one_port_does_not() {
        let evidence = seen(0, vec![pool(64_000, 64_512)]);
        let [finding] = &(CAUSE.examine)(&EvidenceView::of(&evidence))[..] else { panic!() };
        assert_eq!((finding.severity, finding.claims.len()), (Severity::Warning, 0));
        assert_eq!((CAUSE.examine)(&EvidenceView::of(&seen(0, vec![pool(1, 1)]))), []);
    }

    #[test]
    fn without_the_table_the_counters_do_if_they_are_clear() {
        let mut blind = seen(400, vec![]);
        blind.namespaces[0].connections = None;
        blind.evidence_sources.remove(&EvidenceSource::Connections);
        let [finding] = &(CAUSE.examine)(&EvidenceView::of(&blind))[..] else { panic!() };
        assert_eq!(finding.confidence, Confidence::Low);
        blind.namespaces[0].counters.insert("conntrack.clash_resolve".into(), (0, 300).into());
        assert_eq!((CAUSE.examine)(&EvidenceView::of(&blind)), []);
    }

    /// A busy host reads only a part of a table in its time.
    #[test]
    fn too_few_entries_for_any_pool_are_a_race_also_if_they_were_not_read() {
        let found = |count, least_ports| {
            let mut part = seen(400, vec![]);
            let table = part.namespaces[0].connections.as_mut().unwrap();
            (table.count, table.least_ports, table.partial) = (count, least_ports, Some("no time".into()));
            (CAUSE.examine)(&EvidenceView::of(&part)).len()
        };
        assert_eq!((found(20_000, Some(64_512)), found(64_000, Some(64_512))), (0, 1));
        assert_eq!((found(10, Some(10)), found(20_000, None)), (1, 1));
    }
}
