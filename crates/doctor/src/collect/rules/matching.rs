//! Whether a rule matches a packet, as far as that can be known, and what it then says.

use weir_netlink::nftables::{
    Comparison, Element, Expression, Family, Hook, NftVerdict, Register, Registers, Rule,
};

use super::packet::{Bytes, Names, Packet, State};
use super::xtables::{self, Match};
use crate::evidence::Missed;

/// Connection tracking looks at packets at this priority (NF_IP_PRI_CONNTRACK); rules before it see no state.
const CONNTRACK: i32 = -200;

/// The verdict of a rule.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Says {
    /// Nothing: the next rule.
    Nothing,
    Accept,
    Drop,
    Return,
    Jump(String),
    Goto(String),
    /// A map or a program decides, and cannot be asked.
    Anything,
}

/// A rule's answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) matches: Match,
    pub(super) says: Says,
    /// The one thing that kept it from matching.
    pub(super) missed: Option<Missed>,
}

/// Who knows what sets hold.
pub(super) trait AskSet {
    /// Looks up a key in a set: `None` if the set cannot be queried, `Some(None)` if it does not hold the key.
    fn ask(&mut self, family: Family, table: &str, set: &str, key: &[u8]) -> Option<Option<Element>>;
}

/// Length of a set's keys, bytes, and whether it is full, by family, table and name.
pub(super) type SetTraits<'a> = dyn Fn(Family, &str, &str) -> Option<(u32, bool)> + 'a;

/// The input to the evaluation of rules.
pub(super) struct Asking<'a, 'p> {
    pub(super) packet: &'a Packet<'p>,
    pub(super) names: &'a Names<'a>,
    /// Priority of the base chain.
    pub(super) priority: i32,
    /// Length of a set's keys, bytes, and whether it can take no more of them: `None` if there is no such set.
    pub(super) set: &'a SetTraits<'a>,
}

/// One expression's answer.
enum Step {
    Goes,
    /// It does not match.
    Ends,
    /// It does not match because of that alone.
    EndsFor(Missed),
    Perhaps(Option<Missed>),
    Says(Says),
}

/// Asks a rule.
pub(super) fn ask(rule: &Rule, asking: &Asking<'_, '_>, sets: &mut dyn AskSet) -> Answer {
    let mut registers = Registers::default();
    let mut matches = Match::Yes;
    let mut missed = None;
    let mut says = Says::Nothing;
    let mut by_chance = false;
    for expression in &rule.expressions {
        by_chance |= matches!(expression, Expression::NumberGenerator { .. });
        match one(expression, rule, asking, &mut registers, sets) {
            Step::Goes => {}
            Step::Ends => return Answer { matches: Match::No, says: Says::Nothing, missed: None },
            Step::EndsFor(why) => {
                matches = Match::No;
                missed = Some(why);
            }
            Step::Perhaps(why) => {
                matches = matches.min(Match::Perhaps);
                let drawn = if by_chance { Some(Missed::Chance) } else { None };
                missed = missed.or(why).or(drawn);
            }
            Step::Says(said) => {
                says = said;
                break;
            }
        }
    }
    Answer { matches, says, missed }
}

