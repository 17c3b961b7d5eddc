//! The table of processes.

use weir_text::escape::line;
use weir_text::page::{Page, Tone};
use weir_text::units;

use super::fitted;
use crate::processes::ProcessSum;
use crate::reading::Reading;

/// Rows, at most.
const MOST: usize = 20;

/// Processes at the ends of flows; nothing where none was looked for, or no flow ends on this machine.
pub(super) fn table(page: &mut Page, reading: &Reading, width: usize) {
    if reading.processes.iter().any(|sum| sum.end.is_some()) {
        let rows = reading.processes.iter().take(MOST).map(row).collect();
        fitted(page, &["process", "TCP", "UDP", "sent", "received"], rows, width);
    }
    if let Some(why) = &reading.processes_missing {
        page.gap();
        page.line(&format!("processes: {}", line(why)), 1, Some(Tone::Warning));
    }
}

fn row(sum: &ProcessSum) -> Vec<String> {
    let container = sum.container.as_deref().map(|name| format!("  {name}")).unwrap_or_default();
    vec![
        line(&format!("{}{container}", sum.words())),
        units::count(sum.flows),
        units::count(sum.udp_flows),
        units::bytes(sum.sent_bytes),
        units::bytes(sum.received_bytes),
    ]
}

#[cfg(test)]
mod tests {
    use weir_text::layout::Terminal;

    use super::*;
    use crate::processes::LocalEnd;

    fn sum(end: Option<LocalEnd>, container: Option<&str>) -> ProcessSum {
        let container = container.map(str::to_owned);
        ProcessSum { end, container, flows: 1, udp_flows: 2, sent_bytes: 1024, received_bytes: 2048 }
    }

    #[test]
    fn processes_are_listed_with_their_containers_and_names_are_harmless() {
        let process = LocalEnd { pid: Some(7), process: Some("c\u{1b}[31murl".to_owned()) };
        let unknown = LocalEnd { pid: None, process: None };
        let mut reading = Reading { networks_in_all: 1, ..Reading::empty() };
        reading.processes = vec![sum(None, None)];
        let page = |reading: &Reading| crate::render(reading, Terminal { width: 80, color: false });
        assert!(!page(&reading).contains("process"), "a router without processes has no table of them");
        reading.processes.push(sum(Some(process), Some("docker \u{1b}[31mweb")));
        reading.processes.push(sum(Some(unknown), None));
        reading.processes_missing = Some("no look".to_owned());
        let text = page(&reading);
        let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        let lines: Vec<String> = text.lines().map(words).collect();
        for line in [
            "process TCP UDP sent received",
            "(not on this host) 1 2 1024 B 2048 B",
            "curl (pid 7) docker web 1 2 1024 B 2048 B",
            "(unknown process) 1 2 1024 B 2048 B",
            "processes: no look",
        ] {
            assert!(lines.iter().any(|l| l == line), "{line}:\n{text}");
        }
        assert!(!text.contains('\u{1b}'), "{text:?}");
    }
}
