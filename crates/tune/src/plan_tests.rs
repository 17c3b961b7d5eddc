use super::super::Budget;
use super::*;
use weir_guard::Namespace;
use weir_testkit::Files;

/// A machine of files: 8 GiB, 4 GiB of them available, objects as on x86-64 with Linux 6.18.
pub(crate) fn machine(settings: &[(&str, &str)]) -> (Files, TunedHost) {
    let files = Files::new(&[
        ("proc/meminfo", "MemTotal: 8388608 kB\nMemAvailable: 4194304 kB\n"),
        ("etc/sysctl.d/README", ""),
    ]);
    let slab = |name, size, each| format!("{name} 0 0 {size} {each} 1 : tunables 0 0 0 : slabdata 0 0 0\n");
    let both = format!("{}{}", slab("nf_conntrack", 256, 16), slab("kmalloc-128", 128, 32));
    files.put("proc/slabinfo", &both);
    files.set("net.core.netdev_max_backlog", "1000");
    settings.iter().for_each(|(name, value)| files.set(name, value));
    let view = View { root: files.root(), namespace: None };
    (files, TunedHost { view, name: "this network namespace".into(), namespace: None })
}

pub(crate) const CONNTRACK: [(&str, &str); 4] = [
    ("net.netfilter.nf_conntrack_count", "999"),
    ("net.netfilter.nf_conntrack_max", "1000"),
    ("net.netfilter.nf_conntrack_buckets", "512"),
    ("net.netfilter.nf_conntrack_tcp_timeout_established", "86400"),
];

pub(crate) fn request() -> Request {
    Request {
        profiles: Vec::new(),
        findings: None,
        set: Vec::new(),
        memory: Budget::Share(0.05),
        peak: None,
        rtt_ms: 100,
        window: Duration::ZERO,
        actions: Vec::new(),
        advice: Vec::new(),
        notes: Vec::new(),
    }
}

fn findings(json: serde_json::Value) -> Request {
    Request { findings: Some(("found.json".into(), json.to_string())), ..request() }
}

fn finding(confidence: &str, namespace: u64, name: &str, proposed: &str) -> serde_json::Value {
    serde_json::json!([{
        "cause": "some-cause", "namespace": namespace, "place": "x\u{1b}[31m", "confidence": confidence,
        "fixes": [{ "tune": [{ "name": name, "now": "1", "proposed": proposed, "why": "it was seen" }] }],
    }])
}

#[test]
fn a_gateways_plan_has_prices_order_and_the_way_back() {
    let (_files, place) = machine(&CONNTRACK);
    let plan = plan(&place, &Request { profiles: vec![Profile::NatGateway], ..request() }).unwrap();
    let rows: Vec<(&str, &str, i64)> =
        plan.rows.iter().map(|r| (r.name.as_str(), r.proposed.as_str(), r.memory_bytes)).collect();
    // Buckets grow before the limit. 8 bytes each; 4096/16 + 4096/32 = 384 bytes an entry.
    assert_eq!(
        rows,
        [
            ("net.netfilter.nf_conntrack_buckets", "262144", (262_144 - 512) * 8),
            ("net.netfilter.nf_conntrack_max", "262144", (262_144 - 1000) * 384),
        ]
    );
    assert_eq!(plan.memory_bytes, (262_144 - 512) * 8 + (262_144 - 1000) * 384);
    // 5 % of 8 GiB.
    assert_eq!(plan.budget_bytes, 429_496_729);
    assert_eq!(plan.rows[1].undo, "sysctl -w net.netfilter.nf_conntrack_max='1000'");
    assert_eq!(plan.files, ["/etc/sysctl.d/90-weir.conf"]);
    let set = plan.change_set(120);
    assert_eq!((set.changes.len(), set.id() == plan.id), (3, true));
    assert!(matches!(&set.changes[2], (When::Confirm, Change::TextFile { .. })));
    let page = super::super::render_plan(&plan, 80);
    for line in page.lines().filter(|line| !line.starts_with("    undo")) {
        assert!(line.chars().count() <= 80, "{line}");
    }
    for words in ["1000 -> 262144", "+95.6 MiB at most", "a budget of 410 MiB", "confirm writes /etc"] {
        assert!(page.contains(words), "{words}:\n{page}");
    }
}

