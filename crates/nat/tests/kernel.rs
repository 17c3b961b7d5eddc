//! The kernel's NAT: ports that the experiments saw are those that the kernel's own table has, and the end of a pool is its end.

use std::io::Write;
use std::process::{Command, Stdio};
use std::time::Duration;

use weir_lab::{Family, Lab, LabOptions, Role, SiteSpec, Topology};
use weir_nat::lab::LabEnds;
use weir_nat::observed::PortReuse;
use weir_nat::rows::judge::Ipv6Kind;
use weir_nat::{Compliance, Limits, Table, measure};
use weir_sys::process::which;
use weir_sys::{NetNs, ProcRoot, Stop, privilege, sysctl};

const RULES: &str = "table ip nat { chain post { type nat hook postrouting priority srcnat; \
                     oifname \"outside\" masquerade fully-random; }; }\n";

fn run(gateway: &NetNs, program: &str, args: &[&str], input: &str) -> String {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
    gateway.enter_on_spawn(&mut command);
    let mut child = command.spawn().unwrap();
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success(), "{program} {args:?}");
    String::from_utf8(output.stdout).unwrap()
}

/// A lab whose gateway has these rules.
fn masquerading(name: &str, rules: &str) -> Lab {
    let spec = SiteSpec { name: "s".into(), topology: Topology::Routed, return_route: false, wan: false };
    let lab = Lab::build(&format!("{name}-{}", std::process::id()), &LabOptions::default(), &[spec]).unwrap();
    let gateway = lab.site("s").unwrap().host(Role::Gateway).unwrap();
    gateway.run(|| sysctl::set(&ProcRoot::new("/"), "net.ipv4.ip_forward", "1")).unwrap().unwrap();
    run(gateway, "nft", &["-f", "-"], rules);
    lab
}

/// Rows whose verdict follows from the kernel's source.
#[test]
fn root_verdicts_follow_from_the_kernels_source() {
    if privilege::test_needs_root() {
        return;
    }
    if which("nft").is_none() {
        println!("SKIP: nft is not installed");
        return;
    }
    let lab = masquerading("test-nat-source", RULES);
    let site = lab.site("s").unwrap();
    let mut ends = LabEnds::attach(site, Limits::default(), &Stop::default()).unwrap();
    let table = Table::of(&measure(&mut ends, &mut |_| true).unwrap());
    // A packet from inside to its outside address is for the gateway itself: nothing is hairpinned.
    let line = table.line("icmp-error-hairpin").unwrap();
    assert_eq!(line.judgement.verdict, Compliance::NotTestable, "{line:?}");
    // Fully random ports follow each other once in 64,512 times.
    let line = table.line("udp-port-contiguity").unwrap();
    assert_eq!(line.judgement.verdict, Compliance::Described, "{line:?}");
    // nf_conntrack_proto_tcp.c: a segment outside of the window is invalid and belongs to no connection. NAT leaves it alone, so that
    // from inside it is forwarded as it is, and from outside it is for the gateway itself.
    let line = table.line("tcp-sequence-check").unwrap();
    assert_eq!(line.judgement.seen, "outwards: leaves with the inside address; inwards: dropped");
    let line = table.line("tcp-reset-window").unwrap();
    assert_eq!(line.judgement.verdict, Compliance::Meets, "{line:?}");
    // nf_conntrack_proto_icmp.c checks the error's own checksum, and nothing checks that of the quoted IP header; the ports are found behind its
    // options (ip_hdrlen), and 8 bytes of them are enough.
    for (row, verdict) in [
        ("icmp-error-bad-checksum", Compliance::Meets),
        ("icmp-error-bad-quote", Compliance::Fails),
        ("icmp-error-quote-options", Compliance::Meets),
        ("icmp-error-quote-unchecked", Compliance::Meets),
        ("icmp-error-short-quote", Compliance::Meets),
        ("icmp-error-unmapped", Compliance::Meets),
        // It translates errors either way whatever they quote, and whatever their code.
        ("tcp-icmp-error-out", Compliance::Meets),
        ("icmp-error-out-about-query", Compliance::Meets),
        ("icmp-error-types", Compliance::Meets),
        ("icmp-too-big-in", Compliance::Meets),
        ("tcp-half-close-in", Compliance::Meets),
        ("tcp-syn-ack-data", Compliance::Meets),
        // nf_conntrack_proto_tcp.c: a SYN in the reply direction is one of a simultaneous open, with data or without.
        ("tcp-syn-data-in", Compliance::Meets),
        // Both hosts share the gateway's address, so that a ping to it is for the gateway itself.
        ("icmp-query-hairpin", Compliance::Described),
    ] {
        let line = table.line(row).unwrap();
        assert_eq!(line.judgement.verdict, verdict, "{line:?}");
    }
    // nf_nat_proto.c drops redirects of translated packets; nf_conntrack_proto_icmp.c knows four types of query.
    let words = "pass: parameter problem, source quench, timestamp request from inside, \
                 address mask request from inside; dropped: redirect";
    assert_eq!(table.line("icmp-other-types").unwrap().judgement.seen, words);
}

