//! The packet-filter rules of a host as lines that can be counted and compared.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use weir_sys::process::which;

use crate::{Error, command};

/// Rules without counters and handles: each line with the table and chain that it is in, and how often it occurs.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Snapshot(BTreeMap<String, i64>);

/// Between a container and what it contains.
const IN: &str = " > ";

impl Snapshot {
    /// The rules in the network namespace of the calling thread. Content of sets is left out: no variant touches it, and
    /// it may be large and change by itself. Each listing may take as long as `limit`.
    pub(crate) fn take(limit: Duration) -> Result<Self, Error> {
        let mut snapshot = Snapshot::default();
        if which("nft").is_some() {
            snapshot.add_nft(&command::run_within("nft", &["-s", "-t", "list", "ruleset"], limit)?);
        }
        for program in ["iptables-nft-save", "ip6tables-nft-save"] {
            if which(program).is_some() {
                snapshot.add_saved(program, &command::run_within(program, &[], limit)?);
            }
        }
        for (program, names) in
            [("iptables-legacy-save", "ip_tables_names"), ("ip6tables-legacy-save", "ip6_tables_names")]
        {
            // Without the file, or with nothing in it, this namespace has no legacy table, and asking might load one.
            let names = std::fs::read_to_string(format!("/proc/thread-self/net/{names}")).unwrap_or_default();
            if !names.is_empty() && which(program).is_some() {
                snapshot.add_saved(program, &command::run_within(program, &[], limit)?);
            }
        }
        Ok(snapshot)
    }

    fn add(&mut self, line: String) {
        *self.0.entry(line).or_default() += 1;
    }

    fn add_nft(&mut self, listing: &str) {
        let mut path: Vec<&str> = vec!["nft"];
        for line in listing.lines().map(str::trim).filter(|l| !l.is_empty()) {
            if line == "}" {
                path.pop();
            } else if let Some(head) = line.strip_suffix(" {") {
                path.push(head);
                self.add(path.join(IN));
            } else {
                self.add(format!("{}{IN}{line}", path.join(IN)));
            }
        }
    }

    fn add_saved(&mut self, program: &str, saved: &str) {
        let mut table = "";
        for line in saved.lines().map(str::trim) {
            if let Some(name) = line.strip_prefix('*') {
                table = name;
            } else if let Some(chain) = line.strip_prefix(':') {
                // `:INPUT ACCEPT [0:0]`: a built-in chain as it is by default says nothing; nft lists it if it is there.
                let chain = chain.rsplit_once(" [").map_or(chain, |(chain, _)| chain);
                if !chain.ends_with(" ACCEPT") {
                    self.add(format!("{program}{IN}{table}{IN}:{chain}"));
                }
            } else if line.starts_with("-A ") {
                self.add(format!("{program}{IN}{table}{IN}{line}"));
            }
        }
    }

    /// Self and what came from `after` to `met`.
    pub(crate) fn plus_changes(&self, after: &Snapshot, met: &Snapshot) -> Snapshot {
        let mut sum = self.0.clone();
        for (line, n) in &met.0 {
            *sum.entry(line.clone()).or_default() += n;
        }
        for (line, n) in &after.0 {
            *sum.entry(line.clone()).or_default() -= n;
        }
        // A count below zero means that another program removed a line of weir's.
        sum.retain(|_, n| *n > 0);
        Snapshot(sum)
    }

    /// Returns the difference from the expected snapshot, as a diff; `None` if they are equal. Lines that `may_go` selects may be
    /// missing.
    pub(crate) fn difference(&self, expected: &Snapshot, may_go: impl Fn(&str) -> bool) -> Option<String> {
        let extra = self.lines_missing_in(expected, "+");
        // A table or chain of weir's stays while another program's rule is in it.
        let extra = extra.into_iter().filter(|line| !expected.has_content_of(&line[1..]));
        let lines: Vec<String> = self.missing_from(expected, may_go).into_iter().chain(extra).collect();
        (!lines.is_empty()).then(|| lines.join("\n"))
    }

    /// Returns the lines of an older snapshot that are missing in this one, except those that `may_go` selects; `None` if no line
    /// is missing.
    pub(crate) fn missing_from(&self, older: &Snapshot, may_go: impl Fn(&str) -> bool) -> Option<String> {
        let mut lines = older.lines_missing_in(self, "-");
        lines.retain(|line| !may_go(&line[1..]));
        (!lines.is_empty()).then(|| lines.join("\n"))
    }

