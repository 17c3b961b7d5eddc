//! The data of UDP streams.

use std::io;
use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::time::Duration;

use rustix::net::sockopt::{
    Ipv4PathMtuDiscovery, Ipv6PathMtuDiscovery, set_ip_mtu_discover, set_ipv6_mtu_discover,
};
use weir_load::sockets::{ReceiveBatch, precise_sleeps, set_int, set_receive_buffer};
use weir_sys::SendBatch;
use weir_sys::clock::{Clocks, now_ns};

use super::datagram::{HEADER_BYTES, Header, Meter};
use super::error::Error;
use super::pace::Pace;
use super::parameters::Parameters;
use super::progress::{Counters, Counts, RunProgress};
use super::tcp::{LOOK, timed_out};

/// Datagrams per system call, at most.
const BATCH: usize = 64;

/// Bytes per system call, at most, unless a single datagram is longer.
const BATCH_BYTES: usize = 256 << 10;

/// Pause after ENOBUFS: the queue below is full, and asking again at once only burns the CPU that empties it.
const FULL: Duration = Duration::from_micros(50);

/// Pause after the other end refused: it may have closed its stream a moment before it says so on the control connection.
const REFUSED: Duration = Duration::from_millis(1);

/// Pause after a call that took all there was. The times of arrival are the kernel's, so reading late costs nothing.
const NAP: Duration = Duration::from_micros(200);

/// A far end that goes on sending after the end is listened to for no longer than this.
const DRAIN_NS: u64 = 200_000_000;

/// Receive buffer of all streams of a test in one direction together, bytes, at most.
const RECEIVE_BUFFERS: u32 = 16 << 20;

/// A receive buffer holds what comes in one so manieth of a second.
const STALLS_PER_S: u64 = 4;

/// Memory of a datagram in a receive buffer in addition to its payload, bytes: headers, and the kernel's data about each.
const OVERHEAD: u64 = 1024;

/// Least receive buffer of a stream, bytes: the kernel's own default.
const LEAST_BUFFER: u32 = 212_992;

/// The kernel reports ENOBUFS only to sockets with this option; without it, the kernel drops in its own queue and reports a
/// successful send.
const RECEIVE_ERRORS: [(i32, i32); 2] =
    [(libc::IPPROTO_IP, libc::IP_RECVERR), (libc::IPPROTO_IPV6, libc::IPV6_RECVERR)];

/// Receive buffer of one stream, bytes as socket(7) counts them: what its rate brings in [`STALLS_PER_S`], so that a receiver
/// that does not get to run for a while loses nothing.
pub(super) fn receive_buffer(p: &Parameters) -> u32 {
    if p.window > 0 {
        return p.window;
    }
    let most = (RECEIVE_BUFFERS / p.streams.max(1)).max(LEAST_BUFFER);
    if p.rate_bps == 0 {
        return most;
    }
    let length = u64::from(p.length.max(1));
    let datagrams = p.rate_bps / 8 / length / STALLS_PER_S;
    // The kernel doubles what it is asked for.
    let bytes = datagrams.saturating_mul(length + OVERHEAD) / 2;
    bytes.clamp(LEAST_BUFFER.into(), most.into()) as u32
}

/// Set what a stream's socket needs, before its greeting: what comes early is to find the right buffer.
pub(super) fn prepare(p: &Parameters, socket: &UdpSocket) -> io::Result<()> {
    socket.set_nonblocking(false)?;
    socket.set_read_timeout(Some(LOOK))?;
    socket.set_write_timeout(Some(LOOK))?;
    let ipv4 = socket.peer_addr()?.is_ipv4();
    let (level, name) = RECEIVE_ERRORS[usize::from(!ipv4)];
    set_int(socket, level, name, 1)?;
    set_int(socket, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1)?;
    set_int(socket, libc::SOL_SOCKET, libc::SO_RXQ_OVFL, 1)?;
    set_receive_buffer(socket, receive_buffer(p))?;
    if p.window > 0 {
        set_int(socket, libc::SOL_SOCKET, libc::SO_SNDBUF, i32::try_from(p.window).unwrap_or(i32::MAX / 2))?;
    }
    if p.dont_fragment {
        if ipv4 {
            set_ip_mtu_discover(socket, Ipv4PathMtuDiscovery::DO)?;
        } else {
            set_ipv6_mtu_discover(socket, Ipv6PathMtuDiscovery::DO)?;
        }
    }
    Ok(())
}

