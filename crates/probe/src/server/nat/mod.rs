//! The far end of `weir nat check`: tells a client how its packets look here, and sends through its NAT what it asks for, to
//! mappings that it opened, and less than came from there.

mod account;
mod ends;
mod pool;
mod raw;

use std::io;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use rustix::fd::AsFd;
use weir_load::limits::Limits;

pub(super) use pool::Pool;
pub use pool::{NatPorts, shared_tcp};

use super::cut::{Cut, refused};
use crate::frame::{Error, Line};
use crate::key::{self, from_hex_up_to, to_hex};
use crate::message::{Ask, NatAsk, Tell};
use crate::nat::{At, Endpoints, LONGEST_RAW, MARK, raw_mark};
use ends::Ends;
use raw::Raw;

/// Time between two looks at what ends by itself.
const TICK: Duration = Duration::from_millis(200);
/// A client's words taken in one go.
const TURN: usize = 64;

/// One check of a client.
pub(super) struct Check<'a> {
    pub(super) limits: &'a std::sync::Arc<Limits>,
    pub(super) pool: &'a Pool,
    pub(super) client: IpAddr,
    /// The address of this host that the client talks to.
    pub(super) own: IpAddr,
    /// The client has proved that it has the key.
    pub(super) keyed: bool,
}

/// How a check went on.
pub(super) enum Ended {
    /// The client was refused, and may ask for something else.
    Refused(String),
    /// Done: bytes that came and that were sent.
    Done((u64, u64)),
}

impl Check<'_> {
    /// Serves it until the client says that it is done.
    pub(super) fn run(&self, line: &Line<'_>, socket: impl AsFd) -> Result<Ended, Cut> {
        let patience = self.limits.patience;
        let memory = match self.limits.reserve(self.client, 1, account::MEMORY) {
            Ok(memory) => memory,
            Err(full) => return Ok(Ended::Refused(full.to_string())),
        };
        let (place, endpoints, sockets) = match self.pool.take(self.client, self.own) {
            Ok(taken) => taken,
            Err(reason) => return Ok(Ended::Refused(reason)),
        };
        let number = u64::from_be_bytes(key::random()?);
        let mut ends = Ends::new(number, sockets);
        line.say(
            &Tell::NatOpened {
                number,
                own: self.own_index(&endpoints.addresses),
                addresses: endpoints.addresses.clone(),
                ports: endpoints.ports,
                knows_raw: true,
                longest_s: Some(self.limits.duration.as_secs()),
            },
            patience,
        )?;
        let total = self.talk(line, socket, &mut ends, &endpoints)?;
        drop((ends, place, memory));
        line.say(&Tell::NatClosed { received_bytes: total.0, sent_bytes: total.1 }, patience)?;
        Ok(Ended::Done(total))
    }

    /// Which of the addresses the client knows already: behind a cloud's translation it may know it by another number.
    fn own_index(&self, addresses: &[IpAddr]) -> Option<u8> {
        let own = self.own.to_canonical();
        addresses.iter().position(|address| *address == own).map(|n| n as u8)
    }

    /// Raw packets are not paid for by what came, so they need the key.
    fn open_raw(&self, endpoints: &Endpoints, ends: &Ends) -> Result<Raw, String> {
        if !self.keyed {
            return Err("the server has no key (--key-file)".into());
        }
        Raw::open(endpoints, raw_mark(ends.number)).map_err(|e| match e.kind() {
            io::ErrorKind::PermissionDenied => "the server needs root (CAP_NET_RAW and CAP_NET_ADMIN)".into(),
            _ => format!("the server cannot open packet sockets: {e}"),
        })
    }

    fn talk(
        &self,
        line: &Line<'_>,
        socket: impl AsFd,
        ends: &mut Ends,
        endpoints: &Endpoints,
    ) -> Result<(u64, u64), Cut> {
        let patience = self.limits.patience;
        let begun = Instant::now();
        let mut heard = begun;
        let mut raw: Option<Raw> = None;
        loop {
            let fds: Vec<_> = [socket.as_fd()].into_iter().chain(raw.as_ref().map(AsFd::as_fd)).collect();
            ends.wait(&fds, TICK)?;
            tell_arrived(line, patience, ends, raw.as_mut())?;
            for _ in 0..TURN {
                if !line.await_word(Duration::ZERO)? {
                    break;
                }
                heard = Instant::now();
                match line.hear(patience)? {
                    Ask::Nat(ask) => {
                        line.say(&Tell::NatSent { refused: sent(ends, &ask).err() }, patience)?
                    }
                    Ask::NatRawOpen {} => {
                        let opened = self.open_raw(endpoints, ends).map(|opened| raw = Some(opened));
                        line.say(&Tell::NatSent { refused: opened.err() }, patience)?
                    }
                    Ask::NatTcp { silent } => {
                        let allowed = raw.as_ref().ok_or("raw packets were not asked for".to_owned());
                        let refused = allowed.and_then(|_| ends.set_silent(silent)).err();
                        line.say(&Tell::NatSent { refused }, patience)?
                    }
                    Ask::NatRaw { packet } => {
                        let refused = sent_raw(ends, raw.as_mut(), &packet).err();
                        line.say(&Tell::NatSent { refused }, patience)?
                    }
                    Ask::Finish => {
                        let (received, sent) = ends.mappings.total();
                        let (more, also) = raw.as_ref().map_or((0, 0), Raw::total);
                        return Ok((received + more, sent + also));
                    }
                    _ => return Err(refused("expected finish")),
                }
            }
            if heard.elapsed() > self.limits.idle {
                return Err(refused(format!("idle for {} s", self.limits.idle.as_secs())));
            }
            if begun.elapsed() > self.limits.duration {
                return Err(refused(format!("not done after {} s", self.limits.duration.as_secs())));
            }
        }
    }
}

/// Tells the client what has come.
fn tell_arrived(
    line: &Line<'_>,
    patience: Duration,
    ends: &mut Ends,
    raw: Option<&mut Raw>,
) -> Result<(), Error> {
    for arrived in ends.receive() {
        let ends::Arrived { transport, at, from, mark } = arrived;
        let tell = Tell::NatArrived { transport, at: (at.address, at.port), from, mark: to_hex(&mark) };
        line.say(&tell, patience)?;
    }
    for packet in raw.map(Raw::receive).unwrap_or_default() {
        line.say(&Tell::NatRawArrived { packet: to_hex(&packet) }, patience)?;
    }
    Ok(())
}

fn sent_raw(ends: &mut Ends, raw: Option<&mut Raw>, packet: &str) -> Result<(), String> {
    let raw = raw.ok_or("raw packets were not asked for")?;
    let packet = from_hex_up_to(packet, LONGEST_RAW).ok_or("expected a packet")?;
    std::thread::sleep(ends.pace.wait(Instant::now()));
    raw.send(&packet)
}

fn sent(ends: &mut Ends, ask: &NatAsk) -> Result<(), String> {
    let mark = from_hex_up_to(&ask.mark, MARK).ok_or("expected a mark")?;
    let at = At { address: ask.at.0, port: ask.at.1 };
    if ask.answer { ends.answer(at, ask.to, &mark) } else { ends.send(ask.transport, at, ask.to, &mark) }
}
