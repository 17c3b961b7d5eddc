//! The user's own commands.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use weir_text::order;

use crate::{Error, Expectation, Family, Journal, Place, Role, Topology, Variant, command};

/// Commands of the user put the hop into effect, prove it and remove it.
///
/// Each is run by `sh -c` as the user of the agent, in the namespace of its host, with the place in its environment:
/// `WEIR_ROLE` (`initiator`, `gateway`, `responder`), `WEIR_FAMILY` (`ipv4`, `ipv6`), `WEIR_INSIDE_INTERFACE`,
/// `WEIR_OUTSIDE_INTERFACE`, `WEIR_INITIATOR`, `WEIR_GATEWAY_INSIDE`, `WEIR_GATEWAY_OUTSIDE`, `WEIR_SPARE_OUTSIDE` (empty
/// if there is none), `WEIR_RESPONDER`, `WEIR_FIRST_PORT`, `WEIR_LAST_PORT`, `WEIR_TAG` (a short unique word for names).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Custom {
    /// Its description, for people.
    pub describe: String,
    /// Commands per role that put it into effect, in order. The first that fails ends it, and `remove` is run.
    pub apply: BTreeMap<Role, Vec<String>>,
    /// Commands per role that must succeed when it is in effect.
    pub verify: BTreeMap<Role, Vec<String>>,
    /// Commands per role that revert it. All of them run, also after an `apply` that stopped half-way, so they must tolerate
    /// missing objects.
    pub remove: BTreeMap<Role, Vec<String>>,
    /// The hosts and links it needs.
    pub topology: CustomTopology,
    /// The address to which the initiator sends; by default the responder's.
    pub target: Option<IpAddr>,
    /// The source address that the responder must see.
    pub seen_source: SeenSource,
    /// How long each command may take, s. A listing of the host's rules may take as long, and at least 20 s.
    pub time_limit_s: u32,
}

impl Default for Custom {
    fn default() -> Self {
        Custom {
            describe: String::new(),
            apply: BTreeMap::new(),
            verify: BTreeMap::new(),
            remove: BTreeMap::new(),
            topology: CustomTopology::default(),
            target: None,
            seen_source: SeenSource::default(),
            time_limit_s: 30,
        }
    }
}

/// Hosts and links of a custom variant.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum CustomTopology {
    /// Initiator and responder on one link.
    Direct,
    /// A gateway between two links.
    #[default]
    Routed,
    /// A gateway with the responder behind a bridge.
    Bridged,
}

/// Which source address the responder must see.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum SeenSource {
    /// The initiator's: nothing is translated.
    Inside,
    /// The gateway's on the outside.
    Outside,
    /// Any: nothing is promised.
    #[default]
    Any,
}

impl Custom {
    fn of(commands: &BTreeMap<Role, Vec<String>>, role: Role) -> &[String] {
        commands.get(&role).map_or(&[], Vec::as_slice)
    }

    fn limit(&self) -> Duration {
        Duration::from_secs(self.time_limit_s.into())
    }
}

impl Variant for Custom {
    fn kind(&self) -> &'static str {
        "custom"
    }
    fn describe(&self) -> String {
        if self.describe.is_empty() { "custom commands".into() } else { self.describe.clone() }
    }
    fn validate(&self) -> Result<(), String> {
        if self.apply.values().all(Vec::is_empty) {
            return Err("apply: a custom variant needs at least one command, e.g. \
                        apply.gateway = [\"nft -f my.nft\"]; for an untouched path use kind = \"path\""
                .into());
        }
        for (role, commands) in &self.apply {
            if !commands.is_empty() && Custom::of(&self.remove, *role).is_empty() {
                return Err(format!(
                    "remove: apply changes the {} and nothing takes it back; give remove.{0} (`[\"true\"]` if there is \
                     nothing to take back)",
                    role.name()
                ));
            }
        }
        if !(1..=600).contains(&self.time_limit_s) {
            return Err(format!("time-limit-s = {}: expected 1 to 600", self.time_limit_s));
        }
        Ok(())
    }
    fn topology(&self) -> Topology {
        match self.topology {
            CustomTopology::Direct => Topology::Direct,
            CustomTopology::Routed => Topology::Routed,
            CustomTopology::Bridged => Topology::Bridged,
        }
    }
    fn programs(&self, _: Role) -> Vec<String> {
        vec!["sh".into()]
    }
    fn apply(&self, role: Role, place: &Place, journal: &mut Journal) -> Result<(), Error> {
        let (apply, remove) = (Custom::of(&self.apply, role), Custom::of(&self.remove, role));
        journal.commands(role, apply, remove, &environment(role, place), self.limit())
    }
    fn verify(&self, role: Role, place: &Place) -> Result<(), Error> {
        let environment = environment(role, place);
        Custom::of(&self.verify, role)
            .iter()
            .try_for_each(|line| command::shell(line, &environment, self.limit()).map(drop))
    }
    fn patience(&self, role: Role) -> Duration {
        let of = |commands| Custom::of(commands, role).len();
        let commands = of(&self.apply) + of(&self.verify) + of(&self.remove);
        // The rules are listed before and after apply, and before and after remove.
        let listings = if commands == 0 { 0 } else { 4 };
        Duration::from_secs(90) + self.limit() * u32::try_from(commands + listings).unwrap_or(u32::MAX)
    }
    fn expectation(&self, place: &Place) -> Expectation {
        let seen_source = match self.seen_source {
            SeenSource::Inside => Some(place.initiator),
            SeenSource::Outside => Some(place.gateway_outside),
            SeenSource::Any => None,
        };
        Expectation { target: self.target.unwrap_or(place.responder), seen_source, hops: None, ports: None }
    }
}

