//! Requirements side by side, for terminals, as Markdown and as HTML.

use weir_text::page::{Page, Tone};

use super::{Broken, Requirements, Row, verdict_word};
use crate::Terminal;
use crate::escape::markdown;
use crate::markup::Markup;

/// Heading of the lines about failures.
const BREAKS: &str = "Failures, and whom they hurt";
/// Heading of the table.
const TABLE: &str = "Side by side";
/// Heading of the packets.
const PROOFS: &str = "Unmet MUSTs, and their packets";
/// Above them.
const FOLDERS: &str =
    "Files are in a folder for each subject; the numbers are those of Wireshark, and JSON has them all.";
/// Below the table.
const LEGEND: &str = "Rows that differ come first. `-`: not testable here. `does`: described only.";

/// `a, b; partly: c`.
fn subjects(broken: &Broken) -> String {
    let mut parts = Vec::new();
    if !broken.fails.is_empty() {
        parts.push(broken.fails.join(", "));
    }
    if !broken.partly.is_empty() {
        parts.push(format!("partly: {}", broken.partly.join(", ")));
    }
    parts.join("; ")
}

fn word(row: &Row<'_>, n: usize) -> String {
    row.cells[n].map_or_else(String::new, |line| verdict_word(&line.verdict).to_owned())
}

/// For a terminal.
pub fn requirements_terminal(table: &Requirements, to: Terminal) -> String {
    let mut page = Page::new(to);
    page.section(&table.title);
    page.line(&table.circumstances, 0, Some(Tone::Faint));
    for subject in &table.subjects {
        page.line(&format!("{}: {}", subject.name, subject.kind), 0, None);
    }
    let broken = table.broken();
    if !broken.is_empty() {
        page.section(BREAKS);
    }
    for one in &broken {
        let tone = if one.fails.is_empty() { Tone::Warning } else { Tone::Bad };
        page.line(&format!("{} ({}): {}", one.breaks, one.id, subjects(one)), 2, Some(tone));
    }
    page.section(TABLE);
    // Names of columns are long, so they are numbered.
    let numbers: Vec<String> = (1..=table.subjects.len()).map(|n| n.to_string()).collect();
    for (number, subject) in numbers.iter().zip(&table.subjects) {
        page.line(&format!("{number}: {}", subject.name), 2, None);
    }
    let mut head = vec!["row"];
    head.extend(numbers.iter().map(String::as_str));
    let lines = |differing: bool| -> Vec<Vec<String>> {
        let rows = table.rows();
        let fitting = rows.iter().filter(|row| row.differs() == differing);
        fitting
            .map(|row| {
                let cells = (0..table.subjects.len()).map(|n| word(row, n));
                std::iter::once(row.line.id.clone()).chain(cells).collect()
            })
            .collect()
    };
    for (differing, title) in [(true, "different"), (false, "the same in all")] {
        let lines = lines(differing);
        if !lines.is_empty() {
            page.gap();
            page.line(title, 1, Some(Tone::Faint));
            page.matrix(&head, &lines);
        }
    }
    page.finish()
}

/// As Markdown.
pub fn requirements_markdown(table: &Requirements) -> String {
    let mut out = format!("# {}\n\n{}\n", markdown(&table.title), markdown(&table.circumstances));
    out.push_str("\n| subject | kind | settings |\n|---|---|---|\n");
    for subject in &table.subjects {
        let [name, kind, describes] = [&subject.name, &subject.kind, &subject.describes].map(|t| markdown(t));
        out.push_str(&format!("| {name} | {kind} | {describes} |\n"));
    }
    let broken = table.broken();
    if !broken.is_empty() {
        out.push_str(&format!("\n## {BREAKS}\n\n"));
    }
    for one in &broken {
        let (breaks, source, who) = (markdown(&one.breaks), markdown(&one.source), markdown(&subjects(one)));
        out.push_str(&format!("- **{breaks}** (`{}`, {source}): {who}\n", markdown(&one.id)));
    }
    let proofs = table.proofs();
    if !proofs.is_empty() {
        out.push_str(&format!(
            "\n## {PROOFS}\n\n{FOLDERS}\n\n| row | verdict | seen | packets | subjects |\n"
        ));
        out.push_str("|---|---|---|---|---|\n");
    }
    for proof in &proofs {
        let (id, verdict, seen) = (markdown(proof.id), verdict_word(proof.verdict), markdown(proof.seen));
        let packets: Vec<String> = proof.packets.iter().map(|packets| markdown(packets)).collect();
        let (packets, who) = (packets.join(", "), markdown(&proof.subjects.join(", ")));
        out.push_str(&format!("| `{id}` | {verdict} | {seen} | {packets} | {who} |\n"));
    }
    out.push_str(&format!("\n## {TABLE}\n\n{LEGEND}\n\n| row | asked by |"));
    for subject in &table.subjects {
        out.push_str(&format!(" {} |", markdown(&subject.name)));
    }
    out.push_str(&format!("\n|---|---|{}\n", "---|".repeat(table.subjects.len())));
    for row in table.rows() {
        out.push_str(&format!("| `{}` | {} |", markdown(&row.line.id), markdown(&row.line.source)));
        for n in 0..row.cells.len() {
            let cell = markdown(&word(&row, n));
            out.push_str(&if row.differs() { format!(" **{cell}** |") } else { format!(" {cell} |") });
        }
        out.push('\n');
    }
    out
}

