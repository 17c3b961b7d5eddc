//! The effect of one rule of nftables on one kind of packets, read from its expressions.

use weir_netlink::nftables::{Base, Comparison, Element, Expression, NftVerdict, Rule};

use super::fields;
use super::judged::{Act, COUNTER, Judged, RuleVerdict, When};
use super::sets::Sets;
use super::traffic::{Byte, Bytes, Conditions, varying};
use super::xtables::{self, Neighbours};

/// NFT_META_MARK, NFT_META_NFTRACE; NFT_CT_MARK.
const META_MARK: u32 = 3;
const META_TRACE: u32 = 12;
const CT_MARK: u32 = 3;

/// Judges a rule.
pub(super) fn judge(
    rule: &Rule,
    conditions: Conditions,
    sets: &mut Sets<'_>,
    neighbours: &Neighbours,
) -> Judged {
    let (registers, judged) = (Bytes::default(), Judged::default());
    let mut judging = Judging { rule, conditions, sets, neighbours, registers, judged };
    for expression in &rule.expressions {
        judging.one(expression);
        if judging.judged.when == When::Never {
            break;
        }
    }
    judging.judged
}

struct Judging<'j, 'a> {
    rule: &'j Rule,
    conditions: Conditions,
    sets: &'j mut Sets<'a>,
    neighbours: &'j Neighbours,
    registers: Bytes,
    judged: Judged,
}

impl Judging<'_, '_> {
    fn one(&mut self, expression: &Expression) {
        match expression {
            Expression::Payload { .. }
            | Expression::Meta { .. }
            | Expression::Ct { .. }
            | Expression::Immediate { .. }
            | Expression::Bitwise { .. }
            | Expression::ByteOrder { .. }
            | Expression::NumberGenerator { .. }
            | Expression::Other { to: Some(_), .. } => self.load(expression),
            Expression::Compare { .. } | Expression::Range { .. } | Expression::Lookup { .. } => {
                self.condition(expression);
            }
            Expression::SetUpdate { set, with, .. } => {
                self.judged.counts = true;
                self.judged.is_shared |= !with.is_empty() && self.sets.fillers(self.rule, set) > 1;
                self.judged.records(format!("the set {set}, which it fills"));
                with.iter().for_each(|e| self.one(e));
            }
            Expression::Limit { .. } => {
                self.judged.counts = true;
                self.and(When::varies("a rate limit"));
            }
            Expression::ConnectionLimit { .. } => {
                self.judged.counts = true;
                self.and(When::varies("the number of connections"));
            }
            Expression::Quota { .. } => {
                self.judged.counts = true;
                self.judged.records("its quota");
                self.and(When::varies("a quota"));
            }
            Expression::Match { name, info, .. } => {
                xtables::matched(&mut self.judged, name, info, self.conditions, self.neighbours);
            }
            Expression::Target { name, revision, info } => {
                xtables::target(&mut self.judged, name, *revision, info);
            }
            Expression::Counter { .. } | Expression::NamedCounter(_) => self.judged.records(COUNTER),
            Expression::Log { .. } => self.judged.records("its log"),
            other => self.statement(other),
        }
    }

    fn and(&mut self, when: When) {
        let before = std::mem::replace(&mut self.judged.when, When::Never);
        self.judged.when = before.and(when);
    }

