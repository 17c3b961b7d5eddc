//! The table of a NAT, for people.

use weir_nat::rows::Confidence;
use weir_nat::rows::judge::Ipv6Kind;
use weir_nat::rows::{self, Group, Row};
use weir_nat::served::{EndOfPorts, NEEDS_RAW_PACKETS, PortChoice};
use weir_nat::table::{Line, NatKind};
use weir_nat::{Compliance, Table};
use weir_text::layout::Terminal;
use weir_text::order;
use weir_text::page::{Page, Tone};

use super::document::{Measured, NatCheck, NatCheckServer, NatPortsSeen, Path};

/// Verdicts in the order of the summary.
const ORDER: [Compliance; 6] = [
    Compliance::Fails,
    Compliance::Partly,
    Compliance::Meets,
    Compliance::NotSure,
    Compliance::NotTestable,
    Compliance::Described,
];

/// Every gateway's table.
pub(super) fn tables(gateways: &[Measured], kernel: &str, terminal: Terminal) -> String {
    let mut page = Page::new(terminal);
    for measured in gateways {
        page.section(&format!("{}: {}", measured.gateway, kind(&measured.table.kind)));
        let carried = measured.carried.map(|n| format!(", {n} packets carried")).unwrap_or_default();
        page.line(&format!("{}, Linux {kernel}{carried}", measured.describes), 0, Some(Tone::Faint));
        page.line(&summary(&measured.table), 0, None);
        groups(&mut page, &measured.table);
    }
    page.finish()
}

/// The NAT in front of this host.
pub(super) fn check(check: &NatCheck, terminal: Terminal) -> String {
    let mut page = Page::new(terminal);
    let server = &check.server;
    page.section(&kind(&check.kind));
    page.line(&format!("{} is seen as {} by {}", server.local, server.mapped, server.address), 0, None);
    if server.ignores_change {
        let words = "filtering: unknown, because the server does not answer from its other endpoints";
        page.line(words, 0, Some(Tone::Warning));
    }
    page.gap();
    for line in &check.rows {
        row(&mut page, line);
    }
    page.finish()
}

/// The same by `weir serve`, with all rows.
pub(super) fn check_server(check: &NatCheckServer, two_addresses: bool, terminal: Terminal) -> String {
    let mut page = Page::new(terminal);
    page.section(&kind(&check.table.kind));
    path(&mut page, &check.path);
    if !two_addresses {
        let words = "the server has one address: it shows whether mappings depend on the port, and no filter";
        page.line(words, 0, Some(Tone::Warning));
    }
    if let Some(why) = &check.no_raw_packets {
        let needs = |line: &&Line| line.judgement.seen.starts_with(NEEDS_RAW_PACKETS);
        let rows = check.table.rows.iter().filter(needs).count();
        let words = format!("without raw packets, which {rows} rows need: {why}");
        page.line(&words, 0, Some(Tone::Warning));
    }
    page.line(&summary(&check.table), 0, None);
    groups(&mut page, &check.table);
    page.finish()
}

fn path(page: &mut Page, path: &Path) {
    let Path { server, local, received_bytes, sent_bytes, .. } = path;
    let bytes = format!("{received_bytes} bytes out, {sent_bytes} bytes back");
    page.line(&format!("{local} through the NAT to {server}: {bytes}"), 0, Some(Tone::Faint));
}

/// How ports are chosen, and their end.
pub(super) fn ports(seen: &NatPortsSeen, terminal: Terminal) -> String {
    let survey = &seen.survey;
    let mut page = Page::new(terminal);
    page.section(&format!(
        "{} of {} inside ports got through to {}",
        survey.arrived, survey.asked, survey.to
    ));
    path(&mut page, &seen.path);
    for (address, (low, high)) in &survey.ranges {
        page.line(&format!("{address}: ports {low} to {high}"), 2, None);
    }
    let choice = match survey.choice {
        PortChoice::Preserved => "the NAT keeps the inside port",
        PortChoice::PartlyPreserved => "the NAT keeps some inside ports",
        PortChoice::Sequential => "the NAT counts",
        PortChoice::Block => "the NAT takes any port of one block",
        PortChoice::Spread => "the NAT spreads them over all ports",
        PortChoice::Unknown => "too few arrived to tell",
    };
    page.line(&format!("choice: {choice}"), 2, None);
    let (tone, end) = match survey.end {
        EndOfPorts::NotReached => {
            (None, "not reached: every port got through (--limit sends more)".to_owned())
        }
        EndOfPorts::Silence => {
            (Some(Tone::Warning), format!("after {} ports nothing got through", survey.arrived))
        }
        EndOfPorts::SomeLost => (
            Some(Tone::Warning),
            format!("{} ports in between got nothing through", survey.asked - survey.arrived),
        ),
        EndOfPorts::Shared => {
            let shared = survey.arrived - survey.distinct;
            (Some(Tone::Bad), format!("{shared} outside ports were given to a second inside port"))
        }
        EndOfPorts::NotSure => (Some(Tone::Warning), "not sure: control packets were lost too".to_owned()),
    };
    page.line(&format!("end: {end}"), 2, tone);
    let (alive, of) = (survey.witnesses_alive, survey.witnesses);
    let tone = (alive < of).then_some(Tone::Bad);
    page.line(&format!("first mappings: {alive} of {of} are still there"), 2, tone);
    page.finish()
}

