//! The notices that clients and channels get. This knowledge comes only from requests, replies and notices, not from
//! the core or the model.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bgd_core::{Mono, Notice, Outcome, ReplyTo, Request, Snapshot, State, StopReason};
use bgd_shared::event::EventKind;
use bgd_shared::id::TaskId;
use bgd_shared::notice::NoticeKind;
use proptest::{prop_assert, prop_assert_eq};

use super::super::expected::{Answer, SentNotice};
use super::super::ops::Mark;
use super::{Checked, Sim};

/// Identifies an item for a consumer that must not act on it twice.
type Key = (TaskId, u32, Option<u64>);

#[derive(Debug, Default)]
pub struct Post {
    /// Starts and ends that occurred in this step and have no notice yet.
    due: BTreeMap<TaskId, NoticeKind>,
    /// Ends of runs that have had their notice.
    ends: BTreeSet<(TaskId, u32)>,
    starts: BTreeSet<TaskId>,
    questions: BTreeSet<(TaskId, u64)>,
    /// Parent sessions of all existing tasks.
    sessions: BTreeMap<TaskId, Arc<str>>,
    /// Tasks whose parent session has ended.
    bereft: BTreeSet<TaskId>,
    /// The items sent to each session that it has neither acknowledged nor seen counted as lost.
    sent: BTreeMap<Arc<str>, Vec<Key>>,
    /// Item numbers that were returned, with the items they stand for.
    numbers: BTreeMap<u64, (Arc<str>, Key)>,
    /// Item numbers that must not come back.
    done: BTreeSet<u64>,
    reads: BTreeMap<ReplyTo, Read>,
    acks: BTreeMap<ReplyTo, (Arc<str>, u64)>,
    owners: BTreeSet<(u64, Arc<str>)>,
}

/// A read without a reply so far.
#[derive(Clone, Debug)]
struct Read {
    session: Arc<str>,
    after: u64,
    limit: usize,
    due: Mono,
    /// Whether it got no immediate reply.
    waits: bool,
}

impl Post {
    /// Records a client's request.
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

    /// Records that a call got no immediate reply.
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

    /// Disconnects a client. Returns the sessions that end with it, and whether any of its sessions have other owners.
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
    /// Returns the number of an inbox item, which may be from the past, the future, or another session.
    pub(super) fn mark(&self, mark: Mark) -> u64 {
        let last = self.model.post.last;
        match mark {
            Mark::None => 0,
            Mark::Back(count) => last.saturating_sub(count.into()),
            Mark::Ahead(count) => last + u64::from(count),
            Mark::All => u64::MAX,
        }
    }

