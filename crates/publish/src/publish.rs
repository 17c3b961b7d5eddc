//! The programs in the kernel.

use std::net::IpAddr;

use weir_bpf::{
    Attached, Direction as Hook, Loader, Map, Object, Plain, ProgramFd, TestRun, are_attached, attach_tcx,
    test_run, test_run_super,
};
use weir_text::order;

use weir_netlink::Rtnetlink;

use crate::mapping::{Tables, words};
use crate::plan::within;
use crate::shared::{WEIR_MAPPINGS, WEIR_REASONS, WeirConfig, WeirCount};
use crate::{Error, Links, Mapping, Result};

/// Which way a packet goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Direction {
    /// From a client, at the outer interface.
    In,
    /// From the container, at the host's end of its link.
    Out,
}

impl Direction {
    /// The program that sees it.
    pub(crate) fn program(self) -> &'static str {
        match self {
            Direction::In => "publish_in",
            Direction::Out => "publish_out",
        }
    }
}

weir_text::listed! {
    /// The reason why a packet was translated or not. Untranslated packets were left to the kernel, except for [`Reason::Direct`] and
    /// [`Reason::Failed`].
    #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
    pub enum Reason {
        /// It was translated and sent on.
        Translated,
        /// It is an ICMP error about a packet of a mapping, and was translated with what it quotes.
        TranslatedError,
        /// Neither IPv4 nor IPv6.
        NotIp,
        /// It is not for this host, or has a VLAN tag.
        NotOurs,
        /// Shorter than its headers, or than it says itself.
        Malformed,
        /// IPv4 options or IPv6 extension headers.
        Options,
        /// A fragment: only the first one has ports.
        Fragment,
        /// From or to no end of a mapping.
        NotMapped,
        /// It may not be forwarded any more (TTL or hop limit 1): the kernel says so to the sender.
        LastHop,
        /// Longer than the way takes: the kernel says so to the sender, or makes fragments.
        TooBig,
        /// From the container, and its way does not lead out of the outer interface; or the container's link is gone.
        OtherWay,
        /// From the container, and the host forwards nothing that comes in by its bridge: `net.ipv4.conf.BRIDGE.forwarding`, or
        /// `net.ipv6.conf.BRIDGE.forwarding`, which `force_forwarding` does not stand in for.
        NoForwarding,
        /// From the container, which opens a connection from its port (SYN of TCP): no answer to a client. The host's rules decide
        /// about such connections.
        Opens,
        /// From outside, with a source of the container's network, or (IPv6) of a single link: the host's routing takes it for false.
        FalseSource,
        /// From outside to the container's own address and port: thrown away.
        Direct,
        /// The kernel refused to rewrite it (no memory): thrown away.
        Failed,
    }
}

const _: () = assert!(Reason::ALL.len() == WEIR_REASONS as usize);

/// Packets and bytes, from the Ethernet header on. Segments that travel as one (GSO) are one packet.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Count {
    /// Packets.
    pub packets: u64,
    /// Bytes.
    pub bytes: u64,
}

/// The programs' counters.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Status {
    /// By direction and reason; those with none are left out.
    pub reasons: Vec<(Direction, Reason, Count)>,
    /// Packets from the container that needed a lookup in the host's routing. Each answer serves the packets that follow within
    /// 0.1 s.
    pub asked: Count,
}

impl Status {
    /// Packets with that reason in that direction.
    pub fn packets(&self, direction: Direction, reason: Reason) -> u64 {
        let of_it = self.reasons.iter().filter(|r| r.0 == direction && r.1 == reason);
        of_it.map(|r| r.2.packets).sum()
    }

    /// Packets that were translated in both directions, errors about them included.
    pub fn translated(&self) -> u64 {
        let done =
            self.reasons.iter().filter(|r| matches!(r.1, Reason::Translated | Reason::TranslatedError));
        done.map(|r| r.2.packets).sum()
    }
}

/// All tables of the programs.
const TABLES: [&str; 6] = ["in4", "out4", "in6", "out6", "counts", "routes"];

/// The programs.
pub(crate) static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/publish.bpf.z"));

const NEEDS_HELPER: &str =
    "bpf_redirect_peer and bpf_redirect_neigh (Linux 5.10) and bpf_check_mtu (5.12), which this kernel lacks";
const NEEDS_IPV6: &str = "BPF_F_IPV6 for IPv6 addresses (Linux 6.16, or a stable series with the correction), which \
                          this kernel lacks: leave the IPv6 mappings out";

