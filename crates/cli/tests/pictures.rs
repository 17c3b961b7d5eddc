//! The pictures of the README show what the program prints today.

use std::fs;
use std::path::Path;
use std::process::Command;

use weir_testkit::World;

const WEIR: &str = env!("CARGO_BIN_EXE_weir");
const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
const PICTURES: [&str; 3] = ["doctor.svg", "report.png", "report-read.png"];
/// Their text, and the runs that they show.
const EVIDENCE: [&str; 5] = ["doctor.head", "doctor.json", "report.txt", "report-read.txt", "report.json"];

/// Runs `scripts/pictures/check` on the folders of pictures and evidence; whether it accepts them, and its output.
fn check(folders: [&Path; 2]) -> (bool, String) {
    let mut command = Command::new(format!("{ROOT}/scripts/pictures/check"));
    let output = command.arg(WEIR).args(folders).output().unwrap();
    let text = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap()).concat();
    (output.status.success(), text)
}

#[test]
fn pictures_show_what_the_program_prints() {
    let pictures = Path::new(ROOT).join("docs/pictures");
    let evidence = Path::new(ROOT).join("scripts/pictures/evidence");
    let (same, text) = check([&pictures, &evidence]);
    assert!(same, "{text}");

    let world = World::plain(WEIR);
    let files = PICTURES.map(|name| pictures.join(name)).into_iter();
    let files: Vec<_> = files.chain(EVIDENCE.map(|name| evidence.join(name))).collect();
    let plant = |file: &str, from: &str, to: &str| {
        for path in &files {
            let mut bytes = fs::read(path).unwrap();
            if path.ends_with(file) {
                let text = String::from_utf8(bytes).unwrap();
                assert!(text.contains(from), "{file} has no {from}");
                bytes = text.replacen(from, to, 1).into_bytes();
            }
            world.write(path.file_name().unwrap().to_str().unwrap(), bytes);
        }
        check([&world.work(), &world.work()])
    };
    // A word that the program prints otherwise, one in the evidence only, and a text that the picture does not show.
    for (file, from, to) in [
        ("doctor.svg", "loose", "lax"),
        ("doctor.json", "\"wan2\"", "\"wan9\""),
        ("report.txt", "Results", "Figures"),
        ("report-read.txt", "To do: ", "Advice: "),
    ] {
        let (same, text) = plant(file, from, to);
        assert!(!same && text.contains("run: make pictures"), "{file}: {text}");
    }
}