/// As one HTML file; the observation of each cell is shown when the pointer rests on it.
pub fn requirements_html(table: &Requirements) -> String {
    let mut out = Markup::new();
    out.verbatim("<!DOCTYPE html>\n");
    out.open("html", &[("lang", "en")]);
    out.open("head", &[]);
    out.empty("meta", &[("charset", "utf-8")]);
    out.empty("meta", &[("name", "viewport"), ("content", "width=device-width, initial-scale=1")]);
    out.leaf("title", &[], &format!("{} · weir", table.title));
    out.open("style", &[]).verbatim(include_str!("../html/style.css")).close();
    out.close();
    out.open("body", &[]).open("main", &[]);
    out.leaf("h1", &[], &table.title);
    out.leaf("p", &[("class", "sub")], &table.circumstances);
    out.open("dl", &[]);
    for subject in &table.subjects {
        out.leaf("dt", &[], &subject.name);
        out.leaf("dd", &[], &format!("{}; {}", subject.kind, subject.describes));
    }
    out.close();
    let broken = table.broken();
    if !broken.is_empty() {
        out.leaf("h2", &[], BREAKS).open("ul", &[]);
        for one in &broken {
            out.open("li", &[]).leaf("b", &[], &one.breaks);
            out.text(&format!(" ({}, {}): {}", one.id, one.source, subjects(one))).close();
        }
        out.close();
    }
    out.leaf("h2", &[], TABLE).note(&LEGEND.replace('`', ""));
    out.open("div", &[("class", "wide")]).open("table", &[]).open("thead", &[]).open("tr", &[]);
    out.leaf("th", &[], "row");
    for subject in &table.subjects {
        out.leaf("th", &[], &subject.name);
    }
    out.close().close().open("tbody", &[]);
    for row in table.rows() {
        html_row(&mut out, &row);
    }
    out.finish() + "\n"
}

fn html_row(out: &mut Markup, row: &Row<'_>) {
    out.open("tr", &[]).open("th", &[]).text(&row.line.id);
    out.leaf("span", &[("class", "what")], &format!("{}: {}", row.line.source, row.line.asks)).close();
    for (n, cell) in row.cells.iter().enumerate() {
        let class = match cell.map(|line| line.verdict.as_str()) {
            Some("fails") => "worse",
            Some("partly" | "not-sure") => "open",
            Some("meets") => "better",
            _ => "equivalent",
        };
        let seen = cell.map_or("", |line| line.seen.as_str());
        let tag = if row.differs() { "b" } else { "span" };
        out.open("td", &[("class", class), ("title", seen)]).leaf(tag, &[], &word(row, n)).close();
    }
    out.close();
}

#[cfg(test)]
mod tests {
    use super::super::tests::two;
    use super::*;

    #[test]
    fn markdown_has_the_differing_rows_first_and_in_bold() {
        let text = requirements_markdown(&two());
        let rows: Vec<&str> = text.lines().filter(|l| l.starts_with("| `r") && l.contains("RFC")).collect();
        assert_eq!(rows[0], "| `r3` | RFC 1 r3, MUST | **meets** | **fails** |");
        assert_eq!(rows[3], "| `r2` | RFC 1 r2, MUST | fails | fails |");
        assert!(text.contains("- **breaks of r2** (`r2`, RFC 1 r2, MUST): a, b\n"), "{text}");
        assert!(text.contains("): partly: a\n") && text.contains("some &lt;rules>"), "{text}");
        assert!(text.contains("| `r3` | fails | b r3 fails | r3.pcapng 1-8 | b |\n"), "{text}");
        let mut bare = two();
        bare.subjects.iter_mut().flat_map(|s| &mut s.lines).for_each(|line| line.packets.clear());
        assert!(!requirements_markdown(&bare).contains(PROOFS));
    }

    #[test]
    fn html_is_closed_and_escaped() {
        let text = requirements_html(&two());
        assert!(text.contains("some &lt;rules&gt;") && !text.contains("<rules>"));
        assert!(text.contains("title=\"b r3 fails\"") && text.trim_end().ends_with("</html>"), "{text}");
    }

    #[test]
    fn the_terminal_has_what_breaks_before_the_table() {
        let text = requirements_terminal(&two(), Terminal { width: 100, color: false });
        let at = |words: &str| text.find(words).unwrap_or_else(|| panic!("{words}: {text}"));
        assert!(at("breaks of r2 (r2): a, b") < at("Side by side"));
        assert!(at("different") < at("the same in all"));
    }
}
