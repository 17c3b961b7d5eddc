//! Options that several variants have in common.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use weir_text::time::whole_seconds;

use crate::{Error, Journal};

/// Source ports that may be used for translated connections, written `"1024-65535"`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(with = "String")]
pub struct PortRange {
    first: u16,
    last: u16,
}

impl FromStr for PortRange {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || format!("ports `{text}`: expected two numbers from 1 to 65535 like \"1024-65535\"");
        let (first, last) = text.split_once('-').ok_or_else(bad)?;
        let number = |s: &str| s.trim().parse::<u16>().ok().filter(|&n| n > 0).ok_or_else(bad);
        let (first, last) = (number(first)?, number(last)?);
        if first > last {
            return Err(format!("ports `{text}`: the first is above the last"));
        }
        Ok(PortRange { first, last })
    }
}

impl TryFrom<String> for PortRange {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<PortRange> for String {
    fn from(range: PortRange) -> String {
        range.to_string()
    }
}

impl fmt::Display for PortRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.first, self.last)
    }
}

/// Whether the maximum segment size in SYN packets is lowered on the way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum MssClamp {
    /// `true`: to what the path MTU of the route allows; `false`: not at all.
    ToPathMtu(bool),
    /// To this many bytes, 536 to 65495.
    Size(u16),
}

impl Default for MssClamp {
    fn default() -> Self {
        MssClamp::ToPathMtu(false)
    }
}

impl MssClamp {
    /// 536 is what every host must accept (RFC 9293 section 3.7.1); 65495 is the largest that IPv4 can carry.
    const SIZES: std::ops::RangeInclusive<u16> = 536..=65495;

    pub(crate) fn is_on(self) -> bool {
        self != MssClamp::ToPathMtu(false)
    }

    pub(crate) fn validate(self) -> Result<(), String> {
        match self {
            MssClamp::Size(size) if !Self::SIZES.contains(&size) => {
                Err(format!("mss-clamp = {size}: expected true, false or a size from 536 to 65495 bytes"))
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Display for MssClamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            MssClamp::ToPathMtu(on) => write!(f, "MSS clamp {}", if *on { "to path MTU" } else { "off" }),
            MssClamp::Size(size) => write!(f, "MSS clamp {size}"),
        }
    }
}

/// Whether and how weir's flow table carries established connections beside the rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum FastpathOption {
    /// `true`: by programs at tc; `false`: not at all.
    Switch(bool),
    /// `"xdp"`: in drivers, too.
    By(FastpathHook),
    /// With options of its own: `{ hook = "xdp", packets = 1 }`.
    With(FastpathSettings),
}

/// The options of a fast path.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct FastpathSettings {
    /// The place at which packets are carried.
    pub hook: FastpathHook,
    /// Packets of one direction before it is learnt, 1 to 1000; 8 by default.
    pub packets: Option<u32>,
}

/// The place at which packets are carried.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum FastpathHook {
    /// By programs at tc.
    #[default]
    Tc,
    /// In drivers (XDP), and by programs at tc where that is not possible. In a lab no interface may leave work to the other end of its
    /// link: `offloads = { preset = "off", tx = false, gro = true }`.
    Xdp,
}

impl Default for FastpathOption {
    fn default() -> Self {
        FastpathOption::Switch(false)
    }
}

impl FastpathOption {
    /// None if nothing is carried.
    pub(crate) fn settings(self) -> Option<FastpathSettings> {
        match self {
            FastpathOption::Switch(false) => None,
            FastpathOption::Switch(true) => Some(FastpathSettings::default()),
            FastpathOption::By(hook) => Some(FastpathSettings { hook, packets: None }),
            FastpathOption::With(settings) => Some(settings),
        }
    }

    pub(crate) fn is_on(self) -> bool {
        self.settings().is_some()
    }

    pub(crate) fn is_by_xdp(self) -> bool {
        self.settings().is_some_and(|settings| settings.hook == FastpathHook::Xdp)
    }

    pub(crate) fn validate(self) -> Result<(), String> {
        match self.settings().and_then(|settings| settings.packets) {
            Some(packets) if !(1..=1000).contains(&packets) => {
                Err(format!("fastpath: packets = {packets}: expected 1 to 1000"))
            }
            _ => Ok(()),
        }
    }

    /// For people; none if nothing is carried.
    pub(crate) fn describe(self) -> Option<String> {
        let settings = self.settings()?;
        let hook = if settings.hook == FastpathHook::Xdp { " by XDP" } else { "" };
        let packets = settings.packets.map(|n| format!(" after packet {n}")).unwrap_or_default();
        Some(format!("fast path{hook}{packets}"))
    }
}

/// Seconds after which idle entries of the connection-tracking table are dropped, e.g.
/// `{ udp = "120s", tcp-established = "2h" }`. They hold for the whole network namespace of the gateway while the variant
/// is in effect (`net.netfilter.nf_conntrack_*_timeout*`).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
pub struct Timeouts(pub BTreeMap<String, String>);

