//! Policies of idle times that `nfct add timeout` makes and the target CT of iptables names, read over netlink
//! (include/uapi/linux/netfilter/nfnetlink_cttimeout.h). Objects `ct timeout` of nftables are another list.

use std::io;

use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketType, netlink, recv, send, socket};
use weir_sys::Result;
use weir_sys::error::Context;

/// NFNL_SUBSYS_CTNETLINK_TIMEOUT and IPCTNL_MSG_TIMEOUT_GET.
const GET: u16 = 8 << 8 | 1;
/// NLM_F_REQUEST and NLM_F_DUMP.
const DUMP: u16 = 0x301;
/// NLMSG_ERROR and NLMSG_DONE.
const ERROR: u16 = 2;
const DONE: u16 = 3;
/// Bytes of `struct nlmsghdr`, and of `struct nfgenmsg` behind it.
const HEADER: usize = 16;
const GENERIC: usize = 4;
/// CTA_TIMEOUT_NAME, L3PROTO, L4PROTO, DATA.
const NAME: u16 = 1;
const L3PROTO: u16 = 2;
const L4PROTO: u16 = 3;
const DATA: u16 = 4;
/// Without NLA_F_NESTED and NLA_F_NET_BYTEORDER.
const KIND: u16 = 0x3fff;
/// The kernel shows so many bytes of the name in a rule: it cuts the parameters of the target where those of its first revision
/// ended (net/netfilter/xt_CT.c, `usersize`).
const SHOWN: usize = 4;

/// A policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Policy {
    pub(super) name: String,
    pub(super) ipv6: bool,
    pub(super) protocol: u8,
    /// Times in seconds by the attribute's number (CTA_TIMEOUT_TCP_*, CTA_TIMEOUT_UDP_*, ...).
    pub(super) seconds: Vec<(u16, u32)>,
}

impl Policy {
    /// True if a rule with this policy may show that name.
    pub(super) fn is_shown_as(&self, shown: &str) -> bool {
        self.name == shown || shown.len() == SHOWN && self.name.starts_with(shown)
    }
}

/// Those of the calling thread's namespace.
pub(super) fn read() -> Result<Vec<Policy>> {
    dump().context(|| "read the policies of idle times".into())
}

fn dump() -> io::Result<Vec<Policy>> {
    let socket = socket(AddressFamily::NETLINK, SocketType::RAW, Some(netlink::NETFILTER))?;
    let mut request = ((HEADER + GENERIC) as u32).to_ne_bytes().to_vec();
    request.extend([GET.to_ne_bytes(), DUMP.to_ne_bytes()].concat());
    request.resize(HEADER + GENERIC, 0);
    send(&socket, &request, SendFlags::empty())?;
    let mut policies = Vec::new();
    let mut buffer = vec![0; 1 << 16];
    loop {
        let (_, length) = recv(&socket, &mut buffer[..], RecvFlags::empty())?;
        if add(&buffer[..length], &mut policies)? {
            return Ok(policies);
        }
    }
}

/// Reads the messages of one answer; true after the last.
fn add(mut bytes: &[u8], policies: &mut Vec<Policy>) -> io::Result<bool> {
    while let Some(length) = number(bytes).map(|n| n as usize).filter(|n| (HEADER..=bytes.len()).contains(n))
    {
        let body = &bytes[HEADER..length];
        match short(&bytes[4..]).unwrap_or(0) {
            DONE => return Ok(true),
            ERROR => return Err(io::Error::from_raw_os_error(-number(body).unwrap_or(0).cast_signed())),
            _ => policies.extend(body.get(GENERIC..).and_then(policy)),
        }
        bytes = bytes.get(length.next_multiple_of(4)..).unwrap_or_default();
    }
    Ok(false)
}

fn policy(bytes: &[u8]) -> Option<Policy> {
    let name = attribute(bytes, NAME)?;
    let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
    let big = |bytes: &[u8]| Some(u32::from_be_bytes(bytes.get(..4)?.try_into().ok()?));
    let mut seconds = Vec::new();
    let mut rest = attribute(bytes, DATA)?;
    while let Some((kind, value, next)) = first(rest) {
        seconds.extend(big(value).map(|value| (kind, value)));
        rest = next;
    }
    Some(Policy {
        name: String::from_utf8_lossy(&name[..end]).into_owned(),
        // AF_INET6; of network order.
        ipv6: attribute(bytes, L3PROTO)?.get(1) == Some(&10),
        protocol: *attribute(bytes, L4PROTO)?.first()?,
        seconds,
    })
}

