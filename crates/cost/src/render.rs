//! An answer as text: terminal, Markdown, and the list of prices.
//!
//! Amounts are rounded here and nowhere else, half away from zero, each on its own: a sum may differ from the sum of
//! its rounded lines by a cent.

use std::fmt::Write as _;

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};

use crate::{Amount, Answer, BreakEven, CostVerdict, HOURS_PER_MONTH, PriceOption};

/// Said under every answer.
const CHECK: &str = "Prices go out of date: check them at their source before you decide.";

/// Which notation to write.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Style {
    /// Lines of so many columns at most.
    Terminal(u16),
    Markdown,
}

/// Plain text of at most so many columns, from 80 up, without escape sequences.
pub fn terminal(answer: &Answer, columns: u16) -> String {
    text(answer, Style::Terminal(columns))
}

/// GitHub-flavoured Markdown.
pub fn markdown(answer: &Answer) -> String {
    text(answer, Style::Markdown)
}

/// The options of a catalogue with region, date and source, as plain text of at most so many columns, from 80 up.
pub fn price_list(options: &[PriceOption], columns: u16) -> String {
    let rows = options.iter().map(|o| {
        vec![o.name.clone(), o.title.clone(), o.region.clone(), o.as_of.to_string(), o.source.clone()]
    });
    let mut out =
        table(Style::Terminal(columns), &["option", "what", "region", "as of", "source"], rows, &[]);
    let _ = writeln!(out, "\n{CHECK}");
    out
}

/// The answer in one sentence, for the summary of a run: the bills, what a measured Gbit/s costs, and of two options the cheaper
/// one.
pub fn in_short(answer: &Answer) -> String {
    let (question, currency) = (&answer.question, &answer.currency);
    let bills: Vec<String> =
        answer.bills.iter().map(|b| format!("{} {currency} with {}", money(b.total), b.option)).collect();
    let mut dates: Vec<String> = answer.prices.iter().map(|p| p.as_of.to_string()).collect();
    dates.sort();
    let dates = match (dates.first(), dates.last()) {
        (Some(first), Some(last)) if first != last => format!("{first} to {last}"),
        (Some(only), _) => only.clone(),
        _ => String::new(),
    };
    let mut out = format!(
        "Money: {} GB out and {} GB in over {} h cost {} at the prices of {dates}",
        question.gb_out,
        question.gb_in,
        question.hours,
        bills.join(", ")
    );
    for u in &answer.unit_costs {
        let _ = write!(out, "; {} as {} {} {currency} per Gbit/s", u.option, u.variant, money(u.per_gbps));
    }
    match answer.break_evens.as_slice() {
        [pair] => {
            let _ = write!(out, "; {}", break_even(pair));
        }
        _ => out.push('.'),
    }
    out
}

fn text(answer: &Answer, style: Style) -> String {
    let question = &answer.question;
    let currency = &answer.currency;
    let mut out = String::new();
    let total = format!("{currency} total");
    let period = if question.hours == Amount::from(HOURS_PER_MONTH) { " (a month)" } else { "" };
    let text = format!(
        "Cost of {} GB out and {} GB in over {} h{period}",
        question.gb_out, question.gb_in, question.hours
    );
    heading(&mut out, style, &text);
    let rows =
        answer.bills.iter().map(|b| vec![b.option.clone(), money(b.fixed), money(b.traffic), money(b.total)]);
    out += &table(style, &["option", "fixed", "by traffic", &total], rows, &[1, 2, 3]);

    heading(&mut out, style, "Items of the bills");
    let rows = answer.bills.iter().flat_map(|bill| {
        bill.items.iter().map(|item| {
            vec![
                bill.option.clone(),
                item.what.clone(),
                format!("{} {}", item.quantity.rounded(3).0.normalize(), item.unit),
                format!("{} per {}", item.unit_price, item.unit),
                money(item.amount),
            ]
        })
    });
    out += &table(style, &["option", "item", "quantity", "price", &currency.to_string()], rows, &[2, 3, 4]);

    if !answer.break_evens.is_empty() {
        heading(&mut out, style, "Break-even");
        for pair in &answer.break_evens {
            sentence(&mut out, style, &break_even(pair));
        }
    }
    unit_costs(&mut out, style, answer);

    heading(&mut out, style, "Prices");
    for option in &answer.prices {
        let note = option.note.as_ref().map(|n| format!(" ({n})")).unwrap_or_default();
        let text = format!(
            "{}: {}, region {}, as of {}. Source: {}{note}",
            option.name, option.title, option.region, option.as_of, option.source
        );
        sentence(&mut out, style, &text);
    }
    sentence(&mut out, style, CHECK);
    out
}

