//! Three hosts reached by a real ssh and a real sshd: initiator, gateway and responder are network namespaces with an
//! sshd each, on management links apart from the measured path.

use std::fs;

use weir_testkit::{Background, CommandOutput, PATIENCE, Record, World, scenario, until};

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

const HOSTS: [&str; 3] = ["in", "gw", "out"];

/// 198.18.0.2 (in) -- 198.18.0.1 (gw) 198.18.1.1 -- 198.18.1.2 (out). The gateway does not forward, has a table and a
/// rule of its owner, and all of that must be there afterwards.
const NETWORK: &str = "set -e
for n in in gw out; do ip netns add $n; ip -n $n link set lo up; done
i=1
for n in in gw out; do
  ip link add m$i type veth peer name mgmt netns $n
  ip addr add 198.19.10$i.1/24 dev m$i; ip link set m$i up
  ip -n $n addr add 198.19.10$i.2/24 dev mgmt; ip -n $n link set mgmt up
  i=$((i+1))
done
ip -n gw link add in0 type veth peer name i0 netns in
ip -n gw link add out0 type veth peer name r0 netns out
ip -n in addr add 198.18.0.2/24 dev i0; ip -n in link set i0 up; ip -n in route add default via 198.18.0.1 2>/dev/null || true
ip -n gw addr add 198.18.0.1/24 dev in0; ip -n gw link set in0 up
ip -n gw addr add 198.18.1.1/24 dev out0; ip -n gw link set out0 up
ip -n out addr add 198.18.1.2/24 dev r0; ip -n out link set r0 up
ip -n in route replace default via 198.18.0.1
ip -n out route add 198.18.0.0/24 via 198.18.1.1
ip netns exec gw nft add table inet owner
ip netns exec gw nft 'add chain inet owner kept { type filter hook forward priority 10; policy accept; }'
ip netns exec gw nft add rule inet owner kept ip daddr 198.18.1.2 accept
ip netns exec gw iptables-nft -A INPUT -s 198.18.0.99 -j DROP
";

/// Everything on the gateway that a variant may touch, by other means than weir's. The kernel gives link-local addresses in its
/// own time.
const FACTS: &str = "export LC_ALL=C
nft -s list ruleset; iptables-nft-save | grep -v '^#' | sed 's/\\[.*\\]//'
sysctl -a 2>/dev/null | grep -e forward -e '^net.netfilter.*\\(timeout\\|liberal\\|loose\\)'
ip -o addr | grep -v fe80; ip route show table all | grep -v -e fe80 -e ff00";

struct Site {
    world: World,
    sshds: Vec<Background>,
}

impl Site {
    /// `None`, with the reason printed, where this cannot be tested.
    fn new() -> Option<Site> {
        let programs = ["sshd", "ssh", "nft", "iptables-nft"];
        if World::lacks(&programs) {
            return None;
        }
        let world = World::root(WEIR)?;
        world.sh(NETWORK);
        let folder = world.folder().display().to_string();
        world.sh(&format!(
            "set -e; mkdir {folder}/ssh; cd {folder}/ssh
             ssh-keygen -q -t ed25519 -N '' -f host; ssh-keygen -q -t ed25519 -N '' -f user
             cp user.pub authorized_keys; echo \"weir-test $(cat host.pub)\" > known_hosts
             echo 'Authorised users only. This banner comes before the login.' > banner"
        ));
        let mut config = format!(
            "Host *\n User root\n Port 2222\n IdentityFile {folder}/ssh/user\n IdentitiesOnly yes\n HostKeyAlias weir-test\n \
             UserKnownHostsFile {folder}/ssh/known_hosts\n StrictHostKeyChecking yes\n"
        );
        let mut sshds = Vec::new();
        for (host, number) in HOSTS.iter().zip(1..) {
            config.push_str(&format!("Host {host}\n HostName 198.19.10{number}.2\n"));
            let home = format!("{folder}/home-{host}");
            fs::create_dir(&home).unwrap();
            // The output of a login shell of a talkative administrator, without an end of line.
            fs::write(format!("{home}/.bashrc"), "echo Welcome to $(hostname); printf 'load: 0.1 #'\n")
                .unwrap();
            let settings = format!(
                "HostKey {folder}/ssh/host\nAuthorizedKeysFile {folder}/ssh/authorized_keys\nStrictModes no\nUsePAM no\n\
                 PidFile none\nPermitRootLogin yes\nBanner {folder}/ssh/banner\nListenAddress 198.19.10{number}.2:2222\n\
                 SetEnv HOME={home} WEIR_RUNTIME_DIR={home}/run\n"
            );
            fs::write(format!("{folder}/ssh/sshd-{host}"), settings).unwrap();
            let mut command = world.command("ip");
            let path = full_path("sshd");
            command.args([
                "netns",
                "exec",
                host,
                &path,
                "-D",
                "-e",
                "-f",
                &format!("{folder}/ssh/sshd-{host}"),
            ]);
            let mut sshd = world.start(&format!("sshd-{host}"), command);
            sshd.wait_for("Server listening");
            sshds.push(sshd);
        }
        fs::write(format!("{folder}/ssh/config"), config).unwrap();
        Some(Site { world, sshds })
    }

