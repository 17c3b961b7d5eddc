//! A set is full, or its elements have expired.

use super::attribution::{DropAttribution, Matter};
use super::commands::show;
use super::nft_rule_drop::{datagrams, gateway};
use super::report::{example, findings, keeper, service};
use crate::causes::{Cause, EvidenceView, Group};
use crate::command::iptables::Ipset;
use crate::command::nft::{self, nft};
use crate::command::{kept, sh};
use crate::evidence::{EvidenceSource, SetState, Tuple};
use crate::finding::{Finding, Fix};
use crate::recipe::Recipe;

pub(super) const CAUSE: Cause = Cause {
    id: "set-limit",
    title: "a set is full, or its elements have expired",
    about: "Rules accept packets whose key is in a set. A set may have a size: when it is full, the kernel refuses new \
            elements (ENFILE), and a rule that adds elements itself simply stops matching. A set may have a timeout: then \
            its elements expire. Either way hosts that passed yesterday do not pass today, though the rules have not \
            changed.",
    must: &[
        "packets dropped that a rule would have let pass if its set held their key",
        "the set holds as many elements as it may, or its elements expire",
    ],
    should: &["the same hosts passed earlier"],
    must_not: &["the set has room and no timeout: then the packets are kept out on purpose"],
    lookalikes: &[
        ("policy-drop", "no rule would let the packets pass, or its set has room and lacks them on purpose"),
        ("nft-rule-drop", "a rule drops what a set holds"),
    ],
    remedy: "Give the set a larger size or a longer timeout (it must be recreated for that), or add the missing elements. \
             Sets that rules fill need a timeout, so that old elements do not fill them up.",
    sources: &[
        "net/netfilter/nf_tables_api.c: nft_add_set_elem",
        "net/netfilter/nft_dynset.c",
        "nft(8), sets",
    ],
    recipes,
    ..Cause::of(Group::Firewall, examine)
};

fn examine(view: &EvidenceView<'_>) -> Vec<Finding> {
    findings(view, CAUSE.id, Matter::Set, tell)
}

fn tell(attribution: &DropAttribution<'_>, finding: &mut Finding) {
    let Some(set) = attribution.set_at_fault() else { return };
    let state = match (set.is_full(), set.count, set.size) {
        (true, Some(count), _) => format!("is full with {count} elements"),
        (false, Some(count), _) => format!("has elements that expire, and holds {count}"),
        _ => "has elements that expire".to_owned(),
    };
    finding.summary = format!(
        "{} packets{} were dropped because the set {} of {}, which {state}, does not hold their key.",
        attribution.packets,
        service(attribution),
        set.name,
        keeper(attribution),
    );
    finding.object = format!("set {} {} {}", set.family, set.table, set.name);
    let size = set.size.map_or("without a bound".to_owned(), |size| format!("of size {size}"));
    finding.seen(EvidenceSource::Rules, format!("the set {}, {size}, {state}", set.name));
    for (rule, _) in
        attribution.missed.iter().filter(|(rule, _)| rule.set.as_deref() == Some(set.name.as_str()))
    {
        finding.seen(EvidenceSource::Rules, format!("a rule that would have let them pass: {}", rule.text));
    }
    finding.seen(EvidenceSource::Rules, format!("they met the {}", attribution.name()));
    finding.fixes = repairs(attribution, set, example(attribution));
}

fn repairs(attribution: &DropAttribution<'_>, set: &SetState, example: Option<Tuple>) -> Vec<Fix> {
    const LIST: &str = "none, it only shows; a set with hundreds of thousands of elements takes long to list";
    // An ipset belongs to no table.
    let ipset = set.table.is_empty();
    let at = nft::set(&set.family, &set.table, &set.name);
    let list = if ipset { sh!("ipset list {}", Ipset(&set.name)) } else { nft!("list set {}", at) };
    let mut fixes =
        vec![Fix::new("see the set and the rules that ask it", LIST, [list, show(attribution)], [])];
    // The key of most such sets is the sender's address; another one is not known here.
    if let Some(tuple) = example.filter(|_| !set.is_full()) {
        let title = "add what is missing, if the set holds senders";
        let source = tuple.source;
        let (add, delete) = match ipset {
            true => {
                let change = |verb: &'static str| sh!("ipset {} {} {}", verb, Ipset(&set.name), source);
                (change("add"), change("del"))
            }
            false => {
                let change = |verb: &'static str| nft!("{} element {} { {} }", verb, at, source);
                (change("add"), change("delete"))
            }
        };
        fixes.push(Fix::new(title, "that host passes until the element expires again", [add], [delete]));
    }
    if !ipset {
        fixes.push(anew(set));
    }
    fixes
}

/// The table is loaded again as one transaction. Both files begin with its deletion, so that without the file nothing happens.
fn anew(set: &SetState) -> Fix {
    let table = nft::table(&set.family, &set.table);
    let what = if set.is_full() { "size" } else { "timeout" };
    let file = |when| kept(&[&set.family, &set.table, &set.name, when], "nft");
    let (saved, edited) = (file("before"), file("new"));
    let save = nft::save_table(&table, &saved);
    let edit = sh!("cp {} {} && ${EDITOR:-vi} {}", saved, edited, edited);
    let load = |file: &str| table.clone().and_then(|_| sh!("nft -f {}", file));
    Fix::new(
        format!("recreate the set with a larger {what}"),
        "the whole table is replaced in one step, with its counters; nft refuses a wrong file as a whole",
        [save.and_then(|save| Ok(save.and(edit?).and(load(&edited)?)))],
        [load(&saved)],
    )
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
        Recipe::named("ended", gateway(&ended), traffic()),
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
        let full = examine(&EvidenceView::of(&evidence(2, 2, false)));
        assert_eq!((full.len(), full[0].severity), (1, Severity::Warning));
        assert!(full[0].summary.contains("full with 2 elements"), "{}", full[0].summary);
        let ended = examine(&EvidenceView::of(&evidence(100, 0, true)));
        assert_eq!(ended[0].fixes[1].commands, ["nft 'add element inet filter allowed { 198.18.0.2 }'"]);
    }

    #[test]
    fn a_set_with_room_keeps_out_on_purpose() {
        assert_eq!(examine(&EvidenceView::of(&evidence(100, 2, false))), []);
    }
}
