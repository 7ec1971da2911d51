//! Tasks of this machine's daemon that another machine runs, through a real ssh and a real sshd: `submit --on`.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Command, Stdio};

use bgd_tests::far::{Far, HOST};
use bgd_tests::shared::client::ClientError;
use bgd_tests::shared::error::ErrorKind;
use bgd_tests::shared::failure::FailureKind;
use bgd_tests::shared::id::TaskId;
use bgd_tests::shared::order::{CancelReason, WaitingFor};
use bgd_tests::shared::request::{
    Hello, HelloParams, ListParams, Stream, SubmitParams, TaskList, TaskSubmit,
};
use bgd_tests::shared::resources::Resources;
use bgd_tests::shared::task::{Exit, Status, Task};
use bgd_tests::{TestDaemon, parallel, wait};
use nix::sys::signal::Signal;

#[track_caller]
fn submit(far: &Far, options: &[&str], line: &str) -> TaskId {
    far.run_here(&[&["submit", "--on", "far"], options, &["--shell", line]].concat()).word()
}

fn there(far: &Far) -> Vec<Task> {
    far.daemon.client().call::<TaskList>(&ListParams::default()).unwrap().tasks
}

#[track_caller]
fn ended(far: &mut Far, id: TaskId) -> Task {
    far.here().block(&[id]).remove(0)
}

/// Waits until a task here meets this condition.
#[track_caller]
fn until(far: &mut Far, id: TaskId, what: &str, is_so: impl Fn(&Task) -> bool) -> Task {
    wait::poll_until(what, || Some(far.here().task(id)).filter(&is_so))
}

#[test]
fn r145_task_runs_on_remote_machine_and_is_tracked_locally() {
    let mut far = Far::with_here("");
    let id = submit(&far, &["--env", "NEW=x y", "--cwd", "/tmp"], "pwd; echo \"$HOME $NEW\"; exit 3");
    let task = ended(&mut far, id);
    let home = far.daemon.home().display().to_string();
    assert_eq!(String::from_utf8(far.here().output(id)).unwrap(), format!("/tmp\n{home} x y\n"));
    assert_eq!(
        (task.status, task.exit, task.on.as_deref()),
        (Status::Failed, Some(Exit::Code(3)), Some("far"))
    );
    assert_eq!(task.group, "far", "it takes no slot of this machine");
    assert!(task.started_at.is_some() && task.elsewhere.unwrap().id.is_some());
    far.run_here(&["block", "--exit-code", &id.to_string()]).expect_code(3);
    let shown = far.run_here(&["status", &id.to_string()]).success().stdout_text();
    assert!(shown.contains("on:          far\n") && shown.contains("id there:"), "{shown}");
    // The output has been copied here, so nothing is kept there.
    wait::poll_until("the machine has forgotten it", || there(&far).is_empty().then_some(()));
}

#[test]
fn r164_remote_run_usage_is_reported_locally() {
    let mut far = Far::with_here("");
    let line = r#"exec perl -e 'while ((times)[0] < 0.25) { $n++ } $x = "x" x (64 << 20); print length $x'"#;
    let id = submit(&far, &[], line);
    let usage = ended(&mut far, id).usage.expect("it is known");
    assert!(
        usage.user_ms >= 240 && usage.peak_memory_bytes.is_some_and(|bytes| bytes >= 64 << 20),
        "{usage:?}"
    );
    let shown = far.run_here(&["status", &id.to_string()]).success().stdout_text();
    assert!(shown.contains("of CPU, at most "), "{shown}");
}

#[test]
fn r143_bootstrap_copies_programs_to_executor() {
    let mut far = Far::of(TestDaemon::home_only());
    far.set_session(&[("PATH", "/usr/bin:/bin")]);
    let copying = |bootstrap| {
        let ssh = far.path("ssh").display().to_string();
        format!(
            "[executors.copy]\ntype = \"ssh\"\nhost = \"far\"\nssh = \"{ssh}\"\nbootstrap = {bootstrap}\n"
        )
    };
    let (without, with) = (copying(false), copying(true));
    far.start_here(&without);
    let checked = far.run_here(&["executors", "--check", "copy"]).expect_code(69);
    assert!(checked.stdout_text().contains("no bgctl there"), "{}", checked.stdout_text());
    far.here().write_config(&with);
    far.run_here(&["daemon", "reload"]).success();
    let id: TaskId = far.run_here(&["submit", "--on", "copy", "--", "echo", "there"]).word();
    assert_eq!(ended(&mut far, id).status, Status::Completed);
    assert_eq!(far.here().output(id), b"there\n");
    far.run(&["--bootstrap", "daemon", "stop"]).success();
}