    fn weir(&self, args: &[&str]) -> std::process::Command {
        let mut command = self.world.weir(args);
        command.env("WEIR_SSH", format!("ssh -F {}/ssh/config", self.world.folder().display()));
        command
    }

    fn bench(&self, output: &str) -> CommandOutput {
        self.world.run(self.weir(&["bench", "s.toml", "--output", output]))
    }

    fn facts(&self) -> String {
        self.world.sh(&format!("ip netns exec gw sh -c '{}'", FACTS.replace('\'', "'\\''")))
    }

    /// Names, inodes and times of the copies of weir on the hosts.
    fn copies(&self) -> String {
        self.world.sh(&format!(
            "cd {}; stat -c '%n %i %y' home-*/.cache/weir/agent-*",
            self.world.folder().display()
        ))
    }

    /// Ends the sessions that an sshd serves, and with `all` the sshd, too.
    fn kill_sessions(&self, host: usize, all: bool) {
        let pid = self.sshds[host].pid();
        let listener = if all { format!("kill -9 {pid};") } else { String::new() };
        // There are none where sshd has given up on its peer.
        let end = "[ -z \"$children\" ] || kill -9 $children";
        self.world.sh(&format!("children=$(ps -o pid= --ppid {pid}) || :; {listener} {end}"));
    }
}

/// sshd insists on being started by its full path.
fn full_path(program: &str) -> String {
    let found = std::process::Command::new("sh")
        .args(["-c", &format!("PATH=$PATH:/usr/sbin command -v {program}")])
        .output();
    String::from_utf8(found.unwrap().stdout).unwrap().trim().to_owned()
}

fn testbed(gateway_extra: &str) -> String {
    testbed_with("", gateway_extra)
}

fn testbed_with(initiator_extra: &str, gateway_extra: &str) -> String {
    format!(
        "kind = \"hosts\"\n[testbed.initiator]\nhost = \"ssh://in\"\naddress = \"198.18.0.2\"\n{initiator_extra}\n[testbed.gateway]\n\
         host = \"ssh://gw\"\ninside-interface = \"in0\"\noutside-interface = \"out0\"\ninside-address = \"198.18.0.1\"\n\
         outside-address = \"198.18.1.1\"\n{gateway_extra}\n[testbed.responder]\nhost = \"ssh://out\"\naddress = \"198.18.1.2\"\n"
    )
}

const VARIANTS: &str = "[[variant]]\nkind = \"routed\"\n[[variant]]\nkind = \"nft-masquerade\"\n[[variant]]\n\
                        kind = \"iptables-masquerade\"\n";
const QUICK: &str = "[[workload]]\nname = \"rr\"\nkind = \"tcp-rr\"\n";
const SLOW: &str = "[[workload]]\nname = \"slow\"\nkind = \"tcp-stream\"\nduration = \"9m\"\n";

