//! Stacks with how often each was seen, and what a profile says of them.

use std::cmp::Reverse;
use std::collections::HashMap;

use weir_record::profile::MOST_FUNCTIONS;
use weir_record::{Calls, FunctionSamples, PartSamples, Profile};
use weir_sys::ProcRoot;
use weir_sys::kallsyms::Symbols;
use weir_text::order;

use super::parts::{Owner, Part, in_hook, owner};

/// Different stacks that are kept; a kernel under test traffic shows a few hundred.
const MOST_STACKS: usize = 1 << 14;

/// Addresses whose function is remembered, and addresses without one, at most.
const MOST_ADDRESSES: usize = 1 << 14;

/// Calls in the record's tree, at most.
const MOST_CALLS: usize = 1000;

/// Share of the gateway's samples whose stacks are recorded whole, if [`MOST_CALLS`] are enough for that.
const COVERED: f64 = 0.99;

/// A function by its number: in the list of symbols, or, from [`UNKNOWN`] on, in the list of addresses without one.
type Function = u32;

const UNKNOWN: Function = 1 << 31;

/// The samples so far.
pub(super) struct Stacks {
    symbols: Symbols,
    /// Functions of addresses seen before, to look up each address only once.
    known: HashMap<u64, Function>,
    /// Code that appeared after the symbols were read, such as BPF programs.
    unknown: Vec<u64>,
    /// From the innermost function to the outermost.
    counts: HashMap<Box<[Function]>, u64>,
    refused: u64,
    scratch: Vec<Function>,
}

impl Stacks {
    pub(super) fn new(symbols: Symbols) -> Self {
        Stacks {
            symbols,
            known: HashMap::new(),
            unknown: Vec::new(),
            counts: HashMap::new(),
            refused: 0,
            scratch: Vec::new(),
        }
    }

    /// Counts one sample. The chain begins with `ip`; without a chain, `ip` alone is the stack.
    pub(super) fn add(&mut self, ip: u64, chain: &[u64]) {
        let mut stack = std::mem::take(&mut self.scratch);
        stack.clear();
        stack.push(self.function(ip));
        // An address of return follows its call, and a call that never returns may be the last thing in its function.
        stack.extend(chain.iter().skip(1).map(|address| self.function(address.saturating_sub(1))));
        if let Some(count) = self.counts.get_mut(stack.as_slice()) {
            *count += 1;
        } else if self.counts.len() < MOST_STACKS {
            self.counts.insert(stack.as_slice().into(), 1);
        } else {
            self.refused += 1;
        }
        self.scratch = stack;
    }

    /// Samples that were not counted because there were too many different stacks.
    pub(super) fn refused(&self) -> u64 {
        self.refused
    }

    fn function(&mut self, address: u64) -> Function {
        if let Some(function) = self.known.get(&address) {
            return *function;
        }
        let function = match self.symbols.find(address) {
            Some(number) => number as Function,
            None if self.unknown.len() < MOST_ADDRESSES => {
                self.unknown.push(address);
                UNKNOWN + self.unknown.len() as Function - 1
            }
            None => Function::MAX,
        };
        if self.known.len() >= MOST_ADDRESSES {
            self.known.clear();
        }
        self.known.insert(address, function);
        function
    }

    /// The profile; times and losses are the caller's to fill in.
    pub(super) fn finish(self, root: &ProcRoot, shared: bool) -> Profile {
        // Modules or programs loaded after the first read of the symbols have names by now.
        let later = if self.unknown.is_empty() { None } else { Symbols::read(root).ok() };
        let unknown: Vec<String> = self
            .unknown
            .iter()
            .map(|address| {
                let symbols = later.as_ref();
                symbols
                    .and_then(|s| Some(known_name(s.name(s.find(*address)?))))
                    .unwrap_or_else(|| "[unknown]".into())
            })
            .collect();
        let mut names: HashMap<Function, String> = HashMap::new();
        for function in self.counts.keys().flat_map(|stack| stack.iter()) {
            names.entry(*function).or_insert_with(|| match function.checked_sub(UNKNOWN) {
                None => known_name(self.symbols.name(*function as usize)),
                Some(at) => unknown.get(at as usize).cloned().unwrap_or_else(|| "[unknown]".into()),
            });
        }
        let named = |stack: &[Function]| stack.iter().rev().map(|f| names[f].as_str()).collect();
        summary(self.counts.iter().map(|(stack, count)| (named(stack), *count)), shared)
    }
}

