//! The channel `exec` with real hooks: what they receive, and that nothing they start outlives their timeout.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use bgd_tests::docs;
use bgd_tests::shared::id::TaskId;
use bgd_tests::shared::notice::{Notice, NoticeKind, Part};
use bgd_tests::shared::request::{ChannelStatus, DaemonShutdown, ShutdownParams, SubmitParams};
use bgd_tests::{Process, TestDaemon, wait};
use rustix::process::Signal;

/// Records what the hook receives, one line per notice.
const KEEP: &str = "cat >> \"$HOME/told\"";

/// Starts a child in the hook's session, one in another session, and one with a cleared environment whose parent has
/// ended, and records their pids.
const FAMILY: &str = "sh -c 'echo $$ > \"$HOME/child\"; exec sleep 1000' &
    setsid -f sh -c 'echo $$ > \"$HOME/session\"; exec sleep 1000'
    env -i HOME=\"$HOME\" PATH=\"$PATH\" sh -c '(sh -c \"echo \\$\\$ > \\$HOME/clean; exec sleep 1000\" &)'
    until [ -s \"$HOME/child\" ] && [ -s \"$HOME/session\" ] && [ -s \"$HOME/clean\" ]; do :; done
    echo $$ > \"$HOME/leader.new\"; mv \"$HOME/leader.new\" \"$HOME/leader\"";

#[track_caller]
fn with_hook(script: &str) -> TestDaemon {
    with_settings(script, "")
}

#[track_caller]
fn with_settings(script: &str, settings: &str) -> TestDaemon {
    TestDaemon::builder().config(config(script, settings)).start()
}

fn config(script: &str, settings: &str) -> String {
    format!(
        "default_deliver_to = [\"ops\"]\n[channels.ops]\ntype = \"exec\"\n\
         command = [\"/bin/sh\", \"-c\", '''{script}''']\n{settings}\n"
    )
}

fn log(daemon: &TestDaemon) -> PathBuf {
    daemon.state_dir().join("bgd.log")
}

/// Waits for the first failed delivery and returns its log line.
#[track_caller]
fn failure(daemon: &TestDaemon) -> String {
    wait::for_line(&log(daemon), "a notice was not delivered")
}

/// Returns the status of the hook, once its queue is empty.
#[track_caller]
fn settled(daemon: &TestDaemon) -> ChannelStatus {
    wait::poll_until("an empty queue", || Some(daemon.channel("ops")).filter(|status| status.queued == 0))
}

/// Returns the recorded notices, once there are at least `count`.
#[track_caller]
fn notices(daemon: &TestDaemon, count: usize) -> Vec<Notice> {
    wait::for_change(&daemon.home().join("told"), || {
        let text = fs::read_to_string(daemon.home().join("told")).ok()?;
        let lines: Vec<&str> =
            text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')).collect();
        (lines.len() >= count).then(|| lines.iter().map(|line| serde_json::from_str(line).unwrap()).collect())
    })
}

/// Runs a shell command to its end. The hook is notified of its start and its end.
#[track_caller]
fn ended(daemon: &TestDaemon, line: &str) -> TaskId {
    let id = daemon.submit_shell(line);
    daemon.block(&[id]);
    id
}

#[test]
fn r51_hook_receives_each_notice_as_one_json_line() {
    let daemon = with_hook(KEEP);
    let params = SubmitParams {
        description: Some("the build".into()),
        session: Some("mcp:1".into()),
        ..daemon.params()
    };
    let shell = |line: &str| Some(line.into());
    let done = daemon.submit_with(&SubmitParams { shell: shell("echo one; echo two"), ..params.clone() }).id;
    daemon.block(&[done]);
    let failed = daemon.submit_with(&SubmitParams { shell: shell("echo why; exit 3"), ..params.clone() }).id;
    daemon.block(&[failed]);
    let cancelled = daemon.submit_with(&SubmitParams { shell: shell("sleep 1000"), ..params }).id;
    daemon.wait_running(cancelled);
    daemon.cancel(&[cancelled]);
    let received = notices(&daemon, 6);
    let seen: Vec<_> = received.iter().map(|notice| (notice.task.id, notice.kind)).collect();
    let expected = [
        (done, NoticeKind::Started),
        (done, NoticeKind::Completed),
        (failed, NoticeKind::Started),
        (failed, NoticeKind::Failed),
        (cancelled, NoticeKind::Started),
        (cancelled, NoticeKind::Cancelled),
    ];
    assert_eq!(seen, expected);
    assert_eq!(received[1].key, format!("{done}/1"));
    let result = received[1].result.as_ref().unwrap();
    assert_eq!((&*result.text, result.part), ("one\ntwo\n", Part::All));
    assert!(received[1].title.starts_with(&format!("[BACKGROUND TASK COMPLETED] {} in ", done.short())));
    assert!(received[1].title.ends_with(": \"the build\""), "{}", received[1].title);
    assert_eq!(received[3].result.as_ref().unwrap().text, "why\n");
    assert_eq!(settled(&daemon).sent, 6);
}

#[test]
fn r51_what_hook_receives_is_documented_object_notice() {
    let daemon = with_hook(KEEP);
    let params =
        SubmitParams { session: Some("mcp:1".into()), tags: vec!["of the schema".into()], ..daemon.params() };
    for line in ["echo one", "echo why; exit 3"] {
        let id = daemon.submit_with(&SubmitParams { shell: Some(line.into()), ..params.clone() }).id;
        daemon.block(&[id]);
    }
    notices(&daemon, 4);
    let schema = docs::schema();
    assert_eq!(schema["notice"]["$ref"], "#/$defs/Notice");
    let text = fs::read_to_string(daemon.home().join("told")).unwrap();
    // Another notice may be half written.
    for line in text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')) {
        let notice = serde_json::from_str(line).unwrap();
        docs::check_valid(&schema, &schema["notice"], &notice);
    }
    let page = docs::read("man/bgd-protocol.7");
    let fields = docs::bold_tags_of_section(&page, "NOTICES", Some("Notice"));
    let members = schema["$defs"]["Notice"]["properties"].as_object().unwrap();
    assert_eq!(fields.iter().collect::<BTreeSet<_>>(), members.keys().collect());
}

