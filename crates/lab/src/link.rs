//! Properties of the link between hop and responder, as scenarios write them: `[testbed.link]`, or `link` of a variant.
//!
//! It is made in a router of its own, the wan of a [`crate::Site`], by [`crate::emulate`].

use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::Error;
use crate::options::Family;
use crate::quantity::{Rate, Wait};

/// Longest delay: what waits is held by the kernel, and nothing on earth is further away.
const LONGEST: Duration = Duration::from_secs(10);
/// Gateways side by side.
const MOST_DELAYS: usize = 16;
/// Valid rates, bit/s.
const RATES: (Rate, Rate) = (Rate(8_000), Rate(100_000_000_000));
/// Below one packet in a million a loss is not seen in any trial.
const LEAST_LOSS: f64 = 1e-6;

/// A struct with the keys that hold for both directions or for one, and keys of its own. They are listed once: serde cannot flatten
/// a struct into another and still refuse keys that are none.
macro_rules! with_keys_of_a_way {
    ($(#[$about:meta])* pub struct $name:ident { $($(#[$own:meta])* pub $key:ident: $type:ty,)* }) => {
        $(#[$about])*
        #[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
        #[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
        pub struct $name {
            /// How long each packet waits, in each direction: a round trip becomes twice that longer. 0 to 10 s.
            pub delay: Option<Wait>,
            /// Each packet's delay is drawn from a uniform distribution of that much to either side; at most the delay.
            /// Packets keep their order: none leaves before an earlier one of the same gateway.
            pub jitter: Option<Wait>,
            /// Several gateways side by side, each with a delay of its own, 2 to 16: a connection takes one of them, both
            /// ways.
            pub delays: Vec<Wait>,
            /// How a connection's gateway is chosen.
            pub choose: Option<Choose>,
            /// Share of packets that are lost, at random and independently of each other; from 0.000001 to 1.
            pub loss: Option<f64>,
            /// Every so many-th packet is lost, at least 2.
            pub loss_every: Option<u32>,
            /// Packets that are overtaken.
            pub reorder: Option<Reorder>,
            /// Highest rate of Ethernet frames that passes, from 8 kbit to 100 gbit a second. Faster traffic waits for up to 50
            /// ms.
            pub rate: Option<Rate>,
            /// Bytes of the largest packet that passes, as in a tunnel: from 68 (IPv6: 1280) to the lab's own MTU.
            pub mtu: Option<u32>,
            /// Treatment of fragments.
            pub fragments: Option<Fragments>,
            $($(#[$own])* pub $key: $type,)*
        }
    };
}

with_keys_of_a_way! {
    /// A link. Each key holds for both directions unless the table of a direction has its own. An empty one is a link as it is.
    pub struct Link {
        /// Treatment of ICMP messages that report a too big packet.
        pub icmp: Option<Icmp>,
        /// From initiator to responder only.
        pub egress: Option<LinkWay>,
        /// From responder to initiator only.
        pub ingress: Option<LinkWay>,
    }
}

with_keys_of_a_way! {
    /// One direction of a [`Link`].
    pub struct LinkWay {}
}

/// How a connection's gateway is chosen out of several.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Choose {
    /// By a hash of its addresses and ports, and of a number that each trial draws anew.
    #[default]
    Connection,
    /// Each new connection takes the next gateway.
    Round,
}

/// Every `every`th packet lets the next `behind` ones overtake it. It waits 100 ms at most.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Reorder {
    /// Distance of the packets that are held back, at least 2.
    pub every: u32,
    /// How many later packets pass, at least 1 and below `every`.
    pub behind: u32,
}

impl Reorder {
    pub(crate) fn validate(self) -> Result<(), String> {
        let Reorder { every, behind } = self;
        if every >= 2 && (1..every).contains(&behind) {
            return Ok(());
        }
        Err(format!("reorder: every {every} behind {behind}; valid are every >= 2, 1 <= behind < every"))
    }
}

/// A router's treatment of fragments.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Fragments {
    /// Those without the header of the transport protocol, which are all but the first, are dropped.
    DropRest,
    /// All are dropped.
    DropAll,
    /// The first comes last.
    Reorder,
}

/// Treatment of ICMP messages that report a too big packet (RFC 792, RFC 4443 section 3.2).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Icmp {
    /// They are neither sent nor forwarded.
    Drop,
}

impl Link {
    /// True if nothing is done to any packet.
    pub fn is_plain(&self) -> bool {
        self.icmp.is_none() && self.ways().iter().all(|way| *way == LinkWay::default())
    }

    /// Egress and ingress as they are in effect.
    pub fn ways(&self) -> [LinkWay; 2] {
        let both = LinkWay {
            delay: self.delay,
            jitter: self.jitter,
            delays: self.delays.clone(),
            choose: self.choose,
            loss: self.loss,
            loss_every: self.loss_every,
            reorder: self.reorder,
            rate: self.rate,
            mtu: self.mtu,
            fragments: self.fragments,
        };
        [&self.egress, &self.ingress].map(|own| match own {
            Some(own) => own.over(&both),
            None => both.clone(),
        })
    }

