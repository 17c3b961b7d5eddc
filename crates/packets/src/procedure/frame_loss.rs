//! Frame loss rate: RFC 2544 section 26.3.

use super::progress::{Halt, RunProgress, Ways};
use super::rate::forwarding_rate;
use super::throughput::trial;

pub(super) fn run(progress: &mut RunProgress<'_>) -> Result<(), Halt> {
    let mut once =
        |progress: &mut RunProgress<'_>, rate, duration| trial(progress, Ways::Egress, rate, duration);
    let ceiling = progress.ceiling(&mut once)?;
    let length = progress.plan.trial();
    let mut lossless = 0;
    // "The first trial SHOULD be run for the frame rate that corresponds to 100% of the maximum rate [...]. Repeat the procedure for
    // the rate that corresponds to 90% [...]. This sequence SHOULD be continued (at reducing 10% intervals) until there are two
    // successive trials in which no frames are lost."
    for percent in (10..=100).rev().step_by(10) {
        let rate = ceiling.rate * f64::from(percent) / 100.0;
        let seen = progress.steadily(rate, |c| once(c, Some(rate), length))?;
        let [loss, lost, sent] = ["loss_ratio", "lost", "sent"].map(|name| format!("{name}_at_{percent}"));
        progress.set_share(&loss, (&lost, seen.lost()), (&sent, seen.intended));
        if percent == 100 {
            progress.set_loss(&seen);
            progress.set("offered_pps", rate);
            if let Some((sent, received)) = &seen.outcome.egress {
                progress.set("forwarding_rate_pps", forwarding_rate(&seen, sent, received).0);
            }
        }
        lossless = if seen.whole() { lossless + 1 } else { 0 };
        if lossless == 2 {
            break;
        }
    }
    Ok(())
}
