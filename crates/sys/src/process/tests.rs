use std::process::Stdio;

use super::*;

fn shell(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script]);
    command
}

/// Not through a shell: that would leave its child behind when it alone is stopped.
fn sleep() -> Command {
    let mut command = Command::new("sleep");
    command.arg("1000");
    command
}

const LONG: Duration = Duration::from_secs(20);

#[test]
fn captures_both_streams_and_the_status() {
    let output = run_captured(shell("echo out; echo err >&2; exit 3"), LONG).unwrap();
    assert_eq!(output.stdout, b"out\n");
    assert_eq!(output.stderr, b"err\n");
    assert_eq!(output.status.code(), Some(3));
    assert!(!output.truncated);
    assert_eq!(output.message(), "err");
}

#[test]
fn input_larger_than_a_pipe_comes_back_whole() {
    let input = vec![b'x'; 1 << 20];
    let output = run_with_input(Command::new("cat"), &input, LONG).unwrap();
    assert_eq!(output.stdout.len(), input.len());
}

#[test]
fn a_program_that_ignores_its_input_is_not_an_error() {
    let output = run_with_input(shell("exit 0"), &vec![b'x'; 1 << 20], LONG).unwrap();
    assert!(output.status.success());
}

#[test]
fn output_is_bounded() {
    let script = format!("head -c {} /dev/zero", OUTPUT_LIMIT + 1);
    let output = run_captured(shell(&script), LONG).unwrap();
    assert_eq!(output.stdout.len(), OUTPUT_LIMIT);
    assert!(output.truncated);
}

#[test]
fn a_hanging_program_and_its_children_are_killed() {
    let error = run_captured(shell("sleep 1000 & echo $!; wait"), Duration::from_millis(300)).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    let text = error.to_string();
    let pid: u32 = text.rsplit(' ').next().unwrap().parse().unwrap_or_else(|_| panic!("{text}"));
    let deadline = Instant::now() + LONG;
    while Identity::of(pid).unwrap().is_some_and(|child| child.is_running().unwrap()) {
        assert!(Instant::now() < deadline, "the grandchild {pid} still runs");
        std::thread::yield_now();
    }
}

#[test]
fn a_daemon_that_keeps_the_pipe_is_not_waited_for() {
    // The grandchild leaves the process group, so nothing here kills it: it ends by itself.
    let output = run_captured(shell("setsid sleep 3 & echo done"), LONG).unwrap();
    assert_eq!(output.stdout, b"done\n");
}

#[test]
fn a_missing_program_is_not_found() {
    let error = run_captured(Command::new("/no/such/program"), LONG).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::NotFound);
    assert!(error.to_string().contains("/no/such/program"));
}

#[test]
fn cpu_time_of_the_child_is_counted() {
    // 30 ms of user time by the shell's own times(1) is the stop condition; it prints hundredths.
    let output = run_captured(shell("i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done"), LONG).unwrap();
    assert!(output.cpu > Duration::from_millis(5), "{:?}", output.cpu);
}

#[test]
fn stop_asks_first_and_kills_then() {
    let mut command = shell("trap 'exit 7' TERM; echo ready; while :; do sleep 0.01; done");
    command.stdout(Stdio::piped());
    let mut polite = spawn(command).unwrap();
    let mut line = [0; 6];
    std::io::Read::read_exact(polite.stdout.as_mut().unwrap(), &mut line).unwrap();
    assert_eq!(polite.stop(LONG).unwrap().status.code(), Some(7));
    assert_eq!(polite.stop(LONG).unwrap().status.code(), Some(7), "a second stop says the same");

    let mut command = shell("trap '' TERM; echo ready; while :; do sleep 0.01; done");
    command.stdout(Stdio::piped());
    let mut stubborn = spawn(command).unwrap();
    std::io::Read::read_exact(stubborn.stdout.as_mut().unwrap(), &mut line).unwrap();
    let ended = stubborn.stop(Duration::from_millis(50)).unwrap();
    assert_eq!(ended.status.signal(), Some(libc::SIGKILL));
}

#[test]
fn children_have_their_own_process_group() {
    let output = run_captured(shell("ps -o pgid= -p $$; echo $$"), LONG).unwrap();
    let text = output.stdout_text();
    let numbers: Vec<&str> = text.split_whitespace().collect();
    assert_eq!(numbers[0], numbers[1]);
}

#[test]
fn a_thread_that_spawned_may_end_without_killing_the_child() {
    let mut child = std::thread::spawn(|| spawn(sleep()).unwrap()).join().unwrap();
    assert!(child.wait(Duration::from_millis(100)).unwrap().is_none());
}

#[test]
fn processes_are_told_from_their_successors() {
    let mut child = spawn(sleep()).unwrap();
    let identity = Identity::of(child.pid()).unwrap().unwrap();
    let successor = Identity { start_ticks: identity.start_ticks + 1, ..identity };
    assert!(!stop_other(successor, LONG).unwrap());
    assert!(child.try_wait().unwrap().is_none(), "another start time is another process");
    assert!(stop_other(identity, LONG).unwrap());
    assert_eq!(child.wait(LONG).unwrap().unwrap().status.signal(), Some(libc::SIGTERM));
    assert!(!identity.is_running().unwrap());
    assert!(!stop_other(identity, LONG).unwrap());
}

#[test]
fn which_finds_programs() {
    assert!(which("sh").unwrap().is_absolute());
    assert_eq!(which("/bin/sh"), Some("/bin/sh".into()));
    assert_eq!(which("no-such-program-here"), None);
    assert_eq!(which("/etc/passwd"), None, "not executable");
}
