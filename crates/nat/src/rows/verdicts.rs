//! Verdicts that UDP and TCP share.

use std::collections::BTreeSet;
use std::net::IpAddr;

use weir_text::order;

use super::judge::{
    Dependence, common, does, fails, filtering_class, is, made, mapping_class, meets, not_sure, not_testable,
    strictest, translates,
};
use super::{Compliance, Confidence, Judgement};
use crate::Observations;
use crate::experiments::bracket;
use crate::observed::{
    Answered, Collision, Filtering, Hairpin, Idle, IdleTry, Mapping, Refresh, Translation,
};

/// Distance of the times on both sides of a limit above which they do not tell whether it was the limit, as a part of it.
const COARSE: f64 = 0.05;

/// A verdict, or the reason why no other can be given.
pub(super) type Judged = Result<Judgement, Judgement>;

/// One inside port to several destinations.
pub(super) fn mapping(
    o: &Observations,
    mappings: &Option<Vec<Mapping>>,
    collision: &Option<Collision>,
) -> Judged {
    translates(o)?;
    let mappings = made(mappings)?;
    let Some(class) = common(mappings.iter().map(mapping_class)) else {
        let classes: Vec<&str> =
            mappings.iter().map(|m| mapping_class(m).map_or("lost packets", Dependence::mapping)).collect();
        return Ok(not_sure(format!("{} of {} ports disagree", classes.join(", "), mappings.len())));
    };
    let seen = format!("{} ({})", class.words(), class.mapping());
    if class != Dependence::EndpointIndependent {
        return Ok(fails(seen));
    }
    let collided = collision.as_ref().and_then(|c| mapping_class(&c.second));
    match collided {
        Some(class) if class != Dependence::EndpointIndependent => Ok(is(
            Compliance::Partly,
            Confidence::High,
            format!("{seen}, but {} where two hosts use one port", class.words()),
        )),
        _ => Ok(meets(seen)),
    }
}

/// Ports of one host or two: each host has one outside address. A NAT may choose it by the destination, so the packets to several of
/// them count, too.
pub(super) fn pooling(
    o: &Observations,
    ports: &Option<Vec<Translation>>,
    mappings: &Option<Vec<Mapping>>,
) -> Judged {
    translates(o)?;
    let elsewhere = mappings.iter().flatten().flat_map(|mapping| &mapping.seen);
    let all: Vec<&Translation> = made(ports)?.iter().chain(elsewhere).filter(|t| t.seen.is_some()).collect();
    let of_host = |host: IpAddr| -> BTreeSet<IpAddr> {
        order::set(all.iter().filter(|t| t.inside.ip() == host).filter_map(|t| t.seen).map(|seen| seen.ip()))
    };
    let hosts = order::set(all.iter().map(|t| t.inside.ip()));
    let pools: Vec<BTreeSet<IpAddr>> = hosts.iter().map(|host| of_host(*host)).collect();
    let addresses = order::set(pools.iter().flatten());
    let widest = pools.iter().map(BTreeSet::len).max().unwrap_or_default();
    let destinations = order::set(all.iter().map(|t| t.to.ip()));
    Ok(match (addresses.len(), widest) {
        (0, _) => not_sure("no packet arrived"),
        (1, _) => not_testable("the NAT showed one outside address only"),
        (n, 1) if destinations.len() > 1 => {
            meets(format!("paired: {n} outside addresses, one for each host"))
        }
        (n, 1) => {
            let seen = format!("paired: {n} outside addresses, one for each host, towards one destination");
            is(Compliance::Meets, Confidence::Medium, seen)
        }
        (n, _) => fails(format!("arbitrary: one host had {widest} of {n} outside addresses")),
    })
}

/// Two inside hosts with one port.
pub(super) fn overloading(o: &Observations, collision: &Option<Collision>) -> Judged {
    translates(o)?;
    let c = made(collision)?;
    let all = [&c.first].into_iter().chain(&c.second.seen);
    if all.clone().any(|t| t.seen.is_none()) {
        let lost: Vec<&Translation> = all.filter(|t| t.seen.is_none()).collect();
        return Ok(if lost.iter().all(|t| t.sure) {
            fails("a packet of the second host with that port did not arrive")
        } else {
            not_sure("packets of the second host did not arrive, nor did control packets")
        });
    }
    let second = Some(c.second.seen[0].inside);
    let right = c.first_answer == Some(c.first.inside) && [c.second_answer, c.other_answer] == [second; 2];
    if !right {
        return Ok(if c.sure {
            fails("answers to two hosts with one source port did not reach both")
        } else {
            not_sure("answers did not arrive, nor did control packets")
        });
    }
    Ok(if c.second.seen.iter().any(|t| t.seen == c.first.seen) {
        let seen = "shared while destinations differ, which RFC 7857 section 3 allows";
        is(Compliance::Partly, Confidence::High, seen)
    } else {
        meets("the second host gets another port")
    })
}

/// Strangers' packets to a mapping.
pub(super) fn filtering(tries: &Option<Vec<Filtering>>) -> Judged {
    let tries = made(tries)?;
    if tries.is_empty() {
        return Ok(not_sure("no packet from inside arrived outside"));
    }
    let Some(class) = strictest(tries) else {
        let by_port = |t: &Filtering| t.same_address.reached.is_none() && t.other_address.reached.is_some();
        return Ok(if tries.iter().any(|t| t.answer.reached.is_none()) {
            not_sure("answers of the contacted endpoint did not arrive")
        } else if tries.iter().all(by_port) {
            fails("by port alone: the contacted port of any address passes")
        } else {
            let classes: Vec<&str> =
                tries.iter().map(|t| filtering_class(t).map_or("unknown", Dependence::filtering)).collect();
            not_sure(format!("mappings disagree: {}", classes.join(", ")))
        });
    };
    let seen = format!("{} ({})", class.words(), class.filtering());
    Ok(if class == Dependence::AddressAndPort { fails(seen) } else { meets(seen) })
}

