//! How many elements a set of nf_tables holds, without reading them: a listing of a million intervals takes the kernel a
//! minute, because each part of it walks the tree from its beginning (include/uapi/linux/netfilter/nf_tables.h).

use crate::nftables::{SET_COUNT, describe_set};
use crate::{Attributes, NFGENMSG, Socket, u32_be};
use weir_sys::error::{Context, Result};

/// Elements of a set of the calling thread's namespace, an interval counted once; `None` where the kernel does not tell it
/// (before 6.16). The family is that of the address: AF_INET for `ip`, AF_INET6 for `ip6`.
///
/// # Errors
/// If there is no such set, or the right to ask is missing (CAP_NET_ADMIN).
pub fn count(ipv4: bool, table: &str, set: &str) -> Result<Option<u64>> {
    // NFPROTO_IPV4 and NFPROTO_IPV6 have the numbers of the address families.
    let family = if ipv4 { libc::AF_INET } else { libc::AF_INET6 };
    let what = || format!("count the elements of the nft set {table} {set}");
    let mut count = None;
    let mut socket = Socket::open(libc::NETLINK_NETFILTER).context(what)?;
    socket
        .request_with(describe_set(family as u8, table, set), |received| {
            count = Attributes::after(received.payload, NFGENMSG).get(SET_COUNT).and_then(u32_be);
        })
        .context(what)?;
    Ok(count.map(u64::from))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use weir_sys::NetNs;
    use weir_sys::privilege::test_needs_root;

    #[test]
    fn root_a_set_tells_how_many_elements_it_holds() {
        if test_needs_root() {
            return;
        }
        let ns = NetNs::create().unwrap();
        ns.run(|| {
            let nft = |script: &str| assert!(Command::new("nft").arg(script).status().unwrap().success());
            nft("add table ip t; add set ip t s { type ipv4_addr; flags interval; }");
            nft("add set ip t h { type ipv4_addr; }; add element ip t h { 192.0.2.1, 192.0.2.2 }");
            nft("add element ip t s { 192.0.2.0/25, 198.51.100.0/24, 203.0.113.7 }");
            // A kernel before 6.16 says nothing; one that says something says what nft lists.
            let told = [count(true, "t", "s").unwrap(), count(true, "t", "h").unwrap()];
            assert!(told == [Some(3), Some(2)] || told == [None, None], "{told:?}");
            assert!(count(true, "t", "other").is_err());
            assert!(count(false, "t", "s").is_err(), "a table of ip is none of ip6");
        })
        .unwrap();
    }
}
