//! A control group's limit holds a program of the network back.

use super::lost::per_second;
use crate::causes::{Cause, EvidenceView, Group};
use crate::command::sh;
use crate::evidence::{CgroupThrottle, EvidenceSource};
use crate::finding::{Confidence, Finding, Fix, Severity};
use crate::recipe::{LabHost, Recipe, Traffic};

pub(super) const CAUSE: Cause = Cause {
    id: "cpu-throttled",
    title: "a control group's CPU limit holds programs back",
    about: "A container or service with a CPU limit (`--cpus`, `resources.limits.cpu`, CPUQuota) may run for so many \
            milliseconds of every hundred. When they are used up, all its threads stand still until the next period, \
            however idle the machine is. A proxy, DNS server or VPN in it answers tens of milliseconds late, and its \
            sockets overflow meanwhile. The load of the machine does not show it.",
    must: &["nr_throttled and throttled_usec in cpu.stat of a control group grow"],
    should: &["sockets of programs in it lose packets or let clients wait"],
    lookalikes: &[
        ("steal", "the hypervisor does it, to all programs alike"),
        ("udp-buffer-full", "the buffer overflows because of it"),
        ("accept-queue-full", "likewise for connections"),
    ],
    remedy: "Raise the limit, or spread its use: a longer burst (cpu.max.burst) allows for peaks. Many threads use up the same \
             budget sooner; give the program as many as the limit has cores.",
    sources: &["Documentation/scheduler/sched-bwc.rst", "Documentation/admin-guide/cgroup-v2.rst: cpu.max"],
    recipes,
    ..Cause::of(Group::Queues, examine)
};

/// Share of the window that a group stood still, from which on it is worth a word.
const WORTH: f64 = 0.05;

fn examine(view: &EvidenceView<'_>) -> Vec<Finding> {
    view.evidence.machine.throttled.iter().filter_map(|group| of_group(view, group)).collect()
}

fn of_group(view: &EvidenceView<'_>, group: &CgroupThrottle) -> Option<Finding> {
    let stood = per_second(view, group.throttled_us.change()) / 1e6;
    if group.throttled.change() == 0 || stood < WORTH {
        return None;
    }
    // Groups without a program that talks to the network delay nothing here. The time is that of all cores together.
    let serves = group.sockets > 0;
    let severity = if serves { Severity::Warning } else { Severity::Note };
    let mut finding = view.machine_finding(CAUSE.id, severity);
    finding.object.clone_from(&group.path);
    finding.confidence = if serves { Confidence::Medium } else { Confidence::Low };
    finding.impact = if serves { stood.min(1.0) * 0.1 } else { 0.0 };
    finding.summary = format!(
        "The CPU limit stopped the programs in {} {} times, for {:.0} ms of every second over all cores.",
        group.path,
        group.throttled.change(),
        stood * 1e3
    );
    let text = format!("held back in {} periods", group.throttled.change());
    finding.counter(EvidenceSource::Pressure, "nr_throttled", group.throttled, text);
    let text = format!("for {} ms", group.throttled_us.change() / 1000);
    finding.counter(EvidenceSource::Pressure, "throttled_usec", group.throttled_us, text);
    if serves {
        finding.seen(EvidenceSource::Pressure, format!("{} network sockets belong to it", group.sockets));
    } else {
        finding.not.push("no program in it was seen to have a network socket".into());
    }
    let file = format!("/sys/fs/cgroup{}/cpu.max", group.path);
    finding.fixes.push(Fix::new(
        "raise the limit where it is set (container engine, unit file), or here until it restarts (cgroup2)",
        "other programs get less when all cores are busy",
        [sh!("cat {}", file), sh!("echo 'max 100000' > {}", file)],
        [sh!("echo 'QUOTA PERIOD' > {}", file)],
    ));
    Some(finding)
}

/// A server that needs a few milliseconds for each answer, in a group that may use 5 ms of every 100 ms. It ends by itself if
/// nothing else ends it.
const SERVER: &str = r#"
g=/sys/fs/cgroup
if [ -e $g/cpu/cpu.cfs_quota_us ] || [ -d $g/cpu ]; then g=$g/cpu/weir-selftest; else g=$g/weir-selftest; fi
mkdir -p $g
p=
end() { trap '' TERM; [ -z "$p" ] || { kill -9 $p; wait $p || :; }; i=0
        until rmdir $g || [ $i = 10 ]; do sleep 0.05; i=$((i + 1)); done; }
trap end EXIT
trap 'exit 0' TERM INT
if [ -e $g/cpu.max ]; then echo '5000 100000' > $g/cpu.max; else echo 5000 > $g/cpu.cfs_quota_us; fi
perl -MIO::Socket::INET -e '
    alarm 60;
    my $s = IO::Socket::INET->new(LocalPort => 7003, Listen => 8, ReuseAddr => 1) or die;
    open(my $group, ">", "$ARGV[0]/cgroup.procs") or die; print $group $$; close $group;
    while (my $c = $s->accept) {
        while (sysread $c, my $question, 100) { for my $i (1 .. 100000) {} syswrite $c, $question }
    }' $g &
p=$!
wait $p
"#;

fn recipes() -> Vec<Recipe> {
    vec![Recipe {
        at: LabHost::Responder,
        traffic: vec![
            Traffic::Script(LabHost::Responder, SERVER.into()),
            Traffic::Exchange { to: "198.19.0.2:7003".into(), rate: 200, bytes: 100 },
        ],
        needs: vec!["perl"],
        ..Recipe::default()
    }]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::evidence::{Delta, Evidence};

    fn host(throttled_us: u64, sockets: u64) -> Evidence {
        let group = CgroupThrottle {
            path: "/system.slice/dns $1.service".into(),
            throttled: Delta { before: 1, after: 80 },
            throttled_us: Delta { before: 9, after: 9 + throttled_us },
            sockets,
            ..CgroupThrottle::default()
        };
        let mut evidence = Evidence { window_s: 10.0, ..Evidence::default() };
        evidence.machine.throttled.push(group);
        evidence
    }

    #[test]
    fn a_group_that_serves_the_network_is_a_warning_and_others_are_notes() {
        let found = examine(&EvidenceView::of(&host(3_000_000, 4)));
        assert_eq!(found[0].severity, Severity::Warning);
        assert!(
            found[0].summary.contains("79 times") && found[0].summary.contains("300 ms"),
            "{}",
            found[0].summary
        );
        assert_eq!(found[0].fixes[0].commands[0], "cat '/sys/fs/cgroup/system.slice/dns $1.service/cpu.max'");
        assert_eq!(examine(&EvidenceView::of(&host(3_000_000, 0)))[0].severity, Severity::Note);
        assert_eq!(examine(&EvidenceView::of(&host(300_000, 4))), []);
    }
}
