//! `--netns` of commands that load something into the kernel: they go on as a whole inside that namespace.

use std::io;
use std::os::unix::process::CommandExt;
use std::process::Command;

use weir_guard::Namespace;
use weir_sys::{NetNs, state};

use super::conntrack::{namespace, namespace_path};
use crate::exit::{CommandResult, Failure, MISSING};

/// Folder of state, which would be shared by all namespaces otherwise.
const STATE: &str = "WEIR_STATE_DIR";
/// A place of the user's choice for what is pinned, which is for one namespace.
const PINS: &str = "WEIR_BPF_DIR";

/// The namespace that a change is made in, after [`enter`].
pub(super) fn entered(name: Option<&str>) -> Result<Namespace, Failure> {
    match name {
        None => Ok(Namespace::own()?),
        Some(name) => Ok(Namespace::at(&namespace(name)?, namespace_path(name))?),
    }
}

/// Goes on in the namespace of `--netns`. This program starts anew there in the same process, so that everything it reads,
/// starts and leaves behind (guards) is in there, with a folder of state per namespace.
pub(super) fn enter(name: Option<&str>) -> CommandResult {
    let Some(name) = name else { return Ok(()) };
    let target: NetNs = namespace(name)?;
    let inode = target.inode().map_err(Failure::failed)?;
    if inode == NetNs::current().and_then(|own| own.inode()).map_err(Failure::failed)? {
        return Ok(());
    }
    if std::env::var_os(PINS).is_some_and(|folder| !folder.is_empty()) {
        return Err(Failure::usage(format!(
            "--netns {name}: {PINS} is the place of one namespace; unset it, and weir uses a folder for each"
        )));
    }
    // The cookie is never used again before a reboot, an inode may be.
    let number = target.cookie().map_err(refused)?.unwrap_or(inode);
    let mut command = Command::new("/proc/self/exe");
    command.arg0("weir").args(std::env::args_os().skip(1));
    command.env(STATE, state::folder("netns").join(number.to_string()));
    target.enter_on_spawn(&mut command);
    Err(unentered(name, &command.exec()))
}

fn refused(error: weir_sys::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::PermissionDenied => Failure::new(MISSING, format!("{error}; run as root")),
        _ => Failure::failed(error),
    }
}

fn unentered(name: &str, error: &io::Error) -> Failure {
    let message = format!("--netns {name}: cannot enter it: {error}");
    match error.kind() {
        io::ErrorKind::PermissionDenied => Failure::new(MISSING, format!("{message}; run as root")),
        io::ErrorKind::InvalidInput => Failure::usage(format!("{message}; is it a network namespace?")),
        _ => Failure::failed(message),
    }
}
