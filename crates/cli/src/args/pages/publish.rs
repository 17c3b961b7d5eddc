//! Pages of `weir publish`.

use super::Page;

pub(super) const PAGES: &[Page] = &[
    Page {
        command: "publish",
        text: "Two BPF programs lead what clients send to a published port straight into the container, and its answers out: without \
               connection tracking, without the rules of the host, and a third faster. What is not plain (fragments, IP options, \
               traffic on the host itself) still goes by the rules that the container engine made, which stay.\n\nplan and status \
               change nothing. apply leaves a guard process behind that takes everything back unless `weir publish confirm` comes in \
               time. It lasts until the next reboot, or until the container is started again. Needs root, and Linux 6.6.",
        examples: &[
            "weir publish plan",
            "weir publish apply --all",
            "weir publish confirm",
            "weir publish status",
        ],
        codes: "",
    },
    Page {
        command: "publish plan",
        text: "Every destination NAT rule of this network namespace (nft, iptables and its older form) and every userland proxy, with \
               the link behind which the container is, or with the reason why it must be left to the kernel. Also the rules that \
               throw packets away now and would not see these any more. Where nobody knows a container's link yet, one empty \
               datagram is sent to it. Needs root.",
        examples: &["weir publish plan", "weir publish plan --outer eth1 --json"],
        codes: "Exit codes: 0 done, whatever can be done; 2 there is no such interface, or no default route; 4 it needs root, or a newer \
                kernel.",
    },
    Page {
        command: "publish apply",
        text: "What is in effect already is replaced: every packet meets the old programs or the new ones, and connections go on. All \
               that is asked for is done, or nothing. Refused unless --force: what rules of your own would not see any more. Needs \
               root.",
        examples: &[
            "weir publish apply --all",
            "weir publish apply 198.51.100.7:80=172.17.0.2:8080/tcp",
            "weir publish apply --all --outer eth1 --confirm-within 5m",
            "weir publish apply --all --no-guard",
        ],
        codes: "Exit codes: 0 done, or in effect already; 1 it failed, and nothing is changed; 2 wrong usage; 3 it cannot be done with \
                what is published here, or a guard refused; 4 something is missing here.",
    },
    Page {
        command: "publish status",
        text: "Each mapping, whether its programs are attached and its container still behind the same link, and packets by \
               direction and reason. Needs root.",
        examples: &["weir publish status", "weir publish status --json"],
        codes: "Exit codes: 0 all that was applied is in effect, or nothing was applied; 3 something is not, such as a container that was \
                started again: apply mends it; 4 it needs root.",
    },
    Page {
        command: "publish confirm",
        text: "Ends the trial of `weir publish apply`: the guard goes. Needs root.",
        examples: &["weir publish confirm"],
        codes: "Exit codes: 0 kept; 1 too late: it was taken back; 4 it needs root.",
    },
    Page {
        command: "publish remove",
        text: "Programs, tables and attachments, also when parts are missing; the engine's rules publish as before. Needs root.",
        examples: &["weir publish remove"],
        codes: "Exit codes: 0 nothing of it is left; 1 something is; 4 it needs root.",
    },
];
