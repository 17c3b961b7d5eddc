//! A lab as other processes see it: the list, entering a host, cleaning, `kill -9`, and a normal user's lab.
//!
//! Without the usual harness: several parts are processes of their own, namely this program started again with an argument.

use std::fs::Permissions;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use weir_lab::emulate::Emulation;
use weir_lab::registry::{self, Cleaned};
use weir_lab::{Lab, LabOptions, Link, Role, SiteSpec, Topology};
use weir_netlink::{Rtnetlink, VethEnd};
use weir_sys::process::{self, Identity};
use weir_sys::{NetNs, ProcRoot, privilege, sysctl};

const LONG: Duration = Duration::from_secs(20);
/// The user `nobody`, without any privilege.
const NOBODY: u32 = 65_534;

type Test = (&'static str, fn());
const TESTS: [Test; 6] = [
    ("root_a_lab_is_listed_and_entered_and_goes_in_good_order", listed_entered_gone),
    ("root_kill_9_leaves_no_namespace_and_clean_takes_the_rest", kill_9),
    ("root_clean_does_not_touch_successors", successors),
    ("root_a_normal_user_has_a_lab", normal_user),
    ("root_unanswered_connections_do_not_keep_a_namespace", unanswered),
    ("root_five_sites_go_up_and_down_in_two_seconds", five_sites),
];

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.first().map(String::as_str) {
        Some("hold-a-lab") => hold_a_lab(),
        Some("hold-a-lab-as-user") => {
            registry::enter_user_namespace().unwrap();
            hold_a_lab();
        }
        Some("run") => TESTS.iter().find(|(name, _)| *name == arguments[1]).unwrap().1(),
        // Test runners ask a harness for this list.
        Some("--list") => TESTS.iter().for_each(|(name, _)| println!("{name}: test")),
        filter => run_all(filter.filter(|f| !f.starts_with('-'))),
    }
}

/// Each test in a process of its own with a list of labs of its own.
fn run_all(filter: Option<&str>) {
    if privilege::test_needs_root() {
        // The one skip that was printed.
        conclude(1, 0);
    }
    let (mut passed, mut failed) = (0, 0);
    for (name, _) in TESTS.iter().filter(|(name, _)| filter.is_none_or(|f| name.contains(f))) {
        // Below /run, because that is what a user namespace hides.
        let directory = PathBuf::from(format!("/run/weir-test-{}", std::process::id()));
        std::fs::create_dir(&directory).unwrap();
        let own = std::env::current_exe().unwrap();
        let status =
            Command::new(own).args(["run", name]).env("WEIR_RUNTIME_DIR", &directory).status().unwrap();
        std::fs::remove_dir_all(&directory).unwrap();
        println!("test {name} ... {}", if status.success() { "ok" } else { "FAILED" });
        passed += i32::from(status.success());
        failed += i32::from(!status.success());
    }
    conclude(passed, failed)
}

/// Ends with the closing line of Rust's own harness, by which a script that counts tests knows that they ran.
fn conclude(passed: i32, failed: i32) -> ! {
    let outcome = if failed == 0 { "ok" } else { "FAILED" };
    println!(
        "\ntest result: {outcome}. {passed} passed; {failed} failed; 0 ignored; 0 measured; 0 filtered out"
    );
    std::process::exit(failed);
}

fn directory() -> PathBuf {
    std::env::var_os("WEIR_RUNTIME_DIR").unwrap().into()
}

