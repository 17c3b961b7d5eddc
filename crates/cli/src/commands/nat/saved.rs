//! Results of `weir nat` as they are on disk, whichever version wrote them.

use std::path::Path;

use serde::Deserialize;
use serde_json::Value;
use weir_report::requirements::{Line, Requirements, Subject};

use super::page::with_confidence;
use crate::documents::{Document, line};
use crate::exit::Failure;

/// `nat lab --json` or `nat check --json`, as far as it is shown again.
#[derive(Debug, Deserialize)]
pub(super) struct Saved {
    /// RFC 3339, UTC.
    pub(super) time: String,
    kernel: Option<String>,
    idle_s: Option<f64>,
    #[serde(default)]
    ipv6: bool,
    #[serde(default)]
    gateways: Vec<SavedGateway>,
}

/// One gateway.
#[derive(Debug, Deserialize)]
struct SavedGateway {
    gateway: String,
    #[serde(default)]
    describes: String,
    kind: SavedKind,
    rows: Vec<SavedRow>,
}

#[derive(Debug, Deserialize)]
struct SavedKind {
    translates: Option<bool>,
    ipv6: Option<String>,
    mapping: Option<String>,
    filtering: Option<String>,
    classic: Option<String>,
}

#[derive(Debug, Deserialize)]
struct SavedRow {
    id: String,
    rfc: u32,
    section: String,
    requirement: String,
    level: String,
    asks: String,
    breaks: String,
    verdict: String,
    confidence: String,
    seen: String,
    #[serde(default)]
    packets: Vec<SavedPackets>,
}

#[derive(Debug, Deserialize)]
struct SavedPackets {
    file: String,
    frames: String,
}

/// The part of `nat check` that stands for gateways, with the server by either of its names.
#[derive(Debug, Deserialize)]
struct SavedCheck {
    #[serde(alias = "path")]
    server: SavedServer,
    kind: SavedKind,
    rows: Vec<SavedRow>,
}

/// The server of `nat check`.
#[derive(Debug, Deserialize)]
struct SavedServer {
    #[serde(alias = "server")]
    address: String,
}

/// Schemas of the documents that are read.
const LAB: &str = "weir.nat-lab/1";
const CHECKS: [&str; 2] = ["weir.nat-check/1", "weir.nat-check-server/1"];

fn is_result(schema: &str) -> bool {
    schema == LAB || CHECKS.contains(&schema)
}

/// Whether that file is a result of `weir nat`.
pub(crate) fn is_nat_result(path: &Path) -> bool {
    let value = std::fs::read_to_string(path).ok().and_then(|text| serde_json::from_str::<Value>(&text).ok());
    value.is_some_and(|value| value["schema"].as_str().is_some_and(is_result))
}

impl Saved {
    /// Reads a file.
    pub(super) fn read(path: &Path) -> Result<Self, Failure> {
        let wrong = |why: String| Failure::usage(format!("{}: {why}", path.display()));
        let text = std::fs::read_to_string(path).map_err(|e| wrong(e.to_string()))?;
        Saved::of(&text).map_err(wrong)
    }

    /// A result of this run.
    pub(super) fn of_document(document: &impl Document) -> Result<Self, Failure> {
        Saved::of(&line(document)?).map_err(Failure::failed)
    }

    fn of(text: &str) -> Result<Self, String> {
        let value: Value = serde_json::from_str(text).map_err(|e| format!("not JSON: {e}"))?;
        let schema = value["schema"].as_str().unwrap_or_default();
        if !is_result(schema) {
            return Err("not a result of `weir nat lab --json` or `weir nat check --json`".to_owned());
        }
        let mut saved: Saved = serde_json::from_str(text).map_err(|e| e.to_string())?;
        if schema != LAB {
            let check: SavedCheck = serde_json::from_str(text).map_err(|e| e.to_string())?;
            saved.gateways.push(SavedGateway {
                gateway: "the NAT in front of the host".to_owned(),
                describes: format!("as {} saw it", check.server.address),
                kind: check.kind,
                rows: check.rows,
            });
        }
        Ok(saved)
    }

    /// Its gateways side by side.
    pub(super) fn requirements(&self) -> Requirements {
        Requirements {
            title: "NAT behaviour".to_owned(),
            circumstances: self.circumstances(),
            subjects: self.gateways.iter().map(SavedGateway::subject).collect(),
        }
    }

    fn circumstances(&self) -> String {
        let kernel = self.kernel.as_ref().map(|kernel| format!(", Linux {kernel}")).unwrap_or_default();
        let idle = match self.idle_s {
            Some(idle) if idle > 0.0 => format!(", idle times up to {idle} s"),
            Some(_) => ", without idle times".to_owned(),
            None => String::new(),
        };
        let ipv6 = if self.ipv6 { ", over IPv6" } else { "" };
        format!("{}{kernel}{ipv6}{idle}", self.time)
    }
}

