//! What the core must do in one step, as predicted by the model and as observed by the simulator.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::wire::failures;
use bgd_core::{CoreError, Notice, OrderError, Reply, ReplyTo, Snapshot, Unmovable, Unpausable};
use bgd_shared::agent::AgentSettings;
use bgd_shared::event::EventKind;
use bgd_shared::id::TaskId;
use bgd_shared::notice::NoticeKind;
use bgd_shared::task::Status;
use bgd_shared::time::Timestamp;

use super::support::KILL;

/// The expected content of a reply.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    Task(TaskId, Status),
    Backgrounded(TaskId, Status),
    /// A batch and its tasks.
    Many(TaskId, Vec<TaskId>),
    /// Each new task with the task that it repeats.
    Rerun(Vec<(TaskId, TaskId)>),
    Tasks(Vec<(TaskId, Status)>),
    Blocked {
        tasks: Vec<(TaskId, Status)>,
        timed_out: bool,
    },
    Cleared(u64),
    SessionEnded {
        cancelled: u64,
        cleared: u64,
    },
    Inbox {
        items: Vec<(u64, SentNotice)>,
        more: bool,
        lost: u64,
    },
    Acknowledged {
        acknowledged: u64,
        left: u64,
    },
    Owned,
    /// Name, slots, slots in use, and whether it is paused.
    Group(String, u32, u32, bool, u64),
    ShutDown(u64),
    /// The task is not complete; with its error.
    NoResult(TaskId, Status, Option<String>),
    Error(CoreError),
}

impl From<&Reply> for Answer {
    fn from(reply: &Reply) -> Self {
        let short = |tasks: &[Snapshot]| tasks.iter().map(|task| (task.id, task.status())).collect();
        match reply {
            Reply::Task(task) => Self::Task(task.id, task.status()),
            Reply::Backgrounded(task) => Self::Backgrounded(task.id, task.status()),
            Reply::Rerun(pairs) => Self::Rerun(pairs.clone()),
            Reply::Many { batch, ids } => Self::Many(*batch, ids.clone()),
            Reply::Tasks(tasks) => Self::Tasks(short(tasks)),
            Reply::Blocked { tasks, timed_out, .. } => {
                Self::Blocked { tasks: short(tasks), timed_out: *timed_out }
            }
            Reply::Cleared { cleared, .. } => Self::Cleared(*cleared),
            Reply::SessionEnded { cancelled, cleared, .. } => {
                Self::SessionEnded { cancelled: *cancelled, cleared: *cleared }
            }
            Reply::Inbox { items, more, lost } => {
                let items =
                    items.iter().map(|(number, notice)| (*number, SentNotice::from(&**notice))).collect();
                Self::Inbox { items, more: *more, lost: *lost }
            }
            Reply::Acknowledged { acknowledged, left } => {
                Self::Acknowledged { acknowledged: *acknowledged, left: *left }
            }
            Reply::Owned => Self::Owned,
            Reply::Group(group) => {
                let (slots, used, oversized) = (group.slots, group.used, group.oversized);
                Self::Group(group.name.to_string(), slots, used, group.is_paused, oversized)
            }
            Reply::ShutDown { cancelled, .. } => Self::ShutDown(*cancelled),
            Reply::Error(CoreError::NotComplete(id, status, finished)) => {
                Self::NoResult(*id, *status, finished.as_deref().and_then(failures::error_of))
            }
            Reply::Error(error) => Self::Error(error.clone()),
        }
    }
}

/// The comparable part of a notice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SentNotice {
    pub task: TaskId,
    pub run: u32,
    pub kind: NoticeKind,
    pub status: Status,
    pub at: Timestamp,
    /// Number of other active tasks of its session.
    pub active: Option<u64>,
    /// Number of the question that it reports.
    pub question: Option<u64>,
}

impl From<&Notice> for SentNotice {
    fn from(notice: &Notice) -> Self {
        let Notice { number: _, kind, at, active, is_removed: _, task } = notice;
        let questions = task.agent.as_ref().map(|agent| &agent.questions);
        let question = questions.and_then(|questions| questions.front()).map(|question| question.request);
        let (run, status) = (task.run, task.status());
        Self { task: task.id, run, kind: *kind, status, at: *at, active: *active, question }
    }
}

/// A prompt for an agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Prompted {
    pub task: TaskId,
    pub run: u32,
    pub prompt: Arc<str>,
    pub settings: Arc<AgentSettings>,
    /// `None` for a new conversation.
    pub session: Option<Arc<str>>,
}

/// The answer to an agent's question; `None` denies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decision {
    pub task: TaskId,
    pub key: u64,
    pub option: Option<String>,
}

