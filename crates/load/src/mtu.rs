//! `mtu`: how large a packet the path carries each way, and what becomes of fragments on it.
//!
//! It sends no load, but some dozens of datagrams. Each is followed by a small control, which distinguishes loss from length. The
//! trial ends when everything is known; its window only sets how long hosts are sampled.

use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::os::fd::AsFd;
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use weir_mtu::fragments::{Fate, Fragments};
use weir_mtu::search::{Limit, PathMtu};
use weir_mtu::survey::Method;
use weir_mtu::{PathVerdict, Survey, Target, responder};
use weir_record::{Better, Fault, FaultCode, MetricDef, Unit};
use weir_sys::segment_size;
use weir_text::order;

use crate::part::sum;
use crate::properties::{LITTLE_OVERHEAD, Properties};
use crate::rr::in_range;
use crate::socket::timed_out;
use crate::{Engine, Error, Part, Responder, Stop, TrialSettings};

/// Interval at which the far end checks for its end.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 40_000_000 };
/// Bytes of a question that are examined.
const HEAD_BYTES: usize = 64;

/// Path MTU and fragments, both ways.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Mtu {
    /// Seconds that it may take at most, 2..=60. A clean path takes a fraction of one, a black hole two or three.
    pub limit_s: u32,
}

impl Default for Mtu {
    fn default() -> Self {
        Mtu { limit_s: 10 }
    }
}

impl Engine for Mtu {
    fn kind(&self) -> &'static str {
        "mtu"
    }

    fn describe(&self) -> String {
        "path MTU both ways by packets that must not be split, and datagrams of 8,192 bytes that are"
            .to_owned()
    }

    fn validate(&self) -> Result<(), String> {
        in_range("limit-s", self.limit_s, 2..=60)
    }

    fn properties(&self) -> Properties {
        Properties { overhead: LITTLE_OVERHEAD, served: None }
    }

    fn metrics(&self) -> Vec<MetricDef> {
        metrics()
    }

    fn patience(&self) -> Duration {
        Duration::from_secs(self.limit_s.into())
    }

    fn open(&self, setting: &TrialSettings, bind: SocketAddr) -> Result<Box<dyn Responder>, Error> {
        Ok(Box::new(FarEnd::open(setting, bind)?))
    }

    fn drive(&self, setting: &TrialSettings, target: SocketAddr) -> Result<Part, Error> {
        let asked = Target { address: target, session: Some(setting.cookie), budget: self.patience() };
        match weir_mtu::survey(&asked, &setting.stop) {
            Ok(survey) => Ok(part(&survey)),
            Err(weir_mtu::Error::NoAnswer(_)) if !setting.stop.raised() => Ok(nothing()),
            Err(e) => Err(Error::Connect { address: target, source: io::Error::other(e) }),
        }
    }

    fn combine(&self, initiators: &[Part], responders: &[Part]) -> Part {
        let mut trial = Part::default();
        for part in initiators {
            for (name, value) in &part.values {
                // With several initiators the worst path counts, so that the result holds for all of them.
                let worst = trial.values.entry(name.clone()).or_insert(*value);
                if COUNTS.contains(&name.as_str()) {
                    continue;
                }
                *worst = if name.ends_with("_fate") { worst.max(*value) } else { worst.min(*value) };
            }
            for finding in &part.path {
                if !trial.path.contains(finding) {
                    trial.path.push(finding.clone());
                }
            }
        }
        order::by_key(&mut trial.path, |f| f.cause);
        for name in COUNTS {
            trial.set(name, sum(initiators, name));
        }
        if trial.value("surveys") > 0.0 {
            trial.set("failed_ratio", trial.value("failed_surveys") / trial.value("surveys"));
        }
        let parts = initiators.iter().chain(responders);
        trial.faults = parts.clone().flat_map(|p| p.faults.clone()).collect();
        trial.cpu_s = parts.map(|p| p.cpu_s).sum();
        trial
    }
}

/// Values that are added up over several initiators.
const COUNTS: [&str; 2] = ["surveys", "failed_surveys"];

