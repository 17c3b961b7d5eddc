//! Amounts worked out by hand from the published prices.

use weir_cost::{
    Amount, Answer, Catalogue, CostBlock, CostVerdict, DEFAULT_OPTIONS, Error, Measured, PriceOption,
    Question, answer, bill, break_even, render,
};

fn amount(text: &str) -> Amount {
    text.parse().unwrap()
}

fn question(gb_out: &str, gb_in: &str) -> Question {
    Question { gb_out: amount(gb_out), gb_in: amount(gb_in), ..Question::default() }
}

fn option(name: &str, prices: &str) -> PriceOption {
    let text = format!(
        "[[option]]\nname = \"{name}\"\ntitle = \"t\"\nregion = \"r\"\ncurrency = \"USD\"\nas-of = \"2026\"\n\
         source = \"s\"\n{prices}\n"
    );
    let mut catalogue = Catalogue::built_in().unwrap();
    catalogue.add_toml("test", &text).unwrap();
    catalogue.select(&[name]).unwrap().remove(0)
}

fn default_pair() -> Vec<PriceOption> {
    Catalogue::built_in().unwrap().select(&DEFAULT_OPTIONS).unwrap()
}

#[test]
fn managed_gateway_with_1000_gb_in_costs_77_85_a_month() {
    // 730 h x 0.045 + 1000 GB x 0.045 = 32.85 + 45.00
    let bill = bill(&question("0", "1000"), &default_pair()[0]);
    assert_eq!((bill.fixed, bill.traffic, bill.total), (amount("32.85"), amount("45"), amount("77.85")));
}

#[test]
fn nat_instance_costs_its_vm_and_disk_whatever_the_traffic() {
    for traffic in ["0", "1000", "123456.789"] {
        assert_eq!(bill(&question(traffic, traffic), &default_pair()[1]).total, amount("12.942"));
    }
}

#[test]
fn one_vm_is_always_cheaper_than_the_managed_gateway() {
    // (12.942 - 32.85) / 0.045 is negative: no traffic makes the gateway the cheaper one.
    let pair = default_pair();
    let result = break_even(&question("0", "1000"), &pair[0], &pair[1]);
    assert_eq!(result.verdict(), CostVerdict::Always("nat-instance"));
    let reversed = break_even(&question("0", "1000"), &pair[1], &pair[0]);
    assert_eq!(reversed.verdict(), CostVerdict::Always("nat-instance"));
}

#[test]
fn three_vms_break_even_at_132_8_gb() {
    // (3 x 12.942 - 32.85) / 0.045 = 5.976 / 0.045 = 132.8
    let vms =
        option("three", "vm = { per-month = 6.8620, count = 3 }\ndisk = { per-month = 6.08, count = 3 }");
    let managed = &default_pair()[0];
    for mix in [question("0", "1000"), question("7", "0"), question("1", "3"), question("0", "0")] {
        let result = break_even(&mix, managed, &vms);
        assert_eq!(result.verdict(), CostVerdict::At(vec![amount("132.8")]), "{mix:?}");
        let cheaper: Vec<_> = result.ranges.iter().map(|range| range.cheaper.as_deref()).collect();
        assert_eq!(cheaper, [Some("managed-gateway"), Some("three")]);
    }
}

#[test]
fn a_fee_on_egress_only_counts_egress_only() {
    let one_way = option("one-way", "processing = { per-gb = 0.1 }\nprocessed = \"egress\"");
    assert_eq!(bill(&question("30", "70"), &one_way).total, amount("3"));
    let other_way = option("other-way", "processing = { per-gb = 0.1 }\nprocessed = \"ingress\"");
    assert_eq!(bill(&question("30", "70"), &other_way).total, amount("7"));
    let both = option("both", "processing = { per-gb = 0.1 }");
    assert_eq!(bill(&question("30", "70"), &both).total, amount("10"));
    // With 30 % out, 3 USD of rent are reached at 30 GB out, which is 100 GB altogether.
    let rent = option("rent", "vm = { per-month = 3 }");
    assert_eq!(
        break_even(&question("30", "70"), &one_way, &rent).verdict(),
        CostVerdict::At(vec![amount("100")])
    );
    // With nothing out the fee is never charged.
    assert_eq!(break_even(&question("0", "70"), &one_way, &rent).verdict(), CostVerdict::Always("one-way"));
}

#[test]
fn gib_prices_are_charged_per_gib() {
    // The vendor's own example: 36 VMs, 720 h, 200 GiB: 0.044 x 720 + 200 x 0.045 = 40.68 (without the address).
    let mut catalogue = Catalogue::built_in().unwrap();
    catalogue.add("test", &[]).unwrap();
    let mut nat = catalogue.select(&["gcp-cloud-nat"]).unwrap().remove(0);
    nat.public_ip = None;
    // 200 GiB = 200 x 2^30 bytes = 214.7483648 GB
    let asked = Question { gb_out: amount("100"), gb_in: amount("114.7483648"), hours: amount("720") };
    assert_eq!(bill(&asked, &nat).total.rounded(20), amount("40.68"));
}

