//! An HTTP server whose every answer is known: a thread for each connection.
#![allow(dead_code, reason = "each test program uses its own share of it")]

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rustix::net::sockopt::{set_socket_linger, set_tcp_cork};

/// A good answer of five bytes.
pub(crate) const OK: &str = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";

/// Makes the answer from the request's text and from how many came before it on the connection. Some words are acts: an
/// answer that ends with `RST` is cut off by one; `DRIP` is a header without end, a byte at a time; `SILENT` is none.
type Answer = dyn Fn(&str, u64) -> String + Send + Sync;

pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) accepted: Arc<AtomicU64>,
    pub(crate) requests: Arc<AtomicU64>,
    closing: Arc<AtomicBool>,
    over: Arc<AtomicBool>,
}

impl Server {
    /// Answers until it is dropped.
    pub(crate) fn start(answer: impl Fn(&str, u64) -> String + Send + Sync + 'static) -> Server {
        Server::start_at("127.0.0.1:0", answer)
    }

    /// At an address of the calling thread's namespace; where that is any, to be dropped in it.
    pub(crate) fn start_at(
        address: &str,
        answer: impl Fn(&str, u64) -> String + Send + Sync + 'static,
    ) -> Server {
        let listener = TcpListener::bind(address).unwrap();
        let server = Server {
            address: listener.local_addr().unwrap(),
            accepted: Arc::default(),
            requests: Arc::default(),
            closing: Arc::default(),
            over: Arc::default(),
        };
        let answer: Arc<Answer> = Arc::new(answer);
        let (accepted, requests) = (server.accepted.clone(), server.requests.clone());
        let (closing, over) = (server.closing.clone(), server.over.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                if over.load(Ordering::SeqCst) {
                    return;
                }
                let Ok(stream) = stream else { continue };
                accepted.fetch_add(1, Ordering::SeqCst);
                let (answer, requests) = (answer.clone(), requests.clone());
                let (closing, over) = (closing.clone(), over.clone());
                std::thread::spawn(move || serve(stream, &*answer, &requests, &closing, &over));
            }
        });
        server
    }

    /// Closes behind every answer.
    pub(crate) fn closing(self, closing: bool) -> Server {
        self.closing.store(closing, Ordering::SeqCst);
        self
    }

    /// The address of a listener that never accepts and whose queue is full; it stays so while the process lives.
    pub(crate) fn deaf() -> SocketAddr {
        let socket =
            rustix::net::socket(rustix::net::AddressFamily::INET, rustix::net::SocketType::STREAM, None);
        let socket = socket.unwrap();
        let any: SocketAddr = "127.0.0.1:0".parse().unwrap();
        rustix::net::bind(&socket, &any).unwrap();
        rustix::net::listen(&socket, 0).unwrap();
        let listener = TcpListener::from(socket);
        let address = listener.local_addr().unwrap();
        std::mem::forget(listener);
        address
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.over.store(true, Ordering::SeqCst);
        // Wakes the thread that accepts.
        let _ = TcpStream::connect(self.address);
    }
}

fn serve(
    mut stream: TcpStream,
    answer: &Answer,
    requests: &AtomicU64,
    closing: &AtomicBool,
    over: &AtomicBool,
) {
    stream.set_nodelay(true).unwrap();
    let mut text = Vec::new();
    let mut buffer = [0; 4096];
    for nth in 0.. {
        let end = loop {
            if let Some(end) = text.windows(4).position(|w| w == b"\r\n\r\n") {
                break end + 4;
            }
            match stream.read(&mut buffer) {
                Ok(0) | Err(_) => return,
                Ok(n) => text.extend_from_slice(&buffer[..n]),
            }
        };
        let request = String::from_utf8(text.drain(..end).collect()).unwrap();
        requests.fetch_add(1, Ordering::SeqCst);
        let last = closing.load(Ordering::SeqCst)
            || request.to_ascii_lowercase().contains("\r\nconnection: close\r\n");
        let said = answer(&request, nth);
        match said.as_str() {
            "" => return,
            "SILENT" => return wait(over, || Ok(())),
            "DRIP" => {
                if stream.write_all(b"HTTP/1.1 200 OK\r\nX: ").is_ok() {
                    wait(over, || stream.write_all(b"x"));
                }
                return;
            }
            said => {
                let cut = said.strip_suffix("RST");
                if last && cut.is_none() {
                    // Held back until the close, so that the FIN is never later than what it ends.
                    set_tcp_cork(stream.as_fd(), true).unwrap();
                }
                if stream.write_all(cut.unwrap_or(said).as_bytes()).is_err() {
                    return;
                }
                if cut.is_some() {
                    set_socket_linger(stream.as_fd(), Some(Duration::ZERO)).unwrap();
                    return;
                }
            }
        }
        if last {
            return;
        }
    }
}

/// Does it every 20 ms until it fails or the server is over.
fn wait(over: &AtomicBool, mut what: impl FnMut() -> std::io::Result<()>) {
    while !over.load(Ordering::SeqCst) && what().is_ok() {
        std::thread::sleep(Duration::from_millis(20));
    }
}
