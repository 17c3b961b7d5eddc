//! Idle times that `weir nat lab` tried, against a timer of the kernel.

use serde_json::Value;

/// The kernel counts the time of mappings in ticks, of which a machine has at least a hundred a second: it rounds at both ends.
const TICK: f64 = 0.02;

/// The tries of one kind of mapping.
#[derive(Debug)]
pub(crate) struct Tries(Vec<Try>);

#[derive(Debug)]
struct Try {
    alive: bool,
    /// The time that it was idle, at the least and at the most, s.
    idle: (f64, f64),
}

impl Tries {
    pub(crate) fn read(idle: &Value, kind: &str) -> Tries {
        let tries = idle[kind].as_array().unwrap().iter();
        let read = tries.map(|one| {
            let [least, late] = ["idle_s", "late_s"].map(|key| one[key].as_f64().unwrap());
            Try { alive: one["alive"] == true, idle: (least, least + late) }
        });
        Tries(read.collect())
    }

    /// The longest time that a mapping survived, and the shortest that none did.
    pub(crate) fn bounds(&self) -> (f64, f64) {
        let alive = self.0.iter().filter(|one| one.alive).map(|one| one.idle.0);
        let dead = self.0.iter().filter(|one| !one.alive).map(|one| one.idle.1);
        (alive.fold(0.0, f64::max), dead.fold(f64::INFINITY, f64::min))
    }

    /// No try contradicts a timer of so many seconds, whatever made it late, and both sides of the timer were tried within a
    /// second.
    pub(crate) fn assert_timer(&self, kind: &str, truth: f64) {
        for one in &self.0 {
            let holds = if one.alive { one.idle.0 <= truth } else { one.idle.1 >= truth - TICK };
            assert!(holds, "{kind}: {truth} s: {one:?}");
        }
        let (alive, dead) = self.bounds();
        let late = self.0.iter().map(|one| one.idle.1 - one.idle.0).fold(0.0, f64::max);
        let near = truth - alive < 1.0 + late && dead - truth < 1.0 + late;
        assert!(near, "{kind}: {truth} s is not near {alive} to {dead}: {self:?}");
    }
}
