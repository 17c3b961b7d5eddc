//! A client's request, checked against the server's limits.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;

use super::error::Error;
use super::parameters::{NO_BUFFERS, Parameters, Refusal, TOO_FAST, TOO_LONG, TOO_MANY_STREAMS};
use super::udp;
use weir_load::limits::Limits;
use weir_load::limits::{Refused, Reserved};
use weir_netlink::Protocol;

/// How far above the limit of its rate a client may be on average, and from when on that is looked at.
const TOO_MUCH: (f64, Duration) = (1.1, Duration::from_secs(2));

/// Extra writes by which each stream may be ahead: at low rates a single one is a second's worth.
const AHEAD: u64 = 2;

/// A client's request with its reservations, held until it is dropped.
#[derive(Debug)]
pub(super) struct Taken {
    /// As it will be done.
    pub(super) parameters: Arc<Parameters>,
    _memory: Reserved,
    /// In each direction, where there is a limit.
    rate: Option<Reserved>,
}

impl Taken {
    /// Accepts the request if the server's limits allow it, and reserves the memory and the bit rate that it takes.
    pub(super) fn new(limits: &Arc<Limits>, client: IpAddr, asked: &Value) -> Result<Taken, Refusal> {
        let mut p = Parameters::parse(asked)?;
        if p.streams > limits.streams {
            let words = format!("{} streams; the server takes {}", p.streams, limits.streams);
            return Err(Refusal::new(TOO_MANY_STREAMS, words));
        }
        if Duration::from_secs(u64::from(p.time_s) + u64::from(p.omit_s)) > limits.duration {
            let most = limits.duration.as_secs();
            return Err(Refusal::new(
                TOO_LONG,
                format!("{} s; the server takes {most}", p.time_s + p.omit_s),
            ));
        }
        let rate = take_rate(limits, client, &mut p)?;
        let memory = limits.reserve(client, p.streams, memory(&p)).map_err(|e| {
            let streams = matches!(e, Refused::ClientStreams(_));
            Refusal::new(if streams { TOO_MANY_STREAMS } else { NO_BUFFERS }, e.to_string())
        })?;
        Ok(Taken { parameters: Arc::new(p), _memory: memory, rate })
    }

    /// No client may be faster than what it was given: the rest is others'. So many bytes came in the time that has passed.
    pub(super) fn hold(&self, received: u64, passed: Duration) -> Result<(), Error> {
        let Some(most) = self.rate.as_ref().map(Reserved::rate_bps) else { return Ok(()) };
        let p = &self.parameters;
        let ahead = AHEAD * u64::from(p.length) * u64::from(p.burst.max(1)) * u64::from(p.streams);
        let bps = received.saturating_sub(ahead) as f64 * 8.0 / passed.as_secs_f64();
        if passed < TOO_MUCH.1 || bps <= most * TOO_MUCH.0 {
            return Ok(());
        }
        let words = format!("{bps:.0} bit/s come; the server takes {most} of this test");
        Err(Error::Refused { code: TOO_FAST, words })
    }
}

/// If a limit exists, reserves the bit rate that a test asks for, or the rest if it asks for none: this end then keeps to that
/// rate when it sends.
fn take_rate(limits: &Arc<Limits>, client: IpAddr, p: &mut Parameters) -> Result<Option<Reserved>, Refusal> {
    let Some(most) = limits.most_bps() else { return Ok(None) };
    let streams = f64::from(p.streams);
    let asked = p.rate_bps.max(p.fq_rate_bps) as f64 * streams;
    if asked > most {
        return Err(Refusal::new(TOO_FAST, format!("{asked} bit/s; the server takes {most}")));
    }
    let reserved = if asked > 0.0 {
        limits.reserve_rate(client, asked).map(Some)
    } else {
        limits.reserve_rate_left(client)
    };
    let reserved = reserved.map_err(|e| Refusal::new(TOO_FAST, e.to_string()))?;
    if let Some(reserved) = reserved.as_ref().filter(|_| p.rate_bps == 0) {
        p.rate_bps = ((reserved.rate_bps() / streams) as u64).max(1);
    }
    Ok(reserved)
}

