//! A gate is read while another process removes it, as when a trial ends during `status`.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use weir_bpf::remove_folder;
use weir_gate::{Gate, Kind, Moment, Pinned};
use weir_sys::privilege::test_needs_root;

/// How often it is removed: as long as a reader took such a moment for an error, this was enough each time.
const TIMES: u32 = 300;

#[test]
fn root_a_gate_that_is_being_removed_is_there_or_not() {
    if test_needs_root() {
        return;
    }
    // In a mount namespace of the test's own, with which the mount ends.
    let above = Path::new("/tmp/weir-gate-test");
    std::fs::create_dir_all(above).unwrap();
    assert!(Command::new("mount").args(["-t", "bpf", "bpf"]).arg(above).status().unwrap().success());
    let folder = above.join("tc-4");
    let until = Moment::after(Duration::from_secs(3600));
    let gate = Gate::load(Kind::Tc, until, None, None).unwrap();
    for _ in 0..TIMES {
        gate.pin(&folder).unwrap();
        assert_eq!(Pinned::open(&folder).unwrap().unwrap().until, until);
        std::thread::scope(|scope| {
            let removing = scope.spawn(|| remove_folder(&folder).unwrap());
            while Pinned::open(&folder).unwrap().is_some() {}
            removing.join().unwrap();
        });
        assert_eq!(Pinned::open(&folder).unwrap(), None);
    }
    assert!(Command::new("umount").arg(above).status().unwrap().success());
}
