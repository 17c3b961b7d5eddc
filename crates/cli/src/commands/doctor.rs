//! `weir doctor`.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use weir_doctor::causes;
use weir_doctor::collect::{OpenWindow, Options, Scope};
use weir_doctor::diagnosis::{Diagnosis, UNEXPLAINED, diagnose};
use weir_doctor::evidence::{Evidence, EvidenceSource, LARGEST_TABLE, NatTable, Sight};
use weir_doctor::finding::Severity;
use weir_doctor::{explain, explain_unexplained, list, render, since};
use weir_sys::process::{Process, spawn};
use weir_sys::{NetNs, Stop};
use weir_text::order;
use weir_tune::LARGEST_FINDINGS;

use crate::args::{DoctorArgs, DoctorCommand, FailOn};
use crate::documents::{Kind, print_json, print_line};
use crate::exit::{CommandResult, Failure, NOT_MET};
use crate::output::{Color, print};
use crate::talk;

/// How soon Ctrl-C and the end of a command are noticed.
const NOTICE: Duration = Duration::from_millis(20);
/// Time that a command has to end after weir asks it to.
const GRACE: Duration = Duration::from_secs(2);

pub(crate) fn run(args: &DoctorArgs, color: Color) -> CommandResult {
    match &args.command {
        Some(DoctorCommand::Selftest(selftest)) => super::selftest::run(selftest),
        Some(DoctorCommand::Explain { cause: None }) => print(&list()),
        Some(DoctorCommand::Explain { cause: Some(id) }) if id == UNEXPLAINED => {
            print(&explain_unexplained())
        }
        Some(DoctorCommand::Explain { cause: Some(id) }) => print(&explain(find(id)?)),
        None => watch(args, color),
    }
}

fn find(id: &str) -> Result<&'static causes::Cause, Failure> {
    causes::by_id(id).ok_or_else(|| {
        let near = causes::all()
            .max_by(|a, b| strsim::jaro_winkler(a.id, id).total_cmp(&strsim::jaro_winkler(b.id, id)));
        let near = near.map_or(String::new(), |c| format!(": did you mean `{}`?", c.id));
        Failure::usage(format!("unknown cause `{id}`{near} (list them with `weir doctor explain`)"))
    })
}

/// The windows: one, or one after the other with `--watch`.
fn watch(args: &DoctorArgs, color: Color) -> CommandResult {
    let stop = super::stop_on_signals()?;
    let before = args.before.as_deref().map(earlier).transpose()?;
    let nat = args.nat.as_deref().map(table).transpose()?;
    let mut worst = None;
    loop {
        let began = Instant::now();
        let mut diagnosis = match &args.read {
            Some(path) => diagnose(&stored(path)?),
            None => {
                let evidence = look(args, nat.clone(), &stop)?;
                steps(&evidence);
                if let Some(path) = &args.save {
                    save(path, &evidence)?;
                }
                diagnose(&evidence)
            }
        };
        if let Some((name, report)) = &before {
            diagnosis.since = Some(since::compare(name, report, &diagnosis));
        }
        worst = worst.max(diagnosis.worst());
        tell(args, &diagnosis, color)?;
        let Some(every) = args.watch.every else { break };
        super::wait_until(began + every, &stop);
        if stop.raised() {
            break;
        }
    }
    let bound = match args.fail_on {
        FailOn::Never => return Ok(()),
        FailOn::Note => Severity::Note,
        FailOn::Warning => Severity::Warning,
        FailOn::Critical => Severity::Critical,
    };
    if worst >= Some(bound) { Err(Failure::Silent(NOT_MET)) } else { Ok(()) }
}

