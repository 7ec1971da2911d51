//! Naive model of foreground jobs and handed-over processes.

use bgd_core::{Command, CoreError, Now, ReplyTo, Unmovable};
use bgd_shared::event::EventKind;
use bgd_shared::id::{TaskId, TaskRef};
use bgd_shared::notice::NoticeKind;
use bgd_shared::task::Status;
use bgd_shared::time::Timestamp;

use super::super::expected::Answer;
use super::super::support::HUP;
use super::{Known, Model, Phase, Why, number};

impl Model {
    /// Moves a job to the background. A job that has ended stays ended (R66); otherwise only its own client may move
    /// it, and a direct job can't be moved.
    pub(super) fn detach(&mut self, now: Now, to: ReplyTo, id: &TaskRef) -> Result<(), CoreError> {
        let task = self.find(id)?;
        let (id, status) = (task.id, task.status());
        let why = match task.foreground {
            _ if task.phase == Phase::Done => return Err(CoreError::EndedFirst(id, status)),
            None => Some(Unmovable::InBackground),
            Some(client) if client != to.client => Some(Unmovable::OfAnother),
            Some(_) => task.direct.then_some(Unmovable::Direct),
        };
        if let Some(why) = why {
            return Err(CoreError::NotBackgroundable(id, why));
        }
        task.foreground = None;
        self.expected.detached.push((id, to.client));
        self.expected.events.push((id, EventKind::Backgrounded));
        self.reply(Some(to), Answer::Backgrounded(id, status));
        self.notify_question(now, number(id));
        Ok(())
    }

    /// Adopts a process that is already running, so it waits for nothing.
    pub(super) fn adopt(
        &mut self,
        now: Now,
        to: ReplyTo,
        command: &Command,
        started_at: Timestamp,
    ) -> Result<(), CoreError> {
        if self.closing {
            return Err(CoreError::ShuttingDown);
        }
        self.room_for(&Command { key: None, ..command.clone() }, &[])?;
        self.gives_way = true;
        let id = command.id;
        let limit_at = command.spec.time_limit_ms.map(|limit| now.mono.plus_ms(limit).0);
        let (phase, left) = (Phase::Running, true);
        let is_adopted = true;
        let mut task =
            Known { phase, left, limit_at, is_adopted, key: None, ..Known::new(now, command, None) };
        task.order.begins(Now { wall: started_at, ..now });
        self.live.insert(number(id), task);
        self.expected.adopts.push(id);
        for kind in [EventKind::Submitted, EventKind::Started, EventKind::Backgrounded] {
            self.expected.events.push((id, kind));
        }
        self.reply(Some(to), Answer::Backgrounded(id, Status::Running));
        self.notify(now, number(id), NoticeKind::Started);
        Ok(())
    }

    /// Handles a disconnect: the client's jobs lose their terminal (R71).
    pub(super) fn abandon(&mut self, now: Now, client: u64) -> Vec<TaskId> {
        let grace = self.limits.grace_ms;
        let jobs = self.jobs_of(client);
        for id in &jobs {
            let Some(task) = self.live.get_mut(&number(*id)) else { continue };
            task.foreground = None;
            self.stop(now, number(*id), Why::Abandoned, HUP, grace);
        }
        jobs
    }

    /// Returns all foreground jobs.
    pub fn jobs(&self) -> Vec<TaskId> {
        self.live.values().filter(|task| task.foreground.is_some()).map(|task| task.id).collect()
    }

    /// Returns the foreground jobs of a client.
    pub fn jobs_of(&self, client: u64) -> Vec<TaskId> {
        self.live.values().filter(|task| task.foreground == Some(client)).map(|task| task.id).collect()
    }
}
