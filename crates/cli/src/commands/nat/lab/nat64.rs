//! NAT64 by the programs that an administrator would take: tayga translates headers, and nft masquerades the addresses that it gives to
//! hosts.

use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::net::Ipv4Addr;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{MemfdFlags, memfd_create};
use weir_gateway::custom::Custom;
use weir_gateway::{Error, Expectation, Journal, Place, Role, Topology, Variant};
use weir_lab::Site;
use weir_nat::Limits;
use weir_nat::lab::LabEnds;
use weir_netlink::Rtnetlink;
use weir_sys::process::{Process, spawn, which};
use weir_sys::{NetNs, Stop};

use super::prefix::custom;

/// The hosts outside.
const OUTSIDE: [Ipv4Addr; 2] = [Ipv4Addr::new(198, 19, 0, 10), Ipv4Addr::new(198, 19, 0, 11)];
/// The gateway's address beside them.
const GATEWAY: &str = "198.19.0.1/24";
/// How inside hosts know addresses of IPv4: tayga refuses 64:ff9b::/96 for those of the lab.
const PREFIX: &str = "2001:2:0:64::/96";
/// Addresses that stand for inside hosts between tayga and nft.
const POOL: &str = "198.18.64.0/24";
/// The translator's own address, of which its ICMP errors are.
const OWN: &str = "198.18.64.1";
/// Its interface.
const TUN: &str = "nat64";
const DEVICE: &str = "/dev/net/tun";
/// How long tayga may take to make its interface, and how often that is looked for.
const START: Duration = Duration::from_secs(10);
const LOOK: Duration = Duration::from_millis(10);

/// Both ends of such a gateway.
///
/// # Errors
/// Those of [`LabEnds::attach_nat64`].
pub(super) fn attach(site: &Site, limits: Limits, stop: &Stop) -> io::Result<LabEnds> {
    let prefix = PREFIX.to_owned().try_into().map_err(io::Error::other)?;
    LabEnds::attach_nat64(site, OUTSIDE, prefix, limits, stop).map_err(io::Error::other)
}

/// See the module.
pub(super) struct Tayga {
    rules: Custom,
    /// The translator, while it is there: it ends with this variant, and with this process.
    running: Mutex<Option<Process>>,
}

/// The variant.
pub(super) fn by_tayga() -> Tayga {
    let forwarding = |value: u8| {
        format!(
            "for all in ipv4/ip_forward ipv6/conf/all/forwarding; do echo {value} >/proc/sys/net/$all; done"
        )
    };
    let up = format!(
        "ip link set {TUN} up && ip -6 route add {PREFIX} dev {TUN} && ip route add {POOL} dev {TUN}"
    );
    let down = format!("ip link del {TUN} 2>/dev/null || true");
    let address = |verb| format!("ip address {verb} {GATEWAY} dev $WEIR_OUTSIDE_INTERFACE");
    // No host outside has a way to the addresses of the pool.
    let rules = format!(
        "nft \"table ip weir_$WEIR_TAG {{
         chain out {{ type nat hook postrouting priority srcnat; oifname $WEIR_OUTSIDE_INTERFACE masquerade; }};
         chain in {{ type filter hook prerouting priority raw;
             iifname $WEIR_OUTSIDE_INTERFACE ip daddr {POOL} drop; }}; }}\""
    );
    let no_rule = "nft destroy table ip weir_$WEIR_TAG 2>/dev/null || nft delete table ip weir_$WEIR_TAG";
    let no_address = format!("{} 2>/dev/null || true", address("del"));
    let words = "NAT64: tayga translates headers, nft masquerades";
    let rules = custom(
        words,
        &[&forwarding(1), &address("add"), &up, &rules],
        &[no_rule, &down, &no_address, &forwarding(0)],
    );
    Tayga { rules, running: Mutex::new(None) }
}

impl Tayga {
    /// Starts it in the namespace of this thread, and waits for its interface.
    fn start() -> Result<Process, Error> {
        let settings = format!("tun-device {TUN}\nipv4-addr {OWN}\nprefix {PREFIX}\ndynamic-pool {POOL}\n");
        let failed = |source| Error::File { path: "tayga's settings".to_owned(), source };
        // Neither has a name, and both end with their readers.
        let file =
            |name: &str| memfd_create(name, MemfdFlags::CLOEXEC).map(File::from).map_err(io::Error::from);
        let (mut given, mut printed) =
            (file("weir-tayga").map_err(failed)?, file("weir-tayga-log").map_err(failed)?);
        given.write_all(settings.as_bytes()).map_err(failed)?;
        let mut command = Command::new(which("tayga").unwrap_or_else(|| "tayga".into()));
        // Without -d its messages go to the system's log.
        command.args(["-d", "-c", "/dev/stdin"]).stdin(Stdio::from(given));
        let log = || printed.try_clone().map(Stdio::from).map_err(failed);
        command.stdout(log()?).stderr(log()?);
        NetNs::current()?.enter_on_spawn(&mut command);
        let mut process = spawn(command)?;
        let deadline = Instant::now() + START;
        while Rtnetlink::open()?.interface(TUN).is_err() {
            if process.try_wait()?.is_some() || Instant::now() > deadline {
                let mut output = String::new();
                printed.rewind().and_then(|()| printed.read_to_string(&mut output)).map_err(failed)?;
                return Err(Error::Command { command: "tayga".to_owned(), output: output.trim().to_owned() });
            }
            std::thread::sleep(LOOK);
        }
        Ok(process)
    }
}