    fn load(&mut self, expression: &Expression) {
        match expression {
            Expression::Payload { base, offset, length, to } => {
                self.registers.store(to.0, &self.conditions.traffic.payload(*base, *offset, *length));
            }
            Expression::Meta { key, to } => self.registers.store(to.0, &self.conditions.meta(*key)),
            Expression::Ct { key, to } => match self.conditions.ct(*key) {
                Some(bytes) => self.registers.store(to.0, &bytes),
                None => self.judged.when = When::Never,
            },
            Expression::Immediate { to, value } => {
                let bytes: Vec<Byte> = value.iter().map(|b| Byte::known(*b)).collect();
                self.registers.store(to.0, &bytes);
            }
            Expression::Bitwise { from, to, mask, xor } => {
                let Some(bytes) = self.registers.load(from.0, mask.len()) else { return };
                let masked = bytes.iter().zip(mask).enumerate().map(|(at, (byte, mask))| {
                    let toggled = xor.get(at).copied().unwrap_or(0);
                    let known = byte.known | !mask;
                    let value = ((byte.value & mask) ^ toggled) & known;
                    let of = byte.of.filter(|_| toggled == 0);
                    Byte { known, value, varies: byte.varies & mask, what: byte.what, of }
                });
                let masked: Vec<Byte> = masked.collect();
                self.registers.store(to.0, &masked);
            }
            Expression::ByteOrder { from, to, length, size } => {
                let Some(bytes) = self.registers.load(from.0, *length as usize) else { return };
                let mut bytes = bytes.to_vec();
                if cfg!(target_endian = "little") {
                    bytes.chunks_mut((*size as usize).max(1)).for_each(<[Byte]>::reverse);
                }
                self.registers.store(to.0, &bytes);
            }
            Expression::NumberGenerator { to, .. } => {
                self.judged.counts = true;
                self.registers.store(to.0, &[Byte::varying("chance or a count"); 4]);
            }
            Expression::Other { name, to: Some(to) } => {
                let byte = match name.as_str() {
                    // They depend on addresses, ports, interfaces, the route and the connection's SYN.
                    "fib" | "rt" | "osf" | "xfrm" | "socket" | "tunnel" => Byte::CONSTANT,
                    "exthdr" => Byte::varying("TCP options or extension headers"),
                    // Operands are not read: they may be anything that was loaded.
                    "hash" | "bitwise" => self.registers.varying().map_or(Byte::CONSTANT, Byte::varying),
                    _ => Byte::varying("an expression that weir cannot read"),
                };
                self.registers.store(to.0, &[byte; 16]);
            }
            _ => {}
        }
    }

    fn condition(&mut self, expression: &Expression) {
        let ipv6 = self.conditions.traffic.ipv6;
        let mut found = Vec::new();
        let when = match expression {
            Expression::Compare { register, with, value } => {
                let bytes = self.registers.load(register.0, value.len());
                found = fields::compared(bytes.unwrap_or_default(), *with, value, ipv6);
                compare(bytes, *with, value)
            }
            Expression::Range { register, outside, first, last } => {
                let bytes = self.registers.load(register.0, first.len());
                let above = compare(bytes, Comparison::GreaterOrEqual, first);
                let inside = above.and(compare(bytes, Comparison::LessOrEqual, last));
                found = fields::within(bytes.unwrap_or_default(), first, last, *outside, ipv6);
                if *outside { inside.not() } else { inside }
            }
            Expression::Lookup { set, key, negated, to } => self.lookup(set, key.0, *negated, *to),
            _ => return,
        };
        // One that is certain says nothing about the ends, and one that varies is about something else.
        if when == When::Constant {
            found.iter().for_each(|(field, values)| self.judged.narrow(*field, values));
        }
        self.and(when);
    }

    fn lookup(
        &mut self,
        name: &str,
        key: u8,
        negated: bool,
        to: Option<Option<weir_netlink::nftables::Register>>,
    ) -> When {
        let Some(set) = self.sets.get(self.rule, name) else {
            return When::varies(format!("the set {name}, which weir cannot read"));
        };
        let bytes = self.registers.load(key, set.key_length as usize).unwrap_or_default().to_vec();
        let known: Option<Vec<u8>> = bytes.iter().map(|b| (b.known == 0xff).then_some(b.value)).collect();
        let when = match varying(&bytes) {
            Some(what) => When::varies(what),
            None if set.timeout || set.dynamic => {
                self.judged.is_shared |= self.sets.fillers(self.rule, name) > 0;
                When::varies(format!("the set {name}, whose contents change by themselves"))
            }
            None => When::Constant,
        };
        let found = match (&when, known) {
            (When::Constant, Some(key)) => self.sets.find(self.rule, name, &key),
            _ => None,
        };
        match (to, found) {
            (None, Some(found)) => When::of(found.is_some() != negated),
            (None, None) => {
                if when == When::Constant
                    && let Some(keys) = self.sets.keys(self.rule, name)
                {
                    let found = fields::among(&bytes, &keys, negated, self.conditions.traffic.ipv6);
                    found.iter().for_each(|(field, values)| self.judged.narrow(*field, values));
                }
                when
            }
            (Some(None), found) => self.verdict_map(name, found, when),
            (Some(Some(register)), found) => {
                self.map(register.0, found.as_ref(), &when);
                when
            }
        }
    }

