//! The process that keeps a fast path, seen by others: what it tells, and what it does when asked.

mod world;

use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use weir_bpf::{Direction, tcx_programs};
use weir_fastpath::{
    Change, Error, Exclusion, ExclusionStore, Explained, Fastpath, FastpathPlan, Lesson, Now, Options,
    Presence, Protocol, Reason, Request, Resident, Setup, Visit, Wanted,
};
use weir_netlink::Rtnetlink;
use weir_sys::privilege::test_needs_root;
use weir_sys::{NetNs, ProcRoot};
use world::{NatWorld, passes, sh, until};

fn wanted(interfaces: &[&str], excluded: &[&str]) -> Wanted {
    Wanted {
        interfaces: interfaces.iter().map(|&name| name.into()).collect(),
        connections: 1024,
        connections6: 64,
        packets: 2,
        excluded: excluded.iter().map(|text| text.parse().unwrap()).collect(),
        xdp: Vec::new(),
    }
}

/// A folder that is not there: nothing is kept.
fn nothing_kept() -> ExclusionStore {
    ExclusionStore::in_folder(std::path::Path::new("/nonexistent"))
}

fn setup(interfaces: &[&str], trial: Option<Duration>) -> Setup {
    Setup { wanted: wanted(interfaces, &[]), trial, kept: nothing_kept() }
}

/// A resident of the gateway, on a thread of its own.
struct Run<'a> {
    world: &'a NatWorld,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl<'a> Run<'a> {
    fn begin(world: &'a NatWorld, setup: Setup) -> Run<'a> {
        let ends = Arc::new(AtomicBool::new(false));
        let resident = world.gateway.run(|| Resident::begin(setup).unwrap()).unwrap();
        let path = format!("/proc/self/fd/{}", world.gateway.as_fd().as_raw_fd());
        let (gateway, stop) = (NetNs::open(path).unwrap(), Arc::clone(&ends));
        let thread = std::thread::spawn(move || gateway.run(|| resident.serve(&stop).unwrap()).unwrap());
        Run { world, ends, thread: Some(thread) }
    }

    fn ask<T: Send>(&self, f: impl FnOnce(&Visit) -> weir_fastpath::Result<T> + Send) -> T {
        self.world.gateway.run(|| f(&Visit::find().unwrap().expect("it is in effect")).unwrap()).unwrap()
    }

    fn now(&self) -> Now {
        self.ask(Visit::now)
    }

    fn has_ended(&self) -> bool {
        self.thread.as_ref().is_some_and(JoinHandle::is_finished)
    }
}

impl Drop for Run<'_> {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// The name is free. A program that another test starts has all descriptors of this process until its code begins, that of the name
/// among them.
fn nothing_answers(world: &NatWorld) {
    until("nothing answers", || {
        world.gateway.run(|| Visit::find().unwrap()).unwrap().is_none().then_some(())
    });
}

fn carried(now: &Now) -> u64 {
    now.reasons.iter().filter(|r| r.reason == Reason::Carried).map(|r| r.packets).sum()
}

/// Exchanges datagrams; how many were carried.
fn exchange(run: &Run<'_>, port: u16, times: u8) -> u64 {
    let world = run.world;
    let client = world.udp(&world.inside[0], world.inside_addresses[0], port);
    let server = world.server_udp(5000);
    let before = carried(&run.now());
    for n in 0..times {
        let from = passes(&client, server.local_addr().unwrap(), &server, &[n; 64]);
        passes(&server, from, &client, &[n; 64]);
    }
    carried(&run.now()) - before
}

fn explain(run: &Run<'_>, port: u16) -> Vec<Explained> {
    let source = (run.world.inside_addresses[0], port).into();
    let destination = (run.world.server_address, 5000).into();
    run.ask(|visit| visit.explain(Protocol::Udp, source, destination))
}

#[test]
fn root_it_tells_what_it_carries_and_why_not() {
    if test_needs_root() {
        return;
    }
    let world = NatWorld::new(false);
    let run = Run::begin(&world, setup(&["br0", "out0"], None));
    let unknown = explain(&run, 4000);
    assert_eq!((unknown.len(), unknown[0].reason), (1, Reason::Unknown));
    assert!(unknown[0].why.contains("conntrack does not know"), "{}", unknown[0].why);
    assert!(exchange(&run, 4000, 20) >= 30);
    // A change of a neighbour in between makes an entry stale, until its next packet.
    let (both, flows, now) = until("both directions are carried", || {
        exchange(&run, 4000, 20);
        let seen = (explain(&run, 4000), run.ask(|visit| visit.flows(100)), run.now());
        let is_carried = [seen.0[0].reason, seen.0[1].reason] == [Reason::Carried; 2];
        (is_carried && seen.1.iter().all(|flow| !flow.stale)).then_some(seen)
    });
    let out = both[0].out.unwrap();
    assert_eq!((out.source.ip(), out.destination.ip()), (world.gateway_outside, world.server_address));
    assert_eq!(both[1].out.unwrap().destination, (world.inside_addresses[0], 4000).into());
    let there = flows.iter().find(|flow| flow.source == (world.inside_addresses[0], 4000).into()).unwrap();
    assert_eq!((there.protocol, there.out, there.stale), (Protocol::Udp, out, false));
    assert_eq!(run.ask(|visit| visit.flows(1)).len(), 1);
    assert_eq!(now.directions, flows.len() as u64);
    assert_eq!(
        (now.interfaces, now.attached, now.trial_left_s),
        (vec!["br0".into(), "out0".into()], true, None)
    );
}

