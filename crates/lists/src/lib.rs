//! Address lists as their publishers have them: downloaded, checked, and kept for when there is no network.
#![forbid(unsafe_code)]
