//! The HTML page: well-formed, self-contained, complete, and safe with hostile text.

mod fixture;
#[path = "fixture/flows.rs"]
mod flows;

use std::collections::BTreeSet;

use weir_report::html;

/// An element's start: name and attributes; and all character data of the page.
#[derive(Default)]
struct Page {
    elements: Vec<(String, Vec<(String, String)>)>,
    text: String,
}

/// A parser of the XML subset that the page may use: elements, quoted attributes, five references. Anything
/// else, including an element that is not closed in order, is an error.
fn parse(source: &str) -> Result<Page, String> {
    let mut page = Page::default();
    let mut open: Vec<String> = Vec::new();
    let mut rest = source.strip_prefix("<!DOCTYPE html>").ok_or("no document type")?;
    while let Some(at) = rest.find('<') {
        page.text.push_str(&unescape(&rest[..at])?);
        rest = &rest[at + 1..];
        let end = rest.find('>').ok_or("tag without end")?;
        let (tag, after) = (&rest[..end], &rest[end + 1..]);
        rest = after;
        if let Some(name) = tag.strip_prefix('/') {
            let expected = open.pop().ok_or(format!("</{name}> closes nothing"))?;
            if expected != name {
                return Err(format!("</{name}> where </{expected}> was due"));
            }
            continue;
        }
        let (inner, empty) = tag.strip_suffix('/').map_or((tag, false), |t| (t, true));
        let (name, mut attributes) = inner.split_once(' ').unwrap_or((inner, ""));
        if name.is_empty() || !name.bytes().all(|b| b.is_ascii_alphanumeric()) {
            return Err(format!("<{tag}> is no element"));
        }
        let mut list = Vec::new();
        while !attributes.is_empty() {
            let (key, after) = attributes.split_once("=\"").ok_or(format!("attribute in <{tag}>"))?;
            let (value, after) = after.split_once('"').ok_or(format!("quote in <{tag}>"))?;
            list.push((key.trim().to_owned(), unescape(value)?));
            attributes = after.trim_start();
        }
        if name == "style" {
            let end = rest.find("</style>").ok_or("style without end")?;
            rest = &rest[end..];
        }
        page.elements.push((name.to_owned(), list));
        if !empty {
            open.push(name.to_owned());
        }
    }
    if open.is_empty() { Ok(page) } else { Err(format!("left open: {open:?}")) }
}

fn unescape(text: &str) -> Result<String, String> {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find('&') {
        out.push_str(&rest[..at]);
        let known = [("&amp;", '&'), ("&lt;", '<'), ("&gt;", '>'), ("&quot;", '"'), ("&#39;", '\'')];
        let (name, c) = known.iter().find(|(n, _)| rest[at..].starts_with(n)).ok_or("bare &")?;
        out.push(*c);
        rest = &rest[at + name.len()..];
    }
    out.push_str(rest);
    if out.contains('>') && !text.contains("&gt;") {
        return Err(format!("bare > in {text:.80}"));
    }
    Ok(out)
}

fn count(page: &Page, name: &str) -> usize {
    page.elements.iter().filter(|(n, _)| n == name).count()
}

#[test]
fn page_is_well_formed_small_and_complete() {
    let run = fixture::run(1);
    let source = html(&run);
    let file = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("report.html");
    std::fs::write(&file, &source).unwrap();
    assert!(source.len() < 1_000_000, "{} bytes", source.len());
    let page = parse(&source).unwrap();
    // 5 forests for ratios and 1 for the loss, 2 latency figures, 9 of every trial, and those over time.
    assert!(count(&page, "svg") >= 5 + 1 + 2 + 9 + 10, "{}", count(&page, "svg"));
    assert_eq!(
        count(&page, "title"),
        1 + count(&page, "svg") + 9 * 3,
        "each figure and each mark of a forest is named"
    );
    for workload in &run.workloads {
        for needed in [&workload.name, &workload.description, &workload.metrics[0].help] {
            assert!(page.text.contains(needed.as_str()), "lacks {needed}");
        }
    }
    for variant in &run.variants {
        assert!(page.text.contains(&variant.name));
    }
    for needed in [
        "Against routed, direct is faster by",
        "routed-again",
        "6.2 % of CPU time stolen",
        "the responder saw 198.18.1.1",
        "# a NAT instance\n[testbed]",
        "AMD EPYC 9B14",
        "Mitigation: Retpolines",
        "seed 1 ",
        "noise floor ±",
        "equivalent",
        "congestion control was set to cubic",
    ] {
        assert!(page.text.contains(needed), "lacks {needed}");
    }
}

