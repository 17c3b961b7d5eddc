//! `weir export`.

use std::fs;
use std::io::ErrorKind;
use std::net::{Ipv4Addr, SocketAddr};
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use weir_allow::Store;
use weir_doctor::collect::Scope;
use weir_export::{
    Access, AccessError, AddressLists, Board, CachedLists, ConntrackTable, Doctor, FastPath, MOST_TARGETS,
    Names, Probes, PublishedPorts, Server, SnatPorts, Source, Tls, Token, begin, flows,
};
use weir_flows::{Options, Watch};
use weir_lists::Cache;
use weir_sys::{NetNs, Stop, file};

use super::conntrack::{namespace, namespace_path, refused};
use super::flows::{failed, options};
use crate::args::{ExportArgs, Without};
use crate::exit::{CommandResult, Failure, MISSING};
use crate::output::printable;
use crate::talk::note;

/// Time between two pages: well below the interval of any scraper.
const EVERY: Duration = Duration::from_secs(2);
/// The address without --listen.
const USUAL: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 9348);

pub(crate) fn run(args: ExportArgs) -> CommandResult {
    let stop = super::stop_on_signals()?;
    if args.probes.len() > MOST_TARGETS {
        return Err(Failure::usage(format!("--probe: at most {MOST_TARGETS} targets")));
    }
    let options = options(&args.tracking)?;
    // In the caller's namespace, also with --netns: there the scraper is.
    let server = start(&args)?;
    let textfile = args.textfile.clone().map(TextFile);
    let export = Export { args, options, server, textfile, stop };
    let Some(name) = export.args.netns.name.clone() else { return export.serve(None).map(|_| ()) };
    loop {
        let inside = namespace(&name)?;
        let scope = inside.clone();
        let inode = inside.inode().map_err(Failure::failed)?;
        let netns =
            NamedNamespace { path: namespace_path(&name), inode, name: name.clone(), namespace: scope };
        let end = inside.run(|| export.serve(Some(netns))).map_err(|e| refused(&e))??;
        match end {
            End::Stopped => return Ok(()),
            End::OtherNamespace => {
                note(&format!("weir: note: {name} is another namespace now: begins again"))
            }
        }
    }
}

/// A server for `--listen`; none if the page goes to a file alone.
fn start(args: &ExportArgs) -> Result<Option<Server>, Failure> {
    let tls = match (&args.tls_cert, &args.tls_key) {
        (Some(certificate), Some(key)) => Some(Tls::read(certificate, key).map_err(unfit)?),
        _ => None,
    };
    let token = args.token_file.as_deref().map(Token::read).transpose().map_err(unfit)?;
    let access = Access { token, tls };
    if args.textfile.is_some() && args.listen.is_none() {
        return match access.is_guarded() {
            true => Err(Failure::usage("--token-file and --tls-cert need --listen if there is --textfile")),
            false => Ok(None),
        };
    }
    let listen = args.listen.unwrap_or(USUAL);
    if access.token.is_some() && access.tls.is_none() && !listen.ip().is_loopback() {
        note("weir: note: without --tls-cert the token crosses the network readable");
    }
    Server::start(listen, access, String::new()).map(Some).map_err(|e| match e.kind() {
        ErrorKind::InvalidInput => {
            Failure::usage(format!("--listen: {e}: --token-file FILE, or --tls-cert FILE --tls-key FILE"))
        }
        ErrorKind::AddrInUse | ErrorKind::AddrNotAvailable | ErrorKind::PermissionDenied => {
            Failure::new(MISSING, format!("cannot listen on {listen}: {e}"))
        }
        _ => Failure::failed(format!("cannot listen on {listen}: {e}")),
    })
}

fn unfit(error: AccessError) -> Failure {
    match error {
        AccessError::Unreadable(..) => Failure::new(MISSING, error),
        error => Failure::usage(error),
    }
}

/// The file of `--textfile`, which goes with weir: figures of the past would be taken for those of now.
struct TextFile(PathBuf);

impl TextFile {
    fn write(&self, page: &str) -> CommandResult {
        // Another user reads it, that of node_exporter.
        file::replace(&self.0, 0o644, page)
            .map_err(|e| Failure::failed(format!("cannot write {}: {e}", self.0.display())))
    }
}

impl Drop for TextFile {
    fn drop(&mut self) {
        // If this fails, node_textfile_mtime_seconds shows its age.
        let _ = file::remove(&self.0);
    }
}

/// The namespace of `--netns`.
struct NamedNamespace {
    path: PathBuf,
    inode: u64,
    name: String,
    namespace: NetNs,
}

