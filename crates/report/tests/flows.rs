//! Recordings of flows as text.

#[path = "fixture/flows.rs"]
mod fixture;

use unicode_width::UnicodeWidthStr;
use weir_report::{Terminal, flows_terminal};

fn text(width: usize, name: &str) -> String {
    flows_terminal(&fixture::recording(name), Terminal { width, color: false })
}

#[test]
fn the_summary_has_the_known_figures() {
    let text = text(100, "10.0.0.2:4000");
    println!("{text}");
    let has = |words: &str| {
        let squeezed = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.lines().any(|line| squeezed(line).contains(words)), "{words}:\n{text}");
    };
    has("488 KiB of TCP passed through 10.0.0.2:4000 in 4 s, in 3 flows.");
    has("Lost to server: 2.5 % [1.2, 5.1], 10 of 400 segments.");
    has("SYNs without an answer: 1.");
    has("Segments sent again needlessly: 4.");
    // Between the readings: 1 Mbit/s all the time, 10 of 100 lost and then none of 200, and the ends of buckets 2 and 4.
    has("rate from clients 1.00 Mbit/s 1.00 Mbit/s 1.00 Mbit/s");
    has("lost to server 0 % 10.0 % 10.0 %");
    has("median RTT to clients 32.0 µs 32.0 µs 32.0 µs");
    has("median RTT to servers 64.0 µs 64.0 µs 64.0 µs");
    has("Time of clients as senders, by limit: network 57 %, receiver 43 %.");
    has("limit of clients: network 25.0 % 100 % 100 %");
    has("limit of clients: receiver 0 % 75.0 % 75.0 %");
    has("10.0.0.2:4000 > 198.51.100.7:443, op… 488 KiB 20.0 µs 20.0 µs < 0.1 % 2.5 % < 0.1 % < 0.1 %");
    assert!(!text.contains("Lost from server"), "nothing was lost there");
}

#[test]
fn udp_has_sentences_and_tables_of_its_own() {
    let text = flows_terminal(&fixture::with_udp("10.0.0.2:4000"), Terminal { width: 100, color: false });
    println!("{text}");
    let has = |words: &str| {
        let squeezed = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(text.lines().any(|line| squeezed(line).contains(words)), "{words}:\n{text}");
    };
    has("2.86 MiB of UDP passed in 3 flows, 1.43 MiB of it QUIC.");
    has("198.51.100.1 too big 1400 12");
    has("DNS: 100 queries, half of the answers within 96.0 µs, 95 % within 96.0 µs.");
    has("Queries of DNS without an answer: 3.");
    has("Flows of UDP with a silent side: 1.");
    // A megabyte in 8 s.
    has("10.0.0.2:4000 > 198.51.100.7:443, … QUIC 1.43 MiB 1.00 Mbit/s 500 kbit/s 4.00 s –");
    has("10.0.0.2 > 198.51.100.53, open 100 96.0 µs 96.0 µs 3 2 7");
    has("10.0.0.2:4000 (pid 7), docker web 1 2 1024 B 2048 B");
    has("(unknown process) 1 2 1024 B 2048 B");
    has("(not on this host) 1 2 1024 B 2048 B");
    let without = flows_terminal(&fixture::recording("x"), Terminal { width: 100, color: false });
    assert!(!without.contains("UDP") && !without.contains("DNS"), "{without}");
    assert!(!without.contains("process"), "{without}");
}

#[test]
fn no_line_is_wider_than_the_terminal_and_names_are_harmless() {
    for width in [80, 100, 115, 116, 160, 200] {
        let name = format!("x\u{1b}[31m\u{7}{}", "y".repeat(60));
        let udp = flows_terminal(&fixture::with_udp(&name), Terminal { width, color: false });
        let text = text(width, &name);
        assert!(!udp.contains(['\u{1b}', '\u{7}']));
        for line in text.lines().chain(udp.lines()) {
            assert!(line.width() <= width, "{width}: {line}");
        }
        assert!(!text.contains(['\u{1b}', '\u{7}']) && text.contains("xyyy"), "{text:?}");
        assert_eq!(text.contains("> network 57 %"), width >= 116, "{width}:\n{text}");
        assert_eq!(text.contains("2.5 % [1.2, 5.1]  0 %, below"), width >= 160, "{width}:\n{text}");
    }
}
