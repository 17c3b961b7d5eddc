//! One change of a host: how it is read, made and rolled back.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use weir_sys::process::{run_with_input, which};
use weir_sys::{NetNs, ProcRoot, file, sysctl};

use crate::error::{Error, at, unfit};
use crate::fingerprint;
use crate::step;
use crate::step_state::StepState;

/// A program with its arguments, and what it reads on standard input. No shell is involved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Program {
    /// Program and arguments.
    pub argv: Vec<String>,
    /// Standard input.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub stdin: String,
}

impl Program {
    /// Without standard input.
    pub fn new<S: Into<String>>(argv: impl IntoIterator<Item = S>) -> Self {
        Program { argv: argv.into_iter().map(Into::into).collect(), stdin: String::new() }
    }
}

/// A change: its target and the new value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Change {
    /// A kernel setting.
    Sysctl {
        /// Dotted name; a slash stands for a dot in an interface's name.
        name: String,
        /// The value to be.
        value: String,
        /// True for one of the whole machine: it is written from the network namespace that the command runs in, whatever the
        /// set's own is.
        machine: bool,
    },
    /// A file of the kernel's below `/sys` or `/proc/sys`, with one value.
    KernelFile {
        /// Its path.
        path: PathBuf,
        /// The value to be.
        value: String,
    },
    /// An ordinary file that is ours as a whole; it outlives a reboot.
    TextFile {
        /// Its path.
        path: PathBuf,
        /// Its new content; `None`: the file must not exist.
        text: Option<String>,
    },
    /// Something that programs change: a rule set, a setting of a device.
    Commands {
        /// Its name.
        name: String,
        /// Makes it. All of it or nothing, if that can be had.
        apply: Program,
        /// Takes it back; must do no harm when only a part of it is there, or nothing.
        undo: Program,
        /// Run by `confirm`: makes it last, where the kernel else ends it by itself a moment after the trial's time. `None`: it lasts
        /// from the beginning.
        confirm: Option<Program>,
        /// Prints the state of the target, and nothing that changes by itself (no counters). Its exit code belongs to the state:
        /// a failure may mean that a rule set does not exist.
        read: Program,
        /// Longest time that one of them may take, s.
        limit_s: u64,
        /// False for what is in the kernel's memory only.
        outlives_reboot: bool,
    },
}

/// The host on which changes are made.
#[derive(Debug)]
pub(crate) struct Host<'a> {
    /// `/`, but in tests.
    pub(crate) root: &'a ProcRoot,
    /// Namespace of settings and programs.
    pub(crate) namespace: Option<NetNs>,
}

impl Host<'_> {
    /// In the namespace, but for what belongs to the machine.
    fn inside<T: Send>(
        &self,
        machine: bool,
        f: impl FnOnce() -> Result<T, Error> + Send,
    ) -> Result<T, Error> {
        match &self.namespace {
            Some(namespace) if !machine => namespace.run(f)?,
            _ => f(),
        }
    }

    fn run(&self, program: &Program, limit_s: u64) -> Result<(Option<i32>, String, String), Error> {
        let (name, rest) = program.argv.split_first().ok_or_else(|| unfit("a command", "it has no words"))?;
        let path = which(name).ok_or_else(|| unfit(name, "there is no such program here"))?;
        let mut command = Command::new(path);
        // The guard does not parse messages, but it compares states: they must not depend on the caller.
        command.args(rest).env("LC_ALL", "C");
        if let Some(namespace) = &self.namespace {
            namespace.enter_on_spawn(&mut command);
        }
        let output = run_with_input(command, program.stdin.as_bytes(), Duration::from_secs(limit_s))?;
        Ok((output.status.code(), output.stdout_text(), output.message()))
    }
}

impl Change {
    /// Returns the name of the target, for people.
    pub fn target(&self) -> String {
        match self {
            Change::Sysctl { name, .. } => name.clone(),
            Change::KernelFile { path, .. } | Change::TextFile { path, .. } => path.display().to_string(),
            Change::Commands { name, .. } => name.clone(),
        }
    }

    /// The value that it is to have, as far as that is known before.
    pub fn wanted(&self) -> Option<&str> {
        match self {
            Change::Sysctl { value, .. } | Change::KernelFile { value, .. } => Some(value),
            Change::TextFile { text, .. } => text.as_deref(),
            Change::Commands { .. } => None,
        }
    }

    /// True if the kernel ends it by itself unless it is confirmed.
    pub fn ends_by_itself(&self) -> bool {
        matches!(self, Change::Commands { confirm: Some(_), .. })
    }

    /// Makes it last.
    pub(crate) fn make_last(&self, host: &Host<'_>) -> Result<(), Error> {
        if let Change::Commands { confirm: Some(confirm), limit_s, .. } = self {
            succeed(host, confirm, *limit_s)?;
            step::passed();
        }
        Ok(())
    }

    /// True for what is in the set's network namespace, and gone with it.
    pub(crate) fn is_in_namespace(&self) -> bool {
        matches!(self, Change::Sysctl { machine: false, .. } | Change::Commands { .. })
    }

    /// False for what a reboot rolls back by itself.
    pub fn outlives_reboot(&self) -> bool {
        match self {
            Change::Sysctl { .. } | Change::KernelFile { .. } => false,
            Change::TextFile { .. } => true,
            Change::Commands { outlives_reboot, .. } => *outlives_reboot,
        }
    }

