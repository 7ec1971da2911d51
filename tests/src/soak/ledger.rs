//! What was submitted, and what ran: each task writes its token into a file, once.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;

use bgd_shared::id::TaskId;
use bgd_shared::task::{Exit, Status, Task};

/// What is expected of a task.
#[derive(Clone, Copy, Debug)]
pub struct Expected {
    /// Its line in the ledger; `None` for one that writes none.
    pub token: Option<u64>,
    /// The code that it ends with by itself; `None` for one that does not.
    pub code: Option<i32>,
    /// Whether something was done to it, after which it may end otherwise.
    pub disturbed: bool,
}

/// The tasks of the running daemon, and the tokens of all.
#[derive(Debug)]
pub struct Ledger {
    /// The file.
    pub path: PathBuf,
    /// What is not known to have ended.
    pub open: BTreeMap<TaskId, Expected>,
    last: u64,
    /// Tokens whose tasks have run to their end.
    ran: BTreeSet<u64>,
    /// Tokens of tasks that may have run: cancelled in time, or lost with a killed daemon.
    maybe: BTreeSet<u64>,
    /// Tasks that have ended otherwise than they should have, or are unknown.
    pub wrong: Vec<String>,
}

impl Ledger {
    /// Begins an empty ledger in this file.
    pub fn new(path: PathBuf) -> Self {
        let (open, ran, maybe) = (BTreeMap::new(), BTreeSet::new(), BTreeSet::new());
        Self { path, open, last: 0, ran, maybe, wrong: Vec::new() }
    }

    /// Returns the next token.
    pub fn token(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// Notes that something was done to a task.
    pub fn disturb(&mut self, task: TaskId) {
        if let Some(expected) = self.open.get_mut(&task) {
            expected.disturbed = true;
        }
    }

    /// Notes how a task has ended.
    pub fn ended(&mut self, task: &Task) {
        let Some(expected) = self.open.remove(&task.id) else { return };
        let is_right = match (expected.disturbed, expected.code) {
            (true, _) | (_, None) => !task.status.is_active(),
            (false, Some(0)) => task.status == Status::Completed,
            (false, Some(code)) => task.status == Status::Failed && task.exit == Some(Exit::Code(code)),
        };
        if !is_right {
            self.wrong.push(format!("{expected:?}: {task:?}"));
        }
        if let Some(token) = expected.token {
            let list = if expected.disturbed { &mut self.maybe } else { &mut self.ran };
            list.insert(token);
        }
    }

    /// Notes that the daemon was killed: what was open is lost, as it must be (R09).
    pub fn killed(&mut self) -> u64 {
        let open = std::mem::take(&mut self.open);
        self.maybe.extend(open.values().filter_map(|expected| expected.token));
        open.len() as u64
    }

    /// Returns how many runs are missing in the file, and how many are there twice. Begins the file anew.
    pub fn count(&mut self) -> (u64, u64) {
        let text = fs::read_to_string(&self.path).unwrap_or_default();
        let mut seen: BTreeMap<u64, u64> = BTreeMap::new();
        for line in text.lines() {
            *seen.entry(line.parse().expect("a line of the ledger is a token")).or_default() += 1;
        }
        let doubled = seen.values().filter(|count| **count > 1).count();
        let stranger =
            seen.keys().filter(|token| !self.ran.contains(token) && !self.maybe.contains(token)).count();
        let lost = self.ran.iter().filter(|token| !seen.contains_key(token)).count();
        (self.ran, self.maybe) = (BTreeSet::new(), BTreeSet::new());
        fs::write(&self.path, "").expect("the ledger");
        (lost as u64, (doubled + stranger) as u64)
    }
}