/// A function's name without what makes it no longer the name in the source: suffixes of the compiler (`.isra.0`, `.cold`), and
/// the digest in the names of BPF programs (`bpf_prog_6deef7357e7b4530_name`).
fn known_name(symbol: &str) -> String {
    if let Some(rest) = symbol.strip_prefix("bpf_prog_") {
        return match rest.split_once('_') {
            Some((digest, name)) if digest.len() == 16 && digest.bytes().all(|b| b.is_ascii_hexdigit()) => {
                format!("bpf_prog_{name}")
            }
            _ => symbol.to_owned(),
        };
    }
    symbol.split('.').next().unwrap_or(symbol).to_owned()
}

/// Summarizes stacks, given from the outermost function to the innermost, for gateway and tester.
pub(super) fn summary<'a>(stacks: impl Iterator<Item = (Vec<&'a str>, u64)>, shared: bool) -> Profile {
    let mut profile = Profile::default();
    let mut parts = [0u64; Part::ALL.len()];
    let mut paths: HashMap<Vec<&str>, u64> = HashMap::new();
    for (mut stack, count) in stacks {
        let owner = owner(&stack, shared);
        if owner == Owner::Idle {
            continue;
        }
        profile.samples += count;
        match owner {
            Owner::Gateway { part, from } => {
                let path = stack.split_off(from);
                profile.gateway_samples += count;
                profile.hook_samples += if in_hook(&path) { count } else { 0 };
                parts[part as usize] += count;
                *paths.entry(path).or_default() += count;
            }
            Owner::Tester => profile.tester_samples += count,
            Owner::Idle | Owner::Other => {}
        }
    }
    let seen = Part::ALL.into_iter().filter(|part| parts[*part as usize] > 0);
    profile.parts =
        seen.map(|part| PartSamples { name: part.words().into(), samples: parts[part as usize] }).collect();
    // Equal counts in the order of names: the same samples make the same record.
    let mut paths: Vec<(Vec<&str>, u64)> = paths.into_iter().collect();
    order::by(&mut paths, |a, b| (Reverse(a.1), &a.0).cmp(&(Reverse(b.1), &b.0)));
    profile.functions = functions(&paths);
    profile.calls = calls(&paths, profile.gateway_samples);
    profile
}

/// The functions with the most own samples, and those with the most in all.
fn functions(paths: &[(Vec<&str>, u64)]) -> Vec<FunctionSamples> {
    let mut all: HashMap<&str, (u64, u64)> = HashMap::new();
    for (path, count) in paths {
        if let Some(last) = path.last() {
            all.entry(last).or_default().0 += count;
        }
        for name in order::set(path) {
            all.entry(name).or_default().1 += count;
        }
    }
    let mut all: Vec<FunctionSamples> = all
        .into_iter()
        .map(|(name, (own, total))| FunctionSamples { name: name.to_owned(), own, total })
        .collect();
    order::by(&mut all, |a, b| (Reverse(a.total), &a.name).cmp(&(Reverse(b.total), &b.name)));
    let by_total = order::set(all.iter().take(MOST_FUNCTIONS).map(|f| f.name.clone()));
    order::by(&mut all, |a, b| {
        (Reverse(a.own), Reverse(a.total), &a.name).cmp(&(Reverse(b.own), Reverse(b.total), &b.name))
    });
    let mut place = 0;
    all.retain(|function| {
        place += 1;
        place <= MOST_FUNCTIONS || by_total.contains(&function.name)
    });
    all
}

