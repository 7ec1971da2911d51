//! What each release left for its successors: a state of an upgrade in place, with something of every owner in it, and a
//! journal (R123). [`record`] makes them by a real daemon; nothing in them is of the machine that they were made on.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use bgd_shared::request::{DaemonUpgrade, Stdin, SubmitParams, UpgradeParams};
use bgd_shared::text::{Env, OsText};

use crate::prompts::fake_agent;
use crate::{Outcome, TestDaemon, Viewer, bgd_path, executable, helper_path, wait};

/// What stands for the home of the daemon. As long as the true one, so that it fits into rows.
const HOME: &str = "/home/user/work";

/// What stands for the fake agent.
const AGENT: &str = "/usr/bin/agent";

/// The channels: a command that waits, and a server that is not there.
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

/// The tag of the task that waits for a time which comes.
pub const DELAYED: &str = "delayed";

/// The state of a release.
pub const STATE: &str = "state";

/// Its journal.
pub const JOURNAL: &str = "journal.db";

/// What its own program finds in its state.
pub const FOUND: &str = "found.json";

/// Returns the folder of all releases.
pub fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("releases")
}

/// Returns what a program says of a state that it is given to try.
///
/// # Errors
/// It refuses the state, or can't be run.
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
    let config = format!("{CONFIG}{}", fake_agent(&[], ""));
    let mut daemon = TestDaemon::builder().config(config).env("PATH", "/usr/bin:/bin").start();
    let (_watch, _viewer) = (daemon.watch(), fill(&daemon));
    let keeping = daemon.home().join("keeping");
    executable::copy(&helper_path("next_bgd"), &keeping);
    let params = UpgradeParams { binary: Some(keeping.as_os_str().into()) };
    daemon.client().call::<DaemonUpgrade>(&params).map_err(io::Error::other)?;
    let home = daemon.home().to_string_lossy().into_owned();
    let agent = helper_path("fake_acp").to_string_lossy().into_owned();
    let state = fs::read_to_string(keeping.with_extension("state"))?;
    let state = state.replace(&home, HOME).replace(&agent, AGENT);
    // Its last connection moves all of it into one file.
    daemon.stop();
    let journal = fs::read(daemon.state_dir().join("journal").join(JOURNAL))?;
    daemon.launch();
    daemon.run(&["daemon", "stop", "--cancel"]).success();
    daemon.ended();
    let folder = folder().join(env!("CARGO_PKG_VERSION"));
    fs::create_dir_all(&folder)?;
    fs::write(folder.join(STATE), state)?;
    fs::write(folder.join(JOURNAL), replaced(journal, home.as_bytes(), HOME.as_bytes()))?;
    fs::write(folder.join(FOUND), tried(&bgd_path(), &folder.join(STATE))?)?;
    Ok(folder)
}

/// Has the daemon own something of everything.
fn fill(daemon: &TestDaemon) -> Viewer {
    let params =
        |line: &str| SubmitParams { shell: Some(line.into()), env: Some(env(daemon)), ..daemon.params() };
    let submit = |params: &SubmitParams| daemon.submit_with(params).id;
    let pending = |args: &[&str]| {
        let mut command = daemon.bgctl(&[&["submit"], args].concat());
        Outcome::of(command.env("BGD_DAEMON", "/usr/bin/bgd")).success().word::<String>()
    };
    // One command of a channel runs, one notice waits for it, one is tried again, and all are in an inbox.
    for channel in ["ops", "ops", "web"] {
        let named = SubmitParams { channel: Some(channel.to_owned()), ..params("echo said") };
        let id = submit(&SubmitParams { session: Some("chat:1".to_owned()), ..named });
        daemon.block(&[id]);
    }
    wait::for_file(&daemon.home().join("hook"));
    wait::poll_until("one is tried again", || {
        daemon.status().channels.into_iter().find_map(|channel| channel.retry)
    });
    let running = submit(&SubmitParams { stdin: Some(Stdin::Pipe), ..params("echo begun; exec cat") });
    daemon.wait_running(running);
    let job = SubmitParams { env: Some(env(daemon)), ..daemon.in_terminal("echo ready; exec cat") };
    let (mut viewer, _) = Viewer::run(daemon, &job);
    viewer.until_shown("ready\r\n");
    let prompt = |text: &str| {
        let params = daemon.prompt_params(text);
        let agent = ("FAKE_ACP_HOME", daemon.home().join("fake"));
        let agent = (agent.0.into(), OsText::from(agent.1.into_os_string()));
        let env = env(daemon).0.iter().cloned().chain([agent]).collect();
        submit(&SubmitParams { env: Some(env), channel: Some("none".to_owned()), ..params })
    };
    daemon.block(&[prompt("say done")]);
    let turn = prompt("say before ; await go");
    wait::poll_until("it speaks", || (daemon.output(turn) == b"before").then_some(()));
    let held = pending(&["--hold", "--", "true"]);
    pending(&["--after", &format!("{held}:ok"), "--tag", "next", "--", "true"]);
    // The clock of the machine that reads it decides whether this one still waits.
    pending(&["--in", "1h", "--tag", DELAYED, "--", "true"]);
    pending(&["--at", "2999-01-01T00:00:00Z", "--", "true"]);
    daemon.run(&["group", "set", "slow", "--slots", "2"]).success();
    daemon.run(&["group", "pause", "slow"]).success();
    pending(&["--group", "slow", "--retry", "3", "--", "true"]);
    viewer
}

/// An environment that is the same everywhere.
fn env(daemon: &TestDaemon) -> Env {
    let home = OsText::from(daemon.home().as_os_str().to_owned());
    [("HOME".into(), home), ("PATH".into(), OsText::from("/usr/bin:/bin"))].into_iter().collect()
}

/// Replaces a text by one of the same length.
fn replaced(mut bytes: Vec<u8>, from: &[u8], to: &[u8]) -> Vec<u8> {
    assert_eq!(from.len(), to.len(), "rows keep their lengths");
    for at in 0..=bytes.len().saturating_sub(from.len()) {
        if bytes[at..].starts_with(from) {
            bytes[at..at + to.len()].copy_from_slice(to);
        }
    }
    bytes
}
