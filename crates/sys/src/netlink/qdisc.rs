//! Queueing disciplines: only whether a kind exists.

use super::link::Rtnetlink;
use super::message::Message;
use crate::error::{Context, Result};

/// TC_H_ROOT (include/uapi/linux/pkt_sched.h).
const ROOT: u32 = 0xffff_ffff;

impl Rtnetlink {
    /// Puts a queueing discipline with its default parameters at an interface's root.
    ///
    /// # Errors
    /// ENOENT if the kernel has none of that kind; EINVAL if it has no defaults.
    pub fn add_root_qdisc(&mut self, interface: &str, kind: &str) -> Result<()> {
        let index = self.index(interface)?;
        // struct tcmsg: family and padding, interface, handle, parent, info.
        let mut header = [0; 20];
        header[4..8].copy_from_slice(&index.to_ne_bytes());
        header[12..16].copy_from_slice(&ROOT.to_ne_bytes());
        let flags = libc::NLM_F_ACK | libc::NLM_F_CREATE | libc::NLM_F_EXCL;
        let message = Message::new(libc::RTM_NEWQDISC, flags).raw(&header).attr_str(libc::TCA_KIND, kind);
        self.socket.request(message).context(|| format!("add qdisc {kind} to {interface}"))
    }
}
