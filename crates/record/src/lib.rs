//! The record that a run leaves on disk.
//!
//! Pure data: nothing here reads or writes anything but memory. [`Run`] is the whole of `run.json`;
//! [`results::Results`] is what was concluded from it. A reader checks [`Run::schema`] first.
#![forbid(unsafe_code)]

pub mod diagnosed;
pub mod environment;
pub mod fact;
pub mod fault;
pub mod flows;
mod hosts;
pub mod link;
pub mod metric;
pub mod path;
pub mod patterns;
pub mod profile;
mod reserve;
pub mod results;
pub mod run;
pub mod sample;
mod series;
mod summary;
pub mod trial;

pub use diagnosed::{Diagnosed, DiagnosedFinding};
pub use environment::{HostFacts, InterfaceFacts};
pub use fact::VariantFact;
pub use fault::{Fault, FaultCode};
pub use hosts::{Family, Role, Topology};
pub use link::LinkPassed;
pub use metric::{Better, FailureCounts, MetricDef, Scale, Source, Unit};
pub use path::{PathCause, PathFinding};
pub use patterns::{DimensionEffect, Pattern, PatternPlan, Patterns};
pub use profile::{Calls, FunctionSamples, PartSamples, Profile};
pub use reserve::Reserve;
pub use run::{Run, RunPlan, Status, VariantInfo, WorkloadInfo, WorkloadPair};
pub use sample::{CpuTime, HostSample, InterfaceDelta};
pub use series::Series;
pub use summary::Summary;
pub use trial::Trial;

/// Version of the layout of `run.json`. It grows by one with every change that an old reader would misread.
///
/// | version | what changed |
/// |---|---|
/// | 2 | percentiles count operations that did not end; `histograms` may hold objects, figures may be `"infinite"` |
pub const SCHEMA_VERSION: u32 = 2;

/// The JSON schema of `run.json`, as shipped in `docs/reference/schemas/run.json`.
pub fn json_schema() -> serde_json::Value {
    schemars::schema_for!(Run).to_value()
}
