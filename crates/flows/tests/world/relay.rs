//! A router that holds packets: for a time, and some of them longer, so that later ones overtake them.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::io::PipeWriter;
use std::os::fd::AsFd;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use weir_netlink::nfqueue::Queue;
use weir_sys::NetNs;
use weir_sys::sched::go_first;

use super::sh;

/// How long packets are held.
#[derive(Debug, Clone, Copy)]
pub struct Hold {
    pub each: Duration,
    /// One in so many is held longer; 0: none.
    pub one_in: u32,
    pub longer: Duration,
}

/// Runs until it is dropped.
pub struct Relay {
    bell: Option<PipeWriter>,
    thread: Option<JoinHandle<()>>,
}

impl Relay {
    /// Holds the packets of one direction: those that come in by that interface.
    pub fn start(ns: &NetNs, ipv6: bool, interface: &str, hold: Hold) -> Relay {
        let program = if ipv6 { "ip6tables" } else { "iptables" };
        let (bell, writer) = std::io::pipe().unwrap();
        let mut queue = ns.run(|| Queue::open(1, false).unwrap()).unwrap();
        sh(ns, &format!("{program} -A FORWARD -i {interface} -j NFQUEUE --queue-num 1"));
        let thread = std::thread::spawn(move || {
            // Packets are held as long as the test says, whatever else the machine does.
            go_first().unwrap();
            let mut random = ChaCha8Rng::seed_from_u64(1);
            let mut waiting: BinaryHeap<Reverse<(Instant, u32)>> = BinaryHeap::new();
            loop {
                let wait = waiting.peek().map(|w| w.0.0.saturating_duration_since(Instant::now()));
                // A closed pipe rings at once, and for ever.
                if bell_is_closed(&bell) {
                    return;
                }
                let wait = wait.unwrap_or(Duration::from_millis(20)).min(Duration::from_millis(20));
                queue
                    .receive(Some(wait), bell.as_fd(), |packet| {
                        let longer = hold.one_in > 0 && random.random_range(0..hold.one_in) == 0;
                        let due =
                            Instant::now() + hold.each + if longer { hold.longer } else { Duration::ZERO };
                        waiting.push(Reverse((due, packet.number)));
                    })
                    .unwrap();
                let now = Instant::now();
                let mut due = Vec::new();
                while waiting.peek().is_some_and(|w| w.0.0 <= now) {
                    due.extend(waiting.pop().map(|w| w.0.1));
                }
                queue.accept_each(&due).unwrap();
            }
        });
        Relay { bell: Some(writer), thread: Some(thread) }
    }
}

fn bell_is_closed(bell: &impl AsFd) -> bool {
    let mut one = [rustix::event::PollFd::new(bell, rustix::event::PollFlags::empty())];
    let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
    rustix::event::poll(&mut one, Some(&now)).unwrap() > 0
}

impl Drop for Relay {
    fn drop(&mut self) {
        drop(self.bell.take());
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}
