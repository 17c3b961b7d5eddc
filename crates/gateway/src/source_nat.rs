//! Translation of the source with connection tracking: what its variants have in common, whichever program sets it up.

use std::net::IpAddr;

use crate::ballast::{Ballast, Filter};
use crate::options::{Allocation, MssClamp, Timeouts};
use crate::{Error, Expectation, Hop, Journal, Place, Role, Topology, nft, routed};

/// The options that all of them have, as their scenario sets them.
pub(crate) struct Options<'a> {
    pub(crate) allocation: Allocation,
    pub(crate) mss_clamp: MssClamp,
    pub(crate) timeouts: &'a Timeouts,
    pub(crate) ballast: &'a Ballast,
}

impl Options<'_> {
    fn validate(&self) -> Result<(), String> {
        self.allocation.validate()?;
        self.mss_clamp.validate()?;
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
        parts.extend(self.ballast.describe());
        parts.join(", ")
    }
}

/// What is each variant's own.
pub(crate) trait SourceNat {
    /// The kind as written in scenarios.
    const KIND: &'static str;

    /// What it is, in words for people, without its options.
    fn what(&self) -> String;

    fn options(&self) -> Options<'_>;

    /// Where its rules are.
    fn filter(&self) -> Filter {
        Filter::Nft
    }

    /// Programs that the gateway must have.
    fn gateway_programs(&self) -> Vec<String>;

    /// The address that the responder sees.
    fn translated(&self, place: &Place) -> IpAddr {
        place.gateway_outside
    }

    /// Set the rules that translate, and those that clamp the maximum segment size.
    fn set_rules(&self, place: &Place, journal: &mut Journal) -> Result<(), Error>;

    /// Connections that the rules have translated.
    fn translations(&self, place: &Place) -> Result<u64, Error>;
}

impl<T: SourceNat> Hop for T {
    fn kind(&self) -> &'static str {
        T::KIND
    }
    fn describe(&self) -> String {
        self.options().describe(self.what())
    }
    fn validate(&self) -> Result<(), String> {
        self.options().validate()?;
        self.options().ballast.validate(self.filter())
    }
    fn topology(&self) -> Topology {
        Topology::Routed
    }
    fn programs(&self, role: Role) -> Vec<String> {
        if role != Role::Gateway {
            return Vec::new();
        }
        let mut programs = self.gateway_programs();
        let more = self.options().ballast.programs(self.filter());
        programs.extend(more.into_iter().filter(|program| program != nft::PROGRAM));
        programs
    }
    fn apply(&self, role: Role, place: &Place, journal: &mut Journal) -> Result<(), Error> {
        if role != Role::Gateway {
            return Ok(());
        }
        self.set_rules(place, journal)?;
        self.options().ballast.apply(self.filter(), place, journal)?;
        self.options().timeouts.apply(journal)?;
        routed::forward(place, journal)
    }
    fn verify(&self, role: Role, place: &Place) -> Result<(), Error> {
        if role == Role::Gateway { self.options().ballast.verify(self.filter(), place) } else { Ok(()) }
    }
    fn expectation(&self, place: &Place) -> Expectation {
        let seen_source = Some(self.translated(place));
        Expectation { target: place.responder, seen_source, hops: Some(1), ports: None }
    }
    fn counter(&self, place: &Place) -> Result<Option<u64>, Error> {
        self.translations(place).map(Some)
    }
}
