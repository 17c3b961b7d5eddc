//! Changes of interfaces: an offload, and where received packets are handled.

use weir_netlink::ethtool::{Ethtool, is_meant};
use weir_sys::{NetNs, rps};
use weir_text::order;

use super::{Change, Journal};
use crate::Error;

impl Journal {
    /// Switches an offload of an interface (named as ethtool(8) does), if it is the other way. Returns whether it was.
    ///
    /// # Errors
    /// If the device does not have it or cannot switch it.
    pub fn offload(&mut self, interface: &str, feature: &str, on: bool) -> Result<bool, Error> {
        if is_on(interface, feature)? == Some(on) {
            return Ok(false);
        }
        let (interface, feature) = (interface.to_owned(), feature.to_owned());
        self.record(Change::Offload { interface: interface.clone(), feature: feature.clone(), on })?;
        switch(&interface, &feature, on)?;
        Ok(true)
    }

    /// Hands the packets that an interface receives in its first queue to these cores (Receive Packet Steering,
    /// Documentation/networking/scaling.rst). Returns whether that was a change.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn steer(&mut self, interface: &str, cpus: &[usize]) -> Result<bool, Error> {
        let (old, new) = (steering(interface)?, rps::mask(cpus));
        if same_cores(&old, &new) {
            return Ok(false);
        }
        self.record(Change::Steering { interface: interface.to_owned(), old, new: new.clone() })?;
        set_steering(interface, &new)?;
        Ok(true)
    }
}

/// Switches an offload back, if it is as it was made. An interface that is gone took its offloads along.
pub(super) fn undo_offload(interface: &str, feature: &str, on: bool) -> Result<(), Error> {
    if is_there(interface) && is_on(interface, feature)? == Some(on) {
        switch(interface, feature, !on)
    } else {
        Ok(())
    }
}

/// Restores the cores, if no other program set others.
pub(super) fn undo_steering(interface: &str, old: &str, new: &str) -> Result<(), Error> {
    if is_there(interface) && same_cores(&steering(interface)?, new) {
        set_steering(interface, old)?;
    }
    Ok(())
}

fn is_there(interface: &str) -> bool {
    weir_netlink::Rtnetlink::open().and_then(|mut link| link.interface(interface)).is_ok()
}

/// `None` where only some of the features that are meant are on, or there are none.
fn is_on(interface: &str, feature: &str) -> Result<Option<bool>, Error> {
    let features = Ethtool::open()?.features(interface)?;
    let mut states = features.iter().filter(|(name, _)| is_meant(feature, name)).map(|(_, on)| *on);
    let first = states.next();
    Ok(first.filter(|first| states.all(|state| state == *first)))
}

fn switch(interface: &str, feature: &str, on: bool) -> Result<(), Error> {
    Ok(Ethtool::open()?.set(interface, &order::map([(feature.to_owned(), on)]))?)
}

/// The mask of cores that an interface's packets are handed to.
fn steering(interface: &str) -> Result<String, Error> {
    Ok(NetNs::current()?.run_with_own_sysfs(|| rps::get(interface))??)
}

fn set_steering(interface: &str, mask: &str) -> Result<(), Error> {
    Ok(NetNs::current()?.run_with_own_sysfs(|| rps::set(interface, mask))??)
}

/// The kernel writes as many groups of digits as it has cores for.
fn same_cores(one: &str, other: &str) -> bool {
    let digits = |mask: &str| mask.replace(',', "").trim_start_matches('0').to_owned();
    digits(one) == digits(other)
}

#[cfg(test)]
mod tests {
    use weir_netlink::{Rtnetlink, VethEnd};
    use weir_sys::privilege::test_needs_root;

    use super::*;

    #[test]
    fn masks_are_equal_whatever_their_length() {
        assert!(same_cores("3", "00000000,00000003"));
        assert!(same_cores("00", ""));
        assert!(!same_cores("1", "2"));
        assert!(!same_cores("2,00000000", "2"));
    }

    #[test]
    fn root_an_interface_is_as_before_when_all_is_undone() {
        if test_needs_root() {
            return;
        }
        let ns = NetNs::create().unwrap();
        let end = |name| VethEnd { name, namespace: None, mtu: 1500, mac: None };
        Rtnetlink::open_in(&ns).unwrap().create_veth(end("a"), end("b")).unwrap();
        ns.run(|| {
            let state = || (is_on("a", "gro").unwrap(), steering("a").unwrap());
            let before = state();
            assert_eq!(before.0, Some(false), "veth has it off by default");
            let mut journal = Journal::new();
            assert!(journal.offload("a", "gro", true).unwrap());
            assert!(!journal.offload("a", "gro", true).unwrap(), "it is on already");
            assert!(journal.steer("a", &[0]).unwrap());
            assert!(!journal.steer("a", &[0]).unwrap());
            assert_eq!(state().0, Some(true));
            assert!(same_cores(&state().1, "1"));
            let left = journal.undo();
            assert!(left.is_empty(), "{left:?}");
            assert_eq!(state(), before);
            // A value that another program set in the meantime stays.
            journal.steer("a", &[0]).unwrap();
            set_steering("a", "0").unwrap();
            journal.offload("a", "gro", true).unwrap();
            Rtnetlink::open().unwrap().delete("a").unwrap();
            let left = journal.undo();
            assert!(left.is_empty(), "an interface that is gone: {left:?}");
            let error = journal.offload("nosuch", "gro", true).unwrap_err().to_string();
            assert!(error.contains("nosuch"), "{error}");
        })
        .unwrap();
    }
}
