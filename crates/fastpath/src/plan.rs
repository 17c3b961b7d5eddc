//! A plan for this host: the interfaces whose packets would be carried, the memory, and the rules that would see less.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use weir_netlink::{Link, Rtnetlink};
use weir_sys::{ProcRoot, sysctl};

use crate::attachments::why_not;
use crate::store::{check_number, joined};
use crate::xdp::look_at;
use crate::{
    Bypassed, Effect, Error, Exclusion, Fastpath, Learns, Options, Other, Result, Xdp, XdpInterface,
    bypassed, others,
};

/// A user's request.
#[derive(Debug, Clone, Default)]
pub struct Request {
    /// Interfaces; empty: all that forward.
    pub interfaces: Vec<String>,
    /// Flows that are left to the kernel.
    pub excluded: Vec<Exclusion>,
    /// Packets of one direction before it is learnt; `None`: the default.
    pub packets: Option<u32>,
    /// Connections of each version of IP that there is room for, 64 to 16 million; `None`: as many as conntrack may have, within a
    /// sixteenth of the memory.
    pub connections: Option<u32>,
    /// Flows that are left to the kernel whatever is asked for: [`crate::ExclusionStore`].
    pub kept: Vec<Exclusion>,
    /// Carry by XDP where drivers have it.
    pub xdp: bool,
}

/// The wish that the resident process fulfils, as it is written into the journal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Wanted {
    /// Names of the interfaces; text from outside.
    pub interfaces: Vec<String>,
    /// Connections of IPv4 that there is room for.
    pub connections: u32,
    /// Connections of IPv6 that there is room for.
    pub connections6: u32,
    /// Packets of one direction before it is learnt.
    pub packets: u32,
    /// Flows that are left to the kernel.
    pub excluded: Vec<Exclusion>,
    /// Names of the interfaces whose drivers carry by XDP, too; text from outside.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub xdp: Vec<String>,
}

/// An interface whose packets are left to the kernel.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct LeftOut {
    /// Its name; text from outside.
    pub name: String,
    /// The reason, in words.
    pub why: String,
}

/// A plan.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct FastpathPlan {
    /// The wish.
    #[serde(flatten)]
    pub wanted: Wanted,
    /// Exclusions that are kept, and count beside those of the wish.
    pub kept: Vec<Exclusion>,
    /// Interfaces that are left out.
    pub left_out: Vec<LeftOut>,
    /// Memory of the tables, bytes.
    pub memory_bytes: u64,
    /// True if IPv6 is carried: some interface forwards it, and the kernel can rewrite it.
    pub carries_ipv6: bool,
    /// Rules that carried packets do not meet, and that would decide about them or record them.
    pub bypassed: Vec<Bypassed>,
    /// Programs and filters at the interfaces that carried packets do not meet.
    pub skipped: Vec<Skipped>,
    /// The interfaces by what XDP could carry there.
    pub drivers: Vec<XdpInterface>,
    /// Other changes, in words.
    pub notes: Vec<String>,
}

/// A program or filter at an interface that carried packets do not meet.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Skipped {
    /// Name of the interface; text from outside.
    pub interface: String,
    /// The program or filter.
    #[serde(flatten)]
    pub other: Other,
}

impl Wanted {
    /// Its name: the same wish has the same one.
    pub fn id(&self) -> String {
        let text = serde_json::to_string(self).unwrap_or_default();
        weir_guard::fingerprint(&text)[..12].to_owned()
    }

    pub(crate) fn options(&self) -> Options {
        let Wanted { connections, connections6, packets, .. } = *self;
        let xdp = if self.xdp.is_empty() { Xdp::Off } else { with_xdp() };
        Options { connections, connections6, packets, xdp, ..like_the_kernel(Options::default()) }
    }
}

/// Forwarding of an interface.
struct Forwards {
    ipv4: bool,
    ipv6: bool,
}

impl Forwards {
    fn of(root: &ProcRoot, name: &str) -> Result<Self> {
        // A dot in a name of an interface is written as a slash (sysctl(8)).
        let name = name.replace('.', "/");
        let is_on = |version: &str| -> Result<bool> {
            let value = sysctl::get_optional(root, &format!("net.{version}.conf.{name}.forwarding"))?;
            Ok(value.is_some_and(|value| value.trim() == "1"))
        };
        Ok(Forwards { ipv4: is_on("ipv4")?, ipv6: is_on("ipv6")? })
    }

    fn any(&self) -> bool {
        self.ipv4 || self.ipv6
    }
}

/// Why an interface is left out, whether or not it was asked for.
fn unfit(link: &Link, links: &[Link]) -> Option<String> {
    let master = link.master.and_then(|index| links.iter().find(|other| other.index == index));
    match master {
        Some(master) if master.kind == "vrf" => {
            Some(format!("it is part of the VRF {}: not supported", master.name.escape_default()))
        }
        Some(master) => {
            let name = master.name.escape_default();
            Some(format!("it is part of {name}: its packets are carried at {name}"))
        }
        None => why_not(link),
    }
}

