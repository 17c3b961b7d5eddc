//! Filters that stay when the value that loaded them is gone, in a BPF file system of the test's own.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use weir_bpf::{Attached, Map, is_bpf_file_system};
use weir_prefix::Ranges;
use weir_sys::NetNs;
use weir_sys::privilege::test_needs_root;

use crate::{Action, At, Class, Compiled, Direction, Filter, OpenError, Options};

const IN: At = At::Tc(Direction::Ingress);

/// Lists of single addresses.
fn lists(addresses: &[&[&str]]) -> Vec<Class> {
    let class = |addresses: &&[&str]| {
        let of = |text: &&str| u32::from(text.parse::<std::net::Ipv4Addr>().unwrap());
        Class { v4: Ranges::new(addresses.iter().map(of).map(|a| (a, a))), ..Class::default() }
    };
    addresses.iter().map(class).collect()
}

fn filter(addresses: &[&[&str]], actions: &[Action]) -> Filter {
    Filter::load(&Compiled::of(&lists(addresses)).unwrap(), actions, 1).unwrap()
}

fn drops(filter: &Filter, address: &str) -> bool {
    filter.drops(address.parse::<IpAddr>().unwrap()).unwrap()
}

/// A mounted BPF file system that is gone with the value.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("weir-filter-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        assert!(!is_bpf_file_system(&path).unwrap());
        assert!(Command::new("mount").args(["-t", "bpf", "bpf"]).arg(&path).status().unwrap().success());
        assert!(is_bpf_file_system(&path).unwrap());
        Folder(path)
    }

    fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
        let _ = std::fs::remove_dir(&self.0);
    }
}

#[test]
fn root_a_pinned_filter_is_opened_again_with_what_it_counted_and_given_other_lists() {
    if test_needs_root() {
        return;
    }
    let folder = Folder::new("open");
    let first = filter(&[&["198.18.0.1"]], &[Action::Drop, Action::Allow]);
    assert!(drops(&first, "198.18.0.2"));
    first.pin(folder.path()).unwrap();
    assert!(first.pin(folder.path()).is_err(), "the names are taken");
    drop(first);
    let mut again = Filter::open_pinned(folder.path()).unwrap();
    assert!(!drops(&again, "198.18.0.1") && drops(&again, "198.18.0.2"));
    let counted: u64 = again.status().unwrap().classes.iter().map(|c| c.3.packets).sum();
    assert_eq!(counted, 3);
    // Other lists go on counting where these have counted; the pins stay as they are.
    let before = again.memory_bytes().unwrap();
    again.swap(&Compiled::of(&lists(&[&["198.18.0.2"]])).unwrap(), &[Action::Drop, Action::Allow]).unwrap();
    assert_eq!(again.memory_bytes().unwrap(), before, "tables of as many blocks");
    assert!(drops(&again, "198.18.0.1") && !drops(&again, "198.18.0.2"));
    let third = Filter::open_pinned(folder.path()).unwrap();
    assert!(!drops(&third, "198.18.0.1") && drops(&third, "198.18.0.2"));
    let counted: u64 = third.status().unwrap().classes.iter().map(|c| c.3.packets).sum();
    assert_eq!(counted, 7);
    third.forget_counts().unwrap();
    let status = again.status().unwrap();
    assert!(status.classes.is_empty() && status.reasons.is_empty() && status.denied.is_empty(), "{status:?}");
}

#[test]
fn root_an_attachment_outlives_its_filter_and_takes_programs_of_another_width() {
    if test_needs_root() {
        return;
    }
    let folder = Folder::new("attached");
    let link = folder.path().join("link");
    NetNs::create()
        .unwrap()
        .run(|| {
            let first = filter(&[&["198.18.0.1"]], &[Action::Drop, Action::Allow]);
            let attached = first.attach_apart(1, IN).unwrap();
            attached.pin(&link).unwrap();
            let id = first.program(IN.program()).id().unwrap();
            drop(first);
            assert_eq!(weir_bpf::tcx_programs(1, weir_bpf::Direction::Ingress).unwrap(), [id]);
            let attached = Attached::open_pinned(&link).unwrap();
            let found = attached.describe().unwrap();
            assert_eq!((found.program, found.interface), (id, 1));
            let wide = filter(&[&["198.18.0.1"], &["198.18.0.2"], &["198.18.0.3"]], &[Action::Drop]);
            wide.replace(&attached, IN).unwrap();
            assert_eq!(attached.describe().unwrap().program, wide.program(IN.program()).id().unwrap());
            drop(wide);
            assert_eq!(weir_bpf::tcx_programs(1, weir_bpf::Direction::Ingress).unwrap().len(), 1);
            attached.detach().unwrap();
            assert_eq!(weir_bpf::tcx_programs(1, weir_bpf::Direction::Ingress).unwrap(), [0_u32; 0]);
        })
        .unwrap();
}

#[test]
fn root_a_swap_to_more_lists_than_the_width_holds_replaces_what_is_attached() {
    if test_needs_root() {
        return;
    }
    NetNs::create()
        .unwrap()
        .run(|| {
            let mut filter = filter(&[&["198.18.0.1"]], &[Action::Drop, Action::Allow]);
            filter.attach(1, Direction::Ingress).unwrap();
            let before = weir_bpf::tcx_programs(1, weir_bpf::Direction::Ingress).unwrap();
            let more = lists(&[&["198.18.0.1"], &["198.18.0.2"], &["198.18.0.3"]]);
            let actions = [Action::Drop, Action::Drop, Action::Allow, Action::Drop];
            filter.swap(&Compiled::of(&more).unwrap(), &actions).unwrap();
            let after = weir_bpf::tcx_programs(1, weir_bpf::Direction::Ingress).unwrap();
            assert_eq!((before.len(), after.len()), (1, 1));
            assert_ne!(before, after);
            assert_eq!(after, [filter.program(IN.program()).id().unwrap()]);
            assert!(drops(&filter, "198.18.0.1") && !drops(&filter, "198.18.0.2"));
        })
        .unwrap();
}

#[test]
fn root_a_filter_of_another_version_is_refused_in_words() {
    if test_needs_root() {
        return;
    }
    let folder = Folder::new("version");
    let first = filter(&[&["198.18.0.1"]], &[Action::Drop, Action::Allow]);
    first.pin(folder.path()).unwrap();
    // The remains of another version: a control block of another size, with another format first.
    std::fs::remove_file(folder.path().join("control")).unwrap();
    let other = Map::of_values("control", &[[77_u32, 0], [0, 0]]).unwrap();
    other.pin(&folder.path().join("control")).unwrap();
    let error = Filter::open_pinned(folder.path()).unwrap_err();
    assert!(matches!(error, OpenError::Version { found: 77, .. }), "{error}");
    assert!(error.to_string().contains("another version of weir"), "{error}");
}

#[test]
fn root_at_xdp_no_connection_can_be_looked_up_first() {
    if test_needs_root() {
        return;
    }
    let options = Options { sample: 0, established_first: true };
    // Filters of both widths.
    let (few, many) = (lists(&[&["198.18.0.1"]]), vec![Class::default(); 3]);
    for lists in [few, many] {
        let tables = Compiled::of(&lists).unwrap();
        let filter = Filter::load_with(&tables, &[Action::Drop], options).unwrap();
        let error = filter.attach_apart(1, At::Xdp(weir_bpf::XdpMode::Generic)).unwrap_err();
        assert!(error.to_string().contains("at XDP"), "{error}");
    }
}
