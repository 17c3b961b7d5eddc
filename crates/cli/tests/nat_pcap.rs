//! The packets that `weir nat lab --pcap` keeps, as tcpdump and Wireshark read them.

mod documents;
mod nat_tables;

use std::collections::BTreeMap;
use std::path::Path;

use nat_tables::{gateways, nat, verdicts};
use serde_json::Value;
use weir_testkit::{CommandOutput, World};

const WEIR: &str = env!("CARGO_BIN_EXE_weir");

#[test]
fn root_packets_are_kept_for_tcpdump() {
    if World::lacks(&["nft", "tcpdump"]) {
        return;
    }
    let Some(world) = World::root(WEIR) else { return };
    let folder = world.work().join("packets");
    let folder = folder.to_str().unwrap();
    let page = nat(&world, &["lab", "--idle", "0", "--pcap", folder, "--markdown"]).expect(0).stdout;
    let proof = "| `udp-hairpin` | fails | the NAT itself answers with ICMP 3/3 | udp-hairpin.pcapng 1-";
    assert!(page.contains(proof), "{page}");
    let read = |experiment: &str| {
        let mut command = world.command("tcpdump");
        command.args(["-nn", "-v", "-r", &format!("{folder}/nft-masquerade/{experiment}.pcapng")]);
        world.run(command).expect(0).stdout
    };
    // The first packet of the first experiment, as it was sent inside and as it was seen outside.
    let mapping = read("udp-mapping");
    assert!(mapping.contains("198.18.0.10.20000 > 198.19.0.10."), "{mapping}");
    assert!(mapping.contains("198.19.0.1.20000 > 198.19.0.10."), "{mapping}");
    assert!(!mapping.contains("bad udp cksum"), "{mapping}");
    let hairpin = read("udp-hairpin");
    assert!(hairpin.contains("198.19.0.1 > 198.18.0.11: ICMP 198.19.0.1 udp port"), "{hairpin}");
    let fragments = read("udp-fragments");
    assert!(fragments.contains("flags [+]"), "{fragments}");
    let errors = read("icmp-errors");
    assert!(errors.contains("time exceeded in-transit") && errors.contains("unreachable"), "{errors}");
}

/// Wireshark's own reader finds every packet of every file whole, with the comment and the number by which rows name it.
#[test]
fn root_packets_are_kept_for_wireshark() {
    if World::lacks(&["nft", "tshark"]) {
        return;
    }
    let Some(world) = World::root(WEIR) else { return };
    let folder = world.work().join("packets");
    let options = ["--idle", "0", "--pcap", folder.to_str().unwrap()];
    let seen = gateways(&world, &["nft-masquerade"], &options);
    let gateway = &seen["nft-masquerade"];
    let (named, known) = (packets_of_rows(gateway), verdicts(gateway));
    let folder = folder.join("nft-masquerade");
    let mut found: PacketsOfRows = BTreeMap::new();
    for entry in std::fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        let packets = by_tshark(&world, &path);
        assert_eq!(packets.len(), count_packets(&std::fs::read(&path).unwrap()), "{name}");
        for (number, comment) in packets {
            let rows = comment.split_once(", for ").map_or("", |(_, rows)| rows);
            for row in rows.split(", ").filter(|row| known.contains_key(row)) {
                found.entry((name.clone(), row.to_owned())).or_default().push(number);
            }
        }
    }
    assert_eq!(found, named);
    let hairpin = &named[&("udp-hairpin.pcapng".to_owned(), "udp-hairpin".to_owned())];
    assert!(hairpin.len() > 8, "{hairpin:?}");
    // The reader does notice a file that ends too early.
    let cut = world.work().join("cut.pcapng");
    let whole = std::fs::read(folder.join("udp-hairpin.pcapng")).unwrap();
    std::fs::write(&cut, &whole[..whole.len() - 50]).unwrap();
    let refused = tshark(&world, &cut).expect(2);
    assert!(refused.stderr.contains("cut short"), "{}", refused.stderr);
}

/// Numbers of the packets of each file and row.
type PacketsOfRows = BTreeMap<(String, String), Vec<u32>>;

/// Those that a gateway's rows name.
fn packets_of_rows(gateway: &Value) -> PacketsOfRows {
    let mut named: PacketsOfRows = BTreeMap::new();
    for row in gateway["rows"].as_array().unwrap() {
        for packets in row["packets"].as_array().unwrap() {
            let [row, file, frames] =
                [&row["id"], &packets["file"], &packets["frames"]].map(|v| v.as_str().unwrap());
            let numbers = frames.split(' ').flat_map(|range| {
                let (first, last) = range.split_once('-').unwrap_or((range, range));
                first.parse::<u32>().unwrap()..=last.parse().unwrap()
            });
            named.entry((file.to_owned(), row.to_owned())).or_default().extend(numbers);
        }
    }
    named
}

/// Number, comment, interface, and the mark of a damaged packet. Data is data: by its port another protocol would be guessed.
fn tshark(world: &World, file: &Path) -> CommandOutput {
    let mut command = world.command("tshark");
    command.arg("-r").arg(file).args(["-n", "-T", "fields", "-E", "separator=|"]);
    command.args(["-d", "udp.port==1-65535,data", "-d", "tcp.port==1-65535,data"]);
    for field in ["frame.number", "frame.comment", "frame.interface_name", "_ws.malformed"] {
        command.args(["-e", field]);
    }
    world.run(command)
}

/// Number and comment of each packet.
fn by_tshark(world: &World, file: &Path) -> Vec<(u32, String)> {
    let output = tshark(world, file).expect(0);
    let complaints: Vec<&str> =
        output.stderr.lines().filter(|line| !line.starts_with("Running as user")).collect();
    assert_eq!(complaints, [""; 0], "{}", file.display());
    let read = |line: &str| {
        let fields: Vec<&str> = line.split('|').collect();
        let [number, comment, interface, malformed] = fields[..] else { panic!("{line}") };
        assert_eq!(malformed, "", "{}: {line}", file.display());
        let way = comment.split(',').next().unwrap();
        let ways = ["sent", "seen"].map(|verb| format!("{verb} {interface}"));
        assert!(ways.iter().any(|known| known == way), "{}: {line}", file.display());
        (number.parse().unwrap(), comment.to_owned())
    };
    output.stdout.lines().map(read).collect()
}

/// Enhanced packet blocks of a file: type and length of a block are its first two words.
fn count_packets(file: &[u8]) -> usize {
    let word = |at: usize| u32::from_le_bytes(*file[at..].first_chunk().unwrap());
    let (mut at, mut packets) = (0, 0);
    while at < file.len() {
        packets += usize::from(word(at) == 6);
        at += word(at + 4) as usize;
    }
    assert_eq!(at, file.len());
    packets
}
