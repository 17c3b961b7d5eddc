//! Everything about one path, in one go.

use std::hash::{BuildHasher, RandomState};
use std::io::{self, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use weir_sys::{Stop, segment_size};

use crate::fragments::{self, Fragments};
use crate::hops::{self, Hop, LossPoint};
use crate::message::MAGIC;
use crate::net::{Far, SocketProber, link_mtu};
use crate::prober::{Probe, ProbeOutcome, Prober, Refusal, Way};
use crate::responder::SEGMENTS;
use crate::search::{Claim, Limit, PathMtu, path_mtu, told_after_all};
use crate::witness::Witness;

/// How long a router's limit of ICMP messages takes to let one pass again, by Linux's default.
const ICMP_PAUSE: Duration = Duration::from_millis(1100);
/// Longest wait for a TCP connection and its few bytes.
const TCP_PATIENCE: Duration = Duration::from_secs(2);
/// The longest packets of IPv4, whose length has 16 bits, and of IPv6, whose length is that of what follows the header.
const LARGEST: (u32, u32) = (65_535, 65_575);
const GRACE: Duration = Duration::from_millis(25);

/// Whereto, and what is known of the far end.
#[derive(Debug, Clone)]
pub struct Target {
    /// Address and port.
    pub address: SocketAddr,
    /// The session that weir's own far end knows; `None` for any far end.
    pub session: Option<u64>,
    /// Time for the whole.
    pub budget: Duration,
}

/// Why there is nothing to say.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No route, or no such link.
    #[error("{0}")]
    NoRoute(weir_sys::Error),
    /// The own host cannot send.
    #[error("cannot send to {target}: {source}")]
    Send {
        /// Whereto.
        target: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// Nothing is answered at all.
    #[error("{0}")]
    NoAnswer(String),
}

/// How arrivals were proved.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Method {
    /// A far end of ours said so.
    FarEnd,
    /// Answers to pings, which are as long as what they answer: both directions at once.
    Echo,
    /// Refusals of a closed port: egress only.
    ClosedPort,
}

/// Segment sizes (MSS) of a TCP connection to the target, bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Segments {
    /// The size that this host announced.
    pub announced: u32,
    /// The announced size as it arrived at the far end, if the far end reports it.
    pub arrived: Option<u16>,
    /// Largest segment that this host sends: what the other side announced, as it arrived here, or less.
    pub sends: u32,
    /// Largest segment that the far end sends, if it tells.
    pub far_sends: Option<u32>,
}

/// The results of a survey.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Survey {
    /// The target.
    pub target: IpAddr,
    /// Its port.
    pub port: u16,
    /// How arrivals were proved.
    pub method: Method,
    /// MTU of the own link, bytes.
    pub link_mtu: u32,
    /// Shortest round trip, ms.
    pub round_trip_ms: Option<f64>,
    /// From here to the target; with [`Method::Echo`] the less of both directions.
    pub egress: PathMtu,
    /// From the target to here, by itself.
    pub ingress: Option<PathMtu>,
    /// Fragments from here to the target.
    pub egress_fragments: Fragments,
    /// Fragments from the target to here.
    pub ingress_fragments: Fragments,
    /// TCP's segment sizes, where a connection could be made.
    pub segments: Option<Segments>,
    /// The routers on the way, where it was asked for them.
    pub hops: Vec<Hop>,
    /// The place at which long packets vanish, if they do.
    pub black_hole: Option<LossPoint>,
    /// Properties that could not be found out, with what would help.
    pub unknown: Vec<String>,
    /// How long it took, s.
    pub took_s: f64,
}

impl Survey {
    /// True of IPv6.
    pub fn is_ipv6(&self) -> bool {
        self.target.is_ipv6()
    }

    /// The longest packet that is known to pass both ways, bytes.
    pub fn path_mtu(&self) -> Option<u32> {
        let ingress = self.ingress.as_ref().and_then(|i| i.bytes);
        self.egress.bytes.map(|egress| ingress.map_or(egress, |i| i.min(egress)))
    }
}

/// Finds out about the path to a target. Ends early when `stop` is raised.
///
/// # Errors
/// If the survey has no result at all.
pub fn survey(target: &Target, stop: &Stop) -> Result<Survey, Error> {
    let begun = Instant::now();
    let ip = target.address.ip();
    let link = link_mtu(ip).map_err(Error::NoRoute)?.min(if ip.is_ipv4() { LARGEST.0 } else { LARGEST.1 });
    let surveyor = Surveyor {
        target: target.clone(),
        session: target.session.unwrap_or_else(|| RandomState::new().hash_one(begun)),
        link,
        deadline: begun + target.budget,
        stop: stop.clone(),
        unknown: Vec::new(),
    };
    let mut survey = surveyor.run()?;
    survey.took_s = begun.elapsed().as_secs_f64();
    Ok(survey)
}

