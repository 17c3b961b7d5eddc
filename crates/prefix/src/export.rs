//! Files that other programs load. Each text replaces a set in one step, so the old set never disappears before the new one is
//! present.

use std::fmt::Write;

use crate::address::Address;
use crate::ranges::Ranges;

/// Longest name of a set (`IPSET_MAXNAMELEN` is 32 with the closing zero; ours gets a digit for the family, and a letter more while it
/// is swapped).
const LONGEST_NAME: usize = 29;

/// The name of a set, table or file that every program here takes: a letter, then letters, digits, `_` and `-`.
///
/// # Errors
/// A message with the expected form.
pub fn check_name(name: &str) -> Result<(), String> {
    let mut bytes = name.bytes();
    let first = bytes.next().is_some_and(|b| b.is_ascii_alphabetic());
    let rest = bytes.all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-');
    if first && rest && name.len() <= LONGEST_NAME {
        return Ok(());
    }
    Err(format!("name `{name}`: expected a letter, then letters, digits, _ and -, at most {LONGEST_NAME}"))
}

/// A file for `nft -f`: a table `inet NAME` with the interval sets `v4` and `v6`, made if they are not there, emptied and filled
/// in one transaction. Rules of the table stay.
pub fn nft(name: &str, v4: &Ranges<u32>, v6: &Ranges<u128>) -> String {
    let mut text = format!("add table inet {name}\n");
    nft_set(&mut text, name, "v4", "ipv4_addr", v4);
    nft_set(&mut text, name, "v6", "ipv6_addr", v6);
    text
}

fn nft_set<A: Address>(text: &mut String, table: &str, set: &str, kind: &str, ranges: &Ranges<A>) {
    let _ = writeln!(text, "add set inet {table} {set} {{ type {kind}; flags interval; }}");
    let _ = writeln!(text, "flush set inet {table} {set}");
    if ranges.is_empty() {
        return;
    }
    let _ = writeln!(text, "add element inet {table} {set} {{");
    for element in ranges.elements() {
        let _ = writeln!(text, "  {element},");
    }
    text.push_str("}\n");
}

/// A file for `ipset restore`: the sets `NAME4` and `NAME6` of type `hash:net` are filled under another name, swapped in, and
/// the old content is destroyed. A load that was interrupted, wherever, is made good by the next one.
pub fn ipset(name: &str, v4: &Ranges<u32>, v6: &Ranges<u128>) -> String {
    let mut text = String::new();
    ipset_set(&mut text, &format!("{name}4"), "inet", v4);
    ipset_set(&mut text, &format!("{name}6"), "inet6", v6);
    text
}

fn ipset_set<A: Address>(text: &mut String, set: &str, family: &str, ranges: &Ranges<A>) {
    let prefixes: Vec<_> = ranges.prefixes().filter(|p| p.length > 0).collect();
    let everything = ranges.prefixes().any(|p| p.length == 0);
    // hash:net has no /0: the two halves are the same.
    let count = prefixes.len() + if everything { 2 } else { 0 };
    // The least that the kernel takes is 64; more elements than buckets make it grow while it loads.
    let hash = count.next_power_of_two().max(64);
    // A set that is there is the same one only with the same bound (mtype_same_set, net/netfilter/ipset/ip_set_hash_gen.h), and
    // swapping brings the bound of the other one along. So it is always the same, the greatest; it takes no memory.
    let options = format!("hash:net family {family} maxelem {}", u32::MAX);
    let _ = writeln!(text, "create {set} {options} -exist");
    // A load that was killed leaves this one behind, half full, or with the old content behind the swap. It has the same bound, and
    // the number of buckets may differ.
    let _ = writeln!(text, "create {set}- {options} hashsize {hash} -exist");
    let _ = writeln!(text, "flush {set}-");
    if everything {
        let half = A::BITS - 1;
        let _ = writeln!(text, "add {set}- {}/1", A::FIRST.text());
        let upper = A::LAST.block_start(half);
        let _ = writeln!(text, "add {set}- {}/1", upper.text());
    }
    for prefix in prefixes {
        let _ = writeln!(text, "add {set}- {prefix}");
    }
    let _ = writeln!(text, "swap {set}- {set}");
    let _ = writeln!(text, "destroy {set}-");
}

