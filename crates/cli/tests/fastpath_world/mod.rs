//! A gateway that masquerades two inside hosts, in a world of its own, and traffic through it.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::process::Command;

use serde_json::Value;
use weir_testkit::{Background, CommandOutput, PATIENCE, World, until};

use super::documents;

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

/// Answers what it gets, over TCP and UDP.
const SERVER: &str = "import socket, sys, threading
def tcp():
    s = socket.create_server(('198.18.1.2', 8080))
    while True:
        c, _ = s.accept(); threading.Thread(target=answer, args=(c,), daemon=True).start()
def answer(c):
    try:
        while data := c.recv(65536): c.sendall(data)
    except OSError: pass
def udp():
    s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(('198.18.1.2', 5353))
    while True:
        data, peer = s.recvfrom(65536); s.sendto(data, peer)
for serve in (tcp, udp): threading.Thread(target=serve, daemon=True).start()
print('ready', file=sys.stderr, flush=True)
threading.Event().wait()
";

/// Asks over one TCP connection until the file `enough` is there.
const CLIENT: &str = "import os, socket, sys, time
s = socket.create_connection(('198.18.1.2', 8080), timeout=5)
n = 0
while not os.path.exists('enough'):
    s.sendall(b'%d' % n); got = s.recv(100)
    assert got == b'%d' % n, got
    n += 1
    if n == 50: print('ready', file=sys.stderr, flush=True)
    time.sleep(0.002)
print(n)
";

/// As many datagrams as said, from port 4000, each answered.
const DATAGRAMS: &str = "import socket, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(5); s.bind(('198.18.0.2', 4000))
s.connect(('198.18.1.2', 5353))
for n in range(int(sys.argv[1])):
    s.send(b'%d' % n); got = s.recv(100)
    assert got == b'%d' % n, got
";

/// Asks over one TCP connection, and over UDP from ports that the other inside host uses, too, until the file `enough` is there. Counts
/// answers that are another host's.
const TRAFFIC: &str = "import os, random, socket, sys, time
name, seed = sys.argv[1], int(sys.argv[2])
random.seed(name + str(seed))
t = socket.create_connection(('198.18.1.2', 8080), timeout=20)
asked = answered = wrong = n = 0
while not os.path.exists('enough'):
    u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); u.settimeout(2)
    u.bind(('', 4000 + random.randrange(4))); u.connect(('198.18.1.2', 5353))
    for _ in range(random.randrange(20, 60)):
        text = ('%s %d' % (name, n)).encode(); n += 1
        t.sendall(text); got = t.recv(100)
        assert got == text, got
        u.send(text); asked += 1
        try:
            got = u.recv(100); answered += 1
            wrong += not got.startswith(name.encode() + b' ')
        except OSError: pass
        if n == 50: print('ready', file=sys.stderr, flush=True)
        time.sleep(0.001)
    u.close()
print(asked, answered, wrong)
";

/// A gateway that masquerades, with `in0` and `in2` to clients and `out0` to a server.
pub(crate) struct Gateway {
    pub(crate) world: World,
    server: Option<Background>,
}

impl Gateway {
    pub(crate) fn new() -> Option<Gateway> {
        let world = World::root(WEIR)?;
        if World::lacks(&["nft", "python3"]) {
            return None;
        }
        world.sh("mkdir -p /run/netns");
        for (name, link, net) in [("inside", "in0", 0), ("outside", "out0", 1), ("inside2", "in2", 2)] {
            world.sh(&format!(
                "ip netns add {name} && ip link add {link} type veth peer name e0 netns {name} && \
                 ip addr add 198.18.{net}.1/24 dev {link} && ip link set {link} up && \
                 ip -n {name} addr add 198.18.{net}.2/24 dev e0 && ip -n {name} link set e0 up"
            ));
        }
        world.sh("ip -n inside route add default via 198.18.0.1 && ip -n inside2 route add default via 198.18.2.1 && \
             echo 1 > /proc/sys/net/ipv4/ip_forward && \
             nft 'add table ip nat; add chain ip nat p { type nat hook postrouting priority srcnat; }; \
                  add rule ip nat p oifname out0 masquerade'");
        for (name, text) in
            [("server", SERVER), ("client", CLIENT), ("datagrams", DATAGRAMS), ("traffic", TRAFFIC)]
        {
            world.write(name, text);
        }
        let mut gateway = Gateway { world, server: None };
        gateway.server = Some(gateway.begin("outside", "server", &[]));
        Some(gateway)
    }

