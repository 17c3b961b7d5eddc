//! The recording as a page.

use weir_record::Unit;
use weir_record::flows::{FlowsRecording, RecordedLimits};
use weir_text::units;

use super::{
    PARTS, Step, distribution, figures, limits, name, parts, processes, sentences, share, steps, udp,
};
use crate::chart::lines::{NamedLine, Subject, draw};
use crate::escape::line;
use crate::html::{page, pair};
use crate::markup::Markup;

/// Styles of the lines: those of variants, without the greys of the baseline.
const STYLES: [usize; 5] = [2, 3, 4, 5, 6];

const READ: [&str; 6] = [
    "From client and from server: lost before this host. To server and to client: lost behind it. Packets that this host dropped \
     itself count as lost behind it.",
    "Each share has a 95 % interval. A dash: nothing was sent there. “Below” gives the end of the interval if nothing was lost.",
    "Round trips are between this host and either side. Their median includes delayed acknowledgements, up to 40 ms on Linux; the \
     smallest one does not.",
    "Limit: who keeps the side that sent more (> the client, < the server) from sending faster, and for what share of the time: \
     its application, the receiver's window, the network after a loss or over a queue, or the sender by its own buffer. A sum over \
     flows is one of times: idle connections count as application.",
    "Networks and flows are those with the most bytes; flows that are over count in their network. Figures over time are differences \
     between lines of the recording.",
    "Silence: the longest time over which a side of UDP sent without an answer. A query of DNS without an answer had none within 5 s. \
     Rates of UDP are averages since the first packet of the flow; figures of loss, and those over time, are of TCP.",
];

/// The recording as one HTML file (well-formed XML too), without any outside reference.
pub fn flows_html(recording: &FlowsRecording) -> String {
    let last = &recording.last;
    let mut sentences = sentences(recording).into_iter();
    let title = sentences.next().unwrap_or_default();
    page(&last.weir, &title, |out| {
        out.open("header", &[]).leaf("h1", &[], &title);
        out.open("dl", &[]);
        pair(out, "Made", &format!("{} to {}", line(&recording.ticks[0].time), line(&last.time)));
        pair(out, "Place", &line(&last.namespace));
        pair(out, "Readings", &units::count(recording.ticks.len() as u64));
        out.close().close();
        out.open("ul", &[]);
        for sentence in sentences.by_ref() {
            out.leaf("li", &[], &sentence);
        }
        out.close();
        section(out, "time", "Over time", |out| over_time(out, &steps(recording)));
        section(out, "path", "Loss by part of the path", |out| path(out, recording));
        section(out, "delay", "Round trips", |out| delay(out, recording));
        let limits = limits::rows(recording);
        if !limits.is_empty() {
            section(out, "limits", "Who limits senders", |out| limited(out, recording, limits));
        }
        section(out, "networks", "Networks", |out| {
            let rows = last.networks.iter();
            table(out, &["network"], rows.map(|n| (vec![name(n)], figures(&n.client_side, &n.server_side))));
        });
        section(out, "flows", "Flows", |out| {
            let rows = last.flows.iter().map(|f| {
                let own = [&f.client, &f.server, &f.state].map(|text| line(text)).to_vec();
                (own, figures(&f.client_side, &f.server_side))
            });
            table(out, &["client", "server", "state"], rows);
        });
        for (anchor, heading, first, heads, rows) in [
            ("udp", "UDP", "flow", &udp::FLOW[..], udp::flow_rows(recording)),
            ("dns", "DNS", "flow", &udp::DNS, udp::dns_rows(recording)),
            ("processes", "Processes", "process", &processes::HEADS, processes::rows(recording)),
            ("icmp", "ICMP errors about these flows", "sender", &udp::ICMP, udp::icmp_rows(recording)),
        ] {
            if !rows.is_empty() {
                section(out, anchor, heading, |out| {
                    if anchor == "dns" {
                        times(out, recording);
                    }
                    let heads = [&[first][..], heads].concat();
                    matrix(
                        out,
                        &heads,
                        1,
                        rows.into_iter().map(|(name, cells)| [vec![name], cells].concat()),
                    );
                });
            }
        }
        section(out, "read", "How to read this", |out| {
            out.open("ul", &[]);
            for text in READ {
                out.leaf("li", &[], text);
            }
            out.close();
        });
    })
}

fn section(out: &mut Markup, anchor: &str, heading: &str, body: impl FnOnce(&mut Markup)) {
    out.open("section", &[("id", anchor)]).leaf("h2", &[], heading);
    body(out);
    out.close();
}

/// A line through the steps that have a value.
fn over(steps: &[Step], style: usize, name: &str, value: impl Fn(&Step) -> Option<f64>) -> NamedLine {
    let points = steps.iter().filter_map(|step| Some((step.at, value(step)?))).collect();
    NamedLine { style, name: name.to_owned(), points }
}

fn over_time(out: &mut Markup, steps: &[Step]) {
    if steps.is_empty() {
        out.leaf("p", &[], "A recording of one reading has no differences to show.");
        return;
    }
    let sides = [("clients", STYLES[0]), ("servers", STYLES[1])];
    let line = |n: usize, value: &dyn Fn(&Step) -> Option<f64>| over(steps, sides[n].1, sides[n].0, value);
    let rates: Vec<NamedLine> = (0..2).map(|n| line(n, &|step| Some(step.bps[n]))).collect();
    figure(out, ("rate", "Rate by sender", Unit::Bps), &rates);
    let lost: Vec<NamedLine> =
        (0..4).map(|n| over(steps, STYLES[n], PARTS[n], |step| step.lost[n])).collect();
    figure(out, ("lost", "Lost segments", Unit::Ratio), &lost);
    let trips: Vec<NamedLine> = (0..2).map(|n| line(n, &|step| step.median[n])).collect();
    figure(out, ("median", "Median round trip", Unit::Ns), &trips);
}

