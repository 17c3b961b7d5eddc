use std::net::UdpSocket;
use std::process::Command;

use weir_netlink::VethEnd;
use weir_sys::privilege::test_needs_root;

use super::*;
use weir_testkit::Files;

fn reads(ns: &NetNs, hidden: &[EvidenceSource]) -> (Vec<Interface>, Unseen) {
    let hidden = hidden.iter().copied().collect();
    ns.run(|| {
        let mut unseen = Unseen::new();
        (read(&ProcRoot::default(), &hidden, &mut unseen).unwrap(), unseen)
    })
    .unwrap()
}

/// A script of the shell in the namespace; false, with a word, where a program that it needs is missing.
fn script(ns: &NetNs, program: &str, text: &str) -> bool {
    if weir_sys::process::which(program).is_none() {
        println!("SKIP: {program} is not installed");
        return false;
    }
    let mut command = Command::new("sh");
    command.args(["-euc", text]);
    ns.enter_on_spawn(&mut command);
    let output = command.output().unwrap();
    assert!(output.status.success(), "{text}: {}", String::from_utf8_lossy(&output.stderr));
    true
}

fn named<'a>(interfaces: &'a [Interface], name: &str) -> &'a Interface {
    interfaces.iter().find(|i| i.name == name).unwrap()
}

/// Two hosts with a link, and one whose link has the same numbers.
fn hosts() -> [NetNs; 4] {
    let hosts = [(); 4].map(|()| NetNs::create().unwrap());
    for (here, there, mtu) in [(0, 1, 1400), (2, 3, 1300)] {
        let mut net = Rtnetlink::open_in(&hosts[here]).unwrap();
        let end = |name, namespace, mtu| VethEnd { name, namespace, mtu, mac: None };
        net.create_veth(end("here", None, mtu), end("there", Some(&hosts[there]), mtu + 50)).unwrap();
        net.set_up("here").unwrap();
        Rtnetlink::open_in(&hosts[there]).unwrap().set_up("there").unwrap();
    }
    hosts
}

#[test]
fn root_the_ends_of_pairs_are_told_apart_though_their_numbers_are_the_same() {
    if test_needs_root() {
        return;
    }
    let hosts = hosts();
    let found: Vec<Found> = hosts
        .iter()
        .map(|h| Found {
            id: h.inode().unwrap(),
            name: String::new(),
            own: false,
            handle: Some(h.clone()),
            path: None,
            shut: None,
        })
        .collect();
    let read = |f: &Found| {
        let interfaces = reads(f.handle.as_ref().unwrap(), &[]).0;
        Namespace { id: f.id, interfaces, ..Namespace::default() }
    };
    let mut namespaces: Vec<Namespace> = found.iter().map(read).collect();
    join(&mut namespaces, &found);
    for (here, there, mtu) in [(0, 1, 1400), (2, 3, 1300)] {
        let (a, b) =
            (named(&namespaces[here].interfaces, "here"), named(&namespaces[there].interfaces, "there"));
        assert_eq!((a.peer, a.peer_mtu), (Some((b.index, Some(found[there].id))), Some(mtu + 50)));
        assert_eq!((b.peer, b.peer_mtu), (Some((a.index, Some(found[here].id))), Some(mtu)));
    }
    // A namespace that is not looked at has only its number.
    let mut alone = vec![read(&found[0])];
    join(&mut alone, &found[..1]);
    let a = named(&alone[0].interfaces, "here");
    assert!(a.peer.is_some_and(|p| p.1.is_none()) && a.peer_mtu.is_none(), "{a:?}");
}