/// Send until the test is over, or the goal is given out.
pub(super) fn send(
    p: &Parameters,
    socket: &UdpSocket,
    counters: &Counters,
    progress: &RunProgress,
) -> Result<(), Error> {
    precise_sleeps().map_err(Error::io("prepare a sending stream"))?;
    let length = p.length as usize;
    let size = (BATCH_BYTES / length).clamp(1, BATCH);
    let mut batch = SendBatch::new((0..size * length).map(|i| (i % 251) as u8).collect(), length);
    let mut pace = Pace::new(p.rate_bps, p.length.into(), p.burst, now_ns());
    let mut number = 0u64;
    while pace.wait(|| progress.sent_enough()) {
        let due = pace.due().min(size as u64);
        let granted = (0..due).take_while(|_| progress.claim(p.length.into())).count();
        if granted == 0 {
            break;
        }
        let sent_us = now_ns() / 1000;
        for i in 0..granted {
            let header = Header { sent_us, number: number + 1 + i as u64 };
            header.write(batch.message(i), p.counters_64bit);
        }
        let mut done = 0;
        while done < granted {
            match batch.send(socket, done, granted) {
                Ok(n) => done += n,
                Err(e) if !again(&e, p)? || progress.sent_enough() => break,
                Err(_) => {}
            }
        }
        number += done as u64;
        counters.set(Counts { bytes: number * length as u64, packets: number, ..Counts::default() });
        if done < granted && progress.sent_enough() {
            break;
        }
        pace.sent(granted as u64);
    }
    Ok(())
}

/// Interprets an error: true to offer the same datagrams again.
#[cold]
fn again(error: &io::Error, p: &Parameters) -> Result<bool, Error> {
    match error.raw_os_error() {
        Some(libc::ENOBUFS) => std::thread::sleep(FULL),
        Some(libc::ECONNREFUSED) => std::thread::sleep(REFUSED),
        Some(libc::EMSGSIZE) => {
            return Err(Error::Option(format!(
                "datagrams of {} bytes do not fit: they are longer than the path's MTU and may not be fragmented, or than IP \
                 allows; take a smaller --length",
                p.length
            )));
        }
        _ if timed_out(error) => {}
        Some(code) => {
            return Err(Error::Io { what: "send datagrams", source: io::Error::from_raw_os_error(code) });
        }
        None => return Err(Error::Io { what: "send datagrams", source: io::Error::from(error.kind()) }),
    }
    Ok(true)
}

