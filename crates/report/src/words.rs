//! Verdicts, endings and faults in words. The words claim only what the figures allow.

use weir_record::{Better, FaultCode, MetricDef, Reserve, Scale, Status, Unit};
use weir_stats::{Comparison, Verdict};

use crate::units::{bracket, decimals, decimals_for_digits, number, percent, quantity};

/// Meaning of a verdict for the reader. Output never shows it by colour alone: [`Tone::symbol`] goes with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Tone {
    /// An improvement by the metric's own direction.
    Better,
    /// A worsening.
    Worse,
    /// A difference of a metric that has no good direction.
    Different,
    /// Shown to be equal within the margin.
    Equivalent,
    /// Nothing above the noise floor.
    NotSeen,
    /// It would look better, but leaves out what failed.
    Withheld,
    /// No verdict is possible yet.
    Open,
}

impl Tone {
    /// One character that tells the tones apart without colour.
    pub fn symbol(self) -> &'static str {
        match self {
            Tone::Better => "▲",
            Tone::Worse => "▼",
            Tone::Different => "◆",
            Tone::Equivalent => "=",
            Tone::NotSeen => "≈",
            Tone::Withheld => "!",
            Tone::Open => "?",
        }
    }

    /// Name for style sheets.
    pub(crate) fn class(self) -> &'static str {
        match self {
            Tone::Better => "better",
            Tone::Worse => "worse",
            Tone::Different => "different",
            Tone::Equivalent => "equivalent",
            Tone::NotSeen => "not-seen",
            Tone::Withheld => "withheld",
            Tone::Open => "open",
        }
    }
}

/// A verdict in words.
#[derive(Debug, Clone, PartialEq)]
pub struct Words {
    /// Its meaning.
    pub tone: Tone,
    /// E.g. `slower by 12 % [9, 15]`, `more loss by 0.4 points [0.3, 0.5]`, `equivalent within ±3 %`.
    pub text: String,
}

impl Words {
    /// True if the words name a difference, and with it its amount.
    pub(crate) fn is_difference(&self) -> bool {
        matches!(self.tone, Tone::Better | Tone::Worse | Tone::Different)
    }

    /// The same for narrow columns: `slower 12 % [9, 15]`, `inconclusive, ~8 more rounds`.
    pub(crate) fn short(&self) -> String {
        match self.tone {
            Tone::NotSeen => "no difference seen".to_owned(),
            _ => self.text.replacen(" by a factor of ", " ×", 1).replacen(" by ", " ", 1).replacen(
                "needs about ",
                "~",
                1,
            ),
        }
    }
}

/// Adds why the other side is no winner, though this one is worse.
pub(crate) fn with_reserve(mut words: Words, reserve: Option<Reserve>, other: &str) -> Words {
    let other = crate::escape::line(other);
    match reserve {
        Some(Reserve::FailsMore) => words.text += &format!(", but {other} fails more"),
        Some(Reserve::VoidMore) => words.text += &format!(", but more trials of {other} are void"),
        None => {}
    }
    words
}

/// The verdict on one metric of one variant against the baseline, in words.
pub fn verdict(def: &MetricDef, comparison: Option<&Comparison>, verdict: Verdict) -> Words {
    let words = |tone, text: String| Words { tone, text };
    match verdict {
        Verdict::Higher | Verdict::Lower => {
            let higher = verdict == Verdict::Higher;
            let amount = comparison.map(|c| amount(def, c)).unwrap_or_default();
            words(tone(def.better, higher), format!("{}{amount}", direction(def, higher)))
        }
        Verdict::Equivalent { margin } => {
            words(Tone::Equivalent, format!("equivalent within ±{}", percent(margin)))
        }
        Verdict::NoDifferenceSeen { floor } => {
            words(Tone::NotSeen, format!("no difference seen (noise floor {})", floor_text(def, floor)))
        }
        Verdict::Inconclusive { more_rounds: None } => words(Tone::Open, "inconclusive".to_owned()),
        Verdict::Inconclusive { more_rounds: Some(1) } => {
            words(Tone::Open, "inconclusive, needs about 1 more round".to_owned())
        }
        Verdict::Inconclusive { more_rounds: Some(more) } => {
            words(Tone::Open, format!("inconclusive, needs about {more} more rounds"))
        }
        Verdict::FailsMore => words(Tone::Withheld, "not better: it fails more".to_owned()),
        Verdict::VoidMore => words(Tone::Withheld, "not better: more of its trials are void".to_owned()),
        Verdict::TooFewRounds => words(Tone::Open, "too few rounds".to_owned()),
    }
}

