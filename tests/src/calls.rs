//! The calls that nearly every suite makes, each over a connection of its own.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fmt::Debug;
use std::fs;
use std::time::Duration;

use bgd_shared::client::ClientError;
use bgd_shared::error::RpcError;
use bgd_shared::id::TaskId;
use bgd_shared::notice::InboxItem;
use bgd_shared::request::{
    BlockParams, CancelParams, ChannelStatus, DaemonStatus, DaemonStatusOf, IdParams, InboxRead,
    InboxReadParams, Method, NoParams, OutputParams, Stream, SubmitParams, SubscribeParams, TaskBlock,
    TaskCancel, TaskGet, TaskOutput, TaskSubmit,
};
use bgd_shared::task::{Status, Task};
use bgd_shared::text::Env;

use crate::daemon::TestDaemon;
use crate::process::Process;
use crate::wait::{PATIENCE, for_change, for_line, poll_until};
use crate::watch::Watch;

impl TestDaemon {
    /// Waits until another keeper than this one, which is gone, holds all running processes, according to the daemon's
    /// log. Earlier, some of them may still be under way to it.
    #[track_caller]
    pub fn wait_for_new_keeper(&self, gone: &Process) {
        let path = self.state_dir().join("bgd.log");
        let ended = format!("another one takes its place pid={}\n", gone.pid());
        for_change(&path, || {
            let older = fs::read(path.with_extension("log.1")).unwrap_or_default();
            let all = [older, fs::read(&path).unwrap_or_default()].concat();
            let text = String::from_utf8_lossy(&all);
            let (_, after) = text.rsplit_once(&ended)?;
            after.contains("the keeper holds everything that is running").then_some(())
        });
    }

    /// Returns the params of a submit, complete except for the command: the home as the working directory, and this
    /// harness's environment.
    pub fn params(&self) -> SubmitParams {
        let env: BTreeMap<_, _> = self.environment().into_iter().collect();
        let text = |name: std::ffi::OsString| name.into_string().expect("names here are UTF-8").into();
        let env: Env = env.into_iter().map(|(name, value)| (text(name), value.into())).collect();
        SubmitParams { cwd: Some(self.home().as_os_str().into()), env: Some(env), ..SubmitParams::default() }
    }

    /// Submits a task and returns it as of its submission.
    #[track_caller]
    pub fn submit_with(&self, params: &SubmitParams) -> Task {
        self.client().call::<TaskSubmit>(params).expect("task.submit").task
    }

    #[track_caller]
    pub fn submit<S: AsRef<OsStr>>(&self, argv: &[S]) -> TaskId {
        let argv = argv.iter().map(|arg| arg.as_ref().into()).collect();
        self.submit_with(&SubmitParams { argv: Some(argv), ..self.params() }).id
    }

    #[track_caller]
    pub fn submit_shell(&self, line: &str) -> TaskId {
        self.submit_with(&SubmitParams { shell: Some(line.into()), ..self.params() }).id
    }

    /// Waits this long for a task that does not end meanwhile. Starts no process, so that it takes hardly longer.
    #[track_caller]
    pub fn block_for(&self, id: TaskId, time: Duration) {
        let params = BlockParams {
            ids: vec![id.into()],
            timeout_ms: u64::try_from(time.as_millis()).ok(),
            ..BlockParams::default()
        };
        assert!(self.client().call::<TaskBlock>(&params).expect("task.block").timed_out);
    }

    /// Runs `bgctl submit` with these arguments, and returns the task.
    #[track_caller]
    pub fn submitted(&self, args: &[&str]) -> TaskId {
        self.run(&[&["submit"], args].concat()).success().word()
    }

    /// Waits until all of these tasks have ended.
    #[track_caller]
    pub fn block(&self, ids: &[TaskId]) -> Vec<Task> {
        let timeout = u64::try_from(PATIENCE.as_millis()).ok();
        let ids: Vec<_> = ids.iter().copied().map(Into::into).collect();
        let params = BlockParams {
            ids,
            timeout_ms: timeout,
            mode: bgd_shared::request::BlockMode::All,
            ..BlockParams::default()
        };
        let mut client = self.client();
        // The answer may take as long as the timeout, so the daemon's timeout is the watchdog here.
        client.wait_at_most(2 * PATIENCE);
        let result = client.call::<TaskBlock>(&params).expect("task.block");
        assert!(!result.timed_out, "still active: {:?}", result.active);
        result.tasks
    }

    #[track_caller]
    pub fn task(&self, id: TaskId) -> Task {
        self.client().call::<TaskGet>(&IdParams { id: id.into() }).expect("task.get").task
    }

    /// Returns the output so far of one stream of a task.
    #[track_caller]
    pub fn stream(&self, id: TaskId, stream: Stream) -> Vec<u8> {
        let mut client = self.client();
        let mut bytes = Vec::new();
        let mut offset = 0_u64;
        loop {
            let params = OutputParams {
                id: id.into(),
                offset: Some(offset.cast_signed()),
                limit: None,
                stream: Some(stream),
            };
            let part = client.call::<TaskOutput>(&params).expect("task.output");
            let data = part.encoding.decode(part.data).expect("base64");
            let is_all = data.is_empty() || part.eof;
            bytes.extend(data);
            offset = part.next;
            if is_all {
                return bytes;
            }
        }
    }

