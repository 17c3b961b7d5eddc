use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::process::Command;
use std::time::Duration;

use proptest::prelude::*;

use super::*;
use crate::Rtnetlink;
use weir_sys::NetNs;
use weir_sys::privilege::test_needs_root;
use weir_sys::process::{run_with_input, which};

const ALL: u32 = u32::MAX;

fn all(protocol: Protocol) -> Query {
    Query { protocol, states: ALL, memory: true, info: true }
}

/// A namespace with nothing but its loopback interface.
fn with_loopback() -> NetNs {
    let ns = NetNs::create().unwrap();
    Rtnetlink::open_in(&ns).unwrap().set_up("lo").unwrap();
    ns
}

/// The output of `ss` of iproute2 inside the namespace: the independent reader. Words like `mss:1448` by what is before the
/// colon.
fn ss(ns: &NetNs, arguments: &[&str]) -> Option<(String, BTreeMap<String, String>)> {
    if which("ss").is_none() {
        println!("SKIP: ss is not installed");
        return None;
    }
    let mut command = Command::new("ss");
    command.arg("-HnO").args(arguments);
    ns.enter_on_spawn(&mut command);
    let output = run_with_input(command, b"", Duration::from_secs(20)).unwrap();
    assert!(output.status.success(), "{}", output.message());
    let text = String::from_utf8(output.stdout).unwrap();
    let words = text.split_whitespace().filter_map(|w| w.split_once(':'));
    let words = words.map(|(a, b)| (a.to_owned(), b.to_owned())).collect();
    Some((text, words))
}

#[test]
fn root_a_connection_is_what_ss_says() {
    if test_needs_root() {
        return;
    }
    let ns = with_loopback();
    let (listener, mut client, mut server) = ns
        .run(|| {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let server = listener.accept().unwrap().0;
            (listener, client, server)
        })
        .unwrap();
    client.write_all(&[7; 30_000]).unwrap();
    server.read_exact(&mut [0; 10_000]).unwrap();
    let port = listener.local_addr().unwrap().port();

    let Some((_, words)) = ss(&ns, &["-tim", "dport", "=", &format!(":{port}")]) else { return };
    let mut seen = Vec::new();
    ns.run(|| {
        let root = ProcRoot::default();
        dump(&root, all(Protocol::Tcp), |e| {
            seen.push((e.local(), e.remote(), e.state(), e.receive_queue(), e.send_queue()));
            if e.remote().port() == port {
                let info = e.tcp_info().unwrap();
                let told = |name: &str| words[name].trim_end_matches(['/', 's', 'm']).to_owned();
                assert_eq!(info.send_mss().to_string(), told("mss"));
                assert_eq!(info.path_mtu().to_string(), told("pmtu"));
                assert_eq!(info.receive_mss().to_string(), told("rcvmss"));
                assert_eq!(info.bytes_acked().to_string(), told("bytes_acked"));
                assert_eq!(info.segments_out().to_string(), told("segs_out"));
                assert_eq!(info.segments_in().to_string(), told("segs_in"));
                assert_eq!(info.send_window().to_string(), told("snd_wnd"));
                assert_eq!(format!("{:.3}", f64::from(info.min_rtt_us()) / 1e3).trim_end_matches(['0']), {
                    let shown: f64 = told("minrtt").parse().unwrap();
                    format!("{shown:.3}").trim_end_matches('0').to_owned()
                });
                assert!(info.window_scaling() && info.timestamps());
                let memory = e.memory().unwrap();
                let shown = &words["skmem"];
                for (letters, value) in [
                    ("(r", memory.received),
                    ("rb", memory.receive_limit),
                    ("tb", memory.send_limit),
                    ("d", memory.drops),
                ] {
                    assert!(shown.contains(&format!("{letters}{value}")), "{letters}{value} in {shown}");
                }
            }
            ControlFlow::Continue(())
        })
        .unwrap();
    })
    .unwrap();
    seen.sort();
    let here = listener.local_addr().unwrap();
    let there = client.local_addr().unwrap();
    let any: SocketAddr = "0.0.0.0:0".parse().unwrap();
    let mut expected =
        [(here, any, state::LISTEN, 0, 128), (here, there, 1, 20_000, 0), (there, here, 1, 0, 0)];
    expected.sort();
    assert_eq!(seen, expected);
}

