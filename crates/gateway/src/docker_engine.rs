//! A real Docker Engine that publishes the responder's ports, alone in the gateway's network namespace.
//!
//! The engine gets mount and PID namespaces of its own, so that it dies as a whole with the process that started it and
//! leaves no mounts. It uses the gateway's bridge and gives its container the responder's address; then the container is
//! unplugged from the bridge, and the responder, who is plugged into the same bridge, answers in its place. So the rules are
//! the engine's, and the responder is the same host as in the other variants.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use weir_sys::privilege::Privilege;
use weir_sys::process::{Process, spawn};
use weir_sys::{NetNs, sysctl};

use crate::command::{self, kernel};
use crate::error::at;
use crate::journal::Change;
use crate::{Error, Family, Journal, Place, iptables};

/// Programs that it needs.
pub(crate) const PROGRAMS: [&str; 7] =
    ["dockerd", "docker", "busybox", "unshare", "tar", "ip", "iptables-nft-restore"];

const PROGRAM: &str = "iptables-nft";
const CONTAINER: &str = "weir";
/// Starting takes about a second; a machine under load may need several times as long.
const PATIENCE: Duration = Duration::from_secs(30);

/// The state needed to remove an engine and all that it made.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EngineState {
    /// Its files.
    directory: PathBuf,
    bridge: String,
    responder: IpAddr,
    /// Name of its control groups.
    cgroup: String,
    /// Output of iptables-save before it was started.
    saved: String,
    /// Whether the host had that directory, which the engine needs.
    had_etc_docker: bool,
    /// Interfaces before it was started.
    links: Vec<String>,
}

const ETC_DOCKER: &str = "/etc/docker";

/// Starts the engine and publishes the place's ports.
pub(crate) fn apply(place: &Place, journal: &mut Journal) -> Result<(), Error> {
    if place.family == Family::Ipv6 {
        return Err(Error::Unsupported(
            "docker-publish: engine = \"docker\" publishes IPv4 only; engine = \"rules\" makes the same rules for IPv6".into(),
        ));
    }
    if !Privilege::current(&kernel())?.initial_user_namespace {
        return Err(Error::Unsupported(
            "docker-publish: engine = \"docker\" needs the machine's root, not that of a user namespace; engine = \"rules\" \
             makes the same rules without"
                .into(),
        ));
    }
    let saved = save()?;
    if saved.lines().any(|line| line.starts_with(":DOCKER ")) {
        return Err(Error::Unsupported(
            "docker-publish: a container engine has its rules on this host already; engine = \"docker\" needs a gateway \
             without one"
                .into(),
        ));
    }
    let state = EngineState {
        directory: std::env::temp_dir().join(format!("weir-docker-{}-{}", place.tag, std::process::id())),
        bridge: place.outside_interface.clone(),
        responder: place.responder,
        cgroup: format!("weir-{}-{}", place.tag, std::process::id()),
        saved,
        had_etc_docker: Path::new(ETC_DOCKER).is_dir(),
        links: links(&["type", "veth"])?,
    };
    // The engine switches these on; weir switches them on first, so that they are reverted with the rest.
    for name in ["net.bridge.bridge-nf-call-iptables", "net.bridge.bridge-nf-call-ip6tables"] {
        if sysctl::get_optional(&kernel(), name)?.is_some() {
            journal.sysctl(name, "1")?;
        }
    }
    journal.iptables_base(PROGRAM, "nat")?;
    journal.iptables_base(PROGRAM, "filter")?;
    journal.record(Change::Engine(state.clone()))?;
    state.make_files()?;
    let engine = state.start()?;
    journal.keep(engine);
    state.wait_until_ready(journal)?;
    state.publish(place)
}

/// Packets counted by the engine's rules that translate.
pub(crate) fn counter(place: &Place) -> Result<u64, Error> {
    let saved = command::run("iptables-nft-save", &["-c", "-t", "nat"])?;
    let target = format!("-j DNAT --to-destination {}:", place.responder);
    let rules = saved.lines().filter(|line| line.contains(&target));
    Ok(rules.filter_map(iptables::packets).sum())
}

fn save() -> Result<String, Error> {
    command::run::<&str>("iptables-nft-save", &[])
}

