//! A port of a container, published on its host by a fixed mapping in BPF, without connection tracking.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use weir_netlink::Rtnetlink;
use weir_publish::{Links, Mapping, Protocol, Publish};

use crate::docker_publish::{DockerPublish, Engine, PublishBackend};
use crate::held::{Held, must_be_attached};
use crate::journal::Change;
use crate::{Error, Expectation, Journal, Place, Role, Topology, Variant, routed};

/// As `docker-publish`, with weir's BPF programs before its rules: they translate the published ports, and leave to the rules
/// what is not plain (fragments, IP options, what the host itself or another container sends).
///
/// Translated packets are in no table of connections, and pass no rule of the FORWARD chain.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct BpfPublish {
    /// Who makes the rules below.
    pub engine: Engine,
    /// The tool that writes the rules below.
    pub backend: PublishBackend,
    /// The host's end of the container's link. Without it, the only port that the bridge has.
    pub container_interface: Option<String>,
}

/// Mappings in effect, by the tag of their place: they live as long as this process holds them.
pub(crate) static HELD: Held<Publish> = Held::new();

fn refused(error: weir_publish::Error) -> Error {
    match error {
        weir_publish::Error::System(e) => Error::System(e),
        other => Error::Unsupported(format!("bpf-publish: {other}")),
    }
}

impl BpfPublish {
    fn rules(&self) -> DockerPublish {
        DockerPublish { engine: self.engine, backend: self.backend, ..DockerPublish::default() }
    }

    /// The name of the host's end of the container's link.
    fn container_interface(&self, place: &Place) -> Result<String, Error> {
        if let Some(name) = &self.container_interface {
            return Ok(name.clone());
        }
        let bridge = &place.outside_interface;
        let links = Rtnetlink::open()?.links()?;
        let index = links.iter().find(|l| l.name == *bridge).map(|l| l.index);
        let mut ports = links.iter().filter(|l| l.master.is_some() && l.master == index);
        match (ports.next(), ports.count()) {
            (Some(only), 0) => Ok(only.name.clone()),
            (None, _) => Err(Error::Unsupported(format!("bpf-publish: nothing is plugged into {bridge}"))),
            (Some(_), others) => Err(Error::Unsupported(format!(
                "bpf-publish: {} links are plugged into {bridge}: say in container-interface which one is the container's",
                others + 1
            ))),
        }
    }

    fn mappings(place: &Place) -> Vec<Mapping> {
        let both = place.ports.clone().flat_map(|port| [(Protocol::Tcp, port), (Protocol::Udp, port)]);
        both.map(|(protocol, port)| Mapping {
            protocol,
            published: (place.gateway_inside, port).into(),
            container: (place.responder, port).into(),
        })
        .collect()
    }
}

impl Variant for BpfPublish {
    fn kind(&self) -> &'static str {
        "bpf-publish"
    }

    fn describe(&self) -> String {
        format!("published container port, by weir's BPF programs; below them: {}", self.rules().describe())
    }

    fn validate(&self) -> Result<(), String> {
        match &self.container_interface {
            // IFNAMSIZ without the final zero.
            Some(name) if name.is_empty() || name.len() > 15 => Err(format!(
                "container-interface = \"{}\": a name of an interface has 1 to 15 bytes",
                name.escape_default()
            )),
            _ => self.rules().validate(),
        }
    }

    fn topology(&self) -> Topology {
        Topology::Bridged
    }

    fn programs(&self, role: Role) -> Vec<String> {
        self.rules().programs(role)
    }

    fn apply(&self, role: Role, place: &Place, journal: &mut Journal) -> Result<(), Error> {
        self.rules().apply(role, place, journal)?;
        if role != Role::Gateway {
            return Ok(());
        }
        routed::forward_by_bpf(place, &[&place.outside_interface], journal)?;
        let container = self.container_interface(place)?;
        let links = Links::find(&place.inside_interface, &container).map_err(refused)?;
        let mut publish = Publish::load(&BpfPublish::mappings(place), links).map_err(refused)?;
        // Only this function knows of the mappings before they are in the journal; dropping them removes them.
        journal.record(Change::Publish { tag: place.tag.clone() })?;
        publish.attach().map_err(refused)?;
        HELD.add(place, publish);
        Ok(())
    }

    fn verify(&self, role: Role, place: &Place) -> Result<(), Error> {
        if role != Role::Gateway {
            return Ok(());
        }
        self.rules().verify(role, place)?;
        let attached = HELD.with(&place.tag, Publish::is_attached).transpose().map_err(refused)?;
        must_be_attached(self.kind(), attached)
    }

    fn expectation(&self, place: &Place) -> Expectation {
        self.rules().expectation(place)
    }

    /// Packets that the programs translated: the rules below count none of them.
    fn counter(&self, place: &Place) -> Result<Option<u64>, Error> {
        let status = HELD.with(&place.tag, Publish::status).transpose().map_err(refused)?;
        Ok(status.map(|status| status.translated()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::tests::{place_v4, place_v6};

    #[test]
    fn a_mapping_per_port_and_protocol() {
        let place = Place { ports: 5001..=5002, ..place_v4() };
        let texts: Vec<String> = BpfPublish::mappings(&place).iter().map(ToString::to_string).collect();
        assert_eq!(
            texts,
            [
                "198.18.0.1:5001/tcp -> 198.18.1.2:5001",
                "198.18.0.1:5001/udp -> 198.18.1.2:5001",
                "198.18.0.1:5002/tcp -> 198.18.1.2:5002",
                "198.18.0.1:5002/udp -> 198.18.1.2:5002",
            ]
        );
        assert_eq!(BpfPublish::mappings(&place_v6()).len(), 6);
    }

    #[test]
    fn a_name_that_no_interface_has_is_refused() {
        let named =
            |name: &str| BpfPublish { container_interface: Some(name.into()), ..BpfPublish::default() };
        assert!(named("veth0").validate().is_ok());
        assert!(named("").validate().unwrap_err().contains("1 to 15"));
        assert!(named("sixteen-is-much-").validate().unwrap_err().contains("1 to 15"));
        let both =
            BpfPublish { engine: Engine::Docker, backend: PublishBackend::Nft, ..BpfPublish::default() };
        assert!(both.validate().unwrap_err().contains("backend"));
    }
}
