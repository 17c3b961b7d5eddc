//! Leaves one line of source to each function of a BPF object. The compiler notes one for every few instructions, which only the
//! verifier's log shows, and which with its text is a third of a packed object. The kernel wants the first line of each function, or
//! none at all (`check_btf_line` in kernel/bpf/verifier.c).
//!
//! The formats are those of include/uapi/linux/btf.h and tools/lib/bpf/libbpf_internal.h (`struct btf_ext_header`), little-endian.

use std::collections::{BTreeMap, BTreeSet};

/// Kinds of types (BTF_KIND_*).
const INT: u32 = 1;
const ARRAY: u32 = 3;
const STRUCT: u32 = 4;
const UNION: u32 = 5;
const ENUM: u32 = 6;
const FUNC_PROTO: u32 = 13;
const VAR: u32 = 14;
const DATASEC: u32 = 15;
const DECL_TAG: u32 = 17;
const ENUM64: u32 = 19;

/// Part of `.BTF.ext` by its place in the header: the offset of its offset, whose length follows.
const FUNCTIONS: usize = 8;
const LINES: usize = 16;
const RELOCATIONS: usize = 24;

/// Records of one section of code.
struct Records<'a> {
    /// Offset of the section's name among the strings.
    section: u32,
    records: Vec<&'a [u8]>,
}

fn word(bytes: &[u8], at: usize) -> Result<u32, String> {
    let word = at.checked_add(4).and_then(|end| bytes.get(at..end)).and_then(|word| word.try_into().ok());
    word.map(u32::from_le_bytes).ok_or_else(|| format!("BTF ends before byte {at}"))
}

fn put(bytes: &mut [u8], at: usize, value: usize) -> Result<(), String> {
    let value = u32::try_from(value).map_err(|e| e.to_string())?;
    let place = bytes.get_mut(at..at + 4).ok_or_else(|| format!("BTF ends before byte {at}"))?;
    place.copy_from_slice(&value.to_le_bytes());
    Ok(())
}

/// A part of `.BTF.ext`, and the size of its records.
fn part(ext: &[u8], place: usize) -> Result<(usize, Vec<Records<'_>>), String> {
    let begin = word(ext, 4)? as usize + word(ext, place)? as usize;
    let end = begin + word(ext, place + 4)? as usize;
    if begin == end {
        return Ok((0, Vec::new()));
    }
    let size = word(ext, begin)? as usize;
    let (mut at, mut sections) = (begin + 4, Vec::new());
    while at < end {
        let (section, count) = (word(ext, at)?, word(ext, at + 4)? as usize);
        let records = ext.get(at + 8..at + 8 + count * size).ok_or("BTF.ext ends within its records")?;
        sections.push(Records { section, records: records.chunks_exact(size.max(4)).collect() });
        at += 8 + count * size;
    }
    Ok((size, sections))
}

/// The bytes of a part with these records; none if there are none.
fn written(size: usize, sections: &[Records<'_>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for Records { section, records } in sections.iter().filter(|s| !s.records.is_empty()) {
        bytes.extend(section.to_le_bytes());
        bytes.extend((records.len() as u32).to_le_bytes());
        bytes.extend(records.concat());
    }
    if bytes.is_empty() { bytes } else { [(size as u32).to_le_bytes().to_vec(), bytes].concat() }
}

/// Offsets of the strings that types use.
fn named_by_types(btf: &[u8]) -> Result<BTreeSet<u32>, String> {
    let begin = word(btf, 4)? as usize + word(btf, 8)? as usize;
    let end = begin + word(btf, 12)? as usize;
    let (mut at, mut names) = (begin, BTreeSet::new());
    while at < end {
        names.insert(word(btf, at)?);
        let info = word(btf, at + 4)?;
        let (kind, count) = (info >> 24 & 0x1f, (info & 0xffff) as usize);
        at += 12;
        let (size, has_names) = match kind {
            INT | VAR | DECL_TAG => (4, false),
            ARRAY => (12, false),
            STRUCT | UNION | ENUM64 => (12 * count, true),
            ENUM => (8 * count, true),
            FUNC_PROTO => (8 * count, true),
            DATASEC => (12 * count, false),
            _ => (0, false),
        };
        if has_names {
            for n in 0..count {
                names.insert(word(btf, at + n * size / count)?);
            }
        }
        at += size;
    }
    Ok(names)
}

