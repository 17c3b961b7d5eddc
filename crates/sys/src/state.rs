//! The folders in which weir keeps what it changed on this host.

use std::fs::{self, DirBuilder};
use std::io::{ErrorKind, Result};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::ProcRoot;

/// Their parent folder, unless WEIR_STATE_DIR names another one.
const STATE: &str = "/var/lib/weir";

/// The folder of that name in `$WEIR_STATE_DIR`, else in `/var/lib/weir`. Absolute: a process that rolls back works from
/// another folder than the command that started it.
pub fn folder(name: &str) -> PathBuf {
    let state = std::env::var_os("WEIR_STATE_DIR").filter(|dir| !dir.is_empty());
    let path = PathBuf::from(state.unwrap_or_else(|| STATE.into())).join(name);
    std::path::absolute(&path).unwrap_or(path)
}

/// Makes a folder for this user alone, where it is missing.
///
/// # Errors
/// If the disk refuses.
pub fn make_private(folder: &Path) -> Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(folder)
}

/// Why a folder may not hold what weir puts into the kernel; `None` if only this user can write there.
///
/// # Errors
/// If it cannot be read, or belongs to another user and this one is not root.
pub fn why_not_private(folder: &Path) -> Result<Option<&'static str>> {
    let meta = fs::symlink_metadata(folder)?;
    let own = rustix::process::geteuid().as_raw();
    Ok(match () {
        () if !meta.is_dir() => Some("it is not a folder"),
        () if meta.uid() != own && own != 0 => return Err(ErrorKind::PermissionDenied.into()),
        () if meta.uid() != own => Some("it belongs to another user"),
        () if meta.mode() & 0o022 != 0 => Some("other users may write to it (chmod go-w)"),
        () => None,
    })
}

/// The kernel's name of this boot: another one after each (random(4)).
///
/// # Errors
/// If `/proc` is not there.
pub fn boot_id() -> crate::Result<String> {
    Ok(ProcRoot::default().read("proc/sys/kernel/random/boot_id")?.trim().to_owned())
}
