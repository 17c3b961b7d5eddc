//! NAT64: translation of headers (RFC 7915) in front of a NAT (RFC 6146), by the reference NAT.

mod reference;

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use reference::memory::Memory;
use reference::wire64::{Flaw, Translator};
use reference::{Behaviour, Defect};
use weir_nat::capture::Recorder;
use weir_nat::rows::Group;
use weir_nat::rows::judge::Ipv6Kind;
use weir_nat::{Compliance, Ends, Packet, Side, Table, measure};

fn table(behaviour: Behaviour, flaws: &[Flaw]) -> Table {
    let translator = Translator { flaws: flaws.to_vec() };
    let mut ends = Memory::nat64(behaviour, translator, Duration::ZERO);
    Table::of(&measure(&mut ends, &mut |_| true).unwrap())
}

type Verdicts = BTreeMap<&'static str, Compliance>;

fn verdicts(table: &Table) -> Verdicts {
    table.rows.iter().map(|line| (line.id, line.judgement.verdict)).collect()
}

fn differing(before: &Verdicts, after: Verdicts) -> Verdicts {
    after.into_iter().filter(|(id, verdict)| before[id] != *verdict).collect()
}

fn seen<'a>(table: &'a Table, id: &str) -> &'a str {
    &table.line(id).unwrap().judgement.seen
}

/// The NAT of IPv4 behind it meets every requirement.
#[test]
fn a_sound_nat64_meets_everything() {
    let table = table(Behaviour::default(), &[]);
    assert_eq!((table.kind.ipv6, table.kind.classic), (Some(Ipv6Kind::Nat64), Some("full cone")));
    for line in &table.rows {
        let bad =
            matches!(line.judgement.verdict, Compliance::Fails | Compliance::Partly | Compliance::NotSure);
        assert!(!bad, "{}: {:?}", line.id, line.judgement);
    }
    // Timers and the end of ports have tests of their own.
    let other = [Group::Timers, Group::Exhaustion];
    let untested = table.rows.iter().filter(|line| line.judgement.verdict == Compliance::NotTestable);
    let untested: Vec<&str> =
        untested.filter(|line| !other.contains(&line.row.group)).map(|line| line.id).collect();
    assert_eq!(
        untested,
        [
            // Rows about translations of prefixes, of NATs that change ports, and of one that ends mappings.
            "npt-checksum-neutral",
            "npt-hairpin",
            "udp-port-randomness",
            "tcp-port-randomness",
            "udp-too-long-fragmented",
            "udp-port-reuse",
            "tcp-port-reuse",
        ]
    );
    assert_eq!(seen(&table, "udp-too-long"), "ICMPv6 2/0 with the MTU of 1420");
    assert_eq!(
        seen(&table, "icmp-too-big-in"),
        "about UDP and about TCP, with the MTU of the router and 20 bytes more for the longer header"
    );
    let words =
        "a short packet of IPv6 leaves without DF; RFC 7915 section 5.1 asks for none up to 1,260 bytes";
    assert_eq!(seen(&table, "ip-dont-fragment"), words);
    assert_eq!(seen(&table, "tcp-sequence-check"), "outwards: passes; inwards: passes");
    let leaks = self::table(Behaviour::with(Defect::OthersLeaked), &[]);
    let words = "leaves with another address than UDP, and the answer to it does not arrive";
    assert_eq!(seen(&leaks, "protocol-gre"), words);
    let lost = self::table(Behaviour::with(Defect::OtherAnswersDropped), &[]);
    let words = "leaves with the outside address, but the answer does not arrive";
    assert_eq!(seen(&lost, "protocol-gre"), words);
    let leaks = self::table(Behaviour::with(Defect::SequenceLeaks), &[]);
    let words = "outwards: leaves from another endpoint than the connection's; inwards: dropped";
    assert_eq!(seen(&leaks, "tcp-sequence-check"), words);
}

/// Packets of each side are of its version. Programs read a file of both by one interface only.
#[test]
fn kept_packets_have_the_version_of_their_side() {
    let mut ends = Memory::nat64(Behaviour::default(), Translator::default(), Duration::ZERO);
    let mut recorder = Recorder::new(&mut ends);
    measure(&mut recorder, &mut |_| true).unwrap();
    let files = recorder.files();
    let file = &files.iter().find(|file| file.experiment == "icmp-errors").unwrap().file;
    let u32_at = |at: usize| u32::from_le_bytes(*file[at..].first_chunk().unwrap());
    let (mut at, mut interfaces, mut versions) = (0, 0, [Vec::new(), Vec::new()]);
    while at < file.len() {
        match u32_at(at) {
            1 => interfaces += 1,
            6 => {
                let length = u32_at(at + 20) as usize;
                let packet = &file[at + 28..at + 28 + length];
                assert_eq!(u32_at(at + 8), 0);
                assert!(Packet::read(packet).is_some());
                let rest = &file[at + 28 + length..at + u32_at(at + 4) as usize];
                let is_outside = rest.windows(7).any(|word| word == b"outside");
                versions[usize::from(is_outside)].push(packet[0] >> 4);
            }
            _ => {}
        }
        at += u32_at(at + 4) as usize;
    }
    assert_eq!(interfaces, 1);
    for (versions, expected) in versions.iter().zip([6, 4]) {
        assert!(versions.len() > 10 && versions.iter().all(|version| *version == expected), "{versions:?}");
    }
}

