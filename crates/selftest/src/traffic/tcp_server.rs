//! Servers of TCP: one thread for any number of connections.

use std::collections::HashMap;
use std::io::{self, Read, Write};
use std::net::{Ipv6Addr, SocketAddr, SocketAddrV6, TcpListener, TcpStream};
use std::os::fd::OwnedFd;

use rustix::event::{Timespec, epoll};
use rustix::net::{self, AddressFamily, SocketFlags, SocketType, sockopt};
use weir_doctor::recipe::TcpMode;
use weir_sys::Stop;

use super::{LOOK, WorkResult};

/// Event data of the listener; connections count from 1.
const LISTENER: u64 = 0;

/// A listening socket of that backlog, of both families where there is IPv6.
pub(super) fn open(port: u16, backlog: u32) -> io::Result<TcpListener> {
    let listen = |family, address: SocketAddr| -> io::Result<OwnedFd> {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let socket = net::socket_with(family, SocketType::STREAM, flags, None)?;
        sockopt::set_socket_reuseaddr(&socket, true)?;
        net::bind(&socket, &address)?;
        net::listen(&socket, backlog.cast_signed())?;
        Ok(socket)
    };
    let v6 = SocketAddrV6::new(Ipv6Addr::UNSPECIFIED, port, 0, 0);
    let socket = listen(AddressFamily::INET6, v6.into())
        .or_else(|_| listen(AddressFamily::INET, SocketAddr::from(([0, 0, 0, 0], port))))?;
    Ok(socket.into())
}

pub(super) fn serve(listener: &TcpListener, mode: TcpMode, stop: &Stop) -> WorkResult {
    if mode == TcpMode::NeverAccept {
        while !stop.raised() {
            std::thread::sleep(LOOK);
        }
        return Ok(());
    }
    let poll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(&poll, listener, epoll::EventData::new_u64(LISTENER), epoll::EventFlags::IN)?;
    let mut connections: HashMap<u64, TcpStream> = HashMap::new();
    let mut next = LISTENER;
    let mut events = Vec::with_capacity(256);
    let mut buffer = vec![0; 65_536];
    while !stop.raised() {
        events.clear();
        let limit = Timespec { tv_sec: 0, tv_nsec: LOOK.subsec_nanos().into() };
        match epoll::wait(&poll, rustix::buffer::spare_capacity(&mut events), Some(&limit)) {
            Err(rustix::io::Errno::INTR) => continue,
            other => other?,
        };
        for event in &events {
            let number = event.data.u64();
            if number == LISTENER {
                while let Ok((stream, _)) = listener.accept() {
                    stream.set_nonblocking(true)?;
                    next += 1;
                    if mode != TcpMode::Deaf {
                        let wanted = if mode == TcpMode::Source {
                            epoll::EventFlags::OUT
                        } else {
                            epoll::EventFlags::IN
                        };
                        epoll::add(&poll, &stream, epoll::EventData::new_u64(next), wanted)?;
                    }
                    connections.insert(next, stream);
                }
            } else if let Some(stream) = connections.get_mut(&number)
                && !turn(stream, mode, &mut buffer)
            {
                connections.remove(&number);
            }
        }
    }
    Ok(())
}

/// Does what there is to do on a connection; false when it is over.
fn turn(stream: &mut TcpStream, mode: TcpMode, buffer: &mut [u8]) -> bool {
    let done = match mode {
        TcpMode::Source => stream.write(buffer),
        _ => stream.read(buffer),
    };
    match done {
        Ok(0) => false,
        // A small answer fits into an empty buffer; a client that does not read loses the rest.
        Ok(n) if mode == TcpMode::Echo => stream.write(&buffer[..n]).is_ok_and(|written| written == n),
        Ok(_) => true,
        Err(e) => matches!(e.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted),
    }
}
