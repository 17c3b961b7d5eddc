//! The memory of the tables, as the kernel counts it.

use weir_fastpath::{Fastpath, Options};
use weir_sys::privilege::test_needs_root;

/// Connections, each with an entry for both directions.
const CONNECTIONS: u32 = 1_000_000;
const AT_MOST: u64 = 400_000_000;

#[test]
fn root_a_million_connections_take_at_most_400_megabytes() {
    if test_needs_root() {
        return;
    }
    let options = Options { connections: CONNECTIONS, connections6: 64, ..Options::default() };
    let smallest = Options { connections: 64, connections6: 64, ..Options::default() };
    let least = Fastpath::load(smallest).unwrap().memory_bytes().unwrap();
    let counted = Fastpath::load(options).unwrap().memory_bytes().unwrap();
    println!(
        "{CONNECTIONS} IPv4 connections: {:.1} MB, {:.0} bytes for each; tables without room: {:.1} MB",
        counted as f64 / 1e6,
        counted as f64 / f64::from(CONNECTIONS),
        least as f64 / 1e6
    );
    // Two directions of a cache line each are the least that the entries can take.
    let entries = u64::from(CONNECTIONS) * 2 * 64;
    assert!((entries..=AT_MOST).contains(&counted), "{counted} bytes");
    // The plan prints this number before anything is loaded; the rest are counters and rings.
    let planned = options.memory_bytes() - smallest.memory_bytes();
    assert!(
        (counted - least).abs_diff(planned) < 1 << 20,
        "{planned} bytes planned, {counted} - {least} counted"
    );
}
