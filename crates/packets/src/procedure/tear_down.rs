//! Connection tear-down rate: RFC 9693.

use weir_record::FaultCode;
use weir_stats::order::median;

use super::progress::{Halt, RunProgress};

pub(super) fn run(progress: &mut RunProgress<'_>) -> Result<(), Halt> {
    let flows = progress.packets.flow_count();
    let (mut rates, mut full_ns, mut empty_ns) = (Vec::new(), Vec::new(), Vec::new());
    let mut lacking = 0;
    for _ in 0..progress.plan.tear_downs {
        progress.fill(flows)?;
        let (full, entries) = progress.empty()?;
        // A gateway without a table has nothing to tear down, and that is no fault.
        let Some(entries) = entries else { return Ok(()) };
        if entries < u64::from(flows) {
            let detail = format!(
                "{flows} connections were made, but the gateway held {entries} when they were torn down"
            );
            progress.note(FaultCode::ConnectionFailed, detail);
            lacking = lacking.max(u64::from(flows) - entries);
        }
        // The time of the command itself: RFC 9693 has it measured with an empty table and subtracted.
        let (empty, _) = progress.empty()?;
        let net = full.saturating_sub(empty).as_secs_f64();
        if net > 0.0 {
            rates.push(entries as f64 / net);
        }
        full_ns.push(full.as_secs_f64() * 1e9);
        empty_ns.push(empty.as_secs_f64() * 1e9);
    }
    for (name, values) in [("flush_full_ns", &full_ns), ("flush_empty_ns", &empty_ns)] {
        if let Some(ns) = median(values) {
            progress.set(name, ns);
        }
    }
    let tried = ("connections_tried", flows.into());
    progress.set_share("lacking_ratio", ("connections_lacking", lacking), tried);
    if lacking > 0 {
        // A table of fewer entries is emptied sooner: that is no rate for so many.
        progress.set("teardown_per_s", 0.0);
        return Ok(());
    }
    match median(&rates) {
        Some(rate) if rates.len() * 2 > full_ns.len() => progress.set("teardown_per_s", rate),
        _ => progress.void(
            FaultCode::TesterResources,
            format!(
                "emptying a table of {flows} took no longer than an empty one: too few connections to tell"
            ),
        ),
    }
    Ok(())
}
