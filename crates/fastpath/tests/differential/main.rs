//! The same packets through two gateways, one of them with the fast path: both ends must get the same packets, to the byte.
//!
//! Conntrack calls two kinds of packets invalid that the fast path carries: segments and datagrams with a wrong checksum, and segments
//! outside of the window. The other end may get the translated packet of these, and nothing else.
//!
//! `WEIR_FASTPATH_SEED` sets the first seed, and with `WEIR_FASTPATH_SECONDS` more seeds follow until that time has passed.

mod case;
mod flow;
mod offload;
mod packet;
mod side;
#[path = "../world/mod.rs"]
mod world;

use std::time::{Duration, Instant};

use case::Case;
use flow::{ACK, Flow, PSH, RST};
use offload::Offload;
use packet::{TCP, UDP};
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use side::{Arrival, Arrivals, BY_NETLINK, BY_XDP, EARLY, End, Side};
use weir_fastpath::{Lesson, Options, Reason, Xdp};
use weir_sys::privilege::test_needs_root;
use world::{Inside, until};

const CASES: u32 = 600;
/// Flows of which each run holds as many; half of them are TCP.
const FLOWS: u16 = 8;

/// Both gateways, and what is sent through them.
struct Run {
    plain: Side,
    fast: Side,
    random: ChaCha8Rng,
    flows: Vec<Flow>,
    ports: std::ops::RangeFrom<u16>,
    /// Number of the next packet or marker.
    number: u32,
    name: String,
    /// Single packets alone, which XDP carries.
    by_xdp: bool,
    /// Cases in which the two differed as they may.
    differed: u32,
    arrived: u32,
    /// Super-packets that the fast path carried: TCP, UDP.
    carried_whole: [u64; 2],
}

impl Run {
    fn new(ipv6: bool, seed: u64, options: Options) -> Run {
        let xdp = options.xdp;
        let inside = if xdp == Xdp::Off { Inside::Bridge } else { Inside::SingleFrames };
        let mut run = Run {
            plain: Side::new(ipv6, inside, None),
            fast: Side::new(ipv6, inside, Some(options)),
            random: ChaCha8Rng::seed_from_u64(seed),
            flows: Vec::new(),
            ports: 4000..,
            number: 1,
            name: format!("seed {seed}, IPv{}, {options:?}", if ipv6 { 6 } else { 4 }),
            by_xdp: xdp != Xdp::Off,
            differed: 0,
            arrived: 0,
            carried_whole: [0; 2],
        };
        // After the keeper has started, which must not share the core.
        weir_sys::sched::pin_current_thread(&weir_sys::sched::allowed_cpus().unwrap()[..1]).unwrap();
        for n in 0..FLOWS {
            let flow = run.begin(if n % 2 == 0 { TCP } else { UDP });
            run.flows.push(flow);
        }
        run.wait_until_carried(0..run.flows.len());
        run
    }

    fn begin(&mut self, protocol: u8) -> Flow {
        let port = self.ports.next().unwrap();
        let mut flow = Flow::new(&mut self.random, &self.plain.world, protocol, port);
        let number = self.numbers(3);
        for (from, packet) in flow.beginning(number) {
            self.step(&Case::of(from, packet));
        }
        flow
    }

    fn numbers(&mut self, count: u32) -> u32 {
        let first = self.number;
        self.number += count;
        first
    }

    /// TCP is learnt only after the keeper has loosened its window.
    fn wait_until_carried(&mut self, flows: std::ops::Range<usize>) {
        let what = format!("{}: flows {flows:?} are carried both ways", self.name);
        until(&what, || {
            let mut carried = true;
            for n in flows.clone() {
                for from in [End::Inside, End::Server] {
                    let number = self.numbers(1);
                    let before = self.fast.carried_packets();
                    let packet = self.flows[n].usual(from, number, 1300);
                    self.step(&Case::of(from, packet));
                    carried &= self.fast.carried_packets() > before;
                }
            }
            carried.then_some(())
        });
    }

