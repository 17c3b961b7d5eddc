//! The fast path of a namespace, as its process tells.

use std::time::Duration;

use serde::Serialize;
use weir_fastpath::{Confirmed, Now, Presence, Visit};
use weir_sys::{Error, ProcRoot, Result};
use weir_text::order;

use crate::evidence::{Counters, Delta, FastPath, FastPathProcess, counters_since};

/// Longest wait for an answer. A process that is alive answers within a tenth of a second, and its lease ends after two.
const PATIENCE: Duration = Duration::from_secs(2);

/// The fast path of the calling thread's namespace. `None` if there is none and none was confirmed.
pub(super) fn read(root: &ProcRoot) -> Result<Option<FastPath>> {
    let failed = |e: weir_fastpath::Error| Error::other("look at the fast path", e.to_string());
    Ok(match Visit::presence(PATIENCE).map_err(failed)? {
        Presence::Answers(now) => Some(of(&now)),
        Presence::Silent { pid } => {
            let process = FastPathProcess::Silent { pid, stopped: is_stopped(root, pid) };
            Some(FastPath { process, ..FastPath::default() })
        }
        Presence::None => Confirmed::here().map_err(failed)?.map(|confirmed| {
            let process = if confirmed.rebooted { FastPathProcess::Rebooted } else { FastPathProcess::Gone };
            FastPath { process, ..FastPath::default() }
        }),
    })
}

/// Field 3 of its `stat`, behind the name in parentheses: T or t (proc(5)). One that cannot be read is not stopped.
fn is_stopped(root: &ProcRoot, pid: u32) -> bool {
    let stat = root.read(&format!("proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['T', 't']))
}

fn of(now: &Now) -> FastPath {
    let wanted = &now.wanted;
    let missing = wanted.interfaces.iter().filter(|name| !now.interfaces.contains(name));
    let excluded = wanted.excluded.iter().chain(&now.kept).map(ToString::to_string);
    FastPath {
        process: FastPathProcess::Answers { pid: now.pid },
        paused: now.paused,
        interfaces: now.interfaces.clone(),
        without_programs: missing.cloned().collect(),
        room: 2 * (u64::from(wanted.connections) + u64::from(wanted.connections6)),
        directions: now.directions,
        learnt_anew: Delta::at(now.generation.into()),
        changes: order::map(now.changes.iter().map(|count| named(&count.change, count.times))),
        packets: order::map(now.reasons.iter().map(|count| named(&count.reason, count.packets))),
        attempts: order::map(now.lessons.iter().map(|count| named(&count.result, count.attempts))),
        excluded: excluded.collect(),
    }
}

/// A count by the name that it has in JSON.
fn named(name: &impl Serialize, count: u64) -> (String, Delta) {
    let name = serde_json::to_value(name).ok().and_then(|value| value.as_str().map(str::to_owned));
    (name.unwrap_or_default(), Delta::at(count))
}

/// Makes a reading the end of a window. Another process counts from zero.
pub(super) fn since(now: &mut FastPath, earlier: Option<&FastPath>) {
    let same = earlier.filter(|earlier| earlier.process == now.process);
    let none = Counters::new();
    counters_since(&mut now.changes, same.map_or(&none, |earlier| &earlier.changes));
    counters_since(&mut now.packets, same.map_or(&none, |earlier| &earlier.packets));
    counters_since(&mut now.attempts, same.map_or(&none, |earlier| &earlier.attempts));
    // Its number has 16 bits.
    let before = same.map_or(0, |earlier| earlier.learnt_anew.after);
    let times = now.learnt_anew.after.wrapping_sub(before) & 0xffff;
    now.learnt_anew = Delta { before, after: before + times };
}

#[cfg(test)]
mod tests {
    use weir_testkit::Files;

    use super::*;

    fn reading(pid: u32, generation: u64, carried: u64) -> FastPath {
        FastPath {
            process: FastPathProcess::Answers { pid },
            learnt_anew: Delta::at(generation),
            packets: [("carried".to_owned(), Delta::at(carried))].into(),
            ..FastPath::default()
        }
    }

    #[test]
    fn a_window_counts_its_own_part_also_over_the_end_of_the_number() {
        let during = |earlier: Option<&FastPath>, mut now: FastPath| {
            since(&mut now, earlier);
            (now.learnt_anew.change(), now.packets("carried"))
        };
        assert_eq!(during(Some(&reading(7, 10, 100)), reading(7, 14, 150)), (4, 50));
        assert_eq!(during(Some(&reading(7, 65_530, 100)), reading(7, 4, 150)), (10, 50));
        assert_eq!(during(Some(&reading(7, 10, 100)), reading(8, 3, 20)), (3, 20), "another process");
        assert_eq!(during(None, reading(7, 3, 20)), (3, 20));
    }

    #[test]
    fn a_stopped_process_is_told_from_a_running_one_whatever_its_name() {
        let files = Files::new(&[
            ("proc/7/stat", "7 (weir) T 1 7 7"),
            ("proc/8/stat", "8 (a) T b) S 1 8 8"),
            ("proc/9/stat", "9 (weir) t 1"),
        ]);
        let stopped = [7, 8, 9, 10].map(|pid| is_stopped(&files.root(), pid));
        assert_eq!(stopped, [true, false, true, false]);
    }
}
