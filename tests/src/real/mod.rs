//! A daemon with a real agent that asks a model server on loopback: the foundation of the suites of real agents.

pub mod cases;
mod served;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Condvar, Mutex, PoisonError};

use bgd_shared::agent::AgentProtocol;
use bgd_shared::event::EventKind;
use bgd_shared::id::TaskId;
use bgd_shared::task::{Status, Task};
use serde::Serialize;

pub use self::served::Served;
use crate::agents::{self, Permission};
use crate::binaries::{bgctl_path, bgd_path};
use crate::daemon::TestDaemon;
use crate::model::ModelServer;
use crate::outcome::Outcome;
use crate::process::Process;

/// The maximum number of concurrent tests with a real agent, whatever the number of processors: each may take 500 MB.
const AT_ONCE: usize = 3;

/// The password of the opencode servers that tests start.
pub const PASSWORD: &str = "secret";

/// The header that carries this password.
pub const AUTHORIZATION: (&str, &str) = ("authorization", "Basic b3BlbmNvZGU6c2VjcmV0");

static SEATS: Mutex<usize> = Mutex::new(AT_ONCE);
static SEAT_IS_FREE: Condvar = Condvar::new();

/// A slot for a test with a real agent.
#[derive(Debug)]
struct Seat;

impl Seat {
    fn take() -> Self {
        let free = SEATS.lock().unwrap_or_else(PoisonError::into_inner);
        let free = SEAT_IS_FREE.wait_while(free, |free| *free == 0);
        *free.unwrap_or_else(PoisonError::into_inner) -= 1;
        Self
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        *SEATS.lock().unwrap_or_else(PoisonError::into_inner) += 1;
        SEAT_IS_FREE.notify_one();
    }
}

/// An entry `[agents.NAME]` of the configuration.
#[derive(Clone, Debug, Serialize)]
pub struct Entry {
    #[serde(skip)]
    name: String,
    protocol: AgentProtocol,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    command: Vec<String>,
    env: BTreeMap<String, String>,
    #[serde(flatten)]
    more: toml::Table,
}

impl Entry {
    /// Adds a key, such as `max_sessions`.
    #[must_use]
    pub fn with(mut self, key: &str, value: impl Into<toml::Value>) -> Self {
        self.more.insert(key.to_owned(), value.into());
        self
    }

    /// Renames the entry.
    #[must_use]
    pub fn named(mut self, name: &str) -> Self {
        name.clone_into(&mut self.name);
        self
    }

    /// Adds `bgctl mcp`, by its path, to the agent's own configuration.
    #[must_use]
    pub fn with_mcp(mut self, place: &AgentHome<'_>) -> Self {
        let server = agents::McpServer { env: place.daemon.environment() };
        match self.env.get_mut("OPENCODE_CONFIG_CONTENT") {
            Some(config) => *config = server.in_opencode(config),
            None => server.in_codex(place.daemon.home()),
        }
        self
    }

    /// Uses a server that is already running.
    #[must_use]
    pub fn at(mut self, url: &str) -> Self {
        self.command.clear();
        self.env.insert("OPENCODE_SERVER_PASSWORD".to_owned(), PASSWORD.to_owned());
        self.with("url", url)
    }

    fn text(&self) -> String {
        let table = toml::to_string(&self).expect("an entry can be written");
        // The table of the environment comes last, and belongs to the entry.
        format!(
            "[agents.{}]\n{}\n",
            self.name,
            table.replace("[env]", &format!("[agents.{}.env]", self.name))
        )
    }
}

/// A daemon whose agents are real, and the model that they ask.
#[derive(Debug)]
pub struct Real {
    /// The daemon. It is dropped before the model.
    pub daemon: TestDaemon,
    pub model: ModelServer,
    /// The agent that gets the prompts.
    pub agent: String,
    _seat: Seat,
}

/// The home and the model, from which the entry of an agent is built.
#[derive(Debug)]
pub struct AgentHome<'a> {
    daemon: &'a TestDaemon,
    model: &'a ModelServer,
}

impl AgentHome<'_> {
    /// Creates an entry for opencode, over the Agent Client Protocol.
    #[track_caller]
    pub fn opencode(&self, permission: Permission) -> Entry {
        self.entry("opencode", AgentProtocol::Acp, &["acp"], permission)
    }

    /// Creates an entry for opencode's own server.
    #[track_caller]
    pub fn opencode_server(&self, permission: Permission) -> Entry {
        let args = ["serve", "--hostname", "127.0.0.1", "--port", "0"];
        self.entry("server", AgentProtocol::Opencode, &args, permission)
    }

    #[track_caller]
    fn entry(&self, name: &str, protocol: AgentProtocol, args: &[&str], permission: Permission) -> Entry {
        let env = agents::opencode_env(self.daemon.home(), &self.model.url(), permission);
        entry(name, protocol, agents::opencode(), args, env)
    }

    /// Creates an entry for codex-acp.
    #[track_caller]
    pub fn codex(&self, permission: Permission) -> Entry {
        let env = agents::codex_env(self.daemon.home(), &self.model.url(), permission);
        let entry = entry("codex", AgentProtocol::Acp, agents::codex_acp(), &[], env);
        // Without the mode, the agent would be put into the one in which it asks.
        match permission {
            Permission::Allow => entry.with("mode", "full-access"),
            Permission::Ask => entry,
        }
    }
}

