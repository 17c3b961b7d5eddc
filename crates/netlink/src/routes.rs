//! Reading routes: all of them, what the kernel would do with a packet, and the rules of policy routing (rtnetlink(7)).

use std::fmt;
use std::net::IpAddr;

use super::message::{Attributes, Message, Received, address, text, u16_ne, u32_ne};
use super::route::{next_hop, route_request};
use super::rtnetlink::Rtnetlink;
use weir_sys::error::{Context, Error, Result};

/// Bytes of `struct rtmsg` and `struct fib_rule_hdr`, which are laid out alike.
const HEADER: usize = 12;
/// Attributes of a route that libc has no names for (include/uapi/linux/rtnetlink.h).
const RTA_IP_PROTO: u16 = 27;
const RTA_SPORT: u16 = 28;
const RTA_DPORT: u16 = 29;
/// RTM_F_CLONED: not a route but what the kernel remembers of one destination.
const CLONED: u32 = 0x200;
/// RTM_F_LOOKUP_TABLE: name the table that answered, not always `main`.
const LOOKUP_TABLE: u32 = 0x1000;
/// RTAX_MTU.
const METRIC_MTU: u16 = 2;
/// Attributes of a rule (include/uapi/linux/fib_rules.h).
mod fra {
    pub(super) const DST: u16 = 1;
    pub(super) const SRC: u16 = 2;
    pub(super) const IIFNAME: u16 = 3;
    pub(super) const PRIORITY: u16 = 6;
    pub(super) const FWMARK: u16 = 10;
    pub(super) const SUPPRESS_PREFIXLEN: u16 = 14;
    pub(super) const TABLE: u16 = 15;
    pub(super) const FWMASK: u16 = 16;
    pub(super) const OIFNAME: u16 = 17;
    pub(super) const L3MDEV: u16 = 19;
    pub(super) const UID_RANGE: u16 = 20;
    pub(super) const IP_PROTO: u16 = 22;
    pub(super) const SPORT_RANGE: u16 = 23;
    pub(super) const DPORT_RANGE: u16 = 24;
}
/// A dump that the kernel calls inconsistent is asked for again this many times; after that what was read is taken.
const TRIES: u32 = 3;

/// The action of a route on a packet (RTN_*, include/uapi/linux/rtnetlink.h).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RouteKind {
    /// Sends it on.
    Unicast,
    /// It is for this host: local, broadcast, multicast or anycast.
    Local,
    /// Throws it away.
    Blackhole,
    /// Refuses it: host unreachable.
    Unreachable,
    /// Refuses it: prohibited.
    Prohibit,
    /// Goes on in the next table.
    Throw,
    /// Anything else, by number.
    Other(u8),
}

impl RouteKind {
    fn of(number: u8) -> Self {
        match number {
            libc::RTN_UNICAST => RouteKind::Unicast,
            libc::RTN_LOCAL | libc::RTN_BROADCAST | libc::RTN_MULTICAST | libc::RTN_ANYCAST => {
                RouteKind::Local
            }
            libc::RTN_BLACKHOLE => RouteKind::Blackhole,
            libc::RTN_UNREACHABLE => RouteKind::Unreachable,
            libc::RTN_PROHIBIT => RouteKind::Prohibit,
            libc::RTN_THROW => RouteKind::Throw,
            other => RouteKind::Other(other),
        }
    }
}

/// One route as the kernel tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RouteEntry {
    /// Network; the unspecified address of a default route.
    pub destination: IpAddr,
    /// Its prefix length.
    pub prefix: u8,
    /// Its action.
    pub kind: RouteKind,
    /// Table by number (`main` is 254, `local` 255).
    pub table: u32,
    /// Interface through which it goes; 0 if it has none, or several next hops.
    pub interface: u32,
    /// Next hop, if it has one.
    pub next_hop: Option<IpAddr>,
    /// MTU of the route, bytes, if it has one of its own.
    pub mtu: Option<u32>,
    /// True of what the kernel remembers of a destination (learned path MTU, redirect), which is no route of anybody's.
    pub remembered: bool,
    /// Seconds until it forgets that; 0 of a route.
    pub expires_s: u32,
}