#[test]
fn r145_executor_check_runs_trial_task_without_waiting_for_slot() {
    let mut far = Far::start();
    let ssh = far.path("ssh").display().to_string();
    let config = |folder| {
        format!("[executors.its]\ntype = \"ssh\"\nhost = \"far\"\nssh = \"{ssh}\"\nfolder = \"{folder}\"\n")
    };
    let (nowhere, there) = (config("/nowhere"), config("/tmp"));
    far.start_here(&nowhere);
    let fails = far.run_here(&["executors", "--check", "its"]).expect_code(69).stdout_text();
    assert!(
        fails.contains("a task that does nothing fails there: ") && fails.contains("/nowhere"),
        "{fails}"
    );
    far.here().write_config(&there);
    far.run_here(&["daemon", "reload"]).success();
    // A task on another machine waits for no slot.
    let ids: Vec<TaskId> = (0..8).map(|_| far.daemon.submit_shell("exec sleep 1000")).collect();
    far.run_here(&["executors", "--check", "its"]).success();
    assert_eq!(far.tasks_there().len(), ids.len());
}

#[test]
fn r145_remote_output_arrives_unchanged_while_task_runs() {
    let mut far = Far::with_here("");
    let line = "head -c 3000000 /dev/urandom | tee \"$HOME/sent\"; echo late >&2; read line; echo \"$line\"";
    let id = submit(&far, &["--split", "--stdin-pipe"], line);
    until(&mut far, id, "all of its output", |task| task.output.bytes == 3_000_005);
    let sent = fs::read(far.daemon.home().join("sent")).unwrap();
    assert!(far.here().stream(id, Stream::Stdout) == sent, "the output differs");
    assert_eq!(far.here().stream(id, Stream::Stderr), b"late\n");
    far.run_here(&["write", &id.to_string(), "-n", "words"]).success();
    assert_eq!(ended(&mut far, id).status, Status::Completed);
    assert_eq!(far.here().stream(id, Stream::Stdout)[3_000_000..], *b"words\n");
}

#[test]
fn r145_remote_exits_failures_and_cancellations_are_reported_faithfully() {
    let mut far = Far::with_here("");
    let killed = submit(&far, &[], "kill -9 $$");
    assert_eq!(ended(&mut far, killed).exit, Some(Exit::Signal(9)));
    let missing: TaskId = far.run_here(&["submit", "--on", "far", "--", "no-such-program"]).word();
    let task = ended(&mut far, missing);
    assert_eq!(
        task.failure.as_ref().map(|failure| (failure.kind, failure.code)),
        Some((FailureKind::Spawn, Some(127)))
    );
    let late = submit(&far, &["--time-limit", "300ms"], "sleep 1000");
    let task = ended(&mut far, late);
    assert!(task.timed_out && task.failure.unwrap().kind == FailureKind::Timeout);
    // One is cancelled here, the other on the other machine by somebody else.
    let [mine, other] = [0; 2].map(|_| submit(&far, &[], "sleep 1000"));
    until(&mut far, other, "it runs", |task| task.status == Status::Running);
    let task = far.here().cancel(&[mine]).remove(0);
    assert_eq!((task.status, task.cancel_reason), (Status::Cancelled, Some(CancelReason::User)));
    let id_there = far.here().task(other).elsewhere.unwrap().id.unwrap();
    far.run(&["cancel", &id_there]).success();
    let task = ended(&mut far, other);
    assert_eq!((task.status, task.cancel_reason), (Status::Cancelled, Some(CancelReason::Elsewhere)));
    wait::poll_until("nothing is left there", || there(&far).is_empty().then_some(()));
}

