//! A publisher on loopback that speaks HTTPS, and can do everything wrong that a publisher can.

use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair, date_time_ymd};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

/// A certificate authority of one test.
pub(crate) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    /// Its certificate, for the clients that trust it.
    pub(crate) pem: String,
}

/// The facts that a server shows of itself.
#[derive(Clone, Copy)]
pub(crate) enum Certificate {
    /// For this address, valid now.
    Right,
    /// For another name.
    OfAnother,
    /// Valid until 2001.
    Expired,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new([]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let pem = params.self_signed(&key).unwrap().pem();
        Authority { issuer: Issuer::new(params, key), pem }
    }

    fn config(&self, certificate: Certificate) -> Arc<ServerConfig> {
        let name = if matches!(certificate, Certificate::OfAnother) { "198.18.0.1" } else { "127.0.0.1" };
        let mut params = CertificateParams::new([name.to_owned()]).unwrap();
        if matches!(certificate, Certificate::Expired) {
            params.not_before = date_time_ymd(2000, 1, 1);
            params.not_after = date_time_ymd(2001, 1, 1);
        }
        let key = KeyPair::generate().unwrap();
        let signed = params.signed_by(&key, &self.issuer).unwrap();
        let chain = vec![CertificateDer::from(signed.der().to_vec())];
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
        Arc::new(builder.unwrap().with_no_client_auth().with_single_cert(chain, key).unwrap())
    }
}

/// The bytes sent, in plain.
type Send = Arc<dyn Fn(&mut dyn Write) -> io::Result<()> + std::marker::Send + Sync>;

/// The answer of a path.
#[derive(Clone)]
pub(crate) enum Reply {
    /// A file with an ETag; 304 to a client that has it already.
    File(Vec<u8>),
    /// A status line's number and text, headers, and no body.
    Head(&'static str, String),
    /// Whatever is written; then the connection ends in order.
    Raw(Send),
    /// Whatever is written; then the connection breaks, without a word in TLS.
    Broken(Send),
}

impl Reply {
    pub(crate) fn raw(
        send: impl Fn(&mut dyn Write) -> io::Result<()> + std::marker::Send + Sync + 'static,
    ) -> Self {
        Reply::Raw(Arc::new(send))
    }

    pub(crate) fn redirect(to: impl AsRef<str>) -> Self {
        Reply::Head("302 Found", format!("Location: {}\r\n", to.as_ref()))
    }
}

/// One request: path and headers, names in lower case.
#[derive(Debug, Clone)]
pub(crate) struct Request {
    pub(crate) path: String,
    pub(crate) headers: BTreeMap<String, String>,
}

#[derive(Default)]
struct Shared {
    replies: Mutex<BTreeMap<String, Reply>>,
    requests: Mutex<Vec<Request>>,
    connections: AtomicUsize,
    stop: AtomicBool,
}

/// A server. Dropped, it ends.
pub(crate) struct Server {
    port: u16,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    pub(crate) fn start(authority: &Authority, certificate: Certificate) -> Self {
        Server::listen(Some(authority.config(certificate)))
    }

    /// One that speaks plain HTTP, to which no client may come.
    pub(crate) fn plain() -> Self {
        Server::listen(None)
    }

    fn listen(config: Option<Arc<ServerConfig>>) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        let shared = Arc::new(Shared::default());
        let of_thread = shared.clone();
        let thread = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if of_thread.stop.load(Ordering::SeqCst) {
                    return;
                }
                let (shared, config) = (of_thread.clone(), config.clone());
                let Ok(stream) = stream else { continue };
                shared.connections.fetch_add(1, Ordering::SeqCst);
                // A client that goes away in the middle is part of the tests.
                std::thread::spawn(move || serve(stream, config, &shared));
            }
        });
        Server { port, shared, thread: Some(thread) }
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("https://127.0.0.1:{}{path}", self.port)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn set(&self, path: &str, reply: Reply) {
        self.shared.replies.lock().unwrap().insert(path.to_owned(), reply);
    }

    pub(crate) fn requests(&self) -> Vec<Request> {
        self.shared.requests.lock().unwrap().clone()
    }

    pub(crate) fn connections(&self) -> usize {
        self.shared.connections.load(Ordering::SeqCst)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        // Wakes it.
        let _ = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port));
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn serve(stream: TcpStream, config: Option<Arc<ServerConfig>>, shared: &Shared) {
    let patience = Some(Duration::from_secs(60));
    stream.set_read_timeout(patience).unwrap();
    stream.set_write_timeout(patience).unwrap();
    let Some(config) = config else {
        let _ = answer(stream, shared);
        return;
    };
    let session = ServerConnection::new(config).unwrap();
    let mut stream = StreamOwned::new(session, stream);
    if answer(&mut stream, shared).unwrap_or(false) {
        stream.conn.send_close_notify();
        let _ = stream.flush();
    }
}

/// Reads one request and answers it; false if the connection is to break.
fn answer(mut stream: impl io::Read + Write, shared: &Shared) -> io::Result<bool> {
    let Some(request) = read(&mut stream)? else { return Ok(false) };
    let reply = shared.replies.lock().unwrap().get(&request.path).cloned();
    let known = request.headers.get("if-none-match").cloned();
    shared.requests.lock().unwrap().push(request);
    match reply {
        None => write!(stream, "HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")?,
        Some(Reply::Head(status, headers)) => {
            write!(stream, "HTTP/1.1 {status}\r\n{headers}Content-Length: 0\r\nConnection: close\r\n\r\n")?;
        }
        Some(Reply::File(body)) => {
            let sum = body.iter().fold(5381u64, |h, b| h.wrapping_mul(33) ^ u64::from(*b));
            let etag = format!("\"{sum:x}\"");
            if known.as_deref() == Some(&etag) {
                write!(stream, "HTTP/1.1 304 Not Modified\r\nETag: {etag}\r\nConnection: close\r\n\r\n")?;
            } else {
                let length = body.len();
                write!(
                    stream,
                    "HTTP/1.1 200 OK\r\nETag: {etag}\r\nContent-Length: {length}\r\nConnection: close\r\n\r\n"
                )?;
                stream.write_all(&body)?;
            }
        }
        Some(Reply::Raw(send)) => send(&mut stream)?,
        Some(Reply::Broken(send)) => {
            send(&mut stream)?;
            stream.flush()?;
            return Ok(false);
        }
    }
    stream.flush()?;
    Ok(true)
}

fn read(stream: &mut impl io::Read) -> io::Result<Option<Request>> {
    let mut lines = BufReader::new(stream).lines();
    let Some(first) = lines.next().transpose()? else { return Ok(None) };
    let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
    let mut headers = BTreeMap::new();
    for line in lines {
        let line = line?;
        let Some((name, value)) = line.split_once(':') else { break };
        headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    Ok(Some(Request { path, headers }))
}