    /// Returns the standard output of a task so far.
    #[track_caller]
    pub fn output(&self, id: TaskId) -> Vec<u8> {
        self.stream(id, Stream::Stdout)
    }

    /// Cancels tasks; all of them have ended when this returns.
    #[track_caller]
    pub fn cancel(&self, ids: &[TaskId]) -> Vec<Task> {
        let ids = ids.iter().copied().map(Into::into).collect();
        let params = CancelParams { ids, ..CancelParams::default() };
        self.client().call::<TaskCancel>(&params).expect("task.cancel").tasks
    }

    #[track_caller]
    pub fn status(&self) -> DaemonStatus {
        self.client().call::<DaemonStatusOf>(&NoParams {}).expect("daemon.status")
    }

    /// Returns the warnings of the status. Asks again if the disk did not answer in time, as on a machine that is too
    /// busy: warnings that require a look at files are then missing.
    #[track_caller]
    pub fn warnings(&self) -> Vec<String> {
        poll_until("a status with a look at the disk", || {
            let warnings = self.status().warnings;
            let is_silent = warnings.iter().any(|warning| warning.ends_with("does not answer"));
            (!is_silent).then_some(warnings)
        })
    }

    #[track_caller]
    pub fn channel(&self, name: &str) -> ChannelStatus {
        let channels = self.status().channels;
        channels
            .iter()
            .find(|channel| channel.name == name)
            .cloned()
            .unwrap_or_else(|| panic!("{channels:?}"))
    }

    /// Returns the first page of a parent session's unacknowledged notices.
    #[track_caller]
    pub fn inbox(&self, session: &str) -> Vec<InboxItem> {
        let params = InboxReadParams { session: session.to_owned(), ..InboxReadParams::default() };
        self.client().call::<InboxRead>(&params).expect("inbox.read").items
    }

    /// Submits a shell command in a parent session.
    #[track_caller]
    pub fn submit_in(&self, session: &str, line: &str) -> TaskId {
        let params =
            SubmitParams { shell: Some(line.into()), session: Some(session.into()), ..self.params() };
        self.submit_with(&params).id
    }

    /// Makes a call that the daemon must refuse, and returns the refusal.
    #[track_caller]
    pub fn refusal<M: Method<Result: Debug>>(&self, params: &M::Params) -> RpcError {
        match self.client().call::<M>(params) {
            Err(ClientError::Rpc(error)) => error,
            other => panic!("{} is not refused: {other:?}", M::NAME),
        }
    }

    /// Waits until the daemon has this many connections, including the one that asks.
    #[track_caller]
    pub fn until_connections(&self, count: u64) {
        let mut client = self.client();
        poll_until(&format!("{count} connections"), || {
            let connections = client.call::<DaemonStatusOf>(&NoParams {}).expect("daemon.status").connections;
            (connections == count).then_some(())
        });
    }

    /// Opens the process whose pid something in the home writes to this file.
    #[track_caller]
    pub fn recorded_process(&self, file: &str) -> Process {
        self.recorded_process_after(file, "")
    }

    /// Like [`Self::recorded_process`], where this word comes before the pid.
    #[track_caller]
    pub fn recorded_process_after(&self, file: &str, word: &str) -> Process {
        let line = for_line(&self.home().join(file), word);
        let pid = line.strip_prefix(word).and_then(|pid| pid.trim().parse().ok());
        Process::open(pid.unwrap_or_else(|| panic!("no process id: {line}"))).expect("it lives")
    }

    /// Subscribes to all events from now on.
    #[track_caller]
    pub fn watch(&self) -> Watch {
        Watch::new(self.client(), &SubscribeParams::default())
    }

    /// Waits until a task is in this status. Fails the test if the task has already passed it.
    #[track_caller]
    pub fn wait_status(&self, id: TaskId, status: Status) -> Task {
        self.wait_task(id, &format!("be {status}"), |task| task.status == status)
    }

    /// Waits until a task's process runs: the status `running` alone only says that it has a slot.
    #[track_caller]
    pub fn wait_running(&self, id: TaskId) -> Task {
        self.wait_task(id, "run", |task| task.status == Status::Running && task.pid.is_some())
    }

    /// Waits until the process of the task runs. Returns `None` if the task ends before, as one with a short time limit
    /// may.
    #[track_caller]
    pub fn wait_running_in_time(&self, id: TaskId) -> Option<Task> {
        let runs = |task: &Task| task.status == Status::Running && task.pid.is_some();
        let task = self.wait_task(id, "run", |task| runs(task) || !task.status.is_active());
        runs(&task).then_some(task)
    }

    #[track_caller]
    fn wait_task(&self, id: TaskId, to: &str, wanted: impl Fn(&Task) -> bool) -> Task {
        let params = SubscribeParams { ids: vec![id.into()], ..SubscribeParams::default() };
        // Subscribe first, so that no change between the look and the wait is missed.
        let mut watch = Watch::new(self.client(), &params);
        let task = self.task(id);
        if wanted(&task) {
            return task;
        }
        assert!(task.status.is_active(), "{id} is {} and will never {to}", task.status);
        watch.until(|event| wanted(&event.task)).task
    }
}