impl Variant for Tayga {
    fn kind(&self) -> &'static str {
        "tayga-nat64"
    }
    fn describe(&self) -> String {
        self.rules.describe()
    }
    fn topology(&self) -> Topology {
        self.rules.topology()
    }
    fn programs(&self, _: Role) -> Vec<String> {
        ["sh", "ip", "nft", "tayga"].map(str::to_owned).to_vec()
    }
    fn apply(&self, role: Role, place: &Place, journal: &mut Journal) -> Result<(), Error> {
        // Opening it loads the module, if there is one.
        File::options().read(true).write(true).open(DEVICE).map_err(|e| {
            Error::Unsupported(format!("tayga needs {DEVICE}: {e}; load the kernel's module tun"))
        })?;
        let process = Self::start()?;
        *self.running.lock().unwrap_or_else(PoisonError::into_inner) = Some(process);
        self.rules.apply(role, place, journal)
    }
    fn expectation(&self, place: &Place) -> Expectation {
        self.rules.expectation(place)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};
    use std::net::{IpAddr, SocketAddr};

    use weir_lab::{Family, Lab, Role as LabRole};
    use weir_nat::lab::addresses;
    use weir_nat::{Ends, measure};
    use weir_probe::nat64::Prefix64;
    use weir_testkit::World;
    use weir_text::order;

    use super::super::kernel_table::{Sent, entries, lasting, translations};
    use super::super::{LabGateway, site_of, with_gateway};
    use super::*;

    /// Observations of the experiments, and the prefix by which they know the outside.
    fn seen(site: &Site) -> (serde_json::Value, Prefix64) {
        let mut ends = attach(site, Limits::default(), &Stop::default()).unwrap();
        let prefix = ends.nat64().unwrap();
        (serde_json::to_value(measure(&mut ends, &mut |_| true).unwrap()).unwrap(), prefix)
    }

    /// tayga gives each host an address of IPv4, by which connection tracking has its ports.
    fn compare(site: &Site, (seen, prefix): &(serde_json::Value, Prefix64), protocol: &str) -> usize {
        let real = |((inside, to), seen)| ((inside, prefix.real(to)), prefix.real(seen));
        let reported: BTreeMap<Sent, SocketAddr> =
            order::map(translations(seen, protocol).into_iter().map(real));
        let kernel = entries(site.host(LabRole::Gateway).unwrap(), protocol);
        let mut hosts: BTreeMap<IpAddr, BTreeSet<IpAddr>> = BTreeMap::new();
        for ((inside, to), mapped) in &reported {
            let same = |((from, reached), seen): &&(Sent, SocketAddr)| {
                (from.port(), reached, seen) == (inside.port(), to, mapped)
            };
            let Some(((from, _), _)) = kernel.iter().find(same) else {
                panic!("{protocol}: {inside} to {to} as {mapped}: {kernel:?}")
            };
            hosts.entry(from.ip()).or_default().insert(inside.ip());
        }
        let both: BTreeSet<BTreeSet<IpAddr>> = order::set(hosts.values().cloned());
        assert_eq!(both, order::set(addresses(site).0.map(|host| BTreeSet::from([host]))), "{hosts:?}");
        let known = |from: SocketAddr| {
            let host = hosts.get(&from.ip()).and_then(BTreeSet::first);
            host.map(|host| SocketAddr::new(*host, from.port()))
        };
        let ports: BTreeSet<SocketAddr> = order::set(reported.keys().map(|(inside, _)| *inside));
        let mut tracked = BTreeMap::new();
        for ((from, to), mapped) in kernel {
            let to_hosts = OUTSIDE.contains(&match to.ip() {
                IpAddr::V4(address) => address,
                IpAddr::V6(address) => panic!("{address} is no address of the outside"),
            });
            if let Some(inside) = known(from).filter(|inside| to_hosts && ports.contains(inside)) {
                assert_eq!(tracked.insert((inside, to), mapped), None, "{inside} to {to}");
            }
        }
        assert_eq!(reported, tracked, "{protocol}");
        reported.len()
    }

    /// The outside ports of both hosts are those of the kernel's table of IPv4 connections, and it has no others for their ports.
    #[test]
    fn root_ports_through_nat64_are_those_of_the_kernels_table() {
        if World::lacks_root() || World::lacks(&["nft", "tayga", "conntrack"]) {
            return;
        }
        let which = LabGateway::TaygaNat64;
        let name = format!("test-nat64-kernel-table-{}", std::process::id());
        let lab = Lab::build(&name, &lasting(Family::Ipv6), &[site_of(which)]).unwrap();
        let site = &lab.sites()[0];
        let counts = with_gateway(site, which, || {
            let seen = seen(site);
            ["udp", "tcp"].map(|protocol| compare(site, &seen, protocol))
        });
        let Ok((counts, _)) = counts else { panic!("the gateway cannot be built") };
        assert!(counts.iter().all(|count| *count > 50), "{counts:?}");
    }
}
