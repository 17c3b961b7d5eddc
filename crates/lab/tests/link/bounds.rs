//! Every value that the check lets through is one that the kernel takes.

use weir_lab::emulate::Emulation;
use weir_lab::{Family, Lab, LabOptions, Link};

use crate::{cannot_run, ends, lab, spec, start, through, turn};

/// The least and the greatest of every key, and what lies close to them.
fn values(family: Family, mtu: u32) -> Vec<String> {
    let least_mtu = if family == Family::Ipv4 { 68 } else { 1280 };
    let sixteen = vec![r#""10s""#; 16].join(",");
    let mut all: Vec<String> = [
        r#""delay": "0us""#,
        r#""delay": "0.001us""#,
        r#""delay": "10s""#,
        r#""delay": "0us", "jitter": "0us""#,
        r#""delay": "10s", "jitter": "10s""#,
        r#""delays": ["0us", "10s"], "jitter": "0us""#,
        r#""delays": ["1ms", "1ms"], "choose": "round", "jitter": "1ms""#,
        r#""loss": 0.000001"#,
        r#""loss": 0.00000149"#,
        r#""loss": 0.9999999"#,
        r#""loss": 0.999999999999"#,
        r#""loss": 1.0"#,
        r#""loss": 1"#,
        r#""loss-every": 2"#,
        r#""loss-every": 4294967295"#,
        r#""reorder": {"every": 2, "behind": 1}"#,
        r#""reorder": {"every": 4294967295, "behind": 4294967294}"#,
        r#""rate": "8kbit""#,
        r#""rate": "8001bit""#,
        r#""rate": "34gbit""#,
        r#""rate": "100gbit""#,
        r#""fragments": "drop-rest""#,
        r#""fragments": "drop-all""#,
        r#""fragments": "reorder""#,
    ]
    .map(str::to_owned)
    .to_vec();
    all.push(format!(r#""delays": [{sixteen}]"#));
    all.extend([least_mtu, least_mtu + 1, mtu - 1, mtu].map(|mtu| format!(r#""mtu": {mtu}"#)));
    all.push(format!(r#""mtu": {least_mtu}, "fragments": "drop-all", "loss": 1.0, "rate": "8kbit""#));
    all
}

#[test]
fn root_every_value_within_its_bounds_is_taken_by_the_kernel() {
    if cannot_run() {
        return;
    }
    let _turn = turn();
    for (family, mtu) in [
        (Family::Ipv4, 1500),
        (Family::Ipv6, 1500),
        (Family::Ipv4, 65_535),
        (Family::Ipv6, 65_535),
        (Family::Ipv4, 68),
        (Family::Ipv6, 1280),
    ] {
        for (n, value) in values(family, mtu).into_iter().enumerate() {
            let text = format!("{{{value}}}");
            let link: Link = serde_json::from_str(&text).unwrap();
            // In the smallest labs some values of an MTU lie outside of what is valid there.
            if link.validate(family, mtu).is_err() {
                assert!(value.contains("mtu") && mtu < 1500, "{text} is not valid with {family:?} and {mtu}");
                continue;
            }
            let options = LabOptions { family, mtu, ..LabOptions::default() };
            let name = format!("test-bounds-{n}-{mtu}-{family:?}-{}", std::process::id());
            let lab = Lab::build(&name, &options, &[spec()]).unwrap();
            let mut emulation = Emulation::start(lab.site("s").unwrap(), &link)
                .unwrap_or_else(|e| panic!("{text} with {family:?} and an MTU of {mtu}: {e}"));
            emulation.begin(1).unwrap();
            emulation.crossed().unwrap();
        }
    }
}

#[test]
fn root_a_whole_loss_loses_all_and_the_least_hardly_any() {
    if cannot_run() {
        return;
    }
    let _turn = turn();
    for family in [Family::Ipv4, Family::Ipv6] {
        let lab = lab("whole-loss", family);
        let site = lab.site("s").unwrap();
        let (near, far) = ends(site, 5000);
        let mut link = start(site, r#"{"egress": {"loss": 1.0}, "ingress": {"loss": 0.000001}}"#);
        link.begin(0).unwrap();
        assert_eq!(through(&near, &far, 150, 100), Vec::<u32>::new());
        // Two of 1,000 are lost less often than once in two million times.
        assert!(through(&far, &near, 1000, 100).len() >= 999);
        let [egress, ingress] = link.crossed().unwrap();
        assert_eq!(egress.lost, 150);
        assert!(ingress.lost <= 1, "{ingress:?}");
    }
}
