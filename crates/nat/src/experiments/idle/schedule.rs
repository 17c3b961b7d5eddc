//! The order of all packets: mappings are opened while others are left alone, since on a long path opening them all takes minutes.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::io;
use std::time::Duration;

use super::known::Asked;
use super::opened::{Mappings, exchange, known_by, open_for, question};
use super::{Purpose, Wanted, held};
use crate::session::Session;
use crate::{Arrival, Side};

/// Linux treats a UDP exchange as a stream, with a longer timeout, once it has lasted two seconds
/// (net/netfilter/nf_conntrack_proto_udp.c); others may do so after a number of packets.
const STREAM: Duration = Duration::from_millis(2_200);

/// Something that is sent to a mapping at its time.
struct Step {
    mapping: usize,
    wanted: Wanted,
    act: Act,
}

#[derive(Debug, Clone, Copy, PartialEq)]
enum Act {
    /// One more packet each way, after which it is left alone.
    Exchange,
    /// A packet that may start its time anew.
    Refresh,
    /// The packet that asks whether it is there.
    Ask,
}

/// Mappings to open, and steps to take.
#[derive(Default)]
pub(super) struct Schedule {
    /// The next one last.
    wanted: Vec<Wanted>,
    mappings: Mappings,
    steps: Vec<Step>,
    /// When steps that were not taken are due.
    due: BinaryHeap<Reverse<(Duration, usize)>>,
    asked: Vec<Asked>,
    /// Which of them a packet belongs to.
    by_data: HashMap<Vec<u8>, usize>,
    /// When mappings were refreshed, at the earliest and at the latest.
    refreshed: HashMap<usize, (Duration, Duration)>,
}

impl Schedule {
    /// In this order.
    pub(super) fn of(mut wanted: Vec<Wanted>) -> Self {
        wanted.reverse();
        Schedule { wanted, ..Schedule::default() }
    }

    /// Takes the step that is due, or else opens the next mapping, or else waits for the next step. False: nothing is left.
    pub(super) fn go_on(&mut self, session: &mut Session<'_>) -> io::Result<bool> {
        let next = self.due.peek().map(|Reverse((due, _))| *due);
        if next.is_none_or(|due| due > session.now())
            && let Some(wanted) = self.wanted.pop()
        {
            self.open(session, wanted)?;
            return Ok(true);
        }
        let Some(Reverse((due, step))) = self.due.pop() else { return Ok(false) };
        session.pass(due)?;
        self.take(session, step)?;
        Ok(true)
    }

    /// Notes which of the packets that asked these arrivals answer.
    pub(super) fn note(&mut self, arrivals: &[Arrival]) {
        for arrival in arrivals {
            let Some(n) = known_by(arrival).and_then(|data| self.by_data.get(&data)) else { continue };
            let asked = &mut self.asked[*n];
            match arrival.side {
                // The port may belong to another mapping by now.
                Side::Inside => asked.alive |= arrival.packet.to().is_none_or(|to| to == asked.inside),
                Side::Outside => asked.ports.1 = arrival.packet.from(),
            }
        }
    }

    /// The packets that asked so far.
    pub(super) fn asked(&self) -> &[Asked] {
        &self.asked
    }

    /// The purposes of what is still to be sent.
    pub(super) fn rest(&self) -> Vec<Purpose> {
        let due = self.due.iter().map(|Reverse((_, step))| self.steps[*step].wanted.purpose);
        due.chain(self.wanted.iter().map(|wanted| wanted.purpose)).collect()
    }

    fn open(&mut self, session: &mut Session<'_>, wanted: Wanted) -> io::Result<()> {
        session.about(wanted.purpose.rows());
        let base = wanted.purpose.base();
        let Some(mapping) = self.mappings.open(base, || open_for(session, wanted.purpose))? else {
            return Ok(());
        };
        match wanted.purpose {
            Purpose::Answered => self.plan(mapping, wanted, Act::Exchange, STREAM),
            Purpose::Held(_, at) => {
                self.plan(mapping, wanted, Act::Refresh, Duration::from_secs_f64(at));
                self.plan(mapping, wanted, Act::Ask, wanted.time);
            }
            purpose if purpose.is_of_other_host() => {
                self.mappings[mapping].inside.set_ip(session.inside(1));
                self.plan(mapping, wanted, Act::Ask, wanted.time);
            }
            _ => self.plan(mapping, wanted, Act::Ask, wanted.time),
        }
        Ok(())
    }

    /// Plans a step so long after the last packet of a mapping.
    fn plan(&mut self, mapping: usize, wanted: Wanted, act: Act, after: Duration) {
        self.due.push(Reverse((self.mappings[mapping].last + after, self.steps.len())));
        self.steps.push(Step { mapping, wanted, act });
    }

    fn take(&mut self, session: &mut Session<'_>, step: usize) -> io::Result<()> {
        let Step { mapping: number, wanted, act } = self.steps[step];
        session.about(wanted.purpose.rows());
        if act == Act::Exchange {
            exchange(session, &mut self.mappings[number])?;
            self.plan(number, wanted, Act::Ask, wanted.time);
            return Ok(());
        }
        let mapping = &self.mappings[number];
        let asks_from = if wanted.purpose.is_of_other_host() { Side::Inside } else { Side::Outside };
        let (side, packet, data) = match wanted.purpose {
            Purpose::Held(hold, _) if act == Act::Refresh => {
                (hold.side(), held::packet(session, mapping, hold), Vec::new())
            }
            _ => {
                let (packet, data) = question(session, mapping, asks_from);
                (asks_from, packet, data)
            }
        };
        let before = session.now();
        for _ in 0..session.attempts() {
            session.send_only(side, &packet)?;
        }
        let times = (before.saturating_sub(mapping.last), session.now().saturating_sub(mapping.sent));
        if act == Act::Refresh {
            self.refreshed.insert(number, times);
            return Ok(());
        }
        self.by_data.insert(data, self.asked.len());
        self.asked.push(Asked {
            purpose: wanted.purpose,
            times,
            refreshed: self.refreshed.get(&number).copied(),
            alive: false,
            inside: mapping.inside,
            ports: (mapping.seen, None),
        });
        Ok(())
    }
}
