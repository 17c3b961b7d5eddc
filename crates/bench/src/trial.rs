//! One trial: a workload on one site, with samplers on every host.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use weir_agent::remote::{self, Pending};
use weir_agent::{Answer, Task};
use weir_gateway::{Place, VariantKind};
use weir_load::{Part, TrialSettings, Workload};
use weir_packets::workload::Packets;
use weir_packets::{Delay, procedure};
use weir_record::{Better, CpuTime, Fault, FaultCode, HostSample, MetricDef, Trial, Unit};
use weir_sys::clock::now_ns;

use crate::SHORT;
use crate::carried;
use crate::error::Error;
use crate::links;
use crate::packets_path::Path;
use crate::packets_testbed;
use crate::sampling::{AliveCheck, Sampling};
use crate::scenario::{Load, WorkloadEntry};
use crate::site::{Member, Site};

/// A workload must be done this long after its window; connections that time out are its longest wait.
const SLACK: Duration = Duration::from_secs(10);

/// How long a background load runs before the measured one starts.
const LEAD: Duration = Duration::from_millis(300);

/// The rules that are the same for all trials.
pub(crate) struct Rules<'a> {
    /// Trials with a greater steal share are void.
    pub(crate) max_steal: f64,
    /// True where all hosts are one machine.
    pub(crate) is_lab: bool,
    /// True where the lab leaves it to weir which cores do the gateway's work.
    pub(crate) steers: bool,
    /// True where the gateway's table of connections may be emptied.
    pub(crate) flushes: bool,
    /// Seed of the run: the same ports in every trial (RFC 4814 section 4.2).
    pub(crate) seed: u64,
    /// The doctor watches the gateway.
    pub(crate) diagnose: bool,
    /// True once the user asked to stop.
    pub(crate) interrupted: &'a dyn Fn() -> bool,
}

impl<'a> Rules<'a> {
    /// The way of single frames through a site.
    pub(crate) fn path(
        &self,
        site: &'a Site,
        variant: &'a VariantKind,
        packets: &'a Packets,
        watch: AliveCheck<'a>,
    ) -> Path<'a> {
        let (steers, flushes, is_lab, seed) = (self.steers, self.flushes, self.is_lab, self.seed);
        let diagnose = self.diagnose;
        Path { site, variant, packets, steers, flushes, is_lab, seed, diagnose, watch }
    }
}

/// One workload's opened far ends and running near ends.
struct Running<'a> {
    workload: &'a Workload,
    sessions: Vec<(&'a Member, u64)>,
    drives: Vec<Pending<'a>>,
    limit: Duration,
}

/// Metrics that every workload gets from the samplers: details, never headlines.
pub(crate) fn common_metrics(is_lab: bool) -> Vec<MetricDef> {
    let (name, label, help) = if is_lab {
        (
            "machine_busy_cores",
            "busy cores",
            "Busy cores of the machine, which in the lab is all hosts together",
        )
    } else {
        ("gateway_busy_cores", "gateway CPU", "Busy cores of the gateway")
    };
    vec![
        MetricDef::value(name, label, Unit::Cores, Better::Lower, help).detail(),
        MetricDef::value(
            "gateway_skbs_pps",
            "skbs at the gateway",
            Unit::Pps,
            Better::Neither,
            "Packets as the gateway's kernel handled them, both ways: a GSO super-packet counts once",
        )
        .detail(),
        MetricDef::value(
            "gateway_skb_bytes",
            "bytes per skb",
            Unit::Bytes,
            Better::Neither,
            "Mean size of what the gateway's kernel handled; above the MTU, super-packets crossed it",
        )
        .detail(),
        MetricDef::value(
            "cpu_ns_per_skb",
            "CPU per skb",
            Unit::CpuNs,
            Better::Lower,
            "CPU time of the gateway (in the lab: of the whole machine) per packet it handled",
        )
        .detail(),
        carried::metric(),
    ]
}

