//! What this host's kernel says about lost and delayed packets, and why.
//!
//! Reads only: nothing on the host is changed by looking at it.
#![forbid(unsafe_code)]

pub mod table;
