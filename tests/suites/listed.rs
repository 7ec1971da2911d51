//! `bgctl list --watch`, `--columns` and `--sort` (R166), with resource usage (R164), progress (R165), and `bgctl`
//! alone (R167).

use bgd_shared::id::TaskId;
use bgd_tests::{Outcome, Process, Terminal, TestDaemon, wait};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

/// Starts a task that writes this, and then waits for a line in the FIFO `name`, which is created.
#[track_caller]
fn task_waiting_at(daemon: &TestDaemon, name: &str, writes: &str) -> TaskId {
    mkfifo(&daemon.home().join(name), Mode::S_IRWXU).unwrap();
    let line = format!("printf '{writes}'; read x < {name}");
    let id = daemon.run(&["submit", "-d", name, "--shell", &line]).success().word();
    let task = daemon.wait_running(id);
    // Wait for all of the output, which is written in one piece.
    wait::for_bytes(task.output.path.as_ref(), usize::from(!writes.is_empty()));
    id
}

#[test]
fn r166_list_columns_and_sort_order_can_be_chosen() {
    let daemon = TestDaemon::start();
    for (name, tag) in [("b", "x"), ("a", "y"), ("c", "x")] {
        let id: TaskId = daemon.run(&["submit", "-d", name, "--tag", tag, "--", "true"]).success().word();
        daemon.block(&[id]);
    }
    let list = |args: &[&str]| daemon.run(&[&["list"], args].concat()).success().stdout_text();
    assert_eq!(list(&["--columns", "description,tags", "--sort", "description"]), "a\ty\nb\tx\nc\tx\n");
    assert_eq!(list(&["--columns", "description", "--sort", "-description"]), "c\nb\na\n");
    assert_eq!(
        list(&["--columns", "description", "--sort", "tags"]),
        "c\nb\na\n",
        "equal ones stay, newest first"
    );
    let refused = daemon.run(&["list", "--columns", "cpus"]).expect_code(2);
    assert!(refused.stderr.contains("possible values: "), "{}", refused.stderr);
    assert!(daemon.run(&["list", "--sort", "cpus"]).expect_code(2).stderr.contains("one of id, status"));
    assert!(daemon.run(&["list", "--watch"]).expect_code(2).stderr.contains("needs a terminal"));
}

#[test]
fn r166_chosen_columns_without_room_are_named() {
    let daemon = TestDaemon::start();
    let id: TaskId = daemon.run(&["submit", "--tag", "nightly", "--", "true"]).success().word();
    daemon.block(&[id]);
    let args = ["list", "--color", "always", "--columns", "id,description,group,tags,batch,progress"];
    let list = |width: &str| Outcome::of(daemon.bgctl(&args).env("COLUMNS", width)).success();
    let narrow = list("40");
    let header = narrow.stdout_text().lines().next().unwrap_or_default().to_owned();
    assert!(header.split_whitespace().eq(["ID", "DESCRIPTION", "GROUP", "TAGS"]), "{narrow:?}");
    assert_eq!(
        narrow.stderr,
        "bgctl: no room for batch, progress: choose fewer columns, or widen the terminal\n"
    );
    let wide = list("100");
    assert!(wide.stdout_text().contains("PROGRESS") && wide.stderr.is_empty(), "{wide:?}");
}

/// Computes for a quarter of a second of CPU time, then holds 64 MiB at once.
const WORK: &str = r#"perl -e 'while ((times)[0] < 0.25) { $n++ } $x = "x" x (64 << 20); print length $x'"#;

