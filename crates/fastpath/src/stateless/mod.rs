//! Static translation of a prefix without connection tracking: 1:1, and /n to /n.
//!
//! Two programs do it, one at the ingress of each interface. They replace the prefix, correct the checksums, translate ICMP errors with
//! the packet that they quote, and send the packet out of the other interface. Nothing is remembered of a connection. Fragments are
//! translated like whole packets. They leave to the kernel: IP options, packets at their last hop or too long for their way, and
//! protocols whose checksum they cannot correct. Rules of the host must translate these as well.
//!
//! Translated packets bypass the host's rules, its connection tracking and its reverse-path filter. The programs live as long as the
//! value that holds them.

mod pair;

use weir_bpf::{
    Attached, Direction as Hook, Loader, Object, ProgramFd, TestRun, are_attached, attach_tcx, test_run,
    test_run_super,
};
use weir_netlink::Rtnetlink;

use crate::needs::named;
use crate::{Count, Error, Result};
pub use pair::PrefixPair;
use shared::{WEIR_STEPS, WeirTranslated};

/// Structs and constants that the programs in the kernel and this driver share.
#[allow(dead_code, unreachable_pub, reason = "made from the C header; each side uses its own part")]
mod shared {
    include!(concat!(env!("OUT_DIR"), "/translation.rs"));
}

/// The programs.
static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/stateless.bpf.z"));

const NEEDS_IPV6: &str = "BPF_F_IPV6 for IPv6 prefixes of more than 64 bits (Linux 6.16, or a stable series with the correction), \
                          which this kernel lacks";

/// The side that a packet comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The source is translated.
    Inside,
    /// The destination is translated.
    Outside,
}

impl Side {
    fn program(self) -> &'static str {
        match self {
            Side::Inside => "stateless_out",
            Side::Outside => "stateless_in",
        }
    }
}

weir_text::listed! {
    /// The fate of a packet. Untranslated packets were left to the kernel, except for [`Step::Failed`].
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub enum Step {
        /// It was translated and sent on.
        Translated,
        /// It is an ICMP error, and was translated with the packet that it quotes.
        TranslatedError,
        /// Not of the IP version of the prefixes.
        NotIp,
        /// It is not for this host by its Ethernet address, or has a VLAN tag.
        NotOurs,
        /// Shorter than its headers or than it says itself, or with a wrong header checksum.
        Malformed,
        /// IPv4 options or IPv6 extension headers other than a fragment's.
        Options,
        /// A fragment of an ICMP error.
        Fragment,
        /// Neither from nor to the prefix, or an error about a packet that is not.
        NotMapped,
        /// An address of the prefix that RFC 6296 cannot translate.
        NoImage,
        /// A protocol whose checksum or signature covers the addresses and is not known here (DCCP, UDP-Lite, AH), and neighbour discovery.
        OtherProtocol,
        /// Source or destination is no unicast address that may cross a router, or an inside source comes from outside.
        FalseAddress,
        /// It may not be forwarded any more (TTL or hop limit 1).
        LastHop,
        /// Longer than the way takes.
        TooBig,
        /// Its way does not lead out of the other interface.
        OtherWay,
        /// The host does not forward what comes in there: `net.ipv4.conf.INTERFACE.forwarding`, or that of `ipv6`.
        NoForwarding,
        /// The kernel refused to rewrite it (no memory): dropped.
        Failed,
    }
}

const _: () = assert!(Step::ALL.len() == WEIR_STEPS as usize);

/// The programs' counters. Segments that travel as one (GSO) are one packet.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StatelessStatus {
    /// By the side that packets come from, and step; those with none are left out.
    pub steps: Vec<(Side, Step, Count)>,
}

impl StatelessStatus {
    /// Packets from that side with that step.
    pub fn packets(&self, side: Side, step: Step) -> u64 {
        self.steps.iter().filter(|s| s.0 == side && s.1 == step).map(|s| s.2.packets).sum()
    }

    /// Packets that were translated in both directions, errors included.
    pub fn translated(&self) -> u64 {
        let is_done = |step| matches!(step, Step::Translated | Step::TranslatedError);
        self.steps.iter().filter(|s| is_done(s.1)).map(|s| s.2.packets).sum()
    }
}

