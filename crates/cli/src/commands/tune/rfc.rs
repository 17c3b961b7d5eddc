//! The part of profile `rfc` that is made by rules: silence for SYNs without a listener, by a table of weir's own, and advice about
//! rules of others.

use std::process::Command;
use std::time::Duration;

use weir_guard::{Change, Program};
use weir_sys::ProcRoot;
use weir_sys::privilege::Privilege;
use weir_sys::process::{run_with_input, which};
use weir_text::escape::line;
use weir_text::shell;
use weir_tune::{Action, Advice, Profile, Request, TunedHost};

use crate::args::tune::WhatArgs;
use crate::exit::{CommandResult, Failure};

/// Table of weir alone.
const TABLE: &str = "inet weir_rfc";
/// Longest time that nft may take, s.
const LIMIT_S: u64 = 10;
const RISK: &str = "a client that calls a port without a program waits for its time-out instead of being refused at once; a program that \
                    takes packets without a socket (XDP, IPVS with local delivery) is not seen as a listener; it ends with a reboot";

/// Adds actions and advice of profile `rfc` to a request.
///
/// # Errors
/// `--silent-syn` without the profile.
pub(super) fn add(place: &TunedHost, what: &WhatArgs, request: &mut Request) -> CommandResult {
    if !request.profiles.contains(&Profile::Rfc) {
        return match what.silent_syn.first() {
            Some(_) => Err(Failure::usage("--silent-syn is a part of profile rfc: add --profile rfc")),
            None => Ok(()),
        };
    }
    let is_root = Privilege::current(&ProcRoot::default()).map_err(Failure::failed)?.euid == 0;
    if is_root && which("nft").is_some() {
        request.advice.extend(pools(place));
    } else {
        request.notes.push("rules for source NAT are not in sight: this needs root, and nft".into());
    }
    if !what.silent_syn.is_empty() {
        request.actions.push(silence(place, &what.silent_syn, is_root));
    }
    Ok(())
}

/// The table: a SYN that no mapping has taken up elsewhere, and for which no socket listens, ends here.
fn ruleset(interfaces: &[String]) -> String {
    let names: Vec<String> = interfaces.iter().map(|name| format!("\"{name}\"")).collect();
    format!(
        "table {TABLE}
delete table {TABLE}
table {TABLE} {{
  chain unsolicited {{
    socket transparent 0 return
    socket transparent 1 return
    drop
  }}
  chain input {{
    type filter hook input priority 300; policy accept;
    iifname {{ {} }} tcp flags & (fin | syn | rst | ack) == syn ct state new jump unsolicited
  }}
}}
",
        names.join(", ")
    )
}

fn silence(place: &TunedHost, interfaces: &[String], is_root: bool) -> Action {
    let ruleset = ruleset(interfaces);
    let remove = format!("table {TABLE}\ndelete table {TABLE}\n");
    let nft = |input: &str| Program { stdin: input.to_owned(), ..Program::new(["nft", "-f", "-"]) };
    let held = is_root.then(|| run(place, &["-c", "-f", "-"], &ruleset).err()).flatten();
    Action {
        name: "silence for unsolicited SYNs".into(),
        now: "the kernel answers them by a reset".into(),
        proposed: format!(
            "table {TABLE} drops SYNs by {} for which no program listens",
            interfaces.iter().map(|name| line(name)).collect::<Vec<_>>().join(", ")
        ),
        items: Vec::new(),
        why: vec![
            "RFC 5382 REQ-4 (tcp-unsolicited-syn): no answer within six seconds, for hole punching".into(),
        ],
        memory_bytes: 0,
        risk: RISK.into(),
        undo: format!("nft delete table {TABLE}"),
        held: held.map(|why| format!("nft refuses the table: {}", line(&why))),
        change: Change::Commands {
            name: format!("table {TABLE}"),
            apply: nft(&ruleset),
            undo: nft(&remove),
            confirm: None,
            read: Program::new(["nft", "-s", "list", "table", "inet", "weir_rfc"]),
            limit_s: LIMIT_S,
            outlives_reboot: false,
        },
    }
}

/// Runs nft at the place; its output, or why there is none.
fn run(place: &TunedHost, args: &[&str], input: &str) -> Result<String, String> {
    let mut command = Command::new("nft");
    command.args(args);
    if let Some(namespace) = &place.view.namespace {
        namespace.enter_on_spawn(&mut command);
    }
    let output = run_with_input(command, input.as_bytes(), Duration::from_secs(LIMIT_S));
    let output = output.map_err(|e| e.to_string())?;
    if output.status.success() { Ok(output.stdout_text()) } else { Err(output.message()) }
}

