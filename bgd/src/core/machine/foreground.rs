//! Foreground jobs and what becomes of them: the background (R61 to R67), or the end when their client is
//! gone (R71). And processes that other programs started, which come to the background directly (R70).

use bgd_shared::event::EventKind;
use bgd_shared::id::TaskRef;
use bgd_shared::notice::NoticeKind;
use bgd_shared::time::Timestamp;

use super::{Core, orders};
use crate::core::caller::ReplyTo;
use crate::core::effect::{Begin, Control, CoreError, Reply, Unmovable};
use crate::core::input::Command;
use crate::core::task::{Ordinal, State, StopOrder, StopReason};
use crate::core::time::Now;

/// SIGHUP: what a process gets when its terminal is closed.
const SIGHUP: i32 = 1;

impl Core {
    /// Moves a foreground job of this client to the background. One that ended first has won (R66).
    pub(super) fn detach(&mut self, now: Now, to: ReplyTo, id: &TaskRef) -> Result<(), CoreError> {
        let ordinal = self.registry.find(id)?;
        let Some(task) = self.registry.get(ordinal) else { return Ok(()) };
        let id = task.id;
        if task.is_finished() {
            return Err(CoreError::EndedFirst(id, task.status()));
        }
        match task.foreground {
            None => return Err(CoreError::NotBackgroundable(id, Unmovable::InBackground)),
            Some(client) if client != to.client => {
                return Err(CoreError::NotBackgroundable(id, Unmovable::OfAnother));
            }
            Some(_) if task.spec.direct => {
                return Err(CoreError::NotBackgroundable(id, Unmovable::Direct));
            }
            Some(_) => {}
        }
        let detached = orders::control(task, Control::Detach { client: to.client });
        self.leave_foreground(ordinal);
        self.effects.push(detached);
        self.event(now, EventKind::Backgrounded, ordinal);
        if let Some(snapshot) = self.snapshot(ordinal) {
            self.reply(Some(to), Reply::Backgrounded(snapshot));
        }
        // What it asks was seen where it ran, and nobody looks there any more.
        self.tell_question(now, ordinal);
        Ok(())
    }

    /// Takes over a process that runs already. It takes a slot, but never waits for one, and a time limit
    /// counts from now. Another process is never the same task, so a key would mean nothing.
    pub(super) fn adopt(
        &mut self,
        now: Now,
        to: ReplyTo,
        command: Command,
        pid: i32,
        started_at: Timestamp,
    ) -> Result<(), CoreError> {
        let ordinal = self.insert(now, Command { key: None, ..command }, None)?;
        let Some(task) = self.registry.get(ordinal) else { return Ok(()) };
        let (begun, time_limit) = (orders::start(task, Begin::HandedOver), task.spec.time_limit_ms);
        let time_limit = time_limit.map(|limit| now.mono.plus_ms(limit));
        self.event(now, EventKind::Submitted, ordinal);
        self.set_state(ordinal, State::Running { pid: Some(pid), started_at, time_limit });
        self.effects.push(begun);
        self.event(now, EventKind::Started, ordinal);
        self.event(now, EventKind::Backgrounded, ordinal);
        if let Some(snapshot) = self.snapshot(ordinal) {
            self.reply(Some(to), Reply::Backgrounded(snapshot));
        }
        self.notice(now, NoticeKind::Started, ordinal);
        Ok(())
    }

    /// A client is gone: its foreground jobs end as they would with their terminal. Returns them.
    pub(super) fn abandon(&mut self, now: Now, client: u64) -> Vec<Ordinal> {
        let order =
            StopOrder { reason: StopReason::Abandoned, signal: SIGHUP, grace_ms: self.limits.grace_ms };
        let jobs = self.jobs_of(client);
        for ordinal in &jobs {
            self.leave_foreground(*ordinal);
            self.stop(now, *ordinal, order);
        }
        jobs
    }

    /// The foreground jobs of a client, the one started first first.
    pub(super) fn jobs_of(&self, client: u64) -> Vec<Ordinal> {
        let jobs = (client, Ordinal(0))..=(client, Ordinal(u64::MAX));
        self.foreground.range(jobs).map(|(_, ordinal)| *ordinal).collect()
    }

    /// A task is nobody's foreground job any more. Tells whether it was.
    pub(super) fn leave_foreground(&mut self, ordinal: Ordinal) -> bool {
        match self.registry.change(ordinal, |task| task.foreground.take()).flatten() {
            Some(client) => self.foreground.remove(&(client, ordinal)),
            None => false,
        }
    }
}
