//! The packets of an experiment as a pcapng file (draft-ietf-opsawg-pcapng), which Wireshark and tcpdump read.

use std::collections::BTreeMap;
use std::io;
use std::time::{Duration, SystemTime};

use schemars::JsonSchema;
use serde::Serialize;
use weir_probe::nat64::Prefix64;

use crate::{Arrival, Conditions, Ends, Packet, Side, nat64};

/// LINKTYPE_IPV4 and LINKTYPE_IPV6 of the registry of link types: a packet begins with its IP header. LINKTYPE_RAW holds both, but
/// tcpdump reads no file that has it for more than one interface.
const LINK_TYPES: [u16; 2] = [228, 229];
/// LINKTYPE_RAW, for the one interface of a file with packets of both versions.
const BOTH_VERSIONS: u16 = 101;
/// The interfaces of a file by name.
const SIDES: [&str; 2] = ["inside", "outside"];
/// Types of blocks.
const SECTION: u32 = 0x0a0d_0d0a;
const INTERFACE: u32 = 1;
const ENHANCED_PACKET: u32 = 6;
/// Byte order of the file (sections 4.1).
const MAGIC: u32 = 0x1a2b_3c4d;
/// Options of blocks; 1 is the same in all.
const COMMENT: u16 = 1;
const IF_NAME: u16 = 2;
const IF_TSRESOL: u16 = 9;
const EPB_FLAGS: u16 = 2;

/// The packets of one experiment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Captured {
    /// Name of the experiment.
    pub experiment: &'static str,
    /// Content of the file.
    pub file: Vec<u8>,
    /// Numbers of the packets, from 1, that each row is judged by.
    frames: BTreeMap<&'static str, Vec<u32>>,
    count: u32,
}

/// Packets that a row is judged by.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
pub struct Evidence {
    /// Name of the file below the gateway's folder.
    pub file: String,
    /// Numbers of the packets as Wireshark counts them, as `editcap -r` takes them (example: 1-8 12).
    pub frames: String,
}

/// The packets of each row in these files.
pub fn evidence(captured: &[Captured]) -> BTreeMap<&'static str, Vec<Evidence>> {
    let mut all: BTreeMap<&str, Vec<Evidence>> = BTreeMap::new();
    for one in captured {
        for (row, frames) in &one.frames {
            let file = format!("{}.pcapng", one.experiment);
            all.entry(row).or_default().push(Evidence { file, frames: ranges(frames) });
        }
    }
    all
}

/// Ascending numbers as ranges: `1-8 12`.
fn ranges(numbers: &[u32]) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for number in numbers {
        match runs.last_mut() {
            Some((_, last)) if *last + 1 == *number => *last = *number,
            _ => runs.push((*number, *number)),
        }
    }
    let word = |(first, last): &(u32, u32)| {
        if first == last { first.to_string() } else { format!("{first}-{last}") }
    };
    runs.iter().map(word).collect::<Vec<_>>().join(" ")
}

/// Two ends that keep every packet, experiment by experiment.
pub struct Recorder<'a> {
    ends: &'a mut dyn Ends,
    /// Time of day at the ends' moment zero.
    zero: SystemTime,
    files: Vec<Captured>,
    /// Rows that packets are evidence for now.
    rows: &'static [&'static str],
    /// The packets of this experiment are whole ones, and no stand-ins for those of sockets.
    keeps: bool,
}

impl std::fmt::Debug for Recorder<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Recorder").field("files", &self.files.len()).finish_non_exhaustive()
    }
}

impl<'a> Recorder<'a> {
    /// Keeps what goes over these ends from now on.
    pub fn new(ends: &'a mut dyn Ends) -> Self {
        let zero = SystemTime::now().checked_sub(ends.now()).unwrap_or(SystemTime::UNIX_EPOCH);
        Recorder { ends, zero, files: Vec::new(), rows: &[], keeps: false }
    }

