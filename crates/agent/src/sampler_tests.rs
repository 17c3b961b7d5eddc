use std::net::UdpSocket;

use super::*;

fn point(at: Instant, idle: u64, softirq: u64, rx_bytes: u64, conntrack_count: Option<u64>) -> Point {
    let cpu = BTreeMap::from([(0, CpuTicks { idle, softirq, ..CpuTicks::default() })]);
    let counters = InterfaceCounters { rx_bytes, rx_packets: rx_bytes / 100, ..InterfaceCounters::default() };
    let interfaces = BTreeMap::from([("eth0".to_owned(), counters)]);
    Point { at, cpu, interfaces, memory_used: 7, conntrack_count }
}

#[test]
fn a_window_is_the_difference_of_its_ends() {
    let t0 = Instant::now();
    let at = |s| t0 + Duration::from_secs(s);
    let hz = ticks_per_second();
    let points = [
        point(at(0), 10 * hz, hz, 1_000, None),
        point(at(1), 10 * hz + hz / 2, hz + hz / 2, 126_000, None),
        point(at(2), 11 * hz + hz / 2, hz + hz / 2, 126_000, Some(3)),
    ];
    let sample = summary(&points, BTreeMap::new());
    assert_eq!(sample.window_s, 2.0);
    assert_eq!(sample.cpu, [CpuTime { idle_s: 1.5, softirq_s: 0.5, ..CpuTime::default() }]);
    assert_eq!(sample.interfaces["eth0"].rx_bytes, 125_000);
    assert_eq!(sample.conntrack_count, Some(3));
    let series = |name: &str| sample.series.iter().find(|s| s.name == name).unwrap().points.clone();
    // 125,000 bytes in the first second are 1 Mbit/s.
    assert_eq!(series("rx_bps"), [(1.0, 1e6), (2.0, 0.0)]);
    assert_eq!(series("softirq_cores"), [(1.0, 0.5), (2.0, 0.0)]);
    assert_eq!(series("conntrack_count"), [(2.0, 3.0)]);
}

#[test]
fn counters_that_did_not_move_are_left_out_and_32_bit_ones_wrap() {
    let softnet = |processed, dropped| Softnet { processed, dropped, ..Softnet::default() };
    let totals = |retrans, current, softnet| Totals {
        protocols: BTreeMap::from([
            ("tcp.RetransSegs".to_owned(), retrans),
            ("tcp.CurrEstab".to_owned(), current),
        ]),
        softnet,
        conntrack: BTreeMap::from([("drop", retrans)]),
    };
    let before = totals(5, 1, vec![softnet(0xffff_fff0, 2), softnet(1, 0)]);
    let after = totals(7, 9, vec![softnet(0x10, 2), softnet(2, 0)]);
    let expected = [("conntrack.drop", 2), ("softnet.processed", 0x21), ("tcp.RetransSegs", 2)];
    let expected: BTreeMap<String, u64> = expected.into_iter().map(|(n, v)| (n.to_owned(), v)).collect();
    assert_eq!(after.since(&before), expected);
}

#[test]
fn a_remade_interface_counts_from_zero() {
    let counters =
        |rx_packets, rx_bytes| InterfaceCounters { rx_packets, rx_bytes, ..InterfaceCounters::default() };
    assert_eq!(interface_delta(&counters(3, 300), &counters(10, 1000)).rx_bytes, 300);
    assert_eq!(interface_delta(&counters(13, 1300), &counters(10, 1000)).rx_bytes, 300);
}

