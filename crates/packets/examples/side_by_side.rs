//! What weir's generator sends over a direct link, against what xdp-trafficgen (of xdp-tools) does: `cargo run --release
//! -p weir-packets --example side_by_side -- 20 [PROGRAM]` for twenty rounds of a second each, in alternating order. Needs root,
//! and clang for the far end.
//!
//! Both send UDP over IPv6, which is all that xdp-trafficgen knows, on the first core, out of the initiator's end of one link. Counted
//! is, in the same way for both, what the responder's interface takes in during a second in which the sender was already at work; an
//! XDP program that does nothing else throws it away. Frames of weir are 80 bytes long, its least over IPv6, and each is written
//! afresh; those of xdp-trafficgen are 64 bytes long, and it changes the destination port alone.
//!
//! There is no comparison through a gateway. The pages of live frames are used again as the gateway has left them, with its Ethernet
//! addresses, which xdp-trafficgen does not write again: after its first frames the gateway takes the others for somebody else's.
//! It sends them with a hop limit of 1, too.
//!
//! PROGRAM is `xdp-trafficgen` if not given. It loads tracing programs for tracepoints that not every kernel has, and then ends.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use weir_lab::{Family, Lab, LabOptions, Role, Site, SiteSpec, Topology};
use weir_packets::flow_order::Tuple;
use weir_packets::live::LiveSender;
use weir_packets::{Frame, Inject, Limit, Link, Offer, Order, Protocol, Sending, Stop, Tuples, Way};
use weir_stats::compare::compare_ratio;
use weir_sys::ProcRoot;
use weir_sys::netns::NetNs;
use weir_sys::sched::{allowed_cpus, pin_current_thread};

type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

const WINDOW: Duration = Duration::from_secs(1);
/// A sender has had this long since its first frame when the window begins.
const SETTLES: Duration = Duration::from_millis(200);
/// The longest that the first frame may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// The least over IPv6, check sequence included.
const FRAME_BYTES: u16 = 84;
/// Flows of weir; xdp-trafficgen has as many destination ports.
const FLOWS: u16 = 16;
const PORT: u16 = 7000;
/// Nobody looks at it.
const COOKIE: u32 = 4;

fn main() -> Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let rounds = words.first().map_or(Ok(10), |n| n.parse())?;
    let program = words.get(1).map_or("xdp-trafficgen", String::as_str);
    let cores = allowed_cpus()?;
    pin_current_thread(&cores[..1])?;
    let path = Path::new(cores[0])?;
    let mut pairs = Vec::new();
    println!("frames a second: weir, {program}");
    for round in 0..rounds {
        let (ours, theirs) = if round % 2 == 0 {
            let ours = path.ours()?;
            (ours, path.theirs(program)?)
        } else {
            let theirs = path.theirs(program)?;
            (path.ours()?, theirs)
        };
        println!("{ours:>9.0} {theirs:>9.0}   {:.3}", ours / theirs);
        pairs.push((ours, theirs));
    }
    let ratio = compare_ratio(&pairs).ok_or("too few rounds")?;
    let interval = ratio.interval.map_or(String::new(), |(low, high)| format!(" [{low:.3}, {high:.3}]"));
    println!("weir / {program}: {:.3}{interval}", ratio.estimate);
    Ok(())
}

/// Two hosts, and a link between them.
struct Path {
    lab: Lab,
    link: Link,
}

impl Path {
    fn new(core: usize) -> Result<Path> {
        let spec =
            SiteSpec { name: "direct".into(), topology: Topology::Direct, return_route: false, wan: false };
        let options = LabOptions { family: Family::Ipv6, ..LabOptions::default() };
        let lab = Lab::build("example-side-by-side", &options, &[spec])?;
        let site = &lab.sites()[0];
        let link = Link {
            interface: interface(site, Role::Initiator),
            address: site.addresses().initiator,
            target: site.addresses().responder,
            way: Way::Egress,
            inject: Inject::Wire,
            cpus: vec![core],
            reference: false,
        };
        throw_away(host(site, Role::Responder), &interface(site, Role::Responder))?;
        Ok(Path { lab, link })
    }

    fn site(&self) -> &Site {
        &self.lab.sites()[0]
    }

    /// What weir sends, frames a second.
    fn ours(&self) -> Result<f64> {
        let stop = Stop::default();
        std::thread::scope(|scope| {
            let sender = scope.spawn(|| self.send(&stop));
            let rate = self.rate();
            stop.raise();
            sender.join().map_err(|_| "the sender has panicked")??;
            rate
        })
    }

