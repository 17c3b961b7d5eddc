//! `weir conntrack` against tables whose every entry is known, and against conntrack(8).

mod documents;

use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd};
use std::process::Command;

use serde_json::Value;
use weir_netlink::conntrack::{Conntrack, NewEntry, Status};
use weir_sys::NetNs;
use weir_testkit::{CommandOutput, PATIENCE, World, until};

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

/// enum tcp_conntrack (linux/netfilter/nf_conntrack_tcp.h).
const ESTABLISHED: u8 = 3;
const TIME_WAIT: u8 = 7;

fn at(text: &str) -> SocketAddr {
    text.parse().unwrap()
}

/// 1,200 TCP connections of 12 clients, a third of them in TIME_WAIT, 150 of them behind one outside address; 300 IPv6
/// queries without an answer; one marked entry in a zone.
fn entries() -> Vec<NewEntry> {
    let mut all = Vec::new();
    for i in 0..1200_u16 {
        let client = SocketAddr::new(Ipv4Addr::from(0x0a00_0001 + u32::from(i % 12)).into(), 20_000 + i);
        let state = if i % 3 == 0 { TIME_WAIT } else { ESTABLISHED };
        let outside = (i < 150).then(|| SocketAddr::new(IpAddr::from([198, 18, 0, 9]), 2000 + i));
        all.push(NewEntry { source_nat: outside, ..NewEntry::tcp(client, at("198.18.0.1:443"), state) });
    }
    for i in 0..300_u16 {
        let client = format!("[2001:2:0:aaaa:bbbb:cccc:dddd:eeee]:{}", 5000 + i);
        let server = at("[2001:2:0:1111:2222:3333:4444:5555]:53");
        all.push(NewEntry { status: Status(0), timeout_s: 25, ..NewEntry::udp(at(&client), server) });
    }
    all.push(NewEntry { mark: 0x2a, zone: 9, ..NewEntry::udp(at("10.0.0.1:1"), at("198.18.0.2:9")) });
    all
}

/// A namespace with those entries, and how to name it to weir.
fn filled() -> Option<(NetNs, String)> {
    if World::lacks_root() {
        return None;
    }
    let ns = NetNs::create().unwrap();
    ns.run(|| Conntrack::open().unwrap().insert(entries()).unwrap()).unwrap();
    let path = format!("/proc/{}/fd/{}", std::process::id(), ns.as_fd().as_raw_fd());
    Some((ns, path))
}

fn weir(world: &World, args: &[&str]) -> CommandOutput {
    world.run(world.weir(&[&["conntrack"], args].concat()))
}

fn json(world: &World, args: &[&str]) -> Value {
    documents::read(&weir(world, &[args, &["--json"]].concat()).expect(0).stdout, "conntrack")
}

