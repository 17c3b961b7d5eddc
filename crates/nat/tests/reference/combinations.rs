//! NATs of any class and port rule with some defects at random, and the verdicts that follow from both.

use std::collections::BTreeMap;

use weir_nat::Compliance;
use weir_nat::rows::judge::Dependence::{self, Address, AddressAndPort, EndpointIndependent};

use super::consequences::consequences;
use super::{Behaviour, Defect, PortRule};

pub(crate) type Verdicts = BTreeMap<&'static str, Compliance>;

pub(crate) const CLASSES: [Dependence; 3] = [EndpointIndependent, Address, AddressAndPort];
pub(crate) const PORT_RULES: [PortRule; 3] = [PortRule::Preserve, PortRule::Sequential, PortRule::Random];

/// Pairs of which one hides the other: a reset or an error that is dropped, by the check of sequence numbers or otherwise, ends no
/// mapping, keeps none alive and is not let through, and one that ends a mapping keeps none alive; mappings that all keep their port look the same for every destination, and for
/// two packets at once; a filter by ports has no class, so that the reuse of a port is neither right nor wrong; and a filter by
/// destination hides hairpinning where mappings depend on the destination too.
const HIDDEN: [(Defect, Defect); 25] = [
    (Defect::FilterByPort, Defect::PortsReusedAtOnce),
    (Defect::FilterByPort, Defect::PortsOverload),
    (Defect::ErrorsOutDropped, Defect::ErrorsRefresh),
    (Defect::ErrorsInDropped, Defect::BadErrorsPass),
    (Defect::ErrorsInDropped, Defect::BadQuotesPass),
    (Defect::ErrorsInDropped, Defect::UnmappedErrorsPass),
    (Defect::PortsOverload, Defect::FirstPacketsSplit),
    (Defect::PortsOverlap, Defect::FirstPacketsSplit),
    (Defect::ResetDropped, Defect::ResetEndsMapping),
    (Defect::ResetDropped, Defect::WildResetEnds),
    (Defect::SequenceChecked, Defect::WildResetEnds),
    (Defect::SequenceLeaks, Defect::WildResetEnds),
    (Defect::SequenceChecked, Defect::ResetEndsMapping),
    (Defect::SequenceLeaks, Defect::ResetEndsMapping),
    (Defect::ErrorsInDropped, Defect::ErrorsEndMapping),
    (Defect::QueryErrorsDropped, Defect::ErrorsEndMapping),
    (Defect::QueryErrorsDropped, Defect::QueryErrorsRefresh),
    (Defect::ErrorsInDropped, Defect::QueryErrorsRefresh),
    (Defect::ErrorsEndMapping, Defect::QueryErrorsRefresh),
    (Defect::ErrorsEndMapping, Defect::ErrorsRefresh),
    (Defect::NoTcpRefreshFromInside, Defect::ResetsRefresh),
    (Defect::PortsOverload, Defect::QueriesPerDestination),
    (Defect::PortsOverlap, Defect::QueriesPerDestination),
    (Defect::PortsOverload, Defect::TcpMappingDependent),
    (Defect::FilterByPort, Defect::TcpMappingDependent),
];

/// Numbers at random, the same at every run: xorshift (Marsaglia, 2003).
pub(crate) struct Draws(u32);

impl Draws {
    pub(crate) fn from_seed(seed: u32) -> Self {
        Draws(seed)
    }

    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 17;
        self.0 ^= self.0 << 5;
        self.0 as usize % n
    }

    /// Two to six defects at most, none of which hides another or changes a row of another, in a NAT of any class and port rule.
    pub(crate) fn behaviour(&mut self) -> Behaviour {
        let mapping = CLASSES[self.below(3)];
        let filtering = CLASSES[self.below(3)];
        let ports = PORT_RULES[self.below(3)];
        let mut behaviour = Behaviour { mapping, filtering, ports, ..Behaviour::default() };
        for _ in 0..2 + self.below(5) {
            let defect = Defect::ALL[self.below(Defect::ALL.len())];
            let rows = |defect| consequences(defect).iter().map(|(id, _)| *id);
            let clashes = |other: &Defect| {
                HIDDEN.contains(&(defect, *other))
                    || HIDDEN.contains(&(*other, defect))
                    || rows(*other).any(|id| rows(defect).any(|own| own == id))
            };
            // Ports that are shared at random end mappings at random, and their rows are not sure.
            let by_chance = ports == PortRule::Random && defect == Defect::PortsOverload;
            if !by_chance && !behaviour.has(defect) && !behaviour.defects.iter().any(clashes) {
                behaviour.defects.push(defect);
            }
        }
        behaviour
    }
}

