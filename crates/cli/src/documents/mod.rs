//! JSON documents: every one that a command prints has a kind, and every kind has a schema that `weir schema` prints.
//!
//! A document is printed only through [`Document`], so that none can be without a kind, and a kind without a schema does not
//! compile. The one exception is the record of a run, whose `schema` is a number: records on disk have it.

mod allow;
mod fastpath;
mod publish;
#[cfg(test)]
pub(crate) mod strict;
mod trial;
mod tune;

use clap::ValueEnum;
use schemars::JsonSchema;
use serde::Serialize;
use weir_text::json::indented;

use crate::exit::{CommandResult, Failure};
use crate::output::print;

pub(crate) use allow::{AllowApply, AllowLost, AllowPacket, AllowPlan, AllowStatus, Loaded, Policy};
pub(crate) use fastpath::{FastpathApply, FastpathExplain, FastpathStatus};
pub(crate) use publish::{Container, Count, PublishApply, PublishStatus, TuneSet};
pub(crate) use trial::{Confirm, Remove, Rollback, Set, StatusSet};
pub(crate) use tune::{TuneApply, TuneProve, TuneStatus};

/// Version of every document's layout. A kind whose readers must change gets a greater one of its own.
const VERSION: u32 = 1;

/// The shape of a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(crate) enum Kind {
    /// Load the lists
    AllowApply,
    /// Lines about an address in the lists
    AllowCheck,
    /// Addresses that a list adds and removes
    AllowDiff,
    /// Number of packets that --follow could not show
    AllowLost,
    /// A refused or logged packet; one line each
    AllowPacket,
    /// The lists that apply would load
    AllowPlan,
    /// The loaded lists and their counters
    AllowStatus,
    /// The cached lists
    AllowUpdate,
    /// Two runs compared
    Compare,
    /// A change set that was confirmed
    Confirm,
    /// The connection-tracking table; with --watch one line per reading
    Conntrack,
    /// Bills and break-even traffic
    Cost,
    /// The known prices
    CostPrices,
    /// Findings, loss and evidence sources; with --watch one line per window
    Doctor,
    /// The fast path that was applied
    FastpathApply,
    /// Whether packets of a flow are carried, and why not
    FastpathExplain,
    /// The flows that would be carried, and the rules that would see less
    FastpathPlan,
    /// The share that is carried, and why the rest is not
    FastpathStatus,
    /// TCP that passed this host, by network and flow; without --once one line per second
    Flows,
    /// The labs on this machine
    LabList,
    /// Path MTU, fragments, findings
    Mtu,
    /// Mapping and filtering of the NAT in front of this host, by a STUN server
    NatCheck,
    /// The NAT in front of this host and its verdicts, row by row
    NatCheckServer,
    /// Verdicts that differ between two saved results
    NatCompare,
    /// Gateways of the lab and their verdicts, row by row
    NatLab,
    /// How the NAT in front of this host chooses ports
    NatPorts,
    /// The rows of the table of a NAT
    NatRows,
    /// A measurement; with --watch one line each
    Probe,
    /// A test of an iperf3 server; with --watch one line each
    ProbeIperf3,
    /// Several tests of an iperf3 server
    ProbeIperf3Repeats,
    /// The mappings that were applied
    PublishApply,
    /// Published ports, and which of them BPF can forward
    PublishPlan,
    /// The mappings in effect and their counters
    PublishStatus,
    /// Names of what was removed
    Remove,
    /// A change set that was rolled back
    Rollback,
    /// The record of a run (run.json); its `schema` is a number
    Run,
    /// A valid scenario and its duration
    ScenarioCheck,
    /// The built-in scenarios
    ScenarioList,
    /// Cases of the doctor's self-test and their first findings
    Selftest,
    /// The activity of one client; one line each
    Serve,
    /// The plan and the change set of it
    TuneApply,
    /// Settings to change, with reasons and prices
    TunePlan,
    /// A change measured in alternating windows
    TuneProve,
    /// The last change set, and how things are now
    TuneStatus,
}

impl Kind {
    /// As it is written on the command line.
    pub(crate) fn name(self) -> String {
        self.to_possible_value().map_or_else(String::new, |value| value.get_name().to_owned())
    }

    /// Value of the document's key `schema`.
    pub(crate) fn mark(self) -> String {
        format!("weir.{}/{VERSION}", self.name())
    }

