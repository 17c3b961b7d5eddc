//! A server of one page.

use std::cell::Cell;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use crate::access::{self, Access};
use crate::request::{Asked, bearer, read};

/// Clients at a time. Those beyond wait to be accepted.
const MOST_CLIENTS: usize = 32;
/// Clients that may wait to be accepted; the kernel's bound is net.core.somaxconn.
const MOST_WAITING: i32 = 1024;
/// How long a client may take for its request, handshake included, and again for taking the answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// How long the server waits when it has as many clients as it may.
const PAUSE: Duration = Duration::from_millis(5);

/// A server that answers with the latest page. It ends with the process.
#[derive(Debug)]
pub struct Server {
    shared: Arc<Shared>,
    address: SocketAddr,
}

#[derive(Debug)]
struct Shared {
    page: Mutex<Arc<str>>,
    access: Mutex<Access>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Server {
    /// Listens on an address: of the loopback, or any other if a token or TLS is demanded of clients. An empty page is none
    /// yet: until `show` clients get 503.
    ///
    /// # Errors
    /// `InvalidInput` for another address without both: the page has networks of people. Else the error of the socket.
    pub fn start(address: SocketAddr, access: Access, page: String) -> io::Result<Self> {
        if !address.ip().is_loopback() && !access.is_guarded() {
            let why = format!("{address} is off the loopback (127.0.0.1, ::1), which needs a token or TLS");
            return Err(io::Error::new(ErrorKind::InvalidInput, why));
        }
        let listener = TcpListener::bind(address)?;
        rustix::net::listen(&listener, MOST_WAITING)?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared { page: Mutex::new(Arc::from(page)), access: Mutex::new(access) });
        let serving = Arc::clone(&shared);
        thread::Builder::new().name("export".into()).spawn(move || accept(&listener, &serving))?;
        Ok(Server { shared, address })
    }

    /// The address; the port is the one that the kernel chose if 0 was asked for.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Shows another page from now on.
    pub fn show(&self, page: String) {
        *lock(&self.shared.page) = Arc::from(page);
    }

    /// Takes another certificate from now on, if its files have changed; true if so.
    ///
    /// # Errors
    /// If they hold none; the one before stays in use.
    pub fn refresh(&self) -> Result<bool, access::Error> {
        lock(&self.shared.access).tls.as_mut().map_or(Ok(false), access::Tls::refresh)
    }
}

fn accept(listener: &TcpListener, shared: &Arc<Shared>) {
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
        let shared = Arc::clone(shared);
        let count = Counted::new(&clients);
        let answer = move || {
            let _count = count;
            // A client that went away needs no answer.
            let _ = serve(client, &shared);
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

/// A connection that ends at a time, however little at a time is read or written.
struct Limited<'a> {
    client: TcpStream,
    end: &'a Cell<Instant>,
}

impl Limited<'_> {
    fn left(&self) -> io::Result<Option<Duration>> {
        let left = self.end.get().saturating_duration_since(Instant::now());
        if left.is_zero() { Err(ErrorKind::TimedOut.into()) } else { Ok(Some(left)) }
    }
}

impl Read for Limited<'_> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        self.client.set_read_timeout(self.left()?)?;
        self.client.read(bytes)
    }
}

impl Write for Limited<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.client.set_write_timeout(self.left()?)?;
        self.client.write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.client.flush()
    }
}

fn serve(client: TcpStream, shared: &Shared) -> io::Result<()> {
    let end = Cell::new(Instant::now() + PATIENCE);
    let mut client = Limited { client, end: &end };
    let tls = lock(&shared.access).tls.as_ref().map(access::Tls::config);
    let Some(config) = tls else { return answer(&mut client, &end, shared) };
    let mut session = rustls::ServerConnection::new(config).map_err(io::Error::other)?;
    answer(&mut rustls::Stream::new(&mut session, &mut client), &end, shared)?;
    session.send_close_notify();
    while session.wants_write() {
        session.write_tls(&mut client)?;
    }
    Ok(())
}

