//! What the system refuses: descriptors, processes, space. The daemon survives and reports it.

use bgd_tests::handed::Job;
use bgd_tests::prompts::fake_agent;
use bgd_tests::shared::error::ErrorKind;
use bgd_tests::shared::id::TaskId;
use bgd_tests::shared::request::{CancelParams, IdParams, TaskGet, TaskSubmit};
use bgd_tests::shared::request::{
    ClearParams, DaemonStatusOf, Encoding, NoParams, SubmitParams, TaskCancel, TaskClear, TaskWrite,
    TerminalSize, WriteParams,
};
use bgd_tests::shared::task::{Output, Status};
use bgd_tests::user::{Programs, as_user, fill_disk, on_a_small_disk, on_a_small_disk_with, unused_uid};
use bgd_tests::{Process, Raw, TestDaemon, Word, wait};

const MANY: &str = "max_concurrent_tasks = 1000\n[grace]\ncancel = \"1h\"";

/// Waits until every task has either started or failed for lack of descriptors, and returns the running ones.
#[track_caller]
fn all_begun(
    daemon: &TestDaemon,
    client: &mut bgd_tests::shared::client::Client,
    ids: &[TaskId],
) -> Vec<TaskId> {
    let mut running = Vec::new();
    for id in ids {
        let task = client.call::<TaskGet>(&IdParams { id: (*id).into() }).unwrap().task;
        match task.status {
            Status::Running => {
                if task.pid.is_none() {
                    daemon.wait_running(*id);
                }
                running.push(*id);
            }
            Status::Failed => {
                let error = task.error.unwrap();
                assert!(error.contains("no file descriptors left (RLIMIT_NOFILE of the daemon)"), "{error}");
                assert!(error.contains("`ulimit -Hn`") && error.contains("fewer slots"), "{error}");
            }
            other => panic!("{id} is {other}"),
        }
    }
    running
}

#[test]
fn daemon_that_may_open_too_few_files_does_not_start_and_names_the_limit() {
    let failure = TestDaemon::builder().prelude("ulimit -n 63").try_start().expect_err("it must not start");
    let Word::Error { exit: 69, message } = &failure.word else { panic!("{failure}") };
    let why = "the limit of open files is 63 (`ulimit -Hn`), and the daemon needs at least 64";
    assert!(message.contains(why), "{message}");
    assert_eq!(failure.status.code(), Some(69));
}

#[test]
fn tasks_fail_with_clear_error_when_descriptors_run_out() {
    let daemon = TestDaemon::builder().config(MANY).prelude("ulimit -n 64").start();
    let mut client = daemon.client();
    let params = SubmitParams { argv: Some(vec!["sleep".into(), "1000".into()]), ..daemon.params() };
    let mut ids = Vec::new();
    let mut failed = 0;
    let mut watch = daemon.watch();
    for _ in 0..100 {
        ids.push(client.call::<TaskSubmit>(&params).unwrap().task.id);
        let id = *ids.last().unwrap();
        let event = watch
            .until(|event| event.task.id == id && (event.kind.is_terminal() || event.task.pid.is_some()));
        failed += usize::from(event.task.status == Status::Failed);
    }
    let running = all_begun(&daemon, &mut client, &ids);
    assert_eq!(running.len() + failed, 100);
    assert!(running.len() >= 8 && failed > 50, "{} run, {failed} failed", running.len());
    // Running tasks can be listed and cancelled, and new submits run.
    let (first, rest) = running.split_first().unwrap();
    assert_eq!(daemon.status().summary.running, running.len() as u64);
    assert_eq!(daemon.cancel(&[*first])[0].status, Status::Cancelled);
    daemon.cancel(rest);
    let next = daemon.submit(&["echo", "again"]);
    assert_eq!(daemon.block(&[next])[0].status, Status::Completed);
    assert_eq!(daemon.output(next), b"again\n");
}

