//! A disk that hangs, for example when a file server is gone (R05): tasks that do not need it start and end, and their
//! output can be read.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::Read as _;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::fs::{OpenOptionsExt as _, symlink};
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use bgd_tests::handed::Job;
use bgd_tests::hung_disk::HungDisk;
use bgd_tests::prompts::fake_agent;
use bgd_tests::shared::client::ClientError;
use bgd_tests::shared::handoff;
use bgd_tests::shared::id::TaskId;
use bgd_tests::shared::notice::InboxItem;
use bgd_tests::shared::request::{
    CancelParams, DaemonUpgrade, HandoffParams, HandoffStream, ListParams, SubmitParams, TaskCancel,
    TaskList, TaskSubmit, UpgradeParams,
};
use bgd_tests::shared::task::{Status, Task};
use bgd_tests::shared::text::{Env, OsText};
use bgd_tests::templates::toml_words;
use bgd_tests::upgrades::upgrade_under_load;
use bgd_tests::user::must_be_root;
use bgd_tests::{Process, Raw, TestDaemon, parallel, wait};
use rustix::process::Signal;
use serde_json::json;

/// Waits until this many of the daemon's threads whose names begin with `name` are stuck.
#[track_caller]
fn stuck(daemon: &TestDaemon, name: &str, count: usize) {
    let threads = format!("/proc/{}/task", daemon.pid());
    let is_stuck = |thread: &Path| {
        let is_named = fs::read_to_string(thread.join("comm")).is_ok_and(|comm| comm.starts_with(name));
        is_named && fs::read_to_string(thread.join("stat")).is_ok_and(|stat| stat.contains(") D "))
    };
    wait::poll_until("stuck threads", || {
        let all = fs::read_dir(&threads).expect("threads").flatten();
        (all.filter(|thread| is_stuck(&thread.path())).count() == count).then_some(())
    });
}

/// Checks that a task is started, cancelled and answered for while others are stuck.
#[track_caller]
fn others_are_served(daemon: &TestDaemon) {
    let task = daemon.submit_shell("echo said; exec sleep 1000");
    let output = daemon.wait_running(task).output.path;
    wait::for_line(output.as_ref(), "said");
    let read = daemon.run(&["--json", "output", &task.to_string()]).success();
    assert!(read.stdout_text().contains("said"), "{read:?}");
    assert_eq!(daemon.cancel(&[task])[0].status, Status::Cancelled);
    daemon.status();
}

#[test]
fn r05_ready_file_on_hung_disk_delays_no_other_task_as_root() {
    must_be_root();
    let daemon = TestDaemon::start();
    let disk = HungDisk::mount(&daemon.home().join("hung"));
    let path = format!("file:{}", disk.folder().join("file").display());
    let waits =
        |_| daemon.run(&["submit", "--ready", &path, "--", "sleep", "1000"]).success().word::<TaskId>();
    let waiting: Vec<TaskId> = (0..2).map(waits).collect();
    stuck(&daemon, "worker-", 2);
    others_are_served(&daemon);
    // The stuck tasks can be ended, too.
    daemon.cancel(&waiting);
    drop(disk);
    assert!(waiting.iter().all(|id| daemon.task(*id).status == Status::Cancelled));
}

#[test]
fn r05_working_folder_on_hung_disk_delays_no_other_start_as_root() {
    must_be_root();
    let daemon = TestDaemon::start();
    let disk = HungDisk::mount(&daemon.home().join("hung"));
    let mut client = daemon.client();
    let mut begin = || {
        let there = SubmitParams { cwd: Some(disk.folder().as_os_str().into()), ..daemon.params() };
        let params = SubmitParams { argv: Some(vec!["true".into()]), ..there };
        client.call::<TaskSubmit>(&params).expect("task.submit").task.id
    };
    let waiting: Vec<TaskId> = (0..2).map(|_| begin()).collect();
    stuck(&daemon, "spawner-", 2);
    others_are_served(&daemon);
    drop(disk);
    for task in daemon.block(&waiting) {
        assert_eq!(task.status, Status::Failed);
    }
}

