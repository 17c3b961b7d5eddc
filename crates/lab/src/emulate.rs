//! Puts a [`Link`] into effect in the wan of a [`Site`], and says by what.
//!
//! On its way through the wan a packet meets, in this order: the rules for fragments, losses, delay and reordering, the smaller
//! MTU, the rate. Nothing is done to the hosts or to the gateway under test.

use std::collections::HashMap;
use std::fmt::Write;
use std::io;
use std::process::Command;
use std::time::Duration;

use weir_netlink::nftables::{self, Family as NftFamily};
use weir_netlink::{Rtnetlink, TokenBucket};
use weir_sys::process::{install, run_with_input, which};
use weir_sys::{Error as SysError, NetNs, ProcRoot};

use crate::impair::{Impairment, Passed, Way};
use crate::link::{Fragments, Icmp, Link, LinkWay};
use crate::options::Family;
use crate::plan::{FAR, NEAR};
use crate::{Error, Site};

/// Table of the wan's rules.
const TABLE: &str = "link";
/// Shares of lost packets are written in this many parts.
const PARTS: u32 = 10_000_000;
/// Longest queue at a rate, as time.
const QUEUE: Duration = Duration::from_millis(50);
/// Burst that may leave at once at a rate: one timer tick of the slowest kernels, and at least two frames.
const BURST: Duration = Duration::from_millis(1);
/// Ethernet's header, which the kernel counts at a rate.
const ETHERNET: u32 = 14;
/// Longest run of a program here.
const LIMIT: Duration = Duration::from_secs(10);
/// The directions in the order of [`Link::ways`]: name, interface where packets come in, interface where they leave.
const WAYS: [(&str, &str, &str); 2] = [("egress", NEAR, FAR), ("ingress", FAR, NEAR)];

/// A link in effect. Dropping it ends the delays; the rest goes with the wan.
#[derive(Debug)]
pub struct Emulation {
    wan: NetNs,
    impairment: Option<Impairment>,
    mechanisms: Vec<String>,
    counts: bool,
    before: HashMap<String, u64>,
}

/// Packet counts of one direction.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Crossed {
    /// Counts of held packets, if any are held.
    pub passed: Passed,
    /// Packets that were lost on purpose.
    pub lost: u64,
    /// Fragments that were dropped on purpose.
    pub fragments_dropped: u64,
}

impl Emulation {
    /// Puts a link into effect at a site that was made with a wan.
    ///
    /// # Errors
    /// A site without a wan; a program or a part of the kernel that is missing, by name.
    pub fn start(site: &Site, link: &Link) -> Result<Self, Error> {
        let Some(wan) = site.wan() else {
            return Err(Error::Unknown(format!("site `{}` has no wan for its link", site.name())));
        };
        let failed = |source| Error::Build { site: site.name().to_owned(), source };
        let ways = link.ways();
        let family = site.addresses().family;
        let mut started = Emulation {
            wan: wan.clone(),
            impairment: None,
            mechanisms: Vec::new(),
            counts: false,
            before: HashMap::new(),
        };
        let [egress, ingress] = &ways;
        site.limit_wan(egress.mtu, ingress.mtu).map_err(failed)?;
        started.load_rules(link, &ways, family).map_err(failed)?;
        let mut relayed = [Way::default(), Way::default()];
        for ((way, relay), names) in ways.iter().zip(&mut relayed).zip(WAYS) {
            started.queue(way, relay, names).map_err(failed)?;
        }
        let [egress, ingress] = relayed;
        if egress != Way::default() || ingress != Way::default() {
            started.impairment = Some(Impairment::start(site, egress, ingress)?);
        }
        Ok(started)
    }

    /// Which part of the system makes what, one line each, for people and records.
    pub fn mechanisms(&self) -> &[String] {
        &self.mechanisms
    }

    /// Sets all counters to nothing, and with another seed lets connections choose their gateways anew.
    ///
    /// # Errors
    /// If the kernel's counters cannot be read.
    pub fn begin(&mut self, seed: u64) -> Result<(), Error> {
        if let Some(impairment) = &mut self.impairment {
            impairment.begin(seed)?;
        }
        self.before = self.counters()?;
        Ok(())
    }

