//! A publisher, and a client that downloads from it.

use std::fs;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};

use weir_testkit::{CommandOutput, World};

use crate::https::{Authority, Certificate, Reply, Server};

/// The program under test.
pub(crate) const WEIR: &str = env!("CARGO_BIN_EXE_weir");

/// The name of the published file, which is that in the cache.
pub(crate) const APNIC: &str = "delegated-apnic-extended-latest";

/// A registry's file in small: `blocks` of 256 IPv4 addresses each, the first of them in JP, the others in CN, and one IPv6
/// network.
pub(crate) fn list_of(registry: &str, serial: u32, blocks: u32) -> String {
    let mut text = format!(
        "2|{registry}|{serial}|{}|19830613|20251120|+1000\n{registry}|*|asn|*|0|summary\n\
         {registry}|*|ipv4|*|{blocks}|summary\n{registry}|*|ipv6|*|1|summary\n",
        blocks + 1
    );
    for n in 0..blocks {
        let country = if n == 0 { "JP" } else { "CN" };
        text += &format!("{registry}|{country}|ipv4|198.18.{n}.0|256|20110412|allocated|A\n");
    }
    text + &format!("{registry}|JP|ipv6|2001:2::|48|19990813|allocated|A\n")
}

pub(crate) fn apnic(serial: u32, blocks: u32) -> String {
    list_of("apnic", serial, blocks)
}

/// By the program of the coreutils, which had no part in what is tested.
pub(crate) fn md5(bytes: &[u8]) -> String {
    let mut child = Command::new("md5sum")
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("md5sum (coreutils)");
    child.stdin.take().unwrap().write_all(bytes).unwrap();
    let output = child.wait_with_output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// A publisher and a client that downloads from it.
pub(crate) struct Scene {
    pub(crate) world: World,
    pub(crate) server: Server,
}

impl Scene {
    pub(crate) fn new() -> Self {
        Scene::with(Certificate::Right)
    }

    pub(crate) fn with(certificate: Certificate) -> Self {
        let world = World::plain(WEIR);
        let authority = Authority::new();
        world.write("ca.pem", &authority.pem);
        Scene { world, server: Server::start(&authority, certificate) }
    }

    /// Publishes a file with its checksum, as APNIC does.
    pub(crate) fn publish(&self, text: &str) {
        self.server.set("/apnic", Reply::File(text.into()));
        self.server.set("/apnic.md5", Reply::File(md5(text.as_bytes()).into_bytes()));
    }

    /// Has this answer where the file should be.
    pub(crate) fn answer(&self, reply: Reply) {
        self.server.set("/apnic", reply);
    }

    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = self.world.weir(&["allow"]);
        command.args(args);
        // A proxy of the user who runs the tests is none of theirs.
        for name in ["http_proxy", "https_proxy", "all_proxy", "no_proxy"] {
            command.env_remove(name).env_remove(name.to_ascii_uppercase());
        }
        command
    }

    pub(crate) fn updating(&self, more: &[&str]) -> Command {
        let from = self.server.url("/{registry}");
        let mut args =
            vec!["update", "--registry", "apnic", "--from", &from, "--ca", "ca.pem", "--cache", "cache"];
        args.extend(more);
        self.command(&args)
    }

    pub(crate) fn update(&self, more: &[&str]) -> CommandOutput {
        self.world.run(self.updating(more))
    }

    /// Runs an update that must fail with this code and these words, and leave everything as it was.
    #[track_caller]
    pub(crate) fn refused(&self, more: &[&str], code: i32, words: &str) {
        let before = self.cached();
        let outcome = self.update(more).expect(code);
        assert!(outcome.stderr.contains(words), "expected `{words}` in: {}", outcome.stderr);
        assert_eq!(outcome.complaints().len(), 1, "{}", outcome.stderr);
        assert_eq!(self.cached(), before, "the cache was changed");
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.world.work().join("cache").join(APNIC)
    }

    /// Every file of the cache with its content.
    pub(crate) fn cached(&self) -> Vec<(String, Vec<u8>)> {
        let Ok(entries) = fs::read_dir(self.world.work().join("cache")) else { return Vec::new() };
        let entries = entries.flatten().filter(|e| e.file_name() != ".lock");
        let read =
            |e: fs::DirEntry| (e.file_name().to_string_lossy().into_owned(), fs::read(e.path()).unwrap());
        let mut all: Vec<_> = entries.map(read).collect();
        all.sort();
        all
    }
}
