//! A host with a container behind a bridge, whose ports are published by the rules that Docker Engine makes, and a client outside.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::fs;
use std::process::Command;

use serde_json::Value;
use weir_testkit::{Background, CommandOutput, PATIENCE, World, until};

/// Answers over TCP (port 8080) and UDP (port 5353), on both versions of IP, with the address that it sees and what it got.
const SERVER: &str = "import socket, sys, threading
def tcp(family):
    s = socket.socket(family); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6: s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    s.bind(('', 8080)); s.listen(64)
    while True:
        c, peer = s.accept()
        threading.Thread(target=answer, args=(c, peer), daemon=True).start()
def answer(c, peer):
    try:
        while data := c.recv(65536): c.sendall(peer[0].encode() + b' ' + data)
    except OSError: pass
    c.close()
def udp(family):
    s = socket.socket(family, socket.SOCK_DGRAM)
    if family == socket.AF_INET6: s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    s.bind(('', 5353))
    while True:
        data, peer = s.recvfrom(65536); s.sendto(peer[0].encode() + b' ' + data, peer)
for family in (socket.AF_INET, socket.AF_INET6):
    for serve in (tcp, udp): threading.Thread(target=serve, args=(family,), daemon=True).start()
print('ready', file=sys.stderr, flush=True)
threading.Event().wait()
";

/// Asks once over TCP and once over UDP, and prints what came back; or with `on`, over one TCP connection until the file
/// `enough` is there, and prints how often it was answered.
const CLIENT: &str = "import json, os, socket, sys, time
address, on = sys.argv[1], len(sys.argv) > 2
family = socket.AF_INET6 if ':' in address else socket.AF_INET
s = socket.create_connection((address, 80), timeout=5)
answered = 0
while True:
    s.sendall(b'over tcp %d' % answered); tcp = s.recv(65536).decode()
    assert tcp.endswith('over tcp %d' % answered), tcp
    answered += 1
    if answered == 3 and on: print('ready', file=sys.stderr, flush=True)
    if not on or os.path.exists('enough'): break
    time.sleep(0.002)
u = socket.socket(family, socket.SOCK_DGRAM); u.settimeout(5); u.connect((address, 53)); u.send(b'over udp')
print(json.dumps({'tcp': tcp, 'udp': u.recv(65536).decode(), 'answered': answered}))
";

/// The published addresses, the client's and the container's, by version of IP.
pub(crate) const PUBLISHED: [&str; 2] = ["198.18.0.1", "2001:2::1"];
pub(crate) const CLIENTS: [&str; 2] = ["198.18.0.2", "2001:2::2"];
pub(crate) const CONTAINERS: [&str; 2] = ["198.19.0.2", "2001:2:0:1::2"];
const BRIDGES: [&str; 2] = ["198.19.0.1", "2001:2:0:1::1"];

/// A world with the interface `out0` to the client, and the bridge `docker0` with the container at `veth1`.
pub(crate) struct Host {
    pub(crate) world: World,
    server: Option<Background>,
}

impl Host {
    /// `None`, and the reason printed, where something is missing.
    pub(crate) fn new(binary: &str) -> Option<Host> {
        let world = World::root(binary)?;
        let programs = ["iptables-nft", "nft", "python3"];
        if World::lacks(&programs) {
            return None;
        }
        world.sh("mkdir -p /run/netns && mount -t bpf bpf /sys/fs/bpf && ip netns add client && \
             ip link add out0 type veth peer name c0 netns client && ip link add docker0 type bridge && \
             ip link set out0 up && ip link set docker0 up && \
             ip -n client link set lo up && ip -n client link set c0 up && \
             echo 1 > /proc/sys/net/ipv4/ip_forward && echo 1 > /proc/sys/net/ipv6/conf/all/forwarding");
        for (version, length) in [(0, 24), (1, 64)] {
            let [published, client, bridge] = [PUBLISHED[version], CLIENTS[version], BRIDGES[version]];
            world.sh(&format!(
                "ip addr add {published}/{length} dev out0 nodad && ip -n client addr add {client}/{length} dev c0 nodad && \
                 ip addr add {bridge}/{length} dev docker0 nodad && ip route add default via {client} && \
                 ip -n client route add default via {published}"
            ));
        }
        world.write("server.py", SERVER);
        world.write("client.py", CLIENT);
        world.sh(&rules());
        let mut host = Host { world, server: None };
        host.start_container("ctr", "veth1");
        // By the rules alone: a bridge's port forwards only some time after its link is there.
        for address in PUBLISHED {
            until("the container answers", PATIENCE, || (host.ask(address).code == 0).then_some(()));
        }
        Some(host)
    }