fn one(
    expression: &Expression,
    rule: &Rule,
    asking: &Asking<'_, '_>,
    registers: &mut Registers,
    sets: &mut dyn AskSet,
) -> Step {
    match expression {
        Expression::Payload { .. }
        | Expression::Meta { .. }
        | Expression::Ct { .. }
        | Expression::NumberGenerator { .. }
        | Expression::Immediate { .. }
        | Expression::Other { to: Some(_), .. } => load(expression, asking, registers),
        Expression::Bitwise { .. } | Expression::ByteOrder { .. } => transform(expression, registers),
        Expression::Compare { register, with, value } => {
            compare(registers.partly(*register, value.len()), *with, value)
        }
        Expression::Range { register, outside, first, last } => {
            match registers.load(*register, first.len()) {
                Some(bytes) => sure((bytes >= *first && bytes <= *last) != *outside),
                None => Step::Perhaps(None),
            }
        }
        Expression::Lookup { .. } => lookup(expression, rule, asking, registers, sets),
        Expression::SetUpdate { set, with, .. } if with.is_empty() => {
            // Only a full set refuses, and that ends the rule, unless the key is there already.
            let full = (asking.set)(rule.family, &rule.table, set).is_some_and(|(_, full)| full);
            if full { Step::Perhaps(Some(Missed::Set)) } else { Step::Goes }
        }
        Expression::SetUpdate { .. }
        | Expression::Limit { .. }
        | Expression::ConnectionLimit { .. }
        | Expression::Quota { .. } => Step::Perhaps(Some(Missed::Limit)),
        Expression::Verdict(verdict) => Step::Says(said(verdict)),
        Expression::Reject { .. } => Step::Says(Says::Drop),
        // A program has it now; what it throws away is not thrown away by a rule.
        Expression::Queue { .. } => Step::Says(Says::Accept),
        Expression::Match { name, info, .. } => match_of_iptables(name, info, asking),
        Expression::Target { name, .. } => target_of_iptables(name),
        Expression::Nat { .. } | Expression::Masquerade { .. } => Step::Says(Says::Accept),
        Expression::Other { name, to: None } => match name.as_str() {
            "redir" | "tproxy" | "fwd" => Step::Says(Says::Accept),
            _ => Step::Perhaps(None),
        },
        Expression::MetaSet { .. }
        | Expression::Counter { .. }
        | Expression::NamedCounter(_)
        | Expression::Log { .. }
        | Expression::PayloadSet { .. }
        | Expression::CtSet { .. }
        | Expression::CtTimeout(_)
        | Expression::Statement(_) => Step::Goes,
        // It ends the rule for a packet whose options cannot be read.
        Expression::TcpOptionSet { .. } => Step::Perhaps(None),
    }
}

/// Puts into a register what an expression loads.
fn load(expression: &Expression, asking: &Asking<'_, '_>, registers: &mut Registers) -> Step {
    let packet = asking.packet;
    match expression {
        Expression::Payload { base, offset, length, to } => {
            return put(registers, *to, packet.payload(*base, *offset, *length), *length as usize);
        }
        Expression::Meta { key, to } => return put(registers, *to, packet.meta(*key, asking.names), 16),
        Expression::Ct { key: 0, to } => registers.store(*to, &(state(asking) as u32).to_ne_bytes()),
        Expression::Ct { to, .. } | Expression::Other { to: Some(to), .. } => registers.forget(*to, 16),
        Expression::NumberGenerator { to, .. } => registers.forget(*to, 4),
        Expression::Immediate { to, value } => registers.store(*to, value),
        _ => {}
    }
    Step::Goes
}

fn sure(matches: bool) -> Step {
    if matches { Step::Goes } else { Step::Ends }
}

fn said(verdict: &NftVerdict) -> Says {
    match verdict {
        NftVerdict::Accept => Says::Accept,
        NftVerdict::Drop => Says::Drop,
        NftVerdict::Continue => Says::Nothing,
        NftVerdict::Return => Says::Return,
        NftVerdict::Jump(chain) => Says::Jump(chain.clone()),
        NftVerdict::Goto(chain) => Says::Goto(chain.clone()),
        NftVerdict::Other(_) => Says::Anything,
    }
}

fn put(registers: &mut Registers, to: Register, bytes: Bytes, length: usize) -> Step {
    match bytes {
        Bytes::Known(bytes) => registers.store(to, &bytes),
        Bytes::Unknown => registers.forget(to, length),
        Bytes::Absent => return Step::Ends,
    }
    Step::Goes
}

/// Before connection tracking has seen a packet, it has no entry, and that reads as invalid (nft_ct_get_eval).
fn state(asking: &Asking<'_, '_>) -> State {
    let early = match asking.packet.hook {
        Hook::Ingress | Hook::Egress => true,
        Hook::Prerouting | Hook::Output => asking.priority < CONNTRACK,
        _ => false,
    };
    if early { State::Invalid } else { asking.packet.state }
}

fn transform(expression: &Expression, registers: &mut Registers) -> Step {
    match expression {
        Expression::Bitwise { from, to, mask, xor } => {
            let Some(bytes) = registers.partly(*from, mask.len()) else { return Step::Perhaps(None) };
            let masked = |(at, byte): (usize, &Option<u8>)| {
                let toggled = xor.get(at).copied().unwrap_or(0);
                // A bit that is masked away is known whatever it was.
                if mask[at] == 0 { Some(toggled) } else { byte.map(|b| b & mask[at] ^ toggled) }
            };
            let result: Vec<Option<u8>> = bytes.iter().enumerate().map(masked).collect();
            registers.store_partly(*to, &result);
        }
        Expression::ByteOrder { from, to, length, size } => {
            let Some(bytes) = registers.partly(*from, *length as usize) else { return Step::Perhaps(None) };
            let mut bytes = bytes.to_vec();
            if cfg!(target_endian = "little") {
                bytes.chunks_mut((*size as usize).max(1)).for_each(<[Option<u8>]>::reverse);
            }
            registers.store_partly(*to, &bytes);
        }
        _ => {}
    }
    Step::Goes
}

