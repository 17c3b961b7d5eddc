//! `weir export`.

use std::io::ErrorKind;
use std::time::{Duration, Instant};

use weir_export::{Conntrack, Names, Server, page};
use weir_flows::Watch;
use weir_sys::Stop;

use super::conntrack::{namespace, refused};
use super::flows::failed;
use crate::args::ExportArgs;
use crate::exit::{CommandResult, Failure, MISSING};
use crate::talk::note;

/// Time between two readings: well below the interval of any scraper.
const EVERY: Duration = Duration::from_secs(2);

pub(crate) fn run(args: ExportArgs) -> CommandResult {
    let stop = super::stop_on_signals()?;
    // In the caller's namespace, also with --netns: there the scraper is.
    let server = Server::start(args.listen, String::new()).map_err(|e| match e.kind() {
        ErrorKind::InvalidInput => Failure::usage(format!("--listen: {e}")),
        ErrorKind::AddrInUse | ErrorKind::PermissionDenied => {
            Failure::new(MISSING, format!("cannot listen on {}: {e}", args.listen))
        }
        _ => Failure::failed(format!("cannot listen on {}: {e}", args.listen)),
    })?;
    match args.netns.name.clone() {
        None => serve(&args, &server, &stop),
        Some(name) => namespace(&name)?.run(move || serve(&args, &server, &stop)).map_err(|e| refused(&e))?,
    }
}

fn serve(args: &ExportArgs, server: &Server, stop: &Stop) -> CommandResult {
    let mut watch = Watch::start(args.tracking.options()).map_err(failed)?;
    let mut names = Names::new(args.networks);
    let mut next = Instant::now();
    let mut is_first = true;
    while !stop.raised() {
        let reading = watch.read_top(usize::MAX, 0).map_err(failed)?;
        server.show(page(env!("CARGO_PKG_VERSION"), &reading, fill(), &mut names));
        if std::mem::take(&mut is_first) {
            note(&format!("http://{}/metrics; ends with Ctrl-C", server.address()));
        }
        next = (next + EVERY).max(Instant::now());
        super::wait_until(next, stop);
    }
    Ok(())
}

/// The fill of the calling thread's table; none where there is no connection tracking.
fn fill() -> Option<Conntrack> {
    let read = |name: &str| -> Option<u64> {
        let path = format!("/proc/sys/net/netfilter/{name}");
        std::fs::read_to_string(path).ok()?.trim().parse().ok()
    };
    Some(Conntrack { entries: read("nf_conntrack_count")?, limit: read("nf_conntrack_max")? })
}