struct Surveyor {
    target: Target,
    session: u64,
    link: u32,
    deadline: Instant,
    stop: Stop,
    unknown: Vec<String>,
}

impl Surveyor {
    fn run(mut self) -> Result<Survey, Error> {
        let address = self.target.address;
        let failed = |source| Error::Send { target: address, source };
        let (mut prober, method) = self.find_far_end()?;
        let egress = path_mtu(&mut prober, Way::Egress, self.link).map_err(failed)?;
        let last_long = Instant::now();
        let whole = egress.bytes.unwrap_or(0);
        prober.set_egress_whole(whole);
        let mut survey = Survey {
            target: address.ip(),
            port: address.port(),
            method,
            link_mtu: self.link,
            round_trip_ms: None,
            egress,
            ingress: None,
            egress_fragments: Fragments::unknown(Way::Egress),
            ingress_fragments: Fragments::unknown(Way::Ingress),
            segments: None,
            hops: Vec::new(),
            black_hole: None,
            unknown: Vec::new(),
            took_s: 0.0,
        };
        if survey.egress.bytes.is_some() {
            self.fragments(&mut prober, &mut survey).map_err(failed)?;
            self.ingress(&mut prober, &mut survey).map_err(failed)?;
            self.fragments_back(&mut prober, &mut survey).map_err(failed)?;
        }
        survey.segments = self.segments(method);
        if survey.egress.limit == Limit::Silence {
            survey.hops = hops::sweep(&mut prober, self.link).map_err(failed)?;
            survey.black_hole = Some(hops::place(&survey.hops));
        }
        self.ask_again(&mut prober, &mut survey, last_long).map_err(failed)?;
        survey.round_trip_ms = prober.round_trip().map(|t| t.as_secs_f64() * 1e3);
        self.note_unknown(&survey);
        survey.unknown = self.unknown;
        Ok(survey)
    }

    fn udp(&self, far: Far) -> Result<SocketProber, Error> {
        SocketProber::udp(self.target.address, far, self.session, self.deadline, &self.stop)
            .map_err(|source| Error::Send { target: self.target.address, source })
    }

    /// Finds a far end that answers; tries the one that shows most first.
    fn find_far_end(&mut self) -> Result<(SocketProber, Method), Error> {
        let trusted = self.target.session.is_some();
        let mut prober = self.udp(Far::Ours { trusted })?;
        let mut heard = self.probe_twice(&mut prober)?;
        // With a session the far end certainly exists. If the question came too early or was lost, it is repeated.
        for _ in 0..3 {
            if !trusted || heard == Some(ProbeOutcome::Arrived) || prober.is_over() {
                break;
            }
            heard = self.probe_twice(&mut prober)?;
        }
        if heard == Some(ProbeOutcome::Arrived) {
            return Ok((prober, Method::FarEnd));
        }
        match SocketProber::echo(self.target.address.ip(), self.session, self.deadline, &self.stop) {
            Ok(mut echo) => {
                if self.probe_twice(&mut echo)? == Some(ProbeOutcome::Arrived) {
                    return Ok((echo, Method::Echo));
                }
                self.unknown.push("the target does not answer pings".into());
            }
            Err(e) => self.unknown.push(format!(
                "pings were not tried ({e}): they need root, or a group in the sysctl net.ipv4.ping_group_range"
            )),
        }
        let answered_all = heard.is_some();
        if heard.is_none() && !trusted {
            // Another prober may have used up the refusals that the host sends at once.
            self.pause(Instant::now() + ICMP_PAUSE, &prober);
            heard = self.probe_twice(&mut prober)?;
        }
        match heard {
            Some(ProbeOutcome::Refused { refusal: Refusal::ClosedPort, .. }) => {
                let mut closed = self.udp(Far::ClosedPort)?;
                if !answered_all {
                    closed.expect_few_refusals();
                }
                Ok((closed, Method::ClosedPort))
            }
            heard => Err(self.no_answer(heard)),
        }
    }

