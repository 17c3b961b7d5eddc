//! Retransmissions and resets.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use weir_bpf::{Btf, Object};
use weir_text::order;

use super::shared::{
    WEIR_RESET_RECEIVED, WEIR_RESET_SENT, WEIR_RETRANSMIT, WEIR_RETRANSMIT_SYNACK, WeirFlow, WeirFlowSum,
    WeirLost,
};
use super::{FLOWS, REST, Room, Running};
use crate::evidence::{Evidence, FlowEvent, FlowEventKind, Sight, Tuple};

/// Programs, and the tracepoints that they hang on.
const PROGRAMS: &[(&str, &str)] = &[
    ("retransmit", "tcp_retransmit_skb"),
    ("reset_sent", "tcp_send_reset"),
    ("reset_received", "tcp_receive_reset"),
    ("retransmit_synack", "tcp_retransmit_synack"),
];

/// Loads and attaches those whose tracepoints this kernel has.
pub(super) fn begin(btf: &Btf, room: Room) -> Result<(Running, Sight), String> {
    let (here, absent): (Vec<_>, Vec<_>) =
        PROGRAMS.iter().partition(|(_, point)| btf.tracepoint_arguments(point).is_some());
    let missing: Vec<&str> = absent.iter().map(|(_, point)| *point).collect();
    if here.is_empty() {
        return Err(format!("this kernel lacks the tracepoints {}", missing.join(", ")));
    }
    let programs: Vec<&str> = here.iter().map(|(program, _)| *program).collect();
    let left_out: Vec<&str> = absent.iter().map(|(program, _)| *program).collect();
    let running = load(&left_out, room)
        .and_then(|object| Running::attach(object, &programs))
        .map_err(|e| e.to_string())?;
    let sight = if missing.is_empty() {
        Sight::Seen
    } else {
        Sight::Partly(format!("this kernel lacks the tracepoints {}", missing.join(", ")))
    };
    Ok((running, sight))
}

fn load(left_out: &[&str], room: Room) -> Result<Object, weir_bpf::Error> {
    let mut loader = weir_bpf::Loader::unpack("flows", FLOWS)?;
    loader.entries("flows", room.connections)?;
    loader.entries("rest", REST)?;
    for program in left_out {
        loader.without(program)?;
    }
    loader.load()
}

/// Reads what was counted.
pub(super) fn read(object: &Object, evidence: &mut Evidence) -> Result<(), weir_bpf::Error> {
    let mut events = Vec::new();
    for table in ["flows", "rest"] {
        let entries = object.map(table)?.all::<WeirFlow, WeirFlowSum>()?;
        events.extend(entries.iter().filter_map(|(flow, sum)| event(flow, sum)));
    }
    let lost = object.map("lost")?.all_by_cpu::<u32, WeirLost>()?;
    evidence.cost.events_lost += lost.iter().flat_map(|(_, by_cpu)| by_cpu).map(|l| l.packets).sum::<u64>();
    order::by_key(&mut events, |e| std::cmp::Reverse(e.times));
    evidence.flows = events;
    Ok(())
}

fn event(flow: &WeirFlow, sum: &WeirFlowSum) -> Option<FlowEvent> {
    let kind = match u64::from(flow.kind) {
        WEIR_RETRANSMIT => FlowEventKind::Retransmit,
        WEIR_RESET_SENT => FlowEventKind::ResetSent,
        WEIR_RESET_RECEIVED => FlowEventKind::ResetReceived,
        WEIR_RETRANSMIT_SYNACK => FlowEventKind::RetransmitSynAck,
        _ => return None,
    };
    Some(FlowEvent {
        namespace: flow.netns.into(),
        kind,
        tuple: tuple(flow),
        state: flow.state,
        times: sum.times,
        largest_bytes: sum.largest,
        smallest_bytes: sum.smallest,
    })
}

fn tuple(flow: &WeirFlow) -> Option<Tuple> {
    let address = |words: [u32; 4]| -> Option<IpAddr> {
        match i32::from(flow.family) {
            libc::AF_INET => Some(Ipv4Addr::from(words[0].to_ne_bytes()).into()),
            libc::AF_INET6 => {
                let mut bytes = [0; 16];
                for (to, word) in bytes.chunks_mut(4).zip(words) {
                    to.copy_from_slice(&word.to_ne_bytes());
                }
                Some(Ipv6Addr::from(bytes).to_canonical())
            }
            _ => None,
        }
    };
    Some(Tuple {
        source: address(flow.source)?,
        destination: address(flow.destination)?,
        protocol: libc::IPPROTO_TCP as u8,
        source_port: u16::from_be(flow.source_port),
        destination_port: u16::from_be(flow.destination_port),
    })
}
