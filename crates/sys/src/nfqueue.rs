//! NFQUEUE: packets wait in the kernel for a verdict from here (include/uapi/linux/netfilter/nfnetlink_queue.h).
//!
//! Only a packet's number comes to user space, never its content, and super-packets are not split: holding packets
//! back costs little.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::time::Timespec;

use crate::error::{Context, Result};
use crate::netlink::{Attributes, Message, Socket, messages, u32_be};

const PACKET: u16 = 0; // NFQNL_MSG_PACKET
const VERDICT: u16 = 1; // NFQNL_MSG_VERDICT
const CONFIG: u16 = 2; // NFQNL_MSG_CONFIG
const VERDICT_BATCH: u16 = 3; // NFQNL_MSG_VERDICT_BATCH
/// Bytes of `struct nfgenmsg`.
const NFGENMSG: usize = 4;
/// NFQA_CFG_F_FAIL_OPEN and NFQA_CFG_F_GSO: a full queue lets packets pass instead of dropping them (it counts as a
/// fault of ours, [`Queue::overflows`]); super-packets come whole.
const FLAGS: u32 = 1 | 4;
/// Packets that may wait; at 5 ms this is 13 million a second.
const LENGTH: u32 = 65_536;
/// Receive buffer for packet announcements of about 80 bytes each, which occupy a kilobyte of buffer.
const BUFFER: usize = 64 << 20;
/// Verdict NF_ACCEPT.
const ACCEPT: u32 = 1;

/// One queue of the namespace of the thread that opened it. Closing it lets waiting packets be dropped by the kernel.
#[derive(Debug)]
pub struct Queue {
    socket: Socket,
    number: u16,
    overflows: u64,
    batch: Vec<u8>,
}

impl Queue {
    /// Binds a queue by its number. Needs CAP_NET_ADMIN over the namespace.
    pub fn open(number: u16) -> Result<Self> {
        let what = || format!("bind NFQUEUE {number}");
        let mut socket = Socket::open(libc::NETLINK_NETFILTER).context(what)?;
        socket.set_receive_buffer(BUFFER).context(what)?;
        // struct nfqnl_msg_config_cmd: command, padding, protocol family (unused since 3.8).
        let bind = [libc::NFQNL_CFG_CMD_BIND as u8, 0, 0, 0];
        socket.request(config(number).attr(libc::NFQA_CFG_CMD as u16, &bind)).context(what)?;
        // struct nfqnl_msg_config_params, packed: bytes to copy, how. COPY_META: numbers and headers of ours, no content.
        let parameters = [0, 0, 0, 0, libc::NFQNL_COPY_META as u8];
        let message = config(number)
            .attr(libc::NFQA_CFG_PARAMS as u16, &parameters)
            .attr(libc::NFQA_CFG_QUEUE_MAXLEN as u16, &LENGTH.to_be_bytes())
            .attr(libc::NFQA_CFG_FLAGS as u16, &FLAGS.to_be_bytes())
            .attr(libc::NFQA_CFG_MASK as u16, &FLAGS.to_be_bytes());
        socket.request(message).context(what)?;
        Ok(Queue { socket, number, overflows: 0, batch: Vec::new() })
    }

    /// Waits for packets, at most until the timeout (`None`: for ever), and hands over the number of each one that is there.
    /// Numbers grow by one from packet to packet.
    pub fn receive(&mut self, timeout: Option<Duration>, mut each: impl FnMut(u32)) -> Result<()> {
        let what = || format!("receive from NFQUEUE {}", self.number);
        let wait = timeout.map(|t| Timespec { tv_sec: t.as_secs() as i64, tv_nsec: t.subsec_nanos().into() });
        match poll(&mut [PollFd::new(&self.socket, PollFlags::IN)], wait.as_ref()) {
            Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(()),
            Ok(_) => {}
            Err(e) => return Err(crate::Error::new(what(), e)),
        }
        loop {
            match self.socket.receive_now() {
                Ok(Some(datagram)) => {
                    for message in messages(datagram).filter(|m| m.kind & 0xff == PACKET) {
                        let header =
                            Attributes::after(message.payload, NFGENMSG).get(libc::NFQA_PACKET_HDR as u16);
                        if let Some(number) = header.and_then(u32_be) {
                            each(number);
                        }
                    }
                }
                Ok(None) => return Ok(()),
                // The socket's buffer was full: the kernel let packets pass or dropped them.
                Err(e) if e.raw_os_error() == Some(libc::ENOBUFS) => self.overflows += 1,
                Err(e) => return Err(crate::Error::new(what(), e)),
            }
        }
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

    /// How often the kernel could not announce packets because the receive buffer was full.
    pub fn overflows(&self) -> u64 {
        self.overflows
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

fn config(number: u16) -> Message {
    request(CONFIG, libc::NLM_F_ACK, number)
}

fn request(kind: u16, flags: i32, number: u16) -> Message {
    let kind = (libc::NFNL_SUBSYS_QUEUE as u16) << 8 | kind;
    let [high, low] = number.to_be_bytes();
    Message::new(kind, flags).raw(&[libc::AF_UNSPEC as u8, 0, high, low])
}
