//! The behaviour of a NAT, measured from both of its sides and judged by the RFCs (4787, 5382, 5508, 7857).
//!
//! Sending and judging are separate. [`experiments`] send packets through [`Ends`], which is the NAT's inside and outside at
//! once, and fill [`Observations`]. [`ROWS`] judge those, one requirement each, without a network. So a table is tested against a
//! NAT that exists only in memory, with a clock of its own, and against real ones by packet sockets.
//!
//! A new row is an entry of a group in `rows`, and where nothing has sent its packets yet, an experiment.
#![forbid(unsafe_code)]

pub mod capture;
pub mod ends;
pub mod experiments;
pub mod fragments;
pub mod lab;
pub mod nat64;
pub mod observed;
pub mod packet;
pub mod progress;
pub mod rows;
pub mod served;
mod session;
pub mod stun;
pub mod table;

pub use ends::{Arrival, Conditions, Ends, Limits, Published, Side};
pub use experiments::{measure, measure_from};
pub use observed::Observations;
pub use packet::Packet;
pub use progress::{Earlier, Progress};
pub use rows::{Compliance, Group, Judgement, Level, ROWS, Row};
pub use table::Table;
