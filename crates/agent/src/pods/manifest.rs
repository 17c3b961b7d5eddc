//! The manifest of a pod: what it may do is all written here.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

/// The container of a pod.
pub(super) const CONTAINER: &str = "agent";

/// Users of a container: the one that owns nothing (Debian's and Alpine's `nobody`), and root.
const NOBODY: u32 = 65_534;
const ROOT: u32 = 0;

/// Folders for the agent: a read-only image has no other one to write to.
const WORK: &str = "/tmp";
/// The list of changes that are not undone yet ([`weir_gateway`]'s journal). It must outlive a gateway's pod: if that is evicted
/// in the middle of a trial, the next agent on the node undoes them.
const JOURNALS: &str = "/run/weir";

/// Kubernetes refuses to forbid privilege escalation where this capability is given.
const SYS_ADMIN: &str = "SYS_ADMIN";

/// Properties of all pods of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Template {
    /// Container image.
    pub image: String,
    /// `weir` in the image; without it weir copies itself into the pod, whose image must have a shell then.
    pub program: Option<String>,
    /// Time after which the cluster ends a pod, whatever happened to weir; whole seconds count.
    pub deadline: Duration,
}

/// The rights of a role's pods.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Rights {
    /// In the node's network namespace, instead of one of its own.
    pub host_network: bool,
    /// Capabilities without `CAP_`; all others are dropped. With none, the agent is no root either.
    pub capabilities: Vec<String>,
    /// All of them, and writable `/proc/sys`.
    pub privileged: bool,
    /// The agent changes its node, and must be able to undo that after the pod's end.
    pub changes_node: bool,
}

/// One pod.
pub(super) struct Wanted<'a> {
    pub(super) name: &'a str,
    pub(super) namespace: &'a str,
    pub(super) node: &'a str,
    pub(super) labels: BTreeMap<String, String>,
}

/// The manifest of one pod.
pub(super) fn pod(wanted: &Wanted<'_>, template: &Template, rights: &Rights) -> Value {
    let mut volumes = vec![json!({ "name": "work", "emptyDir": {} })];
    let mut mounts = vec![json!({ "name": "work", "mountPath": WORK })];
    let journals = if rights.changes_node { JOURNALS } else { "/tmp/weir" };
    if rights.changes_node {
        volumes.push(
            json!({ "name": "journals", "hostPath": { "path": JOURNALS, "type": "DirectoryOrCreate" } }),
        );
        mounts.push(json!({ "name": "journals", "mountPath": JOURNALS }));
    }
    let container = json!({
        "name": CONTAINER,
        "image": template.image,
        "command": waiting(template),
        // An agent waits for its input, which kubelet keeps open.
        "stdin": template.program.is_some(),
        "env": [{ "name": "HOME", "value": WORK }, { "name": "WEIR_RUNTIME_DIR", "value": journals }],
        "workingDir": WORK,
        // No limits: a throttled agent would be measured instead of the path.
        "resources": { "requests": { "cpu": "100m", "memory": "64Mi" } },
        "securityContext": security(rights),
        "volumeMounts": mounts,
    });
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": { "name": wanted.name, "namespace": wanted.namespace, "labels": wanted.labels },
        "spec": {
            "activeDeadlineSeconds": template.deadline.as_secs(),
            "restartPolicy": "Never",
            // The first process waits, and takes no notice of a polite signal.
            "terminationGracePeriodSeconds": 2,
            "automountServiceAccountToken": false,
            "enableServiceLinks": false,
            "hostNetwork": rights.host_network,
            "securityContext": { "seccompProfile": { "type": "RuntimeDefault" } },
            // By the scheduler, which says why a node has no room; as DaemonSets do it.
            "affinity": { "nodeAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{ "matchFields": [
                    { "key": "metadata.name", "operator": "In", "values": [wanted.node] },
                ] }],
            } } },
            // The scenario names the node: its taints are for pods that may go elsewhere.
            "tolerations": [{ "operator": "Exists" }],
            "containers": [container],
            "volumes": volumes,
        },
    })
}

/// The container's first process: it waits. The agent of the run comes by `kubectl exec`.
fn waiting(template: &Template) -> Value {
    match &template.program {
        Some(program) => json!([program, "agent"]),
        None => json!(["sh", "-c", format!("exec sleep {}", template.deadline.as_secs())]),
    }
}

