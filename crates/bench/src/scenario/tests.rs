use super::*;

#[test]
fn built_in_scenarios_load_and_come_back_the_same() {
    for (name, text) in built_in() {
        let scenario = Scenario::load(text, name).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(scenario.name, *name, "the name by which it is found is its own");
        let again = Scenario::load(scenario.to_toml(), name).unwrap();
        assert_eq!(again, scenario);
        for preset in scenario.presets.keys() {
            let mut chosen = scenario.clone();
            chosen.apply_preset(preset).unwrap_or_else(|e| panic!("{e}"));
            assert!(chosen.presets.is_empty());
            assert_eq!(Scenario::load(chosen.to_toml(), name).unwrap(), chosen);
        }
    }
}
