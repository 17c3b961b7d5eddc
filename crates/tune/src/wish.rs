//! When a plan has a place for published ports without connection tracking.

use super::Error;
use super::findings;
use super::profile::Profile;
use super::request::{Request, TunedHost};

/// Causes that go away with the entries of published ports.
const HEALED: [&str; 3] = ["conntrack-full", "conntrack-early-drop", "conntrack-hash-small"];

/// A proposal of published ports without connection tracking, for a request that has a place for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wish {
    /// Who proposes it.
    pub why: Vec<String>,
    /// Why it is an offer only; `None` if it was asked for.
    pub held: Option<String>,
}

/// Whether published ports without connection tracking have a place in a plan for this request: they were asked for by
/// [`Profile::PublishedPorts`], or one of its findings would be healed by them.
///
/// # Errors
/// If the findings cannot be read.
pub fn wish(place: &TunedHost, request: &Request) -> Result<Option<Wish>, Error> {
    let mut why = Vec::new();
    let asked = request.profiles.contains(&Profile::PublishedPorts);
    if asked {
        why.push("published ports take no entries of the connection-tracking table, and its limit does not hold for them".into());
    }
    if let Some((name, text)) = &request.findings {
        let found = findings::parse(text).map_err(|reason| Error::Findings { name: name.clone(), reason })?;
        let here = place.namespace.as_ref().map(|n| n.inode);
        for finding in found.iter().filter(|f| HEALED.contains(&f.cause.as_str())) {
            let elsewhere = finding.namespace != 0 && here.is_some_and(|inode| inode != finding.namespace);
            if !elsewhere && !finding.is_doubtful() {
                let words =
                    format!("finding {}: connections to published ports fill the table", finding.cause);
                // Two namespaces, or a list of the same findings, say it once.
                if !why.contains(&words) {
                    why.push(words);
                }
            }
        }
    }
    let held = "it replaces the way that packets take, a bigger step than a setting: --profile published-ports asks for it";
    Ok((!why.is_empty()).then(|| Wish { why, held: (!asked).then(|| held.to_owned()) }))
}

#[cfg(test)]
#[path = "wish_tests.rs"]
mod tests;
