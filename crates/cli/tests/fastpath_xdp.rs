//! `weir fastpath --xdp` by the built binary: refused on veth devices, and on ones that a test declares fit it ends with its process.

mod documents;
mod fastpath_world;

use fastpath_world::Gateway;
use weir_testkit::{CommandOutput, PATIENCE, World, until};

/// Declares that no end of a veth leaves work to its interface.
fn run(gateway: &Gateway, args: &[&str]) -> CommandOutput {
    let mut command = gateway.weir(args);
    command.env("WEIR_TEST_SINGLE_FRAMES", "1");
    gateway.world.run(command)
}

/// Makes it true.
fn leave_no_work(gateway: &Gateway) {
    for link in ["in0", "in2", "out0"] {
        gateway.world.sh(&format!("ethtool -K {link} tx off tso off gro on"));
    }
    for host in ["inside", "inside2", "outside"] {
        gateway.world.sh(&format!("ip netns exec {host} ethtool -K e0 tx off tso off gro on"));
    }
}

fn carried_by_xdp(gateway: &Gateway) -> u64 {
    let status = gateway.json("status", &[]);
    let counts = status["now"]["by_xdp"].as_array().cloned().unwrap_or_default();
    counts.iter().filter(|c| c["reason"] == "carried").map(|c| c["packets"].as_u64().unwrap()).sum()
}

fn has_program(gateway: &Gateway) -> bool {
    gateway.world.sh("ip -o link show").contains("xdp")
}

#[test]
fn root_a_veth_is_refused_with_the_reason() {
    let Some(gateway) = Gateway::new() else { return };
    for verb in ["plan", "apply"] {
        let refused = gateway.run(&[verb, "--xdp"]).expect(2);
        assert!(refused.stderr.contains("no interface can carry by XDP: in0: it is a veth"), "{refused:?}");
    }
    let plan = gateway.json("plan", &[]);
    assert_eq!(plan["drivers"].as_array().unwrap().len(), 3);
    assert!(!has_program(&gateway));
    gateway.finish();
}

#[test]
fn root_xdp_carries_and_ends_with_its_process() {
    let Some(gateway) = Gateway::new() else { return };
    if World::lacks(&["ethtool"]) {
        return;
    }
    leave_no_work(&gateway);
    let plan = run(&gateway, &["plan", "--xdp"]).expect(0).stdout;
    assert!(plan.contains("carried by XDP:\n  in0: packets that come in or leave\n"), "{plan}");
    assert!(!has_program(&gateway), "a plan attaches nothing");
    run(&gateway, &["apply", "--xdp"]).expect(0);
    run(&gateway, &["confirm"]).expect(0);
    assert!(has_program(&gateway));
    until("XDP carries", PATIENCE, || {
        let before = carried_by_xdp(&gateway);
        gateway.exchange(100);
        (carried_by_xdp(&gateway) - before >= 150).then_some(())
    });
    let page = gateway.run(&["status"]).expect(0).stdout;
    assert!(page.contains("carried by XDP:") && page.contains("XDP saw first"), "{page}");
    gateway.kill(&["fastpath hold"]);
    until("no program is left", PATIENCE, || (!has_program(&gateway)).then_some(()));
    gateway.world.sh("ip netns exec inside python3 datagrams 20");
    // And once more, ended as it should be.
    run(&gateway, &["apply", "--xdp"]).expect(0);
    gateway.run(&["remove"]).expect(0);
    assert!(!has_program(&gateway));
    assert_eq!(gateway.exchange(20), 0);
    gateway.finish();
}
