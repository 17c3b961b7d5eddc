//! A rule as text.

use super::{Rule, Target};
use crate::u16_ne;

/// The rule near to what `iptables -S` prints: ports, states and names, of other matches the name alone.
pub fn text(chain: &str, rule: &Rule) -> String {
    let mut words = vec![format!("-A {chain}")];
    if !rule.asks.is_empty() {
        words.push(rule.asks.clone());
    }
    for (name, info) in rule.matches.iter().filter(|(name, _)| name != "comment") {
        words.push(format!("-m {name}"));
        match name.as_str() {
            "tcp" => words.extend(ports(info, info.get(11).copied())),
            "udp" => words.extend(ports(info, info.get(8).copied())),
            _ => {}
        }
    }
    words.push(match &rule.target {
        Target::Accept => "-j ACCEPT".to_owned(),
        Target::Drop => "-j DROP".to_owned(),
        Target::Return => "-j RETURN".to_owned(),
        Target::Continue => return words.join(" "),
        Target::Jump(name) | Target::Named(name) => format!("-j {name}"),
        Target::Goto(name) => format!("-g {name}"),
    });
    words.join(" ")
}

/// `struct xt_tcp` and `struct xt_udp` begin with the ranges of source and destination ports; the flags that negate them are
/// 1 and 2.
fn ports(info: &[u8], negated: Option<u8>) -> Vec<String> {
    let number = |at: usize| u16_ne(info.get(at..)?);
    let range = |option: &str, at: usize, not: u8| {
        let (first, last) = (number(at)?, number(at + 2)?);
        let value = match (first, last) {
            (0, u16::MAX) => return None,
            (first, last) if first == last => first.to_string(),
            (first, last) => format!("{first}:{last}"),
        };
        let not = if negated.unwrap_or(0) & not != 0 { "! " } else { "" };
        Some(format!("{not}{option} {value}"))
    };
    [range("--sport", 0, 1), range("--dport", 4, 2)].into_iter().flatten().collect()
}
