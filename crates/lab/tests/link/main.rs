//! A link is what it was asked to be, measured by what sees it from outside: plain sockets, the kernel's own counters at the
//! ends, fragments as they arrive.

mod bounds;
mod fragments;

use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use weir_lab::emulate::{Crossed, Emulation};
use weir_lab::{Family, Lab, LabOptions, Link, Role, Site, SiteSpec, Topology};
use weir_sys::SendBatch;
use weir_sys::privilege;
use weir_sys::process::which;
use weir_sys::sched::{process_cpu_time, thread_cpu_time};
use weir_testkit::{holds, measured};

const LONG: Duration = Duration::from_secs(20);
/// A machine that is busy with other things disturbs a measurement of time now and then, but not each time.
const NEEDED: usize = 2;
const ATTEMPTS: usize = 5;

/// Tests of this program run side by side, and would measure each other.
fn turn() -> MutexGuard<'static, ()> {
    static TURN: Mutex<()> = Mutex::new(());
    TURN.lock().unwrap_or_else(PoisonError::into_inner)
}

fn cannot_run() -> bool {
    if privilege::test_needs_root() {
        return true;
    }
    for (program, package) in [("iptables", "iptables"), ("nft", "nftables")] {
        if which(program).is_none() {
            println!("SKIP: {program} is not installed; apt install {package}");
            return true;
        }
    }
    false
}

fn lab(test: &str, family: Family) -> Lab {
    let options = LabOptions { family, ..LabOptions::default() };
    Lab::build(&format!("test-link-{test}-{family:?}-{}", std::process::id()), &options, &[spec()]).unwrap()
}

/// Two hosts with a wan in between.
fn spec() -> SiteSpec {
    SiteSpec { name: "s".into(), topology: Topology::Direct, return_route: false, wan: true }
}

fn start(site: &Site, link: &str) -> Emulation {
    let link: Link = serde_json::from_str(link).unwrap();
    link.validate(site.addresses().family, 1500).unwrap();
    Emulation::start(site, &link).unwrap()
}

fn bound(site: &Site, role: Role, port: u16) -> UdpSocket {
    let a = site.addresses();
    let address: IpAddr = if role == Role::Initiator { a.initiator } else { a.responder };
    let socket =
        site.host(role).unwrap().run(|| weir_testkit::bound(|| UdpSocket::bind((address, port)))).unwrap();
    socket.set_read_timeout(Some(LONG)).unwrap();
    socket
}

/// A socket at each end, connected to each other.
fn ends(site: &Site, port: u16) -> (UdpSocket, UdpSocket) {
    let (near, far) = (bound(site, Role::Initiator, port), bound(site, Role::Responder, port));
    near.connect(SocketAddr::new(site.addresses().responder, port)).unwrap();
    far.connect(SocketAddr::new(site.addresses().initiator, port)).unwrap();
    (near, far)
}

/// Time of a word to the other end. The receiver does not sleep: waking it takes more than 100 us on an idle virtual machine, and is
/// not the link's.
fn one_way(from: &UdpSocket, to: &UdpSocket) -> Duration {
    to.set_nonblocking(true).unwrap();
    let start = Instant::now();
    from.send(b"word").unwrap();
    while let Err(e) = to.recv(&mut [0; 16]) {
        assert!(e.kind() == std::io::ErrorKind::WouldBlock && start.elapsed() < LONG, "{e}");
        std::hint::spin_loop();
    }
    let took = start.elapsed();
    to.set_nonblocking(false).unwrap();
    took
}

fn median(mut values: Vec<Duration>) -> Duration {
    values.sort();
    values[values.len() / 2]
}

