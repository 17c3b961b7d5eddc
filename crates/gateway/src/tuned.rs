//! A host that was tuned by weir's own commands: `weir tune apply`, then `weir tune confirm`, and `weir tune rollback` at the end.
//!
//! The files that they write and the programs that they load have a place of their own. Several variants may thus be in effect on
//! one machine, and permanent tuning there stays untouched. A process of this agent's holds a mount namespace with an empty
//! folder (tmpfs) and a BPF file system. When that process ends, however it ends, both are gone, and the programs with them. If
//! it ends between apply and confirm, they go only when the guard of `weir tune` ends.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use weir_sys::process::{Process, spawn};

use crate::command;
use crate::held::Held;
use crate::journal::Change;
use crate::{Error, Journal, Place};

/// Programs that it needs.
pub(crate) const PROGRAMS: [&str; 4] = ["unshare", "nsenter", "mount", "sh"];

/// A profile of `weir tune` that tunes a host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Tuning {
    /// Published ports by BPF, without connection tracking.
    PublishedPorts,
}

impl Tuning {
    /// As `--profile` has it.
    pub(crate) fn profile(self) -> &'static str {
        match self {
            Tuning::PublishedPorts => "published-ports",
        }
    }
}

/// Folders of the private mount namespace, below what is mounted at /tmp.
const STATE: &str = "/tmp/state";
const BPF: &str = "/tmp/bpf";

/// How long the guard waits for the confirmation that comes right after.
const CONFIRM_WITHIN: &str = "30s";

/// Who holds the mount namespaces, by the tag of their place.
static HELD: Held<Process> = Held::new();

/// Tunes the calling thread's host.
pub(crate) fn apply(place: &Place, tuned: &[Tuning], journal: &mut Journal) -> Result<(), Error> {
    let mut words = vec!["apply", "--interface", &place.inside_interface, "--no-watch", "--json"];
    words.extend(["--confirm-within", CONFIRM_WITHIN]);
    words.extend(tuned.iter().flat_map(|tuning| ["--profile", tuning.profile()]));
    let holder = hold()?;
    // Only this function knows of the process before it is in the journal.
    journal.record(Change::Tuned { tag: place.tag.clone() })?;
    HELD.add(place, holder);
    let applied = weir(&place.tag, &[&["tune"], &words[..]].concat())?;
    if applied["set"].is_null() {
        let notes = applied["plan"]["notes"].as_array().into_iter().flatten().filter_map(Value::as_str);
        let held = applied["plan"]["actions"].as_array().into_iter().flatten();
        let held = held.filter_map(|action| action["held"].as_str());
        let why: Vec<&str> = notes.chain(held).collect();
        return Err(Error::Unsupported(format!(
            "tuned: weir tune found nothing to apply: {}",
            why.join("; ")
        )));
    }
    weir(&place.tag, &["tune", "confirm", "--json"]).map(drop)
}

/// Whether what was applied is in effect.
pub(crate) fn verify(place: &Place) -> Result<(), Error> {
    let status = weir(&place.tag, &["publish", "status", "--json"])
        .map_err(|e| Error::NotInEffect(format!("tuned: {e}")))?;
    match status["containers"].as_array() {
        Some(containers) if !containers.is_empty() => Ok(()),
        _ => Err(Error::NotInEffect("tuned: no program leads published ports".into())),
    }
}

/// Packets that the programs translated.
pub(crate) fn counter(place: &Place) -> Result<u64, Error> {
    let status = weir(&place.tag, &["publish", "status", "--json"])?;
    let containers = status["containers"].as_array().into_iter().flatten();
    let counts = containers.flat_map(|container| container["counts"].as_array().into_iter().flatten());
    let translated = counts
        .filter(|count| count["reason"].as_str().is_some_and(|reason| reason.starts_with("translated")));
    Ok(translated.filter_map(|count| count["packets"].as_u64()).sum())
}

/// Rolls back the tuning at that place, if this process did it; another process's tuning went with that process.
pub(crate) fn remove(tag: &str) -> Result<(), Error> {
    if HELD.with(tag, |_| ()).is_none() {
        return Ok(());
    }
    // It may have ended before anything was applied.
    if !weir(tag, &["tune", "status", "--json"])?["set"].is_null() {
        weir(tag, &["tune", "rollback", "--json"])?;
    }
    // With its mount namespace go the programs, if there are any left.
    HELD.remove(tag);
    Ok(())
}

/// A process with a mount namespace of its own, in which the two folders are.
fn hold() -> Result<Process, Error> {
    let script = format!(
        "mount -t tmpfs -o mode=700 tmpfs /tmp && mkdir {STATE} {BPF} && mount -t bpf bpf {BPF} && echo ready && exec cat"
    );
    let mut unshare = Command::new(command::require("unshare")?);
    unshare.args(["--mount", "--propagation", "private", "--", "sh", "-c", &script]);
    unshare.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut holder = spawn(unshare)?;
    let mut line = String::new();
    // It ends, and says why, or is ready.
    let read = holder.stdout.take().map(|out| BufReader::new(out).read_line(&mut line));
    if line == "ready\n" {
        return Ok(holder);
    }
    let mut why = String::new();
    if let (Some(Ok(_)), Some(stderr)) = (read, holder.stderr.take()) {
        let _ = BufReader::new(stderr).read_line(&mut why);
    }
    Err(Error::Command {
        command: "mount -t bpf, in a mount namespace".into(),
        output: why.trim().to_owned(),
    })
}

/// Runs this very program with these words at that place, and returns what it printed, which is JSON.
fn weir(tag: &str, words: &[&str]) -> Result<Value, Error> {
    let pid = HELD.with(tag, Process::pid);
    let pid = pid.ok_or_else(|| Error::NotInEffect("tuned: its mount namespace is gone".into()))?;
    // Its file may have another name by now, and the names are others in there.
    let program = format!("/proc/{}/exe", std::process::id());
    let mut all = vec!["--mount".to_owned(), "--target".into(), pid.to_string(), "--".into(), "env".into()];
    all.extend([format!("WEIR_STATE_DIR={STATE}"), format!("WEIR_BPF_DIR={BPF}"), program]);
    all.extend(words.iter().map(|&word| word.to_owned()));
    let said = |output: String| Error::Command { command: format!("weir {}", words.join(" ")), output };
    let printed = command::run_long("nsenter", &all, "").map_err(|e| match e {
        Error::Command { output, .. } => said(output),
        other => other,
    })?;
    serde_json::from_str(&printed).map_err(|_| said(printed))
}
