//! What the filter takes of a gateway's forwarding rate, in turns of 20 ms.
//!
//! `cargo run --release -p weir-filter --example filter_rate -- [PREFIXES [ROUNDS]]`, as root. Frames as short as there are of 1,000
//! flows go from an initiator through a gateway to a responder, each in a network namespace of its own, as fast as one core sends and
//! forwards them. Meanwhile the gateway's way in has, in turns whose order is drawn anew in each round: nothing, a program that does
//! nothing, the filter with so many prefixes, each at tc and at XDP, and nothing once more. A machine whose speed changes from second
//! to second is the same in a round, so that the ratios within rounds tell what single runs cannot. `weir bench country-filter
//! --preset million` measures the same in trials of a second, each in a gateway that is set up for it.

use std::collections::BTreeMap;
use std::error::Error;
use std::net::Ipv4Addr;
use std::time::{Duration, Instant};

use rand::SeedableRng as _;
use rand::seq::SliceRandom as _;
use rand_chacha::ChaCha8Rng;
use weir_bpf::{Attached, Direction as Hook, Loader, Object, attach_tcx, attach_xdp};
use weir_filter::{Action, At, Class, Compiled, Direction, Filter, XdpMode};
use weir_netlink::ethtool::Ethtool;
use weir_netlink::{Route, Rtnetlink, VethEnd};
use weir_packets::{
    Endpoint, Engine, Family, Frame, Inject, Limit, Link, Offer, Order, Protocol, Sending, Stop, Tuples, Way,
};
use weir_prefix::Ranges;
use weir_stats::compare::compare_ratio;
use weir_sys::NetNs;
use weir_sys::sched::allowed_cpus;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// How long the rate is measured in a turn.
const TURN: Duration = Duration::from_millis(20);
/// How long it is left alone before that: the kernel lets an interface rest when a program comes or goes.
const SETTLES: Duration = Duration::from_millis(10);
const PREFIXES: u32 = 1_000_000;
const ROUNDS: usize = 200;
/// The longest that a round may take.
const LONGEST_ROUND: Duration = Duration::from_secs(2);
const INITIATOR: &str = "198.18.0.2";
const RESPONDER: &str = "198.19.0.2";
const COOKIE: u32 = 5;

/// What is at the gateway's way in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Turn {
    Free,
    FreeAgain,
    Nothing(At),
    Filter(At),
}

const TC: At = At::Tc(Direction::Ingress);
const XDP: At = At::Xdp(XdpMode::Native);
const TURNS: [(&str, Turn); 6] = [
    ("nothing there", Turn::Free),
    ("nothing there, once more", Turn::FreeAgain),
    ("a program that does nothing, at tc", Turn::Nothing(TC)),
    ("the filter, at tc", Turn::Filter(TC)),
    ("a program that does nothing, at XDP", Turn::Nothing(XDP)),
    ("the filter, at XDP", Turn::Filter(XDP)),
];

/// Initiator, gateway and responder.
struct Lab {
    initiator: NetNs,
    gateway: NetNs,
    responder: NetNs,
    way_in: u32,
}

impl Lab {
    fn build() -> Result<Self> {
        let (initiator, gateway, responder) = (NetNs::create()?, NetNs::create()?, NetNs::create()?);
        let mut net = Rtnetlink::open_in(&gateway)?;
        for (host, outside, inside, subnet) in
            [(&initiator, "veth0", "in0", "198.18.0"), (&responder, "veth0", "out0", "198.19.0")]
        {
            let end = |name, namespace, last| VethEnd {
                name,
                namespace: Some(namespace),
                mtu: 1500,
                mac: Some([2, 0, 0, 0, 0, last]),
            };
            net.create_veth(end(inside, &gateway, 1), end(outside, host, 2))?;
            let mut other = Rtnetlink::open_in(host)?;
            for (net, name, last) in [(&mut net, inside, 1), (&mut other, outside, 2)] {
                net.set_up(name)?;
                net.add_address(name, format!("{subnet}.{last}").parse()?, 24)?;
                net.add_neighbour(
                    name,
                    format!("{subnet}.{}", 3 - last).parse()?,
                    [2, 0, 0, 0, 0, 3 - last],
                )?;
            }
            let via = Some(format!("{subnet}.1").parse()?);
            other.add_route(Route { destination: None, via, interface: outside, onlink: false })?;
        }
        // Otherwise a veth takes no frame that is redirected to it.
        let gro = BTreeMap::from([("gro".to_owned(), true)]);
        gateway.run(|| Ethtool::open()?.set("in0", &gro))??;
        gateway.run(|| std::fs::write("/proc/sys/net/ipv4/ip_forward", "1"))??;
        let way_in = net.interface("in0")?.index;
        Ok(Lab { initiator, gateway, responder, way_in })
    }

    fn endpoint(&self, host: &NetNs, way: Way, cpu: usize) -> Result<Endpoint> {
        let (address, target) = match way {
            Way::Egress => (INITIATOR, RESPONDER),
            Way::Ingress => (RESPONDER, INITIATOR),
        };
        let link = Link {
            interface: "veth0".into(),
            address: address.parse()?,
            target: target.parse()?,
            way,
            inject: Inject::Wire,
            cpus: vec![cpu],
            reference: false,
        };
        Ok(host.run(|| Endpoint::open(&link, Some(Engine::Xdp)))??)
    }

    fn arrived(net: &mut Rtnetlink) -> Result<u64> {
        Ok(net.interface("veth0")?.counters.rx_packets)
    }
}

/// What can be at the way in.
struct Filters {
    nothing: Object,
    filter: Filter,
}

