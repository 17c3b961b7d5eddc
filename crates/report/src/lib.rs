//! Renders a run record: terminal table, self-contained HTML, Markdown, CSV, and the comparison of two runs.
//!
//! Pure: a [`weir_record::Run`] with its results goes in, text comes out. JSON is the record itself.
//! All text that came from outside (names, messages, TOML) is made harmless for the format it is written to.
#![forbid(unsafe_code)]

mod chart;
mod columns;
pub mod compare;
mod csv;
mod curves;
mod diagnosed;
mod escape;
mod failures;
mod faults;
mod flows;
mod gateway;
mod html;
mod markdown;
mod markup;
mod pairs;
mod path;
mod patterns;

mod profile;
pub mod requirements;
mod sentences;
mod setup_cost;
mod spread;
mod summary;
mod terminal;
pub mod units;
mod view;
pub mod words;

pub use compare::{RunComparison, compare_runs, comparison_markdown, comparison_terminal};
pub use csv::{csv_patterns, csv_summary, csv_trials};
pub use failures::everywhere as failing;
pub use flows::{flows_html, flows_terminal};
pub use html::html;
pub use markdown::markdown;
pub use summary::summary;
pub use terminal::{Terminal, terminal};