fn tone(better: Better, higher: bool) -> Tone {
    match (better, higher) {
        (Better::Neither, _) => Tone::Different,
        (Better::Higher, true) | (Better::Lower, false) => Tone::Better,
        (Better::Higher, false) | (Better::Lower, true) => Tone::Worse,
    }
}

/// `slower`, `faster` for rates and times, `more`, `less` for everything else that can be good or bad.
fn direction(def: &MetricDef, higher: bool) -> String {
    let pick = |up: &'static str, down: &'static str| if higher { up } else { down };
    let speed = match (def.unit, def.better) {
        (Unit::Bps | Unit::Pps | Unit::PerSecond, Better::Higher) => Some(pick("faster", "slower")),
        (Unit::Ns, Better::Lower) => Some(pick("slower", "faster")),
        _ => None,
    };
    match (speed, def.better, def.scale) {
        (Some(word), ..) => word.to_owned(),
        (None, Better::Neither, _) => pick("higher", "lower").to_owned(),
        (None, _, Scale::Difference) => {
            let less = if def.unit == Unit::Count { "fewer" } else { "less" };
            format!("{} {}", pick("more", less), crate::escape::line(&def.label))
        }
        (None, _, Scale::Ratio) => pick("more", "less").to_owned(),
    }
}

/// ` by 12 % [9, 15]`; from the double on ` by a factor of 2.5 [2.3, 2.7]`; ` by 0.4 points [0.3, 0.5]`.
fn amount(def: &MetricDef, c: &Comparison) -> String {
    let with = |value: f64, interval: Option<(f64, f64)>, unit: &str| {
        let digits = decimals(value, interval);
        let range = interval.map(|i| format!(" {}", bracket(i, digits))).unwrap_or_default();
        format!("{}{unit}{range}", number(value, digits))
    };
    if !c.ratio {
        let (size, range) = magnitude(c.estimate, c.interval);
        return match def.unit {
            Unit::Ratio => {
                let range = range.map(|(low, high)| (low * 100.0, high * 100.0));
                format!(" by {}", with(size * 100.0, range, " points"))
            }
            unit => format!(" by {}", quantity(unit, size, range)),
        };
    }
    if c.estimate.is_infinite() || (c.estimate == 0.0 && def.better == Better::Lower) {
        return " without limit".to_owned();
    }
    if c.estimate >= 2.0 {
        return format!(" by a factor of {}", with(c.estimate, c.interval, ""));
    }
    let change = |r: f64| (r - 1.0) * 100.0;
    let (size, range) =
        magnitude(change(c.estimate), c.interval.map(|(low, high)| (change(low), change(high))));
    format!(" by {}", with(size, range, " %"))
}

/// Size of an effect and its interval in the effect's own direction, so that `−12 [−15, −9]` is `12 [9, 15]`.
fn magnitude(value: f64, interval: Option<(f64, f64)>) -> (f64, Option<(f64, f64)>) {
    if value < 0.0 { (-value, interval.map(|(low, high)| (-high, -low))) } else { (value, interval) }
}

/// The effect as it is, with its sign: `−12 % [−15, −9]`, `+0.4 points [+0.3, +0.5]`, `×2.5 [2.3, 2.7]`.
pub fn effect(def: &MetricDef, c: &Comparison) -> String {
    if c.ratio && c.estimate >= 2.0 {
        let digits = decimals_of_effect(c.estimate, c.interval);
        let range = c.interval.map(|i| format!(" {}", bracket(i, digits))).unwrap_or_default();
        return format!("×{}{range}", number(c.estimate, digits));
    }
    let (scale, offset, unit) = match (c.ratio, def.unit) {
        (true, _) => (100.0, 1.0, "%"),
        (false, Unit::Ratio) => (100.0, 0.0, "points"),
        (false, unit) => {
            // By the widest figure, so that an interval of microseconds is not written in nanoseconds.
            let bounds = c.interval.into_iter().flat_map(|(low, high)| [low.abs(), high.abs()]);
            let shown = crate::units::display_for(unit, bounds.fold(c.estimate.abs(), f64::max));
            (1.0 / shown.divisor, 0.0, shown.symbol)
        }
    };
    let map = |v: f64| (v - offset) * scale;
    let range = c.interval.map(|(low, high)| (map(low), map(high)));
    let digits = decimals_of_effect(map(c.estimate), range);
    // Exactly none is no figure that was rounded to "0.00000".
    let show = |v: f64| if c.estimate == 0.0 && v == 0.0 { "0".to_owned() } else { signed(v, digits) };
    let range = range.map(|(low, high)| format!(" [{}, {}]", show(low), show(high))).unwrap_or_default();
    let space = if unit.is_empty() { "" } else { " " };
    format!("{}{space}{unit}{range}", show(map(c.estimate)))
}

