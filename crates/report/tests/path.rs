//! The findings of trials about the path come first.

mod fixture;

use weir_record::{PathCause, PathFinding, Run};
use weir_report::{Terminal, html, markdown, terminal};

const DROPPED: &str = "fragments of UDP datagrams that carry no UDP header are dropped on the path: send at most 1,472 bytes \
                       (-l 1472)";

/// The sample run, with a finding in so many of the first trials of the last variant, and `also` in the rest.
fn run(workload: &str, kind: &str, share: f64, summary: &str) -> Run {
    let mut run = fixture::run(1);
    let variant = run.variants.last().unwrap().name.clone();
    run.workloads.iter_mut().filter(|w| w.name == workload).for_each(|w| w.kind = kind.into());
    let own = |t: &&mut weir_record::Trial| t.variant == variant && t.workload == workload;
    let all = run.trials.iter_mut().filter(own).count();
    let some = (all as f64 * share) as usize;
    for trial in run.trials.iter_mut().filter(own).take(some) {
        trial.path.push(PathFinding {
            cause: PathCause::HeaderlessFragmentsDropped,
            summary: summary.to_owned(),
            advice: Vec::new(),
        });
    }
    run
}

/// Outputs without line breaks and what Markdown escapes.
fn outputs(run: &Run) -> [String; 3] {
    [terminal(run, Terminal { width: 100, color: false }), html(run), markdown(run)]
        .map(|out| out.replace('\\', "").split_whitespace().collect::<Vec<_>>().join(" "))
}

#[test]
fn what_the_path_drops_begins_the_report() {
    let run = run("udp-64", "mtu", 1.0, DROPPED);
    let last = &run.variants.last().unwrap().name;
    let sentence = format!("F{}, on {last}. Against ", &DROPPED[1..]);
    for out in outputs(&run) {
        assert!(out.contains(&sentence), "no `{sentence}` in\n{out}");
    }
}

#[test]
fn what_a_few_trials_say_is_left_out() {
    for out in outputs(&run("udp-64", "udp-stream", 0.3, DROPPED)) {
        assert!(!out.contains("carry no UDP header"), "{out}");
    }
}

#[test]
fn the_workload_of_paths_is_believed_before_a_stream() {
    let mut run = run("udp-64", "mtu", 1.0, DROPPED);
    let also = PathFinding {
        cause: PathCause::LargeDatagramsVanish,
        summary: "datagrams vanish".into(),
        advice: Vec::new(),
    };
    run.trials.iter_mut().filter(|t| t.workload != "udp-64").for_each(|t| t.path.push(also.clone()));
    // Streams speak of the other variants, where no path was looked at by itself.
    run.trials.iter_mut().filter(|t| t.variant == "direct").for_each(|t| t.workload = "tcp-rr".into());
    let last = run.variants.last().unwrap().name.clone();
    for out in outputs(&run) {
        assert!(out.contains(&format!(", on {last}. Datagrams vanish, on direct. Against ")), "{out}");
    }
}

#[test]
fn words_from_outside_are_made_harmless() {
    let run = run("udp-64", "mtu", 1.0, "gone\u{1b}[31m <b>");
    let [text, page, _] = outputs(&run);
    assert!(!text.contains('\u{1b}') && !page.contains('\u{1b}'));
    assert!(page.contains("Gone &lt;b&gt;") && !page.contains("Gone <b>"), "the summary is escaped");
}