    /// Records the notice that an event requires: for each end, unless a client saw it in the foreground, and for
    /// each first start in the background.
    pub(super) fn expect_notice(&mut self, kind: EventKind, task: &Snapshot) -> Checked {
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

    /// Checks that a notice follows its event, comes once, shows the task as it is, and counts the other tasks
    /// correctly.
    pub(super) fn notice_is_true(&mut self, notice: &Notice, sent: &SentNotice) -> Checked {
        let (id, run, kind) = (sent.task, sent.run, sent.kind);
        prop_assert_eq!((notice.at, notice.task.foreground), (self.now.wall, None));
        let session = self.post.sessions.get(&id).cloned();
        prop_assert_eq!(&session, &notice.task.spec.session);
        let is_end = kind.is_end();
        if kind == NoticeKind::NeedsInput {
            let question = sent.question.unwrap_or_default();
            prop_assert!(self.post.questions.insert((id, question)), "{question} of {id} is told twice");
        } else {
            prop_assert_eq!(self.post.due.remove(&id), Some(kind), "nobody has heard of that: {:?}", sent);
        }
        // R51: a resume is not a start. R55: one end per run.
        let is_new = match is_end {
            true => self.post.ends.insert((id, run)),
            false if kind == NoticeKind::Started => run == 1 && self.post.starts.insert(id),
            false => !self.post.ends.contains(&(id, run)),
        };
        prop_assert!(is_new, "told twice: {:?}", sent);
        let active = session.as_ref().map(|session| self.active_beside(session, id));
        prop_assert_eq!(sent.active, active, "{:?}", sent);
        let Some(session) = session.filter(|_| kind != NoticeKind::Started) else { return Ok(()) };
        if self.post.bereft.contains(&id) {
            self.reach("not kept for an ended session");
        } else {
            let key = (id, run, sent.question.filter(|_| !is_end));
            self.post.sent.entry(session).or_default().push(key);
        }
        Ok(())
    }

    /// Returns the number of the session's other tasks that were submitted or resumed without a terminal event since.
    fn active_beside(&self, session: &Arc<str>, id: TaskId) -> u64 {
        let others = self.post.sessions.iter().filter(|(other, of)| **other != id && *of == session);
        let is_active =
            |other: &TaskId| self.latest_events.get(other).is_some_and(|kind| !kind.is_terminal());
        others.filter(|(other, _)| is_active(other)).count() as u64
    }

    /// Checks that no start or end is left without a notice after a step.
    pub(super) fn r55_every_end_has_a_notice(&self) -> Checked {
        prop_assert!(self.post.due.is_empty(), "not told: {:?}", self.post.due);
        Ok(())
    }

    /// Checks that the question that can be answered now had its notice, unless the task is in the foreground.
    pub(super) fn questions_have_notices(&self, task: &Snapshot) -> Checked {
        let next = task.agent.as_ref().and_then(|agent| agent.questions.front());
        if let (Some(next), None) = (next, task.foreground) {
            prop_assert!(self.post.questions.contains(&(task.id, next.request)), "not told: {:?}", next);
        }
        Ok(())
    }

    /// Checks an inbox: items come in order, each number stands for one thing only, acknowledged items do not come
    /// back, and missing ones are counted as lost.
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

    fn items_are_true(&mut self, read: &Read, items: &[(u64, SentNotice)]) -> Checked {
        prop_assert!(items.len() <= read.limit);
        let mut before = read.after;
        for (number, item) in items {
            prop_assert!(*number > before, "{number} comes after {before}");
            before = *number;
            let key = (item.task, item.run, item.question.filter(|_| !item.kind.is_end()));
            let first = self.post.numbers.entry(*number).or_insert((read.session.clone(), key));
            prop_assert_eq!(&*first, &(read.session.clone(), key), "{} is given twice", number);
            prop_assert!(!self.post.done.contains(number), "{number} comes back");
        }
        Ok(())
    }

    /// Returns the current states of the tasks that the end of a client, and thus of these sessions and jobs, must not
    /// affect.
    pub(super) fn untouched_by_ends(
        &self,
        client: u64,
        sessions: &[Arc<str>],
        jobs: &[TaskId],
    ) -> Vec<Snapshot> {
        let of_ended = |id: &TaskId| self.post.sessions.get(id).is_some_and(|of| sessions.contains(of));
        let live =
            self.latest_events.iter().filter(|(_, kind)| **kind != EventKind::Cleared).map(|(id, _)| *id);
        // What the client was to clear goes at once if it has ended.
        let is_cleared = |id: &TaskId| self.model.clears(client, *id);
        let others = live.filter(|id| !of_ended(id) && !jobs.contains(id) && !is_cleared(id));
        others.filter_map(|id| self.core.get(&id.into()).ok()).collect()
    }

    /// Checks that every task of these sessions has ended or is being ended, and that no other task is affected, except
    /// that it may get a slot that has become free.
    pub(super) fn r54_only_those_sessions_have_ended(
        &mut self,
        sessions: &[Arc<str>],
        others: &[Snapshot],
    ) -> Checked {
        for before in others {
            let Ok(after) = self.core.get(&before.id.into()) else {
                // The output of the tasks that ended may leave no room for this task's output.
                let is_too_old = self.model.limits.history.is_some() && self.model.get(before.id).is_none();
                prop_assert!(is_too_old, "{} was cleared by a stranger's end", before.id);
                continue;
            };
            if matches!(before.state, State::Queued { .. }) {
                // Except for a task that was to start after one of these sessions' tasks.
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
                State::Starting { stop, .. } => stop.is_some(),
                State::Resuming(resuming) => resuming.stop.is_some(),
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

/// Reports whether none of its attempts has ended yet.
fn is_first_attempt(task: &bgd_core::Snapshot) -> bool {
    task.plan().again.as_ref().is_none_or(|again| again.attempts.is_empty())
}
