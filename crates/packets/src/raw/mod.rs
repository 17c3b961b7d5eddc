//! Sending and counting through packet sockets (packet(7)): where live frames or XDP are missing, and for frames longer than
//! live frames carry. Needs CAP_NET_RAW in the network namespace's user namespace, so a normal user has it in a lab of their own.
//!
//! The cost: a sender makes some hundred thousand frames a second on a core, since each is copied into a socket buffer. Frames
//! enter by the link only; they cannot be handed to a gateway's stack as if they had come in.
//!
//! A packet socket sees frames in parallel with the stack, which gets them too. So the host's own kernel answers them as usual: a
//! datagram to an unused port with an ICMP error, a TCP SYN with a reset, which goes back through the gateway and ends the
//! connection in its table. weir installs nothing against that, since rules on the receiving host are that host's own. To keep
//! the gateway's table as the SYNs made it, use XDP, whose receiver takes frames before the stack.

mod receiver;
mod ring;
mod sender;
mod socket;

#[cfg(test)]
mod tests;

pub use receiver::RawReceiver;
pub use sender::RawSender;