/// Waits until the daemon has seen that five bytes were written. A list reports what it has seen, without looking at
/// files.
#[track_caller]
fn until_seen(daemon: &TestDaemon, id: TaskId) {
    wait::poll_until("growth of an output", || {
        let list = daemon.client().call::<TaskList>(&ListParams::default()).expect("task.list");
        list.tasks.iter().any(|task| task.id == id && task.output.bytes == 5).then_some(())
    });
}

#[track_caller]
fn writes_to(daemon: &TestDaemon, folder: &Path) -> (Job, TaskId) {
    fs::create_dir(folder).expect("a folder");
    let file = File::create(folder.join("out")).expect("a file");
    let mut command = Command::new("sh");
    command.args(["-c", "echo said; exec sleep 1000"]);
    command.stdout(file.try_clone().expect("a copy"));
    command.stderr(file.try_clone().expect("a copy"));
    let job = Job::start(daemon, &mut command);
    let params = HandoffParams { session: Some("s".to_owned()), ..job.params() };
    let given = handoff::hand_over_as(
        &mut daemon.client(),
        &job.child,
        params,
        &[(HandoffStream::File, file.as_fd())],
    );
    let task = given.expect("task.handoff").task;
    assert_eq!(Path::new(&task.output.path), folder.join("out"));
    until_seen(daemon, task.id);
    (job, task.id)
}

#[test]
fn r05_home_on_hung_disk_delays_no_other_agent_as_root() {
    must_be_root();
    let daemon = TestDaemon::builder().config(fake_agent(&[], "")).start();
    let disk = HungDisk::mount(&daemon.home().join("hung"));
    let there = |prompt: &str| {
        let params = daemon.prompt_params(prompt);
        let given = params.env.iter().flat_map(|env| env.0.iter().cloned());
        let others = given.filter(|(name, _)| &**name != "HOME");
        let home = OsText::from(disk.folder().as_os_str());
        let env: Env = others.chain([("HOME".into(), home)]).collect();
        daemon.submit_with(&SubmitParams { env: Some(env), ..params }).id
    };
    let (first, second) = (there("say one"), there("hang"));
    stuck(&daemon, "worker-", 1);
    assert_eq!(cancel_at_once(&daemon, second).status, Status::Cancelled);
    daemon.completed("say other");
    // The agent itself does not need its home.
    daemon.ends_as(first, Status::Completed);
    drop(disk);
}

#[test]
fn r05_folder_of_prompts_on_hung_disk_delays_no_other_request_as_root() {
    must_be_root();
    let daemon = TestDaemon::builder().config(fake_agent(&[], "")).start();
    let disk = HungDisk::mount(&daemon.home().join("hung"));
    let cancel_in = |folder: &Path| {
        let cwd = Some(folder.as_os_str().into());
        // The look at its folder may be given up before the cancel.
        let there = daemon.submit_with(&SubmitParams { cwd, ..daemon.prompt_params("hang") }).id;
        assert_eq!(cancel_at_once(&daemon, there).status, Status::Cancelled);
    };
    (0..40).for_each(|_| cancel_in(disk.folder()));
    others_are_served(&daemon);
    daemon.completed("say other");
    stuck(&daemon, "worker-", 1);
    // More folders than are looked at together.
    (0..10).for_each(|number| cancel_in(&disk.folder().join(number.to_string())));
    others_are_served(&daemon);
    daemon.completed("say other");
    drop(disk);
}

#[test]
fn r35_follow_up_whose_program_starts_slowly_and_fails_leaves_task_unchanged_as_root() {
    must_be_root();
    let daemon = TestDaemon::start();
    let folder = daemon.home().join("hung");
    let first = toml_words(&["sh", "-c", "printf '{\"session_id\":\"s1\"}'"]);
    let next = toml_words(&[folder.join("program").to_str().expect("a path in UTF-8"), "{session}"]);
    daemon.write_config(&format!(
        "[agents.x]\nprotocol = \"template\"\ncommand = {first}\nresume = {next}\nsession = \"/session_id\"\n"
    ));
    daemon.run(&["daemon", "reload"]).success();
    let before = daemon.ends_as(daemon.submit_prompt("x", "one"), Status::Completed);
    let disk = HungDisk::mount(&folder);
    let runs = daemon.submit(&["sleep", "1000"]);
    let mut client = Raw::connect(daemon.socket());
    client.request(1, "task.resume", &json!({"id": before.id, "prompt": "two"}));
    stuck(&daemon, "spawner-", 1);
    // Longer than other agents have to report that they can't continue.
    daemon.block_for(runs, Duration::from_millis(300));
    drop(disk);
    let refused = client.receive().expect("an answer");
    assert_eq!(refused["error"]["data"]["kind"], "agent_unavailable", "{refused}");
    let after = daemon.task(before.id);
    assert_eq!((after.status, after.run, after.output), (Status::Completed, 1, before.output));
}

