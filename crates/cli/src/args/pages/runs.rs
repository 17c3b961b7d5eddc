//! Pages of weir itself and of the commands about scenarios and runs.

use super::Page;

/// `weir bench` has exit codes of its own for bounds and missing parts.
const BENCH_CODES: &[(u8, &str)] = &[
    (0, "done, and every bound was met"),
    (1, "the run failed or was stopped, and its record holds the trials until then"),
    (2, "wrong usage or a mistake in the scenario, and nothing was started"),
    (3, "a --require or `require` was not met"),
    (4, "a program, a kernel feature or a privilege is missing here, and the message names it"),
];

pub(super) const PAGES: &[Page] = &[
    Page {
        command: "",
        text: "weir builds several ways to make a network hop in a lab on this machine (or on real hosts by ssh, \
               docker or kubectl), loads and measures them in randomised rounds, and prints the cost of each, with \
               intervals (bench). It names the causes of lost or delayed packets on this host (doctor), changes \
               settings on trial and proves the gain (tune), filters by country and prefix lists (allow), forwards \
               published container ports by BPF (publish), makes the kernel's NAT faster (fastpath), and measures a \
               path to another host (probe, serve, mtu).\n\nData goes to standard output, progress and errors to \
               standard error. Most commands have --json.\n\nThese commands change this host: `tune apply`, `allow \
               apply`, `publish apply` and `fastpath apply`, on trial, with their confirm, rollback, remove and \
               restore; `tune prove` and `doctor selftest --machine`, which restore all values at their end; `lab \
               clean`, which undoes leftovers; and scenarios with `host-sysctls` or with this machine as a real \
               host. Every other command leaves it as it is.",
        examples: &[
            "weir bench --preset quick             measure the cost of a NAT instance",
            "weir doctor                           find causes of packet loss in 10 s",
            "weir probe 192.0.2.7                  measure the bit rate to a `weir serve`",
            "weir help bench                       explain one command",
        ],
        codes: &[
            (1, "the run failed"),
            (2, "wrong usage or bad input"),
            (3, "a threshold was not met"),
            (4, "a privilege, a kernel feature or a program is missing here, and the message names it"),
        ],
    },
    Page {
        command: "bench",
        text: "Builds the scenario's hosts (network namespaces on this machine, or agents on real hosts), proves \
               that each variant is in effect, measures every workload on every variant in randomised rounds, and \
               prints the cost of each variant against the baseline, with 95 % intervals. Traffic stays between the \
               hosts of the scenario.\n\nweir writes the record after every trial; Ctrl-C ends the run and keeps \
               it. Without root it builds the lab in a user namespace, if the kernel allows one; some variants and \
               workloads need root (docs/explanation/kernel.md).\n\n`weir bench nat-behaviour` measures what gateways do, \
               not how fast they are: it is `weir nat lab --all`, with a folder for result, page and packets. It \
               takes --preset, --variant, --output, --json and --dry-run.",
        examples: &[
            "weir bench",
            "weir bench nat-instance --preset quick",
            "weir bench nat-behaviour --preset standard",
            "weir bench my.toml --rounds 6..20 --budget 10m --output runs/today",
            "weir bench nat-rfc --preset quick --set plan.max-rounds=8 --dry-run",
            "weir bench my.toml --require 'nft-masquerade.tcp-egress >= 0.9 x routed'",
        ],
        codes: BENCH_CODES,
    },
    Page {
        command: "scenario",
        text: "A scenario is a TOML file with the hosts, the variants to compare, the workloads and the plan. `weir \
               bench` takes the name of a built-in scenario or a file. Needs no privilege.",
        examples: &[
            "weir scenario list",
            "weir scenario show nat-instance > my.toml",
            "weir scenario check my.toml",
        ],
        codes: &[],
    },
    Page {
        command: "scenario list",
        text: "Prints each scenario's question, its number of variants and workloads, its longest duration, and its \
               presets for `weir bench --preset`.",
        examples: &["weir scenario list", "weir scenario list --json"],
        codes: &[],
    },
    Page {
        command: "scenario show",
        text: "Prints the scenario with its comments. Save it to a file to write your own; a block in it shows how \
               to replace the lab's three hosts by real ones.",
        examples: &["weir scenario show nat-instance > my.toml"],
        codes: &[],
    },
    Page {
        command: "scenario check",
        text: "Reads the scenario as `weir bench` does, and prints its expected duration. Reports a mistake with \
               its line and the nearest valid value. Starts nothing and needs no privilege.",
        examples: &["weir scenario check my.toml"],
        codes: &[(0, "valid"), (2, "not valid, or unreadable")],
    },
    Page {
        command: "report",
        text: "Computes the results again from the stored trials. Without a format it prints the table that `weir \
               bench` prints at its end.\n\nA recording of `weir flows --save` has a text, and a page with `--html`: rates, losses \
               and round trips over time, and the networks and flows with the most bytes.",
        examples: &[
            "weir report runs/nat-instance-20261121-101500-a1b2",
            "weir report runs/today --html --output report.html",
            "weir report runs/today --csv > trials.csv",
            "weir report evening.jsonl --html --output evening.html",
            "weir report runs/today --require 'nft-masquerade.tcp-egress >= 0.9 x routed'",
        ],
        codes: &[
            (1, "the output could not be written"),
            (2, "wrong usage, or neither a run record nor a recording of flows"),
            (3, "a --require was not met"),
        ],
    },
    Page {
        command: "compare",
        text: "Compares each result of the later run with the same result of the earlier run, with intervals. Also \
               lists the differences between the two environments: runs on two machines do not measure the same \
               thing. Two results of `weir nat lab --json` or `weir nat check --json` are compared as by `weir nat \
               compare`: it lists the verdicts that differ.",
        examples: &["weir compare runs/monday runs/today", "weir compare runs/monday runs/today --markdown"],
        codes: &[
            (0, "done, with or without changes"),
            (2, "wrong usage, no run record or NAT result, or runs of two scenarios"),
        ],
    },
    Page {
        command: "cost",
        text: "Computes bills from prices and traffic, and the traffic at which two options cost the same. Built-in \
               prices are examples with source and date: check them against your provider's price list, and put \
               your own into a file (--prices). GB are 10^9 bytes.",
        examples: &[
            "weir cost --gb-in 1000 --gb-out 50",
            "weir cost --list",
            "weir cost --gb-in 5000 --prices mine.toml --run runs/today --markdown",
        ],
        codes: &[],
    },
    Page {
        command: "lab",
        text: "A lab is the set of namespaces that `weir bench` builds on this machine. They have no names and end \
               with their run. These commands find the labs of running and killed runs. Root sees the labs of root.",
        examples: &["weir lab list", "weir lab clean"],
        codes: &[],
    },
    Page {
        command: "lab list",
        text: "Prints each run's identifier, its process, and its hosts as VARIANT/ROLE.",
        examples: &["weir lab list", "weir lab list --json"],
        codes: &[],
    },
    Page {
        command: "lab clean",
        text: "The last resort after `kill -9`: stops processes that hold the lab of a killed run, and undoes its \
               leftover changes to this host. Leaves running labs alone, unless --force.",
        examples: &["weir lab clean"],
        codes: &[(0, "all is clean"), (1, "a change could not be undone")],
    },
    Page {
        command: "lab exec",
        text: "Runs in the network namespace of that host, to show its rules, routes or packets while the run \
               lasts. Replaces the weir process, so the exit code is the command's own. Needs the privilege of the \
               run's user.",
        examples: &[
            "weir lab exec nat-instance-20261121-101500-a1b2 routed/gateway ip route",
            "weir lab exec RUN nft-masquerade/gateway nft list ruleset",
        ],
        codes: &[(0, "and any other code: that of COMMAND"), (1, "COMMAND cannot be started")],
    },
    Page {
        command: "schema",
        text: "Every document of --json begins with its kind, such as \"schema\": \"weir.doctor/1\". Without KIND this \
               lists the kinds and the commands that print them; with KIND it prints the JSON Schema with every key. \
               The record of a run (run.json) has a number instead: its kind is run.",
        examples: &["weir schema", "weir schema doctor", "weir schema run > run.schema.json"],
        codes: &[],
    },
    Page {
        command: "completions",
        text: "Save the script to the folder of your shell's completions.",
        examples: &[
            "weir completions bash > /etc/bash_completion.d/weir",
            "weir completions zsh > ~/.zfunc/_weir",
            "weir completions fish > ~/.config/fish/completions/weir.fish",
        ],
        codes: &[],
    },
    Page {
        command: "man",
        text: "Prints all commands on one page, or with DIR writes one page per command: weir.1, weir-bench.1, \
               weir-tune-plan.1 and so on.",
        examples: &["weir man | man -l -", "weir man /usr/local/share/man/man1"],
        codes: &[],
    },
];
