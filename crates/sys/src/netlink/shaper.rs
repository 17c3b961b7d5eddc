//! Queueing disciplines with parameters: a token bucket that limits a rate, and netem's delay
//! (include/uapi/linux/pkt_sched.h).

use std::time::Duration;

use super::link::Rtnetlink;
use super::message::Message;
use super::traffic_control::ROOT;
use crate::error::{Context, Result};

/// TCA_TBF_PARMS, TCA_TBF_RATE64, TCA_TBF_BURST.
const TBF_PARAMETERS: u16 = 1;
const TBF_RATE_64: u16 = 4;
const TBF_BURST: u16 = 6;
/// TC_LINKLAYER_ETHERNET: the kernel computes times itself instead of wanting a table of them.
const ETHERNET: u8 = 1;
/// TCA_NETEM_LATENCY64, ns.
const NETEM_LATENCY_64: u16 = 10;
/// The kernel's ticks are 64 ns long (PSCHED_SHIFT 6).
const TICK_SHIFT: u32 = 6;
/// Packets that netem holds: two seconds of a hundred thousand a second.
const NETEM_LIMIT: u32 = 200_000;

/// A token bucket (tc-tbf(8)).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenBucket {
    /// Rate, bit/s, of whole Ethernet frames without their check sequence.
    pub rate_bps: u64,
    /// What may leave at once, bytes. Packets above it are dropped, super-packets split.
    pub burst_bytes: u32,
    /// What may wait, bytes; the rest is dropped.
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
        self.root_discipline(interface, "tbf", |m| {
            m.nest(libc::TCA_OPTIONS, |m| {
                m.attr(TBF_PARAMETERS, &parameters)
                    .attr(TBF_RATE_64, &bytes_per_s.to_ne_bytes())
                    .attr_u32(TBF_BURST, bucket.burst_bytes)
            })
        })
    }

    /// Delays what leaves by an interface (tc-netem(8)), in place of its queueing discipline.
    ///
    /// # Errors
    /// ENOENT if the kernel has no `netem` (CONFIG_NET_SCH_NETEM).
    pub fn delay_by_netem(&mut self, interface: &str, delay: Duration) -> Result<()> {
        let ns = i64::try_from(delay.as_nanos()).unwrap_or(i64::MAX);
        // struct tc_netem_qopt: latency in ticks, limit, loss, gap, duplicate, jitter.
        let mut options = [0; 24];
        options[0..4].copy_from_slice(&u32::try_from(ns >> TICK_SHIFT).unwrap_or(u32::MAX).to_ne_bytes());
        options[4..8].copy_from_slice(&NETEM_LIMIT.to_ne_bytes());
        self.root_discipline(interface, "netem", |m| {
            m.nest(libc::TCA_OPTIONS, |m| m.raw(&options).attr(NETEM_LATENCY_64, &ns.to_ne_bytes()))
        })
    }

    fn root_discipline(
        &mut self,
        interface: &str,
        kind: &str,
        options: impl FnOnce(Message) -> Message,
    ) -> Result<()> {
        let index = self.index(interface)?;
        // struct tcmsg: family and padding, interface, handle, parent, info.
        let mut header = [0; 20];
        header[4..8].copy_from_slice(&index.to_ne_bytes());
        header[12..16].copy_from_slice(&ROOT.to_ne_bytes());
        let flags = libc::NLM_F_ACK | libc::NLM_F_CREATE | libc::NLM_F_REPLACE;
        let message = Message::new(libc::RTM_NEWQDISC, flags).raw(&header).attr_str(libc::TCA_KIND, kind);
        self.socket.request(options(message)).context(|| format!("add qdisc {kind} to {interface}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netlink::VethEnd;
    use crate::netns::NetNs;
    use crate::privilege::test_needs_root;
    use crate::process::{run_captured, which};

    #[test]
    fn root_a_bucket_is_what_tc_says_it_is() {
        if test_needs_root() {
            return;
        }
        let Some(tc) = which("tc") else {
            println!("SKIP: tc is not installed");
            return;
        };
        let namespace = NetNs::create().unwrap();
        let mut net = Rtnetlink::open_in(&namespace).unwrap();
        let end = |name| VethEnd { name, namespace: None, mtu: 1500, mac: None };
        net.create_veth(end("a"), end("b")).unwrap();
        for (rate_bps, words) in [(100_000_000, "rate 100Mbit"), (40_000_000_000, "rate 40Gbit")] {
            net.limit_rate("a", TokenBucket { rate_bps, burst_bytes: 16 << 10, limit_bytes: 640_000 })
                .unwrap();
            let mut command = std::process::Command::new(&tc);
            command.args(["qdisc", "show", "dev", "a"]);
            namespace.enter_on_spawn(&mut command);
            let shown = run_captured(command, Duration::from_secs(10)).unwrap().stdout_text();
            assert!(shown.contains("qdisc tbf") && shown.contains(words), "{shown}");
            // tc turns the kernel's ticks back into bytes, and what waits into time.
            assert!(rate_bps > 1_000_000_000 || shown.contains("burst 16Kb"), "{shown}");
        }
    }
    #[test]
    fn root_netem_delays_or_is_known_to_be_missing() {
        if test_needs_root() {
            return;
        }
        let Some(tc) = which("tc") else {
            println!("SKIP: tc is not installed");
            return;
        };
        let namespace = NetNs::create().unwrap();
        let mut net = Rtnetlink::open_in(&namespace).unwrap();
        let end = |name| VethEnd { name, namespace: None, mtu: 1500, mac: None };
        net.create_veth(end("a"), end("b")).unwrap();
        let shown = |arguments: &[&str]| {
            let mut command = std::process::Command::new(&tc);
            command.args(arguments);
            namespace.enter_on_spawn(&mut command);
            run_captured(command, Duration::from_secs(10)).unwrap()
        };
        match net.delay_by_netem("a", Duration::from_micros(1500)) {
            Ok(()) => {
                let shown = shown(&["qdisc", "show", "dev", "a"]).stdout_text();
                assert!(shown.contains("qdisc netem") && shown.contains("delay 1.5ms"), "{shown}");
            }
            Err(error) => {
                // Whoever falls back must know that there is none, and tc must find the same.
                assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "{error}");
                let theirs = shown(&["qdisc", "add", "dev", "a", "root", "netem", "delay", "1500us"]);
                assert!(!theirs.status.success(), "{}", theirs.message());
            }
        }
    }
}