    /// Commands that print it with `--json`: the one of its name, or those named here.
    pub(crate) fn commands(self) -> Vec<String> {
        let one = match self {
            Kind::Confirm | Kind::Remove | Kind::Rollback => {
                return ["tune", "allow", "publish", "fastpath"]
                    .map(|by| format!("{by} {}", self.name()))
                    .into();
            }
            Kind::Run => return vec!["bench".to_owned(), "report".to_owned()],
            Kind::AllowLost | Kind::AllowPacket => "allow status --follow",
            Kind::CostPrices => "cost --list",
            Kind::NatCheck => "nat check --stun",
            Kind::NatCheckServer => "nat check",
            Kind::ProbeIperf3 => "probe --iperf3",
            Kind::ProbeIperf3Repeats => "probe --iperf3 --repeat",
            Kind::Selftest => "doctor selftest",
            other => return vec![other.name().replace('-', " ")],
        };
        vec![one.to_owned()]
    }
}

/// The output of a command with `--json`: an object whose first key names its kind.
pub(crate) trait Document: Serialize + JsonSchema {
    /// Its kind.
    const KIND: Kind;
}

/// Names the documents here and those of other crates; a command's own stand in its file.
macro_rules! documents {
    ($($kind:ident: $type:ty,)+) => {
        $(impl Document for $type {
            const KIND: Kind = Kind::$kind;
        })+
    };
}

documents! {
    AllowApply: AllowApply<'_>,
    AllowLost: AllowLost,
    AllowPacket: AllowPacket<'_>,
    AllowPlan: AllowPlan<'_>,
    AllowStatus: AllowStatus<'_>,
    Compare: weir_report::RunComparison,
    Confirm: Confirm<'_>,
    Cost: weir_cost::Answer,
    Doctor: weir_doctor::diagnosis::Diagnosis,
    FastpathApply: FastpathApply<'_>,
    FastpathExplain: FastpathExplain,
    FastpathPlan: weir_fastpath::FastpathPlan,
    FastpathStatus: FastpathStatus<'_>,
    ProbeIperf3: weir_iperf3::Report,
    PublishApply: PublishApply<'_>,
    PublishPlan: weir_publish::PublishPlan,
    PublishStatus: PublishStatus<'_>,
    Remove: Remove<'_>,
    Rollback: Rollback<'_>,
    Selftest: weir_selftest::Matrix,
    Serve: weir_probe::Note,
    TuneApply: TuneApply<'_>,
    TunePlan: weir_tune::TunePlan,
    TuneProve: TuneProve<'_>,
    TuneStatus: TuneStatus<'_>,
}

/// A document with its kind before it.
#[derive(Serialize)]
struct Marked<'a, D: Document> {
    schema: String,
    #[serde(flatten)]
    document: &'a D,
}

impl<'a, D: Document> Marked<'a, D> {
    fn new(document: &'a D) -> Self {
        Marked { schema: D::KIND.mark(), document }
    }
}

/// Prints a document over several lines.
pub(crate) fn print_json(document: &impl Document) -> CommandResult {
    print(&text(document)?)
}

/// A document over several lines.
///
/// # Errors
/// If a value of it has no form in JSON.
pub(crate) fn text(document: &impl Document) -> Result<String, Failure> {
    page(&Marked::new(document))
}

/// Prints a record or a schema, which are no documents of ours.
pub(crate) fn print_value(value: &impl Serialize) -> CommandResult {
    print(&page(value)?)
}

/// A value over several lines, with the end of the last one.
///
/// # Errors
/// If it has no form in JSON.
pub(crate) fn page(value: &impl Serialize) -> Result<String, Failure> {
    let compact = serde_json::to_string(value).map_err(Failure::failed)?;
    Ok(indented(&compact) + "\n")
}

/// A document as one line, with its end.
///
/// # Errors
/// If a value of it has no form in JSON.
pub(crate) fn line(document: &impl Document) -> Result<String, Failure> {
    serde_json::to_string(&Marked::new(document)).map(|text| text + "\n").map_err(Failure::failed)
}

/// Prints a document as one line.
pub(crate) fn print_line(document: &impl Document) -> CommandResult {
    print(&line(document)?)
}

/// The schema of a document, strict about keys that it does not know.
#[cfg(test)]
pub(crate) fn of<D: Document>() -> serde_json::Value {
    use serde_json::json;

    let generator = schemars::generate::SchemaSettings::draft2020_12().for_serialize().into_generator();
    let mut schema = generator.into_root_schema_for::<D>().to_value();
    let mark = D::KIND.mark();
    schema["title"] = json!(mark);
    schema["properties"]["schema"] =
        json!({ "description": "Kind and version of this document", "const": mark });
    let mut required = vec![json!("schema")];
    required.extend(schema["required"].as_array().into_iter().flatten().cloned());
    schema["required"] = required.into();
    strict::close(&mut schema);
    schema
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kind_comes_first_in_every_form() {
        let removed = Remove { removed: &["a".to_owned()] };
        assert_eq!(line(&removed).ok().unwrap(), "{\"schema\":\"weir.remove/1\",\"removed\":[\"a\"]}\n");
    }
}