    /// A container with these addresses, in a namespace and at a link of that name.
    pub(crate) fn start_container(&mut self, namespace: &str, link: &str) {
        self.world.sh(&format!(
            "ip netns add {namespace} && ip link add '{link}' type veth peer name k0 netns {namespace} && \
             ip link set '{link}' master docker0 up && ip -n {namespace} link set lo up && ip -n {namespace} link set k0 up"
        ));
        for (version, length) in [(0, 24), (1, 64)] {
            let (address, bridge) = (CONTAINERS[version], BRIDGES[version]);
            self.world.sh(&format!(
                "ip -n {namespace} addr add {address}/{length} dev k0 nodad && ip -n {namespace} route add default via {bridge}"
            ));
        }
        let mut server = self.world.start(link, self.inside(namespace, &["python3", "server.py"]));
        server.wait_for("ready");
        self.server = Some(server);
    }

    /// Ends the container, and takes its link away.
    pub(crate) fn stop_container(&mut self, namespace: &str, link: &str) {
        if let Some(server) = self.server.take() {
            server.signal("KILL");
            server.end_within(PATIENCE);
        }
        self.world.sh(&format!("ip link del '{link}'; ip netns del {namespace}"));
    }

    fn inside(&self, namespace: &str, words: &[&str]) -> Command {
        let mut command = self.world.command("ip");
        command.args(["netns", "exec", namespace]).args(words);
        command
    }

    pub(crate) fn weir(&self, args: &[&str]) -> Command {
        self.any(&[&["publish"], args].concat())
    }

    /// `weir` with these words, and with the state that belongs to this host.
    pub(crate) fn any(&self, words: &[&str]) -> Command {
        let mut command = self.world.weir(words);
        command.env("WEIR_STATE_DIR", self.world.folder().join("state")).env("WEIR_BPF_DIR", "/sys/fs/bpf");
        command
    }

    /// `weir tune`.
    pub(crate) fn tune(&self, args: &[&str]) -> CommandOutput {
        self.world.run(self.any(&[&["tune"], args].concat()))
    }

    pub(crate) fn tune_json(&self, args: &[&str]) -> Value {
        super::documents::read_any(&self.tune(&[args, &["--json"]].concat()).expect(0).stdout)
    }

    pub(crate) fn run(&self, args: &[&str]) -> CommandOutput {
        self.world.run(self.weir(args))
    }

    pub(crate) fn json(&self, args: &[&str], code: i32) -> Value {
        super::documents::read_any(&self.run(&[args, &["--json"]].concat()).expect(code).stdout)
    }

    /// Its parts in the kernel.
    pub(crate) fn kernel(&self) -> String {
        self.run(&["state"]).expect(0).stdout
    }

    /// The guard processes.
    pub(crate) fn guards(&self) -> Vec<u32> {
        let is_guard = |line: &str| line.contains(" guard publish ") || line.contains(" guard tune ");
        self.world.processes().into_iter().filter(|(_, line)| is_guard(line)).map(|(pid, _)| pid).collect()
    }

    /// The client asks once.
    pub(crate) fn ask(&self, address: &str) -> CommandOutput {
        self.world.run(self.inside("client", &["python3", "client.py", address]))
    }

    /// The client asks over both versions of IP, and the container must have seen its own address.
    #[track_caller]
    pub(crate) fn works(&self) {
        for (published, client) in PUBLISHED.into_iter().zip(CLIENTS) {
            let answer: Value = serde_json::from_str(&self.ask(published).expect(0).stdout).unwrap();
            assert_eq!(answer["tcp"], format!("{client} over tcp 0"));
            assert_eq!(answer["udp"], format!("{client} over udp"));
        }
    }