    /// Sends a case through both gateways and compares what came of it. True if it arrived at the other end without the fast path.
    fn step(&mut self, case: &Case) -> bool {
        let number = self.numbers(1);
        for packet in &case.packets {
            let [plain, fast] =
                [&self.plain, &self.fast].map(|side| side.send(case.from, &case.offload, packet));
            assert_eq!(plain, fast, "{}: {:?}", self.name, case.offload);
        }
        let plain = self.plain.settle(number);
        let fast = self.fast.settle(number);
        self.arrived += u32::from(!plain.iter().all(Vec::is_empty));
        let far = case.from.other() as usize;
        if plain == fast {
            return !plain[far].is_empty();
        }
        let permitted = case.permitted.clone().map(|packet| Arrival { offload: Offload::default(), packet });
        let may_differ = permitted.is_some_and(|arrival| fast[far] == [arrival] && fast[1 - far].is_empty());
        assert!(may_differ, "{}: {}", self.name, told(case, &plain, &fast));
        self.differed += 1;
        !plain[far].is_empty()
    }

    /// Segments behind the end of a flow that the table had or conntrack knows to have ended, until it is begun anew.
    fn go_on(&mut self, n: usize, is_barred: bool) {
        let before = self.fast.carried_packets();
        for _ in 0..8 {
            let from = if self.random.random_bool(0.5) { End::Inside } else { End::Server };
            let flags = *[ACK, ACK | PSH, ACK | PSH, RST | ACK].choose(&mut self.random).unwrap();
            let length = *[0, 1, 100, 1300].choose(&mut self.random).unwrap();
            let number = self.numbers(1);
            let packet = self.flows[n].behind_its_end(from, number, flags, length);
            self.step(&Case::of(from, packet));
        }
        let carried = self.fast.carried_packets() - before;
        assert!(carried == 0 || !is_barred, "{}: {carried} segments behind an end are carried", self.name);
    }

    /// The verdicts on its packets from the inside and from the server.
    fn verdicts(&self, n: usize) -> [Reason; 2] {
        let flow = &self.flows[n];
        [End::Inside, End::Server].map(|from| self.fast.verdict(flow.protocol, &flow.ends(from, true)))
    }

    /// A step of a flow, which goes on from there if it arrived.
    fn take_step(&mut self, n: usize, case: &Case) {
        let before = self.fast.carried_packets();
        let has_arrived = self.step(case);
        if case.is_super {
            let at = usize::from(self.flows[n].protocol == UDP);
            self.carried_whole[at] += self.fast.carried_packets() - before;
        }
        if !has_arrived {
            return;
        }
        self.flows[n].arrived(case.from, case.length);
        // Or the next ones would soon be outside of the window.
        if case.is_super && case.length > 0 {
            let number = self.numbers(1);
            let acknowledgement = self.flows[n].usual(case.from.other(), number, 0);
            self.step(&Case::of(case.from.other(), acknowledgement));
        }
    }

    fn cases(&mut self) {
        let before = self.fast.carried_packets();
        for _ in 0..CASES {
            let n = self.random.random_range(0..self.flows.len());
            let number = self.numbers(2);
            let case = case::draw(&mut self.random, &self.flows[n], number, !self.by_xdp);
            // Only a flow that is in the table is barred; conntrack knows a FIN of any flow.
            let is_known = self.verdicts(n).iter().any(|v| ![Reason::Unknown, Reason::NoLease].contains(v));
            self.take_step(n, &case);
            if let Some(flags) = case.sound_end {
                self.go_on(n, is_known || flags & RST == 0);
            }
            if case.ends_flow {
                self.flows[n] = self.begin(self.flows[n].protocol);
                // Some flows stay unknown for a while.
                if self.random.random_bool(0.8) {
                    self.wait_until_carried(n..n + 1);
                }
            }
        }
        let carried = self.fast.carried_packets() - before;
        let status = self.fast.carried.as_ref().unwrap().status();
        println!(
            "{}: {} cases arrived, {} differed as they may, {carried} packets carried, {:?} super-packets of TCP and UDP",
            self.name, self.arrived, self.differed, self.carried_whole
        );
        assert!(self.arrived > CASES / 2, "{} cases arrived", self.arrived);
        // About as many packets as cases are carried; the lease of a slow machine may end for a while.
        assert!(carried > u64::from(CASES) / 5, "{status:?}");
        if self.by_xdp {
            // All but those of the time before the first look at the interfaces.
            let by_xdp = status.packets_by_xdp(Reason::Carried);
            assert!(by_xdp > u64::from(CASES) / 5, "{by_xdp} packets carried by XDP: {status:?}");
        } else {
            assert!(self.carried_whole.iter().all(|n| *n > 0), "no super-packet was carried: {status:?}");
        }
    }
}

