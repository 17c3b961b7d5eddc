//! Who may come in where. Pure.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use weir_prefix::{Ranges, export};

/// Addresses that are never looked up, whatever the lists say: link-local ones (RFC 3927), by which clouds also hand out
/// addresses, names and time, and no address at all (DHCP).
pub const LINK_V4: [(u32, u32); 2] = [(0, 0), (0xa9fe_0000, 0xa9fe_ffff)];
/// The same of IPv6: `::`, and fe80::/10 (RFC 4291).
pub(crate) const LINK_V6: [(u128, u128); 2] = [(0, 0), (0xfe80 << 112, (0xfec0 << 112) - 1)];

/// Longest name of a class: it is part of a log prefix, which has 29 characters in iptables.
const LONGEST_NAME: usize = 16;
/// Most interfaces.
const MOST_INTERFACES: usize = 32;
/// Most classes: one less than the BPF filter has, for the link's own addresses.
const MOST_CLASSES: usize = 253;

/// The action on a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// It goes on.
    Allow,
    /// It is thrown away.
    Drop,
    /// It goes on, and is noted: in the kernel's log (nft and ipset, 10 a second at most), or with its source (bpf, nft).
    Log,
    /// It goes on with this mark.
    Mark(u32),
}

impl Action {
    /// As it is written, without the mark.
    pub fn name(self) -> &'static str {
        match self {
            Action::Allow => "allow",
            Action::Drop => "drop",
            Action::Log => "log",
            Action::Mark(_) => "mark",
        }
    }
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Action::Mark(mark) => write!(f, "mark={mark}"),
            other => f.write_str(other.name()),
        }
    }
}

impl FromStr for Action {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let number = |text: &str| match text.strip_prefix("0x") {
            Some(hex) => u32::from_str_radix(hex, 16).ok(),
            None => text.parse().ok(),
        };
        match text {
            "allow" => Ok(Action::Allow),
            "drop" => Ok(Action::Drop),
            "log" => Ok(Action::Log),
            _ => text
                .strip_prefix("mark=")
                .and_then(number)
                .map(Action::Mark)
                .ok_or_else(|| format!("`{text}`: expected allow, drop, log or mark=NUMBER")),
        }
    }
}

/// The mechanism that looks up addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Backend {
    /// Weir's own program, at tc or XDP.
    Bpf,
    /// Interval sets of nftables.
    Nft,
    /// Sets of ipset, asked by iptables.
    Ipset,
}

impl Backend {
    /// All of them.
    pub const ALL: [Backend; 3] = [Backend::Bpf, Backend::Nft, Backend::Ipset];

    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            Backend::Bpf => "bpf",
            Backend::Nft => "nft",
            Backend::Ipset => "ipset",
        }
    }
}

/// Which packets are looked up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Hook {
    /// Those for this host.
    Input,
    /// Those that it forwards.
    Forward,
    /// All that come in.
    Both,
}

/// The place in which XDP runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Xdp {
    /// In the driver.
    Native,
    /// In the stack, on any interface.
    Generic,
}

/// A service.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub struct Port {
    /// True for TCP, false for UDP.
    pub tcp: bool,
    /// Its number, from 1.
    pub number: u16,
}

impl FromStr for Port {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (protocol, number) = text.split_once('/').unwrap_or(("", text));
        let number = number.parse().ok().filter(|n| *n != 0);
        match (protocol, number) {
            ("tcp", Some(number)) => Ok(Port { tcp: true, number }),
            ("udp", Some(number)) => Ok(Port { tcp: false, number }),
            _ => Err(format!("`{text}`: expected tcp/NUMBER or udp/NUMBER")),
        }
    }
}

/// A list with what is done with its addresses.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Class {
    /// Its name: a letter, then letters, digits, `_` and `-`.
    pub name: String,
    /// The action on packets from these addresses.
    pub action: Action,
    /// Origin of the list; text from outside.
    pub origin: Vec<String>,
    /// Its IPv4 addresses.
    pub v4: Ranges<u32>,
    /// Its IPv6 addresses.
    pub v6: Ranges<u128>,
}