/// Receive until the test is over; then what has arrived by then is still taken.
pub(super) fn receive(
    p: &Parameters,
    socket: &UdpSocket,
    counters: &Counters,
    progress: &RunProgress,
) -> Result<(), Error> {
    let mut batch = ReceiveBatch::new(BATCH, HEADER_BYTES);
    let mut meter = Meter::new();
    let mut bytes = 0u64;
    let mut dropped = 0u64;
    let mut last = None;
    loop {
        // Looked at before the socket: what was there when the test ended is read in any case.
        let ending = progress.ending();
        if ending && last.is_none() {
            socket.set_nonblocking(true).map_err(Error::io("prepare a receiving stream"))?;
            last = Some(now_ns() + DRAIN_NS);
        }
        if last.is_some_and(|last| now_ns() > last) {
            return Ok(());
        }
        let full = match batch.receive(socket.as_fd()) {
            Ok(n) => n == BATCH,
            Err(e) if e.raw_os_error() == Some(libc::ECONNREFUSED) => {
                std::thread::sleep(REFUSED);
                true
            }
            Err(e) if timed_out(&e) && ending => return Ok(()),
            Err(e) if timed_out(&e) => continue,
            Err(source) => return Err(Error::Io { what: "receive datagrams", source }),
        };
        let clocks = Clocks::read();
        let mut fresh = 0;
        for datagram in batch.datagrams() {
            let arrived = datagram.arrived_ns.map_or(clocks.monotonic_ns, |ns| clocks.monotonic(ns));
            dropped = dropped.max(datagram.dropped.into());
            let header = Header::read(datagram.head, p.counters_64bit);
            if header.is_some_and(|h| meter.arrive(h, arrived)) {
                fresh += datagram.length as u64;
            }
        }
        bytes += fresh;
        counters.set(Counts {
            bytes,
            packets: meter.greatest,
            lost: meter.lost(),
            out_of_order: meter.out_of_order,
            duplicates: meter.duplicates,
            dropped_here: dropped,
            jitter_s: meter.jitter_s,
        });
        progress.got(fresh);
        if !full && !ending {
            std::thread::sleep(NAP);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn datagrams_that_are_sent_are_counted_by_both_ends() {
        for counters_64bit in [false, true] {
            let p = Parameters {
                streams: 1,
                length: 100,
                counters_64bit,
                rate_bps: 8_000_000,
                ..Parameters::default()
            };
            let one = UdpSocket::bind("127.0.0.1:0").unwrap();
            let other = UdpSocket::bind("127.0.0.1:0").unwrap();
            one.connect(other.local_addr().unwrap()).unwrap();
            other.connect(one.local_addr().unwrap()).unwrap();
            prepare(&p, &one).unwrap();
            prepare(&p, &other).unwrap();
            let progress = RunProgress::new(Some(30_000), false).unwrap();
            let (sent, got) = (Counters::default(), Counters::default());
            std::thread::scope(|scope| {
                let receiver = scope.spawn(|| receive(&p, &other, &got, &progress));
                send(&p, &one, &sent, &progress).unwrap();
                progress.end();
                receiver.join().unwrap().unwrap();
            });
            let (sent, got) = (sent.counts(), got.counts());
            assert_eq!((sent.packets, sent.bytes), (300, 30_000));
            assert_eq!((got.packets, got.bytes, got.lost, got.out_of_order), (300, 30_000, 0, 0));
            assert!(got.jitter_s > 0.0 && got.jitter_s < 1.0, "{}", got.jitter_s);
        }
    }

    #[test]
    fn receive_buffers_hold_a_quarter_of_a_second_within_bounds() {
        let of = |rate_bps, streams, window| {
            receive_buffer(&Parameters { rate_bps, streams, window, length: 1000, ..Parameters::default() })
        };
        // 100 Mbit/s: 3,125 datagrams in a quarter of a second, each of 2,024 bytes, of which the kernel doubles half.
        assert_eq!(of(100_000_000, 1, 0), 3125 * 2024 / 2);
        assert_eq!([of(1_000_000, 1, 0), of(u64::MAX, 1, 0), of(0, 1, 0)], [212_992, 16 << 20, 16 << 20]);
        assert_eq!([of(0, 4, 0), of(0, 128, 0), of(0, 4, 5000)], [4 << 20, 212_992, 5000]);
    }

    #[test]
    fn a_datagram_that_cannot_be_sent_says_so() {
        let p = Parameters { streams: 1, length: 65_507, dont_fragment: true, ..Parameters::default() };
        let one = UdpSocket::bind("127.0.0.1:0").unwrap();
        one.connect("127.0.0.1:9").unwrap();
        // The loopback's MTU of 65,536 bytes holds the longest datagram; a header more does not fit into IP.
        let longer = Parameters { length: 65_508, ..p };
        let error =
            send(&longer, &one, &Counters::default(), &RunProgress::new(None, false).unwrap()).unwrap_err();
        assert!(error.to_string().contains("65508 bytes do not fit"), "{error}");
    }
}
