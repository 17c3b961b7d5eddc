//! Every lookup of an address finds the same: nft, ipset, the BPF filter at both of its hooks, and a plain search of the list.
//!
//! All four are asked by the same packets, each of which comes from the address in question: first the BPF filter in the driver
//! (XDP), then another one at the interface (tc), then nft's set at the ingress hook, then ipset's by iptables before routing, all
//! of which come before the stack throws away what cannot be a source. They only count. First every address is sent that the plain
//! search finds, then every one that it does not; a lookup that counts other than all of the ones and none of the others
//! disagrees, and the address is sought by halving.

mod source;
#[path = "../world/mod.rs"]
mod world;

use std::collections::BTreeSet;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use source::Source;
use weir_filter::{Action, Class, Compiled, Direction, Filter, XdpMode};
use weir_gateway::Family;
use weir_netlink::Rtnetlink;
use weir_prefix::{List, Prefix, Ranges, Selection, export, read};
use weir_sys::frames::FrameSender;
use weir_sys::privilege::test_needs_root;
use weir_sys::process::which;
use world::{GatewayWorld, in_ns};

/// Addresses drawn at random for each list of each family, beside all of its boundaries. `scripts/soak-agree` draws a million, which
/// take 83 s of a core for IPv4 and 102 s for IPv6 in a debug build, more than half of it in the kernel.
const DRAWN: usize = 50_000;
/// Another number of them.
const DRAWN_VARIABLE: &str = "WEIR_AGREE_DRAWN";

fn drawn() -> usize {
    std::env::var(DRAWN_VARIABLE).map_or(DRAWN, |number| number.parse().unwrap())
}

/// Packets come to rest within this time unless something is broken.
const PATIENCE: Duration = Duration::from_secs(60);

/// ENOBUFS (errno.h), with which a packet socket says that the device did not take a packet.
const NO_ROOM: i32 = 105;

const SAMPLE: &str = include_str!("../data/delegated-sample");

fn lacks_programs() -> bool {
    let missing = ["nft", "ipset", "iptables-nft"].into_iter().find(|p| which(p).is_none());
    if let Some(program) = missing {
        println!("SKIP: needs {program} (apt-get install nftables ipset iptables)");
    }
    missing.is_some()
}

/// The counts of addresses: those that were found, and all that were looked up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Counted {
    found: u64,
    all: u64,
}

impl std::ops::Sub for Counted {
    type Output = Counted;

    fn sub(self, before: Counted) -> Counted {
        Counted { found: self.found - before.found, all: self.all - before.all }
    }
}

/// The four, behind one interface.
struct Bench {
    world: GatewayWorld,
    /// At XDP and at tc.
    filters: [Filter; 2],
    sender: FrameSender,
    packet: Vec<u8>,
}

/// Whichever it is, it passes.
const ACTIONS: [Action; 2] = [Action::Log, Action::Allow];

const WHO: [&str; 4] = ["BPF at XDP", "BPF", "nft", "ipset"];

impl Bench {
    /// With empty lists.
    fn new<A: Source>() -> Bench {
        let world = GatewayWorld::routed(A::FAMILY);
        let ns = &world.gateway;
        let class = Class::default();
        load(&world, "nft", &["-f", "-"], &export::nft("agree", &class.v4, &class.v6));
        load(&world, "ipset", &["restore"], &export::ipset("agree", &class.v4, &class.v6));
        // Only our packets are counted: whatever else the hosts say to each other is of other protocols.
        let (ip, ours, program, set) = match A::FAMILY {
            Family::Ipv4 => ("ip", "meta protocol ip ip protocol 253", "iptables-nft", "v4"),
            Family::Ipv6 => ("ip6", "meta protocol ip6 ip6 nexthdr 253", "ip6tables-nft", "v6"),
        };
        in_ns(
            ns,
            &format!(
                "set -e
                 nft 'add chain inet agree c {{ type filter hook ingress device in0 priority 0; }};
                      add rule inet agree c {ours} {ip} saddr @{set} counter comment found;
                      add rule inet agree c {ours} counter comment every'
                 {program} -t raw -A PREROUTING -i in0 -p 253 -m set --match-set agree{} src
                 {program} -t raw -A PREROUTING -i in0 -p 253 -j DROP",
                A::END
            ),
        );
        let (index, mac) = ns
            .run(|| {
                let interface = Rtnetlink::open().unwrap().interface("in0").unwrap();
                (interface.index, interface.mac.unwrap())
            })
            .unwrap();
        let compiled = Compiled::of(std::slice::from_ref(&class)).unwrap();
        // It counts by class, and lets everything on to the others.
        let mut filters = [(); 2].map(|()| Filter::load(&compiled, &ACTIONS, 0).unwrap());
        ns.run(|| filters[0].attach_xdp(index, XdpMode::Native)).unwrap().unwrap();
        ns.run(|| filters[1].attach(index, Direction::Ingress)).unwrap().unwrap();
        let sender = world.initiator.run(|| {
            let index = Rtnetlink::open().unwrap().interface("i0").unwrap().index;
            FrameSender::open(index).unwrap()
        });
        let packet = A::packet(mac, world.place.responder);
        Bench { sender: sender.unwrap(), filters, packet, world }
    }

