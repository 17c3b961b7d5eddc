//! A world with a folder for journals, and settings to change in it.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use weir_testkit::{Background, CommandOutput, PATIENCE, World, until};

/// Three settings of a network namespace; one has several values.
pub(crate) const SETTINGS: [&str; 6] = [
    "--set",
    "net.core.somaxconn=9000",
    "--set",
    "net.ipv4.tcp_fin_timeout=33",
    "--set",
    "net.ipv4.tcp_rmem=4096 131072 7000000",
];

const PATHS: [&str; 3] = ["net/core/somaxconn", "net/ipv4/tcp_fin_timeout", "net/ipv4/tcp_rmem"];

/// The values now, of the world's network namespace.
pub(crate) fn settings(world: &World) -> Vec<String> {
    let text = world.sh(&format!("cd /proc/sys && cat {}", PATHS.join(" ")));
    text.lines().map(str::to_owned).collect()
}

pub(crate) fn kill(pid: u32, signal: &str) {
    assert!(Command::new("kill").args(["-s", signal, &pid.to_string()]).status().unwrap().success());
}

/// A world in which settings are tuned.
pub(crate) struct Tuned {
    pub(crate) world: World,
    pub(crate) before: Vec<String>,
}

impl Tuned {
    /// In a network namespace of its own; `None`, and the reason printed, without root.
    pub(crate) fn new(binary: &str) -> Option<Tuned> {
        let world = World::root(binary)?;
        let before = settings(&world);
        Some(Tuned { world, before })
    }

    pub(crate) fn state(&self) -> PathBuf {
        self.world.folder().join("state")
    }

    pub(crate) fn journal(&self) -> PathBuf {
        self.state().join("guard/tune.journal")
    }

    pub(crate) fn after(&self) -> Vec<String> {
        ["9000", "33", "4096\t131072\t7000000"].map(str::to_owned).into()
    }

    pub(crate) fn values(&self) -> Vec<String> {
        settings(&self.world)
    }

    /// Waits until the values are those of before.
    #[track_caller]
    pub(crate) fn until_before(&self) {
        until("the values of before", PATIENCE, || (self.values() == self.before).then_some(()));
    }

    pub(crate) fn weir(&self, args: &[&str]) -> Command {
        let mut command = self.world.weir(&[&["tune"], args].concat());
        command.env("WEIR_STATE_DIR", self.state());
        command
    }

    pub(crate) fn run(&self, args: &[&str]) -> CommandOutput {
        self.world.run(self.weir(args))
    }

    /// All three settings, unless others are given.
    pub(crate) fn apply(&self, args: &[&str]) -> CommandOutput {
        self.run(&[&["apply"], args, &SETTINGS].concat())
    }

    pub(crate) fn json(&self, args: &[&str]) -> Value {
        super::documents::read_any(&self.run(&[args, &["--json"]].concat()).expect(0).stdout)
    }

    pub(crate) fn status(&self) -> Value {
        self.json(&["status"])["set"].clone()
    }

    /// The guard processes.
    pub(crate) fn guards(&self) -> Vec<u32> {
        let is_guard = |line: &str| line.contains(" guard tune ");
        self.world.processes().into_iter().filter(|(_, line)| is_guard(line)).map(|(pid, _)| pid).collect()
    }
}

/// A program that takes no connection, and 250 new ones a second for it.
pub(crate) fn flood(tuned: &Tuned) -> Background {
    let script = "import socket, time
server = socket.socket(); server.bind(('127.0.0.1', 7777)); server.listen(4000)
clients = []
while True:
    for _ in range(5):
        c = socket.socket(); c.setblocking(False); c.connect_ex(('127.0.0.1', 7777)); clients.append(c)
    while len(clients) > 500:
        clients.pop(100).close()
    time.sleep(0.02)
";
    let path = tuned.world.write("flood.py", script);
    let mut command = tuned.world.command("python3");
    command.arg(path);
    tuned.world.start("flood", command)
}

/// Tests of settings of the machine come one after the other.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// The machine's own network namespace, with folders of its own in the place of /etc/sysctl.d and /etc/modules-load.d. Its
/// setting is put back also when the test fails, and must be used by no other test meanwhile.
pub(crate) struct Machine {
    pub(crate) tuned: Tuned,
    pub(crate) before: String,
    path: String,
    _alone: MutexGuard<'static, ()>,
}

impl Machine {
    /// With one setting of the machine; `None`, and the reason printed, where it cannot be written.
    pub(crate) fn new(binary: &str, name: &str) -> Option<Machine> {
        let alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        let world = World::machine(binary)?;
        let path = format!("/proc/sys/{}", name.replace('.', "/"));
        let script = format!("test -w {path} && cat {path} || true");
        let before = world.sh(&script).trim_end().to_owned();
        if before.is_empty() {
            println!(
                "SKIP: needs {name}, writable: the machine's own network namespace with connection tracking (modprobe nf_conntrack)"
            );
            return None;
        }
        world.sh(
            "for d in sysctl.d modules-load.d; do mkdir -p /etc/$d && mount -t tmpfs tmpfs /etc/$d; done",
        );
        Some(Machine { tuned: Tuned { world, before: Vec::new() }, before, path, _alone: alone })
    }

    pub(crate) fn value(&self) -> String {
        self.tuned.world.sh(&format!("cat {}", self.path)).trim_end().to_owned()
    }

    /// The files written to make it last.
    pub(crate) fn file(&self) -> Option<String> {
        let text = self.tuned.world.sh("cat /etc/sysctl.d/90-weir.conf 2>/dev/null || true");
        (!text.is_empty()).then_some(text)
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // Only what is still ours: something else on this machine may have set it meanwhile, which may be why the test
            // failed. No assertion here: a second panic would hide the first.
            let _ = self.tuned.weir(&["rollback"]).status();
        }
    }
}

/// The remains after all was killed: the values, and what the journal says about them.
pub(crate) fn phase_on_disk(journal: &std::path::Path) -> Option<String> {
    let text = fs::read_to_string(journal).ok()?;
    let line = text.lines().rev().find(|l| {
        ["waiting", "confirmed", "ended", "begin", "guard", "reverting"]
            .iter()
            .any(|k| l.starts_with(&format!("{{\"{k}\"")))
    })?;
    line.split('"').nth(1).map(str::to_owned)
}
