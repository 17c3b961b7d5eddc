//! Connections that transfer all the while, when `weir publish` comes and goes.

mod documents;
mod publish_world;

use std::fs;

use publish_world::{CONTAINERS, Host, PUBLISHED};
use serde_json::Value;
use weir_testkit::{Background, PATIENCE, until};

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

/// More than any window: what is known of the connection before that says nothing about it after that.
const MUCH: u64 = 32 << 20;

/// Sends back what comes, over both versions of IP.
const SERVER: &str = "import socket, sys, threading
def serve(family):
    s = socket.socket(family); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if family == socket.AF_INET6: s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    s.bind(('', int(sys.argv[1]))); s.listen(64)
    while True:
        threading.Thread(target=answer, args=(s.accept()[0],), daemon=True).start()
def answer(c):
    try:
        while data := c.recv(1 << 20): c.sendall(data)
        c.shutdown(socket.SHUT_WR)
    except OSError as e: print(e, file=sys.stderr, flush=True)
for family in (socket.AF_INET, socket.AF_INET6): threading.Thread(target=serve, args=(family,), daemon=True).start()
print('ready', file=sys.stderr, flush=True)
threading.Event().wait()
";

/// Sends numbers and takes them back in their order, until 8 MiB after the file `enough` is there. Prints how many bytes came back.
const CLIENT: &str = "import json, os, socket, struct, sys, threading
PART = 1 << 16
def part(n): return struct.pack('>Q', n) * (PART // 8)
address, port = sys.argv[1], int(sys.argv[2])
s = socket.create_connection((address, port), timeout=60); s.settimeout(60)
last = None
def send():
    global last
    n = 0
    while last is None or n < last:
        s.sendall(part(n)); n += 1
        if n == 16: print('ready', file=sys.stderr, flush=True)
        if last is None and os.path.exists('enough'): last = n + (8 << 20) // PART
    s.shutdown(socket.SHUT_WR)
sender = threading.Thread(target=send, daemon=True); sender.start()
n, rest = 0, b''
while data := s.recv(1 << 20):
    rest += data
    while len(rest) >= PART:
        assert rest[:PART] == part(n), 'part %d is another one' % n
        rest = rest[PART:]; n += 1
sender.join()
assert not rest and n == last, '%d of %s parts, and %d bytes' % (n, last, len(rest))
print(json.dumps({'answered': n * PART}))
";

fn inside(host: &Host, namespace: &str, words: &[&str]) -> std::process::Command {
    let mut command = host.world.command("ip");
    command.args(["netns", "exec", namespace]).args(words);
    command
}

/// Port 81 becomes 8081, and 8082 stays.
fn publish_more(host: &Host) {
    let [v4, v6] = CONTAINERS;
    for (program, address, container) in
        [("iptables-nft", v4, v4.to_owned()), ("ip6tables-nft", v6, format!("[{v6}]"))]
    {
        for (published, inner) in [(81, 8081), (8082, 8082)] {
            host.world.sh(&format!(
                "{program} -t nat -A DOCKER ! -i docker0 -p tcp -m tcp --dport {published} -j DNAT --to-destination {container}:{inner}
                 {program} -I DOCKER -d {address} ! -i docker0 -o docker0 -p tcp -m tcp --dport {inner} -j ACCEPT"
            ));
        }
    }
}

/// A host whose container also sends back what comes to these ports.
fn host() -> Option<(Host, Background)> {
    let host = Host::new(WEIR)?;
    publish_more(&host);
    host.world.write("sendback.py", SERVER);
    host.world.write("bulk.py", CLIENT);
    let server = "for port in 8081 8082; do python3 sendback.py $port & done; wait";
    let mut server = host.world.start("sendback", inside(&host, "ctr", &["sh", "-c", server]));
    server.wait_for("ready");
    for address in PUBLISHED {
        for port in [81, 8082] {
            until("the server answers", PATIENCE, || {
                let probe = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=1).close()";
                let words = ["python3", "-c", probe, address, &port.to_string()];
                (host.world.run(inside(&host, "client", &words)).code == 0).then_some(())
            });
        }
    }
    Some((host, server))
}

/// Clients that transfer until it is enough.
fn clients(host: &Host, ports: &[u16]) -> Vec<Background> {
    let _ = fs::remove_file(host.world.work().join("enough"));
    let mut clients = Vec::new();
    for address in PUBLISHED {
        for port in ports {
            let port = port.to_string();
            let name = format!("bulk-{}-{port}", address.replace(':', "-"));
            let words = ["python3", "bulk.py", address, &port];
            let mut client = host.world.start(&name, inside(host, "client", &words));
            client.wait_for("ready");
            clients.push(client);
        }
    }
    clients
}

/// Bytes that were translated for the container's mappings, both directions and versions together.
fn translated_bytes(host: &Host) -> u64 {
    let status = host.json(&["status"], 0);
    let containers = status["containers"].as_array().unwrap().iter();
    let counts = containers.flat_map(|c| c["counts"].as_array().unwrap());
    counts.filter(|c| c["reason"] == "translated").map(|c| c["bytes"].as_u64().unwrap()).sum()
}

