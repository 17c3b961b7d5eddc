//! `weir flows` on a real terminal: tmux.

use std::fs;
use std::io::{Read, Write};
use std::net::{IpAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU8, Ordering};

use weir_sys::NetNs;
use weir_testkit::{PATIENCE, World, until};

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

/// The name of an interface that would turn a terminal red, set its title and clear it.
const HOSTILE: &str = "o\u{1b}[31m\u{1b}]0;x\u{7}0";

/// A gateway in the world's own namespace, a connection through it, and a terminal on it.
struct Desk {
    world: World,
    socket: PathBuf,
    ends: Vec<(TcpStream, TcpStream)>,
    hosts: [NetNs; 2],
    /// The third byte of the first host's address: an address that several namespaces have tells nothing of a process.
    network: u8,
}

/// The networks of the next desk.
static NETWORKS: AtomicU8 = AtomicU8::new(0);

impl Desk {
    fn new() -> Option<Desk> {
        if World::lacks(&["tmux"]) {
            return None;
        }
        let world = World::root(WEIR)?;
        let hosts = [(); 2].map(|()| NetNs::create().unwrap());
        let first = NETWORKS.fetch_add(2, Ordering::Relaxed);
        for (ns, link, network) in [(&hosts[0], "in0", first), (&hosts[1], HOSTILE, first + 1)] {
            let path = format!("/proc/{}/fd/{}", std::process::id(), ns.as_fd().as_raw_fd());
            world.sh(&format!(
                "ip link add '{link}' type veth peer name e0 netns {path}; ip link set '{link}' up; \
                 ip addr add 198.18.{network}.1/24 dev '{link}'; \
                 nsenter --net={path} sh -c 'ip link set lo up; ip addr add 198.18.{network}.2/24 dev e0; \
                 ip link set e0 up; ip route add default via 198.18.{network}.1'"
            ));
        }
        world.sh("sysctl -q net.ipv4.conf.all.forwarding=1");
        let socket = world.folder().join("tmux");
        let desk = Desk { world, socket, ends: Vec::new(), hosts, network: first };
        desk.tmux("new-session -d -s t -x 80 -y 24 'exec sh'");
        desk.tmux("set -g remain-on-exit on");
        Some(desk)
    }

    /// The address of a host.
    fn host(&self, n: u8) -> String {
        format!("198.18.{}.2", self.network + n)
    }

    fn tmux(&self, words: &str) -> String {
        self.world.sh(&format!("tmux -f /dev/null -S {} {words}", self.socket.display()))
    }

    /// Keys as tmux names them.
    fn press(&self, keys: &str) {
        self.tmux(&format!("send-keys -t t {keys}"));
    }

    /// Text that is typed as it is.
    fn write(&self, text: &str) {
        self.tmux(&format!("send-keys -t t -l '{text}'"));
    }

    /// Runs a line of the shell in the terminal.
    fn run(&self, line: &str) {
        self.write(line);
        self.press("Enter");
    }

    fn screen(&self) -> String {
        self.tmux("capture-pane -p -t t")
    }

    #[track_caller]
    fn sees(&self, text: &str) -> String {
        let mut last = String::new();
        until(&format!("the terminal shows {text:?}"), PATIENCE, || {
            last = self.screen();
            last.contains(text).then(|| last.clone())
        })
    }

    /// A flow through the gateway, which stays open.
    fn connect(&mut self, port: u16) {
        let server: IpAddr = self.host(1).parse().unwrap();
        let listener =
            self.hosts[1].run(|| weir_testkit::bound(|| TcpListener::bind((server, port)))).unwrap();
        let to = listener.local_addr().unwrap();
        let mut near = self.hosts[0].run(|| TcpStream::connect(to).unwrap()).unwrap();
        let mut far = listener.accept().unwrap().0;
        far.set_read_timeout(Some(PATIENCE)).unwrap();
        near.write_all(b"hello").unwrap();
        far.read_exact(&mut [0; 5]).unwrap();
        self.ends.push((near, far));
    }

