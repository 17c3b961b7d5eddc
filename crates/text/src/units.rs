//! Figures for people: as many digits as the interval allows, in the unit that keeps them short.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Figures without an interval get this many significant digits.
const DIGITS_WITHOUT_INTERVAL: i32 = 3;

/// However narrow the interval, no more significant digits than this: the clocks and counters behind the
/// figures are no better than 0.1 %, so more would pretend.
const MOST_DIGITS: i32 = 4;

const KIB: f64 = 1024.0;

/// Unit of a metric's stored value. Stored values are never scaled (bits per second, not Mbit/s);
/// scaling is the renderer's business.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Bits per second.
    Bps,
    /// Packets or datagrams per second.
    Pps,
    /// Operations (connections, transactions, requests) per second.
    PerSecond,
    /// Nanoseconds.
    Ns,
    /// A count.
    Count,
    /// A share of one, 0..=1.
    Ratio,
    /// CPU seconds per gigabit (1e9 bits) delivered.
    CpuSecondsPerGbit,
    /// CPU nanoseconds per operation or packet.
    CpuNs,
    /// Bytes.
    Bytes,
    /// Busy cores.
    Cores,
}

/// A unit as it is written, and the factor by which a stored value is divided.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Display {
    /// As it is written behind the number.
    pub symbol: &'static str,
    /// How many of the stored unit it is.
    pub divisor: f64,
}

/// The ladder of written units of a stored one, ascending.
fn ladder(unit: Unit) -> &'static [(&'static str, f64)] {
    match unit {
        Unit::Bps => &[("bit/s", 1.0), ("kbit/s", 1e3), ("Mbit/s", 1e6), ("Gbit/s", 1e9), ("Tbit/s", 1e12)],
        Unit::Pps => &[("pps", 1.0), ("kpps", 1e3), ("Mpps", 1e6)],
        Unit::PerSecond => &[("/s", 1.0), ("k/s", 1e3), ("M/s", 1e6)],
        Unit::Ns => &[("ns", 1.0), ("µs", 1e3), ("ms", 1e6), ("s", 1e9)],
        Unit::Count => &[("", 1.0), ("k", 1e3), ("M", 1e6), ("G", 1e9)],
        Unit::Ratio => &[("%", 0.01)],
        Unit::CpuSecondsPerGbit => &[("µs/Gbit", 1e-6), ("ms/Gbit", 1e-3), ("s/Gbit", 1.0)],
        Unit::CpuNs => &[("ns", 1.0), ("µs", 1e3), ("ms", 1e6), ("s", 1e9)],
        Unit::Bytes => &[
            ("B", 1.0),
            ("KiB", KIB),
            ("MiB", KIB * KIB),
            ("GiB", KIB * KIB * KIB),
            ("TiB", KIB * KIB * KIB * KIB),
        ],
        Unit::Cores => &[("cores", 1.0)],
    }
}

/// The written unit in which `value` has one to three digits before the point. Counts stay plain up to 9999, and so do bytes,
/// since lengths of packets are known by them.
pub fn display_for(unit: Unit, value: f64) -> Display {
    let steps = ladder(unit);
    // 999.6 would be written as 1000; the next unit is the better one from 999.5 on.
    let keep = |divisor: f64| match unit {
        Unit::Count => 10.0,
        Unit::Bytes if divisor == KIB => 10.0,
        _ => 1.0,
    };
    let fits = |(_, d): &&(&str, f64)| value.abs() >= d * if *d > 1.0 { keep(*d) * 0.9995 } else { 1.0 };
    let (symbol, divisor) = steps.iter().rev().find(fits).copied().unwrap_or(steps[0]);
    Display { symbol, divisor }
}

/// The written unit for a row of values, by the middle one, so that all of the row share it.
pub fn display_for_all(unit: Unit, values: impl IntoIterator<Item = f64>) -> Display {
    let mut values: Vec<f64> =
        values.into_iter().map(f64::abs).filter(|v| v.is_finite() && *v > 0.0).collect();
    values.sort_by(f64::total_cmp);
    display_for(unit, values.get(values.len() / 2).copied().unwrap_or(0.0))
}

