//! Queueing disciplines with parameters: a token bucket that limits a rate, and netem's delay
//! (include/uapi/linux/pkt_sched.h).

use std::time::Duration;

use super::message::Message;
use super::qdisc::at_root;
use super::rtnetlink::Rtnetlink;
use weir_sys::error::{Context, Error, Result};

/// TCA_TBF_PARMS, TCA_TBF_RATE64, TCA_TBF_BURST.
const TBF_PARAMETERS: u16 = 1;
const TBF_RATE_64: u16 = 4;
const TBF_BURST: u16 = 6;
/// TC_LINKLAYER_ETHERNET: the kernel computes times itself instead of wanting a table of them.
const ETHERNET: u8 = 1;
/// The kernel's ticks are 64 ns long (PSCHED_SHIFT 6).
const TICK_SHIFT: u32 = 6;
/// Packets that netem holds: two seconds of a hundred thousand a second.
const NETEM_LIMIT: u32 = 200_000;

/// A token bucket (tc-tbf(8)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenBucket {
    /// Rate, bit/s, of whole Ethernet frames without their check sequence.
    pub rate_bps: u64,
    /// Most that may leave at once, bytes. Packets above it are dropped, super-packets split.
    pub burst_bytes: u32,
    /// Most that may wait, bytes; the rest is dropped.
    pub limit_bytes: u32,
}

impl Rtnetlink {
    /// Limits what leaves by an interface, in place of its queueing discipline.
    ///
    /// # Errors
    /// ENOENT if the kernel has no `tbf` (CONFIG_NET_SCH_TBF).
    pub fn limit_rate(&mut self, interface: &str, bucket: TokenBucket) -> Result<()> {
        let bytes_per_s = bucket.rate_bps / 8;
        // struct tc_tbf_qopt: two struct tc_ratespec (cell_log, linklayer, overhead, cell_align, mpu, rate), limit, buffer, mtu.
        let mut parameters = [0; 36];
        parameters[1] = ETHERNET;
        parameters[8..12].copy_from_slice(&u32::try_from(bytes_per_s).unwrap_or(u32::MAX).to_ne_bytes());
        parameters[24..28].copy_from_slice(&bucket.limit_bytes.to_ne_bytes());
        let fill_ns = u64::from(bucket.burst_bytes) * 1_000_000_000 / bytes_per_s.max(1);
        let ticks = u32::try_from(fill_ns >> TICK_SHIFT).unwrap_or(u32::MAX);
        parameters[28..32].copy_from_slice(&ticks.to_ne_bytes());
        let message =
            at_root(self.index(interface)?, "tbf", libc::NLM_F_REPLACE).nest(libc::TCA_OPTIONS, |m| {
                m.attr(TBF_PARAMETERS, &parameters)
                    .attr(TBF_RATE_64, &bytes_per_s.to_ne_bytes())
                    .attr_u32(TBF_BURST, bucket.burst_bytes)
            });
        self.socket.request(message).context(|| format!("add qdisc tbf to {interface}"))
    }

    /// Delays what leaves by an interface (tc-netem(8)), in place of its queueing discipline, by up to 274 s.
    ///
    /// # Errors
    /// ENOENT if the kernel has no `netem` (CONFIG_NET_SCH_NETEM).
    pub fn delay_by_netem(&mut self, interface: &str, delay: Duration) -> Result<()> {
        let message = netem(self.index(interface)?, delay)?;
        self.socket.request(message).context(|| format!("add qdisc netem to {interface}"))
    }
}