/// Overwrites all strings but these: other ones stay at their places, and zeros pack well.
fn keep_strings(btf: &mut [u8], kept: &BTreeSet<u32>) -> Result<(), String> {
    let begin = word(btf, 4)? as usize + word(btf, 16)? as usize;
    let length = word(btf, 20)? as usize;
    let strings = btf.get_mut(begin..begin + length).ok_or("BTF ends within its strings")?;
    let mut left = vec![0; length];
    for at in kept.iter().map(|at| *at as usize) {
        let end = strings.get(at..).and_then(|rest| rest.iter().position(|byte| *byte == 0));
        let end = at + end.ok_or("a name of BTF has no end")?;
        left[at..end].copy_from_slice(&strings[at..end]);
    }
    strings.copy_from_slice(&left);
    Ok(())
}

/// Changes both sections.
///
/// # Errors
/// If they are cut off.
pub(crate) fn thin_out(btf: &mut [u8], ext: &mut Vec<u8>) -> Result<(), String> {
    let (size, functions) = part(ext, FUNCTIONS)?;
    let (line_size, mut lines) = part(ext, LINES)?;
    let (relocation_size, relocations) = part(ext, RELOCATIONS)?;
    let mut begins: BTreeMap<u32, BTreeSet<&[u8]>> = BTreeMap::new();
    for Records { section, records } in &functions {
        begins.entry(*section).or_default().extend(records.iter().map(|record| &record[..4]));
    }
    for Records { section, records } in &mut lines {
        records.retain(|record| begins.get(section).is_some_and(|all| all.contains(&record[..4])));
    }
    let mut kept = named_by_types(btf)?;
    kept.extend(functions.iter().chain(&lines).chain(&relocations).map(|records| records.section));
    for record in lines.iter().flat_map(|lines| &lines.records) {
        // Its file, and its text.
        kept.extend([word(record, 4)?, word(record, 8)?]);
    }
    for record in relocations.iter().flat_map(|relocations| &relocations.records) {
        kept.insert(word(record, 8)?);
    }
    let parts =
        [written(size, &functions), written(line_size, &lines), written(relocation_size, &relocations)];
    keep_strings(btf, &kept)?;

    let header = word(ext, 4)? as usize;
    ext.truncate(header);
    let mut at = 0;
    for (place, part) in [FUNCTIONS, LINES, RELOCATIONS].into_iter().zip(parts) {
        put(ext, place, at)?;
        put(ext, place + 4, part.len())?;
        at += part.len();
        ext.extend(part);
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A line: section, offset of its instruction, text.
    pub(crate) type Line = (String, u32, String);

    /// The content of both sections.
    pub(crate) struct Contents {
        /// Names of types, members, parameters and values, in order of their offsets.
        pub(crate) names: Vec<String>,
        /// Functions by section and offset.
        pub(crate) functions: Vec<(String, u32)>,
        pub(crate) lines: Vec<Line>,
        /// Relocations by section, and the path to their field.
        pub(crate) relocations: Vec<(String, String)>,
    }

    pub(crate) fn read(btf: &[u8], ext: &[u8]) -> Contents {
        let strings = &btf[(word(btf, 4).unwrap() + word(btf, 16).unwrap()) as usize..];
        let string = |at: u32| {
            let rest = &strings[at as usize..];
            let end = rest.iter().position(|byte| *byte == 0).unwrap();
            String::from_utf8(rest[..end].to_vec()).unwrap()
        };
        let all = |place, field: &dyn Fn(&[u8]) -> String| -> Vec<Line> {
            let of = |one: Records<'_>| -> Vec<Line> {
                let line = |record: &&[u8]| (string(one.section), word(record, 0).unwrap(), field(record));
                one.records.iter().map(line).collect()
            };
            part(ext, place).unwrap().1.into_iter().flat_map(of).collect()
        };
        let text = |record: &[u8]| string(word(record, 8).unwrap());
        Contents {
            names: named_by_types(btf).unwrap().into_iter().map(string).collect(),
            functions: all(FUNCTIONS, &|_| String::new()).into_iter().map(|(s, at, _)| (s, at)).collect(),
            lines: all(LINES, &text),
            relocations: all(RELOCATIONS, &text).into_iter().map(|(s, _, path)| (s, path)).collect(),
        }
    }

    #[test]
    fn sections_that_are_cut_off_are_refused() {
        for length in [0, 7, 31] {
            assert!(thin_out(&mut vec![0; length], &mut vec![0; length]).is_err());
        }
        // Lengths that lead beyond the end.
        let mut ext = [0_u8; 32];
        (ext[4], ext[12]) = (32, 100);
        assert!(thin_out(&mut [0; 24], &mut ext.to_vec()).is_err());
    }
}
