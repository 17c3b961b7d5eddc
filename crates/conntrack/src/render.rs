//! The table as a page that a person reads in a minute.

use weir_text::layout::Terminal;
use weir_text::order;
use weir_text::time::duration;
use weir_text::units::{bytes, count, percent};

use super::contents::{Contents, Ranking};
use super::{Memory, Proposed, Table};
use weir_text::page::{Page, Tone};

/// From here on new connections are about to be refused: the kernel's own clean-up turns to what is not assured at 95 %
/// (`gc_worker`, net/netfilter/nf_conntrack_core.c).
const NEARLY_FULL: f64 = 0.95;
/// From here on it is worth a look.
const FILLING: f64 = 0.80;

/// The page. `place` names the namespace.
pub fn render(table: &Table, place: &str, look: Terminal) -> String {
    let mut page = Page::new(look);
    head(&mut page, table, place);
    if let Some(contents) = &table.contents {
        protocols(&mut page, contents);
        flags(&mut page, contents);
        times(&mut page, table, contents);
        rankings(&mut page, contents);
        nat(&mut page, contents);
    }
    memory(&mut page, &table.memory);
    statistics(&mut page, table);
    for note in &table.notes {
        page.line(&format!("note: {note}"), 0, None);
    }
    page.finish()
}

/// Lists the changes between two readings, one line each: entries, and the counters of lost connections.
pub fn changes(before: &Table, after: &Table, seconds: f64) -> Vec<String> {
    let mut lines = Vec::new();
    if let (Some(a), Some(b)) = (before.fill.count, after.fill.count) {
        let delta = b as i128 - a as i128;
        let rate = delta as f64 / seconds.max(1e-9);
        lines.push(format!("entries {delta:+} in {seconds:.1} s ({rate:+.0}/s)"));
    }
    if let (Some(a), Some(b)) = (&before.statistics, &after.statistics) {
        for (name, value) in b {
            let delta = value.saturating_sub(a.get(name).copied().unwrap_or(0));
            if delta > 0 {
                lines.push(format!("{name} +{}", count(delta)));
            }
        }
    }
    lines
}

fn head(page: &mut Page, table: &Table, place: &str) {
    let fill = &table.fill;
    let entries = fill.count.map_or("an unknown number of".to_owned(), count);
    let limit = match (fill.max, fill.ratio) {
        (Some(max), Some(ratio)) => format!(" of {} ({} full)", count(max), percent(ratio)),
        _ => String::new(),
    };
    page.section(&format!("conntrack table of {place}: {entries} entries{limit}"));
    match fill.ratio {
        Some(r) if r >= NEARLY_FULL => page.line(
            "nearly full: at the limit the kernel evicts what is not assured, then drops packets of new connections",
            1,
            Some(Tone::Bad),
        ),
        Some(r) if r >= FILLING => page.line("filling up", 1, Some(Tone::Warning)),
        _ => {}
    }
    if let (Some(buckets), Some(each), Some(chain)) = (fill.buckets, fill.entries_per_bucket, fill.mean_chain)
    {
        let text = format!("{} buckets: {each:.2} entries per bucket, mean chain {chain:.2}", count(buckets));
        page.line(&text, 1, None);
    }
    if let Some(contents) = &table.contents {
        let which = if table.filtered { "match the filter" } else { "read" };
        let v6 = if contents.ipv6 > 0 {
            format!(", {} of them IPv6", count(contents.ipv6))
        } else {
            String::new()
        };
        let traffic = if contents.counted > 0 {
            format!(", {} packets, {}", count(contents.packets), bytes(contents.bytes))
        } else {
            String::new()
        };
        let text = format!(
            "{} entries {which} in {:.0} ms{v6}{traffic}",
            count(contents.entries),
            table.reading.took_ms
        );
        page.line(&text, 1, None);
    }
}

fn share(part: u64, whole: u64) -> String {
    percent(part as f64 / whole.max(1) as f64)
}

fn protocols(page: &mut Page, contents: &Contents) {
    if contents.protocols.is_empty() {
        return;
    }
    page.section("By protocol and state");
    let mut rows = Vec::new();
    for protocol in &contents.protocols {
        rows.push(vec![
            count(protocol.entries),
            share(protocol.entries, contents.entries),
            protocol.protocol.clone(),
        ]);
        let mut states: Vec<_> = protocol.states.iter().collect();
        order::by_key(&mut states, |(name, n)| (std::cmp::Reverse(**n), (*name).clone()));
        for (name, n) in states {
            rows.push(vec![count(*n), share(*n, contents.entries), format!("· {name}")]);
        }
    }
    page.columns(&["entries", "share", "protocol"], &rows);
}