/// nf_conntrack forgets a tuple with its entry, and nf_nat_core.c keeps a port whose tuple is free: the other host gets it at once.
/// The filter depends on the destination, so RFC 6888 allows it.
#[test]
fn root_a_port_is_free_as_soon_as_its_mapping_has_ended() {
    if privilege::test_needs_root() {
        return;
    }
    if which("nft").is_none() {
        println!("SKIP: nft is not installed");
        return;
    }
    let lab = masquerading("test-nat-reuse", &RULES.replace(" fully-random", ""));
    let site = lab.site("s").unwrap();
    for timer in ["udp_timeout", "tcp_timeout_time_wait"] {
        let name = format!("net.netfilter.nf_conntrack_{timer}");
        let set = || sysctl::set(&ProcRoot::new("/"), &name, "5");
        site.host(Role::Gateway).unwrap().run(set).unwrap().unwrap();
    }
    let limits = Limits { idle: Duration::from_secs(17), ..Limits::default() };
    let seen = measure(&mut LabEnds::attach(site, limits, &Stop::default()).unwrap(), &mut |_| true).unwrap();
    // The ports of 8, 16 and 17 s, if the machine was not so busy that its NAT was late.
    let reuse = &seen.idle.as_ref().unwrap().port_reuse;
    assert_eq!(reuse.len(), 3, "{reuse:?}");
    assert!(reuse.iter().all(|r| r.second == Some(r.first)), "{reuse:?}");
    // So it is with connections that are closed, but not with open ones.
    let idle = seen.idle.as_ref().unwrap();
    for (reuse, is_free) in [(&idle.tcp_port_reuse, true), (&idle.tcp_open_port_reuse, false)] {
        assert_eq!(reuse.len(), 3, "{reuse:?}");
        let given = |r: &PortReuse| r.second.is_some() && (r.second == Some(r.first)) == is_free;
        assert!(reuse.iter().all(given), "{is_free}: {reuse:?}");
    }
    let table = Table::of(&seen);
    for row in ["udp-port-reuse", "tcp-port-reuse"] {
        let line = table.line(row).unwrap();
        assert_eq!(line.judgement.verdict, Compliance::Meets, "{line:?}");
        assert!(line.judgement.seen.contains("which REQ-8 allows"), "{line:?}");
    }
    // The gateway itself has no such port, and a flow from inside is new to it.
    let after = "from outside: ICMP 3/3; from inside: a new mapping with the same port";
    assert_eq!(table.line("udp-after-idle").unwrap().judgement.seen, after);
}

/// nf_nat_core.c looks for a free tuple, and nf_conntrack_core.c takes it when the packet leaves: the SYN that comes too late is
/// dropped, and counted.
#[test]
fn root_syns_that_lose_their_race_are_those_that_the_kernel_counts() {
    if privilege::test_needs_root() {
        return;
    }
    if let Some(missing) = ["nft", "conntrack"].into_iter().find(|program| which(program).is_none()) {
        println!("SKIP: {missing} is not installed");
        return;
    }
    let lab = masquerading("test-nat-race", &RULES.replace(" fully-random", ""));
    let site = lab.site("s").unwrap();
    let failed = || {
        let counters = run(site.host(Role::Gateway).unwrap(), "conntrack", &["-S"], "");
        let counts = counters.split_whitespace().filter_map(|word| word.strip_prefix("insert_failed="));
        counts.map(|count| count.parse::<u32>().unwrap()).sum::<u32>()
    };
    let (mut before, mut after) = (0, 0);
    let mut step = |experiment: &str| {
        match experiment {
            "tcp-first-syns" => before = failed(),
            "udp-moved" => after = failed(),
            _ => {}
        }
        experiment != "udp-moved"
    };
    let mut ends = LabEnds::attach(site, Limits::default(), &Stop::default()).unwrap();
    let seen = measure(&mut ends, &mut step).unwrap();
    let race = seen.tcp_first_syns.unwrap();
    println!("{race:?}");
    assert!(race.sure, "{race:?}");
    assert_eq!((race.lost, race.shared), (after - before, 0), "{race:?}");
    let line = Table::of(&seen).line("tcp-first-syns").unwrap().judgement.clone();
    let verdict = if race.lost == 0 { Compliance::Meets } else { Compliance::Partly };
    assert_eq!(line.verdict, verdict, "{line:?}");
}