/// A packet whose way is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Asking {
    /// To.
    pub destination: IpAddr,
    /// From; `None`: as the kernel chooses.
    pub source: Option<IpAddr>,
    /// As if it came in there; 0: made here.
    pub came_in: u32,
    /// Its firewall mark.
    pub mark: u32,
    /// IP protocol, source port and destination port, for rules that ask for them.
    pub ports: Option<(u8, u16, u16)>,
}

impl Asking {
    /// A packet made here, without anything special.
    pub fn to(destination: IpAddr) -> Self {
        Asking { destination, source: None, came_in: 0, mark: 0, ports: None }
    }
}

/// A rule of policy routing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// True of IPv6.
    pub ipv6: bool,
    /// Priority; lower comes first.
    pub priority: u32,
    /// Everything behind the priority, in the words of ip-rule(8). Interface names in it are text from outside.
    pub text: String,
    /// Table that it looks into; 0 of one that does something else.
    pub table: u32,
}

impl Policy {
    /// True of those that every host has: `local`, `main`, `default`.
    pub fn is_usual(&self) -> bool {
        matches!(
            (self.priority, self.text.as_str()),
            (0, "from all lookup local")
                | (32766, "from all lookup main")
                | (32767, "from all lookup default")
        )
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let family = if self.ipv6 { " -6" } else { "" };
        write!(f, "ip{family} rule {}: {}", self.priority, self.text)
    }
}

impl Rtnetlink {
    /// Hands over every route of every table, and what the kernel remembers of destinations (Linux 5.3), both families.
    ///
    /// Routes are streamed: a full table of the Internet costs no memory. If the tables change all the time, the last reading
    /// may miss some or have some twice; `again` is called before each new reading.
    pub fn each_route(&mut self, mut again: impl FnMut(), mut each: impl FnMut(RouteEntry)) -> Result<()> {
        let what = || "read routes".into();
        for tries in 1..=TRIES {
            let mut whole = true;
            again();
            for family in [libc::AF_INET, libc::AF_INET6] {
                let message = Message::dump(libc::RTM_GETROUTE, family, HEADER);
                let read = self.socket.request_with(message, |received| {
                    if let Some(route) = read_route(received) {
                        each(route);
                    }
                });
                match read {
                    Err(e) if e.kind() == std::io::ErrorKind::Interrupted => whole = false,
                    // A kernel without IPv6.
                    Err(e) if unsupported(&e) => {}
                    other => other.context(what)?,
                }
            }
            if whole || tries == TRIES {
                break;
            }
        }
        Ok(())
    }

    /// The route that a packet would take, as `ip route get` shows it.
    ///
    /// # Errors
    /// Those of the route: ENETUNREACH of none, EHOSTUNREACH of `unreachable`, EACCES of `prohibit`, EINVAL of `blackhole` and
    /// of a source that may not be; ENODEV of an interface that is gone.
    pub fn resolve(&mut self, asking: &Asking) -> Result<RouteEntry> {
        let what = || format!("look up a route to {}", asking.destination);
        let mut message = route_request(asking.destination, asking.source, LOOKUP_TABLE);
        if asking.came_in != 0 {
            message = message.attr_u32(libc::RTA_IIF, asking.came_in);
        }
        if asking.mark != 0 {
            message = message.attr_u32(libc::RTA_MARK, asking.mark);
        }
        // For other protocols the kernel looks at no ports (net/ipv4/route.c, inet_rtm_getroute).
        if let Some((protocol @ (6 | 17), source, destination)) = asking.ports
            && destination != 0
        {
            message = message
                .attr(RTA_IP_PROTO, &[protocol])
                .attr(RTA_SPORT, &source.to_be_bytes())
                .attr(RTA_DPORT, &destination.to_be_bytes());
        }
        let mut route = None;
        self.socket
            .request_with(message, |received| route = route.or_else(|| read_route(received)))
            .context(what)?;
        route.ok_or_else(|| Error::other(what(), "the kernel named no route"))
    }

