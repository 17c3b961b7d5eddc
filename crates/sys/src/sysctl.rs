//! Kernel settings by name, as sysctl(8) writes them.
//!
//! Names under `net.` belong to the network namespace of the calling thread; most others to the whole machine.

use crate::error::{Context, Error, Result};
use crate::procfs::ProcRoot;

/// The value without its trailing newline. Several values are separated by tabs, as the kernel prints them.
///
/// # Errors
/// `NotFound` if this kernel or namespace has no such setting.
pub fn get(root: &ProcRoot, name: &str) -> Result<String> {
    Ok(root.read(&path(name)?)?.trim_end_matches('\n').to_owned())
}

/// As [`get`], but `None` where the setting does not exist.
pub fn get_optional(root: &ProcRoot, name: &str) -> Result<Option<String>> {
    match get(root, name) {
        Ok(value) => Ok(Some(value)),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

/// Sets it. The caller is the one who has the old value written down first.
///
/// # Errors
/// Also when the kernel refuses the value (`InvalidInput`) or the namespace may not change it (`PermissionDenied`).
pub fn set(root: &ProcRoot, name: &str, value: &str) -> Result<()> {
    let path = root.path(&path(name)?);
    // Not fs::write: that would create an ordinary file under a test root where the setting does not exist.
    std::fs::OpenOptions::new()
        .write(true)
        .open(&path)
        .and_then(|mut file| std::io::Write::write_all(&mut file, value.as_bytes()))
        .context(|| format!("set sysctl {name} to `{value}`"))
}

/// `proc/sys/...` for a dotted name.
fn path(name: &str) -> Result<String> {
    let valid = !name.is_empty()
        && name.split('.').all(|part| !part.is_empty() && !part.starts_with('/'))
        && name.bytes().all(|b| b.is_ascii_graphic())
        && !name.contains("//")
        && !is_path(name);
    if !valid {
        return Err(Error::other(format!("sysctl `{name}`"), "not a name like net.ipv4.ip_forward"));
    }
    Ok(format!("proc/sys/{}", path_of(name)))
}

/// Path below `/proc/sys` of a name. As in sysctl(8), a slash in the name stands for a dot in a part of it
/// (`net.ipv4.conf.eth0/100.rp_filter`), and a name whose first separator is a slash is a path already. The path is not checked.
pub fn path_of(name: &str) -> String {
    if is_path(name) {
        return name.to_owned();
    }
    let swap = |c| match c {
        '.' => '/',
        '/' => '.',
        c => c,
    };
    name.chars().map(swap).collect()
}

fn is_path(name: &str) -> bool {
    name.find(['.', '/']).is_some_and(|at| name.as_bytes()[at] == b'/')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_paths() {
        assert_eq!(path("net.ipv4.ip_forward").unwrap(), "proc/sys/net/ipv4/ip_forward");
        assert_eq!(
            path("net.ipv4.conf.eth0/100.rp_filter").unwrap(),
            "proc/sys/net/ipv4/conf/eth0.100/rp_filter"
        );
        for bad in ["", ".", "net..ipv4", "/etc/passwd", "net./etc", "a b", "net.//", "net.ipv4.", "net/core"]
        {
            assert!(path(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn names_of_files_become_paths() {
        for (name, path) in [
            ("net.core.somaxconn", "net/core/somaxconn"),
            ("net/core/somaxconn", "net/core/somaxconn"),
            ("net.ipv4.conf.eth0/100.rp_filter", "net/ipv4/conf/eth0.100/rp_filter"),
            ("net/ipv4/conf/eth0.100/rp_filter", "net/ipv4/conf/eth0.100/rp_filter"),
        ] {
            assert_eq!(path_of(name), path);
        }
    }

    #[test]
    fn parent_directories_are_out_of_reach() {
        // A dot becomes a slash, so the only way to write two dots is two slashes, which is refused.
        for bad in ["net.//.//.//.etc.passwd", "..", "net...etc"] {
            assert!(path(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn reads_what_the_kernel_prints() {
        let root = ProcRoot::new("/");
        assert_eq!(get(&root, "kernel.ostype").unwrap(), "Linux");
        assert_eq!(get_optional(&root, "net.ipv4.no_such_setting").unwrap(), None);
        assert!(set(&root, "net.ipv4.no_such_setting", "1").is_err());
    }
}