    /// `weir flows` with these options, and a shell behind it that waits.
    fn start(&self, options: &str) {
        self.run(&format!("{WEIR} flows {options}"));
        self.sees("rows by rate");
    }

    /// The process of `weir flows`.
    fn weir(&self) -> Option<u32> {
        let is_weir = |line: &str| line.starts_with(&format!("{WEIR} flows"));
        self.world.processes().into_iter().find(|(_, line)| is_weir(line)).map(|(pid, _)| pid)
    }

    /// The terminal is as it was: first screen, cursor, echo, and lines that are edited.
    #[track_caller]
    fn is_given_back(&self, code: &str) {
        until("weir has ended", PATIENCE, || self.weir().is_none().then_some(()));
        self.run("echo code-$?");
        self.sees(&format!("code-{code}"));
        let modes = self.tmux("display -p -t t '#{alternate_on} #{cursor_flag}'");
        assert_eq!(modes.trim(), "0 1", "second screen off, cursor on");
        self.run("stty -a | tr -d \"\\n\" | grep -o \"[-]*icanon\\|[-]*echo \\|[-]*isig\\|[-]*opost\" | tr \"\\n\" ,");
        self.sees("icanon,");
        let text = self.screen();
        let line = text.lines().find(|l| l.contains("icanon,") && !l.contains("stty")).unwrap_or_default();
        for mode in ["icanon,", "echo ,", "isig,", "opost,"] {
            assert!(line.contains(mode) && !line.contains(&format!("-{mode}")), "{mode}: {text}");
        }
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        // The server has a process group of its own. A failed test may have none any more.
        let _ = std::process::Command::new("tmux").arg("-S").arg(&self.socket).arg("kill-server").output();
    }
}

#[test]
fn root_a_terminal_shows_sorts_filters_and_opens_flows() {
    let Some(mut desk) = Desk::new() else { return };
    desk.start("");
    // No port that the kernel draws begins with 7 or 9.
    desk.connect(7);
    desk.connect(9);
    let server = desk.host(1);
    let screen = desk.sees(&server.replace(".2", ".0/24"));
    println!("{screen}");
    assert!(screen.contains("TCP, UDP through in0,") && screen.contains("from clients"), "{screen}");
    assert!(screen.contains("o0") && !screen.contains("[31m"), "a name is only a name: {screen}");
    desk.press("3");
    desk.sees("2 rows by rate");
    desk.press("/");
    desk.write(":7");
    desk.sees("filter: ");
    desk.press("Enter");
    desk.sees("1 rows by rate");
    desk.press("s");
    desk.sees("1 rows by bytes");
    desk.press("j");
    desk.press("Enter");
    let details = desk.sees("the server's side");
    println!("{details}");
    assert!(details.contains(&format!("{server}:7, by in0")) && details.contains("open,"), "{details}");
    desk.press("Escape");
    desk.press("'?'");
    desk.sees("Draw the screen anew");
    desk.press("'?'");
    // The filter would leave no row.
    desk.press("Escape");
    desk.press("7");
    desk.sees("no flow that is not tracked had 256 KiB");
    // Both ends of both flows are sockets of this test, in namespaces that it holds.
    desk.press("8");
    let process = format!("(pid {})", std::process::id());
    let table = desk.sees(&process);
    println!("{table}");
    assert!(table.contains("7 rest 8 procs") && table.contains(" rows by bytes"), "{table}");
    assert!(table.contains("\n process "), "{table}");
    desk.press("/");
    desk.write("pid=1x");
    desk.sees("no row has all words of the filter");
    desk.press("Escape");
    desk.sees(&process);
    desk.press("j");
    desk.press("Enter");
    let flows = desk.sees("client > server");
    assert!(flows.contains("2 rows by bytes, f"), "{flows}");
    assert!(flows.contains(&format!("{server}:7")) && flows.contains(&format!("{server}:9")), "{flows}");
    desk.press("j");
    desk.press("Enter");
    let details = desk.sees("client process");
    assert!(details.contains("server process") && details.contains(&process), "{details}");
    desk.press("Escape");
    desk.press("Escape");
    desk.sees("2 rows by bytes");
    desk.press("'?'");
    desk.sees("Tab, 1 to 8");
    desk.press("'?'");
    desk.press("f");
    desk.sees("FROZEN");
    desk.press("q");
    desk.is_given_back("0");
}