/// The commonest stacks as a tree; the rest is with what they have in common with these.
fn calls(paths: &[(Vec<&str>, u64)], samples: u64) -> Calls {
    let mut calls = Calls::default();
    let enough = (samples as f64 * COVERED).ceil() as u64;
    let mut covered = 0;
    for (path, count) in paths {
        let room = calls.nodes.len() + path.len() <= MOST_CALLS;
        if covered < enough && room {
            calls.add(path.iter().copied(), *count);
        } else {
            calls.add_within(path.iter().copied(), *count);
        }
        covered += count;
    }
    calls
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_source() {
        assert_eq!(known_name("finish_task_switch.isra.0"), "finish_task_switch");
        assert_eq!(known_name("veth_poll"), "veth_poll");
        assert_eq!(known_name("bpf_prog_6deef7357e7b4530_receiver"), "bpf_prog_receiver");
        assert_eq!(known_name("bpf_prog_test_run_xdp"), "bpf_prog_test_run_xdp");
        assert_eq!(known_name("bpf_prog_run_generic_xdp"), "bpf_prog_run_generic_xdp");
    }

    #[test]
    fn a_return_address_belongs_to_the_caller_even_at_its_very_end() {
        let listing = "1000 T net_rx_action\n1100 T ip_rcv\n1200 T next\n";
        let mut stacks = Stacks::new(Symbols::parse(listing));
        // ip_rcv ends with the call that is being sampled: the address of return is the next function's first.
        stacks.add(0x1200, &[0x1200, 0x1200, 0x1050]);
        let profile = stacks.finish(&ProcRoot::new("/nonexistent"), false);
        assert_eq!(profile.calls.folded(), [("net_rx_action;ip_rcv;next".to_owned(), 1)]);
        assert_eq!(profile.functions[0], FunctionSamples { name: "next".into(), own: 1, total: 1 });
    }

    #[test]
    fn code_that_was_loaded_later_gets_its_name_afterwards() {
        let dir = std::env::temp_dir().join(format!("weir-stacks-{}", std::process::id()));
        std::fs::create_dir_all(dir.join("proc")).unwrap();
        std::fs::write(dir.join("proc/kallsyms"), "90000000 t bpf_prog_6deef7357e7b4530_filter\t[bpf]\n")
            .unwrap();
        let mut stacks = Stacks::new(Symbols::parse("1000 T net_rx_action\n"));
        stacks.add(0x9000_0010, &[0x9000_0010, 0x1010]);
        stacks.add(0x9000_0020, &[0x9000_0020, 0x1010]);
        stacks.add(0xa000_0000, &[0xa000_0000, 0x1010]);
        let profile = stacks.finish(&ProcRoot::new(&dir), false);
        std::fs::remove_dir_all(dir).unwrap();
        let mut folded = profile.calls.folded();
        folded.sort();
        let expected = [("net_rx_action;[unknown]", 1), ("net_rx_action;bpf_prog_filter", 2)];
        assert_eq!(folded, expected.map(|(stack, count)| (stack.to_owned(), count)));
    }

    #[test]
    fn too_many_different_stacks_are_counted_and_not_kept() {
        let mut stacks = Stacks::new(Symbols::parse("1000 T a\n2000 T b\n"));
        // Every number's binary digits, as a stack of two functions.
        for number in 0..MOST_STACKS as u64 + 100 {
            let chain: Vec<u64> = (0..20).map(|bit| 0x1010 + 0x1000 * (number >> bit & 1)).collect();
            stacks.add(chain[0], &chain);
        }
        assert_eq!((stacks.counts.len(), stacks.refused()), (MOST_STACKS, 100));
    }

    /// More different stacks than the tree may hold: every sample is still in it.
    #[test]
    fn a_tree_that_is_full_loses_no_sample() {
        let names: Vec<String> = (0..3000).map(|i| format!("f{i}")).collect();
        let stacks = names.iter().map(|name| (vec!["net_rx_action", name.as_str()], 1));
        let profile = summary(stacks, false);
        assert!(profile.calls.nodes.len() <= MOST_CALLS, "{}", profile.calls.nodes.len());
        assert_eq!(profile.gateway_samples, 3000);
        assert_eq!(profile.calls.nodes.iter().map(|node| node.2).sum::<u64>(), 3000);
        assert_eq!(profile.functions.len(), MOST_FUNCTIONS + 1, "the greatest in all has none of its own");
    }
}
