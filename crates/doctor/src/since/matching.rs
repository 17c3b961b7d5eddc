//! Which finding of one report is which of the other.
//!
//! By cause, place and object; never by the namespace's inode, which another boot gives to another namespace. Only numbers that
//! change by themselves may differ: process ids, handles of rules, ports that the kernel chose. Any other difference makes another
//! object: a rule that drops port 443 instead of port 80 is new, however few packets it drops.

use std::collections::{BTreeMap, BTreeSet};

use weir_text::order;

use crate::comparison::Harm;
use crate::diagnosis::Diagnosis;
use crate::finding::Finding;

/// Words before a number that names a thing until it restarts.
const BEFORE_PASSING_NUMBERS: [&str; 6] = ["pid ", "process ", "handle ", "descriptor ", "rule ", "net:["];

/// From here on the kernel chooses ports by itself (`net.ipv4.ip_local_port_range`).
const FIRST_CHOSEN_PORT: u32 = 32_768;

/// A finding in both reports, or in one.
#[derive(Debug)]
pub(super) struct Pair {
    pub(super) cause: String,
    pub(super) place: String,
    pub(super) object: String,
    pub(super) before: Option<Harm>,
    pub(super) after: Option<Harm>,
}

/// Earlier names of places, and their names now. Equal names are left out.
pub(super) type Renamed<'a> = BTreeMap<&'a str, &'a str>;

/// The places that differ by passing numbers alone. One that both reports have is itself, and of several alike none is taken.
pub(super) fn renamed<'a>(before: &'a Diagnosis, now: &'a Diagnosis) -> Renamed<'a> {
    let (old, new) = (places(before), places(now));
    let gone: Vec<&str> = old.difference(&new).copied().collect();
    let came: Vec<&str> = new.difference(&old).copied().collect();
    let alike = |name: &str, of: &[&'a str]| -> Option<&'a str> {
        let mut found = of.iter().filter(|other| mask(other) == mask(name));
        found.next().copied().filter(|_| found.next().is_none())
    };
    let only = |name: &&&str| alike(name, &gone).is_some();
    gone.iter().filter(only).filter_map(|name| Some((*name, alike(name, &came)?))).collect()
}

fn places(diagnosis: &Diagnosis) -> BTreeSet<&str> {
    let found = diagnosis.findings.iter().map(|f| f.place.as_str());
    order::set(diagnosis.balance.iter().map(|b| b.place.as_str()).chain(found))
}

type Key = (String, String, String);

/// Every finding of either report once.
pub(super) fn pairs(before: &Diagnosis, now: &Diagnosis, renamed: &Renamed<'_>) -> Vec<Pair> {
    let mut old = harms(before, renamed);
    let mut new = harms(now, &Renamed::new());
    let both: Vec<Key> = old.keys().filter(|key| new.contains_key(*key)).cloned().collect();
    let mut pairs: Vec<Pair> =
        both.into_iter().map(|key| pair(old.remove(&key), new.remove(&key), key)).collect();
    let (old_alike, new_alike) = (alike(&old), alike(&new));
    for (masked, keys) in old_alike {
        let ([key], Some([other])) = (keys.as_slice(), new_alike.get(&masked).map(Vec::as_slice)) else {
            continue;
        };
        pairs.push(pair(old.remove(key), new.remove(other), other.clone()));
    }
    pairs.extend(old.into_iter().map(|(key, harm)| pair(Some(harm), None, key)));
    pairs.extend(new.into_iter().map(|(key, harm)| pair(None, Some(harm), key)));
    pairs
}

fn pair(before: Option<Harm>, after: Option<Harm>, (cause, place, object): Key) -> Pair {
    Pair { cause, place, object, before, after }
}

/// Keys by their form without passing numbers.
fn alike(harms: &BTreeMap<Key, Harm>) -> BTreeMap<Key, Vec<Key>> {
    let mut by_mask: BTreeMap<Key, Vec<Key>> = BTreeMap::new();
    for key in harms.keys() {
        by_mask.entry((key.0.clone(), key.1.clone(), mask(&key.2))).or_default().push(key.clone());
    }
    by_mask
}

/// The harm of each thing; findings of one cause about one thing are one.
fn harms(diagnosis: &Diagnosis, renamed: &Renamed<'_>) -> BTreeMap<Key, Harm> {
    let mut harms: BTreeMap<Key, Harm> = BTreeMap::new();
    for finding in &diagnosis.findings {
        let place = renamed.get(finding.place.as_str()).copied().unwrap_or(&finding.place);
        let key = (finding.cause.clone(), place.to_owned(), finding.object.clone());
        let harm = harm(finding, diagnosis.window_s);
        harms
            .entry(key)
            .and_modify(|sum| {
                sum.severity = sum.severity.max(harm.severity);
                sum.packets = sum.packets.saturating_add(harm.packets);
                sum.packets_per_s += harm.packets_per_s;
                sum.impact = sum.impact.max(harm.impact);
            })
            .or_insert(harm);
    }
    harms
}

fn harm(finding: &Finding, window_s: f64) -> Harm {
    Harm {
        severity: finding.severity,
        packets: finding.explains_packets,
        packets_per_s: finding.explains_packets as f64 / window_s,
        impact: finding.impact,
    }
}

/// The text with `*` in place of each passing number.
fn mask(text: &str) -> String {
    let mut masked = String::new();
    let mut rest = text;
    while let Some(from) = rest.find(|c: char| c.is_ascii_digit()) {
        let to = rest[from..].find(|c: char| !c.is_ascii_digit()).map_or(rest.len(), |n| from + n);
        let done = text.len() - rest.len() + from;
        let passing = passes(&text[..done], &rest[from..to], &rest[to..]);
        masked.push_str(&rest[..from]);
        masked.push_str(if passing { "*" } else { &rest[from..to] });
        rest = &rest[to..];
    }
    masked + rest
}

fn passes(before: &str, number: &str, after: &str) -> bool {
    if BEFORE_PASSING_NUMBERS.iter().any(|word| before.ends_with(word)) {
        return true;
    }
    // No group of an IPv6 address has five digits.
    let port =
        number.len() == 5 && number.parse().is_ok_and(|n: u32| (FIRST_CHOSEN_PORT..65_536).contains(&n));
    let of_address = |c: char| c.is_ascii_alphanumeric() || c == ']' || c == '*';
    port && before.strip_suffix(':').is_some_and(|address| address.ends_with(of_address))
        && !after.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '.' || c == ':')
}

#[cfg(test)]
mod tests {
    use super::mask;

    #[test]
    fn only_numbers_that_change_by_themselves_are_masked() {
        for (text, masked) in [
            ("0.0.0.0:7100 of python3 (pid 2302)", "0.0.0.0:7100 of python3 (pid *)"),
            ("198.18.0.1:40123 to 198.18.0.2:443", "198.18.0.1:* to 198.18.0.2:443"),
            ("[2001:db8::2]:61000 of nginx", "[2001:db8::2]:* of nginx"),
            ("rule ip t c handle 4: udp dport 40000 drop", "rule ip t c handle *: udp dport 40000 drop"),
            ("rule 3 of ip filter INPUT: -p tcp", "rule * of ip filter INPUT: -p tcp"),
            ("a namespace (net:[4026532200])", "a namespace (net:[*])"),
            ("process 77", "process *"),
            ("2001:db8::3:1", "2001:db8::3:1"),
            ("eth0: é 5", "eth0: é 5"),
            ("10.0.0.1:32767", "10.0.0.1:32767"),
            ("", ""),
        ] {
            assert_eq!(mask(text), masked);
        }
    }
}