    /// Returns the counts of egress and ingress since then.
    ///
    /// # Errors
    /// If the kernel's counters cannot be read, or the thread that holds packets has ended.
    pub fn crossed(&mut self) -> Result<[Crossed; 2], Error> {
        let (egress, ingress) = match &mut self.impairment {
            Some(impairment) => impairment.passed()?,
            None => Default::default(),
        };
        let now = self.counters()?;
        let of = |way: &str, what: &str| {
            let name = format!("{way}_{what}");
            let count = |all: &HashMap<String, u64>| all.get(&name).copied().unwrap_or(0);
            count(&now).saturating_sub(count(&self.before))
        };
        let crossed =
            |way, passed| Crossed { passed, lost: of(way, LOST), fragments_dropped: of(way, FRAGMENTS) };
        Ok([crossed(WAYS[0].0, egress), crossed(WAYS[1].0, ingress)])
    }

    /// Packets of the rules' counters by name.
    fn counters(&self) -> Result<HashMap<String, u64>, Error> {
        if !self.counts {
            return Ok(HashMap::new());
        }
        let read = self.wan.run(|| nftables::read(&ProcRoot::new("/"))).and_then(|tables| tables);
        let tables = read.map_err(|source| Error::Build { site: "wan".into(), source })?;
        let all = tables.map(|tables| tables.counters).unwrap_or_default();
        let mut own = HashMap::new();
        for ((family, table, name), packets) in all {
            if [NftFamily::Inet, NftFamily::Netdev].contains(&family) && table == TABLE {
                *own.entry(name).or_insert(0) += packets;
            }
        }
        Ok(own)
    }

    /// Rules for losses, fragments and messages of packets too big, in one transaction.
    fn load_rules(&mut self, link: &Link, ways: &[LinkWay; 2], family: Family) -> Result<(), SysError> {
        let (mut counters, mut dropped, mut more) = (String::new(), String::new(), String::new());
        // Writing to a String cannot fail.
        for (way, (name, from, leaves)) in ways.iter().zip(WAYS) {
            for Dropped { what, matches, words } in drops(way, family) {
                let _ = writeln!(counters, "\tcounter {name}_{what} {{ }}");
                let rule = format!("{matches}counter name \"{name}_{what}\" drop");
                let _ = writeln!(dropped, "\t\tiifname \"{from}\" {rule}");
                self.mechanisms.push(format!("{name}: {words} by nft"));
                // Fragments that the wan itself makes for a smaller MTU exist only behind its routing (IPv6 routers cut nothing:
                // RFC 8200 section 5).
                if what == FRAGMENTS && way.mtu.is_some() && family == Family::Ipv4 {
                    let _ = writeln!(
                        more,
                        "table netdev {TABLE} {{\n\tcounter {name}_{what} {{ }}\n\tchain {name} {{\n\t\ttype filter hook \
                         egress device \"{leaves}\" priority filter; policy accept;\n\t\t{rule}\n\t}}\n}}"
                    );
                }
            }
        }
        // Drops forwarded packets only, not IPv6 messages to neighbours; and before the relay.
        let mut chains = format!(
            "\tchain drops {{\n\t\ttype filter hook forward priority raw; policy accept;\n{dropped}\t}}\n"
        );
        if let Some(Icmp::Drop) = link.icmp {
            let matches = match family {
                Family::Ipv4 => "icmp type destination-unreachable icmp code frag-needed",
                Family::Ipv6 => "icmpv6 type packet-too-big",
            };
            for hook in ["forward", "output"] {
                let _ = writeln!(
                    chains,
                    "\tchain too_big_{hook} {{\n\t\ttype filter hook {hook} priority filter; policy accept;\n\t\t{matches} drop\n\t}}"
                );
            }
            self.mechanisms.push("both ways: messages of packets too big are dropped by nft".to_owned());
        }
        self.counts = !dropped.is_empty();
        if !self.counts && link.icmp.is_none() {
            return Ok(());
        }
        self.nft(&format!("table inet {TABLE} {{\n{counters}{chains}}}\n{more}"))
    }

