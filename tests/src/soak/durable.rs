//! Further acts of a soak on a durable daemon: trees, handed-over processes and waits, over kills of the daemon and its
//! keeper, and over stops.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::os::fd::AsFd as _;
use std::sync::mpsc::{self, Sender};
use std::thread;

use bgd_shared::client::Client;
use bgd_shared::id::TaskId;
use bgd_shared::order::{After, Condition};
use bgd_shared::request::{
    DaemonShutdown, HandoffStream, IdParams, ShutdownParams, SubmitParams, TaskGet, TaskSubmit,
};
use serde_json::json;

use super::acts::Soak;
use super::ledger::Expected;
use crate::handed::Job;
use crate::raw::Raw;
use crate::wait::{PATIENCE, poll_until};

/// Maximum number of concurrent waits.
const WAITS: usize = 16;

/// Objects that only a durable daemon gets.
#[derive(Debug, Default)]
pub(super) struct DurableOnly {
    /// Handed-over processes, each of which waits for a line.
    pub(super) handed: BTreeMap<TaskId, Job>,
    /// Clients that wait for a task.
    waits: Vec<(TaskId, Raw)>,
}

/// A submission whose answer may be lost.
struct Submission {
    token: u64,
    code: i32,
    params: SubmitParams,
    /// The id of the task, if an answer arrived.
    task: Option<TaskId>,
}

impl Soak {
    /// Carries out a random act on a durable daemon.
    pub(super) fn act_on_durable(&mut self) {
        match self.below(100) {
            0..20 => self.submit(),
            20..27 => self.submit_many(),
            27..33 => self.submit_waiting(),
            33..38 => self.submit_in_terminal(),
            38..41 => self.submit_prompt(),
            41..46 => self.submit_tree(),
            46..51 => self.submit_ordered(),
            51..56 => self.hand_over(),
            56..61 => self.wait_for_one(),
            61..66 => self.cancel(),
            66..69 => self.kill_process(),
            69..73 => self.hold(),
            73..77 => self.look(),
            77..79 => self.subscribe_and_never_read(),
            79..84 => self.block(),
            84..88 => self.upgrade(),
            // Makes sure that a daemon's figures are taken twice, which shows resources that it does not free.
            88..100 if self.is_spared => self.submit(),
            88..94 => self.kill_and_keep(),
            94..97 => self.kill_keeper(),
            97 | 98 => self.stop_and_start(),
            _ => self.shut_down(),
        }
    }

    /// Drops the clients whose connections end with the daemon's process.
    pub(super) fn disconnect(&mut self) {
        self.slow.clear();
        self.others.waits.clear();
    }

    /// Submits a task whose leader leaves a process behind that is not a descendant of it, and writes the token later.
    fn submit_tree(&mut self) {
        let token = self.ledger.token();
        let path = self.ledger.path.display();
        let later = format!("setsid -f sh -c 'sleep 0.3; echo {token} >> {path}'");
        let shell = format!("{later}; sleep 0.1 & echo text; wait; exit 3");
        let params = SubmitParams { shell: Some(shell.as_str().into()), ..self.daemon.params() };
        if let Some(result) = self.call::<TaskSubmit>(&params) {
            self.accepted(result.task.id, Expected::of(token, 3, "text\n"));
        }
    }

    /// Submits a task that starts after another one has ended, or after a delay.
    fn submit_ordered(&mut self) {
        let delay = self.below(700);
        let other = self.some().filter(|_| delay < 350);
        let before = other.as_ref().and_then(|other| self.ledger.open.get(other));
        let (disturbed, may_not_start) =
            before.map_or((false, false), |before| (before.disturbed, before.may_not_start));
        let token = self.ledger.token();
        let shell = format!("echo {token} >> {}; echo text; exit 1", self.ledger.path.display());
        let mut params = SubmitParams { shell: Some(shell.as_str().into()), ..self.daemon.params() };
        match other {
            Some(other) => params.after = vec![After { id: other.into(), condition: Condition::Any }],
            None => params.delay_ms = Some(delay),
        }
        if let Some(result) = self.call::<TaskSubmit>(&params) {
            self.accepted(
                result.task.id,
                Expected { after: other, disturbed, may_not_start, ..Expected::of(token, 1, "text\n") },
            );
        }
    }

    /// Hands over a process that waits for a line.
    fn hand_over(&mut self) {
        let token = self.ledger.token();
        let line = format!("read go; echo {token} >> {}; echo text; exit 5", self.ledger.path.display());
        let (job, pipe) = Job::shell(&self.daemon, &line);
        match job.offer(&mut self.daemon.client(), &[(HandoffStream::Stdout, pipe.as_fd())]) {
            Ok(given) => {
                self.accepted(given.task.id, Expected::of(token, 5, "text\n"));
                self.others.handed.insert(given.task.id, job);
            }
            Err(error) => self.fault(format!("task.handoff: {error}")),
        }
    }

    /// Makes every handed-over process run to its end, and reaps it, as its parent.
    pub(super) fn finish_handed(&mut self) {
        for (task, mut job) in std::mem::take(&mut self.others.handed) {
            // The process may have been killed.
            let _ = job.child.stdin.as_mut().map(|stdin| stdin.write_all(b"go\n"));
            if job.child.wait().is_err() {
                self.fault(format!("{task}, which was handed over, can't be reaped"));
            }
        }
    }

