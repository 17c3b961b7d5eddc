//! Texts word by word, and the limits of what is accepted.

use weir_cost::{
    Amount, Answer, BreakEven, Catalogue, CostBlock, Error, Measured, PriceOption, Question, Range, answer,
    render,
};

fn amount(text: &str) -> Amount {
    text.parse().unwrap()
}

fn option(name: &str, prices: &str) -> PriceOption {
    toml::from_str(&format!(
        "name = \"{name}\"\ntitle = \"t\"\nregion = \"r\"\ncurrency = \"USD\"\nas-of = \"2026\"\nsource = \"s\"\n{prices}\n"
    ))
    .unwrap()
}

fn pair(egress_ratio: &str, ranges: &[(&str, Option<&str>)]) -> BreakEven {
    let ranges = ranges
        .iter()
        .map(|(from, cheaper)| Range { from_gb: amount(from), cheaper: cheaper.map(str::to_owned) })
        .collect();
    BreakEven { a: "a".into(), b: "b".into(), egress_ratio: amount(egress_ratio), ranges }
}

#[test]
fn a_break_even_is_one_sentence() {
    for (pair, sentence) in [
        (
            pair("0", &[("0", Some("a"))]),
            "a is cheaper than b at any traffic (all of it in): there is no break-even.",
        ),
        (
            pair("1", &[("0", Some("b"))]),
            "b is cheaper than a at any traffic (all of it out): there is no break-even.",
        ),
        (pair("0.25", &[("0", None)]), "a and b cost the same at any traffic (25.0 % of it out)."),
        (
            pair("0.0004", &[("0", None), ("50", Some("a")), ("132.805", Some("b"))]),
            "a or b: cheaper is up to 50 GB neither, then up to 132.81 GB a, above that b (all of it in).",
        ),
    ] {
        assert_eq!(render::break_even(&pair), sentence);
    }
}

fn answered(hours: u32, measured: &[Measured]) -> Answer {
    let options = [
        option("gw", "gateway = { per-hour = 0.0005 }\nprocessing = { per-gb = 2 }"),
        option("vm", "vm = { per-month = 3, count = 2, what = \"x|y\" }\nnote = \"n\""),
    ];
    let question = Question { gb_in: amount("10"), hours: Amount::from(hours), ..Question::default() };
    answer(&question, &options, measured).unwrap()
}

#[test]
fn markdown_word_by_word() {
    // 10 GB x 2 USD + 730 h x 0.0005 USD = 20.365 USD; amounts below 1 have four decimals.
    let measured = Measured {
        option: "vm".into(),
        variant: "routed".into(),
        goodput_bps: 2e9,
        connections_per_second: None,
    };
    let words: Vec<String> = render::markdown(&answered(730, &[measured]))
        .lines()
        .filter(|line| !line.starts_with("|--"))
        .map(|line| line.split_whitespace().collect::<Vec<_>>().join(" "))
        .collect();
    let expected = "\
### Cost of 0 GB out and 10 GB in over 730 h (a month)

| option | fixed | by traffic | USD total |
| gw | 0.3650 | 20.00 | 20.37 |
| vm | 6.00 | 0.00 | 6.00 |

### Items of the bills

| option | item | quantity | price | USD |
| gw | gateway | 730 h | 0.0005 per h | 0.3650 |
| gw | processing | 10 GB | 2 per GB | 20.00 |
| vm | 2 x VM (x\\|y) | 2 month | 3 per month | 6.00 |

### Break-even

- gw or vm: cheaper is up to 2.82 GB gw, above that vm (all of it in).

### Price of speed, from this measurement

| option | variant | Gbit/s | USD per Gbit/s | of it fixed | load | fixed per 10^6 conn. |
| vm | routed | 2.000 | 3.00 | 3.00 | 0.0 % | - |

### Prices

- gw: t, region r, as of 2026. Source: s
- vm: t, region r, as of 2026. Source: s (n)
- Prices go out of date: check them at their source before you decide.";
    assert_eq!(words.join("\n"), expected);
}

