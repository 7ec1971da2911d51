//! R164: with the controllers `memory` and `io`, a task's cgroup accounts for all its processes, even those that nobody
//! waits for. Runs on a virtual machine with its own kernel, as this machine's controllers may be in use.

use bgd_tests::kernel;
use serde_json::Value;

const MIB: u64 = 1 << 20;

/// Runs a task whose child, which nobody waits for, uses 64 MiB of memory and writes 8 MiB; prints the daemon's status
/// and the task.
const PRELUDE: &str = r#"
cat >~/work <<'END'
(perl -e '$x = "x" x (64 << 20); print length $x'; head -c 8388608 /dev/zero >/run/disk/$$; echo >gate) &
exec cat gate
END
mkfifo ~/gate
mkdir -p ~/.config/bgd
report() {
    id=$(bgctl submit -- sh ~/work)
    bgctl block "$id" --timeout none >&2
    bgctl daemon status --json
    bgctl status --json "$id"
}
where() {
    cat /proc/$(bgctl daemon status --json | sed -n 's/.*"pid": *\([0-9]*\).*/\1/p' | head -n 1)/cgroup >&2
}
"#;

/// Runs the script and returns its output as JSON.
fn run(script: &str) -> (Vec<Value>, String) {
    let outcome = kernel::run_as_alice(&format!("set -e\n{PRELUDE}{script}")).success();
    let values = serde_json::Deserializer::from_slice(&outcome.stdout).into_iter();
    let values = values.collect::<Result<_, _>>();
    (values.unwrap_or_else(|error| panic!("{error}: {}", outcome.stdout_text())), outcome.stderr)
}

/// Returns a task's peak memory and the bytes it wrote.
fn used(task: &Value) -> (u64, u64) {
    let task = task.get("task").unwrap_or(task);
    assert_eq!(task["status"], "completed", "{task:#}");
    let usage = &task["usage"];
    (usage["peak_memory_bytes"].as_u64().unwrap_or(0), usage["written_bytes"].as_u64().unwrap_or(0))
}

#[track_caller]
fn assert_all_counts(status: &Value, task: &Value) {
    assert_eq!(status["tree"], "cgroup", "{status:#}");
    let (memory, written) = used(task);
    assert!(memory >= 64 * MIB && written >= 8 * MIB, "{memory} {written}");
    assert!(written < 16 * MIB, "nothing counts twice: {written}");
}

#[test]
fn r164_scope_with_controllers_accounts_for_unreaped_children_as_root() {
    let (values, stderr) = run("echo 'tree = \"session\"' >~/.config/bgd/config.toml\n\
         report; bgctl daemon stop >&2\n\
         rm ~/.config/bgd/config.toml\n\
         report; where\n\
         bgctl doctor --json || true\n\
         bgctl daemon stop >&2\n\
         systemctl --user list-units --all --plain --no-legend 'bgd-*' >&2\n\
         find /sys/fs/cgroup -name 'bgd*' >&2\n");
    let [without, known, with, counted, doctor] = &values[..] else { panic!("{values:#?}") };
    // The comparison: the daemon learns only of processes that were waited for.
    assert_eq!(without["tree"], "session");
    let (memory, written) = used(known);
    assert!(memory < 64 * MIB && written < 8 * MIB, "{memory} {written}");

    assert_all_counts(with, counted);
    let scope = format!("bgd-{}.scope", with["instance"].as_str().unwrap());
    let at: Vec<&str> = stderr.lines().filter(|line| line.starts_with("0::")).collect();
    assert!(at.len() == 1 && at[0].ends_with(&format!("/{scope}/bgd")), "{stderr}");
    let left: Vec<_> = stderr.lines().filter(|line| line.starts_with("/sys/fs/cgroup")).collect();
    assert!(left.is_empty(), "{left:?}");
    let checks = doctor["checks"].as_array().unwrap();
    let check = checks.iter().find(|check| check["name"] == "usage of trees");
    assert_eq!(check.map(|check| &check["state"]), Some(&Value::from("ok")), "{doctor:#}");
}

#[test]
fn r164_service_with_controllers_survives_reload_restart_and_kill_as_root() {
    let (values, stderr) = run("bgctl daemon install >&2\n\
         systemctl --user daemon-reload; systemctl --user enable --now bgd.socket\n\
         report; where\n\
         systemctl --user reload bgd.service\n\
         report\n\
         systemctl --user restart bgd.service\n\
         report\n\
         systemctl --user kill --signal=KILL bgd.service\n\
         systemctl --user is-failed --quiet --wait bgd.service || true\n\
         report; where\n");
    assert_eq!(values.len(), 8, "{stderr}");
    for pair in values.chunks(2) {
        assert_all_counts(&pair[0], &pair[1]);
        assert_eq!(pair[0]["tree_reason"], "in the cgroup of the unit that started bgd");
    }
    let at: Vec<&str> = stderr.lines().filter(|line| line.starts_with("0::")).collect();
    assert!(at.len() == 2 && at.iter().all(|line| line.ends_with("/bgd.service/bgd")), "{stderr}");
    let instances: std::collections::BTreeSet<_> =
        values.iter().filter_map(|value| value["instance"].as_str()).collect();
    assert_eq!(instances.len(), 3, "the reload kept it");
}
