//! Pods as hosts of a run: made by `kubectl`, one on each node that the scenario means, and removed with the run.
//!
//! Nothing stays behind. [`Pods::remove`], and dropping [`Pods`], removes them. If weir is killed, the cluster ends them at their
//! deadline, and the next run here removes them ([`owner`]).

mod error;
mod kubectl;
mod manifest;
mod nodes;
mod owner;
mod state;

use std::net::IpAddr;
use std::time::{Duration, Instant};

use weir_gateway::Role;

use crate::host::HostAddress;
use kubectl::Kubectl;
use manifest::{CONTAINER, Wanted};
use owner::{COMPONENT, Owner, RUN};
use state::{PodList, Progress};

pub use error::Error;
pub use manifest::{Rights, Template};
pub use nodes::Nodes;

/// How often a waiting run looks at its pods.
const LOOK: Duration = Duration::from_millis(500);

/// The cluster hears of an eviction some time after the connection broke.
const HEARSAY: Duration = Duration::from_secs(5);

/// Pods that are being deleted are gone within this time, their grace included.
const GONE: Duration = Duration::from_secs(30);

/// A namespace of a cluster, for the pods of one run.
#[derive(Debug)]
pub struct Cluster {
    kubectl: Kubectl,
    owner: Owner,
}

/// Pods that are wanted: on these nodes, with these rights.
#[derive(Debug, Clone)]
pub struct Ask {
    /// The role of their hosts.
    pub role: Role,
    /// Names of nodes, as [`Cluster::find`] returns them.
    pub nodes: Vec<String>,
    /// Their rights.
    pub rights: Rights,
}

/// One running pod.
#[derive(Debug, Clone)]
pub struct Pod {
    /// Its name.
    pub name: String,
    /// The node that it runs on.
    pub node: String,
    /// Its addresses; the node's in the node's network.
    pub addresses: Vec<IpAddr>,
    /// The address of its agent.
    pub host: HostAddress,
}

/// The pods of a run. Dropping it removes them.
#[derive(Debug)]
pub struct Pods {
    cluster: Cluster,
    /// For each [`Ask`], a pod for each of its nodes, in that order.
    pub asked: Vec<Vec<Pod>>,
    removed: bool,
}

impl Cluster {
    /// Makes sure of `kubectl`, of the cluster, and of the user's permissions there. `run` is the identifier of the run.
    ///
    /// # Errors
    /// If one of them is missing.
    pub fn open(namespace: &str, run: &str) -> Result<Self, Error> {
        let kubectl = Kubectl { namespace: namespace.to_owned() };
        kubectl.check_permissions()?;
        Ok(Cluster { kubectl, owner: Owner::this(run)? })
    }

    /// Removes the pods that runs left here which have ended, and returns how many there were.
    ///
    /// # Errors
    /// If they cannot be removed.
    pub fn remove_leftovers(&self) -> Result<usize, Error> {
        let mut names = Vec::new();
        for pod in self.list(&format!("{}={}", COMPONENT.0, COMPONENT.1))? {
            if pod.is_past_deadline() || self.owner.has_ended(&pod.metadata.labels)? {
                names.push(pod.metadata.name);
            }
        }
        self.delete(&names)?;
        Ok(names.len())
    }

    /// The names of the nodes that are meant. Each is ready.
    ///
    /// # Errors
    /// If one does not exist or is not ready, or none matches.
    pub fn find(&self, nodes: &Nodes) -> Result<Vec<String>, Error> {
        nodes::find(&self.kubectl, nodes)
    }

    /// The one node that is meant.
    ///
    /// # Errors
    /// As [`Cluster::find`], and if several match.
    pub fn find_one(&self, nodes: &Nodes) -> Result<Vec<String>, Error> {
        let found = self.find(nodes)?;
        match nodes {
            Nodes::Selected(selector) if found.len() > 1 => {
                Err(Error::SeveralNodes { asked: format!("selector {selector}"), nodes: found })
            }
            _ => Ok(found),
        }
    }

