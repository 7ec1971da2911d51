//! Queries for lists of tasks.

use bgd_shared::id::TaskId;
use bgd_shared::request::ClearedTasks;
use bgd_shared::task::Summary;
use bgd_shared::text::OsText;
use bgd_shared::time::Timestamp;

use super::filter::Filter;
use super::ordinal::Ordinal;
use super::task::{Snapshot, Task, Work};

/// How many bytes of text one page searches, so that a search does not delay other calls. The next page continues from
/// there.
pub const SEARCH_BYTES: usize = 4 << 20;

/// The cost of checking a task, in equivalent bytes of text.
const LOOK_BYTES: usize = 64;

/// The cost of searching a task besides its texts, in equivalent bytes of text.
const SEARCHED_BYTES: usize = 256;

#[derive(Clone, Debug, Default)]
pub struct ListQuery {
    /// Only tasks that pass this filter.
    pub filter: Filter,
    pub limit: usize,
    /// Only tasks older than this one.
    pub after: Option<Ordinal>,
    /// Only tasks that have not ended before this time.
    pub since: Option<Timestamp>,
    /// Only tasks that contain this text.
    pub text: Option<Text>,
}

/// A page of tasks, newest first.
#[derive(Debug)]
pub struct Page {
    pub tasks: Vec<Snapshot>,
    /// The cursor of the next page; `None` if this is the last.
    pub next: Option<Ordinal>,
    /// The counts of the filter's parent session, or of all tasks.
    pub summary: Summary,
    /// The tasks of the filter's batch that are gone; `None` if there are none.
    pub cleared: Option<ClearedTasks>,
}

impl ListQuery {
    /// Reports whether a task passes, ignoring the parent session and the text. `batch` is the filter's resolved batch.
    pub(super) fn holds(&self, task: &Task, batch: Option<TaskId>) -> bool {
        let ended = || task.finished().map(|finished| finished.completed_at);
        self.filter.holds(task, batch) && self.since.is_none_or(|since| ended().is_none_or(|at| at >= since))
    }

    /// Reports whether the query uses something without an index.
    pub(super) fn needs_look(&self) -> bool {
        self.filter.needs_look() || self.since.is_some()
    }
}

/// A text to search for, ignoring case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Text(Box<str>);

impl Text {
    pub fn new(text: &str) -> Self {
        Self(text.to_lowercase().into())
    }

    /// Reports whether the text is in a task's description, command line, prompt or any of its labels.
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

/// Returns the newest wanted tasks that contain the text. The total cost is bounded: if it would be exceeded, `stopped`
/// is set to the last task that was checked.
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

/// Returns the cost of checking a task, and of searching it if it is wanted, in bytes of text.
fn searched_bytes(task: &Task, is_wanted: bool) -> usize {
    if is_wanted { SEARCHED_BYTES + task.text_bytes() } else { LOOK_BYTES }
}