/// Mappings in the kernel. Dropping it detaches the programs.
#[derive(Debug)]
pub struct Publish {
    object: Object,
    links: Links,
    attached: Vec<Attached>,
}

impl Publish {
    /// Loads programs and tables for one container, attached to nothing yet: 1 to 4096 mappings.
    ///
    /// # Errors
    /// [`Error::Mapping`] for mappings that cannot be; [`Error::Kernel`] where the kernel lacks something, and
    /// [`Error::Bpf`] without privilege.
    pub fn load(mappings: &[Mapping], links: Links) -> Result<Self> {
        let tables = Tables::of(mappings)?;
        let mut loader = Loader::unpack("publish", OBJECT)?;
        loader.config(&config(links, mappings)?)?;
        // A table without entries cannot be made; twice as many because the container's own ends are in it, too.
        let room = |entries: usize| entries.clamp(1, 2 * WEIR_MAPPINGS as usize) as u32;
        loader.entries("in4", room(tables.in4.len()))?;
        loader.entries("out4", room(tables.out4.len()))?;
        loader.entries("in6", room(tables.in6.len()))?;
        loader.entries("out6", room(tables.out6.len()))?;
        let object = loader.load().map_err(named)?;
        fill(&object.map("in4")?, &tables.in4)?;
        fill(&object.map("out4")?, &tables.out4)?;
        fill(&object.map("in6")?, &tables.in6)?;
        fill(&object.map("out6")?, &tables.out6)?;
        let publish = Publish { object, links, attached: Vec::new() };
        if !tables.in6.is_empty() && !publish.object.confirms("knows_ipv6")? {
            return Err(Error::Kernel(NEEDS_IPV6));
        }
        Ok(publish)
    }

    /// Attaches both programs (TCX), behind those that are there. The one for the container's answers comes first, so that no
    /// answer to a translated packet finds its way without it.
    ///
    /// # Errors
    /// [`Error::Kernel`] without TCX; [`Error::Bpf`] if the kernel refuses otherwise. Nothing is attached then.
    pub fn attach(&mut self) -> Result<()> {
        let attach = |direction: Direction, interface| {
            attach_tcx(&self.program(direction)?, interface, Hook::Ingress).map_err(named)
        };
        let out = attach(Direction::Out, self.links.container)?;
        // Dropped in this order: at the end, too, nothing comes in without the way back.
        self.attached = vec![attach(Direction::In, self.links.outer)?, out];
        Ok(())
    }

    /// Whether both programs are where they were attached: an interface that is gone took its program along.
    ///
    /// # Errors
    /// If the kernel does not tell.
    pub fn is_attached(&self) -> Result<bool> {
        Ok(are_attached(&self.attached)?)
    }

    /// Returns the counters since the load.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn status(&self) -> Result<Status> {
        counted(&self.object.map("counts")?)
    }

    /// Memory of all its tables, bytes.
    pub(crate) fn memory_bytes(&self) -> Result<u64> {
        let of = |name: &&str| Ok(self.object.map(name)?.memory_bytes()?);
        TABLES.iter().map(of).sum()
    }

    /// For the names in a BPF file system, by which it outlives this process.
    pub(crate) fn object(&self) -> &Object {
        &self.object
    }

    /// Runs a program `repeat` times on a packet that begins with its Ethernet header; nothing is sent. The packet is counted.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn run(&self, direction: Direction, packet: &[u8], repeat: u32) -> Result<TestRun> {
        Ok(test_run(&self.program(direction)?, packet, 0, repeat)?)
    }

    /// The same once, with a super-packet that is cut into segments of that many bytes when it leaves.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn run_super(&self, direction: Direction, packet: &[u8], segment: u32) -> Result<TestRun> {
        Ok(test_run_super(&self.program(direction)?, packet, segment)?)
    }

    pub(crate) fn program(&self, direction: Direction) -> Result<ProgramFd> {
        Ok(self.object.program(direction.program())?)
    }
}

