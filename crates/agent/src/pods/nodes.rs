//! The nodes of a cluster, and those that a scenario means.

use super::error::Error;
use super::kubectl::Kubectl;

/// The nodes of a role.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Nodes {
    /// By name, at least one.
    Named(Vec<String>),
    /// All that a label selector matches, e.g. `topology.kubernetes.io/zone=b`.
    Selected(String),
}

impl Nodes {
    fn describe(&self) -> String {
        match self {
            Nodes::Named(names) => format!("node {}", names.join(", ")),
            Nodes::Selected(selector) => format!("selector {selector}"),
        }
    }
}

/// Prints the name of each node, whether it is ready, and its words about that. Whole nodes are long: of some hundreds kubectl would
/// print more than can be read.
const TEMPLATE: &str = "jsonpath={range .items[*]}{.metadata.name}{\"|\"}\
                        {.status.conditions[?(@.type==\"Ready\")].status}{\"|\"}\
                        {.status.conditions[?(@.type==\"Ready\")].message}{\"\\n\"}{end}";

#[derive(Debug, Clone, PartialEq, Eq)]
struct Node {
    name: String,
    ready: bool,
    words: String,
}

fn list(kubectl: &Kubectl, selector: Option<&str>) -> Result<Vec<Node>, Error> {
    let selector = selector.map(|selector| format!("--selector={selector}"));
    let mut args = vec!["get", "nodes", "-o", TEMPLATE];
    args.extend(selector.as_deref());
    Ok(read(&kubectl.run("list the nodes", &args, b"")?))
}

fn read(text: &str) -> Vec<Node> {
    let mut nodes: Vec<Node> = Vec::new();
    for line in text.lines() {
        let mut fields = line.splitn(3, '|');
        if let (Some(name), Some(status), Some(words)) = (fields.next(), fields.next(), fields.next()) {
            nodes.push(Node {
                name: name.to_owned(),
                ready: status == "True",
                words: words.trim().to_owned(),
            });
        } else if let Some(last) = nodes.last_mut() {
            // A message of several lines.
            last.words = format!("{} {}", last.words, line.trim());
        }
    }
    nodes
}

/// The names of the nodes that are meant; each of them is ready.
pub(super) fn find(kubectl: &Kubectl, meant: &Nodes) -> Result<Vec<String>, Error> {
    let selector = match meant {
        Nodes::Named(_) => None,
        Nodes::Selected(selector) => Some(selector.as_str()),
    };
    let there = list(kubectl, selector)?;
    let found: Vec<&Node> = match meant {
        Nodes::Selected(_) => there.iter().collect(),
        Nodes::Named(names) => names
            .iter()
            .map(|name| {
                let unknown = || Error::NoNode { asked: format!("node {name}"), known: known(&there) };
                there.iter().find(|node| node.name == *name).ok_or_else(unknown)
            })
            .collect::<Result<_, _>>()?,
    };
    if found.is_empty() {
        return Err(Error::NoNode { asked: meant.describe(), known: known(&list(kubectl, None)?) });
    }
    match found.iter().find(|node| !node.ready) {
        Some(node) => {
            let why = if node.words.is_empty() { "its kubelet sent no status" } else { &node.words };
            Err(Error::NodeNotReady { node: node.name.clone(), why: why.to_owned() })
        }
        None => Ok(found.into_iter().map(|node| node.name.clone()).collect()),
    }
}

/// Up to ten names, for a message.
fn known(nodes: &[Node]) -> String {
    let names: Vec<&str> = nodes.iter().take(10).map(|node| node.name.as_str()).collect();
    match nodes.len() {
        0 => "none".to_owned(),
        1..=10 => names.join(", "),
        all => format!("{}, and {} more", names.join(", "), all - names.len()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, ready: bool, words: &str) -> Node {
        Node { name: name.into(), ready, words: words.into() }
    }

    #[test]
    fn nodes_are_read_with_messages_of_several_lines_and_without_any() {
        let text = "a|True|kubelet is posting ready status\nb|False|network not ready:\n  no CNI | yet\nc|Unknown|\nd||\n";
        assert_eq!(
            read(text),
            [
                node("a", true, "kubelet is posting ready status"),
                node("b", false, "network not ready: no CNI | yet"),
                node("c", false, ""),
                node("d", false, ""),
            ]
        );
        assert_eq!(read(""), []);
    }

    #[test]
    fn a_message_lists_ten_nodes_at_most() {
        let nodes: Vec<Node> = (0..12).map(|n| node(&format!("n{n}"), true, "")).collect();
        assert_eq!(known(&nodes[..2]), "n0, n1");
        assert!(known(&nodes).ends_with("n9, and 2 more"), "{}", known(&nodes));
        assert_eq!(known(&[]), "none");
    }
}