    /// Gives all four another list, as an update does.
    fn replace(&mut self, class: &Class) {
        load(&self.world, "nft", &["-f", "-"], &export::nft("agree", &class.v4, &class.v6));
        load(&self.world, "ipset", &["restore"], &export::ipset("agree", &class.v4, &class.v6));
        let tables = Compiled::of(std::slice::from_ref(class)).unwrap();
        self.filters.iter_mut().for_each(|filter| filter.swap(&tables, &ACTIONS).unwrap());
    }

    /// Asks ipset by its own program about addresses whose packets never reach iptables.
    fn ipset_says_of_no_sources<A: Source>(&self, list: &str, ranges: &Ranges<A>, some: &[A], others: &[A]) {
        const MOST: usize = 500;
        let of = |all: &[A]| all.iter().copied().filter(|a| a.is_no_source()).take(MOST).collect::<Vec<A>>();
        let asked = [of(some), of(others)].concat();
        if asked.is_empty() {
            return;
        }
        let text: String = asked.iter().map(|a| format!("test agree{} {}\n", A::END, a.text())).collect();
        let said = load(&self.world, "ipset", &["-"], &text);
        for source in asked {
            let (is, is_not) =
                (format!("{} is in set", source.text()), format!("{} is NOT in set", source.text()));
            let wanted = if ranges.contains(source) { &is } else { &is_not };
            assert!(said.contains(wanted.as_str()), "list {list}: ipset on {}:\n{said}", source.text());
        }
    }

    /// The counts of each of them so far.
    fn counted<A: Source>(&self) -> [Counted; 4] {
        let by_bpf = |filter: &Filter| {
            let classes = filter.status().unwrap().classes;
            let of = |class: u32| classes.iter().filter(|c| c.1 == class).map(|c| c.3.packets).sum::<u64>();
            Counted { found: of(1), all: of(0) + of(1) }
        };
        let [at_xdp, at_tc] = [&self.filters[0], &self.filters[1]].map(by_bpf);
        let listing = in_ns(&self.world.gateway, "nft -t list ruleset inet");
        let nft = |comment: &str| {
            let line = listing.lines().find(|l| l.ends_with(&format!("comment \"{comment}\""))).unwrap();
            let mut words = line.split_whitespace().skip_while(|w| *w != "packets");
            words.nth(1).unwrap().parse::<u64>().unwrap()
        };
        let program = if A::FAMILY == Family::Ipv4 { "iptables-nft" } else { "ip6tables-nft" };
        let saved = in_ns(&self.world.gateway, &format!("{program}-save -c -t raw"));
        let ipset = |has: &str| {
            let line = saved.lines().find(|l| l.contains(has)).unwrap();
            line[1..line.find(':').unwrap()].parse::<u64>().unwrap()
        };
        [
            at_xdp,
            at_tc,
            Counted { found: nft("found"), all: nft("every") },
            Counted { found: ipset("--match-set"), all: ipset("-j DROP") },
        ]
    }

