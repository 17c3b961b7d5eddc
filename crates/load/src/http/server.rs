//! The server of a trial: nginx or Apache as they are packaged, with a configuration of weir's own, started anew each time.
//!
//! All it has on disk is in one folder. A guard, a process apart, removes it when the end of its input says that the
//! trial or this process is over, however that ended, and kills what is left of the server.

mod config;

use std::fs::DirBuilder;
use std::io::Write;
use std::net::SocketAddr;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use weir_sys::process::which;

use super::Http;
use crate::child::{self, Child, words};
use crate::listener::{await_listening, listens, port_of};
use crate::{Error, Part, Responder, TrialSettings};

/// How long a server may take to listen.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long it may take to end: within the second that a responder has.
const GRACE: Duration = Duration::from_millis(500);

/// Who answers.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Server {
    /// nginx, with a worker for each of the responder's cores.
    #[default]
    Nginx,
    /// Apache's httpd with its event module.
    Apache,
    /// Any server that already listens there: weir starts nothing.
    None,
}

impl Server {
    /// Returns its name in messages.
    pub(super) fn name(self) -> &'static str {
        match self {
            Server::Nginx => "nginx",
            Server::Apache => "apache2",
            Server::None => "no server",
        }
    }

    /// Programs that it needs.
    pub(crate) fn programs(self, tls: bool) -> Vec<&'static str> {
        match self {
            Server::None => Vec::new(),
            // It makes the certificate.
            server if tls => vec![server.name(), "openssl"],
            server => vec![server.name()],
        }
    }
}

/// Name of the file that a trial asks for.
pub(super) fn file_name(cookie: u64) -> String {
    format!("weir-{cookie:016x}")
}

/// Start the server that the workload names, and wait until it listens.
pub(crate) fn start(
    work: &Http,
    setting: &TrialSettings,
    bind: SocketAddr,
) -> Result<Box<dyn Responder>, Error> {
    if work.server == Server::None {
        return Ok(Box::new(Nobody { port: work.port.unwrap_or(bind.port()) }));
    }
    weir_sys::process::raise_descriptor_limit();
    let program = work.server.name();
    let port = port_of(bind)?;
    if listens(port)? {
        // It would be measured in place of ours.
        return Err(failed(program, format!("something else listens on port {port} already")));
    }
    let mut folder = Folder::create(setting.cookie, port)?;
    let io = |what: &'static str| Error::io(what);
    let files = folder.path.join("files");
    DirBuilder::new().mode(0o755).create(&files).map_err(io("make a folder for the server"))?;
    let body = vec![b'w'; work.body_bytes as usize];
    write(&files.join(file_name(setting.cookie)), &body, 0o644)?;
    let place = config::ServerSetup {
        folder: &folder.path,
        bind: SocketAddr::new(bind.ip(), port),
        workers: workers(setting),
        connections: work.connections,
        is_root: rustix::process::geteuid().is_root(),
    };
    let (text, args) = match work.server {
        Server::Apache => config::apache(&place)?,
        _ => config::nginx(&place, work.tls),
    };
    if work.tls {
        make_certificate(&folder.path)?;
    }
    let file = folder.path.join("server.conf");
    write(&file, text.as_bytes(), 0o644)?;
    // Its workers outlive a killed master: the guard must know the group before there can be any.
    let held = child::start_held(program, &args, &setting.cpus)?;
    folder.guards(held.group())?;
    let mut child = held.release()?;
    if !await_listening(program, &mut child, port, PATIENCE)? {
        let (stdout, stderr) = child.output();
        return Err(failed(program, format!("it ended at once: {}", words(&stdout, &stderr))));
    }
    Ok(Box::new(Running { program, port, child: Some(child), _folder: folder }))
}

fn failed(program: &str, reason: impl Into<String>) -> Error {
    Error::Program { program: program.to_owned(), reason: reason.into() }
}

/// One for each core that the responder has for this.
fn workers(setting: &TrialSettings) -> usize {
    match setting.cpus.len() {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        n => n,
    }
}

