//! Queries for lists of tasks.

use bgd_shared::id::TaskId;
use bgd_shared::task::Summary;
use bgd_shared::text::OsText;
use bgd_shared::time::Timestamp;

use super::filter::Filter;
use super::ordinal::Ordinal;
use super::task::{Snapshot, Task, Work};

/// How much text one page searches, so that a search delays nobody. The next page goes on from there.
pub const SEARCH_BYTES: usize = 4 << 20;

/// What it costs to look at a task, as if it were so much text.
const LOOK_BYTES: usize = 64;

/// What it costs to search a task besides its texts.
const SEARCHED_BYTES: usize = 256;

/// A query for a page of tasks.
#[derive(Clone, Debug, Default)]
pub struct ListQuery {
    /// Only tasks that pass this filter.
    pub filter: Filter,
    /// The page size.
    pub limit: usize,
    /// Only tasks older than this one.
    pub after: Option<Ordinal>,
    /// Only tasks that have not ended before this time.
    pub since: Option<Timestamp>,
    /// Only tasks with this text.
    pub text: Option<Text>,
}

/// A page of tasks, newest first.
#[derive(Debug)]
pub struct Page {
    pub tasks: Vec<Snapshot>,
    /// The cursor of the next page; `None` if this is the last.
    pub next: Option<Ordinal>,
    /// The counts of the parent session that the filter names, or of all tasks.
    pub summary: Summary,
}

impl ListQuery {
    /// Whether a task passes, ignoring the parent session and the text. `batch` is what the filter's batch was resolved to.
    pub(super) fn holds(&self, task: &Task, batch: Option<TaskId>) -> bool {
        let ended = || task.finished().map(|finished| finished.completed_at);
        self.filter.holds(task, batch) && self.since.is_none_or(|since| ended().is_none_or(|at| at >= since))
    }

    /// Whether the query uses something that has no index.
    pub(super) fn needs_look(&self) -> bool {
        self.filter.needs_look() || self.since.is_some()
    }
}

/// A text to search for, ignoring case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Text(Box<str>);

impl Text {
    /// Creates the search for a text.
    pub fn new(text: &str) -> Self {
        Self(text.to_lowercase().into())
    }

    /// Whether a task's description, command line, prompt or one of its labels has the text.
    pub(super) fn is_in(&self, task: &Task) -> bool {
        let has = |text: &str| text.to_lowercase().contains(&*self.0);
        let has_command = match &task.spec.work {
            Work::Argv(argv) => {
                let words: Vec<&[u8]> = argv.iter().map(OsText::as_bytes).collect();
                has(&String::from_utf8_lossy(&words.join(&b' ')))
            }
            Work::Shell(line) => has(&String::from_utf8_lossy(line.as_bytes())),
            Work::Agent(agent) => has(&agent.name),
        };
        let edited = task.plan().description.as_deref();
        let description = edited.or(task.spec.description.as_deref());
        has_command
            || description.is_some_and(has)
            || task.agent.as_ref().is_some_and(|agent| has(&agent.prompt))
            || task.spec.tags.iter().any(|tag| has(tag))
    }
}

/// Returns the newest tasks that are wanted and have the text. What all of that costs is bounded: if it would be too
/// much, `stopped` is set to the last task that was looked at.
pub fn search<'a>(
    newest: impl Iterator<Item = (Ordinal, &'a Task)>,
    wanted: impl Fn(&Task) -> bool,
    text: &Text,
    most: usize,
    stopped: &mut Option<Ordinal>,
) -> Vec<Ordinal> {
    let (mut found, mut searched, mut last) = (Vec::new(), 0, None);
    for (ordinal, task) in newest {
        let is_wanted = wanted(task);
        searched += searched_bytes(task, is_wanted);
        if searched > SEARCH_BYTES && last.is_some() {
            *stopped = last;
            break;
        }
        last = Some(ordinal);
        if is_wanted && text.is_in(task) {
            found.push(ordinal);
            if found.len() == most {
                break;
            }
        }
    }
    found
}

/// Returns what it costs to look at a task, in bytes of text, or to search it too.
fn searched_bytes(task: &Task, is_wanted: bool) -> usize {
    if is_wanted { SEARCHED_BYTES + task.text_bytes() } else { LOOK_BYTES }
}
