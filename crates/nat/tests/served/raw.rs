//! Raw packets between two real ends: the rows that need them, as the lab's own ends see them.

use std::collections::BTreeMap;

use super::reference::OUTSIDE_MTU;
use super::reference::wire64::{Flaw, Translator};
use super::*;

/// Rows of raw packets.
const ROWS: [&str; 36] = [
    "tcp-simultaneous-open",
    "tcp-options",
    "tcp-mss",
    "tcp-options-in",
    "tcp-syn-data",
    "tcp-syn-ack-data",
    "tcp-half-close",
    "tcp-half-close-in",
    "tcp-reset",
    "tcp-data-after-reset",
    "tcp-sequence-check",
    "tcp-reset-window",
    "tcp-icmp-error-in",
    "tcp-icmp-error-out",
    "tcp-icmp-keeps-mapping",
    "icmp-query",
    "icmp-query-mapping",
    "icmp-error-in",
    "icmp-error-checksum",
    "udp-icmp-keeps-mapping",
    "icmp-error-out",
    "icmp-error-about-query",
    "icmp-error-keeps-query",
    "icmp-error-types",
    "icmp-too-big-in",
    "ip-ttl",
    "ip-dscp-ecn",
    "ip-dont-fragment",
    "udp-fragments-in-order",
    "udp-fragments-reversed",
    "udp-fragments-overlapping",
    "protocol-gre",
    "protocol-esp",
    "protocol-dccp",
    "protocol-sctp",
    "protocol-udp-lite",
];

fn key() -> Key {
    Key::new(b"0123456789abcdef").unwrap()
}

/// The table of a check with the key, which has raw packets.
pub(super) fn keyed_table(site: &Site, version: Version, idle: Duration) -> (Table, Observations) {
    with_keyed_server(site, version, 2, Some(key()), Bounds::default(), |server| {
        in_keyed_client(site, server, idle, Some(&key()), |ends| {
            assert_eq!(ends.raw_packets(), Ok(()));
            let seen = measure(ends, &mut |_| true).unwrap();
            let mut table = Table::of(&seen);
            restrict(
                &mut table,
                &Means { two_addresses: true, low_ports: true, raw_packets: ends.raw_packets() },
            );
            (table, seen)
        })
    })
}

fn raw_verdicts(table: &Table) -> BTreeMap<&'static str, Compliance> {
    verdicts(table).into_iter().filter(|(row, _)| ROWS.contains(row)).collect()
}

/// Defects that a server at the other end sees, and the rows that they change to "not sure": a firewall on the way could be their
/// cause, or the server's kernel. Stripped options of a SYN and ACK are not among them: the conversation itself would break.
const DEFECTS: &[(Defect, &[&str])] = &[
    (Defect::NoSimultaneousOpen, &["tcp-simultaneous-open"]),
    (Defect::OptionsStripped, &[]),
    (Defect::MssLowered, &[]),
    (Defect::SynDataDropped, &["tcp-syn-data"]),
    (Defect::SynAckDataDropped, &["tcp-syn-ack-data"]),
    (Defect::HalfCloseEnds, &["tcp-half-close"]),
    (Defect::HalfCloseInEnds, &["tcp-half-close-in"]),
    (Defect::ResetDropped, &["tcp-reset"]),
    (Defect::ResetEndsMapping, &["tcp-data-after-reset", "tcp-reset-window"]),
    (Defect::WildResetEnds, &["tcp-reset-window"]),
    (Defect::QueriesDropped, &["icmp-query"]),
    (Defect::QueriesPerDestination, &[]),
    (Defect::QueryErrorsDropped, &["icmp-error-about-query"]),
    (
        Defect::ErrorsInDropped,
        &[
            "icmp-error-in",
            "icmp-error-about-query",
            "tcp-icmp-error-in",
            "icmp-error-types",
            "icmp-too-big-in",
        ],
    ),
    (Defect::ProhibitedDropped, &["icmp-error-types"]),
    (Defect::TooBigDropped, &["icmp-error-types", "icmp-too-big-in"]),
    (Defect::TooBigMtuChanged, &[]),
    (Defect::ErrorsOutDropped, &["icmp-error-out", "tcp-icmp-error-out"]),
    (Defect::TcpErrorsOutDropped, &["tcp-icmp-error-out"]),
    (Defect::ErrorOutSourceKept, &[]),
    (Defect::InnerKept, &[]),
    (Defect::InnerChecksumStale, &[]),
    (Defect::InnerIpChecksumStale, &[]),
    (Defect::ErrorCodeChanged, &[]),
    (Defect::ErrorsEndMapping, &["icmp-error-keeps-query"]),
    (Defect::FragmentsDropped, &["udp-fragments-in-order", "udp-fragments-reversed"]),
    (Defect::FragmentsInOrderOnly, &["udp-fragments-reversed"]),
    (Defect::FragmentsLeaked, &["udp-fragments-in-order", "udp-fragments-reversed"]),
    (Defect::TtlKept, &[]),
    (Defect::TosCleared, &[]),
    (Defect::DfCleared, &[]),
    (Defect::OverlapsJoined, &[]),
    (Defect::OthersLeaked, &[]),
    (
        Defect::OtherAnswersDropped,
        &["protocol-gre", "protocol-esp", "protocol-dccp", "protocol-sctp", "protocol-udp-lite"],
    ),
];

