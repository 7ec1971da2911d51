//! The legacy of each release to its successors: a state of an upgrade in place, with something of every owner in it,
//! and a journal (R123). [`record`] makes them with a real daemon; they contain nothing about the machine that they
//! were made on.

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use bgd_shared::id::TaskId;
use bgd_shared::order::Retry;
use bgd_shared::request::{
    DaemonUpgrade, HandoffStream, Stdin, SubmitParams, SubscribeParams, TaskSubmit, UpgradeParams,
};
use bgd_shared::task::Status;
use bgd_shared::text::{Env, OsText};
use serde_json::{Value, json};

use crate::far::Far;
use crate::handed::Job;
use crate::prompts::fake_agent;
use crate::raw::Raw;
use crate::{Outcome, TestDaemon, Viewer, Watch, bgd_path, executable, helper_path, wait};

/// Placeholders for the home of the daemon, and for that on the remote machine. As long as the real paths, so that they
/// fit into rows.
const HOMES: [&str; 2] = ["/home/user/work", "/home/user/away"];

/// Placeholder for the path of the fake agent.
const AGENT: &str = "/usr/bin/agent";

/// Placeholder for the folder of the programs.
const PROGRAMS: &str = "/usr/bin";

/// The channels: a command that waits, and an absent server.
const CONFIG: &str = "durable = true
max_concurrent_tasks = 9
default_deliver_to = [\"ops\"]
[channels.ops]
type = \"exec\"
started = false
command = [\"/bin/sh\", \"-c\", \"cd; echo words; [ -e begun ] || { echo > begun; mkfifo hook; read x < hook; }\"]
timeout = \"1h\"
[channels.web]
type = \"webhook\"
started = false
url = \"http://127.0.0.1:9/\"
";

/// Tag of the task with a start time that can pass.
pub const DELAYED: &str = "delayed";

/// Tag of the task that ends and is restarted continually.
pub const RESTLESS: &str = "restless";

/// File name of the state of a release.
pub const STATE: &str = "state";

/// File name of its journal.
pub const JOURNAL: &str = "journal.db";

/// File name of the report by the release's own program about its state.
pub const FOUND: &str = "found.json";

/// Returns the folder of all releases.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("releases")
}

/// Returns the report of a program that is given a state to try.
///
/// # Errors
/// The program refuses the state, or can't be run.
pub fn tried(program: &Path, state: &Path) -> io::Result<Vec<u8>> {
    let mut command = Command::new(program);
    let said = command.arg("--try-carried").stdin(File::open(state)?).stderr(Stdio::piped()).output()?;
    if said.status.success() {
        Ok(said.stdout)
    } else {
        Err(io::Error::other(String::from_utf8_lossy(&said.stderr).into_owned()))
    }
}

/// Makes the state and the journal of this version. Returns their folder.
///
/// # Errors
/// A file can't be written.
pub fn record() -> io::Result<PathBuf> {
    let here = TestDaemon::builder().env("PATH", "/usr/bin:/bin").home_only();
    let mut far = Far::between("far", TestDaemon::start(), here);
    let away = far.path("away");
    executable::write(&away, "#!/bin/sh\nexit 255\n");
    let away = format!("[executors.away]\ntype = \"ssh\"\nhost = \"away\"\nssh = \"{}\"\n", away.display());
    far.start_here(&format!("{CONFIG}{away}{}", fake_agent(&[], "")));
    let owned = fill(&mut far);
    let homes = [far.home(), far.daemon.home()].map(|home| home.to_string_lossy().into_owned());
    let state = state_of(far.here());
    let agent = helper_path("fake_acp").to_string_lossy().into_owned();
    let programs = bgd_path().parent().map(|folder| folder.to_string_lossy().into_owned());
    let state = state.replace(&agent, AGENT).replace(&programs.unwrap_or_default(), PROGRAMS);
    let state = homes.iter().zip(HOMES).fold(state, |state, (home, name)| state.replace(home, name));
    // Closing the journal's last connection moves all of it into one file.
    far.here().stop();
    let journal = fs::read(far.here().state_dir().join("journal").join(JOURNAL))?;
    far.here().launch();
    far.here().run(&["daemon", "stop", "--cancel"]).success();
    far.here().ended();
    drop(owned);
    let folder = folder().join(env!("CARGO_PKG_VERSION"));
    fs::create_dir_all(&folder)?;
    fs::write(folder.join(STATE), state)?;
    let journal = homes
        .iter()
        .zip(HOMES)
        .fold(journal, |journal, (home, name)| replaced(journal, home.as_bytes(), name.as_bytes()));
    fs::write(folder.join(JOURNAL), journal)?;
    fs::write(folder.join(FOUND), tried(&bgd_path(), &folder.join(STATE))?)?;
    Ok(folder)
}

/// Upgrades the daemon to programs that save its state, until a saved one contains transient conditions: a process that
/// is about to start, and the beginning of a request. A task that fails and is retried continually makes this possible.
fn state_of(daemon: &TestDaemon) -> String {
    let keeping = daemon.home().join("keeping");
    executable::copy(&helper_path("next_bgd"), &keeping);
    let retry =
        Retry { times: 1000, delay_ms: Some(0), max_delay_ms: None, codes: Vec::new(), signal: false };
    let restless = SubmitParams {
        retry: Some(retry),
        tags: vec![RESTLESS.to_owned()],
        channel: Some("none".to_owned()),
        ..shell(daemon, "sleep 0.01; exit 1")
    };
    let mut task = submit(daemon, &restless);
    wait::poll_until("a state with everything", || {
        if daemon.task(task).completed_at.is_some() {
            daemon.run(&["clear", &task.to_string()]).success();
            task = submit(daemon, &restless);
        }
        let params = UpgradeParams { binary: Some(keeping.as_os_str().into()) };
        daemon.client().call::<DaemonUpgrade>(&params).expect("it is upgraded");
        let text = fs::read_to_string(keeping.with_extension("state")).expect("it was kept");
        let state: Value = serde_json::from_str(text.split_once('\n')?.1).expect("a state");
        let starts = state.pointer("/dispatcher/executors/local/Local/starts")?.as_array()?;
        let mut connections = state.pointer("/connections/all")?.as_array()?.iter();
        let is_cut = |connection: &Value| connection["read"].as_str().is_some_and(|read| !read.is_empty());
        (!starts.is_empty() && connections.any(is_cut)).then_some(text)
    })
}

/// Connections and processes of the daemon.
struct Owned {
    _viewer: Viewer,
    _watches: [Watch; 2],
    _waits: Raw,
    _jobs: [Job; 2],
}

/// Gives the daemon something of every kind to own.
fn fill(far: &mut Far) -> Owned {
    let daemon = far.here();
    let everything = daemon.watch();
    notify(daemon);
    let running =
        submit(daemon, &SubmitParams { stdin: Some(Stdin::Pipe), ..shell(daemon, "echo begun; exec cat") });
    daemon.wait_running(running);
    let job = SubmitParams { env: Some(env(daemon)), ..daemon.in_terminal("echo ready; exec cat") };
    let (mut viewer, _) = Viewer::run(daemon, &job);
    viewer.until_shown("ready\r\n");
    converse(daemon);
    let held = schedule(daemon);
    let jobs = [false, true].map(|is_socket| hand_over(daemon, is_socket));
    let waits = wait_for(daemon, held);
    let of_session = SubscribeParams { session: Some("chat:1".to_owned()), ..SubscribeParams::default() };
    let watches = [everything, Watch::new(daemon.client(), &of_session)];
    let there = pending(daemon, &["--on", "far", "--stdin-pipe", "--", "cat"]);
    let unreached = pending(daemon, &["--on", "away", "--", "true"]);
    far.running(there);
    far.until(unreached, "it can't get there", |task| {
        task.elsewhere.as_ref().is_some_and(|place| place.unknown_since.is_some())
    });
    Owned { _viewer: viewer, _watches: watches, _waits: waits, _jobs: jobs }
}

fn shell(daemon: &TestDaemon, line: &str) -> SubmitParams {
    SubmitParams { shell: Some(line.into()), env: Some(env(daemon)), ..daemon.params() }
}

fn submit(daemon: &TestDaemon, params: &SubmitParams) -> TaskId {
    daemon.submit_with(params).id
}

/// Submits with `bgctl`, which sends its own environment.
fn pending(daemon: &TestDaemon, args: &[&str]) -> TaskId {
    let mut command = daemon.bgctl(&[&["submit"], args].concat());
    Outcome::of(command.env("BGD_DAEMON", "/usr/bin/bgd")).success().word()
}

/// Creates notices: one runs a channel's command, one waits for it, one is being retried, and all are in an inbox.
fn notify(daemon: &TestDaemon) {
    for channel in ["ops", "ops", "web"] {
        let named = SubmitParams { channel: Some(channel.to_owned()), ..shell(daemon, "echo said") };
        let id = submit(daemon, &SubmitParams { session: Some("chat:1".to_owned()), ..named });
        daemon.block(&[id]);
    }
    wait::for_file(&daemon.home().join("hook"));
    wait::poll_until("one is tried again", || {
        daemon.status().channels.into_iter().find_map(|channel| channel.retry)
    });
}

/// Gives an agent one complete turn, and another one that is in progress.
fn converse(daemon: &TestDaemon) {
    let prompt = |text: &str| {
        let params = daemon.prompt_params(text);
        let agent = ("FAKE_ACP_HOME", daemon.home().join("fake"));
        let agent = (agent.0.into(), OsText::from(agent.1.into_os_string()));
        let env = env(daemon).0.iter().cloned().chain([agent]).collect();
        submit(daemon, &SubmitParams { env: Some(env), channel: Some("none".to_owned()), ..params })
    };
    daemon.block(&[prompt("say done")]);
    let turn = prompt("say before ; await go");
    wait::poll_until("it speaks", || (daemon.output(turn) == b"before").then_some(()));
}

/// Submits tasks that wait for every possible reason. Returns a held one.
fn schedule(daemon: &TestDaemon) -> TaskId {
    let held = pending(daemon, &["--hold", "--", "true"]);
    pending(daemon, &["--after", &format!("{held}:ok"), "--tag", "next", "--", "true"]);
    // The clock of the machine that reads the state decides whether this task still waits.
    pending(daemon, &["--in", "1h", "--tag", DELAYED, "--", "true"]);
    pending(daemon, &["--at", "2999-01-01T00:00:00Z", "--", "true"]);
    daemon.run(&["group", "set", "slow", "--slots", "2"]).success();
    daemon.run(&["group", "pause", "slow"]).success();
    pending(daemon, &["--group", "slow", "--retry", "3", "--", "true"]);
    // A task with a descriptor of its submitter.
    let null = File::open("/dev/null").expect("it is there");
    let params = SubmitParams { stdin: Some(Stdin::Fd), hold: true, ..shell(daemon, "exec cat") };
    daemon.client().call_with_fds::<TaskSubmit>(&params, &[null.as_fd()]).expect("task.submit");
    held
}

/// Hands over a process whose output is being drained, from a pipe or, through another pipe, from a socket.
fn hand_over(daemon: &TestDaemon, is_socket: bool) -> Job {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", "while read word; do echo \"<$word>\"; done"]).env_clear();
    let (mut job, task) = if is_socket {
        let (near, far) = UnixStream::pair().expect("a pair of sockets");
        command.stdout(OwnedFd::from(far));
        let job = Job::start(daemon, &mut command);
        let task = job.hand_over(&mut daemon.client(), &[(HandoffStream::Stdout, near.as_fd())]);
        (job, task)
    } else {
        let (job, pipe) = Job::piped(daemon, &mut command);
        let task = job.hand_over_pipe(daemon, &pipe);
        (job, task)
    };
    assert_eq!(task.status, Status::Running);
    job.say("word");
    wait::poll_until("it is drained", || (daemon.output(task.id) == b"<word>\n").then_some(()));
    job
}

