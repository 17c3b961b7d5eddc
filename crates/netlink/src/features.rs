//! The features of this kernel, found by trying them in a throw-away network namespace. A kernel's version says little:
//! distributions leave parts out and backport others.

use std::collections::BTreeMap;
use std::fmt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use crate::Rtnetlink;
use crate::nfqueue::Queue;
use weir_sys::NetNs;
use weir_sys::ProcRoot;
use weir_sys::error::{Context, Result};
use weir_sys::process::{Output, run_captured, run_with_input, which};
use weir_sys::sysctl;

/// Longest time that one probe may take.
const LIMIT: Duration = Duration::from_secs(5);

/// Outcome of one probe. Shown as words in records.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Found {
    /// It was done.
    Yes,
    /// It was refused, with the words of who refused it.
    No(String),
    /// It could not be tried, and why.
    NotTested(String),
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Found::Yes => f.write_str("yes"),
            Found::No(why) => write!(f, "no: {why}"),
            Found::NotTested(why) => write!(f, "not tested: {why}"),
        }
    }
}

/// Rules that need one feature each. Older nft wants the newline at the end.
const NFT_NAT: &str = "table ip t { chain c { type nat hook postrouting priority 100; masquerade; }; }\n";
const NFT_CONNTRACK: &str =
    "table ip t { chain c { type filter hook input priority 0; ct state new accept; }; }\n";
const NFT_FLOWTABLE: &str = "table ip t { flowtable f { hook ingress priority 0; devices = { lo }; }; }\n";

/// Tries everything, in a few tens of milliseconds. Nothing outside a namespace made for it is touched.
pub fn probe() -> BTreeMap<&'static str, Found> {
    let mut found = BTreeMap::new();
    found.insert("user-namespace", user_namespace());
    type Probe = (&'static str, fn() -> Found);
    let probes: [Probe; 10] = [
        ("conntrack", || nft(NFT_CONNTRACK)),
        ("nft-masquerade", || nft(NFT_NAT)),
        ("nft-flowtable", || nft(NFT_FLOWTABLE)),
        ("iptables-nft-masquerade", || iptables("iptables-nft")),
        ("iptables-legacy-masquerade", || iptables("iptables-legacy")),
        ("tbf", || qdisc("tbf")),
        ("netem", || qdisc("netem")),
        ("fq", || qdisc("fq")),
        ("nfqueue", nfqueue),
        ("ipv6", ipv6),
    ];
    for (name, probe) in probes {
        let outcome = match NetNs::create() {
            Ok(namespace) => namespace.run(probe).unwrap_or_else(|e| Found::NotTested(e.to_string())),
            Err(e) => Found::NotTested(e.to_string()),
        };
        found.insert(name, outcome);
    }
    found
}

/// Interprets the end of a command.
fn outcome(result: Result<Output>) -> Found {
    match result {
        Ok(output) if output.status.success() => Found::Yes,
        Ok(output) => Found::No(output.message().lines().next().unwrap_or_default().to_owned()),
        Err(e) => Found::NotTested(e.to_string()),
    }
}

/// Tries a command in the namespace of the calling thread: children are started by another thread, which is in another one.
fn here(program: &str, arguments: &[&str], run: impl FnOnce(Command) -> Result<Output>) -> Found {
    let Some(path) = which(program) else {
        return Found::NotTested(format!("{program} is not installed"));
    };
    let mut command = Command::new(path);
    command.args(arguments);
    outcome(NetNs::current().and_then(|namespace| {
        namespace.enter_on_spawn(&mut command);
        run(command)
    }))
}

fn nft(rules: &str) -> Found {
    here("nft", &["-f", "-"], |command| run_with_input(command, rules.as_bytes(), LIMIT))
}

fn iptables(program: &str) -> Found {
    let rule = ["-w", "-t", "nat", "-A", "POSTROUTING", "-j", "MASQUERADE"];
    here(program, &rule, |command| run_captured(command, LIMIT))
}

