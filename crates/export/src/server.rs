//! A server of one page.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::request::{Asked, read};

/// Clients at a time. Those beyond wait to be accepted.
const MOST_CLIENTS: usize = 32;
/// How long a client may take for its request, and for taking the answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long the server waits when it has as many clients as it may.
const PAUSE: Duration = Duration::from_millis(5);

/// A server that answers with the latest page. It ends with the process.
#[derive(Debug)]
pub struct Server {
    page: Arc<Mutex<Arc<str>>>,
    address: SocketAddr,
}

impl Server {
    /// Listens on an address of the loopback.
    ///
    /// # Errors
    /// `InvalidInput` for any other address: the page has addresses of people, and the server has neither TLS nor a password. Else
    /// the error of the socket.
    pub fn start(address: SocketAddr, page: String) -> io::Result<Self> {
        if !address.ip().is_loopback() {
            let why = format!("{address} is not an address of the loopback (127.0.0.1, ::1)");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        let listener = TcpListener::bind(address)?;
        let address = listener.local_addr()?;
        let page = Arc::new(Mutex::new(Arc::from(page)));
        let shown = Arc::clone(&page);
        thread::Builder::new().name("export".into()).spawn(move || accept(&listener, &shown))?;
        Ok(Server { page, address })
    }

    /// The address; the port is the one that the kernel chose if 0 was asked for.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Shows another page from now on.
    pub fn show(&self, page: String) {
        *self.page.lock().unwrap_or_else(PoisonError::into_inner) = Arc::from(page);
    }
}

fn accept(listener: &TcpListener, page: &Arc<Mutex<Arc<str>>>) {
    let clients = Arc::new(AtomicUsize::new(0));
    loop {
        while clients.load(Ordering::Acquire) >= MOST_CLIENTS {
            thread::sleep(PAUSE);
        }
        // Without descriptors, or with a client that is gone already.
        let Ok((client, _)) = listener.accept() else {
            thread::sleep(PAUSE);
            continue;
        };
        let page = Arc::clone(&page.lock().unwrap_or_else(PoisonError::into_inner));
        let count = Counted::new(&clients);
        let answer = move || {
            let _count = count;
            // A client that went away needs no answer.
            let _ = serve(client, &page);
        };
        // Without a thread the client is dropped, and tries again.
        let _ = thread::Builder::new().name("client".into()).spawn(answer);
    }
}

/// A client, for as long as it lives.
struct Counted(Arc<AtomicUsize>);

impl Counted {
    fn new(clients: &Arc<AtomicUsize>) -> Self {
        clients.fetch_add(1, Ordering::AcqRel);
        Counted(Arc::clone(clients))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

fn serve(mut client: TcpStream, page: &str) -> io::Result<()> {
    let end = Instant::now() + PATIENCE;
    client.set_write_timeout(Some(PATIENCE))?;
    let mut bytes = Vec::new();
    let mut piece = [0; 1024];
    let asked = loop {
        let asked = read(&bytes);
        if asked != Asked::Unfinished {
            break asked;
        }
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        client.set_read_timeout(Some(left))?;
        match client.read(&mut piece)? {
            0 => return Ok(()),
            n => bytes.extend_from_slice(&piece[..n]),
        }
    };
    let (status, content) = match asked {
        Asked::Page { .. } => ("200 OK", page),
        Asked::Absent => ("404 Not Found", "see /metrics\n"),
        Asked::Method => ("405 Method Not Allowed", "GET or HEAD\n"),
        Asked::TooLong => ("431 Request Header Fields Too Large", "too long\n"),
        Asked::Broken | Asked::Unfinished => ("400 Bad Request", "not HTTP/1\n"),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        content.len()
    );
    client.write_all(head.as_bytes())?;
    if asked != (Asked::Page { content: false }) {
        client.write_all(content.as_bytes())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ask(server: &Server, request: &str) -> String {
        let mut client = TcpStream::connect(server.address()).unwrap();
        client.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
        client.write_all(request.as_bytes()).unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        answer
    }

    fn start() -> Server {
        Server::start("127.0.0.1:0".parse().unwrap(), "first 1\n".into()).unwrap()
    }

    #[test]
    fn the_latest_page_is_served() {
        let server = start();
        let get = "GET /metrics HTTP/1.1\r\nHost: a\r\n\r\n";
        let answer = ask(&server, get);
        assert!(
            answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.ends_with("\r\n\r\nfirst 1\n"),
            "{answer}"
        );
        server.show("second 2\n".into());
        assert!(ask(&server, get).ends_with("\r\n\r\nsecond 2\n"));
        let head = ask(&server, "HEAD /metrics HTTP/1.1\r\n\r\n");
        assert!(head.contains("Content-Length: 9\r\n") && head.ends_with("\r\n\r\n"), "{head}");
        assert!(ask(&server, "GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404 "));
        assert!(ask(&server, "PUT /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405 "));
        assert!(ask(&server, "hello\r\n\r\n").starts_with("HTTP/1.1 400 "));
    }

    #[test]
    fn a_silent_client_does_not_keep_others_waiting() {
        let server = start();
        let silent: Vec<TcpStream> =
            (0..MOST_CLIENTS - 1).map(|_| TcpStream::connect(server.address()).unwrap()).collect();
        assert!(ask(&server, "GET /metrics HTTP/1.1\r\n\r\n").contains("first 1"));
        // With one more all places are taken, until the time of the first is over.
        let more = TcpStream::connect(server.address()).unwrap();
        assert!(ask(&server, "GET /metrics HTTP/1.1\r\n\r\n").contains("first 1"));
        drop((silent, more));
    }

    #[test]
    fn other_addresses_than_the_loopback_are_refused() {
        for address in ["0.0.0.0:0", "198.18.0.1:0", "[::]:0"] {
            let error = Server::start(address.parse().unwrap(), String::new()).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{address}");
        }
    }
}
