//! Text for people, the same in every command: what came from outside made harmless ([`escape`]), lines ([`layout`]) and pages of
//! them ([`page`]), figures with units ([`units`]), lengths of time ([`time`]), words for a shell ([`shell`]), and enums whose
//! values have words ([`listed!`]). Asks nothing of the system.

pub mod escape;
pub mod layout;
mod listed;
pub mod page;
pub mod shell;
pub mod time;
pub mod units;