impl FastpathPlan {
    /// Looks at the calling thread's network namespace. Programs are loaded for a moment, into a small table, and attached to nothing.
    ///
    /// # Errors
    /// [`Error::Interface`] if an interface that was asked for does not fit; [`Error::Nothing`] if none forwards; [`Error::Kernel`] and
    /// [`Error::Bpf`] if this kernel cannot do it.
    pub fn make(request: &Request, root: &ProcRoot) -> Result<Self> {
        let links = Rtnetlink::open()?.links()?;
        let (chosen, left_out) = choose(&request.interfaces, &links, root)?;
        if chosen.is_empty() {
            return Err(Error::Nothing(
                "no interface here forwards packets (net.ipv4.ip_forward, net.ipv6.conf.all.forwarding)"
                    .into(),
            ));
        }
        let (mut ipv4, mut ipv6) = (false, false);
        for name in &chosen {
            let forwards = Forwards::of(root, name)?;
            ipv4 |= forwards.ipv4;
            ipv6 |= forwards.ipv6;
        }
        let small = Fastpath::load(like_the_kernel(Options::smallest()))?;
        let can_ipv6 = small.carries_ipv6();
        let notes = notes(root, ipv6 && !can_ipv6, small.learns())?;
        drop(small);
        let versions = (ipv4, ipv6 && can_ipv6);
        let options = match request.connections {
            None => Options::for_host(root, versions)?,
            Some(connections) => Options::with_room(connections, root, versions)?,
        };
        let drivers = look_at(with_xdp(), links.iter().filter(|link| chosen.contains(&link.name)))?;
        let wanted = Wanted {
            xdp: if request.xdp { fitting(&drivers)? } else { Vec::new() },
            interfaces: chosen,
            connections: options.connections,
            connections6: options.connections6,
            packets: request.packets.unwrap_or(options.packets),
            excluded: request.excluded.clone(),
        };
        wanted.options().check()?;
        let kept = request.kept.clone();
        check_number(joined(&wanted.excluded, &kept).len())?;
        let memory_bytes = wanted.options().memory_bytes();
        let mut skipped = Vec::new();
        for link in links.iter().filter(|link| wanted.interfaces.contains(&link.name)) {
            let named = |other| Skipped { interface: link.name.clone(), other };
            skipped.extend(others(link.index)?.into_iter().map(named));
        }
        let mut bypassed = bypassed(root)?;
        // Those that are kept do not count: `exclude --remove` may end them at any time.
        for rule in &mut bypassed {
            rule.excluded = rule.is_covered(&wanted.excluded);
        }
        let carries_ipv6 = ipv6 && can_ipv6;
        Ok(FastpathPlan {
            wanted,
            kept,
            left_out,
            memory_bytes,
            carries_ipv6,
            bypassed,
            skipped,
            drivers,
            notes,
        })
    }

    /// Rules, programs and filters that carried packets would not meet, and that could decide otherwise about them. A rule whose flows
    /// the wish excludes is not among them.
    pub fn objections(&self) -> Vec<Objection> {
        let counts = |rule: &&Bypassed| rule.effect == Effect::Changes && !rule.excluded;
        let of_rule =
            |rule: &Bypassed| Objection { text: rule.to_string(), exclusions: rule.exclusions.clone() };
        let filters = self.skipped.iter().filter(|skipped| skipped.other.decides);
        let of_filter = |filter: &Skipped| Objection { text: filter.to_string(), exclusions: Vec::new() };
        self.bypassed.iter().filter(counts).map(of_rule).chain(filters.map(of_filter)).collect()
    }
}

fn notes(root: &ProcRoot, without_ipv6: bool, learns: Learns) -> Result<Vec<String>> {
    let mut notes = Vec::new();
    if learns == Learns::ByNetlink {
        notes.push(
            "this kernel lacks conntrack's functions for BPF (Linux 5.18): the process that keeps the fast path asks conntrack instead, \
             so a flow is carried some milliseconds later"
                .into(),
        );
    }
    if without_ipv6 {
        notes.push(
            "IPv6 stays with the kernel: this kernel lacks BPF_F_IPV6 (Linux 6.16, or a stable series with the correction)"
                .into(),
        );
    }
    if sysctl::get_optional(root, "net.netfilter.nf_conntrack_acct")?.is_some_and(|v| v.trim() == "1") {
        notes.push(
            "nf_conntrack_acct is on: conntrack does not count carried packets, so its numbers will be too low"
                .into(),
        );
    }
    Ok(notes)
}

/// Names of the interfaces with XDP.
fn fitting(drivers: &[XdpInterface]) -> Result<Vec<String>> {
    let names: Vec<String> = drivers.iter().filter(|d| !d.is_unfit()).map(|d| d.name.clone()).collect();
    if !names.is_empty() {
        return Ok(names);
    }
    let why = |driver: &XdpInterface| {
        format!("{}: {}", driver.name.escape_default(), driver.incoming.as_deref().unwrap_or_default())
    };
    let all: Vec<String> = drivers.iter().map(why).collect();
    Err(Error::Interface(format!("no interface can carry by XDP: {}", all.join("; "))))
}