/// Asks for a queueing discipline without its parameters: one that exists complains about those or does with defaults.
fn qdisc(kind: &str) -> Found {
    let tried = Rtnetlink::open().and_then(|mut net| net.add_root_qdisc("lo", kind));
    match tried {
        Err(e) if e.raw_os_error() == Some(libc::ENOENT) => Found::No(e.source.to_string()),
        Err(e) if e.raw_os_error() == Some(libc::EPERM) => Found::NotTested(e.to_string()),
        _ => Found::Yes,
    }
}

fn nfqueue() -> Found {
    if let Err(e) = Queue::open(0, false) {
        return Found::No(e.to_string());
    }
    let rule = ["-w", "-A", "INPUT", "-j", "NFQUEUE", "--queue-num", "0"];
    here("iptables", &rule, |command| run_captured(command, LIMIT))
}

fn ipv6() -> Found {
    let tried = || -> Result<()> {
        // A namespace inherits the machine's choice; only a kernel without IPv6 cannot change it.
        sysctl::set(&ProcRoot::new("/"), "net.ipv6.conf.lo.disable_ipv6", "0")?;
        let mut net = Rtnetlink::open()?;
        net.set_up("lo")?;
        net.add_address(
            "lo",
            "2001:2::1".parse().map_err(std::io::Error::other).context(|| "parse".into())?,
            128,
        )
    };
    tried().map_or_else(|e| Found::No(e.to_string()), |()| Found::Yes)
}

/// A user and a network namespace, in a child that ends at once.
#[allow(unsafe_code, reason = "the hook between fork and exec, and unshare(2) in it")]
fn user_namespace() -> Found {
    use rustix::thread::{UnshareFlags, unshare_unsafe};
    let mut command = Command::new("true");
    // SAFETY: between fork and exec only async-signal-safe calls are allowed; unshare(2) is a plain call, and the child
    // has a single thread.
    unsafe {
        command.pre_exec(|| {
            unshare_unsafe(UnshareFlags::NEWUSER | UnshareFlags::NEWNET)?;
            Ok(())
        });
    }
    match run_captured(command, LIMIT) {
        Ok(_) => Found::Yes,
        Err(e) => Found::No(e.source.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use weir_sys::privilege::test_needs_root;

    #[test]
    fn words_are_those_of_the_record() {
        assert_eq!(Found::Yes.to_string(), "yes");
        assert_eq!(Found::No("x".into()).to_string(), "no: x");
        assert_eq!(Found::NotTested("y".into()).to_string(), "not tested: y");
    }

    #[test]
    fn root_probes_agree_with_the_kernels_configuration() {
        if test_needs_root() {
            return;
        }
        let before = NetNs::current().unwrap().inode().unwrap();
        let found = probe();
        assert_eq!(NetNs::current().unwrap().inode().unwrap(), before);
        let mut command = Command::new("zcat");
        command.arg("/proc/config.gz");
        let config = run_captured(command, LIMIT).map(|o| o.stdout_text()).unwrap_or_default();
        if config.is_empty() {
            println!("SKIP: /proc/config.gz is not there to compare with");
            return;
        }
        for (feature, option) in [
            ("tbf", "CONFIG_NET_SCH_TBF"),
            ("netem", "CONFIG_NET_SCH_NETEM"),
            ("fq", "CONFIG_NET_SCH_FQ"),
            ("nft-masquerade", "CONFIG_NFT_MASQ"),
            ("nft-flowtable", "CONFIG_NFT_FLOW_OFFLOAD"),
            ("nfqueue", "CONFIG_NETFILTER_XT_TARGET_NFQUEUE"),
            ("iptables-legacy-masquerade", "CONFIG_IP_NF_IPTABLES_LEGACY"),
            ("user-namespace", "CONFIG_USER_NS"),
            ("ipv6", "CONFIG_IPV6"),
        ] {
            if matches!(found[feature], Found::NotTested(_)) {
                continue;
            }
            let built = ["=y", "=m"].iter().any(|end| config.contains(&format!("\n{option}{end}\n")));
            assert_eq!(found[feature] == Found::Yes, built, "{feature}: {}", found[feature]);
        }
    }
}