#[test]
fn hook_runs_in_home_with_configured_environment_and_daemon_socket() {
    let script = "cat >/dev/null; [ $BGD_NOTICE_KIND = completed ] || exit 0
        { pwd; env; } > \"$HOME/seen.new\"; bgctl ls -q > \"$HOME/listed\"; mv \"$HOME/seen.new\" \"$HOME/seen\"";
    let bin = bgd_tests::bgctl_path();
    let path = format!("{}:{}", bin.parent().unwrap().display(), std::env::var("PATH").unwrap());
    let daemon = TestDaemon::builder()
        .config(config(script, "env = { WHAT = \"ever\", BGD_NOTICE_KEY = \"not mine\" }"))
        .env("PATH", path)
        .env("BGD_TASK_ID", "of-others")
        .env("BGD_AGENT_ID", "of-others")
        .env("BGD_INSTANCE", "of-others")
        .start();
    let id = ended(&daemon, "true");
    let seen =
        wait::for_change(&daemon.home().join("seen"), || fs::read_to_string(daemon.home().join("seen")).ok());
    let lines: Vec<&str> = seen.lines().collect();
    assert_eq!(lines[0], daemon.home().to_str().unwrap());
    for line in [
        "WHAT=ever".to_owned(),
        "BGD_NOTICE_KIND=completed".to_owned(),
        format!("BGD_NOTICE_KEY={id}/1"),
        format!("BGD_SOCKET={}", daemon.socket().display()),
    ] {
        assert!(lines.contains(&line.as_str()), "{line} is missing: {seen}");
    }
    assert!(!seen.contains("of-others") && !seen.contains("BGD_TASK_ID"), "{seen}");
    assert_eq!(fs::read_to_string(daemon.home().join("listed")).unwrap().trim(), id.to_string());
}

