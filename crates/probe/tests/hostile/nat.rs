//! NAT checks of clients that mean harm: no address gets as much as came from it, and only those get anything that sent the check's
//! number.

use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::Duration;

use super::ends::{PATIENCE, Running};
use super::raw::{connect, frame_of, hello, welcomed, works};
use serde_json::{Value, json};
use weir_load::Stop;
use weir_probe::client::nat::{Arrived, NatCheck};
use weir_probe::client::{Error, Visit};
use weir_probe::nat::{self, At, HEAD, STREAM, Transport, datagram};
use weir_probe::{Key, Limits, NatPorts, frame};

/// Silence after which nothing more comes over loopback: the server has answered a later word by then.
const SILENCE: Duration = Duration::from_millis(200);
const FIRST: At = At { address: 0, port: 0 };
const OTHER: At = At { address: 0, port: 1 };

fn served(limits: Limits, key: Option<Key>) -> Running {
    served_on(Ipv4Addr::LOCALHOST.into(), limits, key)
}

fn served_on(address: IpAddr, limits: Limits, key: Option<Key>) -> Running {
    let ports = NatPorts { addresses: vec![address], ports: None };
    Running::with_nat(&SocketAddr::new(address, 0).to_string(), limits, key, ports)
}

fn check(server: &Running) -> NatCheck {
    NatCheck::open(server.visit()).unwrap()
}

/// Payload bytes of a client's datagram.
fn length() -> usize {
    datagram(Ipv4Addr::LOCALHOST.into())
}

fn endpoint(check: &NatCheck, at: At) -> SocketAddr {
    check.endpoints().endpoint(at).unwrap()
}

fn own(socket: &UdpSocket) -> SocketAddr {
    socket.local_addr().unwrap()
}