#[test]
fn tiers_are_graduated_and_may_cross_a_rent_more_than_once() {
    // 100 GB free, then 0.09 up to 10,000 GB, then 0.05.
    let tiers = "[{ up-to = 100, per-gb = 0 }, { up-to = 10000, per-gb = 0.09 }, { per-gb = 0.05 }]";
    let tiered = option("tiered", &format!("transfer-out = {{ tiers = {tiers} }}"));
    for (gb, expected) in [("100", "0"), ("101", "0.09"), ("10000", "891"), ("10001", "891.05")] {
        assert_eq!(bill(&question(gb, "5000"), &tiered).total, amount(expected), "{gb}");
    }
    // Against 0.06 per GB and 5 USD: 5 + 0.06x = 0.09(x - 100) at x = 466.6..; and
    // 5 + 0.06x = 891 + 0.05(x - 10000) at x = 38600.
    let flat = option("flat", "vm = { per-month = 5 }\ntransfer-out = { per-gb = 0.06 }");
    let result = break_even(&question("1", "0"), &tiered, &flat);
    let CostVerdict::At(points) = result.verdict() else { panic!("{result:?}") };
    let points: Vec<Amount> = points.iter().map(|p| p.rounded(6)).collect();
    assert_eq!(points, [amount("466.666667"), amount("38600")]);
    let cheaper: Vec<_> = result.ranges.iter().map(|r| r.cheaper.as_deref().unwrap()).collect();
    assert_eq!(cheaper, ["tiered", "flat", "tiered"]);
}

#[test]
fn equal_stretches_are_said_to_be_equal() {
    let a = option("a", "vm = { per-month = 5 }");
    let b = option("b", "disk = { per-month = 5 }");
    assert_eq!(break_even(&question("1", "0"), &a, &b).verdict(), CostVerdict::Same);
    // Free up to 50 GB: the same until there, dearer after.
    let c = option(
        "c",
        "vm = { per-month = 5 }\ntransfer-in = { tiers = [{ up-to = 50, per-gb = 0 }, { per-gb = 1 }] }",
    );
    let result = break_even(&question("0", "3"), &a, &c);
    assert_eq!(result.ranges.len(), 2);
    assert_eq!(result.ranges[0].cheaper, None);
    assert_eq!(result.ranges[1].from_gb.rounded(9), amount("50"));
    assert_eq!(result.ranges[1].cheaper.as_deref(), Some("a"));
}

#[test]
fn traffic_is_considered_below_10_to_the_12_gb_only() {
    // 1,000,000 USD of rent are reached at 10^12 GB exactly: at the bound, below which the fee is cheaper throughout.
    let rent = option("rent", "vm = { per-month = 1000000 }");
    let even = option("even", "processing = { per-gb = 0.000001 }");
    // The same fee up to there, with a tier that ends at the bound.
    let tiers = "[{ up-to = 1000000000000, per-gb = 0.000001 }, { per-gb = 0.000002 }]";
    let tiered = option("tiered", &format!("processing = {{ tiers = {tiers} }}"));
    for fee in [even, tiered] {
        let result = break_even(&question("1", "0"), &fee, &rent);
        assert_eq!(result.verdict(), CostVerdict::Always(&fee.name));
    }
}

#[test]
fn a_fee_that_only_touches_a_rent_ends_where_it_turns() {
    // 10 USD are reached at 100 GB, where the next tier is free; the rent is cheaper nowhere.
    let tiers = "[{ up-to = 100, per-gb = 0.1 }, { per-gb = 0 }]";
    let (fee, rent) = (
        option("fee", &format!("processing = {{ tiers = {tiers} }}")),
        option("rent", "vm = { per-month = 10 }"),
    );
    let result = break_even(&question("1", "0"), &fee, &rent);
    let ranges: Vec<_> = result.ranges.iter().map(|r| (r.from_gb, r.cheaper.as_deref())).collect();
    assert_eq!(ranges, [(amount("0"), Some("fee")), (amount("100"), None)]);
}

#[test]
fn costs_are_equal_below_10_to_the_minus_12() {
    // Prices have twelve decimals, so only half a month tells them apart further.
    let [one, more] = ["1", "1.000000000001"]
        .map(|rent| option(&format!("rent-{}", rent.len()), &format!("vm = {{ per-month = {rent} }}")));
    let month = question("1", "0");
    let half = Question { hours: amount("365"), ..month.clone() };
    assert_eq!(break_even(&month, &one, &more).verdict(), CostVerdict::Always("rent-1"));
    assert_eq!(break_even(&half, &one, &more).verdict(), CostVerdict::Same);
}

