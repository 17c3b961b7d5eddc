//! One core does nearly all the work of the network, and is full.

use crate::causes::{Cause, EvidenceView, Group};
use crate::command::sh;
use crate::evidence::{Core, EvidenceSource, Interface, Machine};
use crate::finding::{Claim, Confidence, Finding, Fix, Severity};
use crate::recipe::{Recipe, Step, Traffic};

pub(super) const CAUSE: Cause = Cause {
    id: "hot-core",
    title: "one core does nearly all of the network's work and is full",
    about: "Which core handles a packet is decided by the card's receive queue, by Receive Packet Steering, or by who sent it. \
            With a single queue, interrupts bound to one core, or a hash that sees only few addresses (all traffic of a tunnel, \
            or of one pair of hosts), one core handles everything. When it is full, packets wait and are lost, although the \
            machine as a whole is idle: the load average says little, and `top` shows one ksoftirqd at 100 %.",
    must: &[
        "one core spends nearly all its time in interrupts and soft interrupts, and is never idle",
        "the other cores spend little of theirs on it",
    ],
    should: &[
        "its backlog or the card's ring loses packets",
        "the card has one queue in use and could have more",
    ],
    must_not: &["all cores are busy: then the machine is too small for the work"],
    lookalikes: &[
        ("softnet-backlog", "bursts fill the backlog of cores that have time left"),
        ("steal", "the hypervisor takes the time"),
    ],
    remedy: "Use more queues of the card (`ethtool -L`), let the hash see the ports (`ethtool -N IF rx-flow-hash udp4 sdfn`), \
             spread the interrupts (irqbalance), or spread in software: Receive Packet Steering.",
    sources: &["Documentation/networking/scaling.rst", "net/core/dev.c: get_rps_cpu"],
    recipes,
    ..Cause::of(Group::Queues, examine)
};

/// Share of a core's time in interrupts from which on it has none left for more packets.
const FULL: f64 = 0.85;
/// The same where its backlog alone loses packets: programs that share it take the rest.
const FULL_AND_LOSING: f64 = 0.5;
/// A core that is idle for more than this share is not full.
const IDLE: f64 = 0.05;
/// Mean share of the other cores' time, in parts of the full one's, above which the work is spread. Programs there give way to
/// interrupts.
const SPREAD: f64 = 0.35;

/// The core that has most of the network's work.
#[derive(Debug)]
pub(super) enum Hot<'a> {
    /// No core is full.
    None,
    /// One is full and the others are not.
    Alone(&'a Core),
}

/// The core that is full while the others are not.
pub(super) fn hottest(machine: &Machine) -> Hot<'_> {
    let work = |c: &Core| c.share("softirq") + c.share("irq");
    let idle = |c: &Core| c.share("idle") + c.share("iowait");
    let Some(core) = machine.cores.iter().max_by(|a, b| work(a).total_cmp(&work(b))) else {
        return Hot::None;
    };
    let others: Vec<&Core> = machine.cores.iter().filter(|c| c.number != core.number).collect();
    let spread = others.iter().map(|c| work(c)).sum::<f64>() / others.len().max(1) as f64;
    let alone = !others.is_empty() && spread <= SPREAD * work(core);
    let dropped: u64 = machine.cores.iter().map(|c| c.dropped.change()).sum();
    let loses = dropped > 0 && core.dropped.change() as f64 >= 0.9 * dropped as f64;
    let full = if loses { FULL_AND_LOSING } else { FULL };
    if alone && work(core) >= full && idle(core) <= IDLE { Hot::Alone(core) } else { Hot::None }
}

fn examine(view: &EvidenceView<'_>) -> Vec<Finding> {
    let machine = &view.evidence.machine;
    let Hot::Alone(core) = hottest(machine) else { return Vec::new() };
    let mut finding = view.machine_finding(CAUSE.id, Severity::Warning);
    finding.object = format!("core {}", core.number);
    // The backlog of that core is what it could not handle.
    let all: u64 = machine.cores.iter().map(|c| c.dropped.change()).sum();
    let its = core.dropped.change();
    if its * 2 > all {
        claim(view, core, &mut finding);
    }
    let busy = (core.share("softirq") + core.share("irq")) * 100.0;
    let lost: u64 = finding.claims.iter().map(Claim::packets).sum();
    finding.summary = format!(
        "Core {} spends {busy:.0} % of its time on packets and has none left, while the others have little of that work.",
        core.number
    );
    for c in &machine.cores {
        let text = format!(
            "core {}: {:.0} % soft interrupts, {:.0} % idle, {} packets, {} dropped",
            c.number,
            c.share("softirq") * 100.0,
            c.share("idle") * 100.0,
            c.processed.change(),
            c.dropped.change()
        );
        finding.seen(EvidenceSource::Cores, text);
    }
    if lost > 0 {
        finding.confidence = Confidence::High;
        finding.severity = view.severity_for_all(lost).max(Severity::Warning);
    } else {
        // Delay alone: what came in still got through.
        finding.impact = 0.01;
    }
    finding.fixes = fixes(view, core);
    vec![finding]
}

/// Takes what its backlog lost.
fn claim(view: &EvidenceView<'_>, core: &Core, finding: &mut Finding) {
    for namespace in view.namespaces() {
        finding.claims.extend(view.take(namespace, |d| d.reason == "CPU_BACKLOG").claims);
    }
    if finding.claims.is_empty() && core.dropped.change() > 0 && !view.sees_drops() {
        let counter = "softnet.dropped".to_owned();
        finding.claims.push(Claim::Counter { namespace: 0, counter, packets: core.dropped.change() });
    }
}

