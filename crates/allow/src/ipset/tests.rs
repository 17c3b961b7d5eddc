//! Counters and scripts, as iptables prints and takes them.

use super::*;

#[test]
fn counters_are_read_as_iptables_prints_them() {
    let of = |line| count(line, "weir0-allow").map(|c| (c.label, c.packets, c.bytes));
    assert_eq!(
        of(
            r#"[3:180] -A weir0-allow -m set --match-set weir0-1-4 src -m comment --comment "weir:class 1" -j RETURN"#
        ),
        Some(("class 1".into(), 3, 180))
    );
    assert_eq!(
        of("[1:60] -A weir0-allow -s 169.254.0.0/16 -m comment --comment \"weir:link\" -j RETURN"),
        Some(("link".into(), 1, 60))
    );
    assert_eq!(
        of("[1:60] -A weir0-allow -s 169.254.0.0/16 -m comment --comment weir:link -j RETURN"),
        Some(("link".into(), 1, 60))
    );
    assert_eq!(of("[1:60] -A INPUT -i eth0 -j weir0-allow"), None);
    assert_eq!(of(":INPUT ACCEPT [0:0]"), None);
}

#[test]
fn the_chain_is_replaced_as_a_whole_and_old_ways_to_it_go() {
    let policy = verify::tests::policy();
    let v4 = Family { v6: false };
    let before = [Jump::read("-A INPUT -i old0 -j weir0-allow", v4).unwrap()];
    let text = script(&policy, "abc", GENERATIONS[1], v4, &before, false);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[..2], ["*filter", ":weir1-allow - [0:0]"]);
    assert!(lines.contains(&"-D INPUT -i old0 -j weir0-allow"), "{text}");
    assert!(lines.contains(&"-X weir0-allow"), "{text}");
    assert!(lines.contains(&"-I FORWARD 1 -i eth0 -j weir1-allow"), "{text}");
    let class =
        "-A weir1-allow -m set --match-set weir1-1-4 src -m comment --comment \"weir:class 1\" -j RETURN";
    assert!(lines.contains(&class), "{text}");
    assert_eq!(lines.last(), Some(&"COMMIT"));
}

#[test]
fn on_trial_either_the_new_chain_is_asked_or_the_old_one() {
    let v4 = Family { v6: false };
    let before = [Jump::read("-A INPUT -i old0 -p tcp -m tcp --dport 22 -j weir0-allow", v4).unwrap()];
    let text = script(&verify::tests::policy(), "abc", GENERATIONS[1], v4, &before, true);
    let off = "INPUT 1 -i old0 -p tcp -m tcp --dport 22 -m set ! --match-set weir-trial-4 src -j weir0-allow";
    assert!(text.contains(&format!("-I {off}\n")), "{text}");
    assert!(
        text.contains("-I INPUT 1 -i eth0 -m set --match-set weir-trial-4 src -j weir1-allow\n"),
        "{text}"
    );
    assert!(!text.contains("-X"), "{text}");
    // As the kernel has it then: its end makes the old one what it was.
    let rule = format!("-A {}", off.replace("INPUT 1", "INPUT"));
    let jump = Jump::read(&rule, v4).unwrap();
    assert_eq!((jump.generation, jump.way), (GENERATIONS[0], Way::OffTrial));
    assert_eq!(jump.inserted(Way::Always, v4), "-I INPUT 1 -i old0 -p tcp -m tcp --dport 22 -j weir0-allow");
}
