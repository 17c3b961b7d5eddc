//! The XDP receiver on this kernel: what it makes of given frames, of sequences of them, and of what comes over a link. The
//! expected values come from the RFCs' definitions in plain Rust (`order.rs`), or from how the test made the frames.

#[path = "receiver/delay.rs"]
mod delay;
#[path = "receiver/fixture.rs"]
mod fixture;
#[path = "receiver/frames.rs"]
mod frames;
#[path = "receiver/link.rs"]
mod link;
#[path = "receiver/order.rs"]
mod order;
#[path = "receiver/state.rs"]
mod state;
