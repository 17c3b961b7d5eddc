//! Units in which a bound may be written, and in which what was found is told.

use weir_record::Unit;

/// Names of a unit's multiples with their size in the stored unit, from small to large. The empty name is the stored unit.
fn multiples(unit: Unit) -> &'static [(&'static str, f64)] {
    match unit {
        Unit::Bps => &[("bit/s", 1.0), ("kbit/s", 1e3), ("Mbit/s", 1e6), ("Gbit/s", 1e9), ("Tbit/s", 1e12)],
        Unit::Pps => &[("pps", 1.0), ("kpps", 1e3), ("Mpps", 1e6)],
        Unit::PerSecond => &[("/s", 1.0), ("k/s", 1e3), ("M/s", 1e6)],
        Unit::Ns | Unit::CpuNs => &[("ns", 1.0), ("us", 1e3), ("ms", 1e6), ("s", 1e9)],
        Unit::Count => &[("", 1.0)],
        Unit::Ratio => &[("%", 0.01)],
        Unit::CpuSecondsPerGbit => &[("s/Gbit", 1.0)],
        Unit::Bytes => &[("B", 1.0), ("kB", 1e3), ("MB", 1e6), ("GB", 1e9)],
        Unit::Cores => &[("cores", 1.0)],
    }
}

/// Other ways in which people write some of them.
const ALIASES: [(&str, &str); 8] = [
    ("bps", "bit/s"),
    ("kbps", "kbit/s"),
    ("Mbps", "Mbit/s"),
    ("Gbps", "Gbit/s"),
    ("µs", "us"),
    ("μs", "us"),
    ("bytes", "B"),
    ("core", "cores"),
];

/// How many of the stored unit are one of this name; nothing is the stored unit itself.
pub(super) fn factor(unit: Unit, name: &str) -> Option<f64> {
    if name.is_empty() {
        return Some(1.0);
    }
    let name = ALIASES.iter().find(|(alias, _)| *alias == name).map_or(name, |(_, name)| name);
    multiples(unit).iter().find(|(known, _)| *known == name).map(|(_, factor)| *factor)
}

/// Names of the multiples.
pub(super) fn names(unit: Unit) -> impl Iterator<Item = &'static str> {
    multiples(unit).iter().map(|(name, _)| *name)
}

/// `900 Mbit/s [897, 903]`: a value and its interval in the largest multiple in which the value is at least 1.
pub(super) fn tell(unit: Unit, value: f64, interval: Option<(f64, f64)>) -> String {
    let all = multiples(unit);
    let fits = |(_, factor): &&(&str, f64)| value.abs() >= *factor;
    let (name, factor) = all.iter().rev().find(fits).or(all.first()).unwrap_or(&("", 1.0));
    let blank = if name.is_empty() { "" } else { " " };
    let interval =
        interval.map(|(low, high)| format!(" [{}, {}]", digits(low / factor), digits(high / factor)));
    format!("{}{blank}{name}{}", digits(value / factor), interval.unwrap_or_default())
}

/// Three significant digits, more before the point.
pub(super) fn digits(value: f64) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    let before = value.abs().log10().floor();
    // 12 places are enough for whatever is still told apart from nothing.
    let places = (2.0 - before).clamp(0.0, 12.0) as usize;
    format!("{value:.places$}")
}