/// Something that could decide otherwise about packets that do not meet it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Objection {
    /// A line about it; text from outside is in it.
    pub text: String,
    /// Exclusions that leave all flows to the kernel that it meets; none if there are no such exclusions.
    pub exclusions: Vec<Exclusion>,
}

impl fmt::Display for Bypassed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}: {}", self.place, self.rule, self.why)
    }
}

impl fmt::Display for Skipped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Skipped { interface, other: Other { place, name, .. } } = self;
        write!(f, "{interface}: {place}")?;
        if name.is_empty() { Ok(()) } else { write!(f, " ({name})") }
    }
}

/// The interfaces that were asked for, or all that forward and fit; and those that do not fit.
fn choose(asked: &[String], links: &[Link], root: &ProcRoot) -> Result<(Vec<String>, Vec<LeftOut>)> {
    let mut chosen: Vec<String> = Vec::new();
    for name in asked {
        let shown = name.escape_default();
        let missing = || Error::Interface(format!("there is no interface {shown} here"));
        let link = links.iter().find(|link| link.name == *name).ok_or_else(missing)?;
        if let Some(why) = unfit(link, links) {
            return Err(Error::Interface(format!("{shown}: {why}")));
        }
        if !chosen.contains(name) {
            chosen.push(name.clone());
        }
    }
    let mut left_out = Vec::new();
    // Loopback forwards nothing, whatever its setting.
    for link in links.iter().filter(|link| asked.is_empty() && u32::from(link.link_type) != LOOPBACK) {
        let reason = match unfit(link, links) {
            None if !link.up => Some("it is down".into()),
            None if !Forwards::of(root, &link.name)?.any() => Some("it does not forward".into()),
            reason => reason,
        };
        match reason {
            None => chosen.push(link.name.clone()),
            Some(why) => left_out.push(LeftOut { name: link.name.clone(), why }),
        }
    }
    Ok((chosen, left_out))
}

/// The kinds of interfaces for XDP.
fn with_xdp() -> Xdp {
    if std::env::var_os(SINGLE_FRAMES).is_some() { Xdp::SingleFrames } else { Xdp::Cards }
}

/// Options with what the environment says that this kernel lacks.
fn like_the_kernel(options: Options) -> Options {
    let lacks = |what: &str| std::env::var_os(what).is_some();
    Options { without_tcx: lacks(WITHOUT_TCX), without_functions: lacks(WITHOUT_FUNCTIONS), ..options }
}

/// In the environment of the process that keeps a fast path: the probe of TCX fails. For tests on kernels that have it.
const WITHOUT_TCX: &str = "WEIR_TEST_WITHOUT_TCX";
/// In the same environment: the programs may not use conntrack's functions for BPF. For tests on kernels that have them.
const WITHOUT_FUNCTIONS: &str = "WEIR_TEST_WITHOUT_CONNTRACK_FUNCTIONS";
/// In the same environment: XDP at veth devices, whose other ends send single packets only. For tests without a network card.
const SINGLE_FRAMES: &str = "WEIR_TEST_SINGLE_FRAMES";
/// ARPHRD_LOOPBACK (linux/if_arp.h).
const LOOPBACK: u32 = 772;

#[cfg(test)]
mod tests {
    use super::*;

    fn link(index: u32, name: &str, master: Option<u32>, kind: &str) -> Link {
        let link_type = if kind == "wireguard" { 65534 } else { 1 };
        Link { index, name: name.into(), kind: kind.into(), link_type, up: true, master, ..Link::default() }
    }

    #[test]
    fn ports_of_bridges_and_packets_without_ethernet_are_left_out() {
        let links = [
            link(1, "br0", None, "bridge"),
            link(2, "p0", Some(1), "veth"),
            link(3, "wg0", None, "wireguard"),
            link(4, "red", None, "vrf"),
            link(5, "eth0", Some(4), ""),
            link(70_000, "eth1", None, ""),
        ];
        let why = |at: usize| unfit(&links[at], &links).unwrap_or_default();
        assert_eq!(why(0), "");
        assert_eq!(why(1), "it is part of br0: its packets are carried at br0");
        assert!(why(2).contains("no Ethernet header"), "{}", why(2));
        assert!(why(4).contains("VRF red"), "{}", why(4));
        assert!(why(5).contains("70000"), "{}", why(5));
    }

    #[test]
    fn an_interface_that_was_asked_for_and_does_not_fit_is_an_error() {
        let links = [link(1, "br0", None, "bridge"), link(2, "p0", Some(1), "veth")];
        let root = ProcRoot::default();
        let ask = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|&name| name.into()).collect();
            choose(&names, &links, &root).map(|(chosen, _)| chosen).map_err(|e| e.to_string())
        };
        assert_eq!(ask(&["br0", "br0"]).unwrap(), ["br0"]);
        assert_eq!(ask(&["p0"]).unwrap_err(), "p0: it is part of br0: its packets are carried at br0");
        assert_eq!(ask(&["x\n"]).unwrap_err(), "there is no interface x\\n here");
    }
}
