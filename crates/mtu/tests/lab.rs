//! Surveys of paths in the lab: each fault is named, ten times of ten, and a clean path has none.

use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use weir_lab::emulate::Emulation;
use weir_lab::{Family, Lab, LabOptions, Link, Role, Site, SiteSpec, Topology};
use weir_mtu::fragments::Fate;
use weir_mtu::hops::LossPoint;
use weir_mtu::search::Limit;
use weir_mtu::survey::Method;
use weir_mtu::{PathVerdict, Responder, Survey, Target, responder, survey};
use weir_record::PathCause;
use weir_sys::process::which;
use weir_sys::{NetNs, Stop, privilege, segment_size};

const PORT: u16 = 5353;
const SESSION: u64 = 0x5eed;
/// Surveys of each fault.
const TIMES: usize = 10;

fn cannot_run() -> bool {
    if privilege::test_needs_root() {
        return true;
    }
    for program in ["nft", "iptables"] {
        if which(program).is_none() {
            println!("SKIP: {program} is not installed");
            return true;
        }
    }
    false
}

/// A path with a link like that, and a far end of ours.
struct Path {
    // Dropped in this order: the far end before the namespaces.
    far: Option<FarEnd>,
    _emulation: Option<Emulation>,
    lab: Lab,
}

impl Path {
    fn new(name: &str, family: Family, link: &str) -> Path {
        let spec = SiteSpec { name: "s".into(), topology: Topology::Direct, return_route: false, wan: true };
        let options = LabOptions { family, ..LabOptions::default() };
        let run = format!("test-mtu-{name}-{family:?}-{}", std::process::id());
        let lab = Lab::build(&run, &options, &[spec]).unwrap();
        let link: Link = serde_json::from_str(link).unwrap();
        let emulation = (!link.is_plain()).then(|| Emulation::start(lab.site("s").unwrap(), &link).unwrap());
        Path { far: None, _emulation: emulation, lab }
    }

    fn site(&self) -> &Site {
        self.lab.site("s").unwrap()
    }

    fn host(&self, role: Role) -> &NetNs {
        self.site().host(role).unwrap()
    }

    fn address(&self) -> SocketAddr {
        SocketAddr::new(self.site().addresses().responder, PORT)
    }

    /// With a far end that knows the session, or answers anybody.
    fn served(self, session: Option<u64>) -> Path {
        self.served_by(session, || {})
    }

    /// The same in a thread that does this first.
    fn served_by(mut self, session: Option<u64>, first: fn()) -> Path {
        self.far = Some(FarEnd::start(self.host(Role::Responder), self.address(), session, first));
        self
    }

    fn survey(&self, session: Option<u64>) -> Result<Survey, weir_mtu::Error> {
        let target = Target { address: self.address(), session, budget: Duration::from_secs(20) };
        self.host(Role::Initiator).run(|| survey(&target, &Stop::default())).unwrap()
    }
}

struct FarEnd {
    stop: Stop,
    threads: Vec<JoinHandle<()>>,
}

impl FarEnd {
    fn start(host: &NetNs, address: SocketAddr, session: Option<u64>, first: fn()) -> Self {
        let stop = Stop::default();
        let (socket, listener) =
            host.run(|| (UdpSocket::bind(address).unwrap(), TcpListener::bind(address).unwrap())).unwrap();
        socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        segment_size::keep_syn(&listener).unwrap();
        listener.set_nonblocking(true).unwrap();
        let (namespace, over) = (host.clone(), stop.clone());
        let udp = std::thread::spawn(move || {
            namespace
                .run(|| {
                    first();
                    let responder = session.map_or_else(Responder::open, Responder::of_session);
                    let mut buffer = vec![0; 1 << 16];
                    while !over.raised() {
                        if let Ok((n, from)) = socket.recv_from(&mut buffer) {
                            assert!(responder.reply(&socket, &buffer[..n.min(64)], n, from).unwrap());
                        }
                    }
                })
                .unwrap();
        });
        let over = stop.clone();
        let tcp = std::thread::spawn(move || {
            while !over.raised() {
                match listener.accept() {
                    Ok((stream, _)) => match responder::connection(stream) {
                        // A path that loses packets may lose all that it waits for; the survey is judged without it.
                        Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => println!("far end: {e}"),
                        outcome => outcome.unwrap(),
                    },
                    Err(_) => std::thread::sleep(Duration::from_millis(5)),
                }
            }
        });
        FarEnd { stop, threads: vec![udp, tcp] }
    }
}

impl Drop for FarEnd {
    fn drop(&mut self) {
        self.stop.raise();
        for thread in self.threads.drain(..) {
            thread.join().unwrap();
        }
    }
}

fn causes(survey: &Survey) -> Vec<PathCause> {
    PathVerdict::of(survey).findings.iter().map(|f| f.cause).collect()
}

/// Surveys the same path again and again, and looks at each.
fn each_time(name: &str, family: Family, link: &str, look: impl Fn(&Survey, &PathVerdict)) {
    let path = Path::new(name, family, link).served(Some(SESSION));
    let begun = Instant::now();
    for _ in 0..TIMES {
        let survey = path.survey(Some(SESSION)).unwrap();
        let verdict = PathVerdict::of(&survey);
        look(&survey, &verdict);
    }
    println!("{name} {family:?}: {:?} each", begun.elapsed() / TIMES as u32);
}

