//! Foreground jobs: they move to the background (R61 to R67), or end when their client is gone (R71). Also processes of
//! other programs, which are adopted straight into the background (R70).

use bgd_shared::event::EventKind;
use bgd_shared::id::TaskRef;
use bgd_shared::limits::FOREGROUND_JOBS;
use bgd_shared::notice::NoticeKind;
use bgd_shared::time::Timestamp;

use super::{Core, commands};
use crate::caller::ReplyTo;
use crate::control::Control;
use crate::effect::{Begin, CoreError, Reply, Unmovable};
use crate::input::Command;
use crate::task::{Ordinal, State, StopOrder, StopReason};
use crate::time::{Mono, Now, RunTime};

/// SIGHUP: the signal sent to a process whose terminal closes.
const SIGHUP: i32 = 1;

impl Core {
    /// Moves a foreground job of the calling client to the background. If the job has already ended, its end wins
    /// (R66).
    pub(super) fn detach(&mut self, now: Now, to: ReplyTo, id: &TaskRef) -> Result<(), CoreError> {
        let ordinal = self.find(id)?;
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
        let detached = commands::control(task, Control::Detach { client: to.client });
        self.leave_foreground(ordinal);
        self.effects.push(detached);
        self.event(now, EventKind::Backgrounded, ordinal);
        if let Some(snapshot) = self.snapshot(ordinal) {
            self.reply(Some(to), Reply::Backgrounded(snapshot));
        }
        // A pending question was only shown in the foreground, where it is no longer visible.
        self.notify_question(now, ordinal);
        Ok(())
    }

    /// Adopts a running process. It occupies a slot but never waits for one, and its time limit counts from now. An
    /// idempotency key is ignored: another process is never the same task.
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
        let (begun, time_limit) = (commands::start(task, Begin::HandedOver), task.spec.time_limit_ms);
        let time_limit = time_limit.map(|limit| now.mono.plus_ms(limit));
        self.event(now, EventKind::Submitted, ordinal);
        self.set_state(ordinal, State::Running { pid: Some(pid), started_at, time_limit });
        // Unknown if it is older than the monotonic clock.
        let start = now.mono.0.checked_sub(now.wall.millis_since(started_at));
        let run_time = start.map_or(RunTime::Unknown, |start| RunTime::Since(Mono(start)));
        self.registry.change(ordinal, |task| task.run_time = run_time);
        self.effects.push(begun);
        self.event(now, EventKind::Started, ordinal);
        self.event(now, EventKind::Backgrounded, ordinal);
        if let Some(snapshot) = self.snapshot(ordinal) {
            self.reply(Some(to), Reply::Backgrounded(snapshot));
        }
        self.notice(now, NoticeKind::Started, ordinal);
        Ok(())
    }

    /// Ends the foreground jobs of a client that is gone, as if their terminal had closed, and moves those that stay to
    /// the background (R142). Returns the jobs that were ended.
    pub(super) fn abandon(&mut self, now: Now, client: u64) -> Vec<Ordinal> {
        let order =
            StopOrder { reason: StopReason::Abandoned, signal: SIGHUP, grace_ms: self.limits.grace_ms };
        let mut jobs = self.jobs_of(client);
        jobs.retain(|ordinal| {
            let stays =
                self.registry.get(*ordinal).is_some_and(|task| task.spec.stays && !task.is_finished());
            self.leave_foreground(*ordinal);
            if stays {
                self.event(now, EventKind::Backgrounded, *ordinal);
            } else {
                self.stop(now, *ordinal, order);
            }
            !stays
        });
        jobs
    }

    /// Makes a task that stays without its client a foreground job of this client, which lost its earlier connection.
    /// The daemon may not have noticed that loss yet.
    pub(super) fn regain(&mut self, ordinal: Ordinal, client: u64) -> Result<(), CoreError> {
        let Some(task) = self.registry.get(ordinal) else { return Ok(()) };
        if !task.spec.stays || task.is_finished() || task.foreground == Some(client) {
            return Ok(());
        }
        if self.jobs_of(client).len() >= FOREGROUND_JOBS {
            return Err(CoreError::TooManyJobs(FOREGROUND_JOBS));
        }
        if let Some(before) = task.foreground {
            let hidden = commands::control(task, Control::Detach { client: before });
            self.leave_foreground(ordinal);
            self.effects.push(hidden);
        }
        self.registry.change(ordinal, |task| task.foreground = Some(client));
        self.foreground.insert((client, ordinal));
        Ok(())
    }

    /// Returns the foreground jobs of a client, oldest first.
    pub(super) fn jobs_of(&self, client: u64) -> Vec<Ordinal> {
        let jobs = (client, Ordinal(0))..=(client, Ordinal(u64::MAX));
        self.foreground.range(jobs).map(|(_, ordinal)| *ordinal).collect()
    }

    /// Makes a task a background job. Returns whether it was in the foreground.
    pub(super) fn leave_foreground(&mut self, ordinal: Ordinal) -> bool {
        match self.registry.change(ordinal, |task| task.foreground.take()).flatten() {
            Some(client) => self.foreground.remove(&(client, ordinal)),
            None => false,
        }
    }
}
