//! Notices for the requester of a task (R51, R55): they go to the task's channel and to the inbox of its parent
//! session. Also the owners of parent sessions: a session ends when its last owner disconnects (R54).

use std::sync::Arc;

use bgd_shared::limits::{INBOX_WAITS, OWNED_SESSIONS};
use bgd_shared::notice::NoticeKind;

use super::{Core, Phase, Timer};
use crate::agent::AgentPart;
use crate::caller::ReplyTo;
use crate::effect::{CoreError, Effect, Reply};
use crate::inbox::{Ended, InboxWait, InboxWaitId};
use crate::notice::Notice;
use crate::owners::Owners;
use crate::task::{Finished, Ordinal, Outcome, State, StopReason, Task};
use crate::time::Now;

impl Core {
    /// Sends a notice about a task, except for a foreground job: its client is watching it.
    pub(super) fn notice(&mut self, now: Now, kind: NoticeKind, ordinal: Ordinal) {
        let Some(mut task) = self.snapshot(ordinal).filter(|task| task.foreground.is_none()) else { return };
        let session = task.spec.session.clone();
        let active = session.as_deref().map(|session| {
            let all = self.registry.active_of(session);
            all - u64::from(task.status().is_active())
        });
        let is_kept = kind != NoticeKind::Started && !self.is_of_ended_session(ordinal, &task);
        task.drop_env();
        if let Some(agent) = &mut task.agent {
            agent.shorten();
        }
        let asker = self.asker.filter(|_| kind.is_end());
        let mut seen_by = self.waiters.watching(ordinal);
        seen_by.extend(asker.map(|asker| asker.client));
        let is_removed = asker.is_some_and(|asker| asker.removes) || self.waiters.will_remove(ordinal);
        self.last_notice += 1;
        let number = self.last_notice;
        let notice = Arc::new(Notice { number, kind, at: now.wall, active, is_removed, task });
        self.effects.push(Effect::Notice { notice: Arc::clone(&notice), seen_by });
        if let Some(session) = session.filter(|_| is_kept) {
            let ended = self.inboxes.add(&session, notice, self.limits.inbox_items);
            self.end_reads(ended);
        }
    }

    /// Answers waiting reads that have ended.
    fn end_reads(&mut self, ended: Ended) {
        for (id, wait) in ended {
            self.timers.remove(&(wait.deadline, Timer::Inbox(id)));
            self.give_items(&wait);
        }
    }

    /// Reports whether the parent session of a task has ended, so that its inbox has no reader: another session with
    /// the same key may have begun. The task itself may end for an earlier reason.
    fn is_of_ended_session(&self, ordinal: Ordinal, task: &Task) -> bool {
        let is_ended_by_it = matches!(
            &task.state,
            State::Finished(Finished { outcome: Outcome::Cancelled(StopReason::SessionEnded), .. })
        );
        is_ended_by_it || self.waiters.ends_with_session(ordinal)
    }

    /// Sends a notice about the next pending question: once per question, and only for background tasks. In the
    /// foreground, the question is visible.
    pub(super) fn notify_question(&mut self, now: Now, ordinal: Ordinal) {
        let is_hidden = self.registry.get(ordinal).is_some_and(|task| task.foreground.is_none());
        if is_hidden && self.change_agent(ordinal, AgentPart::take_notification_due) == Some(true) {
            self.notice(now, NoticeKind::NeedsInput, ordinal);
        }
    }

    /// Replies with the items of an inbox, or waits for the first one.
    pub(super) fn read_inbox(
        &mut self,
        now: Now,
        to: ReplyTo,
        session: Arc<str>,
        after: u64,
        wait_ms: u64,
        limit: usize,
    ) -> Result<(), CoreError> {
        let deadline = now.mono.plus_ms(wait_ms);
        let wait = InboxWait { to, session, after, limit, deadline };
        if wait_ms == 0 || self.inboxes.has_any(to.client, &wait.session, after) {
            self.give_items(&wait);
            return Ok(());
        }
        // No more items can follow.
        if self.phase == Phase::Closed {
            return Err(CoreError::ShuttingDown);
        }
        // All of these reads may be answered at once, and the client may not read its replies.
        if self.inboxes.waits_of(to.client).count() >= INBOX_WAITS {
            return Err(CoreError::TooManyReads(INBOX_WAITS));
        }
        let id = self.inboxes.wait(wait);
        self.timers.insert((deadline, Timer::Inbox(id)));
        Ok(())
    }

    fn give_items(&mut self, wait: &InboxWait) {
        // Ask for one extra item to detect whether there are more.
        let most = wait.limit.saturating_add(1);
        let (mut items, lost) = self.inboxes.read(wait.to.client, &wait.session, wait.after, most);
        let more = items.len() > wait.limit;
        items.truncate(wait.limit);
        self.reply(Some(wait.to), Reply::Inbox { items, more, lost });
    }

    pub(super) fn inbox_deadline(&mut self, id: InboxWaitId) {
        if let Some(wait) = self.inboxes.end_wait(id) {
            self.give_items(&wait);
        }
    }

    /// Refuses the waiting reads: the daemon is about to end, and no more items will follow.
    pub(super) fn refuse_reads(&mut self) {
        for (id, wait) in self.inboxes.end_waits() {
            self.timers.remove(&(wait.deadline, Timer::Inbox(id)));
            self.reply(Some(wait.to), Reply::Error(CoreError::ShuttingDown));
        }
    }

    /// Replies how many items were acknowledged or reserved, and how many are left.
    pub(super) fn acknowledged(&mut self, to: ReplyTo, (acknowledged, left): (u64, u64)) {
        self.reply(Some(to), Reply::Acknowledged { acknowledged, left });
    }

    /// Reserves an item for a client, or removes it.
    pub(super) fn take_item(&mut self, to: ReplyTo, session: &str, number: u64, removes: bool) {
        let counts = if removes {
            self.inboxes.acknowledge_one(session, number)
        } else {
            self.inboxes.reserve(to.client, session, number)
        };
        self.acknowledged(to, counts);
    }

    pub(super) fn own(&mut self, to: ReplyTo, session: Arc<str>) -> Result<(), CoreError> {
        if !self.owners.insert(to.client, session, OWNED_SESSIONS) {
            return Err(CoreError::TooManySessions(OWNED_SESSIONS));
        }
        self.reply(Some(to), Reply::Owned);
        Ok(())
    }

    /// Returns the owners of parent sessions.
    pub fn owners(&self) -> &Owners {
        &self.owners
    }

    /// Ends the waiting reads of a client that is gone, gives the items that it has reserved to others, and ends the
    /// parent sessions of which it was the last owner. Its foreground jobs (`jobs`) were already asked to end, and get no
    /// second signal.
    pub(super) fn leave_sessions(&mut self, now: Now, client: u64, jobs: &[Ordinal]) {
        for (id, wait) in self.inboxes.disconnect(client) {
            self.timers.remove(&(wait.deadline, Timer::Inbox(id)));
        }
        let ended = self.inboxes.release(client);
        self.end_reads(ended);
        for session in self.owners.leave(client) {
            self.end_session(now, None, &session, jobs);
        }
    }
}