fn attribute(mut bytes: &[u8], wanted: u16) -> Option<&[u8]> {
    while let Some((kind, value, next)) = first(bytes) {
        if kind == wanted {
            return Some(value);
        }
        bytes = next;
    }
    None
}

/// The first attribute: its kind, its value, and the bytes behind it.
fn first(bytes: &[u8]) -> Option<(u16, &[u8], &[u8])> {
    let length = usize::from(short(bytes)?);
    let value = bytes.get(4..length)?;
    Some((short(&bytes[2..])? & KIND, value, bytes.get(length.next_multiple_of(4)..).unwrap_or_default()))
}

fn number(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(..4)?.try_into().ok()?))
}

fn short(bytes: &[u8]) -> Option<u16> {
    Some(u16::from_ne_bytes(bytes.get(..2)?.try_into().ok()?))
}

/// Makes a policy, as `nfct add timeout` does.
#[cfg(test)]
pub(super) fn make(policy: &Policy) {
    // NLM_F_REQUEST, NLM_F_ACK, NLM_F_EXCL, NLM_F_CREATE; IPCTNL_MSG_TIMEOUT_NEW is GET less 1.
    const NEW: u16 = 0x605;
    let attribute = |kind: u16, value: &[u8]| {
        let mut bytes = [(value.len() as u16 + 4).to_ne_bytes(), kind.to_ne_bytes()].concat();
        bytes.extend(value);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    };
    let times: Vec<u8> =
        policy.seconds.iter().flat_map(|(kind, s)| attribute(*kind, &s.to_be_bytes())).collect();
    let body = [
        vec![0; GENERIC],
        attribute(NAME, &[policy.name.as_bytes(), &[0]].concat()),
        attribute(L3PROTO, &[0, if policy.ipv6 { 10 } else { 2 }]),
        attribute(L4PROTO, &[policy.protocol]),
        attribute(DATA | 0x8000, &times),
    ]
    .concat();
    let mut request = ((HEADER + body.len()) as u32).to_ne_bytes().to_vec();
    request.extend([(GET - 1).to_ne_bytes(), NEW.to_ne_bytes()].concat());
    request.resize(HEADER, 0);
    request.extend(body);
    let socket = socket(AddressFamily::NETLINK, SocketType::RAW, Some(netlink::NETFILTER)).unwrap();
    send(&socket, &request, SendFlags::empty()).unwrap();
    let mut buffer = [0; 256];
    let (_, length) = recv(&socket, &mut buffer[..], RecvFlags::empty()).unwrap();
    let refused = add(&buffer[..length], &mut Vec::new()).unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(0), "{refused}");
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An answer of Linux 6.18 to `nfct add timeout hasty inet udp unreplied 2 replied 300`.
    const ANSWER: &str = "4c00000000080200010000005b240000000000000a0001006861737479000000060002000002000005000300110000000800\
                          050000000002140004800800010000000002080002000000012c";

    fn answer() -> Vec<u8> {
        let digit = |c: char| c.to_digit(16).unwrap() as u8;
        let digits: Vec<u8> = ANSWER.chars().map(digit).collect();
        digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect()
    }

    #[test]
    fn a_policy_is_read_with_its_times() {
        let mut policies = Vec::new();
        assert!(!add(&answer(), &mut policies).unwrap());
        let hasty =
            Policy { name: "hasty".into(), ipv6: false, protocol: 17, seconds: vec![(1, 2), (2, 300)] };
        assert_eq!(policies, [hasty]);
        assert!(policies[0].is_shown_as("hast") && policies[0].is_shown_as("hasty"));
        assert!(!policies[0].is_shown_as("has") && !policies[0].is_shown_as("hasta"));
    }

    /// Neither panics nor goes on for ever.
    #[test]
    fn a_cut_answer_ends() {
        let answer = answer();
        for length in 0..answer.len() {
            let mut policies = Vec::new();
            assert!(!add(&answer[..length], &mut policies).unwrap());
            assert_eq!(policies, []);
        }
        let mut bad = answer;
        bad[20] = 1;
        add(&bad, &mut Vec::new()).unwrap();
        let refused = [&20_u32.to_ne_bytes()[..], &[2, 0, 0, 0], &[0; 8], &(-1_i32).to_ne_bytes()].concat();
        assert_eq!(add(&refused, &mut Vec::new()).unwrap_err().kind(), io::ErrorKind::PermissionDenied);
    }
}
