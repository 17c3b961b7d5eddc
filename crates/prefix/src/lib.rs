//! Address lists: who belongs to a country, a provider, an office.
//!
//! [`read`] takes what the regional registries publish (delegation files) and plain lists of prefixes, ranges and
//! addresses. The result is a [`List`], which knows where each entry came from, and [`Ranges`], on which one calculates:
//! union, difference, the fewest prefixes. [`Names`] tells by which name of such a file an address goes. [`export`] writes
//! what nft and ipset load in one step. Nothing here touches the system.

mod address;
pub mod export;
mod list;
mod ranges;
pub mod read;

pub use address::Address;
pub use list::{Entry, List, Origin};
pub use ranges::{Difference, Element, Prefix, Ranges};
pub use read::{Format, Names, ReadError, Selection};
