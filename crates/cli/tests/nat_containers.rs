//! `weir nat check --from` and `--to` a container or a pod: a whole check over stand-ins for `docker` and `kubectl`, which enter the
//! namespace of that name.

mod documents;
mod nat_path;

use std::collections::BTreeMap;
use std::fs;

use nat_path::{PATH, WEIR, serve, verdict};
use serde_json::Value;
use weir_testkit::{CommandOutput, PATIENCE, World, until};

/// Writes down its arguments and whether the environment has the key, and runs the rest in a container: a network namespace, and a
/// folder as its home.
const STAND_IN: &str = r#"#!/bin/sh
echo "$(basename "$0") $*" | head -n 1 >> FOLDER/calls
env | grep -q WEIR_KEY= && echo "key in the environment" >> FOLDER/calls
[ "$1" = exec ] && [ "$2" = -i ] || exit 9
case $0 in
  */docker) name=$3; shift 3 ;;
  *) [ "$3" = -n ] && [ "$4" = prod ] || exit 9
     name=$5; while [ "$1" != -- ]; do shift; done; shift ;;
esac
[ -e /run/netns/$name ] || { echo "Error: No such container: $name" >&2; exit 1; }
mkdir -p FOLDER/home-$name
HOME=FOLDER/home-$name WEIR_RUNTIME_DIR=FOLDER/home-$name/run exec nsenter --net=/run/netns/$name "$@"
"#;

/// The stand-ins on the PATH of a world.
struct Stage<'a>(&'a World);

impl Stage<'_> {
    fn set(world: &World) -> Stage<'_> {
        let folder = world.folder().display().to_string();
        fs::create_dir(world.folder().join("bin")).unwrap();
        for program in ["docker", "kubectl"] {
            let path = world.folder().join("bin").join(program);
            fs::write(&path, STAND_IN.replace("FOLDER", &folder)).unwrap();
            world.sh(&format!("chmod +x {}", path.display()));
        }
        Stage(world)
    }

    fn nat(&self, args: &[&str]) -> CommandOutput {
        self.0.run(self.command(args))
    }

    fn command(&self, args: &[&str]) -> std::process::Command {
        let mut command = self.0.weir(&[&["nat"], args].concat());
        let folder = self.0.folder().display();
        command.env("PATH", format!("{folder}/bin:{}", std::env::var("PATH").unwrap()));
        command
    }

    /// The calls since the last look.
    fn calls(&self) -> Vec<String> {
        let path = self.0.folder().join("calls");
        let calls = fs::read_to_string(&path).unwrap_or_default();
        let _ = fs::remove_file(path);
        calls.lines().map(str::to_owned).collect()
    }

    /// Nothing is left in the containers but `kept` processes.
    fn alone(&self, kept: usize) {
        until("no process in the containers", PATIENCE, || {
            let left = self.0.sh("ip netns pids client; ip netns pids server");
            (left.split_whitespace().count() == kept).then_some(())
        });
    }
}

fn verdicts(seen: &Value) -> BTreeMap<String, String> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    seen["rows"].as_array().unwrap().iter().map(|row| (text(&row["id"]), text(&row["verdict"]))).collect()
}

/// The same table from a container, from a pod and from the namespace itself.
#[test]
fn root_a_check_from_a_container_or_a_pod_is_that_of_its_namespace() {
    if World::lacks(&["ip", "nft", "nsenter"]) {
        return;
    }
    let Some(world) = World::root(WEIR) else { return };
    world.sh(PATH);
    let stage = Stage::set(&world);
    let _server = serve(&world);
    let server = ["198.19.0.2", "--key-file", "key"];
    let ports = [&["ports", "--from", "netns:client"], &server[..], &["--limit", "16"]].concat();
    until("the server answers", PATIENCE, || (stage.nat(&ports).code == 0).then_some(()));
    assert_eq!(stage.calls(), Vec::<String>::new());

    let check = |from: &str| {
        let args = [&["check", "--from", from], &server[..], &["--idle", "0", "--json"]].concat();
        let seen = documents::read(&stage.nat(&args).expect(0).stdout, "nat-check-server");
        assert_eq!(seen["path"]["local"], "198.18.0.2", "{from}: {seen:#}");
        assert!(seen["no_raw_packets"].is_null(), "{from}: {seen:#}");
        for (row, expected) in
            [("udp-filtering", "fails"), ("icmp-error-in", "meets"), ("icmp-too-big-in", "meets")]
        {
            assert_eq!(verdict(&seen, row), expected, "{from}: {row}: {seen:#}");
        }
        // The server has one check for each address, and hears of the end a moment later.
        stage.alone(1);
        seen
    };
    let itself = verdicts(&check("netns:client"));
    for (from, program) in [
        ("docker://client", "docker exec -i client "),
        ("kubectl://prod/client/main", "kubectl exec -i -n prod client -c main -- "),
    ] {
        let seen = verdicts(&check(from));
        assert_eq!(seen, itself, "{from}");
        let calls = stage.calls();
        assert!(!calls.is_empty() && calls.iter().all(|call| call.starts_with(program)), "{calls:#?}");
        // The key goes over the agent's input, where no list of processes shows it.
        assert!(calls.iter().all(|call| !call.contains("0123456789abcdef")), "{calls:#?}");
    }
    let page =
        stage.nat(&[&["ports", "--from", "docker://client"], &server[..], &["--limit", "50"]].concat());
    assert!(page.expect(0).stdout.contains("50 of 50 inside ports got through"));
}

/// Both ends in containers, which have no weir and no key of their own.
#[test]
fn root_both_ends_may_be_in_containers() {
    if World::lacks(&["ip", "nft", "nsenter"]) {
        return;
    }
    let Some(world) = World::root(WEIR) else { return };
    world.sh(PATH);
    let stage = Stage::set(&world);
    let hosts = ["--from", "docker://client", "--to", "kubectl://prod/server", "--nat-address", "198.19.0.2"];
    let check = [&["check"], &hosts[..], &["--nat-address", "198.19.0.3", "--idle", "0"]].concat();
    let seen = stage.nat(&[&check[..], &["--json", "--fail-on-must"]].concat()).expect(3);
    let seen = documents::read(&seen.stdout, "nat-check-server");
    assert!(seen["no_raw_packets"].is_null(), "{seen:#}");
    assert_eq!((verdict(&seen, "udp-mapping"), verdict(&seen, "udp-hairpin")), ("meets", "fails"));
    let calls = stage.calls();
    let of = |program: &str| calls.iter().filter(|call| call.starts_with(program)).count();
    let (client, server) = (of("docker exec -i client "), of("kubectl exec -i -n prod server -- "));
    // It starts there, copies itself, and starts again.
    assert_eq!((client, server, calls.len()), (3, 3, 6), "{calls:#?}");
    stage.alone(0);

    // However this end goes, the others go too.
    for signal in ["INT", "KILL"] {
        let long = [&check[..check.len() - 2], &["--idle", "30s"]].concat();
        let mut running = world.start(signal, stage.command(&long));
        running.wait_for("weir nat runs on docker://client");
        running.signal(signal);
        let ended = running.end_within(PATIENCE);
        if signal == "INT" {
            let ended = ended.expect(1);
            assert!(ended.stderr.contains("stopped before the check was complete"), "{}", ended.stderr);
        }
        stage.alone(0);
    }

    let absent = stage.nat(&["check", "--from", "docker://nowhere", "198.19.0.2"]).expect(1);
    assert!(absent.stderr.contains("docker://nowhere"), "{}", absent.stderr);
    assert!(absent.stderr.contains("No such container: nowhere"), "{}", absent.stderr);
}
