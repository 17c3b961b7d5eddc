//! `weir doctor`.

use std::collections::BTreeSet;
use std::os::fd::AsFd;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use weir_doctor::causes;
use weir_doctor::collect::{Options, Scope, Watch};
use weir_doctor::diagnosis::{Diagnosis, UNEXPLAINED, diagnose};
use weir_doctor::evidence::{Evidence, Plane};
use weir_doctor::finding::Severity;
use weir_doctor::{Look, explain, explain_unexplained, list, render};
use weir_sys::process::{Process, spawn};
use weir_sys::{NetNs, Stop};

use crate::args::{DoctorArgs, DoctorCommand, FailOn};
use crate::exit::{Failure, NOT_MET, Outcome};
use crate::output::{Color, print, print_json, width};

/// How soon Ctrl-C and the end of a command are noticed.
const NOTICE: Duration = Duration::from_millis(20);
/// How long a command may take to end when it is told to.
const GRACE: Duration = Duration::from_secs(2);

pub(crate) fn run(args: &DoctorArgs, color: Color) -> Outcome {
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
        Failure::usage(format!("no cause is called `{id}`{near} (`weir doctor explain` lists them)"))
    })
}

/// The windows: one, or one after the other with `--every`.
fn watch(args: &DoctorArgs, color: Color) -> Outcome {
    let stop = super::stop_on_signals()?;
    let mut worst = None;
    loop {
        let began = Instant::now();
        let diagnosis = match &args.read {
            Some(path) => diagnose(&stored(path)?),
            None => {
                let evidence = look(args, args.window, &stop)?;
                if let Some(path) = &args.save {
                    save(path, &evidence)?;
                }
                diagnose(&evidence)
            }
        };
        worst = worst.max(diagnosis.worst());
        tell(args, &diagnosis, color)?;
        let Some(every) = args.every else { break };
        let next = began + every;
        while Instant::now() < next && !stop.raised() {
            std::thread::sleep(NOTICE);
        }
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
fn look(args: &DoctorArgs, window: Duration, stop: &Stop) -> Result<Evidence, Failure> {
    let options = Options { scope: scope(args)?, hidden: hidden(&args.hide)?, ..Options::default() };
    let watch = Watch::begin(options).map_err(Failure::failed)?;
    let mut load = args.load.as_deref().map(start).transpose()?;
    let mut ended = false;
    while watch.elapsed() < window && !stop.raised() && !ended {
        std::thread::sleep(NOTICE.min(window));
        if let Some(load) = &mut load {
            ended = load.try_wait().map_err(Failure::failed)?.is_some();
        }
    }
    let evidence = watch.end();
    if let Some(mut load) = load {
        let status = load.stop(GRACE).map_err(Failure::failed)?;
        if ended && !status.status.success() {
            eprintln!("weir: the command ended with {}", status.status);
        }
    }
    Ok(evidence)
}

/// Starts the load of `--command` through the shell. What it prints goes to standard error, which is where talk goes.
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
        Ok((name.clone(), handle))
    };
    args.netns.iter().map(open).collect::<Result<Vec<(String, NetNs)>, Failure>>().map(Scope::These)
}

/// Planes by the names that the JSON has for them.
fn hidden(names: &[String]) -> Result<BTreeSet<Plane>, Failure> {
    let plane = |name: &String| {
        serde_json::from_value(serde_json::Value::String(name.clone()))
            .map_err(|_| Failure::usage(format!("--hide {name}: there is no such plane")))
    };
    names.iter().map(plane).collect()
}

fn stored(path: &Path) -> Result<Evidence, Failure> {
    let name = path.display();
    let text =
        std::fs::read_to_string(path).map_err(|e| Failure::usage(format!("cannot read {name}: {e}")))?;
    serde_json::from_str(&text)
        .map_err(|e| Failure::usage(format!("{name} is no evidence of `weir doctor --save`: {e}")))
}

/// Writes beside the file and renames, so that a full disk leaves what was there before, and no half of what is new. What is no
/// file, such as a pipe, is written to as it is.
fn save(path: &Path, evidence: &Evidence) -> Outcome {
    let text = serde_json::to_string(evidence).map_err(Failure::failed)?;
    let failed = |e| Failure::failed(format!("cannot write {}: {e}", path.display()));
    if path.metadata().is_ok_and(|there| !there.is_file()) {
        return std::fs::write(path, text).map_err(failed);
    }
    // Where a link leads, not the link, is what is replaced.
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let mut beside = path.as_os_str().to_owned();
    beside.push(".new");
    let written = std::fs::write(&beside, text).and_then(|()| std::fs::rename(&beside, &path));
    written.map_err(|e| {
        // The rest of a failed attempt is of no use to anybody.
        let _ = std::fs::remove_file(&beside);
        failed(e)
    })
}

fn tell(args: &DoctorArgs, diagnosis: &Diagnosis, color: Color) -> Outcome {
    if args.json {
        return if args.every.is_some() {
            print(&format!("{}\n", serde_json::to_string(diagnosis).map_err(Failure::failed)?))
        } else {
            print_json(diagnosis)
        };
    }
    let place = match (&args.read, args.own, args.netns.as_slice()) {
        (Some(path), _, _) => path.display().to_string(),
        (None, true, _) => "this namespace".to_owned(),
        (None, false, []) => "this machine".to_owned(),
        (None, false, names) => format!("namespace {}", names.join(", ")),
    };
    print(&render(diagnosis, &place, Look { width: width(), color: color.stdout }))
}
