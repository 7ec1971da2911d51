//! The dispatcher's record of the undelivered notices of all channels, which is carried over an upgrade in place and
//! kept in a durable daemon's journal. This module delivers nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bgd_shared::id::TaskId;

use crate::core::durable::NoticeRow;
use crate::core::{Delivery, Notice, Tried};

/// An undelivered notice.
#[derive(Debug)]
pub struct Entry {
    pub channel: Arc<str>,
    /// The notice; `None` if its channel holds it and has extracted what it needs.
    pub notice: Option<Arc<Notice>>,
    pub tried: Option<Tried>,
    /// Whether the notice needs its task's output.
    pub reads: bool,
    /// Whether the notice needs that output until it is delivered, as its result may have to be read again.
    pub reads_again: bool,
}

/// The consequences of a change in a notice's delivery.
#[derive(Debug, Default)]
pub struct Changed {
    /// Changed rows of the journal; `None` deletes the row.
    pub rows: Vec<(u64, Option<NoticeRow>)>,
    /// The task whose output the notice no longer needs.
    pub was_read: Option<TaskId>,
}

/// All undelivered notices, by number.
#[derive(Debug, Default)]
pub struct Waiting {
    pub(super) all: BTreeMap<u64, Entry>,
    /// The tasks of the notices that need their task's output.
    tasks: BTreeMap<u64, TaskId>,
    /// The held notices that still have a row in the journal.
    held: BTreeMap<Arc<str>, BTreeSet<u64>>,
}

impl Waiting {
    pub fn add(&mut self, number: u64, entry: Entry) {
        if let Some(notice) = entry.notice.as_ref().filter(|_| entry.reads) {
            self.tasks.insert(number, notice.task.id);
        }
        if entry.notice.is_none() {
            self.held.entry(Arc::clone(&entry.channel)).or_default().insert(number);
        }
        self.all.insert(number, entry);
    }

    /// Records that the result for a notice was read. Returns the task whose output the notice no longer needs.
    pub fn read(&mut self, number: u64) -> Option<TaskId> {
        let entry = self.all.get_mut(&number).filter(|entry| !entry.reads_again)?;
        entry.reads = false;
        self.tasks.remove(&number)
    }

    /// Records the progress of a notice's delivery. A channel may hold any number of notices; those beyond `limit` lose
    /// their rows, as their channel only counts them.
    pub fn note(&mut self, number: u64, delivery: Delivery, limit: usize) -> Changed {
        let mut changed = Changed::default();
        match delivery {
            Delivery::Tried(tried) => {
                if let Some(entry) = self.all.get_mut(&number) {
                    entry.tried = Some(*tried);
                    let row = |notice: &Arc<Notice>| NoticeRow {
                        notice: Arc::clone(notice),
                        tried: entry.tried.clone(),
                    };
                    changed.rows.extend(entry.notice.as_ref().map(|notice| (number, Some(row(notice)))));
                }
            }
            Delivery::Held => {
                let Some(entry) = self.all.get_mut(&number) else { return changed };
                (entry.notice, entry.reads) = (None, false);
                changed.was_read = self.tasks.remove(&number);
                let held = self.held.entry(Arc::clone(&entry.channel)).or_default();
                held.insert(number);
                if held.len() > limit {
                    changed.rows.extend(held.pop_first().map(|oldest| (oldest, None)));
                }
            }
            Delivery::Over | Delivery::Missed => {
                let Some(entry) = self.all.remove(&number) else { return changed };
                changed.was_read = self.tasks.remove(&number);
                if let Some(held) = self.held.get_mut(&entry.channel) {
                    held.remove(&number);
                }
                // The row of a missed notice stays: the next daemon will miss it again and show it later.
                changed.rows.extend((delivery == Delivery::Over).then_some((number, None)));
            }
            Delivery::Seen => changed.rows.push((number, None)),
        }
        changed
    }
}

#[cfg(test)]
mod tests {
    use bgd_shared::request::ChannelRetry;
    use bgd_shared::text::Env;
    use bgd_shared::time::Timestamp;

    use super::*;
    use crate::core::{
        Command, Core, CoreLimits, Effect, Fact, Input, Mono, Now, PlanRequest, ReplyTo, Request, Spec,
    };

