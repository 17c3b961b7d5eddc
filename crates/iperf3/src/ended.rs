//! Sessions that are over, for a log.

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
