//! The policy that the arguments of `weir allow apply` describe.

use std::path::PathBuf;

use weir_allow::{Backend, Class, Hook, Policy, Xdp};
use weir_prefix::List;

use super::load;
use crate::args::allow::{ApplyArgs, ListArgs, apply as asked};
use crate::exit::Failure;

/// The class of what is named without a class.
const LIST: &str = "list";

/// Reads all lists.
pub(super) fn read(args: &ApplyArgs) -> Result<Policy, Failure> {
    let mut classes = Vec::new();
    for class in &args.classes {
        let countries: Vec<String> = class
            .file
            .strip_prefix('@')
            .map(|codes| codes.split(',').map(str::to_owned).collect())
            .unwrap_or_default();
        let files = if countries.is_empty() { vec![PathBuf::from(&class.file)] } else { Vec::new() };
        let list = ListArgs {
            files,
            countries,
            skip_bad_lines: args.list.skip_bad_lines,
            registries: args.list.registries.clone(),
            cache: args.list.cache.clone(),
        };
        classes.push(of(&class.name, class.action, &list, &load(&list)?));
    }
    let named = !args.list.files.is_empty() || !args.list.countries.is_empty();
    if named || classes.is_empty() {
        classes.push(of(LIST, args.action, &args.list, &load(&args.list)?));
    }
    let policy = Policy {
        backend: match args.backend {
            asked::Backend::Bpf => Backend::Bpf,
            asked::Backend::Nft => Backend::Nft,
            asked::Backend::Ipset => Backend::Ipset,
        },
        interfaces: args.interfaces.clone(),
        hook: match args.hook {
            asked::Hook::Input => Hook::Input,
            asked::Hook::Forward => Hook::Forward,
            asked::Hook::Both => Hook::Both,
        },
        xdp: args.xdp.map(|xdp| match xdp {
            asked::Xdp::Native => Xdp::Native,
            asked::Xdp::Generic => Xdp::Generic,
        }),
        ports: args.ports.clone(),
        established_first: args.established_first,
        classes,
        rest: args.rest,
    };
    policy.check().map_err(Failure::usage)?;
    Ok(policy)
}

fn of(name: &str, action: weir_allow::Action, args: &ListArgs, list: &List) -> Class {
    let mut origin = list.files.clone();
    if !args.countries.is_empty() {
        origin.push(format!("countries {}", args.countries.join(", ")));
    }
    Class { name: name.to_owned(), action, origin, v4: list.ranges_v4(), v6: list.ranges_v6() }
}
