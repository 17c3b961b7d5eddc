//! A fast path in a host of the lab, kept by this process.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use weir_doctor::recipe::FastPathSetup;
use weir_fastpath::{ExclusionStore, Fastpath, Options, Resident, Setup, Wanted};
use weir_netlink::Rtnetlink;
use weir_sys::NetNs;

use crate::Error;

/// Connections of IPv6 that there is room for: the lab has none.
const NONE: u32 = 64;

/// Dropping it ends the fast path.
#[derive(Debug)]
pub(crate) struct Kept {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<weir_fastpath::Result<()>>>,
}

/// Why this kernel has no fast path; `None` if it has one.
pub(crate) fn why_not() -> Option<String> {
    let options = Options { connections: NONE, connections6: NONE, ..Options::default() };
    match Fastpath::load(options) {
        Err(e) if e.is_missing() => Some(e.to_string()),
        // Another failure is one of the case.
        _ => None,
    }
}

impl Kept {
    /// Begins one between the interfaces of a host.
    pub(crate) fn begin(host: &NetNs, setup: &FastPathSetup) -> Result<Self, Error> {
        let failed = |e: weir_fastpath::Error| Error::Recipe(format!("the fast path: {e}"));
        let begun = host.run(|| -> Result<Resident, Error> {
            let links = Rtnetlink::open()?.links()?;
            let is_meant = |name: &str| name != "lo" && !setup.without.contains(&name);
            let interfaces = links.into_iter().map(|link| link.name).filter(|name| is_meant(name)).collect();
            let excluded: Result<_, String> = setup.excluded.iter().map(|text| text.parse()).collect();
            let wanted = Wanted {
                interfaces,
                connections: setup.connections,
                connections6: NONE,
                packets: setup.packets,
                excluded: excluded.map_err(Error::Recipe)?,
                xdp: Vec::new(),
            };
            // A folder that is not there: what the user of this machine excluded is of no concern here.
            let kept = ExclusionStore::in_folder(Path::new("/nonexistent"));
            Resident::begin(Setup { wanted, trial: None, kept }).map_err(failed)
        });
        let resident = begun??;
        let (ends, namespace) = (Arc::new(AtomicBool::new(false)), host.clone());
        let stop = Arc::clone(&ends);
        let serve = move || namespace.run(|| resident.serve(&stop)).unwrap_or_else(|e| Err(e.into()));
        let thread = std::thread::Builder::new().name("fastpath".into()).spawn(serve);
        let thread = thread.map_err(|e| Error::Recipe(format!("start a thread: {e}")))?;
        Ok(Kept { ends, thread: Some(thread) })
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // It ends with its namespace in any case, and the doctor has seen what there was.
            let _ = thread.join();
        }
    }
}
