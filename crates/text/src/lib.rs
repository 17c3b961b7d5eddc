//! Text for people, the same in every command: what came from outside made harmless ([`escape`]), lines ([`layout`]) and pages of
//! them ([`page`]), figures with units ([`units`]), lengths of time ([`time`]), and words for a shell ([`shell`]). Asks nothing of
//! the system.

pub mod escape;
pub mod layout;
pub mod page;
pub mod shell;
pub mod time;
pub mod units;
