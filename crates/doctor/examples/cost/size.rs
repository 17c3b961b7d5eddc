//! Time and memory of the analysis of a large machine.

use std::net::SocketAddrV4;
use std::time::{Duration, Instant};

use weir_doctor::collect::{OpenWindow, Options};
use weir_doctor::diagnosis::diagnose;
use weir_doctor::evidence::Sight;
use weir_netlink::conntrack::{Conntrack, NewEntry};
use weir_sys::{NetNs, ProcRoot};

use crate::{Result, run};

/// Length of the window.
const WINDOW: Duration = Duration::from_secs(5);
/// The most that the analysis of a large machine may take.
const MOST_MS: f64 = 5000.0;
const MOST_BYTES: u64 = 200_000_000;
/// Connections, and how many namespaces besides the machine's own.
const CONNECTIONS: u64 = 1_000_000;
const NAMESPACES: usize = 100;

/// A million connections, in as few namespaces as the kernel's limit of one allows, and the rest of the namespaces empty.
pub(crate) fn size() -> Result<()> {
    let namespaces = (0..NAMESPACES).map(|_| NetNs::create()).collect::<std::result::Result<Vec<_>, _>>()?;
    for namespace in &namespaces {
        run(
            namespace,
            "ip link set lo up; nft add table ip t; nft 'add chain ip t c { type filter hook input priority 0; }'; nft add rule ip t c ct state new accept",
        )?;
    }
    let full = fill(&namespaces)?;
    println!("{CONNECTIONS} connections in {full} of {NAMESPACES} namespaces");
    let began = Instant::now();
    let watch = OpenWindow::begin(Options::default())?;
    println!("begun after {:.0} ms", began.elapsed().as_secs_f64() * 1e3);
    std::thread::sleep(WINDOW);
    let ended = Instant::now();
    let evidence = watch.end();
    let findings = diagnose(&evidence).findings;
    let analysis_ms = ended.elapsed().as_secs_f64() * 1e3;
    println!("analysis took {analysis_ms:.0} ms (most allowed: {MOST_MS})");
    println!("{} namespaces", evidence.namespaces.len());
    for finding in &findings {
        println!("found: {:?} {} in {}: {}", finding.severity, finding.cause, finding.place, finding.summary);
    }
    let cost = &evidence.cost;
    println!(
        "peak memory {:.0} MB (most allowed: {}), CPU {:.0} ms",
        cost.memory_bytes as f64 / 1e6,
        MOST_BYTES / 1_000_000,
        cost.cpu_ns as f64 / 1e6
    );
    let tables = evidence.namespaces.iter().filter_map(|n| Some((&n.name, n.connections.as_ref()?)));
    for (name, table) in tables.filter(|(_, t)| t.count > 0) {
        let gap = table.partial.as_deref().unwrap_or("all of them read");
        println!("{} connections in {name}: {gap}", table.count);
    }
    for (source, sight) in &evidence.evidence_sources {
        if *sight != Sight::Seen {
            println!("{source:?}: {sight:?}");
        }
    }
    if analysis_ms > MOST_MS || cost.memory_bytes > MOST_BYTES {
        return Err("the analysis of a large machine takes more than it may".into());
    }
    Ok(())
}

/// Makes the connections; in how many namespaces they are.
fn fill(namespaces: &[NetNs]) -> Result<usize> {
    let limit: u64 = ProcRoot::default().read("proc/sys/net/netfilter/nf_conntrack_max")?.trim().parse()?;
    let each = limit.saturating_sub(1000).min(CONNECTIONS);
    let mut left = CONNECTIONS;
    let mut full = 0;
    for namespace in namespaces {
        let n = each.min(left);
        if n > 0 {
            namespace.run(|| -> Result<()> {
                Conntrack::open()?.insert((0..n).map(entry))?;
                Ok(())
            })??;
            full += 1;
        }
        left -= n;
    }
    if left > 0 {
        return Err(format!("nf_conntrack_max is {limit}: {left} connections found no room").into());
    }
    Ok(full)
}

/// The n-th connection.
fn entry(n: u64) -> NewEntry {
    let source =
        SocketAddrV4::new([10, (n >> 16) as u8, (n >> 8) as u8, n as u8].into(), 1024 + (n % 60_000) as u16);
    let destination = SocketAddrV4::new([198, 19, 0, (n % 200) as u8].into(), 443);
    NewEntry::tcp(source.into(), destination.into(), 3)
}
