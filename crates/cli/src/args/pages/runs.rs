//! Pages of what is done with scenarios and runs, and of weir itself.

use super::Page;

/// Where bounds and missing parts have exit codes of their own.
const BENCH_CODES: &str = "Exit codes: 0 done, and every bound was met; 1 the run failed or was stopped, and its record holds what was \
                           measured; 2 wrong usage or a mistake in the scenario, and nothing was started; 3 a --require or `require` \
                           was not met; 4 a program, a kernel feature or a privilege is missing here, and the message names it.";

pub(super) const PAGES: &[Page] = &[
    Page {
        command: "",
        text: "Builds several ways to make the hop in a lab on this machine (or takes real hosts by ssh, docker or kubectl), loads \
               and measures them in randomised rounds, and says what each one costs, with intervals. It also says what loses or \
               delays packets on this host (doctor), proposes and proves settings (tune), measures towards another host (probe, \
               serve, mtu), and keeps lists of countries and prefixes (allow).\n\nData goes to standard output, talk to standard \
               error. Most commands have --json. Nothing is changed on this host but by `tune apply`, `tune prove`, `allow apply` \
               and scenarios with `host-sysctls`, and what they change can be taken back.",
        examples: &[
            "weir bench --preset quick             what a NAT instance costs, in minutes",
            "weir doctor                           what loses packets here, in 10 seconds",
            "weir probe 192.0.2.7                  bit rate to a host with `weir serve`",
            "weir help bench                       more about one command",
        ],
        codes: "Exit codes: 0 done; 1 the run failed; 2 wrong usage or bad input; 3 a threshold was not met; 4 something weir needs \
                is missing here (the message names it).",
    },
    Page {
        command: "bench",
        text: "Builds the scenario's hosts (network namespaces on this machine, or agents on real hosts), proves that each variant \
               is in effect, measures every workload on every variant in randomised rounds, and says what each variant costs \
               against the baseline, with 95 % intervals. Traffic goes only between the hosts of the scenario.\n\nThe record is \
               written after every trial; Ctrl-C ends the run and keeps it. Without root the lab is built in a user namespace, \
               where the kernel allows one; some variants and workloads need root (docs/kernel.md).",
        examples: &[
            "weir bench",
            "weir bench nat-instance --preset quick",
            "weir bench my.toml --rounds 6..20 --budget 10m --output runs/today",
            "weir bench nat-rfc --preset quick --set plan.max-rounds=8 --dry-run",
            "weir bench my.toml --require 'nft-masquerade.tcp-egress >= 0.9 x routed'",
        ],
        codes: BENCH_CODES,
    },
    Page {
        command: "scenario",
        text: "A scenario is a TOML file: the hosts, the variants to compare, the workloads, and the plan. `weir bench` takes the \
               name of a built-in one or a file. Needs no privilege.",
        examples: &[
            "weir scenario list",
            "weir scenario show nat-instance > my.toml",
            "weir scenario check my.toml",
        ],
        codes: "",
    },
    Page {
        command: "scenario list",
        text: "With their question, the number of variants and workloads, the longest time they take, and their presets for \
               `weir bench --preset`.",
        examples: &["weir scenario list", "weir scenario list --json"],
        codes: "",
    },
    Page {
        command: "scenario show",
        text: "Comments included. A copy of it in a file is the way to a scenario of one's own; a block in it shows how the three \
               hosts of the lab are replaced by real ones.",
        examples: &["weir scenario show nat-instance > my.toml"],
        codes: "",
    },
    Page {
        command: "scenario check",
        text: "Reads all of it as `weir bench` does, and says how long it would take. A mistake is named with its line and the \
               nearest valid value. Starts nothing and needs no privilege.",
        examples: &["weir scenario check my.toml"],
        codes: "Exit codes: 0 it is valid; 2 it is not, or it cannot be read.",
    },
    Page {
        command: "report",
        text: "Results are computed anew from the stored trials. Without a format it is the table that `weir bench` prints at its \
               end.",
        examples: &[
            "weir report runs/nat-instance-20261121-101500-a1b2",
            "weir report runs/today --html --output report.html",
            "weir report runs/today --csv > trials.csv",
            "weir report runs/today --require 'nft-masquerade.tcp-egress >= 0.9 x routed'",
        ],
        codes: "Exit codes: 0 done; 1 it could not be written; 2 wrong usage, or no run record; 3 a --require was not met.",
    },
    Page {
        command: "compare",
        text: "Each result of the later run against the same one of the earlier run, with intervals. Runs on two machines, or of \
               two scenarios, are not measurements of one thing: what differs between them is said.",
        examples: &["weir compare runs/monday runs/today", "weir compare runs/monday runs/today --markdown"],
        codes: "Exit codes: 0 done, whatever changed; 2 wrong usage, no run record, or runs of two scenarios.",
    },
    Page {
        command: "cost",
        text: "From prices and traffic, with the traffic at which two options cost the same. Built-in prices are examples with \
               source and date: check them against your provider's price list, and put your own into a file (--prices). GB are \
               10^9 bytes.",
        examples: &[
            "weir cost --gb-in 1000 --gb-out 50",
            "weir cost --list",
            "weir cost --gb-in 5000 --prices mine.toml --run runs/today --markdown",
        ],
        codes: "",
    },
    Page {
        command: "lab",
        text: "A lab is what `weir bench` builds on this machine: namespaces without names, gone when their run ends. These \
               commands find them while they are there. Labs of root are seen by root.",
        examples: &["weir lab list", "weir lab clean"],
        codes: "",
    },
    Page {
        command: "lab list",
        text: "With the run's identifier, the process that conducts it, and its hosts as VARIANT/ROLE.",
        examples: &["weir lab list", "weir lab list --json"],
        codes: "",
    },
    Page {
        command: "lab clean",
        text: "The last resort after `kill -9`: stops processes that hold a lab whose conductor is dead, and undoes what is left \
               of changes to this host. A running conductor and its lab are left alone, unless --force.",
        examples: &["weir lab clean"],
        codes: "Exit codes: 0 all is clean; 1 something could not be undone.",
    },
    Page {
        command: "lab exec",
        text: "In the network namespace of that host, to look at its rules, its routes or its packets while the run lasts. Takes \
               the place of weir, so the exit code is the command's own. Needs the rights of whoever started the run.",
        examples: &[
            "weir lab exec nat-instance-20261121-101500-a1b2 routed/gateway ip route",
            "weir lab exec RUN nft-masquerade/gateway nft list ruleset",
        ],
        codes: "",
    },
    Page {
        command: "schema",
        text: "Of what `weir bench --json` prints and keeps: every field with its unit. docs/run.schema.json is the same.",
        examples: &["weir schema > run.schema.json"],
        codes: "",
    },
    Page {
        command: "completions",
        text: "To be put where the shell looks for such scripts.",
        examples: &[
            "weir completions bash > /etc/bash_completion.d/weir",
            "weir completions zsh > ~/.zfunc/_weir",
            "weir completions fish > ~/.config/fish/completions/weir.fish",
        ],
        codes: "",
    },
    Page {
        command: "man",
        text: "All commands on one page on standard output, or with a folder one page for each: weir.1, weir-bench.1, \
               weir-tune-plan.1 and so on.",
        examples: &["weir man | man -l -", "weir man /usr/local/share/man/man1"],
        codes: "",
    },
];
