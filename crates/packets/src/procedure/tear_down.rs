//! Connection tear-down rate: RFC 9693.

use weir_record::FaultCode;
use weir_stats::order::median;

use super::course::{Course, Halt};

pub(super) fn run(course: &mut Course<'_>) -> Result<(), Halt> {
    let flows = course.packets.flow_count();
    let (mut rates, mut full_ns, mut empty_ns) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..course.plan.tear_downs {
        course.fill(flows)?;
        let (full, entries) = course.empty()?;
        // A gateway without a table has nothing to tear down, and that is no fault.
        let Some(entries) = entries else { return Ok(()) };
        if entries < u64::from(flows) {
            let detail = format!(
                "{flows} connections were made, but the gateway held {entries} when they were torn down"
            );
            return Err(course.halt(FaultCode::ConnectionFailed, detail));
        }
        // What the command itself takes: RFC 9693 has it measured with an empty table and subtracted.
        let (empty, _) = course.empty()?;
        let net = full.saturating_sub(empty).as_secs_f64();
        if net > 0.0 {
            rates.push(entries as f64 / net);
        }
        full_ns.push(full.as_secs_f64() * 1e9);
        empty_ns.push(empty.as_secs_f64() * 1e9);
    }
    for (name, values) in [("flush_full_ns", &full_ns), ("flush_empty_ns", &empty_ns)] {
        if let Some(ns) = median(values) {
            course.set(name, ns);
        }
    }
    match median(&rates) {
        Some(rate) if rates.len() * 2 > full_ns.len() => course.set("teardown_per_s", rate),
        _ => course.void(
            FaultCode::TesterResources,
            format!(
                "emptying a table of {flows} took no longer than an empty one: too few connections to tell"
            ),
        ),
    }
    Ok(())
}
