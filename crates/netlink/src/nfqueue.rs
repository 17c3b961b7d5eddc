//! NFQUEUE: packets wait in the kernel for a verdict from here (include/uapi/linux/netfilter/nfnetlink_queue.h).
//!
//! Only a packet's number and its time of arrival come to user space, and its headers if they are asked for; super-packets
//! are not split: holding packets back costs little.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;

use crate::{Attributes, Message, NFGENMSG, Socket, messages, u32_be, u64_be};
use weir_sys::clock::NS_PER_S;
use weir_sys::error::{Context, Error, Result};
use weir_sys::socket_option::set_int;

const PACKET: u16 = 0; // NFQNL_MSG_PACKET
const VERDICT: u16 = 1; // NFQNL_MSG_VERDICT
const CONFIG: u16 = 2; // NFQNL_MSG_CONFIG
const VERDICT_BATCH: u16 = 3; // NFQNL_MSG_VERDICT_BATCH
/// NFQA_CFG_F_GSO: super-packets come whole. Not NFQA_CFG_F_FAIL_OPEN, with which packets that find the queue full pass by
/// uncounted: without it the kernel drops them and counts them ([`dropped`]).
const FLAGS: u32 = 4;
/// Packets that may wait; at 5 ms this is 13 million a second.
const LENGTH: u32 = 65_536;
/// Receive buffer for packet announcements of about 80 bytes each, which occupy a kilobyte of buffer.
const BUFFER: usize = 64 << 20;
/// The headers that matter here: IPv4's with all its options, or IPv6's with a fragment header, and both ports.
const HEADERS: u32 = 64;
/// Announcements read before the caller has its turn again.
const AT_ONCE: usize = 1024;
/// Verdict NF_ACCEPT.
const ACCEPT: u32 = 1;

/// The data about a packet that waits.
#[derive(Debug, Clone, Copy)]
pub struct Packet<'a> {
    /// Its number in the queue. Numbers grow by one from packet to packet.
    pub number: u32,
    /// When it reached this namespace, ns of CLOCK_REALTIME, rounded down to a microsecond; `None` if the kernel does not say.
    pub arrived_real_ns: Option<u64>,
    /// The first [`HEADERS`] bytes from its IP header on; empty unless they were asked for.
    pub headers: &'a [u8],
}

/// One queue of the namespace of the thread that opened it. Closing it lets waiting packets be dropped by the kernel.
#[derive(Debug)]
pub struct Queue {
    socket: Socket,
    number: u16,
    batch: Vec<u8>,
}

impl Queue {
    /// Binds a queue by its number, with the packets' headers or without. Needs CAP_NET_ADMIN over the namespace.
    pub fn open(number: u16, headers: bool) -> Result<Self> {
        let what = || format!("bind NFQUEUE {number}");
        let mut socket = Socket::open(libc::NETLINK_NETFILTER).context(what)?;
        socket.set_receive_buffer(BUFFER).context(what)?;
        stamp_arrivals(socket.as_fd()).context(what)?;
        // struct nfqnl_msg_config_cmd: command, padding, protocol family (unused since 3.8).
        let bind = [libc::NFQNL_CFG_CMD_BIND as u8, 0, 0, 0];
        socket.request(config(number).attr(libc::NFQA_CFG_CMD as u16, &bind)).context(what)?;
        // struct nfqnl_msg_config_params, packed: bytes to copy, how. COPY_META: numbers and headers of ours, no content.
        let (length, how) =
            if headers { (HEADERS, libc::NFQNL_COPY_PACKET) } else { (0, libc::NFQNL_COPY_META) };
        let [a, b, c, d] = length.to_be_bytes();
        let message = config(number)
            .attr(libc::NFQA_CFG_PARAMS as u16, &[a, b, c, d, how as u8])
            .attr(libc::NFQA_CFG_QUEUE_MAXLEN as u16, &LENGTH.to_be_bytes())
            .attr(libc::NFQA_CFG_FLAGS as u16, &FLAGS.to_be_bytes())
            .attr(libc::NFQA_CFG_MASK as u16, &FLAGS.to_be_bytes());
        socket.request(message).context(what)?;
        Ok(Queue { socket, number, batch: Vec::new() })
    }