    /// Makes the pods, and waits until all of them run, at most `limit`.
    ///
    /// # Errors
    /// When one does not come to run. Then none of them is left.
    pub fn make(
        self,
        template: &Template,
        asks: &[Ask],
        limit: Duration,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<Pods, Error> {
        let named = names(&self.owner.run, asks);
        let manifests = asks
            .iter()
            .zip(&named)
            .flat_map(|(ask, pods)| pods.iter().map(|(name, node)| self.manifest(template, ask, name, node)));
        let list = manifest::list(manifests.collect()).to_string();
        let mut pods = Pods { cluster: self, asked: Vec::new(), removed: false };
        let made = pods.cluster.create(&list).and_then(|()| pods.cluster.wait(&named, limit, interrupted));
        match made {
            Ok(running) => {
                pods.asked = running;
                Ok(pods)
            }
            Err(error) => match pods.remove() {
                Ok(()) => Err(error),
                Err(left) => Err(Error::Here(format!("{error}; {left}"))),
            },
        }
    }

    fn manifest(&self, template: &Template, ask: &Ask, name: &str, node: &str) -> serde_json::Value {
        let mut labels = self.owner.labels();
        labels.insert(owner::ROLE.to_owned(), ask.role.name().to_owned());
        manifest::pod(
            &Wanted { name, namespace: &self.kubectl.namespace, node, labels },
            template,
            &ask.rights,
        )
    }

    fn create(&self, list: &str) -> Result<(), Error> {
        let args = ["create", "-n", &self.kubectl.namespace, "-f", "-", "-o", "name"];
        self.kubectl.run("create the pods", &args, list.as_bytes()).map(drop)
    }

    fn own(&self) -> String {
        format!("{RUN}={}", self.owner.run)
    }

    fn list(&self, selector: &str) -> Result<Vec<state::Pod>, Error> {
        let args =
            ["get", "pods", "-n", &self.kubectl.namespace, &format!("--selector={selector}"), "-o", "json"];
        let text = self.kubectl.run("list the pods", &args, b"")?;
        let list: PodList = serde_json::from_str(&text)
            .map_err(|error| Error::Here(format!("kubectl get pods printed something else: {error}")))?;
        Ok(list.items)
    }

    fn wait(
        &self,
        named: &[Vec<(String, String)>],
        limit: Duration,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<Vec<Vec<Pod>>, Error> {
        let start = Instant::now();
        loop {
            if interrupted() {
                return Err(Error::Interrupted);
            }
            let there = self.list(&self.own())?;
            match self.running(named, &there)? {
                Ok(pods) => return Ok(pods),
                Err(waits) if start.elapsed() > limit => return Err(waits),
                Err(_) => std::thread::sleep(LOOK),
            }
        }
    }

    /// All pods if all run, or else the error of the first one that does not run yet, for the case that time is up.
    fn running(
        &self,
        named: &[Vec<(String, String)>],
        there: &[state::Pod],
    ) -> Result<Result<Vec<Vec<Pod>>, Error>, Error> {
        let mut waits = None;
        let mut running = Vec::new();
        for ask in named {
            let mut pods = Vec::new();
            for (name, node) in ask {
                let Some(pod) = there.iter().find(|pod| pod.metadata.name == *name) else {
                    return Err(vanished(name, node));
                };
                match pod.progress(node)? {
                    Progress::Running(addresses) => pods.push(Pod {
                        name: name.clone(),
                        node: node.clone(),
                        addresses,
                        host: HostAddress::Kubectl {
                            namespace: self.kubectl.namespace.clone(),
                            pod: name.clone(),
                            container: Some(CONTAINER.to_owned()),
                        },
                    }),
                    Progress::Waiting(why) => {
                        let why =
                            format!("still waiting ({why}); set a longer `start-within` in [testbed.pods]");
                        waits.get_or_insert(Error::NotStarted { pod: name.clone(), node: node.clone(), why });
                    }
                }
            }
            running.push(pods);
        }
        Ok(waits.map_or(Ok(running), Err))
    }

    /// Deletes pods, and waits until they are gone.
    fn delete(&self, names: &[String]) -> Result<(), Error> {
        if names.is_empty() {
            return Ok(());
        }
        let mut args = vec!["delete", "pods", "-n", self.kubectl.namespace.as_str()];
        // Weir itself waits: kubectl would need one more permission for that.
        args.extend(["--ignore-not-found", "--grace-period=1", "--wait=false", "-o", "name"]);
        args.extend(names.iter().map(String::as_str));
        self.kubectl.run("delete the pods", &args, b"")?;
        let start = Instant::now();
        loop {
            let there = self.list(&format!("{}={}", COMPONENT.0, COMPONENT.1))?;
            let Some(pod) = there.iter().find(|pod| names.contains(&pod.metadata.name)) else {
                return Ok(());
            };
            if start.elapsed() > GONE {
                return Err(Error::Kubectl {
                    what: "delete the pods".to_owned(),
                    message: format!("{} is still there after {} s", pod.metadata.name, GONE.as_secs()),
                    namespace: self.kubectl.namespace.clone(),
                });
            }
            std::thread::sleep(LOOK);
        }
    }
}

/// Name and node of each pod. Several asks may be of one role, whose pods are numbered together.
fn names(run: &str, asks: &[Ask]) -> Vec<Vec<(String, String)>> {
    let mut before: Vec<(Role, usize)> = Vec::new();
    let mut named = Vec::new();
    for ask in asks {
        let first =
            1 + before.iter().filter(|(role, _)| *role == ask.role).map(|(_, pods)| pods).sum::<usize>();
        let name = |number: usize| format!("weir-{run}-{}-{number}", ask.role.name());
        let pods = ask.nodes.iter().enumerate().map(|(index, node)| (name(first + index), node.clone()));
        named.push(pods.collect());
        before.push((ask.role, ask.nodes.len()));
    }
    named
}

fn vanished(pod: &str, node: &str) -> Error {
    let ended = "is not there any more: it was deleted or evicted".to_owned();
    Error::Ended { pod: pod.to_owned(), node: node.to_owned(), ended }
}

impl Pods {
    /// Why an agent in one of them is out of reach, if the cluster knows.
    pub fn why(&self) -> Option<Error> {
        let start = Instant::now();
        loop {
            // A cluster that does not answer knows nothing; the caller has an error of its own.
            let there = self.cluster.list(&self.cluster.own()).ok()?;
            for pod in self.asked.iter().flatten() {
                match there.iter().find(|t| t.metadata.name == pod.name) {
                    None => return Some(vanished(&pod.name, &pod.node)),
                    Some(state) => {
                        if let Some(error) = state.ended(&pod.node) {
                            return Some(error);
                        }
                    }
                }
            }
            if start.elapsed() > HEARSAY {
                return None;
            }
            std::thread::sleep(LOOK);
        }
    }

    /// Removes the pods, and waits until they are gone. Their agents must have ended.
    ///
    /// # Errors
    /// If some may be left. Their deadline ends them then.
    pub fn remove(&mut self) -> Result<(), Error> {
        // Once only, also if it fails: the caller knows then.
        if std::mem::replace(&mut self.removed, true) {
            return Ok(());
        }
        let cluster = &self.cluster;
        let own = cluster.own();
        let removed = cluster.list(&own).and_then(|pods| {
            let names: Vec<String> = pods.into_iter().map(|pod| pod.metadata.name).collect();
            cluster.delete(&names)
        });
        removed.map_err(|error| Error::NotRemoved {
            namespace: cluster.kubectl.namespace.clone(),
            selector: own,
            why: error.to_string(),
        })
    }
}

impl Drop for Pods {
    fn drop(&mut self) {
        // Its words are for the callers of `remove`; the deadline ends what may be left.
        let _ = self.remove();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pods_of_one_role_have_different_names() {
        let ask = |role, nodes: &[&str]| Ask {
            role,
            nodes: nodes.iter().map(|n| (*n).to_owned()).collect(),
            rights: Rights::default(),
        };
        let named = names(
            "20261126-001500-ab12",
            &[ask(Role::Initiator, &["a", "b"]), ask(Role::Responder, &["c"]), ask(Role::Initiator, &["a"])],
        );
        let all: Vec<&str> = named.iter().flatten().map(|(name, _)| name.as_str()).collect();
        let run = "weir-20261126-001500-ab12";
        assert_eq!(
            all,
            ["initiator-1", "initiator-2", "responder-1", "initiator-3"].map(|end| format!("{run}-{end}"))
        );
        assert!(all.iter().all(|name| name.len() <= 63), "a name is also a host name");
        assert_eq!(named[2], [(format!("{run}-initiator-3"), "a".to_owned())]);
    }
}
