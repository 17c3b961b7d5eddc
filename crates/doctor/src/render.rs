//! A diagnosis as a page that is read in a minute, and a cause as a page of its own.

mod since;

use std::fmt::Write as _;

use weir_text::layout::Terminal;
use weir_text::order;
use weir_text::units::{bytes, count, percent};

use crate::causes::{self, Cause};
use crate::diagnosis::{Diagnosis, STRAY, UNEXPLAINED};
use crate::evidence::{EvidenceSource, Sight};
use crate::finding::{Confidence, Finding, Severity};
use weir_text::page::{Page, Tone};

/// Facts shown of each finding; the JSON has all.
const FACTS: usize = 5;

/// The page. `place` says what was looked at.
pub fn render(diagnosis: &Diagnosis, place: &str, look: Terminal) -> String {
    let mut page = Page::new(look);
    if let Some(comparison) = &diagnosis.since {
        since::show(&mut page, comparison);
    }
    let (notes, told): (Vec<_>, Vec<_>) =
        diagnosis.findings.iter().partition(|f| f.severity == Severity::Note);
    page.section(&format!("{place}, watched for {:.1} s", diagnosis.window_s));
    page.line(&verdict(diagnosis, told.len()), 0, None);
    for (n, finding) in told.iter().enumerate() {
        show(&mut page, n + 1, finding);
    }
    if !notes.is_empty() {
        page.section("also noticed");
        for finding in notes {
            page.line(&format!("{}: {} [{}]", finding.place, finding.summary, finding.cause), 1, None);
        }
    }
    balance(&mut page, diagnosis);
    sight(&mut page, diagnosis);
    page.finish()
}

fn verdict(diagnosis: &Diagnosis, told: usize) -> String {
    let lost = diagnosis.lost;
    let mut words = match (told, lost.packets) {
        // Without that evidence source dropped packets are not counted.
        (0, 0) if !sees_drops(diagnosis) => {
            "Nothing wrong found in what could be seen: dropped packets are not in sight.".to_owned()
        }
        (0, 0) => "Nothing wrong found: no packet was lost here.".to_owned(),
        (0, n) => format!("Nothing wrong found: {} packets were lost, too few to matter.", count(n)),
        (1, _) => "One finding.".to_owned(),
        (n, _) => format!("{n} findings, the most important first."),
    };
    if told > 0 && lost.packets > 0 {
        let share = percent(lost.explained as f64 / lost.packets as f64);
        let _ = write!(words, " {} packets were lost; {share} of them are explained.", count(lost.packets));
    }
    if lost.harmless > 0 {
        let _ = write!(words, " Also, {} harmless drops.", count(lost.harmless));
    }
    words
}

fn sees_drops(diagnosis: &Diagnosis) -> bool {
    !matches!(diagnosis.evidence_sources.get(&EvidenceSource::Drops), None | Some(Sight::Blind(_)))
}

fn show(page: &mut Page, number: usize, finding: &Finding) {
    let title = causes::by_id(&finding.cause).map_or("loss without an explanation", |c| c.title);
    let (word, tone) = match finding.severity {
        Severity::Critical => ("critical", Tone::Bad),
        Severity::Warning => ("warning", Tone::Warning),
        Severity::Note => ("note", Tone::Faint),
    };
    let mut head = format!("{number}. {word}: {title}, in {}", finding.place);
    if finding.explains_packets > 0 {
        let _ = write!(
            head,
            ", {} of the loss ({} packets)",
            percent(finding.explains_ratio),
            count(finding.explains_packets)
        );
    }
    page.gap();
    page.line(&head, 0, Some(tone));
    page.line(&finding.summary, 3, None);
    if !finding.object.is_empty() {
        page.line(&format!("what: {}", finding.object), 3, None);
    }
    for fact in finding.evidence.iter().take(FACTS) {
        let name = fact.name.as_ref().map_or(String::new(), |n| format!("{n}: "));
        page.line(&format!("seen: {name}{}", fact.text), 3, None);
    }
    for not in &finding.not {
        page.line(&format!("not: {not}"), 3, Some(Tone::Faint));
    }
    let sure = match finding.confidence {
        Confidence::High => None,
        Confidence::Medium => Some("fairly sure"),
        Confidence::Low => Some("not sure"),
    };
    if let Some(sure) = sure {
        let sources: Vec<_> = finding.missing.iter().map(|p| p.words()).collect();
        let missing = if sources.is_empty() {
            String::new()
        } else {
            format!("; not in sight: {}", sources.join(", "))
        };
        page.line(&format!("{sure}{missing}"), 3, Some(Tone::Faint));
    }
    for fix in &finding.fixes {
        page.line(&format!("to do: {}", fix.title), 3, None);
        if let Some(why) = &fix.by_hand {
            page.line(why, 5, None);
        }
        for command in &fix.commands {
            for line in command.lines() {
                page.verbatim(line, 7, Some(Tone::Title));
            }
        }
        if !fix.risk.is_empty() {
            page.line(&format!("risk: {}", fix.risk), 5, Some(Tone::Faint));
        }
        for undo in &fix.undo {
            // Not wrapped: a broken line is another command when it is pasted.
            page.verbatim(&format!("undo: {undo}"), 5, Some(Tone::Faint));
        }
    }
    page.line(&format!("more: weir doctor explain {}", finding.cause), 3, Some(Tone::Faint));
}

