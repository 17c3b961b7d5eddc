//! `hosts = "kubernetes"`: pods are made, used and removed, in every ending, over a stand-in for `kubectl`.

mod kubernetes_world;

use std::fs;

use kubernetes_world::{Cluster, ENDS, IMAGE, nodes, path};
use serde_json::{Value, json};
use weir_testkit::{Background, PATIENCE, Record, World, scenario, until};

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

fn program() -> String {
    format!("program = \"{WEIR}\"\n")
}

fn cluster() -> Option<Cluster> {
    if World::lacks(&["python3"]) {
        return None;
    }
    Some(Cluster::in_world(World::root(WEIR)?, &nodes()))
}

fn label<'a>(pod: &'a Value, key: &str) -> &'a str {
    pod["metadata"]["labels"][key].as_str().unwrap()
}

#[test]
fn root_a_run_makes_a_pod_on_each_node_and_removes_it() {
    let Some(cluster) = cluster() else { return };
    let ends = "[testbed.initiator]\nselector = \"weir-role=tester\"\n[testbed.responder]\nnode = \"n2\"\n";
    cluster.world.write("s.toml", path(&program(), ends, scenario::ONE_ROUND));
    cluster.world.run(cluster.bench(&["-o", "out"])).expect(0);
    let record = Record::read(cluster.world.work().join("out"));
    assert_eq!((record.state(), record.valid_trials().len()), ("rounds-done", 1));
    assert_eq!(cluster.pods(), [Value::Null; 0], "all are removed");

    // An agent in each, directly: the image of weir has no shell.
    let calls = cluster.calls("exec");
    let pods: Vec<&str> = calls.iter().map(|call| call[4].as_str()).collect();
    let run = pods[0].strip_suffix("-initiator-1").unwrap();
    assert_eq!(pods, ["initiator-1", "initiator-2", "responder-1"].map(|end| format!("{run}-{end}")));
    for (call, pod) in calls.iter().zip(&pods) {
        assert_eq!(*call, ["exec", "-i", "-n", "bench", pod, "-c", "agent", "--", WEIR, "agent"]);
    }
    let hosts: Vec<&str> =
        record.json["hosts"].as_array().unwrap().iter().map(|h| h["transport"].as_str().unwrap()).collect();
    assert!(hosts.iter().all(|h| h.starts_with("kubectl://bench/weir-")), "{hosts:?}");
    // Permissions are asked for before anything is made, and everything made is deleted by its name.
    let verbs: Vec<&str> = cluster.calls("calls").iter().map(|c| c[0].clone().leak() as &str).collect();
    let (create, auth) = (
        verbs.iter().position(|v| *v == "create").unwrap(),
        verbs.iter().rposition(|v| *v == "auth").unwrap(),
    );
    assert!(auth < create, "{verbs:?}");
    let deleted = cluster.calls("calls").into_iter().find(|c| c[0] == "delete").unwrap();
    assert_eq!(deleted.iter().filter(|word| word.starts_with("weir-")).count(), 3, "{deleted:?}");
    cluster.world.wait_until_idle();
}

