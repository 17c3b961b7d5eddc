//! The rules of the verdict, row by row.

use super::*;
use crate::diagnosis::{Balance, Lost};
use crate::evidence::{Cost, EvidenceSource};
use crate::finding::{Confidence, Finding};

const WINDOW_S: f64 = 10.0;

pub(super) fn finding(cause: &str, place: &str, object: &str, severity: Severity, packets: u64) -> Finding {
    Finding {
        cause: cause.into(),
        namespace: 1,
        place: place.into(),
        severity,
        confidence: Confidence::High,
        object: object.into(),
        summary: String::new(),
        evidence: Vec::new(),
        not: Vec::new(),
        missing: Vec::new(),
        claims: Vec::new(),
        impact: 0.0,
        fixes: Vec::new(),
        explains_packets: packets,
        explains_ratio: 0.0,
    }
}

pub(super) fn balance(place: &str, came: u64, lost: u64) -> Balance {
    Balance {
        namespace: 1,
        place: place.into(),
        received: came,
        sent: 0,
        forwarded: 0,
        delivered: came - lost,
        made: 0,
        lost,
        unaccounted: 0,
        interfaces: Vec::new(),
    }
}

/// A host with one namespace `a`, to which 20,000 packets come.
pub(super) fn host(findings: Vec<Finding>) -> Diagnosis {
    let lost: u64 = findings.iter().map(|f| f.explains_packets).sum();
    Diagnosis {
        window_s: WINDOW_S,
        ended_unix_s: 1000,
        findings,
        lost: Lost { packets: lost, explained: lost, harmless: 0 },
        balance: vec![balance("a", 20_000, lost)],
        evidence_sources: [
            (EvidenceSource::Drops, Sight::Seen),
            (EvidenceSource::Rules, Sight::Partly("not in b".into())),
        ]
        .into(),
        cost: Cost::default(),
        since: None,
    }
}

fn rule(packets: u64) -> Finding {
    finding("nft-rule-drop", "a", "rule ip t c handle 4: udp dport 7000 drop", Severity::Critical, packets)
}

/// A finding whose harm packets do not express.
fn small_segments(severity: Severity, impact: f64) -> Finding {
    Finding { impact, ..finding("mss-small", "a", "eth0", severity, 0) }
}

fn note(packets: u64) -> Finding {
    finding("no-listener", "a", "udp port 9", Severity::Note, packets)
}

fn later(change: impl FnOnce(&mut Diagnosis), findings: Vec<Finding>) -> Diagnosis {
    let mut now = Diagnosis { ended_unix_s: 1130, ..host(findings) };
    change(&mut now);
    now
}

#[track_caller]
fn expect(before: &Diagnosis, now: &Diagnosis, verdict: SinceVerdict, words: &str) -> Since {
    let since = compare("before.json", before, now);
    assert_eq!(since.verdict, verdict, "{since:#?}");
    assert!(since.why.join("; ").contains(words), "{words}: {since:#?}");
    since
}