fn entry(
    name: &str,
    protocol: AgentProtocol,
    program: PathBuf,
    args: &[&str],
    env: Vec<(String, String)>,
) -> Entry {
    let program = program.into_os_string().into_string().expect("the path of a program is text");
    Entry {
        name: name.to_owned(),
        protocol,
        command: std::iter::once(program).chain(args.iter().map(ToString::to_string)).collect(),
        env: env.into_iter().collect(),
        more: toml::Table::new(),
    }
}

impl Real {
    /// Creates a home and a model, without starting the daemon.
    #[track_caller]
    pub fn home() -> Self {
        Self::home_of(|_| TestDaemon::home_only())
    }

    /// Creates a home and a model, without starting the daemon, for a user who has installed opencode: it is in `PATH`,
    /// with its own settings in the environment. The configuration names no agent.
    #[track_caller]
    pub fn installed() -> Self {
        let mut real = Self::home_of(|model| {
            let program = agents::opencode();
            let folders = [program.parent(), bgctl_path().parent()].map(|folder| folder.map(PathBuf::from));
            let inherited = std::env::var_os("PATH").unwrap_or_default();
            let path = folders.into_iter().flatten().chain(std::env::split_paths(&inherited));
            let path = std::env::join_paths(path).expect("folders without a colon");
            let builder = TestDaemon::builder().env("PATH", path).env("BGD_DAEMON", bgd_path());
            // The home's own variables are not known yet; the daemon's home and the shell provide them.
            let env = agents::opencode_env(Path::new(""), &model.url(), Permission::Allow).into_iter();
            let env = env.filter(|(name, _)| !["HOME", "PATH", "TMPDIR"].contains(&name.as_str()));
            env.fold(builder, |builder, (name, value)| builder.env(name, value)).home_only()
        });
        "opencode".clone_into(&mut real.agent);
        real
    }

    #[track_caller]
    fn home_of(daemon: impl FnOnce(&ModelServer) -> TestDaemon) -> Self {
        let seat = Seat::take();
        let model = ModelServer::start();
        Self { daemon: daemon(&model), model, agent: String::new(), _seat: seat }
    }

    /// Runs shell commands in the home, up to the first one that fails.
    #[track_caller]
    pub fn shell(&self, lines: &str) -> Outcome {
        let mut command = Command::new("sh");
        command.args(["-e", "-u", "-c", lines]).env_clear().envs(self.daemon.environment());
        Outcome::of(command.env("TMPDIR", self.daemon.home()).current_dir(self.daemon.home()))
    }