#[test]
fn the_answer_in_one_sentence() {
    let measured = Measured {
        option: "vm".into(),
        variant: "routed".into(),
        goodput_bps: 2e9,
        connections_per_second: None,
    };
    assert_eq!(
        render::in_short(&answered(730, &[measured])),
        "Money: 0 GB out and 10 GB in over 730 h cost 20.37 USD with gw, 6.00 USD with vm at the prices of 2026; \
         vm as routed 3.00 USD per Gbit/s; gw or vm: cheaper is up to 2.82 GB gw, above that vm (all of it in)."
    );
    let options = ["a", "b", "c"].map(|name| option(name, "vm = { per-month = 3 }"));
    let three = answer(&Question::default(), &options, &[]).unwrap();
    assert_eq!(
        render::in_short(&three),
        "Money: 0 GB out and 0 GB in over 730 h cost 3.00 USD with a, 3.00 USD with b, 3.00 USD with c at the \
         prices of 2026."
    );
}

#[test]
fn a_measured_rate_that_does_not_suffice_is_reported() {
    // 10 GB in an hour are 80 Gbit / 3600 s = 22.2 Mbit/s.
    let measured = |bps| Measured {
        option: "vm".into(),
        variant: "v".into(),
        goodput_bps: bps,
        connections_per_second: None,
    };
    let text = |bps| render::terminal(&answered(1, &[measured(bps)]), 100);
    let words = "the traffic asked for is more than the measured rate can carry";
    let (slow, fast) = (text(11_111_111.0), text(22_222_223.0));
    assert!(slow.contains(words) && slow.contains("200.0 %"), "{slow}");
    assert!(!fast.contains(words) && fast.contains("100.0 %") && !fast.contains("(a month)"), "{fast}");
    assert!(!render::terminal(&answered(1, &[]), 100).contains("Price of speed"));
    // 0.45 GB in an hour are 1 Mbit/s: a rate that just suffices.
    let question = Question { gb_in: amount("0.45"), hours: Amount::from(1), ..Question::default() };
    let just = answer(&question, &[option("vm", "vm = { per-month = 3 }")], &[measured(1e6)]).unwrap();
    assert_eq!(just.unit_costs[0].used_ratio, Amount::from(1));
    assert!(!render::terminal(&just, 100).contains(words));
}

/// Four decimals below 1 and two from there on; nothing has two.
#[test]
fn small_bills_have_more_decimals() {
    for (price, bill) in [("0.5", "0.5000"), ("1", "1.00"), ("0", "0.00")] {
        let options = [option("a", &format!("vm = {{ per-month = {price} }}"))];
        let short = render::in_short(&answer(&Question::default(), &options, &[]).unwrap());
        assert!(short.contains(&format!(" cost {bill} USD with a ")), "{short}");
    }
}

#[test]
fn prices_of_two_dates_name_both() {
    let mut options = ["a", "b"].map(|name| option(name, "vm = { per-month = 1 }"));
    let short =
        |options: &[PriceOption]| render::in_short(&answer(&Question::default(), options, &[]).unwrap());
    assert!(short(&options).contains("at the prices of 2026; "), "{}", short(&options));
    options[0].as_of = "2025-03".to_owned().try_into().unwrap();
    assert!(short(&options).contains("at the prices of 2025-03 to 2026; "), "{}", short(&options));
}

#[test]
fn a_catalogue_is_listed_with_region_date_and_source() {
    let text = render::price_list(&[option("mine", "vm = { per-month = 1 }")], 80);
    let words: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(words[0], ["option", "what", "region", "as", "of", "source"]);
    assert!(words.contains(&vec!["mine", "t", "r", "2026", "s"]), "{text}");
    assert!(text.ends_with("check them at their source before you decide.\n"), "{text}");
}

#[test]
fn names_of_options_are_letters_digits_and_hyphens() {
    let problem = |name: &str| {
        let mut catalogue = Catalogue::built_in().unwrap();
        catalogue.add("test", &[option(name, "vm = { per-month = 1 }")]).err().map(|e| e.to_string())
    };
    assert_eq!(problem("my-vm-2"), None);
    for name in ["", "my vm"] {
        assert!(problem(name).unwrap().contains("use letters, digits"), "{name}");
    }
}

