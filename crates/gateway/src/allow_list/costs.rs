//! The costs of a list apart from traffic: how long it takes to load and to replace, and how much memory it keeps. Weir measures
//! a copy in a network namespace of its own, so that the active rules stay as they are and nothing can be left behind. A second
//! reason: nft reads every set of its namespace before it adds to one, which takes it minutes with a million elements elsewhere.

use std::fmt::Write;
use std::time::{Duration, Instant};

use weir_filter::{Class, Compiled, Filter};
use weir_prefix::export;
use weir_record::{Unit, VariantFact};
use weir_sys::NetNs;
use weir_text::order;

use super::held::{refused, remove_ipset};
use super::rules::{self, ACTIONS, SET};
use super::{AllowList, Lookup, list};
use crate::{Error, Family, Place, command, nft};

/// Measured again as long as it has not taken longer than this in all, for small lists are loaded in milliseconds.
const ENOUGH: Duration = Duration::from_secs(2);
/// But not more often.
const MOST_TIMES: usize = 7;

/// Elements of nft that are loaded to see how the kernel's memory grows: some ten megabytes.
const ENOUGH_ELEMENTS: usize = 100_000;
/// The same of rules, which are larger, and slower to load.
const ENOUGH_RULES: usize = 20_000;
/// But not more lists than this, however short they are.
const MOST_COPIES: usize = 50;

/// A list in the kernel that nothing asks.
trait Idle: Send {
    /// Puts the list into the kernel.
    fn load(&mut self, class: &Class) -> Result<(), Error>;
    /// Replaces it, in one step.
    fn replace(&mut self, class: &Class) -> Result<(), Error>;
    /// Returns the bytes that it takes once it is loaded; `None` if unknown. It may load the list anew for this.
    fn memory(&mut self, class: &Class) -> Result<Option<f64>, Error>;
    /// Takes it out of the kernel.
    fn remove(&mut self) -> Result<(), Error>;
}

/// Measures it all. Nothing where nothing is looked up.
pub(super) fn measure(variant: &AllowList, place: &Place) -> Result<Vec<VariantFact>, Error> {
    let mut copy: Box<dyn Idle> = match variant.filter {
        Lookup::None => return Ok(Vec::new()),
        Lookup::NftSet | Lookup::NftLinear => Box::new(NftIdle::new(place, variant.filter)),
        Lookup::IpsetIptables => Box::new(IpsetIdle { ipv4: place.family == Family::Ipv4 }),
        Lookup::Bpf | Lookup::BpfXdp => Box::new(BpfIdle { variant: variant.clone(), filter: None }),
    };
    let class = variant.list(place)?;
    let other = list::one_percent_less(&class, place);
    let measured = NetNs::create()?.run(|| repeat(copy.as_mut(), &class, &other))??;
    Ok(facts(variant.filter, &class, place, &measured))
}

/// The measurements of each turn.
#[derive(Default)]
struct Measured {
    load_ns: Vec<f64>,
    update_ns: Vec<f64>,
    memory_bytes: Vec<f64>,
}

fn repeat(copy: &mut dyn Idle, class: &Class, other: &Class) -> Result<Measured, Error> {
    let mut measured = Measured::default();
    let begun = Instant::now();
    while measured.load_ns.is_empty() || begun.elapsed() < ENOUGH && measured.load_ns.len() < MOST_TIMES {
        measured.load_ns.push(timed(|| copy.load(class))?);
        measured.update_ns.push(timed(|| copy.replace(other))?);
        if begun.elapsed() < ENOUGH {
            measured.update_ns.push(timed(|| copy.replace(class))?);
        }
        measured.memory_bytes.extend(copy.memory(class)?);
        copy.remove()?;
    }
    Ok(measured)
}

fn timed(work: impl FnOnce() -> Result<(), Error>) -> Result<f64, Error> {
    let begun = Instant::now();
    work()?;
    Ok(begun.elapsed().as_nanos() as f64)
}

/// Memory of the whole machine's kernel of which elements of nft's sets are made: `SUnreclaim` and `VmallocUsed` of
/// proc_meminfo(5), where kB are KiB.
fn kernel_bytes() -> Option<f64> {
    let text = command::kernel().read("proc/meminfo").ok()?;
    let line = |name: &str| {
        let rest = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        rest.trim().strip_suffix("kB")?.trim().parse::<f64>().ok()
    };
    Some((line("SUnreclaim")? + line("VmallocUsed")?) * 1024.0)
}

