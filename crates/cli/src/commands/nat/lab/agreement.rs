//! Every gateway of the lab as others see it: coturn's client (RFC 5780) and stun-client (RFC 3489), beside the experiments of the
//! lab, `weir nat check --stun` and `weir nat check SERVER`.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::process::Command;
use std::sync::Arc;

use weir_nat::rows::judge::Dependence::{self, Address, AddressAndPort, EndpointIndependent};
use weir_nat::served::ServerEnds;
use weir_nat::stun::{self, UdpExchange};
use weir_nat::table::NatKind;
use weir_nat::{Limits, measure};
use weir_probe::client::{NatCheck, Visit};
use weir_probe::{Config, NatPorts, Server};
use weir_sys::NetNs;
use weir_testkit::{PATIENCE, World, holds, measured, until};

use super::*;
use crate::commands::probe::OWN_PORT;

const PROGRAMS: [&str; 6] = ["ip", "nft", "iptables", "turnserver", "turnutils_natdiscovery", "stun"];
/// Port of coturn's server, and stun-client's choice; the server's other one is the next.
const STUN: u16 = 3_478;
/// Ports of a check by weir's server.
const CHECKS: RangeInclusive<u16> = 9_348..=9_355;

/// Both sides of a gateway, with the addresses of the lab's experiments on hosts whose kernels answer.
struct Hosts<'a> {
    near: &'a NetNs,
    away: &'a NetNs,
    outside: [Ipv4Addr; 2],
    /// Its folder and its way to run programs; no namespaces.
    world: World,
}

/// Results of each of them.
#[derive(Debug)]
struct Views {
    lab: NatKind,
    stun: NatKind,
    served: NatKind,
    /// Mapping and filtering, with all that the client printed.
    coturn: [(Dependence, String); 2],
    /// The last line of stun-client, as it says it and as the lab's experiments would have it.
    classic: [String; 2],
}

impl<'a> Hosts<'a> {
    fn of(site: &'a Site) -> Self {
        let (inside, outside) = addresses(site);
        let outside = outside.map(|address| match address {
            IpAddr::V4(address) => address,
            IpAddr::V6(_) => unreachable!("the lab is of IPv4"),
        });
        let plan = site.addresses();
        let (near, away, gateway) = match site.spec().topology {
            Topology::Bridged => (LabRole::Responder, LabRole::Initiator, plan.gateway_outside),
            _ => (LabRole::Initiator, LabRole::Responder, plan.gateway_inside),
        };
        let [near_interface, away_interface] = [near, away].map(|role| site.interfaces(role).remove(0));
        let [near, away] = [near, away].map(|role| site.host(role).unwrap());
        let hosts = Hosts { near, away, outside, world: World::plain("") };
        let (own, [first, second]) = (inside[0], outside);
        let ip = |host, words: String| hosts.run(host, "ip", &words.split(' ').collect::<Vec<_>>());
        ip(near, format!("address add {own}/24 dev {near_interface}"));
        // One network has both, as their last bytes are 10 and 11.
        ip(near, format!("route add {first}/31 via {gateway} src {own}"));
        ip(away, format!("address add {first}/24 dev {away_interface}"));
        ip(away, format!("address add {second}/24 dev {away_interface}"));
        hosts
    }

    fn command(&self, host: &NetNs, program: &str, args: &[&str]) -> Command {
        let mut command = self.world.command(program);
        command.args(args);
        host.enter_on_spawn(&mut command);
        command
    }

    fn run(&self, host: &NetNs, program: &str, args: &[&str]) -> String {
        let output = self.world.run(self.command(host, program, args));
        output.stdout + &output.stderr
    }

    /// The experiments of `weir nat check --stun`; `None` if there is no answer.
    fn by_stun(&self) -> Option<NatKind> {
        let server = SocketAddr::from((self.outside[0], STUN));
        let seen = self.near.run(|| stun::measure(&mut UdpExchange::default(), server)).unwrap();
        seen.ok().map(|(_, observations)| Table::of(&observations).kind)
    }

    /// The two discoveries of coturn's client.
    fn by_coturn(&self) -> [(Dependence, String); 2] {
        let [server, port] = [self.outside[0].to_string(), STUN.to_string()];
        let class = |flag: &str, what: &str| {
            let text = self.run(self.near, "turnutils_natdiscovery", &[flag, "-p", &port, &server]);
            let words = [
                ("Endpoint Independent", EndpointIndependent),
                ("Address and Port Dependent", AddressAndPort),
                ("Address Dependent", Address),
            ];
            let found = words.iter().find(|(words, _)| text.contains(&format!("{words} {what}!")));
            (found.unwrap_or_else(|| panic!("{flag}: {text}")).1, text)
        };
        [class("-m", "Mapping"), class("-f", "Filtering")]
    }

    /// The line of stun-client that has the kind of NAT.
    fn by_stun_client(&self) -> String {
        let text = self.run(self.near, "stun", &[&self.outside[0].to_string()]);
        let line = text.lines().find_map(|line| line.strip_prefix("Primary: "));
        line.unwrap_or_else(|| panic!("{text}")).trim().to_owned()
    }

