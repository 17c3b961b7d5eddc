//! The network namespaces of this machine by their addresses, and the processes that hold sockets in them.

use std::collections::{BTreeMap, BTreeSet};
use std::io::ErrorKind;
use std::net::IpAddr;
use std::path::PathBuf;

use weir_netlink::sock_diag::{SocketEnds, SocketFinder};
use weir_netlink::{Link, Protocol, Rtnetlink};
use weir_sys::privilege::Privilege;
use weir_sys::procfs::{Holder, PlainSocket};
use weir_sys::{NetNs, ProcRoot, Result};
use weir_text::{order, units};

use super::{Found, Scope, find};

/// Descriptors that one look goes through, which takes some 2 µs each.
const DESCRIPTORS: usize = 100_000;

/// The network namespaces of this machine that may be entered. Holds none of them: a namespace ends with its container.
#[derive(Debug)]
pub struct LocalSockets {
    root: ProcRoot,
    namespaces: Vec<Namespace>,
    /// Numbers of the namespaces that have an address.
    by_address: BTreeMap<IpAddr, Vec<usize>>,
    /// Privileges that are missing, and what is not seen without them.
    missing: Vec<&'static str>,
}

#[derive(Debug)]
struct Namespace {
    id: u64,
    name: String,
    own: bool,
    path: Option<PathBuf>,
}

/// The result of a look for processes.
#[derive(Debug, Default)]
pub struct Looked {
    /// The process that holds a socket.
    pub found: BTreeMap<SocketEnds, Holder>,
    /// Sockets that a process holds, none of which was found.
    pub unheld: BTreeSet<SocketEnds>,
    /// Why some may be missing.
    pub missing: Option<String>,
}

impl LocalSockets {
    /// Looks for the namespaces and their addresses.
    ///
    /// # Errors
    /// If the namespaces cannot be listed.
    pub fn look(root: ProcRoot) -> Result<Self> {
        let missing = missing(&Privilege::current(&root)?);
        let mut new = LocalSockets { namespaces: Vec::new(), by_address: BTreeMap::new(), missing, root };
        for found in find(&new.root, &Scope::Machine)? {
            for address in addresses(&found).into_iter().filter(|address| !is_local(address)) {
                new.by_address.entry(address).or_default().push(new.namespaces.len());
            }
            let Found { id, name, own, path, .. } = found;
            new.namespaces.push(Namespace { id, name, own, path });
        }
        Ok(new)
    }

    /// Names of containers and other network namespaces by the addresses that they alone have; without the calling thread's.
    pub fn containers(&self) -> BTreeMap<IpAddr, String> {
        let single = |(address, all): (&IpAddr, &Vec<usize>)| {
            let mut others = all.iter().map(|n| &self.namespaces[*n]).filter(|one| !one.own);
            match (others.next(), others.next()) {
                (Some(one), None) => Some((*address, one.name.clone())),
                _ => None,
            }
        };
        order::map(self.by_address.iter().filter_map(single))
    }

    /// All addresses of this machine.
    pub fn addresses(&self) -> BTreeSet<IpAddr> {
        order::set(self.by_address.keys().copied())
    }

    /// Looks for the processes of sockets. One at an address that several namespaces have is not looked for.
    pub fn processes(&self, wanted: &BTreeSet<SocketEnds>) -> Looked {
        let mut looked = Looked::default();
        let mut missing: Vec<String> = self.missing.iter().map(|text| (*text).to_owned()).collect();
        let mut asked: BTreeMap<usize, Vec<SocketEnds>> = BTreeMap::new();
        for socket in wanted.iter().filter(|socket| socket.local.port() != 0) {
            if let Some([n]) = self.by_address.get(&socket.local.ip()).map(Vec::as_slice) {
                asked.entry(*n).or_default().push(*socket);
            }
        }
        let mut inodes: Vec<(SocketEnds, u32)> = Vec::new();
        let mut first = BTreeSet::new();
        for (n, sockets) in &asked {
            first.insert(self.namespaces[*n].id);
            match self.namespaces[*n].inside(|| held(&self.root, sockets)).and_then(|held| held) {
                Ok(held) => inodes.extend(held),
                // Its container has ended.
                Err(e) if e.kind() == ErrorKind::NotFound => {}
                Err(e) => missing.push(format!("{}: {e}", self.namespaces[*n].name)),
            }
        }
        let numbers = order::set(inodes.iter().map(|(_, inode)| *inode));
        if !numbers.is_empty() {
            let holders = self.root.socket_holders_in(&numbers, |id| first.contains(&id), DESCRIPTORS);
            for (socket, inode) in inodes {
                match holders.by_inode.get(&inode) {
                    Some(holder) => drop(looked.found.insert(socket, holder.clone())),
                    None => drop(looked.unheld.insert(socket)),
                }
            }
            if holders.is_cut {
                let most = units::count(DESCRIPTORS as u64);
                missing.push(format!("only the first {most} descriptors of processes were looked at"));
            }
            if holders.denied > 0 && !looked.unheld.is_empty() {
                let denied = units::count(holders.denied);
                missing.push(format!("cannot read the descriptors of {denied} processes"));
            }
        }
        looked.missing = (!missing.is_empty()).then(|| missing.join("; "));
        looked
    }
}

