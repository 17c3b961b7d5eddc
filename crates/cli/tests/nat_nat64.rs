//! NAT64 in the lab, by tayga and nft: verdicts against those of Wireshark on the same packets, and what is left afterwards.

mod documents;
mod nat_tables;

use std::os::unix::fs::symlink;
use std::path::Path;

use nat_tables::{gateways, nat, verdicts, words_of};
use weir_testkit::{PATIENCE, World, until};

const WEIR: &str = env!("CARGO_BIN_EXE_weir");
const NAME: &str = "tayga-nat64";
const LAB: [&str; 6] = ["lab", "--ipv6", "--gateway", NAME, "--idle", "0"];

/// A packet of a file by Wireshark's own reader: its comment, the state of its checksums (1 is right, 0 wrong, 2 not to be checked), and
/// the addresses of its headers, from the outer one inwards.
#[derive(Debug)]
struct Seen {
    comment: String,
    icmp: String,
    header: String,
    udp: String,
    sources: String,
}

fn by_tshark(world: &World, file: &Path) -> Vec<Seen> {
    let mut command = world.command("tshark");
    command.arg("-r").arg(file).args(["-n", "-T", "fields", "-E", "separator=|"]);
    command.args(["-o", "ip.check_checksum:TRUE", "-o", "udp.check_checksum:TRUE"]);
    for field in [
        "frame.comment",
        "icmp.checksum.status",
        "icmpv6.checksum.status",
        "ip.checksum.status",
        "udp.checksum.status",
        "ip.src",
        "ipv6.src",
    ] {
        command.args(["-e", field]);
    }
    let text = world.run(command).expect(0).stdout;
    let read = |line: &str| {
        let fields: Vec<&str> = line.split('|').collect();
        let [comment, v4, v6, header, udp, from, from_v6] = fields[..] else { panic!("{line}") };
        Seen {
            comment: comment.to_owned(),
            icmp: format!("{v4}{v6}"),
            header: header.to_owned(),
            udp: udp.to_owned(),
            sources: format!("{from}{from_v6}"),
        }
    };
    text.lines().map(read).collect()
}

/// Each error is odd in one thing when it leaves the outside host, and the verdict is that of the packet that arrives.
#[test]
fn root_odd_errors_through_nat64_are_as_wireshark_reads_them() {
    if World::lacks(&["nft", "tayga", "tshark"]) {
        return;
    }
    let Some(world) = World::root(WEIR) else { return };
    let folder = world.work().join("packets");
    let options = ["--ipv6", "--idle", "0", "--mappings", "0", "--pcap", folder.to_str().unwrap()];
    let seen = gateways(&world, &[NAME], &options);
    let verdicts = verdicts(&seen[NAME]);
    let packets = by_tshark(&world, &folder.join(NAME).join("icmp-crafted-errors.pcapng"));
    let error = |way: &str, row: &str| {
        let comment = format!("{way}, for {row}");
        packets.iter().find(|packet| packet.comment == comment && !packet.icmp.is_empty())
    };
    // Checksums of the error, of the IP header that it quotes, and of the datagram in it.
    for (row, icmp, headers, udp) in [
        ("icmp-error-bad-checksum", "0", "1,1", "1"),
        ("icmp-error-bad-quote", "1", "1,0", "1"),
        ("icmp-error-quote-options", "1", "1,1", "1"),
        ("icmp-error-quote-unchecked", "1", "1,1", "0"),
        ("icmp-error-short-quote", "1", "1,1", "2"),
        ("icmp-error-unmapped", "1", "1,1", "1"),
    ] {
        let sent = error("sent outside", row).unwrap_or_else(|| panic!("{row}: {packets:#?}"));
        assert_eq!((&*sent.icmp, &*sent.header, &*sent.udp), (icmp, headers, udp), "{row}");
        assert_eq!(sent.sources, "198.19.0.10,198.19.0.1", "{row}");
        let arrived = error("seen inside", row);
        let drops = ["icmp-error-bad-checksum", "icmp-error-bad-quote", "icmp-error-unmapped"].contains(&row);
        assert_eq!(verdicts[row] == "meets", arrived.is_none() == drops, "{row}: {arrived:?}");
        if let Some(arrived) = arrived {
            assert_eq!((&*arrived.icmp, &*arrived.udp), ("1", udp), "{row}");
            assert_eq!(arrived.sources, "2001:2:0:64::c613:a,2001:2::a", "{row}");
        }
    }
    // Connection tracking drops the first and the last one, whatever tayga does.
    for row in ["icmp-error-bad-checksum", "icmp-error-unmapped", "icmp-error-short-quote"] {
        assert_eq!(verdicts[row], "meets", "{row}");
    }
}