/// An effect without an interval is one of few rounds: two digits say all that it knows.
fn decimals_of_effect(value: f64, interval: Option<(f64, f64)>) -> usize {
    match interval {
        None => decimals_for_digits(value, 2).clamp(0, 9) as usize,
        some => decimals(value, some),
    }
}

pub(crate) fn signed(value: f64, digits: usize) -> String {
    let text = number(value, digits);
    let zero = text.bytes().all(|b| matches!(b, b'0' | b'.'));
    if value > 0.0 && !zero { format!("+{text}") } else { text }
}

/// A noise floor in words: `±2 %` on the ratio scale (stored as |ln ratio|), from the double on `×÷ 2.3`, since nothing
/// can be less by more than all of it; else in the metric's unit.
pub fn floor_text(def: &MetricDef, floor: f64) -> String {
    match (def.scale, def.unit) {
        _ if floor.is_infinite() => "unlimited: the baseline fails".to_owned(),
        (Scale::Ratio, _) if floor >= std::f64::consts::LN_2 => format!("×÷ {}", number(floor.exp(), 1)),
        (Scale::Ratio, _) => format!("±{}", rounded_percent(floor.exp_m1())),
        (Scale::Difference, Unit::Ratio) => format!("±{}", rounded_percent(floor).replace(" %", " points")),
        (Scale::Difference, unit) => format!("±{}", quantity(unit, floor, None)),
    }
}

/// Two significant digits: a floor is the 95th percentile of few pairs and no better known than that.
pub(crate) fn rounded_percent(share: f64) -> String {
    let value = share * 100.0;
    let digits = if value >= 9.95 || value == 0.0 {
        0
    } else {
        (1 - value.log10().floor() as i32).clamp(0, 6) as usize
    };
    let text = number(value, digits);
    let short = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{short} %")
}

/// How a run ended, in words.
pub fn status(status: &Status) -> String {
    match status {
        Status::Running => "unfinished: still going, or killed; what is here was measured".to_owned(),
        Status::Precise => "precise: every headline interval is as narrow as asked for".to_owned(),
        Status::RoundsDone => "all planned rounds were made".to_owned(),
        Status::BudgetSpent => {
            "the time budget ended before every interval was as narrow as asked for".to_owned()
        }
        Status::Interrupted => "stopped by the user; what is here was measured".to_owned(),
        Status::Failed { message } => format!("failed: {}", crate::escape::line(message)),
    }
}

/// A kind of fault in words.
pub fn fault(code: FaultCode) -> &'static str {
    match code {
        FaultCode::LateSends => "sender behind its schedule",
        FaultCode::SendBufferFull => "sender's kernel refused datagrams",
        FaultCode::ReceiverDrops => "receiver's own buffer overflowed",
        FaultCode::TesterCpu => "tester's CPU saturated",
        FaultCode::Steal => "CPU taken by the hypervisor",
        FaultCode::Timeout => "time limit of the tester",
        FaultCode::ConnectionFailed => "connections failed",
        FaultCode::TesterResources => "ports, descriptors or memory ran out",
        FaultCode::AgentLost => "agent or host went away",
        FaultCode::External => "external program failed",
        FaultCode::VariantLost => "variant no longer in effect",
        FaultCode::ClockDrift => "clock of the host runs at another speed",
        FaultCode::LinkLate => "lab's link late",
        FaultCode::LinkOverflow => "lab's link overflowed",
        FaultCode::ShortTrial => "trials too short",
        FaultCode::Interrupted => "stopped by the user",
    }
}

