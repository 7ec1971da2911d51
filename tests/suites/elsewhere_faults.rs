//! Failures between two machines, and on either of them, while the other one runs tasks of this one (R145).

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use bgd_tests::far::{Far, HOST};
use bgd_tests::shared::client::ClientError;
use bgd_tests::shared::encoding::Encoding;
use bgd_tests::shared::failure::FailureKind;
use bgd_tests::shared::id::TaskId;
use bgd_tests::shared::limits::WRITE_BYTES;
use bgd_tests::shared::request::{
    CancelParams, DaemonStatusOf, NoParams, TaskCancel, TaskWrite, WriteParams,
};
use bgd_tests::shared::task::{Exit, Output, Status, Task};
use bgd_tests::user::on_a_small_disk;
use bgd_tests::{TestDaemon, bgctl_path, executable, wait};

/// The number of moments of a submit at which it is cut.
const STAGES: usize = 12;

/// The other machine's clock is wrong by `TEST_SKEW` seconds.
const CLOCK: &str = r#"
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t clock, struct timespec *time) {
    int result = syscall(SYS_clock_gettime, clock, time);
    const char *skew = getenv("TEST_SKEW");
    if (result == 0 && clock == CLOCK_REALTIME && skew) time->tv_sec += atol(skew);
    return result;
}
"#;

/// Makes sessions on the other machine find a `bgctl` whose messages are edited by this sed expression.
fn edit_messages(far: &Far, expression: &str) {
    let programs = far.daemon.home().join("programs");
    fs::create_dir(&programs).unwrap();
    let other = format!("#!/bin/sh\n{} \"$@\" | sed -u '{expression}'\n", bgctl_path().display());
    executable::write(&programs.join("bgctl"), &other);
    far.set_session(&[("PATH", &format!("{}:/usr/bin:/bin", programs.display()))]);
}

/// Submits a task that can't be executed there until somebody fixes the cause.
#[track_caller]
fn refused(far: &mut Far, words: &[&str]) {
    let id = far.submit_on(&[], "echo ran >>\"$HOME/ran\"");
    let task = far.ended(id);
    assert_eq!(task.failure.as_ref().map(|failure| failure.kind), Some(FailureKind::Spawn), "{task:?}");
    let error = task.error.unwrap();
    assert!(words.iter().all(|word| error.contains(word)), "{words:?}: {error}");
    assert!(!far.daemon.home().join("ran").exists());
    let checked = far.run_here(&["executors", "--check", "far"]).expect_code(69).stdout_text();
    assert!(words.iter().all(|word| checked.contains(word)), "{words:?}: {checked}");
}

#[test]
fn r145_permanent_connection_errors_fail_task_with_advice() {
    let mut far = Far::with_here("");
    far.set_session(&[("PATH", "/usr/bin:/bin")]);
    let install =
        format!("install bgd there so that `{} far bgctl --version` works", far.path("ssh").display());
    refused(&mut far, &["no bgctl there", &install, "with `bootstrap = true` of the executor"]);
    let checked = far.run_here(&["executors", "--check", "far"]).expect_code(69).stdout_text();
    assert!(!checked.contains("far: ") && !checked.contains("--bootstrap"), "{checked}");
    let id = far.submit_on(&[], "true");
    let error = far.ended(id).error.unwrap();
    assert!(error.starts_with("far: no bgctl there") && !error.contains("--bootstrap"), "{error}");
    let mut far = Far::with_here("");
    edit_messages(&far, "s/\"protocol\":[0-9]*/\"protocol\":99/");
    refused(&mut far, &["speaks protocol 99", "install the same version on both machines"]);
    let mut far = Far::with_here("");
    far.change_key("user");
    let check = format!("check the connection with: {} far true", far.path("ssh").display());
    refused(&mut far, &["Permission denied", &check]);
    let mut far = Far::with_here("");
    far.change_key("host");
    let check = format!("check the connection with: {} far true", far.path("ssh").display());
    refused(&mut far, &["Host key verification failed", &check]);
}