impl NamedNamespace {
    /// Whether its name leads to another namespace now. One that is only gone is still watched.
    fn is_replaced(&self) -> bool {
        fs::metadata(&self.path).is_ok_and(|found| found.ino() != self.inode)
    }
}

/// Why the page is no longer made.
enum End {
    Stopped,
    OtherNamespace,
}

struct Export {
    args: ExportArgs,
    /// Read once: its files may be gone when the namespace is made anew.
    options: Options,
    server: Option<Server>,
    textfile: Option<TextFile>,
    stop: Stop,
}

impl Export {
    fn has(&self, source: Without) -> bool {
        !self.args.without.contains(&source)
    }

    /// Makes the page in the calling thread's namespace.
    fn serve(&self, netns: Option<NamedNamespace>) -> Result<End, Failure> {
        let mut tracked = Tracked { watch: None, names: Names::new(self.args.networks) };
        if self.has(Without::Flows) {
            tracked.watch = Some(Watch::start(self.options.clone()).map_err(failed)?);
        }
        let board = Board::start(self.sources(netns.as_ref())?).map_err(Failure::failed)?;
        let mut next = Instant::now();
        let mut is_first = true;
        while !self.stop.raised() {
            if netns.as_ref().is_some_and(NamedNamespace::is_replaced) {
                return Ok(End::OtherNamespace);
            }
            let mut page = begin(env!("CARGO_PKG_VERSION"));
            tracked.write(&mut page)?;
            board.write(&mut page);
            self.show(page.into_text())?;
            for news in board.news() {
                note(&format!("weir: note: {}", printable(&news)));
            }
            if std::mem::take(&mut is_first) {
                self.tell();
            }
            next = (next + EVERY).max(Instant::now());
            super::wait_until(next, &self.stop);
        }
        Ok(End::Stopped)
    }

    fn show(&self, page: String) -> CommandResult {
        if let Some(file) = &self.textfile {
            file.write(&page)?;
        }
        if let Some(server) = &self.server {
            server.show(page);
            match server.refresh() {
                Ok(false) => {}
                Ok(true) => note("weir: note: serves with the new certificate"),
                Err(e) => note(&format!("weir: note: keeps the old certificate: {e}")),
            }
        }
        Ok(())
    }

    fn tell(&self) {
        if let Some(file) = &self.textfile {
            note(&format!("{}; ends with Ctrl-C", file.0.display()));
        }
        if let Some(server) = &self.server {
            let scheme = if self.args.tls_cert.is_some() { "https" } else { "http" };
            note(&format!("{scheme}://{}/metrics; ends with Ctrl-C", server.address()));
        }
    }

    fn sources(&self, netns: Option<&NamedNamespace>) -> Result<Vec<Box<dyn Source>>, Failure> {
        let args = &self.args;
        let mut sources: Vec<Box<dyn Source>> = Vec::new();
        if self.has(Without::Conntrack) {
            sources.push(Box::new(ConntrackTable::default()));
        }
        if self.has(Without::Snat) {
            sources.push(Box::new(SnatPorts::new(args.destinations, self.options.grouping.clone())));
        }
        if self.has(Without::Doctor) {
            let scope = match netns {
                None => Scope::Machine,
                Some(netns) => Scope::These(vec![(netns.name.clone(), netns.namespace.clone())]),
            };
            sources.push(Box::new(Doctor::new(scope, args.doctor_window)));
        }
        if self.has(Without::Fastpath) {
            sources.push(Box::new(FastPath));
        }
        // The state of those two is in a folder per namespace, which is that of this process.
        if self.has(Without::Publish) && netns.is_none() {
            sources.push(Box::new(PublishedPorts::default()));
        }
        if self.has(Without::Allow) && netns.is_none() {
            sources.push(Box::new(AddressLists::new(Store::usual())));
        }
        if self.has(Without::Lists) {
            sources.push(Box::new(CachedLists::new(Cache::usual().map_err(Failure::failed)?)));
        }
        if !args.probes.is_empty() {
            sources.push(Box::new(Probes::new(&args.probes, args.probe_every)));
        }
        Ok(sources)
    }
}

/// The flows that are watched, and the networks that have series.
struct Tracked {
    watch: Option<Watch>,
    names: Names,
}

impl Tracked {
    fn write(&mut self, page: &mut weir_export::Page) -> CommandResult {
        let Some(watch) = &mut self.watch else { return Ok(()) };
        watch.follow_interfaces().map_err(failed)?;
        let reading = watch.read_top(usize::MAX, 0).map_err(failed)?;
        flows(page, &reading, &mut self.names);
        Ok(())
    }
}
