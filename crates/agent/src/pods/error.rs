//! Why a cluster could not be used as a testbed.

/// The role that a user of `hosts = "kubernetes"` needs, for messages.
const ROLE: &str = "deploy/kubernetes/bench/role.yaml";

/// Why a cluster could not be used as a testbed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// `kubectl` is not installed here.
    #[error(
        "hosts = \"kubernetes\" needs `kubectl`, which is not installed here: install the one of your cluster's version"
    )]
    NoKubectl,
    /// No answer from the cluster's API server.
    #[error(
        "kubectl cannot reach the cluster: {message}; check KUBECONFIG and `kubectl config current-context`"
    )]
    Unreachable {
        /// The words of kubectl.
        message: String,
    },
    /// The cluster denies something to the user.
    #[error("the cluster does not allow you to {verb} {resource}{}: ask for the role of {ROLE}", at(.namespace))]
    Forbidden {
        /// The verb that is denied, e.g. `create`.
        verb: &'static str,
        /// On what, e.g. `pods`.
        resource: &'static str,
        /// In which namespace; empty for what belongs to the whole cluster.
        namespace: String,
    },
    /// A call of kubectl failed.
    #[error("kubectl cannot {what}: {message}{}", hint(.message, .namespace))]
    Kubectl {
        /// Its task.
        what: String,
        /// Its words.
        message: String,
        /// The namespace of the pods.
        namespace: String,
    },
    /// No node has that name, or no node matches.
    #[error("{asked}: the cluster has no such node; it has {known}")]
    NoNode {
        /// Name or selector.
        asked: String,
        /// The nodes, in words.
        known: String,
    },
    /// A role takes one node, and several match.
    #[error("{asked} matches {} nodes ({}), and a gateway is one: name it by `node`", .nodes.len(), .nodes.join(", "))]
    SeveralNodes {
        /// The selector.
        asked: String,
        /// The nodes.
        nodes: Vec<String>,
    },
    /// A node cannot take a pod now.
    #[error("node {node} is not ready: {why}; choose another node, or see `kubectl describe node {node}`")]
    NodeNotReady {
        /// Which.
        node: String,
        /// The node's own words.
        why: String,
    },
    /// The image is not to be had.
    #[error("the image {image} cannot be pulled on node {node}: {why}; set `image` in [testbed.pods]")]
    Image {
        /// Which image.
        image: String,
        /// The node.
        node: String,
        /// The words of the node.
        why: String,
    },
    /// A pod does not start.
    #[error("pod {pod} does not start on node {node}: {why}")]
    NotStarted {
        /// Which.
        pod: String,
        /// The node.
        node: String,
        /// Why.
        why: String,
    },
    /// A pod has ended while the run needed it.
    #[error("pod {pod} on node {node} {ended}")]
    Ended {
        /// Which.
        pod: String,
        /// The node.
        node: String,
        /// How, in words that follow the node's name.
        ended: String,
    },
    /// Pods could not be removed.
    #[error(
        "pods are left in namespace {namespace}: {why}; they end by themselves at their deadline, and \
         `kubectl -n {namespace} delete pods -l {selector}` removes them"
    )]
    NotRemoved {
        /// The namespace.
        namespace: String,
        /// The labels that find them.
        selector: String,
        /// Why.
        why: String,
    },
    /// This machine could not do its part.
    #[error("{0}")]
    Here(String),
    /// The user asked to stop.
    #[error("stopped")]
    Interrupted,
}

impl Error {
    /// True if a program or a permission is missing (exit code 4).
    pub fn is_missing(&self) -> bool {
        matches!(self, Error::NoKubectl | Error::Forbidden { .. })
    }
}

fn at(namespace: &str) -> String {
    if namespace.is_empty() { String::new() } else { format!(" in namespace {namespace}") }
}

/// Advice for the refusals that are not plain from the server's words.
fn hint(message: &str, namespace: &str) -> String {
    if message.contains("violates PodSecurity") {
        return format!(
            "; the namespace refuses this privilege, allow it with: kubectl label namespace {namespace} \
             pod-security.kubernetes.io/enforce=privileged"
        );
    }
    if message.contains("namespaces") && message.contains("not found") {
        return format!("; make it with: kubectl create namespace {namespace}");
    }
    String::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_by_the_cluster_comes_with_the_way_out() {
        let refusal = |message: &str| {
            let error = Error::Kubectl {
                what: "create the pods".into(),
                message: message.into(),
                namespace: "bench".into(),
            };
            error.to_string()
        };
        let level =
            refusal("pods \"a\" is forbidden: violates PodSecurity \"baseline:latest\": host namespaces");
        assert!(level.contains("kubectl label namespace bench pod-security"), "{level}");
        let missing = refusal("namespaces \"bench\" not found");
        assert!(missing.ends_with("kubectl create namespace bench"), "{missing}");
        assert_eq!(refusal("exceeded quota"), "kubectl cannot create the pods: exceeded quota");
    }

    #[test]
    fn a_missing_permission_and_a_missing_program_have_the_exit_code_of_missing_things() {
        let denied = Error::Forbidden { verb: "create", resource: "pods/exec", namespace: "bench".into() };
        assert!(denied.is_missing() && Error::NoKubectl.is_missing());
        assert!(denied.to_string().starts_with(
            "the cluster does not allow you to create pods/exec in namespace bench: ask for the role of"
        ));
        assert!(!Error::Interrupted.is_missing());
    }
}
