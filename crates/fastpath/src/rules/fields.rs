//! The addresses and ports that the conditions of a rule of nftables ask for, as far as its registers hold them.

use weir_netlink::nftables::{Base, Comparison, Family};

use super::ends::{Field, Values};
use super::sets::Keys;
use super::traffic::Byte;

/// A field, and the values that a condition lets pass.
type Narrowed = Vec<(Field, Values)>;

/// True if writing there may change an address or a port.
pub(super) fn may_hold_ends(family: Family, base: Base, offset: u32, length: u32) -> bool {
    let end = offset.saturating_add(length);
    match base {
        Base::Network => end > if family == Family::Ip { 12 } else { 8 },
        Base::Transport => offset < 4,
        Base::Link => end > 14,
        Base::Inner => false,
    }
}

fn number(bytes: &[u8]) -> u128 {
    bytes.iter().fold(0, |number, byte| number << 8 | u128::from(*byte))
}

/// The one field that these bytes are, from its first bit to its last.
fn whole(bytes: &[Byte], ipv6: bool) -> Option<Field> {
    let (field, _) = bytes.first()?.of?;
    let is_next = |(at, byte): (usize, &Byte)| byte.of == Some((field, at as u8)) && byte.known == 0;
    let is_whole = bytes.len() * 8 == field.bits(ipv6) as usize && bytes.iter().enumerate().all(is_next);
    is_whole.then_some(field)
}

/// A field of which these bytes are the first bits, and the values whose first bits are these.
fn beginning(bytes: &[Byte], value: &[u8], field: Field, ipv6: bool) -> Option<Values> {
    let bits = field.bits(ipv6);
    let (mut mask, mut wanted) = (0_u128, 0_u128);
    for (byte, value) in bytes.iter().zip(value) {
        let Some((_, at)) = byte.of.filter(|(of, _)| *of == field) else { continue };
        let shift = bits.checked_sub(8 * (u32::from(at) + 1))?;
        // Known bits were masked out.
        mask |= u128::from(!byte.known) << shift;
        wanted |= u128::from(value & !byte.known) << shift;
    }
    let low = !mask & (u128::MAX >> (128 - bits));
    // The bits that do not count are the last ones.
    (low & low.wrapping_add(1) == 0).then(|| Values::of([(wanted, wanted | low)]))
}

/// By a comparison that neither always holds nor never.
pub(super) fn compared(bytes: &[Byte], with: Comparison, value: &[u8], ipv6: bool) -> Narrowed {
    let mut fields: Vec<Field> = bytes.iter().filter_map(|byte| Some(byte.of?.0)).collect();
    fields.dedup();
    match with {
        Comparison::Equal => {
            let each = |field| Some((field, beginning(bytes, value, field, ipv6)?));
            fields.into_iter().filter_map(each).collect()
        }
        // Not both is no condition on either of two.
        Comparison::NotEqual => match fields[..] {
            [field] if bytes.iter().all(|byte| byte.of.is_some()) => {
                let values = beginning(bytes, value, field, ipv6);
                values.into_iter().map(|values| (field, values.not(field.bits(ipv6)))).collect()
            }
            _ => Vec::new(),
        },
        _ => {
            let Some(field) = whole(bytes, ipv6) else { return Vec::new() };
            let (value, most) = (number(value), u128::MAX >> (128 - field.bits(ipv6)));
            let (at_most, less) =
                (Values::of([(0, value)]), Values::of(value.checked_sub(1).map(|v| (0, v))));
            let values = match with {
                Comparison::LessOrEqual => at_most,
                Comparison::Less => less,
                Comparison::Greater => Values::of([(value.saturating_add(1), most)]),
                _ => Values::of([(value, most)]),
            };
            vec![(field, values)]
        }
    }
}

/// Between two values, or outside of them.
pub(super) fn within(bytes: &[Byte], first: &[u8], last: &[u8], outside: bool, ipv6: bool) -> Narrowed {
    let Some(field) = whole(bytes, ipv6) else { return Vec::new() };
    let values = Values::of([(number(first), number(last))]);
    vec![(field, if outside { values.not(field.bits(ipv6)) } else { values })]
}

/// In a set, or in none of its intervals. Each field of a longer key is looked at alone.
pub(super) fn among(bytes: &[Byte], keys: &Keys, negated: bool, ipv6: bool) -> Narrowed {
    let values = |range: std::ops::Range<usize>| {
        let part = |key: &[u8]| key.get(range.clone()).map(number);
        let spans = keys.iter().map(|(first, last)| Some((part(first)?, part(last)?)));
        spans.collect::<Option<Vec<_>>>().map(Values::of)
    };
    if let Some(field) = whole(bytes, ipv6) {
        let Some(values) = values(0..bytes.len()) else { return Vec::new() };
        return vec![(field, if negated { values.not(field.bits(ipv6)) } else { values })];
    }
    let mut found = Vec::new();
    // Fields of a longer key begin at words of four bytes.
    for start in (0..bytes.len()).step_by(4).filter(|_| !negated) {
        let Some((field, _)) = bytes[start].of else { continue };
        let range = start..start + field.bits(ipv6) as usize / 8;
        let part = bytes.get(range.clone()).unwrap_or_default();
        if whole(part, ipv6) == Some(field)
            && let Some(values) = values(range)
        {
            found.push((field, values));
        }
    }
    found
}
