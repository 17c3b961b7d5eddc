//! A world with a cluster, behind a stand-in for `kubectl` (the file beside this one).

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use serde_json::{Value, json};
use weir_testkit::{World, scenario};

/// A cluster of this machine.
pub(crate) struct Cluster {
    pub(crate) world: World,
    folder: PathBuf,
}

impl Cluster {
    /// In a world, with these nodes.
    pub(crate) fn in_world(world: World, nodes: &Value) -> Cluster {
        let folder = world.folder().join("cluster");
        for part in ["bin", "cluster", "cluster/pods"] {
            fs::create_dir(world.folder().join(part)).unwrap();
        }
        fs::write(world.folder().join("bin/kubectl"), include_bytes!("kubectl")).unwrap();
        world.sh(&format!("chmod +x {}/bin/kubectl", world.folder().display()));
        let cluster = Cluster { world, folder };
        cluster.write("nodes.json", nodes);
        cluster.break_by(&json!({}));
        cluster
    }

    fn write(&self, name: &str, value: &Value) {
        fs::write(self.folder.join(name), value.to_string()).unwrap();
    }

    /// Lets the cluster fail in this way from now on.
    pub(crate) fn break_by(&self, faults: &Value) {
        self.write("faults.json", faults);
    }

    /// `weir bench s.toml`, with the stand-in in its PATH.
    pub(crate) fn bench(&self, more: &[&str]) -> Command {
        let mut command = self.world.weir(&[&["bench", "s.toml"], more].concat());
        command.env("PATH", format!("{}/bin:/usr/sbin:/usr/bin:/sbin:/bin", self.world.folder().display()));
        command
    }

    /// The pods that are there, by name.
    pub(crate) fn pods(&self) -> Vec<Value> {
        let mut files: Vec<PathBuf> =
            fs::read_dir(self.folder.join("pods")).unwrap().map(|e| e.unwrap().path()).collect();
        files.retain(|file| file.extension().is_some_and(|e| e == "json"));
        files.sort();
        files.iter().map(|file| serde_json::from_slice(&fs::read(file).unwrap()).unwrap()).collect()
    }

    /// Puts a pod there, or changes one.
    pub(crate) fn put(&self, pod: &Value) {
        self.write(&format!("pods/{}.json", pod["metadata"]["name"].as_str().unwrap()), pod);
    }

    /// The calls of `kubectl` so far: `calls`, or `exec`.
    pub(crate) fn calls(&self, which: &str) -> Vec<Vec<String>> {
        let text = fs::read_to_string(self.folder.join(which)).unwrap_or_default();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

/// A scenario of one path between pods.
pub(crate) fn path(pods: &str, ends: &str, plan: &str) -> String {
    let testbed = format!(
        "hosts = \"kubernetes\"\n[testbed.pods]\nnamespace = \"bench\"\nimage = \"{IMAGE}\"\n{pods}\n{ends}"
    );
    let entries = "[[variant]]\nkind = \"path\"\n[[workload]]\nname = \"rr\"\nkind = \"tcp-rr\"\n";
    scenario::text("pods", &testbed, plan, entries)
}

/// Initiator and responder on nodes of these names.
pub(crate) const ENDS: &str = "[testbed.initiator]\nnode = \"n1\"\n[testbed.responder]\nnode = \"n2\"\n";

pub(crate) const IMAGE: &str = "registry.example.com/weir:0.1.0";

/// Nodes on loopback, whose answers come from 127.0.0.1.
pub(crate) fn nodes() -> Value {
    json!([
        { "name": "n1", "address": "127.0.0.2", "labels": { "weir-role": "tester" } },
        { "name": "n2", "address": "127.0.0.1" },
        { "name": "n3", "address": "127.0.0.3", "labels": { "weir-role": "tester" } },
    ])
}
