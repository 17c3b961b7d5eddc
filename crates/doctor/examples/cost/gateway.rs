//! A gateway that is kept busy: frames are handed to its stack as fast as one core takes them, and that core forwards them.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use weir_netlink::{Rtnetlink, VethEnd};
use weir_packets::flow_order::Tuple;
use weir_packets::live::LiveSender;
use weir_packets::{Family, Frame, Inject, Limit, Link, Offer, Order, Protocol, Sending, Stop, Tuples, Way};
use weir_sys::sched::allowed_cpus;
use weir_sys::{NetNs, ProcRoot};

use crate::{Result, run};

/// Of so many frames one is thrown away. A share and not a rate, so that a machine with other work does the same work with the
/// doctor and without, if less of it.
pub(crate) const FRAMES_PER_DROP: u64 = 16;
/// The port of those that are thrown away.
const DROPPED: u16 = 7001;
/// Where what is forwarded goes.
const BEYOND: Ipv4Addr = Ipv4Addr::new(198, 19, 0, 2);
const INITIATOR: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 2);
/// The cookie that frames of ours carry. Nobody looks at it.
const COOKIE: u32 = 4;
/// How long the forwarding rate is measured before something is done, and after it.
const BESIDE: Duration = Duration::from_millis(150);
/// The longest that the first frame, or anything that is done meanwhile, may take.
const LONGEST: Duration = Duration::from_secs(30);

/// An initiator, from which nothing is sent, and a gateway, which forwards to an interface that swallows what it is given.
pub(crate) struct Gateway {
    namespace: NetNs,
    _initiator: NetNs,
    sender: Mutex<LiveSender>,
    flows: Vec<(u32, Tuple)>,
    /// Counter of what the gateway has forwarded.
    forwarded: &'static str,
}

/// What a window has shown.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Window {
    /// Frames a second.
    pub(crate) rate: f64,
    /// The same by the measure of the core, as in `docs/explanation/packets.md`, "The speed-adjusted rate".
    pub(crate) adjusted: f64,
    /// How many were thrown away.
    pub(crate) drops: u64,
}

/// What has been forwarded while something was done.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Phase {
    /// How long that took, s.
    pub(crate) seconds: f64,
    /// Forwarding rate meanwhile, against that right before and right after.
    pub(crate) ratio: f64,
}

impl Gateway {
    pub(crate) fn build() -> Result<Self> {
        let (initiator, gateway) = (NetNs::create()?, NetNs::create()?);
        let mut net = Rtnetlink::open_in(&gateway)?;
        let end = |name, namespace| VethEnd { name, namespace: Some(namespace), mtu: 1500, mac: None };
        net.create_veth(end("in0", &gateway), end("veth0", &initiator))?;
        run(
            &initiator,
            "ip link set lo up; ip address add 198.18.0.2/24 dev veth0; ip link set veth0 up; ip route add default via 198.18.0.1",
        )?;
        run(
            &gateway,
            "ip link set lo up; ip address add 198.18.0.1/24 dev in0; ip link set in0 up; sysctl -qw net.ipv4.ip_forward=1",
        )?;
        // An ifb takes whatever is not redirected to it for a mistake: it counts it as dropped, and consumes it.
        let forwarded = match run(&gateway, "ip link add out0 type dummy") {
            Ok(()) => "tx_packets",
            Err(_) => {
                run(&gateway, "ip link add out0 type ifb")?;
                "rx_dropped"
            }
        };
        run(
            &gateway,
            &format!(
                "ip link set out0 up; ip address add 198.19.0.1/24 dev out0; \
                 ip neigh add {BEYOND} lladdr 02:00:00:00:00:02 nud permanent dev out0; \
                 nft add table ip t; nft 'add chain ip t c {{ type filter hook forward priority 0; }}'; \
                 nft add rule ip t c udp dport {DROPPED} drop"
            ),
        )?;
        // Moving from core to core is noise; the doctor may run wherever there is room.
        let cores = allowed_cpus()?;
        let link = Link {
            interface: "in0".into(),
            address: INITIATOR.into(),
            target: BEYOND.into(),
            way: Way::Egress,
            inject: Inject::Gateway,
            cpus: cores[cores.len().saturating_sub(1)..].to_vec(),
            reference: true,
        };
        let sender = Mutex::new(LiveSender::new(&link));
        Ok(Gateway { namespace: gateway, _initiator: initiator, sender, flows: flows(), forwarded })
    }

