//! A port of a container, published on its host, with the rules that a container engine makes.

use std::net::SocketAddr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::iptables::{self, Backend};
use crate::nft::{self, Table};
use crate::options::FastpathOption;
use crate::tuned::{self, Tuning};
use crate::{
    Carried, Error, Expectation, Family, Journal, Place, Role, Topology, Variant, docker_engine, fastpath,
    routed,
};

/// The responder is a container behind a bridge on the gateway; its ports are published on the gateway's inside address.
///
/// The rules are those of Docker Engine: a DNAT rule and a filter rule per port, a chain for the user, isolation between
/// bridges, masquerading for what the container itself opens. The responder sees the initiator's own address.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct DockerPublish {
    /// Who makes the rules.
    pub engine: Engine,
    /// The tool that writes the rules.
    pub backend: PublishBackend,
    /// Profiles by which the gateway is tuned afterwards, by `weir tune apply` and `weir tune confirm` themselves; the end of the
    /// variant is `weir tune rollback`.
    pub tuned: Vec<Tuning>,
    /// Carry established connections by weir's BPF flow table beside these rules: `true`, `"xdp"` for in drivers, too, or a
    /// table `{ hook = "xdp", packets = 1 }`.
    pub fastpath: FastpathOption,
}

/// Who makes the rules of a published port.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Engine {
    /// Weir, as the engine makes them.
    #[default]
    Rules,
    /// A real Docker Engine, started for the purpose and stopped afterwards. IPv4 only.
    Docker,
}

/// The tool that writes the rules of a published port.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum PublishBackend {
    /// iptables on nf_tables, what engines use by default.
    #[default]
    Iptables,
    /// nft, as Docker Engine 29 can.
    Nft,
}

/// The nft chain with the rules that translate.
const CHAIN: &str = "publish";

/// Engines make rules per port; a thousand of them take seconds to load and measure the list, not the hop.
const MAX_PORTS: usize = 256;

const PROTOCOLS: [&str; 2] = ["tcp", "udp"];

impl DockerPublish {
    fn apply_iptables(place: &Place, journal: &mut Journal) -> Result<(), Error> {
        let program = Backend::NfTables.program(place.family);
        Backend::NfTables.probe(place.family)?;
        let chains = Chains::of(place);
        journal.iptables_chains(program, "nat", &chains.nat(place))?;
        journal.iptables_chains(program, "filter", &chains.filter(place))?;
        for (table, chain, rules) in chains.jumps(place) {
            let rules: Vec<Vec<String>> = rules
                .iter()
                .map(|(matching, target)| {
                    iptables::words(matching)
                        .chain(iptables::comment(place))
                        .chain(iptables::words(target))
                        .collect()
                })
                .collect();
            iptables::insert(journal, program, table, chain, &rules)?;
        }
        Ok(())
    }

    fn table(place: &Place) -> Table {
        let Place { outside_interface: bridge, gateway_inside: published, responder, .. } = place;
        let (ip, loopback) = (nft::family(place), loopback(place));
        let mut publish = vec![format!("iifname \"{bridge}\" return")];
        let mut forward = vec![
            format!("oifname \"{bridge}\" ct state established,related accept"),
            format!("iifname \"{bridge}\" accept"),
        ];
        for (protocol, port) in published_ports(place) {
            let to = SocketAddr::new(*responder, port);
            publish.push(format!("{ip} daddr {published} {protocol} dport {port} counter dnat to {to}"));
            forward
                .push(format!("oifname \"{bridge}\" {ip} daddr {responder} {protocol} dport {port} accept"));
        }
        let local = "fib daddr type local";
        Table::new(place)
            .chain(CHAIN, publish)
            .base("dstnat", "nat hook prerouting priority dstnat", vec![format!("{local} jump {CHAIN}")])
            .base(
                "output",
                "nat hook output priority -100",
                vec![format!("{local} {ip} daddr != {loopback} jump {CHAIN}")],
            )
            .base(
                "srcnat",
                "nat hook postrouting priority srcnat",
                vec![
                    format!("oifname != \"{bridge}\" {ip} saddr {responder} masquerade"),
                    format!("{ip} saddr {responder} {ip} daddr {responder} masquerade"),
                ],
            )
            .base("forward", "filter hook forward priority filter", forward)
    }
}