fn balance(page: &mut Page, diagnosis: &Diagnosis) {
    let mut rows: Vec<_> = diagnosis.balance.iter().filter(|b| b.received + b.sent + b.lost > 0).collect();
    if rows.is_empty() {
        return;
    }
    order::by_key(&mut rows, |b| std::cmp::Reverse((b.lost, b.received + b.sent)));
    page.section("packets");
    let all = rows.len();
    let rows: Vec<Vec<String>> = rows
        .iter()
        .take(10)
        .map(|b| {
            let figures =
                [b.received, b.sent, b.forwarded, b.delivered, b.made, b.lost, b.unaccounted].map(count);
            figures.into_iter().chain([b.place.clone()]).collect()
        })
        .collect();
    page.columns(
        &["received", "sent", "forwarded", "delivered", "made here", "lost", "untraced", "where"],
        &rows,
    );
    if all > rows.len() {
        page.line(&format!("and {} more namespaces", all - rows.len()), 1, Some(Tone::Faint));
    }
}

fn sight(page: &mut Page, diagnosis: &Diagnosis) {
    let seen: Vec<_> = diagnosis
        .evidence_sources
        .iter()
        .filter(|(_, s)| !matches!(s, Sight::Blind(_)))
        .map(|(p, _)| p.words())
        .collect();
    page.gap();
    page.line(&format!("looked at: {}", seen.join(", ")), 0, Some(Tone::Faint));
    for (source, sight) in &diagnosis.evidence_sources {
        match sight {
            Sight::Seen => {}
            Sight::Partly(why) => {
                page.line(&format!("partly: {}: {why}", source.words()), 0, Some(Tone::Faint))
            }
            Sight::Blind(why) => {
                page.line(&format!("not in sight: {}: {why}", source.words()), 0, Some(Tone::Warning));
            }
        }
    }
    let cost = &diagnosis.cost;
    let mut words = format!("cost of looking: {:.0} ms of CPU", cost.cpu_ns as f64 / 1e6);
    if let (Some(ns), Some(runs)) = (cost.bpf_ns, cost.bpf_runs.filter(|runs| *runs > 0)) {
        let each = ns / runs;
        let _ =
            write!(words, ", {:.1} ms in the kernel ({} events of {each} ns)", ns as f64 / 1e6, count(runs));
    }
    let _ = write!(
        words,
        ", {} of memory, {:.0} ms of analysis, {} events lost",
        bytes(cost.memory_bytes),
        cost.analysis_ms,
        count(cost.events_lost)
    );
    page.line(&words, 0, Some(Tone::Faint));
}

/// The page of a cause, as Markdown: what `docs/reference/causes/ID.md` holds and `weir doctor explain ID` prints.
pub fn explain(cause: &Cause) -> String {
    let mut page = format!("# {}\n\n`{}`\n\n{}\n", capital(cause.title), cause.id, cause.about);
    let mut list = |title: &str, items: &[&str]| {
        if !items.is_empty() {
            let _ = write!(page, "\n## {title}\n\n");
            for item in items {
                let _ = writeln!(page, "- {item}");
            }
        }
    };
    list("Seen in every case", cause.must);
    list("Raises confidence", cause.should);
    list("Speaks against it", cause.must_not);
    let alike: Vec<String> =
        cause.lookalikes.iter().map(|(id, how)| format!("[{id}]({id}.md): {how}")).collect();
    list("Similar causes", &alike.iter().map(String::as_str).collect::<Vec<_>>());
    let _ = write!(page, "\n## What to do\n\n{}\n", cause.remedy);
    let _ = write!(page, "\n## How the self-test makes it\n\n");
    match cause.not_injected {
        Some(why) => {
            let _ = writeln!(page, "The self-test cannot make it: {why}");
        }
        None => {
            let names: Vec<_> =
                (cause.recipes)().iter().map(|r| format!("`{}/{}`", cause.id, r.name)).collect();
            let _ = writeln!(page, "`weir doctor selftest --case {}` runs {}.", cause.id, names.join(", "));
        }
    }
    let _ = write!(page, "\n## Sources\n\n");
    for source in cause.sources {
        let _ = writeln!(page, "- {source}");
    }
    page
}