impl Class {
    /// Whether an address is in its list.
    pub fn has(&self, address: IpAddr) -> bool {
        match address.to_canonical() {
            IpAddr::V4(a) => self.v4.contains(a.into()),
            IpAddr::V6(a) => self.v6.contains(a.into()),
        }
    }

    /// How many addresses it has: of IPv4, and of IPv6 in networks of /64.
    pub fn size(&self) -> (f64, f64) {
        (self.v4.addresses(), self.v6.addresses() / 2f64.powi(64))
    }
}

/// A policy's verdict on an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PolicyVerdict<'a> {
    /// Number of the class, from 1; 0: in none; `None`: the link's own address, which is not looked up.
    pub class: Option<usize>,
    /// Its name.
    pub name: &'a str,
    /// The action on packets from the address.
    pub action: Action,
}

/// Who may come in where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// The back end that looks up addresses.
    pub backend: Backend,
    /// Names of the interfaces by which packets come in.
    pub interfaces: Vec<String>,
    /// Which of them.
    pub hook: Hook,
    /// With BPF, at XDP instead of tc.
    pub xdp: Option<Xdp>,
    /// Only packets to these services; empty: all packets.
    pub ports: Vec<Port>,
    /// Packets of connections that are there already pass first.
    pub established_first: bool,
    /// Lists; the first that has an address wins.
    pub classes: Vec<Class>,
    /// The action on packets from all other addresses.
    pub rest: Action,
}

