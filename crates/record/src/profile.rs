//! How the kernel spent its time during a trial: call stacks, sampled by its clock.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use weir_text::order;

/// Most functions that are listed by name ([`Profile::functions`]) for each of their two orders.
pub const MOST_FUNCTIONS: usize = 40;

/// A sampled profile of one host over one measuring window. In the lab all hosts share one machine. The profile then covers the
/// whole machine, and the functions in a sample's stack show to which part it belongs.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Profile {
    /// Samples a second and core while the kernel works; each stands for `1 / hz` seconds of a core. Time in user space is not
    /// sampled, and idle time is left out.
    pub hz: u32,
    /// Length of the window, s.
    pub window_s: f64,
    /// All samples of a busy kernel: the gateway's, the tester's and others.
    pub samples: u64,
    /// Samples that were taken and lost.
    pub lost: u64,
    /// Samples in the gateway's path, from receiving to transmitting.
    pub gateway_samples: u64,
    /// Samples in the sending and receiving of the tester, on a machine that it shares with the gateway.
    pub tester_samples: u64,
    /// Samples of the gateway within a netfilter hook (`nf_hook_slow`, `nf_hook_slow_list`), whatever was called from there.
    pub hook_samples: u64,
    /// The gateway's samples by part, each counted once. They add up to `gateway_samples`.
    pub parts: Vec<PartSamples>,
    /// The gateway's functions with the most samples, own or in all.
    pub functions: Vec<FunctionSamples>,
    /// The gateway's stacks.
    pub calls: Calls,
}

/// One part of the gateway's path.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PartSamples {
    /// Name, e.g. `connection tracking`.
    pub name: String,
    /// Samples.
    pub samples: u64,
}

/// One function.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FunctionSamples {
    /// Name, without what the compiler appends to it.
    pub name: String,
    /// Samples in the function itself.
    pub own: u64,
    /// Samples in it or in what it called; a stack that holds it twice counts once.
    pub total: u64,
}

/// Stacks as a tree of calls, which is a tenth of the size of the same stacks written out; [`Self::folded`] does that.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Calls {
    /// Names that `nodes` refers to.
    pub functions: Vec<String>,
    /// Calls, each after its caller: number of the caller's node plus one (0: outermost), number of the function, samples in the
    /// function itself. Samples of stacks too rare to be kept count for their innermost caller that was kept.
    pub nodes: Vec<(u32, u32, u64)>,
}

impl Profile {
    /// Adds another trial's profile of the same variant and workload. Functions that are not among those listed of one of them
    /// count with what the other lists.
    pub fn merge(&mut self, other: &Profile) {
        // A record from elsewhere may hold any number.
        let add = |own: &mut u64, more: u64| *own = own.saturating_add(more);
        self.hz = self.hz.max(other.hz);
        self.window_s += other.window_s;
        add(&mut self.samples, other.samples);
        add(&mut self.lost, other.lost);
        add(&mut self.gateway_samples, other.gateway_samples);
        add(&mut self.tester_samples, other.tester_samples);
        add(&mut self.hook_samples, other.hook_samples);
        for part in &other.parts {
            match self.parts.iter_mut().find(|own| own.name == part.name) {
                Some(own) => add(&mut own.samples, part.samples),
                None => self.parts.push(part.clone()),
            }
        }
        for function in &other.functions {
            match self.functions.iter_mut().find(|own| own.name == function.name) {
                Some(own) => {
                    add(&mut own.own, function.own);
                    add(&mut own.total, function.total);
                }
                None => self.functions.push(function.clone()),
            }
        }
        order::by_key(&mut self.functions, |f| (std::cmp::Reverse(f.own), std::cmp::Reverse(f.total)));
        self.calls.merge(&other.calls);
    }

    /// Samples that frames caused: the gateway's and the tester's.
    pub fn path_samples(&self) -> u64 {
        self.gateway_samples.saturating_add(self.tester_samples)
    }
}

