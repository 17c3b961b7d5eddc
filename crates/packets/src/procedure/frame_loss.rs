//! Frame loss rate: RFC 2544 section 26.3.

use super::course::{Course, Halt, Ways, per_second};
use super::throughput::trial;

pub(super) fn run(course: &mut Course<'_>) -> Result<(), Halt> {
    let mut once = |course: &mut Course<'_>, rate, duration| trial(course, Ways::Egress, rate, duration);
    let ceiling = course.ceiling(&mut once)?;
    let length = course.plan.trial();
    let mut lossless = 0;
    // "The first trial SHOULD be run for the frame rate that corresponds to 100% of the maximum rate [...]. Repeat the procedure for
    // the rate that corresponds to 90% [...]. This sequence SHOULD be continued (at reducing 10% intervals) until there are two
    // successive trials in which no frames are lost."
    for percent in (10..=100).rev().step_by(10) {
        let rate = ceiling.rate * f64::from(percent) / 100.0;
        let seen = course.steadily(rate, |c| once(c, Some(rate), length))?;
        course.set(&format!("loss_ratio_at_{percent}"), seen.loss_ratio());
        if percent == 100 {
            course.set("loss_ratio", seen.loss_ratio());
            course.set("offered_pps", rate);
            if let Some((_, received)) = &seen.outcome.egress {
                let forwarded = per_second(received.frames, received.duration_ns);
                course.set("forwarding_rate_pps", forwarded);
            }
        }
        lossless = if seen.whole() { lossless + 1 } else { 0 };
        if lossless == 2 {
            break;
        }
    }
    Ok(())
}
