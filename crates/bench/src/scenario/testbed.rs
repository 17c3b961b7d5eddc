//! `[testbed]`: the lab, or hosts.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

use serde::Deserialize;
use toml_edit::{Item, Table};
use weir_lab::{Family, LabOptions, Link};
use weir_sys::{ProcRoot, sched};

use super::error::nearest;
use super::problem::{Source, as_table};
use super::section::{Result, Section, split, tables};
use super::{EndHost, GatewayHost, HostAddress, HostsTestbed, LabTestbed, Ports, Testbed, check, kubernetes};

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
struct RawCommon {
    host_sysctls: BTreeMap<String, String>,
    ports: Ports,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RawHosts {
    #[serde(default)]
    family: Option<Family>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RawEnd {
    host: HostAddress,
    address: IpAddr,
    program: Option<PathBuf>,
    #[serde(default)]
    sudo: bool,
    #[serde(default)]
    cpus: Vec<usize>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct RawGateway {
    host: HostAddress,
    program: Option<PathBuf>,
    #[serde(default)]
    sudo: bool,
    inside_interface: String,
    outside_interface: String,
    inside_address: IpAddr,
    outside_address: IpAddr,
    spare_address: Option<IpAddr>,
    #[serde(default)]
    flush_conntrack: bool,
}

/// Reads the section.
pub(super) fn read(source: Source<'_>, table: &Table) -> Result<Testbed> {
    let section = Section { source, table, heading: "[testbed]" };
    let makes = table.get("hosts");
    let kind = table.get("kind").map_or(Some(if makes.is_some() { "hosts" } else { "lab" }), Item::as_str);
    let (own, rest) = split(table, &["host-sysctls", "ports"]);
    let common: RawCommon = section.read(&own, &[], &|_| Ok(()))?;
    let rest = split(&rest, &["kind", "hosts", "link"]).1;
    match kind {
        Some("lab") if makes.is_some() => {
            let what = "hosts: kind = \"lab\" has hosts of its own; write kind = \"hosts\"";
            Err(section.error(Some("hosts"), what.to_owned(), None))
        }
        Some("lab") => lab(&section, &rest, common),
        Some("hosts") if table.contains_key("link") => {
            let what = "link: weir makes links in the lab only; hosts have their own";
            Err(section.error(Some("link"), what.to_owned(), None))
        }
        Some("hosts") => match makes.map(|item| item.as_str().unwrap_or_default()) {
            None | Some("existing") => hosts(&section, &rest, common),
            Some("kubernetes") => kubernetes::read(&section, &rest, (common.host_sysctls, common.ports)),
            Some(other) => {
                let meant = nearest(other, ["existing", "kubernetes"]).map(str::to_owned);
                Err(section.error(Some("hosts"), format!("unknown hosts \"{other}\""), meant))
            }
        },
        other => {
            let written = other.unwrap_or_default();
            let meant = nearest(written, ["lab", "hosts"]).map(str::to_owned);
            Err(section.error(Some("kind"), format!("unknown kind \"{written}\""), meant))
        }
    }
}

fn lab(section: &Section<'_>, rest: &Table, common: RawCommon) -> Result<Testbed> {
    let asks_for_cores = ["cpus", "rps"].iter().any(|key| rest.contains_key(key));
    let online = if asks_for_cores {
        sched::online_cpus(&ProcRoot::new("/")).map_err(|error| {
            section.error(None, format!("cannot tell which cores there are: {error}"), None)
        })?
    } else {
        Vec::new()
    };
    let valid = |options: &LabOptions| options.validate(&online).map_err(|error| error.to_string());
    let options = section.read(rest, &["kind", "hosts", "link", "host-sysctls", "ports"], &valid)?;
    let link = link(section, &options)?;
    Ok(Testbed::Lab(LabTestbed { options, link, host_sysctls: common.host_sysctls, ports: common.ports }))
}

/// `[testbed.link]`.
fn link(testbed: &Section<'_>, options: &LabOptions) -> Result<Link> {
    let Some(item) = testbed.table.get("link") else { return Ok(Link::default()) };
    let Some(table) = as_table(item) else {
        return Err(testbed.error(Some("link"), "`link` must be a table".to_owned(), None));
    };
    let section = Section { source: testbed.source, table: &table, heading: "[testbed.link]" };
    let valid = |link: &Link| link.validate(options.family, options.mtu).map_err(|error| error.to_string());
    section.read(&table, &[], &valid)
}

fn hosts(section: &Section<'_>, rest: &Table, common: RawCommon) -> Result<Testbed> {
    let roles = ["initiator", "gateway", "responder"];
    let (_, own) = split(rest, &roles);
    let all = ["kind", "hosts", "host-sysctls", "ports", "initiator", "gateway", "responder"];
    let raw: RawHosts = section.read(&own, &all, &|_| Ok(()))?;
    let family = raw.family.unwrap_or_default();
    let source = section.source;
    let end = |role: &str| -> Result<Vec<EndHost>> {
        let heading = format!("[testbed.{role}]");
        let tables = tables(source, rest, role)?;
        if tables.is_empty() {
            return Err(section.error(Some("kind"), format!("a testbed of hosts needs {heading}"), None));
        }
        tables
            .iter()
            .map(|table| {
                let end = Section { source, table, heading: &heading };
                let raw: RawEnd =
                    end.read(table, &[], &|raw: &RawEnd| check::family("address", raw.address, family))?;
                let RawEnd { host, address, program, sudo, cpus } = raw;
                Ok(EndHost { host, address, program, sudo, cpus })
            })
            .collect()
    };
    let (initiators, responders) = (end("initiator")?, end("responder")?);
    let gateway = tables(source, rest, "gateway")?;
    if gateway.len() > 1 {
        return Err(section.error(
            Some("gateway"),
            "only one gateway is measured at a time".to_owned(),
            None,
        ));
    }
    let gateway = gateway.first().map(|table| gateway_host(source, table, family)).transpose()?;
    Ok(Testbed::Hosts(HostsTestbed {
        family,
        initiators,
        gateway,
        responders,
        host_sysctls: common.host_sysctls,
        ports: common.ports,
    }))
}

fn gateway_host(source: Source<'_>, table: &Table, family: Family) -> Result<GatewayHost> {
    let section = Section { source, table, heading: "[testbed.gateway]" };
    let valid = |raw: &RawGateway| {
        check::interface("inside-interface", &raw.inside_interface)?;
        check::interface("outside-interface", &raw.outside_interface)?;
        check::family("inside-address", raw.inside_address, family)?;
        check::family("outside-address", raw.outside_address, family)?;
        raw.spare_address.map_or(Ok(()), |address| check::family("spare-address", address, family))
    };
    let raw: RawGateway = section.read(table, &[], &valid)?;
    Ok(GatewayHost {
        host: raw.host,
        program: raw.program,
        sudo: raw.sudo,
        inside_interface: raw.inside_interface,
        outside_interface: raw.outside_interface,
        inside_address: raw.inside_address,
        outside_address: raw.outside_address,
        spare_address: raw.spare_address,
        flush_conntrack: raw.flush_conntrack,
    })
}
