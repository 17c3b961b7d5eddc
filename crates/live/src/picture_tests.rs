//! Pictures at the sizes of real terminals.

mod processes;

use ratatui_core::backend::TestBackend;
use ratatui_core::terminal::Terminal;
use weir_flows::{
    Estimate, Flow, FlowState, IcmpErrors, IcmpMeaning, IcmpReporter, Reading, UdpFlow, UdpKind, UdpState,
    UntrackedFlow,
};

use crate::draw::draw;
use crate::fixture::{flow, limits, loss, network, reading};
use crate::key::Key;
use crate::view::View;

/// The lines of a picture, without the spaces at their ends.
fn picture(view: &mut View, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(view, frame.buffer_mut())).unwrap();
    let cells = terminal.backend().buffer().content();
    let lines = cells.chunks(usize::from(width));
    lines
        .map(|line| line.iter().map(|cell| cell.symbol()).collect::<String>().trim_end().to_owned())
        .collect()
}

fn print(picture: &[String]) {
    println!("{}", picture.join("\n"));
}

/// A flow through a masquerade that lost 1 % on its way to the server.
fn translated() -> Flow {
    let mut flow = flow("10.0.0.2:40000", "198.51.100.7:443");
    flow.client_outside = Some("203.0.113.1:40000".parse().unwrap());
    flow.server_inside = Some(flow.server);
    flow.client_interface = Some("in0".to_owned());
    flow.state = FlowState::Open;
    flow.client_side.bytes = 1 << 20;
    flow.client_side.round_trips.smallest_ns = Some(250_000);
    flow.client_side.round_trips.buckets[8] = 40;
    flow.server_side.round_trips.smallest_ns = Some(12_300_000);
    flow.server_side.round_trips.buckets[19] = 100;
    flow.server_side.round_trips.buckets[21] = 25;
    flow.server_side.lost_to = loss(100, 10_000);
    flow.server_side.lost_from = loss(0, 30_000);
    flow.client_side.lost_from = loss(0, 10_000);
    flow.client_side.lost_to = loss(0, 30_000);
    flow.client_side.limits = limits(10.0, 30.0);
    flow
}

/// Two readings, a second apart, of 200 flows: the rates are what came between them.
fn view() -> View {
    let at = |seconds: f64| {
        let mut flows = vec![translated()];
        flows[0].client_side.bytes += (seconds * 1e6 / 8.0) as u64;
        flows[0].server_side.lost_to.segments += 7 * (seconds as u64 - 1);
        let many = (2..=200).map(|n| flow(&format!("10.0.{n}.2:40000"), "198.51.100.8:80"));
        flows.extend(many);
        let mut reading = reading(flows);
        reading.seconds = seconds;
        reading.networks = (0..60).map(|n| network(&format!("198.51.{n}.0/24"))).collect();
        reading.networks_in_all = 60;
        reading.all.client_side.bytes = (seconds * 1e6 / 8.0) as u64;
        reading.all.server_side.lost_to.segments = 7 * (seconds as u64 - 1);
        reading
    };
    let mut view = View::new("this namespace");
    view.read(at(1.0));
    view.read(at(2.0));
    view
}

#[test]
fn a_terminal_of_80_columns_shows_totals_a_table_and_keys() {
    let mut view = view();
    view.press(Key::Char('3'));
    let lines = picture(&mut view, 80, 24);
    print(&lines);
    assert!(
        lines[0].starts_with(" TCP, UDP through in0, out0, 2 s, 200 and 0 flows now, 0 over"),
        "{}",
        lines[0]
    );
    assert!(lines[1].starts_with(" from clients  1.00 Mbit/s"), "{}", lines[1]);
    assert!(lines[1].ends_with("██  max 1.00 Mbit/s"), "{}", lines[1]);
    assert!(
        lines[3].starts_with(" lost segments           7") && lines[3].ends_with("█  max 7"),
        "{}",
        lines[3]
    );
    assert!(
        lines[4].contains(" 1 nets 2 hosts 3 flows 4 UDP 5 DNS 6 ICMP 7 rest 8 procs  200 rows by rate"),
        "{}",
        lines[4]
    );
    let words: Vec<&str> = lines[5].split_whitespace().collect();
    assert_eq!(words, ["client", ">", "server", "rate▼", "RTT", "c", "RTT", "s", "loss", "c", "loss", "s"]);
    // The busiest flow is first: of 40,000 segments at the server 107 were lost, of those at the client none.
    let row: Vec<&str> = lines[6].split_whitespace().collect();
    assert_eq!(row[..5], ["10.0.0.2:40000", ">", "198.51.100.7:…", "1.00", "Mbit/s"]);
    assert_eq!(row[5..], ["250", "µs", "12.3", "ms", "<", "0.01", "%", "0.27", "%"], "{}", lines[6]);
    assert!(lines[21].starts_with(" 10.0.") && lines[22].is_empty(), "{lines:#?}");
    assert!(lines[23].starts_with(" q quit  ? help"), "{}", lines[23]);
}