/// A NAT, and its rows that become "not sure" between two real ends.
#[derive(Debug, Clone)]
struct Case {
    defects: Vec<Defect>,
    flaws: Vec<Flaw>,
    unsure: Vec<&'static str>,
}

impl Case {
    /// A sound NAT first, then one with each defect.
    fn all(defects: &[(Defect, &[&'static str])]) -> Vec<Case> {
        let sound = Case { defects: Vec::new(), flaws: Vec::new(), unsure: Vec::new() };
        let of = |(defect, unsure): &(Defect, &[&'static str])| Case {
            defects: vec![*defect],
            unsure: unsure.to_vec(),
            ..sound.clone()
        };
        [sound.clone()].into_iter().chain(defects.iter().map(of)).collect()
    }

    fn behaviour(&self) -> Behaviour {
        Behaviour { defects: self.defects.clone(), ..Behaviour::default() }
    }

    /// The table of the same NAT by packets in memory.
    fn truth(&self, version: Version) -> Table {
        if version != Version::Nat64 {
            return truth(&self.behaviour());
        }
        let translator = Translator { flaws: self.flaws.clone() };
        let mut ends = Memory::nat64(self.behaviour(), translator, Duration::ZERO);
        Table::of(&measure(&mut ends, &mut |_| true).unwrap())
    }
}

/// Each case is seen as in memory. The first one is sound.
fn show_as_in_memory(name: &str, version: Version, cases: &[Case]) {
    let sound = cases[0].truth(version);
    each_of(name, version, cases, |site, case| {
        if version == Version::Nat64 {
            wire64::prepare(site);
        }
        if !case.flaws.is_empty() {
            // The conversation would need the errors that a flaw spoils.
            let mtu = format!("net.ipv6.conf.{}.mtu", site.interfaces(Role::Initiator).remove(0));
            let set = || sysctl::set(&ProcRoot::new("/"), &mtu, &OUTSIDE_MTU.to_string());
            site.host(Role::Initiator).unwrap().run(set).unwrap().unwrap();
        }
        let truth = case.truth(version);
        let _nat = Wire::translating(site, case.behaviour(), Translator { flaws: case.flaws.clone() });
        let (table, seen) = keyed_table(site, version, Duration::ZERO);
        let (found, mut expected) = (raw_verdicts(&table), raw_verdicts(&truth));
        assert_eq!(found.len(), ROWS.len());
        for row in &case.unsure {
            assert!([Compliance::Fails, Compliance::Partly].contains(&expected[row]), "{row}: {case:?}");
            expected.insert(row, Compliance::NotSure);
        }
        assert_eq!(found, expected, "{case:?}: {seen:#?}");
        // The defect is one of these rows.
        let is_sound = case.defects.is_empty() && case.flaws.is_empty();
        let words = |table: &Table| ROWS.map(|row| table.line(row).unwrap().judgement.seen.clone());
        assert_eq!(!is_sound, words(&truth) != words(&sound), "{case:?}");
    });
}

#[test]
fn root_raw_packets_show_each_defect_as_the_lab_does() {
    if privilege::test_needs_root() {
        return;
    }
    show_as_in_memory("raw", Version::Ipv4, &Case::all(DEFECTS));
}

/// The same through a NAT64, with defects of the NAT behind the translator of headers. Short packets leave it without DF.
#[test]
fn root_raw_packets_show_each_defect_of_a_nat64() {
    if privilege::test_needs_root() {
        return;
    }
    let mut cases = Case::all(DEFECTS);
    cases.retain(|case| case.defects != [Defect::DfCleared]);
    for case in cases.iter_mut().filter(|case| case.defects == [Defect::OthersLeaked]) {
        // No inside address fits the other side: a translator's own one leaves, to which no answer comes back.
        case.unsure =
            vec!["protocol-gre", "protocol-esp", "protocol-dccp", "protocol-sctp", "protocol-udp-lite"];
    }
    show_as_in_memory("raw64", Version::Nat64, &cases);
}

/// Flaws of the translator of headers itself (RFC 7915).
#[test]
fn root_raw_packets_show_each_flaw_of_a_translator() {
    const ERRORS_IN: [&str; 5] = [
        "icmp-error-in",
        "icmp-error-about-query",
        "icmp-error-types",
        "icmp-too-big-in",
        "tcp-icmp-error-in",
    ];
    if privilege::test_needs_root() {
        return;
    }
    let mut cases = Case::all(&[]);
    let sound = cases[0].clone();
    cases.extend(
        [
            (Flaw::MtuKept, vec![]),
            // The server takes an error that quotes a packet of IPv6 for none of the check.
            (Flaw::QuoteKept, vec!["icmp-error-out", "tcp-icmp-error-out"]),
            (Flaw::CodesKept, vec![]),
            // Messages with a wrong checksum are lost on the way: no reply comes.
            (
                Flaw::PseudoHeaderForgotten,
                [&["icmp-query", "icmp-error-keeps-query"], &ERRORS_IN[..]].concat(),
            ),
            (Flaw::QuotedChecksumStale, vec![]),
            (Flaw::DfAlways, vec![]),
            (Flaw::ErrorsDropped, [&["icmp-error-out", "tcp-icmp-error-out"], &ERRORS_IN[..]].concat()),
            (Flaw::FragmentsDropped, vec!["udp-fragments-in-order", "udp-fragments-reversed"]),
            (Flaw::ClassLost, vec![]),
            (Flaw::OthersDropped, vec![]),
        ]
        .map(|(flaw, unsure)| Case { flaws: vec![flaw], unsure, ..sound.clone() }),
    );
    show_as_in_memory("flaws64", Version::Nat64, &cases);
}

#[test]
fn root_raw_packets_over_ipv6() {
    if privilege::test_needs_root() {
        return;
    }
    let stale = Behaviour { defects: vec![Defect::InnerChecksumStale], ..Behaviour::v6() };
    each_of("raw6", Version::Ipv6, &[Behaviour::v6(), stale], |site, behaviour| {
        let truth = truth(behaviour);
        let _nat = Wire::start(site, behaviour.clone());
        let (table, seen) = keyed_table(site, Version::Ipv6, Duration::ZERO);
        assert_eq!(raw_verdicts(&table), raw_verdicts(&truth), "{seen:#?}");
    });
}

/// A router's MTU in an error is for the experiment: the routes of this host keep theirs.
#[test]
fn root_no_route_takes_the_mtu_of_an_error() {
    if privilege::test_needs_root() {
        return;
    }
    for (name, version, behaviour) in
        [("mtu", Version::Ipv4, Behaviour::default()), ("mtu6", Version::Ipv6, Behaviour::v6())]
    {
        each_of(name, version, &[()], |site, ()| {
            let _nat = Wire::start(site, behaviour.clone());
            let (table, seen) = keyed_table(site, version, Duration::ZERO);
            assert_eq!(raw_verdicts(&table)["icmp-too-big-in"], Compliance::Meets, "{seen:#?}");
            let mut command = Command::new("ip");
            command.args(["route", "get", &site.addresses().responder.to_string()]);
            site.host(Role::Initiator).unwrap().enter_on_spawn(&mut command);
            let output = command.output().unwrap();
            let route = String::from_utf8(output.stdout).unwrap();
            // The conversation itself has met the outside link, which carries 1,400 bytes.
            assert!(output.status.success() && !route.contains("mtu 1300"), "{route}");
        });
    }
}

/// Timers of connections in each state and of pings, and packets that hold none: all end within the times that are tried. The server's
/// kernel answers the pings.
#[test]
fn root_paced_raw_packets_show_timers() {
    if privilege::test_needs_root() {
        return;
    }
    let defects = vec![Defect::ResetsRefresh, Defect::ShortReset, Defect::QueryErrorsRefresh];
    let icmp_query = Duration::from_secs(6);
    // More mappings are left alone than the pool holds otherwise, and every opening at a full one delays packets that are due.
    let pool = usize::MAX;
    let sound = Behaviour {
        pool,
        tcp_established: Duration::from_secs(7),
        tcp_reset: Duration::from_secs(4),
        icmp_query,
        ..Behaviour::default()
    };
    let short = Behaviour { defects, icmp_query, pool, ..Behaviour::default() };
    each("rawidle", &[sound, short], |site, behaviour| {
        let _nat = Wire::start(site, behaviour.clone());
        let limit = Duration::from_secs(12);
        let seen = with_keyed_server(site, Version::Ipv4, 2, Some(key()), Bounds::default(), |server| {
            let check = |ends: &mut ServerEnds| measure(ends, &mut |_| true).unwrap();
            in_keyed_client(site, server, limit, Some(&key()), check)
        });
        let idle = seen.idle.unwrap();
        let (after_reset, held) = if behaviour.has(Defect::ShortReset) { (10.0, true) } else { (4.0, false) };
        for (tries, expected) in
            [(&idle.tcp_reset_in, after_reset), (&idle.tcp_reset_out, after_reset), (&idle.icmp, 6.0)]
        {
            let (alive, dead) = weir_nat::experiments::bracket(tries).unwrap();
            assert!(alive <= expected && dead + 0.3 >= expected, "{expected}: {alive} {dead}");
        }
        assert!(idle.tcp_opening.len() > 20 && idle.tcp_opening.iter().all(|one| one.alive));
        assert_eq!(idle.tcp_refreshed_reset.unwrap().alive, held);
        assert_eq!(idle.icmp_refreshed_error.unwrap().alive, held);
        let connections = [&idle.tcp_established, &idle.tcp_half_closed];
        let after = idle.tcp_afterwards.as_ref();
        if behaviour.has(Defect::ShortReset) {
            assert!(connections.iter().all(|tries| tries.len() > 20 && tries.iter().all(|one| one.alive)));
        } else {
            for tries in connections {
                let (alive, dead) = weir_nat::experiments::bracket(tries).unwrap();
                assert!(alive <= 7.0 && dead + 0.3 >= 7.0, "{alive} {dead}");
            }
            assert!(after.is_some());
        }
        assert_eq!(idle.port_reuse, Vec::new());
    });
}

/// A server leaves clients that say nothing, so the check says something while it waits.
#[test]
fn root_paced_waiting_does_not_end_the_conversation() {
    if privilege::test_needs_root() {
        return;
    }
    each("rawwait", &[()], |site, ()| {
        let _nat = Wire::start(site, Behaviour::default());
        let idle = Duration::from_secs(17);
        let limits = Bounds { idle, ..Bounds::default() };
        with_keyed_server(site, Version::Ipv4, 2, Some(key()), limits, |server| {
            in_keyed_client(site, server, idle, Some(&key()), |ends| {
                ends.begin("idle");
                let conditions = ends.conditions();
                let (inside, outside) = (conditions.inside[0], conditions.outside[0]);
                let port = ends.first_port();
                let from = SocketAddr::new(inside, port);
                let to = SocketAddr::new(outside, ends.outside_port(port));
                ends.send(Side::Inside, &Packet::udp(from, to, &ends.mark())).unwrap();
                let over = ends.now() + idle + Duration::from_secs(3);
                while ends.receive(over).unwrap().is_some() {}
            });
        });
    });
}

/// Without the key the rows have the reason.
#[test]
fn root_rows_of_raw_packets_have_the_reason_why_there_are_none() {
    if privilege::test_needs_root() {
        return;
    }
    each("noraw", &[()], |site, ()| {
        let _nat = Wire::start(site, Behaviour::default());
        let reason = with_server(site, Version::Ipv4, 2, |server| {
            in_client(site, server, Duration::ZERO, |ends| ends.raw_packets().unwrap_err())
        });
        assert!(reason.contains("no key"), "{reason}");
    });
}

/// The kernel's NAT: also with connection tracking on the ends' own hosts, and on a path that loses 2 % of packets each way.
#[test]
fn root_raw_packets_through_the_kernels_nat() {
    if privilege::test_needs_root() || lacks_nft() {
        return;
    }
    each("rawkernel", &["plain", "tracked", "lossy"], |site, case| {
        translated(site, "masquerade");
        if *case == "lossy" {
            let rules = "table ip l { chain f { type filter hook forward priority 0; numgen random mod 50 0 drop; }; }\n";
            nft(site.host(Role::Gateway).unwrap(), rules);
        }
        if *case == "tracked" {
            for role in [Role::Initiator, Role::Responder] {
                let rules = "table ip t { chain i { type filter hook input priority 0; ct state invalid drop; }; \
                             chain o { type filter hook output priority 0; ct state established accept; }; }\n";
                nft(site.host(role).unwrap(), rules);
            }
        }
        let (table, seen) = keyed_table(site, Version::Ipv4, Duration::ZERO);
        let found = raw_verdicts(&table);
        for (row, expected) in [
            ("icmp-query", Compliance::Meets),
            ("icmp-query-mapping", Compliance::Meets),
            ("icmp-error-in", Compliance::Meets),
            ("icmp-error-checksum", Compliance::Meets),
            ("icmp-error-out", Compliance::Meets),
            ("udp-icmp-keeps-mapping", Compliance::Meets),
            ("icmp-error-about-query", Compliance::Meets),
            ("icmp-error-keeps-query", Compliance::Meets),
            ("tcp-simultaneous-open", Compliance::Meets),
            ("tcp-syn-data", Compliance::Meets),
            ("tcp-half-close", Compliance::Meets),
            ("tcp-reset", Compliance::Meets),
            ("tcp-reset-window", Compliance::Meets),
            ("tcp-icmp-error-in", Compliance::Meets),
            ("tcp-icmp-keeps-mapping", Compliance::Meets),
            ("ip-ttl", Compliance::Meets),
            ("udp-fragments-in-order", Compliance::Meets),
            ("udp-fragments-reversed", Compliance::Meets),
            ("protocol-gre", Compliance::Meets),
            // It leaves with the inside address: the kernel's NAT does not know it.
            ("protocol-udp-lite", Compliance::Fails),
        ] {
            let unsure = *case == "lossy" && found[row] == Compliance::NotSure;
            assert!(unsure || found[row] == expected, "{row}, {case}: {:?}: {seen:#?}", found[row]);
        }
    });
}

/// A server behind a cloud's translation: clients know it by another address than its own.
#[test]
fn root_raw_packets_to_a_server_that_is_translated_itself() {
    if privilege::test_needs_root() || lacks_nft() {
        return;
    }
    each("rawcloud", &[()], |site, ()| {
        translated(site, "masquerade");
        let real = site.addresses().responder;
        let rules = format!(
            "table ip cloud {{ chain c {{ type nat hook prerouting priority dstnat; \
             ip daddr 198.19.0.99 dnat to {real}; }}; }}\n"
        );
        nft(site.host(Role::Gateway).unwrap(), &rules);
        let (table, seen) =
            with_keyed_server(site, Version::Ipv4, 1, Some(key()), Bounds::default(), |server| {
                let known = SocketAddr::new("198.19.0.99".parse().unwrap(), server.port());
                in_keyed_client(site, known, Duration::ZERO, Some(&key()), |ends| {
                    assert_eq!(ends.raw_packets(), Ok(()));
                    assert_eq!(ends.conditions().outside[0], known.ip());
                    let seen = measure(ends, &mut |_| true).unwrap();
                    let mut table = Table::of(&seen);
                    restrict(
                        &mut table,
                        &Means { two_addresses: false, low_ports: true, raw_packets: Ok(()) },
                    );
                    (table, seen)
                })
            });
        let found = raw_verdicts(&table);
        for row in
            ["icmp-error-in", "icmp-error-checksum", "icmp-error-out", "udp-fragments-reversed", "tcp-reset"]
        {
            assert_eq!(found[row], Compliance::Meets, "{row}: {seen:#?}");
        }
        assert_eq!(found["icmp-query"], Compliance::Meets, "{seen:#?}");
    });
}
