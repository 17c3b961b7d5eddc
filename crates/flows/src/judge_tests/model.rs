//! A sender, a gateway and a receiver in discrete time: which packets pass the gateway, and what was lost where.

use std::cmp::Reverse;
use std::collections::{BTreeSet, BinaryHeap};

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use weir_bpf::Plain;

use crate::shared::{WEIR_HAS_SACK, WEIR_HAS_SACKS, WEIR_HAS_STAMP, WeirPacket};

/// Payload of a segment.
const LENGTH: u32 = 1000;
const SYN: u8 = 2;
const ACK: u8 = 16;
/// A sender without an answer waits so long (TCP_RTO_MIN).
const TIMEOUT_US: u64 = 200_000;

/// A path and its faults. Times are one way.
#[derive(Debug, Clone)]
pub(super) struct Path {
    pub(super) seed: u64,
    pub(super) segments: u32,
    pub(super) window: u32,
    /// The window that the receiver announces, bytes.
    pub(super) receive_window: u16,
    pub(super) before_us: u64,
    pub(super) behind_us: u64,
    pub(super) lost_before: f64,
    pub(super) lost_behind: f64,
    /// Losses come in runs of so many.
    pub(super) burst: u32,
    /// Share of acknowledgements that are lost before the gateway, on their way to the sender.
    pub(super) lost_answers: f64,
    pub(super) late_before: f64,
    pub(super) late_behind: f64,
    pub(super) late_us: u64,
    /// So many in a row are late before the gateway.
    pub(super) late_run: u32,
    pub(super) stamps: bool,
    pub(super) first_number: u32,
}

/// Counts of everything that happened.
#[derive(Debug, Clone, Default)]
pub(super) struct Truth {
    /// First copies lost before the gateway that left a gap.
    pub(super) lost_before: u64,
    /// Copies lost behind it.
    pub(super) lost_behind: u64,
    /// Copies that passed although the receiver had the segment or got it by an earlier copy.
    pub(super) needless: u64,
    /// Copies that passed the gateway.
    pub(super) passed: u64,
    /// A segment was overtaken.
    pub(super) overtaken: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Event {
    /// A copy of a segment at the gateway; when it was sent.
    Passes(u32, u64),
    /// The same at the receiver.
    Arrives(u32, u64),
    /// An answer at the gateway: the number of its record.
    AnswerPasses(usize),
    AnswerArrives(usize),
    /// The sender looks for an answer.
    Timeout(u64),
}

#[derive(Debug, Clone, Copy)]
struct Answer {
    /// The next segment that the receiver lacks.
    next: u32,
    /// The segment that it answers, and when that copy was sent.
    to: u32,
    sent: u64,
    twice: bool,
    /// The range of segments around it, from..to.
    block: (u32, u32),
    echo: u64,
    at: u64,
}

/// Losses in runs.
struct Faults {
    random: ChaCha8Rng,
    left: u32,
}

impl Faults {
    fn new(seed: u64) -> Self {
        Faults { random: ChaCha8Rng::seed_from_u64(seed), left: 0 }
    }

    fn happens(&mut self, share: f64) -> bool {
        self.random.random_bool(share)
    }

    fn loses(&mut self, share: f64, burst: u32) -> bool {
        if self.left > 0 {
            self.left -= 1;
            return true;
        }
        let begins = self.happens(share / f64::from(burst));
        if begins {
            self.left = burst - 1;
        }
        begins
    }
}

struct Run<'a> {
    path: &'a Path,
    events: BinaryHeap<Reverse<(u64, u64, Event)>>,
    order: u64,
    now: u64,
    before: Faults,
    behind: Faults,
    late: Faults,
    packets: Vec<WeirPacket>,
    truth: Truth,
    answers: Vec<Answer>,
    // The sender.
    unsent: u32,
    free_at: u64,
    acked: BTreeSet<u32>,
    all_acked: u32,
    sent_at: Vec<u64>,
    /// Answers that reached it: when, and when they were sent.
    heard: Vec<(u64, u64)>,
    newest_delivered: u64,
    progress: u64,
    // The gateway.
    seen: BTreeSet<u32>,
    highest: Option<u32>,
    lost_first: BTreeSet<u32>,
    // The receiver.
    has: BTreeSet<u32>,
    next: u32,
    recent_stamp: u64,
}

