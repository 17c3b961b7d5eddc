//! `weir mtu`.

use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};
use std::sync::mpsc;
use std::time::Duration;

use schemars::JsonSchema;
use serde::Serialize;
use weir_mtu::fragments::{Fate, Fragments};
use weir_mtu::search::{Limit, PathMtu, Try};
use weir_mtu::survey::Method;
use weir_mtu::verdict::edns;
use weir_mtu::{Error, PathVerdict, ProbeOutcome as Seen, Survey, Target, Way, survey};
use weir_text::layout::paragraph;

use super::probe::look_up;
use crate::args::mtu::MtuArgs;
use crate::documents::{Document, Kind, print_json};
use crate::exit::{CommandResult, FAILED, Failure, NOT_MET};
use crate::output::{print, printable, width};

/// How long a name may take to be looked up.
const NAME_TIME: Duration = Duration::from_secs(5);

/// The output of `--json`.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Measured<'a> {
    /// Version of weir.
    weir: &'static str,
    /// RFC 3339, UTC.
    time: String,
    /// The path in words and in safe sizes.
    verdict: &'a PathVerdict,
    /// The measurements.
    survey: &'a Survey,
}

impl Document for Measured<'_> {
    const KIND: Kind = Kind::Mtu;
}

pub(crate) fn run(args: &MtuArgs) -> CommandResult {
    let stop = super::stop_on_signals()?;
    let address = address(args)?;
    let target = Target { address, session: None, budget: args.time };
    let survey = survey(&target, &stop).map_err(|e| match e {
        Error::NoRoute(e) => Failure::new(FAILED, format!("{} is unreachable: {e}", address.ip())),
        other => Failure::new(FAILED, other),
    })?;
    if stop.raised() {
        return Err(Failure::failed("stopped before the search was complete"));
    }
    let verdict = PathVerdict::of(&survey);
    if args.json {
        let time = jiff::Timestamp::now().to_string();
        print_json(&Measured { weir: env!("CARGO_PKG_VERSION"), time, verdict: &verdict, survey: &survey })?;
    } else {
        print(&printable(&page(&survey, &verdict)))?;
    }
    let found = args.fail_on_finding && !verdict.findings.is_empty();
    if found { Err(Failure::Silent(NOT_MET)) } else { Ok(()) }
}

/// The target, looked up.
fn address(args: &MtuArgs) -> Result<SocketAddr, Failure> {
    let text = args.target.trim();
    let bare = text.strip_prefix('[').and_then(|t| t.strip_suffix(']')).unwrap_or(text);
    if let Ok(ip) = bare.parse::<IpAddr>() {
        if (args.ipv4 && ip.is_ipv6()) || (args.ipv6 && ip.is_ipv4()) {
            let family = if args.ipv4 { "IPv4" } else { "IPv6" };
            return Err(Failure::usage(format!("{ip} is not an {family} address")));
        }
        let ip = ip.to_canonical();
        if ip.is_unspecified() || ip.is_multicast() || matches!(ip, IpAddr::V4(v4) if v4.is_broadcast()) {
            return Err(Failure::usage(format!("{ip} is not the address of one host")));
        }
        return Ok(SocketAddr::new(ip, args.port));
    }
    // RFC 1035 section 2.3.4: no name is longer.
    let plausible = !bare.is_empty() && bare.len() <= 253 && bare.bytes().all(|c| c.is_ascii_graphic());
    if !plausible || bare.contains(['/', '@', ':', '[', ']']) {
        return Err(Failure::usage(format!(
            "{text}: not a host name or an address; give the port by --port"
        )));
    }
    look_up_in_time(bare.to_owned(), args)
}

/// In a thread of its own, because the resolver has its own time limit.
fn look_up_in_time(name: String, args: &MtuArgs) -> Result<SocketAddr, Failure> {
    let (sender, receiver) = mpsc::channel();
    let (asked, port, versions) = (name.clone(), args.port, (args.ipv4, args.ipv6));
    std::thread::spawn(move || sender.send(look_up(&asked, port, versions)));
    let why = format!("no answer within {} s", NAME_TIME.as_secs());
    let late = |_| Err(Failure::failed(format!("cannot look up {name}: {why}")));
    receiver.recv_timeout(NAME_TIME).unwrap_or_else(late).map(|found| found[0])
}

