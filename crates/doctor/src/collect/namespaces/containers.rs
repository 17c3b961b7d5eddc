//! Containers by the control group of a process.

use std::collections::HashMap;

use weir_sys::ProcRoot;

/// Descriptions of containers are a few KB; a larger file is not one.
const MOST: u64 = 1 << 20;

/// Looks up names, each once.
pub(super) struct Containers<'a> {
    root: &'a ProcRoot,
    known: HashMap<(Engine, String), String>,
}

/// Who runs a container.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Engine {
    Docker,
    Podman,
    /// containerd or CRI-O, for Kubernetes.
    Pod,
    Lxc,
    Nspawn,
    /// An unknown engine.
    Other,
}

impl<'a> Containers<'a> {
    pub(super) fn new(root: &'a ProcRoot) -> Self {
        Containers { root, known: HashMap::new() }
    }

    /// Name of the container that a process is in: `docker web`, `pod shop/cart-7d9f`.
    pub(super) fn of(&mut self, pid: u32) -> Option<String> {
        let text = self.root.read_optional(&format!("proc/{pid}/cgroup"))?;
        let (engine, id) = text.lines().find_map(in_cgroup)?;
        let root = self.root;
        let name = self.known.entry((engine, id.clone())).or_insert_with(|| name(root, engine, &id));
        Some(name.clone())
    }
}

/// The container in a line of /proc/PID/cgroup (cgroups(7)): `0::/system.slice/docker-ID.scope`.
fn in_cgroup(line: &str) -> Option<(Engine, String)> {
    let path = line.splitn(3, ':').nth(2)?;
    let mut engine = Engine::Other;
    // The innermost is the one that the process is in.
    let mut found = None;
    for part in path.split('/') {
        match part {
            "docker" => engine = Engine::Docker,
            "libpod" | "libpod_parent" => engine = Engine::Podman,
            "kubepods" | "kubepods.slice" => engine = Engine::Pod,
            _ => {}
        }
        found = in_part(part, engine).or(found);
    }
    found
}

fn in_part(part: &str, engine: Engine) -> Option<(Engine, String)> {
    let plain = part.strip_suffix(".scope").unwrap_or(part);
    for (prefix, engine) in [
        ("docker-", Engine::Docker),
        ("libpod-", Engine::Podman),
        ("cri-containerd-", Engine::Pod),
        ("crio-", Engine::Pod),
        ("", engine),
    ] {
        if let Some(id) = plain.strip_prefix(prefix)
            && is_id(id)
        {
            return Some((engine, id.to_owned()));
        }
    }
    // lxc.payload.NAME, and machine-NAME.scope of systemd-nspawn.
    let lxc = plain.strip_prefix("lxc.payload.").map(|name| (Engine::Lxc, name.to_owned()));
    let nspawn = || {
        let name = part.strip_prefix("machine-")?.strip_suffix(".scope")?;
        Some((Engine::Nspawn, name.replace("\\x2d", "-")))
    };
    lxc.or_else(nspawn)
}

/// Docker, Podman and Kubernetes number containers by 64 hexadecimal digits.
fn is_id(text: &str) -> bool {
    text.len() == 64 && text.bytes().all(|b| b.is_ascii_hexdigit())
}

/// Returns the engine's name for the container, if the engine's files can be read; otherwise the beginning of its number.
fn name(root: &ProcRoot, engine: Engine, id: &str) -> String {
    let short = || id.get(..12).unwrap_or(id).to_owned();
    match engine {
        Engine::Docker => format!("docker {}", docker(root, id).unwrap_or_else(short)),
        Engine::Podman => format!("podman {}", podman(root, id).unwrap_or_else(short)),
        Engine::Pod => format!("pod {}", pod(root, id).unwrap_or_else(short)),
        Engine::Lxc => format!("lxc {id}"),
        Engine::Nspawn => format!("machine {id}"),
        Engine::Other => format!("container {}", short()),
    }
}

fn json(root: &ProcRoot, path: &str) -> Option<serde_json::Value> {
    let small = std::fs::metadata(root.path(path)).ok()?.len() <= MOST;
    small.then(|| serde_json::from_str(&root.read(path).ok()?).ok())?
}

fn docker(root: &ProcRoot, id: &str) -> Option<String> {
    let moved =
        json(root, "etc/docker/daemon.json").and_then(|c| Some(c.get("data-root")?.as_str()?.to_owned()));
    let data = moved.unwrap_or_else(|| "/var/lib/docker".into());
    let config = json(root, &format!("{data}/containers/{id}/config.v2.json"))?;
    Some(config.get("Name")?.as_str()?.trim_start_matches('/').to_owned())
}

fn podman(root: &ProcRoot, id: &str) -> Option<String> {
    let storage = "var/lib/containers/storage";
    let list = ["overlay-containers", "vfs-containers"]
        .iter()
        .find_map(|kind| json(root, &format!("{storage}/{kind}/containers.json")))?;
    let ours = list.as_array()?.iter().find(|c| c.get("id").and_then(|i| i.as_str()) == Some(id))?;
    Some(ours.get("names")?.get(0)?.as_str()?.to_owned())
}

/// Namespace and name of the pod, from the annotations that both runtimes leave: here, or, seen from a pod that shares the
/// processes of its node, in the root of the node.
fn pod(root: &ProcRoot, id: &str) -> Option<String> {
    let config = [
        format!("run/containerd/io.containerd.runtime.v2.task/k8s.io/{id}/config.json"),
        format!("run/containers/storage/overlay-containers/{id}/userdata/config.json"),
    ];
    let config = ["", "proc/1/root/"]
        .iter()
        .find_map(|of| config.iter().find_map(|path| json(root, &format!("{of}{path}"))))?;
    let annotations = config.get("annotations")?;
    let read = |names: [&str; 2]| names.iter().find_map(|n| annotations.get(n)?.as_str());
    let name = read(["io.kubernetes.cri.sandbox-name", "io.kubernetes.pod.name"])?;
    let namespace = read(["io.kubernetes.cri.sandbox-namespace", "io.kubernetes.pod.namespace"])?;
    Some(format!("{namespace}/{name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_groups_tell_the_container() {
        let id = "0123456789abcdef".repeat(4);
        for (path, engine) in [
            (format!("/system.slice/docker-{id}.scope"), Engine::Docker),
            (format!("/docker/{id}"), Engine::Docker),
            (format!("/machine.slice/libpod-{id}.scope/container"), Engine::Podman),
            (format!("/kubepods.slice/kubepods-pod1.slice/cri-containerd-{id}.scope"), Engine::Pod),
            (format!("/kubepods.slice/crio-{id}.scope"), Engine::Pod),
            (format!("/kubepods/besteffort/pod12/{id}"), Engine::Pod),
            (format!("/some/{id}"), Engine::Other),
        ] {
            assert_eq!(in_cgroup(&format!("0::{path}")), Some((engine, id.clone())), "{path}");
            assert_eq!(in_cgroup(&format!("4:memory:{path}")), Some((engine, id.clone())), "{path}");
        }
        assert_eq!(in_cgroup("0::/lxc.payload.web/init"), Some((Engine::Lxc, "web".into())));
        let nspawn = in_cgroup("0::/machine.slice/machine-deb\\x2d12.scope/payload");
        assert_eq!(nspawn, Some((Engine::Nspawn, "deb-12".into())));
        for none in ["0::/", "0::/user.slice/session-1.scope", "", "x", "0::/docker/1234"] {
            assert_eq!(in_cgroup(none), None, "{none}");
        }
    }
}
