//! `weir flows` on a terminal: totals with sparklines, tables by network, inside host, flow and process that sort, filter and freeze,
//! and the details of one flow.
//!
//! [`View`] is what is shown and how keys change it, without a terminal. [`Screen`] is the terminal: it is taken raw, on its second
//! screen, and given back in every ending that a process can see.
#![forbid(unsafe_code)]

mod backend;
mod details;
mod draw;
#[cfg(test)]
mod fixture;
mod help;
mod history;
mod key;
mod order;
mod paint;
#[cfg(test)]
mod picture_tests;
mod processes;
mod rows;
mod screen;
mod table;
mod udp;
mod udp_details;
mod untracked;
mod view;

pub use key::Key;
pub use screen::{Screen, Wake};
pub use view::View;
