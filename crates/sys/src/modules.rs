//! Which modules are in the kernel now. Asking some subsystems would load them, and who only looks must not.

use crate::ProcRoot;
use crate::uname::Uname;

/// True if that module (`nf_tables`, `tcp_diag`) is in the kernel now, loaded or built in.
pub fn is_loaded(root: &ProcRoot, module: &str) -> bool {
    let Ok(modules) = root.read("proc/modules") else {
        // A kernel without modules loads none.
        return true;
    };
    // /proc/modules writes an underscore where the file's name may have a hyphen.
    let same = |name: &str| name.replace('-', "_") == module;
    if modules.lines().any(|l| l.split(' ').next().is_some_and(same)) {
        return true;
    }
    let release = Uname::current().release;
    let list = root.read(&format!("lib/modules/{release}/modules.builtin")).unwrap_or_default();
    list.lines().any(|l| l.rsplit('/').next().and_then(|file| file.strip_suffix(".ko")).is_some_and(same))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn loaded_built_in_and_absent_are_told_apart() {
        let folder = std::env::temp_dir().join(format!("weir-modules-{}", std::process::id()));
        let lib = folder.join("lib/modules").join(Uname::current().release);
        fs::create_dir_all(folder.join("proc")).unwrap();
        fs::create_dir_all(&lib).unwrap();
        let root = ProcRoot::new(&folder);
        assert!(is_loaded(&root, "tcp_diag"), "a kernel without modules has all that it will ever have");
        fs::write(
            folder.join("proc/modules"),
            "inet_diag 28672 1 tcp_diag, Live 0x0\nnf_tables 1 0 - Live 0x0\n",
        )
        .unwrap();
        assert!(is_loaded(&root, "inet_diag"));
        assert!(!is_loaded(&root, "tcp_diag"), "a user of another module is not a line of its own");
        fs::write(lib.join("modules.builtin"), "kernel/net/ipv4/tcp-diag.ko\nkernel/net/ipv4/udp_diag.ko\n")
            .unwrap();
        assert!(is_loaded(&root, "tcp_diag") && is_loaded(&root, "udp_diag"));
        assert!(!is_loaded(&root, "diag"));
        fs::remove_dir_all(&folder).unwrap();
    }
}