    /// Values out of range or contradicting each other: one message that names the key and what is valid. `mtu` is the
    /// lab's, bytes.
    ///
    /// # Errors
    /// The first that is wrong.
    pub fn validate(&self, family: Family, mtu: u32) -> Result<(), Error> {
        let [egress, ingress] = self.ways();
        egress.validate(family, mtu).and_then(|()| ingress.validate(family, mtu)).map_err(Error::Option)
    }

    /// Describes the link for people: `waits 0.5 ms, loses 1 %`. Empty for a plain link.
    pub fn describe(&self) -> String {
        let [egress, ingress] = self.ways();
        let icmp = self.icmp.map(|Icmp::Drop| "messages of packets too big dropped".to_owned());
        let own = |name: &str, way: &LinkWay| {
            let words = way.describe();
            (!words.is_empty()).then(|| format!("{name} {words}"))
        };
        let ways = if egress == ingress {
            vec![own("both ways", &egress)]
        } else {
            vec![own("egress", &egress), own("ingress", &ingress)]
        };
        ways.into_iter().chain([icmp]).flatten().collect::<Vec<_>>().join("; ")
    }
}

impl LinkWay {
    /// This direction's own keys, and for what it does not say those of both.
    fn over(&self, both: &LinkWay) -> LinkWay {
        let waits = self.delay.is_some() || !self.delays.is_empty();
        let loses = self.loss.is_some() || self.loss_every.is_some();
        LinkWay {
            delay: if waits { self.delay } else { both.delay },
            jitter: self.jitter.or(if waits { None } else { both.jitter }),
            delays: if waits { self.delays.clone() } else { both.delays.clone() },
            choose: self.choose.or(if waits { None } else { both.choose }),
            loss: if loses { self.loss } else { both.loss },
            loss_every: if loses { self.loss_every } else { both.loss_every },
            reorder: self.reorder.or(both.reorder),
            rate: self.rate.or(both.rate),
            mtu: self.mtu.or(both.mtu),
            fragments: self.fragments.or(both.fragments),
        }
    }

    fn validate(&self, family: Family, lab_mtu: u32) -> Result<(), String> {
        self.validate_waits()?;
        if self.loss.is_some() && self.loss_every.is_some() {
            return Err("loss-every: `loss` and `loss-every` exclude each other".to_owned());
        }
        if let Some(loss) = self.loss.filter(|loss| !(LEAST_LOSS..=1.0).contains(loss)) {
            return Err(format!("loss = {loss}: valid is a share from {LEAST_LOSS} to 1 (0.01 is 1 %)"));
        }
        if let Some(every) = self.loss_every.filter(|every| *every < 2) {
            return Err(format!("loss-every = {every}: valid is 2 or more"));
        }
        if let Some(reorder) = self.reorder {
            reorder.validate()?;
        }
        if let Some(rate) = self.rate.filter(|rate| !(RATES.0..=RATES.1).contains(rate)) {
            return Err(format!("rate = \"{rate}\": valid is \"{}\" to \"{}\"", RATES.0, RATES.1));
        }
        // RFC 791 and RFC 8200 section 5: what every link must carry.
        let least = if family == Family::Ipv4 { 68 } else { 1280 };
        if let Some(mtu) = self.mtu.filter(|mtu| !(least..=lab_mtu).contains(mtu)) {
            return Err(format!("mtu = {mtu}: valid are {least} to {lab_mtu}, the mtu of the lab's links"));
        }
        Ok(())
    }

    fn validate_waits(&self) -> Result<(), String> {
        let waits = self.delays.iter().chain(&self.delay);
        if self.delay.is_some() && !self.delays.is_empty() {
            return Err("delays: `delay` and `delays` exclude each other".to_owned());
        }
        if !self.delays.is_empty() && !(2..=MOST_DELAYS).contains(&self.delays.len()) {
            return Err(format!("delays: {} of them; valid is 2 to {MOST_DELAYS}", self.delays.len()));
        }
        if self.choose.is_some() && self.delays.is_empty() {
            return Err("choose: there are no `delays` to choose from".to_owned());
        }
        if let Some(wait) = waits.clone().find(|wait| wait.0 > LONGEST) {
            let key = if self.delay.is_some() { "delay" } else { "delays" };
            return Err(format!("{key}: \"{wait}\" is above {LONGEST:?}"));
        }
        let least = waits.min().copied().unwrap_or(Wait(Duration::ZERO));
        match self.jitter {
            Some(jitter) if jitter > least => {
                Err(format!("jitter = \"{jitter}\": valid is up to the delay, here \"{least}\""))
            }
            _ => Ok(()),
        }
    }

    /// Describes the effects for people.
    pub(crate) fn describe(&self) -> String {
        self.words().join(", ")
    }