#[test]
fn r164_list_shows_and_sorts_by_resource_usage() {
    let daemon = TestDaemon::start();
    // Not in a folder on a memory file system.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let written = format!("head -c 8388608 /dev/zero > {}/file", folder.path().display());
    for (name, line) in [("idle", "exit 0"), ("works", WORK), ("writes", &written)] {
        let id: TaskId = daemon.run(&["submit", "-d", name, "--shell", line]).success().word();
        daemon.block(&[id]);
    }
    let list = |args: &[&str]| daemon.run(&[&["list"], args].concat()).success().stdout_text();
    let rows = list(&["--columns", "description,cpu,memory,written", "--sort", "-cpu"]);
    let first: Vec<&str> = rows.lines().next().unwrap().split('\t').collect();
    assert_eq!(first[0], "works", "{rows}");
    assert!(first[1].ends_with('s') && first[1] != "0.0s" && first[2].ends_with(" MiB"), "{rows}");
    assert!(list(&["--columns", "description", "--sort", "memory"]).ends_with("\nworks\n"));
    let rows = list(&["--columns", "written,description", "--sort", "-written"]);
    assert!(rows.lines().next().unwrap().ends_with("MiB\twrites"), "{rows}");
    let json: serde_json::Value =
        serde_json::from_str(&list(&["--json", "--sort", "-cpu"])).expect("it is JSON");
    assert_eq!(json["tasks"][0]["description"], "works");
    assert!(json["tasks"][0]["usage"]["user_ms"].as_u64().is_some_and(|ms| ms >= 240), "{json}");
    assert!(daemon.run(&["list", "-q", "--sort", "cpu"]).success().stdout_text().lines().count() == 3);
}

#[test]
fn r164_list_measures_running_tasks() {
    let daemon = TestDaemon::start();
    task_waiting_at(&daemon, "waits", "");
    let line = r#"perl -e '$x = "x" x (64 << 20); open F, ">there"; close F; sleep 1000'"#;
    daemon.run(&["submit", "-d", "holds", "--shell", line]).success();
    wait::for_file(&daemon.home().join("there"));
    let args = ["list", "--columns", "description,memory,written", "--sort", "-memory"];
    // The task may be running before the daemon knows it.
    let rows = wait::poll_until("figures of both", || {
        let rows = daemon.run(&args).success().stdout_text();
        rows.lines().all(|row| row.split('\t').nth(1) != Some("-")).then_some(rows)
    });
    let first: Vec<&str> = rows.lines().next().unwrap().split('\t').collect();
    assert_eq!((first[0], first[2]), ("holds", "-"), "{rows}");
    let (mib, unit) = first[1].split_once(' ').unwrap();
    assert!(unit == "MiB" && mib.parse::<f64>().unwrap() >= 64.0, "{rows}");
    assert!(!rows.lines().nth(1).unwrap().starts_with("waits\t-"), "{rows}");
    let mut shell = Terminal::shell(&daemon);
    shell.type_line("bgctl list --columns description,cpu,memory,written");
    shell.wait_text("DESCRIPTION  CPU");
    shell.wait_prompt();
}

#[test]
fn r166_watched_list_is_kept_up_to_date() {
    let daemon = TestDaemon::start();
    let mut shell = Terminal::shell(&daemon);
    shell.type_line("bgctl list --watch --columns status,description");
    shell.wait_text("no tasks\n");
    let id = task_waiting_at(&daemon, "gate", "");
    shell.wait_text("\nSTATUS   DESCRIPTION\nrunning  gate\n");
    wait::for_reader(&daemon.home().join("gate"), "\n");
    shell.wait_text("\nSTATUS     DESCRIPTION\ncompleted  gate\n");
    daemon.run(&["clear", &id.to_string()]).success();
    shell.wait_text("\nno tasks\n");
    assert!(!shell.screen().contains("gate\n"), "it is drawn in its own place: {shell:?}");
    shell.type_keys("\x03");
    shell.wait_prompt();
}