/// Sends datagrams in bursts that fit any buffer; the numbers of those that arrived, in the order of arrival.
fn through(near: &UdpSocket, far: &UdpSocket, count: u32, bytes: usize) -> Vec<u32> {
    let mut seen = Vec::new();
    let mut buffer = vec![0; 65_536];
    let mut payload = vec![0; bytes];
    let numbers: Vec<u32> = (0..count).collect();
    let bursts = numbers.chunks(50);
    let last = bursts.len() - 1;
    for (nth, burst) in bursts.enumerate() {
        // Late datagrams are read behind the next burst; behind the last one they are waited for.
        let wait = Duration::from_millis(if nth == last { 2000 } else { 50 });
        far.set_read_timeout(Some(wait)).unwrap();
        for number in burst {
            payload[..4].copy_from_slice(&number.to_be_bytes());
            near.send(&payload).unwrap();
        }
        while seen.last() != burst.last() {
            match far.recv(&mut buffer) {
                Ok(length) => {
                    assert_eq!(length, bytes);
                    seen.push(u32::from_be_bytes(buffer[..4].try_into().unwrap()));
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) => panic!("{e}"),
            }
        }
    }
    seen
}

/// A measured delay is within a twentieth of what was asked for.
#[test]
fn root_measured_delays_of_both_directions_are_measured_within_5_percent() {
    if cannot_run() {
        return;
    }
    let _turn = turn();
    let lab = lab("delay", Family::Ipv4);
    let site = lab.site("s").unwrap();
    let (near, far) = ends(site, 5000);
    let measure = || {
        let times: Vec<(Duration, Duration)> =
            (0..60).map(|_| (one_way(&near, &far), one_way(&far, &near))).collect();
        [median(times.iter().map(|t| t.0).collect()), median(times.iter().map(|t| t.1).collect())]
    };
    let mut link = start(site, r#"{"delay": "2ms", "ingress": {"delay": "3ms"}}"#);
    let mechanism = link.mechanisms().join("; ");
    println!("{mechanism}");
    assert!(mechanism.contains("egress: waits 2ms by") && mechanism.contains("ingress: waits 3ms by"));
    measured(NEEDED, ATTEMPTS, |_| {
        link.begin(0).unwrap();
        let [there, back] = measure();
        println!("{there:?} and {back:?}");
        let near = |measured: Duration, ms: f64| {
            let share = measured.as_secs_f64() * 1e3 / ms;
            (1.0..1.05).contains(&share)
        };
        near(there, 2.0) && near(back, 3.0)
    });
    let [egress, _] = link.crossed().unwrap();
    println!("late p50 {:?} ns", egress.passed.lateness.quantile(0.5));
}

#[test]
fn root_measured_jitter_fills_its_width_and_no_more() {
    if cannot_run() {
        return;
    }
    let _turn = turn();
    let lab = lab("jitter", Family::Ipv6);
    let site = lab.site("s").unwrap();
    let (near, far) = ends(site, 5000);
    let _link = start(site, r#"{"egress": {"delay": "2ms", "jitter": "1ms"}}"#);
    measured(NEEDED, ATTEMPTS, |_| {
        let mut times: Vec<f64> = (0..200).map(|_| one_way(&near, &far).as_secs_f64() * 1e3).collect();
        times.sort_by(f64::total_cmp);
        // Never early; quartiles of a uniform distribution from 1 to 3 ms. A quartile of 200 draws has a standard error of
        // sqrt(0.25 * 0.75 / 200) * 2 ms = 0.061 ms: four of them.
        assert!(times[0] >= 1.0, "{times:?}");
        let quartiles = [times[50], times[100], times[150]];
        println!("quartiles {quartiles:?} ms");
        quartiles.iter().zip([1.5, 2.0, 2.5]).all(|(q, truth)| (q - truth).abs() < 0.25)
    });
}

#[test]
fn root_losses_are_as_many_as_asked_for() {
    if cannot_run() {
        return;
    }
    let _turn = turn();
    for family in [Family::Ipv4, Family::Ipv6] {
        let lab = lab("loss", family);
        let site = lab.site("s").unwrap();
        let (near, far) = ends(site, 5000);
        let mut link = start(site, r#"{"egress": {"loss": 0.1}, "ingress": {"loss-every": 7}}"#);
        link.begin(0).unwrap();
        // The last of a burst that is lost is waited for, so few bursts more than are needed.
        let sent = 5_000;
        let arrived = through(&near, &far, sent, 100).len() as f64;
        // Five standard deviations of a binomial distribution.
        let (truth, width) = (0.9 * f64::from(sent), 5.0 * (f64::from(sent) * 0.1 * 0.9).sqrt());
        println!("{family:?}: {arrived} of {sent}");
        assert!((arrived - truth).abs() < width, "{arrived} of {sent}");
        let [egress, _] = link.crossed().unwrap();
        assert_eq!(egress.lost as f64, f64::from(sent) - arrived);

        let back = through(&far, &near, 700, 100);
        let expected: Vec<u32> = (0..700).filter(|n| n % 7 != 6).collect();
        assert_eq!(back, expected, "each seventh is lost and no other");
        let [_, ingress] = link.crossed().unwrap();
        assert_eq!(ingress.lost, 100);
        assert_eq!(ingress.passed.packets, 0);
    }
}

/// As much arrives between two moments as the rate lets pass.
#[test]
fn root_measured_a_rate_is_kept_within_2_percent() {
    if cannot_run() {
        return;
    }
    let _turn = turn();
    let lab = lab("rate", Family::Ipv4);
    let site = lab.site("s").unwrap();
    let (near, far) = ends(site, 5000);
    let _link = start(site, r#"{"egress": {"rate": "50mbit"}}"#);
    measured(NEEDED, ATTEMPTS, |_| {
        let share = flooded(&near, &far) / 50e6;
        println!("{share:.4} of 50 Mbit/s");
        (share - 1.0).abs() < 0.02
    });
}

/// Bit/s of Ethernet frames that arrive while more than fits is sent.
fn flooded(near: &UdpSocket, far: &UdpSocket) -> f64 {
    const PAYLOAD: usize = 1000;
    // UDP, IPv4 and Ethernet headers, which a bucket counts.
    const FRAME: f64 = (PAYLOAD + 8 + 20 + 14) as f64;
    let end = Instant::now() + Duration::from_millis(1500);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while Instant::now() < end {
                for _ in 0..20 {
                    // The kernel may report a full queue or not.
                    let _ = near.send(&[0; PAYLOAD]);
                }
                // The pace of what is offered, which is above the rate: 20,000 datagrams a second, 160 Mbit/s.
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let mut buffer = [0; 2048];
        // Past what the bucket held at the beginning.
        for _ in 0..200 {
            far.recv(&mut buffer).unwrap();
        }
        let (start, mut arrived) = (Instant::now(), 0);
        while start.elapsed() < Duration::from_millis(1000) {
            far.recv(&mut buffer).unwrap();
            arrived += 1;
        }
        let rate = f64::from(arrived) * FRAME * 8.0 / start.elapsed().as_secs_f64();
        far.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        while far.recv(&mut buffer).is_ok() {}
        far.set_read_timeout(Some(LONG)).unwrap();
        rate
    })
}

#[test]
fn root_every_tenth_is_overtaken_by_three() {
    if cannot_run() {
        return;
    }
    let _turn = turn();
    let lab = lab("reorder", Family::Ipv6);
    let site = lab.site("s").unwrap();
    let (near, far) = ends(site, 5000);
    let mut link = start(site, r#"{"egress": {"reorder": {"every": 10, "behind": 3}, "delay": "1ms"}}"#);
    link.begin(0).unwrap();
    for n in 0..95u32 {
        near.send(&n.to_be_bytes()).unwrap();
    }
    let mut buffer = [0; 16];
    let seen: Vec<u32> = (0..95)
        .map(|_| {
            far.recv(&mut buffer).unwrap();
            u32::from_be_bytes(buffer[..4].try_into().unwrap())
        })
        .collect();
    let mut expected: Vec<u32> = (0..95).collect();
    (9..90).step_by(10).for_each(|held| expected[held..=held + 3].rotate_left(1));
    assert_eq!(seen, expected);
    let [egress, ingress] = link.crossed().unwrap();
    assert_eq!((egress.passed.packets, egress.passed.reordered), (95, 9));
    assert_eq!(ingress, Crossed::default());
}

/// Each connection waits as long as the gateway that it took, both ways, and keeps it; another trial draws anew.
#[test]
fn root_measured_connections_take_gateways_of_different_delay() {
    if cannot_run() {
        return;
    }
    let _turn = turn();
    measured(2, 3, |_| holds(connections_take_gateways_of_different_delay));
}

fn connections_take_gateways_of_different_delay() {
    let lab = lab("gateways", Family::Ipv4);
    let site = lab.site("s").unwrap();
    let mut link = start(site, r#"{"delays": ["2ms", "5ms"]}"#);
    let connections: Vec<_> = (0..60).map(|n| ends(site, 5000 + n)).collect();
    let choices = |link: &mut Emulation, seed| -> Vec<bool> {
        link.begin(seed).unwrap();
        let slow = |(near, far): &(UdpSocket, UdpSocket)| {
            // The least of several is what the link made of it, however busy the machine is.
            let least = |from, to| (0..4).map(|_| one_way(from, to)).min().unwrap().as_secs_f64() * 1e3;
            let (there, back) = (least(near, far), least(far, near));
            assert!(there >= 2.0 && back >= 2.0, "{there} {back}");
            assert_eq!(there >= 5.0, back >= 5.0, "both ways through one gateway: {there} {back}");
            assert!(!(4.5..5.0).contains(&there), "neither gateway takes {there} ms");
            there >= 5.0
        };
        connections.iter().map(slow).collect()
    };
    let first = choices(&mut link, 1);
    let [egress, ingress] = link.crossed().unwrap();
    let slow = first.iter().filter(|slow| **slow).count() as u64;
    println!("{slow} of 60 through the slow one");
    // Five standard deviations of 60 fair draws are 19.
    assert!(slow.abs_diff(30) < 19, "{slow}");
    // Four words each way.
    assert_eq!(egress.passed.gateways, [4 * (60 - slow), 4 * slow]);
    assert_eq!(ingress.passed.gateways, egress.passed.gateways);
    assert_eq!(choices(&mut link, 1), first);
    assert_ne!(choices(&mut link, 2), first);
}

#[test]
fn root_measured_connections_take_gateways_in_turn() {
    if cannot_run() {
        return;
    }
    let _turn = turn();
    measured(2, 3, |_| holds(connections_take_gateways_in_turn));
}

fn connections_take_gateways_in_turn() {
    let lab = lab("turns", Family::Ipv6);
    let site = lab.site("s").unwrap();
    let mut link = start(site, r#"{"egress": {"delays": ["0ms", "4ms"], "choose": "round"}}"#);
    link.begin(0).unwrap();
    for n in 0..10 {
        let (near, far) = ends(site, 5000 + n);
        let least = (0..3).map(|_| one_way(&near, &far)).min().unwrap();
        assert_eq!(least >= Duration::from_millis(4), n % 2 == 1, "{n}: {least:?}");
    }
    let [egress, _] = link.crossed().unwrap();
    assert_eq!(egress.passed.gateways, [15, 15]);
}

/// Sends what is too large until the kernel says so; what it said. Expected silence takes the whole second: a message that is not
/// sent cannot be waited for in another way.
fn too_big(socket: &UdpSocket, bytes: usize) -> Option<i32> {
    let deadline = Instant::now() + Duration::from_secs(1);
    while Instant::now() < deadline {
        match socket.send(&vec![0; bytes]) {
            // Between two looks for the router's word, of which Linux sends one a second at most to each host, behind a burst.
            Ok(_) => std::thread::sleep(Duration::from_millis(20)),
            Err(e) => return e.raw_os_error(),
        }
    }
    None
}

/// EMSGSIZE of errno(3) on Linux.
const EMSGSIZE: i32 = 90;

#[test]
fn root_a_smaller_mtu_is_told_unless_it_shall_not_be() {
    if cannot_run() {
        return;
    }
    let _turn = turn();
    for (family, headers) in [(Family::Ipv4, 28), (Family::Ipv6, 48)] {
        for silent in [false, true] {
            let lab = lab(if silent { "hole" } else { "mtu" }, family);
            let site = lab.site("s").unwrap();
            let (near, far) = ends(site, 5000);
            let link = if silent { r#"{"mtu": 1400, "icmp": "drop"}"# } else { r#"{"mtu": 1400}"# };
            let _link = start(site, link);
            // Both directions: what fits passes, one byte more is refused once the router has said so.
            for (from, to) in [(&near, &far), (&far, &near)] {
                let fits = 1400 - headers;
                from.send(&vec![0; fits]).unwrap();
                assert_eq!(to.recv(&mut [0; 2048]).unwrap(), fits);
                let told = too_big(from, fits + 1);
                assert_eq!(told, (!silent).then_some(EMSGSIZE), "{family:?} silent {silent}");
                to.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
                assert!(to.recv(&mut [0; 2048]).is_err(), "what is too big passes");
                to.set_read_timeout(Some(LONG)).unwrap();
            }
        }
    }
}

/// CPU time that holding a packet takes, us, packets a second that passed, and what the relay had no room for, while as many are
/// sent as the machine can.
fn saturated(site: &Site, link: &str) -> (f64, f64, u64) {
    let mut emulation = start(site, link);
    let (near, far) = ends(site, 5000);
    near.set_nonblocking(true).unwrap();
    emulation.begin(0).unwrap();
    let mut batch = SendBatch::new(vec![0; 64 * 64], 64);
    let (begun, own, all) = (Instant::now(), thread_cpu_time(), process_cpu_time());
    let mut offered = 0;
    while begun.elapsed() < Duration::from_millis(600) {
        // Datagrams that find no room are not sent. No thread reads the far end, which drops the others behind the relay.
        offered += 64;
        let _ = batch.send(&near, 0, 64);
    }
    let sent = begun.elapsed();
    // All but the sender's: the relay's, with the way to the far end, which its verdicts set the packets on.
    let held = (process_cpu_time() - all).saturating_sub(thread_cpu_time() - own);
    let [egress, _] = emulation.crossed().unwrap();
    drop(far);
    // No packet is both held and dropped, or either of them twice.
    let overflows = egress.passed.overflows;
    assert!(egress.passed.packets + overflows <= offered, "{link}: {egress:?} of {offered}");
    let packets = egress.passed.packets as f64;
    (held.as_secs_f64() * 1e6 / packets, packets / sent.as_secs_f64(), overflows)
}

/// Prints the cost of holding a packet, and how many pass: a core that is shared with others cannot be held to a number. The
/// relay drops and counts what is too much for it, and goes on.
#[test]
fn root_a_relay_that_is_sent_more_than_it_can_hold_counts_what_it_drops_and_goes_on() {
    if cannot_run() {
        return;
    }
    let _turn = turn();
    let lab = lab("full", Family::Ipv4);
    let site = lab.site("s").unwrap();
    for link in
        [r#"{"egress": {"delay": "2ms"}}"#, r#"{"egress": {"delays": ["1.8ms", "3ms"], "jitter": "50us"}}"#]
    {
        let (us, per_second, dropped) = saturated(site, link);
        println!(
            "{link}: {us:.1} us of CPU time a packet, {per_second:.0} packets a second, {dropped} dropped"
        );
        assert!(per_second > 1000.0, "{link}: {per_second} packets a second");
    }
}