#[test]
fn clients_are_refused_without_descriptors_while_connected_ones_can_cancel() {
    let daemon = TestDaemon::builder().config(MANY).prelude("ulimit -n 64").start();
    let mut inside = daemon.client();
    // A connection that has never sent anything would be dropped to make room for others.
    inside.call::<DaemonStatusOf>(&NoParams {}).unwrap();
    // Ending this tree requires a walk through /proc.
    let id =
        daemon.submit_shell("setsid -f sh -c 'echo $$ > note; exec sleep 1000'; sleep 1000 & sleep 1000");
    daemon.wait_running(id);
    wait::for_line(&daemon.home().join("note"), "");
    let processes = daemon_children(&daemon);
    assert!(processes.len() >= 2, "{processes:?}");
    // The descriptors of earlier connections become free a moment later.
    until_alone(&mut inside);
    let mut clients = Vec::new();
    let refused = loop {
        let mut client = Raw::connect(daemon.socket());
        // It may have been refused already, and its connection closed.
        let _ = client.send(b"{\"jsonrpc\":\"2.0\",\"id\":1,\"method\":\"hello\"}\n");
        let answer = client.receive().expect("an answer or a refusal");
        if !answer["error"].is_null() {
            break answer;
        }
        clients.push(client);
        assert!(clients.len() < 64);
    };
    assert_eq!(refused["error"]["data"]["kind"], "too_many_connections", "{refused}");
    assert!(refused["error"]["message"].as_str().unwrap().contains("RLIMIT_NOFILE"), "{refused}");
    assert!(refused["error"]["data"]["hint"].as_str().unwrap().contains("ulimit -Hn"), "{refused}");
    let outside = bgd_tests::shared::client::Client::connect(daemon.socket_path())
        .and_then(|mut client| client.call::<DaemonStatusOf>(&NoParams {}))
        .unwrap_err();
    assert_eq!(outside.kind(), Some(ErrorKind::TooManyConnections), "{outside}");

    // Clients already connected notice nothing: they can submit, inspect and cancel a task with its tree.
    let cancel = CancelParams { ids: vec![id.into()], ..CancelParams::default() };
    assert_eq!(inside.call::<TaskCancel>(&cancel).unwrap().tasks[0].status, Status::Cancelled);
    assert!(processes.iter().all(|process| !process.is_alive()), "{processes:?}");
    assert!(clients.iter_mut().all(Raw::is_served));
    drop(clients);
    // The daemon learns of the disconnects one by one; calls inside continue meanwhile.
    until_alone(&mut inside);
    let next = daemon.submit(&["echo", "again"]);
    assert_eq!(daemon.block(&[next])[0].status, Status::Completed);
    assert_eq!(daemon.output(next), b"again\n");
}

/// Waits until this client has the only connection.
#[track_caller]
fn until_alone(client: &mut bgd_tests::shared::client::Client) {
    let mut connections = || client.call::<DaemonStatusOf>(&NoParams {}).unwrap().connections;
    wait::poll_until("the end of the others", || (connections() == 1).then_some(()));
}

/// Returns all processes of the home except the daemon, which is identified without a connection.
fn daemon_children(daemon: &TestDaemon) -> Vec<Process> {
    let me = daemon.pid();
    daemon.processes().into_iter().filter(|process| process.pid() != me).collect()
}

#[test]
fn refused_fork_fails_only_its_task_as_root() {
    let programs = Programs::copy();
    as_user(unused_uid(), || {
        // The limit counts processes and threads of the user: those of the daemon, this thread, and a few more.
        let prelude = format!("prlimit --nproc=21 --pid $$\n{}", programs.exec());
        let daemon = TestDaemon::builder().config(MANY).prelude(prelude).start();
        let mut watch = daemon.watch();
        let mut running = Vec::new();
        let error = loop {
            let id = daemon.submit(&["sleep", "1000"]);
            let task = watch
                .until(|event| event.task.id == id && (event.kind.is_terminal() || event.task.pid.is_some()));
            match task.task.status {
                Status::Running => running.push(id),
                status => break (status, task.task.error.unwrap()),
            }
            assert!(running.len() < 40, "there is no limit");
        };
        let word = "no more processes are allowed (RLIMIT_NPROC, or the system's limit)";
        assert_eq!(error, (Status::Failed, word.to_owned()));
        assert!(running.len() > 3, "{} run", running.len());
        // A task that forks gets the error itself; here, the task cannot even start.
        assert_eq!(daemon.status().summary.running, running.len() as u64);
        // Everything works again as soon as there is room, including the walk through process trees.
        daemon.cancel(&running);
        let id = daemon.submit_shell("setsid -f sleep 1000; sleep 1000 & echo forked");
        let task = daemon.block(&[id]).remove(0);
        assert_eq!((task.status, task.lingering), (Status::Completed, true));
        assert!(!daemon.cancel(&[id])[0].lingering);
        assert_eq!(daemon.output(id), b"forked\n");
    });
}

/// Clears every finished task, and waits until their files are gone, which happens soon after.
#[track_caller]
fn clear(daemon: &TestDaemon) {
    let mut client = daemon.client();
    client.call::<TaskClear>(&ClearParams::default()).unwrap();
    let mut warnings = || client.call::<DaemonStatusOf>(&NoParams {}).unwrap().warnings;
    wait::poll_until("room on the disk", || warnings().is_empty().then_some(()));
}