/// Rows that need two inside hosts are those of masquerade over IPv4, of which the NAT behind the translator is.
#[test]
fn root_nat64_treats_two_hosts_as_masquerade_does() {
    if World::lacks(&["nft", "tayga"]) {
        return;
    }
    let Some(world) = World::root(WEIR) else { return };
    let (masquerade, idle) = ("nft-masquerade", ["--idle", "0", "--mappings", "0"]);
    let over_v4 = gateways(&world, &[masquerade], &idle);
    let through = gateways(&world, &[NAME], &[&["--ipv6"], &idle[..]].concat());
    let (v4, nat64) = (verdicts(&over_v4[masquerade]), verdicts(&through[NAME]));
    assert_eq!(through[NAME]["kind"]["ipv6"], "nat64");
    for row in [
        "udp-mapping",
        "udp-overloading",
        "udp-deterministic",
        "udp-port-contiguity",
        "udp-port-randomness",
        "udp-filtering",
        "udp-hairpin",
        "udp-first-packets",
        "tcp-mapping",
        "tcp-overloading",
        "tcp-port-randomness",
        "tcp-filtering",
        "tcp-hairpin",
        "icmp-query-hairpin",
        "npt-unsolicited",
    ] {
        let expected = if row == "npt-unsolicited" { "described" } else { v4[row] };
        assert!(nat64[row] == expected && expected != "not-testable", "{row}: {} {expected}", nat64[row]);
    }
    // tayga copies the identification (RFC 7915 section 5.1.1), and masquerade keeps it.
    assert_eq!((v4["ip-identification"], nat64["ip-identification"]), ("fails", "fails"));
    // Masquerade does not know the protocol, and an address of the pool between it and tayga leaves.
    let words = "leaves with another address than UDP, and the answer to it does not arrive";
    assert_eq!(words_of(&through[NAME], "protocol-udp-lite"), words);
    let unsure: Vec<_> = nat64.iter().filter(|(_, verdict)| **verdict == "not-sure").collect();
    assert!(unsure.is_empty(), "{unsure:?}");
}

/// The translator is a program of its own: it ends with the command, however that ends.
#[test]
fn root_the_translator_ends_with_a_killed_command() {
    if World::lacks(&["nft", "tayga"]) {
        return;
    }
    let Some(world) = World::root(WEIR) else { return };
    let runs = || world.processes().into_iter().find(|(_, line)| line.contains("tayga -d "));
    let mut command = world.command(WEIR);
    command.arg("nat").args(LAB);
    let killed = world.start("killed", command);
    until("tayga runs", PATIENCE, runs);
    killed.signal("KILL");
    assert_eq!(killed.end_within(PATIENCE).code, -1);
    world.wait_until_idle();
}

/// A translator that is missing, ends at once, or has no device is named, with what to do or what it printed.
#[test]
fn root_a_translator_that_cannot_run_is_named() {
    if World::lacks(&["nft", "sh", "ip"]) {
        return;
    }
    let Some(world) = World::root(WEIR) else { return };
    let refused = nat(&world, &["lab", "--gateway", NAME]).expect(2);
    assert!(refused.stderr.contains("add --ipv6"), "{}", refused.stderr);
    let folder = world.work().join("programs");
    std::fs::create_dir_all(&folder).unwrap();
    for program in ["nft", "sh", "ip"] {
        let path = world.sh(&format!("command -v {program}"));
        symlink(path.trim(), folder.join(program)).unwrap();
    }
    // Programs are looked for there too.
    world.sh("for folder in /usr/local/sbin /usr/sbin /sbin /usr/bin /bin; do \
                  if test -f $folder/tayga; then mount --bind /dev/null $folder/tayga; fi; done");
    let fails = |code: i32, words: &str| {
        let mut command = world.command("env");
        command.arg(format!("PATH={}", folder.display())).arg(WEIR).arg("nat").args(LAB);
        let stderr = world.run(command).expect(code).stderr;
        assert!(stderr.contains(words), "{words}: {stderr}");
    };
    fails(4, "tayga-nat64: tayga is not installed on this host; apt-get install tayga");
    world.write("programs/tayga", "#!/bin/sh\necho boom >&2\nexit 1\n");
    world.sh("chmod +x programs/tayga");
    fails(1, "`tayga` failed: boom");
    world.sh("mount -t tmpfs none /dev/net");
    fails(4, "tayga needs /dev/net/tun: No such file or directory");
}
