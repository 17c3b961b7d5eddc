//! Properties for any prices and any traffic.

use proptest::prelude::*;
use weir_cost::{Amount, Measured, PriceOption, Question, answer, bill, break_even};

fn amount(text: &str) -> Amount {
    text.parse().unwrap()
}

/// A decimal in hundredths and finer, and the ends of the range.
fn price() -> impl Strategy<Value = String> {
    prop_oneof![
        8 => (0_u32..200, 0_u32..10_000).prop_map(|(whole, fraction)| format!("{whole}.{fraction:04}")),
        1 => Just("0".to_owned()),
        1 => Just("1000000".to_owned()),
        1 => Just("0.000000000001".to_owned()),
    ]
}

fn traffic() -> impl Strategy<Value = Amount> {
    prop_oneof![
        8 => (0_u64..10_000_000).prop_map(|n| amount(&format!("{}.{:02}", n / 100, n % 100))),
        1 => Just(amount("0")),
        1 => Just(amount("1000000000000")),
        1 => Just(amount("0.000000000001")),
    ]
}

fn fee() -> impl Strategy<Value = String> {
    let unit = prop_oneof![Just("gb"), Just("gib")];
    (prop::collection::vec((1_u32..100_000, price()), 0..3), price(), unit).prop_map(|(steps, last, unit)| {
        let mut end = 0;
        let mut tiers = String::new();
        for (step, price) in steps {
            end += step;
            tiers += &format!("{{ up-to = {end}, per-gb = \"{price}\" }}, ");
        }
        format!("{{ tiers = [{tiers}{{ per-gb = \"{last}\" }}], unit = \"{unit}\" }}")
    })
}

fn option(name: &'static str) -> impl Strategy<Value = PriceOption> {
    let processed = prop_oneof![Just("both"), Just("egress"), Just("ingress")];
    (price(), price(), 1_u32..4, fee(), processed, prop::option::of(fee())).prop_map(
        move |(hour, month, count, fee, processed, transfer)| {
            let transfer = transfer.map(|t| format!("transfer-out = {t}")).unwrap_or_default();
            toml::from_str(&format!(
                "name = \"{name}\"\ntitle = \"t\"\nregion = \"r\"\ncurrency = \"USD\"\nas-of = \"2026\"\n\
                 source = \"s\"\ngateway = {{ per-hour = \"{hour}\" }}\n\
                 vm = {{ per-month = \"{month}\", count = {count} }}\n\
                 processing = {fee}\nprocessed = \"{processed}\"\n{transfer}\n"
            ))
            .unwrap()
        },
    )
}

