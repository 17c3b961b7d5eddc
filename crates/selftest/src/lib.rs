//! `weir doctor selftest`: makes each cause that the doctor knows in a lab of its own, sends real traffic through it, and sees
//! whether the doctor finds it; and healthy traffic, where it must find nothing.
//!
//! [`cases`] lists what is tried, [`lab`] builds the hosts, [`step`] does what a recipe says, [`traffic`] sends, and [`matrix`] keeps
//! the score.

mod case;
mod cases;
mod error;
mod fastpath;
mod healthy;
mod lab;
mod load;
mod matrix;
mod step;
mod traffic;
mod trial;
mod wait;

pub use case::{Case, Kind};
pub use cases::cases;
pub use error::Error;
pub use matrix::{Matrix, Row};
pub use trial::{Answer, CaseTrial, Options, run};
