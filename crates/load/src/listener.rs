//! Whether another program listens, asked of the kernel: a connection would be taken for a client.

use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use crate::Error;
use crate::child::Child;

/// Time between two checks of something that does not signal its changes.
const LOOK: Duration = Duration::from_millis(5);

/// Returns the port to listen on: as given, or one that is unused now.
pub(crate) fn port_of(bind: SocketAddr) -> Result<u16, Error> {
    if bind.port() != 0 {
        return Ok(bind.port());
    }
    let error = |source| Error::Listen { address: bind, source };
    TcpListener::bind(bind).and_then(|l| l.local_addr()).map(|a| a.port()).map_err(error)
}

/// Wait until the server listens, at most `patience`. `false` if it ended instead.
pub(crate) fn await_listening(
    program: &str,
    child: &mut Child,
    port: u16,
    patience: Duration,
) -> Result<bool, Error> {
    let failed = |reason: String| Error::Program { program: program.to_owned(), reason };
    let deadline = Instant::now() + patience;
    while !listens(port)? {
        if child.process.try_wait().map_err(|e| failed(e.to_string()))?.is_some() {
            return Ok(false);
        }
        if Instant::now() > deadline {
            return Err(failed(format!("the server does not listen on port {port} after {patience:?}")));
        }
        std::thread::sleep(LOOK);
    }
    Ok(true)
}

/// True if something listens on the TCP port, in the namespace of this thread: proc_net(5), state 0A is LISTEN.
pub(crate) fn listens(port: u16) -> Result<bool, Error> {
    let mut found = false;
    for file in ["/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6"] {
        match std::fs::read_to_string(file) {
            Ok(text) => found |= has_listener(&text, port),
            // A kernel without IPv6.
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => {}
            Err(source) => return Err(Error::Io { what: "read the kernel's list of TCP sockets", source }),
        }
    }
    Ok(found)
}

fn has_listener(table: &str, port: u16) -> bool {
    table.lines().skip(1).any(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let local = fields.next().and_then(|a| a.rsplit_once(':'));
        let state = fields.nth(1);
        state == Some("0A") && local.is_some_and(|(_, p)| u16::from_str_radix(p, 16) == Ok(port))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_a_listener_in_the_kernel_s_table() {
        // proc_net(5): 0x1F90 is 8080 listening, 0x0050 is established.
        let table = "  sl  local_address rem_address   st tx_queue rx_queue\n\
            \x20  0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1\n\
            \x20  1: 0100007F:0050 0100007F:D431 01 00000000:00000000 00:00000000 00000000     0        0 2\n";
        assert!(has_listener(table, 8080));
        assert!(!has_listener(table, 80));
        assert!(!has_listener(table, 54321));
        let table6 = "  sl  local_address                         remote_address                        st\n\
            \x20  0: 00000000000000000000000000000000:0016 00000000000000000000000000000000:0000 0A\n";
        assert!(has_listener(table6, 22));
    }
}
