//! Many routes at once, told from all others by the number of their routing protocol.

use super::{Change, Journal};
use crate::{Error, Family, command};

impl Journal {
    /// Adds routes of that routing protocol (rtm_protocol in linux/rtnetlink.h) to the main table; `script` is what
    /// `ip -batch` reads. Nothing else may use the number: all of its routes are removed in the end.
    pub(crate) fn routes(&mut self, family: Family, protocol: u8, script: &str) -> Result<(), Error> {
        if routes_of(family, protocol)? > 0 {
            return Err(Error::Unsupported(format!(
                "there are routes of protocol {protocol} already; if a run that was killed left them, remove them with \
                 `ip {} route flush table main proto {protocol}`",
                version(family)
            )));
        }
        self.record(Change::Routes { family, protocol })?;
        command::run_long("ip", &[version(family), "-batch", "-"], script).map(drop)
    }
}

/// Routes of that routing protocol in the main table.
pub(crate) fn routes_of(family: Family, protocol: u8) -> Result<u64, Error> {
    let protocol = protocol.to_string();
    let words = [version(family), "-o", "route", "show", "table", "main", "proto", &protocol];
    Ok(command::run_long("ip", &words, "")?.lines().count() as u64)
}

pub(super) fn flush(family: Family, protocol: u8) -> Result<(), Error> {
    if routes_of(family, protocol)? == 0 {
        return Ok(());
    }
    let protocol = protocol.to_string();
    let words = [version(family), "route", "flush", "table", "main", "proto", &protocol];
    command::run_long("ip", &words, "").map(drop)
}

pub(super) fn version(family: Family) -> &'static str {
    match family {
        Family::Ipv4 => "-4",
        Family::Ipv6 => "-6",
    }
}
