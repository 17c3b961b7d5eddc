//! Queues of the gateway make the throughput of short trials greater.

use super::*;

/// A queue takes what a short trial offers beyond the rate that the gateway forwards. The findings say so from the search's width on.
#[test]
fn throughput_with_a_queue_is_told_as_one_of_short_trials() {
    for (buffer, is_told) in [(0.0, false), (500.0, false), (2000.0, true), (20_000.0, true)] {
        let mut testbed = Simulated { forwards_pps: 500e3, buffer, ..Simulated::default() };
        let found = measure(&quick(Procedure::Throughput), &mut testbed);
        // A trial of 0.2 s has 100,000 frames.
        just_below(value(&found, "throughput_pps"), 500e3 * (1.0 + buffer / 100e3), 0.01);
        let share = value(&found, "queue_drain_ns") / 200e6;
        near(value(&found, "throughput_pps") / (1.0 + share), 500e3, 0.01);
        let told = found.faults.iter().find(|fault| fault.code == FaultCode::ShortTrial);
        assert_eq!(told.is_some(), is_told, "{buffer}: {found:?}");
        if let Some(told) = told.filter(|_| buffer == 20_000.0) {
            assert!(!told.void && told.detail.contains("after trials of 200 ms"), "{told:?}");
            let less = 100.0 * share / (1.0 + share);
            assert!(
                told.detail.contains(&format!("up to {less:.1} % less")) && (15.0..17.0).contains(&less),
                "{told:?}"
            );
        }
    }
}