fn median(values: &[f64]) -> Option<f64> {
    let mut values = values.to_vec();
    order::by(&mut values, f64::total_cmp);
    let upper = *values.get(values.len() / 2)?;
    let lower = *values.get(values.len().checked_sub(1)? / 2)?;
    Some((lower + upper) / 2.0)
}

fn facts(filter: Lookup, class: &Class, place: &Place, measured: &Measured) -> Vec<VariantFact> {
    let fact = |name: &str, label: &str, unit, values: &[f64], how: &str| VariantFact {
        name: name.into(),
        label: label.into(),
        unit,
        value: median(values),
        n: values.len() as u32,
        how: how.into(),
    };
    let prefixes = match place.family {
        Family::Ipv4 => class.v4.prefixes().count(),
        Family::Ipv6 => class.v6.prefixes().count(),
    };
    let (load, update) = match filter {
        Lookup::NftSet | Lookup::NftLinear => (
            "nft reads a file of it and hands it to the kernel",
            "nft empties the set and fills it with the new list in one transaction",
        ),
        Lookup::IpsetIptables => (
            "ipset restores it into a new set",
            "ipset restores the new list into another set and swaps the two",
        ),
        Lookup::Bpf | Lookup::BpfXdp | Lookup::None => (
            "tables are made of it, and programs loaded that reach into them",
            "tables are made of the new list, and other programs loaded that reach into them",
        ),
    };
    let told = match filter {
        Lookup::NftSet | Lookup::NftLinear => {
            "growth of the whole machine's kernel memory while it was loaded (SUnreclaim and VmallocUsed of /proc/meminfo), since nft \
             does not report it; a short list is loaded many times and the growth divided. It includes memory that others \
             take or give back meanwhile"
        }
        Lookup::IpsetIptables => {
            "as `ipset list` tells it, `Size in memory`, with the table of its buckets, which is left out there: a pointer for each of \
             `hashsize`"
        }
        Lookup::Bpf | Lookup::BpfXdp | Lookup::None => {
            "as the kernel tells it of each map, `memlock`; while it is updated, tables of both lists are there"
        }
    };
    vec![
        fact(
            "list_prefixes",
            "prefixes",
            Unit::Count,
            &[prefixes as f64],
            "prefixes of the list, the initiator's among them",
        ),
        fact("load_ns", "load", Unit::Ns, &measured.load_ns, &format!("{load}, from the list in memory on")),
        fact(
            "update_ns",
            "update",
            Unit::Ns,
            &measured.update_ns,
            &format!("another list, different in one prefix of a hundred: {update}"),
        ),
        fact("memory_bytes", "memory", Unit::Bytes, &measured.memory_bytes, told),
    ]
}

/// A set of nft, or rules, in a table that no hook leads to.
struct NftIdle {
    family: &'static str,
    table: String,
    place: Place,
    linear: bool,
    /// By how much the kernel's memory grew when it was last loaded.
    grown: Option<f64>,
}

impl NftIdle {
    fn new(place: &Place, filter: Lookup) -> Self {
        NftIdle {
            family: nft::family(place),
            table: nft::name(place),
            place: place.clone(),
            linear: filter == Lookup::NftLinear,
            grown: None,
        }
    }

    /// Hands a script to nft and sees by how much the kernel's memory grows.
    fn run(&mut self, script: &str) -> Result<(), Error> {
        let before = kernel_bytes();
        command::run_long(nft::PROGRAM, &["-f", "-"], script)?;
        self.grown = before.zip(kernel_bytes()).map(|(before, after)| after - before);
        Ok(())
    }

    /// The set or chain of that name, made if it is not there, emptied and filled.
    fn script(&self, class: &Class, name: &str) -> Result<String, Error> {
        let (family, table) = (self.family, &self.table);
        let mut text = format!("add table {family} {table}\n");
        // Writing to a String cannot fail.
        if self.linear {
            let _ = writeln!(text, "add chain {family} {table} {name}\nflush chain {family} {table} {name}");
            let _ = writeln!(text, "table {family} {table} {{\n\tchain {name} {{");
            for rule in rules::linear(class, &self.place)? {
                let _ = writeln!(text, "\t\t{rule}");
            }
            text.push_str("\t}\n}\n");
        } else {
            let kind = if self.place.family == Family::Ipv4 { "ipv4_addr" } else { "ipv6_addr" };
            let _ = writeln!(text, "add set {family} {table} {name} {{ type {kind}; flags interval; }}");
            let _ = writeln!(text, "flush set {family} {table} {name}");
            let elements = rules::elements(class, self.place.family).join(", ");
            let _ = writeln!(text, "add element {family} {table} {name} {{ {elements} }}");
        }
        Ok(text)
    }
}

