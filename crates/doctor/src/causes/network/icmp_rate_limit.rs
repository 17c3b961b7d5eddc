//! ICMP errors are held back.

use super::ways::counter_as_fact;
use crate::causes::{Cause, EvidenceView, Group};
use crate::evidence::{EvidenceSource, Namespace};
use crate::finding::{Confidence, Finding, Fix, Setting, Severity};
use crate::recipe::{Recipe, Step, Traffic};

pub(super) const CAUSE: Cause = Cause {
    id: "icmp-rate-limit",
    title: "ICMP errors held back by their rate limit",
    about: "The kernel limits how many ICMP errors it sends: to each host (`icmp_ratelimit`, about one a second with a \
            small burst) and in all (`icmp_msgs_per_sec`, 10,000 by default on new kernels, 1,000 on old ones). The kernel \
            does not send errors above the limit: traceroute shows stars, and programs wait for a time-out instead of \
            failing at once. `Fragmentation needed` and `packet too big` are never held back. The errors are a symptom: \
            look for the packets that cause them.",
    must: &["OutRateLimitHost or OutRateLimitGlobal grows"],
    should: &["a setting is stricter than the kernel's own"],
    must_not: &["the missing errors are those of path MTU discovery"],
    lookalikes: &[
        ("no-listener", "a cause of such errors: datagrams to a port without a listener"),
        ("no-route", "a cause of such errors: packets without a route"),
    ],
    remedy: "With the kernel's own limits this is no fault: find what causes the errors. If a limit was set lower, raise \
             it.",
    sources: &[
        "net/ipv4/icmp.c: icmp_global_allow, icmpv4_xrlim_allow",
        "RFC 1812 section 4.3.2.8",
        "RFC 4443 section 2.4 (f)",
    ],
    recipes,
    ..Cause::of(Group::Network, |view| view.each(in_namespace))
};

/// Errors per second that a lowered limit holds back, from which on they count as a loss.
const MISSED_PER_SECOND: f64 = 10.0;
/// The kernel's own: of all messages in a second (1,000 until Linux 6.13), ms between messages to a host, and the kinds that
/// are limited (net/ipv4/icmp.c, icmp_sk_init).
const OWN: [(&str, u64); 3] = [
    ("net.ipv4.icmp_msgs_per_sec", 1000),
    ("net.ipv4.icmp_ratelimit", 1000),
    ("net.ipv4.icmp_ratemask", 0x1818),
];

fn in_namespace(view: &EvidenceView<'_>, namespace: &Namespace) -> Option<Finding> {
    let counters = ["icmp.OutRateLimitGlobal", "icmp.OutRateLimitHost", "icmp6.OutRateLimitHost"];
    let [global, host, host6] = counters.map(|c| namespace.grew(c));
    let held = global + host + host6;
    if held == 0 {
        return None;
    }
    let sent = namespace.grew("icmp.OutMsgs") + namespace.grew("icmp6.OutMsgs");
    let stricter = stricter(namespace, global > 0, host > 0);
    let mut finding = view.finding(CAUSE.id, namespace, 0);
    let often = held as f64 >= MISSED_PER_SECOND * view.evidence.window_s;
    finding.severity = if often && stricter.is_some() { Severity::Warning } else { Severity::Note };
    finding.confidence = Confidence::High;
    finding.evidence = counters.iter().filter_map(|c| counter_as_fact(namespace, c)).collect();
    finding.impact = held as f64 / (held + sent) as f64;
    finding.summary = match stricter {
        Some((name, now, _)) => {
            format!(
                "{held} ICMP errors were held back, because {name} is {now}, which is stricter than usual."
            )
        }
        None => format!(
            "{held} ICMP errors were held back by the usual limits; the packets that they answer are the cause."
        ),
    };
    if let Some((name, now, usual)) = stricter {
        finding.object = name.to_owned();
        finding.seen(EvidenceSource::Settings, format!("{name} = {now}"));
        finding.fixes.push(usual_limit(name, now, usual));
    }
    finding.missing = view.missing(namespace, &[EvidenceSource::Counters, EvidenceSource::Settings]);
    Some(finding)
}

/// The setting that holds back more than the kernel's own would: its name, its value, and the kernel's.
fn stricter(namespace: &Namespace, global: bool, host: bool) -> Option<(&'static str, u64, u64)> {
    let [all, each, kinds] = OWN.map(|(name, own)| Some((name, namespace.setting(name)?, own)));
    let all = all.filter(|(_, now, own)| global && now < own);
    let each = each.filter(|(_, now, own)| host && now > own);
    // A kind that the kernel itself does not limit.
    let kinds = kinds.filter(|(_, now, own)| (host || global) && now & !own != 0);
    all.or(each).or(kinds)
}

fn usual_limit(name: &str, now: u64, usual: u64) -> Fix {
    Fix::set(
        "the kernel's own limit",
        "an attacker can make this host send more errors",
        vec![Setting::new(name, now, usual, "errors that other hosts wait for were held back in the window")],
    )
}

fn recipes() -> Vec<Recipe> {
    vec![Recipe {
        setup: vec![
            Step::gateway("sysctl -qw net.ipv4.icmp_msgs_per_sec=1 net.ipv4.icmp_msgs_burst=1"),
            // Sends packets as traceroute does: they end at the gateway.
            Step::initiator("sysctl -qw net.ipv4.ip_default_ttl=1"),
        ],
        traffic: vec![Traffic::udp("198.19.0.2:33434", 32, 200, 4)],
        also: vec!["routing-loop"],
        ..Recipe::default()
    }]
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{count, healthy, set};
    use super::*;

    #[test]
    fn a_limit_that_was_set_lower_is_named() {
        let mut evidence = healthy();
        count(&mut evidence, "icmp.OutRateLimitGlobal", 500);
        count(&mut evidence, "icmp.OutMsgs", 500);
        set(&mut evidence, "net.ipv4.icmp_msgs_per_sec", "1");
        let found = (CAUSE.examine)(&EvidenceView::of(&evidence));
        assert_eq!(
            (found[0].severity, found[0].object.as_str()),
            (Severity::Warning, "net.ipv4.icmp_msgs_per_sec")
        );
        assert_eq!(found[0].fixes[0].undo, ["sysctl -w net.ipv4.icmp_msgs_per_sec=1"]);
        assert!((found[0].impact - 0.5).abs() < 1e-9);
    }

    #[test]
    fn the_usual_limits_are_no_fault() {
        let mut evidence = healthy();
        count(&mut evidence, "icmp.OutRateLimitHost", 5000);
        count(&mut evidence, "icmp6.OutRateLimitHost", 5000);
        for (name, value) in OWN {
            set(&mut evidence, name, &value.to_string());
        }
        let found = (CAUSE.examine)(&EvidenceView::of(&evidence));
        assert_eq!((found.len(), found[0].severity), (1, Severity::Note));
        assert_eq!((CAUSE.examine)(&EvidenceView::of(&healthy())), []);
    }
}
