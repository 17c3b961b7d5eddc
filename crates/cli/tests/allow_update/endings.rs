//! However an update ends, killed, beside another one or on a full disk, there is a whole list in the cache.

use std::fs;
use std::process::Stdio;
use std::time::Instant;

use weir_testkit::{PATIENCE, World, until};

use crate::https::{Reply, Server};
use crate::scene::{APNIC, Scene, WEIR, apnic};

/// Waits for a request of the file itself.
fn await_request(server: &Server, before: usize) {
    until("a request", PATIENCE, || (server.requests().len() > before).then_some(()));
}

#[test]
fn one_update_at_a_time_and_a_killed_one_leaves_nothing() {
    let scene = Scene::new();
    scene.publish(&apnic(20_251_120, 10));
    scene.update(&[]).expect(0);
    let old = scene.cached();
    let new = apnic(20_251_121, 10);
    let part = new[..new.len() / 2].to_owned();
    scene.answer(Reply::raw(move |out| {
        write!(out, "HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n{part}")?;
        out.flush()?;
        // The rest never comes: the update is killed before this is over.
        std::thread::sleep(PATIENCE);
        Ok(())
    }));
    let before = scene.server.requests().len();
    let mut first = scene.updating(&[]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    await_request(&scene.server, before);
    let second = scene.update(&[]).expect(1);
    assert!(second.stderr.contains("another update is at work in cache"), "{}", second.stderr);
    // Readers need no lock.
    let args = ["check", "198.18.3.7", "--registry", "apnic", "--cache", "cache"];
    scene.world.run(scene.command(&args)).expect(0);
    first.kill().unwrap();
    first.wait().unwrap();
    assert_eq!(scene.cached(), old);
    scene.publish(&new);
    scene.update(&[]).expect(0);
    assert_eq!(fs::read_to_string(scene.file()).unwrap(), new);
}

#[test]
fn what_a_crash_leaves_is_not_taken_for_something_else() {
    let scene = Scene::new();
    scene.publish(&apnic(20_251_120, 10));
    scene.update(&[]).expect(0);
    // Between the two renames: the file is new, the known hash is of the old one. And before: half a file beside.
    fs::write(scene.file(), apnic(20_251_121, 10)).unwrap();
    fs::write(scene.file().with_extension("new"), "half a fi").unwrap();
    let before = scene.server.requests().len();
    scene.publish(&apnic(20_251_121, 10));
    let outcome = scene.update(&[]).expect(0);
    let request = &scene.server.requests()[before];
    assert!(
        !request.headers.contains_key("if-none-match"),
        "the old ETag is not that of the new file: {request:?}"
    );
    assert!(outcome.stdout.contains("serial 20251121"), "{}", outcome.stdout);
    let names: Vec<String> = scene.cached().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, [APNIC.to_owned(), format!("{APNIC}.json")]);
    // From here on it is known again; and what was left goes away also where nothing new comes.
    fs::write(scene.file().with_extension("new"), "half a fi").unwrap();
    scene.update(&[]).expect(0);
    assert!(scene.server.requests().last().unwrap().headers.contains_key("if-none-match"));
    assert_eq!(scene.cached().len(), 2);
}

#[test]
fn killed_at_any_moment_the_file_is_the_old_or_the_new_one() {
    let scene = Scene::new();
    // Large enough that reading and writing it take their time: 65,536 records of one address each.
    let large = |serial: u32| {
        let mut text = format!("2|apnic|{serial}|65536|1|20251120|0\napnic|*|ipv4|*|65536|summary\n");
        for n in 0..65_536u32 {
            let address = std::net::Ipv4Addr::from(0xc612_0000 + n);
            text += &format!("apnic|JP|ipv4|{address}|1|20110412|allocated|A\n");
        }
        text
    };
    let lists = [large(20_251_120), large(20_251_121)];
    scene.publish(&lists[0]);
    let begin = Instant::now();
    scene.update(&[]).expect(0);
    let whole = begin.elapsed();
    let (mut killed, mut seen) = (0, 0);
    for round in 0..24u32 {
        scene.publish(&lists[(round as usize + 1) % 2]);
        let mut child =
            scene.updating(&["--force"]).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        // Over the second half, where the file is judged and written. No state is awaited: it is the moment that is varied, and
        // whichever it is, the outcome must hold.
        std::thread::sleep(whole.mul_f64(0.5 + f64::from(round) / 40.0));
        child.kill().unwrap();
        killed += u32::from(!child.wait().unwrap().success());
        let file = fs::read_to_string(scene.file()).unwrap();
        let which = lists.iter().position(|l| *l == file);
        assert!(which.is_some(), "round {round}: neither the old nor the new file, {} bytes", file.len());
        seen |= 1 << which.unwrap_or(2);
    }
    println!("killed {killed} of 24, files seen: {seen:b}");
    // Whatever was left, the next one clears away and goes on.
    scene.publish(&lists[0]);
    scene.update(&["--force"]).expect(0);
    let names: Vec<String> = scene.cached().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, [APNIC.to_owned(), format!("{APNIC}.json")]);
    assert_eq!(fs::read_to_string(scene.file()).unwrap(), lists[0]);
}

#[test]
fn root_a_full_disk_keeps_the_old_list() {
    if World::lacks_root() {
        return;
    }
    let scene = Scene::new();
    scene.publish(&apnic(20_251_120, 10));
    scene.update(&[]).expect(0);
    let old = fs::read(scene.file()).unwrap();
    // 60 kB of comments more than the disk of 32 kB holds.
    let new = apnic(20_251_121, 10) + &"# a comment\n".repeat(5000);
    scene.publish(&new);
    let from = scene.server.url("/{registry}");
    let script = format!(
        "mkdir disk && mount -t tmpfs -o size=32k tmpfs disk && cp -a cache/{APNIC}* disk/ && \
         {WEIR} allow update --registry apnic --from '{from}' --ca ca.pem --cache disk; code=$?; ls -A disk; \
         cp disk/{APNIC} kept; umount disk; exit $code"
    );
    let mut command = scene.world.command("unshare");
    command.args(["--mount", "--propagation", "private", "--", "sh", "-c", &script]);
    for name in ["https_proxy", "HTTPS_PROXY", "all_proxy", "ALL_PROXY"] {
        command.env_remove(name);
    }
    let outcome = scene.world.run(command).expect(1);
    assert!(outcome.stderr.contains("No space left on device"), "{}", outcome.stderr);
    assert_eq!(fs::read(scene.world.work().join("kept")).unwrap(), old);
    assert!(!outcome.stdout.contains(".new"), "{}", outcome.stdout);
}