#[test]
fn root_states_are_chosen_by_the_kernel_and_drops_are_counted() {
    if test_needs_root() {
        return;
    }
    let ns = with_loopback();
    ns.run(|| {
        let root = ProcRoot::default();
        let listener = TcpListener::bind("[::]:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let held = TcpStream::connect(("127.0.0.1", port)).unwrap();
        let mut states = Vec::new();
        let established = Query { states: 1 << state::ESTABLISHED, ..all(Protocol::Tcp) };
        dump(&root, established, |e| {
            assert!(e.local().is_ipv4(), "a mapped address is an IPv4 address");
            states.push(e.state());
            ControlFlow::Continue(())
        })
        .unwrap();
        assert_eq!(states, [1, 1]);

        let deaf = UdpSocket::bind("127.0.0.1:0").unwrap();
        rustix::net::sockopt::set_socket_recv_buffer_size(&deaf, 2304).unwrap();
        let sender = UdpSocket::bind("127.0.0.1:0").unwrap();
        for _ in 0..50 {
            sender.send_to(&[0; 500], deaf.local_addr().unwrap()).unwrap();
        }
        deaf.set_nonblocking(true).unwrap();
        let mut drops = None;
        let mut stopped = false;
        for _ in 0..2 {
            stopped = dump(&root, Query { info: false, ..all(Protocol::Udp) }, |e| {
                if e.local() == deaf.local_addr().unwrap() {
                    drops = e.memory().map(|m| m.drops);
                    return ControlFlow::Break(());
                }
                ControlFlow::Continue(())
            })
            .unwrap();
        }
        let mut arrived = 0;
        while deaf.recv(&mut [0; 1000]).is_ok() {
            arrived += 1;
        }
        assert!(stopped && arrived > 0);
        assert_eq!(drops, Some(50 - arrived), "what did not arrive was dropped");
        drop(held);
    })
    .unwrap();
}

/// The inode of a socket, by fstat(2).
fn inode(socket: impl std::os::fd::AsFd) -> Option<u32> {
    Some(u32::try_from(rustix::fs::fstat(socket).unwrap().st_ino).unwrap())
}

#[test]
fn root_sockets_are_found_by_their_ends() {
    if test_needs_root() {
        return;
    }
    with_loopback()
        .run(|| {
            let mut finder = SocketFinder::open(&ProcRoot::default()).unwrap();
            let mut find =
                |protocol, local, remote| finder.inode(&SocketEnds { protocol, local, remote }).unwrap();
            let stranger: SocketAddr = "127.0.0.9:7".parse().unwrap();
            // One of both families, which has mapped addresses, and one of IPv6 alone.
            for (bind, to) in [("127.0.0.1:0", "127.0.0.1"), ("[::]:0", "127.0.0.1"), ("[::1]:0", "::1")] {
                let listener = TcpListener::bind(bind).unwrap();
                let port = listener.local_addr().unwrap().port();
                let client = TcpStream::connect((to, port)).unwrap();
                let here = client.local_addr().unwrap();
                let there = client.peer_addr().unwrap();
                assert_eq!(find(Protocol::Tcp, here, there), inode(&client), "{bind}");
                assert_eq!(find(Protocol::Tcp, there, here), Some(0), "not accepted yet: {bind}");
                let server = listener.accept().unwrap().0;
                assert_eq!(find(Protocol::Tcp, there, here), inode(&server), "{bind}");
                let other = SocketAddr::new(here.ip(), 1);
                assert_eq!(find(Protocol::Tcp, there, other), inode(&listener), "{bind}");
                assert_eq!(find(Protocol::Tcp, other, there), None, "{bind}");

                let bound = UdpSocket::bind(bind).unwrap();
                let local = SocketAddr::new(there.ip(), bound.local_addr().unwrap().port());
                assert_eq!(find(Protocol::Udp, local, here), inode(&bound), "{bind}");
                let connected = UdpSocket::bind((here.ip(), 0)).unwrap();
                connected.connect(local).unwrap();
                let local = connected.local_addr().unwrap();
                assert_eq!(find(Protocol::Udp, local, connected.peer_addr().unwrap()), inode(&connected));
                assert_eq!(find(Protocol::Udp, local, SocketAddr::new(here.ip(), 1)), None, "{bind}");
                assert_eq!(find(Protocol::Udp, stranger, here), None, "{bind}");
            }
        })
        .unwrap();
}

#[test]
fn a_module_that_is_not_there_is_not_asked_for() {
    let folder = std::env::temp_dir().join(format!("weir-sock-diag-{}", std::process::id()));
    std::fs::create_dir_all(folder.join("proc")).unwrap();
    std::fs::write(folder.join("proc/modules"), "").unwrap();
    let refused = dump(&ProcRoot::new(&folder), all(Protocol::Tcp), |_| panic!("asked")).unwrap_err();
    let finder = SocketFinder::open(&ProcRoot::new(&folder)).map(drop).unwrap_err();
    std::fs::remove_dir_all(&folder).unwrap();
    assert_eq!(finder.kind(), std::io::ErrorKind::Unsupported);
    assert_eq!(refused.kind(), std::io::ErrorKind::Unsupported);
    assert!(refused.to_string().contains("modprobe tcp_diag"), "{refused}");
}

proptest! {
    /// A message is a socket or none; every field of one can be read.
    #[test]
    fn garbage_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        let entry = Entry::read(&bytes);
        prop_assert_eq!(entry.is_some(), bytes.len() >= DIAG_MESSAGE);
        if let Some(entry) = entry {
            let _ = (entry.local(), entry.remote(), entry.cookie(), entry.memory());
            if let Some(info) = entry.tcp_info() {
                let _ = (info.receive_window(), info.busy_us(), info.window_scaling());
            }
        }
    }
}
