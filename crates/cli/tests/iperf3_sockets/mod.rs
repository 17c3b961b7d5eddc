//! The effect of `-M` and `-w` on the connections of both ends, as the kernel tells it.

use weir_testkit::{PATIENCE, World, until};

use super::iperf3_cases::tcp;
use super::{WEIR, free_port, serve, stock, stock_client};

/// One TCP connection in `ss`: what it sends and receives, its largest segment and its buffers, bytes.
struct Socket {
    sent: u64,
    received: u64,
    mss: u64,
    send_buffer: u64,
    receive_buffer: u64,
}

/// The connections of a port that carry data, one end and the other.
fn sockets(world: &World, port: u16) -> Vec<Socket> {
    let mut command = world.command("ss");
    command.args(["-tinmOH", "state", "established", &format!("( sport = :{port} or dport = :{port} )")]);
    let text = world.run(command).expect(0).stdout;
    let value = |line: &str, key: &str| {
        let digits: String = line.split(key).nth(1)?.chars().take_while(char::is_ascii_digit).collect();
        digits.parse::<u64>().ok()
    };
    let socket = |line: &str| Socket {
        sent: value(line, " bytes_sent:").unwrap_or(0),
        received: value(line, " bytes_received:").unwrap_or(0),
        mss: value(line, " mss:").unwrap_or(0),
        send_buffer: value(line, ",tb").unwrap_or(0),
        receive_buffer: value(line, ",rb").unwrap_or(0),
    };
    text.lines().map(socket).filter(|s| s.sent.max(s.received) > 100_000).collect()
}

/// The kernel doubles what is asked for (socket(7)); segments have 12 bytes less for time stamps.
fn check_sockets(world: &World, port: u16, words: &str) {
    let both = until("data at both ends", PATIENCE, || {
        let both = sockets(world, port);
        (both.iter().any(|s| s.sent > 100_000) && both.iter().any(|s| s.received > 100_000)).then_some(both)
    });
    for socket in both {
        if socket.sent > 100_000 {
            assert_eq!((socket.mss, socket.send_buffer), (988, 2 * 200 * 1024), "{words}");
        } else {
            assert_eq!(socket.receive_buffer, 2 * 200 * 1024, "{words}");
        }
    }
}

#[test]
fn the_largest_segment_and_the_buffers_of_both_ends_are_what_was_asked_for() {
    let stock = stock();
    if World::lacks(&["ss"]) {
        return;
    }
    let world = World::plain(WEIR);
    let (_server, weir_port) = serve(&world, "serve");
    for (which, iperf3) in stock.iter().enumerate() {
        for options in ["-t 30 -b 20M -l 10K -M 1000 -w 200K", "-t 30 -b 20M -l 10K -M 1000 -w 200K -R"] {
            let client = world.start("stock-client", stock_client(&world, iperf3, weir_port, &tcp(options)));
            check_sockets(&world, weir_port, &format!("{options}, towards weir"));
            client.signal("KILL");
            drop(client);
            until("the end of it", PATIENCE, || sockets(&world, weir_port).is_empty().then_some(()));
            let port = free_port();
            let mut command = world.command(iperf3);
            command.args(["-s", "-1", "-B", "127.0.0.1", "-p", &port.to_string()]);
            let _stock = world.start(&format!("stock-{which}-{}", options.len()), command);
            let listens = || !world.sh(&format!("ss -ltnH sport = :{port}")).is_empty();
            until("a server that listens", PATIENCE, || listens().then_some(()));
            let target = format!("127.0.0.1:{port}");
            let args =
                [&["probe", "--iperf3", &target][..], &options.split(' ').collect::<Vec<_>>()].concat();
            let _client = world.start("weir-client", world.weir(&args));
            check_sockets(&world, port, &format!("{options}, towards iperf3"));
        }
    }
}