/// A request for netem with a constant delay, as tc(8) writes it: TCA_OPTIONS holds `struct tc_netem_qopt`, so it is not marked as
/// nested, and attributes would follow only for what is not constant.
fn netem(interface: u32, delay: Duration) -> Result<Message> {
    let ticks = u32::try_from(delay.as_nanos() >> TICK_SHIFT)
        .map_err(|_| Error::other("add qdisc netem", format!("{delay:?} is more than its 32 bits hold")))?;
    // struct tc_netem_qopt: latency in ticks, limit in packets, loss, gap, duplicate, jitter in ticks.
    let mut options = [0; 24];
    options[0..4].copy_from_slice(&ticks.to_ne_bytes());
    options[4..8].copy_from_slice(&NETEM_LIMIT.to_ne_bytes());
    Ok(at_root(interface, "netem", libc::NLM_F_REPLACE).attr(libc::TCA_OPTIONS, &options))
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::process::Command;

    use super::*;
    use crate::VethEnd;
    use weir_sys::NetNs;
    use weir_sys::privilege::test_needs_root;
    use weir_sys::process::{Output, run_captured, which};

    /// A namespace with an interface `a`, and tc(8) to look at it with.
    struct Bench {
        namespace: NetNs,
        net: Rtnetlink,
        tc: PathBuf,
    }

    impl Bench {
        /// `None` where this cannot be had, which is printed.
        fn set_up() -> Option<Self> {
            if test_needs_root() {
                return None;
            }
            let Some(tc) = which("tc") else {
                println!("SKIP: tc is not installed");
                return None;
            };
            let namespace = NetNs::create().unwrap();
            let mut net = Rtnetlink::open_in(&namespace).unwrap();
            let end = |name| VethEnd { name, namespace: None, mtu: 1500, mac: None };
            net.create_veth(end("a"), end("b")).unwrap();
            Some(Bench { namespace, net, tc })
        }

        fn tc(&self, arguments: &str) -> Output {
            let mut command = Command::new(&self.tc);
            command.args(arguments.split(' '));
            self.namespace.enter_on_spawn(&mut command);
            run_captured(command, Duration::from_secs(10)).unwrap()
        }
    }

    #[test]
    fn root_a_bucket_is_what_tc_says_it_is() {
        let Some(mut bench) = Bench::set_up() else { return };
        for (rate_bps, words) in [(100_000_000, "rate 100Mbit"), (40_000_000_000, "rate 40Gbit")] {
            let bucket = TokenBucket { rate_bps, burst_bytes: 16 << 10, limit_bytes: 640_000 };
            bench.net.limit_rate("a", bucket).unwrap();
            let shown = bench.tc("qdisc show dev a").stdout_text();
            assert!(shown.contains("qdisc tbf") && shown.contains(words), "{shown}");
            // tc turns the kernel's ticks back into bytes, and what waits into time.
            assert!(rate_bps > 1_000_000_000 || shown.contains("burst 16Kb"), "{shown}");
        }
    }

    #[test]
    fn root_netem_delays_or_is_known_to_be_missing() {
        let Some(mut bench) = Bench::set_up() else { return };
        match bench.net.delay_by_netem("a", Duration::from_micros(1500)) {
            Ok(()) => {
                let shown = bench.tc("qdisc show dev a").stdout_text();
                assert!(shown.contains("qdisc netem") && shown.contains("delay 1.5ms"), "{shown}");
            }
            Err(error) => {
                // A caller that falls back must know that netem is missing, and tc must find the same.
                assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "{error}");
                let theirs = bench.tc("qdisc add dev a root netem delay 1500us");
                assert!(!theirs.status.success(), "{}", theirs.message());
            }
        }
    }

    /// The messages that tc of iproute2 6.1.0 sends, as `strace -e trace=sendmsg -e write=all` shows it, in hexadecimal digits:
    ///
    /// ```text
    /// ip link add v0 type veth peer name v1       (in a namespace of its own: v0 is interface 3)
    /// tc qdisc replace dev v0 root netem delay DELAY limit 200000
    /// ```
    ///
    /// The sequence number, bytes 8 to 11, is set to 1. The kernel's ticks of that day were those of `/proc/net/psched`:
    /// 000003e8 00000040 000f4240 3b9aca00, 64 ns each, as they have been since Linux 2.6.31.
    #[cfg(target_endian = "little")]
    const TC_SENDS: [(Duration, &str); 3] = [
        (
            Duration::from_micros(1500),
            "4c00000024000505 0100000000000000 0000000003000000 00000000ffffffff 000000000a000100 6e6574656d000000 \
             1c0002008d5b0000 400d030000000000 0000000000000000 00000000",
        ),
        (
            Duration::from_micros(500),
            "4c00000024000505 0100000000000000 0000000003000000 00000000ffffffff 000000000a000100 6e6574656d000000 \
             1c000200841e0000 400d030000000000 0000000000000000 00000000",
        ),
        (
            Duration::from_secs(10),
            "4c00000024000505 0100000000000000 0000000003000000 00000000ffffffff 000000000a000100 6e6574656d000000 \
             1c000200902f5009 400d030000000000 0000000000000000 00000000",
        ),
    ];

    #[test]
    #[cfg(target_endian = "little")]
    fn netem_is_asked_for_byte_by_byte_as_tc_does() {
        for (delay, hex) in TC_SENDS {
            let sent = netem(3, delay).unwrap().finish(1);
            let ours: String = sent.iter().map(|byte| format!("{byte:02x}")).collect();
            assert_eq!(ours, hex.replace(' ', ""), "{delay:?}");
        }
    }

    #[test]
    fn a_delay_that_netem_cannot_hold_is_refused() {
        // 2^32 ticks of 64 ns are 274.9 s.
        assert!(netem(3, Duration::from_secs(274)).is_ok());
        let error = netem(3, Duration::from_secs(275)).unwrap_err();
        assert!(error.to_string().contains("275s"), "{error}");
    }
}
