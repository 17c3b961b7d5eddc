//! Whether a network namespace that has no name is still there.

use weir_netlink::{Rtnetlink, VethEnd};
use weir_sys::NetNs;

use crate::{PATIENCE, until};

/// A link from a namespace of ours into one of another process: it goes when that namespace does. (A namespace that only a
/// socket or a descriptor keeps alive is not seen in `/proc`.)
#[derive(Debug)]
pub struct NamespaceWatch {
    ours: NetNs,
    what: String,
}

impl NamespaceWatch {
    /// On the namespace behind a descriptor of another process.
    pub fn on(pid: u32, fd: i32) -> Self {
        let ours = NetNs::create().unwrap();
        let what = format!("/proc/{pid}/fd/{fd}");
        let theirs = NetNs::open(&what).unwrap();
        let end = |name, namespace| VethEnd { name, namespace: Some(namespace), mtu: 1500, mac: None };
        Rtnetlink::open_in(&ours).unwrap().create_veth(end("watch", &ours), end("watch", &theirs)).unwrap();
        // The handle on theirs would keep it alive.
        let watched = theirs.inode().unwrap();
        NamespaceWatch { ours, what: format!("network namespace {watched}") }
    }

    /// Waits until it is gone.
    pub fn wait_until_gone(&self) {
        let mut link = Rtnetlink::open_in(&self.ours).unwrap();
        until(&format!("end of {}", self.what), PATIENCE, || link.interface("watch").is_err().then_some(()));
    }
}