/// A path on which nothing is answered carries no packet of any length. The responder is there: it was opened before.
fn nothing() -> Part {
    let mut part = Part::default();
    part.set("surveys", 1.0);
    part.set("failed_surveys", 1.0);
    part.set("path_mtu_bytes", 0.0);
    part.set("safe_payload_bytes", 0.0);
    part
}

/// Returns the fate of fragments as a number, which distinguishes trials in a table; the words are in the trial's findings.
fn fate(fragments: &Fragments) -> f64 {
    f64::from(match fragments.fate {
        Fate::Whole => 0,
        Fate::OutOfOrder => 1,
        Fate::Lossy => 2,
        Fate::Some => 3,
        Fate::LaterOnly => 4,
        Fate::FirstOnly => 5,
        Fate::NotWhole => 6,
        Fate::Gone => 7,
        Fate::Unknown => 8,
    })
}

const FATES: &str = "0 all arrive, 1 all, out of order, 2 some datagrams, 3 some fragments and no datagram, 4 only fragments \
                     without a UDP header, 5 only those with one, 6 no datagram, of fragments nothing is known, 7 no \
                     fragment, 8 not known";

fn part(survey: &Survey) -> Part {
    // Pings or refusals prove nothing of the path to the responder, which was not reached.
    if survey.method != Method::FarEnd {
        return nothing();
    }
    let verdict = PathVerdict::of(survey);
    let mut part = Part::default();
    part.set("surveys", 1.0);
    part.set("failed_surveys", 0.0);
    let mut direction = |name: &str, mtu: Option<&PathMtu>, fragments: &Fragments| {
        if let Some(bytes) = mtu.and_then(|m| m.bytes) {
            part.set(&format!("{name}_path_mtu_bytes"), bytes.into());
        }
        if let Some(mtu) = mtu.filter(|m| matches!(m.limit, Limit::Told | Limit::Silence)) {
            part.set(&format!("{name}_too_big_heard"), f64::from(u8::from(mtu.limit == Limit::Told)));
        }
        if fragments.sent > 0 {
            let whole = f64::from(fragments.whole) / f64::from(fragments.sent);
            part.set(&format!("{name}_fragmented_arrived_ratio"), whole);
        }
        part.set(&format!("{name}_fragments_fate"), fate(fragments));
    };
    direction("egress", Some(&survey.egress), &survey.egress_fragments);
    direction("ingress", survey.ingress.as_ref(), &survey.ingress_fragments);
    for (name, value) in
        [("path_mtu_bytes", verdict.path_mtu_bytes), ("safe_payload_bytes", verdict.safe_payload_bytes)]
    {
        if let Some(bytes) = value {
            part.set(name, bytes.into());
        }
    }
    if let Some(segments) = &survey.segments {
        part.set("mss_announced_bytes", segments.announced.into());
        if let Some(arrived) = segments.arrived {
            part.set("mss_arrived_bytes", arrived.into());
        }
    }
    part.path = verdict.findings;
    if survey.egress.limit == Limit::Open {
        let detail = survey.unknown.last().map_or("too much is lost at any length", String::as_str);
        let detail = format!("the path MTU was left open: {detail}");
        part.faults.push(Fault::noted(FaultCode::Timeout, "initiator", detail));
    }
    part
}

/// How many datagrams in fragments arrived whole, by direction.
fn fragmented_arrived(way: &str) -> MetricDef {
    let help = format!(
        "share of datagrams of 8,192 bytes, sent in fragments in the {way} direction, that were put together at the other end"
    );
    let (name, label) = (format!("{way}_fragmented_arrived_ratio"), format!("{way} in fragments"));
    MetricDef::value(&name, &label, Unit::Ratio, Better::Higher, &help).by_difference()
}

fn fragments_fate(way: &str) -> MetricDef {
    let help = format!("what becomes of fragments in the {way} direction: {FATES}");
    let (name, label) = (format!("{way}_fragments_fate"), format!("{way} fragments"));
    MetricDef::value(&name, &label, Unit::Count, Better::Lower, &help).by_difference().detail()
}

fn too_big_heard(way: &str) -> MetricDef {
    let help = format!(
        "1: a router answers too long packets in the {way} direction with ICMP too-big (RFC 1191, RFC 8201), 0: they vanish"
    );
    let (name, label) = (format!("{way}_too_big_heard"), format!("{way} too-big"));
    MetricDef::value(&name, &label, Unit::Count, Better::Higher, &help).by_difference().detail()
}

