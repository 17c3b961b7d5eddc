//! How large a packet may be on a path, and what becomes of fragments on it.
#![forbid(unsafe_code)]