impl Policy {
    /// Returns the verdict on packets from an address.
    pub fn verdict(&self, address: IpAddr) -> PolicyVerdict<'_> {
        let address = address.to_canonical();
        let link = match address {
            IpAddr::V4(a) => Ranges::new(LINK_V4).contains(a.into()),
            IpAddr::V6(a) => Ranges::new(LINK_V6).contains(a.into()),
        };
        if link {
            return PolicyVerdict { class: None, name: "the link's own", action: Action::Allow };
        }
        let found = self.classes.iter().enumerate().find(|(_, class)| class.has(address));
        match found {
            Some((n, class)) => PolicyVerdict { class: Some(n + 1), name: &class.name, action: class.action },
            None => PolicyVerdict { class: Some(0), name: "the rest", action: self.rest },
        }
    }

    /// Refuses what no back end can do, and what cannot be meant.
    ///
    /// # Errors
    /// The problem, in words.
    pub fn check(&self) -> Result<(), String> {
        if self.interfaces.is_empty() || self.interfaces.len() > MOST_INTERFACES {
            return Err(format!("{} interfaces: 1 to {MOST_INTERFACES} can be named", self.interfaces.len()));
        }
        for name in &self.interfaces {
            if name == "lo" {
                return Err("interface lo: what a host says to itself is never shut out".into());
            }
            // 15 is IFNAMSIZ without the final zero; nft has no way to write a quote, and `*` and a final `+` mean many to it and to iptables.
            if name.is_empty()
                || name.len() > 15
                || name.ends_with('+')
                || name.bytes().any(|b| !b.is_ascii_graphic() || b"/\"\\*".contains(&b))
            {
                return Err(format!("interface `{name}`: not a name that rules can be written with"));
            }
        }
        if self.classes.is_empty() || self.classes.len() > MOST_CLASSES {
            return Err(format!("{} lists: 1 to {MOST_CLASSES} have room", self.classes.len()));
        }
        for (n, class) in self.classes.iter().enumerate() {
            export::check_name(&class.name)?;
            if class.name.len() > LONGEST_NAME {
                return Err(format!("class name `{}`: at most {LONGEST_NAME} characters", class.name));
            }
            if self.classes[..n].iter().any(|other| other.name == class.name) {
                return Err(format!("class {} is there twice", class.name));
            }
            if class.v4.is_empty() && class.v6.is_empty() {
                return Err(format!("class {}: the list is empty", class.name));
            }
        }
        if self.classes.iter().all(|class| class.action == self.rest) {
            return Err(format!(
                "every list and the rest have the action {}: it would filter nothing",
                self.rest
            ));
        }
        self.check_backend()
    }

    fn check_backend(&self) -> Result<(), String> {
        if self.backend != Backend::Bpf {
            return match self.xdp {
                Some(_) => Err(format!("--xdp: only with bpf, not with {}", self.backend.name())),
                None => Ok(()),
            };
        }
        if self.hook != Hook::Both {
            return Err(
                "bpf looks at what comes in before it is known whether it is forwarded: only --hook both \
                        (nft and ipset tell them apart)"
                    .into(),
            );
        }
        if !self.ports.is_empty() {
            return Err("bpf does not look at ports: nft and ipset do".into());
        }
        if self.xdp.is_some() && self.established_first {
            return Err(
                "at XDP no connection can be looked up first: leave out --xdp or --established-first".into(),
            );
        }
        if self.xdp.is_some() {
            self.check_marks()?;
        }
        Ok(())
    }

    /// Refuses marks, which a packet at XDP has not yet: what should be marked would pass like anything that is let through.
    fn check_marks(&self) -> Result<(), String> {
        let lists = self.classes.iter().map(|class| (format!("class {}", class.name), class.action));
        let mut all = lists.chain([("the rest".to_owned(), self.rest)]);
        match all.find(|(_, action)| matches!(action, Action::Mark(_))) {
            Some((who, action)) => {
                Err(format!("{who}: at XDP no packet has a mark yet: leave out --xdp or {action}"))
            }
            None => Ok(()),
        }
    }

    /// Whether a policy at tc could be carried out at XDP as well.
    pub(crate) fn could_be_at_xdp(&self) -> bool {
        self.backend == Backend::Bpf
            && self.xdp.is_none()
            && !self.established_first
            && self.check_marks().is_ok()
    }

    /// The name of a policy with this content: the same content has the same name.
    pub fn id(&self) -> String {
        let mut text = self.header().to_string();
        for class in &self.classes {
            text.push_str(&export::ranges(&class.v4, &class.v6));
            text.push('\n');
        }
        weir_guard::fingerprint(&text)[..12].to_owned()
    }

    /// Everything but the lists.
    pub(crate) fn header(&self) -> serde_json::Value {
        let classes: Vec<_> = self
            .classes
            .iter()
            .map(|c| serde_json::json!({ "name": c.name, "action": c.action, "origin": c.origin }))
            .collect();
        serde_json::json!({
            "backend": self.backend, "interfaces": self.interfaces, "hook": self.hook, "xdp": self.xdp, "ports": self.ports,
            "established_first": self.established_first, "rest": self.rest, "classes": classes,
        })
    }

    /// Lists, in words, suspicious losses against the old policy: classes that lost more than this share of their addresses.
    pub fn shrunk(&self, old: &Policy, share: f64) -> Vec<String> {
        let mut words = Vec::new();
        for before in &old.classes {
            let Some(now) = self.classes.iter().find(|class| class.name == before.name) else { continue };
            let lost = |old: f64, new: f64| if old > 0.0 { 1.0 - new / old } else { 0.0 };
            let (old, new) = (before.size(), now.size());
            for (family, lost) in [("IPv4", lost(old.0, new.0)), ("IPv6", lost(old.1, new.1))] {
                if lost > share {
                    words.push(format!(
                        "class {}: {:.0} % fewer {family} addresses than are loaded",
                        now.name,
                        lost * 100.0
                    ));
                }
            }
        }
        words
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn policy() -> Policy {
        let class = |name: &str, action, first: u32, last: u32| Class {
            name: name.into(),
            action,
            origin: vec!["test".into()],
            v4: Ranges::new([(first, last)]),
            v6: Ranges::default(),
        };
        Policy {
            backend: Backend::Nft,
            interfaces: vec!["eth0".into()],
            hook: Hook::Both,
            xdp: None,
            ports: Vec::new(),
            established_first: false,
            classes: vec![
                class("bad", Action::Drop, 0x0a00_0000, 0x0a00_00ff),
                class("good", Action::Allow, 0x0a00_0000, 0x0aff_ffff),
            ],
            rest: Action::Drop,
        }
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    #[test]
    fn the_first_class_wins_and_the_links_own_addresses_are_never_shut_out() {
        let policy = policy();
        let of = |text| (policy.verdict(ip(text)).class, policy.verdict(ip(text)).action);
        assert_eq!(of("10.0.0.1"), (Some(1), Action::Drop));
        assert_eq!(of("10.1.0.1"), (Some(2), Action::Allow));
        assert_eq!(of("::ffff:10.1.0.1"), (Some(2), Action::Allow));
        assert_eq!(of("11.0.0.1"), (Some(0), Action::Drop));
        for own in ["0.0.0.0", "169.254.169.254", "::", "fe80::1", "febf::1"] {
            assert_eq!(of(own), (None, Action::Allow), "{own}");
        }
        assert_eq!(of("fec0::1"), (Some(0), Action::Drop));
    }

    #[test]
    fn actions_and_ports_are_read_as_they_are_written() {
        for text in ["allow", "drop", "log", "mark=7"] {
            assert_eq!(text.parse::<Action>().unwrap().to_string(), text);
        }
        assert_eq!("mark=0x10".parse::<Action>().unwrap(), Action::Mark(16));
        for bad in ["", "accept", "mark", "mark=", "mark=-1", "mark=4294967296"] {
            assert!(bad.parse::<Action>().is_err(), "{bad}");
        }
        assert_eq!("tcp/22".parse::<Port>().unwrap(), Port { tcp: true, number: 22 });
        for bad in ["22", "tcp/0", "tcp/65536", "sctp/1", "udp/"] {
            assert!(bad.parse::<Port>().is_err(), "{bad}");
        }
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        assert_eq!(policy().check(), Ok(()));
        let refused = |change: &dyn Fn(&mut Policy), words: &str| {
            let mut policy = policy();
            change(&mut policy);
            let why = policy.check().unwrap_err();
            assert!(why.contains(words), "{why}");
        };
        refused(&|p| p.interfaces.clear(), "interfaces");
        refused(&|p| p.interfaces[0] = "lo".into(), "to itself");
        refused(&|p| p.interfaces[0] = "a\" drop".into(), "not a name");
        refused(&|p| p.interfaces[0] = "eth+".into(), "not a name");
        refused(&|p| p.classes[1].name = "bad".into(), "twice");
        refused(&|p| p.classes[1].v4 = Ranges::default(), "empty");
        refused(&|p| p.classes.truncate(1), "filter nothing");
        refused(&|p| p.xdp = Some(Xdp::Generic), "only with bpf");
        refused(&|p| (p.backend, p.hook) = (Backend::Bpf, Hook::Input), "--hook both");
        refused(&|p| (p.backend, p.ports) = (Backend::Bpf, vec![Port { tcp: true, number: 22 }]), "ports");
        let established = |p: &mut Policy| {
            (p.backend, p.xdp, p.established_first) = (Backend::Bpf, Some(Xdp::Native), true);
        };
        refused(&established, "at XDP");
        let at_xdp = |p: &mut Policy| (p.backend, p.xdp) = (Backend::Bpf, Some(Xdp::Generic));
        let marked = |p: &mut Policy| {
            at_xdp(p);
            p.classes[1].action = Action::Mark(7);
        };
        refused(&marked, "class good: at XDP no packet has a mark yet: leave out --xdp or mark=7");
        let rest = |p: &mut Policy| {
            at_xdp(p);
            p.rest = Action::Mark(1);
        };
        refused(&rest, "the rest: at XDP");
    }

    #[test]
    fn the_name_follows_the_content() {
        let (a, mut b) = (policy(), policy());
        assert_eq!(a.id(), b.id());
        b.classes[0].v4 = Ranges::new([(0x0a00_0000, 0x0a00_00fe)]);
        assert_ne!(a.id(), b.id());
    }

    #[test]
    fn a_class_that_lost_much_is_told() {
        let (old, mut new) = (policy(), policy());
        assert!(new.shrunk(&old, 0.2).is_empty());
        // 256 addresses less one in four.
        new.classes[0].v4 = Ranges::new([(0x0a00_0000, 0x0a00_00bf)]);
        assert_eq!(new.shrunk(&old, 0.2), ["class bad: 25 % fewer IPv4 addresses than are loaded"]);
        assert!(new.shrunk(&old, 0.25).is_empty());
    }
}