fn metrics() -> Vec<MetricDef> {
    let bytes = |name: &str, label: &str, help: &str| {
        MetricDef::value(name, label, Unit::Bytes, Better::Higher, help)
    };
    let count = |name: &str, label: &str, better, help: &str| {
        MetricDef::value(name, label, Unit::Count, better, help).by_difference().detail()
    };
    let unanswered = "initiators whose responder did not answer over UDP: refused, prohibited, unreachable or silent; whatever \
                      pings say, the path carries nothing to it (0 bytes)";
    vec![
        bytes(
            "path_mtu_bytes",
            "path MTU",
            "longest IP packet that arrived whole in both directions (RFC 1191)",
        ),
        bytes(
            "safe_payload_bytes",
            "safe payload",
            "largest UDP payload that fits it: without the headers of IP and UDP",
        ),
        fragmented_arrived("egress"),
        fragmented_arrived("ingress"),
        bytes("egress_path_mtu_bytes", "egress MTU", "longest IP packet that arrived whole at the responder")
            .detail(),
        bytes(
            "ingress_path_mtu_bytes",
            "ingress MTU",
            "longest IP packet that arrived whole at the initiator",
        )
        .detail(),
        fragments_fate("egress"),
        fragments_fate("ingress"),
        too_big_heard("egress"),
        too_big_heard("ingress"),
        bytes(
            "mss_announced_bytes",
            "MSS announced",
            "largest TCP segment that the initiator announced in its SYN",
        )
        .detail(),
        bytes("mss_arrived_bytes", "MSS arrived", "the same as the SYN had it at the responder").detail(),
        MetricDef::failure("failed_ratio", "no answer", ("failed_surveys", "surveys"), unanswered),
        count("surveys", "surveys", Better::Neither, "initiators that asked their responder"),
        count("failed_surveys", "no answer, number", Better::Lower, unanswered),
    ]
}

/// The responder's end: UDP and TCP on one port, in one thread.
struct FarEnd {
    port: u16,
    done: Stop,
    thread: Option<JoinHandle<Result<(), Error>>>,
}

impl FarEnd {
    fn open(setting: &TrialSettings, bind: SocketAddr) -> Result<Self, Error> {
        let error = |source| Error::Listen { address: bind, source };
        let socket = UdpSocket::bind(bind).map_err(error)?;
        let local = socket.local_addr().map_err(error)?;
        let listener = TcpListener::bind(local).map_err(error)?;
        segment_size::keep_syn(&listener).map_err(error)?;
        socket.set_nonblocking(true).map_err(error)?;
        listener.set_nonblocking(true).map_err(error)?;
        let responder = weir_mtu::Responder::of_session(setting.cookie);
        let (done, stop) = (Stop::default(), setting.stop.clone());
        let over = done.clone();
        let serve = move || {
            while !over.raised() && !stop.raised() {
                serve_once(&socket, &listener, &responder)?;
            }
            Ok(())
        };
        let thread = std::thread::Builder::new().name("mtu".into()).spawn(serve);
        let thread = thread.map_err(Error::io("start a thread"))?;
        Ok(FarEnd { port: local.port(), done, thread: Some(thread) })
    }

    fn close(&mut self) -> Result<(), Error> {
        self.done.raise();
        match self.thread.take().map(JoinHandle::join) {
            None => Ok(()),
            Some(Ok(result)) => result,
            Some(Err(panic)) => std::panic::resume_unwind(panic),
        }
    }
}

