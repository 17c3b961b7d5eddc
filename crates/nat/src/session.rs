//! One run of experiments: fresh ports, marked packets, and silence that is checked before it counts.

use std::io;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;

use crate::{Arrival, Ends, Packet, Setting, Side};

/// First inside port of an experiment. It is even, and above the ports of services.
const FIRST_PORT: u16 = 20_000;
/// Distance of ports of different experiments, so that a NAT that counts upwards does not meet the next one. Even.
const STEP: u16 = 16;
/// Port of the control packets, on both sides. No experiment uses it.
const CONTROL_PORT: u16 = 19_990;
/// Outside port of mappings that are left alone.
const IDLE_PORT: u16 = 19_980;
/// How often the control packets are sent before the path counts as dead.
const CONTROLS: u32 = 5;
/// How long each of them may take, in units of the setting's patience.
const CONTROL_PATIENCE: u32 = 20;
/// Beginning of the data of every packet.
const MARK: [u8; 4] = *b"wnat";

/// The fate of a packet.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Trip {
    /// The packet as it came out of the NAT; `None` if it did not.
    pub(crate) arrived: Option<Arrival>,
    /// Other packets that came out meanwhile: answers of the NAT itself.
    pub(crate) others: Vec<Arrival>,
    /// The path carried a control packet afterwards, if this one did not arrive.
    pub(crate) sure: bool,
}

impl Trip {
    /// The source that the packet had when it arrived.
    pub(crate) fn from(&self) -> Option<SocketAddrV4> {
        self.arrived.as_ref().and_then(|arrival| arrival.packet.from())
    }

    /// The destination that it had.
    pub(crate) fn to(&self) -> Option<SocketAddrV4> {
        self.arrived.as_ref().and_then(|arrival| arrival.packet.to())
    }

    /// It arrived, or its loss counts.
    pub(crate) fn is_sure(&self) -> bool {
        self.arrived.is_some() || self.sure
    }
}

/// Experiments over two ends.
pub(crate) struct Session<'a> {
    ends: &'a mut dyn Ends,
    serial: u32,
    next_port: u16,
}

impl<'a> Session<'a> {
    pub(crate) fn new(ends: &'a mut dyn Ends) -> Self {
        Session { ends, serial: 0, next_port: FIRST_PORT }
    }

    pub(crate) fn setting(&self) -> &Setting {
        self.ends.setting()
    }

    pub(crate) fn now(&self) -> Duration {
        self.ends.now()
    }

    /// An even port that no experiment has used.
    pub(crate) fn fresh_port(&mut self) -> u16 {
        let port = self.next_port;
        // Some thousands of experiments fit; a run has some hundreds.
        self.next_port = self.next_port.checked_add(STEP).unwrap_or(FIRST_PORT);
        port
    }

    /// A fresh port of the first inside host.
    pub(crate) fn fresh_inside(&mut self) -> SocketAddrV4 {
        SocketAddrV4::new(self.setting().inside[0], self.fresh_port())
    }

    /// One of the two outside addresses, with this port.
    pub(crate) fn outside(&self, which: usize, port: u16) -> SocketAddrV4 {
        SocketAddrV4::new(self.setting().outside[which], port)
    }

    /// The outside port of mappings that are left alone.
    pub(crate) fn idle_port(&self) -> u16 {
        IDLE_PORT
    }

    /// Data that no other packet has.
    pub(crate) fn data(&mut self) -> Vec<u8> {
        self.serial += 1;
        let mut data = MARK.to_vec();
        data.extend(self.serial.to_be_bytes());
        data
    }

    /// Sends a UDP datagram into the NAT.
    pub(crate) fn udp(&mut self, side: Side, from: SocketAddrV4, to: SocketAddrV4) -> io::Result<Trip> {
        let data = self.data();
        let packet = Packet::udp(from, to, &data);
        self.send(side, &packet, &|arrival| arrival.packet.udp_data() == Some(&data))
    }

