//! The use of the gateway's time: merged over trials, in time per packet, on the page and in text.

mod fixture;

use weir_record::{Better, Calls, FunctionSamples, MetricDef, PartSamples, Profile, Run, Unit};
use weir_report::{Terminal, html, markdown, terminal};

/// Samples of one trial: stack, part, count. 500 of the gateway and 500 of the tester.
const STACKS: [(&str, &str, u64); 5] = [
    ("net_rx_action;veth_poll;ip_rcv;nf_hook_slow;nf_conntrack_in", "connection tracking", 200),
    ("net_rx_action;veth_poll;ip_rcv;nf_hook_slow;nf_nat_ipv4_out", "NAT", 100),
    ("net_rx_action;veth_poll;ip_rcv;ip_forward", "routing", 150),
    ("net_rx_action;veth_poll", "driver and softirq", 49),
    ("net_rx_action;veth_poll;ip_rcv;nf_hook_slow;nft_do_chain", "hooks and rules", 1),
];

fn profile(with: &[(&str, &str, u64)]) -> Profile {
    let calls: Calls = with.iter().map(|(stack, _, samples)| (*stack, *samples)).collect();
    let mut parts: Vec<PartSamples> = Vec::new();
    let mut functions = Vec::new();
    for (stack, part, samples) in with {
        parts.push(PartSamples { name: (*part).into(), samples: *samples });
        let name = stack.rsplit(';').next().unwrap().to_owned();
        functions.push(FunctionSamples { name, own: *samples, total: *samples });
    }
    Profile {
        hz: 997,
        window_s: 1.0,
        samples: 1200,
        gateway_samples: with.iter().map(|(_, _, n)| n).sum(),
        tester_samples: 500,
        hook_samples: with.iter().filter(|(s, _, _)| s.contains("nf_hook_slow")).map(|(_, _, n)| n).sum(),
        parts,
        functions,
        calls,
        ..Profile::default()
    }
}

/// Datagrams at 1000 ns per packet; NAT only where there is one. One trial is void and would spoil everything.
fn profiled() -> Run {
    let mut run = fixture::run(4);
    let help = "1e9 by the forwarding rate.";
    let def = MetricDef::value("ns_per_packet", "time per packet", Unit::Ns, Better::Lower, help);
    run.workloads[1].metrics.push(def);
    for trial in run.trials.iter_mut().filter(|t| t.workload == "udp-64") {
        trial.metrics.insert("ns_per_packet".into(), 1000.0);
        trial.profile = match trial.variant.as_str() {
            _ if trial.is_void() => Some(profile(&[("net_rx_action;spoilt", "sets", 1_000_000)])),
            "nft-masquerade" => Some(profile(&STACKS)),
            "routed" => Some(profile(&STACKS[2..4])),
            _ => None,
        };
    }
    // As many frames, and no time per packet: shares only.
    for trial in run.trials.iter_mut().filter(|t| t.workload == "tcp-rr" && t.variant == "nft-masquerade") {
        trial.profile = Some(Profile { tester_samples: 0, ..profile(&STACKS) });
    }
    fixture::conclude(&mut run);
    run
}

fn section(page: &str) -> &str {
    page.split("<section id=\"spent\">").nth(1).unwrap().split("</section>").next().unwrap()
}

/// The cells of a row of the table, by the words it begins with.
fn row<'a>(section: &'a str, name: &str) -> Vec<&'a str> {
    let row = section.split(&format!("<th scope=\"row\">{name}")).nth(1).unwrap();
    row.split("</tr>").next().unwrap().split("<td>").skip(1).collect()
}

#[test]
fn parts_are_given_in_time_per_packet_and_add_up_to_it() {
    let page = html(&profiled());
    let section = section(&page);
    // 8 trials of 1000 samples each: 200 of 1000 is 20 %, of 1000 ns; 1.96 sqrt(0.2 x 0.8 / 8000) is 0.88 %.
    let conntrack = row(section, "connection tracking");
    assert!(conntrack[0].starts_with('–'), "routed has none: {conntrack:?}");
    assert!(
        conntrack[1].contains("<b>200.0 ±8.8 ns</b>") || conntrack[1].contains("<b>200 ±9 ns</b>"),
        "{conntrack:?}"
    );
    assert!(conntrack[1].contains("20 %"));
    assert!(row(section, "gateway in all")[1].contains("<b>500 ±11 ns</b>"));
    assert!(row(section, "of it in netfilter hooks")[1].contains("<b>301 ±10 ns</b>"));
    assert!(row(section, "tester")[1].contains("<b>500 ±11 ns</b>"));
    // Routed: 199 of 699 samples.
    assert!(row(section, "gateway in all")[0].contains("28.5 %"), "{:?}", row(section, "gateway in all"));
    assert!(section.contains("1.00 µs per packet"), "{section:.1500}");
    // Parts in the order of the path, though the baseline lacks some.
    let order = ["connection tracking", "NAT", "routing", "driver and softirq", "hooks and rules"];
    let places = order.map(|part| section.find(&format!("row\">{part}")).unwrap());
    assert!(places.is_sorted(), "{places:?}");
    assert!(!page.contains("spoilt"), "void trials are left out");
}

