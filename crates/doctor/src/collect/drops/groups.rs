//! Drops by where and why.

use std::collections::{BTreeMap, HashMap};

use weir_bpf::{Btf, Object, Plain};
use weir_sys::ProcRoot;
use weir_sys::kallsyms::Symbols;
use weir_text::order;

use super::reasons::Reasons;
use super::shared::{WeirFront, WeirGroup, WeirLost, WeirSample, WeirSampleKey, WeirSum};
use super::{DROPS, Room, Running, load, watch};
use crate::evidence::{DropGroup, Evidence, EvidenceSource, Sample, Sight};

/// Samples kept of a group.
const SAMPLES: u64 = 16;

/// The placeholder for a place without a known name.
const NOWHERE: &str = "unknown";

/// Loads and attaches the program that knows the kernel's types.
pub(super) fn begin(btf: &Btf, room: Room) -> Result<(Running, Sight), String> {
    let arguments =
        btf.tracepoint_arguments("kfree_skb").ok_or("this kernel has no tracepoint skb:kfree_skb")?;
    // A table has one place at least, also one that is not used.
    let entries = [("front", room.places.max(1)), ("groups", room.groups), ("samples", room.samples)];
    let running = load("drops", DROPS, Some(&watch(arguments, room)), &entries)
        .and_then(|object| Running::attach(object, &["dropped"]))
        .map_err(|e| e.to_string())?;
    let sight = if arguments < 3 {
        Sight::Partly(
            "this kernel gives no reason for a drop (Linux 5.17 does): only its place is known".into(),
        )
    } else {
        Sight::Seen
    };
    Ok((running, sight))
}

/// Reads what was counted.
pub(super) fn read(
    object: &Object,
    btf: Option<&Btf>,
    root: &ProcRoot,
    evidence: &mut Evidence,
) -> Result<(), weir_bpf::Error> {
    let mut sums = object.map("groups")?.all_by_cpu::<WeirGroup, WeirSum>()?;
    sums.extend(in_front(&object.map("front")?.all_by_cpu::<u32, WeirFront>()?));
    let samples = object.map("samples")?.all::<WeirSampleKey, WeirSample>()?;
    let lost = object.map("lost")?.all_by_cpu::<u32, WeirLost>()?;
    evidence.cost.events_lost += lost.iter().flat_map(|(_, by_cpu)| by_cpu).map(|l| l.packets).sum::<u64>();
    if sums.is_empty() {
        return Ok(());
    }
    let reasons = Reasons::read(btf, root);
    let symbols = Symbols::read(root);
    if let Err(e) = &symbols {
        partly(evidence, &format!("where packets were dropped is not known: {e}"));
    }
    let place = |location: u64| place_of(symbols.as_ref().ok(), location);
    evidence.drops = merge(&sums, &samples, place, |number| reasons.name(number));
    Ok(())
}

/// Sums the counts of each core from its own slots; two cores may have different groups in the same slot.
fn in_front(places: &[(u32, Vec<WeirFront>)]) -> Vec<(WeirGroup, Vec<WeirSum>)> {
    let mut sums: HashMap<&[u8], (WeirGroup, Vec<WeirSum>)> = HashMap::new();
    for (_, by_cpu) in places {
        for (cpu, front) in by_cpu.iter().enumerate().filter(|(_, front)| front.sum.packets > 0) {
            let none = || (front.group, vec![WeirSum::zeroed(); by_cpu.len()]);
            let (_, cores) = sums.entry(front.group.bytes()).or_insert_with(none);
            cores[cpu] = front.sum;
        }
    }
    sums.into_values().collect()
}

fn partly(evidence: &mut Evidence, gap: &str) {
    let sight = evidence.evidence_sources.entry(EvidenceSource::Drops).or_insert(Sight::Seen);
    *sight = match sight {
        Sight::Partly(other) => Sight::Partly(format!("{other}; {gap}")),
        _ => Sight::Partly(gap.to_owned()),
    };
}

/// The function at an address, without what the compiler adds to the name of a part of it (`.cold`, `.isra.0`).
fn place_of(symbols: Option<&Symbols>, location: u64) -> String {
    let name = symbols.and_then(|s| Some(s.name(s.find(location)?)));
    let plain = name.and_then(|n| n.split('.').next()).filter(|n| !n.is_empty());
    plain.unwrap_or(NOWHERE).to_owned()
}

/// The key of a group of [`Evidence::drops`]: several places in one function count as one.
type Named = (u64, String, String, u32, u16, u8);

/// One core's drops of a group.
struct Share {
    packets: u64,
    samples: Vec<Sample>,
}

