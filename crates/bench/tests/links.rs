//! Links and labels as scenarios write them.

use weir_bench::scenario::{Scenario, Testbed};
use weir_gateway::VariantKind;

const HEAD: &str = "name = \"links\"\ntitle = \"Links\"\n";
const WORKLOAD: &str = "[[workload]]\nname = \"rr\"\nkind = \"tcp-rr\"\n";
const HOSTS: &str = "[testbed]\nkind = \"hosts\"\n\
    [testbed.initiator]\nhost = \"local\"\naddress = \"192.0.2.1\"\n\
    [[testbed.responder]]\nhost = \"local\"\naddress = \"192.0.2.2\"\n\
    [[testbed.responder]]\nhost = \"local\"\naddress = \"192.0.2.3\"\n";

fn load(text: &str) -> Result<Scenario, String> {
    Scenario::load(&format!("{HEAD}{text}{WORKLOAD}"), "f.toml").map_err(|error| error.to_string())
}

#[test]
fn a_variant_s_link_replaces_the_testbed_s_as_a_whole() {
    let text = "[testbed.link]\ndelay = \"0.5ms\"\nloss = 0.01\n\
        [[variant]]\nkind = \"path\"\nname = \"plain\"\nlabels = { zone = \"1\", fastpath = \"no\" }\n\
        [[variant]]\nkind = \"path\"\nname = \"bypass\"\nlink = {}\n\
        [[variant]]\nkind = \"path\"\nname = \"two\"\nlink = { delays = [\"1.8ms\", \"3.0ms\"], choose = \"round\" }\n\
        [[variant]]\nkind = \"path\"\nname = \"hole\"\nlink = { mtu = 1400, icmp = \"drop\", fragments = \"drop-rest\" }\n";
    let scenario = load(text).unwrap();
    let words: Vec<String> = scenario.variants.iter().map(|v| v.link.describe()).collect();
    assert_eq!(
        words,
        [
            "both ways loses 1 %, waits 500us",
            "",
            "both ways waits 1.8ms or 3ms in turn for each connection",
            "both ways drops fragments but the first, MTU 1400; messages of packets too big dropped",
        ]
    );
    assert_eq!(scenario.variants[0].labels["zone"], "1");
    // The twin has what its original has.
    let runs = scenario.runs();
    assert_eq!((runs[1].twin_of.as_deref(), &runs[1].link), (Some("plain"), &runs[0].link));
    // The same scenario can run again.
    assert_eq!(Scenario::load(scenario.to_toml(), "f.toml").unwrap().variants, scenario.variants);
}

#[test]
fn a_link_can_be_set_and_swept() {
    let text = "[[variant]]\nkind = \"path\"\nname = \"size\"\nlink = { icmp = \"drop\" }\n\
        sweep = { key = \"link.mtu\", values = [1280, 1400] }\n";
    let mut scenario = load(text).unwrap();
    let mtus: Vec<_> = scenario.variants.iter().map(|v| v.link.mtu).collect();
    assert_eq!(mtus, [Some(1280), Some(1400)]);
    assert!(scenario.variants.iter().all(|v| v.link.icmp.is_some()));
    scenario.set("testbed.link.delay=2ms").unwrap();
    let Testbed::Lab(lab) = &scenario.testbed else { panic!("{:?}", scenario.testbed) };
    assert_eq!(lab.link.describe(), "both ways waits 2ms");
    let error = scenario.set("testbed.link.loss=2.0").unwrap_err().to_string();
    assert!(error.contains("loss = 2"), "{error}");
}

#[test]
fn mistakes_in_links_are_named_with_their_line() {
    let path = "[[variant]]\nkind = \"path\"\n";
    for (text, words) in [
        (
            format!("[testbed.link]\ndelay = \"5x\"\n{path}"),
            "f.toml:4: [testbed.link]: delay: \"5x\" is not a wait like",
        ),
        (
            format!("[testbed.link]\ndelays = [\"1ms\"]\n{path}"),
            "f.toml:4: [testbed.link]: delays: 1 of them",
        ),
        (
            format!("[testbed.link]\nfragments = \"drop-res\"\n{path}"),
            "f.toml:4: unknown fragments \"drop-res\" in [testbed.link]; nearest valid value: \"drop-rest\"",
        ),
        (
            format!("[testbed.link]\negress = {{ dely = \"1ms\" }}\n{path}"),
            "f.toml:4: unknown key `dely` in [testbed.link] `egress`; nearest valid value: \"delay\"",
        ),
        (format!("[testbed.link]\nmtu = 9000\n{path}"), "valid are 68 to 1500"),
        (format!("[testbed]\nlink = 3\n{path}"), "`link` must be a table"),
        (format!("{path}link = {{ jitter = \"1ms\" }}\n"), "jitter = \"1ms\": valid is up to the delay"),
        (
            format!("{path}link = {{ reorder = {{ every = 2, behind = 2 }} }}\n"),
            "every >= 2, 1 <= behind < every",
        ),
        (format!("{path}labels = {{ zone = \"\" }}\n"), "labels.zone = \"\": expected 1 to 40 characters"),
        (format!("{path}labels = {{ zone = \"a\\u001bb\" }}\n"), "control character"),
        (format!("{path}labels = {{ \"my zone\" = \"a\" }}\n"), "labels: \"my zone\""),
        (format!("{path}target = \"198.19.0.2\"\n"), "the lab's responder has one address"),
        (format!("{HOSTS}[testbed.link]\ndelay = \"1ms\"\n{path}"), "weir makes links in the lab only"),
        (format!("{HOSTS}{path}link = {{ delay = \"1ms\" }}\n"), "weir makes links in the lab only"),
        (format!("{HOSTS}{path}target = \"2001:db8::1\"\n"), "the testbed's family is IPv4"),
    ] {
        let error = load(&text).unwrap_err();
        assert!(error.contains(words), "{text}\n gives {error}\n not   {words}");
    }
}

#[test]
fn a_path_between_hosts_may_lead_elsewhere() {
    let text = format!(
        "{HOSTS}[[variant]]\nkind = \"path\"\nname = \"a\"\n\
         [[variant]]\nkind = \"path\"\nname = \"b\"\ntarget = \"192.0.2.3\"\nlabels = {{ zone = \"2\" }}\n"
    );
    let scenario = load(&text).unwrap();
    let targets: Vec<Option<String>> = scenario
        .variants
        .iter()
        .map(|v| match &v.variant {
            VariantKind::Path(path) => path.target.map(|target| target.to_string()),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(targets, [None, Some("192.0.2.3".to_owned())]);
}
