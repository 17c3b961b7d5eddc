//! A gateway in the lab that is tuned by `weir tune apply` and `weir tune confirm` themselves: the variant `docker-publish` with `tuned`.

mod measure;

use std::fs;
use std::path::{Path, PathBuf};

use measure::{bench, turn, world};
use weir_record::Status;
use weir_testkit::{PATIENCE, World, scenario, until};

const NEEDED: [&str; 2] = ["iptables-nft", "nsenter"];
const VARIANTS: &str = "[[variant]]\nkind = \"docker-publish\"\n\
    [[variant]]\nname = \"tuned\"\nkind = \"docker-publish\"\ntuned = [\"published-ports\"]\n";

fn workload(duration: &str) -> String {
    format!("[[workload]]\nname = \"tcp-crr\"\nkind = \"tcp-crr\"\nduration = \"{duration}\"\n")
}

/// Mount namespaces of processes of this world other than the world's own and the machine's.
fn held(world: &World) -> Vec<PathBuf> {
    let of = |pid: &str| fs::read_link(format!("/proc/{pid}/ns/mnt")).ok();
    let known = [of("self"), Some(PathBuf::from(world.sh("readlink /proc/self/ns/mnt").trim()))];
    let all = world.processes().into_iter().filter_map(|(pid, _)| of(&pid.to_string()));
    all.filter(|found| !known.contains(&Some(found.clone()))).collect()
}

fn anybody_has(namespace: &Path) -> bool {
    let mut processes = fs::read_dir("/proc").unwrap().flatten();
    processes.any(|p| fs::read_link(p.path().join("ns/mnt")).is_ok_and(|found| found == namespace))
}

fn has_programs(world: &World) -> String {
    world.sh("mountpoint -q /sys/fs/bpf || mount -t bpf bpf /sys/fs/bpf; ls /sys/fs/bpf | grep weir || true")
}

#[test]
fn root_alone_the_tuned_gateway_is_proved_by_what_the_programs_count() {
    let Some(world) = world(&NEEDED) else { return };
    let _turn = turn();
    for family in ["ipv4", "ipv6"] {
        let plan = "min-rounds = 1\nmax-rounds = 1\nwarmup = \"0s\"\nduration = \"200ms\"";
        let testbed = format!("kind = \"lab\"\nfamily = \"{family}\"");
        let text = scenario::text("tuned", &testbed, plan, &format!("{VARIANTS}{}", workload("200ms")));
        let measured = bench(&world, &text);
        assert_eq!(measured.run.status, Status::RoundsDone);
        let tuned = measured.run.variants.iter().find(|v| v.name == "tuned").unwrap();
        let proof = tuned.proof.join("; ");
        assert!(proof.contains("counter moved"), "{family}: {proof}");
        for variant in ["docker-publish", "tuned"] {
            assert!(
                measured.value("tcp-crr", "transactions_per_second", variant).center > 0.0,
                "{family} {variant}"
            );
        }
        assert_eq!(has_programs(&world), "", "what belongs to the lab is nowhere else");
        fs::remove_dir_all(world.work().join("out")).unwrap();
    }
}

#[test]
fn root_alone_the_rules_of_a_real_engine_are_led_past_too() {
    let engine = ["dockerd", "docker", "busybox"];
    if World::lacks(&engine) {
        return;
    }
    // The third number: how many users the namespace has. All of them has the machine's own only.
    if fs::read_to_string("/proc/self/uid_map").unwrap().split_whitespace().nth(2) != Some("4294967295") {
        println!("SKIP: a container engine needs the machine's root");
        return;
    }
    let Some(world) = world(&NEEDED) else { return };
    let _turn = turn();
    let plan = "min-rounds = 1\nmax-rounds = 1\nwarmup = \"0s\"\nduration = \"200ms\"";
    let variants =
        "[[variant]]\nkind = \"docker-publish\"\nengine = \"docker\"\ntuned = [\"published-ports\"]\n";
    let text = scenario::text("engine", scenario::LAB, plan, &format!("{variants}{}", workload("200ms")));
    let measured = bench(&world, &text);
    let proof = measured.run.variants[0].proof.join("; ");
    assert!(proof.contains("counter moved"), "{proof}");
    assert!(measured.value("tcp-crr", "transactions_per_second", "docker-publish").center > 0.0);
}

#[test]
fn root_a_killed_runner_leaves_nothing_of_it() {
    let Some(world) = world(&NEEDED) else { return };
    let _turn = turn();
    let plan = "min-rounds = 1\nmax-rounds = 50\nwarmup = \"0s\"\nduration = \"60s\"";
    world.write(
        "s.toml",
        scenario::text("killed", "kind = \"lab\"", plan, &format!("{VARIANTS}{}", workload("60s"))),
    );
    let mut run = world.start("weir", world.weir(&["bench", "s.toml", "-o", "out", "--seed", "1"]));
    run.wait_for("tuned: the responder sees");
    let namespaces = held(&world);
    assert!(!namespaces.is_empty() && namespaces.iter().all(|n| anybody_has(n)), "{namespaces:?}");
    run.signal("KILL");
    run.end_within(PATIENCE).expect(-1);
    world.wait_until_idle();
    until("the mount namespace, with the programs, is gone", PATIENCE, || {
        (!namespaces.iter().any(|n| anybody_has(n))).then_some(())
    });
    assert_eq!(has_programs(&world), "");
    assert!(world.undo_lists().is_empty());
}
