//! Reading: the messages about wrong lines, and that nothing makes it panic.

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
fn only_the_first_version_is_a_head() {
    let record = "apnic|JP|ipv4|1.0.16.0|4096|20110412|allocated\n";
    let range = |line| format!("1.0.16.0-1.0.31.255 {line}");
    // Records whose head was taken off are records still.
    assert_eq!(entries(record, &jp()).unwrap(), [range(1)]);
    assert_eq!(entries(&format!("2|apnic|1|1|1|1|1\n{record}"), &jp()).unwrap(), [range(2)]);
    // A second head is a line that has no type.
    let twice = entries(&format!("2|apnic|1|1|1|1|1\n2|apnic|1|1|1|1|1\n{record}"), &jp()).unwrap_err();
    assert_eq!(twice.line, Some(2));
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

#[test]
fn a_file_of_nothing_but_entries_takes_no_more_than_its_share() {
    let text = "::\n".repeat(5);
    let mut list = List::default();
    let error = read_at_most(4, &mut list, "f", text.as_bytes(), &Selection::default()).unwrap_err();
    assert_eq!(error.to_string(), "f:5: it has more than 4 entries: the rest was not read");
    assert!(list.is_empty());
    assert!(read_at_most(5, &mut list, "f", text.as_bytes(), &Selection::default()).is_ok());
}

#[test]
fn of_many_wrong_lines_some_are_told_and_all_are_counted() {
    let text = "x\n".repeat(MOST_ERRORS + 7);
    let (_, out) = read_leniently(&mut List::default(), "f", text.as_bytes(), &Selection::default());
    assert_eq!((out.errors.len(), out.more), (MOST_ERRORS, 7));
    assert_eq!(out.errors[MOST_ERRORS - 1].line, Some(MOST_ERRORS as u32));
}

#[test]
fn a_wrong_line_of_any_length_is_quoted_in_part() {
    let text = "x".repeat(1 << 20);
    let error = read(&mut List::default(), "f", text.as_bytes(), &Selection::default()).unwrap_err();
    assert!(error.what.len() < 200, "{}", error.what.len());
}

#[test]
fn what_a_registry_s_file_says_of_itself() {
    let told = head(REGISTRY.as_bytes()).unwrap();
    assert_eq!((&*told.registry, &*told.serial, &*told.end), ("apnic", "20250904", "20250903"));
    // ARIN's extended files are of version 2.3.
    assert_eq!(head(b"\xef\xbb\xbf2.3|arin|1|2|3|4|5\r\n").unwrap().registry, "arin");
    for none in
        ["", "192.0.2.0/24\n", "apnic|JP|ipv4|1.0.16.0|4096|20110412|allocated\n", "2|apnic\n", "\u{7f}|"]
    {
        assert_eq!(head(none.as_bytes()), None, "{none}");
    }
    assert_eq!(head(b"2|a\x1b[31m|1|2|3|4").unwrap().registry, "a[31m");
}

/// The ways of each registry: versions, the order of summaries, records without a holder with a field less or with ZZ,
/// dates that are not known.
const WAYS: [(&str, &str); 4] = [
    (
        "2|ripencc|1790632799|3|19700101|20260928|+0200\nripencc|*|ipv4|*|2|summary\nripencc|*|asn|*|1|summary\n\
         ripencc|*|ipv6|*|0|summary\nripencc|BG|ipv4|198.18.0.0|2304|20050913|allocated|162f9494-4727-4143-89e3-1a5a64454c0d\n\
         ripencc||ipv4|198.19.0.64|448||reserved\nripencc||asn|64496|1||available\n",
        "198.18.0.0-198.18.8.255",
    ),
    (
        "2.3|arin|1790600421096|3|19700101|20260928|-0400\narin|*|asn|*|1|summary\narin|*|ipv4|*|1|summary\n\
         arin|*|ipv6|*|1|summary\narin|US|asn|64496|1|00000000|assigned|d98c567cda2db06e693f2b574eafe848\n\
         arin||ipv4|198.18.1.0|768||reserved|\narin|US|ipv6|2001:2::|48|20140611|allocated|e0082a77a634f2cc5817ffb7de12b38e\n",
        "2001:2::-2001:2:0:ffff:ffff:ffff:ffff:ffff",
    ),
    (
        "2.3|lacnic|20260927|2|19870101|20260925|-0300\nlacnic|*|ipv4|*|1|summary\nlacnic|*|ipv6|*|1|summary\n\
         lacnic|*|asn|*|0|summary\nlacnic|BR|ipv4|198.18.60.0|1024|20190211|assigned|258500\n\
         lacnic||ipv6|2001:2:0:20::|59||available\n",
        "198.18.60.0-198.18.63.255",
    ),
    (
        "2|afrinic|20260924|2|00000000|20260924|00000\nafrinic|*|asn|*|0|summary\nafrinic|*|ipv4|*|2|summary\n\
         afrinic|*|ipv6|*|0|summary\nafrinic|ZA|ipv4|198.18.4.0|256|20110412|assigned|F36B5A0B\n\
         afrinic|ZZ|ipv4|198.18.5.0|256||reserved|\n",
        "198.18.4.0-198.18.4.255",
    ),
];

#[test]
fn every_registry_s_way_of_writing() {
    for (text, only) in WAYS {
        let found = entries(text, &Selection::default()).unwrap();
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!(found[0].split(' ').next(), Some(only));
        assert!(
            head(text.as_bytes()).is_some_and(|h| text.contains(&format!("|{}|{}|", h.registry, h.serial)))
        );
    }
}

/// A registry's file to which something happened: bytes replaced, cut out or put in, and the end cut off.
fn damaged() -> impl Strategy<Value = Vec<u8>> {
    let change = (0..REGISTRY.len(), 0usize..12, prop::collection::vec(any::<u8>(), 0..12));
    let likely = prop::sample::select(&b"0123456789|.:/-*#;\n\rabf"[..]);
    let small = (0..REGISTRY.len(), 0usize..3, prop::collection::vec(likely, 0..4));
    let changes = prop::collection::vec(prop_oneof![change, small], 0..4);
    (changes, 0..=REGISTRY.len()).prop_map(|(changes, end)| {
        let mut bytes = REGISTRY.as_bytes().to_vec();
        for (at, out, new) in changes {
            let at = at.min(bytes.len());
            let to = (at + out).min(bytes.len());
            bytes.splice(at..to, new);
        }
        bytes.truncate(bytes.len().min(REGISTRY.len() / 2 + end));
        bytes
    })
}

/// Lines of plain lists, right ones and nearly right ones.
fn nearly_plain() -> impl Strategy<Value = Vec<u8>> {
    let address = prop_oneof![
        any::<u32>().prop_map(|a| std::net::Ipv4Addr::from(a).to_string()),
        any::<u128>().prop_map(|a| std::net::Ipv6Addr::from(a).to_string()),
        "[0-9a-f.:]{0,20}",
    ];
    let line = (address.clone(), prop_oneof!["", "/[0-9]{0,3}", "/0", " ?- ?"], address, "[ #;]{0,2}\r?\n");
    prop::collection::vec(line, 0..6).prop_map(|lines| {
        let text = |(a, sign, b, end): (String, String, String, String)| {
            if sign.contains('-') { format!("{a}{sign}{b}{end}") } else { format!("{a}{sign}{end}") }
        };
        lines.into_iter().map(text).collect::<String>().into_bytes()
    })
}

/// Properties of every file.
fn sound(bytes: &[u8]) -> Result<(), TestCaseError> {
    let selection = Selection::default();
    let (mut strict, mut lenient) = (List::default(), List::default());
    let read = read(&mut strict, "f", bytes, &selection);
    let (format, out) = read_leniently(&mut lenient, "f", bytes, &selection);
    let lines = bytes.split(|b| *b == b'\n').count();
    for list in [&strict, &lenient] {
        prop_assert!(list.v4.len() + list.v6.len() <= lines, "at most one entry a line");
        prop_assert!(list.v4.iter().all(|e| e.first <= e.last && e.origin.line as usize <= lines));
        prop_assert!(list.v6.iter().all(|e| e.first <= e.last && e.origin.line as usize <= lines));
    }
    match read {
        // A line read strictly is also read leniently, and nothing is left out.
        Ok(told) => {
            prop_assert_eq!((told, &out.errors), (format, &Vec::new()));
            prop_assert_eq!(strict, lenient);
        }
        // It stops at the first of the lines that are left out, and adds nothing.
        Err(error) => {
            prop_assert_eq!(Some(&error), out.errors.first());
            prop_assert!(strict.files.is_empty() && strict.is_empty());
            if let Some(line) = error.line {
                prop_assert!(line >= 1 && line as usize <= lines);
            }
        }
    }
    // The header of a file is safe to print.
    let words = head(bytes).map(|h| h.registry + &h.serial + &h.end).unwrap_or_default();
    prop_assert!(!words.contains(char::is_control));
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn damaged_files_of_registries_are_read_or_refused(bytes in damaged()) {
        sound(&bytes)?;
    }

    #[test]
    fn nearly_plain_lists_are_read_or_refused(bytes in nearly_plain()) {
        sound(&bytes)?;
    }

    #[test]
    fn any_bytes_are_read_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        sound(&bytes)?;
    }
}

proptest! {
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
