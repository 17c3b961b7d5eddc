//! An XDP program for a recipe, as a script can attach it: `ip` wants a file.

use std::fmt::Write;

/// Drops IPv4 and lets all else pass.
static OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/recipe_xdp.bpf.o"));

/// A script that attaches it to an interface; `hook` is `xdpdrv` or `xdpgeneric`.
pub(super) fn attach(interface: &str, hook: &str) -> String {
    let mut bytes = String::with_capacity(OBJECT.len() * 4);
    for byte in OBJECT {
        // printf(1) of POSIX knows octal escapes alone.
        let _ = write!(bytes, "\\{byte:03o}");
    }
    format!(
        "file=$(mktemp); trap 'rm -f \"$file\"' EXIT; printf '{bytes}' > \"$file\"; \
         ip link set dev {interface} {hook} obj \"$file\" sec xdp"
    )
}