fn told(case: &Case, plain: &Arrivals, fast: &Arrivals) -> String {
    let short = |p: &[u8]| format!("\n    {} bytes {:02x?}", p.len(), &p[..p.len().min(88)]);
    let came = |arrivals: &[Arrival]| {
        arrivals.iter().map(|a| format!("{} {:?}", short(&a.packet), a.offload)).collect::<String>()
    };
    let sent: String = case.packets.iter().map(|p| short(p)).collect();
    let mut text = format!("from {:?}: {:?}{sent}", case.from, case.offload);
    for (n, end) in ["inside", "server"].iter().enumerate() {
        text += &format!("\n  {end} without:{}", came(&plain[n]));
        text += &format!("\n  {end} with:{}", came(&fast[n]));
    }
    if let Some(packet) = &case.permitted {
        text += &format!("\n  permitted:{}", short(packet));
    }
    text
}

fn compare(ipv6: bool, options: Options) {
    let number = |name: &str| std::env::var(name).ok().map(|text| text.parse::<u64>().unwrap());
    let began = Instant::now();
    let limit = Duration::from_secs(number("WEIR_FASTPATH_SECONDS").unwrap_or(0));
    let mut seed = number("WEIR_FASTPATH_SEED").unwrap_or(1);
    loop {
        Run::new(ipv6, seed, options).cases();
        seed += 1;
        if began.elapsed() >= limit {
            return;
        }
    }
}

#[test]
fn root_ipv4_arrives_as_without_the_fast_path() {
    if !test_needs_root() {
        compare(false, EARLY);
    }
}

#[test]
fn root_ipv6_arrives_as_without_the_fast_path() {
    if !test_needs_root() {
        compare(true, EARLY);
    }
}

#[test]
fn root_ipv4_arrives_by_xdp_as_without_the_fast_path() {
    if !test_needs_root() {
        compare(false, BY_XDP);
    }
}

#[test]
fn root_ipv6_arrives_by_xdp_as_without_the_fast_path() {
    if !test_needs_root() {
        compare(true, BY_XDP);
    }
}

#[test]
fn root_ipv4_learned_by_netlink_arrives_as_without_the_fast_path() {
    if !test_needs_root() {
        compare(false, BY_NETLINK);
    }
}

#[test]
fn root_ipv6_learned_by_netlink_arrives_as_without_the_fast_path() {
    if !test_needs_root() {
        compare(true, BY_NETLINK);
    }
}

#[test]
fn root_a_flow_that_was_reset_is_carried_again_behind_a_syn_or_in_its_time() {
    if !test_needs_root() {
        reset_and_go_on(EARLY);
    }
}

#[test]
fn root_a_flow_learned_by_netlink_is_carried_again_after_a_reset() {
    if !test_needs_root() {
        reset_and_go_on(BY_NETLINK);
    }
}

/// A reset that conntrack takes for one that may be answered leaves the connection established for it (RFC 5961 section 3.2).
fn reset_and_go_on(options: Options) {
    let mut run = Run::new(false, 1, options);
    let reset = |run: &mut Run| {
        // Not the number that is next, which would close the connection.
        run.flows[0].arrived(End::Server, 1000);
        let number = run.numbers(1);
        let packet = run.flows[0].behind_its_end(End::Server, number, RST | ACK, 0);
        assert!(run.step(&Case::of(End::Server, packet)));
    };
    reset(&mut run);
    let before = run.fast.carried_packets();
    for _ in 0..20 {
        for from in [End::Inside, End::Server] {
            let number = run.numbers(1);
            let packet = run.flows[0].usual(from, number, 100);
            assert!(run.step(&Case::of(from, packet)));
        }
    }
    let status = run.fast.carried.as_ref().unwrap().status();
    assert_eq!(run.fast.carried_packets() - before, 0, "{status:?}");
    assert!(status.lessons(Lesson::HasEnded) > 0, "{status:?}");
    assert_eq!(run.verdicts(0), [Reason::Control; 2]);
    let number = run.numbers(3);
    for (from, packet) in run.flows[0].beginning(number) {
        assert!(run.step(&Case::of(from, packet)));
    }
    assert_eq!(run.verdicts(0), [Reason::Unknown; 2]);
    run.wait_until_carried(0..1);
    reset(&mut run);
    assert_eq!(run.verdicts(0), [Reason::Control; 2]);
    run.wait_until_carried(0..1);
}