    /// Loads rules in the wan.
    fn nft(&self, script: &str) -> Result<(), SysError> {
        let what = "load the link's rules";
        let nft = which("nft")
            .ok_or_else(|| SysError::other(what, format!("nft is not installed; {}", install("nft"))))?;
        let mut command = Command::new(nft);
        command.args(["-f", "-"]);
        self.wan.enter_on_spawn(&mut command);
        let output = run_with_input(command, script.as_bytes(), LIMIT)?;
        if output.status.success() { Ok(()) } else { Err(SysError::other(what, output.message())) }
    }

    /// A rate at the interface where packets leave, and what delays them: netem if the kernel has it and it does exactly what
    /// is asked for, or else the relay.
    fn queue(
        &mut self,
        way: &LinkWay,
        relay: &mut Way,
        (name, _, leaves): (&str, &str, &str),
    ) -> Result<(), SysError> {
        let mut net = Rtnetlink::open_in(&self.wan)?;
        if let Some(mtu) = way.mtu {
            self.mechanisms.push(format!("{name}: an MTU of {mtu} by the wan's route"));
        }
        if let Some(rate) = way.rate {
            let interface_mtu = net.interface(leaves)?.mtu;
            net.limit_rate(leaves, bucket(rate.0, interface_mtu))?;
            self.mechanisms.push(format!("{name}: at most {rate}/s by tbf"));
        }
        let wanted = relay_way(way);
        if wanted == Way::default() {
            return Ok(());
        }
        let only_delay = wanted == Way { delay: wanted.delay, ..Way::default() } && way.rate.is_none();
        if only_delay && by_netem(&mut net, leaves, wanted.delay)? {
            self.mechanisms.push(format!("{name}: {} by netem", held(way)));
            return Ok(());
        }
        *relay = wanted;
        self.mechanisms.push(format!("{name}: {} by a relay on NFQUEUE", held(way)));
        Ok(())
    }
}

/// Packets that a rule drops.
struct Dropped {
    /// Name of the counter, behind that of the direction.
    what: &'static str,
    /// Which they are, as nft writes it, with a space behind; empty if they are all.
    matches: String,
    /// The same for people.
    words: String,
}

/// Names of counters.
const LOST: &str = "lost";
const FRAGMENTS: &str = "fragments";

/// Returns the packets to drop on arrival.
fn drops(way: &LinkWay, family: Family) -> Vec<Dropped> {
    let fragments = match (way.fragments, family) {
        (Some(Fragments::DropRest), Family::Ipv4) => Some(("ip frag-off & 0x1fff != 0", "but the first")),
        (Some(Fragments::DropAll), Family::Ipv4) => Some(("ip frag-off & 0x3fff != 0", "of any place")),
        (Some(Fragments::DropRest), Family::Ipv6) => Some(("frag frag-off != 0", "but the first")),
        (Some(Fragments::DropAll), Family::Ipv6) => Some(("exthdr frag exists", "of any place")),
        (Some(Fragments::Reorder) | None, _) => None,
    };
    let fragments = fragments.map(|(matches, which)| Dropped {
        what: FRAGMENTS,
        matches: format!("{matches} "),
        words: format!("fragments {which} are dropped"),
    });
    let loss = way.loss.map(|share| {
        let (matches, words) = match lost_parts(share) {
            // nft takes no comparison that always holds.
            None => (String::new(), "all packets are lost".to_owned()),
            Some(parts) => (
                format!("numgen random mod {PARTS} < {parts} "),
                format!("{} % of packets are lost at random", share * 100.0),
            ),
        };
        Dropped { what: LOST, matches, words }
    });
    let every = way.loss_every.map(|every| Dropped {
        what: LOST,
        matches: format!("numgen inc mod {every} == {} ", every - 1),
        words: format!("each {every}th packet is lost"),
    });
    [fragments, loss, every].into_iter().flatten().collect()
}