/// A row of packets that a router may fragment, which those of IPv6 are not.
const ROW_OF_IPV4: &str = "udp-too-long-fragmented";

/// Defects that change other rows, or the same ones otherwise: a quote that arrives inside has no checksum of its header; network and
/// host unreachable are one there; and no address of an inside host can leave, but for one of the translator's own.
fn otherwise(defect: Defect) -> Option<&'static [(&'static str, Compliance)]> {
    use Compliance::{Fails, NotTestable, Partly};
    Some(match defect {
        Defect::InnerIpChecksumStale => {
            &[("icmp-error-out", Fails), ("icmp-error-out-about-query", Fails), ("tcp-icmp-error-out", Fails)]
        }
        Defect::ErrorCodeChanged => &[
            ("icmp-error-about-query", Fails),
            ("icmp-error-in", Fails),
            ("icmp-error-types", Partly),
            ("icmp-too-big-in", Fails),
        ],
        Defect::FragmentsDropped => &[
            ("ip-identification", NotTestable),
            ("udp-fragments-in-order", Fails),
            ("udp-fragments-reversed", Fails),
        ],
        Defect::FragmentsLeaked => &[
            ("ip-identification", NotTestable),
            ("udp-fragments-in-order", Partly),
            ("udp-fragments-reversed", Partly),
        ],
        Defect::OthersLeaked => &[
            ("protocol-gre", Partly),
            ("protocol-esp", Partly),
            ("protocol-dccp", Partly),
            ("protocol-sctp", Partly),
            ("protocol-udp-lite", Partly),
        ],
        Defect::ExhaustionLeaks => &[
            ("udp-exhaustion-dropped", NotTestable),
            ("udp-exhaustion-keeps", NotTestable),
            ("udp-exhaustion-told", NotTestable),
            ("udp-host-limit", NotTestable),
        ],
        Defect::TcpExhaustionLeaks => &[
            ("tcp-exhaustion-dropped", NotTestable),
            ("tcp-exhaustion-keeps", NotTestable),
            ("tcp-exhaustion-told", NotTestable),
        ],
        _ => return None,
    })
}

/// Rows that a defect of the NAT behind the translator changes are those that it changes over IPv4.
#[test]
fn each_defect_changes_the_same_rows_as_over_ipv4() {
    let of = |defects: Vec<Defect>| Behaviour { defects, ..Behaviour::default() };
    let v4 = |behaviour: Behaviour| {
        let seen = measure(&mut Memory::new(behaviour, Duration::ZERO), &mut |_| true).unwrap();
        verdicts(&Table::of(&seen))
    };
    let (sound_v4, sound) = (v4(of(Vec::new())), verdicts(&table(of(Vec::new()), &[])));
    for defect in Defect::ALL {
        let found = differing(&sound, verdicts(&table(of(vec![defect]), &[])));
        let expected = match otherwise(defect) {
            Some(rows) => rows.iter().copied().collect(),
            None => {
                let mut same = differing(&sound_v4, v4(of(vec![defect])));
                same.remove(ROW_OF_IPV4);
                same
            }
        };
        assert_eq!(found, expected, "{defect:?}");
    }
}