#[test]
fn findings_decide_where_traffic_and_sight_are_the_same() {
    use Severity::{Critical, Note, Warning};
    use SinceVerdict::{Better, Mixed, Same, Worse};
    let seg = small_segments;
    let cases: [(&str, Vec<Finding>, Vec<Finding>, SinceVerdict); 21] = [
        ("nothing at all", vec![], vec![], Same),
        ("gone", vec![rule(2000)], vec![], Better),
        ("less", vec![rule(2000)], vec![rule(1000)], Better),
        ("less than a tenth less", vec![rule(2000)], vec![rule(1850)], Same),
        ("less by chance", vec![rule(20)], vec![rule(12)], Same),
        ("new", vec![], vec![rule(2000)], Worse),
        ("more", vec![rule(1000)], vec![rule(2000)], Worse),
        ("more by chance", vec![rule(12)], vec![rule(20)], Same),
        ("new and gone", vec![rule(2000)], vec![seg(Warning, 0.3)], Mixed),
        ("more and gone", vec![rule(2000), seg(Warning, 0.2)], vec![seg(Warning, 0.4)], Mixed),
        ("fewer packets, more impact", vec![rule(2000)], vec![Finding { impact: 0.5, ..rule(100) }], Worse),
        ("less impact", vec![seg(Critical, 0.5)], vec![seg(Warning, 0.2)], Better),
        ("less impact by a hair", vec![seg(Critical, 0.5)], vec![seg(Critical, 0.48)], Same),
        ("a severity is the one measure", vec![seg(Critical, 0.0)], vec![seg(Warning, 0.0)], Better),
        ("a severity rose", vec![rule(2000)], vec![Finding { severity: Critical, ..rule(2000) }], Same),
        ("a lower severity alone", vec![rule(2000)], vec![Finding { severity: Warning, ..rule(2000) }], Same),
        ("a new harmless note", vec![rule(2000)], vec![note(3)], Better),
        ("a new note that harms", vec![rule(2000)], vec![Finding { impact: 0.1, ..note(0) }], Mixed),
        ("a new note beyond chance", vec![rule(2000)], vec![note(40)], Mixed),
        ("a gone harmless note", vec![note(0)], vec![], Same),
        ("gone, but chance explains it", vec![Finding { severity: Warning, ..rule(5) }], vec![], Same),
    ];
    for (name, before, now, verdict) in cases {
        let since = compare("f", &host(before), &later(|_| {}, now));
        assert_eq!(since.verdict, verdict, "{name}: {since:#?}");
        assert_eq!(since.earlier_s, 130);
    }
    let risen = compare("f", &host(vec![seg(Note, 0.0)]), &later(|_| {}, vec![seg(Critical, 0.0)]));
    assert_eq!((risen.verdict, risen.changes[0].change), (Worse, HowChanged::More));
}

fn scale(now: &mut Diagnosis, by: f64) {
    for b in &mut now.balance {
        for n in [&mut b.received, &mut b.made, &mut b.delivered, &mut b.forwarded] {
            *n = (*n as f64 * by) as u64;
        }
    }
}

#[test]
fn traffic_that_fell_is_no_cure() {
    use SinceVerdict::{Better, NotComparable, Same, Worse};
    let before = host(vec![rule(2000)]);
    // 18,000 packets were handled then.
    let kept = later(|d| d.balance = vec![balance("a", 16_200, 0)], vec![]);
    expect(&before, &kept, Better, "");
    let fell = later(|d| d.balance = vec![balance("a", 9_500, 0)], vec![]);
    let words = "packets delivered and forwarded fell from 1,800 to 950 per second; a loss that is gone may be traffic that is gone";
    let since = expect(&before, &fell, NotComparable, words);
    assert!(since.why[0].starts_with(words));
    let worse =
        later(|d| d.balance = vec![balance("a", 9_500, 0)], vec![small_segments(Severity::Warning, 0.3)]);
    assert!(expect(&before, &worse, Worse, words).why[0].starts_with(words), "the traffic first");
    let risen = later(|d| scale(d, 3.0), vec![]);
    expect(&before, &risen, Better, "");
    // Twice the loss in twice the traffic is not worse, and no praise either.
    let twice = |d: &mut Diagnosis| d.balance = vec![balance("a", 40_000, 4000)];
    expect(&before, &later(twice, vec![rule(4000)]), Same, "");
    let other = host(vec![rule(2000), small_segments(Severity::Warning, 0.3)]);
    expect(&other, &later(twice, vec![rule(4000)]), SinceVerdict::Mixed, "as many as the traffic grew by");
    expect(&before, &later(twice, vec![rule(5000)]), Worse, "");
    // A tenth less loss with a tenth less traffic is the same.
    let thinner = later(|d| d.balance = vec![balance("a", 18_100, 1820)], vec![rule(1820)]);
    expect(&before, &thinner, Same, "");
}