impl Variant for DockerPublish {
    fn kind(&self) -> &'static str {
        "docker-publish"
    }
    fn describe(&self) -> String {
        let rules = match self.backend {
            PublishBackend::Iptables => "iptables",
            PublishBackend::Nft => "nft",
        };
        let published = match self.engine {
            Engine::Rules => format!("published container port, an engine's rules by {rules}"),
            Engine::Docker => "published container port, by Docker Engine".to_owned(),
        };
        let published = match self.fastpath.describe() {
            Some(how) => format!("{published}, {how}"),
            None => published,
        };
        let profiles: Vec<&str> = self.tuned.iter().map(|tuning| tuning.profile()).collect();
        if profiles.is_empty() {
            published
        } else {
            format!("{published}, weir tune: {}", profiles.join(", "))
        }
    }
    fn validate(&self) -> Result<(), String> {
        self.fastpath.validate()?;
        if let Some(twice) = self.tuned.iter().enumerate().find(|(n, one)| self.tuned[..*n].contains(one)) {
            return Err(format!("tuned: {} stands there twice", twice.1.profile()));
        }
        if self.engine == Engine::Docker && self.backend == PublishBackend::Nft {
            return Err("backend: engine = \"docker\" chooses by itself; leave backend out".into());
        }
        if self.fastpath.is_by_xdp() {
            return Err("fastpath = \"xdp\": the bridge of the containers has no driver with XDP".into());
        }
        if self.fastpath.is_on() && !self.tuned.is_empty() {
            return Err(
                "fastpath: the programs of `tuned` carry the published ports already; leave one out".into()
            );
        }
        Ok(())
    }
    fn topology(&self) -> Topology {
        Topology::Bridged
    }
    fn programs(&self, role: Role) -> Vec<String> {
        let mut programs = match (role, self.backend) {
            (Role::Gateway, PublishBackend::Iptables) => {
                let mut programs = Backend::NfTables.programs();
                programs.extend(["iptables-nft-restore", "ip6tables-nft-restore"].map(str::to_owned));
                if self.engine == Engine::Docker {
                    programs.extend(docker_engine::PROGRAMS.map(str::to_owned));
                }
                programs
            }
            (Role::Gateway, PublishBackend::Nft) => vec![nft::PROGRAM.into()],
            _ => Vec::new(),
        };
        if role == Role::Gateway && !self.tuned.is_empty() {
            programs.extend(tuned::PROGRAMS.map(str::to_owned));
        }
        programs
    }
    fn apply(&self, role: Role, place: &Place, journal: &mut Journal) -> Result<(), Error> {
        if role != Role::Gateway {
            return Ok(());
        }
        if place.ports.len() > MAX_PORTS {
            return Err(Error::Unsupported(format!(
                "docker-publish publishes every port by rules of its own: {} ports are too many, at most {MAX_PORTS}",
                place.ports.len()
            )));
        }
        match (self.engine, self.backend) {
            (Engine::Docker, _) => docker_engine::apply(place, journal)?,
            (Engine::Rules, PublishBackend::Iptables) => DockerPublish::apply_iptables(place, journal)?,
            (Engine::Rules, PublishBackend::Nft) => DockerPublish::table(place).apply(journal)?,
        }
        routed::forward(place, journal)?;
        fastpath::begin(self.fastpath, place, journal)?;
        if self.tuned.is_empty() {
            return Ok(());
        }
        routed::forward_by_bpf(place, &[&place.outside_interface], journal)?;
        tuned::apply(place, &self.tuned, journal)
    }
    fn verify(&self, role: Role, place: &Place) -> Result<(), Error> {
        if role != Role::Gateway {
            return Ok(());
        }
        if self.fastpath.is_on() {
            fastpath::verify(place)?;
        }
        if self.tuned.is_empty() { Ok(()) } else { tuned::verify(place) }
    }
    fn has_fastpath(&self) -> bool {
        self.fastpath.is_on()
    }
    fn carried(&self, place: &Place) -> Result<Option<Carried>, Error> {
        self.fastpath.is_on().then(|| fastpath::carried(place)).transpose()
    }
    fn expectation(&self, place: &Place) -> Expectation {
        Expectation {
            target: place.gateway_inside,
            seen_source: Some(place.initiator),
            hops: Some(1),
            ports: Some(place.ports.clone()),
        }
    }
    fn counter(&self, place: &Place) -> Result<Option<u64>, Error> {
        match self.backend {
            // The rules count none of what the programs translate.
            _ if !self.tuned.is_empty() => tuned::counter(place).map(Some),
            _ if self.engine == Engine::Docker => docker_engine::counter(place).map(Some),
            PublishBackend::Iptables => iptables::counter(Backend::NfTables, place, "DNAT").map(Some),
            PublishBackend::Nft => nft::counter(place, CHAIN).map(Some),
        }
    }
}