    /// Connects a client that waits for the end of a task.
    fn wait_for_one(&mut self) {
        let Some(task) = self.some().filter(|_| self.others.waits.len() < WAITS) else { return };
        let mut raw = Raw::connect(self.daemon.socket());
        raw.request(1, "task.block", &json!({ "ids": [task] }));
        self.others.waits.push((task, raw));
    }

    /// Checks that every wait has one answer: the end of its task.
    pub(super) fn waits_are_answered(&mut self) {
        for (task, mut raw) in std::mem::take(&mut self.others.waits) {
            let answer = raw.receive();
            let ended = answer.as_ref().map(|answer| &answer["result"]["tasks"][0]);
            let is_right = ended.is_some_and(|ended| {
                ended["id"] == json!(task)
                    && !["pending", "running"].contains(&ended["status"].as_str().unwrap_or("running"))
            });
            if !is_right {
                self.fault(format!("a wait for {task} was answered by {answer:?}"));
            }
        }
    }

    /// Waits for the processes that outlive the leaders of their tasks.
    pub(super) fn wait_for_lingering(&mut self) {
        let left: Vec<TaskId> = self.ledger.open.keys().copied().collect();
        for task in left {
            let mut client = self.daemon.client();
            let ended = poll_until("a task is over with all of its processes", || {
                // The ledger reports an unknown task.
                let Ok(found) = client.call::<TaskGet>(&IdParams { id: task.into() }) else {
                    return Some(None);
                };
                let is_over = found.task.status.is_active() || !found.task.lingering;
                is_over.then_some(Some(found.task))
            });
            if let Some(task) = ended.filter(|task| !task.status.is_active()) {
                self.ledger.ended(&task);
            }
        }
    }

    /// Kills the daemon in the middle of submissions. Those without an answer are repeated with the same keys.
    fn kill_and_keep(&mut self) {
        let (answers, submissions) = (self.below(25), self.submissions());
        let (sender, receiver) = mpsc::channel();
        let socket = self.daemon.socket_path().clone();
        let submits = thread::spawn(move || {
            let client = Client::connect(&socket);
            submit_all(client.ok(), submissions, &sender)
        });
        for _ in 0..answers {
            if receiver.recv_timeout(PATIENCE).is_err() {
                break;
            }
        }
        self.disconnect();
        self.daemon.kill9();
        self.table.kills += 1;
        self.table.cut += self.ledger.killed_and_kept();
        self.daemon.launch();
        self.has_figures = false;
        for submission in submits.join().expect("a thread that submits") {
            let Submission { token, code, params, task } = submission;
            let task = task.or_else(|| self.call::<TaskSubmit>(&params).map(|result| result.task.id));
            match task {
                Some(task) => self.accepted(task, Expected::of(token, code, "text\n")),
                None => self.fault(format!("the submission of {token} is refused after a kill")),
            }
        }
    }

    /// Creates some submissions, each with a key.
    fn submissions(&mut self) -> Vec<Submission> {
        let count = 1 + self.below(30);
        let one = |_| {
            let (token, code) = (self.ledger.token(), i32::try_from(self.below(4)).unwrap_or(0));
            let path = self.ledger.path.display();
            let shell = format!("echo {token} >> {path}; echo text; exit {code}");
            let mut params = SubmitParams { shell: Some(shell.as_str().into()), ..self.daemon.params() };
            (params.session, params.key) = (Some("killed".to_owned()), Some(format!("key-{token}")));
            Submission { token, code, params, task: None }
        };
        (0..count).map(one).collect()
    }

    /// Kills the keeper. The daemon hands all running processes to another keeper, or is killed before it can.
    fn kill_keeper(&mut self) {
        // A daemon is ready before its new keeper executes its program.
        let gone = poll_until("a durable daemon has a keeper", || self.daemon.keepers().pop());
        gone.kill();
        self.table.keepers += 1;
        if self.below(3) == 0 {
            self.disconnect();
            self.daemon.kill9();
            self.table.kills += 1;
            self.table.cut += self.ledger.killed_and_not_kept();
            self.daemon.launch();
            self.has_figures = false;
        } else {
            self.daemon.wait_for_new_keeper(&gone);
        }
    }

    /// Stops the daemon, which leaves its tasks running, and starts the next one.
    fn stop_and_start(&mut self) {
        self.disconnect();
        if self.below(2) == 0 {
            self.call::<DaemonShutdown>(&ShutdownParams { grace_ms: Some(1000), cancel: false });
            self.daemon.ended();
        } else {
            self.daemon.stop();
        }
        self.table.stops += 1;
        self.table.cut += self.ledger.killed_and_kept();
        self.daemon.launch();
        self.has_figures = false;
    }
}

/// Makes these submissions until the daemon is gone, and reports each answer through `sender`.
fn submit_all(client: Option<Client>, mut all: Vec<Submission>, sender: &Sender<()>) -> Vec<Submission> {
    let Some(mut client) = client else { return all };
    client.wait_at_most(PATIENCE);
    for submission in &mut all {
        let Ok(result) = client.call::<TaskSubmit>(&submission.params) else { break };
        submission.task = Some(result.task.id);
        // The receiver may be gone already.
        let _ = sender.send(());
    }
    all
}