impl SavedGateway {
    fn subject(&self) -> Subject {
        let line = |row: &SavedRow| Line {
            id: row.id.clone(),
            source: match row.requirement.as_str() {
                "" => format!("RFC {} section {}", row.rfc, row.section),
                requirement => format!("RFC {} {requirement}, {}", row.rfc, row.level),
            },
            asks: row.asks.clone(),
            breaks: row.breaks.clone(),
            verdict: row.verdict.clone(),
            seen: with_confidence(row.seen.clone(), row.confidence == "medium"),
            binding: ["MUST", "MUST NOT"].contains(&row.level.as_str()),
            packets: row.packets.iter().map(|p| format!("{} {}", p.file, brief(&p.frames))).collect(),
        };
        Subject {
            name: self.gateway.clone(),
            kind: self.kind.words(),
            describes: self.describes.clone(),
            lines: self.rows.iter().map(line).collect(),
        }
    }
}

/// Longest list of packets that is shown, in ranges.
const RANGES: usize = 8;

/// The numbers of packets as they are shown: `1-8 12`, or `97 to 670, in part`.
fn brief(frames: &str) -> String {
    let ranges: Vec<&str> = frames.split(' ').collect();
    let (first, last) =
        (ranges.first().copied().unwrap_or_default(), ranges.last().copied().unwrap_or_default());
    if ranges.len() <= RANGES {
        return frames.to_owned();
    }
    let begin = first.split('-').next().unwrap_or(first);
    let end = last.rsplit('-').next().unwrap_or(last);
    format!("{begin} to {end}, in part")
}

impl SavedKind {
    /// `port restricted cone (endpoint-independent mapping, address-and-port filtering)`.
    fn words(&self) -> String {
        if self.translates == Some(false) {
            return "no translation".to_owned();
        }
        if self.ipv6.as_deref() == Some("nptv6") {
            return "translation of prefixes (NPTv6)".to_owned();
        }
        let part = |value: &Option<String>| value.clone().unwrap_or_else(|| "unknown".to_owned());
        let (mapping, filtering) = (part(&self.mapping), part(&self.filtering));
        let classic = self.classic.clone().unwrap_or_else(|| "unknown kind".to_owned());
        format!("{classic} ({mapping} mapping, {filtering} filtering)")
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn rows() -> Value {
        json!([{"id": "udp-mapping", "group": "mapping", "rfc": 4787, "section": "4.1", "requirement": "REQ-1",
                "level": "MUST", "asks": "a", "sent": "s", "breaks": "b", "verdict": "fails", "confidence": "medium",
                "seen": "x", "later": 1}])
    }

    fn kind() -> Value {
        json!({"translates": true, "mapping": "address", "filtering": null, "classic": "symmetric"})
    }

    #[test]
    fn a_long_list_of_packets_is_shortened() {
        assert_eq!(brief("1-8 12"), "1-8 12");
        assert_eq!(brief("1-8 12 14 16 18 20 22 24-30"), "1-8 12 14 16 18 20 22 24-30");
        assert_eq!(brief("3-8 12 14 16 18 20 22 24-30 33"), "3 to 33, in part");
        assert_eq!(brief("3 12 14 16 18 20 22 24 30-33"), "3 to 33, in part");
    }

    #[test]
    fn both_documents_are_read_and_others_refused() {
        let lab = json!({"schema": "weir.nat-lab/1", "time": "t", "kernel": "6", "idle_s": 35.0,
                         "gateways": [{"gateway": "g", "describes": "d", "kind": kind(), "rows": rows()}]});
        let read = Saved::of(&lab.to_string()).unwrap().requirements();
        assert_eq!(read.circumstances, "t, Linux 6, idle times up to 35 s");
        assert_eq!(read.subjects[0].kind, "symmetric (address mapping, unknown filtering)");
        let line = &read.subjects[0].lines[0];
        assert_eq!(
            (line.source.as_str(), line.seen.as_str()),
            ("RFC 4787 REQ-1, MUST", "x (medium confidence)")
        );
        let check = json!({"schema": "weir.nat-check/1", "time": "t", "server": {"address": "192.0.2.7:3478"},
                           "kind": kind(), "rows": rows()});
        let read = Saved::of(&check.to_string()).unwrap().requirements();
        assert_eq!(read.subjects[0].describes, "as 192.0.2.7:3478 saw it");
        let served = json!({"schema": "weir.nat-check-server/1", "time": "t", "path": {"server": "192.0.2.7:9347"},
                            "idle_s": 0.0, "kind": kind(), "rows": rows()});
        let read = Saved::of(&served.to_string()).unwrap().requirements();
        assert_eq!(read.subjects[0].describes, "as 192.0.2.7:9347 saw it");
        assert!(Saved::of(r#"{"schema": "weir.doctor/1"}"#).is_err());
        assert!(Saved::of("[]").is_err());
    }
}