#[test]
fn root_a_gateway_over_ssh_is_measured_and_left_as_it_was() {
    let Some(site) = Site::new() else { return };
    let world = &site.world;
    let before = site.facts();
    assert!(
        before.contains("owner")
            && before.contains("198.18.0.99")
            && before.contains("net.ipv4.ip_forward = 0"),
        "{before}"
    );
    let entries = format!("{VARIANTS}{QUICK}");
    world.write("s.toml", scenario::text("real", &testbed(""), scenario::ONE_ROUND, &entries));
    let outcome = site.bench("first").expect(0);
    assert!(outcome.stderr.contains("nft-masquerade: the responder sees 198.18.1.1"), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("routed: the responder sees 198.18.0.2"), "{}", outcome.stderr);
    assert_eq!(site.facts(), before);

    let record = Record::read(world.work().join("first"));
    assert_eq!((record.state(), record.valid_trials().len()), ("rounds-done", 3));
    let transports: Vec<&str> =
        record.json["hosts"].as_array().unwrap().iter().map(|h| h["transport"].as_str().unwrap()).collect();
    for host in HOSTS {
        assert!(transports.contains(&format!("ssh://{host}").as_str()), "{transports:?}");
    }

    // One copy on each host, in the login's own home; the second run starts those.
    let copies = site.copies();
    assert_eq!(copies.lines().count(), 3, "{copies}");
    site.bench("second").expect(0);
    assert_eq!(site.copies(), copies);
    assert_eq!(site.facts(), before);

    // A copy of another size is another version: never started, never taken for this one.
    world.sh(&format!(
        "cd {}; for f in home-*/.cache/weir/agent-*; do mv $f $f-older; done",
        world.folder().display()
    ));
    site.bench("third").expect(0);
    assert_eq!(site.copies().lines().count(), 6);
    let marked = |line: &str| line.trim_end().ends_with(" agent");
    until("the end of all agents", PATIENCE, || {
        (!world.processes().iter().any(|(_, l)| marked(l))).then_some(())
    });
}

/// A host whose clock is slow counts more in each of its seconds than there was: every trial of its run is void, and it is no better
/// than a run with a right clock.
#[test]
#[cfg(target_arch = "x86_64")]
fn root_a_host_with_a_slow_clock_is_never_named_better() {
    let Some(site) = Site::new() else { return };
    let world = &site.world;
    let slow_clock = world.binary().with_file_name("examples").join("slow_clock");
    assert!(slow_clock.exists(), "no {}: run cargo build -p weir --example slow_clock", slow_clock.display());
    let program = world.write(
        "slow-weir",
        format!("#!/bin/sh\nexec {} 80 {} \"$@\"\n", slow_clock.display(), world.binary().display()),
    );
    world.sh("chmod +x slow-weir");
    let entries = format!("[[variant]]\nkind = \"routed\"\n[[variant]]\nkind = \"nft-masquerade\"\n{QUICK}");
    let run = |output: &str, rounds: u32, initiator_extra: &str| {
        // Signs of life, which carry the clocks, come each second.
        let plan =
            format!("min-rounds = {rounds}\nmax-rounds = {rounds}\nwarmup = \"100ms\"\nduration = \"1s\"");
        let testbed = testbed_with(initiator_extra, "");
        world.write("s.toml", scenario::text("real", &testbed, &plan, &entries));
        site.bench(output).expect(0);
        Record::read(world.work().join(output))
    };
    let right = run("right", 3, "");
    assert!(!right.faults().iter().any(|f| f == "clock-drift"), "{:#?}", right.faults());

    // Six rounds would be enough for a verdict.
    let slow = run("slow", 6, &format!("program = \"{}\"", program.display()));
    let has_drifted = |trial: &serde_json::Value| {
        let faults = trial["faults"].as_array().unwrap();
        faults.iter().any(|f| f["code"] == "clock-drift" && f["void"] == true && f["host"] == "initiator")
    };
    let trials = slow.json["trials"].as_array().unwrap();
    assert!(trials.len() == 12 && trials.iter().all(has_drifted), "{:#?}", slow.faults());
    let bound = "nft-masquerade.rr.transactions_per_second >= 0.1 x routed";
    let reported = world.run(site.weir(&["report", "slow", "--require", bound]));
    let compared = world.run(site.weir(&["compare", "right", "slow"])).expect(0);
    assert!(reported.code != 0 && reported.stderr.contains("NOT MET"), "{}", reported.stderr);
    assert!(reported.stdout.contains("clock of the host runs at another speed"), "{}", reported.stdout);
    assert!(compared.stdout.contains("all 6 trials of the second run are void"), "{}", compared.stdout);
    for text in [reported.stdout, compared.stdout] {
        // The legend has the mark, too.
        let text = text.replace("▲ better ▼ worse", "");
        assert!(!["▲", "better", "faster"].iter().any(|praise| text.contains(praise)), "{text}");
    }
}

