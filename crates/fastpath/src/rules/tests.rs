//! Rules as structures, without a kernel: what kernels often lack, and what no one would write.

use proptest::prelude::*;
use weir_netlink::nftables::{
    BaseChain, Chain, Element, Expression, Family, Hook, MapVerdicts, NftVerdict, Register, Rule, Set, Tables,
};

use super::nft::Nft;
use super::sets::AskSet;
use super::*;

/// Sets of which every one holds the same.
struct Holds {
    key: Vec<u8>,
    gives: NftVerdict,
    others: Option<NftVerdict>,
}

impl AskSet for Holds {
    fn find(&mut self, _: Family, _: &str, _: &str, key: &[u8]) -> Option<Option<Element>> {
        Some((key == self.key).then(|| Element::Verdict(self.gives.clone())))
    }

    fn verdicts(&mut self, _: Family, _: &str, _: &str) -> Option<MapVerdicts> {
        Some(MapVerdicts { keys: vec![self.gives.clone()], others: self.others.clone() })
    }
}

fn nothing() -> Holds {
    Holds { key: Vec::new(), gives: NftVerdict::Continue, others: None }
}

fn tables(drops: bool, rules: &[(&str, Vec<Expression>)]) -> Tables {
    let base = BaseChain {
        hook: Hook::Forward,
        priority: 0,
        drops,
        packets: None,
        kind: "filter".into(),
        devices: Vec::new(),
    };
    let mut tables = Tables::default();
    for (name, base) in [("base", Some(base)), ("a", None), ("b", None)] {
        let (table, name) = ("t".to_owned(), name.to_owned());
        tables.chains.push(Chain { family: Family::Inet, table, name, handle: 0, base });
    }
    for (at, (chain, expressions)) in rules.iter().enumerate() {
        tables.rules.push(Rule {
            family: Family::Inet,
            table: "t".into(),
            chain: (*chain).to_owned(),
            handle: at as u64,
            comment: None,
            expressions: expressions.clone(),
        });
    }
    let (table, name) = ("t".to_owned(), "set".to_owned());
    tables.sets.push(Set {
        family: Family::Inet,
        table,
        name,
        anonymous: false,
        timeout: false,
        dynamic: false,
        key_length: 4,
        size: None,
        count: None,
    });
    tables
}

/// Handles of the rules that change an outcome.
fn changes(tables: &Tables, mut sets: Holds) -> Vec<String> {
    let mut nft = Nft::new(tables, &mut sets);
    let found = both(&mut [&mut nft]);
    let of = found.iter().filter(|f| f.effect == Effect::Changes);
    of.map(|f| f.place.rsplit(' ').next().unwrap().to_owned()).collect()
}

fn limit() -> Expression {
    Expression::Limit { rate: 1, per_seconds: 1, burst: 1, bytes: false, over: false }
}

fn verdict(verdict: NftVerdict) -> Expression {
    Expression::Verdict(verdict)
}

fn state() -> Expression {
    Expression::Ct { key: 0, to: Register(0) }
}

fn map() -> Expression {
    Expression::Lookup { set: "set".into(), key: Register(0), negated: false, to: Some(None) }
}

const ESTABLISHED: u32 = 2;

#[test]
fn a_queue_is_listed_wherever_established_packets_reach_it() {
    let queue = Expression::Queue { number: 1, total: 1, bypass: true };
    let accept = verdict(NftVerdict::Accept);
    assert_eq!(changes(&tables(false, &[("base", vec![queue.clone()])]), nothing()), ["0"]);
    assert_eq!(
        changes(&tables(true, &[("base", vec![accept.clone()]), ("base", vec![queue.clone()])]), nothing()),
        [""; 0]
    );
    // Before the accept, also through a chain.
    let jump = verdict(NftVerdict::Jump("a".into()));
    let rules = [("base", vec![jump]), ("base", vec![accept]), ("a", vec![queue])];
    assert_eq!(changes(&tables(true, &rules), nothing()), ["2"]);
}

#[test]
fn a_map_of_verdicts_is_asked_for_the_state() {
    let rules = [("base", vec![state(), map()]), ("base", vec![limit(), verdict(NftVerdict::Drop)])];
    let by_state = |gives, key: u32, others| Holds { key: key.to_ne_bytes().to_vec(), gives, others };
    // Only UDP without replies comes to the limit if established packets are accepted, and nothing if all others are dropped.
    let accepts = by_state(NftVerdict::Accept, ESTABLISHED, None);
    assert_eq!(changes(&tables(false, &rules), accepts), ["1"]);
    let accepts = by_state(NftVerdict::Accept, ESTABLISHED, Some(NftVerdict::Drop));
    assert_eq!(changes(&tables(false, &rules), accepts), [""; 0]);
    let invalid = by_state(NftVerdict::Drop, 1, None);
    assert_eq!(changes(&tables(false, &rules), invalid), ["1"]);
    let jumps = by_state(NftVerdict::Goto("a".into()), ESTABLISHED, Some(NftVerdict::Drop));
    assert_eq!(changes(&tables(false, &rules), jumps), [""; 0]);
}

#[test]
fn a_map_by_something_constant_gives_any_of_its_verdicts() {
    let interface = Expression::Meta { key: 6, to: Register(0) };
    let rules = [("base", vec![interface, map()]), ("a", vec![limit(), verdict(NftVerdict::Drop)])];
    let jumps = Holds { key: Vec::new(), gives: NftVerdict::Jump("a".into()), others: None };
    assert_eq!(changes(&tables(false, &rules), jumps), ["1"]);
    let other = Holds { key: Vec::new(), gives: NftVerdict::Jump("b".into()), others: None };
    assert_eq!(changes(&tables(false, &rules), other), [""; 0]);
}