/// How many of [`PARTS`] a share of lost packets is, at least one and never all; `None` if it is all of them.
fn lost_parts(share: f64) -> Option<u32> {
    let parts = (share * f64::from(PARTS)).round() as u32;
    (share < 1.0).then(|| parts.clamp(1, PARTS - 1))
}

/// Returns the part of a direction for which packets must be held.
fn relay_way(way: &LinkWay) -> Way {
    Way {
        delay: way.delay.map_or(Duration::ZERO, |wait| wait.0),
        jitter: way.jitter.map_or(Duration::ZERO, |wait| wait.0),
        delays: way.delays.iter().map(|wait| wait.0).collect(),
        choose: way.choose.unwrap_or_default(),
        reorder: way.reorder,
        first_fragments_last: way.fragments == Some(Fragments::Reorder),
    }
}

/// Describes that part in words.
fn held(way: &LinkWay) -> String {
    let held = LinkWay {
        loss: None,
        loss_every: None,
        rate: None,
        mtu: None,
        fragments: way.fragments.filter(|f| *f == Fragments::Reorder),
        ..way.clone()
    };
    held.describe()
}

/// A bucket that lets that rate pass out of an interface.
fn bucket(rate_bps: u64, mtu: u32) -> TokenBucket {
    let within = |span: Duration| {
        let bytes = u128::from(rate_bps) * span.as_nanos() / 8_000_000_000;
        u32::try_from(bytes).unwrap_or(u32::MAX)
    };
    let frame = mtu + ETHERNET;
    TokenBucket {
        rate_bps,
        burst_bytes: within(BURST).max(2 * frame),
        limit_bytes: within(QUEUE).max(10 * frame),
    }
}

/// Tries netem; false where the kernel has none.
fn by_netem(net: &mut Rtnetlink, interface: &str, delay: Duration) -> Result<bool, SysError> {
    match net.delay_by_netem(interface, delay) {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bucket_holds_a_millisecond_and_queues_fifty() {
        let bucket = bucket(100_000_000, 1500);
        // 100 Mbit/s are 12.5 MB/s.
        assert_eq!((bucket.burst_bytes, bucket.limit_bytes), (12_500, 625_000));
        let slow = super::bucket(8_000, 1500);
        assert_eq!((slow.burst_bytes, slow.limit_bytes), (2 * 1514, 10 * 1514));
    }

    #[test]
    fn what_is_held_is_told_without_what_is_not() {
        let way: LinkWay = serde_json::from_str(
            r#"{"delay": "1ms", "loss": 0.5, "rate": "1mbit", "fragments": "drop-all"}"#,
        )
        .unwrap();
        assert_eq!(held(&way), "waits 1ms");
        assert_eq!(relay_way(&way), Way { delay: Duration::from_millis(1), ..Way::default() });
        let rules = drops(&way, Family::Ipv4);
        assert_eq!(rules.len(), 2);
        assert_eq!(rules[1].matches, "numgen random mod 10000000 < 5000000 ");
    }

    #[test]
    fn a_loss_is_never_none_and_only_a_whole_one_is_all() {
        // Shares in ten millionths, by hand; the least and the greatest that a link may have, and what rounding would make of others.
        for (share, parts) in [
            (1e-6, Some(10)),
            (1e-9, Some(1)),
            (0.25, Some(2_500_000)),
            (0.999_999_9, Some(9_999_999)),
            (0.999_999_999, Some(9_999_999)),
            (1.0, None),
        ] {
            assert_eq!(lost_parts(share), parts, "{share}");
        }
        let all = LinkWay { loss: Some(1.0), ..LinkWay::default() };
        for family in [Family::Ipv4, Family::Ipv6] {
            let rules = drops(&all, family);
            assert_eq!(rules.len(), 1);
            assert_eq!((rules[0].matches.as_str(), rules[0].words.as_str()), ("", "all packets are lost"));
        }
    }
}
