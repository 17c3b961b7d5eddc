//! How the rows of the tables are ordered.

use std::cmp::Ordering;

use weir_flows::{Dns, Limiter};

use crate::rows::{Row, Tab};

/// By what rows are ordered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sort {
    Rate,
    Bytes,
    RttClient,
    RttServer,
    LossClient,
    LossServer,
    Limit,
    Flows,
    Silence,
    Queries,
    Answer,
    Failures,
    Errors,
    Meaning,
    Mtu,
    Name,
}

impl Sort {
    const OF_TCP: [Sort; 9] = [
        Sort::Rate,
        Sort::Bytes,
        Sort::RttClient,
        Sort::RttServer,
        Sort::LossClient,
        Sort::LossServer,
        Sort::Limit,
        Sort::Flows,
        Sort::Name,
    ];
    const OF_UDP: [Sort; 4] = [Sort::Rate, Sort::Bytes, Sort::Silence, Sort::Name];
    const OF_DNS: [Sort; 4] = [Sort::Queries, Sort::Answer, Sort::Failures, Sort::Name];

    const OF_ICMP: [Sort; 4] = [Sort::Errors, Sort::Meaning, Sort::Mtu, Sort::Name];

    const OF_UNTRACKED: [Sort; 3] = [Sort::Rate, Sort::Bytes, Sort::Name];

    /// The orders of a table; the first one is the usual one.
    pub(crate) fn of(tab: Tab) -> &'static [Sort] {
        match tab {
            Tab::Networks | Tab::Hosts | Tab::Flows | Tab::Processes => &Sort::OF_TCP,
            Tab::Udp => &Sort::OF_UDP,
            Tab::Dns => &Sort::OF_DNS,
            Tab::Icmp => &Sort::OF_ICMP,
            Tab::Untracked => &Sort::OF_UNTRACKED,
        }
    }

    pub(crate) fn title(self) -> &'static str {
        match self {
            Sort::Rate => "rate",
            Sort::Bytes => "bytes",
            Sort::RttClient => "RTT to the client",
            Sort::RttServer => "RTT to the server",
            Sort::LossClient => "loss at the client",
            Sort::LossServer => "loss at the server",
            Sort::Limit => "limit",
            Sort::Flows => "number of flows",
            Sort::Silence => "silence",
            Sort::Queries => "number of queries",
            Sort::Answer => "time to an answer",
            Sort::Failures => "failures",
            Sort::Errors => "number of errors",
            Sort::Meaning => "meaning",
            Sort::Mtu => "MTU",
            Sort::Name => "name",
        }
    }

    /// The next one of a table, or the one before.
    pub(crate) fn next(self, tab: Tab, back: bool) -> Sort {
        let all = Sort::of(tab);
        let at = all.iter().position(|s| *s == self).unwrap_or(0);
        all[(at + if back { all.len() - 1 } else { 1 }) % all.len()]
    }
}

/// By limit: the network first, because something can be done about it, and then by how much of the time.
fn by_limit(a: &Row, b: &Row) -> Ordering {
    let place = |row: &Row| {
        let limits = row.limit.map(|limit| limit.limits).unwrap_or_default();
        let kind = match limits.by {
            Some(Limiter::Network) => 0,
            Some(Limiter::Receiver) => 1,
            Some(Limiter::Sender) => 2,
            Some(Limiter::Application) => 3,
            None => 4,
        };
        (kind, limits.share().unwrap_or(0.0))
    };
    let ((kind, share), (its_kind, its_share)) = (place(a), place(b));
    kind.cmp(&its_kind).then(its_share.total_cmp(&share))
}

