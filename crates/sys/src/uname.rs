//! Names that the machine gives itself and its kernel (uname(2)).

/// Names of machine and kernel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Uname {
    /// Host name.
    pub hostname: String,
    /// Kernel release, `uname -r`.
    pub release: String,
    /// Kernel build, `uname -v`.
    pub build: String,
    /// Machine, `uname -m`.
    pub machine: String,
}

impl Uname {
    /// Reads the names of this machine now.
    pub fn current() -> Self {
        let uname = rustix::system::uname();
        let text = |name: &std::ffi::CStr| name.to_string_lossy().into_owned();
        Uname {
            hostname: text(uname.nodename()),
            release: text(uname.release()),
            build: text(uname.version()),
            machine: text(uname.machine()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_proc() {
        let read = |name: &str| {
            std::fs::read_to_string(format!("/proc/sys/kernel/{name}")).unwrap().trim().to_owned()
        };
        let uname = Uname::current();
        assert_eq!(uname.release, read("osrelease"));
        assert_eq!(uname.build, read("version"));
        assert_eq!(uname.hostname, read("hostname"));
    }
}