#[test]
fn every_namespace_with_a_finding_keeps_its_traffic_and_none_falls_silent() {
    use SinceVerdict::{Better, NotComparable};
    let with = |mut d: Diagnosis, b: u64| {
        d.balance.push(balance("b", b, 0));
        d.balance.push(balance("c", 100_000, 0));
        d
    };
    let both = || vec![rule(2000), finding("mss-small", "b", "", Severity::Warning, 0)];
    let still = || vec![finding("mss-small", "b", "", Severity::Warning, 0)];
    let halved = with(later(|_| {}, still()), 500);
    expect(&with(host(both()), 1000), &halved, NotComparable, "forwarded in b fell from 100 to 50");
    expect(&with(host(both()), 1000), &with(later(|_| {}, still()), 1000), Better, "");
    // Nothing was found in b: half of it may be gone, nine tenths may not.
    let before = with(host(vec![rule(2000)]), 1000);
    expect(&before, &with(later(|_| {}, vec![]), 500), Better, "");
    expect(&before, &with(later(|_| {}, vec![]), 90), NotComparable, "in b fell from 100 to 9.0");
    // A namespace that is not there any more.
    let gone = later(|d| d.balance = vec![balance("c", 200_000, 0)], vec![]);
    expect(&before, &gone, NotComparable, "in a fell from 1,800 to 0");
}

#[test]
fn a_sender_that_stopped_where_everything_was_lost_is_no_cure() {
    let all_lost = host(vec![rule(20_000)]);
    let few = later(|d| d.balance = vec![balance("a", 50, 0)], vec![]);
    expect(
        &all_lost,
        &few,
        SinceVerdict::NotComparable,
        "packets received and made here fell from 2,000 to 5.0",
    );
    expect(&all_lost, &later(|_| {}, vec![]), SinceVerdict::Better, "");
}

#[test]
fn without_traffic_nothing_compares() {
    let idle = |findings| later(|d| d.balance = vec![balance("a", 0, 0)], findings);
    let stuck = host(vec![rule(20_000)]);
    for (before, now) in [
        (idle(vec![]), host(vec![])),
        (idle(vec![small_segments(Severity::Warning, 0.5)]), idle(vec![])),
        (stuck.clone(), Diagnosis { ended_unix_s: 1130, ..stuck }),
    ] {
        let before = Diagnosis { ended_unix_s: 1000, ..before };
        let now = Diagnosis { ended_unix_s: 1130, ..now };
        expect(&before, &now, SinceVerdict::NotComparable, "no packet");
    }
}

#[test]
fn a_greater_share_of_loss_is_never_better() {
    use SinceVerdict::{Better, Mixed, Same, Worse};
    let lose = |lost: u64| {
        move |d: &mut Diagnosis| {
            d.lost.packets = lost;
            d.balance = vec![balance("a", 20_000, lost)];
        }
    };
    let segments = || vec![small_segments(Severity::Warning, 0.5)];
    let with = |findings: Vec<Finding>, lost: u64| {
        let mut before = host(findings);
        lose(lost)(&mut before);
        before
    };
    expect(&with(segments(), 200), &later(lose(200), vec![]), Better, "");
    expect(&with(segments(), 200), &later(lose(215), vec![]), Better, "");
    expect(
        &with(segments(), 200),
        &later(lose(400), vec![]),
        Mixed,
        "the share of lost packets rose from 1 % to 2 %",
    );
    // Another loss, and a greater one, in place of the first.
    let other = || vec![finding("rule-drop", "a", "udp", Severity::Critical, 3000)];
    expect(&with(vec![rule(2000)], 2000), &later(lose(3000), other()), Worse, "rose from 10 % to 15 %");
    // Between chance and a tenth: a doubt excludes praise, and is no harm by itself.
    expect(&with(segments(), 5000), &later(lose(5300), vec![]), Mixed, "rose from 25 % to 26.5 %");
    expect(&with(vec![], 5000), &later(lose(5300), vec![]), Same, "");
    expect(&with(vec![], 200), &later(lose(400), vec![]), Worse, "rose");
    // Great shares: what is left halves. Poisson's test of the losses alone would call it chance.
    let most = |lost| {
        move |d: &mut Diagnosis| {
            d.lost.packets = lost;
            d.balance = vec![balance("a", 1000, lost)]
        }
    };
    let mut before = host(vec![]);
    most(800)(&mut before);
    expect(&before, &later(most(885), vec![]), SinceVerdict::Worse, "rose from 80 % to 88.5 %");
}

