//! Extensions of [`TestDaemon`] for the suites of agent tasks: prompts and resumes as calls, and the home of the fake
//! agent, where it records the messages it received.

use std::fs;
use std::ops::{Deref, DerefMut};
use std::path::PathBuf;
use std::thread;

use bgd_shared::agent::{AgentSettings, ResumeParams};
use bgd_shared::error::RpcError;
use bgd_shared::id::TaskId;
use bgd_shared::request::{IdParams, SubmitParams, TaskResultOf, TaskResume};
use bgd_shared::task::{Status, Task};
use serde_json::Value;

use crate::daemon::TestDaemon;
use crate::outcome::Outcome;
use crate::process::Process;
use crate::templates::toml_words;
use crate::{helper_path, wait};

/// Returns the configuration of an agent `fake` that runs the fake agent program with these flags; `more` are
/// additional lines of its table.
pub fn fake_agent(flags: &[&str], more: &str) -> String {
    let words: Vec<String> = std::iter::once(helper_path("fake_acp").to_string_lossy().into_owned())
        .chain(flags.iter().map(ToString::to_string))
        .collect();
    format!("[agents.fake]\ncommand = {words:?}\n{more}\n")
}

/// Starts a daemon with the fake agent without flags.
#[track_caller]
pub fn fake() -> FakeDaemon {
    FakeDaemon::start(&[], "")
}

/// A daemon with the agent `fake`. Dropping it asserts that no fake agent has recorded a violation, so every test shows
/// that the daemon does nothing that the protocol forbids.
#[derive(Debug)]
pub struct FakeDaemon(TestDaemon);

impl FakeDaemon {
    /// Starts the daemon; `flags` are for the fake agent, `more` are additional lines of its table.
    #[track_caller]
    pub fn start(flags: &[&str], more: &str) -> Self {
        Self::with("", flags, more)
    }

    /// Like [`Self::start`], with additional configuration before the agent's.
    #[track_caller]
    pub fn with(config: &str, flags: &[&str], more: &str) -> Self {
        let config = format!("{config}\n{}", fake_agent(flags, more));
        Self(TestDaemon::builder().config(config).start())
    }

    /// Starts the daemon with a shell command that runs the fake agent as `$0`.
    #[track_caller]
    pub fn in_shell(line: &str, more: &str) -> Self {
        let fake = helper_path("fake_acp").to_string_lossy().into_owned();
        let command = toml_words(&["sh", "-c", line, &fake]);
        let config = format!("[agents.fake]\ncommand = {command}\n{more}\n");
        Self(TestDaemon::builder().config(config).start())
    }

    /// Writes the configuration that [`Self::start`] would use. A reload must follow.
    #[track_caller]
    pub fn configure(&self, flags: &[&str], more: &str) {
        self.0.write_config(&fake_agent(flags, more));
    }

    /// Runs a `bgctl` with the fake agent's home in its environment.
    #[track_caller]
    pub fn bgctl_with_fake(&self, args: &[&str]) -> Outcome {
        let home = self.fake_home().0;
        fs::create_dir_all(&home).expect("the fake agent's home");
        Outcome::of(self.bgctl(args).env("FAKE_ACP_HOME", home))
    }
}

impl Deref for FakeDaemon {
    type Target = TestDaemon;

    fn deref(&self) -> &TestDaemon {
        &self.0
    }
}

impl DerefMut for FakeDaemon {
    fn deref_mut(&mut self) -> &mut TestDaemon {
        &mut self.0
    }
}

impl Drop for FakeDaemon {
    fn drop(&mut self) {
        let violations = self.fake_home().violations();
        if thread::panicking() {
            // The test has failed already; this may be why.
            eprintln!("--- what the fake agents complain of: {violations:#?}");
        } else {
            assert!(violations.is_empty(), "the protocol forbids this: {violations:#?}");
        }
    }
}

impl TestDaemon {
    /// Returns the params of a prompt for the agent `fake`.
    pub fn prompt_params(&self, prompt: &str) -> SubmitParams {
        let mut params = self.params();
        let home = self.fake_home();
        fs::create_dir_all(&home.0).expect("the fake agent's home");
        let more = ("FAKE_ACP_HOME".into(), home.0.as_os_str().into());
        params.env = params.env.map(|env| env.0.iter().cloned().chain([more]).collect());
        SubmitParams {
            prompt: Some(prompt.to_owned()),
            agent: Some("fake".to_owned()),
            description: Some(prompt.lines().next().unwrap_or_default().to_owned()),
            ..params
        }
    }

    /// Submits a prompt for the agent `fake` in a new session.
    #[track_caller]
    pub fn prompt(&self, prompt: &str) -> TaskId {
        self.submit_with(&self.prompt_params(prompt)).id
    }

    /// Like [`Self::prompt_params`], with an additional environment variable.
    pub fn prompt_params_with(&self, prompt: &str, name: &str, value: &str) -> SubmitParams {
        let mut params = self.prompt_params(prompt);
        let more = (name.into(), value.into());
        params.env = params.env.map(|env| env.0.iter().cloned().chain([more]).collect());
        params
    }

    /// Submits a prompt for the agent `fake`, which must complete.
    #[track_caller]
    pub fn completed(&self, prompt: &str) -> Task {
        self.ends_as(self.prompt(prompt), Status::Completed)
    }

    /// Submits a prompt for the agent `fake`, which must fail. Returns the task and the reason.
    #[track_caller]
    pub fn failed(&self, prompt: &str) -> (Task, String) {
        let task = self.ends_as(self.prompt(prompt), Status::Failed);
        let error = task.error.clone().unwrap_or_default();
        (task, error)
    }

