//! `weir allow update`: whatever a publisher, the network or this host does wrong, the list that was there stays whole.

mod documents;
#[path = "allow_update/endings.rs"]
mod endings;
#[path = "allow_update/https.rs"]
mod https;
#[path = "allow_update/scene.rs"]
mod scene;

use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant};

use https::{Authority, Certificate, Reply, Server};
use scene::{APNIC, Scene, apnic, list_of, md5};
use weir_testkit::PATIENCE;

#[test]
fn a_list_is_downloaded_once_and_used_by_country() {
    let scene = Scene::new();
    scene.publish(&apnic(20_251_120, 10));
    let outcome = scene.update(&["--country", "jp"]).expect(0);
    assert!(
        outcome.stdout.contains("apnic    fetched      serial 20251120, 11 records, 2560 IPv4"),
        "{}",
        outcome.stdout
    );
    assert!(outcome.stdout.contains("checksum right"), "{}", outcome.stdout);
    // 256 addresses, and 2^16 networks of /64 in a /48.
    assert!(outcome.stdout.contains("JP: 2 records, 256 IPv4 addresses, 65536 IPv6"), "{}", outcome.stdout);
    assert_eq!(fs::read_to_string(scene.file()).unwrap(), apnic(20_251_120, 10), "as it was published");

    let asked = scene.server.requests().len();
    let outcome = scene.update(&[]).expect(0);
    assert!(outcome.stdout.contains("apnic    not modified serial 20251120"), "{}", outcome.stdout);
    let requests = scene.server.requests();
    assert_eq!(requests.len(), asked + 1, "the file was asked for once, its checksum not at all");
    assert!(requests[asked].headers.contains_key("if-none-match"), "{requests:?}");
    assert!(requests[0].headers["user-agent"].starts_with("weir/"), "{requests:?}");

    let cached = |args: &[&str]| scene.world.run(scene.command(&[args, &["--cache", "cache"]].concat()));
    let built = cached(&["build", "--country", "JP", "--registry", "apnic", "--format", "cidr"]).expect(0);
    assert_eq!(built.stdout, "198.18.0.0/24\n2001:2::/48\n");
    assert!(built.stderr.contains("last found current"), "{}", built.stderr);
    let checked = cached(&["check", "198.18.3.7", "--registry", "apnic"]).expect(0);
    assert_eq!(checked.stdout, format!("198.18.3.7 is in the list: 198.18.3.0/24 (cache/{APNIC}:8)\n"));
    // The other four are not there.
    let incomplete = cached(&["build", "--country", "JP"]).expect(4);
    assert!(
        incomplete.stderr.contains("afrinic, arin, lacnic, ripencc: run `weir allow update`"),
        "{}",
        incomplete.stderr
    );
}

#[test]
fn five_registries_make_up_a_country() {
    let scene = Scene::new();
    for (n, registry) in ["afrinic", "apnic", "arin", "lacnic", "ripencc"].into_iter().enumerate() {
        // Each gave the country another network.
        let text = list_of(registry, 20_251_120, 1).replace("198.18.0.0", &format!("198.18.{}.0", 2 * n));
        scene.server.set(&format!("/{registry}.md5"), Reply::File(md5(text.as_bytes()).into_bytes()));
        scene.server.set(&format!("/{registry}"), Reply::File(text.into()));
    }
    let run = |args: &[&str]| scene.world.run(scene.command(&[args, &["--cache", "cache"]].concat()));
    let from = scene.server.url("/{registry}");
    let outcome = run(&["update", "--from", &from, "--ca", "ca.pem", "--country", "JP"]).expect(0);
    assert_eq!(outcome.stdout.lines().filter(|l| l.contains("fetched")).count(), 5, "{}", outcome.stdout);
    assert!(outcome.stdout.contains("JP: 10 records, 1280 IPv4 addresses"), "{}", outcome.stdout);
    let built = run(&["build", "--country", "JP", "-4", "--format", "cidr"]).expect(0);
    let networks = (0..5).map(|n| format!("198.18.{}.0/24\n", 2 * n)).collect::<String>();
    assert_eq!(built.stdout, networks);
    scene.world.write("old", "198.18.0.0/24\n198.18.1.0/24\n2001:2::/48\n");
    let diff = run(&["diff", "old", "--country", "JP"]).expect(0);
    let expected = "-198.18.1.0/24\n+198.18.2.0/24\n+198.18.4.0/24\n+198.18.6.0/24\n+198.18.8.0/24\n";
    assert_eq!(diff.stdout, expected);
    // One of them cannot be had; the others are still brought up to date.
    scene.server.set("/arin", Reply::Head("503 Service Unavailable", String::new()));
    let outcome = run(&["update", "--from", &from, "--ca", "ca.pem"]).expect(1);
    assert_eq!(
        outcome.stdout.lines().filter(|l| l.contains("not modified")).count(),
        4,
        "{}",
        outcome.stdout
    );
    assert!(outcome.stdout.contains("arin     kept "), "{}", outcome.stdout);
    assert!(outcome.stderr.contains("weir: 1 of 5 lists could not be updated"), "{}", outcome.stderr);
}

