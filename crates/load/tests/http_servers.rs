#![allow(missing_docs, reason = "a test program")]
//! HTTP requests against servers that others wrote: nginx as weir starts it, OpenSSL's own, and what ab and wrk make of the same.

mod ends;

use std::io::{BufRead, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

use ends::{Site, parts, setting, trial, workload};
use serde_json::json;
use weir_load::Workload;
use weir_record::FaultCode;

fn lacks(programs: &[&str]) -> bool {
    let missing = programs.iter().find(|p| weir_sys::process::which(p).is_none());
    if let Some(program) = missing {
        println!("SKIP: {program} is not installed");
    }
    missing.is_some()
}

/// Folders of servers that this process started.
fn folders() -> Vec<PathBuf> {
    let mine = format!("weir-http-{}-", std::process::id());
    let all = std::fs::read_dir(std::env::temp_dir()).unwrap().filter_map(Result::ok);
    let is_mine = |e: &std::fs::DirEntry| e.file_name().to_string_lossy().starts_with(&mine);
    all.filter(is_mine).map(|e| e.path()).collect()
}

fn http(options: serde_json::Value) -> Workload {
    let mut whole = json!({"kind": "http"});
    whole.as_object_mut().unwrap().extend(options.as_object().unwrap().clone());
    workload(whole)
}

#[test]
fn nginx_answers_each_request_and_leaves_nothing_behind() {
    if lacks(&["nginx"]) {
        return;
    }
    for (options, site) in [
        (json!({"connections": 10, "requests": 2000, "body-bytes": 1000}), Site::loopback()),
        (
            json!({"connections": 10, "requests": 500, "body-bytes": 1000, "keep-alive": false}),
            Site::loopback_v6(),
        ),
        (json!({"connections": 2, "requests": 20, "body-bytes": 3_000_000}), Site::loopback()),
        (json!({"connections": 3, "requests": 30, "body-bytes": 0}), Site::loopback()),
    ] {
        let w = http(options.clone());
        // A number of its own for each, since tests run side by side.
        let mut s = setting(0, 30_000);
        s.cookie ^= options.to_string().len() as u64 * 7919;
        let t = trial(&w, &s, &site);
        assert!(t.faults.is_empty(), "{:?}", t.faults);
        let n = options["requests"].as_f64().unwrap();
        assert_eq!(t.value("status_2xx"), n, "{options}: {:?}", t.values);
        assert_eq!(t.value("body_bytes"), n * options["body-bytes"].as_f64().unwrap());
        assert_eq!(t.value("failed_ratio"), 0.0);
        assert!(t.value("server_cpu_ns_per_request") > 0.0, "{:?}", t.values);
        let name = format!("{:016x}", s.cookie);
        assert!(folders().iter().all(|f| !f.to_string_lossy().ends_with(&name)), "{:?}", folders());
    }
}

#[test]
fn nginx_speaks_tls_too() {
    if lacks(&["nginx", "openssl"]) {
        return;
    }
    for kept in [true, false] {
        let w = http(
            json!({"connections": 4, "requests": 200, "tls": true, "keep-alive": kept, "body-bytes": 40_000}),
        );
        let mut s = setting(0, 30_000);
        s.cookie ^= 0x7150 + u64::from(kept);
        let t = trial(&w, &s, &Site::loopback());
        assert_eq!(t.value("ok"), 200.0, "{:?} {:?}", t.values, t.faults);
        assert_eq!(t.value("body_bytes"), 200.0 * 40_000.0);
        // One handshake for each connection.
        let handshakes = t.histograms["tls"].len();
        assert_eq!(handshakes, if kept { 4 } else { 200 });
        assert_eq!(t.value("connections_opened"), handshakes as f64);
    }
}

/// A folder that goes away with it.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("weir-test-{name}-{}", std::process::id()));
        std::fs::create_dir(&path).unwrap();
        Folder(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// OpenSSL's test server with a certificate for 127.0.0.1.
struct OpenSsl {
    process: Child,
    address: SocketAddr,
    _says: BufReader<ChildStdout>,
}

impl OpenSsl {
    fn start(folder: &Path, version: &str) -> OpenSsl {
        let made = Command::new("openssl")
            .args([
                "req",
                "-x509",
                "-newkey",
                "ec",
                "-pkeyopt",
                "ec_paramgen_curve:prime256v1",
                "-nodes",
                "-days",
                "2",
            ])
            .args(["-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1,DNS:weir.test"])
            .args(["-addext", "basicConstraints=critical,CA:FALSE"])
            .args(["-keyout", "key.pem", "-out", "cert.pem"])
            .current_dir(folder)
            .output()
            .unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let mut process = Command::new("openssl")
            .args(["s_server", "-www", version, "-cert", "cert.pem", "-key", "key.pem"])
            .args(["-accept", "127.0.0.1:0"])
            .current_dir(folder)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        // It names the port that the kernel gave it. The pipe stays open, since it goes on printing.
        let mut says = BufReader::new(process.stdout.take().unwrap());
        let mut line = String::new();
        while !line.starts_with("ACCEPT ") {
            line.clear();
            assert!(says.read_line(&mut line).unwrap() > 0, "openssl s_server does not listen");
        }
        let address = line["ACCEPT ".len()..].trim().parse().unwrap();
        OpenSsl { process, address, _says: says }
    }
}

impl Drop for OpenSsl {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[test]
fn certificates_are_checked_unless_that_is_switched_off() {
    if lacks(&["openssl"]) {
        return;
    }
    for version in ["-tls1_2", "-tls1_3"] {
        let folder = Folder::new(&format!("tls{version}"));
        let server = OpenSsl::start(&folder.0, version);
        let ca = folder.0.join("cert.pem").display().to_string();
        for (options, good) in [
            (json!({"insecure": true}), true),
            (json!({"ca": ca}), true),
            (json!({"ca": ca, "host": "weir.test"}), true),
            // The certificate is for another name.
            (json!({"ca": ca, "host": "other.test"}), false),
        ] {
            let mut whole = json!({"server": "none", "tls": true, "connections": 1, "requests": 3});
            whole.as_object_mut().unwrap().extend(options.as_object().unwrap().clone());
            let w = http(whole);
            let initiator = w.engine().drive(&setting(0, 20_000), server.address).unwrap();
            let t = w.engine().combine(&[initiator], &[]);
            let (ok, refused) = (t.value("ok"), t.value("tls_failed"));
            assert_eq!(
                (ok, refused),
                if good { (3.0, 0.0) } else { (0.0, 3.0) },
                "{version} {options}: {:?}",
                t.values
            );
            // A handshake that failed counts among the handshakes, at no time.
            let tls = &t.histograms["tls"];
            assert_eq!(
                (tls.answered().len(), tls.failed()),
                if good { (3, 0) } else { (0, 3) },
                "{version} {options}"
            );
            // The error names the reason of TLS.
            let said =
                t.faults.iter().any(|f| f.detail.contains("TLS: ") && f.detail.contains("certificate"));
            assert_eq!(said, !good, "{:?}", t.faults);
        }
        // No authority that the system trusts signed it, if the system trusts anybody.
        let w = http(json!({"server": "none", "tls": true, "connections": 1, "requests": 1}));
        match w.engine().drive(&setting(0, 20_000), server.address) {
            Ok(part) => assert_eq!(part.value("tls_failed"), 1.0, "{:?}", part.values),
            Err(e) => assert!(e.to_string().contains("ca-certificates"), "{e}"),
        }
        let w = http(json!({"server": "none", "tls": true, "ca": "/nowhere.pem"}));
        let error = w.engine().drive(&setting(0, 1000), server.address).unwrap_err().to_string();
        assert!(error.contains("/nowhere.pem"), "{error}");
    }
}

#[test]
fn a_port_that_is_taken_is_said() {
    if lacks(&["nginx"]) {
        return;
    }
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap();
    let error = match http(json!({})).engine().open(&setting(0, 100), address) {
        Ok(_) => panic!("it listens beside another"),
        Err(error) => error.to_string(),
    };
    assert!(error.contains(&format!("something else listens on port {}", address.port())), "{error}");
}

#[test]
fn a_server_of_another_trial_is_not_taken_for_ours() {
    if lacks(&["nginx"]) {
        return;
    }
    let w = http(json!({"connections": 1, "requests": 5}));
    let mut theirs = setting(0, 10_000);
    theirs.cookie ^= 0xbad;
    let ours = weir_load::TrialSettings { cookie: theirs.cookie ^ 1, ..theirs.clone() };
    let server = w.engine().open(&theirs, "127.0.0.1:0".parse().unwrap()).unwrap();
    let target = SocketAddr::from(([127, 0, 0, 1], server.port()));
    let initiator = w.engine().drive(&ours, target).unwrap();
    let t = w.engine().combine(&[initiator], &[server.finish().unwrap()]);
    assert_eq!((t.value("ok"), t.value("status_4xx")), (0.0, 5.0), "{:?}", t.values);
    assert!(t.faults.iter().any(|f| f.void && f.code == FaultCode::ConnectionFailed), "{:?}", t.faults);
}

#[test]
fn ab_and_wrk_are_asked_the_same() {
    for program in ["ab", "wrk"] {
        if lacks(&["nginx", program]) {
            continue;
        }
        for kept in [true, false] {
            let w = workload(json!({
                "kind": "external", "program": program, "connections": 5, "keep-alive": kept, "body-bytes": 100,
            }));
            let mut s = setting(0, 1000);
            s.cookie ^= program.len() as u64 * 31 + u64::from(kept);
            let t = trial(&w, &s, &Site::loopback());
            assert!(t.faults.is_empty(), "{program}: {:?}", t.faults);
            assert!(
                t.value("ok") > 100.0 && t.value("failed_ratio") == 0.0,
                "{program} {kept}: {:?}",
                t.values
            );
            // One thread, and a second of it.
            let cpu_s = t.value("client_cpu_ns_per_request") * t.value("ok") / 1e9;
            assert!(cpu_s > 0.01 && cpu_s < 2.5, "{program}: {cpu_s}");
            assert!(t.value("reported_p99_ns") >= t.value("reported_p50_ns"), "{:?}", t.values);
        }
    }
    if !lacks(&["nginx", "ab"]) {
        let w = workload(json!({"kind": "external", "program": "ab", "connections": 5, "requests": 321}));
        let t = trial(&w, &setting(0, 20_000), &Site::loopback());
        assert_eq!(t.value("ok"), 321.0, "{:?}", t.values);
    }
}

#[test]
fn what_ab_and_wrk_say_is_passed_on() {
    for program in ["ab", "wrk"] {
        if lacks(&["nginx", program]) {
            continue;
        }
        let w = workload(json!({"kind": "external", "program": program, "args": ["-c", "0"]}));
        let error = parts(&w, &setting(0, 1000), &Site::loopback()).unwrap_err().to_string();
        assert!(error.starts_with(&format!("{program}: ")), "{error}");
    }
}