fn unit_costs(out: &mut String, style: Style, answer: &Answer) {
    if answer.unit_costs.is_empty() {
        return;
    }
    heading(out, style, "Price of speed, from this measurement");
    let currency = &answer.currency;
    let per_gbps = format!("{currency} per Gbit/s");
    let columns = ["option", "variant", "Gbit/s", &per_gbps, "of it fixed", "load", "fixed per 10^6 conn."];
    let rows = answer.unit_costs.iter().map(|u| {
        vec![
            u.option.clone(),
            u.variant.clone(),
            format!("{:.3}", u.goodput_bps.to_f64() / 1e9),
            money(u.per_gbps),
            money(u.fixed_per_gbps),
            format!("{:.1} %", u.used_ratio.to_f64() * 100.0),
            u.fixed_per_million_connections.map_or_else(|| "-".to_owned(), money),
        ]
    });
    *out += &table(style, &columns, rows, &[2, 3, 4, 5, 6]);
    for u in answer.unit_costs.iter().filter(|u| u.used_ratio > Amount::from(1)) {
        let text = format!(
            "{}: the traffic asked for is more than the measured rate can carry in the time.",
            u.option
        );
        sentence(out, style, &text);
    }
}

/// One pair as a sentence.
pub fn break_even(pair: &BreakEven) -> String {
    let (a, b) = (&pair.a, &pair.b);
    let mix = match pair.egress_ratio.rounded(3).0.normalize() {
        share if share.is_zero() => "all of it in".to_owned(),
        share if share == Amount::from(1).0 => "all of it out".to_owned(),
        _ => format!("{:.1} % of it out", pair.egress_ratio.to_f64() * 100.0),
    };
    match pair.verdict() {
        CostVerdict::Always(name) => {
            let other = if name == a { b } else { a };
            format!("{name} is cheaper than {other} at any traffic ({mix}): there is no break-even.")
        }
        CostVerdict::Same => format!("{a} and {b} cost the same at any traffic ({mix})."),
        CostVerdict::At(_) => {
            let parts: Vec<String> = pair
                .ranges
                .iter()
                .enumerate()
                .map(|(i, range)| {
                    let who = range.cheaper.as_deref().unwrap_or("neither");
                    match (i, pair.ranges.get(i + 1)) {
                        (0, Some(next)) => format!("up to {} GB {who}", gb(next.from_gb)),
                        (_, Some(next)) => format!("then up to {} GB {who}", gb(next.from_gb)),
                        (_, None) => format!("above that {who}"),
                    }
                })
                .collect();
            format!("{a} or {b}: cheaper is {} ({mix}).", parts.join(", "))
        }
    }
}

/// An amount of money: two decimals, four below 1.
fn money(amount: Amount) -> String {
    let decimals = if amount < Amount::from(1) && amount > Amount::ZERO { 4 } else { 2 };
    format!("{:.*}", decimals as usize, amount.rounded(decimals).0)
}

/// An amount of traffic: two decimals at most.
fn gb(amount: Amount) -> String {
    amount.rounded(2).0.normalize().to_string()
}

fn heading(out: &mut String, style: Style, title: &str) {
    let gap = if out.is_empty() { "" } else { "\n" };
    let _ = match style {
        Style::Terminal(_) => writeln!(out, "{gap}{title}"),
        Style::Markdown => writeln!(out, "{gap}### {title}\n"),
    };
}

fn sentence(out: &mut String, style: Style, text: &str) {
    match style {
        Style::Markdown => {
            let _ = writeln!(out, "- {text}");
        }
        Style::Terminal(width) => {
            let mut line = String::from(" ");
            for word in text.split_whitespace() {
                if line.chars().count() + 1 + word.chars().count() > usize::from(width) {
                    let _ = writeln!(out, "{line}");
                    line = String::from("   ");
                }
                line.push(' ');
                line += word;
            }
            let _ = writeln!(out, "{line}");
        }
    }
}

fn table(style: Style, columns: &[&str], rows: impl Iterator<Item = Vec<String>>, right: &[usize]) -> String {
    let mut table = Table::new();
    match style {
        Style::Terminal(width) => {
            table
                .load_style(presets::NOTHING)
                .set_width(width)
                .set_content_arrangement(ContentArrangement::Dynamic);
        }
        Style::Markdown => {
            table.load_style(presets::ASCII_MARKDOWN);
        }
    }
    table.set_header(columns.iter().copied());
    for row in rows {
        table.add_row(row.into_iter().map(|cell| match style {
            Style::Terminal(_) => cell,
            Style::Markdown => cell.replace('|', "\\|"),
        }));
    }
    for &index in right {
        if let Some(column) = table.column_mut(index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.lines().map(|line| format!("{}\n", line.trim_end())).collect()
}