#[test]
fn r05_output_on_hung_disk_delays_no_other_output_as_root() {
    must_be_root();
    let daemon = TestDaemon::start();
    let folder = daemon.home().join("there");
    let (_job, there) = writes_to(&daemon, &folder);
    let disk = HungDisk::mount(&folder);
    // Any write makes the daemon look at all outputs.
    others_are_served(&daemon);
    stuck(&daemon, "worker-", 1);
    for _ in 0..2 {
        let here = daemon.submit_shell("echo said; exec sleep 1000");
        until_seen(&daemon, here);
        daemon.cancel(&[here]);
    }
    // Requests about it are answered, and its end waits for a limited time only.
    assert_eq!(daemon.task(there).progress.output_bytes, 5);
    let read = daemon.run(&["output", &there.to_string()]).expect_code(70).stderr;
    assert!(read.contains("there/out has not answered for 3 s"), "{read}");
    assert_eq!(daemon.cancel(&[there])[0].status, Status::Cancelled);
    drop(disk);
    assert_eq!(daemon.output(there), b"said\n");
}

#[test]
fn r55_inbox_is_readable_while_disk_of_an_output_hangs_as_root() {
    must_be_root();
    let daemon = TestDaemon::start();
    let folder = daemon.home().join("there");
    let (mut job, there) = writes_to(&daemon, &folder);
    let disk = HungDisk::mount(&folder);
    job.child.kill().expect("a child can be killed");
    daemon.block(&[there]);
    let here = daemon.submit_in("s", "echo heard");
    daemon.block(&[here]);
    let result = |items: &[InboxItem], id| {
        let item = items.iter().find(|item| item.notice.task.id == id).expect("a notice");
        item.notice.result.as_ref().map(|result| result.text.clone())
    };
    let items = daemon.inbox("s");
    assert_eq!((result(&items, there), result(&items, here).as_deref()), (None, Some("heard\n")));
    drop(disk);
    // It was not acknowledged, so the next read returns all of it.
    assert_eq!(result(&daemon.inbox("s"), there).as_deref(), Some("said\n"));
}

/// Cancels a task whose start hangs. The grace period is zero, as nothing gets a signal.
#[track_caller]
fn cancel_at_once(daemon: &TestDaemon, id: TaskId) -> Task {
    let signal = Some("KILL".to_owned());
    let params = CancelParams { ids: vec![id.into()], signal, ..CancelParams::default() };
    daemon.client().call::<TaskCancel>(&params).expect("task.cancel").tasks.remove(0)
}

#[test]
fn r05_cancel_does_not_wait_for_hung_start_as_root() {
    must_be_root();
    let daemon = TestDaemon::builder().config("max_concurrent_tasks = 1").start();
    let disk = HungDisk::mount(&daemon.home().join("hung"));
    let there = SubmitParams { cwd: Some(disk.folder().as_os_str().into()), ..daemon.params() };
    let params = SubmitParams { argv: Some(vec!["true".into()]), ..there };
    let there = daemon.client().call::<TaskSubmit>(&params).expect("task.submit").task.id;
    stuck(&daemon, "spawner-", 1);
    // Requests that need its process wait for the start, too.
    let mut other = Raw::connect(daemon.socket());
    other.request(1, "task.signal", &json!({"id": there, "signal": "USR1"}));
    let task = cancel_at_once(&daemon, there);
    assert_eq!((task.status, task.started_at, task.lingering), (Status::Cancelled, None, true));
    let refused = other.receive().expect("an answer");
    assert_eq!(refused["error"]["data"]["kind"], "not_running", "{refused}");
    // Its slot is free.
    others_are_served(&daemon);
    drop(disk);
    wait::poll_until("the end of the start", || (!daemon.task(there).lingering).then_some(()));
}

