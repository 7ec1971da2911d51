//! Foreground jobs on the wire, without a terminal: who may hand one over, whose end counts, and what happens to the
//! job when its client disconnects.

use bgd_tests::raw::kind;
use bgd_tests::shared::id::TaskId;
use bgd_tests::shared::request::{
    ClearParams, DaemonStatusOf, DetachParams, Encoding, ListParams, NoParams, Stdin, SubmitParams,
    TaskClear, TaskList, TaskWrite, WriteParams,
};
use bgd_tests::shared::task::{Exit, Status, Task};
use bgd_tests::{FakeDaemon, Raw, TestDaemon, helper_path, wait};
use serde_json::{Value, json};

/// The error of a job that was cancelled because its client disconnected.
const ABANDONED: &str = "its terminal was closed or its client ended";

fn job(daemon: &TestDaemon, more: &SubmitParams) -> (Raw, TaskId) {
    let mut client = Raw::connect(daemon.socket());
    let params = SubmitParams { foreground: true, ..more.clone() };
    let answer = client.call(1, "task.submit", &json!(params));
    let task: Task = serde_json::from_value(answer["result"]["task"].clone()).expect("a task");
    assert!(task.foreground, "{task:?}");
    (client, task.id)
}

fn shell(daemon: &TestDaemon, line: &str) -> SubmitParams {
    SubmitParams { shell: Some(line.into()), ..daemon.params() }
}

/// Returns the answer to a press of the key.
fn press(client: &mut Raw, task: TaskId) -> Value {
    client.call(2, "task.detach", &json!(DetachParams { id: task.into(), background: true }))
}

#[track_caller]
fn until_alone(daemon: &TestDaemon) {
    let mut client = daemon.client();
    let mut connections = || client.call::<DaemonStatusOf>(&NoParams {}).expect("daemon.status").connections;
    wait::poll_until("the end of the other connections", || (connections() <= 1).then_some(()));
}

#[track_caller]
fn write(daemon: &TestDaemon, task: TaskId) {
    let params =
        WriteParams { id: task.into(), data: "go\n".to_owned(), encoding: Encoding::Utf8, eof: false };
    daemon.client().call::<TaskWrite>(&params).expect("task.write");
}

#[test]
fn r61_r62_r67_foreground_job_is_backgrounded_once_and_continues() {
    let daemon = TestDaemon::builder().config("max_concurrent_tasks = 1").start();
    let waits =
        SubmitParams { stdin: Some(Stdin::Pipe), ..shell(&daemon, "echo one; read line; echo $line") };
    let other = daemon.submit_with(&waits).id;
    // It does not wait for the slot that the other one occupies.
    let (mut client, id) = job(&daemon, &waits);
    let pid = daemon.wait_running(id).pid;
    let answer = press(&mut client, id);
    let sentence = format!("Command was manually backgrounded by user with ID {id}");
    assert_eq!(answer["result"]["message"], sentence);
    assert_eq!(answer["result"]["task"]["foreground"], false);
    assert_eq!(kind(&press(&mut client, id)), "not_backgroundable");
    drop(client);
    until_alone(&daemon);
    let task = daemon.task(id);
    assert_eq!((task.status, task.pid, task.foreground), (Status::Running, pid, false));
    for task in [id, other] {
        write(&daemon, task);
        assert_eq!(daemon.block(&[task])[0].status, Status::Completed);
        assert_eq!(daemon.output(task), b"one\ngo\n");
    }
}

#[test]
fn r64_r71_direct_job_cannot_be_backgrounded_and_ends_with_its_client() {
    let daemon = TestDaemon::start();
    let line = "trap 'echo hung up; exit 0' HUP; echo ready; sleep 1000 & wait";
    let params = SubmitParams { direct: true, stdin: Some(Stdin::Pipe), ..shell(&daemon, line) };
    let mut watch = daemon.watch();
    let (mut client, id) = job(&daemon, &params);
    watch.until(|event| event.task.id == id && event.task.progress.output_bytes > 0);
    let answer = press(&mut client, id);
    assert_eq!(kind(&answer), "not_backgroundable");
    assert!(answer["error"]["message"].as_str().is_some_and(|text| text.ends_with("started it directly")));
    assert!(daemon.task(id).foreground);
    drop(client);
    let task = daemon.block(&[id]).remove(0);
    assert_eq!((task.status, task.error.as_deref()), (Status::Cancelled, Some(ABANDONED)));
    assert_eq!(daemon.output(id), b"ready\nhung up\n");
}