/// A translation in the kernel. Dropping it detaches the programs.
#[derive(Debug)]
pub struct Stateless {
    object: Object,
    /// Inside and outside.
    interfaces: (u32, u32),
    attached: Vec<Attached>,
}

impl Stateless {
    /// Loads the programs for two interfaces of the calling thread's namespace, attached to nothing yet.
    ///
    /// # Errors
    /// [`Error::Interface`] for interfaces that are not there, are the same or have no Ethernet header; [`Error::Kernel`] if the kernel
    /// lacks something; [`Error::Bpf`] without privilege.
    pub fn load(pair: PrefixPair, inside: &str, outside: &str) -> Result<Self> {
        let interfaces = (interface(inside)?, interface(outside)?);
        if interfaces.0 == interfaces.1 {
            return Err(Error::Interface(format!("`{inside}` is both the inside and the outside")));
        }
        let mut loader = Loader::unpack("stateless", OBJECT)?;
        loader.config(&pair.config(interfaces.0, interfaces.1))?;
        let object = loader.load().map_err(named)?;
        let stateless = Stateless { object, interfaces, attached: Vec::new() };
        if pair.is_ipv6() && !pair.is_checksum_neutral() && !stateless.object.confirms("knows_ipv6")? {
            return Err(Error::Kernel(NEEDS_IPV6));
        }
        Ok(stateless)
    }

    /// Attaches both programs (TCX), behind those that are there; the one of the answers comes first.
    ///
    /// # Errors
    /// [`Error::Kernel`] without TCX; [`Error::Bpf`] if the kernel refuses otherwise. Nothing is attached then.
    pub fn attach(&mut self) -> Result<()> {
        let (inside, outside) = self.interfaces;
        let attach =
            |side: Side, interface| attach_tcx(&self.program(side)?, interface, Hook::Ingress).map_err(named);
        let from_outside = attach(Side::Outside, outside)?;
        // Dropped in this order.
        self.attached = vec![attach(Side::Inside, inside)?, from_outside];
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
    pub fn status(&self) -> Result<StatelessStatus> {
        let mut steps = Vec::new();
        for (at, by_cpu) in self.object.map("counts")?.all_by_cpu::<u32, WeirTranslated>()? {
            let packets = by_cpu.iter().map(|c| c.packets).sum();
            let bytes = by_cpu.iter().map(|c| c.bytes).sum();
            let at = at as usize;
            let side = if at < Step::ALL.len() { Side::Outside } else { Side::Inside };
            if packets > 0 {
                steps.push((side, Step::ALL[at % Step::ALL.len()], Count { packets, bytes }));
            }
        }
        Ok(StatelessStatus { steps })
    }

    /// Runs a program on a packet that begins with its Ethernet header; nothing is sent. The packet is counted.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn run(&self, side: Side, packet: &[u8], repeat: u32) -> Result<TestRun> {
        Ok(test_run(&self.program(side)?, packet, 0, repeat)?)
    }

    /// The same once, with a super-packet that is cut into segments of that many bytes when it leaves.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn run_super(&self, side: Side, packet: &[u8], segment: u32) -> Result<TestRun> {
        Ok(test_run_super(&self.program(side)?, packet, segment)?)
    }

    /// Instructions that the verifier looked at for a program: far below its limit of a million, or the kernel may refuse it.
    ///
    /// # Errors
    /// If the kernel does not tell (before 5.16).
    pub fn verified_instructions(&self, side: Side) -> Result<u32> {
        Ok(self.program(side)?.verified_instructions()?)
    }

    fn program(&self, side: Side) -> Result<ProgramFd> {
        Ok(self.object.program(side.program())?)
    }
}

/// The index of an interface whose packets begin with an Ethernet header.
fn interface(name: &str) -> Result<u32> {
    let links = Rtnetlink::open()?.links()?;
    let link = links.iter().find(|l| l.name == name);
    match link {
        None => Err(Error::Interface(format!("there is no interface `{}` here", name.escape_default()))),
        Some(link) if !link.has_ethernet_header() => Err(Error::Interface(format!(
            "interface `{}` has no Ethernet header (as WireGuard, tun, PPP and most tunnels)",
            name.escape_default()
        ))),
        Some(link) => Ok(link.index),
    }
}
