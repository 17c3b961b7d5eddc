//! Rules for IP packets meet frames that a bridge passes on.

use super::attribution::{DropAttribution, Matter, bridge_of};
use super::commands::show;
use super::nft_rule_drop::gateway;
use super::report::{findings, keeper, service};
use crate::causes::{Cause, EvidenceView, Group};
use crate::command::iptables::{self, Name};
use crate::command::{Words, sh, sysctl};
use crate::evidence::Backend;
use crate::evidence::EvidenceSource;
use crate::finding::{Finding, Fix, Setting, severity_of_loss};
use crate::recipe::{LabHost, Recipe, Step, Traffic, UdpMode};

pub(super) const CAUSE: Cause = Cause {
    id: "bridge-netfilter",
    title: "the firewall filters frames within a bridge",
    about: "With `bridge-nf-call-iptables` (module br_netfilter) every frame that a bridge passes from one port to another \
            goes through the rules for forwarded IP packets as well, though nothing is routed. Hosts on one network, \
            behind one bridge, then cannot talk to each other because FORWARD drops frames that it was never meant for. \
            Docker and Kubernetes load the module; virtual machines on a bridge of the same host are the usual victims.",
    must: &[
        "packets dropped by rules of the families ip, ip6 or inet (or the old iptables)",
        "they came in through a port of a bridge",
    ],
    should: &["net.bridge.bridge-nf-call-iptables (ip6tables) is 1", "both ends are in one network"],
    must_not: &["the rule is of the family bridge: that one is meant for frames"],
    lookalikes: &[
        ("policy-drop", "the packets are routed, and came in through an interface of its own"),
        ("bridge-blocked", "the bridge itself does not pass them on"),
    ],
    remedy: "If nothing needs the firewall within the bridge, switch the call off. Kubernetes' kube-proxy and some of \
             Docker's isolation rules need it: there, accept bridged frames by a rule.",
    sources: &[
        "net/bridge/br_netfilter_hooks.c",
        "https://wiki.libvirt.org/Net.bridge.bridge-nf-call_and_sysctl.conf.html",
    ],
    recipes,
    ..Cause::of(Group::Firewall, examine)
};

fn examine(view: &EvidenceView<'_>) -> Vec<Finding> {
    findings(view, CAUSE.id, Matter::Bridge, |attribution, finding| tell(view, attribution, finding))
}

fn tell(view: &EvidenceView<'_>, attribution: &DropAttribution<'_>, finding: &mut Finding) {
    let passed = view.passed(attribution.namespace).saturating_sub(attribution.packets);
    finding.severity =
        finding.severity.max(severity_of_loss(attribution.packets, passed, view.evidence.window_s));
    let bridge = attribution
        .samples
        .iter()
        .find_map(|s| bridge_of(attribution.namespace, s.came_in))
        .unwrap_or_default();
    finding.summary = format!(
        "{} packets{} that the bridge {bridge} passes from port to port were dropped by {}, which is meant for routed \
         packets.",
        attribution.packets,
        service(attribution),
        keeper(attribution),
    );
    let what = attribution
        .rule
        .map_or_else(|| attribution.name(), |r| format!("{}: {}", attribution.name(), r.text));
    finding.object = format!("bridge {bridge}, {what}");
    finding.seen(EvidenceSource::Rules, format!("decided by the {what}"));
    let v6 = attribution.samples.iter().all(|s| s.header.first().is_some_and(|b| b >> 4 == 6));
    let name = if v6 { "net.bridge.bridge-nf-call-ip6tables" } else { "net.bridge.bridge-nf-call-iptables" };
    let now = attribution.namespace.setting(name);
    if let Some(value) = now {
        finding.seen(EvidenceSource::Settings, format!("{name} = {value}"));
    }
    let risk = "rules that separate hosts of one bridge (Docker's isolation, Kubernetes) no longer do so";
    let title = "keep the firewall out of the bridge";
    finding.fixes.push(match now {
        Some(now) => {
            let why = "frames within a bridge were dropped by rules for routed packets";
            Fix::set(title, risk, vec![Setting::new(name, now, 0, why)])
        }
        None => Fix::new(title, risk, [sysctl::set(name, 0)], [sysctl::set(name, 1)]),
    });
    if let Some(backend @ (Backend::IptablesNft | Backend::IptablesLegacy)) = attribution.backend() {
        let program = iptables::program(backend, attribution.family());
        let (table, chain) = (Name(attribution.table()), Name(attribution.chain_name()));
        let matches = || Words::of("-m physdev --physdev-is-bridged -j ACCEPT");
        let insert = sh!("{} -t {} -I {} 1 {}", program, table, chain, matches());
        let undo = sh!("{} -t {} -D {} {}", program, table, chain, matches());
        finding.fixes.push(Fix::new("or let bridged frames pass", "as above", [insert], [undo]));
    }
    finding.fixes.push(Fix::look("see the rules", [show(attribution)]));
}

fn recipes() -> Vec<Recipe> {
    // The gateway becomes a bridge between its two sides, which share a network of their own.
    let bridge = "ip link add br0 type bridge\nip link set inside master br0\nip link set outside master br0\nip link set br0 up\n\
                  sysctl -qw net.bridge.bridge-nf-call-iptables=1\n\
                  nft 'add table ip f; add chain ip f forward { type filter hook forward priority 0; policy drop; }'\n\
                  nft 'add rule ip f forward udp dport 7001 accept'";
    let mut setup = vec![
        Step::initiator("ip addr add 198.18.5.2/24 dev eth0"),
        Step::responder("ip addr add 198.18.5.3/24 dev eth0"),
    ];
    setup.extend(gateway(bridge));
    let datagrams = |port: u16| {
        vec![
            Traffic::UdpServer { on: LabHost::Responder, port, buffer: None, mode: UdpMode::Sink },
            Traffic::udp(&format!("198.18.5.3:{port}"), 100, 500, 4),
        ]
    };
    vec![Recipe { setup, traffic: [datagrams(7001), datagrams(7002)].concat(), ..Recipe::default() }]
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{Firewall, udp};
    use super::*;
    use crate::evidence::Interface;
    use crate::finding::Severity;

    fn firewall() -> Firewall {
        let samples = (0..8).map(|n| udp(&format!("198.18.5.2:{}", 9000 + n), "198.18.5.3:7002")).collect();
        Firewall::new().policy("forward").dropped(300, samples).blame(None, 8)
    }

    #[test]
    fn frames_of_a_bridge_are_told_from_routed_packets() {
        let mut bridged = firewall();
        let bridge =
            Interface { index: 9, name: "br0".into(), kind: "bridge".into(), ..Interface::default() };
        bridged.here().interfaces.push(bridge);
        bridged.here().interfaces[0].master = Some(9);
        bridged.here().settings.insert("net.bridge.bridge-nf-call-iptables".into(), "1".into());
        let found = examine(&EvidenceView::of(&bridged.evidence()));
        assert_eq!((found.len(), found[0].severity), (1, Severity::Critical));
        assert_eq!(found[0].object, "bridge br0, policy of inet filter forward");
        assert_eq!(found[0].fixes[0].tune[0].proposed, "0");
        assert_eq!(examine(&EvidenceView::of(&firewall().evidence())), []);
    }
}