#[test]
fn page_needs_no_network_and_no_script() {
    for run in [fixture::run(1), fixture::hostile(), fixture::engines()] {
        let source = html(&run);
        let page = parse(&source).unwrap();
        let allowed: BTreeSet<&str> = "html head meta title style body main header h1 h2 h3 p dl dt dd ul \
        li nav a section div \
            table thead tbody tr th td b span small figure figcaption svg desc line rect path text g \
            details summary pre \
            code br"
            .split_whitespace()
            .collect();
        for (name, attributes) in &page.elements {
            assert!(allowed.contains(name.as_str()), "<{name}>");
            for (key, value) in attributes {
                assert!(
                    !key.starts_with("on") && !["src", "srcset", "style"].contains(&key.as_str()),
                    "{key}"
                );
                if key == "href" {
                    assert!(value.starts_with('#'), "{value}");
                }
            }
        }
        let style = source.split("<style>").nth(1).unwrap().split("</style>").next().unwrap();
        assert!(!style.contains("url(") && !style.contains("@import") && !style.contains("//"));
    }
    let source = html(&fixture::run(1));
    assert!(!source.contains("http://") && !source.contains("https://"));
}

#[test]
fn hostile_text_is_shown_as_text() {
    for run in [fixture::hostile(), fixture::spoil(fixture::engines())] {
        check_hostile(&html(&run));
    }
}

fn check_hostile(source: &str) {
    let page = parse(source).unwrap();
    assert!(page.text.contains("<script>alert(1)</script>\"'&|`"), "the text itself is there");
    assert!(source.chars().all(|c| matches!(c, '\n' | '\t') || !c.is_control()));
    assert!(!source.contains('\u{202e}'));
}

#[test]
fn identifiers_are_unique_and_references_resolve() {
    for run in [fixture::run(1), fixture::engines()] {
        check_references(&parse(&html(&run)).unwrap());
    }
}

fn check_references(page: &Page) {
    let mut ids = BTreeSet::new();
    for (_, attributes) in &page.elements {
        for (_, id) in attributes.iter().filter(|(k, _)| k == "id") {
            assert!(ids.insert(id.clone()), "{id} twice");
        }
    }
    for (name, attributes) in &page.elements {
        for (key, value) in attributes {
            if key == "aria-labelledby" {
                assert!(value.split(' ').all(|id| ids.contains(id)), "{name} {value}");
            }
            if key == "href" {
                assert!(ids.contains(&value[1..]), "{value}");
            }
        }
    }
}

/// No coordinate may be NaN or infinite, whatever the record holds.
#[test]
fn odd_records_still_make_a_page() {
    let mut none = fixture::run(1);
    none.results = None;
    assert!(html(&none).contains("holds no results"));
    let mut empty = fixture::run(1);
    empty.trials.clear();
    empty.hosts.clear();
    let results = empty.results.as_mut().unwrap();
    results.cells.iter_mut().for_each(|c| (c.estimate, c.comparison, c.verdict) = (None, None, None));
    let mut odd = fixture::run(2);
    for (i, cell) in odd.results.as_mut().unwrap().cells.iter_mut().enumerate() {
        if let Some(c) = &mut cell.comparison {
            c.estimate = [0.0, f64::INFINITY, f64::NAN, 1e9, 1.0][i % 5];
            c.interval = [None, Some((0.0, f64::INFINITY)), Some((1.0, 1.0))][i % 3];
        }
        if let Some(e) = &mut cell.estimate {
            e.center = [0.0, 1e300, -5.0][i % 3];
        }
    }
    odd.trials.iter_mut().step_by(3).for_each(|t| t.metrics.values_mut().for_each(|v| *v = f64::NAN));
    let mut lonely = fixture::run(1);
    lonely.variants.truncate(1);
    for run in [none, empty, odd, lonely] {
        let page = parse(&html(&run)).unwrap();
        for (name, attributes) in &page.elements {
            for (key, value) in attributes.iter().filter(|(k, _)| !["id", "content"].contains(&k.as_str())) {
                assert!(!value.contains("NaN") && !value.contains("inf"), "{name} {key} {value}");
            }
        }
    }
}