#[test]
fn half_a_month_costs_half() {
    let half = Question { hours: amount("365"), ..question("0", "0") };
    assert_eq!(bill(&half, &default_pair()[1]).total, amount("6.471"));
    assert_eq!(bill(&half, &default_pair()[0]).total, amount("16.425"));
}

fn measured_answer() -> Answer {
    let measured = Measured {
        option: "nat-instance".to_owned(),
        variant: "nft-masquerade".to_owned(),
        goodput_bps: 4.2e9,
        connections_per_second: Some(1000.0),
    };
    answer(&question("0", "1000"), &default_pair(), &[measured]).unwrap()
}

#[test]
fn speed_is_priced_by_the_measurement() {
    let answer = measured_answer();
    let unit = &answer.unit_costs[0];
    // 12.942 / 4.2 = 3.081428571..; 1000 GB in 730 h are 8e12 bit / 2,628,000 s = 3,044,140 bit/s of 4.2e9.
    assert_eq!(unit.per_gbps.rounded(6), amount("3.081429"));
    assert_eq!(unit.fixed_per_gbps.rounded(6), amount("3.081429"));
    assert_eq!(unit.used_ratio.rounded(9), amount("0.000724795"));
    // 12.942 USD / (1000 x 2,628,000 / 10^6 = 2628 million connections)
    assert_eq!(unit.fixed_per_million_connections.unwrap().rounded(9), amount("0.004924658"));
}

#[test]
fn measurements_that_are_no_rates_are_refused() {
    for goodput_bps in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e16] {
        let measured = Measured {
            option: "nat-instance".to_owned(),
            variant: "v".to_owned(),
            goodput_bps,
            connections_per_second: None,
        };
        let error = answer(&question("0", "1"), &default_pair(), &[measured]).unwrap_err();
        assert!(matches!(error, Error::Number { .. }), "{error}");
    }
}

#[test]
fn wrong_input_gets_a_message_that_says_what_to_do() {
    let mut catalogue = Catalogue::built_in().unwrap();
    let before = catalogue.clone();
    let head = "[[option]]\nname = \"x\"\ntitle = \"t\"\nregion = \"r\"\nas-of = \"2026\"\nsource = \"s\"\n";
    let usd = format!("{head}currency = \"USD\"\n");
    let cases = [
        (format!("{usd}vm = {{ per-mnth = 1 }}\n"), "line 8", "per-month"),
        (format!("{usd}vmm = {{ per-month = 1 }}\n"), "line 8", "`vm`"),
        (format!("{usd}vm = {{ per-month = -1 }}\n"), "line 8", "from 0 to 10^12"),
        (format!("{head}currency = \"usd\"\n"), "line 7", "three capital letters"),
        (format!("{usd}vm = {{ }}\n"), "line 8", "exactly one of per-hour and per-month"),
        (usd.clone(), "own.toml", "it has no price"),
        (
            format!("{usd}processed = \"egress\"\nvm = {{ per-month = 1 }}\n"),
            "own.toml",
            "without processing",
        ),
        (format!("{usd}vm = {{ per-month = 1 }}\n{usd}vm = {{ per-month = 2 }}\n"), "\"x\"", "twice"),
        ("nonsense".to_owned(), "own.toml", "line 1"),
    ];
    for (text, where_, what) in cases {
        let message = catalogue.add_toml("own.toml", &text).unwrap_err().to_string();
        assert!(message.contains(where_) && message.contains(what), "{message}");
        assert_eq!(catalogue, before, "a refused file must change nothing");
    }
    let message = catalogue.select(&["nat-instanc"]).unwrap_err().to_string();
    assert!(message.contains("did you mean \"nat-instance\"?"), "{message}");
    assert_eq!(answer(&question("0", "0"), &[], &[]).unwrap_err(), Error::NoOptions);
}

#[test]
fn currencies_are_never_mixed() {
    let mut pair = default_pair();
    pair[1].currency = "EUR".to_owned().try_into().unwrap();
    let message = answer(&question("0", "1"), &pair, &[]).unwrap_err().to_string();
    assert!(message.contains("USD") && message.contains("EUR") && message.contains("exchange"), "{message}");
}

#[test]
fn own_prices_replace_the_built_in_option_of_that_name() {
    let own = option("nat-instance", "vm = { per-month = 1 }");
    assert_eq!(bill(&question("0", "0"), &own).total, amount("1"));
}

