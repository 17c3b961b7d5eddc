//! Folders of a BPF file system with what is pinned there.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::attach::Attached;
use crate::{Error, Result};

/// Most folders of one name that are looked for a free number.
const MOST: u32 = 100;

/// Returns the names in a folder, in order; empty if the folder does not exist.
///
/// # Errors
/// If it cannot be read.
pub fn names_in(folder: &Path) -> Result<Vec<String>> {
    let entries = match fs::read_dir(folder) {
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries.map_err(refused("list", folder))?,
    };
    let mut names: Vec<String> =
        entries.flatten().map(|e| e.file_name().to_string_lossy().into_owned()).collect();
    names.sort_unstable();
    Ok(names)
}

/// Makes a folder, and those above it.
///
/// # Errors
/// If the kernel refuses.
pub fn make_folder(folder: &Path) -> Result<()> {
    fs::create_dir_all(folder).map_err(refused("make", folder))
}

/// Makes a new folder whose name begins with those words, and says which. No dot may be in them: the file system keeps such names
/// for itself (bpf_lookup, kernel/bpf/inode.c).
///
/// # Errors
/// If the kernel refuses, or a hundred folders of that name exist.
pub fn new_folder(above: &Path, name: &str) -> Result<PathBuf> {
    for n in 0..MOST {
        let path = above.join(format!("{name}-{n}"));
        match fs::create_dir(&path) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            made => return made.map(|()| path.clone()).map_err(refused("make", &path)),
        }
    }
    let full = io::Error::other("it is full of old tables, which `remove` clears away");
    Err(refused("make a folder in", above)(full))
}

/// Removes a folder with all that is pinned in it, and in the folders below it.
///
/// # Errors
/// If the kernel refuses.
pub fn remove_folder(folder: &Path) -> Result<()> {
    for name in names_in(folder)? {
        let path = folder.join(name);
        if path.is_dir() {
            remove_folder(&path)?;
        } else {
            fs::remove_file(&path).map_err(refused("remove", &path))?;
        }
    }
    fs::remove_dir(folder).map_err(refused("remove", folder))
}

/// Detaches what is pinned under that name, and takes the name away.
///
/// # Errors
/// If the kernel refuses. The name is gone nevertheless, if it can be taken away.
pub fn detach_pinned(link: &Path) -> Result<()> {
    // The name must go whatever the kernel says of what is behind it.
    let detached = Attached::open_pinned(link).and_then(Attached::detach);
    fs::remove_file(link).map_err(refused("remove", link))?;
    detached
}

fn refused(what: &str, path: &Path) -> impl FnOnce(io::Error) -> Error {
    let what = format!("{what} {}", path.display());
    move |e| Error::new(what, e, "")
}
