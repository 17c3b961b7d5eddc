//! The largest packet that a path carries whole (RFC 1191, RFC 8201, and without ICMP RFC 8899), found with few packets.
//!
//! Every probe goes together with a small control. A length is blamed only where its probes vanish and the controls
//! between them arrive: what is lost at any length says nothing about length.

use std::io;
use std::net::IpAddr;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::prober::{Probe, ProbeOutcome, Prober, Way};

/// MTUs that paths have, ascending: Ethernet with and without tunnels (IPIP, GRE, VXLAN, PPPoE, IPsec, WireGuard, GUE), jumbo
/// frames, and what RFC 791, 1191 and 8200 name. Asking for these first halves the number of lengths that are tried.
const COMMON: [u32; 40] = [
    68, 296, 508, 552, 576, 1006, 1200, 1280, 1300, 1328, 1342, 1350, 1358, 1360, 1370, 1380, 1390, 1392,
    1400, 1406, 1412, 1420, 1424, 1430, 1436, 1440, 1446, 1450, 1454, 1460, 1468, 1472, 1476, 1480, 1492,
    1500, 4352, 8192, 8996, 9000,
];

/// How long ICMP messages and packets that were overtaken are waited for once a later control has arrived. They come from a
/// part of the same path.
const GRACE: Duration = Duration::from_millis(25);
/// The same for the first too long packet: routers answer when they have time.
const FIRST_GRACE: Duration = Duration::from_millis(150);
/// A length is blamed when chance alone, at the loss of the controls, would do the same less often than this.
const CHANCE: f64 = 0.0005;
/// Probes of one length, after which it is left open.
const MOST_PROBES: u32 = 15;

/// The reason why the search ended in one direction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Limit {
    /// The own link carries no more: nothing longer was tried.
    OwnLink,
    /// The far end's link carries no more.
    FarLink,
    /// A router refused what was longer, and said so.
    Told,
    /// Longer packets vanish silently.
    Silence,
    /// Loss at any length, or the end of the time, left it open.
    Open,
}

/// A router's word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Claim {
    /// The MTU that it named, bytes; 0: none.
    pub mtu: u32,
    /// The router; `None` if its message went to the far end.
    pub from: Option<IpAddr>,
    /// It is the path's MTU indeed, by trial.
    pub right: Option<bool>,
}

/// One length that was tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Try {
    /// Which way.
    pub way: Way,
    /// Length of the IP packet, bytes.
    pub size: u32,
    /// Packets of this length.
    pub probes: u32,
    /// The final outcome of these packets.
    pub outcome: ProbeOutcome,
    /// Small controls sent between them.
    pub controls: u32,
    /// Unanswered controls.
    pub controls_lost: u32,
}

/// The result for one direction.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PathMtu {
    /// Which way.
    pub way: Way,
    /// Largest length that arrived whole, bytes; `None` if not even the control did.
    pub bytes: Option<u32>,
    /// Least length that is known not to, bytes.
    pub too_long: Option<u32>,
    /// Why no more.
    pub limit: Limit,
    /// The claim of the first router that reported anything.
    pub claim: Option<Claim>,
    /// Every length that was tried, in that order.
    pub tries: Vec<Try>,
}

impl PathMtu {
    /// True if the next longer packet is known not to pass, or nothing longer can be sent.
    pub fn is_exact(&self) -> bool {
        match (self.bytes, self.too_long) {
            (Some(_), None) => self.limit == Limit::OwnLink,
            (Some(bytes), Some(too_long)) => too_long == bytes + 1,
            (None, _) => false,
        }
    }
}

/// The result for one length.
enum Found {
    Passes,
    Told(u32, Option<IpAddr>),
    /// A link's own MTU, of the sender.
    Here(u32),
    Vanishes,
    Open,
}

/// Finds the MTU of one direction, of which the sender's link carries `most` bytes.
///
/// # Errors
/// The own host cannot send.
pub fn path_mtu(prober: &mut impl Prober, way: Way, most: u32) -> io::Result<PathMtu> {
    let least = prober.least();
    Search {
        prober,
        way,
        least,
        passes: least,
        fails: most.max(least) + 1,
        claim: None,
        told: false,
        here: None,
        edge_tried: false,
        controls: (0, 0),
        tries: Vec::new(),
    }
    .run(most.max(least))
}

struct Search<'a, P: Prober> {
    prober: &'a mut P,
    way: Way,
    least: u32,
    /// Known to pass; at first the control's length is taken for it.
    passes: u32,
    /// Known to fail.
    fails: u32,
    claim: Option<Claim>,
    told: bool,
    here: Option<u32>,
    edge_tried: bool,
    /// Sent, and of these lost.
    controls: (u32, u32),
    tries: Vec<Try>,
}