#[test]
fn r145_task_stays_pending_while_hostname_does_not_resolve() {
    let mut far = Far::start();
    let ssh = far.path("ssh").display().to_string();
    far.start_here(&format!(
        "[executors.lost]\ntype = \"ssh\"\nhost = \"nowhere.invalid\"\nssh = \"{ssh}\"\n"
    ));
    let id: TaskId = far.run_here(&["submit", "--on", "lost", "--", "true"]).word();
    let why = |task: &Task| task.elsewhere.as_ref().and_then(|there| there.unknown_because.clone());
    let task = far.until(id, "it is not known", |task| why(task).is_some());
    assert_eq!(task.status, Status::Pending);
    assert!(why(&task).unwrap().contains("Could not resolve hostname nowhere.invalid"), "{task:?}");
    let checked = far.run_here(&["executors", "--check", "lost"]).expect_code(69).stdout_text();
    assert!(
        checked.contains("Could not resolve") && checked.contains("ssh nowhere.invalid true"),
        "{checked}"
    );
    assert_eq!(far.here().cancel(&[id])[0].status, Status::Cancelled);
}

#[test]
fn r145_login_banner_and_other_version_are_tolerated() {
    let mut far = Far::with_here("");
    edit_messages(&far, "s/\"version\":\"[^\"]*\"/\"version\":\"9.8.7\"/g");
    far.wrap("case \"$*\" in *dial*) echo 'Welcome to far!'; echo '{}'; printf 'no newline';; esac");
    let checked = far.run_here(&["executors", "--check", "far"]).success().stdout_text();
    assert!(checked.contains("\tworks\t9.8.7\t"), "{checked}");
    let id = far.submit_on(&["--stdin-pipe"], "read line; echo \"got $line\"; exit 3");
    far.until(id, "it runs", |task| task.status == Status::Running);
    far.run_here(&["write", &id.to_string(), "-n", "words"]).success();
    assert_eq!(far.ended(id).exit, Some(Exit::Code(3)));
    assert_eq!(far.here().output(id), b"got words\n");
    // The same for -H.
    let id = far.run(&["submit", "--shell", "exit 3"]).word::<TaskId>().to_string();
    far.run(&["block", "--exit-code", &id]).expect_code(3);
    assert!(far.run(&["daemon", "status"]).success().stdout_text().contains("9.8.7"));
    assert_eq!(far.run(&["run", "--", "echo", "piped"]).success().stdout_text(), "piped\n");
}

#[test]
fn r145_full_disk_on_remote_machine_fails_task_and_keeps_written_output() {
    let mut far = Far::of(on_a_small_disk("size=40m"));
    far.start_here("");
    let id = far.submit_on(&[], "exec tr '\\0' x </dev/zero");
    let task = far.ended(id);
    assert_eq!((task.status, &task.exit), (Status::Failed, &Some(Exit::Code(1))), "{task:?}");
    assert!(task.output.bytes > 30_000_000, "{}", task.output.bytes);
    assert_eq!(far.here().output(id).len() as u64, task.output.bytes);
    // Once its output has been copied here, there is room again.
    wait::poll_until("the machine has forgotten it", || far.tasks_there().is_empty().then_some(()));
    let next = far.submit_on(&[], "echo next");
    assert_eq!(far.ended(next).status, Status::Completed);
}

#[test]
fn r145_full_disk_on_local_machine_loses_output_and_reports_it() {
    let mut far = Far::between(HOST, TestDaemon::start(), on_a_small_disk("size=20m"));
    far.configure_here("");
    far.run_here(&["daemon", "reload"]).success();
    let line = "head -c 60000000 /dev/zero | tr '\\0' x; echo last; exit 3";
    let id = far.submit_on(&[], line);
    let task = far.ended(id);
    // Its end is known nevertheless.
    assert_eq!((task.status, &task.exit), (Status::Failed, &Some(Exit::Code(3))), "{task:?}");
    let loss = task.output.loss().unwrap_or_default();
    assert!(loss.contains("No space left on device"), "{loss}");
    // Every byte written is either here or counted as lost.
    let Output { bytes, lost_bytes, dropped_bytes, .. } = task.output;
    assert_eq!((bytes + lost_bytes, dropped_bytes), (60_000_000 + "last\n".len() as u64, 0));
    assert!(bytes > 0 && far.here().output(id).len() as u64 == bytes, "{bytes}");
    let page = far.run_here(&["status", &id.to_string()]).success().stdout_text();
    assert!(page.contains("No space left on device"), "{page}");
    far.run_here(&["clear", &id.to_string()]).success();
    let next = far.submit_on(&[], "echo next");
    assert_eq!(far.ended(next).status, Status::Completed);
    assert_eq!(far.here().output(next), b"next\n");
}

