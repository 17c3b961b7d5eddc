//! Rules of iptables, of both back ends: each with a comment of ours, added and deleted one by one.

use crate::options::{Allocation, MssClamp};
use crate::{Error, Family, Journal, Place, command};

/// Which kernel interface iptables writes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Backend {
    /// nf_tables, by the program `iptables-nft`.
    NfTables,
    /// x_tables, by the program `iptables-legacy`.
    Legacy,
}

impl Backend {
    /// The program that changes rules.
    pub(crate) fn program(self, family: Family) -> &'static str {
        match (self, family) {
            (Backend::NfTables, Family::Ipv4) => "iptables-nft",
            (Backend::NfTables, Family::Ipv6) => "ip6tables-nft",
            (Backend::Legacy, Family::Ipv4) => "iptables-legacy",
            (Backend::Legacy, Family::Ipv6) => "ip6tables-legacy",
        }
    }

    /// Returns the programs that a variant of this back end needs on the gateway: those of both IP versions come in one package.
    pub(crate) fn programs(self) -> Vec<String> {
        let mut programs = vec![self.program(Family::Ipv4).to_owned(), self.program(Family::Ipv6).to_owned()];
        // nft finds and removes the leftovers of iptables-nft.
        programs.extend((self == Backend::NfTables).then(|| crate::nft::PROGRAM.to_owned()));
        programs
    }

    /// Fails where this kernel has no such back end. Asking makes the kernel load what it has.
    pub(crate) fn probe(self, family: Family) -> Result<(), Error> {
        let program = self.program(family);
        let Err(error) = command::run(program, &["-w", "-t", "nat", "-n", "-L", "POSTROUTING"]) else {
            return Ok(());
        };
        let Error::Command { output, .. } = error else { return Err(error) };
        let module = if family == Family::Ipv4 { "iptable_nat" } else { "ip6table_nat" };
        Err(Error::Unsupported(match self {
            Backend::Legacy => format!(
                "this kernel has no legacy NAT table ({output}); where it is a module, `modprobe {module}` provides it"
            ),
            Backend::NfTables => format!("{program} cannot use the NAT table of this kernel: {output}"),
        }))
    }
}

/// The comment that marks our rules.
pub(crate) fn comment(place: &Place) -> [String; 4] {
    ["-m", "comment", "--comment", &format!("weir:{}", place.tag)].map(str::to_owned)
}

/// Words separated by spaces, as iptables-save prints them.
pub(crate) fn words(text: &str) -> impl Iterator<Item = String> + '_ {
    text.split_whitespace().map(str::to_owned)
}

/// Rules for `nat POSTROUTING`, in the order in which they are met. A port range needs one rule per protocol.
pub(crate) fn masquerade_rules(place: &Place, allocation: &Allocation) -> Vec<Vec<String>> {
    let random = match allocation {
        Allocation { random: true, .. } => " --random",
        Allocation { fully_random: true, .. } => " --random-fully",
        _ => "",
    };
    let rule = |protocol: &str, ports: &str| {
        let matching = format!("-s {} -o {}{protocol}", place.initiator, place.outside_interface);
        let target = format!("-j MASQUERADE{ports}{random}");
        words(&matching).chain(comment(place)).chain(words(&target)).collect()
    };
    let mut rules = Vec::new();
    if let Some(range) = allocation.ports {
        for protocol in ["tcp", "udp"] {
            rules.push(rule(&format!(" -p {protocol}"), &format!(" --to-ports {range}")));
        }
    }
    // iptables takes --random-fully without ports for every protocol.
    rules.push(rule("", ""));
    rules
}

/// Rules for `mangle FORWARD` that clamp the maximum segment size, for both ways.
pub(crate) fn mss_rules(place: &Place, clamp: MssClamp) -> Vec<Vec<String>> {
    let target = match clamp {
        MssClamp::ToPathMtu(false) => return Vec::new(),
        MssClamp::ToPathMtu(true) => "-j TCPMSS --clamp-mss-to-pmtu".to_owned(),
        MssClamp::Size(size) => format!("-j TCPMSS --set-mss {size}"),
    };
    let rule = |from: &str, to: &str| {
        let matching = format!("-i {from} -o {to} -p tcp -m tcp --tcp-flags SYN,RST SYN");
        words(&matching).chain(comment(place)).chain(words(&target)).collect()
    };
    let (inside, outside) = (&place.inside_interface, &place.outside_interface);
    vec![rule(inside, outside), rule(outside, inside)]
}

/// Puts rules at the head of a chain so that they are met in this order.
pub(crate) fn insert(
    journal: &mut Journal,
    program: &str,
    table: &str,
    chain: &str,
    rules: &[Vec<String>],
) -> Result<(), Error> {
    rules.iter().rev().try_for_each(|rule| journal.iptables_rule(program, table, chain, rule))
}

