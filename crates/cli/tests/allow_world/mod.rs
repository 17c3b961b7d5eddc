//! A host with an outside: lists are loaded on the host, and packets come from addresses of the outside.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use weir_testkit::{Background, CommandOutput, PATIENCE, World, until};

/// The programs that each of them needs, and root.
pub(crate) const BACKENDS: [&str; 3] = ["bpf", "nft", "ipset"];
/// Addresses of the outside: one that the tests' lists have, and one that they have not.
pub(crate) const LISTED: [&str; 2] = ["198.18.0.2", "2001:2::2"];
pub(crate) const UNLISTED: [&str; 2] = ["198.18.0.3", "2001:2::3"];
/// The host's own.
const HOST: [&str; 2] = ["198.18.0.1", "2001:2::1"];

/// Receives datagrams until the file `stop` is there and none has come for the seconds that are asked for, and prints how many
/// different ones came from each source.
const RECEIVER: &str = "import json, os, select, socket, sys
quiet = float(sys.argv[1])
sockets = []
for family, address in ((socket.AF_INET, '0.0.0.0'), (socket.AF_INET6, '::')):
    s = socket.socket(family, socket.SOCK_DGRAM)
    if family == socket.AF_INET6: s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    s.setsockopt(socket.SOL_SOCKET, 33, 64 << 20)  # SO_RCVBUFFORCE
    s.bind((address, 7000)); s.setblocking(False); sockets.append(s)
print('ready', file=sys.stderr, flush=True)
seen = {}
while True:
    ready, _, _ = select.select(sockets, [], [], quiet)
    if not ready and os.path.exists('stop'): break
    for s in ready:
        data, source = s.recvfrom(64)
        seen.setdefault(source[0], set()).add(data)
for source, numbers in seen.items():
    highest = max(map(int, numbers))
    absent = [n for n in range(highest) if str(n).encode() not in numbers]
    print(f'{source}: the highest number is {highest}; {len(absent)} absent, such as {absent[:10]}', file=sys.stderr)
print(json.dumps({source: len(numbers) for source, numbers in seen.items()}))
";

/// Sends numbered datagrams from each address that is named, about a thousand a second, until the file `enough` is there, or as
/// many as are asked for; prints how many from each.
const SENDER: &str = "import json, os, socket, sys, time
most, sources = int(sys.argv[1]), sys.argv[2:]
def bound(a):
    s = socket.socket(socket.AF_INET6 if ':' in a else socket.AF_INET, socket.SOCK_DGRAM); s.bind((a, 0)); return s
sockets = {a: bound(a) for a in sources}
sent = 0
print('ready', file=sys.stderr, flush=True)
while sent < most and not os.path.exists('enough'):
    for a, s in sockets.items():
        s.sendto(str(sent).encode(), ('2001:2::1' if ':' in a else '198.18.0.1', 7000))
    sent += 1
    time.sleep(0.001)
print(json.dumps({a: sent for a in sources}))
";

/// A world with the interface `in0` to the outside, and a folder of state of its own.
pub(crate) struct Gate {
    pub(crate) world: World,
}

impl Gate {
    /// `None`, and the reason printed, where something is missing.
    pub(crate) fn new(binary: &str) -> Option<Gate> {
        let world = World::root(binary)?;
        let programs = ["nft", "ipset", "iptables", "python3"];
        if World::lacks(&programs) {
            return None;
        }
        world.sh("mkdir -p /run/netns && mount -t bpf bpf /sys/fs/bpf && ip netns add out && \
             ip link add in0 type veth peer name out0 netns out && ip link set in0 up && \
             ip -n out link set lo up && ip -n out link set out0 up");
        for address in HOST {
            world.sh(&format!("ip addr add {address}/{} dev in0 nodad", length(address)));
        }
        for address in LISTED.iter().chain(&UNLISTED) {
            world.sh(&format!("ip -n out addr add {address}/{} dev out0 nodad", length(address)));
        }
        world.write("receiver.py", RECEIVER);
        world.write("sender.py", SENDER);
        Some(Gate { world })
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.world.folder().join("state")
    }

