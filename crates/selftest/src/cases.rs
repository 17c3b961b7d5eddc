//! The cases that are tried.

use weir_doctor::causes;

use crate::case::{Case, Kind};
use crate::healthy;

/// Pairs of causes that may come together: each changes other things, and neither hides the other by its nature.
const PAIRS: &[(&str, &str)] = &[
    ("conntrack-full/tcp-held", "nft-rule-drop/default"),
    ("snat-ports-exhausted/udp", "udp-buffer-full/default"),
    ("nft-rule-drop/counted", "blackhole-route/blackhole"),
    ("accept-queue-full/default", "nft-rule-drop/default"),
    ("martian-source/own", "blackhole-route/unreachable"),
    ("no-route/ipv4", "udp-buffer-full/default"),
    ("syn-backlog-full/default", "martian-source/loopback"),
    ("conntrack-invalid-dropped/forgotten", "blackhole-route/prohibit"),
    ("neighbour-unresolved/host", "rule-limit/default"),
    ("fragments-lost/receiver", "accept-queue-full/default"),
];

/// All cases; with `only`, those that have one of the words as their name, or, if that is no case's name, as a part of it.
pub fn cases(only: &[String]) -> Vec<Case> {
    let mut cases = Vec::new();
    for cause in causes::all() {
        for recipe in (cause.recipes)() {
            cases.push(Case {
                name: format!("{}/{}", cause.id, recipe.name),
                kind: Kind::Cause,
                expected: vec![(cause.id, recipe.at)],
                recipes: vec![recipe],
            });
        }
    }
    cases.extend(PAIRS.iter().filter_map(|(a, b)| pair(&cases, a, b)).collect::<Vec<_>>());
    cases.extend(healthy::loads());
    let is_name: Vec<bool> = only.iter().map(|word| cases.iter().any(|case| case.name == *word)).collect();
    let meant = |case: &Case, (word, is_name): (&String, &bool)| {
        if *is_name { case.name == *word } else { case.name.contains(word.as_str()) }
    };
    cases.retain(|case| only.is_empty() || only.iter().zip(&is_name).any(|word| meant(case, word)));
    cases
}

/// Two cases in one lab.
fn pair(cases: &[Case], a: &str, b: &str) -> Option<Case> {
    let find = |name: &str| cases.iter().find(|c| c.name == name);
    let (a, b) = (find(a)?, find(b)?);
    Some(Case {
        name: format!("{} + {}", a.name, b.name),
        kind: Kind::Pair,
        expected: [a.expected.as_slice(), b.expected.as_slice()].concat(),
        recipes: [a.recipes.as_slice(), b.recipes.as_slice()].concat(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_every_pair_exists() {
        let all = cases(&[]);
        for case in &all {
            assert_eq!(all.iter().filter(|c| c.name == case.name).count(), 1, "{}", case.name);
        }
        assert_eq!(all.iter().filter(|c| c.kind == Kind::Pair).count(), PAIRS.len());
    }

    #[test]
    fn a_whole_name_means_that_case_alone_and_a_part_of_one_all_that_have_it() {
        let names = |words: &[&str]| -> Vec<String> {
            let words: Vec<String> = words.iter().map(|w| (*w).to_owned()).collect();
            cases(&words).into_iter().map(|c| c.name).collect()
        };
        assert_eq!(names(&["nft-rule-drop/counted"]), ["nft-rule-drop/counted"]);
        let with_part = names(&["nft-rule-drop/count"]);
        assert_eq!(with_part, ["nft-rule-drop/counted", "nft-rule-drop/counted + blackhole-route/blackhole"]);
        assert_eq!(names(&["no such case"]), [""; 0]);
        assert_eq!(names(&["no such case", "healthy-idle/routed"]), ["healthy-idle/routed"]);
    }
}