/// Workloads compared with each other have a section right after the results, with a forest row for each metric; of one
/// variant there is no other effect to draw.
#[test]
fn workloads_against_each_other_have_their_section() {
    let source = html(&fixture::engines());
    let page = parse(&source).unwrap();
    let sections: Vec<&str> = page
        .elements
        .iter()
        .filter(|(name, _)| name == "section")
        .filter_map(|(_, attributes)| attributes.iter().find(|a| a.0 == "id"))
        .map(|(_, id)| id.as_str())
        .collect();
    assert_eq!(sections[..2], ["results", "pairs"]);
    assert!(!sections.contains(&"effects"), "{sections:?}");
    let section = source.split("id=\"pairs\"").nth(1).unwrap().split("</section>").next().unwrap();
    // Ratios (goodput, gateway CPU, tester CPU), then datagrams' ratios (delivered, tester CPU) and their loss.
    assert_eq!(section.matches("class=\"point\"").count(), 3 + 2 + 1, "{section}");
    assert!(
        section.contains("×2.00 [2.00, 2.00]") && section.contains("tcp-egress against tcp-egress-iperf3")
    );
    let folded = section.split("<details>").nth(1).unwrap();
    assert!(folded.contains("CPU per skb") && folded.contains("bytes per skb"), "{folded}");
    assert!(!html(&fixture::run(1)).contains("id=\"pairs\""));
}

/// The traffic across the gateway stands with the results; the CPU that it took, with what it adds, with the details.
#[test]
fn gateway_and_details_are_on_the_page() {
    let mut run = fixture::engines();
    let source = html(&run);
    assert!(
        source.contains("<b>173 kpps</b><span class=\"what loose\">of 106 bytes each</span>"),
        "{source}"
    );
    assert!(source.contains("of 46189 bytes each, super-packets (GSO)"));
    let details = source.split("<details>").nth(1).unwrap().split("</details>").next().unwrap();
    assert!(details.contains("CPU per skb") && details.contains("of the whole machine"), "{details}");
    assert!(details.contains("tester CPU") && details.contains("ms/Gbit"), "{details}");
    // A variant that takes a fifth more per packet adds 1 µs to the baseline's 5 µs.
    run.variants[1].twin_of = None;
    for trial in run.trials.iter_mut().filter(|t| t.variant == "routed-again") {
        trial.metrics.entry("cpu_ns_per_skb".into()).and_modify(|v| *v *= 1.2);
    }
    fixture::conclude(&mut run);
    assert!(html(&run).contains("+1.00 µs ["), "{}", html(&run));
}

/// Each of many variants gets a row, so that the page need not be scrolled sideways; nothing is lost by it.
#[test]
fn many_variants_go_down_the_page() {
    let few = html(&fixture::run(1));
    assert!(few.contains("<th scope=\"col\">nft-masquerade</th>"));
    let mut run = fixture::run(1);
    for i in 0..3 {
        let copy = run.variants[3].clone();
        run.variants.push(weir_record::VariantInfo { name: format!("nft-{i}"), ..copy });
        let cells: Vec<_> = {
            let cells = &run.results.as_ref().unwrap().cells;
            cells.iter().filter(|c| c.variant == "nft-masquerade").cloned().collect()
        };
        let copies = cells.into_iter().map(|mut c| {
            c.variant = format!("nft-{i}");
            c
        });
        run.results.as_mut().unwrap().cells.extend(copies);
    }
    let many = html(&run);
    parse(&many).unwrap();
    let results = |page: &str| {
        page.split("id=\"results\"").nth(1).unwrap().split("</section>").next().unwrap().to_owned()
    };
    // Five workloads with headlines, and the folded retransmits of one.
    assert_eq!(results(&many).matches("<th scope=\"row\">nft-2</th>").count(), 5 + 1);
    let (few, many) = (results(&few).matches("<td>").count(), results(&many).matches("<td>").count());
    assert_eq!((few, many), (10 * 4, 10 * 7));
}