#[test]
fn r145_remote_task_can_be_held_signalled_paused_and_edited() {
    let mut far = Far::of(TestDaemon::builder().config("max_concurrent_tasks = 1").start());
    far.start_here("");
    let first = submit(&far, &[], "trap 'echo usr; exit 5' USR1; echo up; while :; do sleep 0.1; done");
    until(&mut far, first, "it is ready for the signal", |task| task.output.bytes == 3);
    let second = submit(&far, &[], "true");
    let waits = until(&mut far, second, "it waits there", |task| {
        task.elsewhere.as_ref().is_some_and(|there| there.reason.is_some())
    });
    assert_eq!((waits.status, waits.waiting.unwrap().reason), (Status::Pending, WaitingFor::Elsewhere));
    let listed = far.run_here(&["list"]).success().stdout_text();
    assert!(listed.contains("pending (far: for a free slot there)"), "{listed}");
    let second_id = second.to_string();
    far.run_here(&["edit", &second_id, "--priority", "7"]).success();
    far.run_here(&["edit", &second_id, "--slots", "7"]).expect_code(65);
    far.run_here(&["hold", &second_id]).success();
    let of_there =
        |far: &Far, far_id: &str| there(far).into_iter().find(|task| task.id.to_string() == far_id).unwrap();
    let far_id = far.here().task(second).elsewhere.unwrap().id.unwrap();
    wait::poll_until("the hold is there", || {
        let task = of_there(&far, &far_id);
        (task.waiting.unwrap().reason == WaitingFor::Held && task.priority == 7).then_some(())
    });
    far.run_here(&["pause", &first.to_string()]).success();
    assert!(there(&far).iter().any(|task| task.paused));
    far.run_here(&["continue", &first.to_string()]).success();
    far.run_here(&["signal", &first.to_string(), "USR1"]).success();
    assert_eq!(ended(&mut far, first).exit, Some(Exit::Code(5)));
    far.run_here(&["release", &second_id]).success();
    assert_eq!(ended(&mut far, second).status, Status::Completed);
}

#[test]
fn r150_hold_and_priority_set_before_submission_apply_remotely() {
    let mut far = Far::with_here("");
    far.wrap("echo 'ssh: connect to host far port 22: No route to host' >&2; exit 255");
    let held = submit(&far, &[], "echo ran");
    let lowered = submit(&far, &["--priority", "-10"], "sleep 1000");
    for id in [held, lowered] {
        until(&mut far, id, "it can't be submitted", |task| {
            task.elsewhere.as_ref().is_some_and(|there| there.unknown_because.is_some())
        });
    }
    let held_id = held.to_string();
    far.run_here(&["hold", &held_id]).success();
    far.run_here(&["edit", &held_id, "--priority", "3"]).success();
    far.wrap("");
    until(&mut far, lowered, "it runs", |task| task.status == Status::Running);
    let of_there = |far: &mut Far, id: TaskId| {
        let id_there = wait::poll_until("an id there", || far.here().task(id).elsewhere?.id);
        there(far).into_iter().find(|task| task.id.to_string() == id_there).unwrap()
    };
    assert_eq!(of_there(&mut far, lowered).priority, -10);
    let task = of_there(&mut far, held);
    assert_eq!(
        (task.status, task.priority, task.waiting.unwrap().reason),
        (Status::Pending, 3, WaitingFor::Held)
    );
    assert_eq!(far.here().task(held).status, Status::Pending);
    far.run_here(&["release", &held_id]).success();
    assert_eq!(ended(&mut far, held).status, Status::Completed);
    assert_eq!(far.here().output(held), b"ran\n");
    far.here().cancel(&[lowered]);
}

#[test]
fn r145_dependencies_and_retries_work_across_machines() {
    let mut far = Far::with_here("");
    let server = submit(&far, &["--ready", "line:^up"], "echo up; sleep 1000");
    let after = far.here().home().join("after");
    let line = format!("echo $BGD_AFTER >{}", after.display());
    let here: TaskId =
        far.run_here(&["submit", "--after", &format!("{server}:ready"), "--shell", &line]).word();
    assert_eq!(ended(&mut far, here).status, Status::Completed);
    assert_eq!(fs::read_to_string(after).unwrap(), format!("{server}\n"));
    let fails: TaskId = far.run_here(&["submit", "--", "false"]).word();
    let never = submit(&far, &["--after", &fails.to_string()], "echo never");
    assert_eq!(ended(&mut far, never).cancel_reason, Some(CancelReason::Dependency));
    let tried = submit(
        &far,
        &["--retry", "3", "--retry-delay", "0s"],
        "echo try; test -e \"$HOME/tried\" || { touch \"$HOME/tried\"; exit 1; }",
    );
    let task = ended(&mut far, tried);
    assert_eq!((task.status, task.attempt, task.attempts.len()), (Status::Completed, Some(2), 1));
    assert_eq!(far.here().output(tried), b"try\ntry\n");
    assert_eq!(task.attempts[0].offset, 0);
    far.here().cancel(&[server]);
}

