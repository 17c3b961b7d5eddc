//! The rules of a policy, in the words of nft.

use weir_prefix::Address;

use super::set_name;
use crate::policy::{Action, LINK_V4, LINK_V6, Policy};

/// Which packets are judged.
pub(super) fn entrances(policy: &Policy) -> Vec<String> {
    let names: Vec<String> = policy.interfaces.iter().map(|name| format!("\"{name}\"")).collect();
    let from = format!("iifname {{ {} }}", names.join(", "));
    if policy.ports.is_empty() {
        return vec![from];
    }
    let of = |tcp: bool| {
        let numbers: Vec<String> =
            policy.ports.iter().filter(|p| p.tcp == tcp).map(|p| p.number.to_string()).collect();
        let protocol = if tcp { "tcp" } else { "udp" };
        (!numbers.is_empty()).then(|| format!("{from} {protocol} dport {{ {} }}", numbers.join(", ")))
    };
    [of(true), of(false)].into_iter().flatten().collect()
}

pub(super) fn rules(policy: &Policy, generation: &str) -> Vec<String> {
    let mut rules = Vec::new();
    if policy.established_first {
        rules.push("ct state established,related counter accept comment \"established\"".to_owned());
    }
    let own = |ranges: &[String]| ranges.join(", ");
    let v4: Vec<String> = LINK_V4.iter().map(|(a, b)| format!("{}-{}", a.text(), b.text())).collect();
    let v6: Vec<String> = LINK_V6.iter().map(|(a, b)| format!("{}-{}", a.text(), b.text())).collect();
    rules.push(format!("ip saddr {{ {} }} counter accept comment \"link\"", own(&v4)));
    rules.push(format!("ip6 saddr {{ {} }} counter accept comment \"link\"", own(&v6)));
    // Neighbour discovery (RFC 4861), and what a DHCP server answers its client (RFC 2131).
    rules.push(
        "icmpv6 type { nd-router-solicit, nd-router-advert, nd-neighbor-solicit, nd-neighbor-advert, nd-redirect } \
         ip6 hoplimit 255 counter accept comment \"link\""
            .to_owned(),
    );
    rules.push("meta nfproto ipv4 udp sport 67 udp dport 68 counter accept comment \"link\"".to_owned());
    for (n, class) in (1..).zip(&policy.classes) {
        for (family, ip, empty) in [("4", "ip", class.v4.is_empty()), ("6", "ip6", class.v6.is_empty())] {
            if !empty {
                let matching = format!("{ip} saddr @{} ", set_name(generation, n, family));
                decide(&mut rules, &matching, &[(ip, family)], class.action, n, &class.name);
            }
        }
    }
    decide(&mut rules, "", &[("ip", "4"), ("ip6", "6")], policy.rest, 0, "rest");
    rules
}

/// Adds the rules of one class. The rule that records the source is separate: a full set must not keep the next rule from
/// running.
fn decide(
    rules: &mut Vec<String>,
    matching: &str,
    families: &[(&str, &str)],
    action: Action,
    class: usize,
    name: &str,
) {
    if matches!(action, Action::Drop | Action::Log) {
        for (ip, family) in families {
            rules.push(format!("{matching}update @denied{family} {{ {ip} saddr counter }}"));
        }
    }
    if action == Action::Log {
        rules.push(format!("{matching}limit rate 10/second log prefix \"weir {name} \""));
    }
    let verdict = match action {
        Action::Allow | Action::Log => "accept".to_owned(),
        Action::Drop => "drop".to_owned(),
        Action::Mark(mark) => format!("meta mark set {mark} accept"),
    };
    rules.push(format!("{matching}counter {verdict} comment \"class {class}\""));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::Port;

    #[test]
    fn ports_are_asked_for_before_the_list() {
        let policy = Policy {
            interfaces: vec!["a".into(), "b".into()],
            ports: vec![Port { tcp: true, number: 22 }, Port { tcp: false, number: 53 }],
            ..crate::verify::tests::policy()
        };
        assert_eq!(
            entrances(&policy),
            ["iifname { \"a\", \"b\" } tcp dport { 22 }", "iifname { \"a\", \"b\" } udp dport { 53 }"]
        );
    }
}