impl Idle for NftIdle {
    fn load(&mut self, class: &Class) -> Result<(), Error> {
        self.run(&self.script(class, SET)?)
    }

    fn replace(&mut self, class: &Class) -> Result<(), Error> {
        let grown = self.grown;
        let outcome = self.load(class);
        self.grown = grown;
        outcome
    }

    /// The kernel's memory moves by a megabyte or more without us, so a short list is loaded many times over.
    fn memory(&mut self, class: &Class) -> Result<Option<f64>, Error> {
        let one = class.v4.as_slice().len() + class.v6.as_slice().len();
        let enough = if self.linear { ENOUGH_RULES } else { ENOUGH_ELEMENTS };
        let copies = (enough / one.max(1)).clamp(1, MOST_COPIES);
        if copies > 1 {
            self.remove()?;
            let scripts = (0..copies).map(|copy| self.script(class, &format!("{SET}{copy}")));
            self.run(&scripts.collect::<Result<String, Error>>()?)?;
        }
        // A result of zero or less was lost in the activity of other programs.
        Ok(self.grown.map(|bytes| bytes / copies as f64).filter(|bytes| *bytes > 0.0))
    }

    fn remove(&mut self) -> Result<(), Error> {
        let (family, table) = (self.family, &self.table);
        // Whether it is there or not.
        let script = format!("add table {family} {table}\ndelete table {family} {table}\n");
        command::run_long(nft::PROGRAM, &["-f", "-"], &script).map(drop)
    }
}

/// Two sets of ipset that no rule asks.
struct IpsetIdle {
    ipv4: bool,
}

impl Idle for IpsetIdle {
    fn load(&mut self, class: &Class) -> Result<(), Error> {
        let text = export::ipset(SET, &class.v4, &class.v6);
        command::run_long("ipset", &["restore"], &text).map(drop)
    }

    fn replace(&mut self, class: &Class) -> Result<(), Error> {
        self.load(class)
    }

    fn memory(&mut self, _: &Class) -> Result<Option<f64>, Error> {
        let set = format!("{SET}{}", if self.ipv4 { "4" } else { "6" });
        let head = command::run_long("ipset", &["list", "-t", &set], "")?;
        let told =
            head.lines().find_map(|line| line.strip_prefix("Size in memory:")?.trim().parse::<f64>().ok());
        let mut words = head.split_whitespace().skip_while(|word| *word != "hashsize");
        let buckets = words.nth(1).and_then(|number| number.parse::<f64>().ok());
        // mtype_head (net/netfilter/ipset/ip_set_hash_gen.h) counts the buckets in use, not the table of pointers to all.
        Ok(told.zip(buckets).map(|(told, buckets)| told + buckets * size_of::<usize>() as f64))
    }

    fn remove(&mut self) -> Result<(), Error> {
        ["4", "6"].iter().try_for_each(|end| remove_ipset(&format!("{SET}{end}")))
    }
}

/// Programs and tables that are attached to nothing.
struct BpfIdle {
    variant: AllowList,
    filter: Option<Filter>,
}

fn compiled(class: &Class) -> Result<Compiled, Error> {
    Compiled::of(std::slice::from_ref(class)).map_err(Error::Unsupported)
}

impl Idle for BpfIdle {
    fn load(&mut self, class: &Class) -> Result<(), Error> {
        self.filter = Some(self.variant.load_bpf(&compiled(class)?)?);
        Ok(())
    }

    fn replace(&mut self, class: &Class) -> Result<(), Error> {
        let tables = compiled(class)?;
        self.filter.as_mut().map_or(Ok(()), |filter| filter.swap(&tables, &ACTIONS)).map_err(refused)
    }

    fn memory(&mut self, _: &Class) -> Result<Option<f64>, Error> {
        let bytes = self.filter.as_ref().map(Filter::memory_bytes).transpose().map_err(refused)?;
        Ok(bytes.map(|bytes| bytes as f64))
    }

    fn remove(&mut self) -> Result<(), Error> {
        self.filter = None;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_median_is_the_middle_one_or_the_mean_of_two() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0]), Some(3.0));
        assert_eq!(median(&[9.0, 1.0, 5.0]), Some(5.0));
        assert_eq!(median(&[9.0, 1.0, 5.0, 2.0]), Some(3.5));
    }

    #[test]
    fn the_kernel_tells_its_memory() {
        assert!(kernel_bytes().is_some_and(|bytes| bytes > 0.0 && bytes % 1024.0 == 0.0));
    }
}