    /// Data out of a map, whose length is not known.
    fn map(&mut self, register: u8, found: Option<&Option<Element>>, when: &When) {
        let bytes = match (found, when) {
            (Some(Some(Element::Value(value))), _) => value.iter().map(|b| Byte::known(*b)).collect(),
            (_, When::Varies(_)) => vec![Byte::varying("a map"); 16],
            _ => vec![Byte::CONSTANT; 16],
        };
        self.registers.store(register, &bytes);
    }

    fn verdict_map(&mut self, name: &str, found: Option<Option<Element>>, when: When) -> When {
        match found {
            Some(Some(Element::Verdict(verdict))) => {
                self.judged.verdicts.extend(read(&verdict));
                return When::Always;
            }
            // The kernel does not find the element for all other keys in this way.
            Some(None) => {
                let others = self.sets.verdicts(self.rule, name).and_then(|all| all.others);
                self.judged.verdicts.extend(others.as_ref().and_then(read));
                return When::of(others.is_some());
            }
            _ => {}
        }
        self.judged.perhaps = true;
        match self.sets.verdicts(self.rule, name) {
            Some(all) => self.judged.verdicts.extend(all.keys.iter().chain(&all.others).filter_map(read)),
            None => self.judged.verdicts.push(RuleVerdict::Unreadable(format!("the map {name}"))),
        }
        when
    }

    fn statement(&mut self, expression: &Expression) {
        let rewrites = |what: &str| Act::Rewrites(format!("it writes {what} of each packet"));
        match expression {
            Expression::Verdict(verdict) => self.judged.verdicts.extend(read(verdict)),
            Expression::Reject { .. } => self.judged.verdicts.push(RuleVerdict::Drop),
            Expression::Queue { .. } => self.judged.verdicts.push(RuleVerdict::Queue),
            Expression::Nat { .. } | Expression::Masquerade { .. } => {
                self.judged.verdicts.push(RuleVerdict::Accept);
            }
            Expression::MetaSet { key: META_TRACE, .. } => self.judged.records("its trace"),
            Expression::MetaSet { key, from } => {
                let act = match varying(self.registers.load(from.0, 4).unwrap_or_default()) {
                    Some(what) => Act::Rewrites(format!("it sets a property of each packet by {what}")),
                    None if *key == META_MARK => Act::Marks,
                    None => Act::Alters,
                };
                self.judged.acts.push(act);
            }
            Expression::CtSet { key, from } => {
                let value = self.registers.load(from.0, 4).unwrap_or_default();
                // A constant was set by the first packets already.
                if *key == CT_MARK && value.iter().any(|b| b.known != 0xff) {
                    self.judged.records("its connection mark");
                }
                self.judged.acts.push(Act::Alters);
            }
            Expression::PayloadSet { base, offset, length } => {
                let held = is_held(self.conditions.traffic.ipv6, *base, *offset, *length);
                self.judged.acts.push(if held { Act::Alters } else { rewrites("bytes") });
            }
            Expression::TcpOptionSet { option } if xtables::only_with_syn(*option) => {}
            Expression::TcpOptionSet { .. } => self.judged.acts.push(rewrites("TCP options")),
            Expression::CtTimeout(_) => self.judged.acts.push(Act::Alters),
            Expression::Statement(name) => match name.as_str() {
                "last" => self.judged.records("its time of last use"),
                "dup" => {
                    self.judged.records("its copy");
                    self.judged.acts.push(Act::Alters);
                }
                "notrack" | "secmark" | "objref" => self.judged.acts.push(Act::Alters),
                name => self.judged.verdicts.push(RuleVerdict::Unreadable(format!("the statement {name}"))),
            },
            Expression::Other { name, .. } => self.other(name),
            _ => {}
        }
    }

