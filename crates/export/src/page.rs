//! Metrics, and the text of their series: format 0.0.4 of Prometheus.

use std::fmt::Write;

/// Type of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Only grows, but for restarts.
    Counter,
    /// Goes up and down.
    Gauge,
    /// Cumulative buckets, with `_sum` and `_count`.
    Histogram,
}

impl Kind {
    /// Its name in the text format.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        }
    }
}

/// A word or a sentence of a definition.
pub(crate) type Text = &'static str;

/// A metric: the one definition of its name, its labels and its help.
#[derive(Debug)]
pub struct Metric {
    /// Name without `weir_`.
    pub name: &'static str,
    /// Its type.
    pub kind: Kind,
    /// Names of its labels, in the order of their values.
    pub labels: &'static [&'static str],
    /// One sentence.
    pub help: &'static str,
}

impl Metric {
    pub(crate) const fn counter(name: Text, labels: &'static [Text], help: Text) -> Self {
        Metric { name, kind: Kind::Counter, labels, help }
    }

    pub(crate) const fn gauge(name: Text, labels: &'static [Text], help: Text) -> Self {
        Metric { name, kind: Kind::Gauge, labels, help }
    }

    pub(crate) const fn histogram(name: Text, labels: &'static [Text], help: Text) -> Self {
        Metric { name, kind: Kind::Histogram, labels, help }
    }
}

/// Metrics of one subject, for the reference.
#[derive(Debug)]
pub struct Group {
    /// Heading.
    pub title: &'static str,
    /// Source of the figures, and the bound of the number of series.
    pub about: &'static str,
    /// The metrics.
    pub metrics: &'static [&'static Metric],
}

/// A page, or a part of one, under construction.
#[derive(Debug, Default)]
pub struct Page {
    text: String,
}

impl Page {
    /// Begins a metric. Each may be in a page once.
    pub(crate) fn family<'a>(&'a mut self, metric: &'a Metric) -> Family<'a> {
        let Metric { name, kind, help, .. } = metric;
        let _ = writeln!(self.text, "# HELP weir_{name} {help}\n# TYPE weir_{name} {}", kind.name());
        Family { text: &mut self.text, metric }
    }

    /// Writes a metric without labels.
    pub(crate) fn single(&mut self, metric: &Metric, value: f64) {
        self.family(metric).value(&[], value);
    }

    /// Writes a metric with all of its series: the values of their labels, and their own.
    pub(crate) fn series<L: AsRef<str>, const N: usize>(
        &mut self,
        metric: &Metric,
        series: impl IntoIterator<Item = ([L; N], f64)>,
    ) {
        let mut family = self.family(metric);
        for (labels, value) in series {
            family.value(&labels.each_ref().map(AsRef::as_ref), value);
        }
    }

    /// Appends a finished part.
    pub(crate) fn append(&mut self, part: &str) {
        self.text.push_str(part);
    }

    /// The text.
    pub fn into_text(self) -> String {
        self.text
    }
}

/// A value for yes or no.
pub(crate) fn yes(is: bool) -> f64 {
    f64::from(u8::from(is))
}

/// The series of one metric.
pub(crate) struct Family<'a> {
    text: &'a mut String,
    metric: &'a Metric,
}

impl Family<'_> {
    /// A series; one value for each label.
    pub(crate) fn value(&mut self, labels: &[&str], value: f64) {
        self.line("", labels, None, value);
    }

    /// A histogram: upper ends of its buckets (the last one is open) with cumulative counts, and the sum of all values.
    pub(crate) fn histogram(&mut self, labels: &[&str], buckets: &[(f64, u64)], sum: f64) {
        for (end, count) in buckets {
            let end = if end.is_finite() { end.to_string() } else { "+Inf".into() };
            self.line("_bucket", labels, Some(&end), *count as f64);
        }
        self.line("_sum", labels, None, sum);
        self.line("_count", labels, None, buckets.last().map_or(0, |b| b.1) as f64);
    }

    fn line(&mut self, ending: &str, labels: &[&str], end: Option<&str>, value: f64) {
        assert_eq!(labels.len(), self.metric.labels.len(), "labels of {}", self.metric.name);
        let named = self.metric.labels.iter().copied().zip(labels.iter().copied());
        let all: Vec<String> = named
            .chain(end.map(|end| ("le", end)))
            .map(|(name, value)| format!("{name}=\"{}\"", escaped(value)))
            .collect();
        let all = if all.is_empty() { String::new() } else { format!("{{{}}}", all.join(",")) };
        let _ = writeln!(self.text, "weir_{}{ending}{all} {value}", self.metric.name);
    }
}

/// The value of a label (exposition format 0.0.4).
fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_cannot_break_a_line() {
        assert_eq!(escaped("a\"b\\c\nd"), "a\\\"b\\\\c\\nd");
    }

    #[test]
    fn a_histogram_ends_with_its_sum_and_count() {
        static WAIT: Metric = Metric::histogram("wait_seconds", &["place"], "How long.");
        let mut page = Page::default();
        page.family(&WAIT).histogram(&["a"], &[(0.5, 1), (f64::INFINITY, 3)], 7.25);
        assert_eq!(
            page.into_text(),
            "# HELP weir_wait_seconds How long.\n# TYPE weir_wait_seconds histogram\n\
             weir_wait_seconds_bucket{place=\"a\",le=\"0.5\"} 1\n\
             weir_wait_seconds_bucket{place=\"a\",le=\"+Inf\"} 3\n\
             weir_wait_seconds_sum{place=\"a\"} 7.25\nweir_wait_seconds_count{place=\"a\"} 3\n"
        );
    }
}