#[test]
fn traffic_on_loopback_is_counted_in_the_window() {
    let window =
        Window { after: Duration::ZERO, duration: Duration::from_secs(30), every: Duration::from_millis(50) };
    let sampler = Sampler::start(window, vec!["lo".into()]).unwrap();
    // Loopback traffic may come from elsewhere too, so only the least is known. The first reading was made at
    // some time after the start, so send until the series would have seen it for sure.
    let receiver = UdpSocket::bind("127.0.0.1:0").unwrap();
    let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
    let deadline = Instant::now() + Duration::from_millis(400);
    let mut sent = 0;
    while Instant::now() < deadline {
        sender.send_to(&[0; 1000], receiver.local_addr().unwrap()).unwrap();
        sent += 1;
        std::thread::yield_now();
    }
    let sample = sampler.finish().unwrap();
    assert!(sample.window_s > 0.2 && sample.window_s < 20.0, "ended by finish: {}", sample.window_s);
    assert!(sent > 0 && sample.interfaces["lo"].tx_packets > 0);
    assert!(sample.counters["udp.OutDatagrams"] > 0);
    assert!(sample.memory_used_bytes > 0);
    assert!(sample.busy_cores() > 0.0);
    assert!(sample.series.iter().any(|s| s.name == "rx_bps" && s.points.len() >= 2));
}

#[test]
fn finishing_before_the_window_gives_an_empty_sample() {
    let sampler =
        Sampler::start(Window::new(Duration::from_secs(3600), Duration::from_secs(1)), Vec::new()).unwrap();
    assert_eq!(sampler.finish().unwrap(), HostSample::default());
}

#[test]
fn the_window_ends_by_itself() {
    let window = Window {
        after: Duration::from_millis(20),
        duration: Duration::from_millis(130),
        every: Duration::from_millis(50),
    };
    let sampler = Sampler::start(window, Vec::new()).unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    while !sampler.thread.is_finished() {
        assert!(Instant::now() < deadline, "the sampler does not end");
        std::thread::yield_now();
    }
    let sample = sampler.finish().unwrap();
    assert!(sample.window_s >= 0.13, "{}", sample.window_s);
    // Points at 50, 100 and 130 ms; the last step is longer than half of one.
    assert_eq!(sample.series[0].points.len(), 3);
}

#[test]
fn what_cannot_be_read_is_an_error() {
    let window = Window::new(Duration::ZERO, Duration::from_secs(1));
    let sampler = Sampler::start_with(ProcRoot::new("/nonexistent"), window, Vec::new()).unwrap();
    assert!(sampler.finish().unwrap_err().to_string().contains("/nonexistent/proc"));
}

#[test]
fn root_a_host_of_the_lab_counts_its_own_packets_to_the_last() {
    use weir_lab::{Lab, LabOptions, Role, SiteSpec, Topology};
    if weir_sys::privilege::test_needs_root() {
        return;
    }
    let spec = SiteSpec { name: "s".into(), topology: Topology::Direct, return_route: false, wan: false };
    let run = format!("test-sampler-{}", std::process::id());
    let lab = Lab::build(&run, &LabOptions::default(), &[spec]).unwrap();
    let site = lab.site("s").unwrap();
    let target = (site.addresses().responder, 5000);
    let receiver = site.host(Role::Responder).unwrap().run(|| UdpSocket::bind(target).unwrap()).unwrap();
    let sample = site.host(Role::Initiator).unwrap().run(|| {
        let mut watch = CounterReader::new(ProcRoot::new("/"), vec!["eth0".into()]);
        let (totals, first) = (watch.totals().unwrap(), watch.point().unwrap());
        let sender = UdpSocket::bind("0.0.0.0:0").unwrap();
        for _ in 0..50 {
            sender.send_to(&[0; 1000], target).unwrap();
        }
        let last = watch.point().unwrap();
        summary(&[first, last], watch.totals().unwrap().since(&totals))
    });
    let sample = sample.unwrap();
    // Few enough for the default receive buffer.
    let mut buffer = [0; 2000];
    receiver.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
    for _ in 0..50 {
        assert_eq!(receiver.recv(&mut buffer).unwrap(), 1000);
    }
    let eth0 = sample.interfaces["eth0"];
    // Payload, UDP, IPv4 and Ethernet header.
    assert_eq!((eth0.tx_packets, eth0.tx_bytes), (50, 50 * (1000 + 8 + 20 + 14)));
    assert_eq!((eth0.rx_packets, eth0.tx_dropped, eth0.tx_errors), (0, 0, 0));
    assert_eq!(sample.counters["udp.OutDatagrams"], 50);
    assert_eq!(sample.interfaces.len(), 1);
}