#[test]
fn a_newer_list_takes_the_place_of_the_old_one_and_a_worse_one_does_not() {
    let scene = Scene::new();
    scene.publish(&apnic(20_251_120, 10));
    scene.update(&[]).expect(0);
    // 8 of 10 blocks is not yet over 20 % fewer, nor are 9 of 11 records.
    scene.publish(&apnic(20_251_121, 8));
    let outcome = scene.update(&[]).expect(0);
    assert!(outcome.stdout.contains(", was serial 20251120 with 11 records"), "{}", outcome.stdout);
    assert_eq!(fs::read_to_string(scene.file()).unwrap(), apnic(20_251_121, 8));

    scene.publish(&apnic(20_251_120, 8));
    scene.refused(&[], 3, "it is older: serial 20251120, the one here has 20251121");
    scene.publish(&apnic(20_251_122, 6));
    scene.refused(&[], 3, "25 % fewer IPv4 addresses (1536, was 2048)");
    // The whole is as large, but a country is gone.
    scene.publish(&apnic(20_251_122, 8).replace("|JP|ipv4", "|CN|ipv4"));
    scene.refused(&["--country", "JP"], 3, "JP has 100 % fewer IPv4 addresses (0, was 256)");
    scene.publish(&list_of("arin", 20_251_122, 8));
    scene.refused(&["--force"], 3, "it is the file of arin, not of apnic");

    scene.publish(&apnic(20_251_122, 6));
    let outcome = scene.update(&["--force"]).expect(0);
    assert!(outcome.stderr.contains("taken by force: it has 25 % fewer"), "{}", outcome.stderr);
    assert_eq!(fs::read_to_string(scene.file()).unwrap(), apnic(20_251_122, 6));
}

#[test]
fn a_damaged_file_is_refused_even_by_force() {
    let scene = Scene::new();
    scene.publish(&apnic(20_251_120, 10));
    scene.update(&[]).expect(0);
    let new = apnic(20_251_121, 10);

    let cut: String = new.lines().take(9).map(|l| format!("{l}\n")).collect();
    scene.publish(&cut);
    scene.refused(&["--force"], 3, "it says that it has 10 ipv4 records, and has 5: it was cut off");
    scene.publish("<html><body>Please log in to this network</body></html>\n");
    scene.refused(&["--force"], 3, "apnic:1: expected a prefix");
    scene.publish(&new.replace("198.18.3.0|256", "198.18.3.0|0"));
    scene.refused(&["--force"], 3, "apnic:8: that many addresses do not follow");
    // One line of eleven may be left out, with a message, and the file is kept as it was published.
    let outcome = scene.update(&["--skip-bad-lines"]).expect(0);
    assert!(outcome.stderr.contains("left out: https://"), "{}", outcome.stderr);
    assert!(outcome.stdout.contains(" 10 records, 2304 IPv4 addresses"), "{}", outcome.stdout);
    scene.publish(&apnic(20_251_120, 10));
    scene.update(&["--skip-bad-lines", "--force"]).expect(0);
    scene.publish("2|apnic|20251121|0|19830613|20251120|+1000\n");
    scene.refused(&["--force"], 3, "there is no address in it");
    scene.publish("198.18.0.0/16\n");
    scene.refused(&["--force"], 3, "it is the file of no registry, not of apnic");

    scene.publish(&new);
    scene.server.set("/apnic.md5", Reply::File(md5(b"another file").into_bytes()));
    scene.refused(&["--force"], 3, "its MD5 is");
    scene.server.set("/apnic.md5", Reply::File(b"<html>no</html>".to_vec()));
    scene.refused(&["--force"], 3, "there is no MD5 checksum in it");
    scene.server.set("/apnic.md5", Reply::Head("500 Internal Server Error", String::new()));
    scene.refused(&["--force"], 1, "apnic.md5: status 500");

    // Some mirrors have none: a message names it, and no more.
    scene.server.set("/apnic.md5", Reply::Head("404 Not Found", String::new()));
    let outcome = scene.update(&[]).expect(0);
    assert!(outcome.stderr.contains("no checksum is published"), "{}", outcome.stderr);
    assert_eq!(fs::read_to_string(scene.file()).unwrap(), new);
}