/// Decimals after the point that a half-width justifies: its first significant digit, and a second one where
/// it begins with 1, so that rounding never moves a bound by more than about a quarter of the half-width.
fn decimals_for_half_width(half_width: f64) -> i32 {
    let exponent = half_width.log10().floor() as i32;
    let lead = half_width / 10f64.powi(exponent);
    if lead < 1.95 { 1 - exponent } else { -exponent }
}

/// Decimals that make so many significant digits; negative where the digits end before the point.
pub fn decimals_for_digits(value: f64, digits: i32) -> i32 {
    if value == 0.0 || !value.is_finite() { 0 } else { digits - 1 - value.abs().log10().floor() as i32 }
}

/// Decimals for a value that is written with its interval, all already divided by the unit.
pub fn decimals(value: f64, interval: Option<(f64, f64)>) -> usize {
    let interval = interval.map(|(low, high)| if high.is_infinite() { (low, low) } else { (low, high) });
    let scale = interval.map_or(value, |(low, high)| value.abs().max(low.abs()).max(high.abs()));
    let wanted = match interval {
        Some((low, high)) if high > low => {
            decimals_for_half_width((high - low) / 2.0).min(decimals_for_digits(scale, MOST_DIGITS))
        }
        _ => decimals_for_digits(value, DIGITS_WITHOUT_INTERVAL),
    };
    wanted.clamp(0, 9) as usize
}

/// A number with that many decimals. The minus sign is the real one, and zero has none.
pub fn number(value: f64, decimals: usize) -> String {
    if value.is_infinite() {
        return if value > 0.0 { "∞" } else { "−∞" }.to_owned();
    }
    let text = format!("{value:.decimals$}");
    match text.strip_prefix('-') {
        Some(rest) if rest.bytes().all(|b| matches!(b, b'0' | b'.')) => rest.to_owned(),
        Some(rest) => format!("−{rest}"),
        None => text,
    }
}

/// `low, high` in brackets.
pub fn bracket((low, high): (f64, f64), decimals: usize) -> String {
    format!("[{}, {}]", number(low, decimals), number(high, decimals))
}

/// A value and its interval without the unit, in the given display, e.g. `9.41 [9.32, 9.50]`.
pub fn bare(value: f64, interval: Option<(f64, f64)>, unit: Display) -> String {
    if value.is_infinite() {
        return FAILED.to_owned();
    }
    let value = value / unit.divisor;
    let interval = interval.map(|(low, high)| (low / unit.divisor, high / unit.divisor));
    let digits = decimals(value, interval);
    let text = number(value, digits);
    interval.map_or(text.clone(), |i| format!("{text} {}", bracket(i, digits)))
}

/// Text in place of the delay of a failed operation.
pub const FAILED: &str = "failed";

/// A value with its unit and interval: `9.41 Gbit/s [9.32, 9.50]`, `52.1 µs`, `0.12 %`, `1.02 Mpps`; of a share of
/// which nothing was seen `0 %, below 0.00008 %`. The value is the stored one (bits per second, nanoseconds, a
/// share of one, ...).
pub fn quantity(unit: Unit, value: f64, interval: Option<(f64, f64)>) -> String {
    if value.is_nan() {
        return "not a number".to_owned();
    }
    in_display(unit, value, interval, display_for(unit, value))
}

/// [`quantity`] in a given display.
pub fn in_display(unit: Unit, value: f64, interval: Option<(f64, f64)>, shown: Display) -> String {
    if let Some(bound) = bound_of_zero(unit, value, interval) {
        return format!("0 %, below {}", bound_percent(bound));
    }
    if value.is_infinite() {
        return FAILED.to_owned();
    }
    let text = if unit == Unit::Count && interval.is_none() && shown.divisor == 1.0 {
        // These are whole numbers, but the median of two may end in a half.
        number(value, usize::from(value.fract() != 0.0))
    } else {
        bare(value, interval, shown)
    };
    let (number, rest) = text.split_once(' ').unwrap_or((&text, ""));
    [number, shown.symbol, rest].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join(" ")
}

