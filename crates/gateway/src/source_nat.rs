//! Translation of the source with connection tracking: what its variants have in common, whichever program sets it up.

use std::net::IpAddr;

use crate::extra_rules::{ExtraRules, Filter};
use crate::options::{Allocation, FastpathOption, MssClamp, Timeouts};
use crate::{
    Carried, Error, Expectation, Journal, Place, Role, Topology, Variant, fastpath, iptables, nft, routed,
};

/// The options that all of them have, as their scenario sets them.
pub(crate) struct Options<'a> {
    pub(crate) allocation: Allocation,
    pub(crate) mss_clamp: MssClamp,
    pub(crate) timeouts: &'a Timeouts,
    pub(crate) extra: &'a ExtraRules,
    pub(crate) fastpath: FastpathOption,
}

/// The options of a variant that has all of them as fields.
macro_rules! options_of {
    ($variant:expr) => {
        $crate::source_nat::Options {
            allocation: $crate::options::Allocation {
                random: $variant.random,
                fully_random: $variant.fully_random,
                persistent: $variant.persistent,
                ports: $variant.ports,
            },
            mss_clamp: $variant.mss_clamp,
            timeouts: &$variant.conntrack_timeouts,
            extra: &$variant.extra,
            fastpath: $variant.fastpath,
        }
    };
}
pub(crate) use options_of;

impl Options<'_> {
    fn validate(&self) -> Result<(), String> {
        self.allocation.validate()?;
        self.mss_clamp.validate()?;
        self.fastpath.validate()?;
        self.timeouts.validate()
    }

    /// One line for people: what it is, then the options that differ from the default.
    fn describe(&self, what: String) -> String {
        let flags = [
            (self.allocation.random, "random"),
            (self.allocation.fully_random, "fully random"),
            (self.allocation.persistent, "persistent"),
        ];
        let mut parts = vec![what];
        parts.extend(flags.iter().filter(|(on, _)| *on).map(|(_, name)| (*name).to_owned()));
        parts.extend(self.allocation.ports.map(|p| format!("ports {p}")));
        parts.extend(self.mss_clamp.is_on().then(|| self.mss_clamp.to_string()));
        parts.extend((!self.timeouts.0.is_empty()).then(|| self.timeouts.to_string()));
        parts.extend(self.extra.describe());
        parts.extend(self.fastpath.describe());
        parts.join(", ")
    }
}

/// The parts that differ from variant to variant.
pub(crate) trait SourceNat {
    /// The kind as written in scenarios.
    const KIND: &'static str;

    /// Describes the variant for people, without its options.
    fn what(&self) -> String;

    fn options(&self) -> Options<'_>;

    /// Returns the back end that holds its rules.
    fn filter(&self) -> Filter {
        Filter::Nft
    }

    /// The address that the responder sees.
    fn translated(&self, place: &Place) -> IpAddr {
        place.gateway_outside
    }

    /// Set the rules that translate, and those that clamp the maximum segment size.
    fn set_rules(&self, place: &Place, journal: &mut Journal) -> Result<(), Error>;
}

impl<T: SourceNat> Variant for T {
    fn kind(&self) -> &'static str {
        T::KIND
    }
    fn describe(&self) -> String {
        self.options().describe(self.what())
    }
    fn validate(&self) -> Result<(), String> {
        self.options().validate()?;
        self.options().extra.validate(self.filter())
    }
    fn topology(&self) -> Topology {
        Topology::Routed
    }
    fn programs(&self, role: Role) -> Vec<String> {
        if role != Role::Gateway {
            return Vec::new();
        }
        let programs = match self.filter() {
            Filter::Nft => vec![nft::PROGRAM.to_owned()],
            Filter::Iptables(backend) => backend.programs(),
        };
        self.options().extra.programs_beside(programs, self.filter())
    }
    fn apply(&self, role: Role, place: &Place, journal: &mut Journal) -> Result<(), Error> {
        if role != Role::Gateway {
            return Ok(());
        }
        self.set_rules(place, journal)?;
        self.options().extra.apply(self.filter(), place, journal)?;
        self.options().timeouts.apply(journal)?;
        routed::forward(place, journal)?;
        fastpath::begin(self.options().fastpath, place, journal)
    }
    fn verify(&self, role: Role, place: &Place) -> Result<(), Error> {
        if role != Role::Gateway {
            return Ok(());
        }
        if self.has_fastpath() {
            fastpath::verify(place)?;
        }
        self.options().extra.verify(self.filter(), place)
    }
    fn expectation(&self, place: &Place) -> Expectation {
        let seen_source = Some(self.translated(place));
        Expectation { target: place.responder, seen_source, hops: Some(1), ports: None }
    }
    fn counter(&self, place: &Place) -> Result<Option<u64>, Error> {
        let translated = match self.filter() {
            Filter::Nft => nft::counter(place, nft::SOURCE_CHAIN),
            Filter::Iptables(backend) => iptables::counter(backend, place, "MASQUERADE"),
        };
        translated.map(Some)
    }
    fn has_fastpath(&self) -> bool {
        self.options().fastpath.is_on()
    }
    fn carried(&self, place: &Place) -> Result<Option<Carried>, Error> {
        self.has_fastpath().then(|| fastpath::carried(place)).transpose()
    }
}