/// The engine leaves connections of the host to itself alone.
fn loopback(place: &Place) -> &'static str {
    match place.family {
        Family::Ipv4 => "127.0.0.0/8",
        Family::Ipv6 => "::1/128",
    }
}

fn published_ports(place: &Place) -> impl Iterator<Item = (&'static str, u16)> + '_ {
    place.ports.clone().flat_map(|port| PROTOCOLS.map(|protocol| (protocol, port)))
}

/// Chains of ours and, in brackets, what Docker Engine 20 to 28 calls them.
struct Chains {
    /// DNAT rules (nat DOCKER).
    publish: String,
    /// Hairpin rules; the engine puts them into POSTROUTING itself, here one jump leads to them.
    hairpin: String,
    /// Accepts what is published (filter DOCKER).
    accept: String,
    /// Keeps bridges apart (DOCKER-ISOLATION-STAGE-1).
    isolate_from: String,
    /// Keeps bridges apart (DOCKER-ISOLATION-STAGE-2).
    isolate_to: String,
    /// For the user's rules (DOCKER-USER).
    user: String,
}

type Rules = Vec<(String, String)>;

impl Chains {
    fn of(place: &Place) -> Self {
        let name = |what: &str| format!("weir_{}_{what}", place.tag);
        Chains {
            publish: name("nat"),
            hairpin: name("hairpin"),
            accept: name("accept"),
            isolate_from: name("iso1"),
            isolate_to: name("iso2"),
            user: name("user"),
        }
    }

    /// Chains of the table `nat`, with their rules.
    fn nat(&self, place: &Place) -> Vec<(String, Vec<String>)> {
        let Place { outside_interface: bridge, gateway_inside: published, responder, .. } = place;
        let comment = iptables::comment(place).join(" ");
        let mut publish = vec![format!("-i {bridge} -j RETURN")];
        let mut hairpin = Vec::new();
        for (protocol, port) in published_ports(place) {
            let to = SocketAddr::new(*responder, port);
            publish.push(format!(
                "-d {published} ! -i {bridge} -p {protocol} -m {protocol} --dport {port} {comment} \
                 -j DNAT --to-destination {to}"
            ));
            hairpin.push(format!(
                "-s {responder} -d {responder} -p {protocol} -m {protocol} --dport {port} -j MASQUERADE"
            ));
        }
        vec![(self.publish.clone(), publish), (self.hairpin.clone(), hairpin)]
    }

    /// Chains of the table `filter`; one that is jumped to comes before the one that jumps.
    fn filter(&self, place: &Place) -> Vec<(String, Vec<String>)> {
        let Place { outside_interface: bridge, responder, .. } = place;
        let accept = published_ports(place).map(|(protocol, port)| {
            format!("-d {responder} ! -i {bridge} -o {bridge} -p {protocol} -m {protocol} --dport {port} -j ACCEPT")
        });
        let end = || "-j RETURN".to_owned();
        vec![
            (self.user.clone(), vec![end()]),
            (self.isolate_to.clone(), vec![format!("-o {bridge} -j DROP"), end()]),
            (
                self.isolate_from.clone(),
                vec![format!("-i {bridge} ! -o {bridge} -j {}", self.isolate_to), end()],
            ),
            (self.accept.clone(), accept.collect()),
        ]
    }

    /// Rules for the base chains, as match and target, in the order in which they are met.
    fn jumps(&self, place: &Place) -> [(&'static str, &'static str, Rules); 4] {
        let Place { outside_interface: bridge, responder, .. } = place;
        let rule = |matching: String, target: &str| (matching, format!("-j {target}"));
        let local = "-m addrtype --dst-type LOCAL";
        [
            ("nat", "PREROUTING", vec![rule(local.into(), &self.publish)]),
            ("nat", "OUTPUT", vec![rule(format!("! -d {} {local}", loopback(place)), &self.publish)]),
            (
                "nat",
                "POSTROUTING",
                vec![
                    rule(format!("-s {responder} ! -o {bridge}"), "MASQUERADE"),
                    rule(String::new(), &self.hairpin),
                ],
            ),
            (
                "filter",
                "FORWARD",
                vec![
                    rule(String::new(), &self.user),
                    rule(String::new(), &self.isolate_from),
                    rule(format!("-o {bridge} -m conntrack --ctstate RELATED,ESTABLISHED"), "ACCEPT"),
                    rule(format!("-o {bridge}"), &self.accept),
                    rule(format!("-i {bridge} ! -o {bridge}"), "ACCEPT"),
                    rule(format!("-i {bridge} -o {bridge}"), "ACCEPT"),
                ],
            ),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::place::tests::{place_v4, place_v6};

    #[test]
    fn a_rule_per_port_and_protocol() {
        let place = Place { ports: 5001..=5001, ..place_v4() };
        let chains = Chains::of(&place);
        assert_eq!(
            chains.nat(&place)[0],
            (
                "weir_t1_nat".to_owned(),
                vec![
                    "-i out0 -j RETURN".to_owned(),
                    "-d 198.18.0.1 ! -i out0 -p tcp -m tcp --dport 5001 -m comment --comment weir:t1 \
                     -j DNAT --to-destination 198.18.1.2:5001"
                        .to_owned(),
                    "-d 198.18.0.1 ! -i out0 -p udp -m udp --dport 5001 -m comment --comment weir:t1 \
                     -j DNAT --to-destination 198.18.1.2:5001"
                        .to_owned(),
                ]
            )
        );
        assert_eq!(
            chains.filter(&place)[3].1[0],
            "-d 198.18.1.2 ! -i out0 -o out0 -p tcp -m tcp --dport 5001 -j ACCEPT"
        );
    }

    #[test]
    fn the_nft_table() {
        let place = Place { ports: 5001..=5001, ..place_v6() };
        let script = DockerPublish::table(&place).script();
        let line = "ip6 daddr 2001:2::1 tcp dport 5001 counter dnat to [2001:2:1::2]:5001";
        assert!(script.lines().any(|l| l.trim() == line), "{script}");
        assert_eq!(script.matches(" counter ").count(), 2, "only the rules that translate are counted");
    }

    #[test]
    fn a_tuned_gateway_says_so_and_needs_programs_of_its_own() {
        let tuned: DockerPublish = serde_json::from_str(r#"{"tuned": ["published-ports"]}"#).unwrap();
        assert!(tuned.describe().ends_with("weir tune: published-ports"), "{}", tuned.describe());
        assert!(tuned.programs(Role::Gateway).contains(&"nsenter".to_owned()));
        assert!(!tuned.programs(Role::Responder).contains(&"nsenter".to_owned()));
        assert!(!DockerPublish::default().programs(Role::Gateway).contains(&"nsenter".to_owned()));
        let twice = DockerPublish { tuned: vec![Tuning::PublishedPorts; 2], ..DockerPublish::default() };
        assert!(twice.validate().unwrap_err().contains("published-ports stands there twice"));
        assert!(serde_json::from_str::<DockerPublish>(r#"{"tuned": ["rfc"]}"#).is_err());
    }

    #[test]
    fn too_many_ports_are_refused() {
        let place = Place { ports: 1..=1000, ..place_v4() };
        let error = DockerPublish::default().apply(Role::Gateway, &place, &mut Journal::new()).unwrap_err();
        assert!(error.to_string().contains("at most 256"));
    }
}
