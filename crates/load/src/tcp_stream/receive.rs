//! The receiving end of one stream.

use std::net::TcpStream;
use std::os::fd::AsFd;
use std::time::Duration;

use weir_sys::clock::now_ns;

use super::TcpStreamWork;
use super::pattern::Pattern;
use super::send::{End, InfoSamples, LOOK, PATIENCE};
use crate::Error;
use crate::observer::Flow;
use crate::pace::Ending;
use crate::socket;
use crate::streams::by_path;
use crate::window::{CpuMeter, Phase, StepCounts, Window, nanos};

/// Bytes taken off the socket per call when they are not looked at. Nothing is copied, so larger only saves calls.
const DISCARD_BYTES: usize = 1 << 20;

/// Pause after a call that took at least [`MUCH`]. A receiver that waits for the next bytes makes the path's softirq wake it
/// up for every packet; in trials through a gateway this pause moved 1.3 to 2.2 times as much for half the CPU, and 20 to
/// 100 us were alike while 200 us lost it all. 50 us hold 600 KB at 100 Gbit/s: the kernel's buffer grows with the rate.
const NAP: Duration = Duration::from_micros(50);

/// Bytes in one call from which a pause is worth it. On slower paths every segment is read as it comes.
const MUCH: usize = 16 << 10;

/// The results of a stream's receiving end.
#[derive(Debug)]
pub(super) struct Received {
    /// Number of the stream in its direction.
    pub stream: u32,
    /// Bytes per step of the window, without those that were not as they were sent (with `verify`).
    pub bytes: StepCounts,
    /// Bytes that were not as they were sent (with `verify`), over the whole life of the stream.
    pub corrupt: u64,
    /// RTT as this end estimates it from what it receives.
    pub info: InfoSamples,
    /// Segments that came out of order, over the whole life of the connection.
    pub out_of_order: u32,
    pub cpu_s: f64,
    pub end: End,
    /// Nothing came at all before it ended early.
    pub stuck: bool,
}

/// Receive until the window is over. Then the caller closes, which is what ends the sender.
pub(super) fn receive(
    work: &TcpStreamWork,
    stream: u32,
    connection: &TcpStream,
    window: &Window,
    ending: &Ending,
    flow: &Flow,
) -> Result<Received, Error> {
    connection.set_read_timeout(Some(LOOK)).map_err(Error::io("prepare a receiving stream"))?;
    let pattern = work.verify.then(|| Pattern::new(work.buffer_bytes as usize));
    let mut buffer = vec![0; if work.verify { work.buffer_bytes as usize } else { DISCARD_BYTES }];
    // A buffer of a set size is not to fill up for our pauses.
    let naps = work.window_bytes.is_none();
    socket::precise_sleeps().map_err(Error::io("prepare a receiving stream"))?;
    let mut cpu = CpuMeter::default();
    let mut info = InfoSamples::new(window);
    let mut bytes = StepCounts::new(window);
    let (mut position, mut corrupt, mut came) = (0u64, 0u64, false);
    // A sender whose bytes vanish gives up by then, and its reset may vanish too.
    let give_up = now_ns() + window.span_ns() + nanos(PATIENCE);
    let end = loop {
        let result = match &pattern {
            Some(_) => socket::receive(connection.as_fd(), &mut buffer, 0),
            None => socket::discard(connection.as_fd(), &mut buffer),
        };
        let now = now_ns();
        if result.as_ref().is_ok_and(|n| *n > 0) {
            window.begin(now);
        }
        let phase = window.phase(now);
        cpu.look(phase);
        info.look(phase, connection, flow, |i| (i.rcv_rtt_us, 0));
        match result {
            Ok(0) => break closed(phase),
            Ok(n) => {
                let wrong = pattern.as_ref().map_or(0, |p| p.differences(position, &buffer[..n]));
                // Bytes that were changed on the way do not count as delivered (RFC 2647 section 3.17).
                bytes.add(phase, n as u64 - wrong);
                flow.bytes.add(n as u64);
                (corrupt, position, came) = (corrupt + wrong, position + n as u64, true);
                if naps && n >= MUCH && phase != Phase::After {
                    std::thread::sleep(NAP);
                }
            }
            Err(e) if socket::timed_out(&e) => {}
            Err(e) if by_path(&e) => break closed(phase),
            Err(source) => return Err(Error::Io { what: "receive on a stream", source }),
        }
        if let Some(end) = over(phase, ending, now > give_up) {
            break end;
        }
    };
    // A connection that was reset has no TCP_INFO any more; then nothing is known of its order.
    let out_of_order = socket::tcp_info(connection).map_or(0, |i| i.rcv_ooopack);
    let stuck = end != End::Complete && !came;
    Ok(Received { stream, bytes, corrupt, info, out_of_order, cpu_s: cpu.seconds(), end, stuck })
}

/// How a stream ends if the far end did not close it.
fn over(phase: Phase, ending: &Ending, gives_up: bool) -> Option<End> {
    match phase {
        Phase::After => Some(End::Complete),
        _ if ending.raised() => Some(End::Stopped),
        _ => gives_up.then_some(End::Abandoned),
    }
}

/// How a stream ended that the far end closed.
fn closed(phase: Phase) -> End {
    if phase == Phase::After { End::Complete } else { End::Closed }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::net::TcpListener;

    use super::*;
    use crate::observer::Observer;
    use crate::{Direction, Stop, TrialSettings};

    #[test]
    fn what_differs_from_what_was_sent_is_no_goodput() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut near = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let far = listener.accept().unwrap().0;
        let work = TcpStreamWork { verify: true, buffer_bytes: 1000, ..TcpStreamWork::default() };
        let mut data = Pattern::new(1000).at(0)[..1000].to_vec();
        data[..250].iter_mut().for_each(|byte| *byte ^= 0xff);
        near.write_all(&data).unwrap();
        near.shutdown(std::net::Shutdown::Write).unwrap();
        let setting = TrialSettings::new(Duration::ZERO, Duration::from_secs(5), 1);
        let ending = Ending { stop: Stop::default(), done: Stop::default() };
        let flow = Observer::default().flow(Direction::Egress, 0, false);
        let received = receive(&work, 0, &far, &Window::new(&setting), &ending, &flow).unwrap();
        assert_eq!((received.bytes.total(), received.corrupt), (750, 250));
    }
}
