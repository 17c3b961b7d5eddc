//! Compares the evaluation of rules with the kernel's behaviour: random rulesets, with a counter on every rule as the independent
//! truth, and packets sent through them one by one.

use std::net::{IpAddr, Ipv4Addr};
use std::time::{Duration, Instant};

use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use weir_netlink::nftables::{Asker, Element, Expression, Family, NftVerdict as Nft, Tables};
use weir_netlink::{Rtnetlink, VethEnd};
use weir_sys::frames::FrameSender;
use weir_sys::{NetNs, ProcRoot};
use weir_wire::{Ethernet, Ipv4, Tcp};

use super::decide::whole_way;
use super::matching::AskSet;
use super::packet::Names;
use super::tests::{lacks, shell};
use super::walk::{Decider, Walker, Way};
use super::*;
use crate::evidence::{Interface, Sample};

const GATEWAY_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
const SENDER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 2];
const RULESETS: u64 = 60;
const PACKETS: usize = 12;

/// Two namespaces: whatever the sender puts on the wire is routed by the gateway and sent back to it by another link.
struct TwoHosts {
    gateway: NetNs,
    sender: NetNs,
    frames: FrameSender,
    interfaces: Vec<Interface>,
}

impl TwoHosts {
    fn new() -> Self {
        let (gateway, sender) = (NetNs::create().unwrap(), NetNs::create().unwrap());
        let mut net = Rtnetlink::open_in(&gateway).unwrap();
        for (name, own, peer) in
            [("inside", GATEWAY_MAC, SENDER_MAC), ("outside", [2, 0, 0, 0, 0, 3], [2, 0, 0, 0, 0, 4])]
        {
            let here = VethEnd { name, namespace: None, mtu: 1500, mac: Some(own) };
            net.create_veth(here, VethEnd { namespace: Some(&sender), mac: Some(peer), ..here }).unwrap();
        }
        shell(
            &gateway,
            // IPv6's own messages on a new link would move counters.
            "echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6
             ip link set lo up; ip link set inside up; ip link set outside up
             ip addr add 198.18.0.1/24 dev inside; ip addr add 198.19.0.1/24 dev outside
             ip route add 192.0.2.0/24 dev inside
             for n in 2 3 4 5; do ip neigh add 198.19.0.$n lladdr 02:00:00:00:00:04 dev outside; done
             echo 1 > /proc/sys/net/ipv4/ip_forward
             echo 0 > /proc/sys/net/ipv4/conf/all/rp_filter; echo 0 > /proc/sys/net/ipv4/conf/inside/rp_filter",
        );
        shell(
            &sender,
            "echo 1 > /proc/sys/net/ipv6/conf/all/disable_ipv6; ip link set inside up; ip link set outside up",
        );
        let links = net.interfaces().unwrap();
        let interfaces = links
            .into_iter()
            .map(|i| Interface {
                index: i.index,
                name: i.name,
                addresses: i.addresses,
                ..Interface::default()
            })
            .collect();
        let index = Rtnetlink::open_in(&sender).unwrap().interface("inside").unwrap().index;
        let frames = sender.run(|| FrameSender::open(index).unwrap()).unwrap();
        TwoHosts { gateway, sender, frames, interfaces }
    }

    fn index(&self, name: &str) -> u32 {
        self.interfaces.iter().find(|i| i.name == name).unwrap().index
    }

    fn tables(&self) -> Tables {
        self.gateway.run(|| nftables::read(&ProcRoot::new("/")).unwrap().unwrap()).unwrap()
    }
}

/// One of a few addresses, ports and protocols, so that rules and packets meet.
const SOURCES: [&str; 4] = ["198.18.0.2", "198.18.0.3", "192.0.2.9", "192.0.2.200"];
const DESTINATIONS: [&str; 5] = ["198.19.0.2", "198.19.0.3", "198.19.0.4", "198.19.0.5", "198.18.0.1"];
const PORTS: [u16; 4] = [53, 80, 443, 8080];