impl Calls {
    /// Adds samples of one stack, given from its outermost function to its innermost.
    pub fn add<'a>(&mut self, stack: impl IntoIterator<Item = &'a str>, samples: u64) {
        let mut at = 0;
        for name in stack {
            let function = self.function(name);
            at = self.node(at, function);
        }
        if let Some((_, _, own)) = (at as usize).checked_sub(1).and_then(|i| self.nodes.get_mut(i)) {
            *own += samples;
        }
    }

    /// Adds samples of a stack to the innermost of its calls that is there already, and to its outermost function if none is.
    pub fn add_within<'a>(&mut self, stack: impl IntoIterator<Item = &'a str>, samples: u64) {
        let mut stack = stack.into_iter().peekable();
        let first = stack.peek().copied();
        let mut at: u32 = 0;
        for name in stack {
            let is_it = |node: &(u32, u32, u64)| {
                node.0 == at && self.functions.get(node.1 as usize).is_some_and(|known| known == name)
            };
            match self.nodes.iter().position(is_it) {
                Some(found) => at = found as u32 + 1,
                None => break,
            }
        }
        match (at.checked_sub(1), first) {
            (Some(node), _) => self.nodes[node as usize].2 += samples,
            (None, Some(first)) => self.add([first], samples),
            (None, None) => {}
        }
    }

    fn function(&mut self, name: &str) -> u32 {
        let found = self.functions.iter().position(|known| known == name).unwrap_or_else(|| {
            self.functions.push(name.to_owned());
            self.functions.len() - 1
        });
        found as u32
    }

    /// The number plus one of that call.
    fn node(&mut self, caller: u32, function: u32) -> u32 {
        let found = self.nodes.iter().position(|(c, f, _)| (*c, *f) == (caller, function));
        let found = found.unwrap_or_else(|| {
            self.nodes.push((caller, function, 0));
            self.nodes.len() - 1
        });
        found as u32 + 1
    }

    /// Adds another tree.
    pub fn merge(&mut self, other: &Calls) {
        let mut here: Vec<u32> = Vec::with_capacity(other.nodes.len());
        for (caller, name, samples) in other.valid() {
            let caller = caller.map_or(0, |at| here[at]);
            let function = self.function(name);
            let node = self.node(caller, function);
            let own = &mut self.nodes[node as usize - 1].2;
            *own = own.saturating_add(samples);
            here.push(node);
        }
    }

    /// Every call with the number of its caller's, its function and its own samples. A record from elsewhere may refer to what
    /// does not exist: callers that do not precede are taken for none, functions without a name for `?`.
    pub fn valid(&self) -> impl Iterator<Item = (Option<usize>, &str, u64)> {
        self.nodes.iter().enumerate().map(|(at, (caller, function, samples))| {
            let caller = (*caller as usize).checked_sub(1).filter(|caller| *caller < at);
            (caller, self.functions.get(*function as usize).map_or("?", String::as_str), *samples)
        })
    }

    /// The stacks with their samples, functions from the outermost on, with `;` between them: the form that flame graph programs
    /// read.
    pub fn folded(&self) -> Vec<(String, u64)> {
        let mut paths: Vec<String> = Vec::with_capacity(self.nodes.len());
        let mut stacks = Vec::new();
        for (caller, name, samples) in self.valid() {
            // A name that contains the separator must not become two names.
            let name = name.replace(';', ":");
            let path = caller.map_or_else(|| name.clone(), |at| format!("{};{name}", paths[at]));
            if samples > 0 {
                stacks.push((path.clone(), samples));
            }
            paths.push(path);
        }
        stacks
    }
}