#[test]
fn r145_output_dropped_remotely_before_copying_is_counted_as_lost() {
    let mut far = Far::of(TestDaemon::builder().config("[limits]\noutput_bytes = \"1MiB\"\n").start());
    far.start_here("");
    let [write, end] = ["write", "end"].map(|name| far.daemon.home().join(name));
    let line = format!(
        "until [ -e {} ]; do sleep 0.1; done; head -c 60000000 /dev/zero | tr '\\0' x
         until [ -e {} ]; do sleep 0.1; done; echo last; exit 3",
        write.display(),
        end.display(),
    );
    let id = far.submit_on(&[], &line);
    far.until(id, "it runs", |task| task.status == Status::Running);
    // Nothing is copied before most of the output was dropped.
    far.wrap("exit 255");
    far.cut_here();
    fs::write(write, "").unwrap();
    wait::poll_until("a small file there", || {
        let output = far.tasks_there().remove(0).output;
        (output.bytes == 60_000_000 && output.dropped_bytes > 50_000_000).then_some(())
    });
    far.wrap("");
    fs::write(end, "").unwrap();
    let task = far.ended(id);
    assert_eq!((task.status, &task.exit), (Status::Failed, &Some(Exit::Code(3))), "{task:?}");
    // Every byte written is either here or counted as lost.
    let Output { bytes, lost_bytes, dropped_bytes, .. } = task.output;
    assert_eq!((bytes + lost_bytes, dropped_bytes), (60_000_000 + "last\n".len() as u64, 0));
    assert!(lost_bytes > 50_000_000, "{lost_bytes}");
    let why = task.output.lost_because.unwrap_or_default();
    assert!(why.contains("limits.output_bytes"), "{why}");
    // No byte is invented.
    let output = far.here().output(id);
    assert_eq!(output.len() as u64, bytes);
    let text = output.strip_suffix(b"last\n").expect("its end is here");
    assert!(text.iter().all(|byte| *byte == b'x'));
}

#[test]
fn r145_remote_submit_cut_at_any_moment_runs_once() {
    let mut far = Far::start();
    let wire = far.wire();
    far.start_here("");
    let whole = |far: &mut Far| {
        let before = wire.carried_there();
        let id = far.submit_on(&[], "true");
        far.ended(id);
        wait::poll_until("the machine has forgotten it", || far.tasks_there().is_empty().then_some(()));
        wire.carried_there() - before
    };
    // First with a connection that is yet to be made, then with an existing one.
    let all = [whole(&mut far), whole(&mut far)];
    assert!(all[0] > all[1], "{all:?}");
    for stage in 0..2 * STAGES {
        let is_new = stage < STAGES;
        if is_new {
            far.cut_here();
        }
        wire.cut_asking_after(1 + all[usize::from(!is_new)] * (stage % STAGES) / STAGES);
        let id = far.submit_on(&[], &format!("echo once >>\"$HOME/times{stage}\""));
        let task = far.ended(id);
        assert_eq!((task.status, &task.exit), (Status::Completed, &Some(Exit::Code(0))), "{stage}: {task:?}");
        let times = fs::read_to_string(far.daemon.home().join(format!("times{stage}"))).unwrap();
        assert_eq!(times, "once\n", "{stage}");
        // Connect first, so that the next connection can be cut.
        let check = || Some(far.run_here(&["executors", "--check", "far"]).code).filter(|code| *code == 0);
        wait::poll_until("a connection", check);
    }
}

#[test]
fn r145_wrong_remote_clock_keeps_times_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let (source, library) = (folder.path().join("clock.c"), folder.path().join("clock.so"));
    fs::write(&source, CLOCK).unwrap();
    let built = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status();
    assert!(built.expect("a C compiler is needed").success());
    for skew in ["7200", "-7200"] {
        let preload = format!("export LD_PRELOAD={} TEST_SKEW={skew}", library.display());
        let mut far = Far::of(TestDaemon::builder().prelude(preload).start());
        far.start_here("");
        let id = far.submit_on(&["--time-limit", "10m", "--ready", "line:up"], "echo up; sleep 3; exit 3");
        let task = far.ended(id);
        assert_eq!(task.exit, Some(Exit::Code(3)), "{skew}: {task:?}");
        let now = bgd_tests::shared::time::Timestamp::now();
        let times = [Some(task.created_at), task.started_at, task.completed_at, Some(now)];
        assert!(times.windows(2).all(|two| two[0].unwrap() <= two[1].unwrap()), "{skew}: {times:?}");
        let lasted = task.completed_at.unwrap().unix_ms() - task.started_at.unwrap().unix_ms();
        // A clock that is ahead can't tell when the task began, so the start is when this machine learned of it.
        assert!((1000..600_000).contains(&lasted), "{skew}: {lasted} ms");
        // A limit is a span of time, whichever machine measures it.
        let late = far.submit_on(&["--time-limit", "300ms"], "exec sleep 1000");
        let task = far.ended(late);
        assert!(task.timed_out, "{skew}: {task:?}");
        far.run_here(&["list"]).success();
        far.run(&["list"]).success();
    }
}