fn flags(page: &mut Page, contents: &Contents) {
    let f = &contents.flags;
    let all = [
        ("assured", f.assured),
        ("unreplied", f.unreplied),
        ("source NAT", f.source_nat),
        ("destination NAT", f.destination_nat),
        ("expected", f.expected),
        ("offloaded", f.offloaded),
        ("offloaded to hardware", f.hardware_offloaded),
        ("fixed timeout", f.fixed_timeout),
    ];
    let words = |(name, n): &(&str, u64)| format!("{} {name} ({})", count(*n), share(*n, contents.entries));
    let seen: Vec<String> = all.iter().filter(|(_, n)| *n > 0).map(words).collect();
    if !seen.is_empty() {
        page.section("Flags");
        page.line(&seen.join(", "), 1, None);
    }
    for (title, ranking) in [("Zones", &contents.zones), ("Marks", &contents.marks)] {
        if ranking.top.is_empty() {
            continue;
        }
        page.section(title);
        let rows: Vec<Vec<String>> = ranking
            .top
            .iter()
            .map(|n| {
                let name = if title == "Zones" { n.value.to_string() } else { format!("{:#x}", n.value) };
                vec![count(n.entries), share(n.entries, contents.entries), name]
            })
            .collect();
        page.columns(&["entries", "share", &title.to_lowercase()[..4]], &rows);
        beyond(page, ranking);
    }
}

fn times(page: &mut Page, table: &Table, contents: &Contents) {
    if contents.entries == 0 {
        return;
    }
    page.section("Time left until an entry is forgotten");
    let names = ["tcp-established", "tcp-other", "udp", "other"];
    let groups: Vec<_> = names.iter().filter_map(|n| contents.times.remaining.get(n)).collect();
    let Some(first) = groups.first() else { return };
    let mut rows = Vec::new();
    let mut bound = String::new();
    for (n, class) in first.iter().enumerate() {
        let label = match class.below_s {
            Some(s) => format!("< {}", duration(s as f64)),
            None => format!(">= {bound}"),
        };
        bound = class.below_s.map(|s| duration(s as f64)).unwrap_or_default();
        let counts: Vec<u64> = groups.iter().map(|g| g[n].entries).collect();
        if counts.iter().any(|c| *c > 0) {
            let figure = |c: &u64| if *c == 0 { "-".to_owned() } else { count(*c) };
            rows.push(std::iter::once(label).chain(counts.iter().map(figure)).collect());
        }
    }
    page.matrix(&["", "tcp established", "tcp other", "udp", "other"], &rows);
    let old = |classes: &[super::Class]| -> (u64, u64) {
        let all = classes.iter().map(|c| c.entries).sum();
        let above = classes.iter().filter(|c| c.below_s.is_none_or(|s| s > 3600)).map(|c| c.entries).sum();
        (above, all)
    };
    if let Some(idle) = &contents.times.idle_established
        && let (above, all @ 1..) = old(idle)
    {
        let timeout = table.settings.get("nf_conntrack_tcp_timeout_established").copied().unwrap_or(0);
        let text = format!(
            "{} of {} established TCP connections have been idle for an hour or more (timeout {})",
            count(above),
            count(all),
            duration(timeout as f64)
        );
        page.line(&text, 1, None);
    }
    if let Some(age) = &contents.times.age {
        let (above, all) = old(age);
        page.line(&format!("{} of {} entries are older than an hour", count(above), count(all)), 1, None);
    }
}

fn rankings(page: &mut Page, contents: &Contents) {
    let all = contents.entries;
    let Contents { sources, destinations, destination_ports: ports, talkers, .. } = contents;
    ranking(page, all, ("Top sources", "source"), sources, |s| {
        (s.entries, s.error, s.bytes, s.address.clone())
    });
    ranking(page, all, ("Top destinations", "destination"), destinations, |d| {
        (d.entries, d.error, d.bytes, d.address.clone())
    });
    ranking(page, all, ("Top destination ports", "port"), ports, |p| {
        (p.entries, p.error, p.bytes, p.service.clone())
    });
    ranking(page, all, ("Top talkers", "source -> destination and port"), talkers, |t| {
        (t.entries, t.error, t.bytes, format!("{} -> {} {}", t.source, t.destination, t.service))
    });
}

/// `row` returns the entries of a key, by how much they may be too many, its bytes, and its name.
fn ranking<T>(
    page: &mut Page,
    all: u64,
    (title, what): (&str, &str),
    ranking: &Ranking<T>,
    row: impl Fn(&T) -> (u64, u64, Option<u64>, String),
) {
    if ranking.top.is_empty() {
        return;
    }
    let cells = |key: &T| {
        let (entries, error, sum, name) = row(key);
        let sure = if error > 0 { format!("≤{}", count(entries)) } else { count(entries) };
        let name = sum.map_or(name.clone(), |b| format!("{name} ({})", bytes(b)));
        vec![sure, share(entries, all), name]
    };
    let rows: Vec<_> = ranking.top.iter().map(cells).collect();
    let least = if ranking.exact { "" } else { "at least " };
    page.section(&format!("{title} ({least}{} in all)", count(ranking.distinct)));
    page.columns(&["entries", "share", what], &rows);
    beyond(page, ranking);
}

