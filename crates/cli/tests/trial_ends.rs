//! Trials whose guard processes are killed: the state before is back in time, by itself.

mod allow_world;
mod documents;
mod publish_world;
mod tune_world;

use std::fs;
use std::time::{Duration, Instant};

use allow_world::{BACKENDS, Gate, LISTED, UNLISTED};
use publish_world::Host;
use tune_world::{Tuned, kill};
use weir_testkit::{PATIENCE, World, until};

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

/// The length of every trial here.
const TRIAL: Duration = Duration::from_secs(10);
const CONFIRM_WITHIN: [&str; 2] = ["--confirm-within", "10s"];
/// How much later the state before must be back.
const LATE: Duration = Duration::from_secs(2);
const SENT: u64 = 5;

/// The policy before lets in one pair of addresses, the one on trial the other pair.
fn gate() -> Option<Gate> {
    let gate = Gate::new(WEIR)?;
    gate.list("list", 10);
    gate.world.write("other", UNLISTED.join("\n"));
    Some(gate)
}

/// Whether listed and unlisted addresses come in.
fn come_in(gate: &Gate) -> [bool; 2] {
    [LISTED, UNLISTED].map(|addresses| {
        let counts = gate.send(&addresses, SENT as u32);
        assert!(counts.iter().all(|(sent, came)| *sent == SENT && [0, SENT].contains(came)), "{counts:?}");
        assert_eq!(counts[0].1, counts[1].1, "IPv4 and IPv6");
        counts[0].1 == SENT
    })
}

/// At once: none of them sees the others die. On a busy machine a process holds its files for a while after the signal, and would
/// be taken for alive: until then nothing is asked.
fn kill_all(guards: &[u32]) {
    for signal in ["STOP", "KILL"] {
        guards.iter().for_each(|guard| kill(*guard, signal));
    }
    let is_dead = |guard: &u32| {
        let stat = fs::read_to_string(format!("/proc/{guard}/stat")).unwrap_or_default();
        stat.rsplit(')')
            .next()
            .is_none_or(|rest| matches!(rest.trim().chars().next(), None | Some('Z' | 'X')))
    };
    until("the guards are dead", PATIENCE, || guards.iter().all(is_dead).then_some(()));
}

/// Judges what is seen during the trial of a command that began then: its time runs from some moment of the command. On a machine so
/// slow that it may have ended before all was seen, it shows nothing.
fn on_trial<T>(begun: Instant, look: impl FnOnce() -> T, judge: impl FnOnce(T)) {
    let seen = look();
    if begun.elapsed() < TRIAL {
        judge(seen);
    } else {
        // Counted by the runner, of which few are allowed.
        println!("DISTURBED: too slow to see the trial");
    }
}

fn wait_until(moment: Instant) {
    std::thread::sleep(moment.saturating_duration_since(Instant::now()));
}

/// Gates at the same time: with more of them, a busy machine would be too slow to see the trials.
const AT_ONCE: usize = 3;

/// Does this for each of them, some side by side, each at a gate of its own: it mostly waits for trials to end.
fn at_own_gates<T: Sync>(all: &[T], work: impl Fn(&Gate, &T) + Sync) {
    for some in all.chunks(AT_ONCE) {
        std::thread::scope(|scope| {
            for one in some {
                let work = &work;
                scope.spawn(move || {
                    if let Some(gate) = gate() {
                        work(&gate, one);
                    }
                });
            }
        });
    }
}

fn two_guards(gate: &Gate) -> Vec<u32> {
    two_of(|| gate.guards())
}

/// Both guards: a list that is read while one of them starts may lack it.
fn two_of(guards: impl Fn() -> Vec<u32>) -> Vec<u32> {
    until("two guards", PATIENCE, || Some(guards()).filter(|guards| guards.len() == 2))
}