/// From stacks as [`Calls::folded`] writes them.
impl<'a> FromIterator<(&'a str, u64)> for Calls {
    fn from_iter<I: IntoIterator<Item = (&'a str, u64)>>(folded: I) -> Self {
        let mut calls = Calls::default();
        folded.into_iter().for_each(|(stack, samples)| calls.add(stack.split(';'), samples));
        calls
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn calls(folded: &[(&str, u64)]) -> Calls {
        folded.iter().copied().collect()
    }

    fn sorted(calls: &Calls) -> Vec<(String, u64)> {
        let mut stacks = calls.folded();
        stacks.sort();
        stacks
    }

    #[test]
    fn stacks_come_out_of_the_tree_as_they_went_in() {
        let stacks = [("a", 1), ("a;b", 2), ("a;b;a", 3), ("a;c;b", 4), ("d;b", 5)];
        let tree = calls(&stacks);
        let expected: Vec<(String, u64)> = stacks.map(|(s, n)| (s.to_owned(), n)).to_vec();
        assert_eq!(sorted(&tree), expected);
        // One name per function, one node per distinct call path: a, ab, aba, ac, acb, d, db.
        assert_eq!((tree.functions.len(), tree.nodes.len()), (4, 7));
    }

    #[test]
    fn what_is_too_rare_is_with_its_caller() {
        let mut tree = calls(&[("a;b", 2)]);
        tree.add_within(["a", "b", "c"], 1);
        tree.add_within(["a", "d"], 10);
        tree.add_within(["e", "f"], 100);
        assert_eq!(sorted(&tree), [("a".into(), 10), ("a;b".into(), 3), ("e".into(), 100)]);
    }

    #[test]
    fn trees_add_up_whatever_the_order_of_their_names() {
        let one = [("a;b", 2), ("a;c", 1)];
        let other = [("c;a", 4), ("a;c", 7), ("a", 1)];
        let mut merged = calls(&one);
        merged.merge(&calls(&other));
        assert_eq!(sorted(&merged), sorted(&calls(&[("a;b", 2), ("a;c", 8), ("c;a", 4), ("a", 1)])));
    }

    #[test]
    fn a_broken_tree_is_read_without_a_panic() {
        let tree = Calls { functions: vec!["a;b".into()], nodes: vec![(9, 0, 1), (2, 7, 2), (1, 0, 3)] };
        assert_eq!(sorted(&tree), [("?".into(), 2), ("a:b".into(), 1), ("a:b;a:b".into(), 3)]);
        let mut merged = Calls::default();
        merged.merge(&tree);
        assert_eq!(merged.folded().iter().map(|(_, n)| n).sum::<u64>(), 6);
    }

    #[test]
    fn profiles_of_trials_add_up() {
        let part = |name: &str, samples| PartSamples { name: name.into(), samples };
        let function = |name: &str, own, total| FunctionSamples { name: name.into(), own, total };
        let mut one = Profile {
            hz: 997,
            window_s: 1.0,
            samples: 100,
            lost: 1,
            gateway_samples: 40,
            tester_samples: 30,
            hook_samples: 20,
            parts: vec![part("nat", 10), part("routing", 30)],
            functions: vec![function("f", 10, 40)],
            calls: calls(&[("f", 10), ("f;g", 30)]),
        };
        let other = Profile {
            window_s: 1.5,
            gateway_samples: 5,
            parts: vec![part("bridge", 1), part("routing", 4)],
            functions: vec![function("g", 20, 20), function("f", 1, 5)],
            calls: calls(&[("f", 5)]),
            ..one.clone()
        };
        one.merge(&other);
        assert_eq!((one.hz, one.window_s, one.samples, one.lost), (997, 2.5, 200, 2));
        assert_eq!((one.gateway_samples, one.path_samples(), one.hook_samples), (45, 105, 40));
        assert_eq!(one.parts, [part("nat", 10), part("routing", 34), part("bridge", 1)]);
        assert_eq!(one.functions, [function("g", 20, 20), function("f", 11, 45)]);
        assert_eq!(sorted(&one.calls), [("f".into(), 15), ("f;g".into(), 30)]);
    }
}