/// Waits for a moment, and answers what has come.
fn serve_once(
    socket: &UdpSocket,
    listener: &TcpListener,
    responder: &weir_mtu::Responder,
) -> Result<(), Error> {
    let mut ready = [
        PollFd::from_borrowed_fd(socket.as_fd(), PollFlags::IN),
        PollFd::from_borrowed_fd(listener.as_fd(), PollFlags::IN),
    ];
    match poll(&mut ready, Some(&LOOK)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => {}
        Err(e) => return Err(Error::Io { what: "wait for probes", source: e.into() }),
    }
    // As long as the longest datagram: its length is what is asked for.
    let mut buffer = vec![0; 1 << 16];
    loop {
        match socket.recv_from(&mut buffer) {
            Ok((n, from)) => {
                let head = &buffer[..n.min(HEAD_BYTES)];
                responder.reply(socket, head, n, from).map_err(Error::io("answer a probe"))?;
            }
            Err(e) if timed_out(&e) => break,
            // An ICMP message about an earlier answer.
            Err(e) if e.kind() == io::ErrorKind::ConnectionRefused => {}
            Err(source) => return Err(Error::Io { what: "wait for probes", source }),
        }
    }
    // A peer that connects and sends nothing valid is a stranger, or gone.
    while let Ok((stream, _)) = listener.accept() {
        let _ = responder::connection(stream);
    }
    Ok(())
}

impl Responder for FarEnd {
    fn port(&self) -> u16 {
        self.port
    }

    fn finish(mut self: Box<Self>) -> Result<Part, Error> {
        self.close().map(|()| Part::default())
    }
}

impl Drop for FarEnd {
    fn drop(&mut self) {
        // A caller that needs the result has called `finish`.
        let _ = self.close();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trial(bind: &str) -> Part {
        let work = Mtu::default();
        let setting = TrialSettings::new(Duration::ZERO, Duration::from_millis(100), 77);
        let far = work.open(&setting, bind.parse().unwrap()).unwrap();
        let target = SocketAddr::new(bind.parse::<SocketAddr>().unwrap().ip(), far.port());
        let near = work.drive(&setting, target).unwrap();
        work.combine(&[near], &[far.finish().unwrap()])
    }

    #[test]
    fn loopback_carries_what_it_says() {
        let lo: f64 = std::fs::read_to_string("/sys/class/net/lo/mtu").unwrap().trim().parse().unwrap();
        for (bind, headers) in [("127.0.0.1:0", 28.0), ("[::1]:0", 48.0)] {
            if UdpSocket::bind(bind).is_err() {
                println!("SKIP: this host has no {bind}");
                continue;
            }
            let part = trial(bind);
            // Lengths have 16 bits: no packet of IPv4 is longer than 65,535 bytes, none of IPv6 than 65,575.
            let most = lo.min(if headers == 28.0 { 65_535.0 } else { 65_575.0 });
            assert_eq!(part.value("path_mtu_bytes"), most, "{part:?}");
            assert_eq!(part.value("safe_payload_bytes"), most - headers);
            // Nothing of IPv4 is longer than the link: fragments were not tried.
            let fate = if headers == 28.0 { 8.0 } else { 0.0 };
            assert_eq!(part.value("egress_fragments_fate"), fate, "{part:?}");
            assert_eq!((part.path.len(), part.faults.len()), (0, 0), "{part:?}");
            assert_eq!((part.value("surveys"), part.value("failed_ratio")), (1.0, 0.0), "{part:?}");
        }
    }

    #[test]
    fn every_metric_that_is_set_is_defined() {
        let defined: Vec<String> = metrics().into_iter().map(|m| m.name).collect();
        for name in trial("127.0.0.1:0").values.keys() {
            assert!(defined.contains(name), "{name}");
        }
    }

    #[test]
    fn a_path_that_refuses_what_is_for_the_responder_carries_nothing() {
        let work = Mtu::default();
        let setting = TrialSettings::new(Duration::ZERO, Duration::from_millis(100), 77);
        // Closed again, so that the port is refused.
        let closed = UdpSocket::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
        let refused = work.drive(&setting, closed).unwrap();
        let trial = work.combine(&[refused.clone(), refused], &[]);
        assert_eq!(trial.faults, []);
        assert_eq!((trial.value("surveys"), trial.value("failed_surveys")), (2.0, 2.0));
        assert_eq!((trial.value("failed_ratio"), trial.values["path_mtu_bytes"]), (1.0, 0.0));
    }

    #[test]
    fn the_limit_has_a_range() {
        assert!(Mtu::default().validate().is_ok());
        for limit_s in [0, 1, 61] {
            assert!(Mtu { limit_s }.validate().unwrap_err().contains("limit-s"), "{limit_s}");
        }
    }
}