    /// Refuses targets that no caller may write.
    pub(crate) fn check(&self, host: &Host<'_>) -> Result<(), Error> {
        let plain = |path: &Path| {
            path.is_absolute()
                && path.components().all(|c| matches!(c, Component::RootDir | Component::Normal(_)))
        };
        match self {
            Change::KernelFile { path, .. }
                if !(plain(path) && (path.starts_with("/sys") || path.starts_with("/proc/sys"))) =>
            {
                Err(unfit(self.target(), "not a path below /sys or /proc/sys"))
            }
            Change::TextFile { path, .. } => {
                if !plain(path) {
                    return Err(unfit(self.target(), "not an absolute path"));
                }
                let folder = host.root.path(&folder_of(path).to_string_lossy());
                if !folder.is_dir() {
                    return Err(unfit(self.target(), format!("there is no folder {}", folder.display())));
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// The value now; `None` where it does not exist.
    pub(crate) fn read(&self, host: &Host<'_>) -> Result<Option<String>, Error> {
        match self {
            Change::Sysctl { name, machine, .. } => {
                host.inside(*machine, || Ok(sysctl::get_optional(host.root, name)?))
            }
            Change::KernelFile { path, .. } => {
                let path = host.root.path(&path.to_string_lossy());
                let text = file::found(fs::read_to_string(&path)).map_err(at(&path))?;
                Ok(text.map(|text| text.trim_end_matches('\n').to_owned()))
            }
            Change::TextFile { path, .. } => read_text(&host.root.path(&path.to_string_lossy())),
            Change::Commands { read, limit_s, .. } => {
                let (code, printed, _) = host.run(read, *limit_s)?;
                // A rule set may have megabytes: only its fingerprint is compared.
                let code = code.map_or("signal".to_owned(), |c| c.to_string());
                Ok(Some(format!("{}/{code}", fingerprint(&printed))))
            }
        }
    }

    /// Makes it.
    pub(crate) fn make(&self, host: &Host<'_>) -> Result<(), Error> {
        match self {
            Change::Commands { apply, limit_s, .. } => succeed(host, apply, *limit_s)?,
            Change::Sysctl { value, .. } | Change::KernelFile { value, .. } => {
                self.write(host, Some(value))?
            }
            Change::TextFile { text, .. } => self.write(host, text.as_deref())?,
        }
        step::passed();
        Ok(())
    }

    /// Puts the value before back.
    pub(crate) fn unmake(&self, host: &Host<'_>, old: Option<&str>) -> Result<(), Error> {
        match self {
            Change::Commands { undo, limit_s, .. } => succeed(host, undo, *limit_s)?,
            _ => self.write(host, old)?,
        }
        step::passed();
        Ok(())
    }

    fn write(&self, host: &Host<'_>, value: Option<&str>) -> Result<(), Error> {
        match (self, value) {
            (Change::Sysctl { name, machine, .. }, Some(value)) => {
                host.inside(*machine, || Ok(sysctl::set(host.root, name, value)?))
            }
            (Change::KernelFile { path, .. }, Some(value)) => {
                let path = host.root.path(&path.to_string_lossy());
                // Never creates one: under /sys that fails anyway, under the root of a test it would not.
                let opened = OpenOptions::new().write(true).open(&path);
                opened.and_then(|mut file| file.write_all(value.as_bytes())).map_err(at(&path))
            }
            (Change::TextFile { path, .. }, text) => {
                replace_text(&host.root.path(&path.to_string_lossy()), text)
            }
            (Change::Sysctl { .. } | Change::KernelFile { .. }, None) | (Change::Commands { .. }, _) => {
                Err(unfit(self.target(), "there is no value to write"))
            }
        }
    }

    /// Whether two values are the same: the kernel prints tabs where people write spaces.
    pub(crate) fn same(&self, a: Option<&str>, b: Option<&str>) -> bool {
        match (self, a, b) {
            (Change::Sysctl { .. } | Change::KernelFile { .. }, Some(a), Some(b)) => {
                a.split_whitespace().eq(b.split_whitespace())
            }
            _ => a == b,
        }
    }

    /// Whether the value that is there now is what we made.
    pub(crate) fn is_ours(&self, state: &StepState, now: Option<&str>) -> bool {
        match (state, self) {
            (StepState::Applied { made }, _) => self.same(now, made.as_deref()),
            // Killed between the program and the note of what it made: whatever is there then is taken for ours.
            (StepState::Writing, Change::Commands { .. }) => true,
            // Killed while a program undid it: half of it may be gone.
            (StepState::Undoing { .. }, Change::Commands { .. }) => true,
            (StepState::Undoing { before }, _) => self.is_ours(before, now),
            (StepState::Writing, _) => self.same(now, self.wanted()),
            _ => false,
        }
    }
}

fn succeed(host: &Host<'_>, program: &Program, limit_s: u64) -> Result<(), Error> {
    match host.run(program, limit_s)? {
        (Some(0), ..) => Ok(()),
        (_, _, message) => Err(unfit(program.argv.join(" "), message)),
    }
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("/"))
}

/// Reads a file of weir's; a symbolic link is another program's work and is not followed.
fn read_text(path: &Path) -> Result<Option<String>, Error> {
    match file::found(fs::symlink_metadata(path)).map_err(at(path))? {
        None => Ok(None),
        Some(meta) if !meta.is_file() || meta.uid() != rustix::process::geteuid().as_raw() => {
            Err(unfit(path.display().to_string(), "not an ordinary file of this user; weir leaves it alone"))
        }
        Some(_) => Ok(Some(fs::read_to_string(path).map_err(at(path))?)),
    }
}

/// Writes beside the file and renames, so that a full disk or a crash leaves the old one whole.
fn replace_text(path: &Path, text: Option<&str>) -> Result<(), Error> {
    let Some(text) = text else {
        return file::remove(path).and_then(|()| file::sync_folder_of(path)).map_err(at(path));
    };
    let draft = file::Draft::write(path, 0o644, text).map_err(at(path))?;
    step::passed();
    draft.replace().map_err(at(path))
}