/// A file that was taken without one of its lines is what the next one is compared with, whether or not lines may be left out then.
#[test]
fn a_list_with_a_bad_line_is_not_replaced_by_a_worse_one_either() {
    let scene = Scene::new();
    let with_bad_line = apnic(20_251_120, 10).replace("198.18.3.0|256", "198.18.3.0|0");
    scene.publish(&with_bad_line);
    scene.update(&["--skip-bad-lines"]).expect(0);
    let offline = ["update", "--registry", "apnic", "--cache", "cache", "--offline"];
    let outcome = scene.world.run(scene.command(&offline)).expect(3);
    let words = format!("cache/{APNIC}:8: that many addresses do not follow");
    assert!(outcome.stderr.contains(&words), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("--skip-bad-lines"), "{}", outcome.stderr);
    assert!(outcome.stdout.contains("apnic    kept "), "{}", outcome.stdout);
    scene.world.run(scene.command(&[&offline[..], &["--skip-bad-lines"]].concat())).expect(0);

    // A publisher without a newer one does not make it better.
    scene.refused(&[], 3, "apnic:8: that many addresses do not follow");
    scene.publish(&apnic(20_251_121, 5));
    scene.refused(&[], 3, "44 % fewer IPv4 addresses (1280, was 2304)");
    scene.refused(&["--skip-bad-lines"], 3, "44 % fewer");
    scene.publish(&apnic(20_251_121, 10));
    scene.update(&[]).expect(0);
    assert_eq!(fs::read_to_string(scene.file()).unwrap(), apnic(20_251_121, 10));
}

#[test]
fn redirects_are_few_and_never_leave_https() {
    let scene = Scene::new();
    let list = apnic(20_251_120, 10);
    scene.server.set("/moved", Reply::File(list.clone().into()));
    scene.server.set("/apnic.md5", Reply::File(md5(list.as_bytes()).into_bytes()));
    scene.answer(Reply::redirect(scene.server.url("/moved")));
    scene.update(&[]).expect(0);
    assert_eq!(fs::read_to_string(scene.file()).unwrap(), list);

    scene.answer(Reply::redirect(scene.server.url("/apnic")));
    let before = scene.server.requests().len();
    scene.refused(&[], 1, "redirects more than 5 times");
    assert_eq!(scene.server.requests().len(), before + 6);

    let plain = Server::plain();
    plain.set("/moved", Reply::File(list.into()));
    scene.answer(Reply::redirect(format!("http://127.0.0.1:{}/moved", plain.port())));
    scene.refused(&[], 1, "is not https: refused");
    assert_eq!(plain.connections(), 0, "nobody came to the server without TLS");
}

#[test]
fn servers_that_cannot_prove_who_they_are_are_not_asked() {
    for (certificate, words) in
        [(Certificate::OfAnother, "not valid for name"), (Certificate::Expired, "expired")]
    {
        let scene = Scene::with(certificate);
        scene.publish(&apnic(20_251_120, 10));
        scene.refused(&[], 1, words);
        assert!(scene.server.requests().is_empty(), "nothing was said to it");
    }
    let scene = Scene::new();
    scene.publish(&apnic(20_251_120, 10));
    // Signed by no authority that is trusted here.
    scene.world.write("ca.pem", Authority::new().pem);
    scene.refused(&[], 1, "TLS: ");
    assert!(scene.server.requests().is_empty(), "nothing was said to it");
}

/// The head of an answer whose body comes in chunks.
const CHUNKS: &[u8] = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";

