//! `weir nat check --preset long` to its end, in parts: the kernel's timers are set so short that all of them end within a minute.

mod documents;
mod nat_path;
mod nat_timers;

use std::time::Duration;

use nat_path::{PATH, WEIR, in_client, kept, serve_with, verdict};
use nat_timers::Tries;
use serde_json::Value;
use weir_testkit::{PATIENCE, World, holds, measured, until};

/// Timeouts of the kernel, s, and where their idle times are.
const TIMERS: [(&str, &str, u32); 8] = [
    ("unanswered", "udp_timeout", 3),
    ("answered", "udp_timeout_stream", 6),
    ("icmp", "icmp_timeout", 4),
    ("tcp_opening", "tcp_timeout_syn_sent", 5),
    ("tcp_established", "tcp_timeout_established", 14),
    ("tcp_half_closed", "tcp_timeout_close_wait", 4),
    ("tcp_reset_in", "tcp_timeout_close", 5),
    ("tcp_reset_out", "tcp_timeout_close", 5),
];
/// Packets that may hold a mapping, whose fate has to be known too.
const HELD: [&str; 7] = [
    "refreshed_out",
    "refreshed_in",
    "refreshed_error",
    "icmp_refreshed_error",
    "tcp_refreshed_out",
    "tcp_refreshed_in",
    "tcp_refreshed_reset",
];
/// Longest that a part may take that has nothing left to wait for: the preset's own times are 305 s and two hours.
const LAST_PART: Duration = Duration::from_secs(60);

/// The first part is killed when the file has the end of every timer, two hours before the longest try. The second one ends.
#[test]
fn root_paced_the_long_preset_ends_in_parts() {
    if World::lacks(&["ip", "nft"]) {
        return;
    }
    let Some(world) = World::root(WEIR) else { return };
    world.sh(PATH);
    for (_, name, s) in TIMERS {
        world.sh(&format!("ip netns exec gateway sysctl -qw net.netfilter.nf_conntrack_{name}={s}"));
    }
    let _server = serve_with(&world, &["--max-time", "135m"]);
    let ports = ["ports", "198.19.0.2", "--key-file", "key", "--limit", "16"];
    let answers = || {
        until("the server answers", PATIENCE, || (in_client(&world, &ports).code == 0).then_some(()));
    };
    answers();
    let attempt = |number: usize| {
        let file = format!("run-{number}");
        let check = ["check", "198.19.0.2", "--key-file", "key", "--preset", "long", "--progress", &file];
        let bounds = |seen: &Value, kind: &str| {
            if seen[kind].is_array() { Tries::read(seen, kind).bounds() } else { (0.0, f64::INFINITY) }
        };
        let mut command = world.command("ip");
        command.args(["netns", "exec", "client", WEIR, "nat"]).args(check);
        let killed = world.start("nat", command);
        // The file is written every minute.
        let known = until("the end of all timers", 3 * PATIENCE, || {
            Some(kept(&world, &file)["idle"].clone()).filter(|seen| {
                TIMERS.iter().all(|(kind, ..)| bounds(seen, kind).1.is_finite())
                    && HELD.iter().all(|held| seen[*held].is_object())
            })
        });
        killed.signal("KILL");
        assert_eq!(killed.end_within(PATIENCE).code, -1);
        // The server has one check for each address, and hears of the end a moment later.
        answers();

        let mut command = world.command("ip");
        command.args(["netns", "exec", "client", WEIR, "nat"]).args(check).args(["--verbose", "--json"]);
        let output = world.start("nat", command).end_within(LAST_PART).expect(0);
        let steps = |name: &str| output.stderr.lines().any(|line| line.ends_with(name));
        assert!(steps(" idle") && !steps(" udp-mapping"), "{}", output.stderr);

        let document = documents::read(&output.stdout, "nat-check-server");
        assert_eq!((&document["idle_s"], &document["connections_idle_s"]), (&305.0.into(), &7_445.0.into()));
        assert_eq!(document["started"].as_array().unwrap().len(), 2);
        let seen = &document["observations"]["idle"];
        for (kind, _, truth) in TIMERS {
            Tries::read(seen, kind).assert_timer(kind, f64::from(truth));
        }
        for (kind, ..) in TIMERS {
            assert_eq!(seen[kind], known[kind], "{kind}: what was decided is not tried again");
        }
        for row in [
            "udp-idle-unanswered",
            "icmp-query-idle",
            "tcp-idle-opening",
            "tcp-idle-established",
            "tcp-idle-half-closed",
            "tcp-idle-reset-in",
        ] {
            assert_eq!(verdict(&document, row), "fails", "{row}: {document:#}");
        }
        assert_eq!(verdict(&document, "tcp-refresh-out"), "meets", "{document:#}");
        // A complete file has nothing left.
        let again = in_client(&world, &[&check[..], &["--verbose", "--json"]].concat()).expect(0);
        assert!(!again.stderr.lines().any(|line| line.ends_with(" idle")), "{}", again.stderr);
        assert_eq!(documents::read(&again.stdout, "nat-check-server")["rows"], document["rows"]);
    };
    measured(1, 1, |number| holds(|| attempt(number)));
}
