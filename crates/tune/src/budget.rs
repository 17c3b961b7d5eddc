//! The memory budget: how much all settings and actions of a plan may take together, and what each of them takes.

use weir_sys::slab::page_bytes;

use super::Error;
use super::knobs::{Cost, Knob, numbers};
use super::need::Need;

/// A memory budget.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Budget {
    /// Share of the machine's memory, 0 to 1; never more than half of what is available.
    Share(f64),
    /// Bytes.
    Bytes(u64),
}

impl std::str::FromStr for Budget {
    type Err = String;

    /// `5%`, `256M`, `1G`, or bytes.
    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is neither a share such as 5% nor an amount such as 256M or 2G");
        if let Some(percent) = text.strip_suffix('%') {
            let percent: f64 = percent.parse().map_err(|_| wrong())?;
            // More than half of the machine for settings is a mistake, not a wish.
            return if percent > 0.0 && percent <= 50.0 {
                Ok(Budget::Share(percent / 100.0))
            } else {
                Err("more than 0 % and at most 50 %".into())
            };
        }
        let (digits, unit) = match text.char_indices().last() {
            Some((at, 'K' | 'k')) => (&text[..at], 1_u64 << 10),
            Some((at, 'M' | 'm')) => (&text[..at], 1 << 20),
            Some((at, 'G' | 'g')) => (&text[..at], 1 << 30),
            _ => (text, 1),
        };
        let bytes = digits.parse::<u64>().ok().and_then(|n| n.checked_mul(unit)).filter(|n| *n > 0);
        bytes.map(Budget::Bytes).ok_or_else(wrong)
    }
}

/// The budget in bytes.
///
/// # Errors
/// If it is a share, and the machine's memory is not known.
pub(super) fn bytes(memory: Budget, need: &Need) -> Result<u64, Error> {
    match memory {
        Budget::Bytes(bytes) => Ok(bytes),
        Budget::Share(share) => {
            let (Some(all), Some(free)) = (need.memory_bytes, need.available_bytes) else {
                return Err(Error::Unfit(
                    "/proc/meminfo cannot be read: give --memory as an amount, e.g. 256M".into(),
                ));
            };
            Ok(((all as f64 * share) as u64).min(free / 2))
        }
    }
}

/// Returns the memory that a value takes when all of it is used, bytes.
pub(super) fn cost(need: &Need, knob: &Knob, value: &str) -> i64 {
    let last = numbers(value).and_then(|n| n.last().copied()).unwrap_or(0);
    i64::try_from(last.saturating_mul(each(need, knob.cost))).unwrap_or(i64::MAX)
}

/// Returns the memory that one more takes, bytes.
fn each(need: &Need, cost: Cost) -> u64 {
    match cost {
        Cost::None => 0,
        Cost::ConntrackEntries => need.entry_bytes,
        Cost::ConntrackBuckets => size_of::<usize>() as u64,
        Cost::Each(bytes) => bytes,
        Cost::Bytes => 1,
        Cost::Pages => page_bytes(),
    }
}

/// The largest value that a room of so many bytes pays for; `None` of several numbers that rise: none of them is changed.
pub(super) fn most(need: &Need, knob: &Knob, now: &str, room: i64) -> Option<u64> {
    let now = numbers(now).filter(|n| n.len() == 1)?[0];
    let more = u64::try_from(room).unwrap_or(0) / each(need, knob.cost).max(1);
    Some(now.saturating_add(more).min(knob.max))
}

/// Heads of hash chains for so many entries: as many, which is the kernel's own choice, in whole pages, as
/// `nf_ct_alloc_hashtable` rounds them (net/netfilter/nf_conntrack_core.c).
pub(super) fn hash_heads(entries: u64) -> u64 {
    let heads = heads_of_page();
    entries.max(1).checked_next_multiple_of(heads).unwrap_or(u64::MAX - heads)
}

pub(super) fn heads_of_page() -> u64 {
    page_bytes() / size_of::<usize>() as u64
}