fn expression(random: &mut ChaCha8Rng, unsure: bool) -> String {
    let source = SOURCES.choose(random).unwrap();
    let destination = DESTINATIONS.choose(random).unwrap();
    let port = PORTS.choose(random).unwrap();
    let protocol = ["tcp", "udp"].choose(random).unwrap();
    let not = ["", "!= "].choose(random).unwrap();
    match random.random_range(if unsure { 15..27 } else { 0..22 }) {
        0 => format!("ip saddr {not}{source}"),
        1 => format!("ip daddr {not}{destination}"),
        2 => "ip saddr 192.0.2.0/25".into(),
        3 => "ip saddr != 198.18.0.0/23".into(),
        4 => format!("{protocol} dport {not}{port}"),
        5 => format!("{protocol} dport 60-{}", 60 + random.random_range(0..1000)),
        6 => format!("{protocol} dport {{ 53, 443 }}"),
        7 => format!("ip saddr {not}@hosts"),
        8 => format!("ip daddr {not}@nets"),
        9 => "ip saddr . udp dport @pairs".into(),
        10 => format!("meta l4proto {protocol}"),
        11 => format!("iifname {not}\"inside\""),
        12 => format!("oifname {not}\"out*\""),
        13 => "ip ttl < 40".into(),
        14 => "ip length 29-60".into(),
        15 => "tcp flags syn".into(),
        16 => format!("meta l4proto {{ tcp, udp }} th dport {port}"),
        17 => format!("{protocol} dport vmap {{ 53 : drop, 80 : accept, 443 : jump c3 }}"),
        18 => "ip dscp 0x08".into(),
        19 => format!("ip saddr {{ 192.0.2.0/24, 198.18.0.2 }} ip daddr {not}{destination}"),
        20 => "ip frag-off & 0x1fff == 0".into(),
        21 => format!("meta mark {not}0"),
        // Conditions with a result that cannot be known afterwards.
        22 => "ct state new".into(),
        23 => "ct state invalid,untracked".into(),
        24 => "limit rate 1/hour burst 3 packets".into(),
        25 => "numgen random mod 2 == 0".into(),
        _ => "limit rate over 1/hour burst 2 packets".into(),
    }
}

/// A rule of chain number `chain`, or of a base chain: jumps go to later chains only, as the kernel demands.
fn rule(random: &mut ChaCha8Rng, chain: Option<usize>, unsure: bool) -> String {
    let mut matches = expression(random, unsure);
    let map = matches.contains("vmap");
    if !map && random.random_bool(0.3) {
        let second = expression(random, unsure);
        // nft refuses two protocols in one rule.
        let of_protocol = |text: &str| text.contains("tcp") || text.contains("udp");
        let clash = of_protocol(&matches) && of_protocol(&second);
        if !(clash || second.contains("vmap")) {
            matches = format!("{matches} {second}");
        }
    }
    if map {
        return if chain == Some(3) { "ip saddr 198.18.0.2".into() } else { matches };
    }
    let first = chain.map_or(0, |c| c + 1);
    let verdict = match random.random_range(0..10) {
        0..=3 => "drop".to_owned(),
        4 => "accept".to_owned(),
        5 if chain.is_some() => "return".to_owned(),
        6..=7 if first < 4 => format!("jump c{}", random.random_range(first..4)),
        8 if first < 4 => format!("goto c{}", random.random_range(first..4)),
        _ => String::new(),
    };
    format!("{matches} counter {verdict}")
}

fn ruleset(random: &mut ChaCha8Rng, unsure: bool) -> String {
    let mut text = "flush ruleset\ntable inet t {\n\
        set hosts { type ipv4_addr; elements = { 198.18.0.2, 192.0.2.9 }; }\n\
        set nets { type ipv4_addr; flags interval; elements = { 198.19.0.2-198.19.0.3, 198.19.0.5 }; }\n\
        set pairs { type ipv4_addr . inet_service; flags interval; elements = { 198.18.0.0/24 . 50-60, 192.0.2.9 . 80 }; }\n"
        .to_owned();
    for chain in (0..4).rev() {
        text += &format!("chain c{chain} {{\n");
        for _ in 0..random.random_range(0..5) {
            text += &format!("{}\n", rule(random, Some(chain), unsure));
        }
        text += "}\n";
    }
    for (name, hook, priority) in [
        ("early", "prerouting", -300),
        ("pre", "prerouting", 10),
        ("in", "input", 0),
        ("one", "forward", -5),
        ("two", "forward", 5),
        ("post", "postrouting", 50),
    ] {
        let policy = if random.random_bool(0.2) { "drop" } else { "accept" };
        text += &format!("chain {name} {{ type filter hook {hook} priority {priority}; policy {policy};\n");
        for _ in 0..random.random_range(0..4) {
            text += &format!("{}\n", rule(random, None, unsure));
        }
        text += "counter\n}\n";
    }
    // Counters at the ends count packets that pass everything.
    text += "}\ntable ip ends {\n\
        chain arrived { type filter hook prerouting priority -400; counter; }\n\
        chain left { type filter hook postrouting priority 500; counter; }\n\
        chain quiet { type filter hook output priority -500; policy drop; }\n\
        chain taken { type filter hook input priority 500; counter; }\n}\n";
    text
}