#[test]
fn root_an_agent_of_another_version_or_none_is_told() {
    let Some(site) = Site::new() else { return };
    let world = &site.world;
    // Greets like weir 9.9.9 with protocol 999: marker, length (41 bytes), JSON.
    let hello = r#"{"protocol":999,"version":"9.9.9","pid":1}"#;
    let other = world.write(
        "other",
        format!(
            "#!/bin/sh\nprintf '\\n#weir-agent#\\n\\000\\000\\000\\{:03o}{hello}'\nexec cat >/dev/null\n",
            hello.len()
        ),
    );
    world.sh("chmod +x other");
    let try_program = |program: &str| {
        let extra = format!("program = \"{program}\"");
        world.write(
            "s.toml",
            scenario::text("real", &testbed(&extra), scenario::ONE_ROUND, &format!("{VARIANTS}{QUICK}")),
        );
        let outcome = site.bench("out").expect(1);
        assert_eq!(outcome.complaints().len(), 1, "{}", outcome.stderr);
        assert_eq!(world.left_behind(&["s.toml", "other"]), [""; 0]);
        outcome.stderr
    };
    let said = try_program(other.to_str().unwrap());
    for word in ["gateway (ssh://gw)", "weir 9.9.9 with protocol 999", "`program`"] {
        assert!(said.contains(word), "no `{word}`: {said}");
    }
    let said = try_program("/no/such/weir");
    assert!(said.contains("gateway (ssh://gw)") && said.contains("/no/such/weir"), "{said}");
    let said = try_program("/bin/true");
    assert!(said.contains("gateway (ssh://gw)") && said.contains("ended"), "{said}");
}

#[test]
fn root_a_host_that_does_not_let_in_is_named_with_sshs_own_words() {
    let Some(site) = Site::new() else { return };
    let world = &site.world;
    world.write(
        "s.toml",
        scenario::text("real", &testbed(""), scenario::ONE_ROUND, &format!("{VARIANTS}{QUICK}")),
    );
    let refuse = |words: &[&str]| {
        let outcome = site.bench("out").expect(1);
        for word in words {
            assert!(outcome.stderr.contains(word), "no `{word}`: {}", outcome.stderr);
        }
        assert_eq!(world.left_behind(&["s.toml"]), [""; 0]);
    };
    let ssh = world.folder().join("ssh");
    world.sh(&format!("mv {0}/authorized_keys {0}/keys", ssh.display()));
    refuse(&["(ssh://in)", "Permission denied"]);
    world.sh(&format!(
        "mv {0}/keys {0}/authorized_keys; echo weir-test $(cat {0}/user.pub) > {0}/known_hosts",
        ssh.display()
    ));
    refuse(&["(ssh://in)", "Host key verification failed"]);
}

/// A run in the middle of a trial that would last a minute.
fn in_the_middle(site: &Site) -> Background {
    let entries = format!("[[variant]]\nkind = \"nft-masquerade\"\n{SLOW}");
    site.world.write(
        "s.toml",
        scenario::text("real", &testbed(""), scenario::ONE_ROUND, &entries).replace("30s", "60m"),
    );
    let mut run = site.world.start("weir", site.weir(&["bench", "s.toml", "--output", "out"]));
    run.wait_for("nft-masquerade: the responder sees");
    // More than a proof's few bytes went through.
    let sent =
        "ip netns exec out ss -Htin state established src 198.18.1.2 | grep -q 'bytes_received:[0-9]\\{7\\}'";
    until("traffic", PATIENCE, || (site.world.run(site.world.shell(sent)).code == 0).then_some(()));
    run
}