#[test]
fn root_a_terminal_is_resized_and_gets_garbage() {
    let Some(mut desk) = Desk::new() else { return };
    desk.start("");
    desk.connect(7);
    desk.press("3");
    desk.sees("loss c");
    desk.tmux("resize-window -t t -x 120 -y 40");
    until("the picture fills the larger terminal", PATIENCE, || {
        let screen = desk.screen();
        let has_keys = screen.lines().nth(39).is_some_and(|line| line.contains("q quit"));
        (has_keys && screen.contains("to c")).then_some(())
    });
    for (width, height) in [(20, 5), (1, 1), (200, 60), (80, 24)] {
        desk.tmux(&format!("resize-window -t t -x {width} -y {height}"));
        if width >= 80 {
            desk.sees("q quit  ? help");
        }
    }
    // Bytes that are no key: sequences, their pieces, and what is not UTF-8.
    desk.tmux("send-keys -t t -H 1b 5b 39 39 39 7e 1b 5b 3c 30 3b 31 3b 31 4d ff fe 00 01 1b 4f 1b 5b c3");
    desk.write(&"j".repeat(500));
    desk.press("'?'");
    desk.sees("Draw the screen anew");
    desk.press("Escape");
    desk.sees("client > server");
    desk.press("C-c");
    desk.is_given_back("0");
}

#[test]
fn root_signals_give_the_terminal_back() {
    let Some(desk) = Desk::new() else { return };
    for signal in ["TERM", "HUP", "INT"] {
        desk.run("clear");
        desk.start("");
        let pid = desk.weir().unwrap();
        desk.world.sh(&format!("kill -s {signal} {pid}"));
        desk.is_given_back("0");
    }
    // An end by itself.
    desk.run("clear");
    desk.start("--for 2");
    desk.is_given_back("0");
}

/// The parent is not the shell of the terminal, so that the terminal stays: sudo that is killed, for example.
#[test]
fn root_a_killed_parent_ends_it_and_gives_the_terminal_back() {
    let Some(desk) = Desk::new() else { return };
    desk.run(&format!("sh -c '\"'\"'{WEIR} flows; true'\"'\"'"));
    desk.sees("rows by rate");
    let pid = desk.weir().unwrap();
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let parent = status.lines().find_map(|l| l.strip_prefix("PPid:")).unwrap().trim().to_owned();
    desk.world.sh(&format!("kill -s KILL {parent}"));
    desk.is_given_back("137");
}

/// The terminal itself goes: its window is closed, or the line of ssh ends.
#[test]
fn root_a_terminal_that_is_gone_ends_it() {
    let Some(desk) = Desk::new() else { return };
    desk.start("");
    let pid = desk.weir().unwrap();
    desk.tmux("kill-server");
    until("weir has ended", PATIENCE, || fs::metadata(format!("/proc/{pid}")).is_err().then_some(()));
}

/// Something else than a terminal gets pages or lines as before.
#[test]
fn root_no_terminal_no_sequences() {
    let Some(desk) = Desk::new() else { return };
    let output = desk.world.run(desk.world.weir(&["flows", "--for", "2"])).expect(0);
    assert_eq!(output.stdout.matches("TCP and UDP through").count(), 2, "{}", output.stdout);
    assert!(!output.stdout.contains('\u{1b}'), "{:?}", output.stdout);
}
