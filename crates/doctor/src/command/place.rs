//! Commands as they are typed on the host, for what is to be done in one of its network namespaces.

use super::{Line, Unwritable, sh};
use crate::collect::is_of_machine;
use crate::evidence::Namespace;
use crate::finding::Fix;

/// Programs that work on the namespace that they are started in.
const OF_NAMESPACES: &str = "\
    nft iptables-save iptables-restore ip6tables-save ip6tables-restore iptables-legacy-save \
    iptables-legacy-restore ip6tables-legacy-save ip6tables-legacy-restore iptables ip6tables iptables-nft \
    ip6tables-nft iptables-legacy ip6tables-legacy ipset ip tc bridge ethtool sysctl conntrack ss nstat \
    tcpdump ping mtr wg";

/// Makes the commands of a finding ones that work where they are typed: in the namespace that weir is in. A fix for a namespace
/// that no command leads into has none: typed here, it would change this namespace instead.
pub(crate) fn place(fixes: &mut [Fix], namespace: &Namespace) {
    if namespace.own {
        return;
    }
    for fix in fixes.iter_mut().filter(|fix| !fix.elsewhere) {
        let lines = || fix.commands.iter().chain(&fix.undo);
        if !lines().any(|line| needs_entry(line)) {
            continue;
        }
        match way_in(namespace).and_then(|way| way.leads(lines()).map(|()| way)) {
            Ok(way) => {
                for line in fix.commands.iter_mut().chain(&mut fix.undo).filter(|line| needs_entry(line)) {
                    *line = way.entered(line);
                }
            }
            Err(why) => {
                fix.commands.clear();
                fix.undo.clear();
                fix.by_hand = Some(why.words().to_owned());
            }
        }
    }
}

/// The prefix of a command that runs in a namespace.
struct Way {
    enter: String,
    /// It shows the namespace's own /sys.
    remounts: bool,
}

fn way_in(namespace: &Namespace) -> Result<Way, Unwritable> {
    let name = namespace.name.as_str();
    let way = |line: Line, remounts| Ok(Way { enter: line?.into_line(), remounts });
    if let Some(name) = name.strip_prefix("netns ") {
        return way(sh!("ip netns exec {}", name), true);
    }
    if let Some(name) = name.strip_prefix("docker ") {
        return way(sh!("nsenter -t \"$(docker inspect -f '{{.State.Pid}}' -- {})\" -n", name), false);
    }
    if let Some(name) = name.strip_prefix("podman ") {
        return way(sh!("nsenter -t \"$(podman inspect -f '{{.State.Pid}}' -- {})\" -n", name), false);
    }
    if name.starts_with('/') {
        return way(sh!("nsenter --net={}", name), false);
    }
    let process = name.rsplit_once("(pid ").and_then(|(_, rest)| rest.strip_suffix(')'));
    let number = |text: &str| text.parse::<u32>().ok();
    let (pid, descriptor) = match process.map(|p| p.split_once(", descriptor ").unwrap_or((p, ""))) {
        Some((pid, descriptor)) => (number(pid), number(descriptor)),
        None => (None, None),
    };
    match (pid, descriptor) {
        (Some(pid), Some(descriptor)) => way(sh!("nsenter --net=/proc/{}/fd/{}", pid, descriptor), false),
        (Some(pid), None) => way(sh!("nsenter -t {} -n", pid), false),
        (None, _) => {
            let look = "find a process in it with `lsns -t net`, and enter it with nsenter";
            Err(Unwritable::new("the namespace", name, "has no name that leads into it", look))
        }
    }
}

impl Way {
    /// nsenter keeps the /sys of the host, in which the names of interfaces are those of the host.
    fn leads<'a>(&self, mut lines: impl Iterator<Item = &'a String>) -> Result<(), Unwritable> {
        if self.remounts || !lines.any(|line| line.contains(SYS)) {
            return Ok(());
        }
        let look = "mount a sysfs of that namespace, and write to its file";
        Err(Unwritable::new("the path", SYS, "is that of another namespace", look))
    }

    /// Several commands in one line must all run there.
    fn entered(&self, command: &str) -> String {
        let enter = &self.enter;
        // Without the quotes that `word` writes as '\'', every other part is outside of quotes.
        let unquoted = command.replace(r"'\''", "");
        let mut parts = unquoted.split('\'').step_by(2);
        if parts.any(|part| part.contains([';', '|', '&', '>', '<', '$', '`', '(', '*', '"'])) {
            format!("{enter} sh -c '{}'", command.replace('\'', r"'\''"))
        } else {
            format!("{enter} {command}")
        }
    }
}

