//! How the gateway spends its time: parts by variant, and a flame graph for each variant.

use weir_record::results::Results;
use weir_record::{Run, WorkloadInfo};

use crate::chart::flame;
use crate::escape::line;
use crate::markup::Markup;
use crate::profile::{Spent, parts, spent};
use crate::units::percent;
use crate::words::plural;

/// Functions in a variant's table.
const FUNCTIONS: usize = 25;

pub(super) fn section(out: &mut Markup, run: &Run, results: &Results) {
    out.note("The kernel's call stacks, sampled by its clock during the measuring windows of all valid trials. Each sample \
             counts once, for the part that its innermost function with a part belongs to. If the tester runs on the same \
             machine, the functions in the stack tell its own share, which stands below. With a time per packet, a \
             part's share of it is given in ns: such times add up along a path. After ± stands half the 95 % interval that \
             the number of samples allows; how much trials differ comes on top.",
    );
    for (i, workload) in run.workloads.iter().enumerate() {
        let all = spent(run, results, workload);
        if all.is_empty() {
            continue;
        }
        heading(out, workload);
        table(out, &all);
        for (j, one) in all.iter().enumerate() {
            graph(out, workload, one, &format!("flame{i}-{j}"));
        }
    }
}

fn heading(out: &mut Markup, workload: &WorkloadInfo) {
    out.open("h3", &[]).text(&line(&workload.name));
    out.leaf("small", &[], &line(&workload.description)).close();
}

/// Parts down, variants across; what they add up to stands under them.
fn table(out: &mut Markup, all: &[Spent<'_>]) {
    let class = format!("result min-{}", all.len().min(8));
    out.open("div", &[("class", "wide")]).open("table", &[("class", &class)]);
    out.open("thead", &[]).open("tr", &[]);
    out.leaf("th", &[("scope", "col")], "part");
    for one in all {
        out.open("th", &[("scope", "col")]).text(&line(&one.variant.name));
        if let Some(per_packet) = one.per_packet() {
            out.leaf("span", &[("class", "what")], &format!("{per_packet} per packet"));
        }
        out.close();
    }
    out.close().close().open("tbody", &[]);
    for part in parts(all) {
        row(out, &line(part), None, all, |one| one.part(part));
    }
    row(out, "gateway in all", None, all, |one| one.profile.gateway_samples);
    let hooks = "whatever is called from nf_hook_slow";
    row(out, "of it in netfilter hooks", Some(hooks), all, |one| one.profile.hook_samples);
    if all.iter().any(|one| one.profile.tester_samples > 0) {
        let what = "sending and receiving, on the same cores";
        row(out, "tester", Some(what), all, |one| one.profile.tester_samples);
    }
    out.close().close().close();
}

fn row(
    out: &mut Markup,
    name: &str,
    what: Option<&str>,
    all: &[Spent<'_>],
    samples: impl Fn(&Spent<'_>) -> u64,
) {
    out.open("tr", &[]).open("th", &[("scope", "row")]).text(name);
    if let Some(what) = what {
        out.leaf("span", &[("class", "what")], what);
    }
    out.close();
    for one in all {
        out.open("td", &[]);
        match samples(one) {
            0 => {
                out.text("–");
            }
            samples => {
                out.leaf("b", &[], &one.amount(samples));
                if let Some(share) = one.also(samples) {
                    out.leaf("span", &[("class", "what")], &share);
                }
            }
        }
        out.close();
    }
    out.close();
}

fn graph(out: &mut Markup, workload: &WorkloadInfo, one: &Spent<'_>, id: &str) {
    let mut figure = Markup::new();
    let title = format!("{}, {}: where the gateway's time goes", workload.name, one.variant.name);
    if !flame::draw(&mut figure, &one.profile.calls, &title, id) {
        return;
    }
    out.open("details", &[]);
    out.leaf("summary", &[], &format!("{}: flame graph and functions", line(&one.variant.name)));
    out.open("figure", &[]);
    out.append(figure);
    out.caption(&caption(one)).close();
    functions(out, one);
    out.close();
}

fn caption(one: &Spent<'_>) -> String {
    let profile = &one.profile;
    let lost = match profile.lost {
        0 => "none lost".to_owned(),
        lost => format!("{lost} lost"),
    };
    format!(
        "{} of the gateway out of {} of a busy kernel ({lost}), at {} Hz a core, in {}. A box is as wide as the time in that \
         function and in all that it called; it stands on its caller. Point at a box for its name and share. Functions of \
         netfilter are red, those of IP blue, of bridge and BPF green.",
        plural(profile.gateway_samples as usize, "sample"),
        profile.samples,
        profile.hz,
        plural(one.trials, "trial"),
    )
}

fn functions(out: &mut Markup, one: &Spent<'_>) {
    out.open("div", &[("class", "wide")]).open("table", &[]).open("thead", &[]).open("tr", &[]);
    for head in ["function", "in itself", "with what it called"] {
        out.leaf("th", &[("scope", "col")], head);
    }
    out.close().close().open("tbody", &[]);
    let of_gateway = |samples: u64| percent(samples as f64 / one.profile.gateway_samples.max(1) as f64);
    for function in one.profile.functions.iter().take(FUNCTIONS) {
        out.open("tr", &[]);
        out.open("th", &[("scope", "row")]).leaf("code", &[], &line(&function.name)).close();
        out.leaf("td", &[], &of_gateway(function.own)).leaf("td", &[], &of_gateway(function.total)).close();
    }
    out.close().close().close();
}
