//! Settings, as sysctl(8) takes them.

use super::{Line, Unwritable, sh};

/// `sysctl -w NAME=VALUE`. sysctl ends the name at the first `=`, and may read a pattern where it finds one.
pub(crate) fn set(name: &str, value: impl ToString) -> Line {
    if name.contains(['=', '*', '?', '[']) {
        let look = "write the value to the setting's file below /proc/sys instead";
        return Err(Unwritable::new("the setting", name, "has a name that sysctl cannot read", look));
    }
    // The kernel prints tabs between the values of one setting, and takes blanks for them.
    sh!("sysctl -w {}={}", name, value.to_string().replace('\t', " "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_values_are_one_word() {
        let line = |name: &str, value: &str| set(name, value).map(super::super::Command::into_line);
        assert_eq!(line("net.ipv4.ip_forward", "1").unwrap(), "sysctl -w net.ipv4.ip_forward=1");
        assert_eq!(line("net.ipv4.tcp_mem", "1\t2\t3").unwrap(), "sysctl -w net.ipv4.tcp_mem='1 2 3'");
        let named = "net.ipv4.conf.a;b/7.rp_filter";
        assert_eq!(line(named, "0").unwrap(), "sysctl -w 'net.ipv4.conf.a;b/7.rp_filter'=0");
        assert!(line("net.ipv4.conf.a=b.rp_filter", "0").is_err());
    }
}
