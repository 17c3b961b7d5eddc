//! Reading: what is told of wrong lines, and that nothing makes it panic.

use proptest::prelude::*;

use super::*;

fn jp() -> Selection {
    Selection::of(["jp"]).unwrap()
}

const REGISTRY: &str = "\
# a comment
2|apnic|20250904|5|19830613|20250903|+1000
apnic|*|asn|*|1|summary
apnic|*|ipv4|*|3|summary
apnic|*|ipv6|*|1|summary
apnic|JP|asn|173|1|20020801|allocated|A91A7381
apnic|JP|ipv4|1.0.16.0|4096|20110412|allocated|A92D9378
apnic|JP|ipv4|192.0.2.0|768|20110412|assigned|A92D9378
apnic||ipv4|1.0.1.0|256||available|
apnic|JP|ipv6|2001:200::|32|19990813|allocated|A91A7381
";

fn entries(text: &str, selection: &Selection) -> Result<Vec<String>, ReadError> {
    let mut list = List::default();
    read(&mut list, "f", text.as_bytes(), selection)?;
    let v4 = list.v4.iter().map(|e| format!("{}-{} {}", e.first.text(), e.last.text(), e.origin.line));
    let v6 = list.v6.iter().map(|e| format!("{}-{} {}", e.first.text(), e.last.text(), e.origin.line));
    Ok(v4.chain(v6).collect())
}

#[test]
fn a_registry_s_records_of_one_country() {
    assert_eq!(
        entries(REGISTRY, &jp()).unwrap(),
        [
            "1.0.16.0-1.0.31.255 7",
            // 768 addresses are no power of two: 192.0.2.0 to 192.0.4.255.
            "192.0.2.0-192.0.4.255 8",
            "2001:200::-2001:200:ffff:ffff:ffff:ffff:ffff:ffff 10"
        ]
    );
    assert_eq!(entries(REGISTRY, &Selection::of(["DE"]).unwrap()).unwrap(), [""; 0]);
    assert_eq!(entries(REGISTRY, &Selection::default()).unwrap().len(), 3, "nobody has what is available");
}

#[test]
fn a_file_that_was_cut_off_is_refused() {
    let cut: String = REGISTRY.lines().take(8).map(|l| format!("{l}\n")).collect();
    let error = entries(&cut, &jp()).unwrap_err();
    assert_eq!(error.to_string(), "f: it says that it has 3 ipv4 records, and has 2: it was cut off");
}

#[test]
fn plain_lists() {
    let text = "\u{feff}; head\n10.0.0.0/8 # ours\r\n192.0.2.7\n2001:db8::/32;x\n 198.51.100.3 - 198.51.100.9 \n\n0.0.0.0/0\n::1\n";
    assert_eq!(
        entries(text, &jp()).unwrap(),
        [
            "10.0.0.0-10.255.255.255 2",
            "192.0.2.7-192.0.2.7 3",
            "198.51.100.3-198.51.100.9 5",
            "0.0.0.0-255.255.255.255 7",
            "2001:db8::-2001:db8:ffff:ffff:ffff:ffff:ffff:ffff 4",
            "::1-::1 8"
        ]
    );
}

/// (line, word of the message)
const WRONG: &[(&str, &str)] = &[
    ("10.0.0.1/24", "nearest valid value: 10.0.0.0/24"),
    ("10.0.0.0/33", "0 to 32"),
    ("10.0.0.0/+8", "0 to 32"),
    ("::/129", "0 to 128"),
    ("10.0.0.0/", "0 to 32"),
    ("10.0.0", "expected a prefix"),
    ("10.0.0.9-10.0.0.1", "nearest valid value: 10.0.0.1-10.0.0.9"),
    ("10.0.0.9-::1", "different IP versions"),
    ("JP", "expected a prefix"),
    ("apnic|JP|ipv4|1.0.16.0|0|20110412|allocated", "do not follow"),
    ("apnic|JP|ipv4|255.255.255.0|257|20110412|allocated", "do not follow"),
    ("apnic|JP|ipv4|1.0.16.0|18446744073709551615|20110412|allocated", "do not follow"),
    ("apnic|JP|ipv4|1.0.16|256|20110412|allocated", "IPv4 address"),
    ("apnic|JP|ipv4|::|256|20110412|allocated", "IPv4 address"),
    ("apnic|JP|ipv6|2001:200::1|32|20110412|allocated", "nearest valid value: 2001:200::/32"),
    ("apnic|JP|ipv7|1.0.16.0|256|20110412|allocated", "third field"),
    ("apnic|JP|ipv4|1.0.16.0|256|20110412|stolen", "seventh field"),
    ("apnic|*|ipv4|*|many|summary", "no number"),
    ("a|b", "third field"),
];

#[test]
fn every_wrong_line_is_named() {
    for (line, word) in WRONG {
        let ahead = if line.contains('|') { "2|x|1|1|1|1|1" } else { "192.0.2.1" };
        let error = entries(&format!("{ahead}\n{line}\n"), &Selection::default()).unwrap_err();
        assert_eq!(error.line, Some(2), "{line}");
        assert!(error.what.contains(word) && error.what.ends_with(&format!("`{line}`")), "{line}: {error}");
    }
}

#[test]
fn leniently_the_rest_is_read_and_the_errors_are_told() {
    let mut list = List::default();
    let text = b"192.0.2.1\nnonsense\n\xff\xfe\n192.0.2.2\n";
    let (format, wrong) = read_leniently(&mut list, "f", text, &Selection::default());
    assert_eq!((format, list.v4.len()), (Format::Plain, 2));
    assert_eq!(wrong.errors.iter().map(|e| e.line).collect::<Vec<_>>(), [Some(2), Some(3)]);
}

#[test]
fn what_is_no_country_is_refused() {
    for text in ["J", "JPN", "J1", ""] {
        assert!(Selection::of([text]).unwrap_err().contains("two letters"), "{text}");
    }
}

proptest! {
    #[test]
    fn nothing_makes_it_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let mut list = List::default();
        let _ = read(&mut list, "f", &bytes, &Selection::default());
        read_leniently(&mut list, "g", &bytes, &Selection::default());
    }

    #[test]
    fn no_line_of_a_registry_makes_it_panic(fields in prop::collection::vec("[a-zA-Z0-9.:*]{0,12}", 0..9)) {
        let mut list = List::default();
        read_leniently(&mut list, "g", format!("2|a|b\n{}", fields.join("|")).as_bytes(), &Selection::default());
    }

    #[test]
    fn every_prefix_that_is_written_is_read_back(address: u32, length in 0u8..=32) {
        let prefix = Prefix { first: address.block_start(32 - length), length };
        let mut list = List::default();
        read(&mut list, "f", prefix.to_string().as_bytes(), &Selection::default()).unwrap();
        prop_assert_eq!((list.v4[0].first, list.v4[0].last), (prefix.first, prefix.last()));
    }
}
