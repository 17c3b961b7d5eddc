//! `weir nat check` and `weir nat ports` between two hosts, either of which may be another than this one.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use weir_agent::run::{Ran, RunTask};
use weir_agent::transport::Options;
use weir_agent::{Answer, Error, HostAddress, Remote, Task, Transport};
use weir_probe::Key;
use weir_sys::Stop;
use weir_text::order;

use super::served::{self, BEYOND, whole_minutes};
use crate::args::nat::{HostsArgs, NatCheckArgs, NatPortsArgs, VersionArgs};
use crate::commands::probe::{KEY_VARIABLE, OWN_PORT, key_of};
use crate::exit::{CommandResult, Failure, MISSING};
use crate::output::{Color, print, printable, width};
use crate::talk::{is_quiet, is_verbose, note, step};

/// How long `weir serve` may take to start on its host.
const START: Duration = Duration::from_secs(20);

/// Ports that a survey tries, a second.
const PORTS_PER_SECOND: u64 = 1_250;

pub(super) fn check(args: &NatCheckArgs, color: Color) -> CommandResult {
    let idle = |idle: Duration| {
        if idle.is_zero() { "0".to_owned() } else { format!("{}ms", idle.as_millis()) }
    };
    let mut words = match args.idle {
        Some(time) => vec!["--idle".to_owned(), idle(time)],
        None => vec!["--preset".to_owned(), args.preset.name()],
    };
    let folder = args.pcap.iter().flat_map(|folder| ["--pcap".into(), folder.to_string_lossy().into_owned()]);
    words.extend(folder);
    let forms = [
        (args.fail_on_must, "--fail-on-must"),
        (args.json, "--json"),
        (args.markdown, "--markdown"),
        (args.html, "--html"),
    ];
    words.extend(forms.into_iter().filter(|(given, _)| *given).map(|(_, form)| form.to_owned()));
    let limits = args.limits();
    let ask = Ask {
        name: "check",
        hosts: &args.hosts,
        version: &args.version,
        server: args.server.as_deref(),
        key_file: args.key_file.as_deref(),
        words,
        limit: limits.idle.max(limits.connections) + BEYOND,
    };
    ask.run(|server, key, stop| served::check(server, key, args, stop, color))
}

pub(super) fn ports(args: &NatPortsArgs, color: Color) -> CommandResult {
    let mut words = vec!["--limit".to_owned(), args.limit.to_string()];
    words.extend(args.json.then(|| "--json".to_owned()));
    let ask = Ask {
        name: "ports",
        hosts: &args.hosts,
        version: &args.version,
        server: args.server.as_deref(),
        key_file: args.key_file.as_deref(),
        words,
        limit: Duration::from_secs(u64::from(args.limit) / PORTS_PER_SECOND) + BEYOND,
    };
    ask.run(|server, key, stop| served::ports(server, key, args, stop, color))
}

/// A command of `weir nat` with a server, on this host or another.
struct Ask<'a> {
    name: &'a str,
    hosts: &'a HostsArgs,
    version: &'a VersionArgs,
    server: Option<&'a str>,
    key_file: Option<&'a Path>,
    /// Its other options, as another host has to have them.
    words: Vec<String>,
    /// How long it may take there.
    limit: Duration,
}

impl Ask<'_> {
    /// Starts the server if it is to be started, runs the command where it is to run, and ends what was started.
    fn run(&self, here: impl FnOnce(&str, &Option<Key>, &Stop) -> CommandResult) -> CommandResult {
        if self.hosts.sudo && self.hosts.from.is_none() && self.hosts.to.is_none() {
            return Err(Failure::usage("--sudo: expected --from HOST or --to HOST beside it"));
        }
        let stop = crate::commands::stop_on_signals()?;
        let ends = Ends::begin(self, &stop)?;
        let outcome = match &self.hosts.from {
            Some(from) => ends.run(from, self),
            None => ends.key(self.key_file).and_then(|key| here(&ends.server, &key, &stop)),
        };
        ends.end(outcome)
    }
}

/// The server of the check.
struct Ends<'a> {
    /// The server's address, with a port where it is not the usual one.
    server: String,
    /// The agent whose host serves, and the key that was made for it.
    far: Option<(Remote, String)>,
    sudo: bool,
    stop: &'a Stop,
}

