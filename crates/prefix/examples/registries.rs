//! How long does it take to read the five registries' files, merge what they hold, and aggregate it into prefixes?
//!
//! `cargo run --release -p weir-prefix --example registries [ROUNDS [FOLDER]]` makes five files of real size and shape (770,000
//! records, with a fixed seed), or takes all files of FOLDER, and reads them in turn with a plain Python program that
//! does the same work. Both must come to the same numbers. Wall time is told beside CPU time, since a busy machine adds to the
//! one and hardly to the other.

use std::fmt::Write as _;
use std::fs;
use std::net::{Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Instant;

use rustix::time::{ClockId, clock_gettime};
use weir_prefix::{List, Selection, read};

/// Name, length of the organisation's handle at the end of each line, and records of each type (AS numbers, IPv4, IPv6), as the
/// registries' own summaries gave them in September 2026, for AFRINIC and APNIC about.
const REGISTRIES: [(&str, usize, [u32; 3]); 5] = [
    ("afrinic", 8, [4_350, 6_000, 9_434]),
    ("apnic", 8, [15_000, 55_000, 120_432]),
    ("arin", 32, [32_988, 80_850, 89_213]),
    ("lacnic", 6, [16_515, 20_804, 59_982]),
    ("ripencc", 36, [48_682, 100_877, 111_234]),
];

/// The same work without care for speed: what somebody would write in an evening.
const PYTHON: &str = r#"
import ipaddress, sys, time
def prefixes(ranges, bits):
    n = 0
    for first, last in ranges:
        while first <= last:
            size = bits if first == 0 else (first & -first).bit_length() - 1
            while first + (1 << size) - 1 > last:
                size -= 1
            n += 1
            first += 1 << size
    return n
def merge(ranges):
    ranges.sort()
    out = []
    for first, last in ranges:
        if out and first <= out[-1][1] + 1:
            out[-1][1] = max(out[-1][1], last)
        else:
            out.append([first, last])
    return out
begin = time.perf_counter()
v4, v6 = [], []
for path in sys.argv[1:]:
    for line in open(path):
        f = line.rstrip('\n').split('|')
        if len(f) < 7 or f[6] not in ('allocated', 'assigned'):
            continue
        if f[2] == 'ipv4':
            first = int(ipaddress.IPv4Address(f[3]))
            v4.append((first, first + int(f[4]) - 1))
        elif f[2] == 'ipv6':
            first = int(ipaddress.IPv6Address(f[3]))
            v6.append((first, first + (1 << 128 - int(f[4])) - 1))
records = len(v4) + len(v6)
v4, v6 = merge(v4), merge(v6)
print(records, len(v4), len(v6), prefixes(v4, 32), prefixes(v6, 128), sum(b - a + 1 for a, b in v4))
print(time.perf_counter() - begin, time.process_time())
"#;

/// Marsaglia's xorshift64: the same files on every machine.
struct Draw(u64);

impl Draw {
    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

/// One registry's file. `part` of five says which addresses are its.
fn made_up(name: &str, handle: usize, records: [u32; 3], part: u32, draw: &mut Draw) -> String {
    let [asn, v4, v6] = records;
    let total = asn + v4 + v6;
    let mut text = format!(
        "2|{name}|20251120|{total}|19830613|20251119|+0000\n{name}|*|asn|*|{asn}|summary\n\
         {name}|*|ipv4|*|{v4}|summary\n{name}|*|ipv6|*|{v6}|summary\n"
    );
    let countries = ["JP", "CN", "US", "DE", "BR", "ZA", "KR", "TW", "FR", "GB", "IN", "AU"];
    let mut line = |kind: &str, start: &str, value: u64, draw: &mut Draw| {
        let country = countries[draw.below(countries.len() as u64) as usize];
        let date = 19_900_101 + draw.below(35) * 10_000;
        let status = match draw.below(10) {
            0 => "available",
            1..=2 => "reserved",
            3..=4 => "assigned",
            _ => "allocated",
        };
        let id = draw.below(u64::MAX);
        let _ = writeln!(text, "{name}|{country}|{kind}|{start}|{value}|{date}|{status}|{id:0handle$x}");
    };
    for n in 0..asn {
        line("asn", &(n * 5 + part).to_string(), 1, draw);
    }
    // Blocks in order, one after the other or with a gap, in every fifth /8 below the multicast ones.
    let mut next = 1 + part;
    let mut address = next << 24;
    for _ in 0..v4 {
        // A few are no power of two.
        let blocks = [256, 256, 512, 768, 1024, 1024, 2048, 4096, 8192];
        let count = blocks[draw.below(blocks.len() as u64) as usize];
        if (address + count) >> 24 != next {
            next += 5;
            address = next << 24;
        }
        line("ipv4", &Ipv4Addr::from(address).to_string(), u64::from(count), draw);
        address += count + 256 * draw.below(3) as u32;
    }
    let mut network = 0x2000_0000u32 + part * 0x0400_0000;
    for _ in 0..v6 {
        let length = [32, 32, 29, 48][draw.below(4) as usize];
        line("ipv6", &Ipv6Addr::from(u128::from(network) << 96).to_string(), length, draw);
        network += 8 * (1 + draw.below(2) as u32);
    }
    text
}

/// Numbers that do not depend on how they were found: records in use, ranges and prefixes of both families, IPv4 addresses.
type Numbers = [u64; 6];

/// Seconds of wall and CPU time.
#[derive(Clone, Copy)]
struct Took {
    wall: f64,
    cpu: f64,
}

/// A point in time, on both clocks.
struct Begin(Instant, f64);

impl Begin {
    fn now() -> Self {
        Begin(Instant::now(), cpu())
    }

    fn took(&self) -> Took {
        Took { wall: self.0.elapsed().as_secs_f64(), cpu: cpu() - self.1 }
    }
}

fn cpu() -> f64 {
    let now = clock_gettime(ClockId::ProcessCPUTime);
    now.tv_sec as f64 + now.tv_nsec as f64 / 1e9
}

/// The whole, and of it reading alone, with the files from the page cache.
fn ours(files: &[PathBuf]) -> Result<(Numbers, [Took; 2]), String> {
    let begin = Begin::now();
    let mut list = List::default();
    for path in files {
        let bytes = fs::read(path).map_err(|e| format!("{}: {e}", path.display()))?;
        read::read(&mut list, &path.display().to_string(), &bytes, &Selection::default())
            .map_err(|e| e.to_string())?;
    }
    let reading = begin.took();
    let (v4, v6) = (list.ranges_v4(), list.ranges_v6());
    let numbers = [
        list.v4.len() + list.v6.len(),
        v4.as_slice().len(),
        v6.as_slice().len(),
        v4.prefixes().count(),
        v6.prefixes().count(),
        v4.addresses() as usize,
    ];
    Ok((numbers.map(|n| n as u64), [begin.took(), reading]))
}

fn python(files: &[PathBuf]) -> Result<(Numbers, Took), String> {
    let output = Command::new("python3").args(["-c", PYTHON]).args(files).output();
    let output = output.map_err(|e| format!("python3: {e}"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let mut lines = text.lines();
    let numbers: Vec<u64> =
        lines.next().into_iter().flat_map(str::split_whitespace).flat_map(str::parse).collect();
    let times: Vec<f64> =
        lines.next().into_iter().flat_map(str::split_whitespace).flat_map(str::parse).collect();
    match (<Numbers>::try_from(numbers), times.as_slice()) {
        (Ok(numbers), &[wall, cpu]) => Ok((numbers, Took { wall, cpu })),
        _ => Err(format!("python3: {}", String::from_utf8_lossy(&output.stderr))),
    }
}

fn tell(what: &str, mut took: Vec<Took>, lines: f64) {
    let mut middle = |of: fn(&Took) -> f64| {
        took.sort_by(|a, b| of(a).total_cmp(&of(b)));
        (of(&took[took.len() / 2]), of(&took[0]), of(&took[took.len() - 1]))
    };
    let (wall, least, most) = middle(|t| t.wall);
    let (cpu, ..) = middle(|t| t.cpu);
    println!(
        "{what:28} {:7.1} ms (median; {:.1} to {:.1}), CPU {:.1} ms, {:.2} million lines/s",
        wall * 1e3,
        least * 1e3,
        most * 1e3,
        cpu * 1e3,
        lines / wall / 1e6
    );
}

fn write_files(folder: &Path) -> Result<(), String> {
    let mut draw = Draw(0x2545_f491_4f6c_dd1d);
    for (part, (name, handle, records)) in REGISTRIES.into_iter().enumerate() {
        let text = made_up(name, handle, records, part as u32, &mut draw);
        fs::write(folder.join(format!("delegated-{name}-extended")), text).map_err(|e| e.to_string())?;
    }
    Ok(())
}

fn run(rounds: usize, folder: &Path) -> Result<(), String> {
    let entries = fs::read_dir(folder).map_err(|e| format!("{}: {e}", folder.display()))?;
    let mut files: Vec<PathBuf> = entries.flatten().map(|e| e.path()).filter(|p| p.is_file()).collect();
    files.sort();
    let (mut bytes, mut lines) = (0, 0);
    for path in &files {
        let content = fs::read(path).map_err(|e| e.to_string())?;
        bytes += content.len();
        lines += content.iter().filter(|b| **b == b'\n').count();
    }
    println!("{} files, {lines} lines, {:.1} MB", files.len(), bytes as f64 / 1e6);
    let (mut own, mut reading, mut other) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..rounds {
        let (numbers, [all, read]) = ours(&files)?;
        own.push(all);
        reading.push(read);
        let (expected, took) = python(&files)?;
        other.push(took);
        if numbers != expected {
            return Err(format!("they do not agree: weir {numbers:?}, Python {expected:?}"));
        }
    }
    let [records, ..] = ours(&files)?.0;
    println!("both: {records} records in use, the same ranges, prefixes and addresses");
    tell("weir: read, merge, aggregate", own, lines as f64);
    tell("      of that, read", reading, lines as f64);
    tell("Python", other, lines as f64);
    Ok(())
}

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let rounds = args.next().map_or(Ok(9), |n| n.parse());
    let Ok(rounds @ 1..) = rounds else {
        eprintln!("expected a number of rounds");
        return ExitCode::from(2);
    };
    let done = match args.next() {
        Some(folder) => run(rounds, Path::new(&folder)),
        None => {
            let folder = std::env::temp_dir().join(format!("weir-registries-{}", std::process::id()));
            let made = fs::create_dir(&folder).map_err(|e| e.to_string()).and_then(|()| write_files(&folder));
            let done = made.and_then(|()| run(rounds, &folder));
            // What is left in a folder for temporary files is in nobody's way.
            let _ = fs::remove_dir_all(&folder);
            done
        }
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("{e}");
            ExitCode::FAILURE
        }
    }
}