#[test]
fn wider_terminals_have_more_columns() {
    for (width, head) in [
        (120, "network rate▼ limit RTT c RTT s from c to s from s to c"),
        (160, "network flows bytes rate▼ limit RTT c RTT s from c to s from s to c"),
    ] {
        let mut view = view();
        let lines = picture(&mut view, width, 40);
        print(&lines);
        assert_eq!(lines[5].split_whitespace().collect::<Vec<_>>().join(" "), head);
        let row = lines[6].split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(
            row.starts_with("198.51.") && row.ends_with("123 ms 123 ms 1.2 % 1.2 % 1.2 % 1.2 %"),
            "{row}"
        );
        assert_eq!(
            row.contains("123,456 2.00 PiB") || row.contains("123,456 2048 TiB"),
            width == 160,
            "{row}"
        );
        assert!(lines[37].starts_with(" 198.51."), "the table takes all lines: {lines:#?}");
    }
}

#[test]
fn the_selection_stays_in_sight_and_its_row_is_spelled_out() {
    let mut view = view();
    view.press(Key::Char('3'));
    view.press(Key::End);
    let lines = picture(&mut view, 80, 24);
    let last = view.rows[199].name.clone();
    assert!(lines[21].starts_with(&format!(" {}", &last[..20])), "{lines:#?}");
    assert!(lines[22].starts_with(&format!(" {last}")), "{lines:#?}");
    view.press(Key::Home);
    let lines = picture(&mut view, 80, 24);
    assert!(
        lines[22].starts_with(" 10.0.0.2:40000 > 198.51.100.7:443, > network 75 %, from client < 0.03 %, to"),
        "{}",
        lines[22]
    );
}

#[test]
fn limits_have_a_column_where_it_has_room_and_are_sorted_and_found() {
    let mut view = view();
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    for (tab, width, head, cells) in [
        ('1', 79, "network rate▼ RTT c RTT s loss c loss s", None),
        ('1', 80, "network rate▼ limit RTT c RTT s loss c loss s", Some(" >recv ")),
        (
            '1',
            132,
            "network flows bytes rate▼ limit RTT c RTT s from c to s from s to c",
            Some(" > receiver 90 % "),
        ),
        ('2', 80, "inside host rate▼ limit RTT c RTT s loss c loss s", Some(" >net ")),
        ('3', 87, "client > server rate▼ RTT c RTT s loss c loss s", None),
        ('3', 88, "client > server rate▼ limit RTT c RTT s loss c loss s", Some(" >net ")),
    ] {
        view.press(Key::Char(tab));
        let lines = picture(&mut view, width, 24);
        print(&lines);
        assert_eq!(words(&lines[5]), head, "{width}");
        let has = |text: &str| lines[6].contains(text);
        assert!(cells.map_or(!has("recv") && !has("net"), has), "{width}: {}", lines[6]);
        // A name of a network of IPv4, or both ends of a flow of it, has room.
        assert!(tab != '3' || lines[6].contains("198.51.100.7:"), "{}", lines[6]);
    }
    for key in "ssssss".chars() {
        view.press(Key::Char(key));
    }
    view.press(Key::Char('r'));
    let lines = picture(&mut view, 100, 24);
    assert!(lines[4].ends_with("200 rows by limit, reversed") && lines[5].contains("limit▲"), "{lines:#?}");
    view.press(Key::Char('/'));
    "NETWORK".chars().for_each(|c| assert!(view.press(Key::Char(c))));
    let lines = picture(&mut view, 88, 24);
    assert!(
        lines[4].contains("1 rows by limit") && lines[6].contains(" 10.0.0.2:40000 > 198.51.100.7:"),
        "{lines:#?}"
    );
}