#[test]
fn what_the_budget_cannot_pay_for_is_not_proposed() {
    let (_files, place) = machine(&CONNTRACK);
    let name = "net.netfilter.nf_conntrack_max";
    let many = Request { memory: Budget::Bytes(384_000), ..findings(finding("high", 0, name, "50000000")) };
    let plan = plan(&place, &many).unwrap();
    // 384,000 bytes are room for 1000 entries more.
    assert_eq!(plan.rows[0].proposed, "2000");
    assert!(plan.notes.iter().any(|n| n.contains("room for 2000")), "{:?}", plan.notes);
    let set = |value: &str, memory| Request { set: vec![(name.into(), value.into())], memory, ..request() };
    let error = super::plan(&place, &set("50000000", Budget::Bytes(1 << 20))).unwrap_err().to_string();
    assert!(error.contains("--memory"), "{error}");
    // Half of the available memory is the most that a share may take.
    let share = super::plan(&place, &Request { memory: Budget::Share(0.5), ..request() }).unwrap();
    assert_eq!(share.budget_bytes, 2 << 30);
}

/// Each of them alone fits; what they take together is what counts.
#[test]
fn the_budget_is_for_all_settings_together() {
    const THRESHOLD: &str = "net.ipv4.neigh.default.gc_thresh3";
    const MAX: &str = "net.netfilter.nf_conntrack_max";
    let (_files, place) = machine(&[&CONNTRACK[..], &[(THRESHOLD, "1024")]].concat());
    let set = |pairs: &[(&str, &str)], memory| Request {
        set: pairs.iter().map(|(n, v)| ((*n).to_owned(), (*v).to_owned())).collect(),
        memory: Budget::Bytes(memory),
        ..request()
    };
    // 1000 entries of 384 bytes and 1024 neighbours of 512.
    let both = [(MAX, "2000"), (THRESHOLD, "2048")];
    let refused = plan(&place, &set(&both, 384_000 + 524_287)).unwrap_err().to_string();
    assert!(refused.contains(THRESHOLD) && refused.ends_with("524287 are left"), "{refused}");
    let fits = plan(&place, &set(&both, 384_000 + 524_288)).unwrap();
    assert_eq!(fits.memory_bytes as u64, fits.budget_bytes);
    // A setting that shrinks does not pay for one that grows: it may be left out in the end.
    assert!(plan(&place, &set(&[(MAX, "500"), (THRESHOLD, "2048")], 524_287)).is_err());

    // Settings asked for outright go first, then profiles, then findings with what is left.
    let more =
        Request { profiles: vec![Profile::NatGateway], ..findings(finding("high", 0, THRESHOLD, "1000000")) };
    for memory in (500_000..200_000_000).step_by(3_000_001) {
        let plan = plan(&place, &Request { memory: Budget::Bytes(memory), ..more.clone() }).unwrap();
        let sum: i64 = plan.rows.iter().map(|r| r.memory_bytes).sum();
        assert!(sum == plan.memory_bytes && sum <= memory as i64, "{sum} of {memory}: {:?}", plan.rows);
        let threshold = Request { memory: Budget::Bytes(memory), ..set(&[(THRESHOLD, "2000")], memory) };
        let asked = super::plan(&place, &Request { profiles: more.profiles.clone(), ..threshold }).unwrap();
        assert!(asked.memory_bytes <= memory as i64);
        assert_eq!(asked.rows.iter().filter(|r| r.name == THRESHOLD && r.proposed == "2000").count(), 1);
    }
    let little = plan(&place, &Request { memory: Budget::Bytes(150_000_000), ..more }).unwrap();
    assert!(little.notes.iter().any(|n| n.contains("of the memory budget") && n.contains("room for")));
    let page = super::super::render_plan(&little, 80);
    assert!(
        page.contains("memory: all of it together 143 MiB more at most, of a budget of 143 MiB"),
        "{page}"
    );
}

