//! The doctor against every cause that it knows, made in a lab with real traffic. Alone in its file, so that no other test
//! disturbs the machine meanwhile.

use std::time::Duration;

use serde_json::Value;
use weir_testkit::World;

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

/// All cases take some minutes.
const LIMIT: Duration = Duration::from_secs(1500);

/// Rows of a run of the self-test over these cases (all, if none is named).
fn rows(world: &World, cases: &[&str]) -> Vec<Value> {
    let mut args = vec!["doctor", "selftest", "--machine", "--window", "2", "--json"];
    cases.iter().for_each(|case| args.extend(["--case", case]));
    let outcome = world.start("selftest", world.weir(&args)).end_within(LIMIT);
    assert!(matches!(outcome.code, 0 | 3), "exit code {}: {}", outcome.code, outcome.stderr);
    println!("{}", outcome.stderr);
    let matrix: Value = serde_json::from_str(&outcome.stdout).unwrap();
    matrix["rows"].as_array().unwrap().clone()
}

fn is_right(row: &Value) -> bool {
    row["right"] == row["tried"] && row["tried"].as_u64() > Some(0)
}

#[test]
fn root_what_is_made_is_what_is_found() {
    let Some(world) = World::machine(WEIR) else { return };
    let all = rows(&world, &[]);
    for row in all.iter().filter(|r| !r["skipped"].is_null()) {
        println!("SKIP: {} {}", row["case"], row["skipped"]);
    }
    let tried: Vec<&Value> = all.iter().filter(|r| r["skipped"].is_null()).collect();
    let wrong: Vec<&str> =
        tried.iter().filter(|r| !is_right(r)).map(|r| r["case"].as_str().unwrap()).collect();
    // A burst of somebody else's work may spoil a case or two, but not the same ones again.
    assert!(wrong.len() * 10 <= tried.len(), "{} of {} wrong: {wrong:#?}", wrong.len(), tried.len());
    for case in wrong {
        let right = (0..2).any(|_| rows(&world, &[case]).iter().any(|r| r["case"] == case && is_right(r)));
        assert!(right, "{case} was wrong three times");
    }
    assert!(world.undo_lists().is_empty(), "{:?}", world.undo_lists());
    world.wait_until_idle();
}
