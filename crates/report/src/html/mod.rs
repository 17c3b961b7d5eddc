//! One self-contained page: no network, no script, readable in light and dark and on paper.

mod against;
mod background;
mod curves;
mod figures;
mod patterns;
mod profile;
mod tables;

use weir_record::results::Results;
use weir_record::{Run, Status};

use crate::escape::line;
use crate::markup::Markup;
use crate::sentences::sentences;
use crate::{pairs, summary, view, words};

/// Sections in the order of the page: anchor, heading.
const SECTIONS: [(&str, &str); 14] = [
    ("patterns", "Ways to connect"),
    ("results", "Results"),
    ("found", "Findings of the doctor"),
    ("curves", "Curves"),
    ("takes", "Setup cost of the variants"),
    ("pairs", "Workloads against each other"),
    ("effects", "Effects"),
    ("latency", "Latency"),
    ("spent", "The gateway's CPU time"),
    ("time", "Over time"),
    ("trials", "Every trial"),
    ("faults", "Faults"),
    ("how", "How it was made"),
    ("read", "How to read this"),
];

/// The run as one HTML file (well-formed XML too). Figures are inline SVG; everything from outside is
/// escaped.
pub fn html(run: &Run) -> String {
    page(&run.weir, &line(&run.title), |out| {
        header(out, run);
        if let Some(results) = &run.results {
            concluded(out, run, results);
        } else {
            out.leaf(
                "p",
                &[("class", "lead")],
                "This record holds no results: nothing was concluded from its trials.",
            );
        }
        section(out, "how", |out| background::how_it_was_made(out, run));
        section(out, "read", background::how_to_read);
    })
}

/// A self-contained page of that version of weir, with its style sheet.
pub(crate) fn page(weir: &str, title: &str, body: impl FnOnce(&mut Markup)) -> String {
    let mut out = Markup::new();
    out.verbatim("<!DOCTYPE html>\n");
    out.open("html", &[("lang", "en")]);
    out.open("head", &[]);
    out.empty("meta", &[("charset", "utf-8")]);
    out.empty("meta", &[("name", "viewport"), ("content", "width=device-width, initial-scale=1")]);
    out.empty("meta", &[("name", "generator"), ("content", &format!("weir {}", line(weir)))]);
    out.leaf("title", &[], &format!("{title} · weir"));
    out.open("style", &[]).verbatim(include_str!("style.css")).close();
    out.close();
    out.open("body", &[]).open("main", &[]);
    body(&mut out);
    out.finish() + "\n"
}

/// Writes the conclusions from the trials, with the contents before them.
fn concluded(out: &mut Markup, run: &Run, results: &Results) {
    lead(out, run, results);
    let pairs = pairs::rows(run, results);
    // A run of one variant has no effect against a baseline to draw.
    let alone = view::compared(run).all(|v| v.baseline) || view::workloads(run).next().is_none();
    let sweeps = crate::curves::curves(run, results);
    let only_sweeps = !sweeps.is_empty() && view::workloads(run).next().is_none();
    let profiled = crate::profile::any(run);
    let diagnosed = crate::diagnosed::any(run);
    let taken = crate::setup_cost::setup_cost(run);
    let ways = crate::patterns::view(run, results);
    contents(out, |anchor| match anchor {
        "patterns" => ways.is_some(),
        "results" => !only_sweeps,
        "curves" => !sweeps.is_empty(),
        "pairs" => !pairs.is_empty(),
        "effects" => !alone,
        "spent" => profiled,
        "found" => diagnosed,
        "takes" => taken.is_some(),
        _ => true,
    });
    if let Some(view) = &ways {
        section(out, "patterns", |out| patterns::section(out, view));
    }
    if !only_sweeps {
        section(out, "results", |out| tables::results(out, run, results));
    }
    if diagnosed {
        section(out, "found", |out| tables::diagnoses(out, run));
    }
    if !sweeps.is_empty() {
        section(out, "curves", |out| curves::section(out, &sweeps));
    }
    if let Some(taken) = &taken {
        section(out, "takes", |out| tables::setup_cost(out, taken));
    }
    if !pairs.is_empty() {
        section(out, "pairs", |out| against::section(out, run, results, &pairs));
    }
    if !alone {
        section(out, "effects", |out| figures::effects(out, run, results));
    }
    section(out, "latency", |out| figures::latency(out, run));
    if profiled {
        section(out, "spent", |out| profile::section(out, run, results));
    }
    section(out, "time", |out| figures::time(out, run));
    section(out, "trials", |out| figures::every_trial(out, run, results));
    section(out, "faults", |out| tables::faults(out, run, results));
}

fn section(out: &mut Markup, anchor: &str, body: impl FnOnce(&mut Markup)) {
    let heading = SECTIONS.iter().find(|s| s.0 == anchor).map_or(anchor, |s| s.1);
    out.open("section", &[("id", anchor)]);
    out.leaf("h2", &[], heading);
    body(out);
    out.close();
}

fn header(out: &mut Markup, run: &Run) {
    out.open("header", &[]);
    out.leaf("h1", &[], &line(&run.title));
    let class = match run.status {
        Status::Failed { .. } | Status::Interrupted | Status::Running => "sub worse",
        _ => "sub",
    };
    out.leaf("p", &[("class", class)], &capital(&words::status(&run.status)));
    out.open("dl", &[]);
    let when = match &run.ended {
        Some(ended) => format!("{} to {}", line(&run.started), line(ended)),
        None => format!("{}, no end recorded", line(&run.started)),
    };
    pair(out, "Scenario", &line(&run.scenario));
    pair(out, "Baseline", &run.baseline().map_or("none".to_owned(), line));
    pair(out, "Testbed", &line(&run.testbed));
    let mut machines: Vec<String> = run
        .hosts
        .iter()
        .map(|h| {
            line(&format!("{}, {}, Linux {}", h.cpu_model, words::plural(h.cpus as usize, "core"), h.kernel))
        })
        .collect();
    machines.dedup();
    pair(out, "Machine", &machines.join("; "));
    pair(out, "Made", &format!("{when}; run {}", line(&run.id)));
    out.close().close();
}

/// One term with its text in a definition list.
pub(crate) fn pair(out: &mut Markup, term: &str, text: &str) {
    out.leaf("dt", &[], term).leaf("dd", &[], text);
}

fn lead(out: &mut Markup, run: &Run, results: &Results) {
    out.leaf("p", &[("class", "lead")], &summary::text(run, results));
    out.open("ul", &[]);
    for sentence in sentences(run, results).into_iter().skip(1) {
        out.leaf("li", &[], &sentence);
    }
    out.close();
    let widest = view::widest(run, results).map(|w| format!(" {}.", capital(&w))).unwrap_or_default();
    let note = format!("{}.{widest}", capital(&view::extent(run, results)));
    out.note(&note.replace(" %", "\u{a0}%"));
}

fn contents(out: &mut Markup, is_there: impl Fn(&str) -> bool) {
    out.open("nav", &[("aria-label", "Contents")]);
    for (anchor, heading) in SECTIONS.into_iter().filter(|s| is_there(s.0)) {
        out.leaf("a", &[("href", &format!("#{anchor}"))], heading).text(" ");
    }
    out.close();
}

fn capital(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or(String::new(), |c| c.to_uppercase().chain(chars).collect())
}
