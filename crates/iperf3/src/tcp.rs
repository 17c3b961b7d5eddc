//! The data of TCP streams: sent from one buffer again and again, and taken off the socket without a copy.

use std::fs::File;
use std::io::{self, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{MemfdFlags, memfd_create, sendfile};
use rustix::net::{RecvFlags, recv};
use weir_load::sockets::precise_sleeps;
use weir_sys::clock::now_ns;

use super::error::Error;
use super::pace::Pace;
use super::parameters::Parameters;
use super::progress::{Counters, RunProgress};

/// How long a call may block before the loop looks whether the test is over.
pub(super) const LOOK: Duration = Duration::from_millis(40);

/// Bytes taken off the socket per call. Nothing is copied, so more only saves calls.
const DISCARD_BYTES: usize = 1 << 20;

/// Pause after a call that took at least [`MUCH`], as in weir's own `tcp-stream`: a receiver that is woken up for every packet
/// takes the CPU that the path needs.
const NAP: Duration = Duration::from_micros(50);

/// Bytes in one call from which a pause is worth it.
const MUCH: usize = 16 << 10;

/// The data to send, shared by all streams of a test.
#[derive(Debug, Clone)]
pub(super) enum Payload {
    Bytes(Arc<[u8]>),
    /// In memory, for sendfile(2).
    File(Arc<File>),
}

impl Payload {
    /// One write's worth.
    ///
    /// # Errors
    /// With `zerocopy`: no file in memory can be made.
    pub(super) fn new(p: &Parameters) -> Result<Payload, Error> {
        // No run of zeros: a path that compresses would make it look faster than it is.
        let bytes: Vec<u8> =
            (0..p.length).map(|i| (i.wrapping_mul(0x9E37_79B9) >> 24) as u8 ^ (i >> 3) as u8).collect();
        if !p.zerocopy {
            return Ok(Payload::Bytes(bytes.into()));
        }
        let mut file = File::from(
            memfd_create("weir-iperf3", MemfdFlags::CLOEXEC)
                .map_err(|e| Error::Io { what: "make a file in memory", source: e.into() })?,
        );
        file.write_all(&bytes).map_err(Error::io("fill a file in memory"))?;
        Ok(Payload::File(Arc::new(file)))
    }

    /// Send the bytes `from..until` of a write; how many went.
    fn send(&self, stream: &TcpStream, from: u64, until: u64) -> io::Result<usize> {
        match self {
            Payload::Bytes(bytes) => (&*stream).write(&bytes[from as usize..until as usize]),
            Payload::File(file) => {
                let mut offset = from;
                Ok(sendfile(stream, file, Some(&mut offset), (until - from) as usize)?)
            }
        }
    }
}

/// Send until the test is over, or the goal is given out.
pub(super) fn send(
    p: &Parameters,
    payload: &Payload,
    stream: &TcpStream,
    counters: &Counters,
    progress: &RunProgress,
) -> Result<(), Error> {
    let prepared = stream.set_nonblocking(false).and_then(|()| stream.set_write_timeout(Some(LOOK)));
    prepared.and_then(|()| precise_sleeps()).map_err(Error::io("prepare a sending stream"))?;
    let length = u64::from(p.length);
    let mut pace = Pace::new(p.rate_bps, length, p.burst, now_ns());
    while pace.wait(|| progress.sent_enough()) && progress.claim(length) {
        let mut done = 0;
        while done < length {
            match payload.send(stream, done, length) {
                Ok(n) => {
                    counters.add_bytes(n as u64);
                    done += n as u64;
                }
                Err(e) if timed_out(&e) && progress.sent_enough() => return Ok(()),
                Err(e) if timed_out(&e) => {}
                // The far end closes its streams as soon as it hears that the test is over.
                Err(_) if progress.sent_enough() => return Ok(()),
                Err(e) if closed(&e) => return Err(Error::Closed("a stream that was being sent on")),
                Err(source) => return Err(Error::Io { what: "send on a stream", source }),
            }
        }
        pace.sent(1);
    }
    Ok(())
}

/// Receive until the test is over or the far end closes.
pub(super) fn receive(
    p: &Parameters,
    stream: &TcpStream,
    counters: &Counters,
    progress: &RunProgress,
) -> Result<(), Error> {
    let prepared = stream.set_nonblocking(false).and_then(|()| stream.set_read_timeout(Some(LOOK)));
    prepared.and_then(|()| precise_sleeps()).map_err(Error::io("prepare a receiving stream"))?;
    let mut buffer = vec![0u8; DISCARD_BYTES];
    // A buffer of a set size is not to fill up for our pauses.
    let naps = p.window == 0;
    while !progress.ending() {
        // MSG_TRUNC of TCP: taken off the socket without being copied (tcp(7)).
        match recv(stream, &mut buffer[..], RecvFlags::TRUNC) {
            Ok((_, 0)) => return Ok(()),
            Ok((_, n)) => {
                counters.add_bytes(n as u64);
                progress.got(n as u64);
                if naps && n >= MUCH {
                    std::thread::sleep(NAP);
                }
            }
            Err(e) => {
                let e = io::Error::from(e);
                if closed(&e) {
                    return Ok(());
                }
                if !timed_out(&e) {
                    return Err(Error::Io { what: "receive on a stream", source: e });
                }
            }
        }
    }
    Ok(())
}

/// True for the errors that mean "nothing within the socket's timeout", or that a signal came.
pub(super) fn timed_out(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), WouldBlock | TimedOut | Interrupted)
}

fn closed(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, NotConnected};
    matches!(error.kind(), BrokenPipe | ConnectionReset | ConnectionAborted | NotConnected)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::net::TcpListener;

    fn parameters() -> Parameters {
        Parameters { streams: 1, length: 100_000, ..Parameters::default() }
    }

    #[test]
    fn exactly_the_goal_is_sent_with_and_without_a_copy() {
        for zerocopy in [false, true] {
            let p = Parameters { zerocopy, ..parameters() };
            let payload = Payload::new(&p).unwrap();
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let one = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
            let mut other = listener.accept().unwrap().0;
            let progress = RunProgress::new(Some(1_200_000), false).unwrap();
            let counters = Counters::default();
            let mut got = Vec::new();
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    send(&p, &payload, &one, &counters, &progress).unwrap();
                    one.shutdown(std::net::Shutdown::Write).unwrap();
                });
                other.read_to_end(&mut got).unwrap();
            });
            assert_eq!((got.len(), counters.counts().bytes), (1_200_000, 1_200_000));
            let Payload::Bytes(bytes) = Payload::new(&parameters()).unwrap() else { panic!("no bytes") };
            assert!(got.chunks(100_000).all(|c| c == &bytes[..c.len()]), "zerocopy {zerocopy}");
        }
    }
}
