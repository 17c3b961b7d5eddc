use weir_guard::{Change, Namespace, Program, When};

use super::super::plan::tests::{CONNTRACK, machine, request};
use super::super::plan::{hold_what_is_too_large, plan};
use super::super::{Action, Budget, render_plan};
use super::*;

/// As the command brings it; names of links are text from outside.
fn action(held: Option<&str>) -> Action {
    let program = |word: &str| Program::new(["weir", word]);
    let item = |n: u32| format!("198.18.0.1:{n}/tcp -> 198.19.0.2:{n} by veth\u{1b}[31m");
    Action {
        name: "published ports".into(),
        now: "by the rules".into(),
        proposed: "by BPF, without connection tracking".into(),
        items: (80..100).map(item).collect(),
        why: vec!["asked for".into()],
        memory_bytes: 100_000,
        risk: "rules of the packet filter are passed by, and it ends with the container ".repeat(2),
        undo: "weir publish remove".into(),
        held: held.map(str::to_owned),
        change: Change::Commands {
            confirm: None,
            name: "published ports".into(),
            apply: program("load"),
            undo: program("unload"),
            read: program("state"),
            limit_s: 60,
            outlives_reboot: false,
        },
    }
}

fn diagnosis(cause: &str, namespace: u64, confidence: &str) -> Request {
    let found = serde_json::json!([{ "cause": cause, "namespace": namespace, "confidence": confidence }]);
    Request { findings: Some(("found.json".into(), found.to_string())), ..request() }
}

fn here() -> TunedHost {
    TunedHost { namespace: Some(Namespace { inode: 7, cookie: None, path: None }), ..TunedHost::default() }
}

#[test]
fn a_finding_that_it_heals_is_an_offer_and_the_profile_a_demand() {
    for cause in HEALED {
        let offer = wish(&here(), &diagnosis(cause, 7, "high")).unwrap().unwrap();
        assert!(offer.why[0].contains(cause) && offer.held.unwrap().contains("--profile published-ports"));
        let both = Request { profiles: vec![Profile::PublishedPorts], ..diagnosis(cause, 7, "high") };
        let demand = wish(&here(), &both).unwrap().unwrap();
        assert_eq!((demand.why.len(), demand.held), (2, None));
    }
    for (cause, namespace, confidence) in
        [("accept-queue-full", 7, "high"), ("conntrack-full", 8, "high"), ("conntrack-full", 7, "low")]
    {
        assert_eq!(wish(&here(), &diagnosis(cause, namespace, confidence)).unwrap(), None);
    }
    assert_eq!(wish(&here(), &request()).unwrap(), None);
    let bad = Request { findings: Some(("f.json".into(), "{".into())), ..request() };
    assert!(wish(&here(), &bad).is_err());
}

/// The causes by which it is offered are the doctor's.
#[test]
fn what_it_heals_are_causes() {
    let known: Vec<&str> = weir_doctor::causes::all().map(|cause| cause.id).collect();
    for cause in HEALED {
        assert!(known.contains(&cause), "{cause} is none of {known:?}");
    }
}

#[test]
fn it_stands_in_the_plan_behind_the_settings_with_its_price_and_its_way_back() {
    let (_files, place) = machine(&CONNTRACK);
    let wanted = Request {
        profiles: vec![Profile::NatGateway, Profile::PublishedPorts],
        actions: vec![action(None)],
        notes: vec!["1 of 21 stays with the rules".into()],
        ..request()
    };
    let plan_ = plan(&place, &wanted).unwrap();
    let kinds: Vec<&str> = plan_
        .change_set(120)
        .changes
        .iter()
        .map(|(when, change)| match (when, change) {
            (When::Apply, Change::Sysctl { .. }) => "setting",
            (When::Apply, Change::Commands { .. }) => "action",
            (When::Confirm, _) => "file",
            _ => "other",
        })
        .collect();
    assert_eq!(kinds, ["setting", "setting", "action", "file"]);
    let alone = plan(&place, &Request { actions: Vec::new(), ..wanted.clone() }).unwrap();
    assert_eq!(plan_.memory_bytes, alone.memory_bytes + 100_000);
    assert_ne!(plan_.id, alone.id, "another set has another name");
    let json = serde_json::to_value(&plan_).unwrap();
    let shown = &json["actions"][0];
    assert_eq!((&shown["undo"], &shown["held"]), (&"weir publish remove".into(), &serde_json::Value::Null));
    assert_eq!((shown["items"].as_array().unwrap().len(), &shown["change"]), (20, &serde_json::Value::Null));

    let page = render_plan(&plan_, 80);
    for line in page.lines().filter(|line| !line.starts_with("    undo")) {
        assert!(line.chars().count() <= 80, "{line}");
    }
    for words in ["published ports  by the rules -> by BPF", "and 8 more", "cost  +97.7 KiB", "note: 1 of 21"]
    {
        assert!(page.contains(words), "{words}:\n{page}");
    }
    assert!(!page.contains('\u{1b}'), "{page}");
}

#[test]
fn what_is_held_is_shown_and_left_out() {
    let (_files, place) = machine(&[]);
    let offer = Request { actions: vec![action(Some("a bigger step"))], ..request() };
    let plan_ = plan(&place, &offer).unwrap();
    assert!(plan_.is_empty() && plan_.change_set(1).changes.is_empty());
    assert_eq!(plan_.memory_bytes, 0);
    assert!(render_plan(&plan_, 80).contains("held  apply leaves it out: a bigger step"));
    let dear = Request { actions: vec![action(None)], memory: Budget::Bytes(99_999), ..request() };
    let plan_ = plan(&place, &dear).unwrap();
    assert!(plan_.is_empty() && plan_.actions[0].held.as_ref().unwrap().contains("--memory"));
    let alone = plan(&place, &Request { actions: vec![action(None)], ..request() }).unwrap();
    assert!(!alone.is_empty() && !render_plan(&alone, 80).contains("nothing to change"));
}

#[test]
fn what_is_left_of_the_budget_goes_to_the_first_that_fit() {
    let mut actions = [action(None), action(None), action(Some("an offer"))];
    hold_what_is_too_large(&mut actions, &[], 150_000);
    assert_eq!(actions[0].held, None);
    assert!(actions[1].held.as_deref().unwrap().ends_with("50000 are left"), "{:?}", actions[1].held);
    assert_eq!(actions[2].held.as_deref(), Some("an offer"));
    let (_files, place) = machine(&CONNTRACK);
    let with = |memory| Request {
        profiles: vec![Profile::NatGateway],
        actions: vec![action(None)],
        memory: Budget::Bytes(memory),
        ..request()
    };
    let alone = plan(&place, &Request { actions: Vec::new(), ..with(1 << 30) }).unwrap().memory_bytes;
    let budgets: Vec<u64> = (0..20).map(|n| 50_000 + alone as u64 * n / 10).collect();
    let plans: Vec<_> = budgets.iter().map(|budget| plan(&place, &with(*budget)).unwrap()).collect();
    for plan in &plans {
        assert!(plan.memory_bytes as u64 <= plan.budget_bytes, "{} {}", plan.memory_bytes, plan.budget_bytes);
    }
    assert!(plans.iter().any(|p| p.actions[0].held.is_some()));
    assert!(plans.iter().any(|p| p.actions[0].held.is_none()));
}