#[test]
fn root_the_figures_are_those_of_the_table() {
    let Some((_ns, path)) = filled() else { return };
    let world = World::plain(WEIR);
    let table = json(&world, &["--netns", &path, "--max", "1000000"]);
    assert_eq!(&table["reading"]["complete"], &true);
    assert_eq!(table["fill"]["count"], 1501);
    let max: u64 =
        fs::read_to_string("/proc/sys/net/netfilter/nf_conntrack_max").unwrap().trim().parse().unwrap();
    assert_eq!(table["fill"]["max"], max);

    let contents = &table["contents"];
    assert_eq!((&contents["entries"], &contents["ipv6"]), (&1501.into(), &300.into()));
    let tcp = &contents["protocols"][0];
    assert_eq!((&tcp["protocol"], &tcp["entries"]), (&"tcp".into(), &1200.into()));
    assert_eq!((&tcp["states"]["established"], &tcp["states"]["time-wait"]), (&800.into(), &400.into()));
    let udp = &contents["protocols"][1];
    assert_eq!((&udp["states"]["unreplied"], &udp["states"]["assured"]), (&300.into(), &1.into()));
    let flags = &contents["flags"];
    assert_eq!(
        (&flags["source_nat"], &flags["unreplied"], &flags["assured"]),
        (&150.into(), &300.into(), &1201.into())
    );

    let sources = &contents["sources"];
    assert_eq!((&sources["exact"], &sources["distinct"]), (&true.into(), &13.into()));
    assert_eq!(sources["top"][0]["address"], "2001:2:0:aaaa:bbbb:cccc:dddd:eeee");
    // 10.0.0.1 has the marked entry beyond its hundred.
    assert_eq!(
        (&sources["top"][1]["address"], &sources["top"][1]["entries"]),
        (&"10.0.0.1".into(), &101.into())
    );
    assert_eq!(contents["destination_ports"]["top"][0]["service"], "tcp/443");
    assert_eq!(contents["destination_ports"]["top"][0]["entries"], 1200);
    assert_eq!(
        (&contents["zones"]["top"][0]["value"], &contents["marks"]["top"][0]["value"]),
        (&9.into(), &42.into())
    );

    let pool = &contents["nat_pools"]["top"][0];
    assert_eq!((&pool["outside"], &pool["destination"]), (&"198.18.0.9".into(), &"198.18.0.1".into()));
    assert_eq!(
        (&pool["used"], &pool["available"], &pool["destination_port"]),
        (&150.into(), &64_512.into(), &443.into())
    );
    assert!(table["notes"].to_string().contains("--nat-ports"), "{}", table["notes"]);
    // All of 2000 to 2149 are used.
    let own = json(&world, &["--netns", &path, "--nat-ports", "2000-2149"]);
    let pool = &own["contents"]["nat_pools"]["top"][0];
    assert_eq!(
        (&pool["available"], &pool["ratio"], &pool["refused_ratio"]),
        (&150.into(), &1.0.into(), &1.0.into())
    );

    let below = |group: &str, s: u64| {
        let classes = contents["times"]["remaining"][group].as_array().unwrap();
        classes.iter().find(|c| c["below_s"] == s).unwrap()["entries"].as_u64().unwrap()
    };
    assert_eq!(below("udp", 10) + below("udp", 30), 300);

    let memory = &table["memory"];
    let (entry, extension) =
        (memory["entry_bytes"].as_u64().unwrap(), memory["extension_bytes"].as_u64().unwrap());
    let proposed = &memory["proposed"];
    let page = weir_sys::slab::page_bytes();
    let hash = (1_000_000_u64 * size_of::<usize>() as u64).next_multiple_of(page);
    assert_eq!(proposed["bytes_without_extensions"], 1_000_000 * entry + hash);
    assert_eq!(proposed["bytes_with_extensions"], 1_000_000 * (entry + extension) + hash);
}

/// A rule with a range of its own, and traffic that the kernel translated by it.
#[test]
fn root_the_rules_own_range_is_what_is_available() {
    if World::lacks_root() || World::lacks(&["nft", "ip"]) {
        return;
    }
    let ns = NetNs::create().unwrap();
    let world = World::plain(WEIR);
    let mut command = Command::new("sh");
    let rules = "ip link set lo up; ip link add out0 type veth peer name out1; ip link set out1 up; ip link set out0 up
                 ip addr add 198.18.0.1/24 dev out0; ip addr add 10.0.0.1/32 dev lo
                 ip neigh add 198.18.0.77 lladdr 02:00:00:00:00:77 dev out0
                 nft 'add table ip t; add chain ip t c { type nat hook postrouting priority 100; }; \
                      add rule ip t c oifname out0 meta l4proto udp masquerade to :6000-6009'";
    command.args(["-ec", rules]);
    ns.enter_on_spawn(&mut command);
    world.run(command).expect(0);
    ns.run(|| {
        for port in 0..7 {
            let socket = std::net::UdpSocket::bind(("10.0.0.1", 40_000 + port)).unwrap();
            socket.send_to(b"x", "198.18.0.77:53").unwrap();
        }
    })
    .unwrap();
    let path = format!("/proc/{}/fd/{}", std::process::id(), ns.as_fd().as_raw_fd());
    let table = json(&world, &["--netns", &path]);
    let rule = &table["nat_rules"][0];
    assert_eq!(
        (&rule["first_port"], &rule["last_port"], &rule["table"]),
        (&6000.into(), &6009.into(), &"t".into())
    );
    let pool = &table["contents"]["nat_pools"]["top"][0];
    assert_eq!((&pool["outside"], &pool["destination"]), (&"198.18.0.1".into(), &"198.18.0.77".into()));
    assert_eq!((&pool["used"], &pool["available"], &pool["ratio"]), (&7.into(), &10.into(), &0.7.into()));
    assert_eq!(table["notes"], Value::Array(Vec::new()));
}