#[test]
fn r145_all_operations_work_over_slow_link() {
    let mut far = Far::start();
    let wire = far.wire();
    wire.delay(Duration::from_millis(200));
    far.start_here("");
    let line = "trap 'echo usr' USR1; echo up; read line; echo \"got $line\"; read line; exit 4";
    let id = far.submit_on(&["--stdin-pipe", "--ready", "line:^up$"], line);
    far.run_here(&["block", "--until", "ready", "--timeout", "none", &id.to_string()]).success();
    far.run_here(&["write", &id.to_string(), "-n", "words"]).success();
    far.here().wait_output(id, "got words");
    far.run_here(&["pause", &id.to_string()]).success();
    far.run_here(&["continue", &id.to_string()]).success();
    far.run_here(&["write", &id.to_string(), "--eof"]).success();
    assert_eq!(far.ended(id).exit, Some(Exit::Code(4)));
    let many: Vec<TaskId> = (0..20).map(|number| far.submit_on(&[], &format!("echo {number}"))).collect();
    assert!(far.here().block(&many).iter().all(|task| task.status == Status::Completed));
    let ends = far.submit_on(&[], "exec sleep 1000");
    far.until(ends, "it runs", |task| task.status == Status::Running);
    let task = far.here().cancel(&[ends]).remove(0);
    assert_eq!((task.status, task.lingering), (Status::Cancelled, false));
}

/// Makes sessions on the other machine find a `bgctl` that stops listening, once or always, when it receives this
/// method.
fn deaf_to(far: &Far, method: &str, is_once: bool) {
    let programs = far.daemon.home().join("programs");
    fs::create_dir(&programs).unwrap();
    let [bgctl, mark] = [bgctl_path(), programs.join("was-deaf")].map(|path| path.display().to_string());
    let hears = if is_once { format!("mkdir {mark} 2>/dev/null") } else { "true".to_owned() };
    let script = format!(
        "#!/bin/sh\ncase \"$*\" in *dial*) {hears} && {{ sed -u '/{method}/Q' | {bgctl} \"$@\"; exit; }};; esac\n\
         exec {bgctl} \"$@\"\n"
    );
    executable::write(&programs.join("bgctl"), &script);
    far.set_session(&[("PATH", &format!("{}:/usr/bin:/bin", programs.display()))]);
}

#[test]
fn r145_oversized_request_fails_its_task_and_keeps_connection() {
    let mut far = Far::with_here("");
    let gate = far.daemon.home().join("gate");
    let other = far.submit_on(&[], &format!("until [ -e {} ]; do sleep 0.1; done; exit 4", gate.display()));
    far.running(other);
    let connections = far.connections();
    // This daemon receives the environment separately from the line, which is therefore short enough.
    let (long, env) = ("x".repeat(110_000), format!("LONG={}", "x".repeat(100_000)));
    let words = [&["submit", "--on", HOST, "--env", &env, "--", "true"], &[long.as_str(); 9][..]].concat();
    let id: TaskId = far.run_here(&words).word();
    let task = far.ended(id);
    assert_eq!(task.failure.as_ref().map(|failure| failure.kind), Some(FailureKind::Spawn), "{task:?}");
    let error = task.error.unwrap();
    for words in ["it is too long for far: the request has 1", "at most 1048576", "limits.frame_bytes"] {
        assert!(error.contains(words), "{words:?}: {error}");
    }
    assert_eq!(far.connections(), connections, "the connection was kept");
    fs::write(gate, "").unwrap();
    assert_eq!(far.ended(other).exit, Some(Exit::Code(4)));
}

#[test]
fn r145_long_environment_is_sent_to_remote_machine() {
    let mut far = Far::with_here("");
    let (env, line) = (format!("LONG={}", "x".repeat(100_000)), "printf %s \"$LONG\" | wc -c");
    let id = far.submit_on(&["--env", &env], line);
    assert_eq!(far.ended(id).status, Status::Completed);
    assert_eq!(far.here().output(id), b"100000\n");
    let id: TaskId = far.run(&["submit", "--env", &env, "--shell", line]).word();
    assert_eq!(far.daemon.block(&[id])[0].status, Status::Completed);
    assert_eq!(far.daemon.output(id), b"100000\n");
}