/// Bytes that a test's buffers take, those that the kernel tunes by itself left out.
fn memory(p: &Parameters) -> u64 {
    let each = match p.protocol {
        // Each stream also has a read or write buffer of its own; the kernel doubles the requested size (socket(7)).
        Protocol::Tcp => (64 << 10) + 4 * u64::from(p.window),
        Protocol::Udp => (320 << 10) + 2 * u64::from(udp::receive_buffer(p)),
    };
    u64::from(p.length) + each * p.all_streams() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const CLIENT: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

    fn limits(rate_bps: Option<f64>, total_rate_bps: Option<f64>) -> Arc<Limits> {
        Arc::new(Limits { rate_bps, total_rate_bps, ..Limits::default() })
    }

    #[test]
    fn rates_of_all_tests_together_are_bounded_in_each_direction() {
        let limits = limits(None, Some(100e6));
        let take = |value: Value| Taken::new(&limits, CLIENT, &value);
        let asked = take(json!({"udp": true, "parallel": 3, "bandwidth": 20_000_000, "bidirectional": true}));
        let asked = asked.unwrap();
        assert_eq!(asked.parameters.rate_bps, 20_000_000);
        let refusal = take(json!({"udp": true, "bandwidth": 40_000_001})).unwrap_err();
        assert_eq!((refusal.code, refusal.words.contains("100000000")), (27, true), "{refusal:?}");
        // Who names none has what is left, over all of its streams, whichever way they go.
        for way in ["tcp", "reverse", "bidirectional"] {
            let rest = take(json!({"tcp": true, "parallel": 4, (way): true})).unwrap();
            assert_eq!(rest.parameters.rate_bps, 10_000_000, "{way}");
            assert_eq!(take(json!({"tcp": true})).unwrap_err().code, 27, "{way}: nothing is left");
        }
        drop(asked);
        assert_eq!(take(json!({"tcp": true})).unwrap().parameters.rate_bps, 100_000_000);
        // The kernel's own pacing counts as what is asked for, too.
        let paced = take(json!({"tcp": true, "fqrate": 70_000_000})).unwrap();
        assert_eq!(take(json!({"udp": true, "bandwidth": 30_000_001})).unwrap_err().code, 27);
        drop(paced);
        assert_eq!(take(json!({"tcp": true, "bandwidth": 100_000_001})).unwrap_err().code, 27);
    }

    #[test]
    fn a_refused_test_keeps_nothing() {
        let limits =
            Arc::new(Limits { total_rate_bps: Some(1e6), memory_bytes: 1 << 20, ..Limits::default() });
        let refusal = Taken::new(&limits, CLIENT, &json!({"tcp": true, "window": 1 << 20})).unwrap_err();
        assert_eq!(refusal.code, NO_BUFFERS);
        assert!(Taken::new(&limits, CLIENT, &json!({"tcp": true, "bandwidth": 1_000_000})).is_ok());
    }

    #[test]
    fn streams_and_rate_of_a_client_are_those_of_all_its_tests() {
        let limits = Arc::new(Limits { streams: 4, rate_bps: Some(10e6), ..Limits::default() });
        let take = |client: [u8; 4], value| Taken::new(&limits, client.into(), &value);
        let three = json!({"tcp": true, "parallel": 3, "bandwidth": 2_000_000});
        let first = take([192, 0, 2, 1], three.clone()).unwrap();
        let one = json!({"tcp": true, "parallel": 2, "bandwidth": 1_000_000});
        assert_eq!(take([192, 0, 2, 1], one).unwrap_err().code, TOO_MANY_STREAMS);
        let fast = json!({"udp": true, "bandwidth": 4_000_001});
        assert_eq!(take([192, 0, 2, 1], fast.clone()).unwrap_err().code, TOO_FAST);
        let rest = take([192, 0, 2, 1], json!({"tcp": true})).unwrap();
        assert_eq!(rest.parameters.rate_bps, 4_000_000);
        assert!(take([192, 0, 2, 2], three).is_ok() && take([192, 0, 2, 2], fast).is_ok());
        drop((first, rest));
    }

    #[test]
    fn what_is_usual_fits_what_one_client_may_have() {
        let limits = Arc::new(Limits::default());
        for value in [
            json!({"tcp": true, "parallel": 128, "bidirectional": true}),
            json!({"udp": true, "parallel": 128, "bandwidth": 1_048_576, "len": 1448}),
            json!({"udp": true, "bandwidth": 0, "len": 1448, "bidirectional": true}),
        ] {
            assert!(Taken::new(&limits, CLIENT, &value).is_ok(), "{value}");
        }
    }

    #[test]
    fn a_client_is_held_to_what_it_was_given() {
        let take = |limits: &Arc<Limits>, value| Taken::new(limits, CLIENT, &value).unwrap();
        let limited = limits(Some(80e6), None);
        let asked = take(&limited, json!({"tcp": true, "bandwidth": 8_000_000, "len": 1000}));
        let second = Duration::from_secs(1);
        // 1 MB a second, a tenth more, and two writes ahead.
        assert!(asked.hold(10 * 1_100_000 + 2000, 10 * second).is_ok());
        match asked.hold(10 * 1_100_000 + 2100, 10 * second) {
            Err(Error::Refused { code: 27, words }) => assert!(words.contains("8000000"), "{words}"),
            other => panic!("{other:?}"),
        }
        assert!(asked.hold(u64::MAX, second).is_ok(), "a burst at its beginning");
        drop(asked);
        let unasked = take(&limited, json!({"tcp": true, "len": 1000}));
        assert!(
            unasked.hold(100_000_000, 10 * second).is_ok() && unasked.hold(120_000_000, 10 * second).is_err()
        );
        let free = take(&limits(None, None), json!({"tcp": true}));
        assert!(free.hold(u64::MAX, 10 * second).is_ok());
    }
}