/// Makes one trial. A host that is lost is an error; everything else that goes wrong is a fault of the trial.
pub(crate) fn make(
    site: &Site,
    variant: &VariantKind,
    entry: &WorkloadEntry,
    cookie: u64,
    rules: &Rules<'_>,
    trial: &mut Trial,
) -> Result<(), Error> {
    // Whatever is being waited for, a host that dies or hangs is noticed, and the user heard.
    let watch = || match (rules.interrupted)() {
        true => Err(remote::Error::Interrupted),
        false => site.members().try_for_each(|member| member.agent.check()),
    };
    links::begin(site.link.as_ref(), cookie)?;
    let begun_ns = now_ns();
    let carried_before = carried::read(site, variant)?;
    let outcome = match &entry.workload {
        Load::Sockets(workload) => sockets((site, variant, workload), entry, cookie, rules, &watch, trial),
        Load::Packets(packets) => {
            let path = rules.path(site, variant, packets, &watch);
            frames(path, entry, cookie, trial)
        }
    };
    links::judge(site.link.as_ref(), trial)?;
    if !rules.is_lab {
        judge_clocks(site, begun_ns, trial);
    }
    if let Err(error) = outcome {
        stop_all(site);
        match error {
            Error::Agent(remote::Error::Task { host, source }) => {
                trial.faults.push(Fault::void(FaultCode::ConnectionFailed, &host, source.message));
            }
            Error::Agent(e @ remote::Error::Slow { .. }) => {
                trial.faults.push(Fault::void(FaultCode::Timeout, "runner", e.to_string()));
            }
            Error::NotProved { reason, .. } => {
                trial.faults.push(Fault::void(FaultCode::VariantLost, "responder", reason));
            }
            other => return Err(other),
        }
        return Ok(());
    }
    judge_tester(rules, trial);
    if let (Some(before), Some(after)) = (carried_before, carried::read(site, variant)?) {
        carried::judge(after.since(before), &entry.workload, trial);
    }
    match &entry.workload {
        // Over a search the gateway's figures would be those of many loads at once.
        Load::Packets(packets) if packets.procedure.searches() => {}
        _ => describe_gateway(site, rules, trial),
    }
    if !rules.is_lab && matches!(entry.workload, Load::Sockets(_)) {
        note_busy_cores(trial);
    }
    Ok(())
}

/// A host whose clock runs at another speed than this machine's measures other times and rates than there were.
fn judge_clocks(site: &Site, begun_ns: u64, trial: &mut Trial) {
    for member in site.members() {
        if let Some(ratio) = member.agent.clock_drift(begun_ns) {
            let detail = format!(
                "its clock runs {ratio:.3} times as fast as that of the machine that runs weir bench"
            );
            trial.faults.push(Fault::void(FaultCode::ClockDrift, member.role.name(), detail));
        }
    }
}

fn stop_all(site: &Site) {
    for member in site.members() {
        // One that does not answer is reported by the next that needs it.
        let _ = member.agent.begin(Task::Stop);
    }
}

