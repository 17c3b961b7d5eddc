//! Addresses by which it is seen whether what was loaded does what it should.

use std::net::IpAddr;

use weir_prefix::{Address, Ranges};
use weir_text::order;

use crate::Error;
use crate::policy::Policy;

/// Ranges of each list that are asked about, where a question is cheap.
pub(crate) const MANY: usize = 32;
/// The same, if each question needs a process.
pub(crate) const FEW: usize = 3;

/// Returns both ends of some ranges of each list, spread over it, their neighbours outside, and some other addresses. It leaves
/// out the link's own addresses, which no back end looks up.
pub(crate) fn samples(policy: &Policy, ranges: usize) -> Vec<IpAddr> {
    let mut addresses = Vec::new();
    for class in &policy.classes {
        ends(&class.v4, ranges, &mut addresses);
        ends(&class.v6, ranges, &mut addresses);
    }
    // Addresses for documentation and benchmarking: no host has them, but a list may.
    for text in ["192.0.2.1", "198.18.0.1", "203.0.113.200", "2001:db8::1", "2001:2::1"] {
        addresses.extend(text.parse::<IpAddr>());
    }
    addresses.retain(|address| policy.verdict(*address).class.is_some());
    order::by_key(&mut addresses, |address| *address);
    addresses.dedup();
    addresses
}

fn ends<A: Address>(ranges: &Ranges<A>, most: usize, addresses: &mut Vec<IpAddr>) {
    let all = ranges.as_slice();
    let step = all.len().div_ceil(most).max(1);
    for (first, last) in all.iter().step_by(step).chain(all.last()) {
        let around = [first.previous(), Some(*first), Some(*last), last.next()];
        addresses.extend(around.into_iter().flatten().map(|a| a.text().into()));
    }
}

/// Fails where the kernel says something else than the list.
pub(crate) fn same(what: &str, address: IpAddr, expected: bool, found: bool) -> Result<(), Error> {
    if expected == found {
        return Ok(());
    }
    let says = |yes: bool| if yes { "yes" } else { "no" };
    Err(Error::Verify(format!("{what} about {address}: {}, the list: {}", says(found), says(expected))))
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::policy::{Action, Backend, Class, Hook};

    pub(crate) fn policy() -> Policy {
        Policy {
            backend: Backend::Nft,
            interfaces: vec!["eth0".into()],
            hook: Hook::Both,
            xdp: None,
            ports: Vec::new(),
            established_first: false,
            classes: vec![Class {
                name: "list".into(),
                action: Action::Allow,
                origin: Vec::new(),
                v4: Ranges::new((0..100).map(|n| (0x0a00_0000 + n * 16, 0x0a00_0003 + n * 16))),
                v6: Ranges::new([(0xfe80 << 112, (0xfe80 << 112) + 5)]),
            }],
            rest: Action::Drop,
        }
    }

    #[test]
    fn samples_lie_on_both_sides_of_every_chosen_end_and_never_on_the_link() {
        let policy = policy();
        let samples = samples(&policy, 4);
        let inside = samples.iter().filter(|a| policy.classes[0].has(**a)).count();
        // Four ranges and the last one, with two ends each.
        assert_eq!(inside, 10);
        assert!(samples.iter().all(|a| a.is_ipv4() || !a.to_string().starts_with("fe80")));
        // As many neighbours, the one below fe80::, and those that no host has.
        assert_eq!(samples.len(), 10 + 10 + 1 + 5);
        assert!(same("it", samples[0], true, true).is_ok());
        assert!(same("it", samples[0], true, false).unwrap_err().to_string().contains("the list: yes"));
    }
}
