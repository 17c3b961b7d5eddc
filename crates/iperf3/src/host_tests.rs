//! Both ends of ours against each other, and clients that do not behave.

use std::io::{Read, Write};
use std::net::{TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use serde_json::json;
use weir_sys::Stop;

use super::client;
use super::host_fixture::{Seen, Server, begin, byte, limits, run, say, server_error, short};
use super::{Cookie, End, Error, Options, Protocol, ServerOutput, Way};
use weir_load::limits::Limits;

#[test]
fn a_number_of_bytes_is_the_same_number_at_both_ends() {
    let server = Server::new(Limits::default(), false);
    // In whole writes.
    let whole = 7_654_321u64.div_ceil(131_072) * 131_072;
    for way in [Way::Egress, Way::Ingress, Way::Both] {
        for streams in [1, 3] {
            let options = Options { way, streams, end: End::Bytes(7_654_321), ..Options::default() };
            let report = run(&server, &options).unwrap();
            // With both ways, whichever direction is there first ends it.
            let totals: Vec<_> = [&report.egress, &report.ingress].into_iter().flatten().collect();
            assert!(totals.iter().any(|t| t.sender.bytes == whole), "{way:?} {streams}: {totals:?}");
            if way != Way::Both {
                assert_eq!(totals[0].receiver.bytes, whole, "{way:?} {streams}");
            }
            assert_eq!(report.streams.len(), if way == Way::Both { 2 } else { 1 } * streams as usize);
            assert!(report.congestion.is_some() && report.server_congestion.is_some());
        }
    }
    server.empties();
}

#[test]
fn datagrams_are_counted_by_both_ends_with_the_omitted_ones_apart() {
    let server = Server::new(Limits::default(), false);
    for way in [Way::Egress, Way::Ingress, Way::Both] {
        let options = Options {
            protocol: Protocol::Udp,
            way,
            streams: 2,
            omit_s: 1,
            length: Some(500),
            rate_bps: Some(2_000_000),
            counters_64bit: way == Way::Egress,
            ..short()
        };
        let report = run(&server, &options).unwrap();
        for total in [&report.egress, &report.ingress].into_iter().flatten() {
            let datagrams = total.receiver.datagrams.as_ref().unwrap();
            assert_eq!((datagrams.lost, datagrams.loss_ratio), (0, 0.0), "{way:?}");
            // 2 streams of 500 datagrams a second; each end's omitted time ends by its own clock.
            assert!((200..=500).contains(&datagrams.packets), "{way:?} {datagrams:?}");
            assert!((700..=1300).contains(&datagrams.omitted_packets), "{way:?} {datagrams:?}");
            let sent = total.sender.packets.unwrap() + total.sender.omitted_packets.unwrap();
            let came = datagrams.packets + datagrams.omitted_packets;
            if way == Way::Egress {
                assert_eq!(sent, came);
            }
        }
    }
    server.empties();
}

#[test]
fn intervals_and_the_servers_output_say_the_same() {
    for json in [false, true] {
        let server = Server::new(Limits::default(), json);
        let options = Options {
            protocol: Protocol::Udp,
            get_server_output: true,
            title: Some("a\u{7}b".into()),
            end: End::Time(Duration::from_millis(1200)),
            ..short()
        };
        let mut seen = Seen::default();
        let report = client::run(&options, server.address, &Stop::default(), &mut seen).unwrap();
        assert_eq!((seen.streams, seen.intervals.len()), (1, 2));
        assert_eq!(seen.intervals, report.intervals);
        let sum: u64 = seen.intervals.iter().map(|i| i.streams[0].bytes).sum();
        let total = report.egress.as_ref().unwrap();
        assert_eq!((sum, total.receiver.bytes), (total.sender.bytes, total.sender.bytes));
        let packets = total.receiver.datagrams.as_ref().unwrap().packets;
        match report.server_output.unwrap() {
            ServerOutput::Text(text) => {
                assert!(text.contains(&format!("0/{packets} (0%)")) && text.contains("receiver"), "{text}");
                assert!(text.contains("ab:  "), "{text}");
            }
            ServerOutput::Json(value) => {
                assert!(json);
                assert_eq!(value["end"]["sum_received"]["bytes"], sum);
                assert_eq!(value["end"]["streams"][0]["udp"]["packets"], packets);
                assert_eq!(value["start"]["test_start"]["protocol"], "UDP");
            }
        }
        assert!(server.ended().contains("udp, 1 streams"));
    }
}

#[test]
fn many_clients_of_one_address_run_at_once_each_with_its_own_streams() {
    let server = Server::new(Limits::default(), false);
    let reports: Vec<_> = std::thread::scope(|scope| {
        let start = |n: u32| {
            let protocol = if n.is_multiple_of(2) { Protocol::Udp } else { Protocol::Tcp };
            let rate_bps = Some(u64::from(n + 1) * 400_000);
            let options = Options { protocol, streams: 1 + n % 3, rate_bps, length: Some(200), ..short() };
            let server = &server;
            scope.spawn(move || (options.clone(), run(server, &options)))
        };
        let clients: Vec<_> = (0..8).map(start).collect();
        clients.into_iter().map(|c| c.join().unwrap()).collect()
    });
    for (options, report) in reports {
        let report = report.unwrap();
        assert_eq!(report.streams.len(), options.streams as usize);
        let total = report.egress.unwrap();
        assert!(total.receiver.bytes <= total.sender.bytes && total.receiver.bytes > 0);
        if options.protocol == Protocol::Udp {
            // No foreign datagrams, and all of the own.
            assert_eq!(total.receiver.datagrams.unwrap().packets, total.sender.packets.unwrap());
            assert_eq!(total.receiver.bytes, total.sender.bytes);
        }
    }
    server.empties();
}

#[test]
fn what_the_limits_do_not_allow_is_refused_with_iperf3s_number() {
    let limits = limits(|l| {
        l.streams = 2;
        l.duration = Duration::from_secs(5);
        l.rate_bps = Some(10e6);
        l.memory_bytes = 8 << 20;
    });
    let server = Server::new(limits, false);
    let cases = [
        (Options { streams: 3, ..short() }, 6),
        (Options { end: End::Time(Duration::from_secs(6)), ..short() }, 5),
        (Options { omit_s: 5, ..short() }, 5),
        (Options { rate_bps: Some(6_000_000), streams: 2, ..short() }, 27),
        (Options { window: Some(8 << 20), ..short() }, 124),
    ];
    for (options, code) in cases {
        match run(&server, &options) {
            Err(Error::Server { code: found, errno: 0 }) => assert_eq!(found, code, "{options:?}"),
            other => panic!("{options:?}: {other:?}"),
        }
        assert!(server.ended().contains("refused"));
    }
    // A server that sends is held to its limit where the client does not name one.
    let report =
        run(&server, &Options { way: Way::Ingress, streams: 2, length: Some(5000), ..short() }).unwrap();
    let bps = report.ingress.unwrap().receiver.bps;
    assert!(bps < 13e6, "{bps}");
    server.empties();
}

#[test]
fn all_tests_together_have_the_total_rate_whichever_way_they_go() {
    let server = Server::new(limits(|l| l.total_rate_bps = Some(20e6)), false);
    let hold = |bandwidth: u32| {
        let mut control = begin(&server, &Cookie::random().unwrap());
        say(&mut control, &json!({"tcp": true, "time": 60, "bandwidth": bandwidth}));
        assert_eq!(byte(&mut control), 10);
        control
    };
    let most = hold(12_000_000);
    // A test without a rate is held to the 8 Mbit/s that are left: 300 ms of them, and a write of each stream before.
    for (protocol, way) in [(Protocol::Tcp, Way::Ingress), (Protocol::Udp, Way::Ingress)] {
        let rate_bps = (protocol == Protocol::Udp).then_some(0);
        let options = Options { protocol, way, rate_bps, streams: 2, length: Some(1000), ..short() };
        let total = run(&server, &options).unwrap().ingress.unwrap();
        let most = 8e6 / 8.0 * (total.sender.seconds + 0.1) + 2000.0;
        assert!(total.receiver.bytes > 0 && (total.sender.bytes as f64) < most, "{total:?}");
    }
    // A client that sends what it was not given is stopped, as iperf3 does it.
    let endless = Options { end: End::Time(Duration::from_secs(60)), ..Options::default() };
    assert!(matches!(run(&server, &endless), Err(Error::Server { code: 27, .. })));
    let asked = Options { way: Way::Both, rate_bps: Some(4_000_001), streams: 2, ..short() };
    assert!(matches!(run(&server, &asked), Err(Error::Server { code: 27, .. })));
    let rest = hold(8_000_000);
    assert!(matches!(run(&server, &short()), Err(Error::Server { code: 27, .. })));
    drop((most, rest));
    server.empties();
    // It comes back.
    drop(hold(20_000_000));
    server.empties();
}

#[test]
fn one_place_is_given_to_one_and_given_back() {
    let server = Server::new(limits(|l| l.sessions = 1), false);
    let first = begin(&server, &Cookie::random().unwrap());
    assert!(matches!(run(&server, &short()), Err(Error::Denied)));
    drop(first);
    assert!(server.ended().contains("closed the connection"));
    server.empties();
    run(&server, &short()).unwrap();
}

#[test]
fn clients_that_do_not_behave_are_told_or_dropped_and_nobody_else_notices() {
    let server = Server::new(limits(|l| l.patience = Duration::from_millis(300)), false);
    let cookie = || Cookie::random().unwrap();
    // Too long a frame, no JSON, no object, a user and a password: iperf3's numbers for them.
    for (bytes, code) in [
        (u32::MAX.to_be_bytes().to_vec(), 114),
        (8193u32.to_be_bytes().to_vec(), 114),
        ([&4u32.to_be_bytes()[..], b"{\"a}"].concat(), 114),
        ([&2u32.to_be_bytes()[..], b"[]"].concat(), 114),
        ([&31u32.to_be_bytes()[..], br#"{"tcp":true,"authtoken":"aaaa"}"#].concat(), 142),
    ] {
        let mut stream = begin(&server, &cookie());
        stream.write_all(&bytes).unwrap();
        assert_eq!(server_error(&mut stream), code);
    }
    // Half a frame, and then nothing: SERVER_TERMINATE in time.
    let mut stream = begin(&server, &cookie());
    stream.write_all(&[0, 0, 0, 99, b'{']).unwrap();
    assert_eq!(byte(&mut stream), 11);
    // Streams that never come, and one that comes too often.
    let mut stream = begin(&server, &cookie());
    say(&mut stream, &json!({"tcp": true, "parallel": 2}));
    assert_eq!((byte(&mut stream), byte(&mut stream)), (10, 11));
    // The same cookie again while no stream is expected: denied.
    let known = cookie();
    let _first = begin(&server, &known);
    let mut second = TcpStream::connect(server.address).unwrap();
    second.write_all(known.bytes()).unwrap();
    assert_eq!(byte(&mut second), 0xff);
    // A state that is none, in the middle of the parameters' turn of another.
    run(&server, &short()).unwrap();
    server.empties();
}

#[test]
fn streams_are_told_apart_by_who_connected_first_and_not_by_whose_bytes_came_first() {
    let server = Server::new(Limits::default(), false);
    let cookie = Cookie::random().unwrap();
    let mut control = begin(&server, &cookie);
    say(&mut control, &json!({"tcp": true, "bidirectional": true, "time": 5, "bandwidth": 1_000_000}));
    assert_eq!(byte(&mut control), 10);
    let connect = || TcpStream::connect(server.address).unwrap();
    let (mut first, mut second) = (connect(), connect());
    second.write_all(cookie.bytes()).unwrap();
    // By then the server has looked at the second one: it has answered a client that came later.
    let other = begin(&server, &Cookie::random().unwrap());
    first.write_all(cookie.bytes()).unwrap();
    assert_eq!((byte(&mut control), byte(&mut control)), (1, 2));
    // The client sends on the first, and the server on the second.
    second.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    assert!(second.read(&mut [0; 1000]).unwrap() > 0);
    first.set_nonblocking(true).unwrap();
    assert!(first.read(&mut [0; 1000]).is_err());
    drop((control, other));
}

#[test]
fn a_client_that_vanishes_in_the_middle_frees_everything() {
    let server = Server::new(Limits::default(), false);
    for udp in [false, true] {
        let cookie = Cookie::random().unwrap();
        let mut control = begin(&server, &cookie);
        say(
            &mut control,
            &json!({(if udp { "udp" } else { "tcp" }): true, "reverse": true, "time": 60, "len": 1000}),
        );
        assert_eq!(byte(&mut control), 10);
        let greeted = UdpSocket::bind("127.0.0.1:0").unwrap();
        let mut data = None;
        if udp {
            greeted.connect(server.address).unwrap();
            greeted.send(b"9876").unwrap();
            let mut answer = [0; 4];
            assert_eq!((greeted.recv(&mut answer).unwrap(), &answer), (4, b"6789"));
        } else {
            let mut stream = TcpStream::connect(server.address).unwrap();
            stream.write_all(cookie.bytes()).unwrap();
            data = Some(stream);
        }
        assert_eq!((byte(&mut control), byte(&mut control)), (1, 2));
        drop((control, data, greeted));
        let line = server.ended();
        assert!(line.contains("closed"), "{line}");
        server.empties();
    }
}

#[test]
fn greetings_of_strangers_are_not_answered() {
    let server = Server::new(Limits::default(), false);
    let stranger = UdpSocket::bind("127.0.0.1:0").unwrap();
    stranger.connect(server.address).unwrap();
    stranger.send(b"9876").unwrap();
    // A session of the same address that opens no UDP streams, and one that does, but after the greeting.
    let mut control = begin(&server, &Cookie::random().unwrap());
    say(&mut control, &json!({"tcp": true, "time": 5}));
    assert_eq!(byte(&mut control), 10);
    stranger.send(b"9876").unwrap();
    run(&server, &Options { protocol: Protocol::Udp, ..short() }).unwrap();
    stranger.set_nonblocking(true).unwrap();
    let mut answer = [0; 64];
    assert!(stranger.recv(&mut answer).is_err());
}

#[test]
fn a_late_greeting_of_a_session_that_gave_up_is_no_other_s() {
    let server = Server::new(Limits::default(), false);
    let mut control = begin(&server, &Cookie::random().unwrap());
    say(&mut control, &json!({"udp": true, "parallel": 2, "time": 5, "bandwidth": 1_000_000}));
    assert_eq!(byte(&mut control), 10);
    let greet = || {
        let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
        socket.connect(server.address).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        socket.send(b"9876").unwrap();
        socket
    };
    assert_eq!(greet().recv(&mut [0; 64]).unwrap(), 4);
    drop(control);
    assert!(server.ended().contains("closed the connection"));
    let late = greet();
    let datagrams = Options { protocol: Protocol::Udp, rate_bps: Some(1_000_000), ..short() };
    let total = run(&server, &datagrams).unwrap().egress.unwrap();
    assert_eq!(total.receiver.bytes, total.sender.bytes);
    late.set_nonblocking(true).unwrap();
    assert!(late.recv(&mut [0; 64]).is_err());
}

#[test]
fn a_server_that_ends_tells_its_clients_at_once() {
    let server = Server::new(Limits::default(), false);
    let options = Options { way: Way::Both, end: End::Time(Duration::from_secs(600)), ..Options::default() };
    std::thread::scope(|scope| {
        let client = scope.spawn(|| run(&server, &options));
        let until = Instant::now() + Duration::from_secs(10);
        while server.host.sessions() == 0 && Instant::now() < until {
            std::thread::yield_now();
        }
        server.host.close();
        assert_eq!(server.host.sessions(), 0);
        let error = client.join().unwrap().unwrap_err();
        assert!(matches!(error, Error::ServerTerminated | Error::Closed(_)), "{error}");
    });
}

#[test]
fn a_client_that_is_stopped_says_so() {
    let server = Server::new(Limits::default(), false);
    let stop = Stop::default();
    let options = Options { end: End::Time(Duration::from_secs(600)), ..Options::default() };
    std::thread::scope(|scope| {
        let client = scope.spawn(|| client::run(&options, server.address, &stop, &mut Seen::default()));
        let until = Instant::now() + Duration::from_secs(10);
        while server.host.sessions() == 0 && Instant::now() < until {
            std::thread::yield_now();
        }
        stop.raise();
        assert!(matches!(client.join().unwrap(), Err(Error::Stopped)));
    });
    let line = server.ended();
    assert!(line.contains("client ended the test") || line.contains("closed the connection"), "{line}");
    server.empties();
}