/// A finding of low confidence is shown and not made: it takes nothing from the others. If a second one confirms it, it must fit.
#[test]
fn what_is_held_takes_nothing_of_the_budget_until_somebody_else_asks_for_it_too() {
    const THRESHOLD: &str = "net.ipv4.neigh.default.gc_thresh3";
    let (_files, place) = machine(&[("net.ipv4.tcp_max_tw_buckets", "1024"), (THRESHOLD, "1024")]);
    let one = |confidence, name, value| finding(confidence, 0, name, value)[0].clone();
    let plan = |found: Vec<serde_json::Value>| {
        let request = findings(serde_json::Value::Array(found));
        plan(&place, &Request { memory: Budget::Bytes(600_000), ..request }).unwrap()
    };
    let doubtful = one("low", THRESHOLD, "2048");
    // 2000 sockets in TIME_WAIT of 256 bytes.
    let sure = one("high", "net.ipv4.tcp_max_tw_buckets", "3024");
    let held = plan(vec![doubtful.clone(), sure.clone()]);
    assert_eq!((held.memory_bytes, held.rows.len()), (512_000, 2));
    let confirmed = plan(vec![doubtful, sure, one("high", THRESHOLD, "2048")]);
    let row = confirmed.rows.iter().find(|r| r.name == THRESHOLD).unwrap();
    // 88,000 bytes are left: 171 neighbours.
    assert_eq!((row.proposed.as_str(), row.held.as_deref()), ("1195", None));
    assert!(confirmed.memory_bytes <= 600_000);
}

#[test]
fn findings_are_followed_within_bounds() {
    let (_files, place) =
        machine(&[("net.core.somaxconn", "128"), ("net.ipv4.tcp_rmem", "4096\t131072\t6291456")]);
    let of = |name: &str, value: &str| plan(&place, &findings(finding("high", 0, name, value))).unwrap();
    let plan_ = of("net.core.somaxconn", "512");
    assert_eq!((plan_.rows[0].now.as_str(), plan_.rows[0].proposed.as_str()), ("128", "512"));
    assert_eq!(plan_.rows[0].why, ["finding some-cause: it was seen"]);
    assert_eq!(of("net.core.somaxconn", "99999999").rows[0].proposed, "65536");
    // Tabs and spaces are one: nothing to change.
    assert!(of("net.ipv4.tcp_rmem", "4096 131072 6291456").rows.is_empty());
    for (name, value, words) in [
        ("kernel.panic", "1", "not a setting that weir tune changes"),
        ("net.ipv4.tcp_wmem", "1 2 3", "does not have it"),
        ("net.core.somaxconn", "lots", "useless value"),
        ("net.core.somaxconn\u{1b}[31m", "1", "not a setting"),
    ] {
        let plan = of(name, value);
        assert!(plan.rows.is_empty() && plan.notes.iter().any(|n| n.contains(words)), "{:?}", plan.notes);
        assert!(!super::super::render_plan(&plan, 80).contains('\u{1b}'));
    }
}

#[test]
fn doubtful_and_distant_findings_are_not_acted_upon() {
    let (_files, mut place) = machine(&[("net.core.somaxconn", "128")]);
    let doubtful = plan(&place, &findings(finding("low", 0, "net.core.somaxconn", "512"))).unwrap();
    assert!(doubtful.is_empty() && doubtful.rows[0].held.as_ref().unwrap().contains("low confidence"));
    assert!(doubtful.change_set(1).changes.is_empty());
    place.namespace = Some(Namespace { inode: 7, cookie: None, path: None });
    let distant = plan(&place, &findings(finding("high", 8, "net.core.somaxconn", "512"))).unwrap();
    assert!(distant.rows.is_empty() && distant.notes[0].contains("--netns"), "{:?}", distant.notes);
    // Settings of the machine are the same everywhere.
    let machines =
        plan(&place, &findings(finding("high", 8, "net.core.netdev_max_backlog", "4000"))).unwrap();
    assert_eq!(machines.rows.len(), 1);
}

