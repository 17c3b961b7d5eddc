//! UDP.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

use rustix::net::sockopt;
use weir_doctor::recipe::UdpMode;
use weir_sys::Stop;

use super::{LOOK, WorkResult, at_rate, forgive};

/// The datagrams.
pub(super) struct Flow {
    pub(super) to: SocketAddr,
    pub(super) size: usize,
    pub(super) rate: u32,
    pub(super) flows: u32,
    pub(super) dont_fragment: bool,
}

/// A server's socket, of both families where there is IPv6.
pub(super) fn open(port: u16, buffer: Option<usize>) -> io::Result<UdpSocket> {
    let socket = UdpSocket::bind((Ipv6Addr::UNSPECIFIED, port))
        .or_else(|_| UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port)))?;
    if let Some(bytes) = buffer {
        // Not held to rmem_max: a healthy server has room for what it is sent while something else runs.
        sockopt::set_socket_recv_buffer_size_force(&socket, bytes)?;
    }
    socket.set_read_timeout(Some(LOOK))?;
    Ok(socket)
}

pub(super) fn serve(socket: &UdpSocket, mode: UdpMode, stop: &Stop) -> WorkResult {
    let mut buffer = vec![0; 65_536];
    while !stop.raised() {
        if mode == UdpMode::Deaf {
            std::thread::sleep(LOOK);
            continue;
        }
        match socket.recv_from(&mut buffer) {
            Ok((n, from)) if mode == UdpMode::Echo => forgive(socket.send_to(&buffer[..n], from).map(drop))?,
            other => forgive(other.map(drop))?,
        }
    }
    Ok(())
}

fn client(flow: &Flow) -> io::Result<UdpSocket> {
    let any: SocketAddr = match flow.to {
        SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
        SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
    };
    let socket = UdpSocket::bind(any)?;
    if flow.dont_fragment {
        match flow.to {
            SocketAddr::V4(_) => sockopt::set_ip_mtu_discover(&socket, sockopt::Ipv4PathMtuDiscovery::DO)?,
            SocketAddr::V6(_) => sockopt::set_ipv6_mtu_discover(&socket, sockopt::Ipv6PathMtuDiscovery::DO)?,
        }
    }
    socket.set_nonblocking(true)?;
    Ok(socket)
}

pub(super) fn send(flow: &Flow, stop: &Stop) -> WorkResult {
    let payload = vec![0x5a; flow.size];
    let sockets = (0..flow.flows).map(|_| client(flow)).collect::<io::Result<Vec<_>>>()?;
    let mut turn = sockets.iter().cycle();
    at_rate(flow.rate, stop, || match turn.next() {
        Some(socket) => forgive(socket.send_to(&payload, flow.to).map(drop)),
        None => forgive(client(flow)?.send_to(&payload, flow.to).map(drop)),
    })
}