/// With the networks that the containers are in, by the addresses of the interface that leads there.
fn config(links: Links, mappings: &[Mapping]) -> Result<WeirConfig> {
    let Links { outer, container, bridge } = links;
    let all = Rtnetlink::open()?.links()?;
    let addresses = all.iter().find(|link| link.index == bridge).map(|link| link.addresses.as_slice());
    let network = |ipv6: bool| {
        let ends = || mappings.iter().map(|m| m.container.ip()).filter(|end| end.is_ipv6() == ipv6);
        let own = addresses.unwrap_or_default().iter().copied();
        own.filter(|(address, _)| address.is_ipv6() == ipv6)
            .find(|network| ends().any(|end| within(end, *network)))
    };
    let mut config = WeirConfig {
        outer,
        container,
        bridge,
        inside4: u32::MAX,
        mask4: u32::MAX,
        inside6: [u32::MAX; 4],
        mask6: [u32::MAX; 4],
    };
    if let Some((IpAddr::V4(address), prefix)) = network(false) {
        config.mask4 = u32::MAX.checked_shl(32 - u32::from(prefix)).unwrap_or(0).to_be();
        config.inside4 = u32::from_ne_bytes(address.octets()) & config.mask4;
    }
    if let Some((IpAddr::V6(address), prefix)) = network(true) {
        let mask = u128::MAX.checked_shl(128 - u32::from(prefix)).unwrap_or(0);
        config.mask6 = words(mask.into());
        config.inside6 = words((u128::from(address) & mask).into());
    }
    Ok(config)
}

/// Reads the counters from the programs' table.
pub(crate) fn counted(counts: &Map) -> Result<Status> {
    let mut status = Status::default();
    for (at, by_cpu) in counts.all_by_cpu::<u32, WeirCount>()? {
        let packets = by_cpu.iter().map(|c| c.packets).sum();
        let bytes = by_cpu.iter().map(|c| c.bytes).sum();
        let at = at as usize;
        if at == 2 * Reason::ALL.len() {
            status.asked = Count { packets, bytes };
        } else if packets > 0 {
            let direction = if at < Reason::ALL.len() { Direction::In } else { Direction::Out };
            let reason = Reason::ALL[at % Reason::ALL.len()];
            status.reasons.push((direction, reason, Count { packets, bytes }));
        }
    }
    order::by_key(&mut status.reasons, |r| (r.0, r.1));
    Ok(status)
}

/// Whether this kernel can do it at all, and with IPv6, too. Nothing is attached to anything.
pub(crate) fn kernel_knows_ipv6() -> Result<bool> {
    // Numbers of interfaces that are asked for by packets only, and an address for documentation (RFC 5737).
    let links = Links { outer: 1, container: 2, bridge: 2 };
    let mapping = "192.0.2.1:9=192.0.2.2:9/tcp".parse().map_err(Error::Mapping)?;
    let publish = Publish::load(&[mapping], links)?;
    match attach_tcx(&publish.program(Direction::In)?, NO_INTERFACE, Hook::Ingress) {
        // A kernel with the hook looks for the interface, one without does not know what is meant.
        Err(e) if e.raw_os_error() != Some(NO_DEVICE) => Err(named(e)),
        _ => Ok(publish.object.confirms("knows_ipv6")?),
    }
}

/// No interface has this number: they are counted from 1.
const NO_INTERFACE: u32 = i32::MAX as u32;
/// ENODEV.
const NO_DEVICE: i32 = 19;
const ERANGE: i32 = 34;

fn fill<K: Plain + Copy, V: Plain + Copy>(map: &Map, entries: &[(K, V)]) -> Result<()> {
    Ok(map.insert(entries.iter().copied())?)
}

/// Says what the kernel lacks, where its own words do not.
pub(crate) fn named(error: weir_bpf::Error) -> Error {
    match &error {
        // libbpf's and the verifier's words for a helper that is not there.
        weir_bpf::Error::Refused { words, .. }
            if words.contains("unknown func") || words.contains("invalid func") =>
        {
            Error::Kernel(NEEDS_HELPER)
        }
        // bpf_mprog_max (include/linux/bpf_mprog.h).
        weir_bpf::Error::Refused { what, source, .. }
            if what.starts_with("attach ") && source.raw_os_error() == Some(ERANGE) =>
        {
            Error::Nothing(format!(
                "cannot {what}: it has 63 programs, and the kernel takes no more; one is needed there for each container"
            ))
        }
        _ => error.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_lacks_is_named() {
        let refused = |what: &str, errno, words: &str| weir_bpf::Error::Refused {
            what: what.into(),
            source: std::io::Error::from_raw_os_error(errno),
            words: words.into(),
        };
        // From Linux 5.4: the verifier's last line. EINVAL is 22, EBUSY 16.
        let helper = named(refused("load BPF object publish", 22, ": unknown func bpf_redirect_peer#155"));
        assert!(helper.to_string().contains("Linux 5.10"), "{helper}");
        assert!(matches!(named(refused("attach publish_in to interface 3", 16, "")), Error::Bpf(_)));
    }
}