    fn lines_missing_in(&self, other: &Snapshot, sign: &str) -> Vec<String> {
        let absent = |(line, n): &(&String, &i64)| other.0.get(*line).copied().unwrap_or(0) < **n;
        self.0.iter().filter(absent).map(|(line, _)| format!("{sign}{line}")).collect()
    }

    /// True if something lies in that container; a base chain's own line (`type nat hook ...`) belongs to its chain.
    fn has_content_of(&self, line: &str) -> bool {
        let container = match line.rsplit_once(IN) {
            Some((container, last)) if last.starts_with("type ") => container,
            _ => line,
        };
        let inside = format!("{container}{IN}");
        self.0.keys().any(|l| l.starts_with(&inside))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nft(listing: &str) -> Snapshot {
        let mut snapshot = Snapshot::default();
        snapshot.add_nft(listing);
        snapshot
    }

    #[test]
    fn root_a_listing_ends_at_its_limit() {
        if weir_sys::privilege::test_needs_root() {
            return;
        }
        if which("nft").is_none() {
            println!("SKIP: nft is not installed");
            return;
        }
        let error = Snapshot::take(Duration::ZERO).unwrap_err().to_string();
        assert!(error.contains("list ruleset") && error.contains("still running"), "{error}");
    }

    const THEIRS: &str = "table ip theirs {\n\tchain c {\n\t\ttcp dport 22 accept\n\t}\n}\n";
    const OURS: &str = "table ip weir_x {\n\tchain c {\n\t\tcounter\n\t}\n}\n";

    #[test]
    fn lines_carry_their_table_and_chain() {
        let keys: Vec<_> = nft(THEIRS).0.into_keys().collect();
        assert_eq!(
            keys,
            [
                "nft > table ip theirs",
                "nft > table ip theirs > chain c",
                "nft > table ip theirs > chain c > tcp dport 22 accept"
            ]
        );
    }

    #[test]
    fn saved_rules_lose_counters_and_defaults() {
        let mut snapshot = Snapshot::default();
        snapshot.add_saved(
            "iptables-nft-save",
            "# comment\n*filter\n:INPUT ACCEPT [7:8]\n:FORWARD DROP [1:2]\n:DOCKER - [0:0]\n-A FORWARD -j DOCKER\nCOMMIT\n",
        );
        let keys: Vec<_> = snapshot.0.into_keys().collect();
        assert_eq!(
            keys,
            [
                "iptables-nft-save > filter > -A FORWARD -j DOCKER",
                "iptables-nft-save > filter > :DOCKER -",
                "iptables-nft-save > filter > :FORWARD DROP"
            ]
        );
    }

    #[test]
    fn what_others_do_in_between_is_expected_and_what_we_leave_is_not() {
        let before = Snapshot::default();
        let after = nft(OURS);
        let met = nft(&format!("{OURS}{THEIRS}"));
        let expected = before.plus_changes(&after, &met);
        assert_eq!(expected, nft(THEIRS));
        assert_eq!(nft(THEIRS).difference(&expected, |_| false), None);
        assert!(
            met.difference(&expected, |_| false)
                .unwrap()
                .contains("+nft > table ip weir_x > chain c > counter")
        );
        assert!(
            before
                .difference(&expected, |_| false)
                .unwrap()
                .contains("-nft > table ip theirs > chain c > tcp dport 22")
        );
    }

    #[test]
    fn a_chain_that_others_use_may_stay() {
        let base = "type nat hook postrouting priority srcnat; policy accept;";
        let before = Snapshot::default();
        let after = nft(&format!("table ip nat {{\nchain POST {{\n{base}\nours\n}}\n}}\n"));
        let met = nft(&format!("table ip nat {{\nchain POST {{\n{base}\nours\ntheirs\n}}\n}}\n"));
        let expected = before.plus_changes(&after, &met);
        let theirs = nft(&format!("table ip nat {{\nchain POST {{\n{base}\ntheirs\n}}\n}}\n"));
        assert_eq!(theirs.difference(&expected, |_| false), None);
        let empty = nft(&format!("table ip nat {{\nchain POST {{\n{base}\n}}\n}}\n"));
        assert!(empty.difference(&before, |_| false).is_some(), "an empty chain of ours must not stay");
    }
}
