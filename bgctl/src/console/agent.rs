//! Prompts for agents. Their tasks run in the console's foreground like jobs, but only show text.

use bgd_shared::agent::AgentSettings;
use bgd_shared::client::Client;
use bgd_shared::id::TaskRef;
use bgd_shared::request::{IdParams, SubmitParams, TaskGet, TaskSubmit};

use super::jobs::{Job, Visit};
use super::{Console, ends_console};
use crate::exit::Code;
use crate::failure::Failure;
use crate::job::{self, Work};
use crate::terminal::{AttachmentEnd, Role, Subject, TextView};

impl Console {
    /// Sends a prompt to an agent and shows its text until the agent ends or the key is pressed.
    pub(super) fn prompt(&mut self, agent: Option<String>, text: String) -> Result<Option<Code>, Failure> {
        let news = self.address.client()?;
        let params = self.params(
            &job::beginning(&text),
            Work::Prompt { agent, prompt: text.clone(), settings: AgentSettings::default() },
        )?;
        let task = self.call::<TaskSubmit>(&SubmitParams { foreground: true, ..params })?.task;
        let mut job = self.jobs.new_job(task.id, text, false);
        job.is_agent = true;
        self.show_text(job, Some(news))
    }

    /// Gives an agent of this console the terminal until it ends or is left. `news` is a separate connection, which is
    /// made if there is none.
    pub(super) fn show_text(&mut self, job: Job, news: Option<Client>) -> Result<Option<Code>, Failure> {
        let left = news.map_or_else(|| Ok(self.address.client()?), Ok).and_then(|news| {
            let (link, host) = (&mut self.link, &mut self.jobs);
            let subject = Subject { link, host, task: job.id, role: Role::Foreground, key: self.key };
            TextView::begin(subject, news)?.run()
        });
        self.settle_left(job, left)
    }

    /// Shows the text of a background task without a terminal, from its beginning. The key detaches from it.
    pub(super) fn visit_text(&mut self, task: TaskRef) -> Result<Option<Code>, Failure> {
        let task = self.call::<TaskGet>(&IdParams { id: task })?.task.id;
        let news = self.address.client()?;
        let mut visit = Visit::of(&mut self.jobs, task, self.key);
        let subject =
            Subject { link: &mut self.link, host: &mut visit, task, role: Role::Attached, key: self.key };
        match TextView::begin(subject, news)?.run()? {
            AttachmentEnd::Ended(task)
            | AttachmentEnd::Interrupted(task, _)
            | AttachmentEnd::Cancelled(task, _) => self.tell_visited_end(&task).map(|()| None),
            AttachmentEnd::Signalled(code) => Ok(ends_console(code).then_some(Code(code))),
            AttachmentEnd::Detached | AttachmentEnd::Backgrounded(_) | AttachmentEnd::Stopped(_) => Ok(None),
        }
    }
}
