//! A web server that is broken on purpose, for the tests in `tests/broken.rs`: `bad_server PORT WAY TENTHS`.
//!
//! WAY is `good`, `unavailable` (503 at once), `close` (closes without an answer), `half` (half of the body, then closes) or
//! `stall` (never answers). Of ten requests TENTHS are answered that way, the others well.

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Body of a good answer.
const BODY: [u8; 612] = [b'x'; 612];

/// A client that was left waiting gives up long before.
const STALL: Duration = Duration::from_secs(5);

#[derive(Clone, Copy)]
enum Way {
    Good,
    Unavailable,
    Close,
    Half,
    Stall,
}

/// Which requests are answered badly: `tenths` of any ten in a row, spread over them.
struct Badly {
    way: Way,
    tenths: u64,
    asked: AtomicU64,
}

impl Badly {
    fn next(&self) -> Way {
        let n = self.asked.fetch_add(1, Ordering::Relaxed);
        // 3 has no factor in common with 10, so n * 3 takes each of ten values once.
        if n * 3 % 10 < self.tenths { self.way } else { Way::Good }
    }
}

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let way = match words.get(1).map(String::as_str) {
        Some("good") => Way::Good,
        Some("unavailable") => Way::Unavailable,
        Some("close") => Way::Close,
        Some("half") => Way::Half,
        Some("stall") => Way::Stall,
        _ => usage(),
    };
    let (Some(Ok(port)), Some(Ok(tenths))) =
        (words.first().map(|w| w.parse::<u16>()), words.get(2).map(|w| w.parse::<u64>()))
    else {
        usage()
    };
    let badly: &'static Badly = Box::leak(Box::new(Badly { way, tenths, asked: AtomicU64::new(0) }));
    let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).expect("the port is free");
    // The parent process waits for this line.
    println!("listening");
    for connection in listener.incoming().filter_map(Result::ok) {
        let served = std::thread::Builder::new().stack_size(64 << 10).spawn(|| serve(connection, badly));
        served.expect("a thread for a connection");
    }
}

fn usage() -> ! {
    eprintln!("usage: bad_server PORT good|unavailable|close|half|stall TENTHS");
    std::process::exit(2);
}

/// Answers until either end closes. An error is the client's end of it.
fn serve(mut connection: TcpStream, badly: &Badly) -> Option<()> {
    connection.set_nodelay(true).ok()?;
    let mut asked = Vec::new();
    loop {
        let head = request(&mut connection, &mut asked)?;
        match badly.next() {
            Way::Good => answer(&mut connection, "200 OK", BODY.len())?,
            Way::Unavailable => answer(&mut connection, "503 Service Unavailable", BODY.len())?,
            Way::Half => return answer(&mut connection, "200 OK", BODY.len() / 2),
            Way::Close => return Some(()),
            Way::Stall => {
                std::thread::sleep(STALL);
                return Some(());
            }
        }
        if head.to_ascii_lowercase().contains("connection: close") {
            return Some(());
        }
    }
}

/// The next request's head; `None` at the end of the connection.
fn request(connection: &mut TcpStream, asked: &mut Vec<u8>) -> Option<String> {
    let mut buffer = [0; 4096];
    loop {
        if let Some(end) = asked.windows(4).position(|w| w == b"\r\n\r\n") {
            let rest = asked.split_off(end + 4);
            let head = std::mem::replace(asked, rest);
            return Some(String::from_utf8_lossy(&head).into_owned());
        }
        match connection.read(&mut buffer) {
            Ok(0) | Err(_) => return None,
            Ok(n) => asked.extend_from_slice(&buffer[..n]),
        }
    }
}

/// A head that promises the whole body, and that much of it, in one segment.
fn answer(connection: &mut TcpStream, status: &str, bytes: usize) -> Option<()> {
    let mut text = format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n", BODY.len()).into_bytes();
    text.extend_from_slice(&BODY[..bytes]);
    connection.write_all(&text).ok()
}
