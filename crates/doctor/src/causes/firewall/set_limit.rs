//! A set is full, or its elements have ended.

use super::charge::{Charge, Matter};
use super::commands::{nft_name, show};
use super::nft_rule_drop::{datagrams, gateway};
use super::report::{example, findings, keeper, service};
use crate::causes::{Cause, Group, Scene};
use crate::evidence::{Plane, SetState, Tuple};
use crate::finding::{Fact, Finding, Fix};
use crate::recipe::Recipe;

pub(super) const CAUSE: Cause = Cause {
    id: "set-limit",
    group: Group::Firewall,
    title: "a set is full, or its elements have ended",
    about: "Rules let pass what a set holds. A set may have a size, and then takes no more elements: what should be added is \
            refused (ENFILE), and if rules add elements themselves, the rule simply stops matching when the set is full. A set \
            may have a timeout, and then its elements end by themselves. Either way hosts that passed yesterday do not today, \
            though nobody changed a rule.",
    must: &[
        "packets dropped that a rule would have let pass if its set held their key",
        "the set holds as many elements as it may, or its elements end by themselves",
    ],
    should: &["the same hosts passed earlier"],
    must_not: &["the set has room and no timeout: then the packets are kept out on purpose"],
    lookalikes: &[
        ("policy-drop", "no rule would let the packets pass, or its set has room and lacks them on purpose"),
        ("nft-rule-drop", "a rule drops what a set holds"),
    ],
    yields_to: &[],
    remedy: "Give the set a larger size or a longer timeout (it must be made anew for that), or add what is missing. Sets that \
             rules fill need a timeout, so that they do not fill up with what is long gone.",
    sources: &[
        "net/netfilter/nf_tables_api.c: nft_add_set_elem",
        "net/netfilter/nft_dynset.c",
        "nft(8), sets",
    ],
    examine,
    recipes,
    not_injected: None,
};

fn examine(scene: &Scene<'_>) -> Vec<Finding> {
    findings(scene, CAUSE.id, Matter::Set, tell)
}

fn tell(charge: &Charge<'_>, finding: &mut Finding) {
    let Some(set) = charge.set_at_fault() else { return };
    let state = match (set.is_full(), set.count, set.size) {
        (true, Some(count), _) => format!("is full with {count} elements"),
        (false, Some(count), _) => format!("has elements that end by themselves, and holds {count}"),
        _ => "has elements that end by themselves".to_owned(),
    };
    finding.summary = format!(
        "{} packets{} were dropped because the set {} of {}, which {state}, does not hold their key.",
        charge.packets,
        service(charge),
        set.name,
        keeper(charge),
    );
    finding.object = format!("set {} {} {}", set.family, set.table, set.name);
    let size = set.size.map_or("without a bound".to_owned(), |size| format!("of size {size}"));
    finding.evidence.push(Fact::seen(Plane::Rules, format!("the set {}, {size}, {state}", set.name)));
    for (rule, _) in charge.missed.iter().filter(|(rule, _)| rule.set.as_deref() == Some(set.name.as_str())) {
        finding
            .evidence
            .push(Fact::seen(Plane::Rules, format!("a rule that would have let them pass: {}", rule.text)));
    }
    finding.evidence.push(Fact::seen(Plane::Rules, format!("they met the {}", charge.name())));
    finding.fixes = repairs(charge, set, example(charge));
}

fn repairs(charge: &Charge<'_>, set: &SetState, example: Option<Tuple>) -> Vec<Fix> {
    let (family, table, name) = (&set.family, nft_name(&set.table), nft_name(&set.name));
    let mut fixes = vec![Fix {
        title: "see the set and the rules that ask it".into(),
        commands: vec![format!("nft list set {family} {table} {name}"), show(charge)],
        risk: "none, it only shows; a set with hundreds of thousands of elements takes long to list".into(),
        ..Fix::default()
    }];
    // The key of most such sets is the sender's address; another one is not known here.
    if let Some(tuple) = example.filter(|_| !set.is_full()) {
        let element = format!("nft 'add element {family} {table} {name} {{ {} }}'", tuple.source);
        fixes.push(Fix {
            title: "add what is missing, if the set holds senders".into(),
            undo: vec![element.replacen("add element", "delete element", 1)],
            commands: vec![element],
            risk: "that host passes until the element ends again".into(),
            tune: Vec::new(),
        });
    }
    let saved = "/root/nft-before-weir.conf";
    let what = if set.is_full() { "size" } else { "timeout" };
    fixes.push(Fix {
        title: format!("make the set anew with a larger {what}"),
        commands: vec![
            format!("nft list ruleset > {saved}"),
            format!("cp {saved} /root/nft-new.conf && ${{EDITOR:-vi}} /root/nft-new.conf"),
            "(echo flush ruleset; cat /root/nft-new.conf) | nft -f -".into(),
        ],
        risk: "all rules are replaced in one step; what is wrong in the file is refused as a whole".into(),
        undo: vec![format!("(echo flush ruleset; cat {saved}) | nft -f -")],
        tune: Vec::new(),
    });
    fixes
}

fn recipes() -> Vec<Recipe> {
    let chain = "add chain inet f forward { type filter hook forward priority 0; policy drop; }";
    let full = format!(
        "nft -f - <<'END'\nadd table inet f\nadd set inet f allowed {{ type ipv4_addr; size 2; }}\n\
         add element inet f allowed {{ 192.0.2.1, 192.0.2.2 }}\n{chain}\nadd rule inet f forward ip saddr @allowed accept\nEND"
    );
    let ended = format!(
        "nft -f - <<'END'\nadd table inet f\nadd set inet f allowed {{ type ipv4_addr; flags timeout; }}\n\
         add element inet f allowed {{ 198.18.0.2 timeout 1s }}\n{chain}\nadd rule inet f forward ip saddr @allowed accept\nEND\n\
         while nft get element inet f allowed '{{ 198.18.0.2 }}' >/dev/null 2>&1; do sleep 0.1; done"
    );
    let traffic = || datagrams(7001, 4);
    vec![
        Recipe { setup: gateway(&full), traffic: traffic(), ..Recipe::default() },
        Recipe { name: "ended", setup: gateway(&ended), traffic: traffic(), ..Recipe::default() },
    ]
}

#[cfg(test)]
mod tests {
    use super::super::fixture::{Firewall, udp};
    use super::*;
    use crate::evidence::{Evidence, Missed};
    use crate::finding::Severity;

    fn evidence(size: u64, count: u64, timeout: bool) -> Evidence {
        let samples = (0..8).map(|n| udp(&format!("198.18.0.2:{}", 9000 + n), "198.19.0.2:7001")).collect();
        let firewall = Firewall::new()
            .policy("forward")
            .rule("ip saddr @allowed accept")
            .set("allowed", size, count, timeout);
        firewall.dropped(300, samples).blame(None, 8).missed(0, Missed::Set).evidence()
    }

    #[test]
    fn a_full_set_and_one_whose_elements_end_are_at_fault() {
        let full = examine(&Scene::of(&evidence(2, 2, false)));
        assert_eq!((full.len(), full[0].severity), (1, Severity::Warning));
        assert!(full[0].summary.contains("full with 2 elements"), "{}", full[0].summary);
        let ended = examine(&Scene::of(&evidence(100, 0, true)));
        assert_eq!(ended[0].fixes[1].commands, ["nft 'add element inet filter allowed { 198.18.0.2 }'"]);
    }

    #[test]
    fn a_set_with_room_keeps_out_on_purpose() {
        assert_eq!(examine(&Scene::of(&evidence(100, 2, false))), []);
    }
}