/// nf_nat_core.c: a packet for which no tuple is left is dropped without a word, and no mapping is ended for it. TCP has ports of its
/// own.
#[test]
fn root_the_end_of_a_pool_is_silent_and_ends_no_mapping() {
    const POOL: u32 = 400;
    if privilege::test_needs_root() {
        return;
    }
    if which("nft").is_none() {
        println!("SKIP: nft is not installed");
        return;
    }
    let rules = RULES.replace(
        "masquerade fully-random",
        "meta l4proto { udp, tcp } masquerade to :40000-40399; oifname \"outside\" masquerade",
    );
    let lab = masquerading("test-nat-pool", &rules);
    let site = lab.site("s").unwrap();
    let limits = Limits { mappings: 4 * POOL, ..Limits::default() };
    let mut ends = LabEnds::attach(site, limits, &Stop::default()).unwrap();
    let seen = measure(&mut ends, &mut |_| true).unwrap();
    let table = Table::of(&seen);
    for (protocol, end) in [("udp", seen.exhaustion.unwrap()), ("tcp", seen.tcp_exhaustion.unwrap())] {
        assert!(end.sure && end.one_address, "{protocol}: {end:?}");
        assert_eq!((end.ended[0], end.told, end.resets), (true, 0, 0), "{protocol}: {end:?}");
        assert_eq!((end.leaked, end.reused), (0, 0), "{protocol}: {end:?}");
        // Ports are tried at random, so that some may be left.
        let opened = end.witnesses + end.opened.iter().sum::<u32>();
        assert!((POOL * 8 / 10..=POOL).contains(&opened), "{protocol}: {end:?}");
        // A busy machine may need longer than a mapping lives, and must say so.
        let slow = end.took_s >= 25.0;
        let [told, dropped, keeps] =
            ["told", "dropped", "keeps"].map(|row| format!("{protocol}-exhaustion-{row}"));
        let mut rows =
            vec![(told, Compliance::Fails), (dropped, Compliance::Meets), (keeps, Compliance::Meets)];
        if protocol == "udp" {
            rows.push(("udp-host-limit".to_owned(), Compliance::Described));
        }
        for (row, verdict) in rows {
            let line = table.line(&row).unwrap();
            let expected = if slow { Compliance::NotSure } else { verdict };
            assert_eq!(line.judgement.verdict, expected, "{line:?} {end:?}");
        }
    }
}

#[test]
fn root_ports_are_those_of_the_kernels_table() {
    if privilege::test_needs_root() {
        return;
    }
    if let Some(missing) = ["nft", "conntrack"].into_iter().find(|program| which(program).is_none()) {
        println!("SKIP: {missing} is not installed");
        return;
    }
    let lab = masquerading("test-nat-kernel", RULES);
    let site = lab.site("s").unwrap();
    let gateway = site.host(Role::Gateway).unwrap();
    let seen =
        measure(&mut LabEnds::attach(site, Limits::default(), &Stop::default()).unwrap(), &mut |_| true)
            .unwrap();
    for (protocol, translations) in [
        ("udp", seen.udp_ports.unwrap()),
        ("tcp", seen.tcp_mapping.unwrap().into_iter().flat_map(|mapping| mapping.seen).collect()),
    ] {
        let table = run(gateway, "conntrack", &["-L", "-p", protocol], "");
        for translation in translations {
            let (inside, to, seen) = (translation.inside, translation.to, translation.seen.unwrap());
            let sent =
                format!("src={} dst={} sport={} dport={} ", inside.ip(), to.ip(), inside.port(), to.port());
            let back =
                format!("src={} dst={} sport={} dport={} ", to.ip(), seen.ip(), to.port(), seen.port());
            let entry =
                table.lines().find(|line| line.contains(&sent)).unwrap_or_else(|| panic!("{sent}:\n{table}"));
            assert!(entry.contains(&back), "{back}: {entry}");
            // The kernel draws from few privileged ports (600 to 1023), so one may be the old one by chance.
            assert!(inside.port() < 1024 || inside.port() != seen.port(), "{entry}");
        }
    }
}