#[test]
fn details_have_both_tuples_the_histogram_and_losses_over_time() {
    let mut view = view();
    for key in [Key::Char('3'), Key::Down, Key::Enter] {
        view.press(key);
    }
    let whole = picture(&mut view, 100, 50).join("\n");
    println!("{whole}");
    for text in [
        "open, 0 s old",
        "the client's side 10.0.0.2:40000 > 198.51.100.7:443, by in0",
        "the server's side 203.0.113.1:40000 > 198.51.100.7:443, not seen yet",
        "limited by                      network 75 %                           -",
        "  receiver                      10.0 s, 25 %                           -",
        "  network                       30.0 s, 75 %                           -",
        "lost to server",
        "max 7",
        "client sends",
    ] {
        assert!(whole.contains(text), "{text}");
    }
    // Buckets from the first to the last with round trips: 8 to 21, each end 1.5 or 1.33 times the one before.
    let ends: Vec<&str> =
        whole.lines().filter_map(|l| l.trim().strip_prefix("to ")?.split("  ").next()).collect();
    assert_eq!(ends.first().zip(ends.last()), Some((&"256 µs", &"24.6 ms")), "{ends:?}");
    assert_eq!(ends.len(), 14);
    let full = "█".repeat(22);
    assert!(whole.contains(&format!("{full} 40")) && whole.contains(&format!("{full} 100")));
    assert!(whole.contains(&format!(" {} 25", "█".repeat(6))), "25 of 100 are 5.5 of 22 columns");
    // A low terminal shows a part, and the rest by scrolling.
    let lines = picture(&mut view, 80, 24);
    assert!(lines[21].ends_with(" more"), "{lines:#?}");
    view.press(Key::End);
    let lines = picture(&mut view, 80, 24);
    assert!(lines[21].contains("24.6 ms"), "{lines:#?}");
    // A flow that has gone is not shown as another one.
    view.read(reading(Vec::new()));
    assert!(picture(&mut view, 80, 24).join("\n").contains("has left the table"));
}

#[test]
fn any_size_and_any_page_is_drawn() {
    let mut view = view();
    view.read(udp_reading());
    let pages: [&[Key]; 8] = [
        &[],
        &[Key::Char('4'), Key::Down, Key::Enter],
        &[Key::Escape, Key::Char('5'), Key::Char('s')],
        &[Key::Down, Key::Enter, Key::PageDown, Key::Escape],
        &[Key::Char('2'), Key::Down],
        &[Key::Char('/'), Key::Char('x')],
        &[Key::Escape, Key::Char('?')],
        &[Key::Escape, Key::Char('3'), Key::Down, Key::Enter, Key::PageDown],
    ];
    for keys in pages {
        keys.iter().for_each(|key| assert!(view.press(*key)));
        for width in [1, 2, 10, 39, 80, 131, 300] {
            for height in [1, 2, 3, 4, 5, 13, 14, 24, 100] {
                assert_eq!(picture(&mut view, width, height).len(), usize::from(height));
            }
        }
    }
}

#[test]
fn help_freezing_and_warnings_are_in_sight() {
    let mut view = view();
    view.press(Key::Char('?'));
    let lines = picture(&mut view, 80, 32);
    print(&lines);
    assert!(lines.iter().any(|l| l.contains("q, Ctrl-C") && l.contains("Quit")));
    view.press(Key::Char('?'));
    view.press(Key::Char('f'));
    assert!(picture(&mut view, 80, 24)[0].ends_with(" FROZEN"));
    view.press(Key::Char('f'));
    let mut full = Reading::empty();
    full.not_tracked.no_room = 1234;
    view.read(full);
    let lines = picture(&mut view, 80, 24);
    assert!(lines[22].contains("1,234 packets of flows that found no room"), "{lines:#?}");
    assert!(lines[6].contains("no packet of TCP or UDP has passed"), "{lines:#?}");
    view.remark("cannot write r.jsonl: no space left", true);
    assert!(picture(&mut view, 80, 24)[22].contains("no space left"));
}

