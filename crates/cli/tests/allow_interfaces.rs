//! Interfaces on which `weir allow apply` filters, and those on which it does not.

mod allow_world;
mod documents;

use std::fs;

use allow_world::Gate;

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

/// Packets of a tunnel begin with their IP header, where the BPF filter looks for an Ethernet header.
#[test]
fn root_a_tunnel_is_left_to_the_other_back_ends() {
    let Some(gate) = Gate::new(WEIR) else { return };
    gate.list("list", 10);
    gate.world.sh("ip tuntap add mode tun tun7 && ip link set tun7 up");
    for more in [&[][..], &["--xdp=generic"], &["-i", "in0"]] {
        let args = [&["apply", "list", "-i", "tun7", "--confirm-within", "1h"], more].concat();
        let outcome = gate.run(&args).expect(2);
        assert!(outcome.stderr.contains("tun7: packets come in there without"), "{}", outcome.stderr);
        assert!(outcome.stderr.contains("weir allow build --format nft"), "{}", outcome.stderr);
        assert_eq!(outcome.complaints().len(), 1, "{}", outcome.stderr);
        assert_eq!(gate.kernel(), "", "nothing was attached");
    }
    for backend in ["nft", "ipset"] {
        let args = ["apply", "list", "-i", "tun7", "--backend", backend, "--confirm-within", "1h"];
        gate.run(&args).expect(0);
        gate.run(&["rollback"]).expect(0);
    }
}

#[test]
fn root_a_card_s_owner_is_told_of_xdp() {
    let Some(gate) = Gate::new(WEIR) else { return };
    gate.list("list", 10);
    let hints = |more: &[&str]| {
        let outcome = gate.apply("list", "bpf", more).expect(0);
        gate.run(&["rollback"]).expect(0);
        outcome
            .stderr
            .lines()
            .filter(|line| line.starts_with("hint: in0: ") && line.contains("--xdp"))
            .count()
    };
    assert_eq!(hints(&[]), 0, "there is no card behind a veth pair");
    // The name that a card has there.
    fs::create_dir_all(gate.world.work().join("net/in0/device")).unwrap();
    gate.world.sh("mount --bind net /sys/class/net");
    assert_eq!(hints(&[]), 1);
    assert_eq!(hints(&["--xdp=generic"]), 0);
}
