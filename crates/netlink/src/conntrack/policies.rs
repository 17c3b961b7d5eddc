//! Policies of idle times, which `nfct add timeout` makes and the target CT of iptables names
//! (include/uapi/linux/netfilter/nfnetlink_cttimeout.h). Objects `ct timeout` of nftables are another list.

use super::{Attributes, Conntrack, NFGENMSG, u32_be};
use crate::{Message, text};
use weir_sys::error::{Context, Result};

/// NFNL_SUBSYS_CTNETLINK_TIMEOUT.
const TIMEOUT: i32 = 8;
const NEW: u16 = 0; // IPCTNL_MSG_TIMEOUT_NEW
const GET: u16 = 1; // IPCTNL_MSG_TIMEOUT_GET
const NAME: u16 = 1; // CTA_TIMEOUT_NAME
const L3PROTO: u16 = 2; // CTA_TIMEOUT_L3PROTO
const L4PROTO: u16 = 3; // CTA_TIMEOUT_L4PROTO
const DATA: u16 = 4; // CTA_TIMEOUT_DATA
/// The kernel shows so many bytes of the name in a rule: it cuts the parameters of the target where those of its first revision
/// ended (net/netfilter/xt_CT.c, `usersize`).
const SHOWN: usize = 4;

/// A policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TimeoutPolicy {
    /// Its name; text from outside.
    pub name: String,
    /// For IPv6; else for IPv4.
    pub ipv6: bool,
    /// IP protocol number.
    pub protocol: u8,
    /// Times in seconds by the attribute's number (CTA_TIMEOUT_TCP_*, CTA_TIMEOUT_UDP_*, ...).
    pub seconds: Vec<(u16, u32)>,
}

impl TimeoutPolicy {
    /// True if a rule with this policy may show that name.
    pub fn is_shown_as(&self, shown: &str) -> bool {
        self.name == shown || shown.len() == SHOWN && self.name.starts_with(shown)
    }

    fn read(attributes: &[u8]) -> Option<Self> {
        let get = |kind| Attributes(attributes).get(kind);
        Some(TimeoutPolicy {
            name: text(get(NAME)?),
            // The number is in network order.
            ipv6: get(L3PROTO)?.get(1).is_some_and(|family| i32::from(*family) == libc::AF_INET6),
            protocol: *get(L4PROTO)?.first()?,
            seconds: Attributes(get(DATA)?)
                .filter_map(|(kind, value)| Some((kind, u32_be(value)?)))
                .collect(),
        })
    }
}

impl Conntrack {
    /// All policies of idle times.
    ///
    /// # Errors
    /// If the kernel has none of them (CONFIG_NF_CONNTRACK_TIMEOUT), and without CAP_NET_ADMIN.
    pub fn timeout_policies(&mut self) -> Result<Vec<TimeoutPolicy>> {
        let mut policies = Vec::new();
        self.socket
            .request_with(Message::netfilter(TIMEOUT, GET, libc::NLM_F_DUMP, 0, 0), |received| {
                policies.extend(received.payload.get(NFGENMSG..).and_then(TimeoutPolicy::read));
            })
            .context(|| "read the policies of idle times".into())?;
        Ok(policies)
    }

    /// Makes a policy.
    ///
    /// # Errors
    /// If one of that name exists, the kernel does not know the protocol or a time of it, and without CAP_NET_ADMIN.
    pub fn add_timeout_policy(&mut self, policy: &TimeoutPolicy) -> Result<()> {
        let flags = libc::NLM_F_ACK | libc::NLM_F_CREATE | libc::NLM_F_EXCL;
        let family = if policy.ipv6 { libc::AF_INET6 } else { libc::AF_INET };
        let message = Message::netfilter(TIMEOUT, NEW, flags, 0, 0)
            .attr_str(NAME, &policy.name)
            .attr(L3PROTO, &[0, family as u8])
            .attr(L4PROTO, &[policy.protocol])
            .nest(DATA, |message| {
                policy
                    .seconds
                    .iter()
                    .fold(message, |m, (kind, seconds)| m.attr(*kind, &seconds.to_be_bytes()))
            });
        self.socket.request(message).context(|| format!("make the policy of idle times {}", policy.name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Attributes in an answer of Linux 6.18 to `nfct add timeout hasty inet udp unreplied 2 replied 300`.
    const ANSWER: &str = "0a0001006861737479000000060002000002000005000300110000000800050000000002140004800800010000000002080002000000012c";

    #[test]
    fn a_policy_is_read_with_its_times_and_shows_the_begin_of_its_name() {
        let digit = |c: char| c.to_digit(16).unwrap() as u8;
        let digits: Vec<u8> = ANSWER.chars().map(digit).collect();
        let answer: Vec<u8> = digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect();
        let hasty = TimeoutPolicy::read(&answer).unwrap();
        let seconds = vec![(1, 2), (2, 300)];
        assert_eq!(hasty, TimeoutPolicy { name: "hasty".into(), ipv6: false, protocol: 17, seconds });
        assert!(hasty.is_shown_as("hast") && hasty.is_shown_as("hasty"));
        assert!(!hasty.is_shown_as("has") && !hasty.is_shown_as("hasta"));
        for length in 0..answer.len() {
            assert_eq!(TimeoutPolicy::read(&answer[..length]), None, "cut to {length} bytes");
        }
    }
}