    /// A client that asks over one connection until the file `enough` is there.
    pub(crate) fn keep_asking(&self, name: &str, address: &str) -> Background {
        let _ = fs::remove_file(self.world.work().join("enough"));
        let mut client =
            self.world.start(name, self.inside("client", &["python3", "client.py", address, "on"]));
        client.wait_for("ready");
        client
    }

    /// How often it was answered.
    pub(crate) fn enough(&self, client: Background) -> u64 {
        self.world.write("enough", "");
        let outcome = client.end_within(PATIENCE).expect(0);
        serde_json::from_str::<Value>(&outcome.stdout).unwrap()["answered"].as_u64().unwrap()
    }

    /// Connections that the rules have translated: each is counted once.
    pub(crate) fn by_the_rules(&self) -> u64 {
        let of = |program: &str| {
            let list = self.world.sh(&format!("{program} -t nat -L DOCKER -v -n -x"));
            let dnat = list.lines().filter(|l| l.contains("DNAT"));
            dnat.map(|l| l.split_whitespace().next().unwrap().parse::<u64>().unwrap()).sum::<u64>()
        };
        of("iptables-nft") + of("ip6tables-nft")
    }

    /// Packets that were translated in a direction, by `status`.
    pub(crate) fn translated(&self, direction: &str) -> u64 {
        let status = self.json(&["status"], 0);
        let containers = status["containers"].as_array().unwrap().iter();
        let counts = containers.flat_map(|c| c["counts"].as_array().unwrap());
        let of_it = counts.filter(|c| c["direction"] == direction && c["reason"] == "translated");
        of_it.map(|c| c["packets"].as_u64().unwrap()).sum()
    }

    /// The names in the BPF file system, but for what the kernel puts there itself.
    pub(crate) fn pins(&self) -> String {
        self.world.sh("find /sys/fs/bpf -mindepth 1 ! -name '*.debug'")
    }
}

/// As Docker Engine 28 makes them for `-p 80:8080 -p 198.18.0.1:53:5353/udp` with IPv6.
fn rules() -> String {
    let mut script = String::new();
    for (version, program) in ["iptables-nft", "ip6tables-nft"].into_iter().enumerate() {
        let (container, published) = (CONTAINERS[version], PUBLISHED[version]);
        let (end, network) = match version {
            0 => (container.to_owned(), "198.19.0.0/24"),
            _ => (format!("[{container}]"), "2001:2:0:1::/64"),
        };
        script.push_str(&format!(
            "{program} -t nat -N DOCKER
             {program} -t nat -A PREROUTING -m addrtype --dst-type LOCAL -j DOCKER
             {program} -t nat -A OUTPUT -m addrtype --dst-type LOCAL -j DOCKER
             {program} -t nat -A POSTROUTING -s {network} ! -o docker0 -j MASQUERADE
             {program} -t nat -A DOCKER -i docker0 -j RETURN
             {program} -t nat -A DOCKER ! -i docker0 -p tcp -m tcp --dport 80 -j DNAT --to-destination {end}:8080
             {program} -t nat -A DOCKER -d {published} ! -i docker0 -p udp -m udp --dport 53 -j DNAT --to-destination {end}:5353
             {program} -P FORWARD DROP
             {program} -N DOCKER-USER
             {program} -N DOCKER
             {program} -A FORWARD -j DOCKER-USER
             {program} -A FORWARD -o docker0 -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
             {program} -A FORWARD -o docker0 -j DOCKER
             {program} -A FORWARD -i docker0 -j ACCEPT
             {program} -A DOCKER-USER -j RETURN
             {program} -A DOCKER -d {container} ! -i docker0 -o docker0 -p tcp -m tcp --dport 8080 -j ACCEPT
             {program} -A DOCKER -d {container} ! -i docker0 -o docker0 -p udp -m udp --dport 5353 -j ACCEPT
             {program} -A DOCKER ! -i docker0 -o docker0 -j DROP
            "
        ));
    }
    format!("set -e\n{script}")
}