    const LIMITS: CoreLimits = CoreLimits {
        max_concurrent_tasks: 1,
        tasks: 10,
        memory: 1 << 20,
        environments: 1 << 20,
        grace_ms: 1,
        inbox_items: 1,
        history: None,
    };

    /// Returns the notice of a task that could not be started.
    fn notice() -> Arc<Notice> {
        let mut core = Core::new(LIMITS, [].into());
        let now = Now { mono: Mono(1), wall: Timestamp::default() };
        let (id, env, plan) = (TaskId::from_u128(1), Env::default(), PlanRequest::default());
        let spec = Spec::of_daemon();
        let command = Command { id, spec, env, prompt: None, key: None, foreground: false, plan };
        let (to, request) = (ReplyTo { client: 1, call: 1 }, Request::Submit(Box::new(command)));
        let _ = core.handle(now, Input::Request { to, request });
        let fact = Fact::StartFailed { failure: "no".into() };
        let effects = core.handle(now, Input::Fact { task: id, run: 1, fact });
        let notice = effects.into_iter().find_map(|effect| match effect {
            Effect::Notice { notice, .. } => Some(notice),
            _ => None,
        });
        notice.expect("a notice of its end")
    }

    fn entry() -> Entry {
        let (channel, notice) = ("c".into(), Some(notice()));
        Entry { channel, notice, tried: None, reads: true, reads_again: false }
    }

    /// Records the progress of a delivery. Returns the changed rows: the number of tries, or `None` if the row is
    /// deleted.
    fn rows(waiting: &mut Waiting, number: u64, delivery: Delivery) -> Vec<(u64, Option<u64>)> {
        let tries = |row: NoticeRow| row.tried.map_or(0, |tried| tried.retry.tries);
        let changed = waiting.note(number, delivery, 2);
        changed.rows.into_iter().map(|(number, row)| (number, row.map(tries))).collect()
    }

    #[test]
    fn r127_row_is_kept_until_notice_is_delivered_or_only_counted() {
        let mut waiting = Waiting::default();
        (1..=5).for_each(|number| waiting.add(number, entry()));
        let (at, error) = (Timestamp::default(), "busy".to_owned());
        let retry = ChannelRetry { tries: 3, most: 5, error, at, next_at: at };
        let tried = Delivery::Tried(Box::new(Tried { retry, spent_ms: 7 }));
        assert_eq!(rows(&mut waiting, 1, tried), [(1, Some(3))]);
        assert_eq!(rows(&mut waiting, 1, Delivery::Over), [(1, None)]);
        assert_eq!(rows(&mut waiting, 1, Delivery::Over), [], "it is not known any more");
        for number in 2..=3 {
            assert_eq!(rows(&mut waiting, number, Delivery::Held), []);
        }
        assert_eq!(rows(&mut waiting, 4, Delivery::Held), [(2, None)], "its channel only counts it");
        assert_eq!(rows(&mut waiting, 3, Delivery::Over), [(3, None)]);
        assert_eq!(rows(&mut waiting, 5, Delivery::Held), []);
        waiting.add(6, entry());
        assert_eq!(rows(&mut waiting, 6, Delivery::Missed), [], "the next daemon still has to show it");
        assert_eq!(rows(&mut waiting, 6, Delivery::Seen), [(6, None)]);
        assert_eq!(waiting.all.keys().copied().collect::<Vec<_>>(), [2, 4, 5]);
    }

    #[test]
    fn output_is_needed_until_read_or_delivered() {
        let mut waiting = Waiting::default();
        let task = Some(TaskId::from_u128(1));
        waiting.add(1, entry());
        assert_eq!((waiting.read(1), waiting.read(1)), (task, None));
        assert_eq!(waiting.note(1, Delivery::Over, 9).was_read, None);
        waiting.add(2, Entry { reads_again: true, ..entry() });
        assert_eq!(waiting.read(2), None);
        assert_eq!(waiting.note(2, Delivery::Over, 9).was_read, task);
        waiting.add(3, Entry { reads: false, ..entry() });
        assert_eq!((waiting.read(3), waiting.note(3, Delivery::Over, 9).was_read), (None, None));
    }
}
