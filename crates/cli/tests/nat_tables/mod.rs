//! Tables of `weir nat lab` as tests read them.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::collections::BTreeMap;

use serde_json::Value;
use weir_testkit::{CommandOutput, World};

use crate::documents;

pub(crate) fn nat(world: &World, args: &[&str]) -> CommandOutput {
    let mut command = world.command(world.binary());
    command.arg("nat").args(args);
    world.run(command)
}

pub(crate) fn json(world: &World, kind: &str, args: &[&str]) -> Value {
    documents::read(&nat(world, &[args, &["--json"]].concat()).expect(0).stdout, kind)
}

/// Verdicts of one gateway by row.
pub(crate) fn verdicts(gateway: &Value) -> BTreeMap<&str, &str> {
    let rows = gateway["rows"].as_array().unwrap();
    rows.iter().map(|row| (row["id"].as_str().unwrap(), row["verdict"].as_str().unwrap())).collect()
}

/// Rows that a race in the gateway decides: two runs differ by chance.
pub(crate) const BY_CHANCE: [&str; 1] = ["tcp-first-syns"];

/// The verdicts but for those rows.
pub(crate) fn settled_verdicts(gateway: &Value) -> BTreeMap<&str, &str> {
    verdicts(gateway).into_iter().filter(|(id, _)| !BY_CHANCE.contains(id)).collect()
}

/// The observation of a row in words.
pub(crate) fn words_of<'a>(gateway: &'a Value, id: &str) -> &'a str {
    let rows = gateway["rows"].as_array().unwrap();
    rows.iter().find(|row| row["id"] == id).unwrap()["seen"].as_str().unwrap()
}

/// All gateways of a run that no timer slows down.
pub(crate) fn gateways(world: &World, names: &[&str], more: &[&str]) -> BTreeMap<String, Value> {
    let options: Vec<&str> = names.iter().flat_map(|name| ["--gateway", name]).collect();
    let document = json(world, "nat-lab", &[&["lab"], more, &options[..]].concat());
    let all = document["gateways"].as_array().unwrap();
    all.iter().map(|g| (g["gateway"].as_str().unwrap().to_owned(), g.clone())).collect()
}

/// The options that set these timeouts of the gateways' connection tracking, s.
pub(crate) fn timeouts(set: &[(&str, u32)]) -> Vec<String> {
    let option =
        |(name, s): &(&str, u32)| ["--sysctl".to_owned(), format!("net.netfilter.nf_conntrack_{name}={s}")];
    set.iter().flat_map(option).collect()
}
