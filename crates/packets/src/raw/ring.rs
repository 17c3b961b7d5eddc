//! The ring that a packet socket and this process share (Documentation/networking/packet_mmap.rst).
//!
//! TPACKET_V2, one slot for each frame: what has arrived can be read at once, where V3 hands over blocks when they are full or a
//! timer ends. A ring needs no privilege for its size, where a large socket buffer does (net.core.rmem_max).
#![allow(unsafe_code, reason = "memory shared with the kernel")]

use std::mem::size_of;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

use super::socket::{failed, set};
use crate::Error;
use crate::frame::HEAD;

/// Bytes of a slot: its header, the address, up to 14 bytes to align the network header, and the head of a frame.
const SLOT: usize = 192;
/// Slots of a block, so that a block is a whole number of pages of 4, 16 or 64 KiB (1024 x 192 = 3 x 64 KiB).
const BLOCK_SLOTS: usize = 1024;
/// Blocks: 131,072 slots hold what comes in 100 ms at 1.3 million frames a second, in 24 MiB.
const BLOCKS: usize = 128;

const SLOTS: usize = BLOCKS * BLOCK_SLOTS;
const BYTES: usize = SLOTS * SLOT;

// `tpacket_rcv` puts the network header at the next multiple of 16 after header and address and 16 bytes.
const _: () = assert!((libc::TPACKET2_HDRLEN + 16).next_multiple_of(16) + HEAD <= SLOT);

/// The ring of one socket. The kernel fills slots in turn, this reads them in turn.
pub(super) struct Ring {
    start: NonNull<u8>,
    next: usize,
}

// SAFETY: the memory belongs to this value alone (the kernel aside) and is not tied to a thread.
unsafe impl Send for Ring {}

/// One frame, valid until its slot is given back.
pub(super) struct Slot<'a> {
    /// Its first bytes, at least [`HEAD`] where there are as many.
    pub head: &'a [u8],
    /// Its length without check sequence.
    pub length: usize,
    /// When the kernel took it in, ns of CLOCK_REALTIME.
    pub real_ns: u64,
}

impl Ring {
    /// Gives a socket its ring, before it is bound.
    pub(super) fn new(socket: &OwnedFd) -> Result<Self, Error> {
        let version = libc::tpacket_versions::TPACKET_V2 as libc::c_int;
        set(socket, libc::SOL_PACKET, libc::PACKET_VERSION, &version, "choose the ring of a packet socket")?;
        let request = libc::tpacket_req {
            tp_block_size: (BLOCK_SLOTS * SLOT) as u32,
            tp_block_nr: BLOCKS as u32,
            tp_frame_size: SLOT as u32,
            tp_frame_nr: SLOTS as u32,
        };
        set(socket, libc::SOL_PACKET, libc::PACKET_RX_RING, &request, "make the ring of a packet socket")?;
        // SAFETY: a new mapping of the length that the socket's ring has.
        let start = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                BYTES,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                socket.as_raw_fd(),
                0,
            )
        };
        if start == libc::MAP_FAILED {
            return Err(failed("map the ring of a packet socket", std::io::Error::last_os_error()));
        }
        let start = NonNull::new(start.cast()).ok_or_else(|| {
            failed("map the ring of a packet socket", std::io::Error::other("mapped at address 0"))
        })?;
        Ok(Ring { start, next: 0 })
    }

    /// Hands the next frame to `f` and gives its slot back; false if there is none.
    #[inline]
    pub(super) fn take(&mut self, f: impl FnOnce(&Slot<'_>)) -> bool {
        // SAFETY: `next` is below SLOTS, so the slot lies within the mapping.
        let slot = unsafe { self.start.add(self.next * SLOT) };
        // SAFETY: tp_status is the first field of the slot's header, aligned to 4 bytes; the kernel writes it too, so only
        // atomically.
        let status = unsafe { AtomicU32::from_ptr(slot.as_ptr().cast()) };
        // Acquire: what the kernel wrote before the status is there.
        let state = status.load(Ordering::Acquire);
        if state & libc::TP_STATUS_USER == 0 {
            return false;
        }
        // SAFETY: the slot is ours until its status says otherwise, and begins with its header; all fields are numbers.
        let header = unsafe { slot.cast::<libc::tpacket2_hdr>().read() };
        let from = usize::from(header.tp_mac).clamp(size_of::<libc::tpacket2_hdr>(), SLOT);
        let kept = (header.tp_snaplen as usize).min(SLOT - from);
        // SAFETY: within the slot, which has no other writer while it is ours.
        let head = unsafe { std::slice::from_raw_parts(slot.as_ptr().add(from), kept) };
        f(&Slot {
            head,
            length: header.tp_len as usize,
            real_ns: u64::from(header.tp_sec) * 1_000_000_000 + u64::from(header.tp_nsec),
        });
        // Release: it was read before the kernel may write again.
        status.store(libc::TP_STATUS_KERNEL, Ordering::Release);
        self.next = (self.next + 1) % SLOTS;
        true
    }

    /// How many frames there is room for.
    pub(super) const fn slots() -> usize {
        SLOTS
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: the mapping that `new` made, to which no reference is left.
        let result = unsafe { libc::munmap(self.start.as_ptr().cast(), BYTES) };
        debug_assert_eq!(result, 0);
    }
}
