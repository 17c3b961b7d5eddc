//! Programs and filters of others at an interface.

use weir_fastpath::{Fastpath, Options, others};
use weir_netlink::Rtnetlink;
use weir_sys::NetNs;
use weir_sys::privilege::test_needs_root;

use super::{has, run};

fn tc(ns: &NetNs, script: &str) {
    run(ns, "sh", &["-euc", script], "");
}

fn shown(ns: &NetNs) -> Vec<(String, String, bool)> {
    let found = ns
        .run(|| {
            let interface = Rtnetlink::open().unwrap().interface("v0").unwrap();
            others(interface.index).unwrap()
        })
        .unwrap();
    found.into_iter().map(|o| (o.place, o.name, o.decides)).collect()
}

#[test]
fn root_filters_at_the_ingress_are_listed_and_those_at_the_egress_are_not() {
    if test_needs_root() || !has(&["tc", "ip"]) {
        return;
    }
    for (qdisc, side) in [("clsact", "ingress"), ("ingress", "parent ffff:")] {
        let ns = NetNs::create().unwrap();
        tc(&ns, "ip link add name v0 type veth peer name v1; ip link set v0 up");
        assert_eq!(shown(&ns), [], "no qdisc");
        tc(
            &ns,
            &format!(
                "tc qdisc add dev v0 {qdisc}; tc qdisc add dev v0 root tbf rate 1mbit burst 10k limit 10k"
            ),
        );
        assert_eq!(shown(&ns), [], "no filter");
        tc(
            &ns,
            &format!(
                "tc filter add dev v0 {side} protocol ip pref 7 u32 match ip dport 80 0xffff action mirred egress redirect dev v1"
            ),
        );
        let drops = ("tc ingress filter u32, preference 7".to_owned(), "mirred".to_owned(), true);
        assert_eq!(shown(&ns), std::slice::from_ref(&drops));
        tc(
            &ns,
            &format!(
                "tc filter add dev v0 {side} protocol ip pref 9 u32 match ip dport 81 0xffff flowid 1:1"
            ),
        );
        let classifies = ("tc ingress filter u32, preference 9".to_owned(), String::new(), false);
        assert_eq!(shown(&ns), [drops.clone(), classifies.clone()]);
        if qdisc == "clsact" {
            tc(
                &ns,
                "tc filter add dev v0 egress protocol ip pref 3 u32 match ip dport 82 0xffff action mirred egress redirect dev v1",
            );
            assert_eq!(shown(&ns), [drops, classifies]);
        }
    }
}

#[test]
fn root_programs_of_weir_are_not_foreign() {
    if test_needs_root() || !has(&["ip"]) {
        return;
    }
    let ns = NetNs::create().unwrap();
    tc(&ns, "ip link add name v0 type veth peer name v1; ip link set v0 up");
    let _attached = ns
        .run(|| {
            let fastpath = Fastpath::load(Options::default()).unwrap();
            fastpath.attach("v0").unwrap();
            fastpath
        })
        .unwrap();
    assert_eq!(shown(&ns), []);
}