#[test]
fn r165_list_and_block_show_progress_on_a_terminal() {
    let daemon = TestDaemon::start();
    let reporting = task_waiting_at(&daemon, "told", r"\033]9;4;1;42\033\\working\n");
    task_waiting_at(&daemon, "counts", r"step 3/8\n");
    let mut shell = Terminal::shell(&daemon);
    shell.type_line("bgctl list");
    shell.wait_text("PROGRESS");
    shell.wait_text("  37%       counts\n");
    shell.wait_text("  42%       told\n");
    shell.wait_prompt();
    let piped = daemon.run(&["list"]).success().stdout_text();
    assert!(!piped.contains('%'), "programs get what they got before: {piped}");
    let columns = daemon.run(&["list", "--columns", "progress,description"]).success().stdout_text();
    assert_eq!(columns, "37%\tcounts\n42%\ttold\n");
    shell.clear();
    shell.type_line(&format!("bgctl block {}", reporting.short()));
    shell.wait_text(" 42% ");
    let shown = String::from_utf8_lossy(&shell.shown()).into_owned();
    assert!(shown.contains("\x1b]9;4;1;42\x1b\\"), "the terminal is told: {shown:?}");
    wait::for_reader(&daemon.home().join("told"), "\n");
    shell.wait_text("completed");
    shell.wait_prompt();
    let shown = String::from_utf8_lossy(&shell.shown()).into_owned();
    assert!(shown.contains("\x1b]9;4;0;0\x1b\\"), "and that it is over: {shown:?}");
}

#[test]
fn r165_ctrl_c_during_block_resets_terminal_progress() {
    let daemon = TestDaemon::start();
    let reporting = task_waiting_at(&daemon, "told", r"\033]9;4;1;42\033\\working\n");
    let mut shell = Terminal::shell(&daemon);
    shell.type_line(&format!("bgctl block {}", reporting.short()));
    shell.wait_text(" 42% ");
    shell.type_keys("\x03");
    shell.wait_prompt();
    shell.type_line("echo code=$?");
    shell.wait_text("code=130");
    let shown = String::from_utf8_lossy(&shell.shown()).into_owned();
    assert!(shown.contains("\x1b]9;4;0;0\x1b\\"), "{shown:?}");
}

#[test]
fn r165_run_passes_on_progress_sequence_of_its_job_and_resets_it() {
    let daemon = TestDaemon::start();
    let mut run = Terminal::bgctl(&daemon, &["run", "--", "printf", r"\033]9;4;1;42\007"]);
    assert!(run.ended().success());
    let shown = String::from_utf8_lossy(&run.shown()).into_owned();
    assert!(shown.contains("\x1b]9;4;1;42\x07"), "{run:?}");
    assert!(shown.contains("\x1b]9;4;0;0\x1b\\"), "and takes it back, as the job does not: {run:?}");
}

/// Returns the position from `from` on at which the terminal received this text.
fn position_of_progress(terminal: &Terminal, from: usize, what: &str) -> Option<usize> {
    let shown = terminal.shown();
    let what = format!("\x1b]9;4;{what}\x1b\\");
    let at = shown[from..].windows(what.len()).position(|part| part == what.as_bytes())?;
    Some(from + at)
}

#[test]
fn r165_run_and_attach_show_job_progress_to_terminal_until_they_detach() {
    let daemon = TestDaemon::start();
    mkfifo(&daemon.home().join("gate"), Mode::S_IRWXU).unwrap();
    let mut shell = Terminal::shell(&daemon);
    for (writes, says) in
        [("step 3/8\\n", Some("1;37")), ("\\r10%%\\r42%%", Some("1;42")), ("\\033]9;4;1;9\\007up", None)]
    {
        let from = shell.shown().len();
        shell.type_line(&format!("bgctl run --shell \"printf '{writes}'; read x < gate\""));
        shell.wait("the job's output", |screen| {
            let shown = screen.contents();
            shown.contains("\nstep 3/8") || shown.contains("\n42%") || shown.contains("\nup")
        });
        shell.type_keys("\x02");
        shell.wait_prompt();
        let at =
            says.map_or(Some(from), |says| position_of_progress(&shell, from, says)).expect("it is told");
        let over = position_of_progress(&shell, at, "0;0")
            .expect("and that it is over: the job is in the background");
        if says.is_none() {
            assert_eq!(position_of_progress(&shell, from, "1;9"), None, "the job's own words are enough");
        }
        let from = over + 1;
        let id: TaskId =
            daemon.run(&["list", "-q"]).success().stdout_text().lines().next().unwrap().parse().unwrap();
        shell.clear();
        shell.type_line(&format!("bgctl attach {}", id.short()));
        shell.wait("the job's output", |screen| {
            let shown = screen.contents();
            shown.contains("step 3/8") || shown.contains("42%") || shown.contains("up")
        });
        shell.type_keys("\x02");
        shell.wait_prompt();
        assert!(position_of_progress(&shell, from, "0;0").is_some() || says.is_none(), "{shell:?}");
        daemon.cancel(&[id]);
        shell.clear();
    }
}

