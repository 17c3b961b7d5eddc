//! A client that says byte by byte what it likes.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::time::Instant;

use serde_json::{Value, json};
use weir_load::Stop;
use weir_probe::frame;

use super::ends::{PATIENCE, Running, span, workload};

pub(crate) fn connect(to: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(to).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

pub(crate) fn frame_of(value: &Value) -> Vec<u8> {
    frame::encode(value, 1 << 20).unwrap()
}

pub(crate) fn hello() -> Vec<u8> {
    let hello = json!({"ask": "hello", "version": 1, "nonce": "00".repeat(32), "program": "\u{1b}[31mtest"});
    [&b"weirCTL1"[..], &frame_of(&hello)].concat()
}

/// A client that has said hello and was welcomed.
pub(crate) fn welcomed(server: &Running) -> TcpStream {
    let mut stream = connect(server.address);
    stream.write_all(&hello()).unwrap();
    for word in ["challenge", "welcome"] {
        let said: Value = frame::read(&stream, 1 << 20).unwrap();
        assert_eq!(said["tell"], word, "{said}");
    }
    stream
}

/// Whether the server measures with a client. On a busy machine neither end may get to run in a tenth of a second: another follows.
pub(crate) fn works(server: &Running) {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let m = server.visit().measure(
            &workload(json!({"kind": "tcp-rr"})),
            span(100),
            &Stop::default(),
            &mut |_| {},
        );
        if m.unwrap().trial.value("answered") > 0.0 {
            return;
        }
        assert!(Instant::now() < deadline, "no measurement has an answer");
    }
}