/// The page of what no cause explains, which is a finding without being a cause.
pub fn explain_unexplained() -> String {
    format!(
        "# Packets that no known cause explains\n\n\
         `{UNEXPLAINED}`\n\n\
         Packets were dropped, and none of the causes that weir knows explains them. The finding names the functions of \
         the kernel that dropped most of them, with the kernel's reason, so that you can look them up.\n\n\
         ## Seen in every case\n\n\
         - dropped packets (`kfree_skb`) that are no noise, which every host has, and that no other finding explains\n\
         - at least {STRAY} of them in the window, and enough of the traffic for a warning\n\n\
         ## What to do\n\n\
         Check whether an evidence source was missing: the last lines of the page list it, and a cause that needs it \
         cannot be found without it. Otherwise look for the function in the kernel's source, and watch for longer: `weir \
         doctor --for 60 --save evidence.json` keeps the evidence. If weir should know the cause, please open an issue \
         with that file.\n\n\
         ## How the self-test makes it\n\n\
         The self-test cannot make it: every loss that it can make has a cause.\n\n\
         ## Sources\n\n\
         - include/net/dropreason-core.h of Linux: the reasons\n"
    )
}

/// All causes: id and title, by group.
pub fn list() -> String {
    let mut page = String::from("# Causes that the doctor knows\n");
    let mut group = None;
    for cause in causes::all() {
        if group != Some(cause.group) {
            group = Some(cause.group);
            let _ = write!(page, "\n## {}\n\n", heading(cause.group));
        }
        let _ = writeln!(page, "- [{}]({}.md): {}", cause.id, cause.id, cause.title);
    }
    let _ = write!(page, "\n## {}\n\n", heading(causes::Group::Rest));
    let _ = writeln!(page, "- [{UNEXPLAINED}]({UNEXPLAINED}.md): packets that no known cause explains");
    page
}

fn heading(group: causes::Group) -> &'static str {
    match group {
        causes::Group::Conntrack => "Connection tracking and address translation",
        causes::Group::Firewall => "Rules",
        causes::Group::Network => "Routes, MTU, fragments, neighbours",
        causes::Group::Queues => "Queues, drivers, cores",
        causes::Group::Sockets => "Sockets, and what is not on this host",
        causes::Group::FastPath => "The fast path of weir",
        causes::Group::Transit => "TCP that passes through, and is harmed beyond this host",
        causes::Group::Nat => "Failing rows of a table of `weir nat` (`weir doctor --nat`)",
        causes::Group::Rest => "The rest",
    }
}

fn capital(text: &str) -> String {
    let mut letters = text.chars();
    letters.next().map_or(String::new(), |first| first.to_uppercase().chain(letters).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::diagnosis::diagnose;
    use crate::evidence::{Cost, Evidence};

    fn page(sight: Sight, cost: Cost) -> String {
        let sources = [(EvidenceSource::Drops, sight)].into();
        let diagnosis = diagnose(&Evidence { evidence_sources: sources, cost, ..Evidence::default() });
        render(&diagnosis, "here", Terminal { width: 200, color: false })
    }

    #[test]
    fn that_no_packet_was_lost_is_said_only_where_drops_are_in_sight() {
        let claim = "no packet was lost";
        assert!(page(Sight::Seen, Cost::default()).contains(claim));
        let blind = page(Sight::Blind("this needs root".into()), Cost::default());
        assert!(!blind.contains(claim), "{blind}");
        assert!(blind.contains("dropped packets are not in sight."), "{blind}");
        assert!(blind.contains("not in sight: dropped packets: this needs root"), "{blind}");
    }

    #[test]
    fn the_time_of_an_event_is_told_where_there_was_one() {
        let cost = |runs| Cost { bpf_runs: Some(runs), bpf_ns: Some(30 * runs), ..Cost::default() };
        assert!(page(Sight::Seen, cost(1000)).contains("(1,000 events of 30 ns)"));
        let none = page(Sight::Seen, cost(0));
        assert!(none.contains("cost of looking") && !none.contains("events of"), "{none}");
    }
}
