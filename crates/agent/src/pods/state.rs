//! The state of pods as the cluster reports it, and what it means for a run.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde::Deserialize;

use super::error::Error;

/// `kubectl get pods -o json`, of which only this is read (Kubernetes API reference, core/v1 PodList).
#[derive(Debug, Deserialize)]
pub(super) struct PodList {
    #[serde(default)]
    pub(super) items: Vec<Pod>,
}

#[derive(Debug, Clone, Deserialize)]
pub(super) struct Pod {
    pub(super) metadata: Metadata,
    #[serde(default)]
    spec: Spec,
    #[serde(default)]
    status: PodStatus,
}

#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Metadata {
    pub(super) name: String,
    #[serde(default)]
    pub(super) labels: BTreeMap<String, String>,
    #[serde(default)]
    deletion_timestamp: Option<String>,
}

#[derive(Debug, Clone, Default, Deserialize)]
struct Spec {
    #[serde(default)]
    containers: Vec<Container>,
}

#[derive(Debug, Clone, Deserialize)]
struct Container {
    image: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct PodStatus {
    phase: String,
    reason: String,
    message: String,
    #[serde(rename = "podIPs")]
    addresses: Vec<PodAddress>,
    conditions: Vec<Condition>,
    container_statuses: Vec<ContainerStatus>,
}

#[derive(Debug, Clone, Deserialize)]
struct PodAddress {
    ip: IpAddr,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Condition {
    #[serde(rename = "type")]
    kind: String,
    status: String,
    reason: String,
    message: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ContainerStatus {
    state: ContainerState,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct ContainerState {
    waiting: Option<Reason>,
    running: Option<serde_json::Value>,
    terminated: Option<Terminated>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
struct Reason {
    reason: String,
    message: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Terminated {
    exit_code: i32,
    reason: String,
    message: String,
}

/// Reasons of a waiting container that say: the image is not to be had (kubelet, pkg/kubelet/images/types.go).
const IMAGE: [&str; 6] = [
    "ErrImagePull",
    "ImagePullBackOff",
    "InvalidImageName",
    "ErrImageNeverPull",
    "ImageInspectError",
    "RegistryUnavailable",
];

/// Reasons that say: it cannot be started (kubelet, pkg/kubelet/container/sync_result.go and kuberuntime).
const START: [&str; 6] = [
    "CreateContainerConfigError",
    "CreateContainerError",
    "RunContainerError",
    "StartError",
    "CrashLoopBackOff",
    "PostStartHookError",
];

/// How far a new pod is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Progress {
    /// It runs, with these addresses.
    Running(Vec<IpAddr>),
    /// Not yet, in words.
    Waiting(String),
}

impl Pod {
    /// How far it is on its way to run on that node.
    ///
    /// # Errors
    /// When it will not come to run.
    pub(super) fn progress(&self, node: &str) -> Result<Progress, Error> {
        if let Some(error) = self.ended(node) {
            return Err(error);
        }
        let not_started = |why: String| {
            Err(Error::NotStarted { pod: self.metadata.name.clone(), node: node.to_owned(), why })
        };
        for waiting in self.status.container_statuses.iter().filter_map(|c| c.state.waiting.as_ref()) {
            if IMAGE.contains(&waiting.reason.as_str()) {
                let image = self.spec.containers.first().map(|c| c.image.clone()).unwrap_or_default();
                let why = words(&waiting.reason, &waiting.message);
                return Err(Error::Image { image, node: node.to_owned(), why });
            }
            if START.contains(&waiting.reason.as_str()) {
                return not_started(words(&waiting.reason, &waiting.message));
            }
        }
        if let Some(unplaced) = self.condition("PodScheduled").filter(|c| c.status == "False") {
            return not_started(words(&unplaced.reason, &unplaced.message));
        }
        let containers = &self.status.container_statuses;
        let runs = !containers.is_empty() && containers.iter().all(|c| c.state.running.is_some());
        if runs && !self.status.addresses.is_empty() {
            return Ok(Progress::Running(self.status.addresses.iter().map(|a| a.ip).collect()));
        }
        let waiting = containers.iter().find_map(|c| c.state.waiting.as_ref());
        Ok(Progress::Waiting(
            waiting.map_or_else(|| "no container yet".to_owned(), |w| words(&w.reason, &w.message)),
        ))
    }

    /// Why it cannot be used any more, if so.
    pub(super) fn ended(&self, node: &str) -> Option<Error> {
        let status = &self.status;
        // Written by whatever ends a pod early: preemption, taints, the eviction API, kubelet (KEP-3329).
        let disrupted = self.condition("DisruptionTarget").filter(|c| c.status == "True");
        let over = matches!(status.phase.as_str(), "Failed" | "Succeeded");
        let ended = if over && status.reason == "Evicted" {
            format!("was evicted: {}", words("", &status.message))
        } else if over && status.reason == "DeadlineExceeded" {
            "has passed its deadline; set a longer `deadline` in [testbed.pods]".to_owned()
        } else if let Some(condition) = disrupted {
            format!("was evicted: {}", words(&condition.reason, &condition.message))
        } else if self.metadata.deletion_timestamp.is_some() {
            "is being deleted, not by weir".to_owned()
        } else if over {
            let end = status.container_statuses.iter().find_map(|c| c.state.terminated.as_ref());
            match end {
                Some(end) => {
                    format!(
                        "has ended with exit code {}: {}",
                        end.exit_code,
                        words(&end.reason, &end.message)
                    )
                }
                None => format!("has ended: {}", words(&status.reason, &status.message)),
            }
        } else {
            return None;
        };
        Some(Error::Ended { pod: self.metadata.name.clone(), node: node.to_owned(), ended })
    }

    /// True if the cluster has ended it at its deadline: then no run uses it, whosever it was.
    pub(super) fn is_past_deadline(&self) -> bool {
        self.status.phase == "Failed" && self.status.reason == "DeadlineExceeded"
    }

    fn condition(&self, kind: &str) -> Option<&Condition> {
        self.status.conditions.iter().find(|condition| condition.kind == kind)
    }
}

/// A reason and its message as one line.
fn words(reason: &str, message: &str) -> String {
    let message = message.split_whitespace().collect::<Vec<_>>().join(" ");
    match (reason, message.as_str()) {
        ("", "") => "the cluster gives no reason".to_owned(),
        (reason, "") => reason.to_owned(),
        ("", message) => message.to_owned(),
        (reason, message) => format!("{reason}: {message}"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(status: Value) -> Pod {
        serde_json::from_value(json!({
            "metadata": { "name": "weir-1" },
            "spec": { "containers": [{ "image": "example.com/weir" }] },
            "status": status,
        }))
        .unwrap()
    }

    fn waiting(reason: &str) -> Value {
        json!({ "phase": "Pending", "containerStatuses": [
            { "state": { "waiting": { "reason": reason, "message": "some\n words" } } },
        ] })
    }

    #[test]
    fn a_pod_is_ready_when_its_container_runs_and_has_an_address() {
        let state = |addresses: Value| {
            json!({ "phase": "Running", "podIPs": addresses,
                "containerStatuses": [{ "state": { "running": { "startedAt": "2026-11-26T00:00:00Z" } } }] })
        };
        let both = json!([{ "ip": "198.18.0.2" }, { "ip": "2001:2::2" }]);
        assert_eq!(
            pod(state(both)).progress("n").unwrap(),
            Progress::Running(vec!["198.18.0.2".parse().unwrap(), "2001:2::2".parse().unwrap()])
        );
        assert!(matches!(pod(state(json!([]))).progress("n").unwrap(), Progress::Waiting(_)));
        assert_eq!(
            pod(waiting("ContainerCreating")).progress("n").unwrap(),
            Progress::Waiting("ContainerCreating: some words".into())
        );
        assert!(matches!(pod(json!({ "phase": "Pending" })).progress("n").unwrap(), Progress::Waiting(_)));
    }

    #[test]
    fn what_keeps_a_pod_from_running_is_named() {
        let why = |status: Value| pod(status).progress("worker-1").unwrap_err().to_string();
        for reason in IMAGE {
            assert_eq!(
                why(waiting(reason)),
                format!(
                    "the image example.com/weir cannot be pulled on node worker-1: {reason}: some words; set `image` in \
                     [testbed.pods]"
                )
            );
        }
        for reason in START {
            assert_eq!(
                why(waiting(reason)),
                format!("pod weir-1 does not start on node worker-1: {reason}: some words")
            );
        }
        let unplaced = json!({ "phase": "Pending", "conditions": [
            { "type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes" },
        ] });
        assert!(why(unplaced).ends_with("Unschedulable: 0/1 nodes"));
    }

    #[test]
    fn every_early_end_is_named() {
        let end = |status: Value| pod(status).ended("worker-1").unwrap().to_string();
        let evicted =
            json!({ "phase": "Failed", "reason": "Evicted", "message": "low on resource: memory." });
        assert_eq!(end(evicted), "pod weir-1 on node worker-1 was evicted: low on resource: memory.");
        let drained = json!({ "phase": "Running", "conditions": [
            { "type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI", "message": "" },
        ] });
        assert!(end(drained).ends_with("was evicted: EvictionByEvictionAPI"));
        let late = json!({ "phase": "Failed", "reason": "DeadlineExceeded" });
        assert!(pod(late.clone()).is_past_deadline() && end(late).contains("longer `deadline`"));
        let killed = json!({ "phase": "Failed", "containerStatuses": [
            { "state": { "terminated": { "exitCode": 137, "reason": "OOMKilled" } } },
        ] });
        assert!(end(killed).ends_with("has ended with exit code 137: OOMKilled"));
        assert!(end(json!({ "phase": "Failed" })).ends_with("the cluster gives no reason"));
        let mut deleted = pod(json!({ "phase": "Running" }));
        assert!(deleted.ended("worker-1").is_none() && !deleted.is_past_deadline());
        deleted.metadata.deletion_timestamp = Some("2026-11-26T00:00:00Z".into());
        assert!(deleted.ended("worker-1").unwrap().to_string().contains("deleted"));
    }
}