#[test]
fn root_conntrack_lists_the_same() {
    let Some((ns, path)) = filled() else { return };
    if World::lacks(&["conntrack"]) {
        return;
    }
    let world = World::plain(WEIR);
    let lines = |args: &[&str]| {
        let mut command = Command::new("conntrack");
        command.arg("-L").args(args);
        ns.enter_on_spawn(&mut command);
        world.run(command).expect(0).stdout.lines().count()
    };
    for (listed, asked) in [
        (&["-p", "tcp"][..], &["--protocol", "tcp"][..]),
        (&["-p", "tcp", "--state", "TIME_WAIT"], &["--state", "time-wait"]),
        (&["-f", "ipv6"], &["--source", "::/0"]),
        (&["-s", "10.0.0.3"], &["--source", "10.0.0.3"]),
        (&["--src-nat"], &["--flag", "snat"]),
        (&["-m", "42"], &["--mark", "0x2a"]),
        (&["-w", "9"], &["--zone", "9"]),
    ] {
        let table = json(&world, &[&["--netns", &path], asked].concat());
        assert_eq!(table["contents"]["entries"], lines(listed), "{asked:?}");
        assert_eq!(table["filtered"], true);
    }
}

#[test]
fn root_filters_and_limits() {
    let Some((_ns, path)) = filled() else { return };
    let world = World::plain(WEIR);
    let count =
        |args: &[&str]| json(&world, &[&["--netns", &path], args].concat())["contents"]["entries"].clone();
    assert_eq!(count(&["--state", "established", "--state", "time_wait"]), 1200);
    assert_eq!(count(&["--destination", "198.18.0.0/15", "--port", "443"]), 1200);
    assert_eq!(count(&["--destination", "2001:2::/48", "--flag", "unreplied", "--protocol", "17"]), 300);
    assert_eq!(count(&["--flag", "snat", "--flag", "assured"]), 150);
    assert_eq!(count(&["--port", "1"]), 0);
    let limited = json(&world, &["--netns", &path, "--limit", "7", "--top", "2"]);
    assert_eq!((&limited["contents"]["entries"], &limited["reading"]["limited"]), (&7.into(), &true.into()));
    assert_eq!(limited["reading"]["complete"], false);
    let two = json(&world, &["--netns", &path, "--top", "2"]);
    assert_eq!(two["contents"]["sources"]["top"].as_array().unwrap().len(), 2);
}

#[test]
fn root_the_page_fits_the_terminal() {
    let Some((_ns, path)) = filled() else { return };
    let world = World::plain(WEIR);
    for columns in [80, 100] {
        let mut command = world.weir(&["conntrack", "--netns", &path, "--max", "4194304"]);
        command.env("COLUMNS", columns.to_string());
        let page = world.run(command).expect(0).stdout;
        for line in page.lines() {
            assert!(line.chars().count() <= columns, "{columns}: {line}");
        }
        assert!(!page.contains(|c: char| c.is_control() && c != '\n'), "{page:?}");
        for words in [
            "1,501 entries of",
            "By protocol and state",
            "established",
            "Zones",
            "0x2a",
            "Time left",
            "Top sources (13 in all)",
            "2001:2:0:aaaa:bbbb:cccc:dddd:eeee",
            "Top talkers",
            "SNAT ports, fullest first (1 pools)",
            "198.18.0.9 -> 198.18.0.1 tcp/443",
            "nf_conntrack_max = 4,194,304",
        ] {
            assert!(page.contains(words), "no {words}:\n{page}");
        }
    }
}