#[test]
fn without_a_time_per_packet_there_are_shares() {
    let page = html(&profiled());
    let tcp = section(&page).split("<h3>tcp-rr").nth(1).unwrap();
    assert!(row(tcp, "connection tracking")[0].contains("<b>40 %</b>"), "200 of the gateway's 500");
    assert!(!tcp.contains(" ns<") && !tcp.contains("row\">tester"));
}

#[test]
fn each_variant_has_its_flame_graph() {
    let page = html(&profiled());
    let section = section(&page);
    let svg: Vec<&str> = section.split("<svg ").skip(1).map(|s| s.split("</svg>").next().unwrap()).collect();
    assert_eq!(svg.len(), 3);
    let masquerade = svg[1];
    // 8 trials: 200 x 8 of 500 x 8 samples, all of them its own.
    let title = "<title>nf_conntrack_in: 40 %, 1600 samples, 1600 in itself</title>";
    assert!(masquerade.contains(title), "{masquerade}");
    // Every function of the tree is a box, but the one with 0.2 % of the width, which is under two pixels.
    assert_eq!(masquerade.matches("<rect ").count(), 7, "{masquerade}");
    assert!(!masquerade.contains("nft_do_chain"));
    assert!(section.contains(
        "4000 samples of the gateway out of 9600 of a busy kernel (none lost), at 997 Hz a core, in 8 trials"
    ));
    assert!(section.contains("<code>nf_conntrack_in</code>"));
}

#[test]
fn text_names_the_greatest_parts_first() {
    let run = profiled();
    for width in [200, 100, 80] {
        let text = terminal(&run, Terminal { width, color: false });
        assert!(text.lines().all(|line| line.chars().count() <= width), "{text}");
        let block = text.split("udp-64: where the gateway's time goes").nth(1).unwrap();
        let flat = block.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(
            flat.contains("connection tracking 200 ±9 ns, routing 150 ±8 ns, NAT 100 ±7 ns"),
            "{flat:.600}"
        );
    }
    let table = markdown(&run);
    let line =
        table.lines().find(|l| l.starts_with("| udp-64 | nft-masquerade | 1.00 µs | connection")).unwrap();
    assert!(line.ends_with("| 4000 |"), "{line}");
    assert!(!markdown(&fixture::run(1)).contains("time goes"));
    assert!(!html(&fixture::run(1)).contains("id=\"spent\""), "no profile, no section");
}

#[test]
fn hostile_names_of_functions_are_shown_as_text() {
    let mut run = profiled();
    for trial in &mut run.trials {
        let Some(profile) = &mut trial.profile else { continue };
        profile.calls.functions.iter_mut().for_each(|name| name.insert_str(0, fixture::HOSTILE));
        profile.functions.iter_mut().for_each(|f| f.name.insert_str(0, fixture::HOSTILE));
        profile.parts.iter_mut().for_each(|p| p.name.insert_str(0, fixture::HOSTILE));
    }
    let run = fixture::spoil(run);
    let page = html(&run);
    assert!(!page.contains("<script") && section(&page).contains("&lt;script&gt;alert(1)"));
    assert!(!page.contains('\u{1b}') && !page.contains('\u{202e}'));
    let text = terminal(&run, Terminal { width: 100, color: false });
    assert!(!text.contains('\u{1b}') && !text.contains('\u{202e}'));
    let lines = markdown(&run);
    // Characters that could begin a link are escaped.
    assert!(!lines.contains("<script") && !lines.replace("\\](", "").contains("]("));
}

/// Numbers that no profiler makes.
#[test]
fn odd_profiles_still_make_a_page() {
    let mut run = profiled();
    for (i, trial) in run.trials.iter_mut().enumerate() {
        let Some(profile) = &mut trial.profile else { continue };
        match i % 3 {
            0 => profile.parts.iter_mut().for_each(|p| p.samples = u64::MAX),
            1 => profile.calls.nodes.iter_mut().for_each(|n| *n = (u32::MAX, u32::MAX, u64::MAX)),
            _ => profile.tester_samples = u64::MAX,
        }
    }
    let page = html(&run);
    assert!(!page.contains("NaN") && !page.contains("inf\""), "no coordinate is odd");
    markdown(&run);
}
