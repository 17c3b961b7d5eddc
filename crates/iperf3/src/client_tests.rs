//! The client towards servers that do not behave.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::Duration;

use serde_json::{Value, json};
use weir_sys::Stop;

use super::client::{self, TestObserver};
use super::{COOKIE_BYTES, End, Error, Interval, Lines, Options, Report};

struct Blind;

impl TestObserver for Blind {
    fn begun(&mut self, _: &Lines, _: &[(i64, SocketAddr, SocketAddr)]) {}
    fn interval(&mut self, _: &Lines, _: &Interval) {}
}

/// The client's result when a server does this with its control connection, of which the cookie has been read. The second
/// argument gives the test's data connections.
fn towards(serve: impl FnOnce(TcpStream, &TcpListener) + Send) -> Result<Report, Error> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let target = listener.local_addr().unwrap();
    let options = Options { end: End::Time(Duration::from_millis(50)), ..Options::default() };
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut control = listener.accept().unwrap().0;
            control.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            control.read_exact(&mut [0; COOKIE_BYTES]).unwrap();
            serve(control, &listener);
        });
        client::run(&options, target, &Stop::default(), &mut Blind)
    })
}

fn frame(control: &mut TcpStream) -> Value {
    let mut length = [0; 4];
    control.read_exact(&mut length).unwrap();
    let mut text = vec![0; u32::from_be_bytes(length) as usize];
    control.read_exact(&mut text).unwrap();
    serde_json::from_slice(&text).unwrap()
}

/// Up to the server's turn to tell its results.
fn through(control: &mut TcpStream, listener: &TcpListener) {
    control.write_all(&[9]).unwrap();
    assert_eq!(frame(control)["tcp"], true);
    control.write_all(&[10]).unwrap();
    let mut data = listener.accept().unwrap().0;
    control.write_all(&[1, 2]).unwrap();
    // Ends when the client closes the stream.
    std::thread::spawn(move || while data.read(&mut [0; 65536]).is_ok_and(|n| n > 0) {});
    let mut state = [0];
    control.read_exact(&mut state).unwrap();
    assert_eq!(state, [4]);
    control.write_all(&[13]).unwrap();
    assert_eq!(frame(control)["streams"][0]["id"], 1);
}

fn results(id: i64) -> Value {
    json!({
        "cpu_util_total": 0, "cpu_util_user": 0, "cpu_util_system": 0, "sender_has_retransmits": -1,
        "server_output_text": "a\u{1b}[31mb",
        "streams": [{"id": id, "bytes": 1000, "retransmits": -1, "jitter": 0, "errors": 0, "packets": 0}],
    })
}

fn say(control: &mut TcpStream, value: &Value) {
    let text = value.to_string();
    control.write_all(&[&(text.len() as u32).to_be_bytes()[..], text.as_bytes()].concat()).unwrap();
}

#[test]
fn results_are_taken_as_they_are_or_refused() {
    let report = towards(|mut control, listener| {
        through(&mut control, listener);
        say(&mut control, &results(1));
        control.write_all(&[14]).unwrap();
        let mut state = [0];
        control.read_exact(&mut state).unwrap();
        assert_eq!(state, [16]);
    });
    let egress = report.unwrap().egress.unwrap();
    assert_eq!(egress.receiver.bytes, 1000);
    // A version that does not tell how long it counted: the client's own time.
    assert!(egress.receiver.seconds >= 0.05 && egress.sender.bytes > 0);

    let unknown = towards(|mut control, listener| {
        through(&mut control, listener);
        say(&mut control, &results(7));
        control.write_all(&[14]).unwrap();
    });
    assert!(unknown.unwrap_err().to_string().contains("a stream 7 that does not exist"));
    // Four gigabytes are claimed: refused before anything is read.
    let huge = towards(|mut control, listener| {
        through(&mut control, listener);
        control.write_all(&u32::MAX.to_be_bytes()).unwrap();
    });
    assert!(huge.unwrap_err().to_string().contains("4294967295 bytes"));
    let half = towards(|mut control, listener| {
        through(&mut control, listener);
        control.write_all(&[0, 0, 1, 0, b'{']).unwrap();
    });
    assert!(matches!(half, Err(Error::Closed(_))), "{half:?}");
}

#[test]
fn a_servers_output_cannot_reach_a_terminal_raw() {
    let output = super::results::Results::parse(&results(1)).unwrap().output.unwrap();
    assert_eq!(output.printable(), "ab");
}

#[test]
fn states_that_end_a_test_become_words() {
    let denied = towards(|mut control, _| control.write_all(&[0xff]).unwrap());
    assert!(matches!(denied, Err(Error::Denied)));
    let numbers = [&[0xfe][..], &27i32.to_be_bytes(), &1i32.to_be_bytes()].concat();
    let refused = towards(|mut control, _| control.write_all(&numbers).unwrap());
    assert!(matches!(refused, Err(Error::Server { code: 27, errno: 1 })), "{refused:?}");
    let ended = towards(|mut control, _| control.write_all(&[11]).unwrap());
    assert!(matches!(ended, Err(Error::ServerTerminated)));
    for strange in [77, 14, 2] {
        let error = towards(|mut control, _| control.write_all(&[strange]).unwrap());
        assert!(matches!(error, Err(Error::Protocol(_))), "{error:?}");
    }
    let gone = towards(|control, _| drop(control));
    assert!(matches!(gone, Err(Error::Closed(_))));
    let user = towards(|mut control, _| {
        control.write_all(&[9]).unwrap();
        frame(&mut control);
    });
    assert!(user.unwrap_err().to_string().contains("a user and a password"));
}
