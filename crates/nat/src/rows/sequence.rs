//! Sequence numbers of TCP: RFC 5961, RFC 7857.

use super::judge::{does, fails, is_nat64, made, meets, not_sure, vanished};
use super::verdicts::Judged;
use super::{Group, Level, Row};
use crate::Observations;

/// The rows.
pub(super) const ROWS: &[Row] = &[
    Row {
        id: "tcp-sequence-check",
        group: Group::Carriage,
        rfc: 5961,
        section: "5",
        requirement: "",
        level: Level::Described,
        asks: "whether data far outside of the window pass, leave untranslated or are dropped",
        sent: "data each way on an open connection, 1.6 billion bytes ahead",
        breaks: "",
        judge: |o| check(o).unwrap_or_else(|e| e),
    },
    Row {
        id: "tcp-reset-window",
        group: Group::Carriage,
        rfc: 7857,
        section: "2.2",
        requirement: "TCP RST",
        level: Level::Should,
        asks: "a reset far outside of the window does not end a mapping: its receiver ignores it (RFC 5961)",
        sent: "such a reset from outside, then data from outside within the window",
        breaks: "anyone who knows the ports of a connection cuts it, without its sequence numbers",
        judge: |o| reset(o).unwrap_or_else(|e| e),
    },
];

fn check(o: &Observations) -> Judged {
    let seen = made(&o.tcp_sequence)?;
    if !seen.out.sure || !seen.back.sure {
        return Ok(not_sure("packets or control packets were lost"));
    }
    let passes = |arrived| if arrived { "passes" } else { "dropped" };
    let out = match seen.leaked {
        true if is_nat64(o) => "leaves from another endpoint than the connection's",
        true => "leaves with the inside address",
        false => passes(seen.out.arrived),
    };
    Ok(does(format!("outwards: {out}; inwards: {}", passes(seen.back.arrived))))
}

fn reset(o: &Observations) -> Judged {
    let seen = made(&o.tcp_sequence)?;
    if seen.after.arrived {
        let fate = if seen.reset.arrived { "passes" } else { "does not pass" };
        return Ok(meets(format!("the reset {fate}, and the data after it arrive")));
    }
    Ok(if seen.after.sure && seen.reset.sure {
        vanished(fails("the data after the reset did not arrive"))
    } else {
        not_sure("packets or control packets were lost")
    })
}
