//! Processes of a recording.

use weir_record::flows::{FlowsRecording, RecordedProcess};
use weir_text::escape::line;
use weir_text::units;

/// Heads of the table behind the name.
pub(super) const HEADS: [&str; 4] = ["TCP flows", "UDP flows", "sent", "received"];

/// Names and figures; none where no flow ended at the machine that watched.
pub(super) fn rows(recording: &FlowsRecording) -> Vec<(String, Vec<String>)> {
    let processes = &recording.last.processes;
    if processes.iter().all(|one| one.end.is_none()) {
        return Vec::new();
    }
    processes.iter().map(|one| (name(one), cells(one))).collect()
}

/// The process, and its container.
fn name(one: &RecordedProcess) -> String {
    let name = match &one.end {
        None => "(not on this host)".to_owned(),
        Some(end) => match (&end.process, end.pid) {
            (Some(name), Some(pid)) => format!("{name} (pid {pid})"),
            _ => "(unknown process)".to_owned(),
        },
    };
    line(&one.container.as_ref().map_or(name.clone(), |container| format!("{name}, {container}")))
}

fn cells(one: &RecordedProcess) -> Vec<String> {
    let bytes = [one.sent_bytes, one.received_bytes].map(units::bytes);
    [one.flows, one.udp_flows].map(units::count).into_iter().chain(bytes).collect()
}
