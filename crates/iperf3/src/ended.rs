//! Sessions that are over, for a log.

use std::fmt;
use std::net::SocketAddr;

use super::error::Error;
use super::parameters::Way;
use weir_netlink::Protocol;

/// One session that is over, for a log.
#[derive(Debug)]
pub struct Ended {
    /// The client's control connection.
    pub client: SocketAddr,
    /// The requested test, if the session came to that.
    pub test: Option<Asked>,
    /// Payload bytes that came, without the omitted time.
    pub received_bytes: u64,
    /// Payload bytes that were sent, likewise.
    pub sent_bytes: u64,
    /// Datagrams that did not come, of how many (UDP, client to server).
    pub lost: Option<(u64, u64)>,
    /// How long it took, seconds.
    pub seconds: f64,
    /// Why it did not come to its end.
    pub error: Option<Error>,
}

/// A client's request.
#[derive(Debug, Clone)]
pub struct Asked {
    /// TCP or UDP.
    pub protocol: Protocol,
    /// Who sends.
    pub way: Way,
    /// Streams in each direction.
    pub streams: u32,
    /// Printable, at most 80 characters.
    pub title: Option<String>,
}

/// One line for people; nothing in it that a terminal would obey.
impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "iperf3 {}", self.client)?;
        if let Some(test) = &self.test {
            let protocol = if test.protocol == Protocol::Udp { "udp" } else { "tcp" };
            let way = match test.way {
                Way::Egress => "",
                Way::Ingress => " reverse",
                Way::Both => " both ways",
            };
            write!(f, ": {protocol}{way}, {} streams, {:.1} s", test.streams, self.seconds)?;
            write!(f, ", received {} bytes, sent {} bytes", self.received_bytes, self.sent_bytes)?;
            if let Some((lost, of)) = self.lost {
                write!(f, ", lost {lost} of {of} datagrams")?;
            }
            if let Some(title) = &test.title {
                write!(f, ", \"{title}\"")?;
            }
        }
        match &self.error {
            Some(error) => write!(f, ": {error}"),
            None => Ok(()),
        }
    }
}