#[test]
fn root_with_both_guards_killed_the_kernel_goes_back_to_the_policy_before() {
    let policies = [
        ("bpf", "bpf"),
        ("nft", "nft"),
        ("ipset", "ipset"),
        ("nft", "bpf"),
        ("bpf", "ipset"),
        ("ipset", "nft"),
    ];
    at_own_gates(&policies, |gate, &(before, next)| {
        gate.apply("list", before, &[]).expect(0);
        gate.run(&["confirm"]).expect(0);
        let kernel = gate.kernel();
        assert_eq!(come_in(gate), [true, false], "{before}");
        let begun = Instant::now();
        gate.apply("other", next, &[&CONFIRM_WITHIN[..], &["--force"]].concat()).expect(0);
        let end = Instant::now() + TRIAL;
        kill_all(&two_guards(gate));
        on_trial(
            begun,
            || come_in(gate),
            |came| assert_eq!(came, [false, true], "{before}, {next}: on trial"),
        );
        wait_until(end + LATE);
        assert_eq!(come_in(gate), [true, false], "{before}, {next}: afterwards");
        // The next command tidies the parts that the kernel cannot.
        let status = gate.json(&["status"]);
        assert_eq!(status["set"]["progress"]["why"], "not confirmed within 10 s", "{status:#}");
        assert_eq!(status["loaded"]["backend"], before);
        assert_eq!(gate.kernel(), kernel);
        assert_eq!(come_in(gate), [true, false], "{before}, {next}: tidied");
        gate.run(&["remove"]).expect(0);
        assert_eq!(gate.kernel(), "", "{before}, {next}");
    });
}

#[test]
fn root_with_both_guards_killed_the_kernel_lets_everybody_in_again() {
    let policies: [(&str, &[&str]); 4] =
        [("bpf", &[]), ("nft", &[]), ("ipset", &[]), ("bpf", &["--xdp=generic"])];
    at_own_gates(&policies, |gate, &(backend, more)| {
        let begun = Instant::now();
        gate.apply("other", backend, &[&CONFIRM_WITHIN[..], &["--force"], more].concat()).expect(0);
        let end = Instant::now() + TRIAL;
        kill_all(&two_guards(gate));
        on_trial(
            begun,
            || (come_in(gate), gate.run(&["status"]).expect(0).stdout),
            |(came, page)| {
                assert_eq!(came, [false, true], "{backend} {more:?}");
                let words = "both guard processes were killed; the kernel ends the trial in";
                assert!(page.contains(words), "{page}");
            },
        );
        wait_until(end + LATE);
        assert_eq!(come_in(gate), [true, true], "{backend} {more:?}");
        gate.run(&["status"]).expect(0);
        assert_eq!(gate.kernel(), "");
    });
}

#[test]
fn root_an_xdp_policy_before_is_back_on_all_its_interfaces() {
    let Some(gate) = gate() else { return };
    gate.world.sh("ip link add in2 type veth peer name in3");
    gate.apply("list", "bpf", &["--xdp=generic", "-i", "in2"]).expect(0);
    gate.run(&["confirm"]).expect(0);
    let kernel = gate.kernel();
    // On trial at tc, and not on the other interface.
    let begun = Instant::now();
    gate.apply("other", "bpf", &[&CONFIRM_WITHIN[..], &["--force"]].concat()).expect(0);
    let end = Instant::now() + TRIAL;
    kill_all(&two_guards(&gate));
    on_trial(begun, || come_in(&gate), |came| assert_eq!(came, [false, true]));
    wait_until(end + LATE);
    assert_eq!(come_in(&gate), [true, false]);
    gate.run(&["status"]).expect(0);
    assert_eq!(gate.kernel(), kernel);
    // The other way round, and confirmed: what is confirmed lasts, and nothing is left of the one before.
    gate.apply("other", "bpf", &["--force"]).expect(0);
    gate.run(&["confirm"]).expect(0);
    assert_eq!(come_in(&gate), [false, true]);
    assert_eq!(gate.kernel().lines().count(), 1, "{}", gate.kernel());
    gate.run(&["remove"]).expect(0);
}