#[test]
fn root_a_pause_and_an_exclusion_work_at_once() {
    if test_needs_root() {
        return;
    }
    let world = NatWorld::new(false);
    let run = Run::begin(&world, setup(&["br0", "out0"], None));
    assert!(exchange(&run, 4000, 20) >= 30);
    run.ask(|visit| visit.pause(true));
    assert_eq!(exchange(&run, 4000, 20), 0);
    assert_eq!(explain(&run, 4000)[0].why, "the fast path is paused");
    run.ask(|visit| visit.pause(false));
    assert!(exchange(&run, 4000, 20) >= 30);
    // Behind the translation, and before it.
    for text in ["198.18.1.2:5000/udp", "198.18.0.0/24:4000"] {
        run.ask(|visit| visit.exclude(vec![text.parse::<Exclusion>().unwrap()]));
        assert_eq!(exchange(&run, 4000, 20), 0, "{text}");
        let why = explain(&run, 4000)[0].why.clone();
        assert!(why == "it is excluded: ".to_owned() + text || why.contains("changed"), "{why}");
        assert!(run.now().lessons.iter().any(|lesson| lesson.result == Lesson::Excluded));
    }
    // Another port, protocol or network is none of it.
    for text in ["198.18.1.2:5001", "198.18.1.2/tcp", "198.18.2.0/24", "2001:db8::/32"] {
        run.ask(|visit| visit.exclude(vec![text.parse::<Exclusion>().unwrap()]));
        assert!(exchange(&run, 4000, 20) >= 30, "{text}");
    }
    let many: Vec<Exclusion> = (1..=65).map(|n| format!("198.18.2.{n}").parse().unwrap()).collect();
    let refused = world.gateway.run(|| Visit::find().unwrap().unwrap().exclude(many)).unwrap();
    assert!(refused.unwrap_err().to_string().contains("64"), "65 exclusions");
}

#[test]
fn root_it_counts_what_made_it_learn_anew() {
    if test_needs_root() {
        return;
    }
    let world = NatWorld::new(false);
    let run = Run::begin(&world, setup(&["br0", "out0"], None));
    let times = |change: Change| {
        run.now().changes.iter().filter(|count| count.change == change).map(|count| count.times).sum::<u64>()
    };
    for (script, change) in [
        ("ip route add 198.18.9.0/24 via 198.18.1.2", Change::Routes),
        ("nft add table ip more", Change::PacketFilter),
        ("ip addr add 198.18.9.1/24 dev out0", Change::Addresses),
    ] {
        let (before, generation) = (times(change), run.now().generation);
        sh(&world.gateway, script);
        until(script, || (times(change) > before).then_some(()));
        assert_ne!(run.now().generation, generation, "{script}");
    }
    let before = times(Change::Exclusions);
    run.ask(|visit| visit.exclude(Vec::new()));
    assert_eq!(times(Change::Exclusions), before + 1);
}

#[test]
fn root_flows_are_counted_one_by_one_while_a_user_looks() {
    if test_needs_root() {
        return;
    }
    let world = NatWorld::new(false);
    let run = Run::begin(&world, setup(&["br0", "out0"], None));
    until("it carries", || (exchange(&run, 4000, 20) >= 30).then_some(()));
    assert!(exchange(&run, 4001, 20) > 0);
    // Before the look: not counted.
    exchange(&run, 4001, 40);
    let begin = || world.gateway.run(|| Visit::find().unwrap().unwrap().begin_count()).unwrap();
    begin().unwrap();
    assert!(begin().unwrap_err().to_string().contains("another user"), "one look at a time");
    let [many, few] = [exchange(&run, 4000, 30), exchange(&run, 4001, 10)];
    let top = run.ask(|visit| visit.top(2));
    assert_eq!((top.flows.len(), top.counted, top.uncounted_packets), (2, 4, 0), "{top:#?}");
    // One of each direction: 64 bytes of payload, and headers of Ethernet, IPv4 and UDP.
    let packets: u64 = top.flows.iter().map(|flow| flow.packets).sum();
    assert_eq!(
        (packets, top.flows[0].bytes),
        (many, top.flows[0].packets * (64 + 14 + 20 + 8)),
        "{few} {top:#?}"
    );
    let is_first = |end: &std::net::SocketAddr| end.port() == 4000;
    assert!(top.flows.iter().all(|flow| is_first(&flow.source) || is_first(&flow.destination)), "{top:#?}");
    exchange(&run, 4000, 30);
    begin().unwrap();
    let none = run.ask(|visit| visit.top(2));
    assert_eq!((none.flows.len(), none.counted), (0, 0), "it begins anew each time: {none:#?}");
    let late = world.gateway.run(|| Visit::find().unwrap().unwrap().top(2)).unwrap().unwrap_err();
    assert!(late.to_string().contains("nothing is counted"), "{late}");
}

