//! The generator on this kernel: the frames that its programs make, byte by byte; what the verifier spends on them; and what
//! comes over a link. The expected bytes are those of `frame.rs`, which is tested against the RFCs.

#[path = "generator/budget.rs"]
mod budget;
#[path = "generator/link.rs"]
mod link;
#[path = "generator/packets.rs"]
mod packets;
#[path = "generator/reference.rs"]
mod reference;
