//! Filters that outlive the process that loaded them.

use std::path::Path;

use crate::kernel::Filter;
use crate::tables::{Loaded, OpenError};

impl Filter {
    /// Pins its programs and tables in a folder of a BPF file system, so that they stay when this process ends. Attachments are
    /// not among them: see [`Filter::attach_apart`].
    ///
    /// # Errors
    /// If there are such names already, or the folder is in no BPF file system.
    pub fn pin(&self, folder: &Path) -> weir_bpf::Result<()> {
        self.kernel.pin(folder)
    }

    /// One that was pinned, to be read. It is attached to nothing as far as this value knows: other lists are loaded beside it, and
    /// put into the place of what is attached ([`Filter::replace`]).
    ///
    /// # Errors
    /// If it is not there as a whole, or was loaded by another version.
    pub fn open_pinned(folder: &Path) -> Result<Self, OpenError> {
        Loaded::open(folder).map(Filter::of)
    }
}