fn asked(gb_out: Amount, gb_in: Amount) -> Question {
    Question { gb_out, gb_in, ..Question::default() }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// The lines are the bill, whatever it is made of.
    #[test]
    fn a_bill_is_the_sum_of_its_lines(o in option("a"), out in traffic(), inward in traffic()) {
        let bill = bill(&asked(out, inward), &o);
        let sum: Amount = bill.items.iter().map(|i| i.amount).sum();
        // Twelve decimals of at most 10^19: beyond the decimal's 28 digits the order of adding shows.
        let close = |x: Amount| (x.to_f64() - bill.total.to_f64()).abs() <= 1e-12 * bill.total.to_f64();
        prop_assert!(close(sum));
        prop_assert!(close([bill.fixed, bill.traffic].into_iter().sum()));
    }

    /// More traffic never costs less.
    #[test]
    fn cost_never_falls_with_traffic(o in option("a"), out in traffic(), inward in traffic(), more in traffic()) {
        let less = bill(&asked(out, inward), &o).total;
        prop_assert!(bill(&asked([out, more].into_iter().sum(), inward), &o).total >= less);
        prop_assert!(bill(&asked(out, [inward, more].into_iter().sum()), &o).total >= less);
    }

    /// Splitting the traffic of one direction at any point does not change what graduated tiers cost: the line items
    /// cover the traffic without gap or overlap.
    #[test]
    fn tiers_cover_the_traffic(o in option("a"), out in traffic()) {
        let bill = bill(&asked(out, Amount::ZERO), &o);
        let lines = bill.items.iter().filter(|i| i.what.starts_with("transfer out"));
        let covered: Amount = lines.map(|i| i.quantity).sum();
        if let Some(fee) = &o.transfer_out {
            let factor = if fee.unit == weir_cost::GbUnit::Gib { 1e9 / f64::from(1 << 30) } else { 1.0 };
            let expected = out.to_f64() * factor;
            prop_assert!((covered.to_f64() - expected).abs() <= 1e-9 * expected.max(1.0));
        }
    }

    /// The break-even says who is cheaper; the bills, made another way, must agree at any traffic of the same mix.
    #[test]
    fn the_cheaper_one_has_the_lower_bill(
        a in option("a"), b in option("b"), out in 0_u32..50, inward in 0_u32..50, times in 0_u32..100_000,
    ) {
        prop_assume!(out + inward > 0);
        let times = times.max(1);
        let mix = asked(Amount::from(out), Amount::from(inward));
        let result = break_even(&mix, &a, &b);
        prop_assert_eq!(result.ranges[0].from_gb, Amount::ZERO);
        for pair in result.ranges.windows(2) {
            prop_assert!(pair[0].from_gb < pair[1].from_gb);
            prop_assert_ne!(&pair[0].cheaper, &pair[1].cheaper);
        }
        let here = asked(Amount::from(out * times), Amount::from(inward * times));
        let (bill_a, bill_b) = (bill(&here, &a).total, bill(&here, &b).total);
        let difference = bill_a.to_f64() - bill_b.to_f64();
        // Beside a break-even point the two bills are equal to all digits that a float has; there either may be named.
        if difference.abs() > 1e-9 * bill_a.to_f64().max(1.0) {
            let expected = if difference < 0.0 { "a" } else { "b" };
            let range = result.ranges.iter().rev().find(|range| range.from_gb <= here.gb_total()).unwrap();
            prop_assert_eq!(range.cheaper.as_deref(), Some(expected));
        }
    }

    /// Which of the two comes first changes nothing.
    #[test]
    fn break_even_is_symmetric(a in option("a"), b in option("b"), out in traffic(), inward in traffic()) {
        let question = asked(out, inward);
        let (there, back) = (break_even(&question, &a, &b).ranges, break_even(&question, &b, &a).ranges);
        prop_assert_eq!(there.len(), back.len());
        for (x, y) in there.iter().zip(&back) {
            prop_assert_eq!(&x.cheaper, &y.cheaper);
            // A quotient's 28th digit depends on the order of the sums before it.
            prop_assert!((x.from_gb.to_f64() - y.from_gb.to_f64()).abs() <= 1e-12 * x.from_gb.to_f64());
        }
    }

    /// No accepted input overflows, and every answer can be shown.
    #[test]
    fn every_question_has_an_answer(
        a in option("a"), b in option("b"), out in traffic(), inward in traffic(), hours in 1_u32..=1_000_000,
        goodput_bps in 1.0_f64..1e12, rate in prop::option::of(1.0_f64..1e7),
    ) {
        let question = Question { hours: Amount::from(hours), ..asked(out, inward) };
        let measured = Measured {
            option: "a".to_owned(), variant: "v".to_owned(), goodput_bps, connections_per_second: rate,
        };
        let answer = answer(&question, &[a, b], &[measured]).unwrap();
        for columns in [80, 100] {
            let text = weir_cost::render::terminal(&answer, columns);
            prop_assert!(text.lines().all(|l| l.chars().count() <= usize::from(columns)), "{}", text);
        }
        let json = serde_json::to_string(&answer).unwrap();
        prop_assert!(json.contains("\"bills\""));
    }

    /// A price option survives being written and read.
    #[test]
    fn prices_round_trip(o in option("a")) {
        let read: PriceOption = toml::from_str(&toml::to_string(&o).unwrap()).unwrap();
        prop_assert_eq!(&read, &o);
        let json: PriceOption = serde_json::from_str(&serde_json::to_string(&o).unwrap()).unwrap();
        prop_assert_eq!(&json, &o);
    }
}