    pub(crate) fn weir(&self, args: &[&str]) -> Command {
        let mut command = self.world.weir(&[&["allow"], args].concat());
        command.env("WEIR_STATE_DIR", self.state()).env("WEIR_BPF_DIR", "/sys/fs/bpf");
        // The user's who runs the tests.
        command.env_remove("SSH_CONNECTION").env_remove("SSH_CLIENT");
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> CommandOutput {
        self.world.run(self.weir(args))
    }

    pub(crate) fn json(&self, args: &[&str]) -> Value {
        super::documents::read_any(&self.run(&[args, &["--json"]].concat()).expect(0).stdout)
    }

    /// The list that the tests load most: both listed addresses, and `more` prefixes that no host here has.
    pub(crate) fn list(&self, name: &str, more: u32) -> PathBuf {
        let mut text = LISTED.join("\n");
        text.push('\n');
        for n in 0..more {
            text.push_str(&format!("10.{}.{}.0/25\n2001:db8:{n:x}::/49\n", n >> 8 & 255, n & 255));
        }
        self.world.write(name, text)
    }

    /// Loads a list on trial, for an hour.
    pub(crate) fn apply(&self, list: &str, backend: &str, more: &[&str]) -> CommandOutput {
        let hour: &[&str] =
            if more.contains(&"--confirm-within") { &[] } else { &["--confirm-within", "1h"] };
        let args = ["apply", list, "-i", "in0", "--backend", backend];
        self.run(&[&args[..], hour, more].concat())
    }

    /// The programs and rules in the kernel.
    pub(crate) fn kernel(&self) -> String {
        self.run(&["state"]).expect(0).stdout
    }

    /// The guard processes.
    pub(crate) fn guards(&self) -> Vec<u32> {
        let is_guard = |line: &str| line.contains(" guard allow ");
        self.world.processes().into_iter().filter(|(_, line)| is_guard(line)).map(|(pid, _)| pid).collect()
    }

    fn outside(&self, program: &str, args: &[&str]) -> Command {
        let mut command = self.world.command("ip");
        command.args(["netns", "exec", "out", program]).args(args);
        command
    }

    /// Sends datagrams from each of these, and says how many came of how many: (sent, received) by address.
    pub(crate) fn send(&self, sources: &[&str], count: u32) -> Vec<(u64, u64)> {
        let flood = Flood::begin(self, sources, count);
        flood.end(false)
    }
}

/// 24 or 64.
fn length(address: &str) -> u8 {
    if address.contains(':') { 64 } else { 24 }
}

/// Datagrams on their way.
pub(crate) struct Flood<'a> {
    gate: &'a Gate,
    receiver: Background,
    sender: Background,
    sources: Vec<String>,
}

impl<'a> Flood<'a> {
    pub(crate) fn begin(gate: &'a Gate, sources: &[&str], count: u32) -> Flood<'a> {
        for name in ["stop", "enough"] {
            let _ = fs::remove_file(gate.world.work().join(name));
        }
        let mut command = gate.world.command("python3");
        // A busy machine may hand over the last ones late, above all those of a flood.
        command.args(["receiver.py", if count == u32::MAX { "2" } else { "0.3" }]);
        let mut receiver = gate.world.start("receiver", command);
        receiver.wait_for("ready");
        let count = count.to_string();
        let args = [&["sender.py", &count][..], sources].concat();
        let mut sender = gate.world.start("sender", gate.outside("python3", &args));
        sender.wait_for("ready");
        Flood { gate, receiver, sender, sources: sources.iter().map(|s| (*s).to_owned()).collect() }
    }

    /// Ends it when all are sent, or at once.
    pub(crate) fn end(self, at_once: bool) -> Vec<(u64, u64)> {
        if at_once {
            self.gate.world.write("enough", "");
        }
        let sent = printed("sender", &self.sender);
        self.gate.world.write("stop", "");
        let received = printed("receiver", &self.receiver);
        println!("{}", self.receiver.said());
        let of = |counts: &Value, source: &String| counts[source].as_u64().unwrap_or(0);
        self.sources.iter().map(|source| (of(&sent, source), of(&received, source))).collect()
    }
}

/// The line of JSON at a program's end.
fn printed(name: &str, program: &Background) -> Value {
    until(name, PATIENCE, || serde_json::from_str(&program.printed()).ok())
}

/// The names in `path`, below a folder that may not be there.
pub(crate) fn names(path: &Path) -> Vec<String> {
    let mut names: Vec<String> = fs::read_dir(path)
        .map(|entries| entries.flatten().map(|e| e.file_name().to_string_lossy().into_owned()).collect())
        .unwrap_or_default();
    names.sort_unstable();
    names
}
