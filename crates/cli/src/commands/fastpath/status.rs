//! `weir fastpath status`.

use std::fmt::Write as _;
use std::time::Duration;

use weir_fastpath::{
    AttachedBy, ChangeCount, Exclusion, ExclusionStore, Flow, Learns, Median, Now, Reason, ReasonCount,
    Times, Top, Visit, leftovers,
};
use weir_guard::{ChangeGuard, Phase};
use weir_text::escape::line;
use weir_text::units::{self, Unit};

use super::exclude::kept_lines;
use super::{BY, driver_lines};
use crate::args::fastpath::StatusArgs;
use crate::commands::on_trial::{needs_root, trial_line};
use crate::documents::{FastpathStatus, StatusSet, print_json};
use crate::exit::{CommandResult, Failure, NOT_MET};
use crate::output::print;

pub(super) fn run(args: &StatusArgs) -> CommandResult {
    needs_root("fastpath status")?;
    // First, because it rolls back a change set for which no process is responsible any more.
    let set = ChangeGuard::new(BY).status()?;
    let now = Visit::look()?;
    let flows = match (args.flows, Visit::find()?) {
        (Some(most), Some(visit)) => Some(visit.flows(most)?),
        (Some(_), None) => Some(Vec::new()),
        (None, _) => None,
    };
    let (kept, unreadable) = kept(now.as_ref());
    let top = match (args.top, Visit::find()?) {
        (Some(most), Some(visit)) => Some(count(&visit, most)?),
        _ => None,
    };
    let confirmed = set.as_ref().is_some_and(|status| matches!(status.set.phase, Phase::Confirmed { .. }));
    let mut wrong = wrong(now.as_ref(), confirmed);
    wrong.extend(unreadable);
    if now.is_none() {
        let left = |name: &String| {
            format!("{name}: filters of an ended fast path are left, and carry nothing; weir fastpath remove")
        };
        wrong.extend(leftovers()?.iter().map(left));
    }
    if args.loaded.json {
        print_json(&FastpathStatus {
            in_effect: wrong.is_empty(),
            wrong: &wrong,
            carried_ratio: now.as_ref().and_then(carried),
            now: now.as_ref(),
            kept: &kept,
            flows: flows.as_deref(),
            top: top.as_ref(),
            set: set.as_ref().map(StatusSet::of),
        })?;
    } else {
        let mut page = match &now {
            Some(now) => page(now),
            None => "no fast path is in effect here\n".to_owned() + &kept_lines(&kept),
        };
        page.push_str(&listing(flows.as_deref().unwrap_or_default()));
        page.push_str(&top.as_ref().map_or_else(String::new, busiest));
        if let Some(status) = &set {
            page.push_str(&trial_line(status));
        }
        for why in &wrong {
            let _ = writeln!(page, "{}", line(why));
        }
        print(&page)?;
    }
    if wrong.is_empty() { Ok(()) } else { Err(Failure::Silent(NOT_MET)) }
}

/// Exclusions that are kept; and why they cannot be read.
fn kept(now: Option<&Now>) -> (Vec<Exclusion>, Option<String>) {
    if let Some(now) = now {
        return (now.kept.clone(), None);
    }
    match ExclusionStore::usual().and_then(|store| store.read()) {
        Ok(kept) => (kept, None),
        Err(e) => (Vec::new(), Some(e.to_string())),
    }
}

fn wrong(now: Option<&Now>, confirmed: bool) -> Vec<String> {
    let Some(now) = now else {
        let gone = "what was confirmed is gone: its process has ended, or the machine was started again; weir fastpath apply starts it";
        return if confirmed { vec![gone.into()] } else { Vec::new() };
    };
    let missing = now.wanted.interfaces.iter().filter(|name| !now.interfaces.contains(name));
    let mut wrong: Vec<String> =
        missing.map(|name| format!("{name}: no programs are attached: is the interface gone?")).collect();
    if wrong.is_empty() && !now.attached {
        wrong.push("programs are not where they were attached".into());
    }
    wrong
}

/// Columns of the page.
const WIDTH: usize = 100;

/// Share of the packets that came in.
fn carried(now: &Now) -> Option<f64> {
    let all: u64 = now.reasons.iter().map(|count| count.packets).sum();
    let carried =
        now.reasons.iter().find(|count| count.reason == Reason::Carried).map_or(0, |count| count.packets);
    (all > 0).then(|| carried as f64 / all as f64)
}