    /// Waits for packets, at most until the timeout (`None`: for ever) or until the other end of the bell's pipe is closed, and
    /// hands over each one that is there.
    pub fn receive(
        &mut self,
        timeout: Option<Duration>,
        bell: BorrowedFd<'_>,
        mut each: impl FnMut(Packet<'_>),
    ) -> Result<()> {
        let what = || format!("receive from NFQUEUE {}", self.number);
        let wait = timeout.map(|t| Timespec { tv_sec: t.as_secs() as i64, tv_nsec: t.subsec_nanos().into() });
        let both = &mut [PollFd::new(&self.socket, PollFlags::IN), PollFd::new(&bell, PollFlags::empty())];
        match poll(both, wait.as_ref()) {
            Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(()),
            Ok(_) => {}
            Err(e) => return Err(Error::new(what(), e)),
        }
        // A flood must not keep the caller from letting go what is due.
        for _ in 0..AT_ONCE {
            match self.socket.receive_now() {
                Ok(Some(datagram)) => {
                    messages(datagram)
                        .filter(|m| m.kind & 0xff == PACKET)
                        .filter_map(|m| read_packet(m.payload))
                        .for_each(&mut each);
                }
                Ok(None) => return Ok(()),
                // The socket's buffer was full: the kernel dropped packets, and counts them.
                Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => {}
                Err(e) => return Err(Error::new(what(), e)),
            }
        }
        Ok(())
    }

    /// Lets all packets up to and including that number go on, in one message.
    pub fn accept_up_to(&mut self, number: u32) -> io::Result<()> {
        self.batch.clear();
        self.push(VERDICT_BATCH, number);
        self.socket.send(&self.batch)
    }

    /// Lets single packets go on, in this order.
    pub fn accept_each(&mut self, numbers: &[u32]) -> io::Result<()> {
        // A datagram of at most 32 KiB: well below any send buffer.
        for part in numbers.chunks(1024) {
            self.batch.clear();
            for &number in part {
                self.push(VERDICT, number);
            }
            self.socket.send(&self.batch)?;
        }
        Ok(())
    }

    fn push(&mut self, kind: u16, number: u32) {
        // struct nfqnl_msg_verdict_hdr: verdict, number.
        let verdict = [ACCEPT.to_be_bytes(), number.to_be_bytes()].concat();
        let message = request(kind, 0, self.number).attr(libc::NFQA_VERDICT_HDR as u16, &verdict);
        self.batch.extend_from_slice(&message.finish(0));
    }
}

impl AsFd for Queue {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// Makes the kernel note when packets arrive. It does so for the whole machine once any socket of the internet or netlink
/// wants it (net_enable_timestamp); otherwise a packet's announcement says nothing of its time.
fn stamp_arrivals(socket: BorrowedFd<'_>) -> io::Result<()> {
    set_int(socket, libc::SOL_SOCKET, libc::SO_TIMESTAMPNS, 1)
}

fn read_packet(payload: &[u8]) -> Option<Packet<'_>> {
    let attributes = Attributes::after(payload, NFGENMSG);
    // struct nfqnl_msg_packet_timestamp: seconds and microseconds, 64 bits each, in network byte order.
    let word = |bytes: &[u8], at: usize| u64_be(bytes.get(at..)?);
    let stamp = attributes.get(libc::NFQA_TIMESTAMP as u16);
    let arrived =
        |stamp| word(stamp, 0)?.checked_mul(NS_PER_S)?.checked_add(word(stamp, 8)?.checked_mul(1000)?);
    Some(Packet {
        number: attributes.get(libc::NFQA_PACKET_HDR as u16).and_then(u32_be)?,
        arrived_real_ns: stamp.and_then(arrived),
        headers: attributes.get(libc::NFQA_PAYLOAD as u16).unwrap_or_default(),
    })
}

/// Packets that the queues of the calling thread's namespace dropped so far because they, or the sockets behind them, were
/// full, by number of the queue (`/proc/net/netfilter/nfnetlink_queue`: nfqnl_seq_show in net/netfilter/nfnetlink_queue.c).
pub fn dropped() -> Result<Vec<(u16, u64)>> {
    // The file of this thread: /proc/self is the process's first one, which may be in another namespace.
    let path = "/proc/thread-self/net/netfilter/nfnetlink_queue";
    let text = std::fs::read_to_string(path).context(|| format!("read {path}"))?;
    Ok(text.lines().filter_map(read_dropped).collect())
}

/// Number, port, packets waiting, how copied, bytes copied, dropped by the queue, dropped by the socket, last number, 1.
fn read_dropped(line: &str) -> Option<(u16, u64)> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let number = |at: usize| words.get(at)?.parse::<u64>().ok();
    Some((u16::try_from(number(0)?).ok()?, number(5)? + number(6)?))
}

fn config(number: u16) -> Message {
    request(CONFIG, libc::NLM_F_ACK, number)
}

fn request(kind: u16, flags: i32, number: u16) -> Message {
    Message::netfilter(libc::NFNL_SUBSYS_QUEUE, kind, flags, libc::AF_UNSPEC as u8, number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_kernel_s_table_are_read() {
        // In the columns of nfqnl_seq_show: 3012 found the queue full, 7 the socket.
        let line = "    0  31337 65536 2    64  3012     7    68555  1";
        assert_eq!(read_dropped(line), Some((0, 3019)));
        assert_eq!(read_dropped(""), None);
    }

    #[test]
    fn an_announcement_is_read_and_a_broken_one_is_none() {
        let stamp = [5u64.to_be_bytes(), 250u64.to_be_bytes()].concat();
        let message = request(PACKET, 0, 3)
            .attr(libc::NFQA_PACKET_HDR as u16, &[0, 0, 0, 9, 8, 0, 1])
            .attr(libc::NFQA_TIMESTAMP as u16, &stamp)
            .attr(libc::NFQA_PAYLOAD as u16, &[0x45, 0, 0, 28])
            .finish(0);
        let received = messages(&message).next().unwrap();
        let packet = read_packet(received.payload).unwrap();
        assert_eq!((packet.number, packet.headers), (9, &[0x45, 0, 0, 28][..]));
        assert_eq!(packet.arrived_real_ns, Some(5_000_250_000));
        assert!(read_packet(&received.payload[..6]).is_none());
        assert!(read_packet(&received.payload[..20]).unwrap().arrived_real_ns.is_none());
    }
}
