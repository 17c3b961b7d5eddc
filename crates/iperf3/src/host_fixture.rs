//! A server for tests, and what a client does byte by byte.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde_json::Value;
use weir_sys::Stop;

use super::client::{self, TestObserver};
use super::{COOKIE_BYTES, Cookie, End, Ended, Error, Host, Interval, Lines, Options, Protocol, Report, Way};
use weir_load::limits::Limits;
use weir_load::port::Port;

/// A session that is over, in one line.
fn words(ended: &Ended) -> String {
    let mut words = format!("iperf3 {}", ended.client);
    if let Some(test) = &ended.test {
        let protocol = if test.protocol == Protocol::Udp { "udp" } else { "tcp" };
        let way = match test.way {
            Way::Egress => "",
            Way::Ingress => " reverse",
            Way::Both => " both ways",
        };
        words += &format!(": {protocol}{way}, {} streams, {:.1} s", test.streams, ended.seconds);
        words += &format!(", received {} bytes, sent {} bytes", ended.received_bytes, ended.sent_bytes);
        if let Some((lost, of)) = ended.lost {
            words += &format!(", lost {lost} of {of} datagrams");
        }
        if let Some(title) = &test.title {
            words += &format!(", \"{title}\"");
        }
    }
    match &ended.error {
        Some(error) => format!("{words}: {error}"),
        None => words,
    }
}

/// A server that hands everything over, until it is dropped.
pub(super) struct Server {
    pub(super) host: Arc<Host>,
    pub(super) address: SocketAddr,
    pub(super) limits: Arc<Limits>,
    ended: Mutex<Receiver<String>>,
    stop: Arc<AtomicBool>,
    acceptor: Option<JoinHandle<()>>,
}

impl Server {
    pub(super) fn new(limits: Limits, json: bool) -> Server {
        let limits = Arc::new(limits);
        let port = Arc::new(Port::open("127.0.0.1:0".parse().unwrap()).unwrap());
        let (tell, ended) = channel();
        let tell = Mutex::new(tell);
        let host = Host::new(limits.clone(), port.clone())
            .json_output(json)
            .log(move |e| drop(tell.lock().unwrap().send(words(e))));
        let (host, stop) = (Arc::new(host), Arc::new(AtomicBool::new(false)));
        let address = port.address();
        let (own, ends) = (host.clone(), stop.clone());
        let acceptor = std::thread::spawn(move || accept(&port, &own, &ends));
        Server { host, address, limits, ended: Mutex::new(ended), stop, acceptor: Some(acceptor) }
    }

    /// The next line of the log.
    pub(super) fn ended(&self) -> String {
        self.ended.lock().unwrap().recv_timeout(Duration::from_secs(20)).expect("no session ended")
    }

    /// Waits until no client is left.
    pub(super) fn empties(&self) {
        let until = Instant::now() + Duration::from_secs(10);
        while self.host.sessions() > 0 || self.limits.admitted() > 0 {
            assert!(Instant::now() < until, "{} sessions are left", self.host.sessions());
            std::thread::yield_now();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
        self.acceptor.take().unwrap().join().unwrap();
    }
}

fn accept(port: &Port, host: &Host, stop: &AtomicBool) {
    let mut waiting: Vec<(TcpStream, SocketAddr, u64)> = Vec::new();
    let mut order = 0;
    while !stop.load(Relaxed) {
        if let Ok((stream, from)) = port.listener().accept() {
            stream.set_nonblocking(true).unwrap();
            order += 1;
            waiting.push((stream, from, order));
        }
        let mut bytes = [0; COOKIE_BYTES];
        let ready =
            |(s, ..): &mut (TcpStream, SocketAddr, u64)| s.peek(&mut bytes).is_ok_and(|n| n == COOKIE_BYTES);
        for (stream, from, order) in waiting.extract_if(.., ready) {
            host.connection(stream, from, order);
        }
        let mut first = [0; 8];
        if let Ok((n, from)) = port.udp().recv_from(&mut first) {
            host.datagram(&first[..n], from);
        }
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// The output that a client was shown.
#[derive(Default)]
pub(super) struct Seen {
    pub(super) streams: usize,
    pub(super) intervals: Vec<Interval>,
}

impl TestObserver for Seen {
    fn begun(&mut self, _: &Lines, streams: &[(i64, SocketAddr, SocketAddr)]) {
        self.streams = streams.len();
    }
    fn interval(&mut self, _: &Lines, interval: &Interval) {
        self.intervals.push(interval.clone());
    }
}

/// The usual limits, but for this.
pub(super) fn limits(change: impl FnOnce(&mut Limits)) -> Limits {
    let mut limits = Limits::default();
    change(&mut limits);
    limits
}

/// A test of a third of a second.
pub(super) fn short() -> Options {
    Options { end: End::Time(Duration::from_millis(300)), ..Options::default() }
}

/// A test of our own client against the server.
pub(super) fn run(server: &Server, options: &Options) -> Result<Report, Error> {
    client::run(options, server.address, &Stop::default(), &mut Seen::default())
}

/// A raw client that has been let in.
pub(super) fn begin(server: &Server, cookie: &Cookie) -> TcpStream {
    let mut stream = TcpStream::connect(server.address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.write_all(cookie.bytes()).unwrap();
    assert_eq!(byte(&mut stream), 9);
    stream
}

/// The next state.
pub(super) fn byte(stream: &mut TcpStream) -> u8 {
    let mut byte = [0];
    stream.read_exact(&mut byte).unwrap();
    byte[0]
}

/// Send a frame.
pub(super) fn say(stream: &mut TcpStream, value: &Value) {
    let text = value.to_string();
    stream.write_all(&(text.len() as u32).to_be_bytes()).unwrap();
    stream.write_all(text.as_bytes()).unwrap();
}

/// -2 and iperf3's number.
pub(super) fn server_error(stream: &mut TcpStream) -> i32 {
    assert_eq!(byte(stream), 0xfe);
    let mut numbers = [0; 8];
    stream.read_exact(&mut numbers).unwrap();
    assert_eq!(numbers[4..], [0; 4]);
    i32::from_be_bytes([numbers[0], numbers[1], numbers[2], numbers[3]])
}