fn compare(bytes: Option<&[Option<u8>]>, with: Comparison, value: &[u8]) -> Step {
    let Some(bytes) = bytes else { return Step::Perhaps(None) };
    // One byte that differs settles whether they are equal.
    let differs = bytes.iter().zip(value).any(|(b, v)| b.is_some_and(|b| b != *v));
    match with {
        Comparison::Equal if differs => return Step::Ends,
        Comparison::NotEqual if differs => return Step::Goes,
        _ => {}
    }
    let Some(known) = bytes.iter().copied().collect::<Option<Vec<u8>>>() else { return Step::Perhaps(None) };
    let order = known.as_slice().cmp(value);
    sure(match with {
        Comparison::Equal => order.is_eq(),
        Comparison::NotEqual => order.is_ne(),
        Comparison::Less => order.is_lt(),
        Comparison::LessOrEqual => order.is_le(),
        Comparison::Greater => order.is_gt(),
        Comparison::GreaterOrEqual => order.is_ge(),
    })
}

fn lookup(
    expression: &Expression,
    rule: &Rule,
    asking: &Asking<'_, '_>,
    registers: &mut Registers,
    sets: &mut dyn AskSet,
) -> Step {
    let Expression::Lookup { set, key, negated, to } = expression else { return Step::Perhaps(None) };
    let has_name = !set.starts_with("__");
    let length = (asking.set)(rule.family, &rule.table, set).map(|(length, _)| length);
    let bytes = length.and_then(|length| registers.load(*key, length as usize));
    let found = bytes.and_then(|bytes| sets.ask(rule.family, &rule.table, set, &bytes));
    if let Some(Some(register)) = to {
        registers.forget(*register, 16);
    }
    match (found, to) {
        (None, Some(None)) => Step::Says(Says::Anything),
        (None, _) => Step::Perhaps(if has_name { Some(Missed::Set) } else { None }),
        (Some(found), None) => match (found.is_some() != *negated, has_name && !negated) {
            (true, _) => Step::Goes,
            (false, true) => Step::EndsFor(Missed::Set),
            (false, false) => Step::Ends,
        },
        (Some(None), Some(_)) => Step::Ends,
        (Some(Some(Element::Verdict(verdict))), Some(None)) => match said(&verdict) {
            Says::Nothing => Step::Goes,
            says => Step::Says(says),
        },
        (Some(Some(Element::Value(value))), Some(Some(register))) => {
            registers.store(*register, &value);
            Step::Goes
        }
        (Some(Some(_)), Some(_)) => Step::Perhaps(None),
    }
}

fn match_of_iptables(name: &str, info: &[u8], asking: &Asking<'_, '_>) -> Step {
    match name {
        "limit" | "hashlimit" | "connlimit" | "quota" => Step::Perhaps(Some(Missed::Limit)),
        "statistic" => Step::Perhaps(Some(Missed::Chance)),
        "set" => Step::Perhaps(Some(Missed::Set)),
        _ => match xtables::matches(name, info, asking.packet, asking.names, state(asking)) {
            Match::Yes => Step::Goes,
            Match::Perhaps => Step::Perhaps(None),
            Match::No => Step::Ends,
        },
    }
}

fn target_of_iptables(name: &str) -> Step {
    match name {
        "REJECT" => Step::Says(Says::Drop),
        "DNAT" | "SNAT" | "MASQUERADE" | "REDIRECT" | "NETMAP" | "NFQUEUE" | "TPROXY" => {
            Step::Says(Says::Accept)
        }
        "LOG" | "NFLOG" | "MARK" | "CONNMARK" | "CT" | "NOTRACK" | "TCPMSS" | "TOS" | "DSCP" | "TTL"
        | "SET" | "TRACE" | "CLASSIFY" | "CHECKSUM" | "AUDIT" | "TEE" => Step::Goes,
        _ => Step::Says(Says::Anything),
    }
}