/// The required behaviour of the core in one step. The order of starts is fixed; otherwise only the order within each
/// task is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Expected {
    /// Starts of processes and agents.
    pub starts: Vec<TaskId>,
    /// Follow-up prompts.
    pub prompts: Vec<Prompted>,
    pub decisions: Vec<Decision>,
    /// Adopted processes of other programs.
    pub adopts: Vec<TaskId>,
    /// Jobs that left the foreground of a client.
    pub detached: Vec<(TaskId, u64)>,
    pub ends: Vec<(TaskId, i32)>,
    pub signals: Vec<(TaskId, i32, bool)>,
    /// Tasks that are paused (true) or continued (false).
    pub pauses: Vec<(TaskId, bool)>,
    pub events: Vec<(TaskId, EventKind)>,
    pub notices: Vec<SentNotice>,
    pub forgets: Vec<TaskId>,
    pub replies: BTreeMap<ReplyTo, Answer>,
    pub exit: bool,
}

impl Expected {
    /// Returns the names of the situations that occurred, for counting.
    pub fn places(&self) -> Vec<&'static str> {
        let answer = |answer: &Answer| match answer {
            Answer::Task(..) => "task",
            Answer::Backgrounded(..) => "backgrounded",
            Answer::Many(..) => "a batch",
            Answer::Rerun(_) => "run again",
            Answer::Tasks(_) => "cancel ends",
            Answer::Blocked { timed_out: false, .. } => "block ends",
            Answer::Blocked { timed_out: true, .. } => "block times out",
            Answer::Cleared(_) => "clear ends",
            Answer::SessionEnded { .. } => "session ends",
            Answer::Inbox { items, .. } if items.is_empty() => "an empty inbox",
            Answer::Inbox { lost: 1.., .. } => "an inbox with a loss",
            Answer::Inbox { more: true, .. } => "a page of an inbox",
            Answer::Inbox { .. } => "an inbox",
            Answer::Acknowledged { acknowledged: 0, .. } => "acknowledged nothing",
            Answer::Acknowledged { left: 0, .. } => "acknowledged all",
            Answer::Acknowledged { .. } => "acknowledged a part",
            Answer::Owned => "owned",
            Answer::Group(..) => "a group",
            Answer::ShutDown(_) => "shutdown ends",
            Answer::NoResult(..) => "not complete",
            Answer::Error(error) => error_name(error),
        };
        let decision = |decision: &Decision| if decision.option.is_some() { "answered" } else { "denied" };
        let event = |event: &(TaskId, EventKind)| match event.1 {
            EventKind::Resumed => Some("resumed"),
            EventKind::NeedsInput => Some("needs input"),
            EventKind::Held => Some("held"),
            EventKind::Released => Some("released"),
            EventKind::Edited => Some("edited"),
            EventKind::Retrying => Some("retrying"),
            EventKind::Ready => Some("ready"),
            EventKind::Paused => Some("paused"),
            EventKind::Continued => Some("continued"),
            _ => None,
        };
        let notice = |notice: &SentNotice| match notice.kind {
            NoticeKind::Started => "told of a start",
            NoticeKind::NeedsInput => "told of a question",
            NoticeKind::Completed | NoticeKind::Failed | NoticeKind::Cancelled => "told of an end",
            NoticeKind::Unknown => "told of something unknown",
        };
        let notices = self.notices.iter().map(notice);
        let kills = self.ends.iter().filter(|(_, signal)| *signal == KILL).map(|_| "SIGKILL");
        let of_agents = self.decisions.iter().map(decision).chain(self.events.iter().filter_map(event));
        let exit = self.exit.then_some("exit");
        self.replies.values().map(answer).chain(kills).chain(of_agents).chain(notices).chain(exit).collect()
    }
}

