//! Pages of commands that inspect a host, change it, or measure a path to another one.

use super::{MISSING, Page};

pub(super) const PAGES: &[Page] = &[
    Page {
        command: "probe",
        text: "TARGET is a host with `weir serve`, a stock iperf3 server (--iperf3), any TCP port (connect) or any \
               HTTP server (a URL). weir opens every connection itself, so it works from behind a NAT, and without \
               root. It prints a line per second (not with --quiet) and a summary with the counts of both ends; \
               with --json one document instead.",
        examples: &[
            "weir probe 192.0.2.7",
            "weir probe 192.0.2.7 udp --bitrate 100M --length 1472 --time 30",
            "weir probe 192.0.2.7 latency --repeat 4x10s",
            "weir probe 192.0.2.7 --iperf3 --reverse --parallel 4",
            "weir probe https://192.0.2.7/ --rate 500 --time 1m",
        ],
        codes: &[
            (0, "measured, also if no data gets through and the reason was found on the path"),
            (1, "nothing was measured, the server refused or went away, or Ctrl-C"),
            (4, "the key file is unreadable"),
        ],
    },
    Page {
        command: "serve",
        text: "Serves many clients at once over one port (TCP and UDP), without root. Clients can request traffic \
               within limits, never a program.\n\nChoose the clients: holders of a key (--key-file), everyone \
               (--open), or only this machine (--bind 127.0.0.1). iperf3 clients have no key, so they need --open \
               or a loopback address. Prints a line per client, unless --quiet.\n\nWith --nat-address it is the far end \
               of `weir nat check`. It sends through a client's NAT only to addresses and ports that packets of this \
               check came from, fewer bytes than came from each, and at most 2,000 packets a second. With a key and \
               CAP_NET_RAW it also exchanges raw packets with such clients, at most 4 MB in a check.",
        examples: &[
            "weir serve --bind 127.0.0.1",
            "weir serve --key-file /etc/weir/key",
            "weir serve --open --port 5201 --max-rate 1G --max-time 1m",
            "weir serve --open --nat-address 192.0.2.7 --nat-address 192.0.2.8",
        ],
        codes: &[
            (0, "ended by Ctrl-C"),
            (1, "the port failed"),
            (4, "the port is taken, or needs more privilege"),
        ],
    },
    Page {
        command: "mtu",
        text: "Shows the path MTU and whether routers report it, the safe UDP payload (-l 1472 for an MTU of 1500), \
               the MSS to clamp to, and every length that was tried.\n\nWith `weir serve` on the target it measures \
               each direction by itself, and sees single fragments if the server has CAP_NET_RAW. Without it weir \
               uses pings and the refusals of a closed port. It sends a few dozen small packets and needs no root.",
        examples: &["weir mtu 192.0.2.7", "weir mtu gateway.example -4 --for 30s --fail-on-finding"],
        codes: &[
            (0, "done, with or without findings"),
            (1, "no answer, or the host is unreachable"),
            (3, "a finding, with --fail-on-finding"),
        ],
    },
    Page {
        command: "nat",
        text: "One row per requirement of RFC 4787 (UDP), 5382 (TCP) and 5508 (ICMP): what was sent, what was seen, the verdict, and \
               what breaks for whom. The kind of the NAT is given in the RFC's words and in older ones (full cone, \
               symmetric).",
        examples: &[
            "weir nat lab",
            "weir nat check server.example",
            "weir nat ports server.example",
            "weir nat rows",
        ],
        codes: &[],
    },
    Page {
        command: "nat check",
        text: "Makes the experiments of `weir nat lab` that one host can make, through all NATs on the way to a host with \
               `weir serve --nat-address`. Without root: mapping, filtering, ports and timers of UDP, mapping and \
               filtering of TCP. With root on both sides and a key also ICMP, fragments, header fields, connections \
               of TCP left alone in each state, and other protocols. The other rows say why they cannot be tested. A server \
               with one address cannot tell all kinds of NAT apart.\n\nWith --stun it asks a STUN server with two addresses (RFC 5780; \
               coturn is one) instead, which shows mapping and filtering of UDP only.\n\nWith --to, --from or both, weir copies \
               itself to that host by ssh, docker or kubectl, starts `weir serve` there or runs the check there, and \
               ends both with this command.",
        examples: &[
            "weir nat check server.example",
            "weir nat check 192.0.2.7 --key-file key --idle 125s --fail-on-must",
            "weir nat check --to ssh://root@server.example --nat-address 192.0.2.7",
            "weir nat check 192.0.2.7 --key-file key --preset long",
            "weir nat check --from ssh://home --to ssh://server --nat-address 192.0.2.7",
            "weir nat check --stun 192.0.2.7:3478 --json",
        ],
        codes: &[
            (1, "no answer, a host or server that cannot help, or answers that were lost"),
            (3, "a MUST or MUST NOT is not met, with --fail-on-must"),
        ],
    },
    Page {
        command: "nat ports",
        text: "Sends a datagram each from many ports of this host to one endpoint of `weir serve --nat-address`. Shows how \
               many outside ports they got, how the NAT chooses them (the inside port, counted, any of a block, \
               spread), what happens when none is left, and whether the first mappings are still there then. \
               UDP only. It needs no root.",
        examples: &["weir nat ports server.example", "weir nat ports 192.0.2.7 --limit 5000 --json"],
        codes: &[(1, "no answer, or a server that cannot help")],
    },
    Page {
        command: "nat compare",
        text: "Pairs gateways of the same name, or the only ones of each result. Prints the verdicts that differ, those \
               that became worse first, and both results side by side. It measures nothing and needs no root.",
        examples: &[
            "weir nat compare before.json after.json",
            "weir nat compare before.json after.json --fail-on-worse",
            "weir nat compare before.json after.json --html",
        ],
        codes: &[(3, "a requirement is met less than before, with --fail-on-worse")],
    },
    Page {
        command: "nat lab",
        text: "Builds each gateway between two ends of weir's own, in network namespaces of this machine, and sends it \
               packets from both sides. All gateways are measured at once, so their time is that of the idle \
               timers. Several are shown side by side: what breaks for whom, and the rows that differ first.\n\n\
               A mapping that outlives --idle is not testable, not met: RFC 4787 asks for two and five minutes, so \
               --preset standard decides these, and --preset long the two hours and four minutes of RFC 5382. \
               With --progress the same command goes on where a run was broken off: complete experiments and decided \
               idle times are kept; others begin anew, because mappings end with their process.\n\nLast come the gateway's ports: \
               mappings are opened until packets are refused, one gateway after another. Not root: the lab is built in a user namespace, if the kernel allows one.",
        examples: &[
            "weir nat lab",
            "weir nat lab --gateway nft-masquerade --idle 125s --fail-on-must",
            "weir nat lab --gateway routed --gateway iptables-masquerade --json",
            "weir nat lab --all --preset standard --markdown",
            "weir nat lab --all --json",
            "weir nat lab --preset long --json",
            "weir nat lab --preset long --progress long.progress",
            "weir nat lab --idle 0 --mappings 66000",
            "weir nat lab --pcap packets",
            "weir nat lab --sysctl net.netfilter.nf_conntrack_udp_timeout=5",
        ],
        codes: &[(3, "a MUST or MUST NOT is not met, with --fail-on-must"), MISSING],
    },
    Page {
        command: "nat rows",
        text: "The rows that weir can measure today. It measures nothing and needs no root.",
        examples: &["weir nat rows", "weir nat rows --json"],
        codes: &[],
    },
    Page {
        command: "conntrack",
        text: "For one network namespace: its fill level, by protocol, state, address and port, SNAT ports in use \
               and available, and its memory, now and at another limit.\n\nReads only. The entries need root; \
               without it weir shows the rest.",
        examples: &[
            "weir conntrack",
            "weir conntrack --max 1048576",
            "weir conntrack --protocol tcp --state time-wait --destination 198.51.100.0/24",
            "weir conntrack --netns 4711 --watch 5",
        ],
        codes: &[(4, "the host has no connection tracking, or --netns needs root")],
    },
    Page {
        command: "flows",
        text: "Follows the TCP connections and UDP flows that pass this host, at the interfaces by which packets come in, and prints for \
               the networks and flows with the most bytes: round trips between this host and either side, and the share \
               of segments lost there, each way, with its 95 % interval. Both sides of NAT are one flow. For UDP it prints rates and \
               silence, which flows are QUIC, and of DNS to port 53 the time from query to answer and its failures. ICMP errors about \
               these flows are counted with their meaning and their sender.\n\nOn a \
               terminal it shows tables by network, inside host, flow, UDP, DNS, ICMP errors and process that keys sort, filter and freeze; `?` lists the keys. Elsewhere it \
               prints a page per second. Processes are those of this host and its containers that hold the sockets at the ends of flows.\n\nA segment that \
               comes again after it passed was lost behind this host; a gap that is filled later was lost before it. \
               Sends nothing, changes no packet and drops none. Its BPF programs end with weir. Needs root and Linux 6.6.",
        examples: &[
            "weir flows",
            "weir flows --once --for 30",
            "weir flows --json --for 1m --top 50",
            "weir flows --interface eth0 --interface docker0 --by-client --prefix 16",
            "weir flows --once --share 10%",
            "weir flows --once --names sites.txt",
            "weir flows --save evening.jsonl",
        ],
        codes: &[
            (0, "done, or ended by a key or a signal"),
            (1, "reading the table of flows failed, or the recording is not whole"),
            (
                2,
                "wrong usage, a file of that name, names that cannot be read, an interface that is not here, or none that forwards",
            ),
            (4, "root or Linux 6.6 (TCX) is missing here"),
        ],
    },
    Page {
        command: "export",
        text: "Serves `GET /metrics` in the text format of Prometheus: loss and delay of TCP by network, UDP and DNS, connection tracking, \
               ports of source NAT, drops by the doctor's cause, fast path, published ports, address lists and probes. \
               docs/reference/metrics.md lists all metrics and what bounds their number.\n\nListens on loopback; elsewhere only \
               with a token or TLS. Labels name networks by prefix, no single addresses of people.\n\nChanges no packet and drops \
               none; sends only what --probe asks for. Its BPF programs end with weir. Needs root, and Linux 6.6 for flows.",
        examples: &[
            "weir export",
            "weir export --listen [::1]:9348 --networks 200 --by-client --prefix 16",
            "weir export --listen [::]:9348 --token-file t --tls-cert c.pem --tls-key k.pem",
            "weir export --textfile /var/lib/node-exporter/weir.prom --without flows",
            "weir export --probe example.org:443 --probe 192.0.2.1:22 --probe-every 30s",
        ],
        codes: &[
            (0, "ended by Ctrl-C"),
            (1, "reading the table of flows failed, or the text file cannot be written"),
            (
                2,
                "wrong usage, names that cannot be read, an address off the loopback without token and TLS, an interface that is not here, or none that forwards",
            ),
            (4, "root or Linux 6.6 (TCX) is missing here, the port is taken, or a file cannot be read"),
        ],
    },
    Page {
        command: "doctor",
        text: "Names the causes of lost or delayed packets, their share of the loss, the evidence, the causes ruled \
               out, and the commands that help. Needs no filter and no guess.\n\nReads only: changes no rule, no \
               setting and no kernel module. Without root it lists the evidence sources it could not read, and uses \
               the others.",
        examples: &[
            "weir doctor",
            "weir doctor --for 30 --own --fail-on warning",
            "weir doctor --command 'ab -n 20000 -c 500 http://198.18.0.1/'",
            "weir doctor --json | weir tune plan --from -",
            "weir doctor --json >before.json",
            "weir doctor --before before.json   # after the fix: did it help?",
            "weir doctor --watch 1m --json",
        ],
        codes: &[
            (0, "done, with or without findings"),
            (1, "it could not watch"),
            (2, "wrong usage, or a file of --read or --before that is none"),
            (3, "a finding of --fail-on's severity or above"),
            (4, "a privilege or a kernel feature is missing here"),
        ],
    },
    Page {
        command: "doctor explain",
        text: "Prints the signs that must, should and must not be present, similar causes, and the fix with its \
               risk. Does not look at this host.",
        examples: &["weir doctor explain", "weir doctor explain conntrack-full"],
        codes: &[(2, "unknown cause; the message names the nearest one")],
    },
    Page {
        command: "doctor selftest",
        text: "Builds a lab with each fault, sends traffic through it, and compares the doctor's first finding with \
               the fault. Needs root. A case takes some seconds, all of them many minutes; --case selects some.",
        examples: &[
            "weir doctor selftest --list",
            "weir doctor selftest --case conntrack --repeat 3",
            "weir doctor selftest --json > matrix.json",
        ],
        codes: &[
            (
                0,
                "at least 95 % of the causes were found first, 80 % of the pairs were found, and no healthy load had a warning",
            ),
            (3, "not so"),
            (4, "root or a kernel feature is missing here, or every case was skipped"),
        ],
    },
    Page {
        command: "tune",
        text: "Plans changes with reasons, price and risk, applies them on trial, and proves them by measurement.\n\nplan and \
               status change nothing. apply needs root. It rolls back unless `weir tune confirm` comes in time, or earlier if \
               counters get worse. Two guard processes see to that, and a timer of systemd if both are killed.",
        examples: &[
            "weir tune plan",
            "weir tune apply --profile nat-gateway --confirm-within 5m",
            "weir tune confirm",
        ],
        codes: &[],
    },
    Page {
        command: "tune plan",
        text: "Prints present and proposed values, the reason for each, memory, risk, and the way back. Without root it lacks the \
               prices that only root can read.",
        examples: &[
            "weir tune plan",
            "weir tune plan --profile throughput --rtt 40 --memory 256M",
            "weir tune plan --profile published-ports",
            "weir doctor --json | weir tune plan --from -",
        ],
        codes: &[],
    },
    Page {
        command: "tune apply",
        text: "Writes the old values to disk before the first change. Two guard processes roll everything back unless `weir tune \
               confirm` comes in time, and earlier if a counter of the change, or the number of --watch-command, gets worse. They also do \
               so when weir is killed. If both guards are killed at once, a timer of systemd rolls back. Needs root.",
        examples: &[
            "weir tune apply --confirm-within 5m",
            "weir tune apply --from findings.json",
            "weir tune apply --set net.core.somaxconn=8192 --no-watch",
        ],
        codes: &[
            (0, "applied, or nothing to change"),
            (1, "a change failed, and all others are rolled back"),
            (2, "wrong usage, or a value out of bounds"),
            (4, "it needs root, the machine's own network namespace, or for published ports Linux 6.6"),
        ],
    },
    Page {
        command: "tune confirm",
        text: "Ends the trial of `weir tune apply` and its guards, and writes the settings to /etc/sysctl.d/90-weir.conf. A second \
               confirm does no harm. Needs root.",
        examples: &["weir tune confirm"],
        codes: &[(0, "kept"), (1, "too late: it was rolled back"), (4, "it needs root")],
    },
    Page {
        command: "tune rollback",
        text: "Restores values and files of the last apply in reverse order, each only if it still is as weir wrote it. Also works \
               after a reboot. Needs root.",
        examples: &["weir tune rollback"],
        codes: &[
            (0, "all is as before"),
            (1, "a change could not be restored, or another program changed it since"),
            (4, "it needs root"),
        ],
    },
    Page {
        command: "tune status",
        text: "Shows the last changes, their guards and remaining time, and whether each value still is as weir set it.",
        examples: &["weir tune status", "weir tune status --json"],
        codes: &[],
    },
    Page {
        command: "tune remove",
        text: "Does the same as rollback, also if nothing was applied or the journal cannot be read. Needs root.",
        examples: &["weir tune remove"],
        codes: &[
            (0, "nothing of it is left"),
            (1, "something is, or another program changed it since"),
            (4, "it needs root"),
        ],
    },
    Page {
        command: "tune prove",
        text: "Each round has a window without the change and one with it, in random order, with the same load. Prints \
               the difference within rounds, from six rounds on with its 95 % interval. Restores everything at the end, also after \
               Ctrl-C and kill -9. Needs root.",
        examples: &[
            "weir tune prove --set net.core.somaxconn=8192 --command 'sh load.sh'",
            "weir tune prove --command ./load.sh --counter conntrack-drops --require-better",
        ],
        codes: &[
            (0, "measured"),
            (1, "it could not be changed, measured or restored"),
            (3, "--require-better, and it is not shown to be better"),
            (4, "it needs root"),
        ],
    },
    Page {
        command: "allow",
        text: "Lets only listed addresses into a host or through a gateway: lists of countries from the five regional registries, \
               and your own lists of prefixes. update, build, check and diff need no root and change files only. apply, confirm, \
               rollback, remove and restore need root and change which packets come in.",
        examples: &[
            "weir allow update --country JP",
            "weir allow check 192.0.2.7 --country JP",
            "weir allow apply --country JP --interface eth0",
            "weir allow confirm",
        ],
        codes: &[],
    },
    Page {
        command: "allow update",
        text: "Downloads changed lists over HTTPS and checks them against the published checksum. Rejects damaged, older or much \
               smaller lists and keeps the cached copy. Needs no root.\n\nThe cache is /var/cache/weir/lists for root, and \
               ~/.cache/weir/lists ($XDG_CACHE_HOME) for others.",
        examples: &[
            "weir allow update",
            "weir allow update --country JP --max-age 12h",
            "weir allow update --offline --json",
        ],
        codes: &[
            (0, "all lists are up to date"),
            (1, "some could not be downloaded or stored"),
            (3, "some were rejected, or a cached line cannot be read (--offline)"),
            (4, "a list is not in the cache (--offline), or this host knows no certificate authority"),
        ],
    },
    Page {
        command: "allow build",
        text: "Merges the lists, removes those of --subtract, and writes the fewest prefixes that hold the same addresses. Loads \
               nothing: use `nft -f`, `ipset restore` or `weir allow apply`. Needs no root.",
        examples: &[
            "weir allow build --country JP --output jp.nft",
            "weir allow build office.txt --format ipset --must-have 192.0.2.7",
        ],
        codes: &[
            (2, "wrong usage, or a line that cannot be read"),
            (3, "a guard refused, and nothing was written"),
        ],
    },
    Page {
        command: "allow check",
        text: "Prints the most specific line that holds the address, and its file. Needs no root.",
        examples: &["weir allow check 192.0.2.7 office.txt", "weir allow check 2001:db8::1 --country JP"],
        codes: &[
            (0, "it is in the lists"),
            (2, "wrong usage, or a line that cannot be read"),
            (3, "it is not"),
        ],
    },
    Page {
        command: "allow diff",
        text: "Counts addresses and shows prefixes, in whatever form the two files are. Needs no root.",
        examples: &["weir allow diff old.txt new.txt", "weir allow diff old.txt --country JP --json"],
        codes: &[
            (0, "done, also where they are the same"),
            (2, "wrong usage, or a line that cannot be read"),
        ],
    },
    Page {
        command: "allow plan",
        text: "Reads the lists and shows their size, the policy that they replace, and what apply would refuse or warn about. Needs \
               root.",
        examples: &["weir allow plan office.txt --interface eth0"],
        codes: &[(0, "apply would load it"), (3, "a guard would refuse"), (4, "something is missing here")],
    },
    Page {
        command: "allow apply",
        text: "Rolls back unless `weir allow confirm` comes in time: two guard processes see to that. If both are killed, the kernel \
               itself returns to the previous policy. Needs root.\n\nAddresses in FILE (or of --country) may come in by the \
               named interfaces; packets of all others are dropped. --class adds lists with their own actions, which come \
               first, in their order. The new lists replace loaded ones in one step: every packet meets the old lists or the \
               new ones.\n\nNever shut out: link-local addresses, ARP, neighbour discovery, DHCP, loopback. Refused unless \
               --force: a list with over 20 % fewer addresses than the loaded one, and one without the address that you are \
               logged in from.",
        examples: &[
            "weir allow apply office.txt --interface eth0",
            "weir allow apply --country JP --interface eth0 --port tcp/22 --backend nft",
            "weir allow apply office.txt --interface eth0 --confirm-within 5m",
        ],
        codes: &[(1, "it failed, and nothing is changed"), (3, "a guard refused"), MISSING],
    },
    Page {
        command: "allow confirm",
        text: "Ends the trial of `weir allow apply` and its guards. `weir allow restore` loads the same lists after a reboot. Needs \
               root.",
        examples: &["weir allow confirm"],
        codes: &[(0, "kept"), (1, "too late: it was rolled back"), (4, "it needs root")],
    },
    Page {
        command: "allow rollback",
        text: "Puts the policy before the last apply back into effect. Needs root.",
        examples: &["weir allow rollback"],
        codes: &[
            (0, "rolled back"),
            (1, "nothing was applied, or another policy was loaded since and was left alone"),
            (4, "it needs root"),
        ],
    },
    Page {
        command: "allow status",
        text: "Shows the loaded lists and their interfaces, whether they are confirmed, how many packets each accepted or dropped, \
               and the most refused sources. With --follow it prints a line for each refused or logged packet: time, source, list, \
               verdict, service and destination. A core reports at most 1,000 packets a second and counts the others. Needs root.",
        examples: &["weir allow status", "weir allow status --top 50 --json", "weir allow status --follow"],
        codes: &[
            (1, "--follow: nothing is loaded, or another process follows"),
            (4, "it needs root, or --follow bpf"),
        ],
    },
    Page {
        command: "allow remove",
        text: "Removes the policies of every back end from kernel and disk, even partial ones. Needs root.",
        examples: &["weir allow remove"],
        codes: &[(0, "nothing is left"), (1, "some of it is"), (4, "it needs root")],
    },
    Page {
        command: "allow restore",
        text: "Loads the confirmed lists: for a unit that runs at boot, which --unit prints. Needs root.",
        examples: &[
            "weir allow restore",
            "weir allow restore --unit > /etc/systemd/system/weir-allow.service",
        ],
        codes: &[
            (0, "loaded, or nothing was confirmed"),
            (1, "it failed"),
            (4, "it needs root, or something is missing here"),
        ],
    },
];
