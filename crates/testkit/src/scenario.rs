//! Scenarios that take a second.

/// Hosts that weir builds.
pub const LAB: &str = "kind = \"lab\"";

/// `direct` against `nft-masquerade`, measured with requests and responses.
pub const TWO_VARIANTS: &str = "[[variant]]\nkind = \"direct\"\n[[variant]]\nkind = \"nft-masquerade\"\n\
                                [[workload]]\nname = \"rr\"\nkind = \"tcp-rr\"\n";

/// One round of 100 ms trials. Steal does not void them: these tests ask what weir does, not what it measures.
pub const ONE_ROUND: &str = "min-rounds = 1\nmax-rounds = 1\nwarmup = \"50ms\"\nduration = \"100ms\"";

/// The text of a scenario. The first variant of `entries` is the baseline.
pub fn text(name: &str, testbed: &str, plan: &str, entries: &str) -> String {
    let baseline = entries.split("kind = \"").nth(1).and_then(|rest| rest.split('"').next()).unwrap();
    format!(
        "name = \"{name}\"\ntitle = \"A test\"\n[testbed]\n{testbed}\n[plan]\nbaseline = \"{baseline}\"\ntwin = false\n\
         budget = \"30s\"\nmax-steal = 1.0\n{plan}\n{entries}"
    )
}

/// [`TWO_VARIANTS`] in the lab for [`ONE_ROUND`].
pub fn tiny() -> String {
    text("tiny", LAB, ONE_ROUND, TWO_VARIANTS)
}