#[test]
fn two_who_propose_are_both_named_and_the_larger_one_served() {
    let (_files, place) = machine(&CONNTRACK);
    let name = "net.nf_conntrack_max";
    let both = Request { profiles: vec![Profile::NatGateway], ..findings(finding("high", 0, name, "4000")) };
    let plan = plan(&place, &both).unwrap();
    let row = plan.rows.iter().find(|r| r.name == "net.netfilter.nf_conntrack_max").unwrap();
    assert_eq!((row.proposed.as_str(), row.why.len()), ("262144", 2));
    // Settings asked for outright are set alone.
    let set = Request { set: vec![(name.into(), "5000".into())], ..both };
    let plan = super::plan(&place, &set).unwrap();
    let row = plan.rows.iter().find(|r| r.name == "net.netfilter.nf_conntrack_max").unwrap();
    assert_eq!((row.proposed.as_str(), row.why.len()), ("5000", 1));
}

#[test]
fn buckets_are_what_the_kernel_will_make_of_them_and_shrink_last() {
    let (_files, place) = machine(&CONNTRACK);
    let set = |pairs: &[(&str, &str)]| {
        let set =
            pairs.iter().map(|(n, v)| (format!("net.netfilter.nf_conntrack_{n}"), (*v).to_owned())).collect();
        plan(&place, &Request { set, ..request() }).unwrap()
    };
    let names = |plan: &TunePlan| {
        plan.rows.iter().map(|r| r.name.rsplit('_').next().unwrap().to_owned()).collect::<Vec<_>>()
    };
    // 1000 heads are two pages of 512.
    let grows = set(&[("max", "2000"), ("buckets", "1000")]);
    assert_eq!(
        (names(&grows), grows.rows[0].proposed.as_str()),
        (vec!["buckets".to_owned(), "max".to_owned()], "1024")
    );
    let (_files, place) = machine(&[
        ("net.netfilter.nf_conntrack_max", "9000"),
        ("net.netfilter.nf_conntrack_buckets", "8192"),
    ]);
    let set = vec![
        ("net.netfilter.nf_conntrack_buckets".to_owned(), "1024".to_owned()),
        ("net.netfilter.nf_conntrack_max".to_owned(), "1000".to_owned()),
    ];
    let shrinks = plan(&place, &Request { set, ..request() }).unwrap();
    assert_eq!(names(&shrinks), ["max", "buckets"]);
    assert!(shrinks.memory_bytes < 0);
}

#[test]
fn what_a_user_asks_for_must_be_possible() {
    let (_files, place) = machine(&[("net.core.somaxconn", "128")]);
    for (name, value, words) in [
        ("net.core.somaxcon", "1000", "not a setting"),
        ("net.core.somaxconn", "1", "outside of 16 to 65536"),
        ("net.core.somaxconn", "1k", "not a whole number"),
        ("net.ipv4.tcp_fin_timeout", "30", "does not have it"),
        ("../../etc/passwd", "1", "not a setting"),
    ] {
        let set = vec![(name.to_owned(), value.to_owned())];
        let error = plan(&place, &Request { set, ..request() }).unwrap_err().to_string();
        assert!(error.contains(words), "{error}");
    }
    let bad = Request { findings: Some(("f.json".into(), "{".into())), ..request() };
    assert!(plan(&place, &bad).unwrap_err().to_string().starts_with("f.json: not JSON"));
}

#[test]
fn budgets_are_shares_or_amounts() {
    for (text, budget) in [
        ("5%", Budget::Share(0.05)),
        ("256M", Budget::Bytes(256 << 20)),
        ("2G", Budget::Bytes(2 << 30)),
        ("1k", Budget::Bytes(1024)),
        ("77", Budget::Bytes(77)),
    ] {
        assert_eq!(text.parse(), Ok(budget));
    }
    for bad in ["", "0%", "51%", "-1%", "x", "5T", "99999999999999999999", "0", "NaN%", "9999999999999999G"] {
        assert!(bad.parse::<Budget>().is_err(), "{bad}");
    }
}