#[test]
fn r166_watched_list_follows_resize_and_ends_with_its_daemon() {
    let mut daemon = TestDaemon::start();
    task_waiting_at(&daemon, "gate", "");
    let mut shell = Terminal::shell(&daemon);
    shell.type_line("bgctl list --watch --columns status,description");
    shell.wait_text("\nSTATUS   DESCRIPTION\nrunning  gate\n");
    shell.resize((10, 30));
    let id: TaskId = daemon.run(&["submit", "-d", "after the resize", "--", "true"]).success().word();
    daemon.block(&[id]);
    shell.wait_text("completed  after the resize\n");
    daemon.stop();
    shell.wait_prompt();
    assert!(shell.screen().contains("bgctl: the daemon closed the connection"), "it says why: {shell:?}");
}

#[test]
fn r167_bare_bgctl_shows_an_overview_on_a_terminal() {
    let daemon = TestDaemon::start();
    let failed: TaskId = daemon.run(&["submit", "-d", "fails", "--", "false"]).success().word();
    daemon.block(&[failed]);
    task_waiting_at(&daemon, "gate", "");
    let mut shell = Terminal::shell(&daemon);
    shell.type_line("bgctl");
    shell.wait_text("running and pending:\n");
    shell.wait_text("\nended:\n");
    shell.wait_text(&format!("\n  bgctl output {}  see why it failed\n", failed.short()));
    shell.wait_prompt();
    shell.clear();
    shell.type_line("bgctl");
    shell.wait_text("\n  bgctl top ");
    shell.wait_prompt();
    assert!(!shell.screen().contains("fails"), "it was shown: {shell:?}");
    let piped = daemon.run(&[]);
    assert_eq!(piped.code, 2);
    assert!(piped.stderr.contains("Usage: bgctl"), "{}", piped.stderr);
}

#[test]
fn r167_bare_bgctl_starts_no_daemon() {
    let daemon = TestDaemon::home_only();
    let mut shell = Terminal::shell(&daemon);
    assert_eq!(shell.run_line("bgctl | grep -c nothing; bgctl"), 0);
    let is_bgd =
        |process: &Process| process.cmdline().split(' ').next().unwrap_or_default().ends_with("/bgd");
    assert!(!daemon.processes().iter().any(is_bgd));
    assert!(!daemon.socket().exists());
}

#[test]
fn r165_dumb_terminal_gets_no_progress_sequences() {
    let daemon = TestDaemon::start();
    let mut shell = Terminal::shell(&daemon);
    for set in ["TERM=dumb", "TERM="] {
        shell.clear();
        let from = shell.shown().len();
        shell.type_line(&format!("{set} bgctl run --shell 'echo \"step 3/8\"'; {set} bgctl list"));
        shell.wait_text("\nID ");
        shell.wait_prompt();
        let shown = shell.shown().split_off(from);
        assert!(!shown.windows(4).any(|part| part == b"\x1b]9;"), "{shell:?}");
    }
}