/// Connects a client that waits for the end of a task and for a notice, and has sent the beginning of another request.
fn wait_for(daemon: &TestDaemon, task: TaskId) -> Raw {
    let mut client = Raw::connect(daemon.socket());
    client.request(1, "task.block", &json!({ "ids": [task], "timeout_ms": null }));
    client.request(2, "inbox.read", &json!({ "session": "chat:2", "wait_ms": 3_600_000 }));
    assert!(client.is_served(), "both are waited for");
    client.send(b"{\"jsonrpc\":\"2.0\",\"id\":3,").expect("the daemon reads");
    client
}

/// Returns an environment that is the same everywhere.
fn env(daemon: &TestDaemon) -> Env {
    let home = OsText::from(daemon.home().as_os_str().to_owned());
    [("HOME".into(), home), ("PATH".into(), OsText::from("/usr/bin:/bin"))].into_iter().collect()
}

/// Replaces a text with one of the same length.
fn replaced(mut bytes: Vec<u8>, from: &[u8], to: &[u8]) -> Vec<u8> {
    assert_eq!(from.len(), to.len(), "rows keep their lengths");
    for at in 0..=bytes.len().saturating_sub(from.len()) {
        if bytes[at..].starts_with(from) {
            bytes[at..at + to.len()].copy_from_slice(to);
        }
    }
    bytes
}
