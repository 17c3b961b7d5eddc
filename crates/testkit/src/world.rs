//! A folder, and namespaces, for one test.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use weir_sys::process::{Process, install, run_captured, spawn, which};

use crate::folder::Folder;
use crate::{Background, PATIENCE};

/// Result of a command that ran to its end.
#[derive(Debug)]
pub struct CommandOutput {
    /// Exit code; -1 after a signal.
    pub code: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl CommandOutput {
    /// The same, after making sure of the exit code.
    #[track_caller]
    pub fn expect(self, code: i32) -> Self {
        assert_eq!(self.code, code, "stdout:\n{}\nstderr:\n{}", self.stdout, self.stderr);
        self
    }

    /// Lines of standard error that weir means as its last word.
    pub fn complaints(&self) -> Vec<&str> {
        self.stderr.lines().filter(|l| l.starts_with("weir: ") || l.starts_with("error: ")).collect()
    }
}

/// See the crate.
#[derive(Debug)]
pub struct World {
    folder: Folder,
    binary: PathBuf,
    holder: Option<Process>,
    /// The network namespace of its commands, where that is not the holder's.
    network: Option<PathBuf>,
}

/// Number of a user, and of a group, without any privilege.
const NOBODY: &str = "65534";

/// Variable in which scripts/private-world gives the way back to the machine's own network.
const MACHINE_NETWORK: &str = "WEIR_MACHINE_NETNS";

/// Undo lists, locks and sockets are in `/run`.
const PRIVATE_RUN: &str = "mount -t tmpfs tmpfs /run && mkdir -m 755 /run/sshd";

impl World {
    /// A folder only: for commands that change nothing on the machine.
    pub fn plain(binary: &str) -> World {
        let folder = Folder::new();
        for part in ["home", "work"] {
            fs::create_dir(folder.path().join(part)).unwrap();
        }
        World { folder, binary: binary.into(), holder: None, network: None }
    }

    /// A folder and namespaces. `None`, and the reason printed, where this user may not have them.
    pub fn root(binary: &str) -> Option<World> {
        World::unshared(binary, &["--net"], "ip link set lo up")
    }

    /// Makes a folder and mounts, on the machine's own network: only there can settings of the whole machine be written. The
    /// caller restores them, and sends nothing there. `None`, and the reason printed, without root.
    pub fn machine(binary: &str) -> Option<World> {
        let mut world = World::unshared(binary, &[], "true")?;
        world.network = std::env::var_os(MACHINE_NETWORK).map(PathBuf::from);
        Some(world)
    }

    /// Says why, and returns true, where this user may not have namespaces.
    pub fn lacks_root() -> bool {
        weir_sys::privilege::test_needs_root()
    }