#[test]
fn r145_batch_runs_on_remote_machine_over_one_connection() {
    let mut far = Far::with_here("");
    let items = far.path("items");
    let lines: Vec<String> = (1..=40).map(|number| number.to_string()).collect();
    fs::write(&items, lines.join("\n")).unwrap();
    let batch: TaskId = far
        .run_here(&["submit", "--on", "far", "--each", items.to_str().unwrap(), "--", "echo", "n{}"])
        .word();
    far.run_here(&["block", "--batch", &batch.to_string()]).success();
    let tasks = far.here().client().call::<TaskList>(&ListParams::default()).unwrap().tasks;
    let mut outputs: Vec<String> =
        tasks.iter().map(|task| String::from_utf8(far.here().output(task.id)).unwrap()).collect();
    outputs.sort();
    let mut expected: Vec<String> = (1..=40).map(|number| format!("n{number}\n")).collect();
    expected.sort();
    assert_eq!(outputs, expected);
    assert_eq!(far.connections(), 1);
}

#[test]
fn r145_cut_connection_loses_neither_output_nor_exit() {
    let mut far = Far::with_here("");
    let line = "i=0; while [ $i -lt 200 ]; do echo line $i; i=$((i+1)); done; read go; echo end; exit 4";
    let id = submit(&far, &["--stdin-pipe"], line);
    until(&mut far, id, "it has written", |task| task.output.bytes > 1000);
    // For a while nobody can connect.
    far.wrap("test ! -e \"$0.shut\" || { echo closed >&2; exit 255; }");
    fs::write(far.path("ssh.shut"), "").unwrap();
    far.cut_here();
    let unknown = until(&mut far, id, "it is not known", |task| {
        task.elsewhere.as_ref().is_some_and(|there| there.unknown_since.is_some())
    });
    assert_eq!(unknown.status, Status::Running, "nothing is decided");
    let far_id = unknown.elsewhere.unwrap().id.unwrap();
    far.run_here(&["write", &id.to_string(), "-n", "go"]).expect_code(65);
    // Meanwhile the task continues.
    far.daemon.run(&["write", &far_id, "-n", "go"]).success();
    far.daemon.run(&["block", &far_id]).expect_code(1);
    fs::remove_file(far.path("ssh.shut")).unwrap();
    let task = ended(&mut far, id);
    assert_eq!((task.status, task.exit), (Status::Failed, Some(Exit::Code(4))));
    let expected: String =
        (0..200).map(|number| format!("line {number}\n")).chain(["end\n".to_owned()]).collect();
    assert_eq!(String::from_utf8(far.here().output(id)).unwrap(), expected);
}

/// Each machine's connections are cut at other places.
#[test]
fn r145_remote_submit_with_lost_reply_runs_once() {
    const MACHINES: u32 = 4;
    parallel::for_each(0..MACHINES, |first| {
        let mut far = Far::with_here("");
        // The first connection ends within the greetings, and each of the next ones a number of bytes behind them,
        // later than the one before. Every further cut within the greetings would double the pause before the next
        // connection.
        far.wrap(&format!(
            "case \"$*\" in *dial*) ;; *) exec $SSH \"$@\" ;; esac\n\
             n=$(cat \"$0.count\" 2>/dev/null || echo 0); echo $((n+1)) >\"$0.count\"\n\
             if [ $n -lt 4 ]; then\n\
             mkfifo \"$0.$n\"; exec 3<&0; $SSH \"$@\" <&3 >\"$0.$n\" & ssh=$!\n\
             {{\n\
             count=300\n\
             if [ $n -gt 0 ]; then\n\
             for greeting in 1 2; do IFS= read -r line; printf '%s\\n' \"$line\"; done\n\
             count=$((((n - 1) * {MACHINES} + {first}) * 250))\n\
             fi\n\
             dd bs=1 count=$count 2>/dev/null\n\
             }} <\"$0.$n\"; kill $ssh; exit 255\n\
             fi"
        ));
        let id = submit(&far, &[], "echo once >>\"$HOME/times\"; echo done");
        let task = ended(&mut far, id);
        assert_eq!((task.status, task.exit), (Status::Completed, Some(Exit::Code(0))));
        assert_eq!(fs::read_to_string(far.daemon.home().join("times")).unwrap(), "once\n");
        assert_eq!(far.here().output(id), b"done\n");
    });
}