    /// Sends the packet, again and again while the link has no room for it: a veth pair holds 256 until the kernel's own thread
    /// takes them, where the machine has other work. A packet that had come through would be counted twice, which would show.
    fn put_on_link(&mut self) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            match self.sender.send(&self.packet) {
                Err(e) if e.raw_os_error() == Some(NO_ROOM) && Instant::now() < deadline => {
                    std::thread::yield_now();
                }
                sent => return sent.unwrap(),
            }
        }
    }

    /// Sends a packet from each, and returns what each counted of them, once all have come to rest.
    fn send<A: Source>(&mut self, sources: &[A]) -> [Counted; 4] {
        let before = self.counted::<A>();
        for source in sources {
            source.put(&mut self.packet);
            self.put_on_link();
        }
        let looked_up = sources.iter().filter(|a| !a.is_links_own()).count() as u64;
        let expected = [
            looked_up,
            looked_up,
            sources.len() as u64,
            sources.iter().filter(|a| !a.is_no_source()).count() as u64,
        ];
        let deadline = Instant::now() + PATIENCE;
        loop {
            let now = self.counted::<A>();
            let counted: [Counted; 4] = std::array::from_fn(|i| now[i] - before[i]);
            let at_rest = counted.iter().zip(expected).all(|(c, all)| c.all >= all);
            if at_rest || Instant::now() > deadline {
                for (i, who) in WHO.iter().enumerate() {
                    assert_eq!(
                        counted[i].all,
                        expected[i],
                        "{who} was asked about {} addresses",
                        sources.len()
                    );
                }
                return counted;
            }
        }
    }

    /// All of them are found by each, or none of them.
    fn all_say<A: Source>(&mut self, list: &str, sources: &[A], listed: bool) {
        let counted = self.send(sources);
        for (i, who) in WHO.iter().enumerate() {
            let right = if listed { counted[i].all } else { 0 };
            if counted[i].found == right {
                continue;
            }
            if let [source] = sources {
                panic!(
                    "list {list}: {who} says otherwise than the list of {}: listed = {listed}",
                    source.text()
                );
            }
            let (one, other) = sources.split_at(sources.len() / 2);
            self.all_say(list, one, listed);
            self.all_say(list, other, listed);
            panic!(
                "list {list}: {who} found {} of {}, and of each half all that it should",
                counted[i].found, counted[i].all
            );
        }
    }
}

/// Runs a program of the gateway with this on its standard input.
fn load(world: &GatewayWorld, program: &str, args: &[&str], text: &str) -> String {
    let run = || {
        let mut child = Command::new(program)
            .args(args)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = child.stdin.take().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(move || input.write_all(text.as_bytes()).unwrap());
            child.wait_with_output().unwrap()
        })
    };
    let output = world.gateway.run(run).unwrap();
    let said = [output.stdout, output.stderr].concat();
    let said = String::from_utf8(said).unwrap();
    assert!(output.status.success(), "{program}: {said}");
    said
}

/// First and last address of each range and of each prefix, and their neighbours.
fn edges<A: Source>(ranges: &Ranges<A>) -> BTreeSet<A> {
    let around = |a: A| [a.previous(), Some(a), a.next()];
    let of_ranges = ranges.as_slice().iter().flat_map(|(f, l)| [around(*f), around(*l)]);
    let of_prefixes = ranges.prefixes().flat_map(|p| [around(p.first), around(p.last())]);
    of_ranges.chain(of_prefixes).flatten().flatten().chain([A::FIRST, A::LAST]).collect()
}

/// Half of the addresses are drawn from everywhere, half from near the list: lists are small in a large space.
fn questions<A: Source>(ranges: &Ranges<A>, random: &mut ChaCha8Rng) -> Vec<A> {
    let mut all: Vec<A> = edges(ranges).into_iter().collect();
    let slice = ranges.as_slice();
    for n in 0..drawn() {
        let drawn = A::drawn(random);
        let near = slice.get(n / 2 % slice.len().max(1)).filter(|_| n % 2 == 0);
        all.push(near.map_or(drawn, |(first, last)| {
            let end = if random.random() { *first } else { *last };
            end.with_low(random.random_range(0..=A::BITS), drawn)
        }));
    }
    all
}

fn agree<A: Source>(bench: &mut Bench, name: &str, ranges: Ranges<A>) {
    let mut random = ChaCha8Rng::seed_from_u64(7);
    let begun = Instant::now();
    let class = A::class(ranges);
    bench.replace(&class);
    let ranges = A::ranges(&class);
    let (listed, unlisted): (Vec<A>, Vec<A>) =
        questions(ranges, &mut random).into_iter().partition(|a| ranges.contains(*a));
    bench.all_say(name, &listed, true);
    bench.all_say(name, &unlisted, false);
    bench.ipset_says_of_no_sources(name, ranges, &listed, &unlisted);
    let (ranges, listed, other) = (ranges.as_slice().len(), listed.len(), unlisted.len());
    println!("{name}: {ranges} ranges, {listed} listed and {other} other addresses, {:?}", begun.elapsed());
}

