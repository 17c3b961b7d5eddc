//! Schemas as the types give them, and the files of `docs/reference/schemas` that ship in their place.

use std::path::Path;

use super::*;
use crate::commands::allow as lists;
use crate::commands::{conntrack, cost, flows, iperf3, lab, mtu, nat, probe, scenario};
use crate::documents::{
    AllowApply, AllowLost, AllowPacket, AllowPlan, AllowStatus, Confirm, FastpathApply, FastpathExplain,
    FastpathStatus, PublishApply, PublishStatus, Remove, Rollback, TuneApply, TuneProve, TuneStatus, of,
    strict,
};

/// The schema of the type that a kind's document is.
fn generated(kind: Kind) -> Value {
    match kind {
        Kind::AllowApply => of::<AllowApply<'_>>(),
        Kind::AllowCheck => of::<lists::Checked>(),
        Kind::AllowDiff => of::<lists::Differences>(),
        Kind::AllowLost => of::<AllowLost>(),
        Kind::AllowPacket => of::<AllowPacket<'_>>(),
        Kind::AllowPlan => of::<AllowPlan<'_>>(),
        Kind::AllowStatus => of::<AllowStatus<'_>>(),
        Kind::AllowUpdate => of::<lists::Updated<'_>>(),
        Kind::Compare => of::<weir_report::RunComparison>(),
        Kind::Confirm => of::<Confirm<'_>>(),
        Kind::Conntrack => of::<conntrack::Reading<'_>>(),
        Kind::Cost => of::<weir_cost::Answer>(),
        Kind::CostPrices => of::<cost::Prices<'_>>(),
        Kind::Doctor => of::<weir_doctor::diagnosis::Diagnosis>(),
        Kind::FastpathApply => of::<FastpathApply<'_>>(),
        Kind::FastpathExplain => of::<FastpathExplain>(),
        Kind::FastpathPlan => of::<weir_fastpath::FastpathPlan>(),
        Kind::FastpathStatus => of::<FastpathStatus<'_>>(),
        Kind::Flows => of::<flows::FlowsReading<'_>>(),
        Kind::LabList => of::<lab::Labs>(),
        Kind::Mtu => of::<mtu::Measured<'_>>(),
        Kind::NatCheck => of::<nat::document::NatCheck>(),
        Kind::NatCheckServer => of::<nat::document::NatCheckServer>(),
        Kind::NatCompare => of::<nat::compare::NatCompare>(),
        Kind::NatLab => of::<nat::document::NatTables>(),
        Kind::NatPorts => of::<nat::document::NatPortsSeen>(),
        Kind::NatRows => of::<nat::rows::Rows>(),
        Kind::Probe => of::<probe::Measurement>(),
        Kind::ProbeIperf3 => of::<weir_iperf3::Report>(),
        Kind::ProbeIperf3Repeats => of::<iperf3::Repeats<'_>>(),
        Kind::PublishApply => of::<PublishApply<'_>>(),
        Kind::PublishPlan => of::<weir_publish::PublishPlan>(),
        Kind::PublishStatus => of::<PublishStatus<'_>>(),
        Kind::Remove => of::<Remove<'_>>(),
        Kind::Rollback => of::<Rollback<'_>>(),
        Kind::Run => weir_record::json_schema(),
        Kind::ScenarioCheck => of::<scenario::Checked<'_>>(),
        Kind::ScenarioList => of::<scenario::BuiltIn<'_>>(),
        Kind::Selftest => of::<weir_selftest::Matrix>(),
        Kind::Serve => of::<weir_probe::Note>(),
        Kind::TuneApply => of::<TuneApply<'_>>(),
        Kind::TunePlan => of::<weir_tune::TunePlan>(),
        Kind::TuneProve => of::<TuneProve<'_>>(),
        Kind::TuneStatus => of::<TuneStatus<'_>>(),
    }
}

#[test]
fn every_schema_is_one_and_is_strict_about_the_mark() {
    for kind in Kind::value_variants().iter().filter(|kind| **kind != Kind::Run) {
        let schema = generated(*kind);
        assert!(jsonschema::meta::is_valid(&schema), "{kind:?}");
        // A kind whose schema is of another kind's document has the other mark.
        assert_eq!(schema["properties"]["schema"]["const"], kind.mark(), "{kind:?}");
        let open = strict::open(&schema);
        assert!(open.is_empty(), "{kind:?} allows unknown keys at {open:?}");
    }
}

/// Writes the files instead if `WEIR_WRITE_SCHEMAS` is set, for `scripts/docs`.
#[test]
fn the_schemas_in_the_program_and_the_documentation_are_those_of_the_types() {
    let folder = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/schemas"));
    let write = std::env::var_os("WEIR_WRITE_SCHEMAS").is_some();
    for kind in Kind::value_variants() {
        let (schema, file) = (generated(*kind), folder.join(format!("{}.json", kind.name())));
        let text = serde_json::to_string_pretty(&schema).unwrap() + "\n";
        if write {
            std::fs::write(file, text).unwrap();
            continue;
        }
        assert!(
            std::fs::read_to_string(&file).is_ok_and(|old| old == text),
            "{}: run `make docs`",
            file.display()
        );
        assert!(of_kind(*kind).is_ok_and(|packed| packed == schema), "{kind:?}");
    }
    let files = std::fs::read_dir(folder).unwrap().count();
    assert_eq!(files, Kind::value_variants().len(), "a schema without a kind");
}