#[test]
fn every_built_in_price_says_where_and_when_it_is_from() {
    let catalogue = Catalogue::built_in().unwrap();
    for name in DEFAULT_OPTIONS {
        assert!(catalogue.select(&[name]).is_ok(), "{name}");
    }
    for option in catalogue.options() {
        assert!(option.source.len() > 20, "{}: {}", option.name, option.source);
        assert!(option.note.is_some(), "{}", option.name);
    }
}

#[test]
fn the_scenario_block_reads_its_keys_and_refuses_others() {
    let text = "gb-in = 1000\noptions = [\"managed-gateway\", \"nat-instance\"]\n\
                variants = { nft-masquerade = \"nat-instance\" }\n";
    let block: CostBlock = toml::from_str(text).unwrap();
    assert_eq!(block.question(), question("0", "1000"));
    assert_eq!(block.select("s.toml", None).unwrap(), default_pair());
    let written = toml::to_string(&block).unwrap();
    assert_eq!(toml::from_str::<CostBlock>(&written).unwrap(), block);

    let message = toml::from_str::<CostBlock>("gb-inn = 1").unwrap_err().to_string();
    assert!(message.contains("gb-in") && message.contains("line 1"), "{message}");
    let block: CostBlock = toml::from_str("variants = { routed = \"nat-instanze\" }").unwrap();
    let message = block.select("s.toml", None).unwrap_err().to_string();
    assert!(message.contains("did you mean \"nat-instance\"?"), "{message}");
}

#[test]
fn the_block_s_own_options_are_the_default_choice() {
    let text = "[[option]]\nname = \"mine\"\ntitle = \"t\"\nregion = \"r\"\ncurrency = \"EUR\"\nas-of = \"2026-01\"\n\
                source = \"s\"\nvm = { per-hour = \"0.01\", count = 2 }\n";
    let block: CostBlock = toml::from_str(text).unwrap();
    let options = block.select("s.toml", None).unwrap();
    assert_eq!(bill(&block.question(), &options[0]).total, amount("14.6"));
}

#[test]
fn json_has_numbers_and_the_prices_behind_them() {
    let json = serde_json::to_value(measured_answer()).unwrap();
    assert_eq!(json["bills"][0]["total"], 77.85);
    assert_eq!(json["bills"][1]["total"], 12.942);
    assert_eq!(json["currency"], "USD");
    assert_eq!(json["prices"][0]["gateway"]["per-hour"], 0.045);
    assert_eq!(json["break-evens"][0]["ranges"][0]["cheaper"], "nat-instance");
}

#[test]
fn the_terminal_text_fits_its_columns_and_has_the_known_amounts() {
    let mut options = Catalogue::built_in().unwrap().options().to_vec();
    options.truncate(8);
    let wide = answer(&question("250000.5", "1000000"), &options, &[]).unwrap();
    for columns in [80, 100] {
        for text in [
            render::terminal(&measured_answer(), columns),
            render::terminal(&wide, columns),
            render::price_list(&options, columns),
        ] {
            for line in text.lines() {
                assert!(line.chars().count() <= usize::from(columns), "{columns} columns: {line}");
            }
            assert!(!text.contains('\u{1b}'));
        }
    }
    let text = render::terminal(&measured_answer(), 100).split_whitespace().collect::<Vec<_>>().join(" ");
    for part in ["77.85", "12.94", "3.08", "there is no break-even", "as of 2026", "go out of date"] {
        assert!(text.contains(part), "{part} is not in:\n{text}");
    }
}

#[test]
fn markdown_has_one_row_per_option() {
    let text = render::markdown(&measured_answer());
    let rows: Vec<&str> = text.lines().filter(|l| l.starts_with("| managed-gateway ")).collect();
    assert_eq!(rows.len(), 3, "one in the summary, two items:\n{text}");
    assert!(rows[0].ends_with("77.85 |"), "{}", rows[0]);
}

#[test]
fn the_documentation_s_example_says_what_the_documentation_says() {
    #[derive(serde::Deserialize)]
    struct Scenario {
        cost: CostBlock,
    }
    let page = include_str!("../../../docs/reference/cost.md");
    let example = page.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
    let block = toml::from_str::<Scenario>(example).unwrap().cost;
    let options = block.select("docs/reference/cost.md", None).unwrap();
    let answer = answer(&block.question(), &options, &[]).unwrap();
    assert_eq!(answer.bills[0].total, amount("77.85"));
    assert_eq!(answer.bills[1].total, amount("25.884"));
}

#[test]
fn the_schema_describes_the_keys_as_they_are_written() {
    let schema = serde_json::to_string(&schemars::schema_for!(CostBlock)).unwrap();
    for key in ["gb-in", "per-hour", "per-month", "tiers", "up-to", "as-of", "\"additionalProperties\":false"]
    {
        assert!(schema.contains(key), "{key} is not in {schema}");
    }
    assert!(!schema.contains("PerHour"), "the inner type shows: {schema}");
}