/// The upper bound of a share of which nothing was seen: none lost of n is not "0.0000", it is less than 3/n.
pub fn bound_of_zero(unit: Unit, value: f64, interval: Option<(f64, f64)>) -> Option<f64> {
    let (low, high) = interval?;
    (unit == Unit::Ratio && value == 0.0 && low == 0.0 && high > 0.0 && high.is_finite()).then_some(high)
}

/// An upper bound as a percentage with at most two significant digits, rounded up: rounded down it would be no bound.
pub fn bound_percent(share: f64) -> String {
    let value = share * 100.0;
    if value.is_nan() || value <= 0.0 {
        return "0 %".to_owned();
    }
    let digits = (1 - value.log10().floor() as i32).clamp(0, 12);
    let scale = 10f64.powi(digits);
    // An error of the multiplication in the last bits must not become a step.
    let text = number((value * scale * (1.0 - 1e-9)).ceil() / scale, digits as usize);
    let short = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{short} %")
}

/// A share as a percentage without sign: `12 %`, `0.35 %`; `-` if it is none.
pub fn percent(share: f64) -> String {
    if !share.is_finite() {
        return "-".to_owned();
    }
    let value = share * 100.0;
    let digits = decimals_for_digits(value, if value.abs() < 10.0 { 2 } else { 3 }).clamp(0, 6) as usize;
    let text = number(value, digits);
    let short = if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    format!("{short} %")
}

/// A number in plain digits with one of these units behind it, times the unit's size. Rust's own parser of numbers would also
/// take a sign, an exponent, `inf` and `nan`.
pub fn amount(text: &str, units: &[(&str, f64)]) -> Option<f64> {
    let text = text.trim();
    let end = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, name) = (&text[..end], text[end..].trim());
    let (_, size) = units.iter().find(|(unit, _)| *unit == name)?;
    number.parse::<f64>().ok().map(|n| n * size)
}

/// Other ways in which people write units.
const ALIASES: [(Unit, &str, f64); 12] = [
    (Unit::Bps, "bps", 1.0),
    (Unit::Bps, "kbps", 1e3),
    (Unit::Bps, "Mbps", 1e6),
    (Unit::Bps, "Gbps", 1e9),
    (Unit::Ns, "us", 1e3),
    (Unit::Ns, "μs", 1e3),
    (Unit::CpuNs, "us", 1e3),
    (Unit::CpuNs, "μs", 1e3),
    (Unit::Bytes, "bytes", 1.0),
    (Unit::Bytes, "kB", 1e3),
    (Unit::Bytes, "MB", 1e6),
    (Unit::Bytes, "GB", 1e9),
];

/// How many of the stored unit are one of this name; no name is the stored unit itself.
pub fn factor(unit: Unit, name: &str) -> Option<f64> {
    let written = ladder(unit).iter().find(|(known, _)| *known == name).map(|(_, size)| *size);
    let alias = || ALIASES.iter().find(|(of, alias, _)| *of == unit && *alias == name).map(|a| a.2);
    if name.is_empty() { Some(1.0) } else { written.or_else(alias) }
}

/// Names of a unit's multiples.
pub fn names(unit: Unit) -> impl Iterator<Item = &'static str> {
    ladder(unit).iter().map(|(name, _)| *name)
}

/// Bytes: `1472 B`, `64.0 KiB`, `384 MiB`.
pub fn bytes(value: u64) -> String {
    quantity(Unit::Bytes, value as f64, None)
}

