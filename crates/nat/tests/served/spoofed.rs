//! SYNs in the name of another host: what the server's kernel sends there.

use weir_nat::Packet;
use weir_sys::ip_packets::IpSender;
use weir_wire::Tcp;

use super::*;

/// SYNs to each port.
const SYNS: u16 = 20;
/// An unlimited listener repeats its answer 1, 3 and 7 s after the SYN (net/ipv4/inet_connection_sock.c).
const WATCHED: Duration = Duration::from_millis(3_500);

/// The gateway keeps the answers back, so that no host resets the connections that it did not ask for.
#[test]
fn root_paced_a_syn_in_anothers_name_is_answered_twice_at_most() {
    if privilege::test_needs_root() || lacks_nft() {
        return;
    }
    each("spoofed", &[()], |site, ()| {
        let gateway = site.host(Role::Gateway).unwrap();
        translated(site, "masquerade");
        let addresses = site.addresses();
        with_server(site, Version::Ipv4, 1, |server| {
            in_client(site, server, Duration::ZERO, |ends| {
                let check = ends.endpoints()[0];
                nft(
                    gateway,
                    &format!(
                        "table ip f {{ chain f {{ type filter hook forward priority 0; \
                         tcp sport {{ {}, {} }} tcp flags & (syn|ack) == syn|ack counter drop; }}; }}\n",
                        server.port(),
                        check.port()
                    ),
                );
                let IpAddr::V4(own) = addresses.initiator else { unreachable!("a lab of IPv4") };
                let victim = IpAddr::V4(Ipv4Addr::from(u32::from(own) + 40));
                let sender = IpSender::open(victim).unwrap();
                for (port, to) in (0..SYNS).flat_map(|n| [(n, server), (n, check)]) {
                    let header = Tcp {
                        source_port: 0,
                        destination_port: 0,
                        sequence: 1,
                        acknowledgement: 0,
                        flags: Tcp::SYN,
                        window: 60_000,
                        checksum: 0,
                        urgent: 0,
                    };
                    let from = SocketAddr::new(victim, 30_000 + port);
                    let syn = Packet::tcp_with_options(from, to, header, &[2, 4, 5, 180], &[]);
                    sender.send(&syn.bytes(), to.ip()).unwrap();
                }
                std::thread::sleep(WATCHED);
            });
        });
        let answers = counted(gateway);
        assert!((2 * SYNS..=4 * SYNS).contains(&answers), "{answers} answers to {} SYNs", 2 * SYNS);
    });
}

/// Packets that the rule has counted.
fn counted(gateway: &NetNs) -> u16 {
    let mut command = Command::new("nft");
    command.args(["list", "table", "ip", "f"]);
    gateway.enter_on_spawn(&mut command);
    let text = String::from_utf8(command.output().unwrap().stdout).unwrap();
    let after = text.split("packets ").nth(1).unwrap();
    after.split_whitespace().next().unwrap().parse().unwrap()
}
