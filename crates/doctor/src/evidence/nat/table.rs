//! Reads a table as `weir nat` writes it.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use serde::Deserialize;
use serde_json::Value;
use weir_text::order;

use super::{NatRow, NatSource, NatTable};

/// Schemas of the documents that are read: name without version, and the version.
const SCHEMAS: [(&str, &str, NatSource); 3] = [
    ("weir.nat-lab", "1", NatSource::Lab),
    ("weir.nat-check", "1", NatSource::Check),
    ("weir.nat-check-server", "1", NatSource::Check),
];

/// The end of an observation of which the path decides (crates/nat/src/served/reasons.rs).
const VANISHED: &str = "the NAT or a firewall on the way drops it";

/// Largest table that is read, bytes: one gateway with every timer has about 2 MB.
pub const LARGEST_TABLE: u64 = 32 << 20;

#[derive(Deserialize)]
struct Document {
    #[serde(default)]
    time: String,
    path: Option<Server>,
    server: Option<Server>,
    gateways: Option<Vec<Measured>>,
}

#[derive(Deserialize)]
struct Server {
    #[serde(alias = "server")]
    address: String,
}

#[derive(Deserialize)]
struct Measured {
    #[serde(default)]
    gateway: String,
    rows: Vec<SavedRow>,
    #[serde(default)]
    observations: Observed,
}

#[derive(Deserialize)]
struct SavedRow {
    id: String,
    rfc: u32,
    requirement: String,
    level: String,
    verdict: String,
    seen: String,
}

/// The part of the observations that says where and when.
#[derive(Default, Deserialize)]
#[serde(default)]
struct Observed {
    udp_mapping: Option<Vec<Mapping>>,
    tcp_mapping: Option<Vec<Mapping>>,
    udp_ports: Option<Vec<Translation>>,
    idle: Option<BTreeMap<String, Value>>,
}

#[derive(Deserialize)]
struct Mapping {
    seen: Vec<Translation>,
}

#[derive(Deserialize)]
struct Translation {
    inside: SocketAddr,
    to: SocketAddr,
    seen: Option<SocketAddr>,
}

impl NatTable {
    /// Reads `weir nat check --json` or `weir nat lab --json` of one gateway.
    ///
    /// # Errors
    /// In words, without the file's name: it is no such document, of another version, or of several gateways.
    pub fn read(text: &str) -> Result<Self, String> {
        let value: Value = serde_json::from_str(text).map_err(|e| format!("not JSON: {e}"))?;
        let schema = value["schema"].as_str().unwrap_or_default().to_owned();
        let (name, version) = schema.split_once('/').unwrap_or((&schema, ""));
        let known = SCHEMAS.iter().find(|(known, ..)| *known == name).ok_or(
            "not a table of `weir nat check --json` or `weir nat lab --json`: it has no schema of theirs",
        )?;
        let (_, read, source) = *known;
        if version != read {
            return Err(format!(
                "{name} of version {version:?}, and this weir reads version {read}; make the table anew with this weir"
            ));
        }
        let document: Document =
            serde_json::from_str(text).map_err(|e| format!("damaged: not a whole {schema}: {e}"))?;
        let Document { time, path, server, gateways } = document;
        // A check has the rows of its one NAT at its top.
        let own = || serde_json::from_str(text).into_iter().collect();
        let mut all: Vec<Measured> = gateways.unwrap_or_else(own);
        if all.len() > 1 {
            let names: Vec<&str> = all.iter().map(|m| m.gateway.as_str()).collect();
            return Err(format!(
                "tables of {} gateways ({}): pass the table of one, from weir nat lab --gateway NAME --json",
                all.len(),
                names.join(", ")
            ));
        }
        let measured = all.pop().ok_or("damaged: no table of rows in it")?;
        let subject = match path.or(server) {
            Some(server) => format!("as {} saw it", server.address),
            None => format!("{} of the lab", measured.gateway),
        };
        Ok(measured.into_table(source, subject, time))
    }
}

impl Measured {
    fn into_table(self, source: NatSource, subject: String, time: String) -> NatTable {
        let Observed { udp_mapping, tcp_mapping, udp_ports, idle } = self.observations;
        let mappings: Vec<Mapping> =
            udp_mapping.into_iter().flatten().chain(tcp_mapping.into_iter().flatten()).collect();
        let ports = udp_ports.unwrap_or_default();
        let changes_address = mappings.iter().any(|m| {
            let seen = m.seen.iter().filter_map(|t| t.seen.map(|seen| seen.ip()));
            order::set(seen).len() > 1
        });
        let all = || mappings.iter().flat_map(|m| &m.seen).chain(&ports);
        let first = all().find(|t| t.seen.is_some());
        let outside: Vec<IpAddr> =
            order::set(all().filter_map(|t| t.seen.map(|seen| seen.ip()))).into_iter().collect();
        let ended = idle.into_iter().flatten().filter_map(|(name, tries)| Some((name, bracket(tries)?)));
        NatTable {
            source,
            subject,
            time,
            failing: self.rows.into_iter().filter_map(SavedRow::failing).collect(),
            inside: first.map(|t| t.inside),
            server: first.map(|t| t.to),
            outside,
            changes_address,
            ended: ended.collect(),
        }
    }
}

