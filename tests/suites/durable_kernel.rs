//! A durable daemon on a kernel that reports exits only to parents (before Linux 6.15, R126): tasks of the previous
//! daemon continue, and where an exit can't be known, the task says so and why. Runs in a virtual machine with such a
//! kernel.

use bgd_tests::kernel;
use serde_json::Value;

/// Kills a durable daemon, lets some of its tasks end before the next one starts, and one after that. Prints the
/// kernel's release, and each task as it was found and as it ended.
const SCRIPT: &str = r#"set -e
mkdir -p ~/.config/bgd
echo 'durable = true' >~/.config/bgd/config.toml
begin() {
    name=$1; shift
    mkfifo ~/$name.go
    bgctl submit "$@" --shell "echo begun; echo \$\$ >~/$name.new; mv ~/$name.new ~/$name.pid
        read -r _ <~/$name.go; echo over; exit 7"
    until [ -e ~/$name.pid ]; do sleep 0.1; done
}
show() { bgctl status --json "$1"; bgctl output "$1" >&2; }
daemon() { bgctl daemon status --json | sed -n 's/.*"pid": *\([0-9]*\).*/\1/p' | head -n 1; }
ended=$(begin ended); killed=$(begin killed); terminal=$(begin terminal --pty); later=$(begin later)
printf '"%s"\n' "$(uname -r)"
until bgctl status --json "$later" | grep -q '"pid": *[0-9]'; do sleep 0.1; done
bgctl status --json "$later"
kill -9 "$(daemon)"
echo >~/ended.go
echo >~/terminal.go
kill -9 "$(cat ~/killed.pid)"
for name in ended killed terminal; do
    while kill -0 "$(cat ~/$name.pid)" 2>/dev/null; do sleep 0.1; done
done
bgctl block "$ended" "$killed" "$terminal" --timeout none >/dev/null || true
for id in $later $ended $killed $terminal; do show "$id"; done
echo >~/later.go
bgctl block "$later" --timeout none >/dev/null || true
show "$later"
own=$(bgctl submit --shell 'exit 5')
bgctl block "$own" --timeout none >/dev/null || true
show "$own"
bgctl daemon stop --cancel >&2
"#;

fn exit(task: &Value) -> &Value {
    &task["exit"]
}

/// Asserts that a task's exit is unknown, and the reason.
#[track_caller]
fn assert_unknown(task: &Value) {
    let why = task["exit"]["unknown"].as_str().unwrap_or_default();
    assert!(why.contains("this kernel reports it only to parents (Linux 6.15"), "{task:#}");
    assert_eq!(task["status"], "failed", "{task:#}");
}

#[test]
fn r126_older_kernel_leaves_exit_unknown_but_never_wrong_as_root() {
    let outcome = kernel::run_as_alice(SCRIPT).success();
    let values = serde_json::Deserializer::from_slice(&outcome.stdout).into_iter();
    let values: Vec<Value> =
        values.collect::<Result<_, _>>().unwrap_or_else(|error| panic!("{error}: {}", outcome.stdout_text()));
    let tasks: Vec<&Value> = values[1..].iter().map(|value| value.get("task").unwrap_or(value)).collect();
    let release = values[0].as_str().unwrap_or_default();
    let numbers: Vec<u32> = release.split(['.', '-']).map_while(|part| part.parse().ok()).collect();
    assert!(numbers[..2] < [6, 15][..], "the kernel of user-mode-linux is {release}: another one is needed");
    let [before, goes_on, ended, killed, terminal, later, own] = tasks[..] else { panic!("{values:#?}") };
    // Those that ended while no daemon ran.
    [ended, killed, terminal].into_iter().for_each(assert_unknown);
    // A running task continues. Its exit is seen unless somebody else waits for it first.
    assert_eq!((&goes_on["status"], &goes_on["pid"]), (&before["status"], &before["pid"]), "{goes_on:#}");
    assert_eq!(goes_on["status"], "running", "{goes_on:#}");
    if exit(later)["code"] != 7 {
        assert_unknown(later);
    }
    // A task that the next daemon started itself.
    assert_eq!(exit(own)["code"], 5, "{own:#}");
    let whole = outcome.stderr.matches("begun").count();
    assert_eq!((whole, outcome.stderr.matches("over").count()), (5, 3), "{}", outcome.stderr);
}