    /// Sends a UDP datagram from an inside port to an outside one, and returns the source that it has there.
    pub(crate) fn udp_out(&mut self, from: SocketAddrV4, to: SocketAddrV4) -> io::Result<Trip> {
        let mut trip = self.udp(Side::Inside, from, to)?;
        // Back to an inside host: that is another experiment.
        trip.arrived = trip.arrived.filter(|arrival| arrival.side == Side::Outside);
        Ok(trip)
    }

    /// Sends a UDP datagram from an outside port to the NAT's.
    pub(crate) fn udp_in(&mut self, from: SocketAddrV4, to: SocketAddrV4) -> io::Result<Trip> {
        let mut trip = self.udp(Side::Outside, from, to)?;
        trip.arrived = trip.arrived.filter(|arrival| arrival.side == Side::Inside);
        Ok(trip)
    }

    /// Sends a packet, until it arrives or has been sent as often as the setting allows. Silence is then checked by
    /// [`Session::path_is_alive`].
    pub(crate) fn send(
        &mut self,
        side: Side,
        packet: &Packet,
        is_it: &dyn Fn(&Arrival) -> bool,
    ) -> io::Result<Trip> {
        let (attempts, patience) = (self.setting().attempts.max(1), self.setting().patience);
        let mut others = Vec::new();
        for _ in 0..attempts {
            self.ends.send(side, packet)?;
            if let Some(arrival) = self.wait(self.now() + patience, is_it, &mut others)? {
                return Ok(Trip { arrived: Some(arrival), others, sure: true });
            }
        }
        let (sure, late) = self.path_is_alive()?;
        let mut arrived = None;
        for arrival in late {
            if arrived.is_none() && is_it(&arrival) {
                arrived = Some(arrival);
            } else {
                others.push(arrival);
            }
        }
        Ok(Trip { arrived, others, sure })
    }

    /// Waits for a packet; others that come meanwhile are added.
    pub(crate) fn wait(
        &mut self,
        deadline: Duration,
        is_it: &dyn Fn(&Arrival) -> bool,
        others: &mut Vec<Arrival>,
    ) -> io::Result<Option<Arrival>> {
        while let Some(arrival) = self.ends.receive(deadline)? {
            if is_it(&arrival) {
                return Ok(Some(arrival));
            }
            others.push(arrival);
        }
        Ok(None)
    }

    /// Lets time pass, and returns what arrived meanwhile.
    pub(crate) fn pass(&mut self, until: Duration) -> io::Result<Vec<Arrival>> {
        let mut arrived = Vec::new();
        self.wait(until, &|_| false, &mut arrived)?;
        Ok(arrived)
    }

    /// Sends a control packet out and its answer back. Packets cross a hop in the order in which they came, so one that was sent
    /// earlier has arrived by then, or does not arrive. Returns whether both arrived, and what else did.
    pub(crate) fn path_is_alive(&mut self) -> io::Result<(bool, Vec<Arrival>)> {
        let near = SocketAddrV4::new(self.setting().inside[0], CONTROL_PORT);
        let far = self.outside(0, CONTROL_PORT);
        let mut others = Vec::new();
        for _ in 0..CONTROLS {
            let Some(out) = self.control(Side::Inside, near, far, &mut others)? else { continue };
            let Some(mapped) = out.packet.from() else { continue };
            if self.control(Side::Outside, far, mapped, &mut others)?.is_some() {
                return Ok((true, others));
            }
        }
        Ok((false, others))
    }

    fn control(
        &mut self,
        side: Side,
        from: SocketAddrV4,
        to: SocketAddrV4,
        others: &mut Vec<Arrival>,
    ) -> io::Result<Option<Arrival>> {
        let data = self.data();
        self.ends.send(side, &Packet::udp(from, to, &data))?;
        let deadline = self.now() + self.setting().patience * CONTROL_PATIENCE;
        self.wait(deadline, &|arrival| arrival.packet.udp_data() == Some(&data), others)
    }

    /// Sends a packet and does not look where it goes.
    pub(crate) fn send_only(&mut self, side: Side, packet: &Packet) -> io::Result<()> {
        self.ends.send(side, packet)
    }

    /// The inside hosts' addresses.
    pub(crate) fn inside(&self, which: usize) -> Ipv4Addr {
        self.setting().inside[which]
    }
}