/// A workload of two ends that talk through sockets.
fn sockets(
    (site, variant, workload): (&Site, &VariantKind, &Workload),
    entry: &WorkloadEntry,
    cookie: u64,
    rules: &Rules<'_>,
    watch: AliveCheck<'_>,
    trial: &mut Trial,
) -> Result<(), Error> {
    let port = *site.place.ports.start();
    let per_workload = site.initiators.len() as u16;
    let background = match &entry.under {
        None => None,
        Some(under) => {
            let window = (LEAD + entry.warmup, entry.duration);
            // Far from the workload's own, to which each initiator's number is added.
            let cookie = cookie ^ (1 << 63);
            let running = start(site, variant, under, window, cookie, port + per_workload)?;
            std::thread::sleep(LEAD);
            Some(running)
        }
    };
    let window = (entry.warmup, entry.duration);
    let measured = start(site, variant, workload, window, cookie, port)?;
    let mut sampling = Sampling::new(site, None, rules.diagnose);
    let begun = Instant::now();
    sampling.begin(entry.warmup, entry.duration)?;
    let part = measured.finish(watch)?;
    if begun.elapsed() < entry.warmup + entry.duration {
        // A set number of requests was done before their time.
        sampling.end()?;
    }
    trial.metrics.extend(part.values);
    trial.histograms = part.histograms;
    trial.series = part.series;
    trial.path = part.path;
    trial.faults.extend(part.faults);
    if let Some(background) = background {
        let part = background.finish(watch)?;
        trial.metrics.extend(part.values.into_iter().map(|(name, value)| (format!("load_{name}"), value)));
        trial
            .faults
            .extend(part.faults.into_iter().map(|f| Fault { detail: format!("load: {}", f.detail), ..f }));
    }
    let sampled = sampling.collect(watch)?;
    (trial.hosts, trial.diagnosed) = (sampled.hosts, sampled.diagnosed);
    Ok(())
}

/// A procedure of single frames, which may be one transfer or hundreds.
fn frames(path: Path<'_>, entry: &WorkloadEntry, cookie: u64, trial: &mut Trial) -> Result<(), Error> {
    packets_testbed::with(path, cookie, |tester| {
        tester.prove()?;
        tester.look_at_table()?;
        let setting = procedure::ProcedureSettings {
            warmup: entry.warmup,
            duration: entry.duration,
            family: path.site.place.family,
            delay: if path.is_lab { Delay::OneWay } else { Delay::RoundTrip },
            seed: path.seed,
        };
        let findings = procedure::run(path.packets, &setting, tester).map_err(packets_testbed::cause)?;
        trial.metrics.extend(findings.values);
        trial.histograms = findings.histograms;
        trial.series = findings.series;
        trial.faults.extend(findings.faults);
        let sampled = tester.sampled()?;
        (trial.hosts, trial.profile, trial.diagnosed) = (sampled.hosts, sampled.profile, sampled.diagnosed);
        Ok(())
    })
}

/// Opens the far ends and starts the near ones; each initiator has a port and a responder of its own.
fn start<'a>(
    site: &'a Site,
    variant: &VariantKind,
    workload: &'a Workload,
    (warmup, duration): (Duration, Duration),
    cookie: u64,
    port: u16,
) -> Result<Running<'a>, Error> {
    let setting = |member: &Member| TrialSettings {
        cpus: member.cpus.clone(),
        ..TrialSettings::new(warmup, duration, cookie)
    };
    let limit = warmup + duration + workload.engine().patience() + SLACK;
    let mut running = Running { workload, sessions: Vec::new(), drives: Vec::new(), limit };
    let pairs = || site.initiators.iter().zip(site.responders.iter().cycle()).zip(0u16..);
    for ((_, responder), number) in pairs() {
        let session = cookie.wrapping_add(u64::from(number));
        let bind = SocketAddr::new(site.listen, port + number);
        let (workload, setting) = (workload.clone(), setting(responder));
        responder.agent.call(Task::Open { session, workload, setting, bind }, SHORT)?;
        running.sessions.push((responder, session));
    }
    for ((initiator, responder), number) in pairs() {
        let place = Place { responder: responder.address, ..site.place.clone() };
        let target = SocketAddr::new(variant.expectation(&place).target, port + number);
        let (workload, setting) = (workload.clone(), setting(initiator));
        running.drives.push(initiator.agent.begin(Task::Drive { workload, setting, target })?);
    }
    Ok(running)
}