#[test]
fn r66_backgrounding_an_ended_job_returns_its_exit_code() {
    let daemon = TestDaemon::start();
    let (mut client, id) = job(&daemon, &shell(&daemon, "exit 3"));
    daemon.block(&[id]);
    let answer = press(&mut client, id);
    assert_eq!(kind(&answer), "already_finished");
    let task = &answer["error"]["data"]["task"];
    assert_eq!((&task["id"], &task["exit"]["code"]), (&json!(id), &json!(3)));
}

#[test]
fn r71_job_that_ignores_sighup_is_killed_after_grace() {
    let daemon = TestDaemon::builder().config("[grace]\ncancel = \"100ms\"").start();
    let params = shell(&daemon, "trap '' HUP; echo ready; while :; do sleep 1000; done");
    let mut watch = daemon.watch();
    let (client, id) = job(&daemon, &params);
    watch.until(|event| event.task.id == id && event.task.progress.output_bytes > 0);
    drop(client);
    let task = daemon.block(&[id]).remove(0);
    assert_eq!((task.status, task.exit), (Status::Cancelled, Some(Exit::Signal(9))));
    assert_eq!(task.error.as_deref(), Some(ABANDONED));
}

/// A daemon with an agent that takes longer to find than it takes a client to disconnect.
fn with_far_agent() -> FakeDaemon {
    FakeDaemon::with("[agents.far]\ncommand = [\"fake_acp\"]\n", &[], "")
}

/// Returns params of a prompt for that agent.
fn for_far_agent(daemon: &FakeDaemon, prompt: &str) -> SubmitParams {
    let program = helper_path("fake_acp");
    let folder = program.parent().expect("it is in a folder").to_string_lossy();
    let path = format!("{}{folder}", "/:".repeat(60_000));
    let mut params = daemon.prompt_params(prompt);
    params.agent = Some("far".to_owned());
    let others = params.env.iter().flat_map(|env| env.0.iter()).filter(|(name, _)| &**name != "PATH");
    let env = others.cloned().chain([("PATH".into(), path.as_str().into())]).collect();
    SubmitParams { env: Some(env), ..params }
}

/// A prompt is submitted only once its agent's program has been found. A client that disconnects before that leaves no
/// job behind that nobody could end.
#[test]
fn r69_r71_prompt_whose_client_leaves_before_agent_is_found_does_not_linger() {
    let daemon = with_far_agent();
    let far = |prompt| for_far_agent(&daemon, prompt);
    let leaves_nothing = || {
        let mut client = Raw::connect(daemon.socket());
        client.request(1, "task.submit", &json!(SubmitParams { foreground: true, ..far("hang") }));
        // This is answered once the prompt has been read.
        assert_eq!(client.call(2, "hello", &json!({}))["id"], 2);
        drop(client);
        until_alone(&daemon);
        let after: Vec<TaskId> = (0..2).map(|_| daemon.submit_with(&far("say hi")).id).collect();
        daemon.block(&after);
        let all = daemon.client().call::<TaskList>(&ListParams::default()).expect("task.list").tasks;
        let jobs: Vec<&Task> = all.iter().filter(|task| !after.contains(&task.id)).collect();
        for job in &jobs {
            // Its agent was found in time after all, so it was a job for a moment.
            let job = daemon.block(&[job.id]).remove(0);
            assert_eq!((job.status, job.error.as_deref()), (Status::Cancelled, Some(ABANDONED)));
        }
        let is_empty = jobs.is_empty();
        let params = ClearParams::default();
        daemon.client().call::<TaskClear>(&params).expect("task.clear");
        is_empty
    };
    // Each time, the client may be too slow to disconnect before its agent is found.
    assert!((0..50).any(|_| leaves_nothing()), "each prompt became a job");
}

#[test]
fn r54_prompt_whose_agent_is_found_only_after_its_session_ended_does_not_start() {
    let daemon = with_far_agent();
    // Sometimes the client may be too slow to disconnect before its agent is found.
    for _ in 0..10 {
        let mut client = Raw::connect(daemon.socket());
        assert_eq!(client.call(1, "hello", &json!({ "session": "s", "owns": true }))["id"], 1);
        let params = SubmitParams { session: Some("s".to_owned()), ..for_far_agent(&daemon, "hang") };
        client.request(2, "task.submit", &json!(params));
        // This is answered once the prompt has been read.
        assert_eq!(client.call(3, "hello", &json!({}))["id"], 3);
        drop(client);
        until_alone(&daemon);
        // The daemon looks for both agents, one after the other.
        let after = daemon.submit_with(&for_far_agent(&daemon, "say hi")).id;
        daemon.block(&[after]);
        wait::poll_until("no task of the ended session is left", || {
            let all = daemon.client().call::<TaskList>(&ListParams::default()).expect("task.list").tasks;
            all.iter().all(|task| task.session.as_deref() != Some("s")).then_some(())
        });
    }
}
