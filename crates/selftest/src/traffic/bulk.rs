//! Streams and exchanges of messages over one TCP connection.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use weir_sys::Stop;

use super::{LOOK, WorkResult, at_rate, forgive};

/// One write.
const CHUNK: usize = 64 << 10;
/// Time that a connection may take.
const CONNECT: Duration = Duration::from_secs(1);

/// A connection that looks up now and then, made anew until it is asked to stop.
fn connect(to: SocketAddr, stop: &Stop) -> io::Result<Option<TcpStream>> {
    while !stop.raised() {
        match TcpStream::connect_timeout(&to, CONNECT) {
            Ok(stream) => {
                stream.set_write_timeout(Some(LOOK))?;
                stream.set_read_timeout(Some(LOOK))?;
                stream.set_nodelay(true)?;
                return Ok(Some(stream));
            }
            Err(e) => forgive(Err(e))?,
        }
        std::thread::sleep(LOOK);
    }
    Ok(None)
}

/// Sends until it is asked to stop.
pub(super) fn stream(to: SocketAddr, rate_bps: Option<u64>, stop: &Stop) -> WorkResult {
    let Some(mut stream) = connect(to, stop)? else { return Ok(()) };
    let (began, mut sent) = (Instant::now(), 0_u64);
    let data = vec![0x5a; CHUNK];
    while !stop.raised() {
        if let Some(rate) = rate_bps {
            let due = (began.elapsed().as_secs_f64() * rate as f64 / 8.0) as u64;
            if sent >= due {
                std::thread::sleep(Duration::from_millis(2));
                continue;
            }
        }
        match stream.write(&data) {
            Ok(n) => sent += n as u64,
            Err(e) => forgive(Err(e))?,
        }
    }
    Ok(())
}

/// Sends messages at a rate and takes the answers in.
pub(super) fn exchange(to: SocketAddr, rate: u32, bytes: usize, stop: &Stop) -> WorkResult {
    let Some(mut stream) = connect(to, stop)? else { return Ok(()) };
    let message = vec![0x5a; bytes];
    let mut answer = vec![0; bytes];
    at_rate(rate, stop, || {
        let asked = stream.write_all(&message).and_then(|()| stream.read(&mut answer).map(drop));
        forgive(asked)
    })
}
