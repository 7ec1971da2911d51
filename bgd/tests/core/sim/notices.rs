//! What clients and channels are told. What is known here comes from what was asked, answered and told;
//! neither the core nor the model is asked about it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bgd::core::{Mono, Notice, Outcome, ReplyTo, Request, Snapshot, State, StopReason};
use bgd_shared::event::EventKind;
use bgd_shared::id::TaskId;
use bgd_shared::notice::NoticeKind;
use proptest::{prop_assert, prop_assert_eq};

use super::super::expected::{Answer, Told};
use super::super::ops::Mark;
use super::{Checked, Sim};

/// What a consumer that must not act twice keys on.
type Key = (TaskId, u32, Option<u64>);

#[derive(Debug, Default)]
pub struct Post {
    /// Ends, and starts, that were seen in this step and not told yet.
    due: BTreeMap<TaskId, NoticeKind>,
    /// The ends of runs that were told.
    ends: BTreeSet<(TaskId, u32)>,
    starts: BTreeSet<TaskId>,
    questions: BTreeSet<(TaskId, u64)>,
    /// The parent sessions of all tasks that there are.
    sessions: BTreeMap<TaskId, Arc<str>>,
    /// Tasks whose parent session has ended.
    bereft: BTreeSet<TaskId>,
    /// What each session was told and has neither acknowledged nor been told of as lost.
    sent: BTreeMap<Arc<str>, Vec<Key>>,
    /// The numbers that were given, with what they stand for.
    numbers: BTreeMap<u64, (Arc<str>, Key)>,
    /// Those of them that must not come back.
    done: BTreeSet<u64>,
    reads: BTreeMap<ReplyTo, Read>,
    acks: BTreeMap<ReplyTo, (Arc<str>, u64)>,
    owners: BTreeSet<(u64, Arc<str>)>,
}

/// A read that is to be answered.
#[derive(Clone, Debug)]
struct Read {
    session: Arc<str>,
    after: u64,
    limit: usize,
    due: Mono,
    /// Whether it was not answered at once.
    waits: bool,
}

impl Post {
    /// Notes what a client asks for.
    pub fn asked(&mut self, to: ReplyTo, request: &Request, now: Mono) {
        match request {
            Request::ReadInbox { session, after, wait_ms, limit } => {
                let (session, due) = (session.clone(), now.plus_ms(*wait_ms));
                let read = Read { session, after: *after, limit: *limit, due, waits: false };
                self.reads.insert(to, read);
            }
            Request::AckInbox { session, upto } => {
                self.acks.insert(to, (session.clone(), *upto));
            }
            Request::OwnSession { session } => {
                self.owners.insert((to.client, session.clone()));
            }
            Request::EndSession { session } => self.session_ends(session),
            _ => {}
        }
    }

    /// A call was not answered at once.
    pub fn waits(&mut self, to: ReplyTo) {
        if let Some(read) = self.reads.get_mut(&to) {
            read.waits = true;
        }
    }

    fn session_ends(&mut self, session: &Arc<str>) {
        self.sent.remove(session);
        let given = self.numbers.iter().filter(|(_, (of, _))| of == session).map(|(number, _)| *number);
        self.done.extend(given);
        let tasks = self.sessions.iter().filter(|(_, of)| *of == session).map(|(task, _)| *task);
        self.bereft.extend(tasks);
    }

    /// A client goes: the sessions that end with it, and whether it shares any with others.
    pub fn leaves(&mut self, client: u64) -> (Vec<Arc<str>>, bool) {
        self.reads.retain(|to, _| to.client != client);
        let theirs: Vec<(u64, Arc<str>)> = self.owners.extract_if(.., |own| own.0 == client).collect();
        let is_owned = |session: &Arc<str>| self.owners.iter().any(|(_, other)| other == session);
        let all = theirs.into_iter().map(|(_, session)| session);
        let (shared, ended): (Vec<Arc<str>>, Vec<Arc<str>>) = all.partition(is_owned);
        for session in &ended {
            self.session_ends(session);
        }
        (ended, !shared.is_empty())
    }
}

impl Sim {
    /// A number of an inbox item, which may be one of the past, of the future, or of another session.
    pub(super) fn mark(&self, mark: Mark) -> u64 {
        let last = self.model.post.last;
        match mark {
            Mark::None => 0,
            Mark::Back(count) => last.saturating_sub(count.into()),
            Mark::Ahead(count) => last + u64::from(count),
            Mark::All => u64::MAX,
        }
    }

