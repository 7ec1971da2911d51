//! Naive model of notices and inboxes: one list of items.

use std::sync::Arc;

use bgd_core::{CoreError, Now, ReplyTo};
use bgd_shared::id::TaskId;
use bgd_shared::limits::INBOX_WAITS;
use bgd_shared::notice::NoticeKind;

use super::super::expected::{Answer, SentNotice};
use super::Model;

/// Unacknowledged items, waiting reads, and owners of sessions.
#[derive(Debug, Default)]
pub struct Post {
    items: Vec<Item>,
    pub last: u64,
    pub reads: Vec<Read>,
    owners: Vec<(u64, Arc<str>)>,
    /// Tasks that will be removed because their parent session has ended.
    bereft: Vec<TaskId>,
    /// The number of items lost so far.
    pub lost: u64,
}

#[derive(Clone, Debug)]
struct Item {
    number: u64,
    session: Arc<str>,
    notice: SentNotice,
    /// Whether it was dropped because its inbox was full.
    is_lost: bool,
}

/// A waiting read.
#[derive(Clone, Debug)]
pub struct Read {
    pub to: ReplyTo,
    pub session: Arc<str>,
    pub after: u64,
    pub limit: usize,
    pub due: u64,
}

impl Model {
    /// Sends a notice, unless the task is a foreground job.
    pub(super) fn notify(&mut self, now: Now, number: u64, kind: NoticeKind) {
        let Some(task) = self.live.get(&number).filter(|task| task.foreground.is_none()) else { return };
        let (id, session) = (task.id, task.session.clone());
        let others = self.live.values().filter(|other| other.id != id && other.session == session);
        let active = others.filter(|other| other.status().is_active()).count() as u64;
        let question = task.chat.as_ref().and_then(|chat| chat.questions.first());
        let notice = SentNotice {
            task: id,
            run: task.run,
            kind,
            status: task.status(),
            at: now.wall,
            active: session.is_some().then_some(active),
            question: question.map(|question| question.request),
        };
        self.expected.notices.push(notice.clone());
        if let Some(session) =
            session.filter(|_| kind != NoticeKind::Started && !self.post.bereft.contains(&id))
        {
            self.deliver(&session, notice);
        }
    }

    fn deliver(&mut self, session: &Arc<str>, notice: SentNotice) {
        self.post.last += 1;
        let (number, limit) = (self.post.last, self.limits.inbox_items);
        self.post.items.push(Item { number, session: session.clone(), notice, is_lost: false });
        let kept = |item: &&mut Item| item.session == *session && !item.is_lost;
        let mut kept: Vec<&mut Item> = self.post.items.iter_mut().filter(kept).collect();
        let too_many = kept.len().saturating_sub(limit);
        kept[..too_many].iter_mut().for_each(|item| item.is_lost = true);
        self.post.lost += too_many as u64;
        let ends = |read: &Read| read.session == *session && read.after < number;
        for read in self.post.reads.extract_if(.., |read| ends(read)).collect::<Vec<_>>() {
            self.give(&read);
        }
    }

    /// Sends a notice for the first open question, once, unless the task is a foreground job.
    pub(super) fn notify_question(&mut self, now: Now, number: u64) {
        let Some(task) = self.live.get_mut(&number).filter(|task| task.foreground.is_none()) else { return };
        let Some(chat) = &mut task.chat else { return };
        let Some(request) = chat.questions.first().map(|question| question.request) else { return };
        if !chat.notified.contains(&request) {
            chat.notified.push(request);
            self.notify(now, number, NoticeKind::NeedsInput);
        }
    }

    fn waiting(&self, session: &str, after: u64) -> Vec<(u64, SentNotice)> {
        let wanted = |item: &&Item| *item.session == *session && !item.is_lost && item.number > after;
        self.post.items.iter().filter(wanted).map(|item| (item.number, item.notice.clone())).collect()
    }

    fn lost(&self, session: &str) -> impl Iterator<Item = u64> {
        let lost = self.post.items.iter().filter(move |item| item.is_lost && *item.session == *session);
        lost.map(|item| item.number)
    }

    pub fn has_lost(&self, session: &str) -> bool {
        self.lost(session).next().is_some()
    }

    fn give(&mut self, read: &Read) {
        let mut items = self.waiting(&read.session, read.after);
        let (more, lost) = (items.len() > read.limit, self.lost(&read.session).count() as u64);
        items.truncate(read.limit);
        self.reply(Some(read.to), Answer::Inbox { items, more, lost });
    }

    pub(super) fn read(&mut self, read: Read, wait_ms: u64) -> Result<(), CoreError> {
        if wait_ms == 0 || !self.waiting(&read.session, read.after).is_empty() {
            self.give(&read);
        } else if self.exited {
            return Err(CoreError::ShuttingDown);
        } else if self.post.reads.iter().filter(|other| other.to.client == read.to.client).count()
            >= INBOX_WAITS
        {
            return Err(CoreError::TooManyReads(INBOX_WAITS));
        } else {
            self.post.reads.push(read);
        }
        Ok(())
    }

    /// Replies to a read whose time is over, if it is still waiting.
    pub(super) fn read_is_due(&mut self, to: ReplyTo, is_due: bool) {
        let place = self.post.reads.iter().position(|read| read.to == to && is_due);
        if let Some(place) = place {
            let read = self.post.reads.remove(place);
            self.give(&read);
        }
    }

    pub(super) fn refuse_reads(&mut self) {
        for read in std::mem::take(&mut self.post.reads) {
            self.reply(Some(read.to), Answer::Error(CoreError::ShuttingDown));
        }
    }

    /// Acknowledges items. Losses count until the acknowledgement covers all of them.
    pub(super) fn acknowledge(&mut self, to: ReplyTo, session: &str, upto: u64) {
        let all_lost_before = self.lost(session).all(|number| number <= upto);
        let before = self.waiting(session, 0).len();
        self.post.items.retain(|item| {
            let goes = if item.is_lost { all_lost_before } else { item.number <= upto };
            *item.session != *session || !goes
        });
        let left = self.waiting(session, 0).len();
        let (acknowledged, left) = ((before - left) as u64, left as u64);
        self.reply(Some(to), Answer::Acknowledged { acknowledged, left });
    }

    /// Handles the end of the session of these tasks: drops its items, and sends it no items about their ends.
    pub(super) fn empty_inbox(&mut self, session: &str, tasks: &[TaskId]) {
        self.post.items.retain(|item| *item.session != *session);
        self.post.bereft.extend(tasks);
    }

    pub(super) fn own(&mut self, to: ReplyTo, session: &Arc<str>) {
        self.post.owners.push((to.client, session.clone()));
        self.reply(Some(to), Answer::Owned);
    }

    /// Handles a disconnect: drops the client's reads, and ends its sessions unless they have other owners.
    pub(super) fn leave(&mut self, now: Now, client: u64, jobs: &[TaskId]) {
        self.post.reads.retain(|read| read.to.client != client);
        let mut theirs: Vec<(u64, Arc<str>)> =
            self.post.owners.extract_if(.., |(owner, _)| *owner == client).collect();
        theirs.sort();
        theirs.dedup();
        for (_, session) in theirs {
            if self.post.owners.iter().all(|(_, other)| *other != session) {
                self.end_session(now, None, &session, jobs);
            }
        }
    }
}