const SYS: &str = "/sys/class/net/";

/// True of a line in which some command works on the namespace that it is started in.
fn needs_entry(line: &str) -> bool {
    let of_namespace = |command: &str| {
        let mut words = command.split_whitespace().skip_while(|word| *word == "do");
        let program = words.next().unwrap_or_default();
        let named = program == "ip" && words.next() == Some("netns");
        OF_NAMESPACES.split(' ').any(|one| one == program) && !named
    };
    let shown = line.contains("/proc/net/") || line.contains(SYS);
    (shown || line.split([';', '|', '&', '(', ')']).any(of_namespace)) && !is_of_machine(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn placed(name: &str, own: bool, command: &str) -> String {
        let namespace = Namespace { name: name.into(), own, ..Namespace::default() };
        let mut fixes =
            [Fix { commands: vec![command.into()], undo: vec![command.into()], ..Fix::default() }];
        place(&mut fixes, &namespace);
        assert_eq!(fixes[0].commands, fixes[0].undo);
        fixes[0].commands[0].clone()
    }

    #[test]
    fn commands_run_where_the_cause_is() {
        assert_eq!(placed("host", true, "nft list ruleset"), "nft list ruleset");
        assert_eq!(placed("netns blue", false, "nft list ruleset"), "ip netns exec blue nft list ruleset");
        assert_eq!(placed("nginx (pid 312)", false, "ss -ltn"), "nsenter -t 312 -n ss -ltn");
        assert_eq!(
            placed("docker web", false, "ip route"),
            "nsenter -t \"$(docker inspect -f '{{.State.Pid}}' -- web)\" -n ip route"
        );
    }

    #[test]
    fn what_cannot_be_entered_is_not_changed_somewhere_else() {
        for (name, command) in [
            ("pod default/web", "ip route"),
            ("x (pid 1;reboot)", "ss -lt"),
            ("netns a\u{1b}b", "nft list ruleset"),
            ("nginx (pid 312)", "echo 3 > /sys/class/net/eth0/queues/rx-0/rps_cpus"),
        ] {
            let namespace = Namespace { name: name.into(), ..Namespace::default() };
            let mut fixes = [Fix { commands: vec![command.into()], ..Fix::default() }];
            place(&mut fixes, &namespace);
            assert!(fixes[0].commands.is_empty() && fixes[0].by_hand.is_some(), "{name}: {:?}", fixes[0]);
        }
        assert_eq!(
            placed("held by x (pid 3, descriptor 4)", false, "ip route"),
            "nsenter --net=/proc/3/fd/4 ip route"
        );
        assert_eq!(placed("netns a;b", false, "ss -lt"), "ip netns exec 'a;b' ss -lt");
        assert_eq!(placed("/run/a b", false, "ss -lt"), "nsenter --net='/run/a b' ss -lt");
        assert_eq!(
            placed("netns b", false, "(echo flush chain ip t c && nft list chain ip t c) > /root/x"),
            "ip netns exec b sh -c '(echo flush chain ip t c && nft list chain ip t c) > /root/x'"
        );
        let queues = "cat /proc/net/netfilter/nfnetlink_queue";
        assert_eq!(placed("x (pid 7)", false, queues), format!("nsenter -t 7 -n {queues}"));
    }

    #[test]
    fn both_halves_of_a_line_run_there_and_what_is_the_machines_does_not() {
        assert_eq!(
            placed("netns a b", false, "nft flush ruleset; nft -f /root/x"),
            "ip netns exec 'a b' sh -c 'nft flush ruleset; nft -f /root/x'"
        );
        for machine in
            ["sysctl -w net.netfilter.nf_conntrack_max=4000", "systemctl restart nginx", "ip netns list"]
        {
            assert_eq!(placed("netns blue", false, machine), machine);
        }
        let done = "ip netns exec blue nft list ruleset";
        assert_eq!(
            placed("netns blue", false, "sysctl -w net.ipv4.ip_forward=1"),
            "ip netns exec blue sysctl -w net.ipv4.ip_forward=1"
        );
        assert_eq!(placed("netns blue", false, done), done);
    }
}