/// The place as environment variables.
fn environment(role: Role, place: &Place) -> BTreeMap<String, String> {
    let family = match place.family {
        Family::Ipv4 => "ipv4",
        Family::Ipv6 => "ipv6",
    };
    let named = [
        ("ROLE", role.name().to_owned()),
        ("FAMILY", family.to_owned()),
        ("INSIDE_INTERFACE", place.inside_interface.clone()),
        ("OUTSIDE_INTERFACE", place.outside_interface.clone()),
        ("INITIATOR", place.initiator.to_string()),
        ("GATEWAY_INSIDE", place.gateway_inside.to_string()),
        ("GATEWAY_OUTSIDE", place.gateway_outside.to_string()),
        ("SPARE_OUTSIDE", place.spare_outside.map(|a| a.to_string()).unwrap_or_default()),
        ("RESPONDER", place.responder.to_string()),
        ("FIRST_PORT", place.ports.start().to_string()),
        ("LAST_PORT", place.ports.end().to_string()),
        ("TAG", place.tag.clone()),
    ];
    order::map(named.into_iter().map(|(name, value)| (format!("WEIR_{name}"), value)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::tests::place_v4;

    fn custom(json: &str) -> Custom {
        serde_json::from_str(json).unwrap()
    }

    #[test]
    fn what_is_applied_must_be_removable() {
        assert!(Custom::default().validate().unwrap_err().contains("kind = \"path\""));
        assert!(
            custom(r#"{"apply": {"gateway": ["true"]}}"#).validate().unwrap_err().contains("remove.gateway")
        );
        assert!(
            custom(r#"{"apply": {"gateway": ["true"]}, "remove": {"gateway": ["true"]}}"#).validate().is_ok()
        );
    }

    #[test]
    fn commands_see_the_place() {
        let env = environment(Role::Gateway, &place_v4());
        let text = "echo $WEIR_ROLE $WEIR_FAMILY $WEIR_INITIATOR $WEIR_FIRST_PORT $WEIR_TAG";
        let out = command::shell(text, &env, Duration::from_secs(5)).unwrap();
        assert_eq!(out.trim(), "gateway ipv4 198.18.0.2 5001 t1");
    }

    #[test]
    fn callers_wait_as_long_as_the_commands_may_take() {
        let slow = custom(
            r#"{"apply": {"gateway": ["a", "b"]}, "remove": {"gateway": ["c"]}, "time-limit-s": 600}"#,
        );
        assert!(slow.patience(Role::Gateway) >= Duration::from_secs(3 * 600));
        assert_eq!(slow.patience(Role::Initiator), Custom::default().patience(Role::Gateway));
    }

    #[test]
    fn a_command_that_does_not_end_is_stopped() {
        let slow = custom(
            r#"{"apply": {"gateway": ["sleep 60"]}, "remove": {"gateway": ["true"]}, "time-limit-s": 1}"#,
        );
        let limit = slow.limit();
        let error = command::shell("sleep 60", &BTreeMap::new(), limit).unwrap_err();
        assert!(error.to_string().contains("still running"), "{error}");
    }
}
