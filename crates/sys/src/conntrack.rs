//! The connection-tracking table of a network namespace, by ctnetlink
//! (include/uapi/linux/netfilter/nfnetlink_conntrack.h).

use std::collections::BTreeMap;

use crate::error::{Context, Result};
use crate::netlink::{Attributes, Message, Socket, u32_be};

const DELETE: u8 = 2; // IPCTNL_MSG_CT_DELETE
const GET_STATS_CPU: u8 = 4; // IPCTNL_MSG_CT_GET_STATS_CPU
/// `enum ctattr_stats_cpu` by number. Left out are the ones that newer kernels always report as 0 (searched, new, delete,
/// delete_list, ignore).
const STATS: [(u16, &str); 10] = [
    (2, "found"),
    (4, "invalid"),
    (8, "insert"),
    (9, "insert_failed"),
    (10, "drop"),
    (11, "early_drop"),
    (12, "error"),
    (13, "search_restart"),
    (14, "clash_resolve"),
    (15, "chain_toolong"),
];

/// A connection to the conntrack table of one namespace. Needs CAP_NET_ADMIN over it.
#[derive(Debug)]
pub struct Conntrack {
    socket: Socket,
}

impl Conntrack {
    /// To the table of the calling thread's namespace.
    pub fn open() -> Result<Self> {
        let socket = Socket::open(libc::NETLINK_NETFILTER).context(|| "open ctnetlink".into())?;
        Ok(Conntrack { socket })
    }

    /// Forgets every entry.
    pub fn flush(&mut self) -> Result<()> {
        // Without a tuple the request means all of them (ctnetlink_del_conntrack).
        self.socket.request(request(DELETE, libc::NLM_F_ACK)).context(|| "flush conntrack".into())
    }

    /// Statistics by name (`insert_failed`, `drop`, `early_drop`, ...), summed over cores, since the namespace was made.
    /// Empty where the kernel has no conntrack.
    pub fn statistics(&mut self) -> Result<BTreeMap<&'static str, u64>> {
        let mut sums = BTreeMap::new();
        self.socket
            .request_with(request(GET_STATS_CPU, libc::NLM_F_DUMP), |received| {
                let attributes = Attributes::after(received.payload, NFGENMSG);
                for (kind, name) in STATS {
                    if let Some(value) = attributes.get(kind).and_then(u32_be) {
                        *sums.entry(name).or_insert(0) += u64::from(value);
                    }
                }
            })
            .context(|| "read conntrack statistics".into())?;
        Ok(sums)
    }
}

/// Bytes of `struct nfgenmsg`: family, version, resource id.
const NFGENMSG: usize = 4;

fn request(kind: u8, flags: i32) -> Message {
    let subsystem = libc::NFNL_SUBSYS_CTNETLINK as u16;
    Message::new(subsystem << 8 | u16::from(kind), flags).raw(&[libc::AF_UNSPEC as u8, 0, 0, 0])
}

#[cfg(test)]
mod tests {
    use std::net::{Ipv4Addr, UdpSocket};
    use std::process::Command;
    use std::time::Duration;

    use super::*;
    use crate::netlink::Rtnetlink;
    use crate::netns::NetNs;
    use crate::privilege::test_needs_root;
    use crate::process::{run_with_input, which};
    use crate::procfs::ProcRoot;

    #[test]
    fn root_entries_are_counted_and_flushed() {
        if test_needs_root() {
            return;
        }
        if which("nft").is_none() {
            println!("SKIP: nft is not installed");
            return;
        }
        let ns = NetNs::create().unwrap();
        Rtnetlink::open_in(&ns).unwrap().set_up("lo").unwrap();
        let mut command = Command::new("nft");
        command.args(["-f", "-"]);
        ns.enter_on_spawn(&mut command);
        // A rule that looks at the state makes the namespace track connections.
        let rules = b"table ip t { chain c { type filter hook input priority 0; ct state new accept; }; }\n";
        let output = run_with_input(command, rules, Duration::from_secs(10)).unwrap();
        assert!(output.status.success(), "{}", output.message());
        ns.run(|| {
            let mut conntrack = Conntrack::open().unwrap();
            let receiver = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            for _ in 0..5 {
                let sender = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
                sender.send_to(b"x", receiver.local_addr().unwrap()).unwrap();
            }
            assert_eq!(ProcRoot::new("/").conntrack_count(), Some(5));
            let statistics = conntrack.statistics().unwrap();
            assert_eq!(statistics["insert_failed"], 0);
            assert_eq!(statistics["drop"], 0);
            conntrack.flush().unwrap();
            assert_eq!(ProcRoot::new("/").conntrack_count(), Some(0));
        })
        .unwrap();
    }
}
