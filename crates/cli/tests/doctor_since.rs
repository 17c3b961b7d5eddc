//! `weir doctor --before` on two namespaces with real traffic: praise only for what helps.

mod documents;

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::os::fd::{AsFd, AsRawFd};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::Value;
use weir_sys::{NetNs, Stop};
use weir_testkit::{CommandOutput, PATIENCE, World, until};

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

/// Ports of the responder.
const UDP_PORT: u16 = 7000;
const TCP_PORT: u16 = 7001;

/// The pace of the traffic: about 500 datagrams a second. A receiver that stands still for half a second loses none.
const PACE: Duration = Duration::from_millis(2);

/// A responder that receives, an initiator that sends, and a cable between them.
struct Testbed {
    world: World,
    initiator: NetNs,
    responder: NetNs,
    path: String,
}

fn script(ns: &NetNs, text: &str) {
    let mut command = std::process::Command::new("sh");
    command.args(["-euc", text]);
    ns.enter_on_spawn(&mut command);
    let output = weir_sys::process::run_captured(command, PATIENCE).unwrap();
    assert!(output.status.success(), "{}", output.message());
}

impl Testbed {
    fn new() -> Option<Testbed> {
        if World::lacks_root() || World::lacks(&["nft", "ip"]) {
            return None;
        }
        let (initiator, responder) = (NetNs::create().unwrap(), NetNs::create().unwrap());
        let path = |ns: &NetNs| format!("/proc/{}/fd/{}", std::process::id(), ns.as_fd().as_raw_fd());
        let far = path(&responder);
        script(
            &initiator,
            &format!(
                "ip link set lo up; ip link add eth0 type veth peer name eth0 netns {far}
                 ip addr add 198.18.0.1/24 dev eth0; ip link set eth0 up"
            ),
        );
        // Without IPv6, whose first packets come when they like.
        for ns in [&initiator, &responder] {
            script(ns, "echo 1 >/proc/sys/net/ipv6/conf/eth0/disable_ipv6");
        }
        script(&responder, "ip link set lo up; ip addr add 198.18.0.2/24 dev eth0; ip link set eth0 up");
        Some(Testbed { world: World::plain(WEIR), initiator, responder, path: far })
    }

    /// Puts one rule for what comes in by eth0 in place of the last one; none if it is empty.
    fn rule(&self, rule: &str) {
        script(&self.responder, "nft flush ruleset");
        if !rule.is_empty() {
            let table =
                "add table ip t; add chain ip t c { type filter hook input priority 0; }; add rule ip t c";
            script(&self.responder, &format!("nft '{table} iifname eth0 {rule}'"));
        }
    }

    fn weir(&self, args: &[&str]) -> CommandOutput {
        // Cores and control groups are the whole machine's: another test may just overload them.
        let hide = ["--hide", "cores", "--hide", "pressure", "--hide", "log"];
        let args = [&["doctor", "--netns", &self.path, "--for", "2"], &hide[..], args].concat();
        self.world.run(self.world.weir(&args)).expect(0)
    }

    /// The comparison with a report, and the page of another window.
    fn since(&self, file: &str) -> Value {
        let document = documents::read(&self.weir(&["--json", "--before", file]).stdout, "doctor");
        document["since"].clone()
    }
}

/// Datagrams, and exchanges over one TCP connection, until the value is dropped.
struct Traffic {
    stop: Stop,
    threads: Vec<JoinHandle<()>>,
}

impl Traffic {
    fn start(bed: &Testbed) -> Self {
        let stop = Stop::default();
        let mut threads = Vec::new();
        let receiver =
            bed.responder.run(|| weir_testkit::bound(|| UdpSocket::bind(("198.18.0.2", UDP_PORT)))).unwrap();
        let listener = bed
            .responder
            .run(|| weir_testkit::bound(|| TcpListener::bind(("198.18.0.2", TCP_PORT))))
            .unwrap();
        let sender = bed.initiator.run(|| UdpSocket::bind("198.18.0.1:0").unwrap()).unwrap();
        let client = bed.initiator.run(|| TcpStream::connect(("198.18.0.2", TCP_PORT)).unwrap()).unwrap();
        let (server, _) = listener.accept().unwrap();
        receiver.set_read_timeout(Some(20 * PACE)).unwrap();
        for socket in [&client, &server] {
            socket.set_read_timeout(Some(20 * PACE)).unwrap();
            socket.set_nodelay(true).unwrap();
        }
        let mut begin = |mut step: Box<dyn FnMut() + Send>| {
            let stop = stop.clone();
            threads.push(std::thread::spawn(move || {
                while !stop.raised() {
                    step();
                }
            }));
        };
        begin(Box::new(move || {
            // The pace. A rule that rejects makes the next call fail: that is the point.
            let _ = sender.send_to(b"x", ("198.18.0.2", UDP_PORT));
            std::thread::sleep(PACE);
        }));
        begin(Box::new(move || {
            let _ = receiver.recv(&mut [0; 8]);
        }));
        for mut socket in [client, server] {
            begin(Box::new(move || {
                let _ = socket.write(b"x");
                let _ = socket.read(&mut [0; 512]);
                std::thread::sleep(PACE);
            }));
        }
        Traffic { stop, threads }
    }
}

