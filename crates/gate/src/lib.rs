//! BPF programs in effect for a limited time, which the kernel itself ends.
//!
//! A [`Gate`] is a program that takes the place of the one that is attached. It hands each packet to the program on trial (a tail
//! call) until a time on the kernel's clock, and from then on to the program before, or lets it go on where none was attached. So a
//! trial ends although every process that watched it was killed. A confirmed program takes the gate's place, and pays nothing for it.
#![forbid(unsafe_code)]

mod pins;

use std::os::fd::AsRawFd;
use std::path::Path;
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use weir_bpf::{Attached, Loader, Map, Object, ProgramFd, Result, if_there, make_folder, remove_folder};

pub use pins::{Found, Link, Pins, Tables, id_of};

/// Constants that the programs in the kernel and this driver share.
#[allow(dead_code, unreachable_pub, reason = "made from the C header")]
mod shared {
    include!(concat!(env!("OUT_DIR"), "/shared.rs"));
}

const OBJECT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/gate.bpf.z"));
/// Names in a folder of the BPF file system. The kernel clears all entries of a map of programs when no process and no name has
/// it.
const NAMES: [&str; 2] = ["programs", "until"];
const PROGRAM: &str = "program";

/// Places in the map of programs.
const TRIAL: u32 = shared::WEIR_TRIAL as u32;
const BEFORE: u32 = shared::WEIR_BEFORE as u32;

/// Which kind of hook it is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// TCX.
    Tc,
    /// XDP.
    Xdp,
}

impl Kind {
    fn program(self) -> &'static str {
        match self {
            Kind::Tc => "gate_tc",
            Kind::Xdp => "gate_xdp",
        }
    }
}

/// A point in time on CLOCK_BOOTTIME, which goes on while the machine sleeps and cannot be set; ns.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Moment(u64);

impl Moment {
    /// So much later than now.
    pub fn after(time: Duration) -> Self {
        let now = clock_gettime(ClockId::Boottime);
        let now = Duration::new(now.tv_sec.unsigned_abs(), u32::try_from(now.tv_nsec).unwrap_or(0));
        Moment(u64::try_from((now + time).as_nanos()).unwrap_or(u64::MAX))
    }

    /// Whether it is to come.
    pub fn is_ahead(self) -> bool {
        self > Moment::after(Duration::ZERO)
    }
}

/// A gate that was loaded.
#[derive(Debug)]
pub struct Gate {
    object: Object,
    kind: Kind,
}

impl Gate {
    /// Loads one. It leads nowhere else before it is attached.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn load(
        kind: Kind,
        until: Moment,
        trial: Option<&ProgramFd>,
        before: Option<&ProgramFd>,
    ) -> Result<Self> {
        let mut loader = Loader::unpack("gate", OBJECT)?;
        // A map of programs belongs to one kind of program.
        let other = if kind == Kind::Tc { Kind::Xdp } else { Kind::Tc };
        loader.without(other.program())?;
        let object = loader.load()?;
        object.map("until")?.set(&0u32, &until.0)?;
        let programs = object.map("programs")?;
        for (place, program) in [(TRIAL, trial), (BEFORE, before)] {
            if let Some(program) = program {
                let descriptor = u32::try_from(program.fd().as_raw_fd()).unwrap_or(u32::MAX);
                programs.set(&place, &descriptor)?;
            }
        }
        Ok(Gate { object, kind })
    }

    /// Returns the program to attach.
    ///
    /// # Errors
    /// If there is no descriptor left.
    pub fn program(&self) -> Result<ProgramFd> {
        self.object.program(self.kind.program())
    }

    /// Pins it in a new folder of a BPF file system. The programs that it leads to need no names of their own.
    ///
    /// # Errors
    /// If there are such names already, or the kernel refuses.
    pub fn pin(&self, folder: &Path) -> Result<()> {
        make_folder(folder)?;
        for name in NAMES {
            self.object.map(name)?.pin(&folder.join(name))?;
        }
        self.program()?.pin(&folder.join(PROGRAM))
    }
}

/// Puts a gate there, with names in that folder: to the program on trial until that time, and then to the one that is attached
/// there now. `link` is the name of the attachment, which is made where nothing is attached.
fn put<E: From<weir_bpf::Error>>(
    kind: Kind,
    until: Moment,
    trial: Option<&ProgramFd>,
    before: Option<Attached>,
    (folder, link): (&Path, &Path),
    attach: impl FnOnce(&ProgramFd) -> std::result::Result<Attached, E>,
) -> std::result::Result<(), E> {
    let program = before.as_ref().map(|b| ProgramFd::by_number(b.describe()?.program)).transpose()?;
    let gate = Gate::load(kind, until, trial, program.as_ref())?;
    if folder.is_dir() {
        remove_folder(folder)?;
    }
    gate.pin(folder)?;
    match before {
        Some(attached) => attached.replace(&gate.program()?)?,
        None => attach(&gate.program()?)?.pin(link)?,
    }
    Ok(())
}

/// A gate as its names tell it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pinned {
    /// Number of its own program.
    pub program: u32,
    /// Number of the program on trial.
    pub trial: Option<u32>,
    /// Number of the program before.
    pub before: Option<u32>,
    /// Until when the one on trial is asked.
    pub until: Moment,
}

impl Pinned {
    /// The one in that folder; `None` if it is not there as a whole, as while another process removes it.
    ///
    /// # Errors
    /// If the kernel does not tell.
    pub fn open(folder: &Path) -> Result<Option<Self>> {
        if_there(Pinned::read(folder))
    }

    fn read(folder: &Path) -> Result<Self> {
        let programs = Map::open_pinned(&folder.join("programs"))?;
        let until = Map::open_pinned(&folder.join("until"))?.get::<u32, u64>(&0)?;
        Ok(Pinned {
            program: ProgramFd::open_pinned(&folder.join(PROGRAM))?.id()?,
            trial: programs.get(&TRIAL)?,
            before: programs.get(&BEFORE)?,
            until: Moment(until.unwrap_or(0)),
        })
    }
}