/// Long before the trial would have ended, by name.
fn assert_lost(site: &Site, run: Background, words: &str) {
    let outcome = run.end_within(PATIENCE).expect(1);
    assert_eq!(outcome.complaints().len(), 1, "{}", outcome.stderr);
    assert!(outcome.complaints()[0].contains(words), "no `{words}`: {}", outcome.complaints()[0]);
    assert!(site.world.labs().is_empty());
}

#[test]
fn root_a_gateway_whose_sshd_dies_is_named_and_undoes_its_variant() {
    let Some(site) = Site::new() else { return };
    let before = site.facts();
    let run = in_the_middle(&site);
    assert_ne!(site.facts(), before, "a variant is in effect meanwhile");
    site.kill_sessions(1, true);
    assert_lost(&site, run, "lost the agent on gateway (ssh://gw)");
    until("the gateway as it was", PATIENCE, || (site.facts() == before).then_some(()));
}

#[test]
fn root_a_host_that_is_cut_off_is_named() {
    let Some(site) = Site::new() else { return };
    let before = site.facts();
    let run = in_the_middle(&site);
    // Nothing answers any more, and nothing says so.
    site.world.sh("ip link set m3 down");
    assert_lost(&site, run, "the agent on responder (ssh://out) has not answered");
    until("the gateway as it was", PATIENCE, || (site.facts() == before).then_some(()));
    site.world.sh("ip link set m3 up");
    site.kill_sessions(2, false);
}

#[test]
fn root_ctrl_c_and_kill_9_leave_the_gateway_as_it_was() {
    for signal in ["INT", "KILL"] {
        let Some(site) = Site::new() else { return };
        let before = site.facts();
        let run = in_the_middle(&site);
        run.signal(signal);
        let outcome = run.end_within(PATIENCE);
        assert_eq!(outcome.code, if signal == "INT" { 1 } else { -1 });
        until("the gateway as it was", PATIENCE, || (site.facts() == before).then_some(()));
    }
}

#[test]
fn root_what_a_killed_agent_left_on_a_gateway_is_undone_by_the_next_run() {
    let Some(site) = Site::new() else { return };
    let world = &site.world;
    let before = site.facts();
    let run = in_the_middle(&site);
    // The agent of the gateway is the one that runs from the gateway's home.
    let home = format!("{}/home-gw/", world.folder().display());
    let agents = world.processes().into_iter().filter(|(_, line)| line.starts_with(&home));
    let agents: Vec<u32> = agents.map(|(pid, _)| pid).collect();
    assert_eq!(agents.len(), 1, "{agents:?}");
    world.sh(&format!("kill -9 {}", agents[0]));
    assert_lost(&site, run, "lost the agent on gateway (ssh://gw)");
    assert_ne!(site.facts(), before, "nobody was left to undo it");

    let entries = format!("{VARIANTS}{QUICK}");
    world.write("s.toml", scenario::text("real", &testbed(""), scenario::ONE_ROUND, &entries));
    site.bench("next").expect(0);
    assert_eq!(site.facts(), before);
}

#[test]
fn root_a_nat_between_two_hosts_over_ssh_is_measured() {
    let Some(site) = Site::new() else { return };
    site.world.sh(
        "ip netns exec gw sysctl -qw net.ipv4.ip_forward=1
         echo 'table ip nat { chain post { type nat hook postrouting priority srcnat; oifname out0 masquerade; }; }' |
           ip netns exec gw nft -f -",
    );
    let ends = ["--from", "ssh://in", "--to", "ssh://out", "--nat-address", "198.18.1.2", "--idle", "0"];
    let seen = site.world.run(site.weir(&[&["nat", "check"][..], &ends].concat())).expect(0);
    assert!(seen.stdout.contains("198.18.0.2 through the NAT to 198.18.1.2:9347"), "{}", seen.stdout);
    // With root at both ends, raw packets.
    assert!(seen.stdout.contains("icmp-error-checksum: "), "{}", seen.stdout);
    until("the server has ended", PATIENCE, || {
        site.world.sh("pgrep -f '[n]at-address' || true").trim().is_empty().then_some(())
    });
}
