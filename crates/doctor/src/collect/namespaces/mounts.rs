//! Names that are bound to namespaces (`ip netns`, container engines).

use std::path::{Path, PathBuf};

use weir_sys::ProcRoot;

use super::processes;

/// Inode and path of each.
pub(super) struct Mounts(pub(super) Vec<(u64, PathBuf)>);

/// The last part of such a path.
pub(super) struct Name {
    pub(super) text: String,
    /// Made by `ip netns` or to be found by it, and not by a container engine for its own use.
    pub(super) by_people: bool,
}

impl Mounts {
    /// Reads those of the calling process's mount namespace (proc_pid_mountinfo(5)). Empty if they cannot be read.
    pub(super) fn read(root: &ProcRoot) -> Self {
        let text = root.read("proc/self/mountinfo").unwrap_or_default();
        Mounts(text.lines().filter_map(|line| mount(root, line)).collect())
    }
}

/// `97 25 0:4 net:[4026532281] /run/netns/blue rw shared:20 - nsfs nsfs rw`
fn mount(root: &ProcRoot, line: &str) -> Option<(u64, PathBuf)> {
    let (mount, filesystem) = line.split_once(" - ")?;
    filesystem.starts_with("nsfs ").then_some(())?;
    let mut fields = mount.split(' ').skip(3);
    let id = processes::inode(fields.next()?)?;
    Some((id, root.path(&unescape(fields.next()?))))
}

/// Spaces, tabs, newlines and backslashes are written as three octal digits.
fn unescape(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, more)) = rest.split_first() {
        let octal = more.get(..3).and_then(|d| u8::from_str_radix(std::str::from_utf8(d).ok()?, 8).ok());
        match octal {
            Some(byte) if *first == b'\\' => {
                bytes.push(byte);
                rest = &more[3..];
            }
            _ => {
                bytes.push(*first);
                rest = more;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

/// The name in a path below the directory of `ip netns`; `None` of other paths.
pub(super) fn name_of(path: &Path) -> Option<Name> {
    let dir = path.parent()?;
    dir.ends_with("run/netns").then_some(())?;
    let text = path.file_name()?.to_string_lossy().into_owned();
    // CNI plugins and Podman number theirs.
    let by_people = !text.starts_with("cni-") && !text.starts_with("netns-");
    Some(Name { text, by_people })
}
