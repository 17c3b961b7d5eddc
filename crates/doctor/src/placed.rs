//! Commands as they are typed on the host, for what is to be done in one of its network namespaces.

use crate::causes::word;
use crate::collect::is_of_machine;
use crate::evidence::Namespace;
use crate::finding::Fix;

/// Programs that work on the namespace that they are started in.
const OF_NAMESPACES: &[&str] = &[
    "nft",
    "iptables",
    "ip6tables",
    "iptables-nft",
    "ip6tables-nft",
    "iptables-legacy",
    "ip6tables-legacy",
    "ipset",
    "ip",
    "tc",
    "bridge",
    "ethtool",
    "sysctl",
    "conntrack",
    "ss",
    "nstat",
    "tcpdump",
    "ping",
    "wg",
];

/// Makes the commands of a finding ones that work where they are typed: in the namespace that weir is in.
pub(crate) fn place(fixes: &mut [Fix], namespace: &Namespace) {
    let Some(enter) = way_in(namespace) else { return };
    for command in fixes.iter_mut().flat_map(|f| f.commands.iter_mut().chain(&mut f.undo)) {
        if needs_entry(command) {
            *command = entered(&enter, command);
        }
    }
}

/// What stands before a command that is to run in that namespace; `None` in our own, and where no name leads into it.
pub(crate) fn way_in(namespace: &Namespace) -> Option<String> {
    let name = namespace.name.as_str();
    if namespace.own {
        return None;
    }
    if let Some(name) = name.strip_prefix("netns ") {
        return Some(format!("ip netns exec {}", word(name)));
    }
    if let Some(name) = name.strip_prefix("docker ") {
        let inspect = format!("docker inspect -f '{{{{.State.Pid}}}}' {}", word(name));
        return Some(format!("nsenter -t \"$({inspect})\" -n"));
    }
    let pid = name.rsplit_once("(pid ").and_then(|(_, rest)| rest.strip_suffix(')')?.parse::<u32>().ok())?;
    Some(format!("nsenter -t {pid} -n"))
}

fn needs_entry(command: &str) -> bool {
    let mut words = command.split_whitespace();
    let program = words.next().unwrap_or_default();
    let named = program == "ip" && words.next() == Some("netns");
    OF_NAMESPACES.contains(&program) && !named && !is_of_machine(command)
}

/// Several commands in one line must all run there.
fn entered(enter: &str, command: &str) -> String {
    if command.contains([';', '|', '&', '\n', '>', '<', '$', '`']) {
        format!("{enter} sh -c {}", word(command))
    } else {
        format!("{enter} {command}")
    }
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
            "nsenter -t \"$(docker inspect -f '{{.State.Pid}}' web)\" -n ip route"
        );
        assert_eq!(placed("held by x (pid 3, descriptor 4)", false, "ip route"), "ip route");
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