fn only(verdict: &PathVerdict, survey: &Survey, cause: PathCause, words: &str) {
    let found: Vec<PathCause> = verdict.findings.iter().map(|f| f.cause).collect();
    assert_eq!(found, [cause], "{survey:#?}");
    assert!(verdict.summary.contains(words), "{}", verdict.summary);
}

/// Payload that fits an MTU.
fn payload(family: Family, mtu: u32) -> u32 {
    mtu - if family == Family::Ipv4 { 28 } else { 48 }
}

const BOTH: [Family; 2] = [Family::Ipv4, Family::Ipv6];

/// Both families side by side: surveys of paths that lose packets mostly wait for answers that do not come.
fn for_both(work: impl Fn(Family) + Sync) {
    std::thread::scope(|scope| {
        for family in BOTH {
            let work = &work;
            scope.spawn(move || work(family));
        }
    });
}

#[test]
fn root_a_clean_path_has_no_finding() {
    if cannot_run() {
        return;
    }
    for family in BOTH {
        each_time("clean", family, "{}", |survey, verdict| {
            assert_eq!(verdict.findings, [], "{survey:#?}");
            assert_eq!(verdict.path_mtu_bytes, Some(1500), "{survey:#?}");
            // RFC 791, RFC 8200 and RFC 768: 20 or 40 bytes of IP, 8 of UDP.
            let safe = if family == Family::Ipv4 { 1472 } else { 1452 };
            assert_eq!(verdict.safe_payload_bytes, Some(safe));
            assert_eq!(
                (survey.egress_fragments.fate, survey.ingress_fragments.fate),
                (Fate::Whole, Fate::Whole)
            );
            let segments = survey.segments.unwrap();
            // RFC 6691: MTU less the fixed headers.
            let mss = if family == Family::Ipv4 { 1460 } else { 1440 };
            assert_eq!((segments.announced, segments.arrived), (mss, Some(mss as u16)));
            assert_eq!((segments.sends, segments.far_sends), (mss, Some(mss)));
        });
    }
}

#[test]
fn root_dropped_fragments_are_told_apart_by_which() {
    if cannot_run() {
        return;
    }
    for_both(|family| {
        let safe = payload(family, 1500);
        let digits = format!("send at most 1,{} bytes (-l {safe})", safe - 1000);
        each_time("drop-rest", family, r#"{"fragments": "drop-rest"}"#, |survey, verdict| {
            let words = format!(
                "Fragments of UDP datagrams that carry no UDP header are dropped on the path: {digits}"
            );
            only(verdict, survey, PathCause::HeaderlessFragmentsDropped, &words);
        });
        each_time("drop-all", family, r#"{"fragments": "drop-all"}"#, |survey, verdict| {
            only(verdict, survey, PathCause::FragmentsDropped, &digits);
        });
        each_time("reorder", family, r#"{"fragments": "reorder"}"#, |survey, verdict| {
            only(verdict, survey, PathCause::FragmentsReordered, "out of order on the path");
        });
    });
}

#[test]
fn root_a_smaller_mtu_is_told_from_a_black_hole() {
    if cannot_run() {
        return;
    }
    for_both(|family| {
        each_time("tunnel", family, r#"{"mtu": 1380}"#, |survey, verdict| {
            only(verdict, survey, PathCause::SmallerMtu, "1,380 bytes, less than this link's 1,500");
            assert_eq!(verdict.safe_payload_bytes, Some(payload(family, 1380)));
        });
        each_time("black-hole", family, r#"{"mtu": 1391, "icmp": "drop"}"#, |survey, verdict| {
            only(verdict, survey, PathCause::PathMtuBlackHole, "more than 1,391 bytes vanish");
            assert_eq!(verdict.safe_payload_bytes, Some(payload(family, 1391)));
        });
    });
}