/// Sums over cores and places, and samples in proportion to what they stand for.
fn merge(
    sums: &[(WeirGroup, Vec<WeirSum>)],
    samples: &[(WeirSampleKey, WeirSample)],
    place: impl Fn(u64) -> String,
    reason: impl Fn(u32) -> String,
) -> Vec<DropGroup> {
    let mut by_core: HashMap<(&[u8], u32), Vec<Sample>> = HashMap::new();
    for (key, sample) in samples {
        by_core.entry((key.group.bytes(), key.cpu)).or_default().push(sample_of(sample));
    }
    let mut merged: BTreeMap<Named, (u64, u64, Vec<Share>)> = BTreeMap::new();
    for (group, by_cpu) in sums {
        let name: Named = (
            group.netns.into(),
            reason(group.reason),
            place(group.location),
            group.interface,
            group.ethertype,
            group.protocol,
        );
        let (packets, bytes, shares) = merged.entry(name).or_default();
        for (cpu, sum) in by_cpu.iter().enumerate().filter(|(_, s)| s.packets > 0) {
            *packets += sum.packets;
            *bytes += sum.bytes;
            let samples = by_core.remove(&(group.bytes(), cpu as u32)).unwrap_or_default();
            shares.push(Share { packets: sum.packets, samples });
        }
    }
    let mut groups: Vec<DropGroup> = merged.into_iter().map(|(name, sum)| named(name, sum)).collect();
    groups.retain(|g| g.packets > 0);
    order::by_key(&mut groups, |g| std::cmp::Reverse(g.packets));
    groups
}

fn named(name: Named, (packets, bytes, shares): (u64, u64, Vec<Share>)) -> DropGroup {
    let (namespace, reason, location, interface, ethertype, protocol) = name;
    let samples = draw(packets, shares);
    DropGroup { namespace, reason, location, interface, ethertype, protocol, packets, bytes, samples }
}

/// Takes samples from each share in proportion to its size, and at least some from each, so that rare drops are not overlooked.
fn draw(packets: u64, shares: Vec<Share>) -> Vec<Sample> {
    let part = |share: &Share| {
        (u128::from(SAMPLES) * u128::from(share.packets)).div_ceil(u128::from(packets.max(1)))
    };
    shares
        .into_iter()
        .flat_map(|share| {
            let n = part(&share) as usize;
            share.samples.into_iter().take(n)
        })
        .collect()
}

fn sample_of(sample: &WeirSample) -> Sample {
    let filled = usize::from(sample.filled).min(sample.header.len());
    Sample {
        came_in: sample.came_in,
        mark: sample.mark,
        length: sample.length,
        socket: sample.socket != 0,
        header: sample.header[..filled].to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(location: u64, reason: u32) -> WeirGroup {
        WeirGroup { location, reason, netns: 7, ethertype: 0x0800, protocol: 17, ..WeirGroup::zeroed() }
    }

    fn sums(by_cpu: &[u64]) -> Vec<WeirSum> {
        by_cpu
            .iter()
            .map(|packets| WeirSum { packets: *packets, bytes: packets * 10, ..WeirSum::zeroed() })
            .collect()
    }

    /// Samples of a core, told apart by their mark.
    fn samples(group: WeirGroup, cpu: u32, count: u32) -> Vec<(WeirSampleKey, WeirSample)> {
        let sample = |slot| {
            let key = WeirSampleKey { group, cpu, slot };
            (key, WeirSample { mark: cpu * 100 + slot, filled: 3, ..WeirSample::zeroed() })
        };
        (0..count).map(sample).collect()
    }

    #[test]
    fn places_in_one_function_are_one_group() {
        let place = |at: u64| if at < 100 { "ip_rcv".to_owned() } else { NOWHERE.to_owned() };
        let read = [
            (group(10, 2), sums(&[3, 4])),
            (group(20, 2), sums(&[0, 5])),
            (group(500, 2), sums(&[1, 0])),
            (group(10, 9), sums(&[0, 0])),
        ];
        let merged = merge(&read, &[], place, |number| format!("R{number}"));
        let seen: Vec<_> =
            merged.iter().map(|g| (g.location.as_str(), g.reason.as_str(), g.packets, g.bytes)).collect();
        // The most first, and what nothing was counted of not at all.
        assert_eq!(seen, [("ip_rcv", "R2", 12, 120), (NOWHERE, "R2", 1, 10)]);
        assert_eq!((merged[0].namespace, merged[0].ethertype, merged[0].protocol), (7, 0x0800, 17));
    }

    #[test]
    fn samples_are_in_proportion_and_every_core_has_one() {
        let one = group(10, 2);
        let read = [(one, sums(&[3_000_000, 1_000_000, 2]))];
        let kept: Vec<_> =
            [(0, 16), (1, 16), (2, 2)].into_iter().flat_map(|(c, n)| samples(one, c, n)).collect();
        let merged = merge(&read, &kept, |_| "f".into(), |_| "R".into());
        let of = |core: u32| merged[0].samples.iter().filter(|s| s.mark / 100 == core).count();
        // From sixteen: three quarters, a quarter, and one that would be less than any.
        assert_eq!((of(0), of(1), of(2)), (12, 4, 1));
        assert!(merged[0].samples.iter().all(|s| s.header.len() == 3));
    }

    #[test]
    fn parts_that_the_compiler_split_off_have_the_name_of_the_whole() {
        let symbols = Symbols::parse(
            "ffffffff81000000 t tcp_v4_rcv\nffffffff81002000 t tcp_v4_rcv.cold\nffffffff81003000 t nf_hook_slow.part.0\n",
        );
        assert_eq!(place_of(Some(&symbols), 0xffff_ffff_8100_2004), "tcp_v4_rcv");
        assert_eq!(place_of(Some(&symbols), 0xffff_ffff_8100_3004), "nf_hook_slow");
        assert_eq!(place_of(Some(&symbols), 1), NOWHERE);
        assert_eq!(place_of(None, 0xffff_ffff_8100_2004), NOWHERE);
    }
}