    /// The rules of policy routing of both families, in the order in which they are asked.
    pub fn policies(&mut self) -> Result<Vec<Policy>> {
        let mut policies = Vec::new();
        for family in [libc::AF_INET, libc::AF_INET6] {
            let message = Message::dump(libc::RTM_GETRULE, family, HEADER);
            let read = self.socket.request_with(message, |received| policies.extend(read_policy(received)));
            match read {
                // Without CONFIG_IP_MULTIPLE_TABLES, or without IPv6, there are none.
                Err(e) if unsupported(&e) => {}
                other => other.context(|| "read rules of policy routing".into())?,
            }
        }
        Ok(policies)
    }
}

fn unsupported(error: &std::io::Error) -> bool {
    let inner = error.get_ref().and_then(|e| e.downcast_ref::<weir_sys::error::KernelError>());
    matches!(inner.map(|e| e.errno), Some(libc::EOPNOTSUPP | libc::EAFNOSUPPORT))
}

fn unspecified(family: u8) -> Option<IpAddr> {
    match i32::from(family) {
        libc::AF_INET => Some(std::net::Ipv4Addr::UNSPECIFIED.into()),
        libc::AF_INET6 => Some(std::net::Ipv6Addr::UNSPECIFIED.into()),
        _ => None,
    }
}

fn read_route(received: Received<'_>) -> Option<RouteEntry> {
    if received.kind != libc::RTM_NEWROUTE || received.payload.len() < HEADER {
        return None;
    }
    // struct rtmsg: family, dst_len, src_len, tos, table, protocol, scope, type, flags.
    let header = received.payload;
    let attributes = Attributes::after(header, HEADER);
    let number = |kind| attributes.get(kind).and_then(u32_ne);
    let metrics = Attributes(attributes.get(libc::RTA_METRICS).unwrap_or_default());
    // struct rta_cacheinfo: clntref, lastuse, expires (in USER_HZ, signed), error, ...
    let expires = attributes.get(libc::RTA_CACHEINFO).and_then(|b| u32_ne(b.get(8..)?));
    Some(RouteEntry {
        destination: attributes.get(libc::RTA_DST).and_then(address).or(unspecified(header[0]))?,
        prefix: header[1],
        kind: RouteKind::of(header[7]),
        table: number(libc::RTA_TABLE).unwrap_or(u32::from(header[4])),
        interface: number(libc::RTA_OIF).unwrap_or(0),
        next_hop: next_hop(attributes),
        mtu: metrics.get(METRIC_MTU).and_then(u32_ne),
        remembered: u32_ne(&header[8..])? & CLONED != 0,
        expires_s: expires.map_or(0, |ticks| (ticks.cast_signed().max(0) / 100).cast_unsigned()),
    })
}

fn read_policy(received: Received<'_>) -> Option<Policy> {
    if received.kind != libc::RTM_NEWRULE || received.payload.len() < HEADER {
        return None;
    }
    // struct fib_rule_hdr: family, dst_len, src_len, tos, table, two reserved, action, flags.
    let header = received.payload;
    let attributes = Attributes::after(header, HEADER);
    let number = |kind| attributes.get(kind).and_then(u32_ne);
    let network = |kind, bits| attributes.get(kind).and_then(address).map(|a| format!("{a}/{bits}"));
    let invert = u32_ne(&header[8..])? & 2 != 0;
    let source = network(fra::SRC, header[2]).unwrap_or_else(|| "all".into());
    let mut words = vec![format!("{}from {source}", if invert { "not " } else { "" })];
    words.extend(network(fra::DST, header[1]).map(|to| format!("to {to}")));
    if header[3] != 0 {
        words.push(format!("tos {:#04x}", header[3]));
    }
    if let Some(mark) = number(fra::FWMARK) {
        let mask =
            number(fra::FWMASK).filter(|m| *m != u32::MAX).map_or(String::new(), |m| format!("/{m:#x}"));
        words.push(format!("fwmark {mark:#x}{mask}"));
    }
    let named = |kind, word: &str| attributes.get(kind).map(|name| format!("{word} {}", text(name)));
    words.extend(named(fra::IIFNAME, "iif"));
    words.extend(named(fra::OIFNAME, "oif"));
    if let Some((first, last)) =
        attributes.get(fra::UID_RANGE).and_then(|b| Some((u32_ne(b)?, u32_ne(&b[4..])?)))
    {
        words.push(format!("uidrange {first}-{last}"));
    }
    words.extend(attributes.get(fra::IP_PROTO).and_then(|b| Some(format!("ipproto {}", b.first()?))));
    words.extend(attributes.get(fra::SPORT_RANGE).and_then(|b| range("sport", b)));
    words.extend(attributes.get(fra::DPORT_RANGE).and_then(|b| range("dport", b)));
    let table = number(fra::TABLE).unwrap_or(u32::from(header[4]));
    // FR_ACT_*: 1 to a table, 2 goto, 3 nop, 6 blackhole, 7 unreachable, 8 prohibit.
    let looks = header[7] == 1;
    words.push(match header[7] {
        1 if attributes.get(fra::L3MDEV).is_some_and(|b| b.first() == Some(&1)) => "lookup l3mdev".into(),
        1 => format!("lookup {}", table_name(table)),
        2 => "goto".into(),
        3 => "nop".into(),
        6 => "blackhole".into(),
        7 => "unreachable".into(),
        8 => "prohibit".into(),
        other => format!("action {other}"),
    });
    if let Some(length) = number(fra::SUPPRESS_PREFIXLEN).filter(|n| looks && *n != u32::MAX) {
        words.push(format!("suppress_prefixlength {length}"));
    }
    Some(Policy {
        ipv6: i32::from(header[0]) == libc::AF_INET6,
        priority: number(fra::PRIORITY).unwrap_or(0),
        text: words.join(" "),
        table: if looks { table } else { 0 },
    })
}