    /// The packets, experiment by experiment.
    pub fn files(self) -> Vec<Captured> {
        self.files
    }

    fn keep(&mut self, side: Side, sent: bool, at: Duration, packet: &Packet) {
        let zero = self.zero.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let prefix = self.nat64();
        if let Some(captured) = self.files.last_mut().filter(|_| self.keeps) {
            let real =
                prefix.filter(|_| side == Side::Outside).and_then(|prefix| nat64::real(prefix, packet));
            let bytes = real.as_ref().unwrap_or(packet).bytes();
            let interface = if prefix.is_none() { side as u32 } else { 0 };
            append_packet(&mut captured.file, interface, (side, sent), self.rows, zero + at, &bytes);
            captured.count += 1;
            for row in self.rows {
                captured.frames.entry(row).or_default().push(captured.count);
            }
        }
    }
}

impl Ends for Recorder<'_> {
    fn conditions(&self) -> &Conditions {
        self.ends.conditions()
    }

    fn now(&self) -> Duration {
        self.ends.now()
    }

    fn makes(&self, experiment: &str) -> bool {
        self.ends.makes(experiment)
    }

    fn carries_everything(&self) -> bool {
        self.ends.carries_everything()
    }

    fn nat64(&self) -> Option<Prefix64> {
        self.ends.nat64()
    }

    fn first_port(&self) -> u16 {
        self.ends.first_port()
    }

    fn has_port(&self, port: u16) -> bool {
        self.ends.has_port(port)
    }

    fn outside_port(&self, port: u16) -> u16 {
        self.ends.outside_port(port)
    }

    fn mark(&self) -> [u8; 4] {
        self.ends.mark()
    }

    fn begin(&mut self, experiment: &'static str) {
        self.ends.begin(experiment);
        self.keeps = self.ends.carries_everything();
        if !self.keeps {
            return;
        }
        let link_type = LINK_TYPES[usize::from(self.conditions().outside[0].is_ipv6())];
        let file = match self.nat64() {
            Some(_) => beginning(BOTH_VERSIONS, &["both sides"]),
            None => beginning(link_type, &SIDES),
        };
        self.files.push(Captured { experiment, file, frames: BTreeMap::new(), count: 0 });
    }

    fn about(&mut self, rows: &'static [&'static str]) {
        self.rows = rows;
        self.ends.about(rows);
    }

    fn send(&mut self, side: Side, packet: &Packet) -> io::Result<()> {
        let at = self.ends.now();
        self.ends.send(side, packet)?;
        self.keep(side, true, at, packet);
        Ok(())
    }

    fn send_at_once(&mut self, side: Side, packets: &[Packet; 2]) -> io::Result<()> {
        let at = self.ends.now();
        self.ends.send_at_once(side, packets)?;
        packets.iter().for_each(|packet| self.keep(side, true, at, packet));
        Ok(())
    }

    fn receive(&mut self, deadline: Duration) -> io::Result<Option<Arrival>> {
        let arrival = self.ends.receive(deadline)?;
        if let Some(arrival) = &arrival {
            self.keep(arrival.side, false, arrival.at, &arrival.packet);
        }
        Ok(arrival)
    }
}

/// Section header, and the interfaces.
fn beginning(link_type: u16, interfaces: &[&str]) -> Vec<u8> {
    let mut file = Vec::new();
    let mut body = MAGIC.to_le_bytes().to_vec();
    body.extend(1_u16.to_le_bytes());
    body.extend(0_u16.to_le_bytes());
    // The section's length is not given.
    body.extend(u64::MAX.to_le_bytes());
    append_block(&mut file, SECTION, &body);
    for name in interfaces {
        let mut body = link_type.to_le_bytes().to_vec();
        // Reserved, and no limit of a packet's length.
        body.extend([0; 6]);
        append_option(&mut body, IF_NAME, name.as_bytes());
        // Times in nanoseconds.
        append_option(&mut body, IF_TSRESOL, &[9]);
        append_option(&mut body, 0, &[]);
        append_block(&mut file, INTERFACE, &body);
    }
    file
}

