//! The dispatcher's part in notices: which ones go to channels, which outputs they still need, and which ones a durable
//! daemon keeps in its journal until they are delivered (R127). A notice is written with the step that caused it, so
//! that none is lost between the two, and is removed when its channel has delivered it or given up on it.

use std::collections::BTreeSet;
use std::sync::Arc;

use bgd_shared::id::TaskId;
use bgd_shared::notice::NoticeKind;

use super::Dispatcher;
use super::recording::Step;
use crate::core::durable::{Changes, NoticeRow};
use crate::core::{Delivery, Effect, Notice, Reply};

impl Dispatcher {
    /// Drops the notices that users see without the channel. Returns the rows for the journal of the remaining ones
    /// that go to channels.
    pub(super) fn choose_notices(&mut self, effects: &mut Vec<Effect>) -> Vec<(u64, Option<NoticeRow>)> {
        effects.retain(
            |effect| !matches!(effect, Effect::Notice { notice, seen_by } if self.is_seen(notice, seen_by)),
        );
        let Some(durable) = &mut self.durable else { return Vec::new() };
        let notices = effects.iter().filter_map(|effect| match effect {
            Effect::Notice { notice, .. } => Some(notice),
            _ => None,
        });
        let taken = notices.filter(|notice| self.notifier.takes(notice));
        let rows =
            taken.map(|notice| (notice.number, Some(NoticeRow { notice: Arc::clone(notice), tried: None })));
        let rows: Vec<_> = rows.collect();
        durable.notices.extend(rows.iter().map(|(number, _)| *number));
        rows
    }

    /// Reports whether somebody sees the end of a task in the terminal that the notice is for, having waited for the
    /// task or cancelled it there. A wait shows there that the task runs, but not every question.
    fn is_seen(&self, notice: &Notice, seen_by: &BTreeSet<u64>) -> bool {
        let spec = &notice.task.spec;
        let terminal = spec.place.as_ref().and_then(|place| place.terminal.as_ref());
        let is_there = |client: &u64| {
            let leader = self.clients.get(client).and_then(|client| client.leader);
            leader.is_some() && leader == terminal.map(|terminal| terminal.leader)
        };
        let is_tty = |name: &str| self.notifier.channels().is_tty(name);
        let is_seen = notice.kind != NoticeKind::NeedsInput
            && spec.channel.as_deref().is_some_and(is_tty)
            && seen_by.iter().any(is_there);
        if is_seen {
            tracing::debug!(task = %notice.task.id, "a notice is seen without the channel");
        }
        is_seen
    }

    /// Drops the lines that wait for a terminal about tasks whose end an answer reports there, or that were cleared from
    /// there. What others have cleared in the same step does not count.
    pub(super) fn note_reported(&mut self, effects: &[Effect]) {
        for effect in effects {
            let Effect::Reply { to, reply } = effect else { continue };
            let leader = self.pending.get(to).and_then(|(answer, _)| answer.client().leader);
            let Some(leader) = leader else { continue };
            let ended: Vec<TaskId> = match reply {
                Reply::Cleared { tasks, .. } | Reply::SessionEnded { tasks, .. } => tasks.clone(),
                Reply::Tasks(tasks) | Reply::Blocked { tasks, .. } => {
                    tasks.iter().filter(|task| task.is_finished()).map(|task| task.id).collect()
                }
                _ => continue,
            };
            for task in ended {
                self.notifier.reported(leader, task);
            }
        }
    }

    /// Passes a notice to the task's channel.
    pub(super) fn notify(&mut self, notice: Arc<Notice>) {
        let number = notice.number;
        if !self.notifier.notify(notice) {
            self.write_notices(vec![(number, None)]);
        }
    }

    /// Passes on the notices that an earlier daemon did not deliver.
    pub(super) fn notify_again(&mut self, rows: Vec<(u64, NoticeRow)>) {
        let mut lost = Vec::new();
        for (number, row) in rows {
            let (task, run) = (row.notice.task.id, row.notice.task.run);
            if let Some(durable) = &mut self.durable {
                durable.notices.insert(number);
            }
            if self.core.get(&task.into()).is_err() {
                self.kept_for_notices.insert(task, run);
            }
            if !self.notifier.notify_again(row) {
                lost.push((number, task));
            }
        }
        for (_, task) in &lost {
            if !self.notifier.reads(*task) {
                self.remove_kept(Some(*task));
            }
        }
        self.write_notices(lost.into_iter().map(|(number, _)| (number, None)).collect());
    }

    /// Records that a notice no longer needs its task's output to be read.
    pub(super) fn notice_read(&mut self, number: u64) {
        let task = self.notifier.read(number);
        self.remove_kept(task);
    }

    /// Records the progress of a notice's delivery.
    pub(super) fn delivery_changed(&mut self, number: u64, delivery: Delivery) {
        if let (Some(durable), Delivery::Seen) = (&mut self.durable, &delivery) {
            // After an upgrade in place, only the channel's state shows that the notice is in the journal.
            durable.notices.insert(number);
        }
        let changed = self.notifier.note(number, delivery);
        self.remove_kept(changed.was_read);
        self.write_notices(changed.rows);
    }

    /// Removes the output of a cleared task that no notice needs any more.
    fn remove_kept(&mut self, task: Option<TaskId>) {
        if let Some(task) = task
            && let Some(runs) = self.kept_for_notices.remove(&task)
        {
            self.notifier.forget(task);
            self.remove_outputs(vec![(task, runs)], Vec::new());
        }
    }

    /// Writes changed rows of notices to the journal.
    fn write_notices(&mut self, mut rows: Vec<(u64, Option<NoticeRow>)>) {
        let counters = self.core.counters(self.now());
        let Some(durable) = &mut self.durable else { return };
        // Notices that never were in the journal need not be removed.
        rows.retain(|(number, row)| match row {
            Some(_) => durable.notices.contains(number),
            None => durable.notices.remove(number),
        });
        if rows.is_empty() {
            return;
        }
        let changes = Changes { notices: rows, counters, ..Changes::default() };
        let bytes = changes.bytes();
        durable.last += 1;
        durable.journal.write(durable.last, changes);
        durable.bytes += bytes;
        durable.waiting.push_back(Step { number: durable.last, bytes, ..Step::default() });
    }
}
