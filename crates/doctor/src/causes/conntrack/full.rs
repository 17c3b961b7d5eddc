//! The table of connections is full.

use crate::causes::{Cause, Group, Scene};
use crate::evidence::{Namespace, Plane};
use crate::finding::{Confidence, Fact, Finding, Fix, Setting};
use crate::recipe::{Place, Recipe, Step, Traffic, UdpMode};

pub(super) const CAUSE: Cause = Cause {
    id: "conntrack-full",
    group: Group::Conntrack,
    title: "connection-tracking table full",
    about: "Every connection that crosses the host takes an entry in the connection-tracking table. When a namespace has as \
            many entries as nf_conntrack_max allows, and none can be evicted, the first packet of every new connection is \
            thrown away, while connections that are in the table go on as if nothing were wrong. Clients see time-outs, and \
            retries fill the table further.",
    must: &[
        "conntrack `drop` grows",
        "the table holds as many entries as nf_conntrack_max, or did in the window",
        "`insert_failed` does not grow with it",
    ],
    should: &[
        "packets dropped as NETFILTER_DROP in nf_hook_slow, on the interface they came in through",
        "`nf_conntrack: table full, dropping packet` in the kernel's log",
    ],
    must_not: &["only one destination fails"],
    lookalikes: &[],
    yields_to: &[],
    remedy: "Find out first who holds the entries (`weir conntrack`). If they are real, allow more; if they are stale, let them \
             die sooner; what needs no NAT and no state can be left untracked.",
    sources: &["net/netfilter/nf_conntrack_core.c: __nf_conntrack_alloc, early_drop"],
    examine,
    recipes,
    not_injected: None,
};

fn examine(scene: &Scene<'_>) -> Vec<Finding> {
    scene.namespaces().filter_map(|n| in_namespace(scene, n)).collect()
}

fn in_namespace(scene: &Scene<'_>, namespace: &Namespace) -> Option<Finding> {
    let refused = namespace.grew("conntrack.drop").saturating_sub(namespace.grew("conntrack.insert_failed"));
    let max = scene.evidence.machine.setting("net.netfilter.nf_conntrack_max")?;
    let count = namespace.gauge("conntrack.count")?;
    // The count is read at the window's end; some entries may have died since.
    if refused == 0 || max == 0 || (count as f64) < 0.9 * max as f64 {
        return None;
    }
    let taken = scene.take(namespace, |d| d.reason == "NETFILTER_DROP" && d.location == "nf_hook_slow");
    let mut finding = scene.finding(CAUSE.id, namespace, refused);
    finding.claims = if taken.is_empty() {
        vec![scene.counted(namespace, "conntrack.drop", refused)]
    } else {
        taken.claims.clone()
    };
    finding.confidence = if taken.is_empty() { Confidence::Medium } else { Confidence::High };
    finding.missing = scene.missing(namespace, &[Plane::Drops, Plane::Connections]);
    finding.summary = format!(
        "New connections are refused: the table of {max} holds {count}, and {refused} first packets were thrown away."
    );
    let drop = namespace.counters["conntrack.drop"];
    finding.evidence = vec![
        Fact::counter(Plane::ConntrackStatistics, "conntrack.drop", drop, format!("{refused} refused")),
        Fact::seen(Plane::Settings, format!("nf_conntrack_max = {max}, entries {count}")),
    ];
    finding.not.push("not one busy destination: `insert_failed` did not grow with the drops".into());
    finding.fixes.push(larger(max));
    Some(finding)
}

/// Four times as much: enough to see whether the need ends there, and little memory.
fn larger(max: u64) -> Fix {
    let proposed = max.saturating_mul(4);
    let name = "net.netfilter.nf_conntrack_max";
    Fix {
        title: "allow more entries".into(),
        commands: vec![format!("sysctl -w {name}={proposed}")],
        risk: format!("memory: up to {} MB more when it fills", (proposed - max) * 384 / 1_000_000),
        undo: vec![format!("sysctl -w {name}={max}")],
        tune: vec![Setting {
            name: name.into(),
            now: max.to_string(),
            proposed: proposed.to_string(),
            why: "the table was full in the window".into(),
        }],
    }
}

fn recipes() -> Vec<Recipe> {
    vec![Recipe {
        at: Place::Gateway,
        setup: vec![
            // A rule that needs connection tracking switches it on.
            Step::Run(
                Place::Gateway,
                "nft 'add table ip t; add chain ip t c { type filter hook forward priority 0; }; add rule ip t c ct state new accept'"
                    .into(),
            ),
        ],
        traffic: vec![
            Traffic::UdpServer { on: Place::Responder, port: 7000, buffer: None, mode: UdpMode::Echo },
            Traffic::Udp {
                from: Place::Initiator,
                to: "198.19.0.2:7000".into(),
                size: 64,
                rate: 2000,
                flows: 0,
                dont_fragment: false,
            },
        ],
        machine: vec![("net.netfilter.nf_conntrack_max", "500".into())],
        ..Recipe::default()
    }]
}