#[test]
fn root_a_killed_guard_is_restarted_by_the_other_one() {
    // Long enough for all that is done meanwhile, also on a slow machine.
    let trial = Duration::from_secs(15);
    let backends: Vec<_> = BACKENDS.into_iter().enumerate().collect();
    at_own_gates(&backends, |gate, &(n, backend)| {
        gate.apply("other", backend, &["--confirm-within", "15s", "--force"]).expect(0);
        let end = Instant::now() + trial;
        for round in 0..3 {
            let guards = two_guards(gate);
            let victim = guards[(n + round) % 2];
            kill(victim, "KILL");
            until("another guard", PATIENCE, || {
                let now = gate.guards();
                (now.len() == 2 && !now.contains(&victim)).then_some(())
            });
        }
        // As low as this machine lets a root process go.
        let least = gate.world.sh(
            "for s in $(seq -1000 50 0); do echo $s 2>/dev/null >/proc/self/oom_score_adj && break; done; \
             cat /proc/self/oom_score_adj",
        );
        // Each in a session of its own: the number of the session is that of the process (proc_pid_stat(5)). Waited for: a
        // guard is seen before it has done its first step.
        let prepared = |pid: u32| {
            let read = |file: &str| fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
            let stat = read("stat");
            let session = stat.rsplit(')').next().unwrap().split_whitespace().nth(3);
            read("oom_score_adj") == least && session == Some(pid.to_string().as_str())
        };
        until("two prepared guards", PATIENCE, || {
            let guards = gate.guards();
            (guards.len() == 2 && guards.into_iter().all(prepared)).then_some(())
        });
        wait_until(end);
        until(&format!("{backend}: nothing is left"), PATIENCE, || {
            (gate.kernel().is_empty() && gate.guards().is_empty()).then_some(())
        });
        assert_eq!(come_in(gate), [true, true]);
    });
}

#[test]
fn root_what_is_confirmed_lasts_whatever_became_of_the_guards() {
    at_own_gates(&BACKENDS, |gate, &backend| {
        gate.apply("list", backend, &CONFIRM_WITHIN).expect(0);
        let end = Instant::now() + TRIAL;
        let guards = two_guards(gate);
        match backend {
            "nft" => kill(guards[0], "KILL"),
            _ => kill_all(&guards),
        }
        gate.run(&["confirm"]).expect(0);
        gate.world.wait_until_idle();
        wait_until(end + LATE);
        assert_eq!(come_in(gate), [true, false], "{backend}");
        assert_eq!(gate.json(&["status"])["set"]["progress"]["phase"], "confirmed");
        gate.run(&["remove"]).expect(0);
    });
}

#[test]
fn root_published_ports_go_back_to_the_kernel_with_one_guard_killed_and_with_both() {
    let Some(host) = Host::new(WEIR) else { return };
    // Packets that BPF leads are seen by no rule.
    let rules =
        || host.world.sh("iptables-nft -t nat -vxnL PREROUTING; ip6tables-nft -t nat -vxnL PREROUTING");
    let by_bpf = || {
        let before = rules();
        host.works();
        rules() == before
    };
    assert!(!by_bpf());
    for killed in [1, 2] {
        let begun = Instant::now();
        host.run(&[&["apply", "--all"], &CONFIRM_WITHIN[..]].concat()).expect(0);
        let end = Instant::now() + TRIAL;
        let guards = two_of(|| host.guards());
        kill_all(&guards[..killed]);
        on_trial(begun, by_bpf, |by_bpf| assert!(by_bpf, "{killed} killed"));
        wait_until(end + LATE);
        assert!(!by_bpf(), "{killed} killed");
        // The kernel has its ports back; the guard may still be writing that down.
        until("the end of the trial", PATIENCE, || {
            (host.json(&["status"], 0)["set"]["progress"]["phase"] == "reverted").then_some(())
        });
        assert_eq!((host.kernel(), host.guards()), (String::new(), Vec::new()));
    }
    // Confirmed, and then one of them alone on trial: all of them are back afterwards.
    host.run(&["apply", "--all", "--no-guard"]).expect(0);
    let kernel = host.kernel();
    let begun = Instant::now();
    host.run(&[&["apply", "198.18.0.1:53=198.19.0.2:5353/udp"], &CONFIRM_WITHIN[..]].concat()).expect(0);
    let end = Instant::now() + TRIAL;
    kill_all(&two_of(|| host.guards()));
    on_trial(begun, by_bpf, |by_bpf| assert!(!by_bpf, "TCP goes by the rules"));
    wait_until(end + LATE);
    assert!(by_bpf(), "all of it was published by BPF before");
    host.run(&["status"]).expect(0);
    assert_eq!(host.kernel(), kernel);
    host.run(&["remove"]).expect(0);
    assert_eq!(host.pins(), "");
}

