//! The costs of variants without traffic, in every rendering.

mod fixture;

use fixture::HOSTILE;
use unicode_width::UnicodeWidthStr;
use weir_record::{Run, Unit, VariantFact};
use weir_report::{Terminal, csv_summary, html, markdown, terminal};

fn fact(name: &str, label: &str, unit: Unit, value: Option<f64>, how: &str) -> VariantFact {
    VariantFact { name: name.into(), label: label.into(), unit, value, n: 3, how: how.into() }
}

/// Two of four variants have facts, measured in different ways; of one the memory is not known.
fn run() -> Run {
    let mut run = fixture::run(1);
    for variant in &mut run.variants {
        let (memory, told) = match variant.name.as_str() {
            "nft-masquerade" => (Some(50.0 * 1024.0 * 1024.0), "growth of the machine"),
            "iptables-masquerade" => (None, "nobody tells it"),
            _ => continue,
        };
        variant.facts = vec![
            fact("load_ns", "load", Unit::Ns, Some(1.25e9), "a file is read"),
            fact("memory_bytes", "memory", Unit::Bytes, memory, told),
        ];
    }
    run
}

const TITLE: &str = "Setup cost of the variants";

#[test]
fn the_table_is_in_every_rendering_and_says_how_it_was_measured() {
    let run = run();
    for width in [80, 120] {
        let text = terminal(&run, Terminal { width, color: false });
        assert!(text.lines().all(|line| line.width() <= width));
        let (_, below) = text.split_once(TITLE).unwrap();
        let lines: Vec<Vec<&str>> = below.lines().skip(1).map(|l| l.split_whitespace().collect()).collect();
        assert_eq!(lines[0], ["load", "memory"]);
        assert_eq!(lines[1], ["nft-masquerade", "1.25", "s", "50.0", "MiB"]);
        assert_eq!(lines[2], ["iptables-masquerade", "1.25", "s", "–"]);
    }
    let text = markdown(&run);
    assert!(text.contains("| nft-masquerade | 1.25 s | 50.0 MiB |"), "{text}");
    for page in [text, html(&run)] {
        for said in [
            TITLE,
            "load: a file is read",
            "memory (nft-masquerade): growth",
            "(iptables-masquerade): nobody",
        ] {
            assert!(page.contains(said), "{said}\n{page}");
        }
    }
    assert!(html(&run).contains("href=\"#takes\""));
}

#[test]
fn the_summary_has_a_row_for_each_known_value() {
    let text = csv_summary(&run());
    let head: Vec<&str> = text.lines().next().unwrap().split(',').collect();
    let rows: Vec<Vec<&str>> =
        text.lines().map(|l| l.split(',').collect::<Vec<_>>()).filter(|row| row[0].is_empty()).collect();
    assert_eq!(rows.len(), 3);
    for row in &rows {
        assert_eq!(row.len(), head.len());
    }
    let of = |row: &[&str], column: &str| row[head.iter().position(|h| *h == column).unwrap()].to_owned();
    let first = ["metric", "unit", "variant", "n", "void", "value", "verdict"].map(|c| of(&rows[0], c));
    assert_eq!(first, ["load_ns", "ns", "nft-masquerade", "3", "0", "1250000000", ""]);
}

#[test]
fn a_run_without_them_has_no_such_table() {
    let run = fixture::run(1);
    let to = Terminal { width: 100, color: false };
    for page in [terminal(&run, to), markdown(&run), html(&run)] {
        assert!(!page.contains(TITLE));
    }
}

#[test]
fn nothing_from_outside_breaks_out() {
    let mut run = run();
    for fact in run.variants.iter_mut().flat_map(|v| &mut v.facts) {
        fact.label = format!("{HOSTILE}{}", fact.label);
        fact.how = HOSTILE.into();
        fact.name = format!("{HOSTILE}{}", fact.name);
    }
    let to = Terminal { width: 100, color: false };
    let pages = [terminal(&run, to), markdown(&run), html(&run)];
    for page in &pages {
        assert!(!page.contains('\u{1b}') && !page.contains('\u{7}') && !page.contains('\u{202e}'));
    }
    assert!(!pages[2].contains("<script>") && !pages[1].contains("<script>"));
    // A record that a name cannot make longer by a line.
    let lines = |run: &Run| csv_summary(run).matches("nft-masquerade").count();
    assert_eq!(lines(&run), lines(&self::run()));
}
