//! Workloads that a broken hop is measured with.

/// The demands of a workload on a hop, as far as they decide what breaks it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Asks {
    /// Bulk data on a few connections.
    Stream,
    /// Datagrams at a rate.
    Datagrams,
    /// Frames at a rate. Opening a flow is tried again and again where most frames are lost, so these have one.
    Frames,
    /// Requests on a few TCP connections that stay open.
    Requests,
    /// Requests by UDP.
    UdpRequests,
    /// A connection after the other, without data.
    Connects,
    /// A connection for each request.
    Connections,
    /// HTTP requests on connections that stay open.
    HttpKept,
    /// HTTP requests, each on a connection of its own.
    HttpNew,
}

/// One workload.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Work {
    pub(crate) name: &'static str,
    pub(crate) asks: Asks,
    /// Connections for a whole trial, where it opens no others.
    pub(crate) flows: u32,
    /// Keys of `[[workload]]` but its name.
    pub(crate) keys: &'static str,
}

const fn work(name: &'static str, asks: Asks, flows: u32, keys: &'static str) -> Work {
    Work { name, asks, flows, keys }
}

/// Payloads are longer than 200 bytes, so that rules tell them from handshakes and from weir's own proof of the path. Time limits
/// are short: a trial is, too.
pub(crate) const WORKS: &[Work] = &[
    work("stream-1", Asks::Stream, 1, "kind = \"tcp-stream\"\nverify = true\n"),
    work(
        "stream-4",
        Asks::Stream,
        4,
        "kind = \"tcp-stream\"\nstreams = 4\ndirection = \"ingress\"\nverify = true\n",
    ),
    work("udp", Asks::Datagrams, 1, "kind = \"udp-stream\"\nrate-pps = 2000\npayload-bytes = 800\n"),
    work(
        "packets",
        Asks::Frames,
        1,
        "kind = \"packets\"\nprocedure = \"rate\"\nrate = 2000\nflows = 1\nframe-bytes = 804\n",
    ),
    work("rr-1", Asks::Requests, 1, "kind = \"tcp-rr\"\nrequest-bytes = 256\nresponse-bytes = 256\n"),
    work(
        "rr-8",
        Asks::Requests,
        8,
        "kind = \"tcp-rr\"\nrequest-bytes = 256\nresponse-bytes = 256\nconnections = 8\nrate-per-second = 1000\n",
    ),
    work(
        "udp-rr-1",
        Asks::UdpRequests,
        1,
        "kind = \"udp-rr\"\nrequest-bytes = 256\nresponse-bytes = 256\ntimeout-ms = 50\n",
    ),
    work(
        "udp-rr-8",
        Asks::UdpRequests,
        8,
        "kind = \"udp-rr\"\nrequest-bytes = 256\nresponse-bytes = 256\ntimeout-ms = 50\nconnections = 8\nrate-per-second = 1000\n",
    ),
    work("connect", Asks::Connects, 0, "kind = \"tcp-connect\"\nrate-per-second = 500\ntimeout-ms = 200\n"),
    work(
        "crr-8",
        Asks::Connections,
        0,
        "kind = \"tcp-crr\"\nrequest-bytes = 256\nresponse-bytes = 256\ntimeout-ms = 200\n",
    ),
    work(
        "crr-open",
        Asks::Connections,
        0,
        "kind = \"tcp-crr\"\nrequest-bytes = 256\nresponse-bytes = 256\ntimeout-ms = 200\nrate-per-second = 500\n",
    ),
    work("http-kept-1", Asks::HttpKept, 1, "connections = 1\n"),
    work("http-kept-50", Asks::HttpKept, 50, "connections = 50\n"),
    work("http-kept-open", Asks::HttpKept, 50, "connections = 50\nrate-per-second = 500\n"),
    work("http-new-1", Asks::HttpNew, 0, "connections = 1\nkeep-alive = false\n"),
    work("http-new-50", Asks::HttpNew, 0, "connections = 50\nkeep-alive = false\n"),
    work("http-new-open", Asks::HttpNew, 0, "connections = 50\nkeep-alive = false\nrate-per-second = 500\n"),
];

impl Work {
    /// True if its server is not weir's own.
    pub(crate) fn has_server(&self) -> bool {
        matches!(self.asks, Asks::HttpKept | Asks::HttpNew)
    }

    /// True if it opens a connection for each operation.
    pub(crate) fn opens(&self) -> bool {
        matches!(self.asks, Asks::Connects | Asks::Connections | Asks::HttpNew)
    }

    pub(crate) fn is_udp(&self) -> bool {
        matches!(self.asks, Asks::Datagrams | Asks::Frames | Asks::UdpRequests)
    }

    /// Its entry in a scenario; the server listens on `port`.
    pub(crate) fn entry(&self, port: u16) -> String {
        let (name, keys) = (self.name, self.keys);
        if !self.has_server() {
            return format!("[[workload]]\nname = \"{name}\"\n{keys}");
        }
        let fill = "x".repeat(200);
        format!(
            "[[workload]]\nname = \"{name}\"\nkind = \"http\"\nserver = \"none\"\nport = {port}\ntimeout-ms = 200\n\
             headers = [\"X-Fill: {fill}\"]\n{keys}"
        )
    }
}