/// Reads one request and answers it.
fn answer(client: &mut (impl Read + Write), end: &Cell<Instant>, shared: &Shared) -> io::Result<()> {
    let mut bytes = Vec::new();
    let mut piece = [0; 1024];
    let asked = loop {
        let asked = read(&bytes);
        if asked != Asked::Unfinished {
            break asked;
        }
        match client.read(&mut piece)? {
            0 => return Ok(()),
            n => bytes.extend_from_slice(&piece[..n]),
        }
    };
    let page = Arc::clone(&lock(&shared.page));
    let is_admitted = {
        let access = lock(&shared.access);
        access.token.as_ref().is_none_or(|token| bearer(&bytes).is_some_and(|offered| token.is(offered)))
    };
    let (status, content) = match asked {
        Asked::TooLong => ("431 Request Header Fields Too Large", "too long\n"),
        Asked::Broken | Asked::Unfinished => ("400 Bad Request", "not HTTP/1\n"),
        // RFC 6750 section 3.
        _ if !is_admitted => ("401 Unauthorized\r\nWWW-Authenticate: Bearer", "needs the token\n"),
        // An empty page would look like a scrape that went well.
        Asked::Page { .. } if page.is_empty() => {
            ("503 Service Unavailable\r\nRetry-After: 1", "the first page is not made yet\n")
        }
        Asked::Page { .. } => ("200 OK", &*page),
        Asked::Absent => ("404 Not Found", "see /metrics\n"),
        Asked::Method => ("405 Method Not Allowed", "GET or HEAD\n"),
    };
    let head = format!(
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        content.len()
    );
    end.set(Instant::now() + PATIENCE);
    client.write_all(head.as_bytes())?;
    if asked != (Asked::Page { content: false }) {
        client.write_all(content.as_bytes())?;
    }
    client.flush()
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
        Server::start("127.0.0.1:0".parse().unwrap(), Access::default(), "first 1\n".into()).unwrap()
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
    fn without_a_page_a_scrape_fails() {
        let server = Server::start("127.0.0.1:0".parse().unwrap(), Access::default(), String::new()).unwrap();
        let get = "GET /metrics HTTP/1.1\r\n\r\n";
        let answer = ask(&server, get);
        assert!(answer.starts_with("HTTP/1.1 503 ") && answer.contains("\r\nRetry-After: 1\r\n"), "{answer}");
        server.show("first 1\n".into());
        assert!(ask(&server, get).starts_with("HTTP/1.1 200 OK\r\n"));
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

    /// Threads of this process that serve a client.
    fn serving() -> usize {
        let names = std::fs::read_dir("/proc/self/task")
            .unwrap()
            .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("comm")).ok());
        names.filter(|name| name.trim() == "client").count()
    }

    #[test]
    fn a_thousand_scrapes_at_once_are_all_answered_by_a_bounded_number_of_threads() {
        let server =
            Server::start("127.0.0.1:0".parse().unwrap(), Access::default(), "weir_flows 1\n".repeat(2000))
                .unwrap();
        // More descriptors than most systems allow at first.
        let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
        let raised = rustix::process::Rlimit { current: limit.maximum, ..limit };
        rustix::process::setrlimit(rustix::process::Resource::Nofile, raised).unwrap();
        let begin = |_| {
            let mut client = TcpStream::connect(server.address()).unwrap();
            client.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
            client
        };
        let clients: Vec<TcpStream> = (0..1000).map(begin).collect();
        // Those of tests that run beside this one, at most as many each.
        let most = 6 * MOST_CLIENTS;
        for mut client in clients {
            assert!(serving() <= most);
            client.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
            let mut answer = String::new();
            client.read_to_string(&mut answer).unwrap();
            assert!(answer.len() > 26_000 && answer.ends_with("weir_flows 1\n"), "{}", answer.len());
        }
    }

    #[test]
    fn other_addresses_than_the_loopback_are_refused() {
        for address in ["0.0.0.0:0", "198.18.0.1:0", "[::]:0"] {
            let error =
                Server::start(address.parse().unwrap(), Access::default(), String::new()).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidInput, "{address}");
        }
    }
}
