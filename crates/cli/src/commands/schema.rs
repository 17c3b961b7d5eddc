//! `weir schema`: the kinds of JSON documents, and the schema of each.

use clap::ValueEnum;
use serde_json::Value;

use super::allow as lists;
use super::{conntrack, cost, flows, iperf3, lab, mtu, nat, probe, scenario};
use crate::documents::{
    AllowApply, AllowLost, AllowPacket, AllowPlan, AllowStatus, Confirm, FastpathApply, FastpathExplain,
    FastpathStatus, Kind, PublishApply, PublishStatus, Remove, Rollback, TuneApply, TuneProve, TuneStatus,
    of, print_value,
};
use crate::exit::CommandResult;
use crate::output::print;

/// `weir schema`.
pub(crate) fn run(kind: Option<Kind>) -> CommandResult {
    match kind {
        Some(kind) => print_value(&of_kind(kind)),
        None => print(&listing()),
    }
}

/// Each kind with the commands that print it.
fn listing() -> String {
    let widest = Kind::value_variants().iter().map(|kind| kind.name().len()).max().unwrap_or_default();
    let row = |kind: &Kind| {
        let commands: Vec<String> = kind.commands().iter().map(|words| format!("weir {words}")).collect();
        format!("{:<widest$}  {}\n", kind.name(), commands.join(", "))
    };
    Kind::value_variants().iter().map(row).collect()
}

/// Its JSON Schema (draft 2020-12).
pub(crate) fn of_kind(kind: Kind) -> Value {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::documents::strict;

    #[test]
    fn every_schema_is_one_and_is_strict_about_the_mark() {
        for kind in Kind::value_variants().iter().filter(|kind| **kind != Kind::Run) {
            let schema = of_kind(*kind);
            assert!(jsonschema::meta::is_valid(&schema), "{kind:?}");
            // A kind whose schema is of another kind's document has the other mark.
            assert_eq!(schema["properties"]["schema"]["const"], kind.mark(), "{kind:?}");
            let open = strict::open(&schema);
            assert!(open.is_empty(), "{kind:?} allows unknown keys at {open:?}");
        }
    }
}
