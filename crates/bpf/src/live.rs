//! Running programs on given packets (`BPF_PROG_TEST_RUN`, net/bpf/test_run.c).

use std::os::fd::AsRawFd;

use crate::object::{Object, ProgramFd};
use crate::{Error, Result};

/// `struct __sk_buff` in words, and the one that is `gso_size` (include/uapi/linux/bpf.h), which libbpf's bindings lack.
const SK_BUFF_WORDS: usize = 48;
const GSO_SIZE: usize = 44;

/// The result of a program on one packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TestRun {
    /// Its return value: the verdict.
    pub verdict: u32,
    /// The packet afterwards.
    pub packet: Vec<u8>,
    /// Mean time of one run, ns.
    pub duration_ns: u32,
}

/// Most that a program can add to a packet here.
const ROOM: usize = 256;

/// Runs a program `repeat` times on a packet; nothing is sent. `ingress` names the interface that XDP programs see it come
/// in by (0: the loopback interface).
///
/// # Errors
/// If the kernel refuses.
pub fn test_run(program: &ProgramFd, packet: &[u8], ingress: u32, repeat: u32) -> Result<TestRun> {
    let context = context(packet, ingress);
    let mut options = options(packet, repeat);
    if ingress != 0 {
        options.ctx_in = (&raw const context).cast();
        options.ctx_size_in = size_of::<libbpf_sys::xdp_md>() as u32;
    }
    result(program, packet, options)
}

/// Runs a program of TCX once on a super-packet, which is cut into segments of that many bytes when it leaves; nothing is sent.
///
/// # Errors
/// If the kernel refuses.
pub fn test_run_super(program: &ProgramFd, packet: &[u8], segment: u32) -> Result<TestRun> {
    let mut context = [0_u32; SK_BUFF_WORDS];
    context[GSO_SIZE] = segment;
    let mut options = options(packet, 1);
    options.ctx_in = (&raw const context).cast();
    options.ctx_size_in = size_of_val(&context) as u32;
    result(program, packet, options)
}

fn result(program: &ProgramFd, packet: &[u8], mut options: libbpf_sys::bpf_test_run_opts) -> Result<TestRun> {
    let mut out = vec![0u8; packet.len() + ROOM];
    options.data_out = out.as_mut_ptr().cast();
    options.data_size_out = out.len() as u32;
    run(program, &mut options)?;
    out.truncate(options.data_size_out as usize);
    Ok(TestRun { verdict: options.retval, packet: out, duration_ns: options.duration })
}

impl Object {
    /// Asks a program about the kernel by a packet of zeros that goes nowhere; it returns 0 for yes.
    ///
    /// # Errors
    /// If the object has no program of that name, or the kernel refuses.
    pub fn confirms(&self, program: &str) -> Result<bool> {
        Ok(test_run(&self.program(program)?, &[0; 64], 0, 1)?.verdict == 0)
    }
}

/// An XDP program that makes frames: each run of it is one frame, which goes where its verdict says (Linux 5.18).
#[derive(Debug)]
pub struct LiveFrames<'a> {
    /// The program.
    pub program: &'a ProgramFd,
    /// The content of each frame before its first use. Later it holds the content that its last user left in it.
    pub packet: &'a [u8],
    /// Index of the interface that frames seem to come in by; `XDP_PASS` hands them to its stack, `XDP_TX` sends them out of it.
    pub ingress: u32,
}

impl LiveFrames<'_> {
    /// Runs it `repeat` times in batches of `batch` (1 to 256) on the calling thread's core. Nothing tells whether frames arrived.
    ///
    /// # Errors
    /// [`Error::Missing`] where the kernel lacks live frames. A signal ends it early with EINTR.
    pub fn run(&self, repeat: u32, batch: u32) -> Result<()> {
        let context = context(self.packet, self.ingress);
        let mut options = options(self.packet, repeat);
        options.ctx_in = (&raw const context).cast();
        options.ctx_size_in = size_of::<libbpf_sys::xdp_md>() as u32;
        options.flags = libbpf_sys::BPF_F_TEST_XDP_LIVE_FRAMES;
        options.batch_size = batch;
        run(self.program, &mut options)
    }
}

fn context(packet: &[u8], ingress: u32) -> libbpf_sys::xdp_md {
    libbpf_sys::xdp_md { data_end: packet.len() as u32, ingress_ifindex: ingress, ..Default::default() }
}

fn options(packet: &[u8], repeat: u32) -> libbpf_sys::bpf_test_run_opts {
    libbpf_sys::bpf_test_run_opts {
        sz: size_of::<libbpf_sys::bpf_test_run_opts>() as libbpf_sys::size_t,
        data_in: packet.as_ptr().cast(),
        data_size_in: packet.len() as u32,
        repeat: i32::try_from(repeat).unwrap_or(i32::MAX),
        ..Default::default()
    }
}

fn run(program: &ProgramFd, options: &mut libbpf_sys::bpf_test_run_opts) -> Result<()> {
    // SAFETY: the pointers in the options are to buffers of the sizes beside them, which outlive the call.
    let result = unsafe { libbpf_sys::bpf_prog_test_run_opts(program.fd().as_raw_fd(), options) };
    if result == 0 {
        return Ok(());
    }
    let source = std::io::Error::from_raw_os_error(-result);
    if source.raw_os_error() == Some(libc::EINVAL)
        && options.flags & libbpf_sys::BPF_F_TEST_XDP_LIVE_FRAMES != 0
    {
        let hint = "live frames need Linux 5.18, and a frame that fits into a page";
        return Err(Error::Missing { what: format!("live frames of {}", program.name()), source, hint });
    }
    Err(Error::new(format!("run {}", program.name()), source, ""))
}