#[test]
fn root_what_hangs_on_an_interface_is_read_as_growth_over_the_window() {
    if test_needs_root() {
        return;
    }
    let hosts = hosts();
    let host = &hosts[0];
    // Nothing else may be sent meanwhile: no packet of IPv6, and from the queue one in ten seconds. The filter is classic BPF, direct
    // action: return 2 (TC_ACT_SHOT).
    let made = script(
        host,
        "tc",
        "sysctl -qw net.ipv6.conf.here.disable_ipv6=1
         ip addr add 198.18.0.1/24 dev here
         ip neigh add 198.18.0.2 lladdr 02:00:00:00:00:09 dev here
         tc qdisc add dev here root handle 1: tbf rate 800bit burst 2000 limit 2000
         tc qdisc add dev here clsact
         tc filter add dev here ingress pref 7 bpf da bytecode '1,6 0 0 2,'",
    );
    if !made {
        return;
    }
    let before = reads(host, &[]).0;
    host.run(|| {
        let socket = UdpSocket::bind("198.18.0.1:0").unwrap();
        // A full queue may be an error of send(2).
        (0..20).for_each(|_| drop(socket.send_to(&[0; 958], "198.18.0.2:9")));
    })
    .unwrap();
    let (mut now, unseen) = reads(host, &[]);
    assert_eq!(unseen, Unseen::new());
    since(&mut now, &before);
    let here = named(&now, "here");
    assert_eq!((here.kind.as_str(), here.driver.as_str(), here.mtu, here.up), ("veth", "veth", 1400, true));
    assert!(here.features.contains_key("rx-gro") && here.rx_queues >= 1);
    assert!(here.addresses.contains(&("198.18.0.1".parse().unwrap(), 24)));
    let qdisc = here.qdiscs.iter().find(|q| q.kind == "tbf").unwrap();
    assert_eq!((qdisc.handle.as_str(), qdisc.parent.as_str(), qdisc.rate_bps), ("1:", "root", Some(800)));
    assert_eq!(qdisc.backlog_packets_before, 0);
    // Packets that did not pass wait or were thrown away, and none left otherwise.
    let sum = qdisc.packets.change() + qdisc.dropped.change() + qdisc.backlog_packets;
    assert_eq!(sum, 20);
    assert_eq!(here.counters["tx_packets"].change(), qdisc.packets.change());
    assert!(qdisc.dropped.change() >= 15, "{qdisc:?}");
    assert!(here.qdiscs.iter().any(|q| q.kind == "clsact" && q.parent == "clsact"));
    let filters: Vec<_> =
        here.filters.iter().map(|f| (f.direction.as_str(), f.kind.as_str(), f.preference)).collect();
    assert_eq!(filters, [("ingress", "bpf", 7)]);

    let (hidden, _) =
        reads(host, &[EvidenceSource::Qdiscs, EvidenceSource::Programs, EvidenceSource::Driver]);
    let here = named(&hidden, "here");
    assert!(here.qdiscs.is_empty() && here.filters.is_empty() && here.driver_counters.is_empty());
}

#[test]
fn what_was_not_there_before_counts_from_zero_and_what_stands_still_is_left_out() {
    let delta = |value| Delta::at(value);
    let qdisc =
        |handle: &str, dropped| Qdisc { handle: handle.into(), dropped: delta(dropped), ..Qdisc::default() };
    let interface = |qdiscs, own: &[(&str, u64)]| Interface {
        index: 2,
        qdiscs,
        driver_counters: own.iter().map(|(n, v)| ((*n).to_owned(), delta(*v))).collect(),
        ..Interface::default()
    };
    let before = [interface(vec![qdisc("1:", 5)], &[("still", 7), ("moved", 7)])];
    let mut now =
        [interface(vec![qdisc("1:", 9), qdisc("2:", 3)], &[("still", 7), ("moved", 9), ("new", 1)])];
    since(&mut now, &before);
    let dropped: Vec<u64> = now[0].qdiscs.iter().map(|q| q.dropped.change()).collect();
    assert_eq!(dropped, [4, 3]);
    let own: Vec<_> = now[0].driver_counters.iter().map(|(n, d)| (n.as_str(), d.change())).collect();
    assert_eq!(own, [("moved", 2), ("new", 1)]);
}

#[test]
fn cores_of_steering_are_read_where_the_interface_is_the_same() {
    let files = Files::new(&[
        ("sys/class/net/eth0/queues/rx-0/rps_cpus", "00,00000006\n"),
        ("sys/class/net/eth0/queues/rx-1/rps_cpus", "00,00000000\n"),
        ("sys/class/net/eth0/ifindex", "4\n"),
        ("sys/class/net/eth0/address", "02:00:00:00:00:0a\n"),
    ]);
    let link = Link {
        index: 4,
        name: "eth0".into(),
        address: vec![2, 0, 0, 0, 0, 10],
        rx_queues: 2,
        ..Link::default()
    };
    let root = files.root();
    assert_eq!(steering(&root, &link), ["00,00000006", "00,00000000"]);
    // The same name in another namespace.
    assert_eq!(steering(&root, &Link { index: 5, ..link.clone() }), Vec::<String>::new());
    assert_eq!(steering(&root, &Link { name: "../eth0".into(), ..link }), Vec::<String>::new());
}
