//! The doctor's findings at the gateway, beneath the tables.

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
            risk: "memory when it <fills>".into(),
            undo: vec!["sysctl -w net.netfilter.nf_conntrack_max=1000".into()],
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
        assert!(words.contains("risk:memorywhenit"), "{name}");
        assert!(words.contains("undo:sysctl-wnet.netfilter.nf_conntrack_max=1000"), "{name}");
        assert!(words.contains(&run.variants.last().unwrap().name), "{name}");
        assert!(!out.contains('\u{1b}'), "{name}");
    }
    assert!(
        page.contains("thrown away &lt;b&gt;")
            && !page.contains("thrown away <b>")
            && !page.contains("<fills>"),
        "summary and risk are escaped"
    );
}

/// All three outputs, each as one line of words.
fn pages(run: &Run) -> [String; 3] {
    let words = |out: String| out.replace('\\', "").split_whitespace().collect::<Vec<_>>().join(" ");
    [terminal(run, Terminal { width: 100, color: false }), html(run), markdown(run)].map(words)
}

fn everywhere(run: &Run, sentence: &str) {
    for page in pages(run) {
        assert!(page.contains(sentence), "{sentence}\n{page}");
    }
}

#[test]
fn a_healthy_gateway_is_said_to_be_one_where_it_was_watched() {
    let mut run = diagnosed();
    run.trials.iter_mut().for_each(|t| t.diagnosed = Some(Diagnosed::default()));
    everywhere(&run, "The doctor watched the gateway in every trial and found nothing wrong.");
    // A variant without a gateway, and one trial of another.
    run.trials.iter_mut().filter(|t| t.variant == "direct").for_each(|t| t.diagnosed = None);
    run.trials.iter_mut().find(|t| t.variant == "routed").unwrap().diagnosed = None;
    let of = |variant: &str| run.trials.iter().filter(|t| t.variant == variant).count();
    let (all, direct, routed) = (run.trials.len(), of("direct"), of("routed"));
    let sentence = format!(
        "in {} of {all} trials (routed: {} of {routed}, direct: 0 of {direct}) and found nothing wrong.",
        all - direct - 1,
        routed - 1
    );
    everywhere(&run, &sentence);
    run.trials.iter_mut().for_each(|t| t.diagnosed = None);
    assert!(pages(&run).iter().all(|page| !page.contains("doctor")));
}

#[test]
fn what_the_doctor_could_not_see_is_said() {
    let blind = |gap: &str| Some(Diagnosed { not_in_sight: vec![gap.into()], ..Diagnosed::default() });
    let mut run = diagnosed();
    run.trials.iter_mut().for_each(|t| t.diagnosed = blind("dropped packets: no <BTF>\u{1b}[31m"));
    let sentence = "found nothing wrong in what it could see.";
    everywhere(&run, sentence);
    let [terminal, html, markdown] = pages(&run);
    assert!(!terminal.contains('\u{1b}') && !html.contains("<BTF>") && !markdown.contains("<BTF>"));
    everywhere(&run, "The doctor could not see: dropped packets:");
    let all = run.trials.len();
    run.trials[0].diagnosed = Some(Diagnosed::default());
    everywhere(&run, &format!("The doctor could not see in {} of {all} watched trials", all - 1));
    // Beside a finding, too.
    let mut run = diagnosed();
    for diagnosed in run.trials.iter_mut().filter_map(|t| t.diagnosed.as_mut()) {
        diagnosed.not_in_sight.push("rules: it needs root".into());
    }
    everywhere(&run, "The doctor could not see: rules: it needs root.");
    assert!(
        pages(&run).iter().all(|page| page.contains("conntrack-full") && !page.contains("nothing wrong"))
    );
}

/// The twin of the baseline shows what the baseline shows; the report names what it shows alone.
#[test]
fn a_twin_is_heard_only_where_it_says_something_of_its_own() {
    let mut run = diagnosed();
    let finding = run.trials.iter().find_map(|t| t.diagnosed.as_ref()?.findings.first()).unwrap().clone();
    let mut found_in = |variants: &[&str]| {
        for trial in &mut run.trials {
            let findings =
                if variants.contains(&trial.variant.as_str()) { vec![finding.clone()] } else { Vec::new() };
            trial.diagnosed = Some(Diagnosed { findings, ..Diagnosed::default() });
        }
        let page = markdown(&run).replace('\\', "");
        page.lines().filter(|l| l.starts_with("| routed-again, ") && l.contains("conntrack-full")).count()
    };
    assert_eq!(found_in(&["routed", "routed-again"]), 0);
    assert!(found_in(&["routed-again"]) > 0);
}
