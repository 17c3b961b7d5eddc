//! Statistics over windows of so many transactions, as Ethr prints them.

use weir_record::Series;
use weir_text::order;

use super::add_points;

/// The statistics of one window: name within the series, quantile. In 1,000 values p99.99 is the greatest.
const QUANTILES: [(&str, f64); 6] =
    [("p50", 0.5), ("p90", 0.9), ("p95", 0.95), ("p99", 0.99), ("p999", 0.999), ("p9999", 0.9999)];

/// Transactions that one connection keeps for its windows, at most: 2 MiB. With more windows than fit, every second,
/// fourth, ... window is kept, so that a long trial keeps its whole course.
const KEPT_TRANSACTIONS: usize = 1 << 18;

/// Points of a series in the record, at most.
const POINTS: usize = 240;

/// Collects windows on the hot path: nothing is sorted before the trial is over.
#[derive(Debug)]
pub(crate) struct Windows {
    size: usize,
    most: usize,
    /// Every how many windows one is kept; a power of two.
    stride: usize,
    begun: usize,
    filled: usize,
    start_ns: u64,
    current: Vec<u64>,
    kept: Vec<(u64, Vec<u64>)>,
}

impl Windows {
    pub(crate) fn new(size: usize) -> Self {
        Windows {
            size,
            most: (KEPT_TRANSACTIONS / size).clamp(2, 256),
            stride: 1,
            begun: 0,
            filled: 0,
            start_ns: 0,
            current: Vec::with_capacity(size),
            kept: Vec::new(),
        }
    }

    /// A transaction that started at `start_ns` took `rtt_ns`.
    #[inline]
    pub(crate) fn push(&mut self, start_ns: u64, rtt_ns: u64) {
        if self.filled == 0 {
            self.start_ns = start_ns;
        }
        if self.begun.is_multiple_of(self.stride) {
            self.current.push(rtt_ns);
        }
        self.filled += 1;
        if self.filled == self.size {
            self.finish();
        }
    }

    fn finish(&mut self) {
        if self.begun.is_multiple_of(self.stride) {
            let full = std::mem::replace(&mut self.current, Vec::with_capacity(self.size));
            self.kept.push((self.start_ns, full));
        }
        self.begun += 1;
        self.filled = 0;
        if self.kept.len() > self.most {
            let mut nth = 0;
            self.kept.retain(|_| {
                nth += 1;
                nth % 2 == 1
            });
            self.stride *= 2;
        }
    }

    /// Full windows that were seen, kept or not.
    pub(crate) fn count(&self) -> usize {
        self.begun
    }

    /// Add the kept windows to `all`: `window_mean_ns`, `window_min_ns`, `window_p50_ns`, ... at the window's start in
    /// seconds after `origin_ns`.
    pub(crate) fn add_to(self, all: &mut Vec<Series>, origin_ns: u64) {
        for (start_ns, mut values) in self.kept {
            values.sort_unstable();
            let t = start_ns.saturating_sub(origin_ns) as f64 / 1e9;
            let mut add =
                |name: &str, value: f64| add_points(all, &format!("window_{name}_ns"), &[(t, value)]);
            add("mean", values.iter().map(|&v| v as f64).sum::<f64>() / values.len() as f64);
            add("min", values[0] as f64);
            for (name, q) in QUANTILES {
                add(name, nearest_rank(&values, q) as f64);
            }
            add("max", values[values.len() - 1] as f64);
        }
    }
}

/// The smallest value x with F(x) >= q (RFC 2330 section 11.3) of sorted, non-empty values.
fn nearest_rank(sorted: &[u64], q: f64) -> u64 {
    // The allowance keeps 1000 x 0.999 = 999.0000..1 from becoming rank 1000.
    let rank = (sorted.len() as f64 * q - 1e-9).ceil() as usize;
    sorted[rank.clamp(1, sorted.len()) - 1]
}

/// Bring the windows of several connections into order, and down to [`POINTS`] evenly chosen ones.
pub(crate) fn arrange(all: &mut [Series]) {
    for series in all.iter_mut().filter(|s| s.name.starts_with("window_")) {
        order::by(&mut series.points, |a, b| a.0.total_cmp(&b.0));
        let n = series.points.len();
        if n > POINTS {
            series.points = (0..POINTS).map(|i| series.points[i * n / POINTS]).collect();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(all: &[Series], name: &str) -> Vec<(f64, f64)> {
        all.iter().find(|s| s.name == name).unwrap().points.clone()
    }

    #[test]
    fn a_window_of_a_thousand_has_the_ranks_of_the_definition() {
        let mut windows = Windows::new(1000);
        // 1..=1000 in an order that is not sorted: 617 is coprime to 1000.
        for i in 0..1000u64 {
            windows.push(5_000_000_000 + i, i * 617 % 1000 + 1);
        }
        // Half a window more, which is not shown.
        for _ in 0..500 {
            windows.push(9_000_000_000, 1);
        }
        let mut all = Vec::new();
        windows.add_to(&mut all, 3_000_000_000);
        for (name, value) in [
            ("mean", 500.5),
            ("min", 1.0),
            ("p50", 500.0),
            ("p90", 900.0),
            ("p95", 950.0),
            ("p99", 990.0),
            ("p999", 999.0),
            ("p9999", 1000.0),
            ("max", 1000.0),
        ] {
            assert_eq!(point(&all, &format!("window_{name}_ns")), [(2.0, value)], "{name}");
        }
    }

    #[test]
    fn a_long_trial_keeps_its_whole_course_in_bounded_memory() {
        let mut windows = Windows::new(1000);
        let n = 10_000u64;
        for w in 0..n {
            for _ in 0..1000 {
                windows.push(w, w + 1);
            }
        }
        assert_eq!(windows.count() as u64, n);
        assert!(windows.kept.len() <= 256 && windows.kept.len() >= 128);
        // Evenly spaced, from the first one on, to within a stride of the end, each of one window only.
        let stride = windows.kept[1].0;
        for (i, (start, values)) in windows.kept.iter().enumerate() {
            assert_eq!(*start, i as u64 * stride);
            assert!(values.len() == 1000 && values.iter().all(|&v| v == start + 1));
        }
        assert!(windows.kept.last().unwrap().0 + stride >= n - stride);
    }

    #[test]
    fn arranges_by_time_and_thins_evenly() {
        let points: Vec<(f64, f64)> = (0..960).rev().map(|i| (f64::from(i), f64::from(i))).collect();
        let mut all = vec![Series { name: "window_p50_ns".into(), points }];
        arrange(&mut all);
        let expected: Vec<(f64, f64)> = (0..240).map(|i| (f64::from(i * 4), f64::from(i * 4))).collect();
        assert_eq!(all[0].points, expected);
    }
}
