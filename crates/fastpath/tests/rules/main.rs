//! Rulesets as engines and people write them, in the kernel and read back: what of them carried packets bypass.

mod changes;
mod exclusions;
mod harmless;
mod hooks;
mod iptables;
mod records;

use std::process::Command;
use std::time::Duration;

use weir_fastpath::{Bypassed, Effect, bypassed};
use weir_sys::process::{run_with_input, which};
use weir_sys::{NetNs, ProcRoot};

/// Programs in all three forms of iptables, and which of them are here.
const IPTABLES: [(&str, &str); 2] =
    [("iptables-nft", "ip6tables-nft"), ("iptables-legacy", "ip6tables-legacy")];

/// False, with a message for the runner, if one of the programs is not here.
fn has(programs: &[&str]) -> bool {
    let missing = programs.iter().find(|program| which(program).is_none());
    if let Some(program) = missing {
        println!("SKIP: {program} is not installed");
    }
    missing.is_none()
}

#[track_caller]
fn run(ns: &NetNs, program: &str, arguments: &[&str], input: &str) {
    let mut command = Command::new(program);
    command.args(arguments);
    ns.enter_on_spawn(&mut command);
    let output = run_with_input(command, input.as_bytes(), Duration::from_secs(20)).unwrap();
    assert!(output.status.success(), "{input} {arguments:?}: {}", output.message());
}

/// Everything bypassed in a namespace with these rules.
#[track_caller]
fn of_script(script: &str) -> Vec<Bypassed> {
    let ns = NetNs::create().unwrap();
    run(&ns, "sh", &["-euc", script], "");
    ns.run(|| bypassed(&ProcRoot::default()).unwrap()).unwrap()
}

#[track_caller]
fn of_nft(ruleset: &str) -> Vec<Bypassed> {
    let ns = NetNs::create().unwrap();
    run(&ns, "nft", &["-f", "-"], ruleset);
    ns.run(|| bypassed(&ProcRoot::default()).unwrap()).unwrap()
}

/// Rules in a chain of the forward hook, with a policy.
#[track_caller]
fn of_forward(policy: &str, rules: &str) -> Vec<Bypassed> {
    of_nft(&format!(
        "table inet t {{
            set filled {{ type ipv4_addr; size 100; flags dynamic; }}
            set ends {{ type ipv4_addr; flags timeout; }}
            set fixed {{ type ipv4_addr; elements = {{ 192.0.2.1 }}; }}
            chain forward {{ type filter hook forward priority 0; policy {policy}; {rules}
}}
        }}"
    ))
}

/// Those that change an outcome, with the noun for what it depends on or the whole reason.
fn changes(found: &[Bypassed]) -> Vec<&str> {
    let of = |found: &Bypassed| found.effect == Effect::Changes;
    found.iter().filter(|f| of(f)).map(|f| noun(&f.why)).collect()
}

fn noun(why: &str) -> &str {
    let noun = why.strip_prefix("the outcome depends on ");
    noun.and_then(|w| w.strip_suffix(", and carried packets bypass it")).unwrap_or(why)
}

/// Those that record, with the noun for what sees less.
fn records(found: &[Bypassed]) -> Vec<&str> {
    let of = |found: &&Bypassed| found.effect == Effect::Records;
    let prefix = "carried packets do not reach ";
    found.iter().filter(of).map(|f| f.why.strip_prefix(prefix).unwrap_or(&f.why)).collect()
}