    /// The experiments of `weir nat check SERVER`.
    fn by_server(&self) -> NatKind {
        let config = Config { key: None, iperf3: false, iperf3_json: false, log: Arc::new(|_| {}) };
        let at = SocketAddr::new(self.outside[0].into(), OWN_PORT);
        let open = || Server::open(at, weir_probe::Limits::default(), config);
        let ports = NatPorts { addresses: self.outside.map(IpAddr::from).to_vec(), ports: Some(CHECKS) };
        let server = self.away.run(open).unwrap().unwrap().with_nat(ports);
        let stop = Stop::default();
        let check = || {
            let visit = Visit::begin(at, None, &stop).map_err(|e| e.to_string())?;
            let far = NatCheck::open(visit).map_err(|e| e.to_string())?;
            let ends = ServerEnds::new(far, weir_nat::Limits::default(), &stop);
            let seen = ends.and_then(|mut ends| measure(&mut ends, &mut |_| true));
            seen.map(|seen| Table::of(&seen).kind).map_err(|e| e.to_string())
        };
        std::thread::scope(|scope| {
            // Threads of a server are in the namespace of the one that runs it.
            let running = scope.spawn(|| self.away.run(|| server.run(&stop).unwrap()));
            let kind: Result<NatKind, String> = self.near.run(check).unwrap();
            stop.raise();
            running.join().unwrap().unwrap();
            kind.unwrap()
        })
    }
}

/// The line of stun-client for a NAT that does this. It does not look behind a mapping that depends on the destination.
fn expected_of_stun_client(kind: &NatKind, keeps_ports: bool, hairpins: bool) -> String {
    if kind.translates == Some(false) {
        return "Open".to_owned();
    }
    let class = match (kind.mapping, kind.filtering) {
        (Some(EndpointIndependent), Some(EndpointIndependent)) => "Independent Mapping, Independent Filter",
        (Some(EndpointIndependent), Some(Address)) => "Independent Mapping, Address Dependent Filter",
        (Some(EndpointIndependent), Some(AddressAndPort)) => "Independent Mapping, Port Dependent Filter",
        (Some(_), _) => "Dependent Mapping",
        other => panic!("{other:?}"),
    };
    let ports = if keeps_ports { "preserves ports" } else { "random port" };
    format!("{class}, {ports}, {} hairpin", if hairpins { "will" } else { "no" })
}

fn views(site: &Site) -> Views {
    let stop = Stop::default();
    let mut ends = LabEnds::attach(site, Limits::default(), &stop).unwrap();
    let seen = measure(&mut ends, &mut |_| true).unwrap();
    drop(ends);
    let lab = Table::of(&seen).kind;
    let kept = |t: &weir_nat::observed::Translation| t.seen.map(|seen| seen.port()) == Some(t.inside.port());
    let hairpins = seen.udp_hairpin.unwrap().source.is_some();
    let expected = expected_of_stun_client(&lab, seen.udp_ports.unwrap().iter().all(kept), hairpins);
    let hosts = Hosts::of(site);
    let state = ["pidfile", "db"].map(|file| format!("--{file}={}/{file}", hosts.world.folder().display()));
    let [first, second] = hosts.outside.map(|address| address.to_string());
    let mut words = vec!["--stun-only", "--no-cli", "--no-tls", "--no-dtls", "--no-tcp", "--log-file=stdout"];
    words.extend(["-c", "/dev/null", "-L", &first, "-L", &second, &state[0], &state[1]]);
    let _server = hosts.world.start("turnserver", hosts.command(hosts.away, "turnserver", &words));
    let stun = until("the STUN server answers", PATIENCE, || hosts.by_stun());
    let coturn = hosts.by_coturn();
    let classic = [hosts.by_stun_client(), expected];
    Views { lab, stun, served: hosts.by_server(), coturn, classic }
}

/// Everyone sees every gateway alike. Tools wait for a second or less in places.
fn all_agree() {
    let all: Vec<LabGateway> =
        LabGateway::value_variants().iter().copied().filter(|which| which.is_of(false)).collect();
    let specs: Vec<SiteSpec> = all.iter().map(|which| site_of(*which)).collect();
    let name = format!("test-nat-agreement-{}", std::process::id());
    let lab = Lab::build(&name, &LabOptions::default(), &specs).unwrap();
    let results: Vec<Result<Views, Failure>> = std::thread::scope(|scope| {
        let threads: Vec<_> = (lab.sites().iter().zip(&all))
            .map(|(site, which)| {
                scope.spawn(move || with_gateway(site, *which, || views(site)).map(|(seen, _)| seen))
            })
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).collect()
    });
    let mut classics = Vec::new();
    for (which, result) in all.iter().zip(results) {
        let views = match result {
            Ok(views) => views,
            Err(Failure::Told { code: MISSING, message }) => {
                println!("SKIP: {message}");
                continue;
            }
            Err(Failure::Told { message, .. }) => panic!("{message}"),
            Err(Failure::Silent(code)) => panic!("{}: {code}", which.name()),
        };
        let name = which.name();
        assert_eq!(views.lab, views.stun, "{name}: {views:#?}");
        assert_eq!(views.lab, views.served, "{name}: {views:#?}");
        let [(mapping, seen), (filtering, more)] = &views.coturn;
        assert_eq!(
            (views.lab.mapping, views.lab.filtering),
            (Some(*mapping), Some(*filtering)),
            "{name}: {seen}{more}"
        );
        assert_eq!(views.classic[0], views.classic[1], "{name}");
        println!("{name}: {}", views.classic[0]);
        classics.push(views.lab.classic);
    }
    // Tools that called every gateway the same would agree too.
    for classic in [None, Some("port restricted cone"), Some("symmetric")] {
        assert!(classics.contains(&classic), "{classic:?}: {classics:?}");
    }
}

#[test]
fn root_paced_other_stun_tools_see_every_gateway_alike() {
    if World::lacks_root() || World::lacks(&PROGRAMS) {
        return;
    }
    measured(1, 1, |_| holds(all_agree));
}
