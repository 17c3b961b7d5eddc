//! Pages of what looks at a host, changes it, or measures towards another one.

use super::Page;

pub(super) const PAGES: &[Page] = &[
    Page {
        command: "probe",
        text: "TARGET runs `weir serve`, or is a stock iperf3 server (--iperf3), any TCP port (connect) or any HTTP server (a \
               URL). Every connection is opened from here, so it works from behind a NAT, and without root. A line per second \
               goes to standard output while it lasts, and a summary with what both ends counted; with --json one document \
               instead.",
        examples: &[
            "weir probe 192.0.2.7",
            "weir probe 192.0.2.7 udp --bitrate 100M --length 1472 --time 30",
            "weir probe 192.0.2.7 latency --repeat 4x10s",
            "weir probe 192.0.2.7 --iperf3 --reverse --parallel 4",
            "weir probe https://192.0.2.7/ --rate 500 --time 1m",
        ],
        codes: "Exit codes: 0 measured, also where nothing gets through and the reason was found on the path; 1 nothing was measured, the server refused or went away, or Ctrl-C; 2 wrong usage; 4 the key file cannot \
                be read.",
    },
    Page {
        command: "serve",
        text: "Many at once, over one port (TCP and UDP), without root. Clients ask for traffic within limits, never for a \
               program.\n\nWho may use it has to be said: holders of a key (--key-file), anyone (--open), or only this machine \
               (--bind 127.0.0.1). iperf3 clients have no key of weir's: they are answered with --open or on a loopback address \
               only.",
        examples: &[
            "weir serve --bind 127.0.0.1",
            "weir serve --key-file /etc/weir/key",
            "weir serve --open --port 5201 --max-rate 1G --max-time 1m",
        ],
        codes: "Exit codes: 0 ended by Ctrl-C; 1 the port failed; 2 wrong usage; 4 the port is taken, or not this user's.",
    },
    Page {
        command: "mtu",
        text: "Says whether ICMP tells it, which UDP payload is safe (-l 1472 for an MTU of 1500), which MSS to clamp to, and then \
               everything that was tried.\n\nWith `weir serve` on the target each direction is measured by itself, and single \
               fragments are told apart where the server may see them (CAP_NET_RAW). Without it pings and the refusals of a closed \
               port have to do. A few dozens of small packets, no load, and no root.",
        examples: &["weir mtu 192.0.2.7", "weir mtu gateway.example -4 --time 30s --fail-on-finding"],
        codes: "Exit codes: 0 done, whatever was found; 1 nobody answers, or the host is unreachable; 2 wrong usage; 3 something was \
                found, and --fail-on-finding was given.",
    },
    Page {
        command: "conntrack",
        text: "For one network namespace: how full it is, by protocol, state, address and port, SNAT ports against what NAT may \
               give, and what it costs in memory, now and at another limit.\n\nReads only. The entries need root; without it the \
               rest is shown.",
        examples: &[
            "weir conntrack",
            "weir conntrack --max 1048576",
            "weir conntrack --protocol tcp --state time-wait --destination 198.51.100.0/24",
            "weir conntrack --netns 4711 --watch 5",
        ],
        codes: "Exit codes: 0 done; 2 wrong usage; 4 there is no connection tracking here, or --netns needs root.",
    },
    Page {
        command: "doctor",
        text: "Says what loses or delays packets, how much of the loss that explains, what was seen, what it is not, and the \
               commands that help. It needs no filter and no guess beforehand.\n\nReads only: no rule, no setting, no kernel module \
               is changed. Without root it says what it cannot see, and does the rest.",
        examples: &[
            "weir doctor",
            "weir doctor --for 30 --own --fail-on warning",
            "weir doctor --command 'ab -n 20000 -c 500 http://198.18.0.1/'",
            "weir doctor --json | weir tune plan --from -",
            "weir doctor --every 1m --json",
        ],
        codes: "Exit codes: 0 done, whatever was found; 1 it could not look; 2 wrong usage; 3 a finding of --fail-on's severity or \
                above; 4 something is missing here.",
    },
    Page {
        command: "doctor explain",
        text: "The signs that must, should and must not be seen, the causes that look alike, and the commands that help with \
               their risk. Looks at nothing on this host.",
        examples: &["weir doctor explain", "weir doctor explain conntrack-full"],
        codes: "Exit codes: 0 done; 2 no cause has that id, and the nearest one is named.",
    },
    Page {
        command: "doctor selftest",
        text: "Each case is a lab with that fault and traffic through it; then the doctor looks, without being told. Shown is what \
               it found first. Needs root. A case takes some seconds, all of them many minutes; --case picks some.",
        examples: &[
            "weir doctor selftest --list",
            "weir doctor selftest --case conntrack --repeat 3",
            "weir doctor selftest --json > matrix.json",
        ],
        codes: "Exit codes: 0 at least 95 % of the causes were found first, 80 % of the pairs were found, and no healthy load had a \
                warning; 3 not so; 4 something is missing here, such as root.",
    },
    Page {
        command: "tune",
        text: "A plan with reasons, price and risk; applied on trial and taken back unless confirmed; proved by \
               measurement.\n\nplan and status change nothing. apply needs root, and leaves a guard process behind that takes \
               everything back unless `weir tune confirm` comes in time, or earlier when things get worse.",
        examples: &[
            "weir tune plan",
            "weir tune apply --profile nat-gateway --confirm-within 5m",
            "weir tune confirm",
        ],
        codes: "",
    },
    Page {
        command: "tune plan",
        text: "Values now and proposed, who asks for them, memory and risk, and how each is taken back. Without root it is the same, \
               but for prices that only root can read.",
        examples: &[
            "weir tune plan",
            "weir tune plan --profile throughput --rtt 40 --memory 256M",
            "weir tune plan --profile published-ports",
            "weir doctor --json | weir tune plan --from -",
        ],
        codes: "",
    },
    Page {
        command: "tune apply",
        text: "The values before are on disk before the first change. A guard process takes everything back unless `weir tune \
               confirm` comes in time; earlier when a counter of what was changed, or the number of --watch, gets worse; and also \
               when weir is killed. Needs root.",
        examples: &[
            "weir tune apply --confirm-within 5m",
            "weir tune apply --from findings.json",
            "weir tune apply --set net.core.somaxconn=8192 --no-watch",
        ],
        codes: "Exit codes: 0 applied, or nothing to change; 1 it could not be made, and what was made is taken back; 2 wrong usage, \
                or a value out of bounds; 4 it needs root, the machine's own network namespace, or for published ports Linux 6.6.",
    },
    Page {
        command: "tune confirm",
        text: "Ends the trial of `weir tune apply`: the guard goes, and the settings are written to /etc/sysctl.d/90-weir.conf. \
               Saying it twice does no harm. Needs root.",
        examples: &["weir tune confirm"],
        codes: "Exit codes: 0 kept; 1 too late: it was taken back; 4 it needs root.",
    },
    Page {
        command: "tune rollback",
        text: "Values and files of the last set, in reverse order, each only if it is still what weir wrote; works after a reboot, \
               too. Needs root.",
        examples: &["weir tune rollback"],
        codes: "Exit codes: 0 all is as before; 1 something could not be put back, or is somebody else's by now; 4 it needs root.",
    },
    Page {
        command: "tune status",
        text: "The last set of changes, who guards it and for how long, and whether each value is still what weir made it.",
        examples: &["weir tune status", "weir tune status --json"],
        codes: "",
    },
    Page {
        command: "tune prove",
        text: "Each round has a window without the change and one with it, in random order, with the same load. The difference \
               within rounds is told with its 95 % interval, from six rounds on. Everything is put back in the end, also after \
               Ctrl-C and kill -9. Needs root.",
        examples: &[
            "weir tune prove --set net.core.somaxconn=8192 --command 'sh load.sh'",
            "weir tune prove --command ./load.sh --counter conntrack-drops --require-better",
        ],
        codes: "Exit codes: 0 measured; 1 it could not be changed, measured or put back; 2 wrong usage; 3 --require-better, and it \
                is not shown to be better; 4 it needs root.",
    },
    Page {
        command: "allow",
        text: "Lists of countries from the five regional registries, and lists of prefixes of your own: for gateways that only \
               some may pass. update, build, check and diff need no root and change nothing but files; apply, confirm, rollback, \
               remove and restore need root and change what comes into this host.",
        examples: &[
            "weir allow update --country JP",
            "weir allow check 192.0.2.7 --country JP",
            "weir allow apply --country JP --interface eth0",
            "weir allow confirm",
        ],
        codes: "",
    },
    Page {
        command: "allow update",
        text: "Asks the five regional registries over HTTPS whether their delegation files changed, compares what comes with the \
               published checksum and with what it says of itself, and puts it into the cache only if it is whole, of that \
               registry, and neither older nor by over 20 % smaller than the file that is there. Where anything is wrong, the old \
               file stays. Needs no root.",
        examples: &[
            "weir allow update",
            "weir allow update --country JP --max-age 12h",
            "weir allow update --offline --json",
        ],
        codes: "",
    },
    Page {
        command: "allow build",
        text: "Merges the lists, takes out what --subtract names, and writes the fewest prefixes that hold the same addresses. Loads \
               nothing: that is for `nft -f`, `ipset restore`, or `weir allow apply`. Needs no root.",
        examples: &[
            "weir allow build --country JP --output jp.nft",
            "weir allow build office.txt --format ipset --must-have 192.0.2.7",
        ],
        codes: "Exit codes: 0 done; 2 wrong usage, or a line that cannot be read; 3 a guard refused, and nothing was written.",
    },
    Page {
        command: "allow check",
        text: "Names the most specific line that holds the address, and its file. Needs no root.",
        examples: &["weir allow check 192.0.2.7 office.txt", "weir allow check 2001:db8::1 --country JP"],
        codes: "Exit codes: 0 it is in the lists; 2 wrong usage, or a line that cannot be read; 3 it is not.",
    },
    Page {
        command: "allow diff",
        text: "Counted in addresses and shown as prefixes, whatever the form of the two files. Needs no root.",
        examples: &["weir allow diff old.txt new.txt", "weir allow diff old.txt --country JP --json"],
        codes: "Exit codes: 0 done, also where they are the same; 2 wrong usage, or a line that cannot be read.",
    },
    Page {
        command: "allow apply",
        text: "A guard process takes it back unless `weir allow confirm` comes in time: who shuts himself out waits a minute. Needs \
               root.",
        examples: &[
            "weir allow apply office.txt --interface eth0",
            "weir allow apply --country JP --interface eth0 --port tcp/22 --backend nft",
            "weir allow apply office.txt --interface eth0 --confirm-within 5m",
        ],
        codes: "",
    },
    Page {
        command: "allow confirm",
        text: "Ends the trial of `weir allow apply`: the guard goes, and `weir allow restore` loads the same after a reboot. Needs \
               root.",
        examples: &["weir allow confirm"],
        codes: "Exit codes: 0 kept; 1 too late: it was taken back; 4 it needs root.",
    },
    Page {
        command: "allow rollback",
        text: "What was in effect before the last apply is in effect again. Needs root.",
        examples: &["weir allow rollback"],
        codes: "Exit codes: 0 taken back; 1 nothing was applied, or something else is loaded by now and was left alone; 4 it needs root.",
    },
    Page {
        command: "allow status",
        text: "Which lists are loaded and where, whether they are confirmed, how many packets each let pass or threw away, and who \
               was refused most. With --follow each refused or logged packet is a line: when, from where, by which list, what was \
               done, to which service and where to. A core tells of 1,000 packets a second at most; what is more is counted. Needs \
               root.",
        examples: &["weir allow status", "weir allow status --top 50 --json", "weir allow status --follow"],
        codes: "Exit codes: 0 done; 1 --follow: nothing is loaded, or somebody else follows; 4 it needs root, or --follow bpf.",
    },
    Page {
        command: "allow remove",
        text: "Out of the kernel and off the disk, of every back end, also when parts are missing. Needs root.",
        examples: &["weir allow remove"],
        codes: "Exit codes: 0 nothing of it is left; 1 something is; 4 it needs root.",
    },
    Page {
        command: "allow restore",
        text: "Meant for a unit that runs at boot, which --unit prints. Needs root.",
        examples: &[
            "weir allow restore",
            "weir allow restore --unit > /etc/systemd/system/weir-allow.service",
        ],
        codes: "Exit codes: 0 loaded, or nothing was confirmed; 1 it failed; 4 it needs root, or something is missing here.",
    },
];