impl<'a> Ends<'a> {
    /// Starts `weir serve` on the host of `--to`; without one the server is there already.
    fn begin(ask: &Ask<'_>, stop: &'a Stop) -> Result<Self, Failure> {
        let Ask { hosts, version, server, .. } = *ask;
        let expected = || Failure::usage("expected SERVER, or --to HOST");
        let Some(to) = &hosts.to else {
            let server = server.ok_or_else(expected)?.to_owned();
            return Ok(Ends { server, far: None, sudo: hosts.sudo, stop });
        };
        let fits =
            |address: &&IpAddr| (!version.ipv4 || address.is_ipv4()) && (!version.ipv6 || address.is_ipv6());
        let first = hosts.addresses.iter().filter(fits).min_by_key(|address| address.is_ipv6());
        let version = if version.ipv6 { "IPv6" } else { "IPv4" };
        let first = first.ok_or_else(|| Failure::usage(format!("--nat-address: no {version} address")))?;
        let key = Key::make().map_err(Failure::failed)?;
        let agent = agent(to, hosts.sudo)?;
        let longest = ask.limit.max(weir_probe::Limits::default().duration);
        let mut arguments = vec!["serve".to_owned(), "--max-time".to_owned(), whole_minutes(longest)];
        arguments.extend(hosts.addresses.iter().flat_map(|a| ["--nat-address".to_owned(), a.to_string()]));
        let task = RunTask {
            arguments,
            environment: order::map([(KEY_VARIABLE.to_owned(), key.clone())]),
            serves: Some("serving".to_owned()),
        };
        step(|| format!("starts weir serve on {to}"));
        let ran = answered(agent.begin(Task::Run(task)).map_err(failed)?.wait(START, &watch(stop, None)))?;
        step(|| ran.stderr.trim().to_owned());
        Ok(Ends {
            server: SocketAddr::new(*first, OWN_PORT).to_string(),
            far: Some((agent, key)),
            sudo: hosts.sudo,
            stop,
        })
    }

    /// The key of the server.
    fn key(&self, file: Option<&Path>) -> Result<Option<Key>, Failure> {
        match &self.far {
            Some((_, key)) => Key::new(key.as_bytes()).map(Some).map_err(Failure::failed),
            None => key_of(file),
        }
    }

    /// The same as text.
    fn key_text(&self, file: Option<&Path>) -> Result<Option<String>, Failure> {
        if let Some((_, key)) = &self.far {
            return Ok(Some(key.clone()));
        }
        // Refused here as it would be there.
        if key_of(file)?.is_none() {
            return Ok(None);
        }
        let text = match file {
            Some(file) => std::fs::read_to_string(file),
            None => std::env::var(KEY_VARIABLE).map_err(std::io::Error::other),
        };
        text.map(Some).map_err(|e| Failure::new(MISSING, format!("the key is no text: {e}")))
    }

    /// Runs a command on a host, and prints what it prints, without colour: control characters may be the host's.
    fn run(&self, host: &HostAddress, ask: &Ask<'_>) -> CommandResult {
        let key = self.key_text(ask.key_file)?;
        let mut arguments = vec!["nat", ask.name, &self.server];
        arguments.extend(ask.words.iter().map(String::as_str));
        arguments.extend(ask.version.ipv4.then_some("-4").or(ask.version.ipv6.then_some("-6")));
        arguments.extend(is_quiet().then_some("--quiet").or(is_verbose().then_some("--verbose")));
        let mut environment = order::map([("COLUMNS".to_owned(), width().to_string())]);
        environment.extend(key.map(|key| (KEY_VARIABLE.to_owned(), key)));
        let arguments = arguments.into_iter().map(str::to_owned).collect();
        let agent = agent(host, self.sudo)?;
        note(&format!("weir nat runs on {host}, towards {}", self.server));
        let task = Task::Run(RunTask { arguments, environment, serves: None });
        let watch = watch(self.stop, self.far.as_ref().map(|(agent, _)| agent));
        let ran = answered(agent.begin(task).map_err(failed)?.wait(ask.limit, &watch))?;
        eprint!("{}", printable(&ran.stderr));
        print(&printable(&ran.stdout))?;
        if let Some(problem) = agent.end() {
            eprintln!("weir: {problem}");
        }
        match ran.code {
            Some(0) => Ok(()),
            Some(code) => Err(Failure::Silent(u8::try_from(code).unwrap_or(crate::exit::FAILED))),
            None => Err(Failure::failed(format!("{host}: a signal ended weir there"))),
        }
    }

    /// Ends the server that was started for the check.
    fn end(self, outcome: CommandResult) -> CommandResult {
        if let Some(problem) = self.far.and_then(|(agent, _)| agent.end()) {
            eprintln!("weir: {problem}");
        }
        outcome
    }
}

fn agent(host: &HostAddress, sudo: bool) -> Result<Remote, Failure> {
    let options = Options { program: None, sudo };
    Remote::start(&host.to_string(), &Transport::Host(host.clone()), &options).map_err(failed)
}

/// Ends a wait early: on Ctrl-C, and when the other host is gone.
fn watch<'a>(stop: &'a Stop, other: Option<&'a Remote>) -> impl Fn() -> Result<(), Error> {
    move || {
        if stop.raised() {
            return Err(Error::Interrupted);
        }
        other.map_or(Ok(()), Remote::check)
    }
}

fn answered(answer: Result<Answer, Error>) -> Result<Ran, Failure> {
    match answer.map_err(failed)? {
        Answer::Ran(ran) => Ok(*ran),
        other => Err(Failure::failed(format!("an answer to another task: {other:?}"))),
    }
}

fn failed(error: Error) -> Failure {
    match error {
        Error::Interrupted => Failure::failed("stopped before the check was complete"),
        error => Failure::of_part(&error, false, error.is_missing()),
    }
}