/// Puts rows in order, the greatest first; names from A to Z. Loss counts by the lower end of its interval, so that one segment of two
/// is not the worst of all.
pub(crate) fn sort(rows: &mut [Row], by: Sort, reverse: bool) {
    let low = |row: &Row, server: bool| row.lost_at(server).low.unwrap_or(-1.0);
    let silence = |row: &Row| {
        let sides = row.udp.as_ref().map(|f| [f.client_side, f.server_side]);
        sides.map_or(0.0, |sides| sides.iter().map(|s| s.longest_silence_seconds).fold(0.0, f64::max))
    };
    let errors = |row: &Row| row.icmp.as_ref().map_or(0, |one| one.packets);
    let meaning = |row: &Row| row.icmp.as_ref().map(|one| one.meaning);
    let mtu = |row: &Row| row.icmp.as_ref().and_then(|one| one.smallest_mtu);
    let dns = |row: &Row, of: fn(&Dns) -> u64| row.udp.as_ref().and_then(|f| f.dns.as_ref()).map_or(0, of);
    let order = |a: &Row, b: &Row| -> Ordering {
        match by {
            Sort::Rate => b.bps.total_cmp(&a.bps),
            Sort::Bytes => b.bytes.cmp(&a.bytes),
            Sort::RttClient => b.rtt[0].cmp(&a.rtt[0]),
            Sort::RttServer => b.rtt[1].cmp(&a.rtt[1]),
            Sort::LossClient | Sort::LossServer => Ordering::Equal,
            Sort::Limit => by_limit(a, b),
            Sort::Flows => b.flows.cmp(&a.flows),
            Sort::Silence => silence(b).total_cmp(&silence(a)),
            Sort::Queries => dns(b, |d| d.queries).cmp(&dns(a, |d| d.queries)),
            Sort::Answer => {
                dns(b, |d| d.times.p95_ns.unwrap_or(0)).cmp(&dns(a, |d| d.times.p95_ns.unwrap_or(0)))
            }
            Sort::Failures => dns(b, Dns::failures).cmp(&dns(a, Dns::failures)),
            Sort::Errors => errors(b).cmp(&errors(a)),
            Sort::Meaning => meaning(a).cmp(&meaning(b)),
            Sort::Mtu => mtu(b).cmp(&mtu(a)),
            Sort::Name => a.name.cmp(&b.name),
        }
    };
    if matches!(by, Sort::LossClient | Sort::LossServer) {
        // An interval takes its time: once for each row.
        rows.sort_by_cached_key(|row| {
            // Floats above 0 are ordered as their bits are; those without loss come last.
            let low = low(row, by == Sort::LossServer);
            std::cmp::Reverse(if low < 0.0 { 0 } else { low.to_bits() + 1 })
        });
    } else {
        weir_text::order::by(rows, |a, b| order(a, b).then(b.bytes.cmp(&a.bytes)));
    }
    if reverse {
        rows.reverse();
    }
}

#[cfg(test)]
mod tests {
    use weir_flows::{Limits, Reading};

    use super::*;
    use crate::fixture::{flow, reading};
    use crate::history::History;
    use crate::rows::{Filter, flow_row, rows};

    fn names(rows: &[Row]) -> Vec<&str> {
        rows.iter().map(|row| row.name.as_str()).collect()
    }

    #[test]
    fn loss_is_ordered_by_what_is_sure() {
        let mut rows = Vec::new();
        for (name, segments, of) in
            [("one of two", 1, 2), ("5 %", 50, 1000), ("none", 0, 1000), ("unseen", 0, 0)]
        {
            let mut flow = flow("10.0.0.2:1", "198.51.100.7:443");
            flow.server_side.lost_to.segments = segments;
            flow.server_side.lost_to.of = of;
            let mut row = flow_row(&flow, &Reading::empty(), &History::default());
            row.name = name.to_owned();
            rows.insert(0, row);
        }
        sort(&mut rows, Sort::LossServer, false);
        assert_eq!(names(&rows), ["5 %", "one of two", "none", "unseen"]);
        sort(&mut rows, Sort::Name, true);
        assert_eq!(names(&rows), ["unseen", "one of two", "none", "5 %"]);
    }

    #[test]
    fn limits_are_ordered_by_kind_and_share_and_found_by_their_word() {
        let mut flows = Vec::new();
        for (port, seconds) in
            [(1, [9.0, 0.0, 0.0]), (2, [0.0, 6.0, 4.0]), (3, [0.0, 0.0, 8.0]), (4, [0.4; 3])]
        {
            let mut flow = flow(&format!("10.0.0.2:{port}"), "198.51.100.7:443");
            // The client has sent nothing: it is the server that counts.
            flow.server_side.bytes = 1;
            flow.server_side.limits.application_seconds = seconds[0];
            flow.server_side.limits.receiver_seconds = seconds[1];
            flow.server_side.limits.network_seconds = seconds[2];
            flow.server_side.limits = Limits::sum([&flow.server_side.limits]);
            flow.client_side.limits = Limits::sum([&Limits { sender_seconds: 100.0, ..Limits::default() }]);
            flows.push(flow);
        }
        let reading = reading(flows);
        let mut of_flows = rows(Tab::Flows, &reading, &History::default());
        sort(&mut of_flows, Sort::Limit, false);
        let words: Vec<_> = of_flows.iter().map(|row| row.limit.unwrap().words()).collect();
        assert_eq!(words, ["< network 100 %", "< receiver 60 %", "< application 100 %", "-"]);
        let found = |text: &str| {
            let filter = Filter { text: text.to_owned() };
            of_flows.iter().filter(|row| filter.leaves(row)).count()
        };
        assert_eq!((found("network"), found("receiver"), found("sender")), (1, 1, 0));
        // Network 12.4 s of 28.2 s, of which no limit has half.
        let host = &rows(Tab::Hosts, &reading, &History::default())[0];
        let limits = host.limit.unwrap().limits;
        assert_eq!((limits.by, (limits.network_seconds * 10.0).round()), (None, 124.0));
    }
}