impl<P: Prober> Search<'_, P> {
    fn run(mut self, most: u32) -> io::Result<PathMtu> {
        let mut next = Some(most);
        let mut open = false;
        while let Some(size) = next.take().or_else(|| self.candidate()) {
            if self.prober.is_over() {
                open = true;
                break;
            }
            match self.test(size)? {
                Found::Passes => {
                    self.passes = size;
                    // A router named it: is it not a byte more?
                    let claimed = self.claim.is_some_and(|c| c.mtu == size);
                    next = (claimed && size + 1 < self.fails).then_some(size + 1);
                }
                Found::Told(mtu, from) => {
                    self.fails = size;
                    self.told = true;
                    let news = self.claim.is_none_or(|c| c.mtu != mtu);
                    if news && (self.passes + 1..size).contains(&mtu) {
                        next = Some(mtu);
                    }
                    if self.claim.is_none() || next.is_some() {
                        self.claim = Some(Claim { mtu, from, right: None });
                    }
                }
                Found::Here(mtu) => {
                    self.fails = size;
                    self.here = Some(mtu);
                    next = Some(mtu).filter(|m| (self.passes + 1..size).contains(m));
                }
                Found::Vanishes => self.fails = size,
                Found::Open => {
                    open = true;
                    break;
                }
            }
        }
        Ok(self.result(most, open))
    }

    fn result(self, most: u32, open: bool) -> PathMtu {
        let heard =
            self.tries.iter().any(|t| t.controls > t.controls_lost || t.outcome == ProbeOutcome::Arrived);
        // A length at which only the control passes is a result only if the search came to its end.
        let bytes = (heard && !(open && self.passes == self.least)).then_some(self.passes);
        let too_long = (self.fails <= most).then_some(self.fails);
        let limit = match too_long {
            _ if open || !heard => Limit::Open,
            None => Limit::OwnLink,
            Some(_) if self.told => Limit::Told,
            Some(fails) if self.here.is_some_and(|mtu| mtu + 1 == fails) => Limit::FarLink,
            Some(_) => Limit::Silence,
        };
        let right = |c: Claim| (!open && c.mtu > 0).then_some(c.mtu == self.passes);
        let claim = self.claim.map(|c| Claim { right: right(c), ..c });
        PathMtu { way: self.way, bytes, too_long, limit, claim, tries: self.tries }
    }

    /// Returns the next length to try between one that passes and one that fails: common MTUs first.
    fn candidate(&mut self) -> Option<u32> {
        let (passes, fails) = (self.passes, self.fails);
        if passes + 1 >= fails {
            return None;
        }
        let between: Vec<u32> = COMMON.into_iter().filter(|m| (passes + 1..fails).contains(m)).collect();
        if !between.is_empty() {
            return Some(between[between.len() / 2]);
        }
        if passes > self.least && !self.edge_tried {
            self.edge_tried = true;
            return Some(passes + 1);
        }
        Some(passes + (fails - passes) / 2)
    }

    /// Tries one length until it is clear what becomes of it.
    fn test(&mut self, size: u32) -> io::Result<Found> {
        let control = Probe::whole(self.way, self.least);
        let probe = Probe::whole(self.way, size);
        let mut record = Try {
            way: self.way,
            size,
            probes: 0,
            outcome: ProbeOutcome::Silent,
            controls: 0,
            controls_lost: 0,
        };
        let found = loop {
            let first = record.probes == 0;
            let grace = if first && self.tries.is_empty() { FIRST_GRACE } else { GRACE };
            let pairs = if first { &[probe, control][..] } else { &[probe, control, probe, control] };
            for (nth, outcome) in self.prober.exchange(pairs, grace)?.into_iter().enumerate() {
                if nth % 2 == 0 {
                    record.probes += 1;
                    // Any that arrived proves that this length passes.
                    if record.outcome != ProbeOutcome::Arrived && outcome.is_heard() {
                        record.outcome = outcome;
                    }
                } else {
                    let lost = u32::from(outcome != ProbeOutcome::Arrived);
                    record.controls += 1;
                    record.controls_lost += lost;
                    self.controls.0 += 1;
                    self.controls.1 += lost;
                }
            }
            match record.outcome {
                ProbeOutcome::Arrived => break Found::Passes,
                ProbeOutcome::TooBig { mtu, from } => break Found::Told(mtu, from),
                ProbeOutcome::TooBigHere { mtu } => break Found::Here(mtu),
                ProbeOutcome::Silent | ProbeOutcome::HopsUsedUp { .. } | ProbeOutcome::Refused { .. } => {}
            }
            if self.is_blamed(&record) {
                break match asked_far_end(self.prober, self.way, size)? {
                    Some(mtu) => {
                        record.outcome = ProbeOutcome::TooBig { mtu, from: None };
                        Found::Told(mtu, None)
                    }
                    None => Found::Vanishes,
                };
            }
            if record.probes >= MOST_PROBES || self.prober.is_over() {
                break Found::Open;
            }
        };
        self.tries.push(record);
        Ok(found)
    }

    /// The probes vanished, and that is no chance: with n of them, (loss of the controls)^n. The loss is estimated by the rule of
    /// succession, which keeps it above 0 however few controls there were.
    fn is_blamed(&self, record: &Try) -> bool {
        let (sent, lost) = (f64::from(self.controls.0), f64::from(self.controls.1));
        let loss = (lost + 1.0) / (sent + 2.0);
        record.controls > record.controls_lost && loss.powf(record.probes.into()) < CHANCE
    }
}

/// Only the far end hears what routers say of its packets: the MTU that they named for one of that length.
fn asked_far_end(prober: &mut impl Prober, way: Way, size: u32) -> io::Result<Option<u32>> {
    if way == Way::Egress {
        return Ok(None);
    }
    Ok(prober.far_mtu()?.filter(|mtu| *mtu < size))
}

/// Whether a router says anything of a packet that is too long, asked again after its limit of messages has recovered: Linux
/// answers six at once and then one a second to each destination (icmp_ratelimit).
///
/// # Errors
/// The own host cannot send.
pub fn told_after_all(prober: &mut impl Prober, way: Way, size: u32) -> io::Result<Option<Claim>> {
    let control = Probe::whole(way, prober.least());
    let outcomes = prober.exchange(&[Probe::whole(way, size), control], FIRST_GRACE)?;
    Ok(match outcomes.first() {
        Some(ProbeOutcome::TooBig { mtu, from }) => Some(Claim { mtu: *mtu, from: *from, right: None }),
        _ => asked_far_end(prober, way, size)?.map(|mtu| Claim { mtu, from: None, right: None }),
    })
}

#[cfg(test)]
#[path = "search_tests.rs"]
mod tests;