/// `1 trial`, `2 trials`.
pub fn plural(n: usize, what: &str) -> String {
    if n == 1 { format!("1 {what}") } else { format!("{n} {what}s") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ratio(estimate: f64, low: f64, high: f64) -> Comparison {
        Comparison { estimate, interval: Some((low, high)), n: 8, p: 0.01, p_holm: 0.02, ratio: true }
    }

    fn difference(estimate: f64, low: f64, high: f64) -> Comparison {
        Comparison { ratio: false, ..ratio(estimate, low, high) }
    }

    fn goodput() -> MetricDef {
        MetricDef::value("goodput_bps", "goodput", Unit::Bps, Better::Higher, "")
    }

    fn rtt() -> MetricDef {
        MetricDef::quantile("rtt_p50_ns", "RTT p50", "rtt", 0.5, "")
    }

    fn loss() -> MetricDef {
        MetricDef::value("loss_ratio", "loss", Unit::Ratio, Better::Lower, "").by_difference()
    }

    fn say(def: &MetricDef, c: Comparison, v: Verdict) -> (Tone, String) {
        let words = verdict(def, Some(&c), v);
        (words.tone, words.text)
    }

    #[test]
    fn a_worse_side_says_why_the_other_one_is_no_winner() {
        let slower = Words { tone: Tone::Worse, text: "slower by 12 % [9, 15]".into() };
        let said = |reserve| with_reserve(slower.clone(), reserve, "s\u{1b}2").text;
        assert_eq!(said(None), "slower by 12 % [9, 15]");
        let other = crate::escape::line("s\u{1b}2");
        assert_eq!(said(Some(Reserve::FailsMore)), format!("slower by 12 % [9, 15], but {other} fails more"));
        let void = format!("slower by 12 % [9, 15], but more trials of {other} are void");
        assert_eq!(said(Some(Reserve::VoidMore)), void);
    }

    #[test]
    fn rates_and_times_are_faster_or_slower() {
        let down = ratio(0.88, 0.85, 0.91);
        assert_eq!(say(&goodput(), down, Verdict::Lower), (Tone::Worse, "slower by 12 % [9, 15]".into()));
        assert_eq!(say(&rtt(), down, Verdict::Lower), (Tone::Better, "faster by 12 % [9, 15]".into()));
        let up = ratio(1.12, 1.09, 1.15);
        assert_eq!(say(&rtt(), up, Verdict::Higher), (Tone::Worse, "slower by 12 % [9, 15]".into()));
        assert_eq!(
            say(&rtt(), ratio(2.5, 2.31, 2.74), Verdict::Higher),
            (Tone::Worse, "slower by a factor of 2.5 [2.3, 2.7]".into())
        );
    }

    #[test]
    fn differences_are_more_or_less() {
        assert_eq!(
            say(&loss(), difference(0.004, 0.0032, 0.0048), Verdict::Higher),
            (Tone::Worse, "more loss by 0.40 points [0.32, 0.48]".into())
        );
        let retransmits =
            MetricDef::value("retransmits", "retransmits", Unit::Count, Better::Lower, "").by_difference();
        assert_eq!(
            say(&retransmits, difference(-120.0, -160.0, -80.0), Verdict::Lower),
            (Tone::Better, "fewer retransmits by 120 [80, 160]".into())
        );
    }

    #[test]
    fn what_cannot_be_said_is_not_said() {
        let c = ratio(1.01, 0.98, 1.04);
        assert_eq!(say(&rtt(), c, Verdict::Equivalent { margin: 0.03 }).1, "equivalent within ±3 %");
        // |ln ratio| = ln 1.02 is a floor of 2 %.
        let floor = Verdict::NoDifferenceSeen { floor: 1.02f64.ln() };
        assert_eq!(say(&rtt(), c, floor), (Tone::NotSeen, "no difference seen (noise floor ±2 %)".into()));
        let more = Verdict::Inconclusive { more_rounds: Some(8) };
        assert_eq!(say(&rtt(), c, more), (Tone::Open, "inconclusive, needs about 8 more rounds".into()));
        assert_eq!(say(&rtt(), c, Verdict::TooFewRounds).1, "too few rounds");
        let neither = MetricDef { better: Better::Neither, ..rtt() };
        assert_eq!(say(&neither, ratio(1.2, 1.1, 1.3), Verdict::Higher).0, Tone::Different);
    }

    #[test]
    fn effects_keep_their_sign() {
        assert_eq!(effect(&goodput(), &ratio(0.88, 0.85, 0.91)), "−12 % [−15, −9]");
        assert_eq!(effect(&loss(), &difference(0.004, 0.0032, 0.0048)), "+0.40 points [+0.32, +0.48]");
        assert_eq!(effect(&rtt(), &ratio(2.5, 2.31, 2.74)), "×2.5 [2.3, 2.7]");
        let few = |estimate| Comparison { interval: None, ..ratio(estimate, 0.0, 0.0) };
        assert_eq!(effect(&rtt(), &few(1.0574)), "+5.7 %");
        assert_eq!(effect(&rtt(), &few(0.784)), "−22 %");
        assert_eq!(effect(&rtt(), &few(16.83)), "×17");
        assert_eq!(effect(&loss(), &difference(0.0, 0.0, 0.0)), "0 points [0, 0]");
        assert_eq!(effect(&loss(), &difference(0.0, 0.0, 1e-6)), "0 points [0, +0.00010]");
        assert_eq!(floor_text(&loss(), 0.0021), "±0.21 points");
        assert_eq!(floor_text(&goodput(), 2.3f64.ln()), "×÷ 2.3");
    }
}
