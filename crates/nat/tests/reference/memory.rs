//! The two ends of the reference NAT in memory: no packet takes time, and waiting moves the clock.

use std::collections::VecDeque;
use std::io;
use std::net::Ipv4Addr;
use std::time::Duration;

use weir_nat::{Arrival, Ends, Packet, Setting, Side};

use super::{Behaviour, Reference};

pub(crate) struct Memory {
    nat: Reference,
    setting: Setting,
    now: Duration,
    arrived: VecDeque<Arrival>,
}

impl Memory {
    pub(crate) fn new(behaviour: Behaviour, idle_limit: Duration) -> Self {
        let setting = Setting {
            inside: [Ipv4Addr::new(198, 18, 0, 10), Ipv4Addr::new(198, 18, 0, 11)],
            outside: [Ipv4Addr::new(198, 19, 0, 10), Ipv4Addr::new(198, 19, 0, 11)],
            patience: Duration::from_millis(20),
            attempts: 1,
            outside_mtu: Some(super::OUTSIDE_MTU),
            idle_limit,
        };
        Memory {
            nat: Reference::new(behaviour),
            setting,
            now: Duration::from_secs(1),
            arrived: VecDeque::new(),
        }
    }
}

impl Ends for Memory {
    fn setting(&self) -> &Setting {
        &self.setting
    }

    fn now(&self) -> Duration {
        self.now
    }

    fn send(&mut self, side: Side, packet: &Packet) -> io::Result<()> {
        // As on a wire: what has no sound header is no packet.
        let packet = Packet::read(&packet.bytes()).ok_or(io::ErrorKind::InvalidData)?;
        for (side, packet) in self.nat.handle(self.now, side, packet) {
            let packet = Packet::read(&packet.bytes()).ok_or(io::ErrorKind::InvalidData)?;
            self.arrived.push_back(Arrival { side, at: self.now, packet });
        }
        Ok(())
    }

    fn receive(&mut self, deadline: Duration) -> io::Result<Option<Arrival>> {
        if let Some(arrival) = self.arrived.pop_front() {
            return Ok(Some(arrival));
        }
        self.now = self.now.max(deadline);
        Ok(None)
    }
}