    fn unshared(binary: &str, namespaces: &[&str], setup: &str) -> Option<World> {
        if World::lacks_root() {
            return None;
        }
        if let Some(program) = ["unshare", "nsenter", "ip", "mount"].into_iter().find(|p| which(p).is_none())
        {
            println!("SKIP: needs {program}");
            return None;
        }
        let mut command = Command::new("unshare");
        let script = format!("{PRIVATE_RUN} && {setup} && echo ready && exec cat");
        command.args(["--mount", "--propagation", "private"]).args(namespaces);
        command.args(["--", "sh", "-c", &script]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut holder = spawn(command).unwrap();
        let mut line = String::new();
        BufReader::new(holder.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n", "the namespaces could not be set up");
        let mut world = World::plain(binary);
        world.holder = Some(holder);
        Some(world)
    }

    /// Says which program is not installed, and what brings it, and returns true, unless all are.
    pub fn lacks(programs: &[&str]) -> bool {
        let missing = programs.iter().find(|program| which(program).is_none());
        if let Some(program) = missing {
            println!("SKIP: needs {program} ({})", install(program));
        }
        missing.is_some()
    }

    /// Everything of this world.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Returns the folder in which commands start.
    pub fn work(&self) -> PathBuf {
        self.folder().join("work")
    }

    /// Returns the home folder of this world's user.
    pub fn home(&self) -> PathBuf {
        self.folder().join("home")
    }

    /// Returns the folder with the list of labs.
    pub fn runtime(&self) -> PathBuf {
        self.folder().join("runtime")
    }

    /// The program under test.
    pub fn binary(&self) -> &Path {
        &self.binary
    }

    /// Writes a file into [`World::work`].
    pub fn write(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.work().join(name);
        fs::write(&path, text).unwrap();
        path
    }

    /// A command in this world.
    pub fn command(&self, program: impl AsRef<Path>) -> Command {
        let program = program.as_ref();
        let mut command = match &self.holder {
            None => Command::new(program),
            Some(holder) => {
                let mut command = Command::new("nsenter");
                let network = match &self.network {
                    Some(path) => format!("--net={}", path.display()),
                    None => "--net".to_owned(),
                };
                command.args(["--mount", &network, "--target", &holder.pid().to_string(), "--", "env", "-C"]);
                // Entering a mount namespace changes the working folder.
                command.arg(self.work()).arg(program);
                command
            }
        };
        command.current_dir(self.work());
        for name in [
            "XDG_RUNTIME_DIR",
            "WEIR_SSH",
            "COLUMNS",
            "NO_COLOR",
            "DOCKER_HOST",
            "KUBECONFIG",
            "SSH_AUTH_SOCK",
        ] {
            command.env_remove(name);
        }
        command.env("HOME", self.home()).env("WEIR_RUNTIME_DIR", self.runtime()).env("TERM", "xterm");
        command
    }

    /// `weir` with these arguments.
    pub fn weir(&self, args: &[&str]) -> Command {
        let mut command = self.command(&self.binary);
        command.args(args);
        command
    }

    /// Returns the same command for a user without any privilege. The first call gives that user the world's folder, with a copy
    /// of the program in it: only root may read the folder of the build.
    #[track_caller]
    pub fn weir_as_nobody(&self, args: &[&str]) -> Command {
        let copy = self.folder().join("weir");
        if !copy.exists() {
            fs::copy(&self.binary, &copy).unwrap();
            fs::set_permissions(&copy, fs::Permissions::from_mode(0o755)).unwrap();
            self.sh(&format!("chown -R {NOBODY}:{NOBODY} {}", self.folder().display()));
        }
        let mut command = self.command("setpriv");
        command.args(["--reuid", NOBODY, "--regid", NOBODY, "--clear-groups", "--"]).arg(copy).args(args);
        command
    }

    /// A shell script.
    pub fn shell(&self, script: &str) -> Command {
        let mut command = self.command("sh");
        command.args(["-c", script]);
        command
    }

    /// Runs a command to its end.
    pub fn run(&self, command: Command) -> CommandOutput {
        let output = run_captured(command, PATIENCE).unwrap();
        assert!(!output.truncated, "more output than is kept");
        CommandOutput {
            code: output.status.code().unwrap_or(-1),
            stdout: output.stdout_text(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }

    /// Runs a script that must succeed, and returns what it printed.
    #[track_caller]
    pub fn sh(&self, script: &str) -> String {
        self.run(self.shell(script)).expect(0).stdout
    }

    /// Starts a command; what it prints goes to files of that name.
    pub fn start(&self, name: &str, command: Command) -> Background {
        Background::start(self.folder(), name, command)
    }

    /// Processes of this world that run, with their command lines. The marker is in the environment.
    pub fn processes(&self) -> Vec<(u32, String)> {
        // With what follows the folder's name: number 1 is not number 10.
        let marker = format!("{}/", self.folder().display()).into_bytes();
        let mut found = Vec::new();
        for entry in fs::read_dir("/proc").unwrap().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse::<u32>().ok()) else { continue };
            // It may end at any time; a zombie has no environment.
            let Ok(environment) = fs::read(entry.path().join("environ")) else { continue };
            if environment.windows(marker.len()).any(|w| w == marker.as_slice()) {
                let line = fs::read(entry.path().join("cmdline")).unwrap_or_default();
                found.push((pid, String::from_utf8_lossy(&line).replace('\0', " ")));
            }
        }
        found
    }

    /// Waits until nothing runs in this world any more.
    #[track_caller]
    pub fn wait_until_idle(&self) {
        let deadline = std::time::Instant::now() + crate::PATIENCE;
        while !self.processes().is_empty() {
            assert!(std::time::Instant::now() < deadline, "still running: {:?}", self.processes());
            std::thread::sleep(std::time::Duration::from_millis(20));
        }
    }

    /// Names of everything below [`World::work`], but for what the test put there.
    pub fn left_behind(&self, own: &[&str]) -> Vec<String> {
        let names = fs::read_dir(self.work()).unwrap().flatten();
        let names = names.map(|e| e.file_name().to_string_lossy().into_owned());
        names.filter(|n| !own.contains(&n.as_str())).collect()
    }

    /// Files in the list of labs.
    pub fn labs(&self) -> Vec<String> {
        self.runtime_files(".json")
    }

    /// Returns the lists of changes that are not undone yet.
    pub fn undo_lists(&self) -> Vec<String> {
        self.runtime_files(".journal")
    }

    fn runtime_files(&self, ending: &str) -> Vec<String> {
        let Ok(entries) = fs::read_dir(self.runtime()) else { return Vec::new() };
        let names = entries.flatten().map(|e| e.file_name().to_string_lossy().into_owned());
        names.filter(|n| n.ends_with(ending)).collect()
    }
}

impl Drop for World {
    fn drop(&mut self) {
        drop(self.holder.take());
        // A test that failed may not have come to the point where these end.
        for (pid, _) in self.processes() {
            let _ = Command::new("kill").args(["-s", "KILL", &pid.to_string()]).status();
        }
    }
}
