//! Proof that a variant is in effect, before anything is measured on it.

use std::net::{IpAddr, SocketAddr};

use weir_agent::{Answer, Reached, Task};
use weir_gateway::VariantKind;

use crate::SHORT;
use crate::carried;
use crate::error::Error;
use crate::filtering::{self, counter};
use crate::site::{REACH, Site};

/// Puts a variant into effect on all hosts of a site.
pub(crate) fn apply(site: &Site, variant: &VariantKind) -> Result<(), Error> {
    for member in site.members() {
        let task = Task::Apply {
            variant: variant.clone(),
            role: member.role,
            place: site.place.clone(),
            journal: member.agent.outlives_agent(),
        };
        member.agent.call(task, variant.patience(member.role))?;
    }
    Ok(())
}

/// Takes a variant back everywhere, in reverse order, and goes on where that fails; returns the first failure.
pub(crate) fn remove(site: &Site, variant: &VariantKind) -> Result<(), Error> {
    let members: Vec<_> = site.members().collect();
    let mut first = Ok(());
    for member in members.into_iter().rev() {
        let outcome = member.agent.call(Task::Remove, variant.patience(member.role)).map(drop);
        first = first.and(outcome);
    }
    first.map_err(Error::from)
}

/// Proves a variant with a few packets: the responder sees the address that it must see, the reply comes back, the variant's own
/// counter moved, and what it must refuse it refuses. Returns one line per check.
pub(crate) fn prove(site: &Site, name: &str, variant: &VariantKind) -> Result<Vec<String>, Error> {
    let not_proved = |reason: String| Error::NotProved { variant: name.to_owned(), reason };
    let (Some(initiator), Some(responder)) = (site.initiators.first(), site.responders.first()) else {
        return Err(Error::Internal("a site without ends".into()));
    };
    let before = counter(site, variant)?;
    let port = *site.place.ports.start();
    let bind = SocketAddr::new(site.listen, port);
    responder.agent.call(Task::OpenEcho { bind }, SHORT)?;
    let expected = variant.expectation(&site.place);
    let target = SocketAddr::new(expected.target, port);
    let reached = initiator.agent.call(Task::Reach { target, timeout: REACH }, REACH + SHORT);
    let fast = match &reached {
        Ok(_) => carried::prove(site, variant, target)?,
        Err(_) => None,
    };
    let denied = match &reached {
        Ok(_) => filtering::prove_denial(site, variant, target),
        Err(_) => Ok(None),
    };
    responder.agent.call(Task::CloseEcho, SHORT)?;
    let reached = match reached {
        Ok(Answer::Reached(reached)) => reached,
        Ok(other) => return Err(Error::Internal(format!("unexpected answer {other:?}"))),
        Err(weir_agent::Error::Task { source, .. }) => return Err(not_proved(source.message)),
        Err(e) => return Err(e.into()),
    };
    let mut proof = vec![seen(&reached, expected.seen_source).map_err(not_proved)?];
    match (before, counter(site, variant)?) {
        (Some(before), Some(after)) if after > before => {
            proof.push(format!("its rule's counter moved from {before} to {after}"));
        }
        (Some(_), after) => {
            return Err(not_proved(format!(
                "the connections came through, but its rule did not handle them (counter still {})",
                after.unwrap_or(0)
            )));
        }
        (None, _) => {}
    }
    if let Some(fast) = fast {
        proof.push(fast.map_err(not_proved)?);
    }
    if let Some(denied) = denied? {
        proof.push(denied.map_err(not_proved)?);
    }
    Ok(proof)
}

fn seen(reached: &Reached, expected: Option<IpAddr>) -> Result<String, String> {
    for (protocol, source) in [("TCP", reached.tcp_source), ("UDP", reached.udp_source)] {
        if let Some(expected) = expected.filter(|e| *e != source) {
            return Err(format!(
                "over {protocol} the responder sees {source}, but with this variant in effect it would see {expected}"
            ));
        }
    }
    Ok(format!("the responder sees {} over TCP and UDP, and its replies come back", reached.tcp_source))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_source_that_is_not_the_expected_one_is_named() {
        let reached =
            Reached { tcp_source: "198.19.0.1".parse().unwrap(), udp_source: "198.18.0.2".parse().unwrap() };
        assert!(seen(&reached, None).is_ok());
        let reason = seen(&reached, Some("198.19.0.1".parse().unwrap())).unwrap_err();
        assert!(
            reason.contains("UDP") && reason.contains("198.18.0.2") && reason.contains("198.19.0.1"),
            "{reason}"
        );
    }
}
