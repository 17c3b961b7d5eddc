//! Proof of a path: an echo over TCP and UDP that replies with the client's address as the echo sees it.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::error::lock;
use crate::protocol::Reached;

/// Interval at which the echo checks if it must stop, and at which the client sends again.
const TICK: Duration = Duration::from_millis(50);

/// Answers until dropped.
pub(crate) struct Echo {
    port: u16,
    heard: Arc<Mutex<BTreeMap<IpAddr, u64>>>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Echo {
    /// Listens on the same port number for TCP and UDP; port 0 takes any.
    pub(crate) fn open(bind: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind(bind)?;
        let address = listener.local_addr()?;
        let socket = UdpSocket::bind(address)?;
        listener.set_nonblocking(true)?;
        socket.set_read_timeout(Some(TICK))?;
        let stop = Arc::new(AtomicBool::new(false));
        let (over_tcp, over_udp) = (stop.clone(), stop.clone());
        let heard = Arc::new(Mutex::new(BTreeMap::new()));
        let told = heard.clone();
        let threads = vec![
            std::thread::Builder::new().name("echo-tcp".into()).spawn(move || {
                while !over_tcp.load(Ordering::Relaxed) {
                    if answer_stream(&listener).is_err() {
                        std::thread::sleep(TICK);
                    }
                }
            })?,
            std::thread::Builder::new().name("echo-udp".into()).spawn(move || {
                let mut word = [0u8; 16];
                while !over_udp.load(Ordering::Relaxed) {
                    if let Ok((_, peer)) = socket.recv_from(&mut word) {
                        count(&mut lock(&told), peer.ip());
                        // A lost answer is asked for again.
                        let _ = socket.send_to(peer.ip().to_string().as_bytes(), peer);
                    }
                }
            })?,
        ];
        Ok(Echo { port: address.port(), heard, stop, threads })
    }

    /// Datagrams that came from that address so far.
    pub(crate) fn heard(&self, source: IpAddr) -> u64 {
        lock(&self.heard).get(&source).copied().unwrap_or(0)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for Echo {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // Both threads only loop over sockets; no caller is left to receive a panic from them.
            let _ = thread.join();
        }
    }
}

/// Limit on the counted source addresses, far above the need of any proof: other senders must not fill the memory.
const MOST_SOURCES: usize = 1024;

fn count(heard: &mut BTreeMap<IpAddr, u64>, source: IpAddr) {
    let source = source.to_canonical();
    if heard.len() < MOST_SOURCES || heard.contains_key(&source) {
        *heard.entry(source).or_default() += 1;
    }
}

/// Sends datagrams to the echo at `target` from an address that this host need not have.
///
/// # Errors
/// In words, what the kernel refused.
pub(crate) fn send_from(source: IpAddr, target: SocketAddr, count: u32) -> Result<(), String> {
    let socket = weir_sys::foreign_source::udp_from(source).map_err(|e| e.to_string())?;
    for _ in 0..count {
        socket.send_to(b"let me in", target).map_err(|e| format!("send from {source} to {target}: {e}"))?;
    }
    Ok(())
}

fn answer_stream(listener: &TcpListener) -> io::Result<()> {
    let (mut stream, peer) = listener.accept()?;
    stream.set_write_timeout(Some(TICK))?;
    stream.write_all(peer.ip().to_string().as_bytes())
}

/// Asks the echo at `target` until it has answered over TCP and UDP.
///
/// # Errors
/// In words, which of the two had no answer in time and the last error.
pub(crate) fn reach(target: SocketAddr, timeout: Duration) -> Result<Reached, String> {
    let deadline = Instant::now() + timeout;
    let tcp_source = until(deadline, || ask_tcp(target))
        .map_err(|e| format!("no answer over TCP from {target} within {timeout:?}: {e}"))?;
    let udp_source = until(deadline, || ask_udp(target))
        .map_err(|e| format!("no answer over UDP from {target} within {timeout:?}: {e}"))?;
    Ok(Reached { tcp_source, udp_source })
}

fn until(deadline: Instant, ask: impl Fn() -> io::Result<IpAddr>) -> io::Result<IpAddr> {
    loop {
        match ask() {
            Err(e) if Instant::now() >= deadline => return Err(e),
            Err(_) => std::thread::sleep(TICK),
            done => return done,
        }
    }
}

fn ask_tcp(target: SocketAddr) -> io::Result<IpAddr> {
    let mut stream = TcpStream::connect_timeout(&target, Duration::from_secs(1))?;
    stream.set_read_timeout(Some(Duration::from_secs(1)))?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    parse(&text)
}

fn ask_udp(target: SocketAddr) -> io::Result<IpAddr> {
    let any: SocketAddr = if target.is_ipv4() { ([0, 0, 0, 0], 0).into() } else { ([0u16; 8], 0).into() };
    let socket = UdpSocket::bind(any)?;
    // Not connected: behind some translations the answer comes from an address other than the one asked.
    socket.send_to(b"who am i", target)?;
    socket.set_read_timeout(Some(Duration::from_millis(500)))?;
    let mut text = [0u8; 64];
    let (n, from) = socket.recv_from(&mut text)?;
    if from != target {
        return Err(io::Error::new(ErrorKind::InvalidData, format!("answered by {from}, not by {target}")));
    }
    parse(&String::from_utf8_lossy(&text[..n]))
}

fn parse(text: &str) -> io::Result<IpAddr> {
    text.trim()
        .parse::<IpAddr>()
        .map(|ip| ip.to_canonical())
        .map_err(|_| io::Error::new(ErrorKind::InvalidData, "the answer is not an address"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_echo_tells_who_asks() {
        let echo = Echo::open("127.0.0.1:0".parse().unwrap()).unwrap();
        let target = SocketAddr::from(([127, 0, 0, 1], echo.port()));
        let reached = reach(target, Duration::from_secs(5)).unwrap();
        assert_eq!(reached.tcp_source, target.ip());
        assert_eq!(reached.udp_source, target.ip());
    }

    #[test]
    fn the_echo_counts_who_sends_from_where() {
        let echo = Echo::open("127.0.0.1:0".parse().unwrap()).unwrap();
        let target = SocketAddr::from(([127, 0, 0, 1], echo.port()));
        let (other, nobody) = ([127, 0, 0, 77].into(), [127, 0, 0, 78].into());
        send_from(other, target, 3).unwrap();
        let deadline = Instant::now() + Duration::from_secs(5);
        while echo.heard(other) < 3 && Instant::now() < deadline {
            std::thread::sleep(TICK);
        }
        assert_eq!((echo.heard(other), echo.heard(nobody)), (3, 0));
    }

    #[test]
    fn nobody_there_is_an_error_that_names_the_target() {
        let target = {
            let echo = Echo::open("127.0.0.1:0".parse().unwrap()).unwrap();
            SocketAddr::from(([127, 0, 0, 1], echo.port()))
        };
        let message = reach(target, Duration::from_millis(100)).unwrap_err();
        assert!(message.contains(&target.to_string()) && message.contains("TCP"), "{message}");
    }
}