/// The interface that brings most of the work, and how to spread it.
fn fixes(view: &EvidenceView<'_>, core: &Core) -> Vec<Fix> {
    let all = view.namespaces().flat_map(|n| n.interfaces.iter().map(move |i| (n, i)));
    let busiest =
        all.filter(|(_, i)| i.name != "lo").max_by_key(|(_, i)| (i.kind.is_empty(), i.grew("rx_packets")));
    let Some((namespace, interface)) = busiest else { return Vec::new() };
    let dev = &interface.name;
    let mut fixes = Vec::new();
    if let Some((now, most)) = interface.channels
        && interface.kind.is_empty()
        && most > now
    {
        fixes.push(Fix::new(
            "use more queues of the card",
            "most drivers stop the link for a moment",
            [sh!("ethtool -L {} combined {}", dev, most)],
            [sh!("ethtool -L {} combined {}", dev, now)],
        ));
    }
    fixes.push(steer(interface, core, view.evidence.machine.cores.len()));
    // The finding is about the machine, its commands about an interface of one namespace.
    crate::command::place(&mut fixes, namespace);
    fixes
}

/// All cores but the one that is full already: it still has the interrupts.
fn steer(interface: &Interface, core: &Core, cores: usize) -> Fix {
    let others: Vec<usize> = (0..cores).filter(|c| *c != core.number).collect();
    let mask = weir_sys::rps::mask(&others);
    let before = interface.rps.first().cloned().unwrap_or_else(|| "0".into());
    let set = |mask: &str| {
        sh!(
            "for q in /sys/class/net/{}/queues/rx-*/rps_cpus; do echo {} > \"$q\"; done",
            interface.name,
            mask
        )
    };
    Fix::new(
        "spread flows over the other cores in software",
        "an interrupt between cores for each burst; one single flow stays on one core",
        [set(&mask)],
        [set(&before)],
    )
}

/// Rules that keep a core busy for some tenths of a millisecond with every packet: 60 x 60 x 40 comparisons.
pub(super) const SLOW_RULES: &str = "\
    { echo 'table ip slow {'; echo 'chain c {'; for i in $(seq 40); do echo \"ip saddr 203.0.113.$i drop\"; done; echo '}'
      echo 'chain b {'; for i in $(seq 60); do echo 'jump c'; done; echo '}'
      echo 'chain a {'; for i in $(seq 60); do echo 'jump b'; done; echo '}'
      echo 'chain f { type filter hook prerouting priority -300; jump a; }'; echo '}'; } | nft -f -";

fn recipes() -> Vec<Recipe> {
    // Hands received packets to core 1.
    let steer =
        "unshare -m sh -c 'mount -t sysfs sysfs /sys; echo 2 > /sys/class/net/inside/queues/rx-0/rps_cpus'\n";
    let rules = format!("{steer}{SLOW_RULES}");
    vec![Recipe {
        setup: vec![Step::gateway(rules)],
        traffic: Traffic::udp_across(100, 8000, 16),
        needs: vec!["nft", "unshare"],
        also: vec!["softnet-backlog", "softnet-squeeze", "udp-buffer-full"],
        ..Recipe::default()
    }]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::{Delta, DropGroup, Evidence, Namespace, Sight};

    fn core(number: usize, softirq: u64, user: u64, dropped: u64) -> Core {
        let ticks = [("softirq", softirq), ("user", user), ("idle", 1000 - softirq - user)];
        let ticks = ticks.map(|(n, v)| (n.to_owned(), Delta { before: 3, after: 3 + v })).into();
        Core { number, ticks, dropped: Delta { before: 0, after: dropped }, ..Core::default() }
    }

    fn host(cores: Vec<Core>, drops: u64) -> Evidence {
        let mut evidence = Evidence { window_s: 10.0, ..Evidence::default() };
        evidence.machine.cores = cores;
        let interface = Interface { name: "eth0".into(), channels: Some((1, 4)), ..Interface::default() };
        evidence.namespaces.push(Namespace {
            id: 5,
            own: true,
            interfaces: vec![interface],
            ..Namespace::default()
        });
        evidence.evidence_sources.insert(EvidenceSource::Drops, Sight::Seen);
        if drops > 0 {
            let group = DropGroup {
                namespace: 5,
                reason: "CPU_BACKLOG".into(),
                packets: drops,
                ..DropGroup::default()
            };
            evidence.drops.push(group);
        }
        evidence
    }

    #[test]
    fn one_full_core_among_idle_ones_is_found_and_spread() {
        let evidence = host(vec![core(0, 20, 50, 0), core(1, 960, 20, 700)], 700);
        let found = examine(&EvidenceView::of(&evidence));
        assert_eq!((found[0].object.as_str(), found[0].confidence), ("core 1", Confidence::High));
        assert_eq!(found[0].claims, [Claim::Drops { group: 0, packets: 700 }]);
        assert_eq!(found[0].fixes[0].commands, ["ethtool -L eth0 combined 4"]);
        assert!(found[0].fixes[1].commands[0].contains("echo 00000001 >"), "{:?}", found[0].fixes[1]);
    }

    #[test]
    fn busy_machines_and_busy_programs_are_no_hot_core() {
        for cores in [
            vec![core(0, 900, 100, 0), core(1, 960, 40, 0)],
            vec![core(0, 20, 50, 0), core(1, 500, 500, 0)],
            vec![core(0, 20, 50, 0), core(1, 800, 0, 0)],
            vec![core(0, 990, 0, 9)],
            Vec::new(),
        ] {
            assert_eq!(examine(&EvidenceView::of(&host(cores, 0))), []);
        }
    }
}