fn packet(random: &mut ChaCha8Rng) -> (Vec<u8>, Vec<u8>) {
    let source: Ipv4Addr = SOURCES.choose(random).unwrap().parse().unwrap();
    let destination: Ipv4Addr = DESTINATIONS.choose(random).unwrap().parse().unwrap();
    let (from, to) = (40_000, *PORTS.choose(random).unwrap());
    let tcp = random.random_bool(0.5);
    let length = Ipv4::LENGTH + if tcp { Tcp::LENGTH } else { 8 + random.random_range(0..40) };
    let ip = Ipv4 {
        tos: if random.random_bool(0.2) { 0x20 } else { 0 },
        total_length: length as u16,
        identification: random.random(),
        dont_fragment: true,
        more_fragments: false,
        fragment_offset: 0,
        ttl: [30, 64].choose(random).copied().unwrap(),
        protocol: if tcp { 6 } else { 17 },
        source,
        destination,
    };
    let mut frame = vec![0; Ethernet::LENGTH + length];
    let ethernet = Ethernet { destination: GATEWAY_MAC, source: SENDER_MAC, ethertype: 0x0800 };
    ethernet.write(&mut frame).unwrap();
    ip.write(&mut frame[Ethernet::LENGTH..]).unwrap();
    let upper = &mut frame[Ethernet::LENGTH + Ipv4::LENGTH..];
    if tcp {
        let flags = [Tcp::SYN, 0x10].choose(random).copied().unwrap();
        let segment = Tcp {
            source_port: from,
            destination_port: to,
            sequence: 1,
            acknowledgement: 0,
            flags,
            window: 100,
            checksum: 0,
            urgent: 0,
        };
        segment.seal(source.into(), destination.into(), upper).unwrap();
    } else {
        weir_wire::Udp::seal((source.into(), from), (destination.into(), to), upper).unwrap();
    }
    let header = frame[Ethernet::LENGTH..].to_vec();
    (frame, header)
}

/// Counters of all rules, by place.
fn counters(tables: &Tables) -> Vec<Option<u64>> {
    let of = |r: &nftables::Rule| {
        r.expressions
            .iter()
            .find_map(|e| if let Expression::Counter { packets, .. } = e { Some(*packets) } else { None })
    };
    tables.rules.iter().map(of).collect()
}

/// Returns the kernel's actions: rules whose counters moved.
fn send(world: &TwoHosts, frame: &[u8], before: &Tables) -> Vec<usize> {
    let was = counters(before);
    world.frames.send(frame).unwrap();
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let now = world.tables();
        let moved: Vec<usize> = counters(&now)
            .iter()
            .zip(&was)
            .enumerate()
            .filter(|(_, (a, b))| a != b)
            .map(|(at, _)| at)
            .collect();
        // The first counter of all tells that it arrived; a veth takes a packet all the way in one go.
        if moved.iter().any(|at| now.rules[*at].chain == "arrived") {
            let again = counters(&world.tables());
            if again == counters(&now) {
                return moved;
            }
        }
        assert!(Instant::now() < deadline, "the packet never arrived");
    }
}

/// One packet: the kernel's action, and the deciders that the evaluation names.
struct Comparison {
    done: Done,
    said: Vec<Decider>,
    ends: bool,
    tables: Tables,
    context: String,
}

/// Sends packets through rulesets and looks at each outcome.
fn each_outcome(unsure: bool, mut look: impl FnMut(Comparison)) {
    let world = TwoHosts::new();
    let names = Names::of(&world.interfaces);
    let mut drops = 0;
    for seed in 0..RULESETS {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        let text = ruleset(&mut random, unsure);
        shell(&world.gateway, &format!("nft -f - <<'END'\n{text}\nEND"));
        for _ in 0..PACKETS {
            let (frame, header) = packet(&mut random);
            let tables = world.tables();
            let moved = send(&world, &frame, &tables);
            let sample = Sample {
                came_in: world.index("inside"),
                length: header.len() as u32,
                header,
                ..Sample::default()
            };
            let (said, ends) = said(&world, &names, &tables, &sample, unsure);
            let done = done(&tables, &moved);
            drops += u64::from(done != Done::Passed);
            let context = format!("seed {seed}\n{text}\nmoved {moved:?}, sample {:02x?}", sample.header);
            look(Comparison { done, said, ends, tables, context });
        }
    }
    // Rulesets that never drop would prove nothing.
    assert!(drops > RULESETS * PACKETS as u64 / 5, "{drops} drops");
    drop(world.sender);
}