#[test]
fn r05_process_that_starts_late_is_ended_if_its_task_was_cancelled() {
    let daemon = TestDaemon::start();
    // The first attempt replaces its output with a FIFO; the second one opens the FIFO and waits for a reader.
    let hang = "if [ -e begun ]; then exec sleep 1000; fi; touch begun; out=$(readlink /proc/$$/fd/1)
        rm \"$out\"; mkfifo \"$out\"; exit 1";
    let submit = daemon.run(&["submit", "--retry", "1", "--retry-delay", "0", "--", "sh", "-c", hang]);
    let id = submit.success().word::<TaskId>();
    // A list opens no output; opening it would let the task continue.
    let listed = || {
        let list = daemon.client().call::<TaskList>(&ListParams::default()).expect("task.list");
        list.tasks.into_iter().find(|task| task.status == Status::Running && task.attempt == Some(2))
    };
    let path = wait::poll_until("the second attempt", listed).output.path;
    // A descriptor that still refers to it after its removal.
    let fifo = fs::OpenOptions::new().read(true).custom_flags(nix::libc::O_PATH).open(path).expect("a FIFO");
    let fifo_path = format!("/proc/self/fd/{}", fifo.as_raw_fd());
    let task = cancel_at_once(&daemon, id);
    assert_eq!((task.status, task.lingering), (Status::Cancelled, true));
    daemon.run(&["clear", &id.to_string()]).success();
    // It starts now, and nobody knows its task any longer.
    let mut written = Vec::new();
    File::open(fifo_path).expect("a writer").read_to_end(&mut written).expect("its end");
    assert!(daemon.task_processes().is_empty());
}

#[test]
fn r126_durable_daemon_starts_while_disk_of_an_output_hangs_as_root() {
    must_be_root();
    let mut daemon = TestDaemon::durable("");
    let folder = daemon.home().join("there");
    let (_job, there) = writes_to(&daemon, &folder);
    // The output of a cluster's job is a link to such a file.
    let linked = daemon.submit(&["sleep", "1000"]);
    let path = daemon.wait_running(linked).output.path;
    fs::remove_file(&path).expect("an output");
    symlink(folder.join("out"), &path).expect("a link");
    let disk = HungDisk::mount(&folder);
    daemon.kill9();
    daemon.launch();
    stuck(&daemon, "worker-", 2);
    others_are_served(&daemon);
    for task in [there, linked] {
        assert_eq!(daemon.cancel(&[task])[0].status, Status::Cancelled);
    }
    drop(disk);
}

#[test]
fn r11_stop_ends_while_disk_of_an_output_hangs_as_root() {
    must_be_root();
    let mut daemon = TestDaemon::start();
    let folder = daemon.home().join("there");
    let (_job, _) = writes_to(&daemon, &folder);
    let disk = HungDisk::mount(&folder);
    // Any write makes the daemon look at all outputs.
    others_are_served(&daemon);
    stuck(&daemon, "worker-", 1);
    assert!(daemon.stop().success());
    drop(disk);
}

/// The log is there, too.
#[test]
fn r11_stop_ends_while_state_folder_hangs_as_root() {
    must_be_root();
    let second = "[grace]\ncancel = \"1h\"";
    parallel::for_each(["", second], |config| {
        let mut daemon = TestDaemon::builder().config(config).start();
        let id = daemon.submit_shell("trap '' TERM; echo > begun; while :; do sleep 1; done");
        wait::for_file(&daemon.home().join("begun"));
        let leader = Process::open(daemon.wait_running(id).pid.expect("a pid")).expect("it lives");
        let disk = HungDisk::mount(&daemon.state_dir());
        let daemon_process = daemon.process();
        daemon_process.signal(Signal::TERM).expect("it lives");
        if config == second {
            wait::poll_until("the shutdown", || daemon.status().shutting_down.then_some(()));
            daemon_process.signal(Signal::TERM).expect("it lives");
        }
        assert!(daemon.ended().success());
        drop(disk);
        leader.gone();
    });
}

#[test]
fn r11_stop_ends_while_desktop_bus_hangs_as_root() {
    must_be_root();
    let mut daemon = TestDaemon::start();
    let disk = HungDisk::mount(&daemon.home().join("hung"));
    let params = daemon.params();
    let bus = OsText::from(unix_address(&disk.folder().join("bus")));
    let given = params.env.iter().flat_map(|env| env.0.iter().cloned());
    let env: Env = given.chain([("DBUS_SESSION_BUS_ADDRESS".into(), bus)]).collect();
    let (argv, channel) = (Some(vec!["true".into()]), Some("desktop".to_owned()));
    daemon.submit_with(&SubmitParams { argv, channel, env: Some(env), ..params });
    stuck(&daemon, "tokio", 1);
    assert!(daemon.stop().success());
    drop(disk);
}