fn page(now: &Now) -> String {
    let names: Vec<String> = now.interfaces.iter().map(|name| line(name)).collect();
    let mut page = format!("between {}: ", names.join(", "));
    page.push_str(&match carried(now) {
        _ if now.paused => "paused, everything takes the kernel's way\n".to_owned(),
        None => "no packet has come in yet\n".to_owned(),
        Some(share) => format!("{} of the packets were carried\n", units::percent(share)),
    });
    let _ = writeln!(
        page,
        "flow table: {} of {} directions in use; all learnt anew: {} times; process {}",
        units::count(now.directions),
        units::count(2 * (u64::from(now.wanted.connections) + u64::from(now.wanted.connections6))),
        now.generation,
        now.pid
    );
    page.push_str(match now.attached_by {
        AttachedBy::Tcx => "attached by TCX\n",
        AttachedBy::Clsact => "attached by clsact: this kernel has no TCX; if the process is killed, the filters stay and carry nothing\n",
    });
    if now.learns == Learns::ByNetlink {
        page.push_str("learns by ctnetlink: this kernel lacks conntrack's functions for BPF\n");
    }
    if !now.drivers.is_empty() {
        page.push_str(&driver_lines(&now.drivers));
    }
    for exclusion in &now.wanted.excluded {
        let _ = writeln!(page, "left to the kernel: {exclusion}");
    }
    page.push_str(&kept_lines(&now.kept));
    if !now.changes.is_empty() {
        let of = |count: &ChangeCount| format!("{} of {}", count.times, count.change.words());
        let changes: Vec<String> = now.changes.iter().map(of).collect();
        page.push_str(&weir_text::layout::paragraph("  because of ", 2, &changes.join(", "), WIDTH));
    }
    let mut counts = |head: &str, counts: &[ReasonCount]| {
        let _ = writeln!(page, "\n{:>16} {:>20}  {head}", "packets", "bytes");
        for count in counts {
            let _ = writeln!(page, "{:>16} {:>20}  {}", count.packets, count.bytes, count.reason.words());
        }
    };
    counts("packets that came in", &now.reasons);
    if !now.by_xdp.is_empty() {
        counts("of them XDP saw first, and left all but the carried to tc", &now.by_xdp);
    }
    if !now.lessons.is_empty() {
        let _ = writeln!(page, "\n{:>16}  attempts to learn a flow", "number");
    }
    for count in &now.lessons {
        let _ = writeln!(page, "{:>16}  {}", count.attempts, count.result.words());
    }
    page.push('\n');
    page.push_str(&saved(&now.times));
    page
}

/// The time that carrying saves, once it is known.
fn saved(times: &Times) -> String {
    let (Some(kernel), Some(carried), Some(each)) = (times.kernels_way, times.carried, times.saved_ns) else {
        return String::new();
    };
    let time = |ns: f64, interval| units::quantity(Unit::Ns, ns, interval);
    let of = |median: Median| time(median.ns, Some(median.interval_ns));
    // An interval of a loss is turned round, too.
    let (word, sign) = if each < 0.0 { ("lost", -1.0) } else { ("saved", 1.0) };
    let interval =
        times.saved_interval_ns.map(|(low, high)| if sign < 0.0 { (-high, -low) } else { (low, high) });
    let all = time(times.saved_s.unwrap_or_default() * sign * 1e9, None);
    let text = format!(
        "time of a packet, median: by the kernel's way {} ({} timed), carried {} ({} timed); {word}: {} a packet, {all} of a core until now",
        of(kernel),
        units::count(kernel.packets),
        of(carried),
        units::count(carried.packets),
        time(each * sign, interval),
    );
    weir_text::layout::paragraph("", 2, &text, WIDTH) + "\n"
}

/// Time for which flows are counted one by one.
const WINDOW: Duration = Duration::from_secs(1);

fn count(visit: &Visit, most: usize) -> Result<Top, Failure> {
    visit.begin_count()?;
    std::thread::sleep(WINDOW);
    Ok(visit.top(most)?)
}

/// The directions of flows with most bytes.
fn busiest(top: &Top) -> String {
    let mut text = format!(
        "{:>14} {:>10}  flows with most bytes, of {} in {:.1} s\n",
        "bit/s", "packet/s", top.counted, top.window_s
    );
    let rate = |n: u64| n as f64 / top.window_s.max(0.001);
    for flow in &top.flows {
        let _ = writeln!(
            text,
            "{:>14.0} {:>10.0}  {} {} -> {}",
            8.0 * rate(flow.bytes),
            rate(flow.packets),
            flow.protocol,
            flow.source,
            flow.destination
        );
    }
    if top.uncounted_packets > 0 {
        let _ = writeln!(
            text,
            "{:>14} {:>10.0}  of flows for which the counts had no room",
            "",
            rate(top.uncounted_packets)
        );
    }
    text.push('\n');
    text
}

fn listing(flows: &[Flow]) -> String {
    let mut text = String::new();
    for flow in flows {
        let idle = flow.idle_s.map_or(String::new(), |s| format!(", idle {s} s"));
        let stale = if flow.stale { ", stale" } else { "" };
        let _ = writeln!(text, "{} {} -> {}", flow.protocol, flow.source, flow.destination);
        let _ = writeln!(text, "  leaves as {} -> {}{idle}{stale}", flow.out.source, flow.out.destination);
    }
    text
}