impl Filters {
    /// Prefixes as the scenario makes them up, in every tenth of which only half a /24 is listed, and the initiator's address alone:
    /// what is dearest to look up.
    fn load(prefixes: u32) -> Result<Self> {
        let one = |n: u32| {
            let first = (1 << 24) + n * 15 * 256;
            (first + if n % 10 == 9 { 128 } else { 0 }, first + 255)
        };
        let own = u32::from(INITIATOR.parse::<Ipv4Addr>()?);
        let class = Class {
            v4: Ranges::new((0..prefixes.saturating_sub(1)).map(one).chain([(own, own)])),
            ..Class::default()
        };
        let tables = Compiled::of(&[class])?;
        Ok(Filters {
            nothing: Loader::unpack("nothing", include_bytes!(concat!(env!("OUT_DIR"), "/nothing.bpf.z")))?
                .load()?,
            filter: Filter::load(&tables, &[Action::Drop, Action::Allow], 0)?,
        })
    }

    fn attach(&self, turn: Turn, interface: u32) -> Result<Option<Attached>> {
        Ok(match turn {
            Turn::Free | Turn::FreeAgain => None,
            Turn::Nothing(At::Tc(_)) => {
                Some(attach_tcx(&self.nothing.program("nothing_at_tc")?, interface, Hook::Ingress)?)
            }
            Turn::Nothing(At::Xdp(mode)) => {
                Some(attach_xdp(&self.nothing.program("nothing_at_xdp")?, interface, mode)?)
            }
            Turn::Filter(at) => Some(self.filter.attach_apart(interface, at)?),
        })
    }
}

/// Frames a second that arrive in each turn of a round, in the order of [`TURNS`].
fn round(lab: &Lab, filters: &Filters, order: &[usize]) -> Result<[f64; TURNS.len()]> {
    let mut net = Rtnetlink::open_in(&lab.responder)?;
    let mut rates = [0.0; TURNS.len()];
    for &at in order {
        let attached = lab.gateway.run(|| filters.attach(TURNS[at].1, lab.way_in))??;
        std::thread::sleep(SETTLES);
        let (began, before) = (Instant::now(), Lab::arrived(&mut net)?);
        std::thread::sleep(TURN);
        let (seconds, frames) = (began.elapsed().as_secs_f64(), Lab::arrived(&mut net)? - before);
        if frames == 0 {
            return Err(format!("nothing arrives with {}", TURNS[at].0).into());
        }
        rates[at] = frames as f64 / seconds;
        drop(attached);
    }
    Ok(rates)
}

/// Rounds, while frames are forwarded.
fn measure(rounds: usize, prefixes: u32) -> Result<Vec<[f64; TURNS.len()]>> {
    let filters = Filters::load(prefixes)?;
    let lab = Lab::build()?;
    let cores = allowed_cpus()?;
    let core = cores.last().copied().ok_or("no core")?;
    let (sender, receiver) =
        (lab.endpoint(&lab.initiator, Way::Egress, core)?, lab.endpoint(&lab.responder, Way::Ingress, core)?);
    let sending = Sending {
        frame: Frame { family: Family::Ipv4, protocol: Protocol::Udp, bytes: 64 },
        tuples: Tuples {
            flows: 1000,
            source_ports: 1024..=65535,
            destination_ports: 1..=49151,
            order: Order::Permutation,
            seed: 3,
        },
        offer: Offer::Unlimited,
        limit: Limit { frames: u64::MAX, duration: LONGEST_ROUND * rounds as u32 },
        stamp_every: 0,
    };
    lab.responder.run(|| receiver.expect(COOKIE, Some(&sending), true))??;
    let stop = Stop::default();
    std::thread::scope(|scope| {
        let sends = scope.spawn(|| lab.initiator.run(|| sender.send(COOKIE, &sending, &stop)));
        let mut random = ChaCha8Rng::seed_from_u64(1);
        let mut order: Vec<usize> = (0..TURNS.len()).collect();
        // The first is only to warm up.
        let measured: Result<Vec<_>> = (0..=rounds)
            .map(|_| {
                order.shuffle(&mut random);
                round(&lab, &filters, &order)
            })
            .collect();
        stop.raise();
        sends.join().map_err(|_| "the sender has panicked")???;
        Ok(measured?.split_off(1))
    })
}

fn print(rounds: &[[f64; TURNS.len()]]) -> Result<()> {
    println!("{:>40}  {:>14}  frames a second against nothing there", "", "ns a frame");
    for (at, (name, turn)) in TURNS.iter().enumerate() {
        let mut times: Vec<f64> = rounds.iter().map(|rates| 1e9 / rates[at]).collect();
        times.sort_by(f64::total_cmp);
        let median = times[times.len() / 2];
        if *turn == Turn::Free {
            println!("{name:>40}  {median:>14.0}");
            continue;
        }
        let pairs: Vec<(f64, f64)> = rounds.iter().map(|rates| (rates[at], rates[0])).collect();
        let compared = compare_ratio(&pairs).ok_or("no rounds")?;
        let (low, high) = compared.interval.ok_or("too few rounds for an interval")?;
        println!("{name:>40}  {median:>14.0}  {:.4} [{low:.4}, {high:.4}]", compared.estimate);
    }
    Ok(())
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let prefixes = arguments.first().map_or(Ok(PREFIXES), |n| n.parse())?;
    let rounds = arguments.get(1).map_or(Ok(ROUNDS), |n| n.parse())?;
    println!("{prefixes} prefixes, {rounds} rounds of {} turns of {} ms", TURNS.len(), TURN.as_millis());
    print(&measure(rounds, prefixes)?)
}
