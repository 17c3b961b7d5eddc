//! Pods: the exact command lines, and a whole run over a stand-in for `kubectl` that runs them here.

use std::fs;

use weir_testkit::{Record, World, scenario};

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

/// Writes down its arguments, each ended by a zero byte and each call in a file, and does in a folder of the pod's own
/// what `kubectl exec` would do in the pod.
const STAND_IN: &str = r#"#!/bin/sh
printf '%s\0' "$@" > "FOLDER/calls/$(date +%s%N)-$$"
pod=$5
while [ "$1" != -- ]; do shift; done
shift
mkdir -p FOLDER/pod-$pod
HOME=FOLDER/pod-$pod WEIR_RUNTIME_DIR=FOLDER/pod-$pod/run exec "$@"
"#;

/// FNV-1a, 64 bits, of the program: it is part of the copy's name.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x0100_0000_01b3))
}

/// The calls so far, in order, without their record.
fn calls(world: &World) -> Vec<Vec<String>> {
    let folder = world.folder().join("calls");
    let mut files: Vec<_> = fs::read_dir(&folder).unwrap().map(|e| e.unwrap().path()).collect();
    files.sort();
    let words = |text: String| text.split_terminator('\0').map(str::to_owned).collect();
    let calls = files.iter().map(|f| words(fs::read_to_string(f).unwrap())).collect();
    files.iter().for_each(|f| fs::remove_file(f).unwrap());
    calls
}

#[test]
fn root_a_run_over_kubectl_has_exactly_these_command_lines() {
    let Some(world) = World::root(WEIR) else { return };
    let folder = world.folder().display().to_string();
    for part in ["bin", "calls"] {
        fs::create_dir(world.folder().join(part)).unwrap();
    }
    fs::write(world.folder().join("bin/kubectl"), STAND_IN.replace("FOLDER", &folder)).unwrap();
    world.sh(&format!("chmod +x {folder}/bin/kubectl"));
    let testbed = "kind = \"hosts\"\n[testbed.initiator]\nhost = \"kubectl://prod/client\"\naddress = \"127.0.0.1\"\n\
                   [testbed.responder]\nhost = \"kubectl://prod/server/main\"\naddress = \"127.0.0.1\"\n";
    let entries = "[[variant]]\nkind = \"path\"\n[[workload]]\nname = \"rr\"\nkind = \"tcp-rr\"\n";
    world.write("s.toml", scenario::text("pods", testbed, scenario::ONE_ROUND, entries));
    let bench = |output: &str| {
        let mut command = world.weir(&["bench", "s.toml", "--output", output]);
        command.env("PATH", format!("{folder}/bin:{}", std::env::var("PATH").unwrap()));
        world.run(command).expect(0)
    };
    bench("first");
    let record = Record::read(world.work().join("first"));
    assert_eq!((record.state(), record.valid_trials().len()), ("rounds-done", 1));

    let copy = format!(
        "f=\"${{HOME:-/root}}/.cache/weir/agent-{}-{:016x}\"; ",
        env!("CARGO_PKG_VERSION"),
        hash(&fs::read(WEIR).unwrap())
    );
    let start =
        format!("{copy}if [ -x \"$f\" ]; then exec \"$f\" agent; fi; echo \"#weir-absent# $(uname -sm)\"");
    let client = |script: &str| {
        ["exec", "-i", "-n", "prod", "client", "--", "sh", "-c", script].map(str::to_owned).to_vec()
    };
    let server = |script: &str| {
        ["exec", "-i", "-n", "prod", "server", "-c", "main", "--", "sh", "-c", script]
            .map(str::to_owned)
            .to_vec()
    };
    let made = calls(&world);
    assert_eq!(made.len(), 6, "start, copy, start on each: {made:#?}");
    for (first, pod) in [(0, &client as &dyn Fn(&str) -> Vec<String>), (3, &server)] {
        assert_eq!((&made[first], &made[first + 2]), (&pod(&start), &pod(&start)));
        let script = made[first + 1].last().unwrap();
        assert_eq!(made[first + 1], pod(script));
        assert!(script.starts_with(&copy) && script.contains("cat > "), "{script}");
    }

    bench("second");
    assert_eq!(calls(&world), [client(&start), server(&start)], "the copies are there");
    world.wait_until_idle();
}

#[test]
fn root_a_pod_that_is_not_there_is_told_in_kubectls_own_words() {
    let Some(world) = World::root(WEIR) else { return };
    fs::create_dir(world.folder().join("bin")).unwrap();
    let program = world.folder().join("bin/kubectl");
    let words = "Error from server (NotFound): pods \"client\" not found";
    fs::write(&program, format!("#!/bin/sh\necho '{words}' >&2\nexit 1\n")).unwrap();
    world.sh(&format!("chmod +x {}", program.display()));
    let testbed = "kind = \"hosts\"\n[testbed.initiator]\nhost = \"kubectl://prod/client\"\naddress = \"127.0.0.1\"\n\
                   [testbed.responder]\nhost = \"local\"\naddress = \"127.0.0.1\"\n";
    let entries = "[[variant]]\nkind = \"path\"\n[[workload]]\nname = \"rr\"\nkind = \"tcp-rr\"\n";
    world.write("s.toml", scenario::text("pods", testbed, scenario::ONE_ROUND, entries));
    let mut command = world.weir(&["bench", "s.toml"]);
    command.env("PATH", format!("{}/bin:{}", world.folder().display(), std::env::var("PATH").unwrap()));
    let outcome = world.run(command).expect(1);
    assert!(
        outcome.stderr.contains(words) && outcome.stderr.contains("kubectl://prod/client"),
        "{}",
        outcome.stderr
    );
    assert_eq!(outcome.complaints().len(), 1, "{}", outcome.stderr);
    assert_eq!(world.left_behind(&["s.toml"]), [""; 0]);
}
