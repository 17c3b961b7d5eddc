//! `weir tune`: what to set on this host, why, at what price, and how it is rolled back.
//!
//! | part | what it knows |
//! |---|---|
//! | [`knobs`](self) | every setting that may be changed: bounds, cost, risk |
//! | need | what was measured |
//! | profile, findings | who proposes |
//! | action, wish | a change that is no setting, which the caller brings, and when a plan has a place for it |
//! | beyond | what a plan leaves as it is: out of reach, or a rule of others |
//! | request | what is asked for, and where |
//! | budget | what all of it may take together, and what each takes |
//! | [`plan`](fn@plan), planned | bounds, order: a [`TunePlan`] |
//! | persist | the files that make it last |
//! | [`metric`](fn@metric) | numbers that must not get worse |
//! | watched | which of them for which setting |
//! | [`prove`](mod@prove) | before and after in alternating windows |
//! | [`hidden`] | failures that a load does not print |
//!
//! Planning reads only. Changes are made, confirmed and rolled back by `weir-guard`.

mod action;
mod beyond;
mod budget;
mod findings;
pub mod hidden;
mod knobs;
mod metric;
mod need;
mod persist;
mod plan;
mod planned;
mod profile;
pub mod prove;
mod render;
mod request;
mod watched;
mod wish;

pub use action::Action;
pub use beyond::{Advice, Beyond};
pub use budget::Budget;
pub use findings::LARGEST as LARGEST_FINDINGS;
pub use knobs::Scope;
pub use metric::{Counter, metric};
pub use need::{Lost, Need, View};
pub use plan::plan;
pub use planned::{Row, TunePlan};
pub use profile::Profile;
pub use render::{plan as render_plan, set as render_set, status as render_status};
pub use request::{Request, TunedHost};
pub use watched::{Watched, watches};
pub use wish::{Wish, wish};

/// Why there is no plan.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request cannot be met.
    #[error("{0}")]
    Unfit(String),
    /// The file of findings is none.
    #[error("{name}: {reason}")]
    Findings {
        /// Its name.
        name: String,
        /// Why.
        reason: String,
    },
    /// The system refused.
    #[error(transparent)]
    System(#[from] weir_sys::Error),
}
