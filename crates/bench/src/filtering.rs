//! Variants that let some addresses through and others not: what proves that they do, and where they can be had.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use weir_agent::{Answer, Task};
use weir_gateway::VariantKind;
use weir_gateway::allow_list::{Hook, Lookup};
use weir_record::VariantFact;

use crate::SHORT;
use crate::error::Error;
use crate::scenario::VariantRun;
use crate::site::{Member, REACH, Site};

/// Datagrams from the address that is not listed.
const DENIED: u32 = 8;

/// A million elements are loaded in seconds, several times over.
const MEASURE: Duration = Duration::from_secs(900);

/// How often it is looked whether the filter has counted.
const TICK: Duration = Duration::from_millis(20);

/// The host whose rules count.
pub(crate) fn counting<'a>(site: &'a Site, variant: &VariantKind) -> Option<&'a Member> {
    let role = variant.counts_at();
    site.members().find(|member| member.role == role)
}

/// The variant's own counter, where it has one.
pub(crate) fn counter(site: &Site, variant: &VariantKind) -> Result<Option<u64>, Error> {
    let Some(member) = counting(site, variant) else { return Ok(None) };
    ask(member, Task::Counter { variant: variant.clone(), place: site.place.clone() })
}

fn refused(site: &Site, variant: &VariantKind) -> Result<u64, Error> {
    let Some(member) = counting(site, variant) else { return Ok(0) };
    let task = Task::Refused { variant: variant.clone(), place: site.place.clone() };
    ask(member, task).map(Option::unwrap_or_default)
}

fn ask(member: &Member, task: Task) -> Result<Option<u64>, Error> {
    match member.agent.call(task, SHORT)? {
        Answer::Counter(value) => Ok(value),
        other => Err(Error::Internal(format!("unexpected answer {other:?}"))),
    }
}

/// Proves, while the responder's echo is open at `target`, that packets from a denied address do not arrive. The filter must
/// count the initiator's packets from there as refused, and the echo must receive none of them. `None` for variants without
/// denied addresses; the inner error is the reason why the proof failed.
pub(crate) fn prove_denial(
    site: &Site,
    variant: &VariantKind,
    target: SocketAddr,
) -> Result<Option<Result<String, String>>, Error> {
    let Some(source) = variant.denied_source(&site.place) else { return Ok(None) };
    let (Some(initiator), Some(responder)) = (site.initiators.first(), site.responders.first()) else {
        return Err(Error::Internal("a site without ends".into()));
    };
    let before = refused(site, variant)?;
    match initiator.agent.call(Task::SendFrom { source, target, count: DENIED }, SHORT) {
        Err(weir_agent::Error::Task { source: reason, .. }) => {
            return Ok(Some(Err(format!(
                "a source that is not listed could not be tried: {}",
                reason.message
            ))));
        }
        sent => sent?,
    };
    let heard = || ask(responder, Task::Heard { source }).map(Option::unwrap_or_default);
    let deadline = Instant::now() + REACH;
    let mut counted = 0;
    while heard()? == 0 && counted < u64::from(DENIED) && Instant::now() < deadline {
        std::thread::sleep(TICK);
        counted = refused(site, variant)?.saturating_sub(before);
    }
    // The echo takes datagrams in their order: once it has answered a later one, it has seen whatever came before.
    initiator.agent.call(Task::Reach { target, timeout: REACH }, REACH + SHORT)?;
    Ok(Some(judge(source, counted, heard()?)))
}

/// Returns the cost of the variant in effect on a site: empty for most variants.
pub(crate) fn facts(site: &Site, variant: &VariantKind) -> Result<Vec<VariantFact>, Error> {
    let Some(member) = counting(site, variant) else { return Ok(Vec::new()) };
    let task = Task::VariantFacts { variant: variant.clone(), place: site.place.clone() };
    match member.agent.call(task, MEASURE)? {
        Answer::VariantFacts(facts) => Ok(facts),
        other => Err(Error::Internal(format!("unexpected answer {other:?}"))),
    }
}

/// Single frames are taken from the responder's link before its own filter sees them.
pub(crate) fn sees_frames(variant: &VariantRun) -> Result<(), Error> {
    match &variant.variant {
        VariantKind::AllowList(list) if list.hook == Hook::Input => Err(Error::Unfit(format!(
            "variant `{}` filters at the responder (hook = \"input\"), which takes single frames from its link before any filter: \
             measure it with workloads of sockets",
            variant.name
        ))),
        VariantKind::BpfPublish(_) => Err(Error::Unfit(format!(
            "variant `{}` puts packets into the container's stack and not onto its link (bpf_redirect_peer), from which single \
             frames are taken: measure it with workloads of sockets",
            variant.name
        ))),
        _ => Ok(()),
    }
}

