//! Rules and packets that no reasonable user would make: walking them ends, and never panics.

use proptest::prelude::*;
use weir_netlink::nftables::{
    Base, BaseChain, Chain, Comparison, Element, Expression, Family, Hook, NftVerdict as Nft, Register, Rule,
    Set, Tables,
};

use super::matching::AskSet;
use super::packet::{Names, Packet, State, Through};
use super::walk::{Walker, Way};
use crate::evidence::{DropGroup, Sample};
use weir_netlink::nftables::text;

/// Says something else each time.
struct Fickle(u8);

impl AskSet for Fickle {
    fn ask(&mut self, _: Family, _: &str, _: &str, key: &[u8]) -> Option<Option<Element>> {
        self.0 = self.0.wrapping_mul(31).wrapping_add(key.len() as u8);
        match self.0 % 5 {
            0 => None,
            1 => Some(None),
            2 => Some(Some(Element::Present)),
            3 => Some(Some(Element::Value(key.repeat(3)))),
            _ => Some(Some(Element::Verdict(Nft::Jump("c".into())))),
        }
    }
}

fn expression() -> impl Strategy<Value = Expression> {
    let register = || any::<u8>().prop_map(Register);
    let bytes = || prop::collection::vec(any::<u8>(), 0..40);
    let base = prop_oneof![Just(Base::Link), Just(Base::Network), Just(Base::Transport), Just(Base::Inner)];
    let verdict = prop_oneof![
        Just(Nft::Accept),
        Just(Nft::Drop),
        Just(Nft::Return),
        Just(Nft::Jump("c".into())),
        Just(Nft::Goto("c".into())),
        Just(Nft::Other(7)),
    ];
    let to = prop_oneof![Just(None), Just(Some(None)), register().prop_map(|r| Some(Some(r)))];
    prop_oneof![
        (base, any::<u32>(), any::<u32>(), register()).prop_map(|(base, offset, length, to)| {
            Expression::Payload { base, offset: offset >> 20, length: length >> 24, to }
        }),
        (0..40_u32, register()).prop_map(|(key, to)| Expression::Meta { key, to }),
        (0..3_u32, register()).prop_map(|(key, to)| Expression::Ct { key, to }),
        (register(), bytes()).prop_map(|(register, value)| {
            Expression::Compare { register, with: Comparison::Equal, value }
        }),
        (register(), any::<bool>(), bytes(), bytes()).prop_map(|(register, outside, first, last)| {
            Expression::Range { register, outside, first, last }
        }),
        (register(), register(), bytes(), bytes())
            .prop_map(|(from, to, mask, xor)| { Expression::Bitwise { from, to, mask, xor } }),
        (register(), register(), any::<u32>(), any::<u32>())
            .prop_map(|(from, to, length, size)| { Expression::ByteOrder { from, to, length, size } }),
        (register(), bytes()).prop_map(|(to, value)| Expression::Immediate { to, value }),
        verdict.prop_map(Expression::Verdict),
        (register(), any::<bool>(), to)
            .prop_map(|(key, negated, to)| { Expression::Lookup { set: "s".into(), key, negated, to } }),
        bytes().prop_map(|info| Expression::Match { name: "conntrack".into(), revision: 3, info }),
        Just(Expression::Target { name: "?\u{1b}".into(), revision: 0, info: Vec::new() }),
        (any::<bool>(), any::<bool>(), register(), register()).prop_map(|(source, ipv6, first, last)| {
            Expression::Nat { source, ipv6, addresses: Some((first, last)), ports: None, flags: 0 }
        }),
        Just(Expression::Masquerade { ports: None, flags: 0 }),
        Just(Expression::Limit { rate: 1, per_seconds: 7, burst: 0, bytes: true, over: false }),
        (register(), any::<u32>()).prop_map(|(to, modulus)| {
            Expression::NumberGenerator { to, modulus, random: true, offset: 0 }
        }),
        Just(Expression::Other { name: String::new(), to: None }),
    ]
}

fn tables(rules: Vec<Vec<Expression>>) -> Tables {
    let base = BaseChain {
        hook: Hook::Forward,
        priority: 0,
        drops: true,
        packets: None,
        kind: "filter".into(),
        devices: Vec::new(),
    };
    let set = Set {
        family: Family::Inet,
        table: "t".into(),
        name: "s".into(),
        anonymous: false,
        timeout: false,
        dynamic: false,
        key_length: 8,
        size: Some(1),
        count: Some(1),
    };
    let rule = |(at, expressions): (usize, Vec<Expression>)| Rule {
        family: Family::Inet,
        table: "t".into(),
        chain: "c".into(),
        handle: at as u64,
        comment: None,
        expressions,
    };
    Tables {
        chains: vec![Chain {
            family: Family::Inet,
            table: "t".into(),
            name: "c".into(),
            handle: 1,
            base: Some(base),
        }],
        rules: rules.into_iter().enumerate().map(rule).collect(),
        sets: vec![set],
        ..Tables::default()
    }
}

fn walk(tables: &Tables, header: Vec<u8>, length: u32, budget: u64) -> (Way, u64) {
    let sample = Sample { came_in: 1, length, header, ..Sample::default() };
    let group = DropGroup { interface: 1, ..DropGroup::default() };
    let names = Names::of(&[]);
    let mut walker = Walker::new(tables, &names, budget);
    let mut packet = Packet::new(&sample, &group, Hook::Forward, State::New);
    packet.came_in = Through::This(1);
    let mut way = Way::default();
    walker.hook(&packet, &mut Fickle(7), &mut way);
    (way, walker.budget)
}

proptest! {
    #[test]
    fn any_ruleset_is_walked_to_an_end(
        rules in prop::collection::vec(prop::collection::vec(expression(), 0..6), 0..8),
        mut header in prop::collection::vec(any::<u8>(), 0..128),
        version in prop_oneof![Just(4_u8), Just(6_u8)],
        length in any::<u32>(),
    ) {
        if let Some(first) = header.first_mut() {
            *first = version << 4 | *first & 15;
        }
        let tables = tables(rules);
        let (way, left) = walk(&tables, header, length, 5000);
        // Every decider is there once for the hook, so there are at most as many as rules and policies.
        prop_assert!(way.deciders.len() <= tables.rules.len() + 1);
        prop_assert!(left <= 5000);
        for rule in &tables.rules {
            // The printed text stays within its bounds.
            prop_assert!(text::render(rule).len() <= 410);
        }
    }
}

#[test]
fn chains_that_jump_to_themselves_use_up_the_budget_and_no_more() {
    let jump = || {
        let limit = Expression::Limit { rate: 1, per_seconds: 1, burst: 1, bytes: false, over: false };
        vec![limit, Expression::Verdict(Nft::Jump("c".into()))]
    };
    let mut header = vec![0; 40];
    header[0] = 0x45;
    let (way, left) = walk(&tables((0..50).map(|_| jump()).collect()), header, 40, 20_000);
    assert_eq!(left, 0);
    assert!(!way.ends, "what was not walked to its end is not sure");
}
