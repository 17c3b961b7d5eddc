//! Links that the lab makes worse than they are: what they did to a trial, and whether they did what they were asked to.

use std::sync::{Mutex, MutexGuard, PoisonError};

use weir_lab::emulate::{Crossed, Emulation};
use weir_lab::link::Link;
use weir_record::link::LinkPassed;
use weir_record::{Fault, FaultCode, Trial};

use crate::error::Error;

/// The latest in a hundred packets may be this late, ns: what the scheduler of a busy machine does to any program.
const NOTED_NS: u64 = 1_000_000;
/// Beyond this a trial says more of the tester than of the path, ns.
const VOID_NS: u64 = 10_000_000;

/// A link in effect.
#[derive(Debug)]
pub(crate) struct Emulated {
    emulation: Mutex<Emulation>,
    frames: bool,
}

impl Emulated {
    /// Puts a link into effect at a site of the lab; `None` for a plain one. With `frames` it takes in what the tester sends by
    /// XDP.
    pub(crate) fn start(site: &weir_lab::Site, link: &Link, frames: bool) -> Result<Option<Self>, Error> {
        if link.is_plain() {
            return Ok(None);
        }
        let emulation = Emulation::start(site, link).map_err(Error::Lab)?;
        if frames {
            let failed = |source| weir_lab::Error::Build { site: site.name().to_owned(), source };
            site.take_frames_in_wan().map_err(failed).map_err(Error::Lab)?;
        }
        Ok(Some(Emulated { emulation: Mutex::new(emulation), frames }))
    }

    fn emulation(&self) -> MutexGuard<'_, Emulation> {
        self.emulation.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// By what the link of a site is made, one line each.
pub(crate) fn mechanisms(link: Option<&Emulated>) -> Vec<String> {
    let Some(link) = link else { return Vec::new() };
    let mut lines = link.emulation().mechanisms().to_vec();
    if link.frames {
        lines.push("both ways: GRO is on at the wan, which takes in frames sent by XDP only so".to_owned());
    }
    lines.into_iter().map(|line| format!("link, {line}")).collect()
}

/// Before a trial: counters at nothing, and connections choose their gateways anew.
pub(crate) fn begin(link: Option<&Emulated>, cookie: u64) -> Result<(), Error> {
    link.map_or(Ok(()), |link| link.emulation().begin(cookie).map_err(Error::Lab))
}

/// After a trial: what the link did to it goes into the record, and what it did wrong is a fault.
pub(crate) fn judge(link: Option<&Emulated>, trial: &mut Trial) -> Result<(), Error> {
    let Some(link) = link else { return Ok(()) };
    let crossed = link.emulation().crossed().map_err(Error::Lab)?;
    for (way, crossed) in ["egress", "ingress"].into_iter().zip(crossed) {
        let passed = recorded(crossed);
        trial.faults.extend(faults(way, &passed));
        trial.link.insert(way.to_owned(), passed);
    }
    Ok(())
}

fn recorded(crossed: Crossed) -> LinkPassed {
    let passed = crossed.passed;
    LinkPassed {
        packets: passed.packets,
        reordered: passed.reordered,
        lost: crossed.lost,
        fragments_dropped: crossed.fragments_dropped,
        gateways: if passed.gateways.len() > 1 { passed.gateways } else { Vec::new() },
        overflows: passed.overflows,
        late_p50_ns: passed.lateness.reportable_quantile(0.5),
        late_p99_ns: passed.lateness.reportable_quantile(0.99),
    }
}

fn faults(way: &str, passed: &LinkPassed) -> Vec<Fault> {
    let mut faults = Vec::new();
    if passed.overflows > 0 {
        let words =
            format!("the {way} link dropped {} packets that it could not hold in time", passed.overflows);
        faults.push(Fault::void(FaultCode::LinkOverflow, "runner", words));
    }
    if let Some(late) = passed.late_p99_ns.filter(|late| *late > NOTED_NS) {
        let words = format!(
            "the {way} link let 1 in 100 packets go {:.1} ms later than due, or more",
            late as f64 / 1e6
        );
        let fault = if late > VOID_NS { Fault::void } else { Fault::noted };
        faults.push(fault(FaultCode::LinkLate, "runner", words));
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_link_did_wrong_is_noted_and_beyond_a_bound_void() {
        let late = |ns| LinkPassed { late_p99_ns: Some(ns), ..LinkPassed::default() };
        assert!(faults("egress", &late(NOTED_NS)).is_empty());
        let noted = faults("egress", &late(2_500_000));
        assert_eq!((noted.len(), noted[0].void, noted[0].code), (1, false, FaultCode::LinkLate));
        assert!(noted[0].detail.contains("2.5 ms"), "{}", noted[0].detail);
        assert!(faults("egress", &late(VOID_NS + 1))[0].void);
        let over = faults("ingress", &LinkPassed { overflows: 3, ..LinkPassed::default() });
        assert!(
            over[0].void && over[0].code == FaultCode::LinkOverflow && over[0].detail.contains("ingress")
        );
    }
}