/// Lists the privileges that are missing, and their effect.
fn missing(privilege: &Privilege) -> Vec<&'static str> {
    [
        (privilege.sys_ptrace, "CAP_SYS_PTRACE is missing: processes and containers of others are not seen"),
        (privilege.sys_admin, "CAP_SYS_ADMIN is missing: sockets in other network namespaces are not seen"),
    ]
    .into_iter()
    .filter_map(|(has, text)| (!has).then_some(text))
    .collect()
}

impl Namespace {
    /// Runs `f` in it.
    fn inside<T: Send>(&self, f: impl FnOnce() -> T + Send) -> Result<T> {
        if self.own {
            return Ok(f());
        }
        let gone = || weir_sys::Error::new("enter a network namespace", ErrorKind::NotFound);
        let opened = NetNs::open(self.path.as_ref().ok_or_else(gone)?);
        // The descriptor or the process behind the path may be another one by now.
        let handle = opened.map_err(|e| if e.kind() == ErrorKind::PermissionDenied { e } else { gone() })?;
        if handle.inode()? == self.id { handle.run(f) } else { Err(gone()) }
    }
}

/// The addresses by which others reach it; none if it is gone or shut.
fn addresses(found: &Found) -> Vec<IpAddr> {
    let links = found.inside(|| Rtnetlink::open()?.links()).and_then(|links| links).unwrap_or_default();
    let up = links.iter().filter(|link| link.up).flat_map(|link: &Link| &link.addresses);
    up.map(|(address, _)| *address).collect()
}

fn is_local(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_loopback() || v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_loopback() || v6.is_unicast_link_local(),
    }
}

/// Those of the sockets that a process holds, with their inodes, in the calling thread's namespace.
fn held(root: &ProcRoot, sockets: &[SocketEnds]) -> Result<Vec<(SocketEnds, u32)>> {
    let mut held = Vec::new();
    match SocketFinder::open(root) {
        Ok(mut finder) => {
            for socket in sockets {
                held.extend(finder.inode(socket)?.map(|inode| (*socket, inode)));
            }
        }
        Err(e) if e.kind() == ErrorKind::Unsupported => {
            for protocol in [Protocol::Tcp, Protocol::Udp] {
                let mut these = sockets.iter().filter(|s| s.protocol == protocol).peekable();
                if these.peek().is_some() {
                    let by_port = by_port(root.plain_sockets(&protocol.to_string())?);
                    held.extend(these.filter_map(|socket| Some((*socket, pick(&by_port, socket)?))));
                }
            }
        }
        Err(e) => return Err(e),
    }
    held.retain(|(_, inode)| *inode != 0);
    Ok(held)
}

/// Sockets by their own port.
fn by_port(sockets: Vec<PlainSocket>) -> BTreeMap<u16, Vec<PlainSocket>> {
    let mut by_port: BTreeMap<u16, Vec<PlainSocket>> = BTreeMap::new();
    for socket in sockets {
        by_port.entry(socket.local.port()).or_default().push(socket);
    }
    by_port
}