/// One window; with `--command`, as long as it runs, up to the length of the window.
fn look(args: &DoctorArgs, nat: Option<NatTable>, stop: &Stop) -> Result<Evidence, Failure> {
    let window = args.window;
    let options = Options { scope: scope(args)?, hidden: hidden(&args.hide)?, nat, ..Options::default() };
    talk::step(|| "opens the evidence sources".to_owned());
    let watch = OpenWindow::begin(options).map_err(Failure::failed)?;
    talk::step(|| format!("watches for {:.1} s at most", window.as_secs_f64()));
    let mut load = args.load.as_deref().map(start).transpose()?;
    let mut ended = false;
    while watch.elapsed() < window && !stop.raised() && !ended {
        std::thread::sleep(NOTICE.min(window));
        if let Some(load) = &mut load {
            ended = load.try_wait().map_err(Failure::failed)?.is_some();
        }
    }
    talk::step(|| "the window is over: reads the sources again".to_owned());
    let evidence = watch.end();
    if let Some(mut load) = load {
        let status = load.stop(GRACE).map_err(Failure::failed)?;
        if ended && !status.status.success() {
            eprintln!("weir: the command ended with {}", status.status);
        }
    }
    Ok(evidence)
}

/// For --verbose: what was read, and what it cost.
fn steps(evidence: &Evidence) {
    let names: Vec<&str> = evidence.namespaces.iter().map(|n| n.name.as_str()).collect();
    talk::step(|| format!("read {} network namespaces: {}", names.len(), names.join(", ")));
    for (source, sight) in &evidence.evidence_sources {
        talk::step(|| match sight {
            Sight::Seen => format!("read {}", source.words()),
            Sight::Partly(why) => format!("read {} in part: {why}", source.words()),
            Sight::Blind(why) => format!("could not read {}: {why}", source.words()),
        });
    }
    for (namespace, (source, why)) in
        evidence.namespaces.iter().flat_map(|n| n.blind.iter().map(move |b| (n, b)))
    {
        talk::step(|| format!("could not read {} of {}: {why}", source.words(), namespace.name));
    }
    let cost = &evidence.cost;
    talk::step(|| {
        format!(
            "{} groups of dropped packets, {} events of TCP; took {:.1} ms of CPU and {} bytes of memory",
            evidence.drops.len(),
            evidence.flows.len(),
            cost.cpu_ns as f64 / 1e6,
            cost.memory_bytes
        )
    });
}

/// Starts the load of `--command` by the shell. Its output goes to standard error, since standard output is data.
fn start(line: &str) -> Result<Process, Failure> {
    let mut command = super::shell(line)?;
    command.stdin(Stdio::null());
    let errors = std::io::stderr().as_fd().try_clone_to_owned().map_err(Failure::failed)?;
    command.stdout(errors);
    spawn(command).map_err(Failure::failed)
}

fn scope(args: &DoctorArgs) -> Result<Scope, Failure> {
    if args.own {
        return Ok(Scope::Own);
    }
    if args.netns.is_empty() {
        return Ok(Scope::Machine);
    }
    let open = |name: &String| {
        let handle = super::conntrack::namespace(name)?;
        Ok((called(name), handle))
    };
    args.netns.iter().map(open).collect::<Result<Vec<(String, NetNs)>, Failure>>().map(Scope::These)
}

/// The name of a namespace of `--netns`, as a look at the whole machine prints it: commands that lead into it follow from it.
fn called(name: &str) -> String {
    let path = super::conntrack::namespace_path(name);
    let text = path.to_string_lossy();
    let named = ["/run/netns/", "/var/run/netns/"].iter().find_map(|folder| text.strip_prefix(folder));
    let process = text.strip_prefix("/proc/").and_then(|rest| rest.strip_suffix("/ns/net"));
    match (named, process) {
        (Some(named), _) => format!("netns {named}"),
        (None, Some(pid)) => format!("process (pid {pid})"),
        (None, None) => text.into_owned(),
    }
}

