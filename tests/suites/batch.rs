//! R112: a batch of tasks from the lines of a file or a pipe, through the real `bgctl` and on the wire.

use std::ffi::OsStr;
use std::fs;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::process::Stdio;

use bgd_tests::shared::client::ClientError;
use bgd_tests::shared::error::ErrorKind;
use bgd_tests::shared::event::EventKind;
use bgd_tests::shared::id::TaskId;
use bgd_tests::shared::limits::{BATCH_PART, FRAME_BYTES};
use bgd_tests::shared::order::{CancelReason, WaitingFor};
use bgd_tests::shared::request::{
    BlockParams, ClearedTasks, DaemonUpgrade, ListParams, ListResult, Matching, SubmitManyParams,
    SubmitManyResult, SubmitParams, TaskBlock, TaskList, TaskSubmitMany, UpgradeParams,
};
use bgd_tests::shared::task::{Exit, Status, Task};
use bgd_tests::templates::Gate;
use bgd_tests::{Outcome, Raw, Terminal, TestDaemon};
use serde_json::{Value, json};

/// Runs `bgctl submit --each` with these words, in the parent session `s`, on a file with these items.
fn each(daemon: &TestDaemon, items: &[u8], words: &[&str]) -> Outcome {
    let file = daemon.home().join("items");
    fs::write(&file, items).unwrap();
    let file = file.to_str().unwrap();
    Outcome::of(daemon.bgctl(&[&["submit", "--each", file], words].concat()).env("BGD_SESSION", "s"))
}

/// Returns the tasks of a batch, in the order of the items.
fn of_batch(daemon: &TestDaemon, batch: TaskId) -> Vec<Task> {
    let params = ListParams { batch: Some(batch.into()), limit: Some(1000), ..ListParams::default() };
    let mut tasks = daemon.client().call::<TaskList>(&params).expect("task.list").tasks;
    tasks.reverse();
    tasks
}

fn block(daemon: &TestDaemon, batch: TaskId) -> Outcome {
    daemon.run(&["block", "--timeout", "none", &format!("@{batch}")])
}

fn count(daemon: &TestDaemon) -> u64 {
    daemon.status().summary.total()
}

fn many(daemon: &TestDaemon, count: usize) -> SubmitManyParams {
    let task = SubmitParams { hold: true, ..daemon.params() };
    let argvs = vec![vec!["true".into()]; count];
    SubmitManyParams { task: Some(Box::new(task)), argvs, ..SubmitManyParams::default() }
}

#[test]
fn r112_each_line_is_passed_as_one_word_unchanged() {
    let daemon = TestDaemon::start();
    let items = b"plain\n  two words \n\n$(touch x); `y` \"z' *\r\n\xff\xfe\n-n\n{}\n";
    let outcome = each(&daemon, items, &["--", "printf", "%s|", "{}", "{#}"]);
    let batch: TaskId = outcome.success().word();
    block(&daemon, batch).success();
    let outputs: Vec<Vec<u8>> = of_batch(&daemon, batch).iter().map(|task| daemon.output(task.id)).collect();
    let wanted: [&[u8]; 6] =
        [b"plain|1|", b"  two words |2|", b"$(touch x); `y` \"z' *|3|", b"\xff\xfe|4|", b"-n|5|", b"{}|6|"];
    assert_eq!(outputs, wanted);
}

#[test]
fn r112_nul_separated_items_from_pipe_fill_name_placeholders() {
    let daemon = TestDaemon::start();
    let mut bgctl = daemon.bgctl(&["--json", "submit", "--each", "-", "-0", "--", "echo", "{.}", "{/}"]);
    let mut child = bgctl.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(b"a dir/b.tar.gz\0new\nline.x\0").unwrap();
    let output = child.wait_with_output().unwrap();
    assert!(output.status.success());
    let result: Value = serde_json::from_slice(&output.stdout).unwrap();
    let batch: TaskId = result["batch"].as_str().unwrap().parse().unwrap();
    let tasks = of_batch(&daemon, batch);
    let ids: Vec<String> = tasks.iter().map(|task| task.id.to_string()).collect();
    assert_eq!(result["tasks"], Value::from(ids));
    block(&daemon, batch).success();
    let outputs: Vec<Vec<u8>> = tasks.iter().map(|task| daemon.output(task.id)).collect();
    assert_eq!(outputs, [&b"a dir/b.tar b.tar.gz\n"[..], b"new\nline new\nline.x\n"]);
}