/// Checks what filters and fast paths need on real hosts, as opposed to a lab.
pub(crate) fn fits_real_hosts(variants: &[VariantRun]) -> Result<(), Error> {
    if let Some(fast) = variants.iter().find(|v| v.variant.has_fastpath()) {
        return Err(Error::Unfit(format!(
            "variant `{}` has a fast path, which would carry every connection of the gateway and not only the run's: only in a lab",
            fast.name
        )));
    }
    if let Some(whole) = variants.iter().find(|v| matches!(v.variant, VariantKind::BpfStateless(_))) {
        return Err(Error::Unfit(format!(
            "variant `{}` translates everything that the initiator sends through the gateway and not only the run's packets: only in a lab",
            whole.name
        )));
    }
    for variant in variants {
        let VariantKind::AllowList(list) = &variant.variant else { continue };
        if list.hook == Hook::Input {
            return Err(Error::Unfit(format!(
                "variant `{}` filters all that the responder receives (hook = \"input\"), what it is administered by among it: \
                 only in a lab",
                variant.name
            )));
        }
        if list.filter != Lookup::None && list.denied_source.is_none() {
            return Err(Error::Unfit(format!(
                "variant `{}`: between real hosts `denied-source` must name a second, unlisted address of the initiator: \
                 the proof shows that nothing arrives from it",
                variant.name
            )));
        }
    }
    Ok(())
}

/// Judges a filter by the number of datagrams that it counted as refused, and the number that still arrived.
fn judge(source: IpAddr, counted: u64, heard: u64) -> Result<String, String> {
    if heard > 0 {
        return Err(format!(
            "{heard} of {DENIED} datagrams from {source}, which is not listed, reached the responder: this filter lets through \
             what it must refuse"
        ));
    }
    if counted < u64::from(DENIED) {
        return Err(format!(
            "of {DENIED} datagrams from {source}, which is not listed, none reached the responder, but the filter refused only \
             {counted}: something else on the way stops them (the gateway's rp_filter, or a network that checks source \
             addresses), and what the filter would do is not known; `denied-source` names an address that the initiator \
             really has"
        ));
    }
    Ok(format!(
        "of {DENIED} datagrams from {source}, which is not listed, the filter refused all and none arrived"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Scenario;

    fn variants(more: &str) -> Vec<VariantRun> {
        let text = format!(
            "name = \"t\"\ntitle = \"T\"\n[plan]\ntwin = false\n[[variant]]\nname = \"f\"\nkind = \"allow-list\"\n{more}\n\
             [[workload]]\nname = \"rr\"\nkind = \"tcp-rr\"\n"
        );
        Scenario::load(&text, "t.toml").unwrap().runs()
    }

    #[test]
    fn between_real_hosts_a_filter_needs_a_source_to_refuse_and_a_gateway() {
        let said = |more: &str| fits_real_hosts(&variants(more)).map_err(|e| e.to_string());
        assert!(said("filter = \"none\"").is_ok());
        assert!(said("filter = \"bpf\"").unwrap_err().contains("denied-source"));
        assert!(said("filter = \"bpf\"\ndenied-source = \"192.0.2.9\"").is_ok());
        let input = said("filter = \"nft-set\"\nhook = \"input\"\ndenied-source = \"192.0.2.9\"");
        assert!(input.unwrap_err().contains("only in a lab"));
    }

    #[test]
    fn single_frames_do_not_meet_the_filter_of_a_server() {
        assert!(sees_frames(&variants("filter = \"bpf\"")[0]).is_ok());
        let error = sees_frames(&variants("filter = \"bpf\"\nhook = \"input\"")[0]).unwrap_err();
        assert!(error.to_string().contains("before any filter"), "{error}");
    }

    #[test]
    fn only_a_filter_that_refuses_all_and_lets_nothing_arrive_is_proved() {
        let source = "198.18.0.66".parse().unwrap();
        let all = u64::from(DENIED);
        assert!(judge(source, all, 0).unwrap().contains("refused all"));
        // Another host may have been refused meanwhile.
        assert!(judge(source, all + 1, 0).is_ok());
        for (counted, heard, said) in [
            (0, all, "lets through what it must refuse"),
            // One that counts and lets through.
            (all, all, "lets through what it must refuse"),
            (all, 1, "1 of 8 datagrams"),
            (0, 0, "rp_filter"),
            (all - 1, 0, "refused only 7"),
        ] {
            let reason = judge(source, counted, heard).unwrap_err();
            assert!(reason.contains(said) && reason.contains("198.18.0.66"), "{reason}");
        }
    }
}
