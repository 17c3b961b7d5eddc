//! Sending and counting through packet sockets (packet(7)): where live frames or XDP are missing, and for frames longer than
//! live frames carry. Needs CAP_NET_RAW in the network namespace's user namespace, so a normal user has it in a lab of their own.
//!
//! What this costs: a sender makes some hundred thousand frames a second on a core, since each is copied into a socket buffer.
//! Frames enter by the link only; there is no way to hand them to a gateway's stack as if they had come in.
//!
//! A packet socket sees frames beside the stack, which gets them too. So the own kernel answers what arrives as it
//! would anyone's: a datagram to a port that nobody has with an ICMP error, a TCP SYN with a reset, which goes back
//! through the gateway and ends the connection in its table. Nothing is installed against that: rules on the receiving host
//! are that host's own, and whoever wants the gateway's table to stay as the SYNs made it uses XDP, whose receiver takes frames
//! before the stack.

mod receiver;
mod ring;
mod sender;
mod socket;

#[cfg(test)]
mod tests;

pub use receiver::RawReceiver;
pub use sender::RawSender;
