//! New connections at a rate, with any number open at once.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::event::{Timespec, epoll};
use rustix::net::{self, AddressFamily, SocketFlags, SocketType};
use weir_sys::Stop;

use super::{WorkResult, forgive};

/// Time that a connection has for its request and answer.
const PATIENCE: Duration = Duration::from_secs(1);
/// Tick of the loop.
const TICK: Duration = Duration::from_millis(2);

/// The wanted connections.
pub(super) struct ConnectTraffic {
    pub(super) to: SocketAddr,
    pub(super) rate: u32,
    pub(super) bytes: usize,
    pub(super) hold: bool,
}

struct Connection {
    stream: TcpStream,
    began: Instant,
    asked: bool,
    answered: usize,
    over: bool,
}

pub(super) fn run(plan: &ConnectTraffic, stop: &Stop) -> WorkResult {
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    let mut open: HashMap<u64, Connection> = HashMap::new();
    let mut events = Vec::with_capacity(512);
    let (began, mut made) = (Instant::now(), 0_u64);
    while !stop.raised() {
        let due = (began.elapsed().as_secs_f64() * f64::from(plan.rate)) as u64;
        // As much as a twentieth of a second is caught up, more is left out.
        made = made.max(due.saturating_sub(u64::from(plan.rate / 20).max(1)));
        while made < due {
            made += 1;
            if let Some(stream) = begin(plan.to)? {
                let data = epoll::EventData::new_u64(made);
                epoll::add(&poll, &stream, data, epoll::EventFlags::OUT)?;
                let connection =
                    Connection { stream, began: Instant::now(), asked: false, answered: 0, over: false };
                open.insert(made, connection);
            }
        }
        events.clear();
        let limit = Timespec { tv_sec: 0, tv_nsec: TICK.subsec_nanos().into() };
        match epoll::wait(&poll, rustix::buffer::spare_capacity(&mut events), Some(&limit)) {
            Err(rustix::io::Errno::INTR) => continue,
            other => other?,
        };
        for event in &events {
            let number = event.data.u64();
            let Some(connection) = open.get_mut(&number) else { continue };
            if !turn(connection, plan, &poll, number) {
                open.remove(&number);
            }
        }
        open.retain(|_, c| c.over || c.began.elapsed() < PATIENCE);
    }
    Ok(())
}

/// Begins a connection; `None` if it was refused at once.
fn begin(to: SocketAddr) -> std::io::Result<Option<TcpStream>> {
    let family = if to.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket: OwnedFd = net::socket_with(family, SocketType::STREAM, flags, None)?;
    match net::connect(&socket, &to) {
        Ok(()) | Err(rustix::io::Errno::INPROGRESS) => Ok(Some(socket.into())),
        Err(e) => {
            forgive(Err(e.into()))?;
            Ok(None)
        }
    }
}

/// Goes on with a connection; false when it is to be closed.
fn turn(connection: &mut Connection, plan: &ConnectTraffic, poll: &OwnedFd, number: u64) -> bool {
    if !connection.asked {
        if !matches!(connection.stream.take_error(), Ok(None)) {
            return false;
        }
        connection.asked = true;
        if plan.bytes == 0 {
            connection.over = plan.hold;
        } else if connection.stream.write(&vec![0x5a; plan.bytes]).is_err() {
            return false;
        }
        let data = epoll::EventData::new_u64(number);
        return (plan.bytes > 0 || plan.hold)
            && epoll::modify(poll, &connection.stream, data, epoll::EventFlags::IN).is_ok();
    }
    let mut buffer = [0; 4096];
    match connection.stream.read(&mut buffer) {
        Ok(0) => false,
        Ok(n) => {
            connection.answered += n;
            connection.over = plan.hold && connection.answered >= plan.bytes;
            connection.over || connection.answered < plan.bytes
        }
        Err(e) => e.kind() == std::io::ErrorKind::WouldBlock,
    }
}