/// The classes on which a hairpinned packet's way depends.
#[derive(Debug, Clone, Copy)]
pub(super) struct Classes {
    pub(super) mapping: Option<Dependence>,
    pub(super) filtering: Option<Dependence>,
}

/// Two inside hosts by way of their outside ports.
pub(super) fn hairpin(o: &Observations, hairpin: &Option<Hairpin>, classes: Classes) -> Judged {
    translates(o)?;
    let hairpin = made(hairpin)?;
    if hairpin.source.is_some() {
        return Ok(meets("a packet to the other host's outside port arrived"));
    }
    if !hairpin.sure {
        return Ok(not_sure("neither the packet nor a control packet arrived"));
    }
    let independent = |class: Option<Dependence>| class == Some(Dependence::EndpointIndependent);
    match hairpin.answered {
        Some(Answered::Icmp { kind, code }) => {
            return Ok(fails(format!("the NAT itself answers with ICMP {kind}/{code}")));
        }
        Some(Answered::Reset) => return Ok(fails("the NAT itself answers with a reset")),
        None => {}
    }
    if !independent(classes.mapping) && !independent(classes.filtering) {
        return Ok(not_testable(
            "both mapping and filter depend on the destination: the filter may have dropped the packet",
        ));
    }
    Ok(fails("a packet to the other host's outside port did not arrive"))
}

/// The source of such a packet.
pub(super) fn hairpin_source(o: &Observations, hairpin: &Option<Hairpin>, classes: Classes) -> Judged {
    translates(o)?;
    let hairpin = made(hairpin)?;
    let Some(source) = hairpin.source else {
        return Ok(not_testable("no hairpinned packet arrived"));
    };
    let [_, sender] = hairpin.mappings;
    // If mappings depend on the destination, the port towards the other host is another one than that seen outside.
    let outside = sender.seen.is_some_and(|seen| seen.ip() == source.ip());
    Ok(
        if sender.seen == Some(source)
            || (outside && classes.mapping != Some(Dependence::EndpointIndependent))
        {
            meets(format!("from {source}, the sender's outside endpoint"))
        } else if source == sender.inside {
            fails(format!("from {source}, the sender's inside endpoint"))
        } else {
            fails(format!("from {source}, which is no endpoint of the sender"))
        },
    )
}

/// Mappings left alone; they must live for `least` seconds.
pub(super) fn idle(o: &Observations, tries: fn(&Idle) -> &Vec<IdleTry>, least: f64) -> Judged {
    translates(o)?;
    let idle = made(&o.idle)?;
    let tries = tries(idle);
    let longest = tries.iter().filter(|t| t.alive).map(|t| t.idle_s).fold(0.0, f64::max);
    if tries.is_empty() {
        return Ok(not_sure("no mapping could be opened"));
    }
    if let Some((alive, dead)) = bracket(tries) {
        if alive == 0.0 {
            return Ok(not_sure("no answer arrived, however soon"));
        }
        if tries.iter().any(|t| !t.alive && !t.sure) {
            return Ok(not_sure("the path lost control packets"));
        }
        let seen = format!("expires between {alive:.2} and {dead:.2} s");
        return Ok(if dead <= least {
            fails(seen)
        } else if alive >= least {
            meets(seen)
        } else if dead - alive > COARSE * least {
            not_sure(seen)
        } else {
            // Around the limit itself, as a timer that was set to it.
            is(Compliance::Meets, Confidence::Medium, seen)
        });
    }
    if tries.iter().any(|t| !t.alive) {
        return Ok(not_sure("some mappings ended before others that were left alone for longer"));
    }
    Ok(if longest >= least {
        meets(format!("alive after {longest:.0} s"))
    } else {
        not_testable(format!("alive after {longest:.1} s, the longest time tried"))
    })
}

/// The wanted effect of a packet on a mapping's idle time.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Wanted {
    /// Start it anew.
    Refresh,
    /// Leave it.
    None,
    /// Either.
    Any,
}

/// A mapping with one more packet before its idle time ended, which is that of these tries.
pub(super) fn refresh(
    o: &Observations,
    refresh: fn(&Idle) -> Option<Refresh>,
    tries: fn(&Idle) -> &Vec<IdleTry>,
    wanted: Wanted,
) -> Judged {
    translates(o)?;
    let idle = made(&o.idle)?;
    let Some(refresh) = refresh(idle) else {
        return Ok(match bracket(tries(idle)) {
            Some((0.0, _)) => not_testable("a mapping ends too soon for one more packet"),
            Some(_) => not_sure("no packets came well before and well after the idle time"),
            None if tries(idle).iter().any(|t| !t.alive) => {
                not_sure("mappings ended at times that contradict each other")
            }
            None => not_testable("no mapping ended within the longest time tried"),
        });
    };
    if !refresh.alive && !refresh.sure {
        return Ok(not_sure("the path lost control packets"));
    }
    let (at, end) = (refresh.packet_at_s, refresh.asked_at_s);
    let seen = match refresh.alive {
        true => format!("alive after {end:.1} s with a packet at {at:.1} s"),
        false => format!("gone after {end:.1} s in spite of a packet at {at:.1} s"),
    };
    Ok(match (wanted, refresh.alive) {
        (Wanted::Any, _) => does(seen),
        (Wanted::Refresh, true) | (Wanted::None, false) => meets(seen),
        (Wanted::Refresh, false) | (Wanted::None, true) => fails(seen),
    })
}