/// Two nodes in networks of their own, and one that routes between them.
const NETWORK: &str = "
for host in n1 gw n2; do ip netns add $host; ip -n $host link set lo up; done
ip link add eth0 netns n1 type veth peer name inside netns gw
ip link add eth0 netns n2 type veth peer name outside netns gw
ip -n n1 address add 198.18.1.1/24 dev eth0; ip -n gw address add 198.18.1.2/24 dev inside
ip -n n2 address add 198.18.2.1/24 dev eth0; ip -n gw address add 198.18.2.2/24 dev outside
for link in 'n1 eth0' 'gw inside' 'gw outside' 'n2 eth0'; do ip -n ${link% *} link set ${link#* } up; done
ip -n n1 route add default via 198.18.1.2; ip -n n2 route add default via 198.18.2.2";

#[test]
fn root_a_gateway_on_a_node_is_changed_measured_and_left_as_it_was() {
    if World::lacks(&["python3", "ip", "nft"]) {
        return;
    }
    let Some(world) = World::root(WEIR) else { return };
    world.sh(NETWORK);
    let nodes = json!([
        { "name": "n1", "address": "198.18.1.1", "netns": "n1" },
        { "name": "gw", "address": "198.18.1.2", "netns": "gw", "labels": { "hop": "yes" } },
        { "name": "n2", "address": "198.18.2.1", "netns": "n2" },
    ]);
    let cluster = Cluster::in_world(world, &nodes);
    // Without `program`: weir copies itself into the pods.
    let testbed = format!(
        "hosts = \"kubernetes\"\n[testbed.pods]\nimage = \"{IMAGE}\"\n{ENDS}[testbed.gateway]\nselector = \"hop=yes\"\n\
         inside-interface = \"inside\"\noutside-interface = \"outside\"\noutside-address = \"198.18.2.2\"\n"
    );
    let entries = "[[variant]]\nkind = \"routed\"\n[[variant]]\nkind = \"nft-masquerade\"\n\
                   [[workload]]\nname = \"rr\"\nkind = \"tcp-rr\"\n";
    cluster.world.write("s.toml", scenario::text("hop", &testbed, scenario::ONE_ROUND, entries));
    let rules = "for host in n1 gw n2; do ip netns exec $host nft list ruleset; ip -n $host route; \
                 ip netns exec $host sysctl -a 2>/dev/null | grep forwarding; done";
    let before = cluster.world.sh(rules);
    let mut run = cluster.world.start("weir", cluster.bench(&["-o", "out"]));
    run.wait_for("nft-masquerade: the responder sees 198.18.2.2");
    let rights = |role: &str| {
        let pods = cluster.pods();
        let pod = pods.iter().find(|pod| label(pod, "weir/role") == role).unwrap();
        assert_eq!(pod["metadata"]["namespace"], "default");
        let context = &pod["spec"]["containers"][0]["securityContext"];
        (
            pod["spec"]["hostNetwork"].clone(),
            context["capabilities"]["add"].clone(),
            context["runAsUser"].clone(),
        )
    };
    assert_eq!(rights("gateway"), (json!(true), json!(["NET_ADMIN", "SYS_ADMIN"]), json!(0)));
    assert_eq!(rights("initiator"), (json!(false), Value::Null, json!(65534)));
    run.end_within(PATIENCE).expect(0);
    let record = Record::read(cluster.world.work().join("out"));
    assert_eq!((record.state(), record.valid_trials().len()), ("rounds-done", 2));
    assert_eq!((cluster.pods(), cluster.world.sh(rules)), (Vec::new(), before));
    // The undo list was on the node, where the next agent finds it, and is empty.
    let node = cluster.world.folder().join("cluster/node/gw");
    let lists = fs::read_dir(node).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
    assert_eq!(lists.filter(|name| name.ends_with(".journal")).count(), 0);
    cluster.world.wait_until_idle();
}

/// A run of hours, after its first trial.
fn in_the_middle(cluster: &Cluster) -> Background {
    let plan = "min-rounds = 50\nmax-rounds = 50\nwarmup = \"0s\"\nduration = \"1s\"";
    let text = path(&program(), ENDS, plan).replace("30s", "60m");
    cluster.world.write("s.toml", text);
    let mut run = cluster.world.start("weir", cluster.bench(&["-o", "out"]));
    run.wait_for("path: ");
    until("a trial", PATIENCE, || {
        let text = fs::read(cluster.world.work().join("out/run.json")).ok()?;
        let json: Value = serde_json::from_slice(&text).ok()?;
        (!json["trials"].as_array()?.is_empty()).then_some(())
    });
    run
}

#[test]
fn root_ctrl_c_removes_the_pods() {
    let Some(cluster) = cluster() else { return };
    let run = in_the_middle(&cluster);
    assert_eq!(cluster.pods().len(), 2);
    run.signal("INT");
    run.end_within(PATIENCE).expect(1);
    assert_eq!(cluster.pods(), [Value::Null; 0]);
    assert_eq!(Record::read(cluster.world.work().join("out")).state(), "interrupted");
    cluster.world.wait_until_idle();
}

#[test]
fn root_ctrl_c_while_the_pods_start_removes_them() {
    let Some(cluster) = cluster() else { return };
    cluster.break_by(&json!({ "slow": true }));
    cluster.world.write("s.toml", path(&program(), ENDS, scenario::ONE_ROUND));
    let run = cluster.world.start("weir", cluster.bench(&[]));
    until("the pods", PATIENCE, || (cluster.pods().len() == 2).then_some(()));
    run.signal("INT");
    let outcome = run.end_within(PATIENCE).expect(1);
    assert!(outcome.stderr.contains("stopped"), "{}", outcome.stderr);
    assert_eq!(cluster.pods(), [Value::Null; 0]);
    assert_eq!(cluster.world.left_behind(&["s.toml"]), [""; 0]);
    cluster.world.wait_until_idle();
}

#[test]
fn root_the_next_run_removes_the_pods_of_a_killed_one_and_no_others() {
    let Some(cluster) = cluster() else { return };
    let run = in_the_middle(&cluster);
    run.signal("KILL");
    run.end_within(PATIENCE);
    // The agents end with it; the pods do not.
    cluster.world.wait_until_idle();
    let left = cluster.pods();
    assert_eq!(left.len(), 2);
    for pod in &left {
        // Twice 50 trials of 1 s with 1.55 s around each, and ten minutes: the cluster ends it then.
        assert_eq!(pod["spec"]["activeDeadlineSeconds"], 855);
        assert_eq!(label(pod, "app.kubernetes.io/managed-by"), "weir");
    }
    // One pod of another machine, which may be in use; one that the cluster has ended; one of another program.
    let mut elsewhere = left[0].clone();
    elsewhere["metadata"]["name"] = json!("weir-elsewhere-initiator-1");
    elsewhere["metadata"]["labels"]["weir/owner-machine"] = json!("elsewhere.4026531836");
    let mut late = elsewhere.clone();
    late["metadata"]["name"] = json!("weir-late-initiator-1");
    late["status"] = json!({ "phase": "Failed", "reason": "DeadlineExceeded" });
    let mut foreign = left[0].clone();
    foreign["metadata"]["name"] = json!("web");
    foreign["metadata"]["labels"]["app.kubernetes.io/component"] = json!("web");
    for pod in [&elsewhere, &late, &foreign] {
        cluster.put(pod);
    }
    cluster.world.write("s.toml", path(&program(), ENDS, scenario::ONE_ROUND));
    let outcome = cluster.world.run(cluster.bench(&["-o", "second"])).expect(0);
    assert!(
        outcome.stderr.contains("removed 3 pods in namespace bench that an earlier run left"),
        "{}",
        outcome.stderr
    );
    assert_eq!(cluster.pods(), [foreign, elsewhere], "a pod that may be in use stays");
    cluster.world.wait_until_idle();
}

#[test]
fn root_an_evicted_pod_ends_the_run_with_the_clusters_reason() {
    let Some(cluster) = cluster() else { return };
    let run = in_the_middle(&cluster);
    let mut pod = cluster.pods()[0].clone();
    let name = pod["metadata"]["name"].as_str().unwrap().to_owned();
    for (pid, _) in cluster.world.processes().iter().filter(|(pid, _)| {
        fs::read(format!("/proc/{pid}/environ"))
            .is_ok_and(|e| String::from_utf8_lossy(&e).contains(&format!("home/{name}")))
    }) {
        cluster.world.sh(&format!("kill -9 {pid}"));
    }
    pod["status"] =
        json!({ "phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory." });
    cluster.put(&pod);
    let outcome = run.end_within(PATIENCE).expect(1);
    let words = format!("pod {name} on node n1 was evicted: The node was low on resource: memory.");
    assert!(outcome.complaints().iter().any(|line| line.contains(&words)), "{}", outcome.stderr);
    assert_eq!(Record::read(cluster.world.work().join("out")).state(), "failed");
    assert_eq!(cluster.pods(), [Value::Null; 0]);
    cluster.world.wait_until_idle();
}

/// A run that cannot begin: exit code, one message with these words, and nothing left in the cluster and here.
#[track_caller]
fn refused(cluster: &Cluster, text: &str, code: i32, words: &[&str]) {
    cluster.world.write("s.toml", text);
    let outcome = cluster.world.run(cluster.bench(&[])).expect(code);
    assert_eq!(outcome.complaints().len(), 1, "{}", outcome.stderr);
    for word in words {
        assert!(outcome.stderr.contains(word), "no `{word}` in {}", outcome.stderr);
    }
    assert_eq!((cluster.pods(), cluster.calls("exec").len()), (Vec::new(), 0));
    assert_eq!(cluster.world.left_behind(&["s.toml"]), [""; 0]);
}

/// Without any privilege: nothing is sent before the pods run. One node is not ready.
fn unprivileged() -> Option<Cluster> {
    if World::lacks(&["python3"]) {
        return None;
    }
    let mut nodes = nodes();
    nodes.as_array_mut().unwrap().push(json!({ "name": "n4", "address": "127.0.0.4", "ready": "False",
        "message": "container runtime network not ready" }));
    Some(Cluster::in_world(World::plain(WEIR), &nodes))
}

#[test]
fn every_failure_of_the_cluster_is_one_message() {
    let Some(cluster) = unprivileged() else { return };
    let text = path(&program(), ENDS, scenario::ONE_ROUND);
    let level = "Error from server (Forbidden): pods \"weir-1\" is forbidden: violates PodSecurity \"restricted:latest\": hostPath";
    for (faults, code, words) in [
        (
            json!({ "unreachable": "Unable to connect to the server: dial tcp: no route" }),
            1,
            ["cannot reach the cluster", "no route"],
        ),
        (
            json!({ "deny": ["create pods/exec"] }),
            4,
            ["allow you to create pods/exec in namespace bench", "role.yaml"],
        ),
        (json!({ "deny": ["list nodes"] }), 4, ["allow you to list nodes:", "role.yaml"]),
        (
            json!({ "create": level }),
            1,
            ["restricted:latest", "pod-security.kubernetes.io/enforce=privileged"],
        ),
        (
            json!({ "create": "Error from server (NotFound): namespaces \"bench\" not found" }),
            1,
            ["not found", "kubectl create namespace bench"],
        ),
        (
            json!({ "waiting": ["ErrImagePull", "manifest unknown"] }),
            1,
            [IMAGE, "cannot be pulled on node n1: ErrImagePull: manifest unknown"],
        ),
        (
            json!({ "waiting": ["RunContainerError", "exec: no such file"] }),
            1,
            ["does not start on node n1", "exec: no such file"],
        ),
        (
            json!({ "unschedulable": "0/4 nodes are available: Insufficient cpu" }),
            1,
            ["does not start on node n1", "Insufficient cpu"],
        ),
    ] {
        cluster.break_by(&faults);
        refused(&cluster, &text, code, &words);
    }
    cluster.break_by(&json!({ "slow": true }));
    let hurry = path(&format!("{}start-within = \"1s\"", program()), ENDS, scenario::ONE_ROUND);
    refused(&cluster, &hurry, 1, &["still waiting (ContainerCreating)", "`start-within`"]);
}

#[test]
fn nodes_that_cannot_be_used_are_named() {
    let Some(cluster) = unprivileged() else { return };
    let on = |ends: &str| path(&program(), ends, scenario::ONE_ROUND);
    let away = on(&ENDS.replace("n2", "n9"));
    refused(&cluster, &away, 1, &["node n9: the cluster has no such node", "n1, n2, n3, n4"]);
    let unready = on(&ENDS.replace("n2", "n4"));
    refused(&cluster, &unready, 1, &["node n4 is not ready: container runtime network not ready"]);
    let none = on(&ENDS.replace("node = \"n1\"", "selector = \"zone=b\""));
    refused(&cluster, &none, 1, &["selector zone=b: the cluster has no such node", "n1, n2, n3, n4"]);
    let same = on("[testbed.initiator]\nnode = \"n1\"\n[testbed.responder]\nnode = \"n1\"\n");
    refused(&cluster, &same, 2, &["have the same address 127.0.0.2"]);
    let three = "[[testbed.initiator]]\nselector = \"weir-role=tester\"\n[[testbed.initiator]]\nnode = \"n1\"\n\
                 [testbed.responder]\nnode = \"n2\"\n";
    let ports = on(three).replace("[testbed.pods]", "ports = \"21100-21103\"\n[testbed.pods]");
    refused(&cluster, &ports, 2, &["3 initiators need 6"]);
}

#[test]
fn without_kubectl_nothing_is_done() {
    let Some(cluster) = unprivileged() else { return };
    fs::remove_file(cluster.world.folder().join("bin/kubectl")).unwrap();
    cluster.world.write("s.toml", path(&program(), ENDS, scenario::ONE_ROUND));
    let mut command = cluster.bench(&[]);
    command.env("PATH", cluster.world.folder().join("bin"));
    let outcome = cluster.world.run(command).expect(4);
    assert!(outcome.stderr.contains("needs `kubectl`, which is not installed here"), "{}", outcome.stderr);
}

#[test]
fn root_pods_that_cannot_be_removed_are_named_with_the_command_that_does_it() {
    let Some(cluster) = cluster() else { return };
    cluster.break_by(&json!({ "delete": "Error from server: etcdserver: request timed out" }));
    cluster.world.write("s.toml", path(&program(), ENDS, scenario::ONE_ROUND));
    let outcome = cluster.world.run(cluster.bench(&["-o", "out"])).expect(0);
    for words in
        ["pods are left in namespace bench", "request timed out", "kubectl -n bench delete pods -l weir/run="]
    {
        assert!(outcome.stderr.contains(words), "no `{words}` in {}", outcome.stderr);
    }
    let record = Record::read(cluster.world.work().join("out"));
    assert!(record.json["notes"].to_string().contains("pods are left"), "{}", record.json["notes"]);
    assert_eq!(cluster.pods().len(), 2);
    cluster.world.wait_until_idle();
}

#[test]
fn the_scenario_of_deploy_is_valid() {
    let world = World::plain(WEIR);
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/kubernetes/bench/nodes.toml");
    world.run(world.weir(&["scenario", "check", file])).expect(0);
    let with_service = fs::read_to_string(file).unwrap().replace("\n# [[variant]]", "\n[[variant]]");
    let with_service = with_service
        .replace("\n# name", "\nname")
        .replace("\n# kind", "\nkind")
        .replace("\n# target", "\ntarget");
    world.write("service.toml", with_service);
    let outcome = world.run(world.weir(&["bench", "service.toml", "--dry-run"])).expect(0);
    assert!(outcome.stdout.contains("\ntarget = \"10.96.0.100\""), "{}", outcome.stdout);
}
