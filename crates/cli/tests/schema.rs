//! `weir schema`, and that documents are held against what it prints.

mod documents;

use serde_json::Value;
use weir_testkit::World;

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

#[test]
fn every_kind_is_listed_and_has_a_schema() {
    let world = World::plain(WEIR);
    let list = world.run(world.weir(&["schema"])).expect(0).stdout;
    let kinds: Vec<&str> = list.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert!(kinds.contains(&"doctor") && kinds.contains(&"run") && kinds.len() > 30, "{list}");
    for (kind, line) in kinds.iter().zip(list.lines()) {
        assert!(line.contains("  weir "), "a kind without a command: {line}");
        let printed = world.run(world.weir(&["schema", kind])).expect(0).stdout;
        let file = format!("{}/../../docs/reference/schemas/{kind}.json", env!("CARGO_MANIFEST_DIR"));
        assert!(printed == std::fs::read_to_string(&file).unwrap(), "{kind}: not what {file} has");
        let schema: Value = serde_json::from_str(&printed).unwrap();
        assert!(jsonschema::meta::is_valid(&schema), "{kind}");
    }
    let unknown = world.run(world.weir(&["schema", "dcotor"])).expect(2).stderr;
    assert!(unknown.contains("doctor"), "the nearest kind is not named: {unknown}");
}

#[test]
fn a_document_with_another_key_type_or_kind_is_refused() {
    let world = World::plain(WEIR);
    let printed = world.run(world.weir(&["cost", "--gb-in", "1000", "--json"])).expect(0).stdout;
    let document = documents::read(&printed, "cost");
    assert!(documents::errors("cost", &document).is_empty());
    let spoilt = |spoil: &dyn Fn(&mut Value)| {
        let mut other = document.clone();
        spoil(&mut other);
        documents::errors("cost", &other)
    };
    assert!(!spoilt(&|d| d["more"] = 1.into()).is_empty());
    assert!(!spoilt(&|d| d["bills"][0]["more"] = 1.into()).is_empty());
    assert!(!spoilt(&|d| d["bills"] = "many".into()).is_empty());
    assert!(!spoilt(&|d| d["schema"] = "weir.mtu/1".into()).is_empty());
    assert!(!spoilt(&|d| drop(d.as_object_mut().unwrap().remove("currency"))).is_empty());
    assert!(!documents::errors("mtu", &document).is_empty());
}

/// Findings of all kinds.
#[test]
fn the_diagnosis_of_stored_evidence_keeps_to_its_schema() {
    let world = World::plain(WEIR);
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../doctor/src/causes/examples");
    let mut findings = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let file = entry.unwrap().path();
        let args = ["doctor", "--json", "--read", file.to_str().unwrap()];
        let document = documents::read(&world.run(world.weir(&args)).expect(0).stdout, "doctor");
        findings += document["findings"].as_array().unwrap().len();
    }
    assert!(findings > 40, "only {findings} findings");
}
