//! Foreground jobs, and processes that are handed over, naively.

use bgd::core::{Command, CoreError, Now, ReplyTo, Unmovable};
use bgd_shared::event::EventKind;
use bgd_shared::id::{TaskId, TaskRef};
use bgd_shared::notice::NoticeKind;
use bgd_shared::task::Status;

use super::super::expected::Answer;
use super::super::support::HUP;
use super::{Known, Model, Phase, Why, number};

impl Model {
    /// A job that has ended has won (R66); of the rest, only its own client moves one, and no direct one.
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
        self.tell_question(now, number(id));
        Ok(())
    }

    /// A process that runs already: it waits for nothing.
    pub(super) fn adopt(&mut self, now: Now, to: ReplyTo, command: &Command) -> Result<(), CoreError> {
        if self.closing {
            return Err(CoreError::ShuttingDown);
        }
        self.room_for(&Command { key: None, ..command.clone() }, 0)?;
        let id = command.id;
        let limit_at = command.spec.time_limit_ms.map(|limit| now.mono.plus_ms(limit).0);
        let (phase, left) = (Phase::Running, true);
        let is_adopted = true;
        let mut task =
            Known { phase, left, limit_at, is_adopted, key: None, ..Known::new(now, command, None) };
        task.order.begins(now);
        self.live.insert(number(id), task);
        self.expected.adopts.push(id);
        for kind in [EventKind::Submitted, EventKind::Started, EventKind::Backgrounded] {
            self.expected.events.push((id, kind));
        }
        self.reply(Some(to), Answer::Backgrounded(id, Status::Running));
        self.tell(now, number(id), NoticeKind::Started);
        Ok(())
    }

    /// A client is gone: its jobs lose their terminal (R71).
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

    /// Every foreground job.
    pub fn jobs(&self) -> Vec<TaskId> {
        self.live.values().filter(|task| task.foreground.is_some()).map(|task| task.id).collect()
    }

    /// The foreground jobs of a client.
    pub fn jobs_of(&self, client: u64) -> Vec<TaskId> {
        self.live.values().filter(|task| task.foreground == Some(client)).map(|task| task.id).collect()
    }
}