#[test]
fn full_disk_fails_the_writing_task_and_daemon_warns() {
    let daemon = on_a_small_disk("size=80m");
    assert_eq!(daemon.warnings(), Vec::<String>::new());
    let id = daemon.submit_shell("head -c 200000000 /dev/zero; code=$?; echo survived $code >&2; exit $code");
    let task = daemon.block(&[id]).remove(0);
    assert_eq!((task.status, task.error.as_deref()), (Status::Failed, Some("exited with code 1")));
    assert!(task.output.bytes > 70_000_000, "{}", task.output.bytes);
    let warnings = daemon.warnings();
    assert!(warnings.iter().any(|warning| warning.contains("nearly full")), "{warnings:?}");
    // Only a page without a look at the disk lacks it, as on a machine that is too busy.
    wait::poll_until("the warning on the page", || {
        let page = daemon.run(&["daemon", "status"]).success();
        (page.stdout_text() + &page.stderr).contains("nearly full").then_some(())
    });
    // A task that writes nothing needs no space.
    assert_eq!(daemon.block(&[daemon.submit(&["true"])])[0].status, Status::Completed);
    let unlucky = daemon.submit_shell("echo word");
    assert_ne!(daemon.block(&[unlucky])[0].status, Status::Completed);
    clear(&daemon);
    let next = daemon.submit(&["echo", "again"]);
    assert_eq!(daemon.block(&[next])[0].status, Status::Completed);
    assert_eq!(daemon.output(next), b"again\n");
}

#[test]
fn full_disk_without_free_inodes_fails_new_tasks_with_clear_error() {
    let daemon = on_a_small_disk("size=80m,nr_inodes=128");
    // Enough outputs to make room again when they are cleared.
    let first: Vec<_> = (0..20).map(|_| daemon.submit(&["true"])).collect();
    daemon.block(&first);
    assert_eq!(daemon.warnings(), Vec::<String>::new());
    let fill =
        "number=0; while touch \"$XDG_STATE_HOME/fill$number\" 2>/dev/null; do number=$((number + 1)); done";
    daemon.block(&[daemon.submit_shell(fill)]);
    let task = daemon.block(&[daemon.submit(&["true"])]).remove(0);
    assert_eq!(task.status, Status::Failed);
    let error = task.error.unwrap();
    assert!(error.contains("cannot create its output in") && error.contains("no space is left"), "{error}");
    let warnings = daemon.warnings();
    assert!(
        warnings.iter().any(|warning| warning.contains(" is full: only 0 more files can be created")),
        "{warnings:?}"
    );
    clear(&daemon);
    let removed = daemon.submit_shell("rm \"$XDG_STATE_HOME\"/fill*");
    assert_eq!(daemon.block(&[removed])[0].status, Status::Completed);
    assert_eq!(daemon.block(&[daemon.submit(&["true"])])[0].status, Status::Completed);
    assert_eq!(daemon.warnings(), Vec::<String>::new());
}

/// Starts a daemon whose disk is full to the last byte.
#[track_caller]
fn on_a_full_disk() -> TestDaemon {
    let daemon = on_a_small_disk("size=80m");
    let id = daemon.submit_shell("cat /dev/zero");
    assert_eq!(daemon.block(&[id])[0].status, Status::Failed);
    daemon
}

const WHY: &str = "No space left on device";

#[test]
fn terminal_task_on_full_disk_reports_lost_output() {
    let daemon = on_a_full_disk();
    let pty = Some(TerminalSize { rows: 24, cols: 80 });
    let mut watch = daemon.watch();
    let line = "stty -onlcr; seq -f %099.0f 20000; read word";
    let params = SubmitParams { shell: Some(line.into()), pty, session: Some("s".into()), ..daemon.params() };
    let id = daemon.submit_with(&params).id;
    // Reported while it runs, too.
    watch.until(|event| event.task.id == id && event.task.output.lost_bytes > 0);
    let params = WriteParams { id: id.into(), data: "word\n".into(), encoding: Encoding::Utf8, eof: false };
    daemon.client().call::<TaskWrite>(&params).unwrap();
    let task = daemon.block(&[id]).remove(0);
    assert_eq!(task.status, Status::Completed, "it went on: {:?}", task.error);
    // The job's output, and the echo of what was typed.
    let shown = task.output.bytes + task.output.lost_bytes;
    assert_eq!(shown, 20_000 * 100 + "word\n".len() as u64);
    assert_eq!(task.output.lost_because.as_deref(), Some(WHY));
    assert_eq!(task.output.dropped_bytes, 0, "there is no hole in the file");

    let word = format!("output incomplete: {} bytes lost: {WHY}", task.output.lost_bytes);
    let id = id.to_string();
    let status = daemon.run(&["status", &id]).success().stdout_text();
    assert!(status.lines().any(|line| line == format!("warning:     {word}")), "{status}");
    assert!(daemon.run(&["list"]).success().stdout_text().contains("completed +output-lost\t"));
    let blocked = daemon.run(&["block", &id]).success();
    assert!(blocked.stdout_text().contains("\tcompleted +output-lost\t"), "{}", blocked.stdout_text());
    assert_eq!(blocked.stderr, format!("bgctl: {id}: {word}\n"));
    for args in [&["output", &id][..], &["output", "--follow", &id], &["output", "--result", &id]] {
        let outcome = daemon.run(args).success();
        assert_eq!(outcome.stdout.len() as u64, task.output.bytes, "{args:?}");
        assert_eq!(outcome.stderr, format!("bgctl: {word}\n"), "{args:?}");
    }
    let notice = daemon.inbox("s").remove(0).notice;
    assert!(notice.text.contains(&word), "{}", notice.text);
}