/// `port restricted cone (EIM, APDF)`; of translated prefixes only that they are.
fn kind(kind: &NatKind) -> String {
    if kind.translates == Some(false) {
        return "no translation".to_owned();
    }
    if kind.ipv6 == Some(Ipv6Kind::Nptv6) {
        return "translation of prefixes (NPTv6)".to_owned();
    }
    let to_ipv4 = if kind.ipv6 == Some(Ipv6Kind::Nat64) { "NAT64, " } else { "" };
    let mapping = kind.mapping.map_or("mapping unknown", |mapping| mapping.mapping());
    let filtering = kind.filtering.map_or("filtering unknown", |filtering| filtering.filtering());
    match kind.classic {
        Some(classic) => format!("{to_ipv4}{classic} ({mapping}, {filtering})"),
        None => format!("{to_ipv4}unknown kind ({mapping}, {filtering})"),
    }
}

fn summary(table: &Table) -> String {
    let counts = ORDER.iter().map(|verdict| (table.count(*verdict), verdict.word()));
    let words: Vec<String> =
        counts.filter(|(n, _)| *n > 0).map(|(n, word)| format!("{n} {}", plural(word, n))).collect();
    format!("{} rows: {}", table.rows.len(), words.join(", "))
}

/// The words of a verdict as a count.
fn plural(word: &str, n: usize) -> &str {
    match word {
        "fails" if n != 1 => "fail",
        "meets" => "met",
        "does" => "described",
        other => other,
    }
}

/// Groups with failures first; in each the failures first.
fn groups(page: &mut Page, table: &Table) {
    let worst = |group: Group| {
        let lines = table.rows.iter().filter(|line| line.group == group);
        lines.map(|line| line.judgement.verdict).min().map_or(2, |verdict| match verdict {
            Compliance::Fails => 0,
            Compliance::Partly => 1,
            _ => 2,
        })
    };
    let mut groups = Group::ALL;
    // Stable: groups of one rank keep the order of the RFCs.
    order::by_key(&mut groups, |group| worst(*group));
    for group in groups {
        let mut lines: Vec<&Line> = table.rows.iter().filter(|line| line.group == group).collect();
        if lines.is_empty() {
            continue;
        }
        order::by_key(&mut lines, |line| line.judgement.verdict);
        page.gap();
        page.line(group.title(), 0, Some(Tone::Title));
        let (untestable, shown): (Vec<&Line>, Vec<&Line>) =
            lines.into_iter().partition(|line| line.judgement.verdict == Compliance::NotTestable);
        for line in shown {
            row(page, line);
        }
        not_testable(page, &untestable);
    }
}

fn row(page: &mut Page, line: &Line) {
    let verdict = line.judgement.verdict;
    let tone = match verdict {
        Compliance::Fails => Some(Tone::Bad),
        Compliance::Partly | Compliance::NotSure => Some(Tone::Warning),
        Compliance::NotTestable | Compliance::Meets | Compliance::Described => None,
    };
    let source = source(line.rfc, line.requirement, line.level.word());
    page.line(&format!("{}: {} ({source})", verdict.word(), line.asks), 2, tone);
    let medium = line.judgement.confidence == Confidence::Medium;
    page.line(&format!("{}: {}", line.id, with_confidence(line.judgement.seen.clone(), medium)), 4, None);
    if matches!(verdict, Compliance::Fails | Compliance::Partly) {
        page.line(&format!("breaks: {}", line.breaks), 4, None);
    }
}

/// An observation with a word about its verdict, unless that is sure, or says itself that it is not.
pub(super) fn with_confidence(seen: String, medium: bool) -> String {
    if medium { seen + " (medium confidence)" } else { seen }
}

/// Rows with one reason share a line.
fn not_testable(page: &mut Page, lines: &[&Line]) {
    let mut rest = lines.to_vec();
    while let Some(first) = rest.first().copied() {
        let reason = &first.judgement.seen;
        let (same, others): (Vec<&Line>, Vec<&Line>) =
            rest.into_iter().partition(|line| line.judgement.seen == *reason);
        let ids: Vec<&str> = same.iter().map(|line| line.id).collect();
        let words = Compliance::NotTestable.word();
        page.line(&format!("{words}: {}: {reason}", ids.join(", ")), 2, Some(Tone::Faint));
        rest = others;
    }
}

/// `RFC 4787 REQ-1, MUST`.
fn source(rfc: u16, requirement: &str, level: &str) -> String {
    if requirement.is_empty() { format!("RFC {rfc}") } else { format!("RFC {rfc} {requirement}, {level}") }
}

/// All rows without verdicts.
pub(super) fn rows(terminal: Terminal) -> String {
    let mut page = Page::new(terminal);
    for group in Group::ALL {
        page.section(group.title());
        for row in rows::all().filter(|row| row.group == group) {
            describe(&mut page, row);
        }
    }
    page.finish()
}

fn describe(page: &mut Page, row: &Row) {
    let (rfc, section, level) = (row.rfc, row.section, row.level.word());
    let source = match row.requirement {
        "" => format!("RFC {rfc} section {section}"),
        requirement => format!("RFC {rfc} section {section} {requirement}, {level}"),
    };
    page.line(&format!("{}: {} ({source})", row.id, row.asks), 2, None);
    page.line(&format!("sent: {}", row.sent), 4, Some(Tone::Faint));
    if !row.breaks.is_empty() {
        page.line(&format!("breaks: {}", row.breaks), 4, Some(Tone::Faint));
    }
}