    /// Starts a script in a host, and waits until it is ready.
    pub(crate) fn begin(&self, host: &str, script: &str, args: &[&str]) -> Background {
        let mut command = self.world.command("ip");
        command.args(["netns", "exec", host, "python3", script]).args(args);
        let mut begun = self.world.start(&format!("{script}-{host}"), command);
        begun.wait_for("ready");
        begun
    }

    pub(crate) fn weir(&self, args: &[&str]) -> Command {
        let mut command = self.world.weir(&[&["fastpath"], args].concat());
        command.env("WEIR_STATE_DIR", self.world.folder().join("state"));
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> CommandOutput {
        self.world.run(self.weir(args))
    }

    pub(crate) fn json(&self, verb: &str, args: &[&str]) -> Value {
        let printed = self.run(&[&[verb, "--json"], args].concat()).expect(0).stdout;
        documents::read(&printed, &format!("fastpath-{verb}"))
    }

    /// Datagrams to the server and back; how many packets were carried meanwhile.
    pub(crate) fn exchange(&self, times: u32) -> u64 {
        let carried = || {
            let status = self.json("status", &[]);
            let reasons = status["now"]["reasons"].as_array().cloned().unwrap_or_default();
            reasons
                .iter()
                .filter(|r| r["reason"] == "carried")
                .map(|r| r["packets"].as_u64().unwrap())
                .sum::<u64>()
        };
        let before = carried();
        self.world.sh(&format!("ip netns exec inside python3 datagrams {times}"));
        carried().checked_sub(before).expect("the same fast path")
    }

    /// Waits until at least so many packets of an exchange are carried: on a machine that stands still the lease ends for a moment.
    #[track_caller]
    pub(crate) fn carries(&self, times: u32, packets: u64) {
        until("the fast path carries", PATIENCE, || (self.exchange(times) >= packets).then_some(()));
    }

    pub(crate) fn processes(&self, words: &str) -> Vec<u32> {
        let all = self.world.processes().into_iter();
        all.filter(|(_, line)| line.contains(words)).map(|(pid, _)| pid).collect()
    }

    /// All at once: none sees the others die.
    pub(crate) fn kill(&self, words: &[&str]) {
        assert!(words.iter().any(|words| !self.processes(words).is_empty()), "{words:?}");
        self.kill_if_any(words);
    }

    /// The same where none may be left.
    pub(crate) fn kill_if_any(&self, words: &[&str]) {
        let pids: Vec<u32> = words.iter().flat_map(|words| self.processes(words)).collect();
        for signal in ["STOP", "KILL"] {
            for pid in &pids {
                // One that has ended by itself meanwhile is dead, too.
                self.world.sh(&format!("kill -{signal} {pid} 2>/dev/null || true"));
            }
        }
    }

    /// Waits until no process keeps a fast path, and makes sure that packets pass.
    pub(crate) fn until_none(&self) {
        until("the fast path has ended", PATIENCE, || {
            self.run(&["state"]).expect(0).stdout.is_empty().then_some(())
        });
        assert_eq!(self.exchange(20), 0);
    }

    pub(crate) fn finish(mut self) {
        drop(self.server.take());
        self.run(&["remove"]).expect(0);
        self.world.wait_until_idle();
    }
}