impl Running<'_> {
    /// Waits for the near ends, closes the far ends, and makes the metrics.
    fn finish(self, watch: AliveCheck<'_>) -> Result<Part, Error> {
        let mut near = Vec::new();
        let mut failure = None;
        for drive in self.drives {
            match drive.wait(self.limit, watch) {
                Ok(Answer::Part(part)) => near.push(*part),
                Ok(_) => return Err(Error::Internal("a workload answered something else".into())),
                Err(e) if e.is_fatal() => return Err(e.into()),
                // The far ends must be closed nevertheless: the next trial needs their ports.
                Err(e) => failure = failure.or(Some(e)),
            }
        }
        let mut far = Vec::new();
        for (member, session) in self.sessions {
            match member.agent.call(Task::Finish { session }, SLACK) {
                Ok(Answer::Part(part)) => far.push(*part),
                Ok(_) => return Err(Error::Internal("a workload answered something else".into())),
                // A near end that complains of a broken connection is the smaller news.
                Err(e) if e.is_fatal() => return Err(e.into()),
                Err(e) => failure = failure.or(Some(e)),
            }
        }
        match failure {
            Some(error) => Err(error.into()),
            None => Ok(self.workload.engine().combine(&near, &far)),
        }
    }
}

/// A machine that was not its own while it measured makes the trial void.
fn judge_tester(rules: &Rules<'_>, trial: &mut Trial) {
    let steal =
        trial.hosts.iter().map(|(role, s)| (s.steal_ratio(), role)).max_by(|a, b| a.0.total_cmp(&b.0));
    if let Some((share, role)) = steal.filter(|(share, _)| *share > rules.max_steal) {
        let detail = format!("the hypervisor took {:.1} % of the CPU time", share * 100.0);
        trial.faults.push(Fault::void(FaultCode::Steal, role, detail));
    }
}

/// Ends whose core is full may be the limit. (Those that send single frames keep theirs busy by waiting.)
fn note_busy_cores(trial: &mut Trial) {
    for (role, sample) in trial.hosts.iter().filter(|(role, _)| *role != "gateway") {
        if let Some((core, share)) = saturated(sample) {
            let detail = format!("core {core} was {:.0} % busy: the tester may be the limit", share * 100.0);
            trial.faults.push(Fault::noted(FaultCode::TesterCpu, role, detail));
        }
    }
}

/// Metrics of the gateway out of the samples.
fn describe_gateway(site: &Site, rules: &Rules<'_>, trial: &mut Trial) {
    let Some(gateway) = site.gateway.as_ref().and_then(|g| trial.hosts.get(g.role.name())) else {
        if let Some(sample) = trial.hosts.get("initiator").filter(|_| rules.is_lab) {
            trial.metrics.insert("machine_busy_cores".into(), sample.busy_cores());
        }
        return;
    };
    let busy = gateway.busy_cores();
    let name = if rules.is_lab { "machine_busy_cores" } else { "gateway_busy_cores" };
    // The two interfaces that the path enters by: a bridge's port would count the bridge's packets again.
    let place = &site.place;
    // A one-armed gateway has one.
    let paths = BTreeSet::from([&place.inside_interface, &place.outside_interface]);
    let entered = || paths.iter().filter_map(|name| gateway.interfaces.get(*name));
    let packets: u64 = entered().map(|i| i.rx_packets).sum();
    let bytes: u64 = entered().map(|i| i.rx_bytes).sum();
    trial.metrics.insert(name.into(), busy);
    if packets > 0 && gateway.window_s > 0.0 {
        let rate = packets as f64 / gateway.window_s;
        trial.metrics.insert("gateway_skbs_pps".into(), rate);
        trial.metrics.insert("gateway_skb_bytes".into(), bytes as f64 / packets as f64);
        trial.metrics.insert("cpu_ns_per_skb".into(), busy * 1e9 / rate);
    }
}

/// The busiest core above 97 %, with its share.
fn saturated(sample: &HostSample) -> Option<(usize, f64)> {
    let share = |c: &CpuTime| if c.total_s() > 0.0 { c.busy_s() / c.total_s() } else { 0.0 };
    let busiest = sample.cpu.iter().map(share).enumerate().max_by(|a, b| a.1.total_cmp(&b.1));
    busiest.filter(|(_, share)| *share > 0.97)
}