/// A list of one prefix.
fn prefix<A: Source>(address: A, length: u8) -> Ranges<A> {
    let first = address.block_start(A::BITS - length);
    let prefix = Prefix::new(first, length).unwrap();
    Ranges::new([(prefix.first, prefix.last())])
}

/// Prefixes of many lengths, drawn near to each other so that they touch and overlap, and both ends of the space.
fn drawn_list<A: Source>(seed: u64) -> Ranges<A> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut all = vec![(A::FIRST, A::FIRST), (A::LAST.block_start(3), A::LAST)];
    for _ in 0..300 {
        let region = A::drawn(&mut random);
        for _ in 0..10 {
            let bits = random.random_range(0..=A::BITS / 2);
            let first = region.with_low(bits + 4, A::drawn(&mut random)).block_start(bits);
            all.push((first, first.block_end(bits)));
            // The next one begins where this one ends.
            if let Some(next) = first.block_end(bits).next().filter(|_| random.random()) {
                all.push((next, next.with_low(random.random_range(0..=bits), A::LAST)));
            }
        }
    }
    Ranges::new(all)
}

/// Prefixes of all lengths from /8 on, each in a /8 of its own.
fn every_length<A: Source>() -> Ranges<A> {
    let mut random = ChaCha8Rng::seed_from_u64(4);
    let one = |length: u8| prefix(A::in_slash_8(length - 8, A::drawn(&mut random)), length);
    (8..=A::BITS).map(one).fold(Ranges::default(), |all, one| all.union(&one))
}

fn all_lists<A: Source>() {
    if test_needs_root() || lacks_programs() {
        return;
    }
    let mut bench = Bench::new::<A>();
    let mut list = List::default();
    read::read(&mut list, "the sample", SAMPLE.as_bytes(), &Selection::default()).unwrap();
    let sample = Class { v4: list.ranges_v4(), v6: list.ranges_v6() };
    agree(&mut bench, "the sample", A::ranges(&sample).clone());
    agree(&mut bench, "drawn, with both ends", drawn_list::<A>(1));
    agree(&mut bench, "drawn", drawn_list::<A>(2));
    agree::<A>(&mut bench, "none", Ranges::default());
    agree::<A>(&mut bench, "all", Ranges::all());
    // Short ones by themselves, at both ends of the space and between them.
    let mut random = ChaCha8Rng::seed_from_u64(3);
    for length in 1..8 {
        let ends = prefix(A::FIRST, length).union(&prefix(A::LAST, length.max(2)));
        agree(&mut bench, &format!("/{length} at the ends"), ends);
        agree(&mut bench, &format!("/{length}"), prefix(A::drawn(&mut random), length));
    }
    agree(&mut bench, "all lengths from /8 on", every_length::<A>());
}

#[test]
fn root_all_agree_on_ipv4() {
    all_lists::<u32>();
}

#[test]
fn root_all_agree_on_ipv6() {
    all_lists::<u128>();
}

/// The compared lookups can disagree: one that has another list is named with the address.
#[test]
fn root_who_disagrees_is_named() {
    if test_needs_root() || lacks_programs() {
        return;
    }
    let mut bench = Bench::new::<u32>();
    bench.replace(&u32::class(Ranges::new([(0xc000_0200, 0xc000_02ff)])));
    let but_7 = "192.0.2.0-192.0.2.6, 192.0.2.8-192.0.2.255";
    in_ns(
        &bench.world.gateway,
        &format!("nft 'flush set inet agree v4; add element inet agree v4 {{ {but_7} }}'"),
    );
    let listed: Vec<u32> = (0xc000_0200..=0xc000_02ff).collect();
    let outcome = catch_unwind(AssertUnwindSafe(|| bench.all_say("the test's", &listed, true)));
    let said = *outcome.unwrap_err().downcast::<String>().unwrap();
    assert_eq!(said, "list the test's: nft says otherwise than the list of 192.0.2.7: listed = true");
}