#[test]
fn less_evidence_is_not_comparable_and_named() {
    use SinceVerdict::{Better, NotComparable};
    let before = host(vec![rule(2000)]);
    let sight = |source, sight: Option<Sight>| {
        move |d: &mut Diagnosis| match sight {
            Some(sight) => _ = d.evidence_sources.insert(source, sight),
            None => _ = d.evidence_sources.remove(&source),
        }
    };
    let blind = Some(Sight::Blind("this needs root".into()));
    for (change, words) in [
        (
            sight(EvidenceSource::Drops, blind.clone()),
            "dropped packets is no longer in sight: this needs root",
        ),
        (sight(EvidenceSource::Drops, None), "dropped packets is no longer in sight"),
        (
            sight(EvidenceSource::Drops, Some(Sight::Partly("a gap".into()))),
            "dropped packets is in sight only in part now: a gap",
        ),
        (sight(EvidenceSource::Rules, blind), "rules is no longer in sight"),
    ] {
        let now = later(change, vec![small_segments(Severity::Critical, 1.0)]);
        expect(&before, &now, NotComparable, words);
    }
    expect(
        &before,
        &later(|d| d.window_s = 5.0, vec![]),
        NotComparable,
        "this window is shorter: 5.0 s instead of 10.0 s",
    );
    expect(&before, &later(|d| d.window_s = 9.99, vec![]), Better, "");
    expect(&before, &later(|d| d.ended_unix_s = 999, vec![]), NotComparable, "later than this one");
    let more = later(sight(EvidenceSource::Rules, Some(Sight::Seen)), vec![]);
    expect(&before, &more, Better, "");
}

#[test]
fn findings_are_matched_by_cause_place_and_object() {
    let buffer = |pid: u32, packets| {
        let object = format!("0.0.0.0:7100 of python3 (pid {pid})");
        finding("udp-buffer-full", "a", &object, Severity::Critical, packets)
    };
    let handle = |n: u32, port: u16| {
        let object = format!("rule ip t c handle {n}: udp dport {port} drop");
        finding("nft-rule-drop", "a", &object, Severity::Critical, 2000)
    };
    let listed = |before: Vec<Finding>, now: Vec<Finding>| -> Vec<HowChanged> {
        compare("f", &host(before), &later(|_| {}, now)).changes.iter().map(|c| c.change).collect()
    };
    use HowChanged::{Gone, Less, New, Same};
    assert_eq!(listed(vec![buffer(7, 2000)], vec![buffer(9, 500)]), [Less]);
    assert_eq!(listed(vec![handle(4, 7000)], vec![handle(9, 7000)]), [Same]);
    assert_eq!(
        listed(vec![handle(4, 7000)], vec![handle(4, 7001)]),
        [New, Gone],
        "another port, another rule"
    );
    // Two alike: no guess which is which.
    assert_eq!(listed(vec![buffer(7, 2000), buffer(8, 9)], vec![buffer(9, 500)]), [New, Gone, Gone]);
    assert_eq!(
        listed(vec![buffer(7, 2000), buffer(8, 9)], vec![buffer(7, 2000), buffer(9, 9)]),
        [Same, Same]
    );
    // One thing found twice is one.
    assert_eq!(listed(vec![rule(1000), rule(1000)], vec![rule(2000)]), [Same]);
    // Another inode of the namespace; another process id in its name.
    let moved = later(|d| d.findings[0].namespace = 77, vec![rule(2000)]);
    assert_eq!(compare("f", &host(vec![rule(2000)]), &moved).changes[0].change, Same);
}

#[test]
fn a_place_named_after_a_process_is_found_again_unless_both_are_there() {
    let at = |pids: &[u32], lossy: u32, packets: u64| {
        let name = |pid: u32| format!("nginx (pid {pid})");
        let mut d = host(vec![finding("no-route", &name(lossy), "", Severity::Critical, packets)]);
        d.balance = pids.iter().map(|pid| balance(&name(*pid), 20_000, 0)).collect();
        d
    };
    let changes = |before: &Diagnosis, now: &Diagnosis| -> Vec<HowChanged> {
        compare("f", before, now).changes.iter().map(|c| c.change).collect()
    };
    assert_eq!(changes(&at(&[5], 5, 2000), &at(&[6], 6, 500)), [HowChanged::Less]);
    assert_eq!(changes(&at(&[5, 6], 5, 2000), &at(&[5, 6], 6, 500)), [HowChanged::New, HowChanged::Gone]);
}