impl SavedRow {
    /// The row, if it fails at something that is asked for.
    fn failing(self) -> Option<NatRow> {
        let SavedRow { id, rfc, requirement, level, verdict, seen } = self;
        let asked = ["MUST", "MUST NOT", "SHOULD", "RECOMMENDED"].contains(&level.as_str());
        let partly = verdict == "partly";
        let vanished = verdict == "not-sure" && seen.ends_with(VANISHED);
        (asked && (partly || vanished || verdict == "fails")).then_some(NatRow {
            id,
            rfc,
            requirement,
            level,
            partly,
            vanished,
            seen,
        })
    }
}

/// The idle time between the longest that a mapping survived and the shortest that ended one; `None` if none ended, or if they
/// contradict each other.
fn bracket(tries: Value) -> Option<(f64, f64)> {
    let one = |tried: &Value| Some((tried.get("idle_s")?.as_f64()?, tried.get("alive")?.as_bool()?));
    let tries: Vec<(f64, bool)> = tries.as_array()?.iter().map(one).collect::<Option<_>>()?;
    let times =
        |lives: bool| tries.iter().filter(move |(_, alive)| *alive == lives).map(|(idle_s, _)| *idle_s);
    let alive = times(true).fold(0.0, f64::max);
    let dead = times(false).reduce(f64::min)?;
    (alive <= dead).then_some((alive, dead))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn row(id: &str, level: &str, verdict: &str) -> Value {
        json!({"id": id, "rfc": 4787, "requirement": "REQ-1", "level": level, "verdict": verdict, "seen": "x"})
    }

    fn translation(port: u16, seen: &str) -> Value {
        json!({"inside": format!("10.0.0.2:{port}"), "to": "192.0.2.1:9", "seen": seen, "sure": true})
    }

    fn check() -> Value {
        let rows = [
            row("a", "MUST", "fails"),
            row("b", "none", "fails"),
            row("c", "SHOULD", "partly"),
            row("d", "MUST", "meets"),
            row("e", "MUST", "not-sure"),
            json!({"id": "f", "rfc": 5508, "requirement": "REQ-4", "level": "MUST", "verdict": "not-sure",
                           "seen": format!("did not arrive; {VANISHED}")}),
        ];
        let tries = json!([{"idle_s": 29.9, "alive": true}, {"idle_s": 30.2, "alive": false}, {"idle_s": 1.0, "alive": true}]);
        let after_reset = json!([{"idle_s": 10.5, "alive": false}]);
        json!({"schema": "weir.nat-check-server/1", "time": "t", "path": {"server": "192.0.2.1:9347"}, "rows": rows,
               "observations": {"udp_mapping": [{"seen": [translation(1, "203.0.113.7:1"), translation(1, "203.0.113.8:1")]}],
                                "idle": {"limit_s": 40.0, "unanswered": tries, "tcp_reset_in": after_reset, "icmp": []}}})
    }

    #[test]
    fn a_check_is_read_with_its_ends_and_times() {
        let table = NatTable::read(&check().to_string()).unwrap();
        assert_eq!(table.source, NatSource::Check);
        assert_eq!(table.subject, "as 192.0.2.1:9347 saw it");
        let ids: Vec<(&str, bool)> = table.failing.iter().map(|r| (r.id.as_str(), r.partly)).collect();
        assert_eq!(ids, [("a", false), ("c", true), ("f", false)]);
        assert_eq!(table.outside.len(), 2);
        assert!(table.changes_address);
        assert_eq!(table.ended["unanswered"], (29.9, 30.2));
        assert_eq!(table.ended["tcp_reset_in"], (0.0, 10.5));
        assert!(!table.ended.contains_key("icmp"));
    }

    #[test]
    fn each_bad_table_is_one_message() {
        let of = |value: Value| NatTable::read(&value.to_string()).unwrap_err();
        assert!(NatTable::read("{").unwrap_err().starts_with("not JSON"));
        assert!(NatTable::read("").unwrap_err().starts_with("not JSON"));
        assert!(of(json!([])).starts_with("not a table"));
        assert!(of(json!({"schema": "weir.doctor/1"})).starts_with("not a table"));
        assert!(of(json!({"schema": "weir.nat-lab/2"})).contains("of version \"2\""));
        assert!(of(json!({"schema": "weir.nat-check/0"})).contains("this weir reads version 1"));
        assert!(of(json!({"schema": "weir.nat-lab/1"})).starts_with("damaged"));
        assert!(of(json!({"schema": "weir.nat-lab/1", "gateways": []})).starts_with("damaged"));
        let gateway = |name: &str| json!({"gateway": name, "rows": []});
        let two = of(json!({"schema": "weir.nat-lab/1", "gateways": [gateway("g"), gateway("h")]}));
        assert!(two.contains("2 gateways (g, h)") && two.contains("--gateway NAME"), "{two}");
        let one = json!({"schema": "weir.nat-lab/1", "gateways": [gateway("g")]});
        assert_eq!(NatTable::read(&one.to_string()).unwrap().subject, "g of the lab");
    }
}
