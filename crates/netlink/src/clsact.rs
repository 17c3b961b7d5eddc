//! Programs of BPF at an interface by the qdisc `clsact`, for kernels without TCX. They outlive the process that attached them
//! (include/uapi/linux/{pkt_sched,pkt_cls}.h).

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use super::message::Message;
use super::rtnetlink::Rtnetlink;
use super::traffic_control::{INGRESS_PARENT, TCMSG, tcmsg};
use weir_sys::error::{Context, Error, Result};

/// The handle that this qdisc always has: TC_H_MAKE(TC_H_CLSACT, 0).
const HANDLE: u32 = 0xffff_0000;
/// ETH_P_ALL.
const ALL: u16 = 3;
/// The handle of a filter within its preference.
const FIRST: u32 = 1;
/// TCA_BPF_FD, NAME and FLAGS; TCA_BPF_FLAG_ACT_DIRECT: the program's result is the verdict.
const BPF_FD: u16 = 6;
const BPF_NAME: u16 = 7;
const BPF_FLAGS: u16 = 8;
const DIRECT_ACTION: u32 = 1;

/// `struct tcmsg` of the filter of that preference below a hook.
fn filter(interface: u32, hook: u32, preference: u16) -> [u8; TCMSG] {
    let mut header = tcmsg(interface, hook);
    header[8..12].copy_from_slice(&FIRST.to_ne_bytes());
    let info = u32::from(preference) << 16 | u32::from(ALL.to_be());
    header[16..20].copy_from_slice(&info.to_ne_bytes());
    header
}

fn qdisc(interface: u32) -> [u8; TCMSG] {
    let mut header = tcmsg(interface, INGRESS_PARENT);
    header[8..12].copy_from_slice(&HANDLE.to_ne_bytes());
    header
}

impl Rtnetlink {
    /// Gives an interface the qdisc `clsact`; false if it has one.
    ///
    /// # Errors
    /// If the interface has the qdisc `ingress` instead, which has no hook for sent packets; ENOENT if the kernel has no `clsact`.
    pub fn add_clsact(&mut self, interface: u32) -> Result<bool> {
        let what = || format!("add the qdisc clsact to interface {interface}");
        let message =
            Message::new(libc::RTM_NEWQDISC, libc::NLM_F_ACK | libc::NLM_F_CREATE | libc::NLM_F_EXCL)
                .raw(&qdisc(interface))
                .attr_str(libc::TCA_KIND, "clsact");
        match self.socket.request(message) {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                let all = self.queueing_disciplines()?;
                match all.iter().find(|q| q.interface == interface && q.parent == INGRESS_PARENT) {
                    Some(q) if q.kind == "clsact" => Ok(false),
                    _ => Err(Error::other(what(), "the qdisc ingress is in its place; remove that one")),
                }
            }
            Err(e) => Err(Error::new(what(), e)),
        }
    }

    /// Removes the qdisc `clsact` of an interface, and all filters below it.
    ///
    /// # Errors
    /// ENOENT or EINVAL if it has none.
    pub fn remove_clsact(&mut self, interface: u32) -> Result<()> {
        let message = Message::new(libc::RTM_DELQDISC, libc::NLM_F_ACK).raw(&qdisc(interface));
        self.socket.request(message).context(|| format!("remove the qdisc clsact of interface {interface}"))
    }

    /// Attaches a program below a hook ([`super::INGRESS_HOOK`], [`super::EGRESS_HOOK`]) with a preference of its own, 1 to 65535, and a
    /// name, by which others find it.
    ///
    /// # Errors
    /// EEXIST if a filter has that preference; EINVAL if the interface has no `clsact`.
    pub fn add_program(
        &mut self,
        interface: u32,
        hook: u32,
        preference: u16,
        name: &str,
        program: BorrowedFd<'_>,
    ) -> Result<()> {
        let message =
            Message::new(libc::RTM_NEWTFILTER, libc::NLM_F_ACK | libc::NLM_F_CREATE | libc::NLM_F_EXCL)
                .raw(&filter(interface, hook, preference))
                .attr_str(libc::TCA_KIND, "bpf")
                .nest(libc::TCA_OPTIONS, |m| {
                    m.attr_u32(BPF_FD, program.as_raw_fd().cast_unsigned())
                        .attr_str(BPF_NAME, name)
                        .attr_u32(BPF_FLAGS, DIRECT_ACTION)
                });
        self.socket.request(message).context(|| format!("attach {name} to interface {interface} by clsact"))
    }

    /// Removes the program of that preference.
    ///
    /// # Errors
    /// ENOENT if there is none.
    pub fn remove_program(&mut self, interface: u32, hook: u32, preference: u16) -> Result<()> {
        let message = Message::new(libc::RTM_DELTFILTER, libc::NLM_F_ACK)
            .raw(&filter(interface, hook, preference))
            .attr_str(libc::TCA_KIND, "bpf");
        self.socket
            .request(message)
            .context(|| format!("remove the program of preference {preference} from interface {interface}"))
    }
}
