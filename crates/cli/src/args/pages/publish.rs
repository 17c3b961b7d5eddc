//! Pages of `weir publish`.

use super::Page;

pub(super) const PAGES: &[Page] = &[
    Page {
        command: "publish",
        text: "Two BPF programs forward packets of a published port straight into the container, and its answers out. They bypass \
               conntrack and the host's firewall rules, including DOCKER-USER, and are a third faster. Fragments, IP options and \
               traffic on the host itself still pass the rules of the container engine, which stay.\n\nplan and status change \
               nothing. apply rolls back unless `weir publish confirm` comes in time: two guard processes see to that, and the \
               kernel if both are killed. It lasts until the next reboot, or until the container restarts. Needs root and Linux 6.6.",
        examples: &[
            "weir publish plan",
            "weir publish apply --all",
            "weir publish confirm",
            "weir publish status",
        ],
        codes: &[],
    },
    Page {
        command: "publish plan",
        text: "Lists every destination NAT rule of this network namespace (nft, iptables and its older form) and every userland \
               proxy, with the container's link, or with the reason why the kernel must do it. Also lists the rules that drop \
               packets now and would be bypassed. Sends one empty datagram to a container whose link is unknown. Needs root.",
        examples: &["weir publish plan", "weir publish plan --interface eth1 --json"],
        codes: &[
            (2, "there is no such interface, or no default route"),
            (4, "it needs root, or a newer kernel"),
        ],
    },
    Page {
        command: "publish apply",
        text: "Replaces the mappings in effect: every packet meets the old programs or the new ones, and connections go on. Forwards \
               all ports that are named, or none. Refuses ports whose packets would bypass your own drop rules, unless --force. \
               Needs root.",
        examples: &[
            "weir publish apply --all",
            "weir publish apply 198.51.100.7:80=172.17.0.2:8080/tcp",
            "weir publish apply --all --interface eth1 --confirm-within 5m",
            "weir publish apply --all --no-guard",
        ],
        codes: &[
            (0, "done, or in effect already"),
            (1, "it failed, and nothing is changed"),
            (3, "a port cannot be forwarded here, or a guard refused"),
            (4, "something is missing here"),
        ],
    },
    Page {
        command: "publish status",
        text: "Shows each mapping, whether its programs are attached and its container is still behind the same link, and packets by \
               direction and reason. Needs root.",
        examples: &["weir publish status", "weir publish status --json"],
        codes: &[
            (0, "all that was applied is in effect, or nothing was applied"),
            (3, "some of it is not, for example after a container restart: run apply again"),
            (4, "it needs root"),
        ],
    },
    Page {
        command: "publish confirm",
        text: "Ends the trial of `weir publish apply` and its guards. Needs root.",
        examples: &["weir publish confirm"],
        codes: &[(0, "kept"), (1, "too late: it was rolled back"), (4, "it needs root")],
    },
    Page {
        command: "publish rollback",
        text: "Puts the mappings before the last apply back into effect. Needs root.",
        examples: &["weir publish rollback"],
        codes: &[
            (0, "rolled back"),
            (1, "nothing was applied, or another program changed it since"),
            (4, "it needs root"),
        ],
    },
    Page {
        command: "publish remove",
        text: "Removes programs, tables and attachments, even partial ones. The engine's rules publish as before. Needs root.",
        examples: &["weir publish remove"],
        codes: &[(0, "nothing is left"), (1, "some of it is"), (4, "it needs root")],
    },
];