#[test]
fn r145_task_fails_if_there_is_no_ssh() {
    let mut far =
        Far::with_here("[executors.bare]\ntype = \"ssh\"\nhost = \"far\"\nssh = \"/nonexistent/ssh\"\n");
    let id: TaskId = far.run_here(&["submit", "--on", "bare", "--", "true"]).word();
    let task = far.ended(id);
    let why = task.error.unwrap();
    assert!(task.status == Status::Failed && why.contains("can't start /nonexistent/ssh"), "{why}");
    let checked = far.run_here(&["executors", "--check", "bare"]).expect_code(69).stdout_text();
    assert!(checked.contains("correct `ssh` of the executor") && !checked.contains("BGD_SSH"), "{checked}");
}

#[test]
fn r145_largest_base64_write_reaches_remote_machine() {
    let mut far = Far::with_here("");
    let id = far.submit_on(&["--stdin-pipe"], "tr '\\1' x | wc -c");
    far.running(id);
    let connections = far.connections();
    // That many bytes of value 1 in base64: three bytes are four letters.
    let (data, encoding) = ("AQEB".repeat(WRITE_BYTES / 3) + "AQ==", Encoding::Base64);
    let params = WriteParams { id: id.into(), data, encoding, eof: true };
    assert_eq!(far.here().client().call::<TaskWrite>(&params).unwrap().written, WRITE_BYTES as u64);
    assert_eq!(far.ended(id).status, Status::Completed);
    assert_eq!(far.here().output(id), format!("{WRITE_BYTES}\n").as_bytes());
    assert_eq!(far.connections(), connections, "the connection was kept");
}

#[test]
fn r145_write_cut_off_by_a_broken_connection_says_that_it_may_have_been_done() {
    let mut far = Far::start();
    let wire = far.wire();
    far.start_here("");
    let id = far.submit_on(&["--stdin-pipe"], "cat >/dev/null; sleep 1000");
    far.running(id);
    wire.freeze();
    let mut client = far.here().client();
    let params = WriteParams { id: id.into(), data: "words\n".into(), encoding: Encoding::Utf8, eof: false };
    let write = client.send::<TaskWrite>(&params, &[]).unwrap();
    // It is under way once a later call is answered.
    client.call::<DaemonStatusOf>(&NoParams {}).unwrap();
    far.cut_here();
    let ClientError::Rpc(error) = client.answer::<TaskWrite>(write).unwrap_err() else { panic!("no error") };
    assert_eq!(
        error.message,
        "the connection to far was lost before an answer came: it is not known whether it was written, or a part of it"
    );
    assert!(error.data.hint.unwrap().contains("check it before you write again"));
    wire.thaw();
    assert_eq!(far.here().cancel(&[id])[0].status, Status::Cancelled);
    far.forgotten();
}

#[test]
fn r145_remote_bgctl_that_is_killed_leaves_tasks_pending_with_the_reason() {
    let mut far = Far::with_here("");
    let programs = far.daemon.home().join("programs");
    fs::create_dir(&programs).unwrap();
    executable::write(&programs.join("bgctl"), "#!/bin/sh\nkill -KILL $$\n");
    far.set_session(&[("PATH", &format!("{}:/usr/bin:/bin", programs.display()))]);
    let id = far.submit_on(&[], "echo ran");
    let because = |task: &Task| task.elsewhere.as_ref()?.unknown_because.clone();
    let task = far.until(id, "it can't be submitted", |task| because(task).is_some());
    let why = because(&task).unwrap();
    assert!(task.status == Status::Pending && why.contains("or bgctl over there was killed"), "{why}");
    let checked = far.run_here(&["executors", "--check", "far"]).expect_code(69).stdout_text();
    assert!(checked.contains("far bgctl --version"), "{checked}");
    far.set_session(&[]);
    assert_eq!(far.ended(id).status, Status::Completed);
}

#[test]
fn r145_remote_removal_cut_by_broken_connection_is_repeated() {
    let mut far = Far::with_here("");
    deaf_to(&far, "task\\.clear", true);
    let id = far.submit_on(&[], "echo done");
    assert_eq!(far.ended(id).status, Status::Completed);
    far.forgotten();
    assert_eq!(far.connections(), 2, "the first one broke");
}

