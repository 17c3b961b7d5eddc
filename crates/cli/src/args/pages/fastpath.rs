//! Pages of `weir fastpath`.

use super::Page;

pub(super) const PAGES: &[Page] = &[
    Page {
        command: "fastpath",
        text: "A BPF flow table beside the kernel's connection tracking. The kernel's rules, NAT and routes decide about a flow with \
               its first packets; the table carries the packets that follow. Whatever made the rules stays as it is: nft, iptables, \
               Docker, kube-proxy. First packets, ends of connections, fragments, ICMP, options and all else that is unusual take \
               the kernel's way.\n\nOne process keeps it. When that process ends, even by kill -9, everything takes the kernel's way \
               within two seconds, only slower. apply rolls back unless `weir fastpath confirm` comes in time. Needs root and \
               the conntrack functions for BPF (Linux 6.1). Before Linux 6.6 the programs are attached by clsact: they stay if the \
               process is killed, carry nothing, and are removed by the next apply or remove.",
        examples: &[
            "weir fastpath plan",
            "weir fastpath apply",
            "weir fastpath confirm",
            "weir fastpath status",
        ],
        codes: &[],
    },
    Page {
        command: "fastpath plan",
        text: "Shows the interfaces that forward, the room and memory of the table, and the rules that carried packets would not meet \
               any more. With --xdp also which drivers can carry by XDP, as the kernel announces it (Linux 6.3). Needs root: \
               programs are loaded for a moment, and attached to nothing.",
        examples: &[
            "weir fastpath plan",
            "weir fastpath plan --xdp",
            "weir fastpath plan -i eth0 -i eth1 --json",
        ],
        codes: &[
            (2, "an interface does not fit"),
            (3, "no interface here forwards packets"),
            (4, "it needs root, or a newer kernel"),
        ],
    },
    Page {
        command: "fastpath apply",
        text: "Starts the process that keeps the fast path, in the place of one that runs. Connections go on in either direction. \
               Refuses where a rule decides packet by packet (limits, quotas, queues), and prints the --exclude values that leave \
               its flows to the kernel, if it asks for addresses, ports, a protocol or a version of IP. With those values, or any \
               that cover all of its flows, it does not refuse. Kept exclusions do not count, since they may end at any time. \
               --force applies it nevertheless.\n\nWith --xdp, drivers of network cards carry packets before the kernel makes \
               anything of them. Such packets meet no queueing discipline, no program or filter of tc and no tcpdump. tc carries as \
               without --xdp if one of these decides, and flows that leave with a mark or a priority. `weir fastpath plan --xdp` shows which interfaces fit. Attaching may interrupt a link for a moment. Needs root.",
        examples: &[
            "weir fastpath apply",
            "weir fastpath apply -i eth0 -i eth1 --confirm-within 5m",
            "weir fastpath apply --xdp",
            "weir fastpath apply --exclude 192.0.2.0/24 --exclude 0.0.0.0/0:53/udp",
        ],
        codes: &[
            (0, "done, or in effect already"),
            (1, "it failed, and nothing is changed"),
            (2, "an interface does not fit"),
            (3, "nothing forwards here, or rules would be bypassed"),
            (4, "something is missing here"),
        ],
    },
    Page {
        command: "fastpath status",
        text: "Shows the share of packets that were carried, why the others were not, and how flows were learnt. Counts begin with \
               apply. A super-packet that the kernel handles as one counts as one. Flows are counted one by one only while --top \
               looks, so that packets pay nothing for it otherwise. Needs root.",
        examples: &[
            "weir fastpath status",
            "weir fastpath status --top 5",
            "weir fastpath status --flows 20 --json",
        ],
        codes: &[
            (0, "all that was applied is in effect, or nothing was applied"),
            (3, "some of it is not: its process or an interface is gone"),
            (4, "it needs root"),
        ],
    },
    Page {
        command: "fastpath explain",
        text: "Asks the tables about a packet that comes in with these addresses and ports, and about the answers to it. Sends nothing \
               and changes nothing. Needs root.",
        examples: &["weir fastpath explain tcp 192.0.2.7:40000 198.51.100.1:443"],
        codes: &[(3, "no fast path is in effect"), (4, "it needs root")],
    },
    Page {
        command: "fastpath pause",
        text: "Works at once, for a look at all packets or a suspicion. Flows stay in the table. Needs root.",
        examples: &["weir fastpath pause"],
        codes: &[(3, "no fast path is in effect"), (4, "it needs root")],
    },
    Page {
        command: "fastpath resume",
        text: "Carries again what is in the table. Needs root.",
        examples: &["weir fastpath resume"],
        codes: &[(3, "no fast path is in effect"), (4, "it needs root")],
    },
    Page {
        command: "fastpath exclude",
        text: "Works at once, also for flows that are carried now, and adds to earlier exclusions, 64 at most. An exclusion meets a \
               flow if one of its ends has this address (and port, and protocol), before or behind the translation. It is kept on \
               disk and stays in effect over apply, rollback, a restart and a reboot, until --remove or --clear. In another network \
               namespace than the machine's own it lasts as long as that namespace. Exclusions of `weir fastpath apply --exclude` \
               belong to that apply, and end with the next one. Needs root.",
        examples: &[
            "weir fastpath exclude",
            "weir fastpath exclude 192.0.2.7",
            "weir fastpath exclude '[2001:db8::/32]:443/tcp'",
            "weir fastpath exclude --remove 192.0.2.7",
            "weir fastpath exclude --clear",
        ],
        codes: &[
            (1, "it is kept, and the process that keeps the fast path does not answer"),
            (2, "there would be more than 64"),
            (3, "an exclusion to remove is unknown, or belongs to the last apply"),
            (4, "it needs root"),
        ],
    },
    Page {
        command: "fastpath confirm",
        text: "Ends the trial of `weir fastpath apply` and its guards. Needs root.",
        examples: &["weir fastpath confirm"],
        codes: &[(0, "kept"), (1, "too late: it was rolled back"), (4, "it needs root")],
    },
    Page {
        command: "fastpath rollback",
        text: "Puts the fast path before the last apply back into effect, or none. Needs root.",
        examples: &["weir fastpath rollback"],
        codes: &[
            (0, "rolled back"),
            (1, "nothing was applied, or another program changed it since"),
            (4, "it needs root"),
        ],
    },
    Page {
        command: "fastpath remove",
        text: "Ends the process that keeps it, and with it programs and tables. Connections go on. Exclusions of `weir fastpath \
               exclude` are kept for a later apply. Needs root.",
        examples: &["weir fastpath remove"],
        codes: &[(0, "nothing is left"), (1, "some of it is"), (4, "it needs root")],
    },
    Page {
        command: "fastpath run",
        text: "The same in the foreground and for good, until Ctrl-C or SIGTERM: for a unit that starts it after a reboot and after a \
               crash. Needs root.",
        examples: &["weir fastpath run", "weir fastpath run -i eth0 -i eth1"],
        codes: &[
            (1, "another fast path is in effect, or the kernel refused"),
            (3, "nothing forwards here, or rules would be bypassed"),
            (4, "it needs root, or a newer kernel"),
        ],
    },
];
