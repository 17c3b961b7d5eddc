//! The rules of a policy, in the words of iptables.

use weir_prefix::Ranges;

use super::{Family, set_name};
use crate::policy::{Action, LINK_V4, Policy};

/// Which packets are judged.
pub(super) fn entrances(policy: &Policy) -> Vec<String> {
    let mut all = Vec::new();
    for name in &policy.interfaces {
        if policy.ports.is_empty() {
            all.push(format!("-i {name}"));
        }
        for port in &policy.ports {
            let protocol = if port.tcp { "tcp" } else { "udp" };
            all.push(format!("-i {name} -p {protocol} --dport {}", port.number));
        }
    }
    all
}

pub(super) fn rules(policy: &Policy, id: &str, generation: &str, family: Family) -> Vec<String> {
    let comment = |text: &str| format!("-m comment --comment \"weir:{text}\"");
    let mut rules = vec![comment(&format!("id:{id}"))];
    if policy.established_first {
        let states = "-m conntrack --ctstate ESTABLISHED,RELATED";
        rules.push(format!("{states} {} -j RETURN", comment("established")));
    }
    let link = comment("link");
    if family.v6 {
        rules.push(format!("-s ::/128 {link} -j RETURN"));
        rules.push(format!("-s fe80::/10 {link} -j RETURN"));
        // Neighbour discovery (RFC 4861).
        rules.extend((133..=137).map(|kind| {
            format!("-p ipv6-icmp -m icmp6 --icmpv6-type {kind} -m hl --hl-eq 255 {link} -j RETURN")
        }));
    } else {
        let prefixes: Vec<String> = Ranges::new(LINK_V4).prefixes().map(|p| p.to_string()).collect();
        rules.extend(prefixes.iter().map(|prefix| format!("-s {prefix} {link} -j RETURN")));
        // Replies of a DHCP server to its client (RFC 2131).
        rules.push(format!("-p udp --sport 67 --dport 68 {link} -j RETURN"));
    }
    for (n, class) in (1..).zip(&policy.classes) {
        let empty = if family.v6 { class.v6.is_empty() } else { class.v4.is_empty() };
        if !empty {
            let matching = format!("-m set --match-set {} src ", set_name(generation, n, family));
            decide(&mut rules, &matching, class.action, &comment(&format!("class {n}")), &class.name);
        }
    }
    decide(&mut rules, "", policy.rest, &comment("class 0"), "rest");
    rules
}

fn decide(rules: &mut Vec<String>, matching: &str, action: Action, comment: &str, name: &str) {
    match action {
        Action::Allow => rules.push(format!("{matching}{comment} -j RETURN")),
        Action::Drop => rules.push(format!("{matching}{comment} -j DROP")),
        Action::Log => {
            rules.push(format!("{matching}-m limit --limit 10/second -j LOG --log-prefix \"weir {name} \""));
            rules.push(format!("{matching}{comment} -j RETURN"));
        }
        Action::Mark(mark) => {
            rules.push(format!("{matching}-j MARK --set-mark {mark}"));
            rules.push(format!("{matching}{comment} -j RETURN"));
        }
    }
}