    /// Waits for the end of a task, which must have this status.
    #[track_caller]
    pub fn ends_as(&self, id: TaskId, status: Status) -> Task {
        let task = self.block(&[id]).remove(0);
        assert_eq!(task.status, status, "{:?}", task.error);
        task
    }

    /// Creates a file in the home, for prompts that `await` it.
    #[track_caller]
    pub fn touch(&self, name: &str) {
        fs::write(self.home().join(name), "").expect("a file in the home");
    }

    /// Returns the process of the agent that runs the task's turn.
    #[track_caller]
    pub fn agent_process(&self, id: TaskId) -> Process {
        let pid = self.wait_running(id).pid.expect("an agent that was started has a process");
        Process::open(pid).expect("the agent lives")
    }

    /// Waits until no agent is left. With `keep_warm = "0s"`, the daemon closes an agent just after it has reported the
    /// end of the turn, and may give it a follow-up prompt until then.
    #[track_caller]
    pub fn wait_agents_gone(&self) {
        for process in self.task_processes() {
            process.gone();
        }
    }

    /// Waits until a task's output contains this text.
    #[track_caller]
    pub fn wait_output(&self, id: TaskId, text: &str) {
        let path = PathBuf::from(self.task(id).output.path);
        wait::for_change(&path, || {
            fs::read_to_string(&path).is_ok_and(|all| all.contains(text)).then_some(())
        });
    }

    /// Resumes a completed task with a follow-up prompt.
    ///
    /// # Errors
    /// The daemon's error.
    #[track_caller]
    pub fn try_resume(&self, id: TaskId, prompt: &str) -> Result<Task, RpcError> {
        self.try_resume_with(id, prompt, AgentSettings::default())
    }

    /// Like [`Self::try_resume`], with settings.
    ///
    /// # Errors
    /// The daemon's error.
    #[track_caller]
    pub fn try_resume_with(
        &self,
        id: TaskId,
        prompt: &str,
        settings: AgentSettings,
    ) -> Result<Task, RpcError> {
        let params = ResumeParams { id: id.into(), prompt: prompt.to_owned(), settings };
        match self.client().call::<TaskResume>(&params) {
            Ok(result) => Ok(result.task),
            Err(bgd_shared::client::ClientError::Rpc(error)) => Err(error),
            Err(error) => panic!("task.resume: {error}"),
        }
    }

    /// Resumes a completed task with a follow-up prompt, which must be accepted.
    #[track_caller]
    pub fn resume(&self, id: TaskId, prompt: &str) -> Task {
        self.try_resume(id, prompt).expect("task.resume")
    }

    /// Like [`Self::resume`], with settings.
    #[track_caller]
    pub fn resume_with(&self, id: TaskId, prompt: &str, settings: AgentSettings) -> Task {
        self.try_resume_with(id, prompt, settings).expect("task.resume")
    }

    #[track_caller]
    pub fn result(&self, id: TaskId) -> String {
        let result = self.client().call::<TaskResultOf>(&IdParams { id: id.into() }).expect("task.result");
        let bytes = result.encoding.decode(result.result).expect("base64");
        String::from_utf8(bytes).expect("UTF-8")
    }

    /// Returns the folder where the fake agent keeps its sessions and its journal.
    pub fn fake_home(&self) -> FakeHome {
        FakeHome(self.home().join("fake"))
    }
}

#[derive(Clone, Debug)]
pub struct FakeHome(pub PathBuf);

impl FakeHome {
    /// Returns the journal of all fake agents of this home so far.
    pub fn journal(&self) -> Vec<Value> {
        let text = fs::read_to_string(self.0.join("journal")).unwrap_or_default();
        // The last line may be incomplete.
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// Returns the messages of this method that the agents received, in order.
    pub fn received(&self, method: &str) -> Vec<Value> {
        let received = self.journal().into_iter().filter_map(|line| line.get("received").cloned());
        received.filter(|message| message["method"] == method).collect()
    }

    /// Returns the pids of the started processes, in order.
    pub fn started(&self) -> Vec<i64> {
        let started = self.journal().into_iter().filter(|line| line.get("started").is_some());
        started.filter_map(|line| line["pid"].as_i64()).collect()
    }

    /// Returns the process whose pid a fake agent has written to this file: `child.PID` or `spawned`.
    #[track_caller]
    pub fn noted_process(&self, file: &str) -> Process {
        let path = self.0.join(file);
        let pid = wait::for_change(&path, || fs::read_to_string(&path).ok()?.trim().parse().ok());
        Process::open(pid).expect("what was noted lives")
    }

    pub fn violations(&self) -> Vec<Value> {
        self.journal().into_iter().filter(|line| line.get("violation").is_some()).collect()
    }

    /// Waits until the agents have received at least `count` messages of this method, and returns these messages.
    #[track_caller]
    pub fn wait_received(&self, method: &str, count: usize) -> Vec<Value> {
        self.wait_for(|_| self.received(method).len() >= count);
        self.received(method)
    }

    /// Waits until at least `count` processes were started, and returns the last of them.
    #[track_caller]
    pub fn wait_started(&self, count: usize) -> Process {
        self.wait_for(|_| self.started().len() >= count);
        let pid = self.started()[count - 1].try_into().expect("a process id");
        Process::open(pid).expect("it lives")
    }

    /// Waits until `is_so` holds for the journal.
    #[track_caller]
    pub fn wait_for(&self, is_so: impl Fn(&[Value]) -> bool) {
        wait::for_change(&self.0.join("journal"), || is_so(&self.journal()).then_some(()));
    }

    /// Returns the file of a session.
    pub fn session(&self, id: &str) -> PathBuf {
        self.0.join("sessions").join(id)
    }
}
