use super::*;
use crate::scenario::Change;

/// Every line has its place in the table of mistakes below.
const TEXT: &str = r#"name = "fleet"
title = "Pods"
[testbed]
hosts = "kubernetes"
ports = "21100-21109"
[testbed.pods]
namespace = "bench"
image = "registry.example.com/weir:0.1.0"
program = "/usr/bin/weir"
deadline = "2h"
[testbed.initiator]
selector = "weir-role=tester"
host-network = true
capabilities = ["NET_RAW"]
[testbed.gateway]
node = "worker-2"
inside-interface = "eth0"
outside-interface = "eth1"
[[testbed.responder]]
nodes = ["worker-3", "worker-4"]
[[testbed.responder]]
node = "worker-5"
address = "10.0.2.5"
[[variant]]
kind = "routed"
[[workload]]
name = "rr"
kind = "tcp-rr"
"#;

fn read(text: &str) -> KubernetesTestbed {
    let scenario = Scenario::load(text, "k.toml").unwrap_or_else(|e| panic!("{e}"));
    let Testbed::Kubernetes(testbed) = scenario.testbed else { panic!("not pods") };
    testbed
}

#[test]
fn nodes_are_meant_by_name_by_list_and_by_labels() {
    let testbed = read(TEXT);
    assert_eq!(testbed.pods.namespace, "bench");
    assert_eq!(testbed.pods.deadline, Some(Duration::from_secs(7200)));
    assert_eq!(testbed.initiators[0].nodes, Nodes::Selected("weir-role=tester".into()));
    assert!(testbed.initiators[0].host_network && !testbed.responders[0].host_network);
    assert_eq!(testbed.responders[0].nodes, Nodes::Named(vec!["worker-3".into(), "worker-4".into()]));
    assert_eq!(testbed.responders[1].address, Some("10.0.2.5".parse().unwrap()));
    let gateway = testbed.gateway.unwrap();
    assert_eq!(gateway.capabilities, ["NET_ADMIN", "SYS_ADMIN"]);
    assert!(!gateway.privileged && gateway.inside_address.is_none());
    let small = TEXT.replace("namespace = \"bench\"\n", "").replace("hosts =", "kind = \"hosts\"\nhosts =");
    assert_eq!(read(&small).pods.namespace, "default");
}

#[test]
fn the_deadline_is_past_the_longest_run() {
    let scenario = Scenario::load(&TEXT.replace("deadline = \"2h\"\n", ""), "k.toml").unwrap();
    let Testbed::Kubernetes(testbed) = &scenario.testbed else { panic!("not pods") };
    let most = scenario.expected_seconds().1;
    assert_eq!(scenario.pod_deadline(&testbed.pods).as_secs(), (2.0 * most) as u64 + 600);
    let mut given = Scenario::load(TEXT, "k.toml").unwrap();
    let Testbed::Kubernetes(testbed) = &given.testbed else { panic!("not pods") };
    assert_eq!(given.pod_deadline(&testbed.pods), Duration::from_secs(7200));
    // One workload in two variants (one is the twin), 30 rounds: more than a minute.
    let error = given.set_all(&[Change::set("testbed.pods.deadline=60s")]).unwrap_err();
    assert!(error.what.contains("the run may take"), "{error}");
}

/// A text of [`TEXT`], its replacement, the line of the message, a part of it.
const MISTAKES: &[(&str, &str, usize, &str)] = &[
    ("\"kubernetes\"", "\"kubernets\"", 4, "unknown hosts \"kubernets\""),
    ("hosts = \"kubernetes\"", "kind = \"lab\"\nhosts = \"kubernetes\"", 5, "lab"),
    ("image = \"registry.example.com/weir:0.1.0\"\n", "", 6, "has no `image`"),
    ("image =", "imag =", 8, "unknown key `imag`"),
    ("weir:0.1.0", "we ir", 8, "expected the name of an image"),
    ("namespace = \"bench\"", "namespace = \"Bench\"", 7, "expected a name of Kubernetes"),
    ("deadline = \"2h\"", "deadline = \"10s\"", 10, "valid is 1 min to"),
    ("deadline = \"2h\"", "deadline = \"1m\"", 10, "the run may take"),
    ("selector = \"weir-role=tester\"\n", "", 11, "needs `node`, `nodes` or `selector`"),
    ("selector = \"weir-role=tester\"", "selector = \"a=b;c\"", 12, "expected labels"),
    ("selector = \"weir-role=tester\"", "selector = \"a\"\nnode = \"b\"", 12, "only one can be there"),
    ("[\"NET_RAW\"]", "[\"CAP_NET_RAW\"]", 14, "without CAP_"),
    ("host-network = true", "host-network = 1", 13, "true or false"),
    ("node = \"worker-2\"", "node = \"-n\"", 16, "expected a name of Kubernetes"),
    ("node = \"worker-2\"", "nodes = [\"worker-2\"]", 16, "unknown key `nodes`"),
    ("[\"worker-3\", \"worker-4\"]", "[]", 20, "an empty list"),
    ("[\"worker-3\", \"worker-4\"]", "[\"worker-3\", \"worker-3\"]", 20, "is there twice"),
    ("node = \"worker-5\"", "nodes = [\"a\", \"b\"]", 23, "one address is of one `node`"),
    ("\"10.0.2.5\"", "\"2001:2::5\"", 23, "the testbed's family is IPv4"),
    ("ports = ", "link = {}\nports = ", 5, "weir makes links in the lab only"),
    ("ports = ", "mtu = 9000\nports = ", 5, "unknown key `mtu`"),
];

#[test]
fn mistakes_are_told_with_their_line() {
    for (here, instead, line, what) in MISTAKES {
        assert_eq!(TEXT.matches(here).count(), 1, "{here}");
        let error = Scenario::load(&TEXT.replace(here, instead), "k.toml").unwrap_err();
        assert_eq!((error.line, error.what.contains(what)), (Some(*line), true), "{instead}: {error}");
    }
    let none = TEXT.replace("[[testbed.responder]]", "[[testbed.respnder]]");
    assert!(Scenario::load(&none, "k.toml").unwrap_err().what.contains("unknown key `respnder`"));
    let (before, after) = (TEXT.find("[testbed.gateway]").unwrap(), TEXT.find("[[testbed.resp").unwrap());
    let without = format!("{}{}", &TEXT[..before], &TEXT[after..]);
    let error = Scenario::load(&without, "k.toml").unwrap_err();
    assert!(error.what.contains("variant \"routed\" needs a [testbed.gateway]"), "{error}");
}
