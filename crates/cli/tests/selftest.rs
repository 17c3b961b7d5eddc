//! The doctor against every cause that it knows, made in a lab with real traffic. Alone in its file, so that no other test
//! disturbs the machine meanwhile, and one group of cases after the other.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde_json::Value;
use weir_doctor::causes::{self, Group};
use weir_selftest::{Case, Kind, cases};
use weir_testkit::{World, wait_for_quiet};

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

/// All cases of a group take some minutes.
const LIMIT: Duration = Duration::from_secs(1500);

/// How long the doctor watches, s; a case that was wrong is tried again and watched for longer. A machine whose cores are taken away
/// measures longer round trips, TCP then waits longer before it sends again, and two seconds may not show it twice.
const WINDOW: &str = "2";
const LONGER: &str = "6";

/// How often a case that was wrong is tried again.
const AGAIN: usize = 3;

static ONE_AFTER_THE_OTHER: Mutex<()> = Mutex::new(());

/// Rows of a run of the self-test over these cases, each watched for so long.
fn rows(world: &World, cases: &[String], window: &str) -> Vec<Value> {
    let mut args = vec!["doctor", "selftest", "--machine", "--window", window, "--json"];
    cases.iter().for_each(|case| args.extend(["--case", case]));
    let outcome = world.start("selftest", world.weir(&args)).end_within(LIMIT);
    assert!(matches!(outcome.code, 0 | 3), "exit code {}: {}", outcome.code, outcome.stderr);
    println!("{}", outcome.stderr);
    let matrix: Value = serde_json::from_str(&outcome.stdout).unwrap();
    let rows = matrix["rows"].as_array().unwrap();
    assert_eq!(rows.len(), cases.len(), "a row for each case");
    rows.clone()
}

fn is_right(row: &Value) -> bool {
    row["right"] == row["tried"] && row["tried"].as_u64() > Some(0)
}

/// Makes every case that is meant, and sees whether the doctor finds it.
fn all_are_found(meant: fn(&Case) -> bool) {
    let _turn = ONE_AFTER_THE_OTHER.lock().unwrap_or_else(PoisonError::into_inner);
    let Some(world) = World::machine(WEIR) else { return };
    let names: Vec<String> = cases(&[]).into_iter().filter(meant).map(|c| c.name).collect();
    assert_ne!(names, [""; 0]);
    let all = rows(&world, &names, WINDOW);
    for row in all.iter().filter(|r| !r["skipped"].is_null()) {
        println!("SKIP: {} {}", row["case"], row["skipped"]);
    }
    let tried: Vec<&Value> = all.iter().filter(|r| r["skipped"].is_null()).collect();
    let mut wrong: Vec<Value> = tried.iter().filter(|r| !is_right(r)).map(|r| (*r).clone()).collect();
    // A burst of somebody else's work may spoil a case or two, but not the same ones again.
    let most = (tried.len() / 10).max(2);
    assert!(wrong.len() <= most, "{} of {} wrong: {wrong:#?}", wrong.len(), tried.len());
    for _ in 0..AGAIN {
        if wrong.is_empty() {
            break;
        }
        wait_for_quiet();
        let names: Vec<String> = wrong.iter().map(|r| r["case"].as_str().unwrap().to_owned()).collect();
        wrong = rows(&world, &names, LONGER).into_iter().filter(|r| !is_right(r)).collect();
    }
    assert!(wrong.is_empty(), "wrong {} times: {wrong:#?}", AGAIN + 1);
    world.wait_until_idle();
    assert!(world.undo_lists().is_empty(), "{:?}", world.undo_lists());
}

/// What is tried together: so that one test does not take longer than what CI waits for, and says by its name what went wrong.
const PARTS: [fn(&Case) -> bool; 7] = [
    |case| is_of(case, Group::Conntrack),
    |case| is_of(case, Group::Firewall),
    |case| is_of(case, Group::Network),
    |case| is_of(case, Group::Queues),
    |case| is_of(case, Group::Sockets) || is_of(case, Group::Rest),
    |case| case.kind == Kind::Pair,
    |case| case.kind == Kind::Healthy,
];

fn is_of(case: &Case, group: Group) -> bool {
    case.kind == Kind::Cause
        && causes::all().any(|cause| cause.group == group && cause.id == case.expected[0].0)
}

#[test]
fn each_case_is_tried_once() {
    for case in cases(&[]) {
        assert_eq!(PARTS.iter().filter(|part| part(&case)).count(), 1, "{}", case.name);
    }
}

#[test]
fn root_causes_in_connection_tracking_are_found() {
    all_are_found(PARTS[0]);
}

#[test]
fn root_causes_in_rules_are_found() {
    all_are_found(PARTS[1]);
}

#[test]
fn root_causes_on_the_way_are_found() {
    all_are_found(PARTS[2]);
}

#[test]
fn root_causes_in_queues_and_cores_are_found() {
    all_are_found(PARTS[3]);
}

#[test]
fn root_causes_at_sockets_and_the_rest_are_found() {
    all_are_found(PARTS[4]);
}

#[test]
fn root_of_two_causes_both_are_found() {
    all_are_found(PARTS[5]);
}

#[test]
fn root_where_nothing_is_wrong_nothing_is_found() {
    all_are_found(PARTS[6]);
}