#[test]
fn root_the_rules_said_to_drop_are_those_that_drop() {
    if lacks(&["nft"]) {
        return;
    }
    each_outcome(false, |outcome| {
        let Comparison { done, said, ends, tables, context } = outcome;
        match done {
            Done::Passed => assert!(said.is_empty() && !ends, "{said:?}, {context}"),
            Done::Rule(at) => assert_eq!((said, ends), (vec![Decider::Rule(at)], true), "{context}"),
            // A map or a policy has no counter of its own: the last counter that moved was before it.
            Done::Elsewhere => {
                assert!(ends && said.len() == 1, "{said:?}, {context}");
                assert!(has_no_counter(&tables, said[0]), "{said:?}, {context}");
            }
        }
    });
}

#[test]
fn root_what_cannot_be_known_leaves_the_truth_among_the_answers() {
    if lacks(&["nft"]) {
        return;
    }
    each_outcome(true, |outcome| {
        let Comparison { done, said, ends, tables, context } = outcome;
        match done {
            Done::Passed => assert!(!ends, "{said:?}, {context}"),
            Done::Rule(at) => assert!(said.contains(&Decider::Rule(at)), "{said:?}, {context}"),
            Done::Elsewhere => {
                assert!(said.iter().any(|d| has_no_counter(&tables, *d)), "{said:?}, {context}")
            }
        }
    });
}

/// True of a rule whose map says the verdict, and of a policy that drops.
fn has_no_counter(tables: &Tables, decider: Decider) -> bool {
    match decider {
        Decider::Rule(at) => {
            let map = |e: &Expression| matches!(e, Expression::Lookup { to: Some(None), .. });
            tables.rules[at].expressions.iter().any(map)
        }
        Decider::Policy(at) => tables.chains[at].base.as_ref().is_some_and(|b| b.drops),
    }
}

#[derive(Debug, PartialEq)]
enum Done {
    Passed,
    Rule(usize),
    Elsewhere,
}

/// Returns the kernel's action, by the counters that moved.
fn done(tables: &Tables, moved: &[usize]) -> Done {
    let throws = |at: &&usize| tables.rules[**at].expressions.contains(&Expression::Verdict(Nft::Drop));
    if let Some(at) = moved.iter().find(throws) {
        return Done::Rule(*at);
    }
    let ended = moved.iter().any(|at| matches!(tables.rules[*at].chain.as_str(), "left" | "taken"));
    if ended { Done::Passed } else { Done::Elsewhere }
}

struct Kernel(Asker);

impl AskSet for Kernel {
    fn ask(&mut self, family: Family, table: &str, set: &str, key: &[u8]) -> Option<Option<Element>> {
        self.0.find(family, table, set, key).ok()
    }
}

fn said(
    world: &TwoHosts,
    names: &Names<'_>,
    tables: &Tables,
    sample: &Sample,
    unsure: bool,
) -> (Vec<Decider>, bool) {
    let group = DropGroup { interface: sample.came_in, ethertype: 0x0800, ..DropGroup::default() };
    let out = world.index("outside");
    let invalid = if unsure { None } else { Some(0) };
    let way = world.gateway.run(|| {
        let mut sets = Kernel(Asker::open().unwrap());
        let tuple = sample.tuple().unwrap();
        let lookup = crate::evidence::Lookup {
            source: tuple.source,
            destination: tuple.destination,
            came_in: sample.came_in,
            mark: 0,
            outcome: crate::evidence::RouteOutcome::Forwarded,
            interface: out,
            next_hop: None,
            table: 254,
            plain: None,
            cached_mtu: None,
            return_interface: sample.came_in,
        };
        let inside = Namespace {
            interfaces: world.interfaces.clone(),
            routes: Some(crate::evidence::Routes { lookups: vec![lookup], ..Default::default() }),
            ..Namespace::default()
        };
        let mut walker = Walker::new(tables, names, 1_000_000);
        let way = whole_way(&mut walker, &inside, &group, sample, invalid, &mut sets);
        // Sent on, it may meet the chains behind routing, which the interface of a sample tells.
        if way.ends || tuple.destination == IpAddr::from([198, 18, 0, 1]) {
            return way;
        }
        let group = DropGroup { interface: out, ..group.clone() };
        let behind = whole_way(&mut walker, &inside, &group, sample, invalid, &mut sets);
        Way { deciders: [way.deciders, behind.deciders].concat(), ends: behind.ends, ..Way::default() }
    });
    let way = way.unwrap();
    (way.deciders.iter().map(|(d, _)| *d).collect(), way.ends)
}
