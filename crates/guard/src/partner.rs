//! The other guard process: whichever of the two dies is started again by the other one.

use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::process::Child;
use std::time::{Duration, Instant};

use crate::error::Error;
use crate::sentinel::{Role, Sentinel, is_armed};

/// How long the second guard may take to come up.
const START: Duration = Duration::from_secs(8);
/// Between two attempts to start one: a machine without memory is not to be kept busy by us.
const RETRY: Duration = Duration::from_millis(500);

/// The partner, as the other one sees it.
#[derive(Debug)]
pub(crate) struct Partner<'a> {
    sentinel: &'a Sentinel,
    by: &'a str,
    id: &'a str,
    /// Hangs up when it dies; `None` while it has none.
    link: Option<UnixStream>,
    /// To be reaped, where this process started it.
    child: Option<Child>,
    next: Instant,
}

impl<'a> Partner<'a> {
    /// Makes the partner of a guard in that role. The first guard starts its partner and waits until it is ready; the second one
    /// has the link as its standard output.
    pub(crate) fn new(role: Role, sentinel: &'a Sentinel, by: &'a str, id: &'a str) -> Result<Self, Error> {
        let failed = |e: std::io::Error| Error::Guard(format!("the second guard process: {e}"));
        let mut partner = Partner { sentinel, by, id, link: None, child: None, next: Instant::now() };
        match role {
            Role::First => {
                partner.start();
                let link = partner.link.as_ref();
                if !link.map_or(Ok(false), |link| is_armed(link, START)).map_err(failed)? {
                    return Err(failed(std::io::Error::other("it does not start")));
                }
            }
            Role::Beside => {
                let stdout = std::io::stdout();
                let link =
                    rustix::io::fcntl_dupfd_cloexec(stdout.as_fd(), 3).map_err(|e| failed(e.into()))?;
                partner.link = Some(link.into());
            }
            Role::Alone => {}
        }
        Ok(partner)
    }

    /// Returns the link, which hangs up when the partner dies.
    pub(crate) fn link(&self) -> Option<BorrowedFd<'_>> {
        self.link.as_ref().map(AsFd::as_fd)
    }

    /// Its link hung up.
    pub(crate) fn died(&mut self) {
        self.link = None;
    }

    /// Starts another one in the place of one that died. Does not wait for it: the time to confirm may end meanwhile.
    pub(crate) fn restart(&mut self) {
        if self.link.is_none() && Instant::now() >= self.next {
            self.start();
        }
    }

    fn start(&mut self) {
        if let Some(mut child) = self.child.take() {
            // Its link hung up, so it is dead or dying.
            let _ = child.kill();
            let _ = child.wait();
        }
        self.next = Instant::now() + RETRY;
        // A failure is tried again.
        if let Ok((child, link)) = self.sentinel.start_beside(self.by, self.id) {
            (self.child, self.link) = (Some(child), Some(link));
        }
    }
}