#[test]
fn r145_immediately_broken_connections_are_retried_with_pauses() {
    let mut far = Far::with_here("");
    let id = far.submit_on(&[], "sleep 1000");
    far.running(id);
    deaf_to(&far, "task\\.cancel", false);
    far.cut_here();
    // Each connection reports the status of the task, which is a success, before it breaks.
    let mut client = far.here().client();
    let params = CancelParams { ids: vec![id.into()], ..CancelParams::default() };
    let cancel = client.send::<TaskCancel>(&params, &[]).unwrap();
    let (begin, first) = (Instant::now(), far.connections());
    wait::poll_until("six further connections", || (far.connections() >= first + 6).then_some(()));
    assert!(begin.elapsed() >= 5 * Duration::from_millis(500), "{:?}", begin.elapsed());
    far.set_session(&[]);
    assert_eq!(client.answer::<TaskCancel>(cancel).unwrap().tasks[0].status, Status::Cancelled);
    far.forgotten();
}

/// Makes the connection lose every request to read output, and ends a task there whose output is not copied for that
/// reason, but whose end is known here.
fn ended_but_not_copied() -> (Far, TaskId) {
    let mut far = Far::with_here("");
    deaf_to(&far, "task.output", false);
    let id = far.submit_on(&[], "echo text");
    wait::poll_until("it has ended there", || {
        far.tasks_there().iter().any(|task| task.status == Status::Completed).then_some(())
    });
    let before = far.connections();
    wait::poll_until("its end is known", || (far.connections() >= before + 3).then_some(()));
    assert_eq!(far.here().task(id).status, Status::Running);
    (far, id)
}

#[test]
fn r145_known_end_is_kept_if_machine_loses_the_task_before_its_output_is_copied() {
    let losses: [fn(&mut Far, &str); 2] = [
        |far, _| {
            far.daemon.kill9();
            // The next connection may have started it already.
            far.daemon.run(&["daemon", "start"]).success();
        },
        |far, id_there| _ = far.daemon.run(&["clear", id_there]).success(),
    ];
    for lose in losses {
        let (mut far, id) = ended_but_not_copied();
        let id_there = far.here().task(id).elsewhere.unwrap().id.unwrap();
        lose(&mut far, &id_there);
        let task = far.ended(id);
        assert_eq!((task.status, &task.exit), (Status::Completed, &Some(Exit::Code(0))), "{task:?}");
        assert_eq!((task.output.bytes, task.output.lost_bytes), (0, 5), "{:?}", task.output);
        assert!(
            task.output.lost_because.unwrap().starts_with("its last output is missing: the daemon of far")
        );
    }
}

#[test]
fn r145_output_arrives_over_link_that_is_slower_than_its_timeout() {
    let mut far = Far::start();
    let programs = far.daemon.home().join("programs");
    fs::create_dir(&programs).unwrap();
    let bgctl = bgctl_path().display().to_string();
    // A part of the output takes longer than the timeout.
    let slow = "import os,time\nwhile b := os.read(0, 8192): time.sleep(0.1); os.write(1, b)";
    let script = format!(
        "#!/bin/sh\ncase \"$*\" in *dial*) {bgctl} \"$@\" | python3 -c '{slow}'; exit;; esac\nexec {bgctl} \"$@\"\n"
    );
    executable::write(&programs.join("bgctl"), &script);
    far.set_session(&[("PATH", &format!("{}:/usr/bin:/bin", programs.display()))]);
    far.configure_here("");
    let config = fs::read_to_string(far.here().config_path()).unwrap();
    far.here().write_config(&format!("{config}connect_timeout = \"3s\"\n"));
    far.here().launch();
    let id = far.submit_on(&[], "head -c 600000 /dev/zero | tr '\\0' x");
    assert_eq!(far.ended(id).status, Status::Completed);
    assert_eq!(far.here().output(id), vec![b'x'; 600_000]);
}

#[test]
fn r145_too_many_authentication_failures_fail_task_at_once() {
    let mut far = Far::with_here("");
    far.wrap(
        "echo 'Received disconnect from 10.0.0.1 port 22:2: Too many authentication failures' >&2\n\
         echo 'Disconnected from 10.0.0.1 port 22' >&2; exit 255",
    );
    let check = format!("check the connection with: {} far true", far.path("ssh").display());
    refused(&mut far, &["Too many authentication failures", &check]);
}
