//! `weir allow status --follow`: refused and logged packets as they come.

use std::time::{Duration, Instant};

use weir_allow::{Follow, Refused, Store};

use super::apply::needs_root;
use crate::documents::{AllowLost, AllowPacket, line};
use crate::exit::{CommandResult, Failure};
use crate::output::{is_read, put};
use crate::talk::note;

/// How often events are fetched, and how soon Ctrl-C is noticed. They wait in the kernel meanwhile: none of their packets does.
const EVERY: Duration = Duration::from_millis(50);
/// How often it is asked whether other lists are in effect.
const LOOK_EVERY: Duration = Duration::from_secs(1);

pub(super) fn run(json: bool) -> CommandResult {
    needs_root("status")?;
    let stop = super::super::stop_on_signals()?;
    let store = Store::usual();
    let Some(mut follow) = Follow::begin(&store)? else {
        return Err(Failure::failed(
            "nothing is loaded, so nothing is refused: weir allow apply loads lists",
        ));
    };
    note("weir: refused and logged packets as they come; Ctrl-C ends it");
    let (mut lost, mut looked) = (0, Instant::now());
    loop {
        // Asked first: what came until then is still told.
        let last = stop.raised();
        let look = looked.elapsed() >= LOOK_EVERY;
        let current = !look || follow.is_current()?;
        let mut text = String::new();
        for packet in follow.read()? {
            text.push_str(&if json { line(&document(&packet))? } else { as_line(&packet) + "\n" });
        }
        if look || last {
            looked = Instant::now();
            let now = follow.lost()?;
            if now > lost {
                text.push_str(&lost_words(now - lost, json)?);
                lost = now;
            }
        }
        if !is_read(put(&text))? || last {
            return Ok(());
        }
        if !current {
            drop(follow);
            let Some(next) = Follow::begin(&store)? else {
                note("weir: the lists were removed: nothing is refused any more");
                return Ok(());
            };
            note("weir: other lists are in effect: going on with those");
            (follow, lost) = (next, 0);
        }
        // At most one more round than Ctrl-C asks for.
        std::thread::sleep(EVERY);
    }
}

/// Formats the number of lost events as a line of JSON. In text mode, it prints a message to standard error instead.
fn lost_words(events: u64, json: bool) -> Result<String, Failure> {
    if json {
        return line(&AllowLost { events });
    }
    eprintln!("weir: {events} events lost: a core tells of 1,000 packets a second at most");
    Ok(String::new())
}

/// By IANA's assigned protocol numbers; the usual name where there is one.
fn protocol(number: u8) -> String {
    let name = match number {
        1 => "icmp",
        2 => "igmp",
        6 => "tcp",
        17 => "udp",
        47 => "gre",
        50 => "esp",
        51 => "ah",
        58 => "icmpv6",
        132 => "sctp",
        n => return n.to_string(),
    };
    name.to_owned()
}

fn document(packet: &Refused) -> AllowPacket<'_> {
    AllowPacket {
        unix_us: packet.unix_us,
        source: packet.source,
        destination: packet.destination,
        class: &packet.class,
        class_number: packet.class_number,
        action: packet.action,
        protocol: protocol(packet.protocol),
        port: packet.port,
        fragment: packet.fragment,
        bytes: packet.bytes,
    }
}

/// Names of classes are letters, digits, `_` and `-` (they were checked when they were loaded and when they were read again);
/// all else is made of numbers.
fn as_line(packet: &Refused) -> String {
    let protocol = protocol(packet.protocol);
    let service = match packet.port {
        Some(port) => format!("{protocol}/{port}"),
        None if packet.fragment => format!("{protocol} fragment"),
        None => protocol,
    };
    let (source, destination) = (packet.source.to_string(), packet.destination);
    format!(
        "{}  {source:<15}  {:<8} {:<4}  {service:<9}  to {destination}",
        time(packet.unix_us),
        packet.class,
        packet.action
    )
}

/// Formats the time of day, UTC.
fn time(unix_us: u64) -> String {
    let of_day_ms = unix_us / 1000 % 86_400_000;
    let (s, ms) = (of_day_ms / 1000, of_day_ms % 1000);
    format!("{:02}:{:02}:{:02}.{ms:03}Z", s / 3600, s / 60 % 60, s % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn packet() -> Refused {
        Refused {
            // date -u -d @1763737513.25
            unix_us: 1_763_737_513_250_999,
            source: "198.18.0.3".parse().unwrap(),
            destination: "198.18.0.1".parse().unwrap(),
            class: "rest".into(),
            class_number: 0,
            action: "drop",
            protocol: 6,
            port: Some(22),
            fragment: false,
            bytes: 74,
        }
    }

    #[test]
    fn a_line_fits_into_a_terminal_and_says_who_when_what_and_where_to() {
        let line = as_line(&packet());
        assert_eq!(line, "15:05:13.250Z  198.18.0.3       rest     drop  tcp/22     to 198.18.0.1");
        assert!(line.len() <= 80);
        let v6 = Refused {
            source: "2001:2::3".parse().unwrap(),
            protocol: 17,
            port: None,
            fragment: true,
            ..packet()
        };
        assert!(
            as_line(&v6).contains("2001:2::3        rest     drop  udp fragment  to"),
            "{}",
            as_line(&v6)
        );
        assert!(as_line(&Refused { protocol: 99, port: None, ..packet() }).contains("  99  "));
    }

    #[test]
    fn a_line_of_json_is_one_line_and_has_the_same() {
        let of = |packet: &Refused| line(&document(packet)).ok().unwrap();
        let text = of(&packet());
        assert_eq!(text.find('\n'), Some(text.len() - 1));
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["unix_us"], 1_763_737_513_250_999_u64);
        assert_eq!((&value["protocol"], &value["port"]), (&"tcp".into(), &22.into()));
        let none: serde_json::Value = serde_json::from_str(&of(&Refused { port: None, ..packet() })).unwrap();
        assert_eq!(none["port"], serde_json::Value::Null);
    }
}
