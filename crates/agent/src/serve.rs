//! The agent's main loop.

use std::io::{self, Read, Write};
use std::sync::{Arc, Mutex, PoisonError};

use weir_sys::clock::now_ns;

use crate::frame;
use crate::perform::Host;
use crate::protocol::{Answer, Hello, MARKER, PROTOCOL, Request, Response, Task, TaskError};

/// Reads tasks from `input` and answers on `output` until the input ends; then stops the loads and undoes what was done to
/// the host.
///
/// # Errors
/// If the runner does not speak this protocol, or something could not be undone (in words).
pub fn serve(mut input: impl Read, output: impl Write + Send + 'static) -> io::Result<()> {
    let output = Arc::new(Mutex::new(output));
    {
        let mut out = output.lock().unwrap_or_else(PoisonError::into_inner);
        out.write_all(MARKER)?;
        let version = env!("CARGO_PKG_VERSION").to_owned();
        frame::write(&mut *out, &Hello { protocol: PROTOCOL, version, pid: std::process::id() })?;
    }
    let host = Arc::new(Host::default());
    let ended = loop {
        match frame::read::<Request>(&mut input) {
            Ok(Some(request)) => {
                if request.task.outlives_agent() {
                    // A runner that is killed must not take this process along before it has undone its work; the end
                    // of the input is the sign then.
                    weir_sys::process::outlive_parent().map_err(io::Error::other)?;
                }
                start(&host, &output, request);
            }
            Ok(None) => break Ok(()),
            Err(e) => break Err(e),
        }
    };
    let left = host.leave();
    ended?;
    if left.is_empty() { Ok(()) } else { Err(io::Error::other(left.join("; "))) }
}

/// Performs one task on a thread of its own, but for those that must be answered whatever else is going on.
fn start<W: Write + Send + 'static>(host: &Arc<Host>, output: &Arc<Mutex<W>>, request: Request) {
    let Request { id, task } = request;
    if matches!(task, Task::Ping) {
        return answer(output, id, Ok(Answer::Done));
    }
    let (host, out) = (host.clone(), output.clone());
    let spawned = std::thread::Builder::new().name(format!("task-{id}")).spawn(move || {
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| host.perform(task)));
        answer(
            &out,
            id,
            outcome.unwrap_or_else(|_| Err(TaskError::failed("the agent panicked in this task"))),
        );
    });
    if let Err(e) = spawned {
        answer(output, id, Err(TaskError::failed(format!("cannot start a thread: {e}"))));
    }
}

fn answer<W: Write>(output: &Mutex<W>, id: u64, answer: Result<Answer, TaskError>) {
    let mut out = output.lock().unwrap_or_else(PoisonError::into_inner);
    // If the peer no longer listens, the input ends as well, and the agent reacts to that.
    let _ = frame::write(&mut *out, &Response { id, clock_ns: now_ns(), answer });
}