/// Routing, masquerade, and prefix to prefix by nft and by the targets of ip6tables that follow RFC 6296.
const GATEWAYS: [(&str, &[&str], &str); 4] = [
    ("routed", &[], ""),
    (
        "masquerade",
        &["nft", "-f", "-"],
        "table ip6 n { chain post { type nat hook postrouting priority srcnat; oifname outside masquerade; }; }\n",
    ),
    (
        "nft",
        &["nft", "-f", "-"],
        "table ip6 n {
           chain out { type nat hook postrouting priority srcnat;
             oifname outside ip6 saddr 2001:2::/64 snat ip6 prefix to 2001:2:0:2::/64; };
           chain in { type nat hook prerouting priority dstnat;
             iifname outside ip6 daddr 2001:2:0:2::/64 dnat ip6 prefix to 2001:2::/64; }; }\n",
    ),
    (
        "ip6tables",
        &["ip6tables-restore"],
        "*mangle
-A POSTROUTING -o outside -s 2001:2::/64 -j SNPT --src-pfx 2001:2::/64 --dst-pfx 2001:2:0:2::/64
-A PREROUTING -i outside -d 2001:2:0:2::/64 -j DNPT --src-pfx 2001:2:0:2::/64 --dst-pfx 2001:2::/64
COMMIT\n",
    ),
];

/// The table of a gateway over IPv6.
fn over_ipv6(site: &weir_lab::Site, command: &[&str], rules: &str) -> Table {
    let gateway = site.host(Role::Gateway).unwrap();
    let forward = || sysctl::set(&ProcRoot::new("/"), "net.ipv6.conf.all.forwarding", "1");
    gateway.run(forward).unwrap().unwrap();
    if let Some((program, args)) = command.split_first() {
        run(gateway, program, args, rules);
    }
    let mut ends = LabEnds::attach(site, Limits::default(), &Stop::default()).unwrap();
    Table::of(&measure(&mut ends, &mut |_| true).unwrap())
}

/// nf_nat_core.c maps a prefix without an adjustment, ip6t_NPT.c with one.
#[test]
fn root_translations_of_ipv6_are_told_apart() {
    if privilege::test_needs_root() {
        return;
    }
    if let Some(missing) = ["nft", "ip6tables-restore"].into_iter().find(|program| which(program).is_none()) {
        println!("SKIP: {missing} is not installed");
        return;
    }
    let options = LabOptions { family: Family::Ipv6, ..LabOptions::default() };
    let spec = |name: &str| SiteSpec {
        name: name.into(),
        topology: Topology::Routed,
        return_route: true,
        wan: false,
    };
    let specs = GATEWAYS.map(|(name, ..)| spec(name));
    let lab = Lab::build(&format!("test-nat-ipv6-{}", std::process::id()), &options, &specs).unwrap();
    let tables = GATEWAYS.map(|(name, command, rules)| over_ipv6(lab.site(name).unwrap(), command, rules));
    let kinds = tables.each_ref().map(|table| table.kind.ipv6);
    let [same, shared, prefix] = [Ipv6Kind::Untranslated, Ipv6Kind::Nat66, Ipv6Kind::Nptv6].map(Some);
    assert_eq!(kinds, [same, shared, prefix, prefix]);
    let verdicts = |row: &str| tables.each_ref().map(|table| table.line(row).unwrap().judgement.verdict);
    use Compliance::{Fails, Meets, NotTestable};
    assert_eq!(verdicts("npt-checksum-neutral"), [NotTestable, NotTestable, Fails, Meets]);
    assert_eq!(verdicts("udp-filtering"), [Meets, Fails, Meets, Meets]);
    // The gateway has the address itself, and resets.
    assert_eq!(verdicts("tcp-unsolicited-syn"), [NotTestable, Fails, Meets, Meets]);
    for row in ["icmp-error-in", "icmp-error-checksum", "icmp-error-out", "udp-too-long"] {
        assert_eq!(verdicts(row), [Meets; 4], "{row}");
    }
}