/// Names of timeouts and their settings below `net.netfilter.` (Documentation/networking/nf_conntrack-sysctl.rst).
const TIMEOUTS: [(&str, &str); 16] = [
    ("generic", "nf_conntrack_generic_timeout"),
    ("icmp", "nf_conntrack_icmp_timeout"),
    ("icmpv6", "nf_conntrack_icmpv6_timeout"),
    ("tcp-close", "nf_conntrack_tcp_timeout_close"),
    ("tcp-close-wait", "nf_conntrack_tcp_timeout_close_wait"),
    ("tcp-established", "nf_conntrack_tcp_timeout_established"),
    ("tcp-fin-wait", "nf_conntrack_tcp_timeout_fin_wait"),
    ("tcp-last-ack", "nf_conntrack_tcp_timeout_last_ack"),
    ("tcp-max-retrans", "nf_conntrack_tcp_timeout_max_retrans"),
    ("tcp-syn-recv", "nf_conntrack_tcp_timeout_syn_recv"),
    ("tcp-syn-sent", "nf_conntrack_tcp_timeout_syn_sent"),
    ("tcp-time-wait", "nf_conntrack_tcp_timeout_time_wait"),
    ("tcp-unacknowledged", "nf_conntrack_tcp_timeout_unacknowledged"),
    ("udp", "nf_conntrack_udp_timeout"),
    ("udp-stream", "nf_conntrack_udp_timeout_stream"),
    ("gre", "nf_conntrack_gre_timeout"),
];

impl Timeouts {
    pub(crate) fn validate(&self) -> Result<(), String> {
        self.settings().map(drop)
    }

    /// Sets them. The settings exist only where connection tracking is loaded, so the rules that load it come first.
    pub(crate) fn apply(&self, journal: &mut Journal) -> Result<(), Error> {
        for (setting, seconds) in self.settings().map_err(Error::Unsupported)? {
            journal.sysctl(&format!("net.netfilter.{setting}"), &seconds.to_string())?;
        }
        Ok(())
    }

    fn settings(&self) -> Result<Vec<(&'static str, u32)>, String> {
        self.0.iter().map(|(name, value)| Ok((setting(name)?, seconds(name, value)?))).collect()
    }
}

impl fmt::Display for Timeouts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Vec<_> = self.0.iter().map(|(name, value)| format!("{name} {value}")).collect();
        write!(f, "timeouts {}", all.join(", "))
    }
}

fn setting(name: &str) -> Result<&'static str, String> {
    TIMEOUTS.iter().find(|(known, _)| *known == name).map(|(_, setting)| *setting).ok_or_else(|| {
        let known: Vec<_> = TIMEOUTS.iter().map(|(known, _)| *known).collect();
        format!("conntrack-timeouts: no timeout `{name}`; there are {}", known.join(", "))
    })
}

/// The kernel keeps timeouts in jiffies of at least 1/1000 s in 31 bits.
const MAX_SECONDS: u32 = (1 << 31) / 1000;

fn seconds(name: &str, value: &str) -> Result<u32, String> {
    whole_seconds(value, MAX_SECONDS)
        .map_err(|why| format!("conntrack-timeouts: {name} = \"{value}\": {why}"))
}

/// How source ports are chosen.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Allocation {
    pub(crate) random: bool,
    pub(crate) fully_random: bool,
    pub(crate) persistent: bool,
    pub(crate) ports: Option<PortRange>,
}

impl Allocation {
    pub(crate) fn validate(&self) -> Result<(), String> {
        if self.random && self.fully_random {
            return Err("random and fully-random exclude each other: choose one".into());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_ranges() {
        assert_eq!("1024-65535".parse::<PortRange>().unwrap().to_string(), "1024-65535");
        for bad in ["", "1024", "0-5", "9-8", "1-65536", "a-b", "-1-5"] {
            assert!(bad.parse::<PortRange>().unwrap_err().contains("ports"), "{bad}");
        }
    }

    #[test]
    fn mss_clamp_is_a_switch_or_a_size() {
        let read = |s| serde_json::from_str::<MssClamp>(s).unwrap();
        assert!(!read("false").is_on());
        assert!(read("true").is_on());
        assert_eq!(read("1300"), MssClamp::Size(1300));
        assert!(MssClamp::Size(535).validate().is_err());
        assert!(MssClamp::Size(536).validate().is_ok());
        assert!(serde_json::from_str::<MssClamp>("70000").is_err());
    }

    #[test]
    fn timeouts_are_times_of_known_names() {
        let one = |name: &str, value: &str| Timeouts(BTreeMap::from([(name.to_owned(), value.to_owned())]));
        let settings = |name, value| one(name, value).settings();
        assert_eq!(settings("udp", "120s").unwrap(), [("nf_conntrack_udp_timeout", 120)]);
        assert_eq!(settings("udp-stream", "30m").unwrap(), [("nf_conntrack_udp_timeout_stream", 1800)]);
        assert_eq!(
            settings("tcp-established", "5d").unwrap(),
            [("nf_conntrack_tcp_timeout_established", 432_000)]
        );
        assert_eq!(settings("icmp", "7").unwrap(), [("nf_conntrack_icmp_timeout", 7)]);
        for bad in ["", "0s", "s", "12x", "-3s", "1.5s", "25d", "99999999999s"] {
            assert!(settings("udp", bad).unwrap_err().contains(&format!("udp = \"{bad}\": ")), "{bad}");
        }
        assert!(settings("udq", "1s").unwrap_err().contains("udp-stream"));
    }

    #[test]
    fn two_ways_of_choosing_ports_are_refused() {
        assert!(Allocation { random: true, fully_random: true, ..Allocation::default() }.validate().is_err());
        assert!(Allocation { random: true, persistent: true, ..Allocation::default() }.validate().is_ok());
    }
}
