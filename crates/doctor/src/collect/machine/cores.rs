//! Cores: time, softirq work, interrupts of network cards.

use std::collections::BTreeSet;

use weir_sys::procfs::{Interrupt, parse_interrupts};
use weir_sys::{ProcRoot, Result};
use weir_text::order;

use crate::evidence::{Core, Counters, Delta, Sight, counters_since};

/// Cores that are online, with what counts up.
pub(super) fn read(root: &ProcRoot) -> Result<(Vec<Core>, Sight)> {
    let mut cores: Vec<Core> = root
        .stat()?
        .into_iter()
        .map(|(number, ticks)| Core { number, ticks: named(&ticks), ..Core::default() })
        .collect();
    let sight = match root.softnet() {
        Ok(lines) => {
            let unnumbered = lines.iter().all(|l| l.cpu.is_none());
            for (at, line) in lines.iter().enumerate() {
                // Older kernels print a line for each core that is online, without its number.
                let core = match line.cpu {
                    Some(number) => cores.iter_mut().find(|c| c.number == number),
                    None => cores.get_mut(at).filter(|_| unnumbered),
                };
                let Some(core) = core else { continue };
                core.processed = Delta::at(line.processed);
                core.dropped = Delta::at(line.dropped);
                core.squeezed = Delta::at(line.time_squeeze);
                core.flow_limited = Delta::at(line.flow_limit);
            }
            Sight::Seen
        }
        Err(e) => Sight::Partly(e.to_string()),
    };
    let (columns, interrupts) = parse_interrupts(&root.read_optional("proc/interrupts").unwrap_or_default());
    let of_cards = numbers_of_cards(root);
    for interrupt in interrupts.iter().filter(|i| is_of_card(i, &of_cards)) {
        for (number, count) in columns.iter().zip(&interrupt.counts) {
            if let Some(core) = cores.iter_mut().find(|c| c.number == *number) {
                core.interrupts = Delta::at(core.interrupts.after + count);
            }
        }
    }
    Ok((cores, sight))
}

fn named(ticks: &weir_sys::procfs::CpuTicks) -> Counters {
    let values = [
        ("user", ticks.user),
        ("nice", ticks.nice),
        ("system", ticks.system),
        ("idle", ticks.idle),
        ("iowait", ticks.iowait),
        ("irq", ticks.irq),
        ("softirq", ticks.softirq),
        ("steal", ticks.steal),
    ];
    order::map(values.into_iter().map(|(name, value)| (name.to_owned(), Delta::at(value))))
}

/// Interrupts of the devices behind interfaces, by number. A virtio device has those of the PCI device that it is on.
fn numbers_of_cards(root: &ProcRoot) -> BTreeSet<String> {
    let mut numbers = BTreeSet::new();
    for interface in root.names("sys/class/net") {
        let device = format!("sys/class/net/{interface}/device");
        let own = root.names(&format!("{device}/msi_irqs"));
        if own.is_empty()
            && root.names(&format!("{device}/driver")).iter().any(|n| n == "module" || n == "bind")
        {
            let virtio = root.path(&device).canonicalize().is_ok_and(|p| {
                p.file_name().is_some_and(|name| name.to_string_lossy().starts_with("virtio"))
            });
            if virtio {
                numbers.extend(root.names(&format!("{device}/../msi_irqs")));
            }
        }
        numbers.extend(own);
        numbers.extend(root.read_optional(&format!("{device}/irq")).filter(|n| n != "0"));
    }
    numbers
}

/// By its number, or, where devices are not to be seen (in another namespace than that of `/sys`), by the names that drivers
/// give to their queues.
fn is_of_card(interrupt: &Interrupt, of_cards: &BTreeSet<String>) -> bool {
    if of_cards.contains(&interrupt.name) {
        return true;
    }
    let Some(name) = interrupt.about.rsplit(' ').next() else { return false };
    let virtio = name.starts_with("virtio") && (name.contains("-input") || name.contains("-output"));
    virtio
        || ["-TxRx-", "-Tx-Rx-", "-rx-", "-tx-", "mlx5_comp", "mlx5_async", "ena-mgmnt"]
            .iter()
            .any(|word| name.contains(word))
}

/// Makes them the end of a window. A core that came online in it counts from its beginning.
pub(super) fn since(now: &mut [Core], earlier: &[Core]) {
    for core in now {
        let Some(before) = earlier.iter().find(|c| c.number == core.number) else { continue };
        counters_since(&mut core.ticks, &before.ticks);
        core.processed.since(before.processed);
        core.dropped.since(before.dropped);
        core.squeezed.since(before.squeezed);
        core.flow_limited.since(before.flow_limited);
        core.interrupts.since(before.interrupts);
    }
}