    /// Until then, or until everything ends.
    fn pause(&self, until: Instant, prober: &SocketProber) {
        while Instant::now() < until && !prober.is_over() {
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn no_answer(&self, heard: Option<ProbeOutcome>) -> Error {
        let (ip, port) = (self.target.address.ip(), self.target.address.port());
        let by = |from: Option<IpAddr>| from.map_or("this host itself".to_owned(), |f| f.to_string());
        Error::NoAnswer(match heard {
            Some(ProbeOutcome::Refused { from, refusal: Refusal::Prohibited }) => {
                format!(
                    "{ip}: {} says that UDP to port {port} is prohibited (a firewall); pings are not answered either",
                    by(from)
                )
            }
            Some(ProbeOutcome::Refused { from, .. }) => format!("{ip} is unreachable, says {}", by(from)),
            _ => format!(
                "{ip}: no answer at all, neither to UDP on port {port} nor to pings. It is down, or a firewall drops both. \
                 Run `weir serve` there, or let one of them through, and try again"
            ),
        })
    }

    /// Sends two small packets, and returns the best that came of them.
    fn probe_twice(&self, prober: &mut SocketProber) -> Result<Option<ProbeOutcome>, Error> {
        let control = Probe::whole(Way::Egress, prober.least());
        let outcomes = prober.exchange(&[control; 2], GRACE);
        let outcomes = outcomes.map_err(|source| Error::Send { target: self.target.address, source })?;
        let arrived = outcomes.iter().find(|o| **o == ProbeOutcome::Arrived);
        Ok(arrived.or(outcomes.iter().find(|o| o.is_heard())).copied())
    }

    fn fragments(&mut self, prober: &mut SocketProber, survey: &mut Survey) -> io::Result<()> {
        let ipv6 = survey.is_ipv6();
        let whole = survey.egress.bytes.unwrap_or(0);
        let mtu = if ipv6 {
            // Routers of IPv6 split nothing: what does not fit the path would not arrive for that reason.
            let length = whole.max(1280);
            prober.set_fragment_length(length)?;
            length
        } else {
            prober.kernels_path_mtu()?.min(self.link)
        };
        let row = if survey.method == Method::ClosedPort { fragments::SHORT_ROW } else { fragments::ROW };
        // A far end that is not weir's has no tally.
        let seen = fragments::try_out(prober, Way::Egress, mtu, ipv6, row, SocketProber::tally)?;
        // It would also bound what is to go whole.
        prober.set_fragment_length(0)?;
        survey.egress_fragments = seen;
        if survey.method == Method::Echo { self.echo_fragments(survey, mtu) } else { Ok(()) }
    }

    /// From a far end of ours to here.
    fn fragments_back(&mut self, prober: &mut SocketProber, survey: &mut Survey) -> io::Result<()> {
        let Some(whole) = survey.ingress.as_ref().and_then(|i| i.bytes) else { return Ok(()) };
        if self.target.session.is_none() && !survey.egress_fragments.fate.is_good() {
            self.unknown.push(
                "whether fragments come back was not tried: the far end sends no more than it gets, and fragments do not get there"
                    .into(),
            );
            return Ok(());
        }
        let ipv6 = survey.is_ipv6();
        let mtu = if ipv6 { whole.max(1280) } else { self.link };
        if ipv6 {
            prober.set_back_length(mtu);
        }
        let mut witness = Witness::open();
        let (session, from) = (self.session, survey.target);
        let back = |_: &mut SocketProber| witness.tally(session, from).map(Some);
        survey.ingress_fragments = fragments::try_out(prober, Way::Ingress, mtu, ipv6, fragments::ROW, back)?;
        Ok(())
    }

    /// An answered ping of several fragments proves both directions, and one that is not, neither: then a closed port, whose
    /// refusals are short, proves egress by itself.
    fn echo_fragments(&self, survey: &mut Survey, mtu: u32) -> io::Result<()> {
        if survey.egress_fragments.fate.is_good() {
            survey.ingress_fragments = Fragments { way: Way::Ingress, ..survey.egress_fragments };
            return Ok(());
        }
        let (both, ipv6) = (survey.egress_fragments, survey.is_ipv6());
        let Ok(mut closed) = self.udp(Far::ClosedPort) else { return Ok(()) };
        closed.set_fragment_length(mtu)?;
        let row = fragments::SHORT_ROW;
        let egress = fragments::try_out(&mut closed, Way::Egress, mtu, ipv6, row, |_| Ok(None))?;
        if egress.fate.is_good() {
            survey.egress_fragments = egress;
            // The target's kernel splits its answers for its own link: where that is too long for the way back and no router
            // of IPv6 says so, they are lost for their length.
            if !(ipv6 && survey.egress.limit == Limit::Silence) {
                survey.ingress_fragments = Fragments { way: Way::Ingress, ..both };
            }
        }
        Ok(())
    }

    fn ingress(&mut self, prober: &mut SocketProber, survey: &mut Survey) -> io::Result<()> {
        if survey.method != Method::FarEnd {
            return Ok(());
        }
        let whole = survey.egress.bytes.unwrap_or(0);
        let free = self.target.session.is_some() || survey.egress_fragments.fate.is_good();
        let most = if free { self.link } else { whole };
        let found = path_mtu(prober, Way::Ingress, most)?;
        if !free && whole < self.link && found.bytes == Some(whole) {
            self.unknown.push(format!(
                "whether packets of more than {whole} bytes come back was not tried: the far end sends no more than it gets"
            ));
        }
        survey.ingress = Some(found);
        Ok(())
    }

    /// A router that has just said enough may be silent for a while, and is asked again before it is called silent for good.
    fn ask_again(
        &self,
        prober: &mut SocketProber,
        survey: &mut Survey,
        last_long: Instant,
    ) -> io::Result<()> {
        let ingress_silent = survey.ingress.as_ref().is_some_and(|i| i.limit == Limit::Silence);
        if survey.egress.limit != Limit::Silence && !ingress_silent {
            return Ok(());
        }
        let last_long = if survey.hops.is_empty() { last_long } else { Instant::now() };
        self.pause(last_long + ICMP_PAUSE, prober);
        let again = |prober: &mut SocketProber, found: &mut PathMtu| -> io::Result<()> {
            let (Limit::Silence, Some(size)) = (found.limit, found.too_long) else { return Ok(()) };
            if let Some(claim) = told_after_all(prober, found.way, size.max(self.link))? {
                let right = (claim.mtu > 0).then_some(Some(claim.mtu) == found.bytes);
                found.claim = Some(Claim { right, ..claim });
                found.limit = Limit::Told;
            }
            Ok(())
        };
        again(prober, &mut survey.egress)?;
        if let Some(ingress) = &mut survey.ingress {
            again(prober, ingress)?;
        }
        if survey.egress.limit != Limit::Silence {
            survey.black_hole = None;
        }
        Ok(())
    }

    fn segments(&self, method: Method) -> Option<Segments> {
        let left = self.deadline.saturating_duration_since(Instant::now()).min(TCP_PATIENCE);
        if left.is_zero() || self.stop.raised() {
            return None;
        }
        let mut stream = TcpStream::connect_timeout(&self.target.address, left).ok()?;
        let own = segment_size::of(&stream).ok()?;
        let mut segments =
            Segments { announced: own.announced, arrived: None, sends: own.sends, far_sends: None };
        if method == Method::FarEnd {
            // A responder that does not answer like weir's gives no information; earlier results stay.
            let answer = (|| -> io::Result<[u8; SEGMENTS]> {
                stream.set_read_timeout(Some(left))?;
                stream.set_write_timeout(Some(left))?;
                stream.write_all(&MAGIC)?;
                let mut answer = [0; SEGMENTS];
                stream.read_exact(&mut answer)?;
                Ok(answer)
            })();
            if let Ok(answer) = answer
                && answer[..8] == MAGIC
            {
                let announced = u16::from_be_bytes([answer[8], answer[9]]);
                segments.arrived = (announced > 0).then_some(announced);
                segments.far_sends =
                    Some(u32::from_be_bytes([answer[12], answer[13], answer[14], answer[15]]))
                        .filter(|n| *n > 0);
            }
        }
        Some(segments)
    }

    fn note_unknown(&mut self, survey: &Survey) {
        let mut note = |words: &str| self.unknown.push(words.to_owned());
        match survey.method {
            Method::FarEnd => {}
            Method::Echo => note(
                "pings prove both directions at once: the path MTU is the less of the two, and which one it is stays open. \
                 `weir serve` on the target tells them apart",
            ),
            Method::ClosedPort => note(
                "refusals of a closed port prove one direction only: nothing is known of the way back. \
                 `weir serve` on the target tells",
            ),
        }
        if survey.egress.bytes.is_some() && survey.egress_fragments.sent == 0 {
            note("fragments were not tried: no datagram is longer than this link's MTU");
        }
        if survey.egress_fragments.fate == fragments::Fate::NotWhole {
            note(
                "whether none of the fragments arrives or only the first was not seen: that needs `weir serve` on the target, with \
                 CAP_NET_RAW, or without fragments of other senders",
            );
        }
        if survey.segments.is_none() {
            note("TCP's segment size was not seen: nothing accepts connections on the port");
        }
        if Instant::now() >= self.deadline {
            note("the time was up before all was tried: --for gives more");
        }
    }
}