fn transferred(host: &Host, clients: Vec<Background>) {
    host.world.write("enough", "");
    for client in clients {
        let outcome = client.end_within(3 * PATIENCE).expect(0);
        let told: Value = serde_json::from_str(&outcome.stdout).unwrap();
        assert!(told["answered"].as_u64().unwrap() >= 8 << 20, "{told}");
    }
}

/// Greets, and speaks again when the file `speak` is there; says how that went, each line in one write: two threads speak.
const SPEAKER: &str = "import os, socket, sys, threading, time
def serve(port):
    s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    s.bind(('', port)); s.listen(8); c = s.accept()[0]; c.settimeout(60)
    c.sendall(b'hello')
    while not os.path.exists('speak'): time.sleep(0.002)
    c.sendall(b'again')
    try: outcome = c.recv(16).decode()
    except OSError as e: outcome = type(e).__name__
    sys.stderr.write(f'{port} {outcome}\\n')
for port in (8081, 8082): threading.Thread(target=serve, args=(port,), daemon=True).start()
print('ready', file=sys.stderr, flush=True)
threading.Event().wait()
";

/// Listens on two ports of the container, and answers what it hears last.
const LISTENER: &str = "import socket, sys, threading
def ask(port):
    s = socket.create_connection((sys.argv[1], port), timeout=60); s.settimeout(60)
    assert s.recv(5) == b'hello'
    sys.stderr.write(f'ready {port}\\n')
    if s.recv(5) == b'again': s.sendall(b'heard')
for port in (81, 8082): threading.Thread(target=ask, args=(port,), daemon=True).start()
threading.Event().wait()
";

#[test]
fn root_who_is_spoken_to_from_another_port_is_lost_and_nobody_else() {
    let Some(host) = Host::new(WEIR) else { return };
    publish_more(&host);
    host.world.write("speaker.py", SPEAKER);
    host.world.write("listener.py", LISTENER);
    let mut speaker = host.world.start("speaker", inside(&host, "ctr", &["python3", "speaker.py"]));
    speaker.wait_for("ready");
    host.run(&["apply", "--all", "--no-guard"]).expect(0);
    let words = ["python3", "listener.py", PUBLISHED[0]];
    let mut listener = host.world.start("listener", inside(&host, "client", &words));
    listener.wait_for("ready 81");
    listener.wait_for("ready 8082");
    host.run(&["remove"]).expect(0);
    host.world.write("speak", "");
    // As the manual says: a fixed mapping of one port to another is what the rules cannot tell from the middle.
    speaker.wait_for("8082 heard");
    speaker.wait_for("8081 ConnectionResetError");
    listener.signal("KILL");
    listener.end_within(PATIENCE);
}

/// So much is translated, of all clients together.
fn much(host: &Host, clients: usize) {
    let before = translated_bytes(host);
    until("much is transferred", 3 * PATIENCE, || {
        (translated_bytes(host) - before > MUCH * clients as u64).then_some(())
    });
}

#[test]
fn root_transfers_that_began_before_go_on_while_it_is_there_and_when_it_is_gone() {
    let Some((host, _server)) = host() else { return };
    let clients = clients(&host, &[81, 8082]);
    host.run(&["apply", "--all", "--no-guard"]).expect(0);
    much(&host, clients.len());
    host.run(&["remove"]).expect(0);
    assert_eq!(host.pins(), "");
    transferred(&host, clients);
}

#[test]
fn root_transfers_that_began_by_it_go_on_when_it_is_gone() {
    let Some((host, _server)) = host() else { return };
    host.run(&["apply", "--all", "--no-guard"]).expect(0);
    let clients = clients(&host, &[81, 8082]);
    much(&host, clients.len());
    host.run(&["remove"]).expect(0);
    assert_eq!(host.pins(), "");
    transferred(&host, clients);
}

#[test]
fn root_a_folder_of_state_may_be_told_from_where_one_is() {
    let Some(host) = Host::new(WEIR) else { return };
    let weir = |args: &[&str]| {
        let mut command = host.weir(args);
        command.env("WEIR_STATE_DIR", "own/state").env("WEIR_BPF_DIR", "own/bpf");
        host.world.run(command)
    };
    let kernel = || weir(&["state"]).expect(0).stdout;
    host.world.sh("mkdir -p own/bpf && mount -t bpf bpf own/bpf");
    weir(&["apply", "198.18.0.1:53=198.19.0.2:5353/udp", "--no-guard"]).expect(0);
    let first = kernel();
    weir(&["apply", "--all", "--confirm-within", "1h"]).expect(0);
    assert_ne!(kernel(), first);
    host.world.sh(&format!("kill -TERM {}", host.guards()[0]));
    until("the first one is back", PATIENCE, || (kernel() == first).then_some(()));
    until("the guard goes", PATIENCE, || host.guards().is_empty().then_some(()));
    weir(&["remove"]).expect(0);
    assert_eq!(host.world.sh("find own/bpf -mindepth 1 ! -name '*.debug'"), "");
    assert_eq!(host.pins(), "", "nothing was put where it is by default");
}
