//! Everything works without a free inotify instance, too: files that cannot be watched are polled.

use std::io::{BufRead as _, BufReader};
use std::process::{Command, Stdio};

use bgd_tests::shared::request::{Encoding, Stdin, SubmitParams, TaskWrite, WriteParams};
use bgd_tests::shared::task::Status;
use bgd_tests::user::must_be_root;
use bgd_tests::{Terminal, TestDaemon, bgctl_path};

/// Start of a shell command: the program that follows runs in a user namespace that has no inotify instances, so that
/// nobody else is affected.
const WITHOUT_INOTIFY: &str = "exec unshare --user --map-root-user sh -c 'echo 0 > /proc/sys/user/max_inotify_instances && exec \"$0\" \"$@\"'";

/// Returns the prelude of a daemon without inotify.
pub(crate) fn without_inotify() -> String {
    format!("{WITHOUT_INOTIFY} \"$0\" \"$@\" 3>&1 >/dev/null")
}

/// Returns a `bgctl` without inotify.
fn bgctl(daemon: &TestDaemon, args: &[&str]) -> Command {
    let mut command = daemon.bgctl(args);
    let mut wrapped = Command::new("sh");
    wrapped.args(["-c", &format!("{WITHOUT_INOTIFY} \"$0\" \"$@\"")]).arg(bgctl_path()).args(args);
    wrapped.env_clear().current_dir(daemon.home()).stdout(Stdio::piped()).stderr(Stdio::piped());
    for (name, value) in command.stdout(Stdio::null()).get_envs() {
        if let Some(value) = value {
            wrapped.env(name, value);
        }
    }
    wrapped
}

fn write(daemon: &TestDaemon, id: bgd_tests::shared::id::TaskId, data: &str) {
    let params = WriteParams { id: id.into(), data: data.into(), encoding: Encoding::Utf8, eof: false };
    daemon.client().call::<TaskWrite>(&params).unwrap();
}

#[test]
fn r20_output_is_followed_without_inotify_as_root() {
    must_be_root();
    let daemon = TestDaemon::start();
    let params = SubmitParams { argv: Some(vec!["cat".into()]), stdin: Some(Stdin::Pipe), ..daemon.params() };
    let id = daemon.submit_with(&params).id;
    daemon.wait_running(id);
    let mut following = bgctl(&daemon, &["output", "--follow", &id.to_string()]).spawn().unwrap();
    let mut lines = BufReader::new(following.stdout.take().unwrap()).lines();
    for word in ["one", "two", "three"] {
        write(&daemon, id, &format!("{word}\n"));
        assert_eq!(lines.next().expect("a line").unwrap(), word, "shown before the next is written");
    }
    daemon.cancel(&[id]);
    assert!(lines.next().is_none());
    assert_eq!(following.wait().unwrap().code(), Some(0));
}

#[test]
fn r20_output_is_followed_on_terminal_without_inotify_as_root() {
    must_be_root();
    let daemon = TestDaemon::start();
    let params = SubmitParams { argv: Some(vec!["cat".into()]), stdin: Some(Stdin::Pipe), ..daemon.params() };
    let id = daemon.submit_with(&params).id;
    daemon.wait_running(id);
    let mut following = Terminal::open(&bgctl(&daemon, &["output", "--follow", &id.to_string()]));
    for word in ["one", "two", "three"] {
        write(&daemon, id, &format!("{word}\n"));
        following.wait_text(&format!("{word}\n"));
    }
    daemon.cancel(&[id]);
    assert_eq!(following.ended().code(), Some(0), "{following:?}");
}

#[test]
fn r61_job_detaches_and_reattaches_without_inotify_as_root() {
    must_be_root();
    let daemon = TestDaemon::builder().prelude(without_inotify()).start();
    let mut job = Terminal::open(&bgctl(&daemon, &["run", "--", "cat"]));
    job.type_keys("one\r");
    job.wait_text("one\none\n");
    job.type_keys("\x02");
    assert_eq!(job.ended().code(), Some(0), "{job:?}");
    let task = daemon.task(daemon.run(&["list", "-q"]).success().word());
    assert_eq!(task.status, Status::Running);
    let mut back = Terminal::open(&bgctl(&daemon, &["attach", &task.id.to_string()]));
    back.wait_text("one\none\n");
    back.type_keys("two\r");
    back.wait_text("two\ntwo\n");
    back.type_keys("\x04");
    assert_eq!(back.ended().code(), Some(0), "{back:?}");
    assert_eq!(daemon.output(task.id), b"one\r\none\r\ntwo\r\ntwo\r\n");
}

#[test]
fn r08_daemon_without_inotify_polls_and_warns_as_root() {
    must_be_root();
    let daemon = TestDaemon::builder()
        .prelude(without_inotify())
        .config("[limits]\noutput_bytes = \"1MiB\"\n")
        .start();
    let said = daemon.run(&["daemon", "status"]).success().stdout_text();
    let word = "warning:     no inotify instance or watch is left for this user";
    assert!(said.lines().any(|line| line.starts_with(word)), "{said}");
    // The daemon still notices that an output grows, reports it and bounds it.
    let mut watch = daemon.watch();
    let id = daemon.submit_shell("head -c 8388608 /dev/zero; exec sleep 1000");
    watch.until(|event| event.task.id == id && event.task.output.dropped_bytes > 0);
    daemon.cancel(&[id]);
    let other = TestDaemon::start();
    assert_eq!(other.warnings(), Vec::<String>::new(), "elsewhere nothing is missing");
}