/// A figure over time; nothing where no line has a point.
fn figure(out: &mut Markup, (id, title, unit): (&str, &str, Unit), lines: &[NamedLine]) {
    let description = describe(lines, unit);
    let subject = Subject {
        id,
        title,
        description: &description,
        unit,
        x_unit: Unit::Count,
        x_words: "seconds since the beginning",
    };
    out.open("figure", &[]);
    if !draw(out, &subject, lines) {
        out.caption(&format!("{title}: nothing was measured."));
    }
    out.close();
}

/// The greatest value of each line.
fn describe(lines: &[NamedLine], unit: Unit) -> String {
    let one = |line: &NamedLine| {
        let most = line.points.iter().map(|p| p.1).fold(0.0, f64::max);
        format!("{}: at most {}", line.name, units::quantity(unit, most, None))
    };
    lines.iter().map(one).collect::<Vec<_>>().join("; ")
}

fn path(out: &mut Markup, recording: &FlowsRecording) {
    let all = &recording.last.all;
    let heads = ["part", "share", "lost", "of segments"];
    let rows = parts(&all.client_side, &all.server_side).into_iter().zip(PARTS);
    let cells = rows.map(|(part, name)| {
        vec![name.to_owned(), share(part), units::count(part.segments), units::count(part.of)]
    });
    matrix(out, &heads, 1, cells);
}

fn delay(out: &mut Markup, recording: &FlowsRecording) {
    let all = &recording.last.all;
    let lines: Vec<NamedLine> = [("to clients", &all.client_side), ("to servers", &all.server_side)]
        .into_iter()
        .zip(STYLES)
        .map(|((name, side), style)| NamedLine {
            style,
            name: name.to_owned(),
            points: distribution(&side.round_trips.buckets),
        })
        .collect();
    let half = |line: &NamedLine| {
        let at = line.points.iter().find(|p| p.1 >= 0.5).map(|p| units::quantity(Unit::Ns, p.0, None));
        format!("{}: half within {}", line.name, at.unwrap_or("–".to_owned()))
    };
    let description = lines.iter().map(half).collect::<Vec<_>>().join("; ");
    let subject = Subject {
        id: "trips",
        title: "Share of round trips that took at most so long",
        description: &description,
        unit: Unit::Ratio,
        x_unit: Unit::Ns,
        x_words: "round trip",
    };
    out.open("figure", &[]);
    if !draw(out, &subject, &lines) {
        out.caption("No round trip was measured.");
    }
    out.close();
}

/// The limits of the side that sent more over time, and those of both sides in all.
fn limited(out: &mut Markup, recording: &FlowsRecording, rows: Vec<(String, Vec<String>)>) {
    let steps = steps(recording);
    let share = |n: usize| move |step: &Step| step.limits.map(|shares| shares[n]);
    let lines: Vec<NamedLine> = (0..RecordedLimits::WORDS.len())
        .map(|n| over(&steps, STYLES[n], RecordedLimits::WORDS[n], share(n)))
        .filter(|line| line.points.iter().any(|p| p.1 > 0.0))
        .collect();
    let title = format!("Time of {} as senders, by limit", limits::subject(recording));
    figure(out, ("limited", title.as_str(), Unit::Ratio), &lines);
    let heads = [&["limit"][..], &limits::HEADS].concat();
    matrix(out, &heads, 1, rows.into_iter().map(|(word, cells)| [vec![word], cells].concat()));
}

/// How many answers of DNS took at most so long.
fn times(out: &mut Markup, recording: &FlowsRecording) {
    let dns = &recording.last.all.udp.dns;
    let points = distribution(&dns.times.buckets);
    let line = NamedLine { style: STYLES[0], name: "answers".to_owned(), points };
    let subject = Subject {
        id: "answers",
        title: "Share of answers of DNS that took at most so long",
        description: &format!("{} queries", units::count(dns.queries)),
        unit: Unit::Ratio,
        x_unit: Unit::Ns,
        x_words: "time from the query to its answer",
    };
    out.open("figure", &[]);
    if !draw(out, &subject, &[line]) {
        out.caption("No answer came in time.");
    }
    out.close();
}

/// A table of names and figures.
fn table(out: &mut Markup, own: &[&str], rows: impl Iterator<Item = (Vec<String>, Vec<String>)>) {
    let trips = ["least RTT client", "least RTT server"];
    let figures = [&["limit", "bytes"][..], &trips, &PARTS].concat();
    let heads: Vec<&str> = own.iter().copied().chain(figures).collect();
    matrix(out, &heads, own.len(), rows.map(|(own, figures)| [own, figures].concat()));
}

/// The first columns are names, the others figures.
fn matrix(out: &mut Markup, heads: &[&str], names: usize, rows: impl Iterator<Item = Vec<String>>) {
    let class = |n: usize| if n < names { "" } else { "num" };
    out.open("div", &[("class", "wide")]).open("table", &[]);
    out.open("thead", &[]).open("tr", &[]);
    for (n, head) in heads.iter().enumerate() {
        out.leaf("th", &[("class", class(n))], head);
    }
    out.close().close().open("tbody", &[]);
    for row in rows {
        out.open("tr", &[]);
        for (n, cell) in row.iter().enumerate() {
            out.leaf("td", &[("class", class(n))], cell);
        }
        out.close();
    }
    out.close().close().close();
}
