//! The scenarios that weir brings along.

use std::path::Path;

use super::{ScenarioError, nearest};

/// Name and text of every built-in scenario.
pub fn built_in() -> &'static [(&'static str, &'static str)] {
    &[
        ("nat-instance", include_str!("../../../../scenarios/nat-instance.toml")),
        ("nat-fastpath", include_str!("../../../../scenarios/nat-fastpath.toml")),
        ("fastpath-xdp", include_str!("../../../../scenarios/fastpath-xdp.toml")),
        ("fastpath-limits", include_str!("../../../../scenarios/fastpath-limits.toml")),
        ("nat-variants", include_str!("../../../../scenarios/nat-variants.toml")),
        ("engines", include_str!("../../../../scenarios/engines.toml")),
        ("nat-rfc", include_str!("../../../../scenarios/nat-rfc.toml")),
        ("nat-curves", include_str!("../../../../scenarios/nat-curves.toml")),
        ("rule-curves", include_str!("../../../../scenarios/rule-curves.toml")),
        ("filter-curves", include_str!("../../../../scenarios/filter-curves.toml")),
        ("country-filter-input", include_str!("../../../../scenarios/country-filter-input.toml")),
        ("packet-engines", include_str!("../../../../scenarios/packet-engines.toml")),
        ("http-engines", include_str!("../../../../scenarios/http-engines.toml")),
        ("docker-nat", include_str!("../../../../scenarios/docker-nat.toml")),
        ("country-filter", include_str!("../../../../scenarios/country-filter.toml")),
        ("gateway-patterns", include_str!("../../../../scenarios/gateway-patterns.toml")),
        ("udp-fragments", include_str!("../../../../scenarios/udp-fragments.toml")),
    ]
}

/// Text of a scenario by the name of a built-in one, or by the path of a file (anything with a `/` or the ending
/// `.toml`), with the origin that messages name.
pub fn find(name_or_path: &str) -> Result<(String, String), ScenarioError> {
    if let Some((name, text)) = built_in().iter().find(|(name, _)| *name == name_or_path) {
        return Ok(((*text).to_owned(), (*name).to_owned()));
    }
    let fail = |what: String, nearest: Option<&str>| ScenarioError {
        origin: name_or_path.to_owned(),
        line: None,
        what,
        nearest: nearest.map(str::to_owned),
    };
    let path = Path::new(name_or_path);
    let names = || built_in().iter().map(|(name, _)| *name);
    if name_or_path.contains('/') || path.extension().is_some_and(|e| e.eq_ignore_ascii_case("toml")) {
        return match std::fs::read_to_string(path) {
            Ok(text) => Ok((text, name_or_path.to_owned())),
            Err(error) => Err(fail(format!("cannot read this scenario file: {error}"), None)),
        };
    }
    let known = names().collect::<Vec<_>>().join(", ");
    let file = if path.is_file() {
        format!("; the file of that name here is read as `./{name_or_path}`")
    } else {
        String::new()
    };
    Err(fail(
        format!("no built-in scenario has that name (known: {known}){file}"),
        nearest(name_or_path, names()),
    ))
}

#[cfg(test)]
mod tests {
    use super::super::{Load, Scenario, WorkloadEntry};
    use super::*;

    #[test]
    fn built_in_scenarios_are_found_by_name() {
        let (text, origin) = find("nat-instance").unwrap();
        assert_eq!(origin, "nat-instance");
        assert!(text.contains("[[variant]]"));
    }

    #[test]
    fn nat_rfc_has_every_procedure_and_rfc2544_those_of_its_section_26() {
        let (text, origin) = find("nat-rfc").unwrap();
        let procedures = |preset: Option<&str>| -> Vec<&str> {
            let mut scenario = Scenario::load(&text, &origin).unwrap();
            preset.map_or(Ok(()), |preset| scenario.apply_preset(preset)).unwrap();
            let of = |w: &WorkloadEntry| match &w.workload {
                Load::Packets(packets) => packets.procedure.name(),
                Load::Sockets(_) => panic!("{}: no single frames", w.name),
            };
            scenario.workloads.iter().map(of).collect()
        };
        let all = procedures(None);
        for name in [
            "rate",
            "throughput",
            "frame-loss",
            "back-to-back",
            "latency",
            "pdv",
            "establishment",
            "establishment-validated",
            "throughput-bidirectional",
            "tear-down",
            "capacity",
        ] {
            assert!(all.contains(&name), "no {name} in {all:?}");
        }
        let rfc2544 = procedures(Some("rfc2544"));
        assert_eq!(rfc2544, ["throughput", "frame-loss", "back-to-back", "latency", "pdv"]);
        let quick = procedures(Some("quick"));
        assert!(quick.contains(&"frame-loss") && quick.contains(&"back-to-back"), "{quick:?}");
    }

    #[test]
    fn a_wrong_name_says_which_are_there() {
        let error = find("nat-instnace").unwrap_err();
        assert_eq!(error.nearest.as_deref(), Some("nat-instance"));
        assert!(error.to_string().contains("engines"), "{error}");
        assert!(
            find("./nat-instance.toml").unwrap_err().to_string().contains("cannot read this scenario file")
        );
        // The directory of the tests is the crate's own.
        let error = find("Cargo.toml").map(|(text, _)| text).unwrap();
        assert!(error.contains("weir-bench"));
        let error = find("src").unwrap_err();
        assert!(!error.to_string().contains("./src"), "a directory is no file: {error}");
    }
}