#[cfg(test)]
mod tests {
    use weir_fastpath::{Change, Protocol, ReasonCount, TopFlow, Wanted, XdpInterface};

    use super::*;

    fn now(interfaces: &[&str]) -> Now {
        let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
        let wanted = Wanted {
            interfaces: names(&["in0", "out0"]),
            connections: 1000,
            connections6: 64,
            packets: 8,
            excluded: Vec::new(),
            xdp: Vec::new(),
        };
        let count = |reason, packets| ReasonCount { reason, packets, bytes: 100 * packets };
        Now {
            id: "0123".into(),
            pid: 7,
            since_s: 1,
            trial_left_s: None,
            wanted,
            kept: vec!["192.0.2.0/24:53/udp".parse().unwrap()],
            interfaces: names(interfaces),
            attached: interfaces.len() == 2,
            attached_by: AttachedBy::Tcx,
            learns: Learns::InKernel,
            paused: false,
            carries_ipv6: true,
            generation: 3,
            changes: vec![ChangeCount { change: Change::Routes, times: 3 }],
            directions: 2,
            reasons: vec![count(Reason::Carried, 75), count(Reason::Unknown, 25)],
            by_xdp: vec![count(Reason::Carried, 60)],
            drivers: vec![XdpInterface {
                name: "in0".into(),
                incoming: None,
                outgoing: Some("its queueing discipline htb decides about them".into()),
            }],
            lessons: Vec::new(),
            times: Times::default(),
        }
    }

    #[test]
    fn the_page_says_what_share_was_carried() {
        let page = page(&now(&["in0", "out0"]));
        assert!(page.starts_with("between in0, out0: 75"), "{page}");
        assert!(page.contains("its flow is not in the table"), "{page}");
        assert!(page.contains("left to the kernel until exclude --remove: 192.0.2.0/24:53/udp"), "{page}");
        assert!(page.lines().all(|line| line.chars().count() <= 100), "{page}");
        assert!(page.contains("  in0: packets that come in; those that leave not: its queueing"), "{page}");
        assert!(page.contains("              60                 6000  carried\n"), "{page}");
        let mut paused = now(&["in0", "out0"]);
        paused.paused = true;
        assert!(super::page(&paused).contains("paused"), "a pause is said first");
    }

    #[test]
    fn the_time_saved_is_said_once_it_is_known() {
        assert_eq!(saved(&Times::default()), "");
        let median = |ns: f64| Some(Median { packets: 1000, ns, interval_ns: (ns - 4.0, ns + 4.0) });
        let times = |kernel: f64, carried: f64| Times {
            kernels_way: median(kernel),
            carried: median(carried),
            saved_ns: Some(kernel - carried),
            saved_interval_ns: Some((kernel - carried - 8.0, kernel - carried + 8.0)),
            saved_s: Some((kernel - carried) / 10.0),
        };
        let text = saved(&times(412.0, 187.0)).replace("\n  ", " ");
        assert!(text.contains("kernel's way 412 ns [408, 416] (1,000 timed)"), "{text}");
        assert!(
            text.ends_with("saved: 225 ns [217, 233] a packet, 22.5 s of a core until now\n\n"),
            "{text}"
        );
        let text = saved(&times(187.0, 412.0)).replace("\n  ", " ");
        assert!(text.ends_with("lost: 225 ns [217, 233] a packet, 22.5 s of a core until now\n\n"), "{text}");
    }

    #[test]
    fn the_busiest_flows_are_rates_and_what_had_no_room_is_not_hidden() {
        let flow = TopFlow {
            protocol: Protocol::Udp,
            source: "192.0.2.1:4000".parse().unwrap(),
            destination: "192.0.2.2:53".parse().unwrap(),
            packets: 100,
            bytes: 10_000,
        };
        let top = |uncounted_packets| Top {
            window_s: 2.0,
            flows: vec![flow.clone()],
            counted: 7,
            uncounted_packets,
        };
        let text = busiest(&top(0));
        assert!(text.contains("         40000         50  udp 192.0.2.1:4000 -> 192.0.2.2:53\n"), "{text}");
        assert!(text.contains("of 7 in 2.0 s") && !text.contains("no room"), "{text}");
        assert!(
            busiest(&top(30)).contains(" 15  of flows for which the counts had no room"),
            "{}",
            busiest(&top(30))
        );
    }

    #[test]
    fn an_interface_without_programs_is_wrong_and_so_is_a_confirmed_one_that_is_gone() {
        assert!(wrong(Some(&now(&["in0", "out0"])), true).is_empty());
        assert_eq!(
            wrong(Some(&now(&["in0"])), true),
            ["out0: no programs are attached: is the interface gone?"]
        );
        assert!(wrong(None, false).is_empty());
        assert!(wrong(None, true)[0].contains("weir fastpath apply"), "a confirmed one is gone");
    }
}