impl EngineState {
    fn make_files(&self) -> Result<(), Error> {
        let make = |path: &Path| std::fs::create_dir(path).map_err(at(path));
        make(&self.directory)?;
        let bin = self.directory.join("root");
        make(&bin)?;
        let busybox = command::require("busybox")?;
        let copy = bin.join("busybox");
        std::fs::copy(busybox, &copy).map_err(at(&copy))?;
        if !self.had_etc_docker {
            make(Path::new(ETC_DOCKER))?;
        }
        Ok(())
    }

    fn start(&self) -> Result<Process, Error> {
        let log = self.directory.join("log");
        let log = std::fs::File::create(&log).map_err(at(&log))?;
        let mut unshare = Command::new(command::require("unshare")?);
        // The engine writes a key into /etc/docker and reads the host's daemon.json there: it gets an empty one.
        unshare.args([
            "--mount",
            "--propagation",
            "private",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
        ]);
        unshare.args(["sh", "-c", "mount -t tmpfs tmpfs /etc/docker && exec \"$@\"", "sh"]);
        unshare.arg(command::require("dockerd")?);
        for (option, file) in [("--data-root", "data"), ("--exec-root", "exec"), ("--pidfile", "pid")] {
            unshare.arg(option).arg(self.directory.join(file));
        }
        unshare.args(["-H", &self.socket(), "--storage-driver", "vfs", "--cgroup-parent", &self.cgroup]);
        // Its own switch of forwarding is for the whole host; the two interfaces are enough.
        unshare.args([
            "--bridge",
            &self.bridge,
            "--fixed-cidr",
            &format!("{}/32", self.responder),
            "--ip-forward=false",
        ]);
        let error_log = log.try_clone().map_err(at(&self.directory))?;
        unshare.stdin(Stdio::null()).stdout(log).stderr(error_log);
        NetNs::current()?.enter_on_spawn(&mut unshare);
        Ok(spawn(unshare)?)
    }

