use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket as Udp};
use std::time::{Duration, Instant};

use weir_netlink::Rtnetlink;
use weir_sys::NetNs;
use weir_sys::privilege::test_needs_root;

use super::*;
use crate::collect::{OpenWindow, Options, Scope};
use crate::evidence::{EvidenceSource, Namespace, Tuple};
use weir_testkit::Files;

/// A namespace with nothing but its loopback interface.
fn with_loopback() -> NetNs {
    let ns = NetNs::create().unwrap();
    Rtnetlink::open_in(&ns).unwrap().set_up("lo").unwrap();
    ns
}

/// The evidence of a window about a namespace while `during` runs in it.
fn watch<T: Send>(ns: &NetNs, during: impl FnOnce() -> T + Send) -> (Namespace, T) {
    let scope = Scope::These(vec![("lab".into(), ns.clone())]);
    // Programs in the kernel take a while to load, and are not what this is about.
    let hidden = [
        EvidenceSource::Drops,
        EvidenceSource::Flows,
        EvidenceSource::Rules,
        EvidenceSource::Connections,
        EvidenceSource::Log,
    ]
    .into();
    let watch = OpenWindow::begin(Options { scope, hidden, ..Options::default() }).unwrap();
    let kept = ns.run(during).unwrap();
    let mut evidence = watch.end();
    (evidence.namespaces.remove(0), kept)
}

fn own_process() -> String {
    let comm = std::fs::read_to_string("/proc/self/comm").unwrap();
    format!("{} (pid {})", comm.trim(), std::process::id())
}

