//! The forwarding rate with the speed of the core taken out, and where there is none.

use super::super::Delay;
use super::super::simulated::Simulated;
use super::{measure, measure_delay, near, quick, value};
use crate::pace::Pace;
use crate::workload::{Packets, Procedure};

#[test]
fn the_adjusted_rate_is_told_where_the_senders_core_forwards() {
    // 1e9 / (2 * 400 ns) = 1.25e6, on a core on which the reference takes 500 ns: 1e6.
    let pace = Some(Pace { frame_ratio: 2.0, reference_ns: 500.0, slices: 1000 });
    let paced = || Simulated { unlimited_pps: 1e6, pace, elsewhere_ns: 40_000_000, ..Simulated::default() };
    let found = measure(&quick(Procedure::Rate), &mut paced());
    near(value(&found, "forwarding_rate_pps"), 1e6, 1e-6);
    near(value(&found, "adjusted_rate_pps"), 1.25e6, 1e-6);
    near(value(&found, "core_speed_ratio"), 0.8, 1e-9);
    // Frames that the path drops were not forwarded.
    let found = measure(&quick(Procedure::Rate), &mut Simulated { loses_every: Some(50), ..paced() });
    near(value(&found, "adjusted_rate_pps"), 1.25e6 * 0.98, 1e-5);
    let most = measure(&quick(Procedure::Rate), &mut Simulated { loses_every: Some(20), ..paced() });
    assert_eq!(value(&most, "loss_ratio"), 0.05);
    near(value(&most, "adjusted_rate_pps"), 1.25e6 * 0.95, 1e-5);

    let none = |packets: &Packets, testbed: &mut Simulated, delay| {
        let found = measure_delay(packets, testbed, delay);
        assert!(!found.values.contains_key("adjusted_rate_pps"), "{found:?}");
        assert!(found.values.contains_key("forwarding_rate_pps"), "{found:?}");
    };
    let rate = quick(Procedure::Rate);
    // No slices; hosts with clocks of their own; a gateway on another core, which loses what is too much; a schedule.
    none(&rate, &mut Simulated { unlimited_pps: 1e6, ..Simulated::default() }, Delay::OneWay);
    none(&rate, &mut paced(), Delay::RoundTrip);
    none(&rate, &mut Simulated { unlimited_pps: 3e6, ..paced() }, Delay::OneWay);
    none(&Packets { rate: Some(500e3), ..rate }, &mut paced(), Delay::OneWay);
}