    /// Lists the effects in the order in which they apply on the way through the router.
    fn words(&self) -> Vec<String> {
        let mut words = Vec::new();
        let mut say = |text: Option<String>| words.extend(text);
        say(self.fragments.map(|fragments| match fragments {
            Fragments::DropRest => "drops fragments but the first".to_owned(),
            Fragments::DropAll => "drops fragments".to_owned(),
            Fragments::Reorder => "sends the first fragment last".to_owned(),
        }));
        say(self.loss.map(|loss| format!("loses {} %", loss * 100.0)));
        say(self.loss_every.map(|every| format!("loses 1 of {every} packets")));
        let jitter = self.jitter.map(|jitter| format!(" ± {jitter}")).unwrap_or_default();
        say(self.delay.map(|delay| format!("waits {delay}{jitter}")));
        if !self.delays.is_empty() {
            let delays: Vec<String> = self.delays.iter().map(Wait::to_string).collect();
            let by = match self.choose.unwrap_or_default() {
                Choose::Connection => "by hash of the connection",
                Choose::Round => "in turn for each connection",
            };
            say(Some(format!("waits {}{jitter} {by}", delays.join(" or "))));
        }
        say(self.reorder.map(|r| format!("lets {} packets overtake each {}th", r.behind, r.every)));
        say(self.mtu.map(|mtu| format!("MTU {mtu}")));
        say(self.rate.map(|rate| format!("at most {rate}/s")));
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn link(json: &str) -> Link {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn a_direction_s_own_keys_replace_those_of_both() {
        let one = link(
            r#"{"delay": "0.5ms", "jitter": "50us", "loss": 0.01, "mtu": 1400, "icmp": "drop",
                "ingress": {"delays": ["1.8ms", "3.0ms"], "loss-every": 10, "rate": "100mbit"}}"#,
        );
        one.validate(Family::Ipv4, 1500).unwrap();
        let [egress, ingress] = one.ways();
        assert_eq!(
            (egress.delay, egress.loss, egress.mtu),
            (Some(Wait(Duration::from_micros(500))), Some(0.01), Some(1400))
        );
        assert_eq!((ingress.delay, ingress.jitter, ingress.loss), (None, None, None));
        assert_eq!((ingress.delays.len(), ingress.loss_every, ingress.mtu), (2, Some(10), Some(1400)));
        assert_eq!(
            one.describe(),
            "egress loses 1 %, waits 500us ± 50us, MTU 1400; ingress loses 1 of 10 packets, \
             waits 1.8ms or 3ms by hash of the connection, MTU 1400, at most 100mbit/s; messages of packets too big dropped"
        );
        let again: Link = serde_json::from_str(&serde_json::to_string(&one).unwrap()).unwrap();
        assert_eq!(again, one);
    }

    #[test]
    fn a_link_without_anything_is_plain() {
        assert!(Link::default().is_plain());
        assert!(link(r#"{"egress": {}}"#).is_plain());
        assert_eq!(Link::default().describe(), "");
        assert!(!link(r#"{"icmp": "drop"}"#).is_plain());
        assert!(!link(r#"{"ingress": {"loss": 1.0}}"#).is_plain());
    }

    #[test]
    fn mistakes_are_named() {
        for (json, word) in [
            (r#"{"delay": "11s"}"#, "delay: \"11s\" is above 10s"),
            (r#"{"delay": "1ms", "delays": ["1ms", "2ms"]}"#, "exclude each other"),
            (r#"{"delays": ["1ms"]}"#, "delays: 1 of them; valid is 2 to 16"),
            (r#"{"choose": "round"}"#, "choose: there are no `delays`"),
            (r#"{"jitter": "1ms"}"#, "jitter = \"1ms\": valid is up to the delay"),
            (r#"{"delays": ["1ms", "2ms"], "jitter": "1.5ms"}"#, "here \"1ms\""),
            (r#"{"loss": 1.5}"#, "loss = 1.5"),
            (r#"{"loss": 0.0}"#, "loss = 0"),
            (r#"{"loss": 0.1, "loss-every": 3}"#, "exclude each other"),
            (r#"{"ingress": {"loss-every": 1}}"#, "loss-every = 1"),
            (r#"{"reorder": {"every": 4, "behind": 4}}"#, "behind"),
            (r#"{"rate": "1kbit"}"#, "rate = \"1kbit\": valid is \"8kbit\" to \"100gbit\""),
            (r#"{"mtu": 1501}"#, "valid are 68 to 1500"),
            (r#"{"mtu": 67}"#, "mtu = 67"),
        ] {
            let message = link(json).validate(Family::Ipv4, 1500).unwrap_err().to_string();
            assert!(message.contains(word), "{json}: {message}");
        }
        let message = link(r#"{"mtu": 1279}"#).validate(Family::Ipv6, 1500).unwrap_err().to_string();
        assert!(message.contains("1280 to 1500"), "{message}");
        for (json, word) in [
            (r#"{"delay": "five"}"#, "is not a wait like"),
            (r#"{"delay": 5}"#, "expected a wait like"),
            (r#"{"fragments": "drop"}"#, "drop-rest"),
            (r#"{"egress": {"icmp": "drop"}}"#, "icmp"),
        ] {
            let message = serde_json::from_str::<Link>(json).unwrap_err().to_string();
            assert!(message.contains(word), "{json}: {message}");
        }
    }
}