#[test]
fn no_answer_takes_more_than_it_may() {
    let scene = Scene::new();
    scene.publish(&apnic(20_251_120, 10));
    scene.update(&[]).expect(0);

    scene.answer(Reply::raw(|out| {
        out.write_all(CHUNKS)?;
        // Ends when the client does.
        let chunk = format!("10000\r\n{}\r\n", "#".repeat(0x10000));
        loop {
            out.write_all(chunk.as_bytes())?;
        }
    }));
    scene.refused(&[], 1, "more than 67108864 bytes");
    let large = format!("Content-Length: {}\r\n", 1u64 << 40);
    scene.answer(Reply::raw(move |out| write!(out, "HTTP/1.1 200 OK\r\n{large}\r\n")));
    scene.refused(&[], 1, "more than 67108864 bytes");
    scene.answer(Reply::raw(|out| {
        out.write_all(b"HTTP/1.1 200 OK\r\n")?;
        loop {
            out.write_all(b"X-Filler: 0123456789abcdef\r\n")?;
        }
    }));
    scene.refused(&[], 1, "apnic: ");
    scene.answer(Reply::Head("200 OK", "Content-Encoding: gzip\r\n".into()));
    scene.refused(&[], 1, "it is sent as `gzip`");
    // A checksum file is no place for much.
    scene.publish(&apnic(20_251_121, 10));
    scene.server.set("/apnic.md5", Reply::File(vec![b'a'; 5000]));
    scene.refused(&[], 1, "more than 4096 bytes");
}

#[test]
fn a_body_of_another_length_than_was_said_is_refused() {
    let scene = Scene::new();
    scene.publish(&apnic(20_251_120, 10));
    scene.update(&[]).expect(0);
    let new = apnic(20_251_121, 10);
    let body = new.clone();
    let long = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len() + 1);
    scene.answer(Reply::raw(move |out| out.write_all(long.as_bytes())));
    scene.refused(&[], 1, "apnic: ");
    // A cut after a whole line, in the middle of the chunks.
    let chunk = format!("{:x}\r\n{new}\r\n", new.len());
    let send = move |out: &mut dyn std::io::Write| {
        out.write_all(CHUNKS)?;
        out.write_all(chunk.as_bytes())
    };
    scene.answer(Reply::Broken(Arc::new(send.clone())));
    scene.refused(&[], 1, "the connection ended before the file did");
    scene.answer(Reply::Raw(Arc::new(send)));
    scene.refused(&[], 1, "the connection ended before the file did");
    // If the end of the connection is the end of the file, a cut is an end like any other.
    let body = format!("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{new}");
    scene.answer(Reply::raw(move |out| out.write_all(body.as_bytes())));
    scene.refused(&[], 1, "where the file ends");
    // The rest is not the file's.
    let short = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{new}", new.len() - 200);
    scene.answer(Reply::raw(move |out| out.write_all(short.as_bytes())));
    scene.refused(&[], 3, "apnic");
}

#[test]
fn a_slow_publisher_is_left_alone() {
    let scene = Scene::new();
    scene.publish(&apnic(20_251_120, 10));
    scene.update(&[]).expect(0);
    // A byte at a time keeps every single wait short.
    scene.answer(Reply::raw(|out| {
        out.write_all(CHUNKS)?;
        loop {
            out.write_all(b"1\r\n#\r\n")?;
            out.flush()?;
            // Nothing is waited for: this is how slow the publisher is.
            std::thread::sleep(Duration::from_millis(50));
        }
    }));
    let begin = Instant::now();
    scene.refused(&["--timeout", "1s"], 1, "it was not there within 1 s");
    assert!(begin.elapsed() >= Duration::from_secs(1));
    // Nothing at all.
    scene.answer(Reply::raw(|_| {
        // Far longer than the time that is given: the command does not wait for the end of it.
        std::thread::sleep(PATIENCE);
        Ok(())
    }));
    scene.refused(&["--timeout", "1s"], 1, "apnic: ");
    // No server is there.
    let gone = scene.server.port();
    let Scene { world, server } = scene;
    drop(server);
    let from = format!("https://127.0.0.1:{gone}/x");
    let outcome =
        world.run(world.weir(&["allow", "update", "--from", &from, "--ca", "ca.pem", "--cache", "cache"]));
    assert!(outcome.expect(1).stderr.contains("refused"));
}

#[test]
fn without_a_network_the_cache_says_how_old_it_is() {
    let scene = Scene::new();
    // Whom to trust is of no use without a request.
    scene.update(&["--offline"]).expect(2);
    let offline = |registry: &str| {
        scene.world.run(scene.command(&[
            "update",
            "--registry",
            registry,
            "--cache",
            "cache",
            "--offline",
            "--json",
        ]))
    };
    offline("apnic").expect(4);
    scene.publish(&apnic(20_251_120, 10));
    scene.update(&[]).expect(0);
    let before = scene.server.connections();
    let outcome = offline("apnic").expect(0);
    let json = documents::read(&outcome.stdout, "allow-update");
    let list = &json["lists"][0];
    assert_eq!((&list["outcome"], &list["held"]["serial"]), (&"not-asked".into(), &"20251120".into()));
    assert_eq!((&list["held"]["records"], &list["held"]["ipv4_addresses"]), (&11.into(), &2560.into()));
    assert_eq!(list["held"]["checksum"], "matched");
    offline("arin").expect(4);
    // Another process asked just now.
    let outcome = scene.update(&["--max-age", "1h"]).expect(0);
    assert!(outcome.stdout.contains("not asked"), "{}", outcome.stdout);
    assert_eq!(scene.server.connections(), before, "nobody was asked");
}