    /// Notes what an event says must be told: each end, unless somebody looked at it, and each first start
    /// in the background.
    pub(super) fn is_to_be_told(&mut self, kind: EventKind, task: &Snapshot) -> Checked {
        let id = task.id;
        let news = match kind {
            EventKind::Started if task.foreground.is_none() && is_first_attempt(task) => NoticeKind::Started,
            EventKind::Completed => NoticeKind::Completed,
            EventKind::Failed => NoticeKind::Failed,
            EventKind::Cancelled => NoticeKind::Cancelled,
            EventKind::Submitted => {
                if let Some(session) = &task.spec.session {
                    self.post.sessions.insert(id, session.clone());
                }
                return Ok(());
            }
            EventKind::Cleared => {
                self.post.sessions.remove(&id);
                self.post.bereft.remove(&id);
                return Ok(());
            }
            _ => return Ok(()),
        };
        if news.is_end() && task.run == 1 && self.ended_in_the_foreground(id) {
            self.reach("an end is told to nobody");
            return Ok(());
        }
        let before = self.post.due.insert(id, news);
        prop_assert!(!before.is_some_and(NoticeKind::is_end), "{id} ends before its last end was told");
        Ok(())
    }

    /// A notice follows its event, comes once, is of the task as it is, and counts the others rightly.
    pub(super) fn is_told_truly(&mut self, notice: &Notice, told: &Told) -> Checked {
        let (id, run, kind) = (told.task, told.run, told.kind);
        prop_assert_eq!((notice.at, notice.task.foreground), (self.now.wall, None));
        let session = self.post.sessions.get(&id).cloned();
        prop_assert_eq!(&session, &notice.task.spec.session);
        let is_end = kind.is_end();
        if kind == NoticeKind::NeedsInput {
            let question = told.question.unwrap_or_default();
            prop_assert!(self.post.questions.insert((id, question)), "{question} of {id} is told twice");
        } else {
            prop_assert_eq!(self.post.due.remove(&id), Some(kind), "nobody has heard of that: {:?}", told);
        }
        // r51: a resume is not a start; r55: one end for each run.
        let is_new = match is_end {
            true => self.post.ends.insert((id, run)),
            false if kind == NoticeKind::Started => run == 1 && self.post.starts.insert(id),
            false => !self.post.ends.contains(&(id, run)),
        };
        prop_assert!(is_new, "told twice: {:?}", told);
        let active = session.as_ref().map(|session| self.active_beside(session, id));
        prop_assert_eq!(told.active, active, "{:?}", told);
        let Some(session) = session.filter(|_| kind != NoticeKind::Started) else { return Ok(()) };
        if self.post.bereft.contains(&id) {
            self.reach("not kept for an ended session");
        } else {
            let key = (id, run, told.question.filter(|_| !is_end));
            self.post.sent.entry(session).or_default().push(key);
        }
        Ok(())
    }

    /// The session's other tasks that were submitted or resumed, and whose end was not told of.
    fn active_beside(&self, session: &Arc<str>, id: TaskId) -> u64 {
        let others = self.post.sessions.iter().filter(|(other, of)| **other != id && *of == session);
        let is_active = |other: &TaskId| self.told.get(other).is_some_and(|kind| !kind.is_terminal());
        others.filter(|(other, _)| is_active(other)).count() as u64
    }

    /// No end and no start is left untold when a step is over.
    pub(super) fn r55_every_end_was_told(&self) -> Checked {
        prop_assert!(self.post.due.is_empty(), "not told: {:?}", self.post.due);
        Ok(())
    }

    /// The question that can be answered now was told, unless somebody looks at the job.
    pub(super) fn questions_are_told(&self, task: &Snapshot) -> Checked {
        let next = task.agent.as_ref().and_then(|agent| agent.questions.front());
        if let (Some(next), None) = (next, task.foreground) {
            prop_assert!(self.post.questions.contains(&(task.id, next.request)), "not told: {:?}", next);
        }
        Ok(())
    }

