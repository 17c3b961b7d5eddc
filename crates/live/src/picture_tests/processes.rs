//! Pictures of processes.

use weir_flows::{Container, LocalEnd};

use super::*;

#[test]
fn processes_have_their_table_and_lead_to_their_flows() {
    let at = |seconds: f64| {
        let mut one = translated();
        one.client_side.bytes += (seconds * 1e6 / 8.0) as u64;
        one.client_here = Some(LocalEnd { pid: Some(4711), process: Some("c\u{1b}[31murl".to_owned()) });
        let mut udp = udp_reading().udp_flows.remove(0);
        udp.client_here = Some(LocalEnd { pid: Some(12), process: Some("quiche".to_owned()) });
        let mut reading = reading(vec![one, flow("10.0.0.9:1", "198.51.100.7:443")]);
        (reading.seconds, reading.udp_flows) = (seconds, vec![udp]);
        reading.containers =
            vec![Container { address: "10.0.0.2".parse().unwrap(), name: "docker web".to_owned() }];
        reading
    };
    let mut view = View::new("this namespace");
    view.press(Key::Char('8'));
    assert!(picture(&mut view, 80, 24)[6].contains("no packet of TCP or UDP has passed"));
    view.read(at(1.0));
    view.read(at(2.0));
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    for (width, tabs) in
        [(80, " 7 rest 8 procs  3 rows by rate"), (120, " 7 rest 8 processes  3 rows by rate")]
    {
        let lines = picture(&mut view, width, 24);
        print(&lines);
        assert!(lines[4].ends_with(tabs), "{}", lines[4]);
        // A name of this length has room on a small terminal, without the limit.
        let limit = if width > 80 { " >net" } else { "" };
        let head = words(&lines[5]);
        assert!(head.starts_with("process rate▼ ") && head.contains("limit") == (width > 80), "{head}");
        let first = format!("curl (pid 4711) docker web 1.00 Mbit/s{limit} 250 µs 12.3 ms");
        assert!(words(&lines[6]).starts_with(&first), "{}", lines[6]);
        let others: Vec<String> = lines[7..9].iter().map(|line| words(line)).collect();
        assert!(others[0].starts_with("quiche (pid 12) docker web 0 bit/s"), "{others:?}");
        assert!(others[1].starts_with("(not on this host) 0 bit/s"), "{others:?}");
        assert!(lines[9].is_empty(), "{}", lines[9]);
    }
    // The flows of a process, with its name in the details; of one with UDP alone these.
    view.press(Key::Down);
    view.press(Key::Enter);
    let lines = picture(&mut view, 100, 24);
    assert!(
        lines[4].contains("3 flows") && lines[4].contains("1 rows by rate, filter: pid=4711"),
        "{}",
        lines[4]
    );
    view.press(Key::Down);
    view.press(Key::Enter);
    let page = picture(&mut view, 80, 40).join("\n");
    assert!(page.contains("client process    curl (pid 4711)") && !page.contains('\u{1b}'), "{page}");
    for key in [Key::Escape, Key::Escape, Key::Char('8'), Key::Down, Key::Down, Key::Enter] {
        view.press(key);
    }
    let lines = picture(&mut view, 100, 24);
    assert!(lines[4].contains("1 rows by rate, filter: pid=12"), "{}", lines[4]);
    assert!(words(&lines[6]).starts_with("10.0.0.2:40000 > 198.51.100.7:443 QUIC"), "{}", lines[6]);
    for key in [Key::Down, Key::Enter] {
        view.press(key);
    }
    let page = picture(&mut view, 80, 40).join("\n");
    assert!(page.contains("client process    quiche (pid 12)"), "{page}");
    // The reason why some are missing is in sight in this table alone.
    for key in [Key::Escape, Key::Escape, Key::Char('8')] {
        view.press(key);
    }
    view.read(Reading { processes_missing: Some("no \u{1b}[31mlook".to_owned()), ..at(3.0) });
    assert!(picture(&mut view, 80, 24)[22].starts_with(" no look"));
    view.press(Key::Char('1'));
    assert!(picture(&mut view, 80, 24)[22].is_empty());
}