#[test]
fn each_flaw_of_the_translator_changes_its_rows_and_no_others() {
    use Compliance::{Fails, NotSure, NotTestable, Partly};
    /// Rows of errors from outside, and those of errors of the NAT itself about exhausted ports.
    const ERRORS_IN: [(&str, Compliance); 11] = [
        ("icmp-error-about-query", Fails),
        ("icmp-error-checksum", NotTestable),
        ("icmp-error-hairpin", Fails),
        ("icmp-error-in", Fails),
        ("icmp-error-quote-options", Fails),
        ("icmp-error-quote-unchecked", Fails),
        ("icmp-error-short-quote", Fails),
        ("icmp-error-types", Fails),
        ("icmp-too-big-in", Fails),
        ("tcp-icmp-error-in", Fails),
        ("udp-exhaustion-told", Fails),
    ];
    let told = [("tcp-exhaustion-told", Fails)];
    let out =
        [("icmp-error-out", Fails), ("icmp-error-out-about-query", Fails), ("tcp-icmp-error-out", Fails)];
    let queries = [
        ("icmp-error-keeps-query", Fails),
        ("icmp-error-out-about-query", NotSure),
        ("icmp-query", Fails),
        ("icmp-query-hairpin", Fails),
        ("udp-too-long", Fails),
    ];
    let codes = [
        ("icmp-error-hairpin", Fails),
        ("icmp-error-in", Fails),
        // Network unreachable and those of time exceeded have the same code in both versions.
        ("icmp-error-types", Partly),
        ("icmp-too-big-in", Fails),
        ("tcp-exhaustion-told", Partly),
        ("tcp-icmp-error-in", Fails),
        ("udp-exhaustion-told", Partly),
    ];
    let stale = [("icmp-error-checksum", Fails), ("icmp-error-out", Fails)];
    let stale_tcp = [("tcp-icmp-error-in", Fails), ("tcp-icmp-error-out", Fails)];
    /// The flaw, rows with other verdicts, and one with the beginning of other words.
    type Case = (Flaw, Vec<(&'static str, Compliance)>, Option<(&'static str, &'static str)>);
    let cases: [Case; 11] = [
        (Flaw::MtuKept, vec![("icmp-too-big-in", Fails), ("udp-too-long", Fails)], None),
        (Flaw::QuoteKept, [&ERRORS_IN[..], &out, &told].concat(), None),
        (Flaw::CodesKept, [&codes[..], &out].concat(), None),
        (Flaw::PseudoHeaderForgotten, [&ERRORS_IN[..], &queries, &told].concat(), None),
        (Flaw::QuotedChecksumStale, [stale, stale_tcp].concat(), None),
        (Flaw::ShortQuotesDropped, vec![("icmp-error-short-quote", Fails)], None),
        (Flaw::ErrorsDropped, [&ERRORS_IN[..], &out, &told, &[("udp-too-long", Fails)]].concat(), None),
        (
            Flaw::FragmentsDropped,
            vec![
                ("ip-identification", NotTestable),
                ("udp-fragments-in-order", Fails),
                ("udp-fragments-reversed", Fails),
            ],
            None,
        ),
        (Flaw::DfAlways, vec![], Some(("ip-dont-fragment", "a short packet of IPv6 leaves with DF"))),
        (Flaw::ClassLost, vec![], Some(("ip-dscp-ecn", "DSCP changed outwards, inwards"))),
        (Flaw::OthersDropped, vec![], Some(("protocol-gre", "dropped"))),
    ];
    let sound = table(Behaviour::default(), &[]);
    for (flaw, rows, words) in cases {
        let with = table(Behaviour::default(), &[flaw]);
        let expected: Verdicts = rows.into_iter().collect();
        assert_eq!(differing(&verdicts(&sound), verdicts(&with)), expected, "{flaw:?}");
        if let Some((row, words)) = words {
            assert!(seen(&with, row).starts_with(words), "{flaw:?}: {}", seen(&with, row));
            assert!(!seen(&sound, row).starts_with(words), "{row}");
        }
    }
    assert_eq!(
        seen(&table(Behaviour::default(), &[Flaw::MtuKept]), "icmp-too-big-in"),
        "about TCP: arrived with an MTU of 1300 instead of 1320"
    );
}

/// One of 65,536 datagrams has a sum of 0 in the other version, which would mean that it has no checksum (RFC 768).
#[test]
fn no_checksum_becomes_a_missing_one() {
    let mut ends = Memory::nat64(Behaviour::default(), Translator::default(), Duration::ZERO);
    let near = SocketAddr::new(ends.conditions().inside[0], 21_700);
    let far = SocketAddr::new(ends.conditions().outside[0], 9348);
    let pass = |ends: &mut Memory, side, packet: &Packet, data: &[u8]| {
        ends.send(side, packet).unwrap();
        let arrival = ends.receive(ends.now() + Duration::from_millis(1)).unwrap();
        arrival.filter(|arrival| arrival.packet.udp_data() == Some(data)).and_then(|a| a.packet.from())
    };
    for n in 0..=u16::MAX {
        let data = [[1, 2], n.to_be_bytes()].concat();
        let mapped = pass(&mut ends, Side::Inside, &Packet::udp(near, far, &data), &data);
        let mapped = mapped.unwrap_or_else(|| panic!("{data:?} did not arrive outside"));
        let back = pass(&mut ends, Side::Outside, &Packet::udp(far, mapped, &data), &data);
        assert!(back.is_some(), "{data:?} did not arrive inside");
    }
}