/// Verdict, advice, observations, every length tried.
fn page(survey: &Survey, verdict: &PathVerdict) -> String {
    let wide = width();
    let mut out = String::new();
    out.push_str(&paragraph("", 0, &verdict.summary, wide));
    for finding in verdict.findings.iter().skip(1) {
        out.push_str(&paragraph("", 0, &format!("{}.", finding.summary), wide));
    }
    let advice: Vec<&String> = verdict.findings.iter().flat_map(|f| &f.advice).collect();
    if !advice.is_empty() {
        out.push('\n');
    }
    for line in advice {
        out.push_str(&paragraph("- ", 2, line, wide));
    }
    out.push('\n');
    for (label, value) in facts(survey, verdict) {
        out.push_str(&paragraph(&format!("{label:<16}"), 16, &value, wide));
    }
    out.push('\n');
    table(&mut out, survey);
    if !survey.unknown.is_empty() {
        out.push_str("\nUnknown:\n");
    }
    for line in &survey.unknown {
        out.push_str(&paragraph("- ", 2, line, wide));
    }
    out
}

fn facts(survey: &Survey, verdict: &PathVerdict) -> Vec<(&'static str, String)> {
    let how = match survey.method {
        Method::FarEnd => "weir serve on the target",
        Method::Echo => "answers to pings, both ways at once",
        Method::ClosedPort => "refusals of a closed port, the way there only",
    };
    let trip = survey.round_trip_ms.map_or(String::new(), |ms| format!(", round trip {ms:.3} ms"));
    let mut facts =
        vec![("target", format!("{} port {}, proved by {how}{trip}", survey.target, survey.port))];
    facts.push(("this link", format!("{} bytes", survey.link_mtu)));
    facts.push(("path MTU there", path(&survey.egress)));
    if let Some(ingress) = &survey.ingress {
        facts.push(("path MTU back", path(ingress)));
    }
    facts.push(("fragments there", fate(&survey.egress_fragments)));
    facts.push(("fragments back", fate(&survey.ingress_fragments)));
    if let Some(s) = &survey.segments {
        let mut words = format!("announced {}", s.announced);
        match s.arrived {
            Some(n) if u32::from(n) != s.announced => {
                let _ = write!(words, ", arrived there as {n}: clamped on the path");
            }
            Some(n) => {
                let _ = write!(words, ", arrived there as {n}");
            }
            None => {}
        }
        let _ = write!(words, "; this host sends segments of up to {}", s.sends);
        if let Some(far) = s.far_sends {
            let _ = write!(words, ", the target of up to {far}");
        }
        facts.push(("TCP MSS", words));
    }
    if let (Some(payload), Some(mss)) = (verdict.safe_payload_bytes, verdict.safe_mss_bytes) {
        let edns = edns(payload);
        let words = format!("UDP payload -l {payload}; TCP MSS {mss}; EDNS buffer size {edns}");
        facts.push(("safe to set", words));
    }
    facts
}

fn path(found: &PathMtu) -> String {
    let Some(bytes) = found.bytes else { return "unknown".to_owned() };
    let why = match found.limit {
        Limit::OwnLink => "the own link's MTU".to_owned(),
        Limit::FarLink => "the far link's own".to_owned(),
        Limit::Told => {
            let who = found.claim.and_then(|c| c.from).map_or("a router".to_owned(), |f| f.to_string());
            let said =
                found.claim.filter(|c| c.mtu > 0).map_or(String::new(), |c| format!(" with {}", c.mtu));
            format!("longer packets are refused by ICMP too-big{said} from {who}")
        }
        Limit::Silence => "longer packets vanish without ICMP too-big".to_owned(),
        Limit::Open => "undecided".to_owned(),
    };
    let at_least = if found.is_exact() || found.too_long.is_none() { "" } else { "at least " };
    format!("{at_least}{bytes} bytes: {why}")
}