/// Returns the name of an error, for counting.
const fn error_name(error: &CoreError) -> &'static str {
    match error {
        CoreError::NotFound(_) => "not found",
        CoreError::IsBatch(_) => "a batch",
        CoreError::Ambiguous(..) => "ambiguous",
        CoreError::NotComplete(..) => "not complete",
        CoreError::EndedFirst(..) => "ended first",
        CoreError::NotBackgroundable(_, Unmovable::InBackground) => "in the background already",
        CoreError::NotBackgroundable(_, Unmovable::OfAnother) => "another's job",
        CoreError::NotBackgroundable(_, Unmovable::Direct) => "a direct job",
        CoreError::NotRunning(..) => "not running",
        CoreError::StillActive(..) => "still active",
        CoreError::NoSignals(_) => "no signals",
        CoreError::NotPausable(_, Unpausable::Pending) => "paused too early",
        CoreError::NotPausable(_, Unpausable::Agent) => "an agent is not paused",
        CoreError::NotPausable(_, Unpausable::Ending) => "paused too late",
        CoreError::NoAgent(_) => "no agent",
        CoreError::NotResumable(..) => "not resumable",
        CoreError::BeingResumed(_) => "being resumed",
        CoreError::BeingCleared(_) => "being cleared",
        CoreError::Withdrawn(_) => "resume withdrawn",
        CoreError::NoSession { .. } => "no conversation",
        CoreError::Refused(..) => "resume refused",
        CoreError::NotAsked(..) => "not asked",
        CoreError::NoSuchOption(..) => "no such option",
        CoreError::Full(_) => "full",
        CoreError::FullMemory { .. } => "full of memory",
        CoreError::TooManyJobs(_) => "too many jobs",
        CoreError::TooManySessions(_) => "too many sessions",
        CoreError::TooManyWaits(_) => "too many waits",
        CoreError::TooManyReads(_) => "too many reads",
        CoreError::ShuttingDown => "shutting down",
        CoreError::Order(OrderError::UnknownGroup(..)) => "an unknown group",
        CoreError::Order(OrderError::TooManyGroups(_)) => "too many groups",
        CoreError::Order(OrderError::GroupInUse(..)) => "a group in use",
        CoreError::Order(OrderError::DefaultGroup) => "the default group",
        CoreError::Order(OrderError::TooManySlots { .. }) => "too many slots",
        CoreError::Order(OrderError::NotPending(..)) => "not pending",
        CoreError::Order(OrderError::GivenAway(_)) => "in the queue of another place",
        CoreError::Order(OrderError::Cycle(..)) => "a cycle",
        CoreError::Order(OrderError::NeverReady(_)) => "never ready",
        CoreError::Order(OrderError::LargeBatch { .. }) => "a large batch",
        CoreError::Order(OrderError::NotEnded(..)) => "not ended",
        CoreError::Order(OrderError::NotRepeatable(..)) => "not repeatable",
        CoreError::Order(OrderError::TooManyReruns(_)) => "too many reruns",
        CoreError::Order(OrderError::NoBatch(_)) => "no batch",
        CoreError::Order(OrderError::NotStaged(_)) => "a part of nothing",
        CoreError::Order(OrderError::Torn(_)) => "a batch of which some were withdrawn",
        CoreError::Order(OrderError::AlreadyStaged(_)) => "two batches at once",
    }
}

/// Counts by name of a situation.
pub type Reached = BTreeMap<&'static str, u64>;

/// Situations that a long run must reach; otherwise its success proves nothing.
pub const PLACES: [&str; 115] = [
    "too large to be kept",
    "too old to be kept",
    "a crash loop",
    "an end is learned of late",
    "a batch",
    "a cycle",
    "a part of nothing",
    "no batch",
    "the rest of a batch is cancelled",
    "two batches at once",
    "waits for its batch",
    "its start is held back",
    "a dependency can't come true",
    "a group",
    "a group in use",
    "an unknown group",
    "edited",
    "held",
    "not pending",
    "released",
    "retrying",
    "starts at a time",
    "starts behind others",
    "too many slots",
    "a direct job",
    "a large batch",
    "a loss is kept",
    "a notice is seen anyway",
    "a page of an inbox",
    "a question is told by a hand-over",
    "a read ends with an item",
    "a read ends with its time",
    "a read is refused",
    "a start hangs",
    "a continue is under way",
    "a signal is under way",
    "left to be tried again",
    "abandoned",
    "abandoned while starting",
    "abandoned while stopping",
    "acknowledged a part",
    "acknowledged all",
    "acknowledged nothing",
    "adopted",
    "ambiguous",
    "an agent is not paused",
    "an empty inbox",
    "an end is told to nobody",
    "an inbox",
    "an inbox with a loss",
    "another's job",
    "answered",
    "backgrounded",
    "being cleared",
    "being resumed",
    "block ends",
    "block times out",
    "cancel ends",
    "clear ends",
    "continued",
    "copy goes on",
    "denied",
    "ended first",
    "ended with its owner",
    "ends abandoned",
    "ends in the background",
    "ends in the foreground",
    "exit",
    "fact before a resume",
    "full",
    "full of memory",
    "hand-over of a process",
    "hand-over of a starting job",
    "hand-over of a stopping job",
    "hand-over of an agent",
    "in the background already",
    "more than slots",
    "needs input",
    "no agent",
    "no signals",
    "no such option",
    "not adopted",
    "not asked",
    "not complete",
    "not found",
    "not kept for an ended session",
    "not ready",
    "not resumable",
    "not running",
    "one owner of two goes",
    "owned",
    "paused",
    "paused too early",
    "paused too late",
    "paused while starting",
    "ready",
    "refused, as it was",
    "resume fails",
    "resume is cancelled",
    "resume of nobody",
    "resume refused",
    "resume withdrawn",
    "resumed",
    "session ends",
    "several jobs are abandoned",
    "shutdown ends",
    "shutting down",
    "stalled",
    "still active",
    "stopped while resuming",
    "timed out after a resume",
    "told of a question",
    "told of a start",
    "told of an end",
    "SIGKILL",
];