    fn send(&self, stop: &Stop) -> std::result::Result<(), String> {
        let frame = Frame { family: weir_packets::Family::Ipv6, protocol: Protocol::Udp, bytes: FRAME_BYTES };
        let tuples = Tuples {
            flows: u32::from(FLOWS),
            source_ports: 1024..=1024,
            destination_ports: PORT..=PORT + FLOWS - 1,
            order: Order::Permutation,
            seed: 0,
        };
        let limit = Limit { frames: u64::from(u32::MAX), duration: PATIENCE + 2 * WINDOW };
        let sending = Sending { frame, tuples, offer: Offer::Unlimited, limit, stamp_every: 0 };
        let flow = |n: u16| Tuple {
            source: self.link.address,
            source_port: 1024,
            destination: self.link.target,
            destination_port: PORT + n,
        };
        let flows = (0..FLOWS).map(|n| (u32::from(n), flow(n))).collect();
        let send = || LiveSender::new(&self.link).send(COOKIE, &sending, flows, stop);
        host(self.site(), Role::Initiator)
            .run(send)
            .map_err(|e| e.to_string())?
            .map_err(|e| e.to_string())?;
        Ok(())
    }

    /// What xdp-trafficgen sends, frames a second.
    fn theirs(&self, program: &str) -> Result<f64> {
        let mut command = Command::new(program);
        let (from, to) = (self.link.address.to_string(), self.link.target.to_string());
        command.args(["udp", "-a", &to, "-A", &from, "-P", "1024", "-p", &PORT.to_string(), "-t", "1"]);
        command.args(["-d", &FLOWS.to_string(), "-I", "100", "-m", &self.next_hop()?, &self.link.interface]);
        host(self.site(), Role::Initiator).enter_on_spawn(&mut command);
        let _sender = Sender(command.stdout(Stdio::null()).stdin(Stdio::null()).spawn()?);
        self.rate()
    }

    /// Ethernet address of the responder.
    fn next_hop(&self) -> Result<String> {
        let path = format!("/sys/class/net/{}/address", interface(self.site(), Role::Responder));
        let read = || std::fs::read_to_string(&path);
        Ok(host(self.site(), Role::Responder).run_with_own_sysfs(read)??.trim().to_owned())
    }

    /// Frames that the responder's interface has taken in so far.
    fn received(&self) -> Result<u64> {
        let counters = host(self.site(), Role::Responder).run(|| ProcRoot::default().net_dev())??;
        let device = interface(self.site(), Role::Responder);
        Ok(counters.get(&device).ok_or("the responder's interface is gone")?.rx_packets)
    }

    /// Frames a second at the responder once they flow.
    fn rate(&self) -> Result<f64> {
        let (first, began) = (self.received()?, Instant::now());
        // What hosts say to each other by themselves is far less.
        while self.received()? < first + 10_000 {
            if began.elapsed() > PATIENCE {
                return Err("nothing comes through".into());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        std::thread::sleep(SETTLES);
        let (before, from) = (self.received()?, Instant::now());
        std::thread::sleep(WINDOW);
        let frames = self.received()? - before;
        Ok(frames as f64 / from.elapsed().as_secs_f64())
    }
}

/// A program, ended with this value.
struct Sender(Child);

impl Drop for Sender {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn host(site: &Site, role: Role) -> &NetNs {
    site.host(role).expect("a host of a direct site")
}

fn interface(site: &Site, role: Role) -> String {
    site.interfaces(role)[0].clone()
}

/// Lets an interface throw away all IPv6 packets over UDP that come in.
fn throw_away(host: &NetNs, device: &str) -> Result<()> {
    const PROGRAM: &str = r#"
        struct xdp_md { unsigned data, data_end; };
        __attribute__((section("xdp"), used)) int drop(struct xdp_md *ctx) {
            unsigned char *data = (void *)(long)ctx->data;
            if (data + 21 > (unsigned char *)(long)ctx->data_end) return 2;
            return data[12] == 0x86 && data[13] == 0xdd && data[20] == 17 ? 1 : 2;
        }
        char terms[] __attribute__((section("license"), used)) = "Dual MIT/GPL";"#;
    let folder = std::env::temp_dir().join(format!("weir-side-by-side-{}", std::process::id()));
    std::fs::create_dir(&folder)?;
    let (source, object) = (folder.join("drop.c"), folder.join("drop.o"));
    std::fs::write(&source, PROGRAM)?;
    let (source, object) = (source.display().to_string(), object.display().to_string());
    let done = run(host, &["clang", "-O2", "-target", "bpf", "-c", &source, "-o", &object]).and_then(|()| {
        run(host, &["ip", "link", "set", "dev", device, "xdp", "object", &object, "section", "xdp"])
    });
    std::fs::remove_dir_all(&folder)?;
    done
}

fn run(host: &NetNs, words: &[&str]) -> Result<()> {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]);
    host.enter_on_spawn(&mut command);
    if command.status()?.success() { Ok(()) } else { Err(format!("{} failed", words.join(" ")).into()) }
}