impl Path {
    pub(super) fn run(&self) -> (Vec<WeirPacket>, Truth) {
        let mut run = Run {
            path: self,
            events: BinaryHeap::new(),
            order: 0,
            now: 1_000_000,
            before: Faults::new(3 * self.seed),
            behind: Faults::new(3 * self.seed + 1),
            late: Faults::new(3 * self.seed + 2),
            packets: Vec::new(),
            truth: Truth::default(),
            answers: Vec::new(),
            unsent: 0,
            free_at: 0,
            acked: BTreeSet::new(),
            all_acked: 0,
            sent_at: vec![0; self.segments as usize],
            heard: Vec::new(),
            newest_delivered: 0,
            progress: 0,
            seen: BTreeSet::new(),
            highest: None,
            lost_first: BTreeSet::new(),
            has: BTreeSet::new(),
            next: 0,
            recent_stamp: 0,
        };
        run.shake_hands();
        run.progress = run.now;
        run.send_more();
        run.at(TIMEOUT_US, Event::Timeout(run.progress));
        while let Some(Reverse((at, _, event))) = run.events.pop() {
            run.now = at;
            run.handle(event);
        }
        assert_eq!(run.next, self.segments, "the model came to its end");
        run.truth.needless = run.truth.passed - u64::from(self.segments) - run.truth.lost_behind;
        (run.packets, run.truth)
    }
}