#[test]
fn root_settings_are_back_with_one_guard_killed_and_with_both_after_the_next_command() {
    let Some(tuned) = Tuned::new(WEIR) else { return };
    let apply = || {
        let outcome = tuned.apply(&[&["--no-watch"], &CONFIRM_WITHIN[..]].concat()).expect(0);
        // No systemd in this world: a message names it first.
        assert!(outcome.stderr.starts_with("warning: systemd does not run here;"), "{}", outcome.stderr);
        Instant::now() + TRIAL
    };
    for victim in [0, 1] {
        let end = apply();
        kill(two_of(|| tuned.guards())[victim], "KILL");
        wait_until(end + LATE);
        assert_eq!((tuned.values(), tuned.guards()), (tuned.before.clone(), Vec::new()));
    }
    let end = apply();
    kill_all(&two_of(|| tuned.guards()));
    let page = tuned.run(&["status"]).expect(0).stdout;
    assert!(
        page.contains("both guard processes were killed; the next weir tune command rolls it back"),
        "{page}"
    );
    wait_until(end + LATE);
    assert_eq!(tuned.values(), tuned.after());
    tuned.run(&["status"]).expect(0);
    assert_eq!(tuned.values(), tuned.before);
}

/// Every process of weir at once, while it applies: the guards have no time to notice.
#[test]
fn root_every_process_killed_during_apply_leaves_nothing_in_effect() {
    at_own_gates(&BACKENDS, |gate, &backend| {
        // Lists that take a while to load.
        gate.list("long", 20_000);
        for pause_ms in [100, 400] {
            let args = ["apply", "long", "-i", "in0", "--backend", backend, "--confirm-within", "2s"];
            let apply = gate.world.start("apply", gate.weir(&args));
            std::thread::sleep(Duration::from_millis(pause_ms));
            kill_weir(&gate.world);
            let end = Instant::now() + Duration::from_secs(2);
            apply.end_within(PATIENCE);
            wait_until(end + LATE);
            assert_eq!(come_in(gate), [true, true], "{backend}, {pause_ms} ms");
            let status = gate.json(&["status"]);
            let phase = &status["set"]["progress"]["phase"];
            assert!(phase.is_null() || phase == "reverted", "{status:#}");
            assert_eq!((gate.kernel(), status["loaded"].is_null()), (String::new(), true), "{backend}");
        }
    });
}

/// Every process of this world that runs weir or was started by it: first stopped, so that none sees another one die.
fn kill_weir(world: &World) {
    let mut seen = Vec::new();
    loop {
        let all = world.processes();
        let more: Vec<u32> = all.iter().map(|(pid, _)| *pid).filter(|pid| !seen.contains(pid)).collect();
        if more.is_empty() {
            break;
        }
        more.iter().for_each(|pid| signal(*pid, "STOP"));
        seen.extend(more);
    }
    seen.iter().for_each(|pid| signal(*pid, "KILL"));
}

/// One that has ended meanwhile is no error.
fn signal(pid: u32, signal: &str) {
    let _ = std::process::Command::new("kill").args(["-s", signal, &pid.to_string()]).output().unwrap();
}

