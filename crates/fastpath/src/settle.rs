//! Learning on a kernel without conntrack's functions for BPF. A program writes an entry that carries nothing yet; then conntrack is asked
//! by ctnetlink, and the answer makes the entry valid or removes it. The order matters: a packet of another owner of the ports removes the
//! entry, or changes its state, whether it comes before the question or after it.

use weir_netlink::conntrack::{Conntrack, Entry, Status, Tuple};

use crate::direction::tuple;
use crate::resident::ESTABLISHED;
use crate::shared::{WeirIdle, WeirProposal, WeirSettlement};
use crate::{Fastpath, Lesson, Result};

const TCP: u8 = 6;

/// Marks of connections of which some other part of the kernel must see each packet, as nf_flow_table asks it
/// (net/netfilter/nft_flow_offload.c).
const SPECIAL: [Status; 6] = [
    Status::EXPECTED,
    Status::SEQUENCE_ADJUSTED,
    Status::HELPER,
    Status::OFFLOAD,
    Status::HARDWARE_OFFLOAD,
    Status::NAT_CLASH,
];

/// The meaning of conntrack's entry for a packet that came in as `flow` and will be answered as `answer`.
fn judged(flow: &Tuple, answer: &Tuple, entry: Option<&Entry>) -> Lesson {
    let Some(entry) = entry else { return Lesson::NoConnection };
    let is_it = [(entry.original, entry.reply), (entry.reply, entry.original)].contains(&(*flow, *answer));
    let has = |status| entry.status.has(status);
    if !is_it || entry.zone != 0 {
        Lesson::OtherPacket
    } else if has(Status::DYING) {
        Lesson::Unsettled
    } else if SPECIAL.into_iter().any(has) {
        Lesson::Special
    } else if flow.protocol == TCP && (!has(Status::ASSURED) || entry.state != Some(ESTABLISHED)) {
        Lesson::NotEstablished
    } else if flow.protocol != TCP && has(Status::SEEN_REPLY) && !has(Status::ASSURED) {
        // Its next packet may make a stream of it, and conntrack does not tell from when on.
        Lesson::Unsettled
    } else if flow.protocol == TCP && !entry.liberal {
        Lesson::Checked
    } else if entry.timeout_s.unwrap_or(0) < 1 {
        Lesson::ShortLived
    } else {
        Lesson::Learnt
    }
}

/// Whether conntrack must not check the connection's window any more, or must forget an acknowledgement that is too old to compare with.
fn is_to_be_loosened(lesson: Lesson, protocol: u8, proposal: &WeirProposal) -> bool {
    lesson == Lesson::Checked || (lesson == Lesson::Learnt && protocol == TCP && proposal.is_far != 0)
}

/// Asks conntrack about an entry, and tells the programs.
pub(crate) fn settle(fastpath: &Fastpath, conntrack: &mut Conntrack, proposal: &WeirProposal) -> Result<()> {
    fastpath.settle(&asked(conntrack, proposal, fastpath.control().hz)?)
}

/// The answer of conntrack about an entry; `hz`: ticks of a second.
fn asked(conntrack: &mut Conntrack, proposal: &WeirProposal, hz: u32) -> Result<WeirSettlement> {
    let answer = tuple(&proposal.answer);
    let entry = conntrack.get(&answer)?;
    let mut lesson = judged(&tuple(&proposal.flow), &answer, entry.as_ref());
    // As where programs ask (`learn`): a connection whose window was just loosened is not carried before conntrack has seen another packet,
    // and knows its last acknowledgement again. Without one, any reset would close it for conntrack.
    if let Some(entry) = &entry
        && is_to_be_loosened(lesson, answer.protocol, proposal)
        && !conntrack.be_liberal(entry)?
    {
        lesson = Lesson::NoConnection;
    }
    let entry = entry.unwrap_or_default();
    Ok(WeirSettlement {
        flow: proposal.flow,
        state: proposal.state,
        lesson: Lesson::ALL.iter().position(|l| *l == lesson).unwrap_or_default() as u32,
        timeout: entry.timeout_s.unwrap_or(0).saturating_mul(hz),
        one_way: (answer.protocol != TCP && !entry.status.has(Status::SEEN_REPLY)).into(),
    })
}

