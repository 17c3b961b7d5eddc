//! Rules of the old tables of iptables.

use weir_netlink::iptables::{Family, Rule, Table, Target, text};

use super::ends::{Field, Values};
use super::judged::{Judged, RuleVerdict, When};
use super::traffic::Conditions;
use super::walk::{BaseChain, Key, Rules};
use super::xtables::{self, Neighbours};
use crate::Exclusion;

pub(super) struct Legacy<'a> {
    tables: &'a [Table],
    /// Tables, chains and rules by their places.
    rules: Vec<(usize, usize, usize)>,
    neighbours: Neighbours,
}

impl<'a> Legacy<'a> {
    pub(super) fn new(tables: &'a [Table]) -> Self {
        let mut rules = Vec::new();
        for (table, chains) in tables.iter().enumerate() {
            for (chain, of_chain) in chains.chains.iter().enumerate() {
                rules.extend((0..of_chain.rules.len()).map(|rule| (table, chain, rule)));
            }
        }
        let mut neighbours = Neighbours::default();
        for rule in tables.iter().flat_map(|t| &t.chains).flat_map(|c| &c.rules) {
            rule.matches.iter().for_each(|(name, info)| neighbours.add_match(name, info));
            if let Target::Named(name) = &rule.target {
                neighbours.add_target(name);
            }
        }
        Legacy { tables, rules, neighbours }
    }

    fn rule(&self, place: usize) -> &'a Rule {
        let (table, chain, rule) = self.rules[place];
        &self.tables[table].chains[chain].rules[rule]
    }
}

fn name(table: &Table) -> String {
    let program = match table.family {
        Family::Ip => "iptables-legacy",
        Family::Ip6 => "ip6tables-legacy",
    };
    format!("{program} table {}", table.name)
}

impl Rules for Legacy<'_> {
    fn base_chains(&self) -> Vec<BaseChain> {
        let mut chains = Vec::new();
        // Only the first packets of a connection meet the table nat.
        for table in self.tables.iter().filter(|t| t.name != "nat") {
            for chain in &table.chains {
                let Some((policy, _)) = &chain.policy else { continue };
                if !["PREROUTING", "FORWARD", "POSTROUTING"].contains(&chain.name.as_str()) {
                    continue;
                }
                chains.push(BaseChain {
                    key: (name(table), chain.name.clone()),
                    ipv4: table.family == Family::Ip,
                    ipv6: table.family == Family::Ip6,
                    // The table raw comes before connection tracking.
                    tracked: table.name != "raw",
                    drops: *policy == Target::Drop,
                });
            }
        }
        chains
    }

    fn chain(&self, key: &Key) -> Vec<usize> {
        let (table, chain) = key;
        let of_chain = |(t, c, _): &(usize, usize, usize)| {
            self.tables[*t].chains[*c].name == *chain && name(&self.tables[*t]) == *table
        };
        let all = self.rules.iter().enumerate();
        all.filter(|(_, place)| of_chain(place)).map(|(number, _)| number).collect()
    }

    fn judge(&mut self, rule: usize, conditions: Conditions) -> Judged {
        judge(self.rule(rule), conditions, &self.neighbours)
    }

    fn describe(&self, place: usize) -> (String, String) {
        let (table, chain, rule) = self.rules[place];
        let (table, number) = (&self.tables[table], rule + 1);
        let chain = &table.chains[chain].name;
        (format!("{}, chain {chain}, rule {number}", name(table)), text(chain, self.rule(place)))
    }

    fn sets_marks(&self) -> bool {
        let sets = |rule: &Rule| matches!(&rule.target, Target::Named(name) if xtables::sets_mark(name, rule.revision, &rule.parameters));
        self.tables.iter().flat_map(|t| &t.chains).flat_map(|c| &c.rules).any(sets)
    }

    fn rewrites_ends(&self) -> bool {
        let mut all = self.tables.iter().flat_map(|t| &t.chains).flat_map(|c| &c.rules);
        all.any(|rule| matches!(&rule.target, Target::Named(name) if xtables::rewrites_ends(name)))
    }
}

fn judge(rule: &Rule, conditions: Conditions, neighbours: &Neighbours) -> Judged {
    let mut judged = Judged::default();
    asks(&mut judged, &rule.asks, conditions);
    for (name, info) in &rule.matches {
        if judged.when == When::Never {
            break;
        }
        xtables::matched(&mut judged, name, info, conditions, neighbours);
    }
    match &rule.target {
        Target::Accept => judged.verdicts.push(RuleVerdict::Accept),
        Target::Drop => judged.verdicts.push(RuleVerdict::Drop),
        Target::Return => judged.verdicts.push(RuleVerdict::Return),
        Target::Jump(chain) => judged.verdicts.push(RuleVerdict::Jump(chain.clone())),
        Target::Goto(chain) => judged.verdicts.push(RuleVerdict::Goto(chain.clone())),
        Target::Named(name) => xtables::target(&mut judged, name, rule.revision, &rule.parameters),
        // Every rule counts. One without a target does nothing else.
        Target::Continue if judged.acts.is_empty() => judged.records(super::judged::COUNTER),
        Target::Continue => {}
    }
    judged
}

/// Addresses, interfaces and protocol, as iptables writes them.
fn asks(judged: &mut Judged, text: &str, conditions: Conditions) {
    let mut when = When::Always;
    let mut words = text.split_whitespace();
    let mut not = false;
    while let Some(word) = words.next() {
        let one = match word {
            "!" => {
                not = true;
                continue;
            }
            "-f" => When::Never,
            "-p" => {
                When::of(protocol(words.next().unwrap_or_default()) == Some(conditions.traffic.protocol()))
            }
            // The value of -s, -d, -i or -o.
            option => {
                let value = words.next().unwrap_or_default();
                let field = match option {
                    "-s" => Some(Field::SourceAddress),
                    "-d" => Some(Field::DestinationAddress),
                    _ => None,
                };
                // A mask with holes is no prefix, and is left out.
                if let (Some(field), Ok(network)) = (field, value.parse::<Exclusion>()) {
                    let values = Values::of([network.span()]);
                    let bits = field.bits(conditions.traffic.ipv6);
                    judged.narrow(field, &if not { values.not(bits) } else { values });
                }
                When::Constant
            }
        };
        when = when.and(if std::mem::take(&mut not) { one.not() } else { one });
    }
    judged.when = when;
}

fn protocol(name: &str) -> Option<u8> {
    match name {
        "tcp" => Some(6),
        "udp" => Some(17),
        other => other.parse().ok(),
    }
}