/// The next packet that the server saw, waited for.
fn next(check: &mut NatCheck) -> Arrived {
    let deadline = std::time::Instant::now() + PATIENCE;
    loop {
        check.hear().unwrap();
        if let Some(arrived) = check.arrival() {
            return arrived;
        }
        assert!(std::time::Instant::now() < deadline, "nothing came");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Payload bytes and number of the datagrams that come until it is silent.
fn received(socket: &UdpSocket) -> (usize, usize) {
    socket.set_read_timeout(Some(SILENCE)).unwrap();
    let mut buffer = [0; 2048];
    let (mut bytes, mut n) = (0, 0);
    while let Ok(length) = socket.recv(&mut buffer) {
        (bytes, n) = (bytes + length, n + 1);
    }
    (bytes, n)
}

#[test]
fn packets_are_told_with_their_source_and_answered_from_any_endpoint() {
    let server = served(Limits::default(), None);
    let mut check = check(&server);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let packet = nat::write(check.number(), b"wnat0001", length());
    socket.send_to(&packet, endpoint(&check, FIRST)).unwrap();
    let expected =
        Arrived { transport: Transport::Udp, at: FIRST, from: own(&socket), mark: b"wnat0001".to_vec() };
    assert_eq!(next(&mut check), expected);
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    for at in [FIRST, OTHER] {
        check.send(Transport::Udp, false, (at, own(&socket)), b"answer").unwrap();
        let mut buffer = [0; 2048];
        let (n, from) = socket.recv_from(&mut buffer).unwrap();
        assert_eq!(
            (from, nat::read(check.number(), &buffer[..n])),
            (endpoint(&check, at), Some(&b"answer"[..]))
        );
    }
    let (visit, bytes) = check.finish().unwrap();
    assert_eq!(bytes.received, (length() + 28) as u64);
    assert_eq!(bytes.sent, 2 * (HEAD + 6 + 28) as u64);
    // The conversation goes on.
    assert!(NatCheck::open(visit).is_ok());
    assert_eq!(server.note("done").sent_bytes, bytes.sent);
}

#[test]
fn connections_are_told_answered_and_opened_back() {
    let server = served(Limits::default(), None);
    let mut check = check(&server);
    let own = weir_probe::shared_tcp("127.0.0.1:0".parse().unwrap()).unwrap();
    let listener = TcpListener::from(own);
    let own = listener.local_addr().unwrap();
    rustix::net::listen(&listener, 8).unwrap();
    let stream = TcpStream::from(weir_probe::shared_tcp(own).unwrap());
    stream.set_nonblocking(false).unwrap();
    rustix::net::connect(&stream, &endpoint(&check, FIRST)).unwrap();
    // Before it has sent the check's number, the server reports nothing and opens nothing.
    check.send(Transport::Tcp, false, (OTHER, own), b"").unwrap();
    assert!(matches!(check.settle(), Err(Error::Refused(reason)) if reason.contains("nothing has come")));
    (&stream).write_all(&nat::write(check.number(), b"syn1", STREAM)).unwrap();
    let expected = Arrived { transport: Transport::Tcp, at: FIRST, from: own, mark: b"syn1".to_vec() };
    assert_eq!(next(&mut check), expected);
    check.send(Transport::Tcp, true, (FIRST, own), b"ack1").unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut answer = [0; HEAD + 4];
    std::io::Read::read_exact(&mut &stream, &mut answer).unwrap();
    assert_eq!(nat::read(check.number(), &answer), Some(&b"ack1"[..]));
    check.send(Transport::Tcp, false, (OTHER, own), b"").unwrap();
    check.settle().unwrap();
    listener.set_nonblocking(false).unwrap();
    assert_eq!(listener.accept().unwrap().1, endpoint(&check, OTHER));
    let (_, bytes) = check.finish().unwrap();
    assert!(bytes.sent < bytes.received, "{bytes:?}");
}

#[test]
fn nothing_is_sent_where_nothing_came_from() {
    let server = served(Limits::default(), None);
    let mut check = check(&server);
    let victim = UdpSocket::bind("127.0.0.1:0").unwrap();
    for transport in [Transport::Udp, Transport::Tcp] {
        for answer in [false, true] {
            check.send(transport, answer, (FIRST, own(&victim)), b"x").unwrap();
            assert!(matches!(check.settle(), Err(Error::Refused(_))), "{transport:?} {answer}");
        }
    }
    check.send(Transport::Udp, false, (At { address: 1, port: 0 }, own(&victim)), b"x").unwrap();
    assert!(matches!(check.settle(), Err(Error::Refused(reason)) if reason.contains("endpoint")));
    assert_eq!(received(&victim), (0, 0));
}

/// The owner of a check can send in another's name, but no more by way of the server than without it.
#[test]
fn a_forged_source_gets_less_than_was_sent_in_its_name() {
    // With the headers of IP and UDP.
    forge(Ipv4Addr::LOCALHOST.into(), 28);
    forge(Ipv6Addr::LOCALHOST.into(), 48);
}

fn forge(address: IpAddr, headers: usize) {
    let server = served_on(address, Limits::default(), None);
    for length in [HEAD + 8, 100, datagram(address), 1300] {
        let mut check = check(&server);
        let victim = UdpSocket::bind((address, 0)).unwrap();
        for _ in 0..3 {
            victim
                .send_to(&nat::write(check.number(), b"12345678", length), endpoint(&check, FIRST))
                .unwrap();
            next(&mut check);
        }
        let mut granted = 0;
        for n in 0..400 {
            let at = if n % 2 == 0 { FIRST } else { OTHER };
            check.send(Transport::Udp, false, (at, own(&victim)), &[7; 32]).unwrap();
            match check.settle() {
                Ok(()) => granted += 1,
                Err(Error::Refused(reason)) => assert!(reason.contains("no more is sent"), "{reason}"),
                Err(e) => panic!("{e}"),
            }
        }
        let (bytes, n) = received(&victim);
        assert_eq!(n, granted);
        assert!(bytes + headers * n < 3 * (length + headers), "{length}: {n} of {bytes} bytes");
        // One that is only dropped may still hold the ports when the next one asks.
        check.finish().unwrap();
    }
}

#[test]
fn packets_without_the_number_or_after_the_end_are_nobody_s() {
    let server = served(Limits::default(), None);
    let mut check = check(&server);
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let to = endpoint(&check, FIRST);
    let right = nat::write(check.number(), b"1", length());
    for wrong in [
        nat::write(check.number() ^ 1, b"1", length()),
        right[..HEAD - 1].to_vec(),
        b"GET / HTTP/1.1\r\n\r\n".to_vec(),
        vec![0; 1400],
        Vec::new(),
    ] {
        for _ in 0..100 {
            socket.send_to(&wrong, to).unwrap();
        }
        if let Ok(mut stream) = TcpStream::connect(to) {
            // The server may have closed before all of it was written.
            let _ = stream.write_all(&wrong);
        }
    }
    // One that is right comes after all of them, alone.
    socket.send_to(&right, to).unwrap();
    assert_eq!(next(&mut check).from, own(&socket));
    assert_eq!(check.arrival(), None);
    assert_eq!(received(&socket), (0, 0));
    let (_, bytes) = check.finish().unwrap();
    assert_eq!((bytes.received, bytes.sent), ((length() + 28) as u64, 0));
    // Played back after its end, it opens nothing.
    let mut second = self::check(&server);
    socket.send_to(&right, endpoint(&second, FIRST)).unwrap();
    second.send(Transport::Udp, false, (FIRST, own(&socket)), b"x").unwrap();
    assert!(matches!(second.settle(), Err(Error::Refused(_))));
    assert_eq!(second.arrival(), None);
    assert_eq!(received(&socket), (0, 0));
}

#[test]
fn strangers_connections_keep_no_check_from_its_own() {
    let server = served(Limits::default(), None);
    let mut check = check(&server);
    let to = endpoint(&check, FIRST);
    let _strangers: Vec<TcpStream> = (0..100).map(|_| TcpStream::connect(to).unwrap()).collect();
    let mut stream = TcpStream::connect(to).unwrap();
    stream.write_all(&nat::write(check.number(), b"mine", STREAM)).unwrap();
    assert_eq!(next(&mut check).mark, b"mine");
}

#[test]
fn without_the_key_or_the_option_there_is_no_check() {
    let server = Running::start(Limits::default());
    let refused = NatCheck::open(server.visit()).unwrap_err();
    assert!(matches!(refused, Error::Refused(reason) if reason.contains("--nat-address")));
    works(&server);
    let server = served(Limits::default(), Some(Key::new(b"0123456789abcdef").unwrap()));
    assert!(Visit::begin(server.address, None, &Stop::default()).is_err());
    let mut stream = connect(server.address);
    let asks = [&hello()[..], &frame_of(&json!({"ask": "nat-open"}))].concat();
    stream.write_all(&asks).unwrap();
    let said: Value = frame::read(&stream, 1 << 20).unwrap();
    assert_eq!(said["tell"], "challenge");
    let said: Value = frame::read(&stream, 1 << 20).unwrap();
    assert_eq!(said["tell"], "refused", "{said}");
}

#[test]
fn garbage_in_a_check_ends_that_conversation_only() {
    for ask in [
        json!({"ask": "nat", "transport": "sctp", "answer": false, "at": [0, 0], "to": "127.0.0.1:9", "mark": ""}),
        json!({"ask": "nat", "transport": "udp", "answer": false, "at": [0, 0], "to": "[::1]", "mark": ""}),
        json!({"ask": "nat", "transport": "udp", "answer": false, "at": [0], "to": "127.0.0.1:9", "mark": ""}),
        json!({"ask": "nat", "also": 1, "transport": "udp", "answer": false, "at": [0, 0], "to": "127.0.0.1:9", "mark": ""}),
        json!({"ask": "nat-open"}),
        json!({"ask": "hello", "version": 1, "nonce": "00", "program": ""}),
    ] {
        let server = served(Limits::default(), None);
        let mut stream = welcomed(&server);
        stream.write_all(&frame_of(&json!({"ask": "nat-open"}))).unwrap();
        let said: Value = frame::read(&stream, 1 << 20).unwrap();
        assert_eq!(said["tell"], "nat-opened", "{said}");
        stream.write_all(&frame_of(&ask)).unwrap();
        let said: Value = frame::read(&stream, 1 << 20).unwrap();
        assert_eq!(said["tell"], "refused", "{ask}: {said}");
        works(&server);
        // Its ports are free again.
        assert!(NatCheck::open(server.visit()).is_ok());
    }
}

/// Raw packets need the key. Before they are opened, and to places that sent none, nothing goes out, and the check goes on.
#[test]
fn root_raw_packets_need_the_key_and_a_source() {
    if weir_sys::privilege::test_needs_root() {
        return;
    }
    let key = || Key::new(b"0123456789abcdef").unwrap();
    let open = |server: &Running, key: Option<&Key>| {
        NatCheck::open(Visit::begin(server.address, key, &Stop::default()).unwrap()).unwrap()
    };
    let server = served(Limits::default(), None);
    let mut check = open(&server, None);
    assert!(check.open_raw().unwrap().unwrap_err().contains("--key-file"));
    check.send_raw(&[0x45; 28]).unwrap();
    assert!(matches!(check.settle(), Err(Error::Refused(reason)) if reason.contains("not asked for")));
    let server = served(Limits::default(), Some(key()));
    let mut check = open(&server, Some(&key()));
    assert_eq!(check.open_raw().unwrap(), Ok(()));
    let victim = UdpSocket::bind("127.0.0.1:0").unwrap();
    for packet in [&[][..], &[0x45; 28], &[0; 1_501]] {
        check.send_raw(packet).unwrap();
        assert!(matches!(check.settle(), Err(Error::Refused(_))), "{packet:?}");
    }
    // A datagram from the check's own endpoint to a port that sent nothing raw, and then one that did.
    let from = endpoint(&check, FIRST);
    let to = own(&victim);
    let udp = |data: &[u8]| {
        let mut packet =
            vec![0x45, 0, 0, 28 + data.len() as u8, 0, 1, 0, 0, 64, 17, 0, 0, 127, 0, 0, 1, 127, 0, 0, 1];
        packet.extend(from.port().to_be_bytes());
        packet.extend(to.port().to_be_bytes());
        packet.extend((8 + data.len() as u16).to_be_bytes());
        packet.extend([0; 2]);
        packet.extend(data);
        packet
    };
    check.send_raw(&udp(b"x")).unwrap();
    assert!(matches!(check.settle(), Err(Error::Refused(reason)) if reason.contains("nothing has come")));
    assert_eq!(received(&victim), (0, 0));
    victim.send_to(&[&check.raw_mark()[..], b"0001"].concat(), from).unwrap();
    let deadline = std::time::Instant::now() + PATIENCE;
    while check.raw_arrival().is_none() {
        assert!(std::time::Instant::now() < deadline, "nothing came");
        check.hear().unwrap();
    }
    check.send_raw(&udp(b"x")).unwrap();
    check.settle().unwrap();
    assert_eq!(received(&victim), (1, 1));
}

#[test]
fn a_check_that_goes_to_sleep_is_ended() {
    let limits = Limits { idle: Duration::from_millis(300), ..Limits::default() };
    let server = served(limits, None);
    let _asleep = check(&server);
    server.note("idle for");
    works(&server);
}
