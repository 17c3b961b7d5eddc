use super::*;

/// Recorded on a two-core virtual machine, kernel 6.18; interrupts shortened.
const STAT: &str = "cpu  10105 13 3530 200121 501 7 640 3221 0 0
cpu0 5000 13 1730 100060 250 3 320 1621 0 0
cpu1 5105 0 1800 100061 251 4 320 1600 0 0
intr 1234 0 0 5
ctxt 99
btime 1700000000
softirq 5 1 2 3
";

#[test]
fn stat_is_read_per_core() {
    let cores = parse_stat(STAT);
    assert_eq!(cores.keys().copied().collect::<Vec<_>>(), [0, 1]);
    let expected = CpuTicks {
        user: 5105,
        nice: 0,
        system: 1800,
        idle: 100_061,
        iowait: 251,
        irq: 4,
        softirq: 320,
        steal: 1600,
    };
    assert_eq!(cores[&1], expected);
    assert_eq!(
        cores[&1].since(&cores[&0]),
        CpuTicks { user: 105, system: 70, idle: 1, iowait: 1, irq: 1, ..CpuTicks::default() }
    );
}

#[test]
fn cpu_lists() {
    assert_eq!(parse_cpu_list("0-2,8,5"), Some(vec![0, 1, 2, 5, 8]));
    assert_eq!(parse_cpu_list(""), Some(vec![]));
    for bad in ["a", "3-1", "0-99999999999", "-", "1-"] {
        assert_eq!(parse_cpu_list(bad), None, "{bad}");
    }
}

#[test]
fn meminfo_is_in_bytes() {
    let m = parse_meminfo(
        "MemTotal:        1000 kB\nMemFree: 5 kB\nMemAvailable:     400 kB\nSUnreclaim: 7 kB\n",
    )
    .unwrap();
    assert_eq!(m, Memory { total: 1_024_000, available: 409_600, slab_unreclaimable: 7168 });
    assert_eq!(m.used(), 614_400);
    assert_eq!(parse_meminfo("MemTotal: x kB"), None);
}

#[test]
fn net_dev_has_sixteen_columns() {
    let text = "Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo:     100       2    3    4    5     6          7         8      900      10   11   12   13    14      15         16
eth0:7 1 0 0 0 0 0 0 8 1 0 0 0 0 0
";
    let interfaces = parse_net_dev(text);
    assert_eq!(interfaces.len(), 1, "a short line is left out");
    let expected = InterfaceCounters {
        rx_bytes: 100,
        rx_packets: 2,
        rx_errors: 3,
        rx_dropped: 4,
        tx_bytes: 900,
        tx_packets: 10,
        tx_errors: 11,
        tx_dropped: 12,
    };
    assert_eq!(interfaces["lo"], expected);
}

#[test]
fn softnet_is_hexadecimal() {
    let new =
        "0000beef 00000001 0000000a 0 0 0 0 0 0 00000005 00000006 00000000 00000003 00000000 00000000\n";
    let expected = Softnet {
        processed: 48879,
        dropped: 1,
        time_squeeze: 10,
        received_rps: 5,
        flow_limit: 6,
        cpu: Some(3),
    };
    assert_eq!(parse_softnet(new), [expected]);
    // Kernel 4.19 prints eleven columns.
    let old = "00000001 00000002 00000003 0 0 0 0 0 0 00000004 00000005\nrubbish\n";
    assert_eq!(
        parse_softnet(old),
        [Softnet { processed: 1, dropped: 2, time_squeeze: 3, received_rps: 4, flow_limit: 5, cpu: None }]
    );
}

#[test]
fn snmp_pairs_names_with_values() {
    let text = "Ip: Forwarding DefaultTTL InDiscards\nIp: 1 64 9\nTcp: MaxConn RetransSegs\nTcp: -1 42\nUdp: InDatagrams\n";
    let counters = parse_snmp(text);
    assert_eq!(counters["ip.InDiscards"], 9);
    assert_eq!(counters["tcp.RetransSegs"], 42);
    assert!(!counters.contains_key("tcp.MaxConn"));
    assert!(!counters.keys().any(|k| k.starts_with("udp")));
}

#[test]
fn snmp6_names_get_a_protocol() {
    let counters = parse_snmp6(
        "Ip6InDiscards                   \t3\nUdp6RcvbufErrors 4\nUdpLite6InErrors 5\nnonsense\n6 7\n",
    );
    assert_eq!(counters["ip6.InDiscards"], 3);
    assert_eq!(counters["udp6.RcvbufErrors"], 4);
    assert_eq!(counters["udplite6.InErrors"], 5);
    assert_eq!(counters.len(), 3);
}

#[test]
fn process_names_may_hold_parentheses() {
    let line = format!("42 (a) b) S 1 42 42 0 -1 4194560 {} 777 1 2", "0 ".repeat(12));
    assert_eq!(stat_field(&line, 3), Some("S"));
    assert_eq!(stat_field(&line, 4), Some("1"));
    assert_eq!(stat_field(&line, 22), Some("777"));
    assert_eq!(stat_field("rubbish", 22), None);
}

#[test]
fn os_release_values_lose_their_quotes() {
    let map = parse_key_values("# x\nPRETTY_NAME=\"Debian GNU/Linux 12 (bookworm)\"\nID=debian\nbroken\n");
    assert_eq!(map["PRETTY_NAME"], "Debian GNU/Linux 12 (bookworm)");
    assert_eq!(map["ID"], "debian");
    assert_eq!(map.len(), 2);
}

#[test]
fn this_machine_can_be_read() {
    let root = ProcRoot::new("/");
    assert!(!root.stat().unwrap().is_empty());
    assert!(root.meminfo().unwrap().total > 0);
    assert!(root.net_dev().unwrap().contains_key("lo"));
    assert!(root.protocol_counters().unwrap().contains_key("tcp.RetransSegs"));
    assert!(!root.softnet().unwrap().is_empty());
    assert!(root.process_start_ticks(std::process::id()).unwrap() > 0);
    assert!(!root.process_is_zombie(std::process::id()).unwrap());
}

#[test]
fn an_empty_root_gives_errors_and_no_panics() {
    let root = ProcRoot::new("/nonexistent");
    assert!(
        root.stat().is_err() && root.meminfo().is_err() && root.net_dev().is_err() && root.softnet().is_err()
    );
    assert!(root.protocol_counters().is_err() && root.process_start_ticks(1).is_err());
    assert_eq!(root.conntrack_count(), None);
    assert_eq!((root.cpu_model(), root.governor(), root.is_virtual_machine()), (None, None, false));
    assert!(root.vulnerabilities().is_empty() && root.os_release().is_empty());
}

proptest::proptest! {
    #[test]
    fn garbage_never_panics(text in "(?s).{0,400}", lines in proptest::collection::vec("[a-zA-Z0-9: _./|-]{0,80}", 0..12)) {
        for text in [text, lines.join("\n")] {
            parse_stat(&text);
            parse_cpu_list(&text);
            parse_meminfo(&text);
            parse_key_values(&text);
            parse_net_dev(&text);
            parse_softnet(&text);
            parse_snmp(&text);
            parse_snmp6(&text);
            stat_field(&text, 22);
        }
    }
}