/// One prefix a line.
pub fn cidr(v4: &Ranges<u32>, v6: &Ranges<u128>) -> String {
    let v4 = v4.prefixes().map(|p| format!("{p}\n"));
    v4.chain(v6.prefixes().map(|p| format!("{p}\n"))).collect()
}

/// One range a line, as `FIRST-LAST`.
pub fn ranges(v4: &Ranges<u32>, v6: &Ranges<u128>) -> String {
    fn lines<A: Address>(ranges: &Ranges<A>) -> impl Iterator<Item = String> + '_ {
        ranges.as_slice().iter().map(|(first, last)| format!("{}-{}\n", first.text(), last.text()))
    }
    lines(v4).chain(lines(v6)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn some() -> (Ranges<u32>, Ranges<u128>) {
        (Ranges::new([(0x0a00_0000, 0x0a00_0009), (7, 7)]), Ranges::new([(1, 1)]))
    }

    #[test]
    fn nft_replaces_in_one_transaction() {
        let (v4, v6) = some();
        assert_eq!(
            nft("jp", &v4, &v6),
            "add table inet jp\n\
             add set inet jp v4 { type ipv4_addr; flags interval; }\nflush set inet jp v4\n\
             add element inet jp v4 {\n  0.0.0.7,\n  10.0.0.0-10.0.0.9,\n}\n\
             add set inet jp v6 { type ipv6_addr; flags interval; }\nflush set inet jp v6\n\
             add element inet jp v6 {\n  ::1,\n}\n"
        );
    }

    #[test]
    fn ipset_fills_another_set_and_swaps() {
        let (v4, v6) = some();
        let text = ipset("jp", &v4, &v6);
        let lines: Vec<&str> = text.lines().take(8).collect();
        assert_eq!(
            lines,
            [
                "create jp4 hash:net family inet maxelem 4294967295 -exist",
                "create jp4- hash:net family inet maxelem 4294967295 hashsize 64 -exist",
                "flush jp4-",
                "add jp4- 0.0.0.7",
                "add jp4- 10.0.0.0/29",
                "add jp4- 10.0.0.8/31",
                "swap jp4- jp4",
                "destroy jp4-"
            ]
        );
    }

    #[test]
    fn ipset_takes_every_address_as_two_halves() {
        let all = ipset("x", &Ranges::all(), &Ranges::all());
        let added: Vec<&str> = all.lines().filter(|l| l.starts_with("add ")).collect();
        assert_eq!(added, ["add x4- 0.0.0.0/1", "add x4- 128.0.0.0/1", "add x6- ::/1", "add x6- 8000::/1"]);
    }

    #[test]
    fn ipset_begins_with_a_bucket_for_each_prefix() {
        for (prefixes, buckets) in [(0, 64), (64, 64), (65, 128), (129, 256)] {
            // Every other address: none of them make up a prefix together.
            let v4 = Ranges::new((0..prefixes).map(|i| (2 * i, 2 * i)));
            let text = ipset("x", &v4, &Ranges::default());
            assert!(text.contains(&format!(
                "create x4- hash:net family inet maxelem 4294967295 hashsize {buckets} "
            )));
        }
    }

    #[test]
    fn lists_are_written_as_they_are_read() {
        let (v4, v6) = some();
        assert_eq!(cidr(&v4, &v6), "0.0.0.7\n10.0.0.0/29\n10.0.0.8/31\n::1\n");
        assert_eq!(ranges(&v4, &v6), "0.0.0.7-0.0.0.7\n10.0.0.0-10.0.0.9\n::1-::1\n");
    }

    #[test]
    fn names_that_would_break_the_text_are_refused() {
        assert!(check_name("jp-list_1").is_ok() && check_name(&"a".repeat(29)).is_ok());
        for name in ["", "1a", "a b", "a;b", "a\n", "-a", &"a".repeat(30)] {
            assert!(check_name(name).is_err(), "{name}");
        }
    }
}