/// A fee of one price is written by that, as it was read.
#[test]
fn fees_are_written_as_they_are_read() {
    for (fee, key, other) in [
        (r#"{"per-gb":2}"#, "per-gb", "tiers"),
        (r#"{"tiers":[{"up-to":4,"per-gb":1},{"per-gb":2}]}"#, "tiers", "per-gb"),
    ] {
        let read: weir_cost::Fee = serde_json::from_str(fee).unwrap();
        let written = serde_json::to_value(&read).unwrap();
        assert!(written.get(key).is_some() && written.get(other).is_none(), "{written}");
        assert_eq!(serde_json::from_value::<weir_cost::Fee>(written).unwrap(), read);
    }
}

/// With three times as much in as out.
#[test]
fn the_mix_of_a_pair_is_that_of_the_question() {
    let options = ["a", "b"].map(|name| option(name, "vm = { per-month = 1 }"));
    let question = Question { gb_out: amount("5"), gb_in: amount("15"), ..Question::default() };
    assert_eq!(weir_cost::break_even(&question, &options[0], &options[1]).egress_ratio, amount("0.25"));
}

#[test]
fn terminal_lines_are_as_long_as_their_columns_allow() {
    let mut long = option("long", "vm = { per-month = 3 }");
    // " - long: w w w ..." in columns of 80: a word more would be the 81st.
    long.title = "w ".repeat(60).trim().to_owned();
    let answer = answer(&Question::default(), &[long], &[]).unwrap();
    let text = render::terminal(&answer, 80);
    let from = text.lines().position(|l| l.starts_with("  long: w")).unwrap();
    let lines: Vec<&str> = text.lines().skip(from).take(2).collect();
    assert_eq!((lines[0].len(), lines[0].ends_with(" w")), (79, true), "{text}");
    assert!(lines[1].starts_with("    w"), "{text}");
    // 80 is reached where the words allow it.
    let mut even = option("even", "vm = { per-month = 3 }");
    even.title = format!("ww {}", "w ".repeat(60).trim());
    let text = render::terminal(&weir_cost::answer(&Question::default(), &[even], &[]).unwrap(), 80);
    assert_eq!(text.lines().find(|l| l.starts_with("  even: ww")).unwrap().len(), 80, "{text}");
    assert!(text.starts_with("Cost of 0 GB out and 0 GB in over 730 h (a month)\n"));
    assert!(text.contains("\n\nItems of the bills\n"));
}

#[test]
fn a_name_is_suggested_only_if_it_is_near() {
    let known = || vec!["nat-instance".to_owned(), "nat-instances".to_owned()];
    let message = |name: &str| Error::Unknown { name: name.into(), known: known() }.to_string();
    assert_eq!(
        message("nat-instanc"),
        "there is no price option \"nat-instanc\", did you mean \"nat-instance\"?; known: nat-instance, nat-instances"
    );
    assert_eq!(message("zzz"), "there is no price option \"zzz\"; known: nat-instance, nat-instances");
}

#[test]
fn hours_counts_prices_and_rates_end_where_they_should() {
    let hours = |text: &str| {
        let question = Question { hours: amount(text), ..Question::default() };
        answer(&question, &[option("a", "vm = { per-month = 1 }")], &[]).is_ok()
    };
    assert_eq!(["0.9", "1", "1000000", "1000000.1"].map(hours), [false, true, true, false]);
    let rent = |text: &str| toml::from_str::<weir_cost::Rent>(text).is_ok();
    assert_eq!(
        [0, 1, 10_000, 10_001].map(|n| rent(&format!("per-hour = 1\ncount = {n}"))),
        [false, true, true, false]
    );
    assert_eq!(["1000000", "1000000.1"].map(|p| rent(&format!("per-month = {p}"))), [true, false]);
    let fee = |text: &str| toml::from_str::<weir_cost::Fee>(text).is_ok();
    assert_eq!(["1000000", "1000000.1"].map(|p| fee(&format!("per-gb = {p}"))), [true, false]);
    let rate = |connections: f64| {
        let measured = Measured {
            option: "a".into(),
            variant: "v".into(),
            goodput_bps: 1e9,
            connections_per_second: Some(connections),
        };
        answer(&Question::default(), &[option("a", "vm = { per-month = 1 }")], &[measured]).is_ok()
    };
    assert_eq!([0.9, 1.0, 1e15, 1.1e15].map(rate), [false, true, true, false]);
}

#[test]
fn options_differ_in_name_and_share_a_currency() {
    let a = option("a", "vm = { per-month = 1 }");
    let twice =
        answer(&Question::default(), &[a.clone(), option("b", "vm = { per-month = 2 }"), a.clone()], &[]);
    assert_eq!(twice.unwrap_err(), Error::Twice { name: "a".into() });
    let three: Vec<PriceOption> =
        ["a", "b", "c"].iter().map(|name| option(name, "vm = { per-month = 1 }")).collect();
    let pairs: Vec<(String, String)> = answer(&Question::default(), &three, &[])
        .unwrap()
        .break_evens
        .into_iter()
        .map(|e| (e.a, e.b))
        .collect();
    assert_eq!(pairs, [("a", "b"), ("a", "c"), ("b", "c")].map(|(a, b)| (a.to_owned(), b.to_owned())));
}

#[test]
fn a_price_file_of_the_block_adds_its_options() {
    let file = "[[option]]\nname = \"mine\"\ntitle = \"t\"\nregion = \"r\"\ncurrency = \"USD\"\nas-of = \"2026-02\"\n\
                source = \"s\"\nvm = { per-month = 7 }\n";
    let block: CostBlock = toml::from_str("prices = \"own.toml\"\noptions = [\"mine\"]").unwrap();
    let [mine] = &block.select("s.toml", Some(file)).unwrap()[..] else { panic!("one option") };
    assert_eq!((mine.name.as_str(), mine.as_of.to_string().as_str()), ("mine", "2026-02"));
    assert!(block.select("s.toml", None).is_err());
    let broken = block.select("s.toml", Some("[[option]]\nnam = 1\n")).unwrap_err().to_string();
    assert!(broken.starts_with("own.toml: "), "{broken}");
    // A name that is there already replaces that option in its place.
    let mut catalogue = Catalogue::built_in().unwrap();
    let names = |c: &Catalogue| c.options().iter().map(|o| o.name.clone()).collect::<Vec<_>>();
    let before = names(&catalogue);
    catalogue.add("test", &[option("nat-instance", "vm = { per-month = 1 }")]).unwrap();
    assert_eq!(names(&catalogue), before);
}

#[test]
fn amounts_round_trip_and_sort_as_numbers() {
    let holder = |text: &str| toml::from_str::<Question>(&format!("gb-in = {text}")).map(|q| q.gb_in);
    assert_eq!(holder("1000000000000").unwrap(), amount("1000000000000"));
    assert!(holder("1000000000000.1").is_err());
    assert_eq!(holder("\" 7.5 \"").unwrap(), amount("7.5"));
    assert_eq!(serde_json::from_str::<Amount>("7").unwrap(), amount("7"));
    assert_eq!((amount("-0"), amount("0.045").to_f64()), (Amount::ZERO, 0.045));
}

#[test]
fn the_schema_of_an_amount_allows_numbers_and_strings() {
    let schema = schemars::schema_for!(Question).to_value();
    assert_eq!(schema["properties"]["hours"]["$ref"], "#/$defs/Amount");
    assert_eq!(schema["$defs"]["Amount"]["type"], serde_json::json!(["number", "string"]));
}

#[test]
fn a_bill_line_by_line() {
    let text = "vm = { per-hour = 0.5, count = 3 }\n\
                transfer-in = { tiers = [{ up-to = 4, per-gb = 0 }, { up-to = 20, per-gb = 2 }, { per-gb = 1 }] }";
    let question = Question { gb_in: amount("10"), hours: amount("365"), ..Question::default() };
    let answer = answer(&question, &[option("a", text)], &[]).unwrap();
    let lines: Vec<(&str, String, String)> = answer.bills[0]
        .items
        .iter()
        .map(|i| (i.what.as_str(), i.quantity.to_f64().to_string(), i.amount.to_f64().to_string()))
        .collect();
    // 3 x 365 h; 10 GB: 4 of them free, 6 at 2, none above 20.
    let line = |what, quantity: &str, amount: &str| (what, quantity.to_owned(), amount.to_owned());
    assert_eq!(
        lines,
        [
            line("3 x VM", "1095", "547.5"),
            line("transfer in, from 0 GB", "4", "0"),
            line("transfer in, from 4 GB", "6", "12"),
        ]
    );
}
