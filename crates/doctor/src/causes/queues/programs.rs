//! BPF programs for recipes, as a script can attach them: `ip` and `tc` want a file. They drop IPv4 and let all else pass.

use std::fmt::Write;

static XDP: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/recipe_xdp.bpf.o"));
static TC: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/recipe_tc.bpf.o"));

/// A script that attaches the XDP program to an interface; `hook` is `xdpdrv` or `xdpgeneric`.
pub(super) fn attach_xdp(interface: &str, hook: &str) -> String {
    with_file(XDP, &format!("ip link set dev {interface} {hook} obj \"$file\" sec xdp"))
}

/// A script that attaches the program of tc to a side of an interface.
pub(super) fn attach_tc(interface: &str, side: &str) -> String {
    let filter = format!("tc filter add dev {interface} {side} bpf da obj \"$file\" sec tc");
    with_file(TC, &format!("tc qdisc add dev {interface} clsact; {filter}"))
}

/// A script that does something with a file `$file` of that content.
fn with_file(content: &[u8], then: &str) -> String {
    let mut bytes = String::with_capacity(content.len() * 4);
    for byte in content {
        // printf(1) of POSIX knows octal escapes alone.
        let _ = write!(bytes, "\\{byte:03o}");
    }
    format!("file=$(mktemp); trap 'rm -f \"$file\"' EXIT; printf '{bytes}' > \"$file\"; {then}")
}