#[test]
fn root_json_comes_line_by_line_until_it_is_stopped() {
    let Some((ns, path)) = filled() else { return };
    let world = World::plain(WEIR);
    let out = world.work().join("lines");
    let mut command = world.weir(&["conntrack", "--netns", &path, "--watch=0.2", "--json"]);
    command.stdout(fs::File::create(&out).unwrap());
    let mut child = command.spawn().unwrap();
    let lines = |n: usize| {
        until("lines of JSON", PATIENCE, || {
            let text = fs::read_to_string(&out).unwrap();
            let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
            let lines: Vec<Value> = whole.lines().map(|l| documents::read(l, "conntrack")).collect();
            (lines.len() >= n).then_some(lines)
        })
    };
    assert_eq!(lines(2)[0]["contents"]["entries"], 1501);
    ns.run(|| Conntrack::open().unwrap().flush().unwrap()).unwrap();
    let seen = lines(2).len();
    // The one after the next was read as a whole after the flush.
    assert_eq!(lines(seen + 2).last().unwrap()["contents"]["entries"], 0);
    Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn root_a_reader_that_has_seen_enough_ends_it() {
    let Some((_ns, path)) = filled() else { return };
    let world = World::plain(WEIR);
    let script = format!("{WEIR} conntrack --netns {path} --watch=0.1 --json | head -n 1");
    assert_eq!(world.sh(&script).lines().count(), 1);
    world.wait_until_idle();
}

#[test]
fn root_the_live_view_gives_the_terminal_back() {
    let Some((_ns, path)) = filled() else { return };
    if World::lacks(&["script"]) {
        return;
    }
    let world = World::plain(WEIR);
    let typescript = world.work().join("typescript");
    // The terminal's other end.
    let line = format!("stty rows 20 cols 80; exec {WEIR} conntrack --netns {path} --watch=0.2");
    let mut command = world.command("script");
    command.args(["-qefc", &line]).arg(&typescript).env("COLUMNS", "80");
    let shown = world.start("script", command);
    let text = || fs::read_to_string(&typescript).unwrap_or_default();
    until("two pages", PATIENCE, || (text().matches("conntrack table of").count() >= 2).then_some(()));
    let (pid, _) =
        until("weir", PATIENCE, || world.processes().into_iter().find(|(_, line)| line.starts_with(WEIR)));
    Command::new("kill").args(["-INT", &pid.to_string()]).status().unwrap();
    shown.end_within(PATIENCE).expect(0);
    let all = text();
    assert!(all.contains("\x1b[?1049h") && all.contains("more lines"), "{all:?}");
    let end = all.rfind("\x1b[?1049l").expect("the first screen is back");
    assert!(all[..end].contains("\x1b[?25h"), "the cursor is back");
}

#[test]
fn root_without_privilege_it_says_what_it_cannot_see() {
    let Some(world) = World::root(WEIR) else { return };
    if World::lacks(&["setpriv"]) {
        return;
    }
    let run = |args: &str| {
        world.run(
            world.shell(&format!("exec setpriv --inh-caps=-all --bounding-set=-all {WEIR} conntrack {args}")),
        )
    };
    let table = documents::read(&run("--json").expect(0).stdout, "conntrack");
    assert_eq!((&table["contents"], &table["statistics"]), (&Value::Null, &Value::Null));
    assert_eq!(table["reading"]["complete"], false);
    assert!(table["fill"]["max"].as_u64().is_some() && table["fill"]["count"] == 0, "{table:#}");
    let page = run("").expect(0).stdout;
    assert!(page.contains("CAP_NET_ADMIN") && page.contains("0 entries of"), "{page}");
    let outcome = run("--netns /proc/1/ns/net").expect(4);
    assert!(outcome.stderr.contains("root"), "{}", outcome.stderr);
}

#[test]
fn root_without_conntrack_it_is_4() {
    let Some(world) = World::root(WEIR) else { return };
    // The settings are how its presence shows; this world has its own mounts.
    world.sh("mount -t tmpfs none /proc/sys/net");
    for args in ["", "--json", "--watch --json"] {
        let outcome = world.run(world.shell(&format!("exec {WEIR} conntrack {args}"))).expect(4);
        assert_eq!((outcome.complaints().len(), outcome.stdout.as_str()), (1, ""));
        assert!(outcome.stderr.contains("nf_conntrack"), "{}", outcome.stderr);
    }
}

#[test]
fn wrong_usage_is_2_and_says_what_is_right() {
    let world = World::plain(WEIR);
    for (args, words) in [
        (&["--protocol", "tpc"][..], "udplite"),
        (&["--state", "open"], "time-wait"),
        (&["--flag", "natted"], "dnat"),
        (&["--source", "10.0.0.1/8"], "bits set after"),
        (&["--destination", "example"], "not an address"),
        (&["--mark", "1/2"], "outside the mask"),
        (&["--nat-ports", "5-4"], "above"),
        (&["--watch=0"], "100 ms"),
        (&["--watch=NaN"], "not a time"),
        (&["--limit", "0"], "--limit"),
        (&["--port", "65536"], "--port"),
        (&["--netns", "no\u{1b}[31msuch"], "nosuch"),
        (&["--netns", "/proc/self/none"], "/proc/self/none"),
    ] {
        let outcome = weir(&world, args).expect(2);
        assert!(outcome.stderr.contains(words), "{args:?}: {}", outcome.stderr);
        assert!(!outcome.stderr.contains('\u{1b}'));
        assert_eq!(outcome.stdout, "", "{args:?}");
    }
}