/// Masquerades what the initiator sends out.
pub(crate) fn apply_masquerade(
    backend: Backend,
    place: &Place,
    allocation: &Allocation,
    mss: MssClamp,
    journal: &mut Journal,
) -> Result<(), Error> {
    let program = backend.program(place.family);
    backend.probe(place.family)?;
    insert(journal, program, "nat", "POSTROUTING", &masquerade_rules(place, allocation))?;
    insert(journal, program, "mangle", "FORWARD", &mss_rules(place, mss))
}

/// Rules in a chain of the filter table.
pub(crate) fn rules_of(backend: Backend, family: Family, chain: &str) -> Result<u32, Error> {
    let save = format!("{}-save", backend.program(family));
    let (saved, head) = (command::run(&save, &["-t", "filter"])?, format!("-A {chain} "));
    Ok(saved.lines().filter(|line| line.starts_with(&head)).count() as u32)
}

/// Packets counted by our rules of the NAT table with that target.
pub(crate) fn counter(backend: Backend, place: &Place, target: &str) -> Result<u64, Error> {
    counter_in(backend, place, "nat", target)
}

/// As [`counter`], of any table.
pub(crate) fn counter_in(backend: Backend, place: &Place, table: &str, target: &str) -> Result<u64, Error> {
    let save = format!("{}-save", backend.program(place.family));
    let saved = command::run(&save, &["-c", "-t", table])?;
    Ok(count(&saved, &place.tag, target))
}

/// Sum of the packet counters.
fn count(saved: &str, tag: &str, target: &str) -> u64 {
    let (comment, jump) = (format!("--comment \"weir:{tag}\""), format!("-j {target}"));
    saved
        .lines()
        .filter(|line| line.contains(&comment))
        .filter(|line| line.ends_with(&jump) || line.contains(&format!("{jump} ")))
        .filter_map(packets)
        .sum()
}

/// The packets of a rule that begins with its counters, `[packets:bytes]`.
pub(crate) fn packets(line: &str) -> Option<u64> {
    line.strip_prefix('[')?.split_once(':')?.0.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::tests::{place_v4, place_v6};

    fn text(rules: &[Vec<String>]) -> Vec<String> {
        rules.iter().map(|rule| rule.join(" ")).collect()
    }

    #[test]
    fn masquerade_is_one_rule() {
        let rules = masquerade_rules(&place_v4(), &Allocation { random: true, ..Allocation::default() });
        assert_eq!(
            text(&rules),
            ["-s 198.18.0.2 -o out0 -m comment --comment weir:t1 -j MASQUERADE --random"]
        );
    }

    #[test]
    fn ports_take_a_rule_per_protocol() {
        let allocation = Allocation {
            fully_random: true,
            ports: Some("1024-65535".parse().unwrap()),
            ..Allocation::default()
        };
        assert_eq!(
            text(&masquerade_rules(&place_v6(), &allocation)),
            [
                "-s 2001:2::2 -o out0 -p tcp -m comment --comment weir:t1 -j MASQUERADE --to-ports 1024-65535 --random-fully",
                "-s 2001:2::2 -o out0 -p udp -m comment --comment weir:t1 -j MASQUERADE --to-ports 1024-65535 --random-fully",
                "-s 2001:2::2 -o out0 -m comment --comment weir:t1 -j MASQUERADE --random-fully",
            ]
        );
    }

    #[test]
    fn mss_is_clamped_both_ways() {
        assert_eq!(
            text(&mss_rules(&place_v4(), MssClamp::Size(1300))),
            [
                "-i in0 -o out0 -p tcp -m tcp --tcp-flags SYN,RST SYN -m comment --comment weir:t1 -j TCPMSS --set-mss 1300",
                "-i out0 -o in0 -p tcp -m tcp --tcp-flags SYN,RST SYN -m comment --comment weir:t1 -j TCPMSS --set-mss 1300",
            ]
        );
        assert!(mss_rules(&place_v4(), MssClamp::ToPathMtu(false)).is_empty());
    }

    #[test]
    fn only_our_own_rules_are_counted() {
        let saved = "*nat\n:POSTROUTING ACCEPT [99:9]\n\
            [3:180] -A POSTROUTING -o out0 -m comment --comment \"weir:t1\" -j MASQUERADE --random\n\
            [4:240] -A POSTROUTING -o out0 -m comment --comment \"weir:t1\" -j MASQUERADE\n\
            [50:1] -A POSTROUTING -o out0 -m comment --comment \"weir:t12\" -j MASQUERADE\n\
            [60:1] -A POSTROUTING -o out0 -j MASQUERADE\nCOMMIT\n";
        assert_eq!(count(saved, "t1", "MASQUERADE"), 7);
    }
}
