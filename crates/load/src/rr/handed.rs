//! The responder's end of `udp-rr` for sockets that the owner of a shared port opened, one per initiator's socket: a thread each.

use std::net::UdpSocket;
use std::os::fd::AsFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use rustix::event::PollFlags;
use rustix::net::{Shutdown, shutdown};

use super::tcp::Sizes;
use super::udp::{Served, responder_part, serve};
use crate::incoming::{Closer, UdpIncoming};
use crate::latency::dial::wait_for;
use crate::latency::kernel::socket_drops;
use crate::{Error, Part, Responder, TrialSettings};

/// Sockets that one responder serves at the same time.
const MOST_SOCKETS: usize = 1024;

/// State shared by its threads.
#[derive(Debug, Default)]
struct Shared {
    closing: AtomicBool,
    sockets: Mutex<Vec<Arc<UdpSocket>>>,
}

/// The responder's end while it is open.
#[derive(Debug)]
pub(super) struct HandedResponder {
    port: u16,
    closer: Closer,
    shared: Arc<Shared>,
    taker: Option<JoinHandle<Vec<Served>>>,
}

impl HandedResponder {
    pub(super) fn serve(setting: &TrialSettings, incoming: UdpIncoming, sizes: Sizes) -> Result<Self, Error> {
        let (port, closer, shared) = (incoming.port(), incoming.closer(), Arc::<Shared>::default());
        let taker = {
            let (shared, setting) = (shared.clone(), setting.clone());
            std::thread::Builder::new()
                .name("udp-rr take".into())
                .spawn(move || take_all(&incoming, &shared, &setting, sizes))
                .map_err(Error::io("start a thread"))?
        };
        Ok(HandedResponder { port, closer, shared, taker: Some(taker) })
    }

    fn close(&mut self) -> Option<(Vec<Served>, u64)> {
        let taker = self.taker.take()?;
        self.shared.closing.store(true, Ordering::Release);
        self.closer.wake();
        let mut drops = 0;
        for socket in self.sockets() {
            // A socket that does not say has none that count: the call is as old as Linux 4.12.
            drops += socket_drops(socket.as_fd()).unwrap_or(0);
            // Wakes its receiver, also where the peer is gone and this is an error.
            let _ = shutdown(&*socket, Shutdown::Both);
        }
        taker.join().ok().map(|served| (served, drops))
    }

    fn sockets(&self) -> Vec<Arc<UdpSocket>> {
        self.shared.sockets.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for HandedResponder {
    fn drop(&mut self) {
        self.close();
    }
}

impl Responder for HandedResponder {
    fn port(&self) -> u16 {
        self.port
    }

    fn finish(mut self: Box<Self>) -> Result<Part, Error> {
        let (served, drops) = self
            .close()
            .ok_or_else(|| Error::io("end the responder")(std::io::Error::other("a thread panicked")))?;
        Ok(responder_part(served, drops))
    }
}

/// Take sockets until the end, then wait for their threads.
fn take_all(
    incoming: &UdpIncoming,
    shared: &Arc<Shared>,
    setting: &TrialSettings,
    sizes: Sizes,
) -> Vec<Served> {
    let mut servers: Vec<JoinHandle<Served>> = Vec::new();
    let mut served = Vec::new();
    let failed = |error: String| Served { error: Some(error), ..Served::default() };
    loop {
        if let Err(e) = wait_for(incoming.as_fd(), PollFlags::IN, u64::MAX / 4) {
            served.push(failed(format!("wait for a flow: {e}")));
            break;
        }
        let taken = incoming.take();
        // Under the lock, so that the closing thread finds every socket that a thread waits on.
        let mut sockets = shared.sockets.lock().unwrap_or_else(PoisonError::into_inner);
        if shared.closing.load(Ordering::Acquire) {
            break;
        }
        match taken {
            Ok(_) if servers.len() == MOST_SOCKETS => {
                served.push(failed(format!("more than {MOST_SOCKETS} flows")));
            }
            Ok(socket) => {
                let socket = Arc::new(socket);
                sockets.push(socket.clone());
                let (shared, setting, nth) = (shared.clone(), setting.clone(), servers.len());
                let server = std::thread::Builder::new()
                    .name(format!("udp-rr {nth}"))
                    .spawn(move || serve(&socket, &shared.closing, &setting, nth, sizes));
                match server {
                    Ok(server) => servers.push(server),
                    Err(e) => served.push(failed(format!("start a thread: {e}"))),
                }
            }
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {}
            // The owner of the shared port is gone: the flows that came go on until this end is closed.
            Err(_) => break,
        }
    }
    for server in servers {
        served.extend(server.join());
    }
    served
}