#[test]
fn what_cannot_be_read_changes_the_outcome() {
    let unknown = |name: &str, to| Expression::Other { name: name.into(), to };
    let drop = verdict(NftVerdict::Drop);
    for expressions in [
        vec![unknown("inner", None), drop.clone()],
        vec![unknown("new", None)],
        vec![verdict(NftVerdict::Other(77))],
        vec![Expression::Target { name: "NEW".into(), revision: 0, info: Vec::new() }],
        vec![Expression::Match { name: "new".into(), revision: 0, info: Vec::new() }, drop.clone()],
        // Shorter than its revision has.
        vec![Expression::Match { name: "conntrack".into(), revision: 3, info: vec![0; 9] }, drop.clone()],
        vec![Expression::Lookup { set: "gone".into(), key: Register(0), negated: false, to: None }, drop],
    ] {
        assert_eq!(
            changes(&tables(false, &[("base", expressions.clone())]), nothing()),
            ["0"],
            "{expressions:?}"
        );
    }
}

#[test]
fn the_kernels_own_flow_table_is_no_verdict_and_may_not_match() {
    let offload = Expression::Other { name: "flow_offload".into(), to: None };
    let alone = [("base", vec![offload.clone()]), ("base", vec![limit(), verdict(NftVerdict::Drop)])];
    assert_eq!(changes(&tables(false, &alone), nothing()), ["1"]);
    let accepts = [
        ("base", vec![offload, verdict(NftVerdict::Accept)]),
        ("base", vec![limit(), verdict(NftVerdict::Drop)]),
    ];
    assert_eq!(changes(&tables(false, &accepts), nothing()), ["1"]);
    assert_eq!(changes(&tables(false, &alone[..1]), nothing()), [""; 0]);
}

#[test]
fn chains_that_lead_to_each_other_in_a_circle_end_the_walk() {
    let jump = |to: &str| vec![verdict(NftVerdict::Jump(to.into()))];
    let rules: Vec<_> =
        (0..20).flat_map(|_| [("base", jump("a")), ("a", jump("b")), ("b", jump("a"))]).collect();
    let found = changes(&tables(false, &rules), nothing());
    // The kernel refuses circles. One is reported as too much to read, once.
    assert_eq!(found, ["base"]);
}

fn expressions() -> impl Strategy<Value = Expression> {
    let register = || (0_u8..30).prop_map(Register);
    let bytes = || prop::collection::vec(any::<u8>(), 0..40);
    let match_name =
        prop::sample::select(vec!["tcp", "udp", "conntrack", "state", "tos", "pkttype", "tcpmss", "new"]);
    let target_name = prop::sample::select(vec!["CONNMARK", "TCPOPTSTRIP", "MARK", "LOG", "REJECT", "NEW"]);
    let base = prop::sample::select(vec![
        weir_netlink::nftables::Base::Link,
        weir_netlink::nftables::Base::Network,
        weir_netlink::nftables::Base::Transport,
    ]);
    prop_oneof![
        (base, any::<u32>(), 0_u32..200, register())
            .prop_map(|(base, offset, length, to)| Expression::Payload { base, offset, length, to }),
        (any::<u32>(), register()).prop_map(|(key, to)| Expression::Meta { key: key % 40, to }),
        (any::<u32>(), register()).prop_map(|(key, to)| Expression::Ct { key: key % 30, to }),
        (register(), bytes()).prop_map(|(register, value)| Expression::Compare {
            register,
            with: weir_netlink::nftables::Comparison::Less,
            value
        }),
        (register(), register(), bytes(), bytes()).prop_map(|(from, to, mask, xor)| Expression::Bitwise {
            from,
            to,
            mask,
            xor
        }),
        (register(), register(), any::<u32>(), 0_u32..9)
            .prop_map(|(from, to, length, size)| Expression::ByteOrder { from, to, length, size }),
        (match_name, bytes()).prop_map(|(name, info)| Expression::Match {
            name: name.into(),
            revision: 1,
            info
        }),
        (target_name, bytes()).prop_map(|(name, info)| Expression::Target {
            name: name.into(),
            revision: 1,
            info
        }),
        (register(), any::<bool>()).prop_map(|(key, negated)| Expression::Lookup {
            set: "set".into(),
            key,
            negated,
            to: None
        }),
        Just(verdict(NftVerdict::Drop)),
        Just(verdict(NftVerdict::Jump("a".into()))),
        Just(limit()),
    ]
}

proptest! {
    #[test]
    fn garbage_never_panics_and_a_limited_drop_in_front_of_it_is_always_found(
        rules in prop::collection::vec(prop::collection::vec(expressions(), 0..5), 0..6),
    ) {
        let mut all = vec![("base", vec![limit(), verdict(NftVerdict::Drop)])];
        all.extend(rules.into_iter().enumerate().map(|(n, e)| (if n % 2 == 0 { "base" } else { "b" }, e)));
        // A packet may leave at the end, unless a rule drops all of them.
        all.insert(1, ("base", vec![Expression::Meta { key: 6, to: Register(0) }, Expression::Compare {
            register: Register(0),
            with: weir_netlink::nftables::Comparison::Equal,
            value: b"lan0".to_vec(),
        }, verdict(NftVerdict::Accept)]));
        let found = changes(&tables(false, &all), nothing());
        prop_assert!(found.contains(&"0".to_owned()));
    }
}