fn append_packet(
    file: &mut Vec<u8>,
    interface: u32,
    (side, sent): (Side, bool),
    rows: &[&str],
    at: Duration,
    bytes: &[u8],
) {
    let name = SIDES[side as usize];
    // 64 bits of nanoseconds last until the year 2554.
    let time = at.as_nanos() as u64;
    let length = bytes.len() as u32;
    let mut body = interface.to_le_bytes().to_vec();
    body.extend(((time >> 32) as u32).to_le_bytes());
    body.extend((time as u32).to_le_bytes());
    body.extend(length.to_le_bytes());
    body.extend(length.to_le_bytes());
    body.extend(bytes);
    body.resize(body.len().next_multiple_of(4), 0);
    let mut comment = format!("{} {name}", if sent { "sent" } else { "seen" });
    if !rows.is_empty() {
        comment += &format!(", for {}", rows.join(", "));
    }
    append_option(&mut body, COMMENT, comment.as_bytes());
    // Section 4.3.1: 1 inbound, 2 outbound.
    append_option(&mut body, EPB_FLAGS, &(if sent { 2_u32 } else { 1 }).to_le_bytes());
    append_option(&mut body, 0, &[]);
    append_block(file, ENHANCED_PACKET, &body);
}

fn append_option(body: &mut Vec<u8>, code: u16, value: &[u8]) {
    body.extend(code.to_le_bytes());
    body.extend((value.len() as u16).to_le_bytes());
    body.extend(value);
    body.resize(body.len().next_multiple_of(4), 0);
}

/// A block has its length before and after its body.
fn append_block(file: &mut Vec<u8>, kind: u32, body: &[u8]) {
    let length = body.len() as u32 + 12;
    file.extend(kind.to_le_bytes());
    file.extend(length.to_le_bytes());
    file.extend(body);
    file.extend(length.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    fn u32_at(bytes: &[u8], at: usize) -> u32 {
        u32::from_le_bytes(*bytes[at..].first_chunk().unwrap())
    }

    #[test]
    fn numbers_are_written_as_editcap_takes_them() {
        assert_eq!(ranges(&[1, 2, 3, 7, 9, 10]), "1-3 7 9-10");
        assert_eq!(ranges(&[]), "");
    }

    #[test]
    fn blocks_have_their_length_at_both_ends() {
        let mut file = beginning(LINK_TYPES[0], &SIDES);
        let packet = Packet::udp("198.18.0.10:1".parse().unwrap(), "198.19.0.10:2".parse().unwrap(), b"abc");
        let at = Duration::from_nanos((3 << 32) + 7);
        append_packet(
            &mut file,
            1,
            (Side::Outside, false),
            &["udp-mapping", "udp-parity"],
            at,
            &packet.bytes(),
        );
        let (mut rest, mut kinds) = (&file[..], Vec::new());
        while !rest.is_empty() {
            let length = u32_at(rest, 4) as usize;
            assert_eq!((length % 4, u32_at(rest, length - 4) as usize), (0, length));
            kinds.push(u32_at(rest, 0));
            if kinds.last() == Some(&ENHANCED_PACKET) {
                assert_eq!([8, 12, 16, 20].map(|at| u32_at(rest, at)), [1, 3, 7, 31]);
                assert_eq!(
                    Packet::read(&rest[28..59]).as_ref().and_then(Packet::udp_data),
                    Some(&b"abc"[..])
                );
                // Code and length of the comment, and the comment.
                let comment = b"seen outside, for udp-mapping, udp-parity";
                assert_eq!(rest[60..64], [1, 0, comment.len() as u8, 0]);
                assert_eq!(&rest[64..64 + comment.len()], comment);
            }
            rest = &rest[length..];
        }
        assert_eq!(kinds, [SECTION, INTERFACE, INTERFACE, ENHANCED_PACKET]);
    }
}