/// A flow of QUIC whose client has sent in vain for 4 s, and 100 queries of DNS.
fn udp_reading() -> Reading {
    let mut quic = UdpFlow::empty();
    (quic.client, quic.server) = ("10.0.0.2:40000".parse().unwrap(), "198.51.100.7:443".parse().unwrap());
    (quic.kind, quic.state, quic.age_seconds) = (UdpKind::Quic, UdpState::Silent, 8.0);
    quic.client_side.bytes = 1 << 20;
    quic.client_side.longest_silence_seconds = 4.0;
    let mut dns = UdpFlow::empty();
    (dns.client, dns.server) = ("10.0.0.2:0".parse().unwrap(), "198.51.100.53:53".parse().unwrap());
    (dns.kind, dns.state) = (UdpKind::Dns, UdpState::Open);
    let mut counts = Reading::empty().all.udp.dns;
    (counts.queries, counts.answers, counts.unanswered, counts.servfail) = (100, 97, 3, 5);
    (counts.times.median_ns, counts.times.p95_ns) = (Some(12_300_000), Some(49_200_000));
    (counts.times.buckets[19], counts.times.buckets[23]) = (90, 7);
    dns.dns = Some(counts);
    let mut reading = reading(Vec::new());
    (reading.seconds, reading.udp_flows_now) = (3.0, 2);
    quic.icmp_errors = Some(IcmpErrors {
        count: 2,
        from: "198.51.100.1".parse().unwrap(),
        meaning: IcmpMeaning::TooBig,
        about_client: true,
        mtu: Some(1400),
    });
    reading.udp_flows = vec![quic, dns];
    reading.icmp_errors = vec![IcmpReporter {
        from: "198.51.100.1".parse().unwrap(),
        meaning: IcmpMeaning::TooBig,
        icmp_type: 3,
        icmp_code: 4,
        packets: 1234,
        smallest_mtu: Some(1400),
    }];
    reading
}

#[test]
fn udp_and_dns_have_their_tables_and_details() {
    let mut view = View::new("this namespace");
    view.read(udp_reading());
    view.press(Key::Char('4'));
    view.press(Key::Down);
    let lines = picture(&mut view, 80, 24);
    print(&lines);
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    assert_eq!(words(&lines[5]), "client > server kind rate▼ silence c silence s");
    assert!(words(&lines[6]).starts_with("10.0.0.2:40000 > 198.51.100.7:443 QUIC "), "{}", lines[6]);
    assert!(words(&lines[6]).ends_with(" 4.00 s -"), "{}", lines[6]);
    assert!(lines[7].is_empty(), "DNS has a table of its own: {}", lines[7]);
    assert!(lines[22].contains("QUIC, silent, client sent 4.00 s without an"), "{}", lines[22]);
    view.press(Key::Enter);
    let page = picture(&mut view, 80, 30).join("\n");
    print(std::slice::from_ref(&page));
    assert!(page.contains("2, latest: packet too big, MTU 1400, from 198.51.100.1"), "{page}");
    assert!(page.contains("QUIC, silent, 8 s old") && page.contains("1.05 Mbit/s on average"), "{page}");
    view.press(Key::Escape);
    view.press(Key::Char('5'));
    view.press(Key::Down);
    let lines = picture(&mut view, 80, 24);
    print(&lines);
    assert_eq!(words(&lines[5]), "client > server queries▼ half 95 % no answer");
    assert_eq!(words(&lines[6]), "10.0.0.2 > 198.51.100.53 100 12.3 ms 49.2 ms 3");
    assert!(lines[22].ends_with("DNS, open, 3 without an answer, 5 SERVFAIL"), "{}", lines[22]);
    view.press(Key::Char('s'));
    assert!(picture(&mut view, 80, 24)[5].contains("half▼"));
    view.press(Key::Enter);
    let page = picture(&mut view, 80, 40).join("\n");
    print(std::slice::from_ref(&page));
    for text in ["100 queries, 97 answers, 0 wait", "half 12.3 ms, 95 % 49.2 ms", "to 12.3 ms", "█ 90", "█ 7"]
    {
        assert!(page.contains(text), "{text}: {page}");
    }
    view.press(Key::Escape);
    view.press(Key::Char('6'));
    view.press(Key::Down);
    let lines = picture(&mut view, 80, 24);
    print(&lines);
    assert_eq!(words(&lines[5]), "sender meaning MTU errors▼");
    assert_eq!(words(&lines[6]), "198.51.100.1 packet too big 1400 1,234");
    assert!(lines[22].contains("type 3, code 4"), "{}", lines[22]);
    // The order of one table is none of another.
    view.press(Key::Char('3'));
    assert!(picture(&mut view, 80, 24)[4].contains("rows by rate"));
    view.press(Key::Char('5'));
    view.press(Key::Enter);
    view.read(reading(Vec::new()));
    assert!(picture(&mut view, 80, 24)[6].contains("no DNS packet has passed"));
}

