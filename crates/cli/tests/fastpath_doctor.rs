//! The doctor at a gateway whose fast path is well, stopped, killed, and removed.

mod documents;
mod fastpath_world;

use fastpath_world::Gateway;
use serde_json::Value;

/// Findings about the fast path, after a look of a second and a half with datagrams through the gateway.
fn findings(gateway: &Gateway) -> Vec<Value> {
    let mut command =
        gateway.world.weir(&["doctor", "--json", "--for", "1.5", "--hide", "cores", "--hide", "pressure"]);
    command.env("WEIR_STATE_DIR", gateway.world.folder().join("state"));
    let doctor = gateway.world.start("doctor", command);
    for _ in 0..10 {
        gateway.world.sh("ip netns exec inside python3 datagrams 20");
    }
    let diagnosis = documents::read(&doctor.end_within(weir_testkit::PATIENCE).expect(0).stdout, "doctor");
    assert_eq!(diagnosis["evidence_sources"]["fast-path"]["sight"], "seen", "{diagnosis:#}");
    let all = diagnosis["findings"].as_array().unwrap().iter();
    all.filter(|finding| finding["cause"].as_str().unwrap().starts_with("fastpath-")).cloned().collect()
}

#[test]
fn root_the_doctor_sees_a_process_that_is_stopped_or_gone_and_nothing_where_all_is_well() {
    let Some(gateway) = Gateway::new() else { return };
    assert!(findings(&gateway).is_empty(), "a host without a fast path");
    gateway.run(&["apply", "--confirm-within", "1h"]).expect(0);
    gateway.carries(100, 150);
    assert!(findings(&gateway).is_empty(), "one on trial that carries");
    gateway.run(&["confirm"]).expect(0);
    assert!(findings(&gateway).is_empty(), "one that was confirmed");
    let [pid] = gateway.processes("fastpath hold")[..] else { panic!("one process keeps it") };
    gateway.world.sh(&format!("kill -STOP {pid}"));
    let [stopped] = &findings(&gateway)[..] else { panic!("one finding") };
    gateway.world.sh(&format!("kill -CONT {pid}"));
    assert_eq!((&stopped["cause"], &stopped["severity"]), (&"fastpath-gone".into(), &"warning".into()));
    assert_eq!(
        stopped["fixes"][0]["commands"],
        serde_json::json!([format!("kill -CONT {pid}")]),
        "{stopped:#}"
    );
    gateway.carries(20, 20);
    assert!(findings(&gateway).is_empty(), "it goes on");
    gateway.kill(&["fastpath hold"]);
    let [gone] = &findings(&gateway)[..] else { panic!("one finding") };
    assert_eq!(gone["cause"], "fastpath-gone");
    assert_eq!(gone["fixes"][0]["commands"], serde_json::json!(["weir fastpath apply"]), "{gone:#}");
    // Its fix, as it is printed.
    gateway.run(&["apply"]).expect(0);
    gateway.run(&["confirm"]).expect(0);
    gateway.carries(40, 40);
    assert!(findings(&gateway).is_empty(), "it was started again");
    gateway.run(&["pause"]).expect(0);
    assert!(findings(&gateway).is_empty(), "a user paused it");
    gateway.run(&["remove"]).expect(0);
    assert!(findings(&gateway).is_empty(), "a user removed it");
    gateway.finish();
}