#[test]
fn r112_folder_and_stem_of_an_item_are_filled_in() {
    let daemon = TestDaemon::start();
    let words = ["--", "printf", "%s|", "{}", "out/{/.}.flac", "{//}"];
    let outcome = each(&daemon, b"a/b c.wav\nd\n", &words).success();
    assert_eq!(outcome.stderr, "");
    let batch: TaskId = outcome.word();
    block(&daemon, batch).success();
    let outputs: Vec<Vec<u8>> = of_batch(&daemon, batch).iter().map(|task| daemon.output(task.id)).collect();
    assert_eq!(outputs, [&b"a/b c.wav|out/b c.flac|a|"[..], b"d|out/d.flac|.|"]);
}

#[test]
fn r112_items_that_are_command_lines_are_refused_with_the_form_that_runs_them() {
    let daemon = TestDaemon::start();
    let items = b"echo a; echo b\nexit 3\n";
    let refused = each(&daemon, items, &["--", "{}"]).expect_code(2);
    let file = daemon.home().join("items");
    for part in [
        "item 1 is a whole command line, not a program: \"echo a; echo b\"",
        &format!("`bgctl submit --each {} -- sh -c {{}}`", file.display()),
    ] {
        assert!(refused.stderr.contains(part) && refused.stdout.is_empty(), "{}", refused.stderr);
    }
    let refused = each(&daemon, items, &["--shell", "{}"]).expect_code(2);
    assert!(refused.stderr.contains("-- sh -c {}`"), "{}", refused.stderr);
    assert_eq!(count(&daemon), 0);
    let batch: TaskId = each(&daemon, items, &["--", "sh", "-c", "{}"]).success().word();
    block(&daemon, batch).expect_code(1);
    let tasks = of_batch(&daemon, batch);
    assert_eq!(daemon.output(tasks[0].id), b"a\nb\n");
    assert_eq!(tasks[1].exit, Some(Exit::Code(3)));
}