#[test]
fn r145_task_fails_if_remote_daemon_is_killed_or_restarted() {
    let mut far = Far::with_here("");
    let id = submit(&far, &[], "sleep 1000");
    until(&mut far, id, "it runs", |task| task.status == Status::Running);
    far.daemon.kill9();
    // The next connection may have started it already.
    far.daemon.run(&["daemon", "start"]).success();
    let task = ended(&mut far, id);
    assert_eq!(task.failure.map(|failure| failure.kind), Some(FailureKind::Lost));
    let again = submit(&far, &[], "echo up");
    assert_eq!(ended(&mut far, again).status, Status::Completed);
    // A daemon that is shut down reports it.
    let id = submit(&far, &[], "sleep 1000");
    until(&mut far, id, "it runs", |task| task.status == Status::Running);
    let stopped = far.daemon.process();
    stopped.signal(rustix::process::Signal::TERM).unwrap();
    stopped.gone();
    far.daemon.run(&["daemon", "start"]).success();
    let failure = ended(&mut far, id).failure.unwrap();
    assert!([FailureKind::Node, FailureKind::Lost].contains(&failure.kind), "{failure:?}");
}

#[test]
fn r145_unreachable_machine_is_awaited_but_refusing_one_fails_task() {
    let mut far = Far::with_here("");
    far.wrap("test -e \"$0.open\" || { echo 'connect to host far: No route' >&2; exit 255; }");
    let id = submit(&far, &[], "echo there");
    let waits = until(&mut far, id, "it can't be submitted", |task| {
        task.elsewhere.as_ref().is_some_and(|there| there.unknown_because.is_some())
    });
    assert_eq!(waits.status, Status::Pending);
    assert!(waits.elsewhere.unwrap().unknown_because.unwrap().contains("No route"));
    // A task that was never submitted ends at once.
    let never = submit(&far, &[], "echo never");
    assert_eq!(far.here().cancel(&[never])[0].status, Status::Cancelled);
    fs::write(far.path("ssh.open"), "").unwrap();
    assert_eq!(ended(&mut far, id).status, Status::Completed);
    far.here().restart();
    far.change_key("host");
    let refused = submit(&far, &[], "echo no");
    let task = ended(&mut far, refused);
    assert_eq!(task.failure.as_ref().map(|failure| failure.kind), Some(FailureKind::Spawn));
    assert!(task.error.unwrap().contains("Host key verification failed"));
}

#[test]
fn r145_cancel_returns_without_connection_and_is_executed_later() {
    let mut far = Far::with_here("");
    let id = submit(&far, &["--session", "s"], "sleep 1000");
    until(&mut far, id, "it runs", |task| task.status == Status::Running);
    far.wrap("test ! -e \"$0.shut\" || exit 255");
    fs::write(far.path("ssh.shut"), "").unwrap();
    far.cut_here();
    let cancelled = far.run_here(&["cancel", &id.to_string()]).success().stdout_text();
    let left = "it may still run on far, and will be ended there as soon as possible";
    assert_eq!(cancelled, format!("{id} cancelled, but {left}\n"));
    let task = far.here().task(id);
    assert_eq!((task.status, task.lingering), (Status::Cancelled, true));
    assert!(matches!(task.exit, Some(Exit::Unknown(why)) if why.contains("may still run there")));
    let page = far.run_here(&["status", &id.to_string()]).success().stdout_text();
    assert!(page.contains(&format!("lingering:   {left}")), "{page}");
    let kept = far.run_here(&["clear", "--session", "s"]).success();
    assert_eq!(kept.stdout_text(), "cleared 0\n");
    let short = &id.to_string()[..8];
    let hint = format!(
        "kept 1 finished task that may have running processes; `bgctl clear {short}` removes it anyway\n"
    );
    assert_eq!(kept.stderr, hint);
    assert_eq!(there(&far)[0].status, Status::Running);
    fs::remove_file(far.path("ssh.shut")).unwrap();
    wait::poll_until("it is ended there", || {
        there(&far).iter().all(|task| task.status == Status::Cancelled).then_some(())
    });
    let task = until(&mut far, id, "it has no process left", |task| !task.lingering);
    assert_eq!((task.status, task.cancel_reason), (Status::Cancelled, Some(CancelReason::User)));
    assert_eq!(task.elsewhere.unwrap().unknown_because, None);
}