/// Rules that give one host several addresses.
fn pools(place: &TunedHost) -> Vec<Advice> {
    let listing = run(place, &["-a", "-t", "list", "ruleset"], "").unwrap_or_default();
    advice(&listing)
}

/// Advice about the rules of a listing of `nft -a list ruleset`.
fn advice(listing: &str) -> Vec<Advice> {
    let (mut table, mut chain, mut of_iptables) = (String::new(), String::new(), false);
    let mut found = Vec::new();
    for text in listing.lines() {
        let words = text.trim();
        if words.starts_with("# Warning: table") {
            of_iptables = true;
        } else if let Some(rest) = text.strip_prefix("table ") {
            table = rest.split(" {").next().unwrap_or_default().to_owned();
        } else if let Some(rest) = words.strip_prefix("chain ") {
            chain = rest.split(" {").next().unwrap_or_default().to_owned();
        } else if text == "}" {
            of_iptables = false;
        } else if let Some((rule, handle)) = words.rsplit_once(" # handle ")
            && is_pool(rule)
        {
            let rewritten = format!("replace rule {table} {chain} handle {handle} {rule} persistent");
            // A counter would begin anew, and a comment must stay the last word: its owner does that.
            let plain = !of_iptables && !rule.contains(" counter ") && !rule.contains(" comment ");
            found.push(Advice {
                rule: format!("rule {table} {chain} handle {handle}: {rule}"),
                why: "RFC 4787 REQ-2, RFC 6888 REQ-2 (udp-pooling, tcp-pooling, udp-mapping): without persistent one host \
                      has another address for each destination"
                    .into(),
                price: "a host keeps to one address, so the ports of a busy one may run out sooner".into(),
                command: plain.then(|| format!("nft {}", shell::word(&rewritten))),
            });
        }
    }
    found
}

/// True of source NAT to a range of addresses without `persistent`.
fn is_pool(rule: &str) -> bool {
    let Some((_, to)) = rule.split_once("snat ") else { return false };
    let mut words = to.split_whitespace().skip_while(|word| ["ip", "ip6", "to", "prefix"].contains(word));
    let target = words.next().unwrap_or_default();
    // Ports are behind a colon; addresses of IPv6 have colons, and ports behind brackets.
    let addresses =
        if target.matches(':').count() == 1 { target.split(':').next().unwrap_or(target) } else { target };
    addresses.contains('-') && !rule.contains("persistent")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_range_without_persistent_is_a_pool() {
        for rule in
            ["oifname \"w\" snat to 192.0.2.1-192.0.2.4", "snat ip to 192.0.2.1-192.0.2.4:1024-2048 random"]
        {
            assert!(is_pool(rule), "{rule}");
        }
        for rule in [
            "snat to 192.0.2.1",
            "snat to 192.0.2.1:1024-2048",
            "snat to 192.0.2.1-192.0.2.4 persistent",
            "masquerade to :1024-2048",
            "dnat to 10.0.0.1-10.0.0.2",
            "accept",
        ] {
            assert!(!is_pool(rule), "{rule}");
        }
    }

    #[test]
    fn the_command_names_the_rule_by_its_handle() {
        let listing = "table ip nat { # handle 1\n\tchain post { # handle 1\n\t\ttype nat hook postrouting priority srcnat; policy accept;\n\
                       \t\toifname \"out0\" snat to 192.0.2.1-192.0.2.4 # handle 7\n\t}\n}\n";
        let [advice] = &advice(listing)[..] else { panic!() };
        let command = advice.command.as_deref().unwrap();
        assert_eq!(
            command,
            "nft 'replace rule ip nat post handle 7 oifname \"out0\" snat to 192.0.2.1-192.0.2.4 persistent'"
        );
        let of_iptables =
            format!("# Warning: table ip nat is managed by iptables-nft, do not touch!\n{listing}");
        assert_eq!(super::advice(&of_iptables)[0].command, None);
    }

    #[test]
    fn interfaces_stand_between_quotes() {
        assert!(
            ruleset(&["wan0".into(), "wan1".into()]).contains("iifname { \"wan0\", \"wan1\" } tcp flags")
        );
    }
}