#[test]
fn handed_over_pipe_on_full_disk_reports_lost_output() {
    let daemon = on_a_full_disk();
    let (mut job, reader) = Job::shell(&daemon, "read word; seq -f %099.0f 20000; echo $word");
    let task = job.hand_over_pipe(&daemon, &reader);
    drop(reader);
    job.say("end");
    job.wait_dead();
    let ended = daemon.block(&[task.id]).remove(0);
    let Output { bytes, lost_bytes, lost_because, .. } = ended.output;
    assert_eq!(bytes + lost_bytes, 20_000 * 100 + "end\n".len() as u64);
    assert!(lost_bytes > 1_900_000, "{lost_bytes}");
    assert_eq!(lost_because.as_deref(), Some(WHY));
    let page = daemon.run(&["status", &task.id.to_string()]).success().stdout_text();
    assert!(page.contains("output incomplete: "), "{page}");
}

#[test]
fn turn_completes_with_its_answer_although_text_is_lost_on_full_disk() {
    let daemon = on_a_small_disk_with("size=80m", &fake_agent(&[], ""));
    let filler = fill_disk(&daemon);
    let mut watch = daemon.watch();
    let id = daemon.prompt("say lost; await room; say kept");
    watch.until(|event| event.task.id == id && event.task.output.lost_bytes > 0);
    std::fs::remove_file(filler).unwrap();
    daemon.touch("room");
    let task = daemon.ends_as(id, Status::Completed);
    assert_eq!((daemon.output(id), daemon.result(id)), (b"kept\n".to_vec(), "lostkept".to_owned()));
    let Output { bytes, lost_bytes, lost_because, .. } = task.output;
    assert_eq!((bytes, lost_bytes, lost_because.as_deref()), (5, 4, Some(WHY)));
    daemon.resume(id, "count");
    daemon.ends_as(id, Status::Completed);
    assert_eq!(daemon.result(id), "2");
}

#[test]
fn r112_long_input_is_split_for_daemon_that_accepts_only_short_requests() {
    let daemon = TestDaemon::builder().config("[limits]\nframe_bytes = 65536").start();
    let file = daemon.home().join("file");
    std::fs::write(&file, "\u{1}".repeat(270_000)).unwrap();
    let id = daemon.run(&["submit", "--stdin-pipe", "--", "cat"]).success().word::<TaskId>();
    let mut write = std::process::Command::new("sh");
    write.args(["-c", "exec \"$0\" write \"$1\" <file"]).arg(bgd_tests::bgctl_path()).arg(id.to_string());
    write.current_dir(daemon.home()).env_clear().envs(daemon.environment());
    bgd_tests::Outcome::of(&mut write).success();
    let text = "\u{1}".repeat(100_000);
    let other = daemon.run(&["submit", "--stdin-pipe", "--", "cat"]).success().word::<TaskId>();
    daemon.run(&["write", &other.to_string(), "--eof", &text]).success();
    let sizes: Vec<u64> = daemon.block(&[id, other]).iter().map(|task| task.output.bytes).collect();
    assert_eq!(sizes, [270_000, 100_000]);

    std::fs::write(&file, format!("{}\n", "x".repeat(30)).repeat(2100)).unwrap();
    let each = ["submit", "--hold", "--tag", "many", "--each", file.to_str().unwrap(), "--", "true"];
    daemon.run(&each).success();
    assert_eq!(daemon.status().summary.pending, 2100);
    daemon.run(&["block", "--tag", "many", "--timeout", "1ms"]).expect_code(75);
    daemon.run(&["cancel", "--tag", "many"]).success();
}
