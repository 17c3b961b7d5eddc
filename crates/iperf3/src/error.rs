//! Errors between two ends, in words.

use std::io;
use std::net::SocketAddr;

/// Why a test did not come to its end.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An option is out of range, or does not go with another.
    #[error("{0}")]
    Option(String),
    /// No connection came about.
    #[error("cannot connect to {address}: {source}{}", hint(.source))]
    Connect {
        /// The server.
        address: SocketAddr,
        /// Why.
        source: io::Error,
    },
    /// A system call failed.
    #[error("cannot {what}: {source}")]
    Io {
        /// The operation that failed.
        what: &'static str,
        /// Why it failed.
        source: io::Error,
    },
    /// The other end closed the control connection.
    #[error("the other end closed the connection ({0})")]
    Closed(&'static str),
    /// The other end did not take its turn.
    #[error("the other end did not answer in time ({0})")]
    Silent(&'static str),
    /// ACCESS_DENIED.
    #[error(
        "the server does not let this test in: it is busy with another one (iperf3 runs one at a time), or wants a user and a \
         password, which weir does not send"
    )]
    Denied,
    /// SERVER_ERROR with its two numbers.
    #[error("the server gave up: {}", server_words(*.code, *.errno))]
    Server {
        /// iperf3's own number (iperf_api.h).
        code: i32,
        /// errno of the server's system; 0 for none.
        errno: i32,
    },
    /// A request that this server does not accept; the client gets iperf3's number.
    #[error("refused: {words}")]
    Refused {
        /// iperf3's own number (iperf_api.h).
        code: i32,
        /// Why.
        words: String,
    },
    /// SERVER_TERMINATE.
    #[error("the server ended the test (it was stopped, or a limit of its was reached)")]
    ServerTerminated,
    /// CLIENT_TERMINATE.
    #[error("the client ended the test")]
    ClientTerminated,
    /// Something else than iperf3 speaks there, or a broken one.
    #[error("not what iperf3 says: {0}")]
    Protocol(String),
    /// Stopped here.
    #[error("stopped")]
    Stopped,
}

impl Error {
    /// For `map_err`.
    pub(super) fn io(what: &'static str) -> impl FnOnce(io::Error) -> Error {
        move |source| Error::Io { what, source }
    }
}

fn hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::ConnectionRefused => {
            " (nothing listens there: start `iperf3 -s` or `weir serve`, or name the port with --port)"
        }
        io::ErrorKind::TimedOut => " (nothing answered: a firewall, or the wrong address)",
        _ => "",
    }
}

/// iperf3's numbers that a server can come to (iperf_api.h), in words for people.
fn code_words(code: i32) -> Option<&'static str> {
    Some(match code {
        5 => "the test is too long for it (-t)",
        6 => "too many streams at once (-P)",
        7 => "the writes are too long (-l)",
        9 => "the report interval is out of range",
        10 => "the largest segment is out of range (-M)",
        12 => "the omitted time is out of range (-O)",
        13 => "it does not have one of these options",
        15 => "the burst is out of range (-b RATE/N)",
        18 | 131 => "it does not have this protocol",
        20 => "the datagrams' length is out of range (-l)",
        21 | 125 => "it cannot set the type of service (-S)",
        27 => "the bit rate is above its limit (-b; --server-bitrate-limit there)",
        102 | 202 => "it cannot listen for the streams",
        110 => "it did not understand a control message",
        113 | 114 => "it did not understand the parameters",
        115..=117 => "the results could not be exchanged",
        119 => "it says that this client ended the test",
        120 => "it was stopped",
        123 => "it cannot set the largest segment (-M)",
        124 | 141 => {
            "it cannot give the socket buffers that were asked for (-w; net.core.rmem_max, wmem_max there)"
        }
        134 => "it does not have this congestion control (-C)",
        140 => "it cannot pace sockets",
        142 => "it wants a user and a password (iperf3 --username), which weir does not send",
        144 => "it got no data for too long",
        145 => "it cannot set Don't Fragment",
        203 | 204 => "a stream could not be connected",
        205 => "it could not send on a stream",
        206 => "it could not receive on a stream",
        207 => "a stream was closed",
        _ => return None,
    })
}

fn server_words(code: i32, errno: i32) -> String {
    let mut text = match code_words(code) {
        Some(words) => format!("{words} (iperf3 error {code})"),
        None => format!("iperf3 error {code}"),
    };
    if errno != 0 {
        text += &format!("; its system says: {}", io::Error::from_raw_os_error(errno));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_servers_numbers_become_words() {
        let text = Error::Server { code: 142, errno: 0 }.to_string();
        assert!(text.contains("user and a password") && !text.contains("system says"), "{text}");
        let text = Error::Server { code: 134, errno: 2 }.to_string();
        assert!(text.contains("congestion control") && text.contains("No such file"), "{text}");
        assert!(Error::Server { code: 9999, errno: 0 }.to_string().ends_with("iperf3 error 9999"));
    }

    #[test]
    fn a_refused_connection_says_what_to_start() {
        let address = "192.0.2.1:5201".parse().unwrap();
        let source = io::Error::from(io::ErrorKind::ConnectionRefused);
        let text = Error::Connect { address, source }.to_string();
        assert!(text.contains("192.0.2.1:5201") && text.contains("iperf3 -s"), "{text}");
    }
}
