//! Containers of a real Docker Engine: two of them measured by `docker exec`, and one in which weir cannot run.

use std::process::Command;

use weir_testkit::{Background, PATIENCE, Record, World, scenario, until};

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

/// An engine in namespaces of its own, with a bridge of its own. Killing it ends its containers.
struct Engine {
    world: World,
    process: Option<Background>,
    cgroup: String,
}

impl Engine {
    /// `None`, with the reason printed, where there cannot be one.
    fn start() -> Option<Engine> {
        let programs = ["dockerd", "docker", "busybox", "iptables", "ldd"];
        if World::lacks(&programs) {
            return None;
        }
        if std::fs::read_to_string("/proc/self/uid_map").unwrap().split_whitespace().nth(2)
            != Some("4294967295")
        {
            println!("SKIP: a container engine needs the machine's root");
            return None;
        }
        let world = World::root(WEIR)?;
        let cgroup = format!("weir-test-{}", std::process::id());
        let folder = world.folder().display().to_string();
        // Its settings in /etc/docker are not the machine's. With its process namespace everything in it ends.
        let script = format!(
            "[ ! -d /etc/docker ] || mount -t tmpfs tmpfs /etc/docker; exec dockerd --data-root {folder}/data \
             --exec-root {folder}/exec --pidfile {folder}/pid -H {} --storage-driver=vfs --cgroup-parent=/{cgroup} \
             --bip=198.18.5.1/24",
            socket(&world)
        );
        let mut command = world.command("unshare");
        command.args([
            "--mount",
            "--propagation",
            "private",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount-proc",
        ]);
        command.args(["sh", "-c", &script]);
        let process = world.start("dockerd", command);
        let engine = Engine { world, process: Some(process), cgroup };
        until("an engine that answers", PATIENCE, || {
            let info = engine.world.run(engine.docker(&["info"]));
            (info.code == 0).then_some(())
        });
        Some(engine)
    }

    fn docker(&self, args: &[&str]) -> Command {
        let mut command = self.world.command("docker");
        command.env("DOCKER_HOST", socket(&self.world)).args(args);
        command
    }

    /// An image of busybox, and with `libraries` those of the C library that a program built here needs.
    fn image(&self, name: &str, libraries: bool) {
        let copy = if libraries {
            "for l in $(ldd $W | grep -o '/[^ ]*'); do mkdir -p root/$(dirname $l); cp -L $l root/$l; done;"
        } else {
            ""
        };
        let script = format!(
            "set -e; W={}; mkdir -p root/bin root/root root/tmp; cp -L $(command -v busybox) root/bin/busybox
             for a in sh cat mkdir chmod mv rm wc uname tail; do ln -s busybox root/bin/$a; done; {copy}
             tar -C root -c . | docker -H {} import - {name} >/dev/null; rm -r root",
            self.world.binary().display(),
            socket(&self.world)
        );
        self.world.sh(&script);
    }

    /// Starts a container and returns its address.
    fn container(&self, image: &str, name: &str) -> String {
        let run = ["run", "-d", "--name", name, image, "tail", "-f", "/dev/null"];
        self.world.run(self.docker(&run)).expect(0);
        let address = self.docker(&["inspect", "-f", "{{.NetworkSettings.IPAddress}}", name]);
        self.world.run(address).expect(0).stdout.trim().to_owned()
    }

    fn bench(&self, args: &[&str]) -> Command {
        let mut command = self.world.weir(&[&["bench", "s.toml"], args].concat());
        command.env("DOCKER_HOST", socket(&self.world));
        command
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        drop(self.process.take());
        // The kernel is still ending processes: a group can be removed once it is empty.
        let script = format!(
            "for i in $(seq 200); do find /sys/fs/cgroup -depth -type d -path '*/{0}*' -exec rmdir {{}} + 2>/dev/null; \
             [ -z \"$(find /sys/fs/cgroup -type d -name {0})\" ] && exit 0; sleep 0.05; done; exit 1",
            self.cgroup
        );
        let emptied = Command::new("sh").args(["-c", &script]).status();
        if !std::thread::panicking() {
            assert!(emptied.unwrap().success(), "the engine's control group {} is still there", self.cgroup);
        }
    }
}

fn socket(world: &World) -> String {
    format!("unix://{}/docker.sock", world.folder().display())
}

fn scenario_of(initiator: (&str, &str), responder: (&str, &str)) -> String {
    let testbed = format!(
        "kind = \"hosts\"\n[testbed.initiator]\nhost = \"docker://{}\"\naddress = \"{}\"\n[testbed.responder]\n\
         host = \"docker://{}\"\naddress = \"{}\"\n",
        initiator.0, initiator.1, responder.0, responder.1
    );
    let entries = "[[variant]]\nkind = \"path\"\n[[workload]]\nname = \"rr\"\nkind = \"tcp-rr\"\n";
    scenario::text("containers", &testbed, scenario::ONE_ROUND, entries)
}

#[test]
fn root_containers_are_measured_and_those_that_cannot_be_are_told() {
    let Some(engine) = Engine::start() else { return };
    let world = &engine.world;
    engine.image("whole", true);
    let (client, server) = (engine.container("whole", "client"), engine.container("whole", "server"));
    world.write("s.toml", scenario_of(("client", &client), ("server", &server)));
    let outcome = world.run(engine.bench(&["--output", "out"])).expect(0);
    assert!(outcome.stderr.contains(&format!("the responder sees {client}")), "{}", outcome.stderr);
    let record = Record::read(world.work().join("out"));
    assert_eq!((record.state(), record.valid_trials().len()), ("rounds-done", 1));
    let transports: Vec<&str> =
        record.json["hosts"].as_array().unwrap().iter().map(|h| h["transport"].as_str().unwrap()).collect();
    assert_eq!(transports, ["docker://client", "docker://server"]);
    // No agent stays behind in a container.
    let top = || world.run(engine.docker(&["top", "server"])).expect(0).stdout;
    until("the end of the agent in the container", PATIENCE, || (!top().contains(" agent")).then_some(()));

    // A container without a C library: this program cannot run there, and the message says what to do.
    engine.image("bare", false);
    engine.container("bare", "bare");
    world.write("s.toml", scenario_of(("bare", &client), ("server", &server)));
    let outcome = world.run(engine.bench(&[])).expect(1);
    for words in ["initiator (docker://bare)", "cannot run there", "`program`"] {
        assert!(outcome.stderr.contains(words), "no `{words}`: {}", outcome.stderr);
    }
    assert_eq!(outcome.complaints().len(), 1, "{}", outcome.stderr);

    // No such container: the engine's own words.
    world.write("s.toml", scenario_of(("nobody", &client), ("server", &server)));
    let outcome = world.run(engine.bench(&[])).expect(1);
    assert!(outcome.stderr.contains("No such container: nobody"), "{}", outcome.stderr);
    assert_eq!(world.left_behind(&["s.toml", "out"]), [""; 0]);
}