fn fate(seen: &Fragments) -> String {
    let words = match seen.fate {
        Fate::Whole => "arrive",
        Fate::OutOfOrder => "arrive out of order",
        Fate::FirstOnly => "only those with the UDP header arrive",
        Fate::LaterOnly => "only those without a UDP header arrive",
        Fate::Gone => "none arrives",
        Fate::Some => "some arrive, but no complete datagram",
        Fate::NotWhole => "no datagram arrives; single fragments were not visible",
        Fate::Lossy => "some datagrams arrive, others do not",
        Fate::Unknown => return "unknown".to_owned(),
    };
    format!(
        "{words} ({} of {} datagrams of {} bytes in {} fragments each)",
        seen.whole, seen.sent, seen.payload_bytes, seen.pieces
    )
}

/// Every length that was tried, and the routers.
fn table(out: &mut String, survey: &Survey) {
    let tries = survey.egress.tries.iter().chain(survey.ingress.iter().flat_map(|i| &i.tries));
    out.push_str("way      bytes  packets  controls lost  result\n");
    for t in tries {
        let way = if t.way == Way::Egress { "there" } else { "back" };
        let controls = format!("{} of {}", t.controls_lost, t.controls);
        let _ = writeln!(out, "{way:<7}{:>7}{:>9}{controls:>15}  {}", t.size, t.probes, outcome(t));
    }
    if survey.hops.is_empty() {
        return;
    }
    out.push_str("\nhop  small  long  address\n");
    for hop in &survey.hops {
        let yes = |got: bool| if got { "yes" } else { "no" };
        let address = hop.address.map_or_else(
            || if hop.small { "(the target)".to_owned() } else { "(no answer)".to_owned() },
            |a| a.to_string(),
        );
        let _ = writeln!(out, "{:>3}  {:<5}  {:<4}  {address}", hop.hops, yes(hop.small), yes(hop.long));
    }
}

fn outcome(t: &Try) -> String {
    let by = |from: Option<IpAddr>| from.map_or(String::new(), |f| format!(" from {f}"));
    match t.outcome {
        Seen::Arrived => "arrived".to_owned(),
        Seen::TooBig { mtu: 0, from } => format!("ICMP too-big without an MTU{}", by(from)),
        Seen::TooBig { mtu, from } => format!("ICMP too-big, MTU {mtu}{}", by(from)),
        Seen::TooBigHere { mtu } => format!("longer than the sender's link of {mtu}"),
        Seen::HopsUsedUp { from } => format!("hop limit exceeded at {from}"),
        Seen::Refused { from, .. } => format!("refused{}", by(from)),
        Seen::Silent => "vanished".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        mtu: MtuArgs,
    }

    fn read(args: &[&str]) -> Result<SocketAddr, String> {
        let line = Line::parse_from([&["mtu"], args].concat());
        address(&line.mtu).map_err(|e| match e {
            Failure::Told { message, .. } => message,
            Failure::Silent(_) => String::new(),
        })
    }

    #[test]
    fn addresses_are_read_in_every_way_that_people_write_them() {
        for (args, expected) in [
            (&["192.0.2.1"][..], "192.0.2.1:9347"),
            (&["192.0.2.1", "--port", "53"], "192.0.2.1:53"),
            (&["2001:db8::1"], "[2001:db8::1]:9347"),
            (&["[2001:db8::1]", "-6"], "[2001:db8::1]:9347"),
            (&["::ffff:192.0.2.1"], "192.0.2.1:9347"),
        ] {
            assert_eq!(read(args).map(|a| a.to_string()), Ok(expected.to_owned()), "{args:?}");
        }
        for (args, word) in [
            (&["192.0.2.1", "--ipv6"][..], "not an IPv6 address"),
            (&["192.0.2.1:53"], "--port"),
            (&["http://192.0.2.1/"], "--port"),
            (&[""], "host name"),
            (&["a b"], "host name"),
            (&["\u{1b}[31m"], "host name"),
            (&["224.0.0.1"], "one host"),
            (&["255.255.255.255"], "one host"),
            (&["::"], "one host"),
        ] {
            let error = read(args).unwrap_err();
            assert!(error.contains(word), "{args:?}: {error}");
        }
    }
}