/// Adds a line if a ranking had more keys than places.
fn beyond<T>(page: &mut Page, ranking: &Ranking<T>) {
    if !ranking.exact {
        let error = count(ranking.error_at_most);
        let text =
            format!("more keys than are counted one by one: no figure is too high by more than {error}");
        page.line(&text, 1, Some(Tone::Faint));
    }
}

fn nat(page: &mut Page, contents: &Contents) {
    let pools = &contents.nat_pools;
    if pools.top.is_empty() {
        return;
    }
    page.section(&format!("SNAT ports, fullest first ({} pools)", count(pools.distinct)));
    let rows: Vec<Vec<String>> = pools
        .top
        .iter()
        .map(|p| {
            let zone = if p.zone == 0 { String::new() } else { format!(" zone {}", p.zone) };
            let port = if p.protocol.starts_with("icmp") {
                String::new()
            } else {
                format!("/{}", p.destination_port)
            };
            vec![
                count(p.used),
                count(p.available),
                percent(p.ratio),
                format!("{} -> {} {}{port}{zone}", p.outside, p.destination, p.protocol),
            ]
        })
        .collect();
    page.columns(&["used", "available", "share", "outside -> destination"], &rows);
    beyond(page, pools);
    // From about 98 % on, one in a hundred is refused.
    for p in pools.top.iter().filter(|p| p.refused_ratio >= 0.001) {
        let text = format!(
            "{} -> {} {}/{}: a new connection finds no port with a chance of about {}",
            p.outside,
            p.destination,
            p.protocol,
            p.destination_port,
            percent(p.refused_ratio)
        );
        page.line(&text, 1, Some(Tone::Bad));
    }
}

fn memory(page: &mut Page, memory: &Memory) {
    page.section("Memory");
    if let (Some(entry), Some(extension)) = (memory.entry_bytes, memory.extension_bytes) {
        let seen = match memory.extended_ratio {
            Some(r) if r > 0.0 => format!("seen on {} of the entries read", percent(r)),
            _ if memory.extensions_always => "every new entry gets them by a setting".to_owned(),
            _ => "seen on none".to_owned(),
        };
        let text = format!(
            "an entry takes {entry} B, and {extension} B more with extensions (NAT, counters, ...; {seen})"
        );
        page.line(&text, 1, None);
    }
    let one = |name: &str, value: Option<u64>| value.map(|v| vec![bytes(v), name.to_owned()]);
    let rows: Vec<Vec<String>> = [
        one("entries of all namespaces now (slab)", memory.slab_bytes),
        one("their extensions now, about", memory.extensions_now_bytes),
        one("hash table", memory.hash_bytes),
        one("now in all", memory.now_bytes),
        one("when the table is full, without extensions", memory.at_limit_bytes_without_extensions),
        one("when the table is full, with extensions", memory.at_limit_bytes_with_extensions),
    ]
    .into_iter()
    .flatten()
    .collect();
    if !rows.is_empty() {
        page.columns(&["bytes", "what"], &rows);
    }
    if let Some(proposed) = &memory.proposed {
        propose(page, memory, proposed);
    }
}

fn propose(page: &mut Page, memory: &Memory, proposed: &Proposed) {
    let cost = match (proposed.bytes_without_extensions, proposed.bytes_with_extensions) {
        (Some(without), Some(with)) => {
            let of = match (proposed.machine_ratio, memory.machine_bytes) {
                (Some(ratio), Some(all)) => {
                    format!(": {} of this machine's {}", percent(ratio), bytes(all))
                }
                _ => String::new(),
            };
            format!("{} without extensions, {} with{of}", bytes(without), bytes(with))
        }
        _ => "a cost that only root can read the sizes of".to_owned(),
    };
    let text = format!(
        "nf_conntrack_max = {} with {} buckets would take, when full, {cost}",
        count(proposed.max),
        count(proposed.buckets)
    );
    page.line(&text, 1, None);
    if let Some(chain) = proposed.mean_chain_now {
        let text = format!(
            "mean chain then: {:.1} with those buckets, {chain:.1} with the buckets as they are now",
            proposed.mean_chain
        );
        page.line(&text, 1, None);
    }
    if let (Some(wanted), Some(available)) = (proposed.bytes_with_extensions, memory.available_bytes)
        && wanted.saturating_sub(memory.now_bytes.unwrap_or(0)) > available
    {
        let text = format!(
            "with extensions that is more than the {} that this machine has available now",
            bytes(available)
        );
        page.line(&text, 1, Some(Tone::Bad));
    }
}

fn statistics(page: &mut Page, table: &Table) {
    let Some(statistics) = &table.statistics else { return };
    let moved: Vec<String> =
        statistics.iter().filter(|(_, n)| **n > 0).map(|(name, n)| format!("{name} {}", count(*n))).collect();
    page.section("Counters since the namespace was made");
    let text = if moved.is_empty() {
        "all 0: nothing refused, evicted or dropped".to_owned()
    } else {
        moved.join(", ")
    };
    page.line(&text, 1, None);
}
