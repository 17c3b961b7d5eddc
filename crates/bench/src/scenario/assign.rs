//! Single values, changed from the command line or by a preset: `--set KEY=VALUE`.

use toml_edit::{DocumentMut, Item, Key, TableLike, Value};

use super::document::{nth, put, subtable, wrong};
use super::error::{ScenarioError, nearest};
use super::{Scenario, sweep};

type Result<T> = std::result::Result<T, ScenarioError>;

/// One value to change, and the option that changes it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// The option as it was given, e.g. `--rounds 8`: what a message names when the value does not fit.
    pub option: String,
    /// `KEY=VALUE`: `plan.max-rounds=8`, `testbed.mtu=9000`, `variant.nft-masquerade.random=true`. A value that is not valid TOML
    /// is a text.
    pub assignment: String,
}

impl Change {
    /// As `--set` asks for it.
    pub fn set(assignment: &str) -> Change {
        Change { option: format!("--set {assignment}"), assignment: assignment.to_owned() }
    }

    /// Whether it is made inside `[preset]`.
    fn is_of_a_preset(&self) -> bool {
        self.assignment.split(['.', '=']).next().is_some_and(|first| first.trim() == "preset")
    }
}

impl Scenario {
    /// Changes one value: see [`Scenario::set_all`].
    ///
    /// # Errors
    /// When the assignment has no form, or the scenario is not valid with it. Then nothing is changed.
    pub fn set(&mut self, assignment: &str) -> Result<()> {
        self.set_all(&[Change::set(assignment)])
    }

    /// Makes all changes, and asks only then whether the scenario is valid: two bounds that belong together may come in
    /// either order. Presets that were not applied are gone then, since they were written for other values.
    ///
    /// # Errors
    /// When an assignment has no form, or the scenario is not valid with all of them; named are those without
    /// which it would not be wrong in that way. Then nothing is changed.
    pub fn set_all(&mut self, changes: &[Change]) -> Result<()> {
        if changes.is_empty() {
            return Ok(());
        }
        let keep_presets = changes.iter().any(Change::is_of_a_preset);
        let mut guilty: Vec<&Change> = changes.iter().collect();
        let error = match self.with(&guilty, keep_presets) {
            Ok(changed) => {
                *self = changed;
                return Ok(());
            }
            Err(error) => error,
        };
        // A change is innocent if the error stays the same without it.
        for index in (0..guilty.len()).rev() {
            let suspect = guilty.remove(index);
            let same = self.with(&guilty, keep_presets).is_err_and(|without| without.what == error.what);
            if !same {
                guilty.insert(index, suspect);
            }
        }
        // `--rounds 9..2` is two assignments.
        let mut options: Vec<&str> = guilty.iter().map(|change| change.option.as_str()).collect();
        options.dedup();
        Err(ScenarioError { origin: options.join(" "), line: None, ..error })
    }

    /// The scenario with these changes.
    fn with(&self, changes: &[&Change], keep_presets: bool) -> Result<Scenario> {
        let mut changed = self.clone();
        let mut document = self.document();
        if !keep_presets {
            document.remove("preset");
        }
        let mut outcome = Ok(());
        for change in changes {
            changed.assign(&mut document, &change.assignment)?;
            // Read after each, so that the next one finds a variant by the name that it has by now.
            outcome = changed.reload(&document, &change.option, Vec::new());
        }
        outcome.map(|()| changed)
    }

    fn assign(&self, document: &mut DocumentMut, assignment: &str) -> Result<()> {
        let fail = |what: String| wrong("", what, None);
        let (path, value) = assignment
            .split_once('=')
            .ok_or_else(|| fail("expected KEY=VALUE, like plan.max-rounds=8".into()))?;
        let keys = Key::parse(path.trim())
            .map_err(|_| fail(format!("\"{path}\" is not a key, like plan.max-rounds or testbed.mtu")))?;
        let value = value.trim();
        let value = value.parse::<Value>().unwrap_or_else(|_| Value::from(value));
        let (last, outer) = keys.split_last().ok_or_else(|| fail("the key is empty".into()))?;
        let holder = self.holder(document, outer)?;
        put(holder, last.get(), Item::Value(value));
        Ok(())
    }

