//! Text for people, the same in every command: what came from outside made harmless ([`escape`]), lines ([`layout`]) and pages of
//! them ([`page`]), figures with units ([`units`]), lengths of time ([`time`]), words for a shell ([`shell`]), enums whose values have
//! words ([`listed!`]), and JSON over several lines ([`json`]). Asks nothing of the system.

pub mod escape;
pub mod json;
pub mod layout;
mod listed;
pub mod order;
pub mod page;
pub mod shell;
pub mod time;
pub mod units;
