//! The part of weir that runs on a host.
//!
//! The runner starts one agent for each host of the testbed and speaks with it over the agent's standard input and
//! output ([`protocol`], [`frame`]). How the agent is started is the [`transport`]; the runner's end is [`remote`], the
//! host's end is [`serve`]. No port is opened for control. When its input ends, an agent stops its loads, undoes what it did
//! to its host and exits: so everything ends with the runner, however that ends.

mod diagnosis;
mod error;
pub mod facts;
pub mod frame;
pub mod gateway_side;
mod host;
pub mod packets;
mod perform;
pub mod pods;
mod profiler;
pub mod protocol;
mod reach;
pub mod remote;
pub mod run;
pub mod sampler;
pub mod serve;
pub mod transport;
pub mod undo;

pub use host::HostAddress;
pub use profiler::HZ as PROFILE_HZ;
pub use protocol::{Answer, Reached, Task, TaskError};
pub use remote::{Error, Pending, Remote};
pub use serve::serve;
pub use transport::Transport;