/// Builds a lab, proves that it carries traffic, starts a process that must die with it and one that survives, says so, and
/// takes everything down at the end of input.
fn hold_a_lab() {
    let spec = SiteSpec { name: "s".into(), topology: Topology::Routed, return_route: true, wan: true };
    let mut lab = Lab::build("held", &LabOptions::default(), &[spec]).unwrap();
    let link: Link =
        serde_json::from_str(r#"{"delay": "1ms", "loss-every": 1000, "rate": "1gbit"}"#).unwrap();
    let mut held = Emulation::start(&lab.sites()[0], &link).unwrap();
    held.begin(0).unwrap();
    let host = |role| lab.sites()[0].host(role).unwrap().clone();
    let gateway = host(Role::Gateway);
    gateway.run(|| sysctl::set(&ProcRoot::new("/"), "net.ipv4.ip_forward", "1").unwrap()).unwrap();
    let target = (lab.sites()[0].addresses().responder, 5000);
    let listener = host(Role::Responder).run(|| TcpListener::bind(target).unwrap()).unwrap();
    let mut client = host(Role::Initiator).run(|| TcpStream::connect(target).unwrap()).unwrap();
    client.write_all(b"through").unwrap();
    let mut seen = [0; 7];
    listener.accept().unwrap().0.read_exact(&mut seen).unwrap();
    assert_eq!(&seen, b"through");
    let [egress, ingress] = held.crossed().unwrap();
    // At least SYN and the data sent, and the answers of TCP.
    assert!(egress.passed.packets >= 2 && ingress.passed.packets >= 1, "{egress:?} {ingress:?}");
    // A killed process cannot wait until the ends have agreed that it is over, which takes the link's two milliseconds.
    drop((client, listener));

    let mut command = Command::new("sleep");
    command.arg("1000");
    gateway.enter_on_spawn(&mut command);
    let dies = process::spawn(command).unwrap();
    let mut command = Command::new("sleep");
    command.arg("1000").process_group(0);
    gateway.enter_on_spawn(&mut command);
    let survives = command.spawn().unwrap();
    lab.registry().add_process(dies.pid()).unwrap();
    lab.registry().add_process(survives.id()).unwrap();
    let wan = lab.sites()[0].wan().unwrap().as_fd().as_raw_fd();
    println!("ready {} {} {wan}", dies.pid(), survives.id());
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    stop(survives);
    drop((dies, held));
    drop(lab);
}

fn stop(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

/// A process with a lab: itself, the pids that it said, and its descriptor of the wan.
fn start(program: &Path, mode: &str, user: Option<u32>) -> (Child, Vec<u32>, i32) {
    let mut command = Command::new(program);
    command.arg(mode).stdin(Stdio::piped()).stdout(Stdio::piped());
    if let Some(user) = user {
        command.uid(user).gid(user);
    }
    let mut child = command.spawn().unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let pids = line.strip_prefix("ready ").unwrap_or_else(|| panic!("the helper said `{line}`"));
    let mut numbers: Vec<u32> = pids.split_whitespace().map(|pid| pid.parse().unwrap()).collect();
    let wan = numbers.pop().unwrap();
    (child, numbers, wan.cast_signed())
}

/// A link from a namespace of ours into one of another process: it goes when that namespace does.
struct NamespaceWatch {
    ours: NetNs,
}

impl NamespaceWatch {
    fn on(pid: u32, fd: i32) -> Self {
        let ours = NetNs::create().unwrap();
        let theirs = NetNs::open(format!("/proc/{pid}/fd/{fd}")).unwrap();
        let end = |name, namespace| VethEnd { name, namespace: Some(namespace), mtu: 1500, mac: None };
        Rtnetlink::open_in(&ours).unwrap().create_veth(end("watch", &ours), end("watch", &theirs)).unwrap();
        NamespaceWatch { ours }
    }

    fn is_there(&self) -> bool {
        Rtnetlink::open_in(&self.ours).unwrap().interface("watch").is_ok()
    }

    fn wait_until_gone(&self) {
        let deadline = Instant::now() + LONG;
        while self.is_there() {
            assert!(Instant::now() < deadline, "the namespace is still there");
            std::thread::yield_now();
        }
    }
}

/// The output of a command in a host of a lab. Everything that keeps the namespace is gone afterwards.
fn output(entry: &registry::Entry, role: Role, line: &str) -> String {
    let mut words = line.split_whitespace();
    let mut command = entry.command("s", role, words.next().unwrap()).unwrap();
    let output = command.args(words).output().unwrap();
    assert!(output.status.success(), "{line}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn own_program() -> PathBuf {
    std::env::current_exe().unwrap()
}

fn listed_entered_gone() {
    assert_eq!(registry::list().unwrap(), []);
    let (mut holder, pids, wan) = start(&own_program(), "hold-a-lab", None);
    let entry = registry::list().unwrap().remove(0);
    assert_eq!((entry.run.as_str(), entry.runner.pid), ("held", holder.id()));
    assert!(entry.is_running().unwrap());
    assert_eq!(entry.processes.iter().map(|p| p.pid).collect::<Vec<_>>(), pids);

    assert_eq!(output(&entry, Role::Gateway, "cat /proc/sys/net/ipv4/ip_forward"), "1\n");
    let shown = output(&entry, Role::Responder, "ip -o addr show eth0");
    assert!(shown.contains("198.19.0.2/24"), "{shown}");
    let error = entry.command("t", Role::Gateway, "cat").unwrap_err().to_string();
    assert!(error.contains("no host t/gateway; it has s/initiator, s/gateway, s/responder"), "{error}");

    assert_eq!(registry::clean(false).unwrap(), [Cleaned::InUse(entry.clone())]);
    let all = entry.hosts.iter().map(|host| host.fd).chain([wan]);
    let watches: Vec<NamespaceWatch> = all.map(|fd| NamespaceWatch::on(entry.runner.pid, fd)).collect();
    drop(holder.stdin.take());
    assert!(holder.wait().unwrap().success());
    watches.iter().for_each(NamespaceWatch::wait_until_gone);
    assert_eq!(registry::list().unwrap(), []);
    assert!(entry.command("s", Role::Gateway, "cat").unwrap_err().to_string().contains("gone"));
}

fn kill_9() {
    let (holder, pids, wan) = start(&own_program(), "hold-a-lab", None);
    let entry = registry::list().unwrap().remove(0);
    let watch = |role| {
        let host = entry.hosts.iter().find(|host| host.role == role).unwrap();
        NamespaceWatch::on(entry.runner.pid, host.fd)
    };
    let (initiator, gateway, responder) =
        (watch(Role::Initiator), watch(Role::Gateway), watch(Role::Responder));
    let wan = NamespaceWatch::on(entry.runner.pid, wan);
    let identity = |pid| Identity::of(pid).unwrap();
    let (dies, survives) = (identity(pids[0]).unwrap(), identity(pids[1]).unwrap());
    stop(holder);
    initiator.wait_until_gone();
    responder.wait_until_gone();
    wan.wait_until_gone();
    let deadline = Instant::now() + LONG;
    while dies.is_running().unwrap() {
        assert!(Instant::now() < deadline, "the child of a killed process still runs");
        std::thread::yield_now();
    }
    assert!(survives.is_running().unwrap() && gateway.is_there(), "the stray keeps its namespace");

    let expected = [Cleaned::Cleared(entry, 1)];
    assert_eq!(registry::clean(false).unwrap(), expected);
    assert!(!survives.is_running().unwrap());
    gateway.wait_until_gone();
    assert_eq!(registry::list().unwrap(), []);
    assert_eq!(std::fs::read_dir(directory()).unwrap().count(), 0);
}

fn successors() {
    let mut command = Command::new("sleep");
    command.arg("1000");
    let mut child = process::spawn(command).unwrap();
    let now = Identity::of(child.pid()).unwrap().unwrap();
    let before = Identity { start_ticks: now.start_ticks - 1, ..now };
    let entry = registry::Entry {
        run: "old".into(),
        runner: before,
        hosts: Vec::new(),
        processes: vec![before, before],
    };
    std::fs::write(directory().join("old.json"), serde_json::to_string(&entry).unwrap()).unwrap();
    assert_eq!(registry::clean(true).unwrap(), [Cleaned::Cleared(entry, 0)]);
    assert!(child.try_wait().unwrap().is_none());

    // A file that cannot be understood is named and left for the user to look at.
    let path = directory().join("broken.json");
    std::fs::write(&path, "{").unwrap();
    assert!(registry::clean(true).unwrap_err().to_string().contains("broken.json"));
    assert!(path.exists());
}

fn normal_user() {
    // Another user may not reach the place where this program was built.
    let program = directory().join("program");
    std::fs::copy(own_program(), &program).unwrap();
    std::fs::set_permissions(&program, Permissions::from_mode(0o755)).unwrap();
    std::os::unix::fs::chown(directory(), Some(NOBODY), Some(NOBODY)).unwrap();
    let (mut holder, pids, _) = start(&program, "hold-a-lab-as-user", Some(NOBODY));
    let status = std::fs::read_to_string(format!("/proc/{}/status", holder.id())).unwrap();
    assert!(status.lines().any(|l| l.starts_with("Uid:\t65534\t65534")), "it is a normal user outside");

    let entry = registry::list().unwrap().remove(0);
    assert_eq!(entry.runner.pid, holder.id());
    let shown = output(&entry, Role::Responder, "ip -o addr show eth0");
    assert!(shown.contains("198.19.0.2/24"), "{shown}");
    let shown = output(&entry, Role::Gateway, "cat /proc/sys/net/ipv4/ip_forward");
    assert_eq!(shown, "1\n");

    let survives = Identity::of(pids[1]).unwrap().unwrap();
    drop(holder.stdin.take());
    assert!(holder.wait().unwrap().success());
    assert!(!survives.is_running().unwrap());
    assert_eq!(registry::list().unwrap(), []);
}

fn unanswered() {
    let spec = SiteSpec { name: "s".into(), topology: Topology::Direct, return_route: false, wan: false };
    let lab = Lab::build("unanswered", &LabOptions::default(), &[spec]).unwrap();
    let site = lab.site("s").unwrap();
    let host = |role| site.host(role).unwrap();
    let target = (site.addresses().responder, 5000);
    let listener = host(Role::Responder).run(|| TcpListener::bind(target).unwrap()).unwrap();
    let mut client = host(Role::Initiator).run(|| TcpStream::connect(target).unwrap()).unwrap();
    let server = listener.accept().unwrap().0;
    Rtnetlink::open_in(host(Role::Responder)).unwrap().delete("eth0").unwrap();
    // Data sent now is never acknowledged, so the closed connection has something left to do.
    client.write_all(b"into the void").unwrap();
    let entry = registry::list().unwrap().remove(0);
    let watch = NamespaceWatch::on(std::process::id(), entry.hosts[0].fd);
    drop((client, server, listener));
    drop(lab);
    let start = Instant::now();
    watch.wait_until_gone();
    println!("an unanswered connection kept its namespace for {:?}", start.elapsed());
}

fn five_sites() {
    let topologies =
        [Topology::Direct, Topology::Routed, Topology::Routed, Topology::Routed, Topology::Bridged];
    let specs: Vec<SiteSpec> = topologies
        .iter()
        .enumerate()
        .map(|(i, topology)| SiteSpec {
            name: format!("s{i}"),
            topology: *topology,
            return_route: true,
            wan: false,
        })
        .collect();
    let options: LabOptions = serde_json::from_str(r#"{"offloads": "off"}"#).unwrap();
    let mut best = (Duration::MAX, Duration::MAX);
    // The best of three: what the lab costs, not what the machine was busy with.
    for _ in 0..3 {
        let start = Instant::now();
        let lab = Lab::build("five", &options, &specs).unwrap();
        best.0 = best.0.min(start.elapsed());
        let entry = registry::list().unwrap().remove(0);
        let watches: Vec<NamespaceWatch> =
            entry.hosts.iter().map(|host| NamespaceWatch::on(std::process::id(), host.fd)).collect();
        let start = Instant::now();
        drop(lab);
        watches.iter().for_each(NamespaceWatch::wait_until_gone);
        best.1 = best.1.min(start.elapsed());
    }
    println!("five sites: up in {:?}, all namespaces gone in {:?}", best.0, best.1);
    assert!(best.0 < Duration::from_secs(2) && best.1 < Duration::from_secs(2));
}