    /// Starts the daemon with these agents; the first of them gets the prompts.
    #[track_caller]
    pub fn launch(&mut self, entries: impl FnOnce(&AgentHome<'_>) -> Vec<Entry>) {
        let entries = entries(&AgentHome { daemon: &self.daemon, model: &self.model });
        let text: String = entries.iter().map(Entry::text).collect();
        self.daemon.write_config(&format!("max_concurrent_tasks = 32\n{text}"));
        self.agent.clone_from(&entries[0].name);
        self.daemon.launch();
    }

    /// Starts a daemon with these agents; the first of them gets the prompts.
    #[track_caller]
    pub fn start(entries: impl FnOnce(&AgentHome<'_>) -> Vec<Entry>) -> Self {
        let mut real = Self::home();
        real.launch(entries);
        real
    }

    /// Starts a daemon with opencode, over the Agent Client Protocol.
    #[track_caller]
    pub fn opencode(permission: Permission, permissions: &str) -> Self {
        Self::start(|place| vec![place.opencode(permission).with("permissions", permissions)])
    }

    /// Starts a daemon with opencode's own server.
    #[track_caller]
    pub fn opencode_server(permission: Permission, permissions: &str) -> Self {
        Self::start(|place| vec![place.opencode_server(permission).with("permissions", permissions)])
    }

    /// Starts a daemon with codex-acp.
    #[track_caller]
    pub fn codex(permission: Permission, permissions: &str) -> Self {
        Self::start(|place| vec![place.codex(permission).with("permissions", permissions)])
    }

    /// Submits a prompt for the agent by `bgctl submit`.
    #[track_caller]
    pub fn submit(&self, prompt: &str) -> TaskId {
        self.submit_to(&self.agent, &[], prompt)
    }

    /// Submits a prompt for this agent, with additional options of `bgctl submit`.
    #[track_caller]
    pub fn submit_to(&self, agent: &str, options: &[&str], prompt: &str) -> TaskId {
        let name = prompt.lines().next().unwrap_or_default();
        let args = [&["submit", "--agent", agent, "-d", name], options, &[prompt]].concat();
        self.daemon.run(&args).success().word()
    }

    /// Submits a prompt for the agent, with additional options of `bgctl submit`.
    #[track_caller]
    pub fn submit_with(&self, options: &[&str], prompt: &str) -> TaskId {
        self.submit_to(&self.agent, options, prompt)
    }

    /// Submits a prompt for the agent and waits until the model is asked for the answer.
    #[track_caller]
    pub fn submit_until_asked(&self, prompt: &str) -> TaskId {
        let id = self.submit(prompt);
        self.model.wait_for_turn(prompt);
        id
    }

    /// Submits a prompt for the agent and waits for the answer.
    #[track_caller]
    pub fn turn(&self, prompt: &str) -> TaskId {
        let id = self.submit(prompt);
        self.completed(id);
        id
    }

    /// Sends a follow-up prompt to a completed task by `bgctl resume`, and returns the answer.
    #[track_caller]
    pub fn follow_up(&self, id: TaskId, prompt: &str) -> String {
        self.daemon.run(&["resume", &id.to_string(), prompt]).success();
        self.completed(id);
        self.answer(id)
    }

    /// Waits for the end of the current run, which must complete.
    #[track_caller]
    pub fn completed(&self, id: TaskId) -> Task {
        let task = self.ended(id);
        assert_eq!(task.status, Status::Completed, "{:?}", task.error);
        task
    }

    /// Waits for the end of the current run, which must fail, and returns the reason.
    #[track_caller]
    pub fn failed(&self, id: TaskId) -> String {
        let task = self.ended(id);
        assert_eq!(task.status, Status::Failed, "{task:#?}");
        task.error.expect("a failure has a reason")
    }

    #[track_caller]
    fn ended(&self, id: TaskId) -> Task {
        self.daemon.block(&[id]).remove(0)
    }

    /// Returns the output of `bgctl output --result`, without trailing blanks: opencode's server cuts them off.
    #[track_caller]
    pub fn answer(&self, id: TaskId) -> String {
        let stdout = self.daemon.run(&["output", "--result", &id.to_string()]).success().stdout_text();
        stdout.trim_end().to_owned()
    }

    /// Returns the output of a task so far, to the last byte.
    #[track_caller]
    pub fn output(&self, id: TaskId) -> String {
        String::from_utf8(self.daemon.output(id)).expect("the output is text")
    }

    /// Waits until the output of a running task is exactly this text. Trailing blanks do not count: they may be held
    /// back until more text comes.
    #[track_caller]
    pub fn wait_output(&self, id: TaskId, text: &str) {
        let mut watch = self.daemon.watch();
        while self.output(id).trim_end() != text {
            let about_it = watch.until(|event| event.task.id == id && event.kind != EventKind::Progress);
            assert!(about_it.task.status.is_active(), "{:?} and not {text:?}", self.output(id));
        }
    }

    /// Returns the user's messages in a task's session, as received by the model.
    #[track_caller]
    pub fn history(&self, id: TaskId) -> Vec<String> {
        self.model.history(&self.session(id))
    }

    /// Returns the agent's own id of the conversation.
    #[track_caller]
    pub fn session(&self, id: TaskId) -> String {
        self.daemon.task(id).agent_session.expect("a task that has begun has a session")
    }

    /// Returns the process of the agent that a task ran in.
    #[track_caller]
    pub fn process(&self, id: TaskId) -> Process {
        let pid = self.daemon.task(id).pid.expect("a task that has begun has a process");
        Process::open(pid).expect("the agent lives")
    }

    /// Waits until no process but the daemon is left. A failure names the remaining process.
    #[track_caller]
    pub fn nothing_left(&self) {
        for process in self.daemon.task_processes() {
            process.gone();
        }
        assert_eq!(self.daemon.task_processes().len(), 0, "{:?}", self.daemon.task_processes());
    }

    /// Runs an opencode for the test itself, with this model in the home.
    #[track_caller]
    pub fn run_opencode(&self, args: &[&str]) -> Outcome {
        Outcome::of(&mut self.opencode_command(args))
    }

    /// Prepares an opencode command with this model in the home.
    #[track_caller]
    pub fn opencode_command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(agents::opencode());
        let env = agents::opencode_env(self.daemon.home(), &self.model.url(), Permission::Allow);
        // The variables that the daemon passes on from `bgctl` locate opencode's files.
        command.env_clear().envs(self.daemon.environment()).envs(env);
        command.args(args).current_dir(self.daemon.home()).stdin(Stdio::null());
        command
    }
}