#[test]
fn an_old_list_is_used_and_said_to_be_old() {
    let scene = Scene::new();
    fs::create_dir(scene.world.work().join("cache")).unwrap();
    fs::write(scene.file(), apnic(20_251_120, 10)).unwrap();
    scene.world.sh(&format!("touch -d '10 days ago' cache/{APNIC}"));
    let args = ["build", "--country", "JP", "--registry", "apnic", "--cache", "cache", "--format", "cidr"];
    let outcome = scene.world.run(scene.command(&args)).expect(0);
    assert!(outcome.stderr.contains("apnic (10 d); run `weir allow update`"), "{}", outcome.stderr);
    // A file that the user put there is compared with as well.
    scene.publish(&apnic(20_251_121, 5));
    scene.refused(&[], 3, "50 % fewer");
    // A file that is no list is replaced, with a message.
    fs::write(scene.file(), "nonsense").unwrap();
    let outcome = scene.update(&[]).expect(0);
    assert!(outcome.stderr.contains("the file in the cache is of no use"), "{}", outcome.stderr);
}

#[test]
fn a_list_of_one_s_own_is_kept_under_its_own_name() {
    let scene = Scene::new();
    scene.server.set("/office", Reply::File(b"198.18.0.0/24\n".to_vec()));
    let url = scene.server.url("/office");
    let args = ["update", "--from", &url, "--ca", "ca.pem", "--cache", "cache", "--json"];
    let outcome = scene.world.run(scene.command(&args)).expect(0);
    let json = documents::read(&outcome.stdout, "allow-update");
    let path = json["lists"][0]["path"].as_str().unwrap();
    assert!(path.starts_with("cache/from-127.0.0.1-"), "{path}");
    let built = scene.world.run(scene.command(&["build", path, "--format", "cidr"])).expect(0);
    assert_eq!(built.stdout, "198.18.0.0/24\n");
    let paths: Vec<String> = scene.server.requests().into_iter().map(|r| r.path).collect();
    assert_eq!(paths, ["/office"], "no checksum is asked for");
}

#[test]
fn what_is_wrong_with_the_options_is_told() {
    let scene = Scene::new();
    for (args, words) in [
        (&["--from", "http://127.0.0.1/x"][..], "only https"),
        (&["--from", "https://user:word@127.0.0.1/x"], "user name"),
        (&["--from", "https://127.0.0.1/x", "--registry", "apnic", "--registry", "arin"], "{registry}"),
        (&["--from", "https://127.0.0.1/x", "--from", "https://127.0.0.1/x"], "twice"),
        (&["--country", "Japan"], "two letters"),
        (&["--ca", "no-such-file"], "no-such-file"),
        (&["--max-age", "yesterday"], "90s"),
    ] {
        let outcome = scene.world.run(scene.command(&[&["update", "--cache", "cache"], args].concat()));
        let outcome = outcome.expect(2);
        assert!(outcome.stderr.contains(words), "{args:?}: {}", outcome.stderr);
    }
    assert_eq!(scene.world.left_behind(&["ca.pem"]), [""; 0]);
}

#[test]
fn the_same_file_under_another_etag_is_not_modified() {
    let scene = Scene::new();
    scene.publish(&apnic(20_251_120, 10));
    scene.update(&[]).expect(0);
    let body = apnic(20_251_120, 10);
    let text = format!("HTTP/1.1 200 OK\r\nETag: \"other\"\r\nContent-Length: {}\r\n\r\n{body}", body.len());
    scene.answer(Reply::raw(move |out| out.write_all(text.as_bytes())));
    let outcome = scene.update(&[]).expect(0);
    assert!(outcome.stdout.contains("not modified"), "{}", outcome.stdout);
    scene.update(&[]).expect(0);
    assert_eq!(
        scene.server.requests().iter().rev().find(|r| r.path == "/apnic").unwrap().headers["if-none-match"],
        "\"other\""
    );
}