/// The verdicts of a NAT, from those of one without defects that depends on no destination and keeps ports. A row without a verdict
/// there, as no timer is looked for, has none here.
pub(crate) fn expected(behaviour: &Behaviour, plain: &Verdicts) -> Verdicts {
    let timers = plain["udp-idle-unanswered"] != Compliance::NotTestable;
    let mut rows = plain.clone();
    rows.extend(of_class(behaviour).iter().copied());
    rows.extend(of_ports(behaviour.ports).iter().copied());
    for defect in &behaviour.defects {
        for (id, verdict) in consequences(*defect) {
            let looked_for = timers || !is_of_timers(id);
            if looked_for && !is_moot(*defect, id, behaviour) {
                rows.insert(id, *verdict);
            }
        }
    }
    if timers && shows_that_ports_are_held(behaviour) {
        rows.insert("udp-port-reuse", Compliance::Meets);
    }
    // RFC 6888 section 3, REQ-8 allows it where the filter depends on the destination.
    if behaviour.filtering != EndpointIndependent && rows["udp-port-reuse"] == Compliance::Fails {
        rows.insert("udp-port-reuse", Compliance::Meets);
    }
    rows.extend(hidden_hairpins(behaviour).map(|id| (id, Compliance::NotTestable)));
    if rows["icmp-query-hairpin"] != Compliance::Described && hides_pings(behaviour) {
        rows.insert("icmp-query-hairpin", Compliance::NotTestable);
    }
    rows
}

/// Whether a row needs mappings that are left alone.
pub(crate) fn is_of_timers(id: &str) -> bool {
    id.contains("idle") || id.contains("refresh") || id.ends_with("port-reuse")
}

/// Whether two hosts share an address, and mappings end early enough that the time afterwards is tried.
fn shows_that_ports_are_held(behaviour: &Behaviour) -> bool {
    let has_any = |defects: &[Defect]| defects.iter().any(|defect| behaviour.has(*defect));
    behaviour.ports == PortRule::Preserve
        && has_any(&[Defect::IdKept, Defect::PortsNextFree, Defect::PortsOverlap])
        && has_any(&[Defect::ShortIdle, Defect::ShortUnanswered])
        && !has_any(&[Defect::PortsReusedAtOnce, Defect::PortsOverload])
}

/// Whether all mappings keep their port, so that every destination sees the same one.
fn all_keep_their_port(behaviour: &Behaviour) -> bool {
    let shared = [Defect::PortsOverlap, Defect::PortsOverload].iter().any(|defect| behaviour.has(*defect));
    shared && behaviour.ports == PortRule::Preserve
}

fn of_class(behaviour: &Behaviour) -> Vec<(&'static str, Compliance)> {
    let mut rows = Vec::new();
    if behaviour.mapping != EndpointIndependent && !all_keep_their_port(behaviour) {
        rows.extend(["udp-mapping", "tcp-mapping", "icmp-query-mapping"]);
    }
    if behaviour.filtering == AddressAndPort {
        rows.extend(["udp-filtering", "tcp-filtering"]);
    }
    rows.into_iter().map(|id| (id, Compliance::Fails)).collect()
}

pub(crate) fn of_ports(ports: PortRule) -> &'static [(&'static str, Compliance)] {
    match ports {
        PortRule::Sequential => &[
            ("udp-parity", Compliance::Fails),
            ("udp-port-range", Compliance::Fails),
            ("udp-port-randomness", Compliance::Fails),
            ("tcp-port-randomness", Compliance::Fails),
            ("icmp-query-hairpin", Compliance::Described),
        ],
        PortRule::Random => &[
            ("udp-port-randomness", Compliance::Meets),
            ("tcp-port-randomness", Compliance::Meets),
            ("icmp-query-hairpin", Compliance::Described),
        ],
        PortRule::Preserve => &[],
    }
}

/// Defects of shared ports need hosts that keep theirs, and a port's reuse would be chance without; how ports are changed does not show
/// where each is chosen anew.
fn is_moot(defect: Defect, id: &str, behaviour: &Behaviour) -> bool {
    if behaviour.ports == PortRule::Preserve {
        return false;
    }
    match defect {
        Defect::PortsOverlap | Defect::PortsOverload => !id.ends_with("pooling"),
        // Only Basic NAT is asked to hairpin pings, and it keeps identifiers.
        _ if id == "icmp-query-hairpin" => defect != Defect::QueriesDropped,
        _ => id.ends_with("port-randomness") || id.ends_with("port-reuse"),
    }
}

/// The same for pings, which a filter by ports takes for those of its host; a NAT that replies itself is seen to do so, and where no
/// ping leaves nothing is seen.
fn hides_pings(behaviour: &Behaviour) -> bool {
    let dependent = behaviour.mapping != EndpointIndependent || behaviour.has(Defect::QueriesPerDestination);
    let filtered = match behaviour.has(Defect::FilterByPort) {
        true => behaviour.has(Defect::NoHairpin),
        false => behaviour.filtering != EndpointIndependent,
    };
    let seen = [Defect::QueriesNotHairpinned, Defect::QueriesDropped];
    dependent && filtered && !seen.into_iter().any(|defect| behaviour.has(defect))
}

/// If mappings and filter both depend on the destination, a hairpinned packet comes from a stranger.
fn hidden_hairpins(behaviour: &Behaviour) -> impl Iterator<Item = &'static str> {
    let filtered = behaviour.filtering != EndpointIndependent || behaviour.has(Defect::FilterByPort);
    let dependent = behaviour.mapping != EndpointIndependent && !all_keep_their_port(behaviour);
    let udp = ["udp-hairpin", "udp-hairpin-source", "icmp-error-hairpin"];
    let tcp = ["tcp-hairpin", "tcp-hairpin-source"];
    let udp = udp.into_iter().filter(move |_| filtered && dependent);
    let tcp_dependent = dependent || behaviour.has(Defect::TcpMappingDependent);
    udp.chain(tcp.into_iter().filter(move |_| filtered && tcp_dependent))
}