/// A count with its thousands apart: `1,234,567`.
pub fn count(value: impl Into<u64>) -> String {
    let digits = value.into().to_string();
    let mut out = String::new();
    for (n, digit) in digits.chars().enumerate() {
        if n > 0 && (digits.len() - n).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_interval_drives_the_digits() {
        assert_eq!(quantity(Unit::Bps, 9.4123e9, Some((9.3211e9, 9.5019e9))), "9.41 Gbit/s [9.32, 9.50]");
        assert_eq!(quantity(Unit::Bps, 9.4123e9, Some((8.1e9, 10.2e9))), "9.4 Gbit/s [8.1, 10.2]");
        assert_eq!(quantity(Unit::Bps, 9.4123e9, Some((4e9, 16e9))), "9 Gbit/s [4, 16]");
        assert_eq!(
            quantity(Unit::Bps, 9.4123e9, Some((9.41229e9, 9.41231e9))),
            "9.412 Gbit/s [9.412, 9.412]"
        );
        assert_eq!(quantity(Unit::Ns, 52_100.0, None), "52.1 µs");
        assert_eq!(quantity(Unit::Ratio, 0.0012, None), "0.120 %");
        assert_eq!(quantity(Unit::Pps, 1.02e6, None), "1.02 Mpps");
        assert_eq!(quantity(Unit::Count, 0.0, None), "0");
        assert_eq!(quantity(Unit::Count, 67.0, None), "67");
        assert_eq!(quantity(Unit::Count, 67.5, None), "67.5");
        assert_eq!(quantity(Unit::Count, 548.0, Some((501.0, 603.0))), "548 [501, 603]");
        assert_eq!(quantity(Unit::Count, 15_932.0, None), "15.9 k");
        assert_eq!(quantity(Unit::CpuSecondsPerGbit, 0.0123, None), "12.3 ms/Gbit");
        assert_eq!(quantity(Unit::Bps, f64::NAN, None), "not a number");
    }

    /// The rule of three: none lost of n is below 3/n.
    #[test]
    fn none_of_many_is_a_bound() {
        let none_of = |n: f64| quantity(Unit::Ratio, 0.0, Some((0.0, 3.0 / n)));
        assert_eq!(none_of(3_750_000.0), "0 %, below 0.00008 %");
        // 3 / 7e6 = 4.2857e-7: up, not to the nearest.
        assert_eq!(none_of(7e6), "0 %, below 0.000043 %");
        assert_eq!(none_of(100.0), "0 %, below 3 %");
        assert_eq!(none_of(3.0), "0 %, below 100 %");
        assert_eq!(quantity(Unit::Ratio, 0.0, None), "0 %");
        assert_eq!(quantity(Unit::Count, 0.0, Some((0.0, 4.0))), "0 [0, 4]");
        assert_eq!(quantity(Unit::Ratio, 0.001, Some((0.0, 0.002))), "0.10 % [0.00, 0.20]");
    }

    #[test]
    fn units_change_where_a_fourth_digit_would_come() {
        assert_eq!(quantity(Unit::Ns, 999.4, None), "999 ns");
        assert_eq!(quantity(Unit::Ns, 999.6, None), "1.000 µs");
        assert_eq!(quantity(Unit::Bytes, 1024.0 * 1024.0 * 3.5, None), "3.50 MiB");
        assert_eq!(quantity(Unit::Bytes, 1472.0, None), "1472 B");
        assert_eq!(quantity(Unit::Bytes, 1472.0, Some((1472.0, 1472.0))), "1472 B [1472, 1472]");
        assert_eq!(quantity(Unit::Bytes, 65_536.0, None), "64.0 KiB");
        assert_eq!(display_for_all(Unit::Bps, [1e6, 5e9, 9e9]).symbol, "Gbit/s");
    }

    #[test]
    fn words_for_shares() {
        assert_eq!(percent(0.03), "3 %");
        assert_eq!(percent(0.0035), "0.35 %");
        assert_eq!(percent(-0.125), "−12.5 %");
        assert_eq!(number(-0.001, 1), "0.0");
    }

    #[test]
    fn counts_have_their_thousands_apart() {
        assert_eq!(
            (count(0_u32), count(999_u32), count(1_234_567_u64)),
            ("0".into(), "999".into(), "1,234,567".into())
        );
    }

    #[test]
    fn units_are_read_as_they_are_written() {
        for unit in [Unit::Bps, Unit::Pps, Unit::Ns, Unit::Ratio, Unit::Bytes] {
            for (name, size) in ladder(unit) {
                assert_eq!(factor(unit, name), Some(*size));
            }
        }
        assert_eq!(factor(Unit::Bytes, "MB"), Some(1e6));
        assert_eq!(factor(Unit::Ns, "μs"), Some(1e3));
        assert_eq!(factor(Unit::Pps, "us"), None);
        assert_eq!(amount("2.5 gbit", &[("gbit", 1e9)]), Some(2.5e9));
    }
}