#[test]
fn the_last_report_of_a_file_is_read_and_others_are_refused() {
    const MARK: &str = "weir.doctor/1";
    let text = |window_s: f64, mark: &str| {
        let mut value = serde_json::to_value(Diagnosis { window_s, ..host(vec![rule(3)]) }).unwrap();
        value["schema"] = mark.into();
        value
    };
    let pretty = serde_json::to_string_pretty(&text(3.0, MARK)).unwrap();
    assert_eq!(read(&(pretty + "\n"), MARK).unwrap().window_s, 3.0);
    let lines = format!("{}\n{}\n", text(3.0, MARK), text(4.0, MARK));
    assert_eq!(read(&lines, MARK).unwrap().window_s, 4.0);
    let cut = &lines[..lines.len() - 5];
    for (wrong, words) in [
        ("", "it is empty"),
        (" \n", "it is empty"),
        ("\u{0}", "not JSON: expected value"),
        (cut, "not JSON: EOF"),
        ("[1, 2]", "no key \"schema\""),
        (r#"{"version": 1}"#, "no key \"schema\""),
        (r#"{"schema": "weir.mtu/1"}"#, "its schema is \"weir.mtu/1\", not \"weir.doctor/1\""),
        (r#"{"schema": "weir.doctor/1"}"#, "missing field"),
        (&text(0.0, MARK).to_string(), "its window_s is 0"),
        (&text(-1.0, MARK).to_string(), "its window_s is -1"),
    ] {
        let why = read(wrong, MARK).unwrap_err();
        assert!(why.contains(words), "{wrong:?}: {why}");
    }
}

#[test]
fn numbers_of_a_strange_file_do_not_overflow() {
    let mut strange = host(vec![]);
    strange.findings = vec![rule(u64::MAX), rule(u64::MAX)];
    strange.lost.packets = u64::MAX;
    strange.balance = vec![balance("a", u64::MAX, 0), balance("a", u64::MAX, 0)];
    (strange.window_s, strange.ended_unix_s) = (f64::MIN_POSITIVE, i64::MIN);
    let since = compare("f", &strange, &later(|_| {}, vec![]));
    assert_ne!(since.verdict, SinceVerdict::Better, "{since:?}");
}

#[test]
fn the_page_begins_with_the_comparison() {
    let page = |before: Diagnosis, mut now: Diagnosis| {
        now.since = Some(compare("old\u{1b}[31m.json", &before, &now));
        crate::render(&now, "here", weir_text::layout::Terminal { width: 200, color: false })
    };
    let before = vec![
        rule(1200),
        small_segments(Severity::Critical, 0.5),
        finding("no-route", "a", "", Severity::Warning, 400),
    ];
    let now = vec![
        rule(4800),
        small_segments(Severity::Critical, 0.2),
        finding("link-down", "a", "e\u{7}", Severity::Warning, 0),
    ];
    let text = page(host(before), later(|d| d.balance = vec![balance("a", 26_000, 4800)], now));
    let head: Vec<&str> = text.lines().take(7).map(str::trim).collect();
    assert!(
        head[0].starts_with("Since old")
            && head[0].ends_with(".json (2 min 10 s earlier): partly worse, partly better."),
        "{text}"
    );
    assert!(head[1].starts_with("The share of lost packets rose from 8 % to 18.5 %."), "{text}");
    assert!(head[2].starts_with("new: link-down in a (e") && head[2].ends_with(", warning"), "{text}");
    assert_eq!(
        head[3],
        "more: nft-rule-drop in a (rule ip t c handle 4: udp dport 7000 drop), 120 -> 480 packets/s"
    );
    assert_eq!(head[4], "less: mss-small in a (eth0), 50 % -> 20 % of its traffic");
    assert_eq!(head[5], "gone: no-route in a, 40 packets/s");
    assert!(text.chars().all(|c| !c.is_control() || c == '\n'), "{text:?}");
    let fell = later(|d| d.balance = vec![balance("a", 9_500, 0)], vec![]);
    let text = page(host(vec![rule(2000)]), fell);
    assert!(
        text.contains(
            "not comparable.\nPackets delivered and forwarded fell from 1,800 to 950 per second; a loss"
        ),
        "{text}"
    );
}