#[test]
fn failing_hook_is_logged_with_its_exit_and_output() {
    let cases = [
        ("cat >/dev/null; echo no mail server >&2; exit 3", "exited with code 3; it wrote: no mail server"),
        ("cat >/dev/null; kill -9 $$", "was ended by signal 9"),
        // Reads nothing at all.
        ("exec 0<&-; exit 4", "exited with code 4"),
    ];
    for (script, expected) in cases {
        let daemon = with_hook(script);
        ended(&daemon, "head -c 60000 /dev/zero | tr '\\0' x");
        let line = failure(&daemon);
        assert!(line.contains(expected) && line.contains("ops"), "{line}");
        let status = settled(&daemon);
        assert_eq!((status.sent, status.failed, status.dropped), (0, 2, 0));
        assert!(status.last_error.unwrap().contains(expected));
    }
}

#[test]
fn missing_hook_program_is_logged() {
    let config =
        "default_deliver_to = [\"ops\"]\n[channels.ops]\ntype = \"exec\"\ncommand = [\"notify-nobody\"]\n";
    let daemon = TestDaemon::builder().config(config).start();
    ended(&daemon, "true");
    let line = failure(&daemon);
    let expected = "notify-nobody: command not found in PATH";
    assert!(line.contains(expected), "{line}");
    assert_eq!(settled(&daemon).failed, 2);
    // The check on request names the same problem, for as long as it lasts.
    assert_eq!(daemon.channel("ops").problem.as_deref(), Some(expected));
    assert!(daemon.channel("ops").last_error.unwrap().contains(expected));
}

#[test]
fn hook_that_reads_nothing_counts_as_delivered() {
    let daemon = with_hook("exit 0");
    for _ in 0..5 {
        ended(&daemon, "head -c 65536 /dev/zero | tr '\\0' x");
    }
    let status = settled(&daemon);
    assert_eq!((status.sent, status.failed), (10, 0));
}

#[test]
fn talkative_hook_is_quoted_briefly() {
    let daemon =
        with_settings("cat >/dev/null; yes | head -c 100000; exit 1", "timeout = \"10m\"\nstarted = false");
    ended(&daemon, "true");
    let line = failure(&daemon);
    assert!(line.contains("it wrote: y / y / ") && line.contains(" / ... / "), "{line}");
    assert!(line.len() < 1200, "{} bytes: {line}", line.len());
    assert!(daemon.channel("ops").last_error.unwrap().len() < 1000);
}

#[test]
fn hook_flooding_output_does_not_grow_daemon_memory() {
    let script = "cat >/dev/null; [ $BGD_NOTICE_KIND = completed ] || exit 0
        echo first words; head -c 200000000 /dev/zero >&2; echo; echo last words; exit 1";
    let daemon = with_settings(script, "timeout = \"10m\"");
    ended(&daemon, "true");
    let line = failure(&daemon);
    assert!(line.contains("it wrote: first words / ... / last words"), "{line}");
    assert!(line.len() < 8192);
    let peak = daemon.process().status_value("VmHWM").unwrap();
    assert!(peak < 64 * 1024, "the daemon had {peak} KiB in memory");
}

#[test]
fn processes_left_by_hook_end_with_it() {
    let script = format!("[ $BGD_NOTICE_KIND = started ] || exit 0\nmkfifo gate\n{FAMILY}\nread go < gate");
    let daemon = with_hook(&script);
    let id = daemon.submit(&["sleep", "1000"]);
    let family = ["child", "session", "clean"].map(|name| daemon.recorded_process(name));
    daemon.recorded_process("leader");
    wait::for_reader(&daemon.home().join("gate"), "go\n");
    assert_eq!(settled(&daemon).sent, 1);
    family.iter().for_each(Process::gone);
    daemon.cancel(&[id]);
}