#[test]
fn root_one_that_does_not_answer_keeps_no_other_waiting() {
    if test_needs_root() {
        return;
    }
    let world = NatWorld::new(false);
    let look = || world.gateway.run(|| Visit::presence(Duration::from_millis(200)).unwrap()).unwrap();
    assert!(matches!(look(), Presence::None), "there is none");
    let resident = world.gateway.run(|| Resident::begin(setup(&["br0"], None)).unwrap()).unwrap();
    // It does not serve yet.
    assert!(matches!(look(), Presence::Silent { pid } if pid == std::process::id()), "{:?}", look());
    drop(resident);
    let _run = Run::begin(&world, setup(&["br0"], None));
    until("it answers", || matches!(look(), Presence::Answers(_)).then_some(()));
}

#[test]
fn root_an_interface_that_is_made_anew_and_a_later_program_are_followed() {
    if test_needs_root() {
        return;
    }
    let world = NatWorld::new(false);
    let run = Run::begin(&world, setup(&["br0", "out0"], None));
    let second = run
        .world
        .gateway
        .run(|| Resident::begin(Setup { wanted: wanted(&["br0"], &[]), trial: None, kept: nothing_kept() }));
    assert!(matches!(second.unwrap(), Err(Error::State(_))), "there is one fast path in a namespace");
    // Another name of the same interface is another interface for a user of the name.
    sh(&world.gateway, "ip link set out0 down; ip link set out0 name was0");
    until("its programs are gone", || (!run.now().attached).then_some(()));
    assert_eq!(run.now().interfaces, ["br0"]);
    sh(&world.gateway, "ip link set was0 name out0; ip link set out0 up");
    until("its programs are back", || run.now().attached.then_some(()));
    until("it carries again", || (exchange(&run, 4001, 20) >= 30).then_some(()));
    // A program that came later would not see what is carried.
    let programs = || {
        let index = Rtnetlink::open().unwrap().interface("out0").unwrap().index;
        tcx_programs(index, Direction::Ingress).unwrap()
    };
    let programs = || world.gateway.run(programs).unwrap();
    let ours = programs();
    let _later = world.gateway.run(|| {
        let later =
            Fastpath::load(Options { connections: 64, connections6: 64, ..Options::default() }).unwrap();
        later.attach("out0").unwrap();
        later
    });
    until("ours is last again", || (programs().len() == 2 && programs().last() == ours.last()).then_some(()));
    drop(run);
    nothing_answers(&world);
}

#[test]
fn root_a_trial_ends_by_itself_unless_it_is_kept() {
    if test_needs_root() {
        return;
    }
    let world = NatWorld::new(false);
    let trial = Some(Duration::from_secs(4));
    let run = Run::begin(&world, setup(&["br0", "out0"], trial));
    assert!(run.now().trial_left_s.is_some());
    until("its time is over", || run.has_ended().then_some(()));
    nothing_answers(&world);
    drop(run);
    let run = Run::begin(&world, setup(&["br0", "out0"], trial));
    run.ask(Visit::keep);
    assert_eq!(run.now().trial_left_s, None);
    run.ask(Visit::end);
    until("it was asked to end", || run.has_ended().then_some(()));
}

#[test]
fn root_a_plan_names_the_interfaces_that_forward_and_why_others_do_not() {
    if test_needs_root() {
        return;
    }
    let world = NatWorld::new(false);
    sh(&world.gateway, "ip link add off0 type veth peer name quiet0 && ip link set quiet0 up");
    sh(&world.gateway, "sysctl -q net.ipv4.conf.quiet0.forwarding=0");
    let make = |names: &[&str]| {
        let request = Request { interfaces: names.iter().map(|&n| n.into()).collect(), ..Request::default() };
        world.gateway.run(|| FastpathPlan::make(&request, &ProcRoot::default())).unwrap()
    };
    let plan = make(&[]).unwrap();
    assert_eq!(plan.wanted.interfaces, ["br0", "out0"]);
    let why = |name: &str| plan.left_out.iter().find(|left| left.name == name).unwrap().why.clone();
    assert_eq!(why("p0"), "it is part of br0: its packets are carried at br0");
    assert_eq!(why("off0"), "it is down");
    assert_eq!(why("quiet0"), "it does not forward");
    assert!(plan.memory_bytes > 64 << 10, "{}", plan.memory_bytes);
    assert_eq!(make(&["out0"]).unwrap().wanted.interfaces, ["out0"]);
    assert!(matches!(make(&["p0"]), Err(Error::Interface(_))));
    assert!(matches!(make(&["none0"]), Err(Error::Interface(_))));
    sh(&world.gateway, "sysctl -q net.ipv4.ip_forward=0");
    assert!(matches!(make(&[]), Err(Error::Nothing(_))));
}