/// Each headline metric of a sweep has a figure with a mark for each value of each line, and a table; its points are neither
/// in the result table nor in the other figures.
#[test]
fn curves_have_figures_and_tables() {
    let source = html(&fixture::curves());
    let page = parse(&source).unwrap();
    check_references(&page);
    let section = |id: &str| {
        let after = source.split(&format!("<section id=\"{id}\">")).nth(1).unwrap_or_else(|| panic!("{id}"));
        after.split("</section>").next().unwrap()
    };
    let curves = section("curves");
    // For load: delivered rate and loss, for routed and nft-masquerade. For filled: goodput and CPU of tcp-egress, delivered
    // rate and loss of the three loads. Three values each; and one mark per line in each legend.
    let lines = 2 * 2 + 2 + 2 * 3;
    assert_eq!(curves.matches("<figure>").count(), 2 + 2 + 2);
    assert_eq!(curves.matches("class=\"mark ").count(), lines * 3 + lines);
    assert_eq!(curves.matches("class=\"bar ").count(), lines * 3);
    assert_eq!(curves.matches("<td>").count(), lines * 3);
    assert!(curves.contains("<th scope=\"row\">64k</th>"));
    for id in ["results", "effects", "latency", "time"] {
        assert!(!section(id).contains("filled-") && !section(id).contains("load-"), "{id}");
    }
    assert!(section("trials").contains("load-64k"), "every trial is there");
    check_hostile(&html(&fixture::spoil(fixture::curves())));
    assert!(!html(&fixture::run(1)).contains("id=\"curves\""));
}

/// A page of a recording has a line per side or part in each figure, all figures in its tables, and nothing of its names.
#[test]
fn a_recording_of_flows_is_a_page() {
    let name = "<b>10.0.0.2\u{1b}[31m";
    let source = weir_report::flows_html(&flows::recording(name));
    let file = std::path::Path::new(env!("CARGO_TARGET_TMPDIR")).join("flows.html");
    std::fs::write(&file, &source).unwrap();
    let page = parse(&source).unwrap();
    check_references(&page);
    assert_eq!((count(&page, "svg"), count(&page, "title")), (5, 6));
    // Rates and medians by side, losses by part of the path, round trips by side, two limits.
    assert_eq!(source.matches("class=\"curve v").count(), 2 * (2 + 4 + 2 + 2 + 2), "in the legend, too");
    assert_eq!(count(&page, "table"), 4);
    for needed in [
        "488 KiB of TCP",
        "clients: at most 1.00 Mbit/s",
        "to server: at most 10.0 %",
        "half within 64.0 µs",
        "receiver: at most 75.0 %",
        "2.0 s, 57.1 %",
        "> network 57 %",
    ] {
        assert!(page.text.contains(needed), "lacks {needed}");
    }
    assert!(page.text.contains("<b>10.0.0.2") && count(&page, "b") == 0);
    assert!(!source.contains('\u{1b}') && !source.contains("[31m"));
    let source = weir_report::flows_html(&flows::with_udp(name));
    let page = parse(&source).unwrap();
    check_references(&page);
    assert_eq!(
        (count(&page, "svg"), count(&page, "table")),
        (6, 8),
        "and three tables and a figure of UDP and ICMP, and a table of processes"
    );
    assert!(page.text.contains("(pid 7), docker web") && page.text.contains("(not on this host)"));
    assert!(page.text.contains("100 queries") && page.text.contains("10.0.0.2 > 198.51.100.53, open"));
    assert!(count(&page, "b") == 0 && !source.contains('\u{1b}'));
}