    /// Forwards for so long, or until `stop` is raised.
    fn forward(&self, duration: Duration, stop: &Stop) -> Result<weir_packets::Sent> {
        let frame = Frame { family: Family::Ipv4, protocol: Protocol::Udp, bytes: 64 };
        // The flows say what is sent; the tuples here would say how to draw them.
        let tuples = Tuples {
            flows: FRAMES_PER_DROP as u32,
            source_ports: 1024..=1024,
            destination_ports: DROPPED..=DROPPED,
            order: Order::Permutation,
            seed: 0,
        };
        let limit = Limit { frames: u64::from(u32::MAX), duration };
        let sending = Sending { frame, tuples, offer: Offer::Unlimited, limit, stamp_every: 0 };
        let mut sender = self.sender.lock().map_err(|_| "an earlier sender has panicked")?;
        // The guard itself must stay with its thread.
        let sender = &mut *sender;
        let sent = self.namespace.run(|| sender.send(COOKIE, &sending, self.flows.clone(), stop))??;
        Ok(sent)
    }

    /// How many frames have been forwarded so far.
    fn forwarded(&self) -> Result<u64> {
        let counters = self.namespace.run(|| ProcRoot::default().net_dev())??;
        let out = counters.get("out0").ok_or("out0 is gone")?;
        Ok(if self.forwarded == "tx_packets" { out.tx_packets } else { out.rx_dropped })
    }

    /// What is forwarded in a window of that length.
    pub(crate) fn window(&self, length: Duration) -> Result<Window> {
        let before = self.forwarded()?;
        let sent = self.forward(length, &Stop::default())?;
        let forwarded = self.forwarded()? - before;
        // Flows take turns, and the last turn may be a part of one.
        let expected = sent.frames - sent.frames / FRAMES_PER_DROP;
        if forwarded.abs_diff(expected) > FRAMES_PER_DROP {
            return Err(
                format!("of {} frames {forwarded} were forwarded, and not {expected}", sent.frames).into()
            );
        }
        let pace = sent.pace.ok_or("the window is too short for its speed to be told")?;
        Ok(Window {
            rate: sent.frames as f64 / sent.duration_ns as f64 * 1e9,
            adjusted: pace.frames_per_second(),
            drops: sent.frames / FRAMES_PER_DROP,
        })
    }

    /// Does something while frames are forwarded. Speed is not adjusted for: what the doctor does on another core slows this one down,
    /// and that is part of its cost. What the machine does by itself takes seconds, and is the same right before and right after.
    /// Besides, how many frames were thrown away in all of that time.
    pub(crate) fn during<T>(&self, act: impl FnOnce() -> Result<T>) -> Result<(T, Phase, u64)> {
        let stop = Stop::default();
        std::thread::scope(|scope| {
            let sender = scope.spawn(|| self.forward(LONGEST, &stop));
            let measured = self.beside(act);
            stop.raise();
            let sent = sender.join().map_err(|_| "the sender has panicked")??;
            let (done, phase) = measured?;
            Ok((done, phase, sent.frames / FRAMES_PER_DROP))
        })
    }

    fn beside<T>(&self, act: impl FnOnce() -> Result<T>) -> Result<(T, Phase)> {
        let (first, deadline) = (self.forwarded()?, Instant::now() + LONGEST);
        while self.forwarded()? == first {
            if Instant::now() >= deadline {
                return Err("nothing is forwarded".into());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        let (before, ()) = self.rate(pause)?;
        let began = Instant::now();
        let (meanwhile, done) = self.rate(act)?;
        let seconds = began.elapsed().as_secs_f64();
        let (after, ()) = self.rate(pause)?;
        Ok((done, Phase { seconds, ratio: 2.0 * meanwhile / (before + after) }))
    }

    /// Forwarding rate while something is done, frames a second.
    fn rate<T>(&self, act: impl FnOnce() -> Result<T>) -> Result<(f64, T)> {
        let (began, before) = (Instant::now(), self.forwarded()?);
        let done = act()?;
        let frames = self.forwarded()? - before;
        Ok((frames as f64 / began.elapsed().as_secs_f64(), done))
    }
}

fn pause() -> Result<()> {
    std::thread::sleep(BESIDE);
    Ok(())
}

/// As many flows as there are frames for one that is thrown away, which is the last.
fn flows() -> Vec<(u32, Tuple)> {
    let flow = |n: u64| {
        let destination_port = if n + 1 == FRAMES_PER_DROP { DROPPED } else { DROPPED - 1 };
        let tuple = Tuple {
            source: IpAddr::from(INITIATOR),
            source_port: 1024 + n as u16,
            destination: IpAddr::from(BEYOND),
            destination_port,
        };
        (n as u32, tuple)
    };
    (0..FRAMES_PER_DROP).map(flow).collect()
}
