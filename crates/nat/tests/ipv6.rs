//! Paths over IPv6: translation of prefixes, and of addresses and ports, by the reference NAT and by the kernel.

mod reference;

use std::collections::BTreeMap;
use std::time::Duration;

use reference::memory::Memory;
use reference::{Behaviour, Defect};
use weir_nat::rows::judge::Dependence::{self, Address, AddressAndPort, EndpointIndependent};
use weir_nat::rows::judge::Ipv6Kind;
use weir_nat::{Compliance, Table, measure};

fn table(behaviour: Behaviour) -> Table {
    Table::of(&measure(&mut Memory::new(behaviour, Duration::ZERO), &mut |_| true).unwrap())
}

type Verdicts = BTreeMap<&'static str, Compliance>;

fn verdicts(table: &Table) -> Verdicts {
    table.rows.iter().map(|line| (line.id, line.judgement.verdict)).collect()
}

/// Rows whose verdict differs between two behaviours.
fn changed(before: Behaviour, after: Behaviour) -> Verdicts {
    let before = verdicts(&table(before));
    verdicts(&table(after)).into_iter().filter(|(id, verdict)| before[id] != *verdict).collect()
}

fn seen<'a>(table: &'a Table, id: &str) -> &'a str {
    &table.line(id).unwrap().judgement.seen
}

/// RFC 6296 section 3.5 by hand: 2001:2:0:0 sums to 0x2003 and 2001:2:0:2 to 0x2005, so the word behind the prefix loses 2.
#[test]
fn a_translator_of_prefixes_meets_everything() {
    let table = table(Behaviour::nptv6());
    assert_eq!(table.kind.ipv6, Some(Ipv6Kind::Nptv6));
    for line in &table.rows {
        let bad =
            matches!(line.judgement.verdict, Compliance::Fails | Compliance::Partly | Compliance::NotSure);
        assert!(!bad, "{}: {:?}", line.id, line.judgement);
    }
    for id in ["npt-checksum-neutral", "npt-hairpin", "icmp-error-in", "icmp-error-out", "icmp-query"] {
        assert_eq!(table.line(id).unwrap().judgement.verdict, Compliance::Meets, "{id}");
    }
    let words = seen(&table, "ipv6-path");
    assert!(words.contains("2001:2::a") && words.contains("2001:2:0:2:fffd::a"), "{words}");
    assert_eq!(seen(&table, "npt-unsolicited"), "UDP and SYNs pass");
}

#[test]
fn each_defect_of_a_translator_of_prefixes_changes_its_rows_and_no_others() {
    use Compliance::{Fails, NotTestable};
    let cases: [(Defect, &[(&str, Compliance)]); 6] = [
        (Defect::PrefixNotNeutral, &[("npt-checksum-neutral", Fails)]),
        (
            Defect::NoHairpin,
            &[
                ("icmp-error-hairpin", NotTestable),
                ("icmp-query-hairpin", Fails),
                ("npt-hairpin", Fails),
                ("tcp-hairpin", Fails),
                ("tcp-hairpin-source", NotTestable),
                ("udp-hairpin", Fails),
                ("udp-hairpin-source", NotTestable),
            ],
        ),
        (
            Defect::HairpinInsideSource,
            &[
                ("icmp-error-hairpin", NotTestable),
                ("icmp-query-hairpin", Fails),
                ("npt-hairpin", Fails),
                ("tcp-hairpin-source", Fails),
                ("udp-hairpin-source", Fails),
            ],
        ),
        (
            Defect::InnerKept,
            &[
                ("icmp-error-about-query", Fails),
                ("icmp-error-checksum", NotTestable),
                ("icmp-error-hairpin", Fails),
                ("icmp-error-in", Fails),
                ("icmp-error-types", Fails),
                ("icmp-too-big-in", Fails),
                ("icmp-error-out", Fails),
                ("icmp-error-out-about-query", Fails),
                ("tcp-icmp-error-out", Fails),
                ("tcp-icmp-error-in", Fails),
            ],
        ),
        (
            Defect::ErrorsInDropped,
            &[
                ("icmp-error-about-query", Fails),
                ("icmp-error-checksum", NotTestable),
                ("icmp-error-in", Fails),
                ("icmp-error-types", Fails),
                ("icmp-too-big-in", Fails),
                ("tcp-icmp-error-in", Fails),
            ],
        ),
        (Defect::TtlKept, &[("ip-ttl", Fails)]),
    ];
    for (defect, rows) in cases {
        let after = Behaviour { defects: vec![defect], ..Behaviour::nptv6() };
        assert_eq!(changed(Behaviour::nptv6(), after), rows.iter().copied().collect(), "{defect:?}");
    }
}

/// RFC 6296 asks nothing of a gateway that translates ports, and nothing of one that translates nothing.
#[test]
fn addresses_and_ports_are_told_from_prefixes() {
    let table = table(Behaviour::v6());
    assert_eq!((table.kind.ipv6, table.kind.classic), (Some(Ipv6Kind::Nat66), Some("full cone")));
    assert_eq!(seen(&table, "npt-unsolicited"), "neither UDP nor SYNs pass");
    for id in ["npt-checksum-neutral", "npt-hairpin", "ip-identification", "udp-too-long-fragmented"] {
        assert_eq!(table.line(id).unwrap().judgement.verdict, Compliance::NotTestable, "{id}");
    }
    assert!(self::table(Behaviour::default()).line("ipv6-path").is_none());
}

#[test]
fn all_nine_classes_are_told_apart_over_ipv6() {
    const CLASSES: [Dependence; 3] = [EndpointIndependent, Address, AddressAndPort];
    for mapping in CLASSES {
        for filtering in CLASSES {
            let kind = table(Behaviour { mapping, filtering, ..Behaviour::v6() }).kind;
            assert_eq!((kind.mapping, kind.filtering), (Some(mapping), Some(filtering)));
            assert_eq!(kind.ipv6, Some(Ipv6Kind::Nat66));
        }
    }
}

/// Rows of both versions that a defect changes are those that it changes over IPv4.
#[test]
fn each_defect_changes_the_same_rows_as_over_ipv4() {
    // Defects and rows of fields that IPv6 lacks: a checksum of its header, options in it, fragments on the way, identifications.
    const ROWS_OF_IPV4: [&str; 7] = [
        "ip-identification",
        "icmp-error-bad-checksum",
        "icmp-error-bad-quote",
        "icmp-error-quote-options",
        "icmp-error-quote-unchecked",
        "icmp-error-short-quote",
        "icmp-error-unmapped",
    ];
    const OF_IPV4: [Defect; 3] = [Defect::InnerIpChecksumStale, Defect::DfCleared, Defect::NothingFragmented];
    for defect in Defect::ALL.into_iter().filter(|defect| !OF_IPV4.contains(defect)) {
        let with = |before: Behaviour| {
            let after = Behaviour { defects: vec![defect], ..before.clone() };
            changed(before, after)
        };
        let mut expected = with(Behaviour::default());
        expected.retain(|id, _| !ROWS_OF_IPV4.contains(id));
        assert_eq!(with(Behaviour::v6()), expected, "{defect:?}");
    }
}