fn security(rights: &Rights) -> Value {
    if rights.privileged {
        return json!({ "privileged": true, "runAsUser": ROOT, "readOnlyRootFilesystem": true });
    }
    let bare = rights.capabilities.is_empty();
    let mut capabilities = json!({ "drop": ["ALL"] });
    if !bare {
        // Kubernetes gives capabilities to root only.
        capabilities["add"] = json!(rights.capabilities);
    }
    let mut context = json!({
        "runAsUser": if bare { NOBODY } else { ROOT },
        "runAsNonRoot": bare,
        "readOnlyRootFilesystem": true,
        "capabilities": capabilities,
    });
    if !rights.capabilities.iter().any(|name| name == SYS_ADMIN) {
        context["allowPrivilegeEscalation"] = json!(false);
    }
    context
}

/// Several objects as one.
pub(super) fn list(items: Vec<Value>) -> Value {
    json!({ "apiVersion": "v1", "kind": "List", "items": items })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template(program: Option<&str>) -> Template {
        Template {
            image: "registry.example.com/weir:0.1.0".into(),
            program: program.map(str::to_owned),
            deadline: Duration::from_secs(1800),
        }
    }

    fn made(rights: &Rights, program: Option<&str>) -> Value {
        let labels = BTreeMap::from([("weir/role".to_owned(), "initiator".to_owned())]);
        let wanted = Wanted { name: "weir-1", namespace: "bench", node: "worker-1", labels };
        pod(&wanted, &template(program), rights)["spec"].clone()
    }

    #[test]
    fn an_end_has_no_privilege_at_all() {
        let spec = made(&Rights::default(), Some("weir"));
        assert_eq!(
            spec["containers"][0]["securityContext"],
            json!({
                "runAsUser": 65534, "runAsNonRoot": true, "readOnlyRootFilesystem": true,
                "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] },
            }),
        );
        assert_eq!(
            (&spec["hostNetwork"], &spec["automountServiceAccountToken"]),
            (&json!(false), &json!(false))
        );
        assert_eq!(spec["volumes"], json!([{ "name": "work", "emptyDir": {} }]), "nothing of the node");
        assert_eq!(spec["activeDeadlineSeconds"], 1800);
        assert_eq!(
            spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
                [0]["matchFields"][0]["values"],
            json!(["worker-1"])
        );
    }

    #[test]
    fn a_gateway_has_its_capabilities_and_a_place_for_its_undo_list() {
        let rights = Rights {
            host_network: true,
            capabilities: vec!["NET_ADMIN".into(), "SYS_ADMIN".into()],
            privileged: false,
            changes_node: true,
        };
        let spec = made(&rights, None);
        let container = &spec["containers"][0];
        assert_eq!(
            container["securityContext"],
            json!({
                "runAsUser": 0, "runAsNonRoot": false, "readOnlyRootFilesystem": true,
                "capabilities": { "drop": ["ALL"], "add": ["NET_ADMIN", "SYS_ADMIN"] },
            }),
        );
        assert_eq!(spec["volumes"][1]["hostPath"]["path"], "/run/weir");
        assert_eq!(container["volumeMounts"][1]["mountPath"], "/run/weir");
        assert_eq!(container["command"], json!(["sh", "-c", "exec sleep 1800"]));
        let small = Rights { capabilities: vec!["NET_RAW".into()], ..Rights::default() };
        let context = made(&small, None)["containers"][0]["securityContext"].clone();
        assert_eq!((&context["allowPrivilegeEscalation"], &context["runAsUser"]), (&json!(false), &json!(0)));
    }

    #[test]
    fn an_image_without_a_shell_waits_by_weir_itself() {
        let container = made(&Rights::default(), Some("/usr/bin/weir"))["containers"][0].clone();
        assert_eq!(
            (&container["command"], &container["stdin"]),
            (&json!(["/usr/bin/weir", "agent"]), &json!(true))
        );
        let privileged = Rights { privileged: true, ..Rights::default() };
        assert_eq!(made(&privileged, None)["containers"][0]["securityContext"]["privileged"], true);
    }
}
