//! A trial of settings under a running systemd: its timer rolls back when both guards are killed.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use weir_sys::process::run_captured;
use weir_testkit::World;

const WEIR: &str = env!("CARGO_BIN_EXE_weir");
const LIMIT: Duration = Duration::from_secs(240);

const SCRIPT: &str = r#"
export WEIR_STATE_DIR=/run/state
value() { sysctl -n net.core.somaxconn; }
units() { echo "units:$(systemctl list-units --all --no-legend 'weir-trial*')"; }
apply() { WEIR tune apply --set net.core.somaxconn=9000 --no-watch --confirm-within 10s 2>&1 >/dev/null; }
before=$(value)
apply
echo "on trial $(value)"
guards=$(pgrep -f ' guard tune ')
echo "guards $(wc -w <<<"$guards")"
kill -STOP $guards
kill -KILL $guards
while pgrep -f ' guard tune ' >/dev/null; do sleep 0.1; done
echo "killed $(value)"
WEIR tune status | grep -o 'a timer of systemd rolls it back'
for _ in $(seq 600); do [[ $(value) == "$before" ]] && break; sleep 0.1; done
[[ $(value) == "$before" ]] && echo "back"
units
apply
WEIR tune confirm >/dev/null
units
sleep 12
echo "confirmed $(value)"
"#;

#[test]
fn root_a_timer_of_systemd_rolls_back_when_both_guards_are_killed() {
    if World::lacks_root() || World::lacks(&["systemd-run", "unshare"]) {
        return;
    }
    if !Path::new("/lib/systemd/systemd").exists() {
        println!("SKIP: needs systemd (apt-get install systemd)");
        return;
    }
    let mut command = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/with-systemd"));
    command.arg(SCRIPT.replace("WEIR tune", &format!("{WEIR} tune")));
    let output = run_captured(command, LIMIT).unwrap();
    let announced = "rolls back in 10 s; keep it with: weir tune confirm";
    let lines = [
        announced,
        "on trial 9000",
        "guards 2",
        "killed 9000",
        "a timer of systemd rolls it back",
        "back",
        "units:",
        announced,
        "units:",
        "confirmed 9000",
    ];
    let printed = output.stdout_text();
    assert_eq!(printed.lines().collect::<Vec<_>>(), lines, "{}", output.message());
    assert!(output.status.success());
}
