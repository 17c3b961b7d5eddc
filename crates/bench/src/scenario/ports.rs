//! The ports on which responders answer.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use serde::Deserialize;

/// Ports on which responders answer, written `"21100-21109"`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
pub struct Ports(pub RangeInclusive<u16>);

impl Default for Ports {
    /// Ten ports below the range that Linux takes ports of its own from (net.ipv4.ip_local_port_range, 32768 and up).
    fn default() -> Self {
        Ports(21_100..=21_109)
    }
}

/// A workload and what loads the path meanwhile, with a control port each.
const LEAST: u16 = 4;

/// Container engines make a rule for every published port: more of them would measure the list.
const MOST: u16 = 100;

impl FromStr for Ports {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let bad = || {
            format!("ports \"{text}\": expected {LEAST} to {MOST} ports from 1024 up, like \"21100-21109\"")
        };
        let (first, last) = text.split_once('-').ok_or_else(bad)?;
        let number = |s: &str| s.parse::<u16>().map_err(|_| bad());
        let (first, last) = (number(first)?, number(last)?);
        let enough = last.checked_sub(first).is_some_and(|d| (LEAST - 1..MOST).contains(&d));
        if first < 1024 || !enough { Err(bad()) } else { Ok(Ports(first..=last)) }
    }
}

impl TryFrom<String> for Ports {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl fmt::Display for Ports {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.0.start(), self.0.end())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports() {
        assert_eq!("21100-21109".parse(), Ok(Ports::default()));
        assert_eq!(Ports::default().to_string(), "21100-21109");
        assert!("65532-65535".parse::<Ports>().is_ok());
        for bad in ["", "21100", "21109-21100", "80-90", "21100-21102", "2000-2100", "1-70000", "a-b", "-1-9"]
        {
            assert!(bad.parse::<Ports>().is_err(), "{bad}");
        }
    }
}