/// Conntrack's timeouts of TCP here, s. Those of a policy (`ct timeout`) are not told by ctnetlink.
#[derive(Debug, Clone, Copy)]
struct TcpTimeouts {
    established: u32,
    /// The one for data that were not acknowledged.
    unacknowledged: u32,
}

impl TcpTimeouts {
    /// Those of the calling thread's namespace.
    fn read() -> Option<Self> {
        let read = |name: &str| {
            let path = format!("/proc/sys/net/netfilter/nf_conntrack_tcp_timeout_{name}");
            std::fs::read_to_string(path).ok()?.trim().parse().ok()
        };
        Some(TcpTimeouts { established: read("established")?, unacknowledged: read("unacknowledged")? })
    }
}

/// The timeout that a connection needs so that it counts from the last packet that was carried, in whole seconds; `None` if it has a
/// longer one, is in another state, which has another timeout, or if conntrack has seen a later packet.
fn wanted(idle: &WeirIdle, entry: &Entry, hz: u32, tcp: Option<TcpTimeouts>) -> Option<u32> {
    let left = entry.timeout_s?;
    // The kernel refuses to change a fixed one.
    if entry.status.has(Status::FIXED_TIMEOUT) {
        return None;
    }
    let mut whole = idle.timeout.checked_div(hz)?;
    if u16::from(TCP) != idle.flow.protocol {
        // UDP without an answer is another connection, if the entry's had one.
        if idle.one_way == 0 && !entry.status.has(Status::SEEN_REPLY) {
            return None;
        }
    } else if entry.state != Some(ESTABLISHED) {
        return None;
    } else if let Some(tcp) = tcp {
        let whole_of = |unacknowledged: bool| match unacknowledged {
            true => tcp.established.min(tcp.unacknowledged),
            false => tcp.established,
        };
        if whole_of(entry.unacknowledged).saturating_sub(left) < idle.idle / hz {
            return None;
        }
        whole = whole_of(idle.unacknowledged != 0);
    }
    let wanted = whole.saturating_sub(idle.idle.div_ceil(hz));
    (wanted > left).then_some(wanted)
}