#[test]
fn hanging_hook_is_killed_with_its_whole_tree() {
    // Ignores SIGTERM.
    let script = format!(
        "[ $BGD_NOTICE_KIND = started ] || exit 0\ntrap '' TERM\n{FAMILY}\nwhile :; do sleep 1000; done"
    );
    let daemon = with_settings(&script, "timeout = \"5s\"");
    let id = daemon.submit(&["sleep", "1000"]);
    let task = daemon.wait_running(id);
    let line = failure(&daemon);
    assert!(line.contains("it ran longer than 5s"), "{line}");
    // On a busy machine, the hook may be killed before it has started all of its processes.
    let left = daemon.task_processes();
    assert_eq!(left.iter().map(Process::pid).collect::<Vec<_>>(), [task.pid.unwrap()], "{left:?}");
    daemon.cancel(&[id]);
    assert_eq!(settled(&daemon).sent, 1, "the next notice is told");
}

#[test]
fn killed_hook_counts_as_failure_and_its_tree_ends() {
    let daemon = with_hook(&format!("[ $BGD_NOTICE_KIND = started ] || exit 0\n{FAMILY}\nwait"));
    let id = daemon.submit(&["sleep", "1000"]);
    let family = ["child", "session", "clean"].map(|name| daemon.recorded_process(name));
    daemon.recorded_process("leader").signal(Signal::KILL).unwrap();
    let line = failure(&daemon);
    assert!(line.contains("was ended by signal 9"), "{line}");
    assert!(family.iter().all(|process| !process.is_alive()), "{family:?}");
    daemon.cancel(&[id]);
}

#[test]
fn r51_hanging_hook_delays_neither_tasks_nor_other_channels() {
    let hang = config("echo $$ > \"$HOME/leader\"; exec sleep 1000", "timeout = \"1h\"");
    let keep = format!("[channels.keep]\ntype = \"exec\"\ncommand = [\"/bin/sh\", \"-c\", '''{KEEP}''']\n");
    let daemon = TestDaemon::builder().config(format!("{hang}{keep}[limits]\nchannel_queue = 3\n")).start();
    ended(&daemon, "true");
    let stuck = daemon.recorded_process("leader");
    for _ in 0..20 {
        ended(&daemon, "true");
    }
    let params = SubmitParams { shell: Some("true".into()), channel: Some("keep".into()), ..daemon.params() };
    daemon.submit_with(&params);
    assert_eq!(notices(&daemon, 2).len(), 2);
    let status = daemon.status().channels.into_iter().find(|channel| channel.name == "ops").unwrap();
    // Of the 42 notices one is being delivered, and two are queued.
    assert_eq!((status.queued, status.dropped, status.sent), (3, 39, 0));
    assert!(stuck.is_alive());
    assert!(wait::for_line(&log(&daemon), "its queue is full").contains("ops"));
}

#[test]
fn r11_daemon_stop_ends_hanging_hook() {
    let mut daemon = with_hook(&format!("trap '' TERM\n{FAMILY}\nwhile :; do sleep 1000; done"));
    ended(&daemon, "true");
    let family = ["child", "session", "clean", "leader"].map(|name| daemon.recorded_process(name));
    assert!(daemon.stop().success());
    assert!(family.iter().all(|process| !process.is_alive()), "{family:?}");
}

#[test]
fn notices_of_shutdown_are_delivered_before_daemon_exits() {
    let mut daemon = with_hook(KEEP);
    let id = daemon.submit(&["sleep", "1000"]);
    notices(&daemon, 1);
    daemon.client().call::<DaemonShutdown>(&ShutdownParams::default()).unwrap();
    assert!(daemon.ended().success());
    let received = notices(&daemon, 2);
    assert_eq!((received[1].task.id, received[1].kind), (id, NoticeKind::Cancelled));
}

#[test]
fn r09_hooks_of_killed_daemon_are_ended_by_next_daemon() {
    let mut daemon = with_hook(&format!("trap '' TERM\n{FAMILY}\nwhile :; do sleep 1000; done"));
    ended(&daemon, "true");
    let family = ["child", "session", "clean", "leader"].map(|name| daemon.recorded_process(name));
    daemon.kill9();
    assert!(family.iter().all(Process::is_alive));
    daemon.write_config("");
    daemon.launch();
    assert!(family.iter().all(|process| !process.is_alive()), "{family:?}");
    assert_eq!(daemon.task_processes().len(), 0);
}