/// Waits until the other end has acknowledged all.
fn until_acknowledged(ns: &NetNs, port: u16) {
    let deadline = Instant::now() + Duration::from_secs(10);
    let waiting = || {
        let mut queue = 0;
        let all = Query { protocol: Protocol::Tcp, states: CONNECTED, memory: false, info: false };
        dump(&ProcRoot::default(), all, |e| {
            queue += if e.remote().port() == port { e.send_queue() } else { 0 };
            ControlFlow::Continue(())
        })
        .unwrap();
        queue
    };
    while ns.run(waiting).unwrap() > 0 {
        assert!(Instant::now() < deadline, "nothing is acknowledged");
        // Until the next look.
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn sockstat_says_whether_there_is_any() {
    let tcp = "TCP: inuse 0 orphan 0 tw 7 alloc 1 mem 0";
    assert!(has_sockets(tcp, "TCP") && !has_sockets(tcp, "UDP"));
    assert!(!has_sockets("TCP: inuse 0 orphan 0 tw 0 alloc 1 mem 3", "TCP"));
    assert!(has_sockets("UDP6: inuse 1", "UDP") && !has_sockets("UDPLITE6: inuse 1", "UDP"));
}

#[test]
fn root_an_empty_namespace_has_no_sockets_and_is_not_blind() {
    if test_needs_root() {
        return;
    }
    let (seen, ()) = watch(&with_loopback(), || ());
    assert_eq!(seen.sockets, Some(Sockets::default()));
    assert!(!seen.blind.contains_key(&EvidenceSource::Sockets), "{:?}", seen.blind);
}

#[test]
fn root_a_connection_counts_what_grew_in_the_window() {
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
    let port = listener.local_addr().unwrap().port();
    client.write_all(&[1; 5000]).unwrap();
    server.read_exact(&mut [0; 5000]).unwrap();
    until_acknowledged(&ns, port);
    let (seen, ()) = watch(&ns, || {
        client.write_all(&[2; 70_000]).unwrap();
        server.read_exact(&mut [0; 60_000]).unwrap();
        // The rest comes and stays unread.
        until_acknowledged(&ns, port);
    });
    let sockets = seen.sockets.unwrap();
    assert_eq!(sockets.tcp_states, BTreeMap::from([(1, 2)]));
    assert_eq!((sockets.established, sockets.totals.connections, sockets.totals.active), (2, 2, 2));
    assert_eq!(sockets.totals.bytes, 2 * 70_000);
    let of = |local: SocketAddr| sockets.tcp.iter().find(|f| f.local == local).unwrap();
    let sender = of(client.local_addr().unwrap());
    let receiver = of(server.local_addr().unwrap());
    // The SYN counts as a byte that is acknowledged (net/ipv4/tcp_input.c, tcp_snd_una_update).
    assert_eq!((sender.bytes_acked.before, sender.bytes_acked.change()), (5001, 70_000));
    assert_eq!(receiver.bytes_received, Delta { before: 5000, after: 75_000 });
    assert_eq!(receiver.receive_queue, 10_000);
    assert!(sender.outgoing && !receiver.outgoing && sender.window_scaling && sender.timestamps);
    assert_eq!(sender.process, Some(own_process()));
    assert_eq!(sockets.listeners.len(), 1);
    assert_eq!(sockets.listeners[0].process, None, "nobody asks for who is well");
}

#[test]
fn root_what_a_listener_and_a_reader_lose_is_told_with_their_process() {
    if test_needs_root() {
        return;
    }
    let ns = with_loopback();
    let (listener, deaf) = ns
        .run(|| {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            // Two may wait: the kernel refuses when there are more than the backlog.
            rustix::net::listen(&listener, 1).unwrap();
            let deaf = Udp::bind("127.0.0.1:0").unwrap();
            rustix::net::sockopt::set_socket_recv_buffer_size(&deaf, 2304).unwrap();
            (listener, deaf)
        })
        .unwrap();
    let (address, there) = (listener.local_addr().unwrap(), deaf.local_addr().unwrap());
    let (seen, _held) = watch(&ns, || {
        let wait = Duration::from_millis(300);
        let held: Vec<_> = (0..4).map(|_| TcpStream::connect_timeout(&address, wait)).collect();
        let sender = Udp::bind("127.0.0.1:0").unwrap();
        for _ in 0..40 {
            sender.send_to(&[0; 600], there).unwrap();
        }
        held
    });
    let grew = |name: &str| seen.grew(name);
    let (overflows, errors) = (grew("tcpext.ListenOverflows"), grew("udp.RcvbufErrors"));
    assert!(overflows >= 2 && errors > 30, "{overflows} {errors}");
    let sockets = seen.sockets.as_ref().unwrap();
    let full = &sockets.listeners[0];
    assert_eq!((full.local, full.queued, full.limit), (address, 2, 1));
    assert_eq!(full.drops.change(), overflows, "the socket and the namespace count the same");
    assert_eq!(full.process, Some(own_process()));
    assert_eq!(sockets.udp.len(), 1);
    assert_eq!((sockets.udp[0].local, sockets.udp[0].drops.change()), (there, errors));
    assert_eq!(sockets.udp[0].process, Some(own_process()));
}

#[test]
fn root_ports_taken_are_counted_by_destination_with_those_that_wait() {
    if test_needs_root() {
        return;
    }
    let ns = with_loopback();
    let held = ns
        .run(|| {
            let set =
                |name: &str, value: &str| weir_sys::sysctl::set(&ProcRoot::default(), name, value).unwrap();
            set("net.ipv4.ip_local_port_range", "50000 50039");
            set("net.ipv4.ip_local_reserved_ports", "50030-50050");
            let listener = TcpListener::bind("127.0.0.1:80").unwrap();
            let mut held: Vec<_> = (0..9)
                .map(|_| (TcpStream::connect("127.0.0.1:80").unwrap(), listener.accept().unwrap()))
                .collect();
            // Who closes first waits.
            for (client, (mut server, _)) in held.drain(..4) {
                drop(client);
                assert_eq!(server.read(&mut [0; 1]).unwrap(), 0);
            }
            (listener, held)
        })
        .unwrap();
    let deadline = Instant::now() + Duration::from_secs(10);
    let seen = loop {
        let sockets = watch(&ns, || ()).0.sockets.unwrap();
        if sockets.tcp_states.get(&state::TIME_WAIT) == Some(&4) {
            break sockets;
        }
        assert!(Instant::now() < deadline, "{:?}", sockets.tcp_states);
    };
    assert_eq!(seen.ports.len(), 1, "the server's ends take none: {:?}", seen.ports);
    let ports = &seen.ports[0];
    assert_eq!(ports.remote, held.0.local_addr().unwrap());
    assert_eq!((ports.used, ports.time_wait, ports.available), (9, 4, 30));
}

#[test]
fn root_sockets_on_a_port_that_was_asked_for_are_listed() {
    if test_needs_root() {
        return;
    }
    let ns = with_loopback();
    let here: SocketAddr = "127.0.0.1:7000".parse().unwrap();
    let bound = ns
        .run(|| {
            let bound = Udp::bind(here).unwrap();
            let other = Udp::bind("127.0.0.1:7001").unwrap();
            let connected = Udp::bind("127.0.0.2:7000").unwrap();
            connected.connect(here).unwrap();
            (bound, other, connected)
        })
        .unwrap();
    let mut asked = Asked::default();
    let tuple = Tuple {
        source: "198.18.0.2".parse().unwrap(),
        destination: "198.18.0.1".parse().unwrap(),
        protocol: 17,
        source_port: 9,
        destination_port: 7000,
    };
    asked.tuples.insert((tuple, 0));
    let sockets = ns.run(|| end(&ProcRoot::default(), None, &asked).unwrap().0).unwrap();
    assert_eq!(sockets.udp_bound, [here]);
    drop(bound);
}

/// A root where no module is loaded, and all else is as it is.
fn without_modules() -> Files {
    let files = Files::new(&[("proc/modules", "")]);
    for name in ["thread-self", "sys", "self"] {
        files.link(&format!("proc/{name}"), &format!("/proc/{name}"));
    }
    files
}

#[test]
fn root_without_sock_diag_proc_net_names_who_loses() {
    if test_needs_root() {
        return;
    }
    let files = without_modules();
    let root = files.root();
    let ns = with_loopback();
    let read = || {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let deaf = Udp::bind("127.0.0.1:0").unwrap();
        rustix::net::sockopt::set_socket_recv_buffer_size(&deaf, 2304).unwrap();
        let there = deaf.local_addr().unwrap();
        let sender = Udp::bind("127.0.0.1:0").unwrap();
        let flood = || (0..40).for_each(|_| assert_eq!(sender.send_to(&[0; 600], there).unwrap(), 600));
        flood();
        let earlier = begin(&root).unwrap();
        flood();
        let (sockets, missing) = end(&root, Some(&earlier), &Asked::default()).unwrap();
        assert!(missing.unwrap().contains("modprobe tcp_diag"));
        assert_eq!(sockets.udp.len(), 1);
        // The buffer was full at the beginning: all of the second forty are lost.
        assert_eq!((sockets.udp[0].local, sockets.udp[0].drops.change()), (there, 40));
        assert_eq!((sockets.listeners.len(), sockets.listeners[0].queued), (1, 1));
        assert_eq!(sockets.tcp_states, BTreeMap::from([(1, 2)]));
        drop(client);
    };
    ns.run(read).unwrap();
}

#[test]
fn who_was_not_there_is_new_only_if_all_were_remembered() {
    let mut earlier = Earlier::default();
    earlier.drops.insert(7, 5);
    assert_eq!(drops_since(&earlier, 7, 9).change(), 4);
    assert_eq!(drops_since(&earlier, 8, 9).change(), 9);
    earlier.cut = true;
    assert_eq!(drops_since(&earlier, 8, 9).change(), 0);
}