/// Renews conntrack's timeout of a flow that was carried and is idle now, by ctnetlink.
pub(crate) fn keep_idle(conntrack: &mut Conntrack, idle: &WeirIdle, hz: u32) -> Result<()> {
    if let Some(entry) = conntrack.get(&tuple(&idle.flow))?
        && let Some(seconds) = wanted(idle, &entry, hz.max(1), TcpTimeouts::read())
    {
        conntrack.set_timeout(&entry, seconds)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::os::fd::{AsFd, AsRawFd};
    use std::time::Duration;

    use weir_bpf::Plain;
    use weir_sys::NetNs;
    use weir_sys::privilege::test_needs_root;

    use super::*;
    use crate::shared::WeirDirection;
    use crate::{Options, Reason};

    fn udp_or_tcp(protocol: u8) -> (Tuple, Tuple) {
        let inside = Tuple { protocol, source_port: 4000, destination_port: 443, ..Tuple::default() };
        (inside, Tuple { source_port: 443, destination_port: 1025, ..inside })
    }

    fn entry(protocol: u8, status: Status) -> Entry {
        let (original, reply) = udp_or_tcp(protocol);
        Entry {
            original,
            reply,
            status,
            timeout_s: Some(120),
            state: (protocol == TCP).then_some(ESTABLISHED),
            liberal: protocol == TCP,
            ..Entry::default()
        }
    }

    #[test]
    fn only_what_conntrack_has_decided_for_good_is_learnt() {
        let (flow, answer) = udp_or_tcp(TCP);
        let known = entry(TCP, Status::ASSURED);
        let of = |entry: Entry| judged(&flow, &answer, Some(&entry));
        assert_eq!(of(known), Lesson::Learnt);
        assert_eq!(judged(&answer, &flow, Some(&known)), Lesson::Learnt, "the other direction");
        assert_eq!(judged(&flow, &answer, None), Lesson::NoConnection);
        assert_eq!(judged(&flow, &flow, Some(&known)), Lesson::OtherPacket);
        assert_eq!(of(Entry { zone: 1, ..known }), Lesson::OtherPacket);
        assert_eq!(of(Entry { status: Status(0), ..known }), Lesson::NotEstablished);
        assert_eq!(of(Entry { state: Some(4), ..known }), Lesson::NotEstablished);
        assert_eq!(of(Entry { liberal: false, ..known }), Lesson::Checked);
        assert_eq!(of(Entry { timeout_s: Some(0), ..known }), Lesson::ShortLived);
        for special in SPECIAL {
            let status = Status(Status::ASSURED.0 | special.0);
            assert_eq!(of(Entry { status, ..known }), Lesson::Special, "{special:?}");
        }
        assert_eq!(of(Entry { status: Status::DYING, ..known }), Lesson::Unsettled);
        let (flow, answer) = udp_or_tcp(17);
        let of = |status| judged(&flow, &answer, Some(&entry(17, status)));
        assert_eq!(of(Status(0)), Lesson::Learnt, "one way");
        assert_eq!(of(Status::SEEN_REPLY), Lesson::Unsettled, "no stream yet");
        assert_eq!(of(Status(Status::SEEN_REPLY.0 | Status::ASSURED.0)), Lesson::Learnt);
    }

    #[test]
    fn a_window_is_loosened_once_and_again_when_it_is_far_behind() {
        let proposal = |is_far| WeirProposal { is_far, ..WeirProposal::zeroed() };
        let of = |lesson, protocol, is_far| is_to_be_loosened(lesson, protocol, &proposal(is_far));
        assert!(of(Lesson::Checked, TCP, 0) && of(Lesson::Learnt, TCP, 1));
        assert!(!of(Lesson::Learnt, TCP, 0) && !of(Lesson::Learnt, 17, 1));
        assert!(!of(Lesson::NotEstablished, TCP, 1) && !of(Lesson::NoConnection, TCP, 1));
    }

    #[test]
    fn a_timeout_is_only_ever_made_longer_and_in_its_own_state() {
        let idle = |protocol: u16, one_way| WeirIdle {
            flow: WeirDirection { protocol, ..WeirDirection::zeroed() },
            timeout: 1000,
            idle: 250,
            one_way,
            unacknowledged: 0,
        };
        let left = |seconds, entry: Entry| Entry { timeout_s: Some(seconds), ..entry };
        let of = |idle: &WeirIdle, entry: Entry| wanted(idle, &entry, 10, None);
        let (tcp, udp) = (entry(TCP, Status::ASSURED), entry(17, Status::SEEN_REPLY));
        assert_eq!(of(&idle(6, 0), left(74, tcp)), Some(75));
        assert_eq!(of(&idle(6, 0), left(75, tcp)), None);
        assert_eq!(of(&idle(6, 0), Entry { state: Some(5), ..left(10, tcp) }), None);
        assert_eq!(of(&idle(17, 0), left(10, udp)), Some(75));
        assert_eq!(of(&idle(17, 0), left(10, entry(17, Status(0)))), None, "another connection");
        assert_eq!(of(&idle(17, 1), left(10, entry(17, Status(0)))), Some(75));
        let fixed = Entry { status: Status::FIXED_TIMEOUT, ..left(10, tcp) };
        assert_eq!(of(&idle(6, 0), fixed), None);
        assert_eq!(of(&WeirIdle { idle: 2000, ..idle(6, 0) }, left(0, tcp)), None);
        // Conntrack did not see the acknowledgement, and waits for less than it would have.
        let timeouts = Some(TcpTimeouts { established: 7440, unacknowledged: 300 });
        let of = |idle: &WeirIdle, left_s| wanted(idle, &left(left_s, tcp), 10, timeouts);
        let unacknowledged = WeirIdle { unacknowledged: 1, ..idle(6, 0) };
        assert_eq!((of(&idle(6, 0), 270), of(&unacknowledged, 270)), (Some(7415), Some(275)));
        assert_eq!(of(&unacknowledged, 400), None);
        // It waits for 300 s since ten seconds ago, and the last packet that was carried came 25 s ago.
        let later = Entry { unacknowledged: true, ..left(290, tcp) };
        assert_eq!(wanted(&idle(6, 0), &later, 10, timeouts), None);
        let before = Entry { unacknowledged: true, ..left(270, tcp) };
        assert_eq!(wanted(&idle(6, 0), &before, 10, timeouts), Some(7415));
    }

    /// A gateway between a client and a server, each with an address of UDP, and the fast path at its interfaces.
    struct Between {
        client: UdpSocket,
        server: UdpSocket,
        gateway: NetNs,
        fastpath: Fastpath,
    }

    impl Between {
        fn new() -> Self {
            let [client, gateway, server] = [(); 3].map(|()| NetNs::create().unwrap());
            sh(&gateway, "sysctl -q net.ipv4.ip_forward=1");
            for (name, ns, network) in [("in0", &client, "198.18.0"), ("out0", &server, "198.18.1")] {
                let peer = format!("/proc/{}/fd/{}", std::process::id(), ns.as_fd().as_raw_fd());
                let link = "type veth peer name e0 netns";
                sh(&gateway, &format!("ip link add {name} {link} {peer}; ip link set {name} up"));
                sh(&gateway, &format!("ip addr add {network}.1/24 dev {name}"));
                sh(ns, &format!("ip addr add {network}.2/24 dev e0; ip link set e0 up"));
                sh(ns, &format!("ip route add default via {network}.1"));
            }
            sh(
                &gateway,
                "nft 'add table ip t; add chain ip t f { type filter hook forward priority 0; }; \
                          add rule ip t f ct state invalid drop'",
            );
            let options =
                Options { connections: 1024, packets: 1, without_functions: true, ..Options::DEFAULT };
            let fastpath = gateway.run(|| {
                let fastpath = Fastpath::load(options).unwrap();
                ["in0", "out0"].into_iter().for_each(|name| fastpath.attach(name).unwrap());
                fastpath.renew().unwrap();
                fastpath
            });
            let udp = |ns: &NetNs, address: &str| {
                let socket = ns.run(|| UdpSocket::bind(address).unwrap()).unwrap();
                socket.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
                socket
            };
            let (client, server) = (udp(&client, "198.18.0.2:4000"), udp(&server, "198.18.1.2:443"));
            Between { client, server, gateway, fastpath: fastpath.unwrap() }
        }

        /// Sends a packet, which must arrive; whether it was carried.
        fn pass(&self, from: &UdpSocket, to: &UdpSocket) -> bool {
            let carried = || self.fastpath.status().unwrap().packets(Reason::Carried);
            let before = carried();
            self.fastpath.renew().unwrap();
            from.send_to(b"?", to.local_addr().unwrap()).unwrap();
            to.recv(&mut [0]).unwrap();
            carried() > before
        }
    }

    fn sh(ns: &NetNs, script: &str) {
        let mut command = std::process::Command::new("sh");
        command.args(["-ec", script]);
        ns.enter_on_spawn(&mut command);
        assert!(command.status().unwrap().success(), "{script}");
    }

    #[test]
    fn root_an_answer_that_comes_after_the_question_is_not_missed() {
        if test_needs_root() {
            return;
        }
        for (answered, carried) in [(false, true), (true, false)] {
            let between = Between::new();
            let (client, server) = (&between.client, &between.server);
            between
                .gateway
                .run(|| {
                    let mut proposals = between.fastpath.proposals().unwrap();
                    let mut conntrack = Conntrack::open().unwrap();
                    assert!(!between.pass(client, server));
                    let proposed = proposals.read().unwrap();
                    let [proposal] = proposed.as_slice() else { panic!("{} proposals", proposed.len()) };
                    let settlement = asked(&mut conntrack, proposal, between.fastpath.control().hz).unwrap();
                    assert_eq!((settlement.lesson, settlement.one_way), (Lesson::Learnt as u32, 1));
                    if answered {
                        // The second one does not take the mark of the first one away.
                        assert!(!between.pass(server, client) && !between.pass(server, client));
                    }
                    between.fastpath.settle(&settlement).unwrap();
                    assert_eq!(between.pass(client, server), carried, "answered: {answered}");
                })
                .unwrap();
        }
    }
}