    fn wait_until_ready(&self, journal: &mut Journal) -> Result<(), Error> {
        let deadline = Instant::now() + PATIENCE;
        while self.docker(&["info"]).is_err() {
            let ended = journal.kept_has_ended()?;
            if ended || Instant::now() > deadline {
                let log = std::fs::read_to_string(self.directory.join("log")).unwrap_or_default();
                let last: Vec<_> = log.lines().rev().take(3).collect();
                let why = if ended { "it ended" } else { "it does not answer" };
                return Err(Error::Command {
                    command: "dockerd".into(),
                    output: format!("{why}: {}", last.join("\n")),
                });
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    fn publish(&self, place: &Place) -> Result<(), Error> {
        let archive = self.directory.join("root.tar").display().to_string();
        command::run(
            "tar",
            &["-C", &self.directory.join("root").display().to_string(), "-cf", &archive, "."],
        )?;
        self.docker(&["import", &archive, CONTAINER])?;
        let ports_before = self.bridge_ports()?;
        let (first, last) = (place.ports.start(), place.ports.end());
        let publish = |protocol| format!("{}:{first}-{last}:{first}-{last}/{protocol}", place.gateway_inside);
        let (tcp, udp) = (publish("tcp"), publish("udp"));
        // Nothing has to run in it, but a published port needs a container that does. It ends with the engine.
        let run = [
            "run",
            "-d",
            "--name",
            CONTAINER,
            "-p",
            &tcp,
            "-p",
            &udp,
            CONTAINER,
            "/busybox",
            "tail",
            "-f",
            "/dev/null",
        ];
        self.docker(&run)?;
        let address = self.docker(&["inspect", "-f", "{{.NetworkSettings.IPAddress}}", CONTAINER])?;
        if address.trim() != self.responder.to_string() {
            return Err(Error::Unsupported(format!(
                "docker-publish: the engine gave its container address {} instead of the responder's {}",
                address.trim(),
                self.responder
            )));
        }
        for port in self.bridge_ports()?.iter().filter(|port| !ports_before.contains(port)) {
            command::run("ip", &["link", "set", port, "down", "nomaster"])?;
        }
        // The gateway may have learned the container's hardware address.
        command::run("ip", &["neigh", "flush", "to", &self.responder.to_string(), "dev", &self.bridge])
            .map(drop)
    }

    fn bridge_ports(&self) -> Result<Vec<String>, Error> {
        links(&["master", &self.bridge])
    }

    /// Ends the container in good order where the engine still answers, so that it takes its own things back.
    pub(crate) fn stop_container(&self) {
        // An engine that was killed cannot; what it would have removed is removed by `undo`.
        let _ = self.docker(&["rm", "-f", CONTAINER]);
    }

    /// Removes what is left of an engine that has ended: an engine keeps its chains for its next start.
    pub(crate) fn undo(&self) -> Result<(), Error> {
        // It was killed, or dies with the process that started it; as long as it lives it may add to what is removed here.
        until_done(|| self.must_have_ended())?;
        // One that is killed while it plugs a container in leaves both ends of the cable behind.
        for link in self.cables()? {
            let gone = command::run("ip", &["link", "del", &link]);
            // The kernel may have been faster, or it was the other end of one deleted before.
            if gone.is_err() && self.cables()?.contains(&link) {
                return gone.map(drop);
            }
        }
        let script = self.removal(&save()?);
        if !script.is_empty() {
            command::run_with("iptables-nft-restore", &["-w", "--noflush"], &script)?;
        }
        self.remove_cgroups()?;
        until_done(|| remove_dir_all(&self.directory))?;
        if !self.had_etc_docker && Path::new(ETC_DOCKER).is_dir() {
            std::fs::remove_dir(ETC_DOCKER).map_err(at(Path::new(ETC_DOCKER)))?;
        }
        Ok(())
    }

    /// The engine's interfaces: it names them `veth` and seven hexadecimal digits.
    fn cables(&self) -> Result<Vec<String>, Error> {
        let named = |link: &str| {
            link.strip_prefix("veth")
                .is_some_and(|n| n.len() == 7 && n.bytes().all(|b| b.is_ascii_hexdigit()))
        };
        let now = links(&["type", "veth"])?;
        Ok(now.into_iter().filter(|link| named(link) && !self.links.contains(link)).collect())
    }

    /// Fails while a process has the engine's directory in its arguments.
    fn must_have_ended(&self) -> std::io::Result<()> {
        let directory = self.directory.display().to_string();
        for process in std::fs::read_dir("/proc")?.flatten() {
            // A process may end while it is looked at.
            let arguments = std::fs::read(process.path().join("cmdline")).unwrap_or_default();
            if String::from_utf8_lossy(&arguments).contains(&directory) {
                let pid = process.file_name().to_string_lossy().into_owned();
                return Err(std::io::Error::other(format!(
                    "process {pid} of the container engine still runs"
                )));
            }
        }
        Ok(())
    }

    /// The input for iptables-restore that deletes the engine's rules and chains.
    fn removal(&self, now: &str) -> String {
        let mut script = String::new();
        let (mut rules, mut flushes, mut deletions) = (String::new(), String::new(), String::new());
        let mut table = "";
        for line in now.lines() {
            if let Some(name) = line.strip_prefix('*') {
                table = name;
            } else if let Some(chain) = line.strip_prefix(':').and_then(|l| l.split(' ').next())
                && chain.starts_with("DOCKER")
            {
                flushes += &format!("-F {chain}\n");
                deletions += &format!("-X {chain}\n");
            } else if let Some(rule) =
                line.strip_prefix("-A ").filter(|rule| self.is_the_engines(table, rule))
            {
                rules += &format!("-D {rule}\n");
            } else if line == "COMMIT" {
                // Rules that lead to a chain go before the chain does.
                let commands = [&*rules, &*flushes, &*deletions].concat();
                if !commands.is_empty() {
                    script += &format!("*{table}\n{commands}COMMIT\n");
                }
                [&mut rules, &mut flushes, &mut deletions].into_iter().for_each(String::clear);
            }
        }
        script
    }

    /// A rule of a base chain that was not there before and that leads to the engine's chains or is about its bridge.
    fn is_the_engines(&self, table: &str, rule: &str) -> bool {
        let in_own_chain = rule.starts_with("DOCKER");
        let mut words = rule.split_whitespace();
        let about_bridge = words.clone().any(|w| w == self.bridge)
            && (rule.ends_with("-j ACCEPT") || rule.ends_with("-j MASQUERADE"));
        let hairpin = rule.contains(&format!("-s {0}/32 -d {0}/32 ", self.responder));
        let ours = words.any(|w| w.starts_with("DOCKER")) || about_bridge || hairpin;
        !in_own_chain && ours && !was_there(&self.saved, table, rule)
    }

    fn remove_cgroups(&self) -> Result<(), Error> {
        let root = Path::new("/sys/fs/cgroup");
        // One hierarchy (version 2), or one for each controller below (version 1).
        let hierarchies = std::fs::read_dir(root).into_iter().flatten().filter_map(|e| Some(e.ok()?.path()));
        for hierarchy in std::iter::once(root.to_owned()).chain(hierarchies) {
            until_done(|| remove_cgroup(&hierarchy.join(&self.cgroup)))?;
        }
        Ok(())
    }

    fn socket(&self) -> String {
        format!("unix://{}", self.directory.join("socket").display())
    }

    fn docker(&self, args: &[&str]) -> Result<String, Error> {
        let (socket, config) = (self.socket(), self.directory.join("config").display().to_string());
        let words: Vec<&str> =
            ["-H", &socket, "--config", &config].into_iter().chain(args.iter().copied()).collect();
        command::run("docker", &words)
    }
}

/// Names of interfaces by `ip link show`.
fn links(which: &[&str]) -> Result<Vec<String>, Error> {
    let words: Vec<&str> = ["-o", "link", "show"].into_iter().chain(which.iter().copied()).collect();
    let listing = command::run("ip", &words)?;
    let name = |line: &str| Some(line.split(": ").nth(1)?.split('@').next()?.to_owned());
    Ok(listing.lines().filter_map(name).collect())
}

fn was_there(saved: &str, table: &str, rule: &str) -> bool {
    let mut inside = "";
    saved.lines().any(|line| {
        if let Some(name) = line.strip_prefix('*') {
            inside = name;
        }
        inside == table && line.strip_prefix("-A ") == Some(rule)
    })
}

/// A control group's directory has files that cannot be removed; only directories are.
fn remove_cgroup(path: &Path) -> std::io::Result<()> {
    if !path.is_dir() {
        return Ok(());
    }
    for entry in std::fs::read_dir(path)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            remove_cgroup(&entry.path())?;
        }
    }
    std::fs::remove_dir(path)
}

fn remove_dir_all(path: &Path) -> std::io::Result<()> {
    weir_sys::file::found(std::fs::remove_dir_all(path)).map(drop)
}

/// The engine's processes were killed, and the kernel may not have finished with them: tries until it has.
fn until_done(mut step: impl FnMut() -> std::io::Result<()>) -> Result<(), Error> {
    let deadline = Instant::now() + Duration::from_secs(5);
    loop {
        match step() {
            Ok(()) => return Ok(()),
            Err(e) if Instant::now() > deadline => return Err(at(Path::new("what the engine left"))(e)),
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_engines_rules_are_removed() {
        let state = EngineState {
            directory: "/nowhere".into(),
            bridge: "br0".into(),
            responder: "198.18.1.2".parse().unwrap(),
            cgroup: "weir-t".into(),
            saved: "*filter\n-A FORWARD -i br0 -j ACCEPT\nCOMMIT\n".into(),
            had_etc_docker: true,
            links: Vec::new(),
        };
        let now = "*filter\n:FORWARD ACCEPT [0:0]\n:DOCKER - [0:0]\n:DOCKER-USER - [0:0]\n:THEIRS - [0:0]\n\
                   -A FORWARD -j DOCKER-USER\n-A FORWARD -i br0 -j ACCEPT\n-A FORWARD -i br0 -o br0 -j ACCEPT\n\
                   -A FORWARD -i br01 -j ACCEPT\n-A DOCKER-USER -j RETURN\n-A FORWARD -j THEIRS\nCOMMIT\n\
                   *nat\n:DOCKER - [0:0]\n-A POSTROUTING -s 198.18.1.0/24 ! -o br0 -j MASQUERADE\n\
                   -A POSTROUTING -s 198.18.1.2/32 -d 198.18.1.2/32 -p tcp -m tcp --dport 5001 -j MASQUERADE\n\
                   -A POSTROUTING -o eth7 -j MASQUERADE\nCOMMIT\n";
        assert_eq!(
            state.removal(now),
            "*filter\n-D FORWARD -j DOCKER-USER\n-D FORWARD -i br0 -o br0 -j ACCEPT\n\
             -F DOCKER\n-F DOCKER-USER\n-X DOCKER\n-X DOCKER-USER\nCOMMIT\n\
             *nat\n-D POSTROUTING -s 198.18.1.0/24 ! -o br0 -j MASQUERADE\n\
             -D POSTROUTING -s 198.18.1.2/32 -d 198.18.1.2/32 -p tcp -m tcp --dport 5001 -j MASQUERADE\n\
             -F DOCKER\n-X DOCKER\nCOMMIT\n"
        );
        assert_eq!(state.removal("*filter\n-A FORWARD -i br0 -j ACCEPT\nCOMMIT\n"), "");
    }
}