#[test]
fn r145_tasks_of_ended_local_daemon_are_ended_on_remote_machine() {
    let mut far = Far::with_here("");
    let id = submit(&far, &[], "sleep 1000");
    until(&mut far, id, "it runs", |task| task.status == Status::Running);
    far.here().stop();
    assert_eq!(there(&far).len(), 0, "all of it is removed");
    // After a kill, the next daemon takes care of it without being asked.
    far.here().launch();
    let id = submit(&far, &[], "sleep 1000");
    until(&mut far, id, "it runs", |task| task.status == Status::Running);
    far.here().kill_by(Signal::SIGKILL);
    assert_eq!(there(&far).iter().filter(|task| task.status == Status::Running).count(), 1);
    // Other tasks on the machine are left alone.
    let others = [far.daemon.submit(&["true"]), far.daemon.submit(&["sleep", "1000"])];
    far.daemon.block(&others[..1]);
    far.daemon.wait_running(others[1]);
    far.here().launch();
    let notes = far.here().state_dir().join("executors");
    wait::poll_until("its note is removed, as nothing of it is left there", || {
        (fs::read_dir(&notes).unwrap().count() == 0).then_some(())
    });
    let left = there(&far).into_iter().rev().map(|task| (task.id, task.status));
    assert!(left.eq([(others[0], Status::Completed), (others[1], Status::Running)]), "{:?}", there(&far));
    far.daemon.cancel(&others[1..]);
}

#[test]
fn r145_tasks_of_killed_daemon_are_ended_on_the_previous_host() {
    // The daemon's connection to it ends first.
    let near = Far::named("near", TestDaemon::start());
    let mut far = Far::with_here("");
    far.join(&near);
    let id = submit(&far, &[], "sleep 1000");
    until(&mut far, id, "it runs", |task| task.status == Status::Running);
    far.here().kill9();
    far.set_host("near");
    far.here().launch();
    // Nobody sends requests to either machine.
    far.forgotten();
    let id = submit(&far, &[], "echo \"$HOME\"; exec sleep 1000");
    far.here().wait_output(id, &near.daemon.home().display().to_string());
    // A previous host that is gone keeps no task waiting.
    far.here().kill9();
    far.wrap("case \"$*\" in *near*) echo 'No route to host' >&2; exit 255;; esac");
    far.set_host("far");
    far.here().launch();
    let id = submit(&far, &[], "echo \"$HOME\"");
    assert_eq!(ended(&mut far, id).status, Status::Completed);
    assert_eq!(far.here().output(id), format!("{}\n", far.daemon.home().display()).into_bytes());
    let log = fs::read_to_string(far.here().state_dir().join("bgd.log")).unwrap();
    assert!(log.contains("may have left tasks on the previous host"), "{log}");
}

#[test]
fn r145_options_unsupported_by_executor_are_refused() {
    let far = Far::with_here("");
    for (args, word) in [
        (&["submit", "--on", "moon", "--", "true"][..], "unknown executor \"moon\""),
        (&["submit", "--on", "far", "--pty", "--", "true"], "a terminal"),
        (&["submit", "--on", "far", "--stdin", "--", "true"], "passing on a file or a pipe"),
        (&["submit", "--on", "far", "--cpus", "4", "--", "true"], "`cpus`"),
        (&["submit", "--cpus", "4", "--", "true"], "--on"),
    ] {
        let refused = far.run_here(args).expect_code(2);
        assert!(refused.stderr.contains(word), "{}", refused.stderr);
    }
    assert!(there(&far).is_empty());
}

#[test]
fn r145_executor_local_is_this_machine() {
    let daemon = TestDaemon::start();
    for on in [&[][..], &["--on", "local"]] {
        let args = [&["submit"], on, &["--", "true"]].concat();
        let id: TaskId = daemon.run(&args).success().stdout_text().trim().parse().unwrap();
        let task = daemon.block(&[id]).remove(0);
        assert_eq!((task.status, task.on.as_deref(), &*task.group), (Status::Completed, None, "default"));
    }
    let shell = SubmitParams { shell: Some("true".into()), ..daemon.params() };
    let task = daemon.submit_with(&SubmitParams { on: Some("local".to_owned()), ..shell });
    assert_eq!(task.on, None);
}