    /// An inbox gives in order what it was told, each number for one thing only; what was acknowledged
    /// does not come back, and nothing is missing that is not counted as lost.
    pub(super) fn r55_an_inbox_is_true(&mut self, to: ReplyTo, answer: &Answer) -> Checked {
        match answer {
            Answer::Inbox { items, more, lost } => {
                let Some(read) = self.post.reads.remove(&to) else { return Ok(()) };
                if read.waits {
                    let by_time = items.is_empty();
                    self.reach(if by_time {
                        "a read ends with its time"
                    } else {
                        "a read ends with an item"
                    });
                }
                prop_assert!(!items.is_empty() || self.now.mono >= read.due, "answered too early");
                self.items_are_true(&read, items)?;
                let sent = self.post.sent.get(&read.session).map_or(&[][..], Vec::as_slice);
                if read.after == 0 && !*more {
                    let missing = sent.len().saturating_sub(items.len());
                    prop_assert!(missing as u64 <= *lost, "{missing} are missing, {lost} are lost");
                    let given = items.iter().map(|(number, _)| self.post.numbers[number].1);
                    prop_assert!(given.eq(sent[missing..].iter().copied()), "not in order: {:?}", sent);
                } else if *lost == 0 && !*more {
                    let given = items.iter().map(|(number, _)| self.post.numbers[number].1);
                    let begin = sent.len().saturating_sub(items.len());
                    prop_assert!(given.eq(sent[begin..].iter().copied()), "not the newest: {:?}", sent);
                }
            }
            Answer::Acknowledged { left, .. } => {
                let Some((session, upto)) = self.post.acks.remove(&to) else { return Ok(()) };
                let given = self.post.numbers.range(..=upto).filter(|(_, (of, _))| *of == session);
                let given: Vec<u64> = given.map(|(number, _)| *number).collect();
                self.post.done.extend(given);
                let sent = self.post.sent.entry(session.clone()).or_default();
                let left = usize::try_from(*left).unwrap_or(usize::MAX);
                prop_assert!(left <= sent.len(), "{left} of {} are left", sent.len());
                let gone = sent.len() - left;
                sent.drain(..gone);
                if upto > 0 && self.model.has_lost(&session) {
                    self.reach("a loss is kept");
                }
            }
            Answer::Error(_) if self.post.reads.remove(&to).is_some() => self.reach("a read is refused"),
            _ => {}
        }
        Ok(())
    }

    fn items_are_true(&mut self, read: &Read, items: &[(u64, Told)]) -> Checked {
        prop_assert!(items.len() <= read.limit);
        let mut before = read.after;
        for (number, told) in items {
            prop_assert!(*number > before, "{number} comes after {before}");
            before = *number;
            let key = (told.task, told.run, told.question.filter(|_| !told.kind.is_end()));
            let first = self.post.numbers.entry(*number).or_insert((read.session.clone(), key));
            prop_assert_eq!(&*first, &(read.session.clone(), key), "{} is given twice", number);
            prop_assert!(!self.post.done.contains(number), "{number} comes back");
        }
        Ok(())
    }

    /// The tasks that the end of these sessions and of these jobs is nothing to, as they are.
    pub(super) fn untouched_by_ends(&self, sessions: &[Arc<str>], jobs: &[TaskId]) -> Vec<Snapshot> {
        let of_ended = |id: &TaskId| self.post.sessions.get(id).is_some_and(|of| sessions.contains(of));
        let live = self.told.iter().filter(|(_, kind)| **kind != EventKind::Cleared).map(|(id, _)| *id);
        let others = live.filter(|id| !of_ended(id) && !jobs.contains(id));
        others.filter_map(|id| self.core.get(&id.into()).ok()).collect()
    }

    /// Every task of these sessions has ended or is told to, and nobody else's has heard of it; only a
    /// slot that has become free may be taken.
    pub(super) fn r54_only_those_sessions_have_ended(
        &mut self,
        sessions: &[Arc<str>],
        others: &[Snapshot],
    ) -> Checked {
        for before in others {
            let Ok(after) = self.core.get(&before.id.into()) else {
                return super::fail_with(format!("{} was cleared by a stranger's end", before.id));
            };
            if matches!(before.state, State::Queued { .. }) {
                // But for one that was to start after one of theirs.
                let reason = after.finished().map(|finished| &finished.outcome);
                let is_dependent = matches!(reason, Some(Outcome::Cancelled(StopReason::Dependency(..))));
                prop_assert!(!after.is_finished() || is_dependent, "{:?}", after);
            } else {
                prop_assert_eq!(format!("{:?}", after), format!("{:?}", before), "a stranger's end");
            }
        }
        let theirs: Vec<TaskId> =
            self.post.sessions.iter().filter(|(_, of)| sessions.contains(of)).map(|(id, _)| *id).collect();
        for id in &theirs {
            let Ok(task) = self.core.get(&(*id).into()) else { continue };
            let is_ending = match &task.state {
                State::Starting { stop } | State::Resuming { stop, .. } => stop.is_some(),
                State::Stopping { .. } | State::Finished(_) => true,
                State::Queued { .. } | State::Running { .. } => false,
            };
            prop_assert!(is_ending, "its session has ended: {:?}", task);
        }
        if !theirs.is_empty() {
            self.reach("ended with its owner");
        }
        Ok(())
    }
}

/// Whether no attempt of it has ended yet.
fn is_first_attempt(task: &bgd::core::Snapshot) -> bool {
    task.plan().again.as_ref().is_none_or(|again| again.attempts.is_empty())
}