/// Two flows outside of the sample, after so many seconds: 10 Mbit/s of TCP, and one that stands still.
fn untracked_reading(seconds: f64) -> Reading {
    let flow = |protocol, port: u16, bytes: f64| UntrackedFlow {
        protocol,
        source: format!("10.0.0.2:{port}").parse().unwrap(),
        destination: "198.51.100.7:443".parse().unwrap(),
        size: Estimate { bytes, low: bytes * 0.9, high: bytes * 1.1 },
    };
    let mut reading = reading(Vec::new());
    reading.seconds = seconds;
    reading.untracked.flows = vec![flow(47, 0, 9e6), flow(6, 40_000, 1e6 + seconds * 1.25e6)];
    reading
}

#[test]
fn flows_that_are_not_tracked_have_their_table() {
    let mut view = View::new("this namespace");
    view.press(Key::Char('7'));
    view.read(untracked_reading(1.0));
    view.read(untracked_reading(2.0));
    view.read(untracked_reading(3.0));
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    for (width, head, rows) in [
        (
            80,
            "source > destination bytes rate▼",
            [
                "10.0.0.2:40000 > 198.51.100.7:443 TCP 4.53 MiB 10.0 Mbit/s",
                "10.0.0.2 > 198.51.100.7:443 protocol 47 8.58 MiB 0 bit/s",
            ],
        ),
        (
            120,
            "source > destination bytes at 95 % bytes rate▼",
            [
                "10.0.0.2:40000 > 198.51.100.7:443 TCP 4.08 MiB to 4.98 MiB 4.53 MiB 10.0 Mbit/s",
                "10.0.0.2 > 198.51.100.7:443 protocol 47 7.72 MiB to 9.44 MiB 8.58 MiB 0 bit/s",
            ],
        ),
    ] {
        let lines = picture(&mut view, width, 24);
        print(&lines);
        assert_eq!(words(&lines[5]), head);
        assert_eq!([words(&lines[6]), words(&lines[7])], rows);
    }
    for (key, first) in [(Key::Char('s'), "protocol 47"), (Key::Char('r'), " TCP ")] {
        view.press(key);
        let lines = picture(&mut view, 80, 24);
        assert!(lines[6].contains(first), "{}", lines[6]);
    }
    for key in "/tcp".chars().map(Key::Char).chain([Key::Enter]) {
        view.press(key);
    }
    view.press(Key::Down);
    let lines = picture(&mut view, 100, 24);
    assert!(lines[7].is_empty() && lines[22].contains("not tracked, 4.08 MiB to 4.98 MiB"), "{lines:#?}");
    view.press(Key::Enter);
    assert_eq!(picture(&mut view, 100, 24), lines, "there are no details");
}

#[test]
fn escape_sequences_in_names_do_nothing() {
    let hostile = "l\u{1b}[31mn0\u{1b}]0;title\u{7}\u{202e}";
    let mut one = translated();
    one.client_interface = Some(hostile.to_owned());
    let mut reading = reading(vec![one]);
    reading.interfaces = vec![hostile.to_owned()];
    let mut view = View::new(hostile);
    view.read(reading);
    for keys in [vec![], vec![Key::Char('3'), Key::Down, Key::Enter]] {
        keys.into_iter().for_each(|key| assert!(view.press(key)));
        let text = picture(&mut view, 100, 40).join("\n");
        assert!(text.contains("ln0") && !text.contains("[31m") && !text.contains("title"), "{text}");
        assert!(!text.contains(|c: char| (c.is_control() && c != '\n') || c == '\u{202e}'), "{text:?}");
    }
}