/// The inode of the socket that receives what comes from the remote end: the connected one before one that is bound to the address,
/// and that before one bound to any address.
fn pick(by_port: &BTreeMap<u16, Vec<PlainSocket>>, ends: &SocketEnds) -> Option<u32> {
    let fits = |socket: &&PlainSocket| {
        let any = socket.local.ip().is_unspecified() && (ends.local.is_ipv4() || socket.local.is_ipv6());
        match socket.local == ends.local {
            true if socket.remote == ends.remote => 3,
            true if socket.remote.port() == 0 => 2,
            false if any && socket.remote.port() == 0 => 1,
            _ => 0,
        }
    };
    let best = by_port.get(&ends.local.port())?.iter().max_by_key(fits)?;
    (fits(&best) > 0).then_some(best.inode)
}

#[cfg(test)]
mod tests {
    use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};

    use weir_sys::privilege::test_needs_root;

    use super::*;

    /// Namespaces with these names and addresses; the first one is the calling thread's.
    fn with(namespaces: &[(&str, &[&str])]) -> LocalSockets {
        let root = ProcRoot::default();
        let (none, by_address) = (Vec::new(), BTreeMap::new());
        let mut local = LocalSockets { root, namespaces: none, by_address, missing: Vec::new() };
        for (n, (name, addresses)) in namespaces.iter().enumerate() {
            let own = n == 0;
            local.namespaces.push(Namespace { id: n as u64, name: (*name).to_owned(), own, path: None });
            for address in *addresses {
                local.by_address.entry(address.parse().unwrap()).or_default().push(n);
            }
        }
        local
    }

    #[test]
    fn an_address_that_two_have_tells_nothing() {
        let local = with(&[
            ("host", &["192.0.2.1", "172.17.0.3"]),
            ("docker web", &["172.17.0.2"]),
            ("docker db", &["172.17.0.3", "172.18.0.2"]),
            ("netns twin", &["172.17.0.2", "2001:2::5"]),
        ]);
        let found = local.containers();
        let found: Vec<(String, &str)> = found.iter().map(|(a, n)| (a.to_string(), n.as_str())).collect();
        let wanted = [("172.17.0.3", "docker db"), ("172.18.0.2", "docker db"), ("2001:2::5", "netns twin")];
        assert_eq!(found, wanted.map(|(address, name)| (address.to_owned(), name)));
        assert!(local.addresses().contains(&"172.17.0.2".parse().unwrap()), "it is on this machine still");
    }

    #[test]
    fn addresses_of_a_link_are_no_ones() {
        for (text, local) in [("127.0.0.2", true), ("fe80::1", true), ("::1", true), ("2001:2::1", false)] {
            assert_eq!(is_local(&text.parse().unwrap()), local, "{text}");
        }
    }

    #[test]
    fn missing_privileges_are_named() {
        let all = Privilege {
            euid: 0,
            net_admin: true,
            sys_admin: true,
            sys_ptrace: true,
            initial_user_namespace: true,
        };
        let words = |privilege| missing(&privilege).join("; ");
        assert_eq!(words(all), "");
        let both = words(Privilege { sys_admin: false, sys_ptrace: false, ..all });
        assert!(both.contains("CAP_SYS_PTRACE is missing") && both.contains("; CAP_SYS_ADMIN is"), "{both}");
        let one = words(Privilege { sys_admin: false, ..all });
        assert!(one.starts_with("CAP_SYS_ADMIN is missing"), "{one}");
    }

    fn ends(protocol: Protocol, local: &str, remote: &str) -> SocketEnds {
        SocketEnds { protocol, local: local.parse().unwrap(), remote: remote.parse().unwrap() }
    }

    #[test]
    fn without_the_module_the_connected_socket_comes_first_and_one_of_any_address_last() {
        let socket = |local: &str, remote: &str, inode| PlainSocket {
            local: local.parse().unwrap(),
            remote: remote.parse().unwrap(),
            state: 1,
            send_queue: 0,
            receive_queue: 0,
            inode,
            drops: 0,
        };
        let sockets = by_port(vec![
            socket("[::]:80", "[::]:0", 1),
            socket("10.0.0.2:80", "0.0.0.0:0", 2),
            socket("10.0.0.2:80", "10.0.0.9:4000", 3),
            socket("0.0.0.0:53", "0.0.0.0:0", 4),
        ]);
        for (local, remote, inode) in [
            ("10.0.0.2:80", "10.0.0.9:4000", Some(3)),
            ("10.0.0.2:80", "10.0.0.9:4001", Some(2)),
            ("10.0.0.3:80", "10.0.0.9:4000", Some(1)),
            ("[2001:2::2]:80", "[2001:2::9]:1", Some(1)),
            ("10.0.0.3:53", "10.0.0.9:1", Some(4)),
            ("[2001:2::2]:53", "[2001:2::9]:1", None),
            ("10.0.0.2:81", "10.0.0.9:4000", None),
        ] {
            assert_eq!(pick(&sockets, &ends(Protocol::Tcp, local, remote)), inode, "{local} {remote}");
        }
    }

    /// A new namespace with this address, which this process holds.
    fn namespace(address: &str) -> NetNs {
        let namespace = NetNs::create().unwrap();
        let address: IpAddr = address.parse().unwrap();
        namespace
            .run(|| {
                let mut netlink = Rtnetlink::open().unwrap();
                netlink.create_end("d0", 1500).unwrap();
                for name in ["d0", "lo"] {
                    netlink.set_up(name).unwrap();
                }
                netlink.add_address("d0", address, 32).unwrap();
            })
            .unwrap();
        namespace
    }

    #[test]
    fn root_a_namespace_that_a_process_holds_is_known_by_its_address() {
        if test_needs_root() {
            return;
        }
        let address: IpAddr = "198.18.77.7".parse().unwrap();
        let _namespace = namespace("198.18.77.7");
        let found = LocalSockets::look(ProcRoot::default()).unwrap().containers();
        let name = found.get(&address).unwrap_or_else(|| panic!("{found:?}"));
        assert!(name.starts_with("held by ") && name.contains(&std::process::id().to_string()), "{name}");
    }

    /// Both ways to the inode find this process, and the namespace is not kept from its end.
    #[test]
    fn root_sockets_in_a_namespace_are_found_with_their_process() {
        if test_needs_root() {
            return;
        }
        let namespace = namespace("198.18.77.8");
        let (listener, client, server, udp) = namespace
            .run(|| {
                let listener = TcpListener::bind("198.18.77.8:0").unwrap();
                let client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
                let server = listener.accept().unwrap().0;
                (listener, client, server, UdpSocket::bind("198.18.77.8:0").unwrap())
            })
            .unwrap();
        let text = |end: std::io::Result<SocketAddr>| end.unwrap().to_string();
        let (near, far) = (text(client.local_addr()), text(client.peer_addr()));
        let wanted = BTreeSet::from([
            ends(Protocol::Tcp, &near, &far),
            ends(Protocol::Tcp, &far, &near),
            ends(Protocol::Udp, &text(udp.local_addr()), "203.0.113.9:53"),
        ]);
        let strangers =
            [ends(Protocol::Tcp, "198.18.77.8:1", &far), ends(Protocol::Tcp, "203.0.113.9:1", &near)];
        let asked: BTreeSet<SocketEnds> = wanted.iter().copied().chain(strangers).collect();
        let local = LocalSockets::look(ProcRoot::default()).unwrap();
        let looked = local.processes(&asked);
        let pids: BTreeSet<u32> = looked.found.values().map(|holder| holder.pid).collect();
        assert_eq!(looked.found.keys().copied().collect::<BTreeSet<_>>(), wanted);
        assert_eq!((pids, looked.missing), ([std::process::id()].into(), None));
        // The kernel without its module, as far as `/proc/modules` says.
        let folder = std::env::temp_dir().join(format!("weir-local-{}", std::process::id()));
        std::fs::create_dir_all(folder.join("proc")).unwrap();
        std::fs::write(folder.join("proc/modules"), "").unwrap();
        std::os::unix::fs::symlink("/proc/thread-self", folder.join("proc/thread-self")).unwrap();
        let all: Vec<SocketEnds> = asked.iter().copied().collect();
        let root = ProcRoot::new(&folder);
        let [plain, exact] =
            [&root, &ProcRoot::default()].map(|root| namespace.run(|| held(root, &all).unwrap()).unwrap());
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!((plain.len(), &plain), (3, &exact));
        drop((namespace, listener, client, server, udp));
        let looked = local.processes(&asked);
        assert_eq!((looked.found.len(), looked.missing), (0, None), "its namespace has ended");
    }
}