#[test]
fn root_each_direction_is_measured_by_itself() {
    if cannot_run() {
        return;
    }
    for family in BOTH {
        let path = Path::new("asymmetric", family, r#"{"egress": {"mtu": 1400}, "ingress": {"mtu": 1300}}"#);
        let path = path.served(Some(SESSION));
        let survey = path.survey(Some(SESSION)).unwrap();
        let ingress = survey.ingress.as_ref().unwrap();
        assert_eq!((survey.egress.bytes, ingress.bytes), (Some(1400), Some(1300)), "{survey:#?}");
        assert_eq!(causes(&survey), [PathCause::AsymmetricMtu, PathCause::SmallerMtu]);

        let path = Path::new("ingress-rest", family, r#"{"ingress": {"fragments": "drop-rest"}}"#);
        let path = path.served(Some(SESSION));
        let survey = path.survey(Some(SESSION)).unwrap();
        assert_eq!(survey.egress_fragments.fate, Fate::Whole, "{survey:#?}");
        assert_eq!(survey.ingress_fragments.fate, Fate::FirstOnly);
        let verdict = PathVerdict::of(&survey);
        only(&verdict, &survey, PathCause::HeaderlessFragmentsDropped, "on the way back");
    }
}

#[test]
fn root_loss_is_not_blamed_on_length() {
    if cannot_run() {
        return;
    }
    let path = Path::new("loss", Family::Ipv4, r#"{"loss": 0.1}"#).served(Some(SESSION));
    let survey = path.survey(Some(SESSION)).unwrap();
    // Fragments of one datagram are six chances to be lost: that shows as loss, never as dropped fragments.
    assert_eq!(causes(&survey), [], "{survey:#?}");
    assert_eq!(survey.egress.bytes, Some(1500), "{survey:#?}");
}

#[test]
fn root_a_server_for_anybody_shows_the_same() {
    if cannot_run() {
        return;
    }
    let path = Path::new("open", Family::Ipv4, r#"{"mtu": 1400}"#).served(None);
    let survey = path.survey(None).unwrap();
    let ingress = survey.ingress.as_ref().unwrap();
    assert_eq!((survey.egress.bytes, ingress.bytes), (Some(1400), Some(1400)), "{survey:#?}");
    assert_eq!(causes(&survey), [PathCause::SmallerMtu]);
    let path = Path::new("open-rest", Family::Ipv6, r#"{"fragments": "drop-rest"}"#).served(None);
    let survey = path.survey(None).unwrap();
    assert_eq!(survey.egress_fragments.fate, Fate::FirstOnly, "{survey:#?}");
    assert_eq!(survey.ingress_fragments.fate, Fate::Unknown);
    assert_eq!(causes(&survey), [PathCause::HeaderlessFragmentsDropped]);
}

#[test]
fn root_a_server_without_privilege_has_its_host_s_counter() {
    if cannot_run() {
        return;
    }
    // Takes the privilege from the far end's thread alone.
    let blind = || {
        let mut sets = rustix::thread::capabilities(None).unwrap();
        sets.effective.remove(rustix::thread::CapabilitySet::NET_RAW);
        rustix::thread::set_capabilities(None, sets).unwrap();
        assert!(weir_mtu::witness::Witness::open().blind().is_some());
    };
    for family in BOTH {
        for (link, cause, fate) in [
            ("{}", None, Fate::Whole),
            (r#"{"fragments": "drop-rest"}"#, Some(PathCause::HeaderlessFragmentsDropped), Fate::FirstOnly),
            (r#"{"fragments": "drop-all"}"#, Some(PathCause::FragmentsDropped), Fate::Gone),
        ] {
            let path = Path::new("blind", family, link).served_by(None, blind);
            let survey = path.survey(None).unwrap();
            assert_eq!(survey.egress_fragments.fate, fate, "{link} {survey:#?}");
            assert_eq!(survey.egress_fragments.first, None, "it saw no single fragment");
            assert_eq!(causes(&survey), cause.into_iter().collect::<Vec<_>>(), "{link} {survey:#?}");
        }
    }
}

#[test]
fn root_without_a_far_end_pings_and_closed_ports_have_to_do() {
    if cannot_run() {
        return;
    }
    for family in BOTH {
        for (link, cause, bytes) in [
            ("{}", None, 1500),
            (r#"{"mtu": 1400}"#, Some(PathCause::SmallerMtu), 1400),
            (r#"{"mtu": 1420, "icmp": "drop"}"#, Some(PathCause::PathMtuBlackHole), 1420),
            (r#"{"fragments": "drop-rest"}"#, Some(PathCause::LargeDatagramsVanish), 1500),
        ] {
            let path = Path::new("ping", family, link);
            let survey = path.survey(None).unwrap();
            assert_eq!(survey.method, Method::Echo);
            assert_eq!(survey.egress.bytes, Some(bytes), "{link} {survey:#?}");
            assert_eq!(causes(&survey), cause.into_iter().collect::<Vec<_>>(), "{link} {survey:#?}");
        }
    }
}

#[test]
fn root_the_hop_before_a_black_hole_is_named() {
    if cannot_run() {
        return;
    }
    for family in BOTH {
        let path = Path::new("hops", family, r#"{"mtu": 1400, "icmp": "drop"}"#).served(Some(SESSION));
        let survey = path.survey(Some(SESSION)).unwrap();
        assert_eq!(survey.egress.limit, Limit::Silence);
        // The wan is the first hop: it gets the long packet and does not send it on.
        assert_eq!(survey.hops.len(), 2, "{survey:#?}");
        let Some(LossPoint::Between { after: 1, address: Some(_), before: 2 }) = survey.black_hole else {
            panic!("{survey:#?}");
        };
    }
}

#[test]
fn root_nobody_there_is_said_in_time() {
    if cannot_run() {
        return;
    }
    let path = Path::new("nobody", Family::Ipv4, r#"{"loss": 0.999999}"#);
    let begun = Instant::now();
    let error = path.survey(None).unwrap_err().to_string();
    assert!(error.contains("no answer at all"), "{error}");
    assert!(begun.elapsed() < Duration::from_secs(20));
}