impl Run<'_> {
    fn at(&mut self, after: u64, event: Event) {
        self.order += 1;
        self.events.push(Reverse((self.now + after, self.order, event)));
    }

    fn number(&self, segment: u32) -> u32 {
        (self.path.first_number + 1).wrapping_add(segment.wrapping_mul(LENGTH))
    }

    /// A packet at the gateway, without data.
    fn packet(&self, side: u8, flags: u8, sent: u64, echo: u64) -> WeirPacket {
        let (seq, ack) = if side == 0 { (self.number(0), 1) } else { (1, self.number(0)) };
        WeirPacket {
            now: self.now * 1000,
            seq,
            ack,
            bytes: 40,
            segments: 1,
            side,
            window: self.path.receive_window,
            flags,
            stamp: (sent / 1000) as u32,
            echo: (echo / 1000) as u32,
            has: if self.path.stamps { WEIR_HAS_STAMP as u32 } else { 0 },
            ..WeirPacket::zeroed()
        }
    }

    fn shake_hands(&mut self) {
        let (before, behind) = (self.path.before_us, self.path.behind_us);
        let mut syn = self.packet(0, SYN, self.now - before, 0);
        syn.seq = self.path.first_number;
        self.packets.push(syn);
        self.now += 2 * behind;
        let mut answer = self.packet(1, SYN | ACK, self.now - behind, self.now - 2 * behind - before);
        (answer.seq, answer.ack) = (0, self.number(0));
        self.heard.push((self.now, self.now - behind));
        self.packets.push(answer);
        self.now += 2 * before;
        self.packets.push(self.packet(0, ACK, self.now - before, self.now - 2 * before - behind));
    }

    fn send(&mut self, segment: u32) {
        // A packet takes 10 us to send.
        self.free_at = self.free_at.max(self.now) + 10;
        let sent = self.free_at;
        self.sent_at[segment as usize] = sent;
        if self.before.loses(self.path.lost_before, self.path.burst) {
            if !self.seen.contains(&segment) {
                self.lost_first.insert(segment);
            }
            return;
        }
        let late =
            if self.late.loses(self.path.late_before, self.path.late_run) { self.path.late_us } else { 0 };
        self.at(sent - self.now + self.path.before_us + late, Event::Passes(segment, sent));
    }

    fn send_more(&mut self) {
        while self.unsent < self.path.segments && self.unsent - self.all_acked < self.path.window {
            self.send(self.unsent);
            self.unsent += 1;
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Passes(segment, sent) => self.pass(segment, sent),
            Event::Arrives(segment, sent) => self.arrive(segment, sent),
            Event::AnswerPasses(at) => self.pass_answer(at),
            Event::AnswerArrives(at) => self.learn(at),
            Event::Timeout(progress) => self.look(progress),
        }
    }

    fn pass(&mut self, segment: u32, sent: u64) {
        let heard = self.heard.partition_point(|(when, _)| *when <= sent);
        let mut packet = self.packet(0, ACK, sent, self.heard[heard.saturating_sub(1)].1);
        packet.seq = self.number(segment);
        packet.length = LENGTH;
        packet.bytes += LENGTH;
        self.packets.push(packet);
        self.truth.passed += 1;
        if self.highest.is_some_and(|highest| segment < highest) && self.seen.insert(segment) {
            if self.lost_first.contains(&segment) {
                self.truth.lost_before += 1;
            } else {
                self.truth.overtaken = true;
            }
        }
        self.seen.insert(segment);
        self.highest = self.highest.max(Some(segment));
        if self.behind.loses(self.path.lost_behind, self.path.burst) {
            // A copy of what the receiver has is lost unnoticed.
            self.truth.lost_behind += u64::from(!self.has.contains(&segment));
            return;
        }
        let late = if self.late.happens(self.path.late_behind) { self.path.late_us } else { 0 };
        self.at(self.path.behind_us + late, Event::Arrives(segment, sent));
    }

    fn arrive(&mut self, segment: u32, sent: u64) {
        let twice = !self.has.insert(segment);
        self.truth.overtaken |= self.has.iter().next_back().is_some_and(|last| *last > segment)
            && !twice
            && self.path.late_behind > 0.0;
        if segment <= self.next {
            self.recent_stamp = self.recent_stamp.max(sent);
        }
        while self.has.contains(&self.next) {
            self.next += 1;
        }
        let (mut from, mut to) = (segment, segment + 1);
        while from > self.next && self.has.contains(&(from - 1)) {
            from -= 1;
        }
        while self.has.contains(&to) {
            to += 1;
        }
        let answer = Answer {
            next: self.next,
            to: segment,
            sent,
            twice,
            block: (from, to),
            echo: self.recent_stamp,
            at: self.now,
        };
        self.answers.push(answer);
        self.at(self.path.behind_us, Event::AnswerPasses(self.answers.len() - 1));
    }

    fn pass_answer(&mut self, at: usize) {
        let answer = self.answers[at];
        let mut packet = self.packet(1, ACK, answer.at, answer.echo);
        packet.ack = self.number(answer.next);
        let mut blocks = Vec::new();
        if answer.twice {
            blocks.push((answer.to, answer.to + 1));
        }
        if answer.block.0 > answer.next {
            blocks.push(answer.block);
        }
        for (n, (from, to)) in blocks.iter().enumerate() {
            packet.sack[2 * n] = self.number(*from);
            packet.sack[2 * n + 1] = self.number(*to);
            packet.has |= if n == 0 { WEIR_HAS_SACK } else { WEIR_HAS_SACKS } as u32;
        }
        self.packets.push(packet);
        if !self.late.happens(self.path.lost_answers) {
            self.at(self.path.before_us, Event::AnswerArrives(at));
        }
    }

    /// The sender takes what was sent before something that has arrived for lost.
    fn learn(&mut self, at: usize) {
        let answer = self.answers[at];
        self.heard.push((self.now, answer.at));
        let mut news: Vec<u32> = (self.all_acked..answer.next).collect();
        news.extend(answer.block.0..answer.block.1);
        let before = (self.acked.len(), self.all_acked);
        self.acked.extend(news.iter().filter(|s| **s < self.path.segments));
        self.all_acked = self.all_acked.max(answer.next);
        if before != (self.acked.len(), self.all_acked) {
            self.progress = self.now;
            self.at(TIMEOUT_US, Event::Timeout(self.progress));
        }
        self.newest_delivered = self.newest_delivered.max(answer.sent);
        let lost: Vec<u32> = (self.all_acked..self.unsent)
            .filter(|s| !self.acked.contains(s) && self.sent_at[*s as usize] < self.newest_delivered)
            .collect();
        for segment in lost {
            self.send(segment);
        }
        self.send_more();
    }

    fn look(&mut self, progress: u64) {
        if progress != self.progress || self.all_acked >= self.path.segments {
            return;
        }
        let first = (self.all_acked..self.unsent).find(|s| !self.acked.contains(s));
        if let Some(first) = first {
            self.send(first);
        }
        self.progress = self.now;
        self.at(TIMEOUT_US, Event::Timeout(self.progress));
    }
}