fn range(word: &str, bytes: &[u8]) -> Option<String> {
    // struct fib_rule_port_range, host order.
    let (first, last) = (u16_ne(bytes)?, u16_ne(bytes.get(2..)?)?);
    Some(if first == last { format!("{word} {first}") } else { format!("{word} {first}-{last}") })
}

/// The name that every host knows the table by, or its number.
fn table_name(table: u32) -> String {
    match table {
        253 => "default".into(),
        254 => "main".into(),
        255 => "local".into(),
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use weir_sys::NetNs;
    use weir_sys::privilege::test_needs_root;
    use weir_sys::process::run_with_input;

    fn shell(ns: &NetNs, script: &str) -> String {
        let mut command = Command::new("sh");
        command.args(["-euc", script]);
        ns.enter_on_spawn(&mut command);
        let output = run_with_input(command, b"", Duration::from_secs(20)).unwrap();
        assert!(output.status.success(), "{script}: {}", output.message());
        String::from_utf8(output.stdout).unwrap()
    }

    /// A namespace with one interface and a route of every kind.
    fn furnished() -> NetNs {
        let ns = NetNs::create().unwrap();
        shell(
            &ns,
            "ip link add d0 type veth peer name d1; ip link set lo up; ip link set d0 up; ip link set d1 up
             ip addr add 198.18.0.1/24 dev d0; ip -6 addr add 2001:2::1/64 dev d0 nodad
             sysctl -qw net.ipv4.ip_forward=1
             ip route add default via 198.18.0.9
             ip route add blackhole 198.18.10.0/24; ip route add unreachable 198.18.11.0/24
             ip route add prohibit 198.18.12.0/24; ip route add throw 198.18.13.0/24 table 100
             ip route add 198.18.14.0/24 via 198.18.0.8 mtu 1400 table 100
             ip -6 route add blackhole 2001:2:0:1::/64
             ip rule add priority 50 fwmark 0x7 lookup 100
             ip rule add priority 60 from 198.18.5.0/24 to 198.18.6.0/24 prohibit
             ip rule add priority 70 iif d0 ipproto tcp dport 80-90 lookup 101",
        );
        ns
    }

    #[test]
    fn root_routes_are_those_that_iproute2_lists() {
        if test_needs_root() {
            return;
        }
        let ns = furnished();
        let mut net = Rtnetlink::open_in(&ns).unwrap();
        let mut routes = Vec::new();
        net.each_route(|| (), |r| routes.push(r)).unwrap();
        let lines =
            |arguments: &str| shell(&ns, &format!("ip {arguments} route show table all")).lines().count();
        assert_eq!(routes.len(), lines("-4") + lines("-6"));
        let kind = |text: &str| {
            let network: IpAddr = text.parse().unwrap();
            let found = routes.iter().find(|r| r.destination == network && r.prefix >= 24);
            found.map(|r| (r.kind, r.table, r.mtu))
        };
        assert_eq!(kind("198.18.10.0"), Some((RouteKind::Blackhole, 254, None)));
        assert_eq!(kind("198.18.11.0"), Some((RouteKind::Unreachable, 254, None)));
        assert_eq!(kind("198.18.12.0"), Some((RouteKind::Prohibit, 254, None)));
        assert_eq!(kind("198.18.13.0"), Some((RouteKind::Throw, 100, None)));
        assert_eq!(kind("198.18.14.0"), Some((RouteKind::Unicast, 100, Some(1400))));
        assert_eq!(kind("2001:2:0:1::"), Some((RouteKind::Blackhole, 254, None)));
        let default = routes.iter().find(|r| r.prefix == 0 && r.destination.is_ipv4()).unwrap();
        assert_eq!(
            (default.next_hop, default.kind),
            (Some("198.18.0.9".parse().unwrap()), RouteKind::Unicast)
        );
        assert!(routes.iter().all(|r| !r.remembered));
    }

    #[test]
    fn root_the_kernel_answers_for_a_packet_with_mark_and_interface() {
        if test_needs_root() {
            return;
        }
        let ns = furnished();
        let mut net = Rtnetlink::open_in(&ns).unwrap();
        let index = net.interface("d0").unwrap().index;
        let to = |text: &str| Asking::to(text.parse().unwrap());
        let errno = |net: &mut Rtnetlink, a: &Asking| net.resolve(a).unwrap_err().raw_os_error();
        assert_eq!(net.resolve(&to("198.19.0.1")).unwrap().table, 254);
        assert_eq!(net.resolve(&to("198.18.0.1")).unwrap().kind, RouteKind::Local);
        assert_eq!(errno(&mut net, &to("198.18.10.1")), Some(libc::EINVAL));
        assert_eq!(errno(&mut net, &to("198.18.11.1")), Some(libc::EHOSTUNREACH));
        assert_eq!(errno(&mut net, &to("198.18.12.1")), Some(libc::EACCES));
        assert_eq!(errno(&mut net, &to("2001:2:0:1::5")), Some(libc::EINVAL));
        assert_eq!(errno(&mut net, &to("2001:2:0:2::5")), Some(libc::ENETUNREACH));
        let marked = net.resolve(&Asking { mark: 7, ..to("198.18.14.1") }).unwrap();
        assert_eq!((marked.table, marked.interface, marked.mtu), (100, index, Some(1400)));
        let from = Some("198.18.5.1".parse().unwrap());
        let forwarded = Asking { source: from, came_in: index, ..to("198.18.6.1") };
        assert_eq!(errno(&mut net, &forwarded), Some(libc::EACCES));
        let elsewhere = Asking { source: from, came_in: index, ..to("198.18.7.1") };
        assert_eq!(net.resolve(&elsewhere).unwrap().interface, index);
    }

    #[test]
    fn root_rules_read_as_iproute2_prints_them() {
        if test_needs_root() {
            return;
        }
        let ns = furnished();
        let policies = Rtnetlink::open_in(&ns).unwrap().policies().unwrap();
        let shown: Vec<String> =
            policies.iter().filter(|p| !p.ipv6).map(|p| format!("{}: {}", p.priority, p.text)).collect();
        let printed = shell(&ns, "ip -4 rule show").replace('\t', " ");
        // ip-rule(8) knows protocol 6 by its name.
        let printed: Vec<_> =
            printed.lines().map(|l| l.trim_end().replace("ipproto tcp", "ipproto 6")).collect();
        assert_eq!(shown, printed);
        assert_eq!(policies.iter().filter(|p| !p.is_usual()).count(), 3);
        assert!(policies.iter().any(|p| p.ipv6 && p.is_usual()));
    }

    proptest! {
        #[test]
        fn garbage_never_panics(kind in 20_u16..40, payload in prop::collection::vec(any::<u8>(), 0..120)) {
            let received = Received { kind, flags: 0, sequence: 0, payload: &payload };
            let route = read_route(received);
            prop_assert!(route.is_none() || payload.len() >= HEADER);
            let policy = read_policy(received);
            prop_assert!(policy.is_none() || payload.len() >= HEADER);
        }
    }
}