#[test]
fn r146_resources_without_cluster_are_refused_over_the_wire() {
    let mut far = Far::with_here("");
    let here = far.here();
    let params = SubmitParams { shell: Some("true".into()), ..here.params() };
    for (resources, word) in [
        (Resources { cpus: Some(4), ..Resources::default() }, "`cpus`"),
        (Resources { memory_bytes: Some(1 << 30), ..Resources::default() }, "`memory"),
        (Resources { qos: Some("high".to_owned()), ..Resources::default() }, "`qos`"),
    ] {
        for on in [None, Some("far".to_owned())] {
            let params = SubmitParams { resources: resources.clone(), on, ..params.clone() };
            let refused = here.client().call::<TaskSubmit>(&params).unwrap_err();
            let ClientError::Rpc(error) = refused else { panic!("{refused}") };
            assert_eq!(error.kind(), ErrorKind::InvalidParams, "{error}");
            let hint = error.data.hint.as_deref().unwrap_or_default();
            let text = format!("{}; {hint}", error.message);
            assert!(text.contains(word) && text.contains("cluster"), "{text}");
        }
    }
    assert_eq!(here.status().summary.total(), 0);
}

#[test]
fn r145_connection_of_an_executor_is_not_shared_with_ssh_sessions_of_the_user() {
    let mut far = Far::start();
    let control = far.path("cm");
    far.configure_ssh(&format!(
        "ControlMaster auto\nControlPath {}\nControlPersist no\nLogLevel ERROR",
        control.display()
    ));
    far.start_here("");
    let id = far.submit_on(&[], "true");
    ended(&mut far, id);
    assert!(!control.exists(), "it is no master");
    // It must not wait forever if the connection is lost.
    let mut command = Command::new("timeout");
    command.arg("60").arg(far.path("ssh")).args([HOST, "cat"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut session = command.spawn().unwrap();
    let (mut input, mut output) =
        (session.stdin.take().unwrap(), BufReader::new(session.stdout.take().unwrap()));
    let mut works = || {
        writeln!(input, "still here").unwrap();
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        line == "still here\n"
    };
    assert!(works());
    assert!(control.exists(), "it is a master");
    let before = far.connections();
    far.here().restart();
    let id = far.submit_on(&[], "true");
    ended(&mut far, id);
    assert_eq!(far.connections(), before + 1, "nor a client");
    far.here().stop();
    assert!(works());
    drop(input);
    assert!(session.wait().unwrap().success());
}

#[test]
fn r145_executor_check_reports_whether_machine_works() {
    let mut far = Far::with_here("");
    let listed = far.run_here(&["executors"]).success().stdout_text();
    assert_eq!(listed, "local\tlocal\t-\t0\t0\t-\t-\nfar\tssh\tfar\t0\t0\t-\t-\n");
    let version = env!("CARGO_PKG_VERSION");
    // In a pipe, the check includes limits and hints, too.
    let checked = far.run_here(&["executors", "--check", "far"]).success().stdout_text();
    assert!(checked.starts_with(&format!("far\tssh\tfar\t0\t0\tworks\t{version}\tanswer: ")), "{checked}");
    let limits = &far.daemon.client().call::<Hello>(&HelloParams::default()).unwrap().limits;
    for fact in [
        format!("max_concurrent_tasks: {}", limits.max_concurrent_tasks),
        "tasks: 0 running, 0 pending".to_owned(),
        format!("output_bytes: {}", limits.output_bytes),
    ] {
        assert!(checked.contains(&format!("; {fact}")), "{fact}: {checked}");
    }
    assert_eq!(checked.lines().count(), 1);
    assert!(far.tasks_there().is_empty(), "the task that it tried is gone");
    far.here().restart();
    far.set_session(&[("PATH", "/usr/bin:/bin")]);
    let fails = far.run_here(&["executors", "--check"]).expect_code(69).stdout_text();
    assert!(fails.contains("\tfails: ") && fails.contains("no bgctl there"), "{fails}");
    let ssh = far.path("ssh").display().to_string();
    assert!(
        fails.contains(&format!("\t-\tinstall bgd there so that `{ssh} far bgctl --version` works")),
        "{fails}"
    );
    far.run_here(&["executors", "moon"]).expect_code(2);
}