/// Evidence sources by their names in the JSON.
fn hidden(names: &[String]) -> Result<BTreeSet<EvidenceSource>, Failure> {
    let source = |name: &String| {
        serde_json::from_str(&serde_json::Value::from(name.as_str()).to_string())
            .map_err(|_| Failure::usage(format!("--hide {name}: unknown evidence source")))
    };
    names.iter().map(source).collect::<Result<Vec<_>, _>>().map(order::set)
}

fn stored(path: &Path) -> Result<Evidence, Failure> {
    let name = path.display();
    let text = fs::read_to_string(path).map_err(|e| Failure::usage(format!("cannot read {name}: {e}")))?;
    serde_json::from_str(&text)
        .map_err(|e| Failure::usage(format!("cannot read {name}: not written by `weir doctor --save`: {e}")))
}

/// Name and contents of the report of `--before`.
fn earlier(path: &str) -> Result<(String, Diagnosis), Failure> {
    let (name, text) = read_report(path)?;
    let report = since::read(&text, &Kind::Doctor.mark()).map_err(|why| {
        Failure::usage(format!("cannot compare with {name}: {why}; pass the output of `weir doctor --json`"))
    })?;
    Ok((name, report))
}

/// The table of `--nat`.
fn table(path: &str) -> Result<NatTable, Failure> {
    let (name, text) = read_up_to(path, LARGEST_TABLE, "pass the table of one gateway or check")?;
    let table =
        NatTable::read(&text).map_err(|why| Failure::usage(format!("cannot explain {name}: {why}")))?;
    if table.failing.is_empty() {
        talk::note(&format!("{name}: no row with a requirement fails, so --nat adds no finding"));
    }
    Ok(table)
}

/// Name and text of a report of `weir doctor --json`; `-` is standard input.
pub(super) fn read_report(path: &str) -> Result<(String, String), Failure> {
    read_up_to(path, LARGEST_FINDINGS, "pass one report, such as the last line of --watch --json")
}

/// Name and text of a file of at most so many bytes; `-` is standard input.
fn read_up_to(path: &str, largest: u64, instead: &str) -> Result<(String, String), Failure> {
    let name = if path == "-" { "standard input" } else { path };
    let unreadable = |e: io::Error| Failure::usage(format!("cannot read {name}: {e}"));
    let source: Box<dyn Read> =
        if path == "-" { Box::new(io::stdin()) } else { Box::new(fs::File::open(path).map_err(unreadable)?) };
    let mut text = String::new();
    source.take(largest + 1).read_to_string(&mut text).map_err(unreadable)?;
    if text.len() as u64 > largest {
        return Err(Failure::usage(format!("{name} has more than {largest} bytes: {instead}")));
    }
    Ok((name.to_owned(), text))
}

fn save(path: &Path, evidence: &Evidence) -> CommandResult {
    crate::output::save(path, &serde_json::to_string(evidence).map_err(Failure::failed)?)
}

fn tell(args: &DoctorArgs, diagnosis: &Diagnosis, color: Color) -> CommandResult {
    if args.json {
        return if args.watch.every.is_some() { print_line(diagnosis) } else { print_json(diagnosis) };
    }
    let place = match (&args.read, args.own, args.netns.as_slice()) {
        (Some(path), _, _) => path.display().to_string(),
        (None, true, _) => "this namespace".to_owned(),
        (None, false, []) => "this machine".to_owned(),
        (None, false, names) => format!("namespace {}", names.join(", ")),
    };
    print(&render(diagnosis, &place, color.terminal()))
}

#[cfg(test)]
mod tests {
    use super::called;

    #[test]
    fn a_namespace_has_the_name_that_a_look_at_the_machine_gives_it() {
        for (typed, name) in [
            ("web", "netns web"),
            ("/var/run/netns/web", "netns web"),
            ("4711", "process (pid 4711)"),
            ("/proc/4711/ns/net", "process (pid 4711)"),
            ("/proc/4711/fd/3", "/proc/4711/fd/3"),
        ] {
            assert_eq!(called(typed), name);
        }
    }
}
