//! Hosts and links built on this machine out of network namespaces and veth pairs.
//!
//! A [`Lab`] has one [`Site`] per variant: initiator, gateway and responder, each a network namespace without a name, with
//! addresses of the blocks reserved for benchmarking. No route leads out of a site. Since nothing has a name, the kernel
//! removes everything when the last process that holds it ends, however it ends; what a killed runner may leave are
//! processes, which the [`registry`] names.

mod error;
mod header;
mod offloads;
mod options;
mod plan;
mod quantity;
mod relay;
mod site;

pub mod emulate;
pub mod impair;
pub mod link;
pub mod registry;

use weir_sys::{ProcRoot, sched, sysctl};

pub use error::Error;
pub use link::Link;
pub use options::{Family, LabOptions, Offloads, Preset, Role};
pub use plan::{Addresses, Topology};
pub use registry::Registry;
pub use site::{Site, SiteSpec};

/// All sites of a run. Dropping it takes them down.
#[derive(Debug)]
pub struct Lab {
    sites: Vec<Site>,
    options: LabOptions,
    online: Vec<usize>,
    registry: Registry,
}

impl Lab {
    /// Builds the sites of a run and enters it in the list of labs on this machine.
    ///
    /// Needs CAP_SYS_ADMIN and CAP_NET_ADMIN: root, or [`registry::enter_user_namespace`] first.
    pub fn build(run: &str, options: &LabOptions, specs: &[SiteSpec]) -> Result<Self, Error> {
        let online = sched::online_cpus(&ProcRoot::new("/"))
            .map_err(|source| Error::Build { site: "cores".into(), source })?;
        options.validate(&online)?;
        for (i, spec) in specs.iter().enumerate() {
            if specs[..i].iter().any(|earlier| earlier.name == spec.name) {
                return Err(Error::Option(format!("two sites are called `{}`", spec.name)));
            }
        }
        let mut sites = Vec::new();
        for spec in specs {
            let site = Site::build(spec, options)
                .map_err(|source| Error::Build { site: spec.name.clone(), source })?;
            sites.push(site);
        }
        let registry = Registry::create(run, &sites)?;
        Ok(Lab { sites, options: options.clone(), online, registry })
    }

    /// The site of that name.
    pub fn site(&self, name: &str) -> Option<&Site> {
        self.sites.iter().find(|site| site.name() == name)
    }

    /// All sites, in the order in which they were asked for.
    pub fn sites(&self) -> &[Site] {
        &self.sites
    }

    /// The options that it was built from.
    pub fn options(&self) -> &LabOptions {
        &self.options
    }

    /// Cores for the load threads of a role.
    pub fn cpus(&self, role: Role) -> Vec<usize> {
        self.options.cpus(role, &self.online)
    }

    /// The lab in one line, for the `testbed` of the run record.
    pub fn describe(&self) -> String {
        self.options.describe(&self.online)
    }

    /// The lab's entry in the list of labs: tell it of every process started in a host.
    pub fn registry(&mut self) -> &mut Registry {
        &mut self.registry
    }
}

impl Drop for Lab {
    fn drop(&mut self) {
        for (_, host) in self.sites.iter().flat_map(Site::hosts) {
            // A closed connection whose last packets are not acknowledged keeps its namespace for up to two minutes (tcp(7),
            // tcp_orphan_retries: 8 by default). The path is gone, so no acknowledgement will come.
            let hurry = || sysctl::set(&ProcRoot::new("/"), "net.ipv4.tcp_orphan_retries", "1");
            // If this fails, the namespace only stays a little longer.
            let _ = host.run(hurry);
        }
    }
}