    fn other(&mut self, name: &str) {
        match name {
            "redir" | "tproxy" | "fwd" => {
                self.judged.acts.push(Act::Alters);
                self.judged.verdicts.push(RuleVerdict::Accept);
            }
            "synproxy" => self.judged.acts.push(Act::Alters),
            // The kernel takes a flow into its own table, or the rule ends.
            "flow_offload" => self.and(When::Constant),
            // Their objects have names, and other rules may use them, too.
            "limit" => {
                (self.judged.counts, self.judged.is_shared) = (true, true);
                self.and(When::varies("a rate limit"));
            }
            "quota" => {
                (self.judged.counts, self.judged.is_shared) = (true, true);
                self.judged.records("its quota");
                self.and(When::varies("a quota"));
            }
            "connlimit" => {
                (self.judged.counts, self.judged.is_shared) = (true, true);
                self.and(When::varies("the number of connections"));
            }
            // An object out of a map: a counter, a limit, a quota or a helper.
            "objref" => {
                (self.judged.counts, self.judged.is_shared) = (true, true);
                self.judged.records("its object");
                self.and(When::varies("an object out of a map"));
            }
            name => {
                (self.judged.counts, self.judged.is_shared) = (true, true);
                self.judged.verdicts.push(RuleVerdict::Unreadable(format!("the expression {name}")));
            }
        }
    }
}

/// True of bytes that an entry holds or compares: addresses, ports, DSCP and TTL. If rules change the last two by more than a hop,
/// nothing is learnt. The kernel writes two bytes where a checksum changes.
fn is_held(ipv6: bool, base: Base, offset: u32, length: u32) -> bool {
    let end = offset.saturating_add(length);
    let held: &[std::ops::Range<u32>] = match (base, ipv6) {
        (Base::Network, false) => &[0..2, 8..10, 12..20],
        (Base::Network, true) => &[0..2, 6..8, 8..40],
        (Base::Transport, _) => return end <= 4,
        (Base::Link | Base::Inner, _) => return false,
    };
    held.iter().any(|held| held.start <= offset && end <= held.end)
}

fn read(verdict: &NftVerdict) -> Option<RuleVerdict> {
    Some(match verdict {
        NftVerdict::Accept => RuleVerdict::Accept,
        NftVerdict::Drop => RuleVerdict::Drop,
        NftVerdict::Continue => return None,
        NftVerdict::Return => RuleVerdict::Return,
        NftVerdict::Jump(chain) => RuleVerdict::Jump(chain.clone()),
        NftVerdict::Goto(chain) => RuleVerdict::Goto(chain.clone()),
        NftVerdict::Other(code) => RuleVerdict::Unreadable(format!("the verdict {code}")),
    })
}

fn compare(bytes: Option<&[Byte]>, with: Comparison, value: &[u8]) -> When {
    let Some(bytes) = bytes else { return When::varies("a register that weir cannot read") };
    let pairs = || bytes.iter().zip(value);
    // One bit that differs settles whether they are equal.
    let differs = pairs().any(|(byte, value)| byte.known & (byte.value ^ value) != 0);
    match with {
        Comparison::Equal if differs => return When::Never,
        Comparison::NotEqual if differs => return When::Always,
        _ => {}
    }
    if bytes.iter().all(|b| b.known == 0xff) {
        let order = bytes.iter().map(|b| b.value).cmp(value.iter().copied());
        return When::of(match with {
            Comparison::Equal => order.is_eq(),
            Comparison::NotEqual => order.is_ne(),
            Comparison::Less => order.is_lt(),
            Comparison::LessOrEqual => order.is_le(),
            Comparison::Greater => order.is_gt(),
            Comparison::GreaterOrEqual => order.is_ge(),
        });
    }
    varying(bytes).map_or(When::Constant, When::varies)
}