impl Drop for Traffic {
    fn drop(&mut self) {
        self.stop.raise();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

const TENTH: &str = "numgen random mod 10 == 0 counter drop";

#[test]
fn root_a_fix_that_breaks_more_is_never_better_and_one_that_helps_is() {
    let Some(bed) = Testbed::new() else { return };
    let traffic = Traffic::start(&bed);
    bed.rule(TENTH);
    let before = bed.weir(&["--json"]).stdout;
    drop(traffic);
    assert!(documents::read(&before, "doctor").get("since").is_none(), "{before}");
    bed.world.write("before.json", &before);

    for breaks in [
        "numgen random mod 10 < 5 counter drop",
        "numgen random mod 10 < 5 counter reject",
        "meta l4proto udp counter drop",
        "counter drop",
    ] {
        // A rejected connection does not come back: each case has its own.
        bed.rule("");
        let _traffic = Traffic::start(&bed);
        bed.rule(breaks);
        let since = bed.since("before.json");
        println!("{breaks}: {} {}", since["verdict"], since["why"]);
        assert!(since["verdict"] == "worse" || since["verdict"] == "not-comparable", "{breaks}: {since:#}");
    }

    bed.rule("");
    let _traffic = Traffic::start(&bed);
    // A busy machine sends less for a while, and then nothing is better.
    let answer = until("the same traffic", PATIENCE, || {
        let since = bed.since("before.json");
        let rate = |key: &str| since["handled_per_s"][key].as_f64().unwrap();
        (rate("after") >= rate("before")).then_some(since)
    });
    assert_eq!(answer["verdict"], "better", "{answer:#}");
    let changes = answer["changes"].as_array().unwrap();
    assert!(changes.iter().any(|c| c["cause"] == "rule-random" && c["change"] == "gone"), "{answer:#}");
    let page = bed.weir(&["--before", "before.json"]).stdout;
    assert!(page.starts_with("Since before.json (") && page.contains("\n gone: rule-random in "), "{page}");

    // Lines of --watch, on standard input: the last one counts.
    let lines = format!("{0}\n{0}\n", before.replace('\n', ""));
    bed.world.write("lines.json", lines);
    let command = format!("{} doctor --netns {} --for 2 --before - <lines.json", WEIR, bed.path);
    let page = bed.world.sh(&command);
    assert!(page.starts_with("Since standard input ("), "{page}");
}

#[test]
fn root_traffic_that_ends_is_no_fix() {
    let Some(bed) = Testbed::new() else { return };
    bed.rule(TENTH);
    {
        let _traffic = Traffic::start(&bed);
        bed.world.write("before.json", bed.weir(&["--json"]).stdout);
    }
    let since = bed.since("before.json");
    assert_eq!(since["verdict"], "not-comparable", "{since:#}");
    let page = bed.weir(&["--before", "before.json"]).stdout;
    let words: Vec<&str> = page.split_whitespace().collect();
    assert!(words.join(" ").contains("a loss that is gone may be traffic that is gone."), "{page}");
}

#[test]
fn root_each_window_of_watch_is_compared_with_the_file() {
    let Some(bed) = Testbed::new() else { return };
    bed.rule(TENTH);
    let _traffic = Traffic::start(&bed);
    bed.world.write("before.json", bed.weir(&["--json"]).stdout);
    let args =
        ["doctor", "--netns", &bed.path, "--for", "2", "--watch", "2.1", "--json", "--before", "before.json"];
    let running = bed.world.start("watch", bed.world.weir(&args));
    let lines = until("two windows", PATIENCE, || {
        let text = running.printed();
        (text.lines().count() >= 2).then_some(text)
    });
    running.signal("INT");
    running.end_within(PATIENCE).expect(0);
    for line in lines.lines().take(2) {
        let document = documents::read(line, "doctor");
        assert_eq!(document["since"]["file"], "before.json", "{line}");
        // The same rule, found again by its words.
        let changes = document["since"]["changes"].as_array().unwrap();
        let rule: Vec<&Value> = changes.iter().filter(|c| c["cause"] == "rule-random").collect();
        assert!(rule.len() == 1 && !rule[0]["after"].is_null() && !rule[0]["before"].is_null(), "{line}");
    }
}
