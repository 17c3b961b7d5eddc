//! The text of a convicted rule as nft itself prints it, where our own leaves something out (the elements of a set without a
//! name). Only a few chains are asked for, sets with a name are not listed, and what takes too long is left as it was.

use std::process::Command;
use std::time::Duration;

use weir_sys::NetNs;
use weir_sys::process::{run_captured, which};

use crate::evidence::{Backend, Rule, RuleVerdict, Ruleset};

/// Chains asked for at most, and how long each may take.
const CHAINS: usize = 4;
const PATIENCE: Duration = Duration::from_secs(1);

/// Completes the texts of rules that threw something away. Runs in the namespace.
pub(super) fn complete(rules: &mut Ruleset) {
    let lacks = |r: &Rule| r.backend == Backend::Nft && r.text.contains("{ ... }") && threw_away(r);
    let mut chains: Vec<[String; 3]> = Vec::new();
    for rule in rules.rules.iter().filter(|r| lacks(r)) {
        let chain = [rule.family.clone(), rule.table.clone(), rule.chain.clone()];
        // nft reads its arguments as commands, and a name can be anything.
        if chains.len() < CHAINS && !chains.contains(&chain) && chain.iter().all(|name| is_plain(name)) {
            chains.push(chain);
        }
    }
    if chains.is_empty() || which("nft").is_none() {
        return;
    }
    for chain in chains {
        let Some(listing) = list(&chain) else { return };
        let [family, table, name] = &chain;
        for rule in &mut rules.rules {
            if rule.family == *family && rule.table == *table && rule.chain == *name {
                rule.text = told(&listing, rule.handle).unwrap_or_else(|| rule.text.clone());
            }
        }
    }
}

fn threw_away(rule: &Rule) -> bool {
    let counted = rule.packets.is_some_and(|p| p.change() > 0);
    rule.decided.0 > 0 || counted && matches!(rule.verdict, RuleVerdict::Drop | RuleVerdict::Reject)
}

fn is_plain(name: &str) -> bool {
    let first = name.bytes().next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_');
    first && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"_./-".contains(&b))
}

fn list(chain: &[String; 3]) -> Option<String> {
    let mut command = Command::new("nft");
    command.args(["-a", "-t", "list", "chain"]).args(chain);
    // Programs are started by a thread of their own, which is not in this namespace.
    NetNs::current().ok()?.enter_on_spawn(&mut command);
    let output = run_captured(command, PATIENCE).ok()?;
    output.status.success().then(|| output.stdout_text())
}

/// Returns the rule with that handle, without its counters and comment, which are reported elsewhere.
fn told(listing: &str, handle: u64) -> Option<String> {
    let end = format!(" # handle {handle}");
    let line = listing.lines().find_map(|l| l.trim().strip_suffix(&end))?;
    let line = line.split_once(" comment \"").map_or(line, |(rule, _)| rule);
    let words: Vec<&str> = line.split(' ').collect();
    let mut kept: Vec<&str> = Vec::new();
    let mut at = 0;
    while let Some(word) = words.get(at) {
        kept.push(word);
        // `counter packets 5 bytes 300`
        let counts = *word == "counter"
            && words.get(at + 1) == Some(&"packets")
            && words.get(at + 3) == Some(&"bytes");
        at += if counts { 5 } else { 1 };
    }
    Some(kept.join(" "))
}

#[cfg(test)]
mod tests {
    use weir_sys::ProcRoot;

    use super::super::tests::{lacks, shell};
    use super::*;
    use crate::evidence::Delta;

    #[test]
    fn a_rule_is_told_without_its_numbers() {
        let listing = "table inet f {\n chain c { # handle 1\n  tcp dport { 22, 80 } counter packets 5 bytes 300 drop comment \"no\" # handle 7\n  accept # handle 17\n";
        assert_eq!(told(listing, 7).unwrap(), "tcp dport { 22, 80 } counter drop");
        assert_eq!(told(listing, 17).unwrap(), "accept");
        assert_eq!(told(listing, 8), None);
    }

    #[test]
    fn root_what_nft_prints_replaces_what_was_left_out() {
        if lacks(&["nft"]) {
            return;
        }
        let ns = NetNs::create().unwrap();
        shell(
            &ns,
            "nft -f - <<'END'
            table inet f { chain c { type filter hook forward priority 0;
                tcp dport { 22, 80-90 } counter drop
                udp dport { 53, 54 } counter drop
            }
            }
END",
        );
        let rules = ns
            .run(|| {
                let mut rules = super::super::read(&ProcRoot::new("/")).unwrap();
                rules.rules[0].packets = Some(Delta { before: 0, after: 4 });
                complete(&mut rules);
                rules.rules
            })
            .unwrap();
        assert_eq!(rules[0].text, "tcp dport { 22, 80-90 } counter drop");
        // Asked for with its chain, although it threw nothing away.
        assert_eq!(rules[1].text, "udp dport { 53, 54 } counter drop");
    }
}
