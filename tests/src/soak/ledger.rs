//! Submissions and actual runs: each task writes its token into a file, once, and prints a text that is known in
//! advance.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use bgd_shared::id::TaskId;
use bgd_shared::order::CancelReason;
use bgd_shared::task::{Exit, Status, Task};

/// Expected behaviour of a task.
#[derive(Clone, Copy, Debug)]
pub struct Expected {
    /// Its line in the ledger; `None` if it writes none.
    pub token: Option<u64>,
    /// Its exit code if left alone; `None` if it does not end by itself.
    pub code: Option<i32>,
    /// Its whole output; `None` if the output is not checked.
    pub output: Option<&'static str>,
    pub work: Work,
    /// The task that must end before it starts, if any.
    pub after: Option<TaskId>,
    /// Whether it was disturbed, so that it may end differently.
    pub disturbed: bool,
    /// Whether a task before it may never have started, so that this one is cancelled.
    pub may_not_start: bool,
}

impl Expected {
    /// Expects a process that writes its token, prints this, and exits with this code.
    pub fn of(token: u64, code: i32, output: &'static str) -> Self {
        let (token, code, output) = (Some(token), Some(code), Some(output));
        Self {
            token,
            code,
            output,
            work: Work::Processes,
            after: None,
            disturbed: false,
            may_not_start: false,
        }
    }
}

/// How a task is carried out. It determines how the kill of a durable daemon may affect the task.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Processes, or a handed-over one: the kill does not affect them.
    Processes,
    /// A job in a terminal: its output in that very moment may be lost.
    Terminal,
    /// A turn of an agent: it is interrupted.
    Agent,
}

/// The tasks of the running daemon, and the tokens of all tasks.
#[derive(Debug)]
pub struct Ledger {
    pub path: PathBuf,
    /// Tasks that are not known to have ended.
    pub open: BTreeMap<TaskId, Expected>,
    last: u64,
    /// Tokens whose tasks have run to their end.
    ran: BTreeSet<u64>,
    /// Tokens of tasks that may have run: cancelled in time, or lost with a killed daemon.
    maybe: BTreeSet<u64>,
    /// Tasks that have not ended as expected, or are unknown.
    pub wrong: Vec<String>,
}

impl Ledger {
    /// Creates an empty ledger in this file.
    pub fn new(path: PathBuf) -> Self {
        let (open, ran, maybe) = (BTreeMap::new(), BTreeSet::new(), BTreeSet::new());
        Self { path, open, last: 0, ran, maybe, wrong: Vec::new() }
    }

    /// Returns the next token.
    pub fn token(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Records that a task, and so all tasks that wait for it, were disturbed.
    pub fn disturb(&mut self, task: TaskId) {
        for task in self.with_dependents(task) {
            self.open.entry(task).and_modify(|expected| expected.disturbed = true);
        }
    }

    /// Records that a turn was interrupted. If it had started, the tasks that wait for it run.
    fn cut(&mut self, task: TaskId) {
        for behind in self.with_dependents(task) {
            self.open.entry(behind).and_modify(|expected| {
                expected.disturbed |= behind == task;
                expected.may_not_start |= behind != task;
            });
        }
    }

    /// Returns this task and all that wait for it, directly or indirectly.
    fn with_dependents(&self, task: TaskId) -> BTreeSet<TaskId> {
        let (mut found, mut next) = (BTreeSet::from([task]), vec![task]);
        while let Some(task) = next.pop() {
            let behind = self.open.iter().filter(|(_, expected)| expected.after == Some(task));
            next.extend(behind.map(|(id, _)| *id).filter(|id| found.insert(*id)));
        }
        found
    }

    /// Records the end of a task. A task with remaining processes is not over.
    pub fn ended(&mut self, task: &Task) {
        if task.lingering {
            return;
        }
        let Some(expected) = self.open.remove(&task.id) else { return };
        let never_began = expected.may_not_start && task.cancel_reason == Some(CancelReason::Dependency);
        let may_differ = expected.disturbed || never_began;
        let is_right = match (may_differ, expected.code) {
            (true, _) | (_, None) => !task.status.is_active(),
            (false, Some(0)) => task.status == Status::Completed,
            (false, Some(code)) => task.status == Status::Failed && task.exit == Some(Exit::Code(code)),
        };
        if !is_right {
            self.wrong.push(format!("{expected:?}: {task:?}"));
        }
        if let (false, Some(output)) = (may_differ, expected.output) {
            let printed = fs::read(&task.output.path).unwrap_or_default();
            if printed != output.as_bytes() {
                let printed = String::from_utf8_lossy(&printed).into_owned();
                self.wrong.push(format!("{expected:?} has printed {printed:?}: {task:?}"));
            }
        }
        if let Some(token) = expected.token {
            let list = if may_differ { &mut self.maybe } else { &mut self.ran };
            list.insert(token);
        }
    }

    /// Records that a durable daemon was killed while its keeper holds the running processes (R126). Returns the number
    /// of interrupted turns.
    pub fn killed_and_kept(&mut self) -> u64 {
        let mut cut = Vec::new();
        for (task, expected) in &mut self.open {
            match expected.work {
                Work::Processes => {}
                Work::Terminal => expected.output = None,
                Work::Agent => cut.push(*task),
            }
        }
        for task in &cut {
            self.cut(*task);
        }
        cut.len() as u64
    }

    /// Records that the running tasks of a durable daemon may have ended: it was killed together with its keeper, or
    /// asked to end its tasks. No task is run again. Returns the number of open tasks.
    pub fn killed_and_not_kept(&mut self) -> u64 {
        self.open.values_mut().for_each(|expected| expected.disturbed = true);
        self.open.len() as u64
    }

    /// Records that the daemon was killed: its open tasks are lost, as they must be (R09). Returns their number.
    pub fn killed(&mut self) -> u64 {
        let open = std::mem::take(&mut self.open);
        self.maybe.extend(open.values().filter_map(|expected| expected.token));
        open.len() as u64
    }

    /// Returns the tokens that are missing in the file, and those that are there twice, or of no task. Then empties the
    /// file.
    pub fn count(&mut self) -> (Vec<u64>, Vec<u64>) {
        let text = fs::read_to_string(&self.path).unwrap_or_default();
        let mut seen: BTreeMap<u64, u64> = BTreeMap::new();
        for line in text.lines() {
            *seen.entry(line.parse().expect("a line of the ledger is a token")).or_default() += 1;
        }
        let is_known = |token: &u64| self.ran.contains(token) || self.maybe.contains(token);
        let doubled = seen.iter().filter(|(token, count)| **count > 1 || !is_known(token));
        let doubled = doubled.map(|(token, _)| *token).collect();
        let lost = self.ran.iter().filter(|token| !seen.contains_key(token)).copied().collect();
        (self.ran, self.maybe) = (BTreeSet::new(), BTreeSet::new());
        fs::write(&self.path, "").expect("the ledger");
        (lost, doubled)
    }
}
