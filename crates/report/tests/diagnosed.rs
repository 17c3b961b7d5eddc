//! What the doctor found at the gateway, beneath the tables.

mod fixture;

use weir_record::{Diagnosed, DiagnosedFinding, Run};
use weir_report::{Terminal, html, markdown, terminal};

/// The sample run, in which the doctor found a full table in every trial of one variant but the first, once with a hostile
/// word in it.
fn diagnosed() -> Run {
    let mut run = fixture::run(1);
    let variant = run.variants.last().unwrap().name.clone();
    let mut seen = 0;
    for trial in &mut run.trials {
        let finding = |packets: u64| DiagnosedFinding {
            cause: "conntrack-full".into(),
            critical: true,
            summary: format!("{packets} first packets were thrown away\u{1b}[31m <b>"),
            explains_packets: packets,
            commands: vec!["sysctl -w net.netfilter.nf_conntrack_max=4000".into()],
        };
        seen += u64::from(trial.variant == variant);
        let findings = if trial.variant == variant && seen > 1 { vec![finding(seen)] } else { Vec::new() };
        trial.diagnosed = Some(Diagnosed { findings, ..Diagnosed::default() });
    }
    run
}

#[test]
fn every_output_names_cause_place_and_remedy() {
    let run = diagnosed();
    let (text, page, table) =
        (terminal(&run, Terminal { width: 100, color: false }), html(&run), markdown(&run));
    for (name, out) in [("terminal", &text), ("html", &page), ("markdown", &table)] {
        // Lines of the terminal may break a long word, and Markdown escapes what it would take for its own.
        let words: String = out.replace('\\', "").split_whitespace().collect();
        assert!(words.contains("conntrack-full"), "{name}");
        assert!(words.contains("nf_conntrack_max=4000"), "{name}");
        assert!(words.contains(&run.variants.last().unwrap().name), "{name}");
        assert!(!out.contains('\u{1b}'), "{name}");
    }
    assert!(
        page.contains("thrown away &lt;b&gt;") && !page.contains("thrown away <b>"),
        "the summary is escaped"
    );
}

#[test]
fn a_healthy_gateway_is_said_to_be_one() {
    let mut run = diagnosed();
    run.trials.iter_mut().for_each(|t| t.diagnosed = Some(Diagnosed::default()));
    assert!(terminal(&run, Terminal { width: 100, color: false }).contains("found nothing wrong"));
    run.trials.iter_mut().for_each(|t| t.diagnosed = None);
    assert!(!terminal(&run, Terminal { width: 100, color: false }).contains("doctor"));
}
