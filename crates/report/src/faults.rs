//! Faults for terminals: one line for what is the same fault on several variants.

use weir_record::{FaultCode, Run};
use weir_text::order;

use crate::escape::line;
use crate::words::{self, plural};

/// Faults of one kind in one workload, told in the same words.
struct Group<'a> {
    code: FaultCode,
    workload: &'a str,
    variants: Vec<&'a str>,
    trials: usize,
    void: usize,
    words: Pattern,
}

/// Lines such as `sender behind its schedule in 7 trials of tcp-connect (on all variants; left in): p99 of ... 808 to
/// 2744 us`, those that made trials void first; at most `most`, and then how many are not shown.
pub(crate) fn lines(run: &Run, most: usize) -> Vec<String> {
    let mut groups = groups(run);
    order::by_key(&mut groups, |g| (g.void == 0, std::cmp::Reverse(g.trials)));
    let mut lines: Vec<String> = groups.iter().take(most).map(|g| told(g, run)).collect();
    if groups.len() > most {
        lines.push(format!("and {} more (see report.html)", plural(groups.len() - most, "kind")));
    }
    lines
}

fn groups(run: &Run) -> Vec<Group<'_>> {
    let mut groups: Vec<Group<'_>> = Vec::new();
    for trial in &run.trials {
        let mut seen: Vec<usize> = Vec::new();
        for fault in &trial.faults {
            let words = Pattern::of(&line(&fault.detail));
            let same = |g: &Group<'_>| {
                g.code == fault.code && g.workload == trial.workload && g.words.is_like(&words)
            };
            let at = groups.iter().position(same).unwrap_or(groups.len());
            if at == groups.len() {
                let (code, workload) = (fault.code, trial.workload.as_str());
                groups.push(Group { code, workload, variants: Vec::new(), trials: 0, void: 0, words });
            } else {
                groups[at].words.widen(&words);
            }
            let group = &mut groups[at];
            if !group.variants.contains(&trial.variant.as_str()) {
                group.variants.push(&trial.variant);
            }
            // Two streams with the same fault are one trial with it.
            if !seen.contains(&at) {
                seen.push(at);
                group.trials += 1;
                group.void += usize::from(fault.void);
            }
        }
    }
    groups
}

fn told(group: &Group<'_>, run: &Run) -> String {
    let left_out = match group.void {
        0 => "left in".to_owned(),
        n if n == group.trials => "left out".to_owned(),
        n => format!("{n} left out"),
    };
    let on = match group.variants.as_slice() {
        [one] => format!("on {}", line(one)),
        all if all.len() == run.variants.len() => "on all variants".to_owned(),
        // In the run's order, which in each round is another one.
        some => {
            let names = run.variants.iter().filter(|v| some.contains(&v.name.as_str()));
            format!("on {}", names.map(|v| line(&v.name)).collect::<Vec<_>>().join(", "))
        }
    };
    format!(
        "{} in {} of {} ({on}; {left_out}): {}",
        words::fault(group.code),
        plural(group.trials, "trial"),
        line(group.workload),
        group.words.text()
    )
}

/// A text with its numbers taken out, and the range of each.
#[derive(Debug, PartialEq)]
struct Pattern {
    /// Texts around the numbers: one more than there are numbers.
    between: Vec<String>,
    numbers: Vec<(Figure, Figure)>,
}

/// A number as it was written.
#[derive(Debug, Clone, PartialEq)]
struct Figure {
    value: f64,
    written: String,
}

impl Pattern {
    fn of(text: &str) -> Pattern {
        let mut pattern = Pattern { between: vec![String::new()], numbers: Vec::new() };
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            let before = pattern.between.last().and_then(|b| b.chars().next_back());
            // The 99 of "p99" is a part of its name.
            let in_word = before.is_some_and(|b| b.is_alphanumeric() || b == '_');
            let end = number_end(rest);
            match rest[..end].replace(',', "").parse::<f64>() {
                Ok(value) if end > 0 && !in_word => {
                    let figure = Figure { value, written: rest[..end].to_owned() };
                    pattern.numbers.push((figure.clone(), figure));
                    pattern.between.push(String::new());
                    rest = &rest[end..];
                }
                _ => {
                    // A whole token that only looks like a number (an address) stays text.
                    let taken = end.max(c.len_utf8());
                    if let Some(last) = pattern.between.last_mut() {
                        last.push_str(&rest[..taken]);
                    }
                    rest = &rest[taken..];
                }
            }
        }
        pattern
    }

    fn is_like(&self, other: &Pattern) -> bool {
        self.between == other.between
    }

    fn widen(&mut self, other: &Pattern) {
        for ((low, high), (other_low, other_high)) in self.numbers.iter_mut().zip(&other.numbers) {
            if other_low.value < low.value {
                *low = other_low.clone();
            }
            if other_high.value > high.value {
                *high = other_high.clone();
            }
        }
    }

    fn text(&self) -> String {
        let mut text = self.between[0].clone();
        for ((low, high), after) in self.numbers.iter().zip(&self.between[1..]) {
            text.push_str(&low.written);
            if low != high {
                text.push_str(" to ");
                text.push_str(&high.written);
            }
            text.push_str(after);
        }
        text
    }
}

/// Length of the number at the start of the text: digits, with points or commas between digits.
fn number_end(text: &str) -> usize {
    let bytes = text.as_bytes();
    let digit = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
    let mut end = 0;
    while digit(end) || (end > 0 && matches!(bytes.get(end), Some(b'.' | b',')) && digit(end + 1)) {
        end += 1;
    }
    end
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined(texts: &[&str]) -> Option<String> {
        let mut all = texts.iter().map(|t| Pattern::of(t));
        let mut first = all.next()?;
        for other in all {
            if !first.is_like(&other) {
                return None;
            }
            first.widen(&other);
        }
        Some(first.text())
    }

    #[test]
    fn words_that_differ_in_numbers_join() {
        let texts = ["p99 is 974 us, of 988 us", "p99 is 2744 us, of 988 us", "p99 is 80.5 us, of 988 us"];
        assert_eq!(joined(&texts).unwrap(), "p99 is 80.5 to 2744 us, of 988 us");
        assert_eq!(joined(&["12 of 2,000 late", "9 of 2,000 late"]).unwrap(), "9 to 12 of 2,000 late");
        assert_eq!(joined(&["p99 is 1", "p50 is 1"]), None);
        assert_eq!(joined(&["198.18.0.1 refused", "198.18.0.2 refused"]), None);
        assert_eq!(joined(&["6.2 % of CPU time"]).unwrap(), "6.2 % of CPU time");
        assert_eq!(joined(&["µ5, ends. 7.", "µ5, ends. 3."]).unwrap(), "µ5, ends. 3 to 7.");
    }
}
