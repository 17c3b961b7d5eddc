//! Queueing disciplines at an interface's root: how one is asked for, and whether a kind exists.

use super::message::Message;
use super::rtnetlink::Rtnetlink;
use super::traffic_control::{ROOT, tcmsg};
use weir_sys::error::{Context, Result};

/// A request for a discipline of that kind at an interface's root, made anew or according to `flags`. Its options go behind.
pub(super) fn at_root(interface: u32, kind: &str, flags: i32) -> Message {
    Message::new(libc::RTM_NEWQDISC, libc::NLM_F_ACK | libc::NLM_F_CREATE | flags)
        .raw(&tcmsg(interface, ROOT))
        .attr_str(libc::TCA_KIND, kind)
}

impl Rtnetlink {
    /// Puts a queueing discipline with its default parameters at an interface's root.
    ///
    /// # Errors
    /// ENOENT if the kernel has none of that kind; EINVAL if it has no defaults.
    pub fn add_root_qdisc(&mut self, interface: &str, kind: &str) -> Result<()> {
        let message = at_root(self.index(interface)?, kind, libc::NLM_F_EXCL);
        self.socket.request(message).context(|| format!("add qdisc {kind} to {interface}"))
    }
}
