//! The pictures of the README show what the program prints today.

use std::fs;
use std::path::Path;
use std::process::Command;

use weir_testkit::World;

const WEIR: &str = env!("CARGO_BIN_EXE_weir");
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
/// A picture, and its text and evidence.
const FILES: [&str; 5] = ["doctor.svg", "doctor.json", "report.png", "report.txt", "report.json"];

/// Runs `scripts/pictures/check` on a folder; whether it accepts it, and its output.
fn check(folder: &Path) -> (bool, String) {
    let mut command = Command::new(format!("{ROOT}/scripts/pictures/check"));
    let output = command.arg(WEIR).arg(folder).output().unwrap();
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap()).concat();
    (output.status.success(), text)
}

#[test]
fn pictures_show_what_the_program_prints() {
    let folder = Path::new(ROOT).join("docs/pictures");
    let (same, text) = check(&folder);
    assert!(same, "{text}");

    let world = World::plain(WEIR);
    let plant = |file: &str, from: &str, to: &str| {
        let mut copy = folder.clone();
        for name in FILES {
            let mut bytes = fs::read(folder.join(name)).unwrap();
            if name == file {
                let text = String::from_utf8(bytes).unwrap();
                assert!(text.contains(from), "{file} has no {from}");
                bytes = text.replacen(from, to, 1).into_bytes();
            }
            copy = world.write(name, bytes).parent().unwrap().to_owned();
        }
        check(&copy)
    };
    // A word that the program prints otherwise, one in the evidence only, and a text that the picture does not show.
    for (file, from, to) in [
        ("doctor.svg", "loose", "lax"),
        ("doctor.json", "\"wan2\"", "\"wan9\""),
        ("report.txt", "Results", "Figures"),
    ] {
        let (same, text) = plant(file, from, to);
        assert!(!same && text.contains("run: make pictures"), "{file}: {text}");
    }
}