/// Tests both the default folder of a bus and one that is named.
#[test]
fn r51_desktop_bus_on_hung_disk_delays_no_other_channel_as_root() {
    must_be_root();
    let config =
        "[channels.told]\ntype = \"exec\"\ncommand = [\"/bin/sh\", \"-c\", \"echo >> $HOME/told\"]\n";
    parallel::for_each(["XDG_RUNTIME_DIR", "DBUS_SESSION_BUS_ADDRESS"], |name| {
        let daemon = TestDaemon::builder().config(config).start();
        let disk = HungDisk::mount(&daemon.home().join("hung"));
        let folder = disk.folder().join("run");
        let value = if name == "XDG_RUNTIME_DIR" {
            folder.into_os_string()
        } else {
            unix_address(&folder.join("bus"))
        };
        let submit_to = |channel: &str| {
            let params = daemon.params();
            let all = params.env.iter().flat_map(|env| env.0.iter().cloned());
            let others = all.filter(|(other, _)| &**other != name);
            let env: Env = others.chain([(name.into(), OsText::from(value.clone()))]).collect();
            let argv = Some(vec!["true".into()]);
            let channel = Some(channel.to_owned());
            daemon.submit_with(&SubmitParams { argv, channel, env: Some(env), ..params });
        };
        submit_to("desktop");
        stuck(&daemon, "tokio", 1);
        submit_to("told");
        wait::poll_until("the other channel", || daemon.home().join("told").exists().then_some(()));
        assert_eq!(daemon.channel("desktop").failed, 0, "{name}: it is still looked for");
        // Another one waits for its turn, and needs no further thread.
        submit_to("desktop");
        wait::poll_until("the first to be given up", || {
            (daemon.channel("desktop").failed == 1).then_some(())
        });
        let why = daemon.channel("desktop").last_error.expect("it has failed");
        assert!(why.contains("the desktop did not answer within 10s"), "{name}: {why}");
        stuck(&daemon, "tokio", 1);
    });
}

/// Returns the address of a bus with its socket at this path.
fn unix_address(socket: &Path) -> OsString {
    format!("unix:path={}", socket.display()).into()
}

#[test]
fn r51_configuration_reloads_while_token_file_is_on_hung_disk_as_root() {
    must_be_root();
    let daemon = TestDaemon::start();
    let disk = HungDisk::mount(&daemon.home().join("hung"));
    let token = disk.folder().join("token");
    let config = |file: &Path| {
        let file = file.display();
        format!("[channels.chat]\ntype = \"telegram\"\nchat_id = \"1\"\ntoken_file = \"{file}\"\n")
    };
    daemon.write_config(&config(&token));
    for _ in 0..6 {
        daemon.run(&["daemon", "reload"]).success();
        stuck(&daemon, "tokens", 1);
    }
    // What arrives meanwhile is handled next.
    daemon.write_config(&config(Path::new("/nowhere/token")));
    daemon.run(&["daemon", "reload"]).success();
    drop(disk);
    wait::poll_until("a look at the last file", || {
        daemon.channel("chat").problem.filter(|why| why.contains("/nowhere/token")).map(drop)
    });
}

/// Every other upgrade would be refused as long as the disk hangs.
#[test]
fn r123_upgrade_to_program_on_hung_disk_is_refused_as_root() {
    must_be_root();
    let daemon = TestDaemon::start();
    let disk = HungDisk::mount(&daemon.home().join("hung"));
    let binary = Some(disk.folder().join("bgd").as_os_str().into());
    let upgraded = daemon.client().call::<DaemonUpgrade>(&UpgradeParams { binary });
    let Err(ClientError::Rpc(error)) = upgraded else { panic!("it is not refused: {upgraded:?}") };
    assert!(error.message.contains("does not answer: try again later"), "{error:?}");
    others_are_served(&daemon);
    drop(disk);
    upgrade_under_load(&daemon);
}