#[test]
fn root_ctrl_c_during_apply_leaves_nothing_and_status_says_so() {
    let Some(gate) = gate() else { return };
    gate.list("long", 20_000);
    for backend in BACKENDS {
        let args = ["apply", "long", "-i", "in0", "--backend", backend, "--confirm-within", "1h"];
        let apply = gate.world.start("apply", gate.weir(&args));
        until("the guards", PATIENCE, || (gate.guards().len() == 2).then_some(()));
        apply.signal("INT");
        apply.end_within(PATIENCE);
        if gate.json(&["status"])["set"]["progress"]["phase"] == "waiting" {
            println!("{backend}: applied before the signal came");
            gate.run(&["rollback"]).expect(0);
        }
        gate.world.wait_until_idle();
        let status = gate.json(&["status"]);
        assert_eq!(status["set"]["progress"]["phase"], "reverted", "{status:#}");
        assert_eq!((gate.kernel(), gate.guards()), (String::new(), Vec::new()));
        assert_eq!(come_in(&gate), [true, true], "{backend}");
    }
}

#[test]
fn root_a_full_disk_changes_nothing_or_is_rolled_back() {
    let Some(gate) = gate() else { return };
    // Pages left when the journal begins: none, and some for the first lines.
    for left_kib in [0, 4, 8, 16, 24, 64] {
        let state = gate.state();
        let folder = state.display();
        gate.world.sh(&format!("mkdir -p {folder} && mount -t tmpfs -o size=128k tmpfs {folder}"));
        gate.world.sh(&format!("head -c $((131072 - {left_kib} * 1024)) /dev/zero > {folder}/full || true"));
        let outcome = gate.apply("list", "nft", &[]);
        if outcome.code == 0 {
            assert_eq!(come_in(&gate), [true, false]);
            gate.run(&["rollback"]).expect(0);
        } else {
            assert!(outcome.complaints().len() == 1, "{outcome:?}");
        }
        gate.world.wait_until_idle();
        let status = gate.run(&["status"]).stdout;
        assert!(status.contains("nothing is loaded"), "{left_kib} KiB: {status}");
        assert_eq!((gate.kernel(), come_in(&gate)), (String::new(), [true, true]), "{left_kib} KiB");
        gate.world.sh(&format!("umount {folder}"));
    }
}

/// `ip netns exec` mounts a `/sys` of its own, which goes with the last process in it.
#[test]
fn root_a_filter_of_another_mount_namespace_is_found_and_lasts() {
    let Some(gate) = gate() else { return };
    gate.world.write("v4", "198.18.0.2\n");
    gate.world.sh("ip netns add inner && ip link add up0 type veth peer name down0 netns inner");
    let inside = |args: &str| {
        let state = gate.state();
        // Without WEIR_BPF_DIR: in the BPF file system of process 1.
        gate.world
            .sh(&format!("WEIR_STATE_DIR={} ip netns exec inner {WEIR} allow {args} 2>&1", state.display()))
    };
    let applied = inside("apply v4 -i down0 --backend bpf --confirm-within 1h --force");
    assert!(applied.contains(" 0 IPv6 networks") && !applied.contains("-0 IPv6"), "{applied}");
    assert!(inside("status").contains("on trial: rolls back in"));
    inside("confirm");
    gate.world.wait_until_idle();
    let status = inside("status");
    assert!(status.starts_with("bpf: what comes in by down0"), "{status}");
    // If its name is out of reach, the program is named.
    gate.world.sh("mkdir -p elsewhere && mount -t bpf bpf elsewhere");
    let elsewhere = gate.world.sh(&format!(
        "WEIR_STATE_DIR={}/none WEIR_BPF_DIR=$PWD/elsewhere ip netns exec inner {WEIR} allow status",
        gate.state().display()
    ));
    assert!(
        elsewhere.contains("down0: program ") && elsewhere.contains(" of weir filters there"),
        "{elsewhere}"
    );
    gate.world.sh("umount elsewhere");
    inside("remove");
    assert_eq!(inside("state"), "");
}
