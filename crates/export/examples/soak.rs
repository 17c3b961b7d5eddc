//! A day of `weir export` in minutes: as many pages as it makes in that time, of networks that come and go, with scrapes, clients that
//! break off and sources that fail. Ends with 1 if memory, threads or descriptors grew after the first tenth. `scripts/soak-export`
//! runs it.
//!
//! Usage: soak [SEED [PAGES]]

use std::fs;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use weir_export::{Access, Board, Names, Page, ProbeTarget, Probes, Server, Source, begin, flows};
use weir_flows::Reading;
use weir_sys::Stop;

/// A page every 2 s for a day.
const DAY: u64 = 43_200;
/// How much memory may grow after the first tenth, bytes: what an allocator keeps.
const MOST_GROWTH: u64 = 8 << 20;

/// xorshift64* (Vigna 2016): the same day for the same seed.
struct Random(u64);

impl Random {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % end
    }
}

/// A source that fails now and then, with ever another reason.
struct Moody(u64);

impl Source for Moody {
    fn name(&self) -> &'static str {
        "moody"
    }

    fn every(&self) -> Duration {
        Duration::ZERO
    }

    fn read(&mut self, _page: &mut Page, _stop: &Stop) -> Result<(), String> {
        self.0 += 1;
        std::thread::sleep(Duration::from_millis(1));
        if self.0.is_multiple_of(1000) { Err(format!("reason {}", self.0)) } else { Ok(()) }
    }
}

/// Resident memory (bytes), threads and open descriptors of this process.
fn size() -> (u64, usize, usize) {
    let pages = fs::read_to_string("/proc/self/statm").expect("statm");
    let resident: u64 = pages.split(' ').nth(1).and_then(|n| n.parse().ok()).expect("resident pages");
    let count = |folder: &str| fs::read_dir(folder).expect(folder).count();
    (resident * 4096, count("/proc/self/task"), count("/proc/self/fd"))
}

fn networks(reading: &mut Reading, random: &mut Random, turn: u64) {
    reading.networks.clear();
    for n in 0..100 {
        let mut network = reading.all.clone();
        // Half of them stay; half of them come and go.
        let number = if n < 50 { n } else { random.below(1 << 22) };
        network.network = Some(format!("{}.{}.{}.0/24", number >> 16, (number >> 8) & 255, number & 255));
        network.client_side.bytes = turn * 1000;
        network.server_side.lost_to.segments = random.below(1000);
        reading.networks.push(network);
    }
}

fn scrape(server: &Server) -> usize {
    let mut client = TcpStream::connect(server.address()).expect("connect");
    client.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").expect("request");
    let mut answer = Vec::new();
    client.read_to_end(&mut answer).expect("answer");
    assert!(answer.starts_with(b"HTTP/1.1 200") && answer.ends_with(b"\n"), "a whole page");
    answer.len()
}

fn main() {
    let mut words = std::env::args().skip(1).map(|w| w.parse::<u64>().expect("a number"));
    let (seed, pages) = (words.next().unwrap_or(1), words.next().unwrap_or(DAY));
    let mut random = Random(seed.max(1));
    let server = Server::start(([127, 0, 0, 1], 0).into(), Access::default(), String::new()).expect("server");
    let target: ProbeTarget = "127.0.0.1:9".parse().expect("target");
    let probes = Probes::new(&[target], Duration::from_millis(20));
    let board = Board::start(vec![Box::new(Moody(0)), Box::new(probes)]).expect("threads");
    let mut names = Names::new(50);
    let mut reading = Reading::empty();
    let (mut first, mut longest) = (None, 0);
    for turn in 0..pages {
        networks(&mut reading, &mut random, turn);
        let mut page = begin("soak");
        flows(&mut page, &reading, &mut names);
        board.write(&mut page);
        board.news();
        server.show(page.into_text());
        match random.below(20) {
            0 => longest = longest.max(scrape(&server)),
            // It breaks off within its request.
            1 => drop(TcpStream::connect(server.address()).map(|mut c| c.write_all(b"GET /met"))),
            _ => {}
        }
        if turn == pages / 10 {
            first = Some(size());
            println!("after {turn} pages: {first:?} (bytes, threads, descriptors)");
        }
    }
    // Clients that broke off are gone once their threads have seen it.
    let deadline = std::time::Instant::now() + Duration::from_secs(30);
    let first = first.expect("ten pages at least");
    while (size().1 > first.1 || size().2 > first.2) && std::time::Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(50));
    }
    let last = size();
    println!("after {pages} pages: {last:?}; the longest answer had {longest} bytes");
    if last.0 > first.0 + MOST_GROWTH || last.1 > first.1 || last.2 > first.2 {
        println!("FAILED: memory, threads or descriptors grew");
        std::process::exit(1);
    }
}
