//! A panic gives the terminal back before its message.

use std::time::{Duration, Instant};

use weir_live::{Screen, View};
use weir_testkit::{PATIENCE, World, until};

/// Set in the process that has the terminal and panics.
const INSIDE: &str = "WEIR_LIVE_PANICS";

#[test]
fn a_panic_gives_the_terminal_back_and_is_read() {
    if std::env::var_os(INSIDE).is_some() {
        let mut screen = Screen::take(true).unwrap();
        let mut view = View::new("a panic");
        screen.show(&mut view, Instant::now() + Duration::from_millis(200), || false).unwrap();
        panic!("planted");
    }
    if World::lacks(&["tmux"]) {
        return;
    }
    let program = std::env::current_exe().unwrap();
    let world = World::plain(program.to_str().unwrap());
    let tmux = |words: &str| {
        world.sh(&format!("tmux -f /dev/null -S {} {words}", world.folder().join("tmux").display()))
    };
    tmux("new-session -d -s t -x 100 -y 30 'exec sh'");
    let run = |line: &str| {
        tmux(&format!("send-keys -t t -l '{line}'"));
        tmux("send-keys -t t Enter");
    };
    let sees = |text: &str| {
        until(&format!("the terminal shows {text}"), PATIENCE, || {
            let screen = tmux("capture-pane -p -t t -S -200");
            screen.contains(text).then_some(screen)
        })
    };
    run(&format!("RUST_BACKTRACE=0 {INSIDE}=1 {} --nocapture; echo code-$?", program.display()));
    let screen = sees("code-101");
    assert!(screen.contains("planted"), "{screen}");
    assert_eq!(tmux("display -p -t t '#{alternate_on} #{cursor_flag}'").trim(), "0 1");
    run("stty -a | grep -o [-]icanon; echo modes-$?");
    sees("modes-1");
    tmux("kill-server");
}