    /// The table that a key path leads to. Entries of `variant` and `workload` are found by their names.
    fn holder<'d>(&self, document: &'d mut DocumentMut, outer: &[Key]) -> Result<&'d mut dyn TableLike> {
        let fail = |what: String| wrong("", what, None);
        let (mut here, mut rest): (&mut dyn TableLike, _) = (document.as_table_mut(), outer);
        if let [list, name, deeper @ ..] = outer
            && ["variant", "workload"].contains(&list.get())
        {
            let names = if list == "variant" {
                sweep::headings(self.named_variants())
            } else {
                sweep::headings(self.named_workloads())
            };
            let Some(index) = names.iter().position(|n| *n == name.get()) else {
                let what = format!("there is no {list} \"{}\"", name.get());
                return Err(wrong("", what, nearest(name.get(), names)));
            };
            let item = here.get_mut(list.get()).ok_or_else(|| fail(format!("there is no {list}")))?;
            here = nth(item, index).ok_or_else(|| fail(format!("{list} is not a list of tables")))?;
            rest = deeper;
        }
        for key in rest {
            here = subtable(here, key.get()).map_err(fail)?;
        }
        Ok(here)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Seven rounds at least, ten at most; a preset that fits only that.
    const TEXT: &str = "name = \"s\"\ntitle = \"S\"\n[plan]\nmin-rounds = 7\nmax-rounds = 10\n\
                        [preset.quick]\nplan = { max-rounds = 8 }\n[[variant]]\nkind = \"direct\"\n\
                        [[workload]]\nname = \"rr\"\nkind = \"tcp-rr\"\n";

    fn scenario() -> Scenario {
        Scenario::load(TEXT, "s.toml").unwrap()
    }

    fn rounds(assignments: &[&str]) -> Result<(u32, u32)> {
        let mut scenario = scenario();
        let changes: Vec<Change> = assignments.iter().map(|a| Change::set(a)).collect();
        scenario.set_all(&changes)?;
        assert_eq!(Scenario::load(scenario.to_toml(), "s.toml").unwrap(), scenario);
        Ok((scenario.plan.min_rounds, scenario.plan.max_rounds))
    }

    #[test]
    fn bounds_that_belong_together_come_in_any_order() {
        for (least, most) in [(2, 2), (20, 20), (9, 12), (1, 30)] {
            let (low, high) = (format!("plan.min-rounds={least}"), format!("plan.max-rounds={most}"));
            assert_eq!(rounds(&[&low, &high]), Ok((least, most)));
            assert_eq!(rounds(&[&high, &low]), Ok((least, most)));
        }
        assert_eq!(rounds(&["plan.max-rounds=3", "plan.max-rounds=9"]), Ok((7, 9)), "the last one counts");
        assert_eq!(rounds(&[]), Ok((7, 10)));
    }

    #[test]
    fn a_preset_that_nobody_asked_for_refuses_nothing() {
        assert_eq!(rounds(&["plan.min-rounds=9"]), Ok((9, 10)));
        // One that is changed itself is looked at.
        let error = rounds(&["preset.quick.plan.max-rounds=3"]).unwrap_err();
        assert!(error.to_string().contains("max-rounds = 3: valid is min-rounds = 7"), "{error}");
    }

    #[test]
    fn the_one_to_blame_is_named() {
        let bound = "[plan]: max-rounds =";
        for (assignments, blamed, what) in [
            (&["plan.budget=3m", "plan.max-rounds=2", "title=T"][..], "--set plan.max-rounds=2", bound),
            (&["plan.max-rounds=2", "plan.budget=3m"], "--set plan.max-rounds=2", bound),
            (
                &["plan.min-rounds=9", "title=T", "plan.max-rounds=8"],
                "--set plan.min-rounds=9 --set plan.max-rounds=8",
                bound,
            ),
            // Twelve would be too many by itself, but the message names the product of both.
            (
                &["plan.min-rounds=12", "plan.max-rounds=11"],
                "--set plan.min-rounds=12 --set plan.max-rounds=11",
                "max-rounds = 11: valid is min-rounds = 12",
            ),
            // Two mistakes: one is reported.
            (&["plan.x=1", "title=T", "plan.y=2"], "--set plan.x=1", "unknown key `x`"),
            (&["plan.x=1", "nonsense"], "--set nonsense", "expected KEY=VALUE"),
            (&["title=T", "nonsense", "plan.max-rounds=2"], "--set nonsense", "expected KEY=VALUE"),
            (&["plan.min-rounds=8", "variant.drct.name=x"], "--set variant.drct.name=x", "no variant"),
        ] {
            let error = rounds(assignments).unwrap_err().to_string();
            assert!(error.starts_with(&format!("{blamed}: ")) && error.contains(what), "{error}");
        }
    }

    #[test]
    fn later_changes_use_the_names_that_earlier_ones_gave() {
        let mut scenario = scenario();
        let changes = ["workload.rr.name=ask", "workload.ask.duration=2s"].map(Change::set);
        scenario.set_all(&changes).unwrap();
        assert_eq!(
            (scenario.workloads[0].name.as_str(), scenario.workloads[0].duration.as_secs()),
            ("ask", 2)
        );
    }

    #[test]
    fn what_a_preset_sets_comes_in_any_order_too() {
        let preset = |set: &str| {
            let text = TEXT.replace("plan = { max-rounds = 8 }", &format!("set = {set}"));
            let mut scenario = Scenario::load(&text, "s.toml")?;
            scenario.apply_preset("quick")?;
            Ok((scenario.plan.min_rounds, scenario.plan.max_rounds))
        };
        assert_eq!(preset(r#"["plan.min-rounds=2", "plan.max-rounds=3"]"#), Ok((2, 3)));
        assert_eq!(preset(r#"["plan.max-rounds=3", "plan.min-rounds=2"]"#), Ok((2, 3)));
        let error: ScenarioError = preset(r#"["plan.budget=3m", "plan.max-rounds=3"]"#).unwrap_err();
        assert_eq!(
            error.to_string(),
            "s.toml:7: [preset.quick]: \"plan.max-rounds=3\": [plan]: max-rounds = 3: valid is min-rounds = 7 to 1000"
        );
    }
}
