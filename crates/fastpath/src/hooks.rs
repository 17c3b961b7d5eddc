//! Programs and filters of others at an interface that packets carried from it do not meet.
//!
//! A redirected packet skips everything behind our program: TCX programs after it, then filters of tc (net/core/dev.c,
//! sch_handle_ingress). Programs of XDP and TCX before it have seen the packet, and queueing disciplines and filters of the egress
//! side see it. On a kernel without TCX the program is a filter of tc, behind all others.

use std::io;

use schemars::JsonSchema;
use serde::Serialize;
use weir_bpf::{Direction, has_tcx, program_name, tcx_programs};
use weir_netlink::{Filter, INGRESS_HOOK, Rtnetlink};

use crate::Result;
use crate::clsact::is_own;

/// The program that carries.
const CARRIER: &str = "fastpath_in";
/// Other programs of weir: they are attached, reported and ordered by their own commands.
const OWN: [&str; 5] = ["fastpath_out", "publish_in", "publish_out", "allow_ingress", "gate_tc"];

/// A program or filter that carried packets skip.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Other {
    /// Its kind and place.
    pub place: String,
    /// Its name, or the names of its actions; text from outside. Empty if it has none.
    pub name: String,
    /// It may drop, redirect or change packets.
    pub decides: bool,
}

/// Programs and filters of others at the ingress of an interface of the calling thread's namespace. As long as the fast path is not
/// attached there, no TCX program is listed: it is attached behind them.
///
/// # Errors
/// If the kernel does not tell: `PermissionDenied` without CAP_NET_ADMIN, and CAP_SYS_ADMIN for the names of programs.
pub fn others(interface: u32) -> Result<Vec<Other>> {
    let mut programs = Vec::new();
    for id in tcx_programs(interface, Direction::Ingress)? {
        match program_name(id) {
            Ok(name) => programs.push(name),
            Err(e) if is_gone(&e) => {}
            Err(e) => return Err(e.into()),
        }
    }
    let mut found: Vec<Other> = behind(&programs)
        .map(|name| Other { place: "TCX ingress program".to_owned(), name: name.clone(), decides: true })
        .collect();
    let filters = Rtnetlink::open()?.filters(interface, INGRESS_HOOK)?;
    // If the programs are filters themselves, or are going to be, carried packets meet those before them.
    let skipped = match filters.iter().position(is_own) {
        Some(at) => &filters[at + 1..],
        None if has_tcx(interface)? => &filters[..],
        None => &[],
    };
    found.extend(skipped.iter().filter(|f| !is_table(f)).map(other));
    Ok(found)
}

/// True if the program was removed meanwhile.
pub(crate) fn is_gone(error: &weir_bpf::Error) -> bool {
    error.raw_os_error().is_some_and(|n| io::Error::from_raw_os_error(n).kind() == io::ErrorKind::NotFound)
}

fn behind(programs: &[String]) -> impl Iterator<Item = &String> {
    let after = programs.iter().position(|name| name == CARRIER).map_or(programs.len(), |at| at + 1);
    programs[after..].iter().filter(|name| !OWN.contains(&name.as_str()))
}

/// Hash tables of `u32` are listed among its filters; the number of a node is in the lowest bits (TC_U32_NODE).
pub(crate) fn is_table(filter: &Filter) -> bool {
    filter.kind == "u32" && filter.handle & 0xfff == 0
}

fn other(filter: &Filter) -> Other {
    let actions: Vec<&str> = filter.actions.iter().map(|(kind, ..)| kind.as_str()).collect();
    let name = match &filter.program {
        Some((_, name)) => name.clone(),
        None => actions.join(", "),
    };
    Other {
        place: format!("tc ingress filter {}, preference {}", filter.kind, filter.preference),
        name,
        // A program of BPF may decide by itself.
        decides: filter.kind == "bpf" || !actions.is_empty(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_foreign_programs_behind_ours_are_listed() {
        let listed = |programs: &[&str]| {
            let programs: Vec<String> = programs.iter().map(|name| (*name).to_owned()).collect();
            behind(&programs).cloned().collect::<Vec<_>>()
        };
        assert_eq!(listed(&["cil_from_netdev", "fastpath_in"]), [""; 0]);
        assert_eq!(listed(&["a", "fastpath_in", "b", "allow_ingress", "c"]), ["b", "c"]);
        assert_eq!(listed(&["a", "b"]), [""; 0]);
    }

    #[test]
    fn a_filter_decides_if_it_has_an_action_or_is_a_program() {
        let filter = |kind: &str, actions: &[&str]| Filter {
            kind: kind.to_owned(),
            preference: 7,
            handle: 0x8000_0800,
            program: None,
            actions: actions.iter().map(|a| ((*a).to_owned(), 0, 0)).collect(),
        };
        assert!(!other(&filter("flower", &[])).decides);
        assert!(other(&filter("bpf", &[])).decides);
        let police = other(&filter("matchall", &["police", "mirred"]));
        assert!(police.decides);
        assert_eq!(
            (police.place.as_str(), police.name.as_str()),
            ("tc ingress filter matchall, preference 7", "police, mirred")
        );
        assert!(!is_table(&filter("u32", &[])));
        assert!(is_table(&Filter { handle: 0x8000_0000, ..filter("u32", &[]) }));
    }
}