#[test]
fn r112_jobs_option_limits_concurrent_tasks_of_batch() {
    let daemon = TestDaemon::start();
    // Each task reports that it runs, and ends when its file exists.
    let script = "echo $$ > run-$1; until [ -e end-$1 ]; do read x < fifo; done";
    let home = daemon.home();
    nix::unistd::mkfifo(&home.join("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let home_text = home.to_str().unwrap();
    let words = ["--jobs", "2", "--cwd", home_text, "--", "sh", "-c", script, "-", "{}"];
    let batch: TaskId = each(&daemon, b"1\n2\n3\n4\n", &words).success().word();
    let tasks = of_batch(&daemon, batch);
    for task in &tasks[..2] {
        daemon.wait_running(task.id);
    }
    let waiting = |task: &Task| daemon.task(task.id).waiting.map(|waiting| waiting.reason);
    assert_eq!(tasks[2..].iter().map(waiting).collect::<Vec<_>>(), [Some(WaitingFor::Batch); 2]);
    let page = daemon.run(&["status", &tasks[2].id.to_string()]).success().stdout_text();
    assert!(page.contains("other tasks of its batch"), "{page}");
    // The limit of the batch does not hold up other tasks.
    let other = daemon.submit_with(&SubmitParams { argv: Some(vec!["true".into()]), ..daemon.params() });
    assert_eq!(daemon.block(&[other.id])[0].status, Status::Completed);
    // The end of one task lets exactly one other start.
    daemon.run(&["cancel", &tasks[0].id.to_string()]).success();
    daemon.wait_running(tasks[2].id);
    assert_eq!(waiting(&tasks[3]), Some(WaitingFor::Batch));
    daemon.run(&["cancel", "--batch", &batch.to_string()]).success();
    assert!(of_batch(&daemon, batch).iter().all(|task| task.status == Status::Cancelled));
}

#[test]
fn r112_batch_cancels_remaining_tasks_after_max_fails() {
    let daemon = TestDaemon::start();
    let words = ["--jobs", "1", "--max-fails", "2", "--", "sh", "-c", "exit $1", "-"];
    let batch: TaskId = each(&daemon, b"0\n1\n0\n3\n0\n0\n", &words).success().word();
    let blocked = block(&daemon, batch).expect_code(1);
    let remark =
        format!("bgctl: 2 tasks of batch {batch} were cancelled after too many failures (--max-fails)\n");
    assert_eq!(blocked.stderr, remark, "one remark for all of them");
    let tasks = of_batch(&daemon, batch);
    let (completed, failed, cancelled) = (Status::Completed, Status::Failed, Status::Cancelled);
    let found: Vec<Status> = tasks.iter().map(|task| task.status).collect();
    assert_eq!(found, [completed, failed, completed, failed, cancelled, cancelled]);
    assert_eq!(tasks[5].cancel_reason, Some(CancelReason::MaxFails));
    assert_eq!(tasks[5].error.as_deref(), Some("2 tasks of its batch failed (--max-fails)"));
    let failed = daemon.run(&["list", "-q", "--batch", &batch.to_string()[..8], "--status", "failed"]);
    assert_eq!(failed.success().stdout_text(), format!("{}\n{}\n", tasks[3].id, tasks[1].id));
}

#[test]
fn r112_batch_ends_running_tasks_after_max_fails() {
    let daemon = TestDaemon::start();
    let mut gate = Gate::new(daemon.home(), "gate");
    let words = ["--max-fails", "1", "--", "sh", "-c"];
    let items = b"exec sleep 1000\nread x < gate; exit 1\n";
    let batch: TaskId = each(&daemon, items, &words).success().word();
    let tasks = of_batch(&daemon, batch);
    assert_eq!(tasks[1].argv.as_ref().map(Vec::len), Some(3));
    for task in &tasks {
        daemon.wait_running(task.id);
    }
    gate.open();
    block(&daemon, batch).expect_code(1);
    let ended = of_batch(&daemon, batch);
    let found: Vec<_> = ended.into_iter().map(|task| (task.status, task.exit, task.cancel_reason)).collect();
    let was_ended = (Status::Cancelled, Some(Exit::Signal(15)), Some(CancelReason::MaxFails));
    assert_eq!(found, [was_ended, (Status::Failed, Some(Exit::Code(1)), None)]);
}

#[test]
fn r112_batch_is_submitted_entirely_or_not_at_all() {
    let daemon = TestDaemon::builder().config("[limits]\ntasks = 100").start();
    let lines = b"x\n".repeat(101);
    let refused = each(&daemon, &lines, &["--hold", "--", "true"]).expect_code(70);
    assert!(refused.stdout.is_empty() && refused.stderr.contains("limits.tasks"), "{}", refused.stderr);
    let refused = each(&daemon, b"x\n", &["--group", "moon", "--", "true"]).expect_code(2);
    assert!(refused.stderr.contains("moon"), "{}", refused.stderr);
    assert_eq!(count(&daemon), 0);
    let batch: TaskId = each(&daemon, &lines[2..], &["--hold", "--", "true"]).success().word();
    assert_eq!((of_batch(&daemon, batch).len(), count(&daemon)), (100, 100));
}

#[test]
fn r112_batch_larger_than_a_frame_is_submitted_in_parts() {
    let daemon = TestDaemon::start();
    let long = "x".repeat(600);
    let lines: Vec<String> = (0..2000).map(|number| format!("{number} {long}")).collect();
    assert!(lines.iter().map(String::len).sum::<usize>() > FRAME_BYTES);
    let lines = lines.join("\n");
    let batch: TaskId = each(&daemon, lines.as_bytes(), &["--hold", "--", "echo"]).success().word();
    assert_eq!(count(&daemon), 2000);
    let selected = format!("@{}", &batch.to_string()[..6]);
    daemon.run(&["cancel", &selected]).success();
    let last: ListResult =
        daemon.run(&["--json", "list", "--batch", &batch.to_string(), "--limit", "1"]).success().json();
    assert_eq!(last.tasks[0].argv.as_deref(), Some(&["echo".into(), format!("1999 {long}").into()][..]));
    assert_eq!(last.tasks[0].status, Status::Cancelled);
    daemon.run(&["clear", "--batch", &batch.to_string()]).success();
    assert_eq!(count(&daemon), 0);
    let gone = daemon.run(&["list", "--batch", &batch.to_string()]).expect_code(66);
    assert!(gone.stderr.contains("there is no batch"), "{}", gone.stderr);
}

#[test]
fn r112_incomplete_or_invalid_batch_submits_nothing() {
    let daemon = TestDaemon::start();
    let mut client = daemon.client();
    let first = SubmitManyParams { more: true, ..many(&daemon, 3) };
    let SubmitManyResult { batch, ids, .. } =
        client.call::<TaskSubmitMany>(&first).expect("task.submit_many");
    assert_eq!((ids.len(), count(&daemon)), (3, 0));
    let further = SubmitManyParams { task: None, batch: Some(batch), ..many(&daemon, 2) };
    // Only the connection that began the batch can continue it.
    let kind = |error: ClientError| match error {
        ClientError::Rpc(error) => (error.data.kind, error.message),
        other => panic!("{other}"),
    };
    let stranger = daemon.client().call::<TaskSubmitMany>(&further).map_err(kind);
    assert_eq!(stranger.map_err(|(kind, _)| kind), Err(ErrorKind::InvalidParams));
    let all = client.call::<TaskSubmitMany>(&further).expect("task.submit_many");
    assert_eq!((all.batch, all.ids.len(), count(&daemon)), (batch, 2, 5));
    // A client that disconnects in between leaves nothing.
    client.call::<TaskSubmitMany>(&first).expect("task.submit_many");
    drop(client);
    assert_eq!(count(&daemon), 5);
    for (params, word) in [
        (many(&daemon, 0), "argvs"),
        (SubmitManyParams { task: None, ..many(&daemon, 1) }, "task"),
        (SubmitManyParams { batch: Some(batch), ..many(&daemon, 1) }, "can't be combined"),
        (SubmitManyParams { jobs: Some(0), ..many(&daemon, 1) }, "jobs"),
        (SubmitManyParams { max_fails: Some(0), ..many(&daemon, 1) }, "max_fails"),
        (SubmitManyParams { argvs: vec![vec!["true".into()], vec![]], ..many(&daemon, 1) }, "argvs[1]"),
        (many(&daemon, 10_001), "10001"),
    ] {
        let (kind, message) = daemon.client().call::<TaskSubmitMany>(&params).map_err(kind).unwrap_err();
        assert!(kind == ErrorKind::InvalidParams && message.contains(word), "{word}: {message}");
    }
    assert_eq!(count(&daemon), 5);
}

#[test]
fn r112_refused_part_discards_its_batch() {
    let daemon = TestDaemon::start();
    let mut client = daemon.client();
    let first = SubmitManyParams { more: true, ..many(&daemon, 3) };
    let further =
        |batch, argvs| SubmitManyParams { task: None, batch: Some(batch), argvs, ..many(&daemon, 0) };
    let good = || vec![vec!["true".into()]];
    for (bad, jobs) in
        [(vec![], None), (vec![vec![]], None), (vec![vec!["a\0b".into()]], None), (good(), Some(2))]
    {
        let batch = client.call::<TaskSubmitMany>(&first).expect("task.submit_many").batch;
        let refused = SubmitManyParams { jobs, more: true, ..further(batch, bad) };
        assert!(client.call::<TaskSubmitMany>(&refused).is_err(), "{refused:?}");
        // The batch would have a hole.
        assert!(client.call::<TaskSubmitMany>(&further(batch, good())).is_err(), "{refused:?}");
        assert_eq!(count(&daemon), 0, "{refused:?}");
    }
    // The connection can begin another one.
    let batch = client.call::<TaskSubmitMany>(&first).expect("task.submit_many").batch;
    client.call::<TaskSubmitMany>(&further(batch, good())).expect("task.submit_many");
    assert_eq!(count(&daemon), 4);
}

#[test]
fn r112_placeholder_outside_the_command_causes_a_warning() {
    let daemon = TestDaemon::start();
    for (words, option) in [
        (&["-d", "make {}"][..], "--description"),
        (&["--tag", "{}"], "--tag"),
        (&["--env", "ITEM={}"], "--env"),
        (&["--key", "{}"], "--key"),
        (&["--ready", "file:{}"], "--ready"),
    ] {
        let outcome = each(&daemon, b"a\n", &[words, &["--hold", "--", "echo", "{}"]].concat()).success();
        let words = format!("{{}} is replaced only in the command, not in {option}");
        assert!(outcome.stderr.contains(&words), "{}", outcome.stderr);
    }
    let both =
        each(&daemon, b"a\n", &["-d", "{/.}", "--tag", "{//}", "--hold", "--", "echo"]).success().stderr;
    for warning in ["{/.} is replaced only in the command, not in --desc", "{//} is replaced only in"] {
        assert!(both.contains(warning), "{both}");
    }
    let foreign = each(&daemon, b"a\n", &["--hold", "--", "echo", "{}", "{%}"]).success().stderr;
    assert_eq!(
        foreign,
        "bgctl: warning: {%} is not replaced: each task finds the number of its slot in $BGD_SLOT\n"
    );
    let outcome = each(&daemon, b"a\n", &["-d", "make", "--hold", "--", "echo", "{}"]).success();
    assert_eq!(outcome.stderr, "");
}

#[test]
fn r112_batch_with_key_is_submitted_once() {
    let daemon = TestDaemon::start();
    let words = ["--hold", "--key", "nightly", "--", "true"];
    let first = each(&daemon, b"a\nb\n", &words).success();
    assert_eq!((first.stderr.as_str(), count(&daemon)), ("", 2));
    let again = each(&daemon, b"a\nb\n", &words).success();
    assert_eq!(again.stdout, first.stdout);
    assert_eq!(again.stderr, "bgctl: a batch with the key nightly already exists; nothing was submitted\n");
    let json: Value = each(&daemon, b"a\nb\n", &[&["--json"], &words[..]].concat()).success().json();
    let ids: Vec<String> = of_batch(&daemon, first.word()).iter().map(|task| task.id.to_string()).collect();
    assert_eq!(json, json!({"batch": first.word::<TaskId>().to_string(), "tasks": ids, "existing": true}));
    assert_eq!(count(&daemon), 2);
    each(&daemon, b"a\nb\n", &["--hold", "--key", "weekly", "--", "true"]).success();
    assert_eq!(count(&daemon), 4);
}

#[test]
fn r112_invalid_items_or_options_are_reported_and_submit_nothing() {
    let daemon = TestDaemon::start();
    let long = [b"short\n".to_vec(), vec![b'x'; 10 << 20]].concat();
    for (items, words, said) in [
        (&b""[..], &["--", "true"][..], "there are no items"),
        (b"\n\n", &["--", "true"], "there are no items"),
        (b"a\0b\n", &["--", "true"], "item 1 contains a NUL"),
        (&long, &["--", "true"], "item 2"),
        (b"true\0\0", &["-0", "--", "{}"], "item 2 has no program"),
        (b"a\n", &["--jobs", "0", "--", "true"], "--jobs"),
        (b"a\n", &["--max-fails", "x", "--", "true"], "--max-fails"),
        (b"a\n", &["--shell", "true"], "--shell"),
        (b"a\n", &[], "CMD"),
    ] {
        let refused = each(&daemon, items, words).expect_code(2);
        assert!(refused.stdout.is_empty() && refused.stderr.contains(said), "{said}: {}", refused.stderr);
    }
    let missing = daemon.run(&["submit", "--each", "no such file", "--", "true"]).expect_code(2);
    assert!(missing.stderr.contains("no such file: No such file"), "{}", missing.stderr);
    let folder = OsStr::from_bytes(b"/");
    let folder = daemon.run(&["submit", "--each", folder.to_str().unwrap(), "--", "true"]).expect_code(2);
    assert!(folder.stderr.contains("directory"), "{}", folder.stderr);
    let mut terminal = Terminal::bgctl(&daemon, &["submit", "--each", "-", "--", "true"]);
    assert_eq!(terminal.ended().code(), Some(2));
    assert!(terminal.screen().contains("which is a terminal"), "{}", terminal.screen());
    assert_eq!(count(&daemon), 0);
}

#[test]
fn client_is_answered_while_the_tasks_of_its_batch_are_added() {
    let daemon = TestDaemon::start();
    let mut raw = Raw::connect(daemon.socket());
    // The answer lists so many ids that it fills the client's queue.
    let batch = many(&daemon, BATCH_PART);
    let submit = json!({"jsonrpc": "2.0", "id": 1, "method": "task.submit_many", "params": batch});
    let hello = json!({"jsonrpc": "2.0", "id": 2, "method": "hello"});
    // On a busy machine, the daemon may read the second call only once all tasks are added.
    let is_answered_meanwhile = (0..5).any(|_| {
        raw.send(format!("{submit}\n{hello}\n").as_bytes()).unwrap();
        let mut answers = [(); 2].map(|()| raw.receive().expect("the daemon answers"));
        let is_first = answers[0]["id"] == 2;
        answers.sort_by_key(|answer| answer["id"].as_u64());
        let [submitted, greeted] = answers;
        assert_eq!(submitted["result"]["ids"].as_array().map(Vec::len), Some(BATCH_PART), "{submitted}");
        assert_eq!((&greeted["id"], &greeted["result"]["protocol"]), (&json!(2), &json!(1)), "{greeted}");
        is_first
    });
    assert!(is_answered_meanwhile);
}

#[test]
fn batch_that_is_taken_for_a_task_is_named_as_one() {
    let daemon = TestDaemon::start();
    let batch = daemon.client().call::<TaskSubmitMany>(&many(&daemon, 2)).unwrap().batch.to_string();
    for verb in ["block", "cancel", "status", "output"] {
        let refused = daemon.run(&[verb, &batch]).expect_code(66).stderr;
        let expected = format!("{batch} is a batch, not a task");
        assert!(refused.contains(&expected) && refused.contains(&format!("@{batch}")), "{refused}");
    }
    daemon.run(&["status", "--batch", &batch]).success();
}

#[test]
fn r142_batch_key_is_still_known_after_upgrade_and_kill() {
    let mut daemon = TestDaemon::durable("");
    let keyed = |daemon: &TestDaemon| {
        let mut params = many(daemon, 3);
        params.task.as_mut().unwrap().key = Some("key".to_owned());
        params
    };
    let submit = |daemon: &TestDaemon| daemon.client().call::<TaskSubmitMany>(&keyed(daemon)).unwrap();
    let first = submit(&daemon);
    daemon.client().call::<DaemonUpgrade>(&UpgradeParams::default()).expect("it is upgraded");
    let known = SubmitManyResult { existing: true, ..first.clone() };
    assert_eq!(submit(&daemon), known);
    daemon.kill9();
    daemon.launch();
    assert_eq!(submit(&daemon), known);
    assert_eq!(count(&daemon), 3);
    // Once its tasks are gone, the batch is forgotten, as a task with its key is.
    daemon.cancel(&first.ids);
    daemon.run(&["clear", "--all-sessions"]).success();
    let other = submit(&daemon);
    assert!(other.batch != first.batch && count(&daemon) == 3, "{other:?}");
}

#[test]
fn r142_repeated_batch_is_answered_after_its_channel_was_removed() {
    let daemon =
        TestDaemon::builder().config("[channels.hook]\ntype = \"exec\"\ncommand = [\"true\"]\n").start();
    let submit = |key: &str| {
        let mut params = many(&daemon, 3);
        let task = params.task.as_mut().unwrap();
        (task.key, task.channel) = (Some(key.to_owned()), Some("hook".to_owned()));
        daemon.client().call::<TaskSubmitMany>(&params)
    };
    let first = submit("key").unwrap();
    daemon.write_config("");
    daemon.run(&["daemon", "reload"]).success();
    assert_eq!(submit("key").unwrap(), SubmitManyResult { existing: true, ..first });
    assert!(submit("other").unwrap_err().to_string().contains("unknown channel"));
}

/// Submits a batch of `tasks`, which run one after the other. The first one fails, and the last one ends after
/// [`let_last_end`]; the others write 600 KiB each.
fn failing_batch(daemon: &TestDaemon, tasks: usize) -> (TaskId, Vec<TaskId>) {
    nix::unistd::mkfifo(&daemon.home().join("fifo"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let script = "if [ $1 = $2 ]; then read x < fifo; exit; fi; head -c 600K /dev/zero; [ $1 != 1 ]";
    let (home, last) = (daemon.home().to_str().unwrap().to_owned(), tasks.to_string());
    let items = (1..=tasks).map(|number| number.to_string()).collect::<Vec<_>>().join("\n");
    let words = ["--jobs", "1", "--cwd", &home, "--", "sh", "-c", script, "-", "{}", &last];
    let batch: TaskId = each(daemon, items.as_bytes(), &words).success().word();
    let ids: Vec<TaskId> = of_batch(daemon, batch).iter().map(|task| task.id).collect();
    daemon.block(&ids[..tasks - 1]);
    daemon.wait_running(ids[tasks - 1]);
    (batch, ids)
}

fn let_last_end(daemon: &TestDaemon) {
    fs::write(daemon.home().join("fifo"), "go\n").unwrap();
}

/// Checks that no verb takes a batch for completed of which a failed task was cleared.
#[track_caller]
fn check_refusals(daemon: &TestDaemon, batch: TaskId, words: &str) {
    let name = format!("@{batch}");
    let refused = daemon.run(&["submit", "--after", &name, "--", "true"]).expect_code(65);
    assert!(refused.stderr.contains(words) && refused.stderr.contains(&format!("{name}:any")), "{refused:?}");
    let rerun = daemon.run(&["rerun", "--failed", "--batch", &batch.to_string()]).success();
    assert!(rerun.stdout_text().is_empty() && rerun.stderr.contains(words), "{}", rerun.stderr);
}

#[test]
fn r112_failure_in_a_batch_is_reported_even_if_history_has_removed_the_task() {
    let mut daemon = TestDaemon::durable("[history]\nbytes = \"1MiB\"");
    let (batch, ids) = failing_batch(&daemon, 4);
    let left: Vec<TaskId> = of_batch(&daemon, batch).iter().map(|task| task.id).collect();
    assert_eq!(left, ids, "history removes none of them before all have ended");
    let mut watch = daemon.watch();
    let_last_end(&daemon);
    watch.until_kind(ids[1], EventKind::Cleared);

    let words = "2 tasks of the batch, 1 of which had not completed, were already cleared";
    for _ in 0..2 {
        let blocked = block(&daemon, batch).expect_code(1);
        assert!(blocked.stderr.contains(words), "{}", blocked.stderr);
        assert_eq!(blocked.stdout_text().lines().count(), 2);
        let with_another = daemon.run(&["block", &format!("@{batch}"), &ids[3].to_string()]).expect_code(1);
        assert!(with_another.stderr.contains(words), "{}", with_another.stderr);
        let twice = daemon.run(&["block", &format!("@{batch}"), &format!("@{}", batch.short())]);
        assert!(twice.expect_code(1).stderr.contains(words), "a batch that is named twice is counted once");
        let ready = daemon.run(&["block", "--until", "ready", &format!("@{batch}")]).expect_code(1);
        assert!(ready.stderr.contains(words), "{}", ready.stderr);
        check_refusals(&daemon, batch, words);
        // The next daemon knows it, too.
        daemon.kill9();
        daemon.launch();
    }
    let matching = Some(Matching { batch: Some(batch.into()), ..Matching::default() });
    let seen =
        daemon.client().call::<TaskBlock>(&BlockParams { matching, ..BlockParams::default() }).unwrap();
    assert_eq!(seen.cleared, Some(ClearedTasks { tasks: 2, not_completed: 1 }));
    let after = daemon.run(&["submit", "--after", &format!("@{batch}:any"), "--", "true"]).success().word();
    assert_eq!(daemon.block(&[after])[0].status, Status::Completed);
}

#[test]
fn r112_failure_in_a_batch_is_reported_even_if_the_task_was_cleared_meanwhile() {
    let daemon = TestDaemon::start();
    let (batch, ids) = failing_batch(&daemon, 3);
    daemon.run(&["clear", &ids[1].to_string()]).success();
    let name = format!("@{batch}");
    daemon.run(&["submit", "--hold", "--after", &name, "--", "true"]).success();
    daemon.run(&["clear", &ids[0].to_string()]).success();
    check_refusals(
        &daemon,
        batch,
        "2 tasks of the batch, 1 of which had not completed, were already cleared",
    );
    let_last_end(&daemon);
    let blocked = block(&daemon, batch).expect_code(1);
    assert_eq!(blocked.stdout_text().lines().count(), 1);
}