/// A file that must not be there yet.
fn write(path: &Path, bytes: &[u8], mode: u32) -> Result<(), Error> {
    let mut open = std::fs::OpenOptions::new();
    let file = open.write(true).create_new(true).mode(mode).open(path);
    file.and_then(|mut file| file.write_all(bytes)).map_err(Error::io("write the server's files"))
}

/// A self-signed certificate for this trial alone.
fn make_certificate(folder: &Path) -> Result<(), Error> {
    let openssl = || failed("openssl", "not installed; run `apt-get install openssl`");
    let mut command = Command::new(which("openssl").ok_or_else(openssl)?);
    command.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]);
    command.args(["-days", "2", "-subj", "/CN=weir", "-keyout", "key.pem", "-out", "certificate.pem"]);
    command.current_dir(folder);
    let output = weir_sys::process::run_with_input(command, b"", PATIENCE)
        .map_err(|e| failed("openssl", e.to_string()))?;
    if output.status.success() { Ok(()) } else { Err(failed("openssl", output.message())) }
}

/// The server's folder. Dropping it removes it.
struct Folder {
    path: PathBuf,
    guard: std::process::Child,
}

impl Folder {
    fn create(cookie: u64, port: u16) -> Result<Self, Error> {
        let name = format!("weir-http-{}-{port}-{cookie:016x}", std::process::id());
        let path = std::env::temp_dir().join(name);
        let plain = |c: char| c.is_ascii_graphic() && !"\"'\\$;{}".contains(c);
        if !path.to_str().is_some_and(|p| p.starts_with('/') && p.chars().all(plain)) {
            return Err(Error::Resources(format!(
                "the folder for temporary files (TMPDIR), {}, cannot be written into a server's configuration: set another",
                path.display().to_string().escape_debug()
            )));
        }
        // A guard first: from its start on the folder is removed. Not by way of the children that are killed with this process.
        let script = r#"while read -r group; do last=$group; done
            if [ -n "$last" ]; then kill -s KILL -- "-$last"; fi
            rm -rf -- "$1""#;
        let mut guard = Command::new("/bin/sh");
        guard.args(["-c", script, "weir-http-guard"]).arg(&path);
        guard.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null());
        // Ctrl-C is for weir, which then ends its trial in its own order.
        guard.process_group(0);
        let guard = guard.spawn().map_err(Error::io("start /bin/sh"))?;
        let folder = Folder { path, guard };
        // The server's workers may run as another user.
        DirBuilder::new()
            .mode(0o711)
            .create(&folder.path)
            .map_err(Error::io("make a folder for the server"))?;
        Ok(folder)
    }

    /// The guard is to end this process group too.
    fn guards(&mut self, group: u32) -> Result<(), Error> {
        let Some(input) = self.guard.stdin.as_mut() else { return Ok(()) };
        writeln!(input, "{group}").map_err(Error::io("tell the guard of the server's folder"))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(self.guard.stdin.take());
        // It ends as soon as its input does; a folder that it could not remove does no harm.
        let _ = self.guard.wait();
    }
}

/// A server of this trial.
struct Running {
    program: &'static str,
    port: u16,
    child: Option<Child>,
    /// Dropped behind the server.
    _folder: Folder,
}

impl Responder for Running {
    fn port(&self) -> u16 {
        self.port
    }

    fn finish(mut self: Box<Self>) -> Result<Part, Error> {
        let program = self.program;
        let mut child = self.child.take().ok_or_else(|| failed(program, "it was finished twice"))?;
        let system = |e: weir_sys::Error| failed(program, e.to_string());
        if let Some(ended) = child.process.try_wait().map_err(system)? {
            let (stdout, stderr) = child.output();
            let words = words(&stdout, &stderr);
            return Err(failed(program, format!("it ended during the trial with {}: {words}", ended.status)));
        }
        let ended = child.process.stop(GRACE).map_err(system)?;
        Ok(Part { cpu_s: ended.cpu.as_secs_f64(), ..Part::default() })
    }
}

/// The server is not ours.
struct Nobody {
    port: u16,
}

impl Responder for Nobody {
    fn port(&self) -> u16 {
        self.port
    }

    fn finish(self: Box<Self>) -> Result<Part, Error> {
        Ok(Part::default())
    }
}
