//! The jobs in the console's foreground: those next to the prompt, with their output and the calls to the daemon about
//! them. `bgd_shared::foreground` alone decides what the key does.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use bgd_shared::client::{ClientError, PolledClient, Protocol, Received};
use bgd_shared::error::{ErrorKind, RpcError};
use bgd_shared::foreground::{Answer, Can, Finished, Foreground, Key, Outcome, Press};
use bgd_shared::id::TaskId;
use bgd_shared::request::{
    BlockParams, CancelParams, ClearParams, DetachParams, Method, OutputNews, ResizeParams, SignalParams,
    TaskAttach, TaskBlock, TaskCancel, TaskClear, TaskDetach, TaskResize, TaskSignal, TaskSubmit,
    TerminalSize,
};
use bgd_shared::task::{Status, Task};
use bgd_shared::time::Timestamp;
use nix::sys::signal::Signal;

use super::line::JobSelector;
use super::lines::Lines;
use crate::ending;
use crate::exit::Code;
use crate::render::wall::Clock;
use crate::render::{bounded_line, clean, table};
use crate::terminal::{Caught, Host};

/// Maximum number of characters shown of a job's command line.
const SHOWN: usize = 100;

/// How long a typed line takes at most from the editor to the console; in between, it is added to the history file.
const LINE_TAKES: Duration = Duration::from_secs(3);

/// All jobs in the foreground.
#[derive(Debug)]
pub struct Jobs {
    rules: Foreground<TaskId>,
    /// The key that moves a job to the background.
    key: Key,
    /// When the key was pressed while nothing read keys.
    pressed_at: Option<Instant>,
    beside: Vec<Job>,
    calls: HashMap<u64, Call>,
    /// Messages and output lines to show at the prompt.
    said: String,
    /// The exit code for a signal that has asked the console to end while a job had the terminal.
    asked_to_end: Option<Code>,
    /// What came of calls that the user gave up.
    unwanted: Vec<Unwanted>,
}

/// What came of a call whose answer the user did not wait for.
#[derive(Clone, Copy, Debug)]
enum Unwanted {
    /// A job in the foreground that nobody would see.
    Job(TaskId),
    /// An attachment to a task.
    Attachment(TaskId),
    /// A task of the console's own, which the user did not start.
    Helper(TaskId),
    /// Such a task that was cancelled.
    EndedHelper(TaskId),
}

/// A job next to the prompt.
#[derive(Debug)]
pub struct Job {
    pub id: TaskId,
    /// The number shown in brackets.
    pub number: usize,
    /// The line as typed.
    pub text: String,
    /// Whether the user started it directly, with `!`.
    pub direct: bool,
    /// Whether it is an agent, which has no terminal.
    pub is_agent: bool,
    /// Whether it is stopped, waiting for SIGCONT.
    pub stopped: bool,
    /// The sequence that restores a terminal on which the job was shown.
    pub restore: String,
    lines: Lines,
    /// The ended task, while its hand-over is in flight.
    ended: Option<Box<Task>>,
}

/// The purpose of a call.
#[derive(Debug)]
enum Call {
    End(TaskId),
    Detach(TaskId),
    /// A submission that was given up.
    Submit,
    /// An attachment that was given up.
    Attach,
    /// A submission of a helper task that was given up.
    SubmitHelper,
    /// The cancellation of a helper task.
    EndHelper(TaskId),
}

impl Jobs {
    /// Creates an empty set of jobs.
    pub fn new(key: Key) -> Self {
        Self {
            rules: Foreground::new(key),
            key,
            pressed_at: None,
            beside: Vec::new(),
            calls: HashMap::new(),
            said: String::new(),
            asked_to_end: None,
            unwanted: Vec::new(),
        }
    }

    /// Takes the exit code for a signal that has asked the console to end while a job had the terminal.
    pub fn take_asked_to_end(&mut self) -> Option<Code> {
        self.asked_to_end.take()
    }

    /// Returns the jobs next to the prompt, latest last.
    pub fn beside(&self) -> &[Job] {
        &self.beside
    }

    /// Takes the text to show at the prompt, in whole lines.
    pub fn take_output(&mut self) -> String {
        for job in &mut self.beside {
            self.said.push_str(&job.lines.take(job.number, &job.id.short()));
        }
        std::mem::take(&mut self.said)
    }

    /// Creates a job in the foreground, with the lowest free number.
    pub fn new_job(&mut self, id: TaskId, text: String, direct: bool) -> Job {
        self.rules.started(id, if direct { Can::Direct } else { Can::Yes });
        let is_taken = |number: &usize| self.beside.iter().any(|job| job.number == *number);
        // If all lower numbers are taken, this one is free.
        let last = self.beside.len() + 1;
        let number = (1..last).find(|number| !is_taken(number)).unwrap_or(last);
        Job {
            id,
            number,
            text,
            direct,
            is_agent: false,
            stopped: false,
            restore: String::new(),
            lines: Lines::default(),
            ended: None,
        }
    }

    /// Puts a job next to the prompt.
    ///
    /// # Errors
    /// The daemon is gone.
    pub fn put(&mut self, link: &mut PolledClient, job: Job) -> Result<(), ClientError> {
        if self.end_call(job.id).is_none() {
            let call = link.call::<TaskBlock>(&BlockParams::until_ended(job.id))?;
            self.calls.insert(call, Call::End(job.id));
        }
        let state = if job.stopped { "stopped" } else { "running" };
        let hint = self.rules.hint().filter(|_| !job.direct && !job.stopped);
        let hint = hint.map(|hint| format!("  {hint}")).unwrap_or_default();
        self.say(&format!("[{}] {} {state}  {}{hint}", job.number, job.id.short(), shown(&job.text)));
        self.beside.push(job);
        Ok(())
    }

    /// Removes a job from next to the prompt, to give it the terminal.
    pub fn take(&mut self, which: &JobSelector) -> Option<Job> {
        let place = match which {
            JobSelector::Latest => self.beside.len().checked_sub(1),
            JobSelector::Number(number) => self.beside.iter().position(|job| job.number == *number),
            JobSelector::Task(task) => {
                let mut places =
                    self.beside.iter().enumerate().filter(|(_, job)| task.range().contains(&job.id));
                match (places.next(), places.next()) {
                    (Some((place, _)), None) => Some(place),
                    // The daemon reports an ambiguous id.
                    _ => None,
                }
            }
        }?;
        let mut job = self.beside.remove(place);
        self.say_lines(&mut job);
        Some(job)
    }

    /// Records that a job that had the terminal has ended.
    pub fn ended(&mut self, id: TaskId) {
        if self.rules.finished(&id) == Finished::Wait {
            // The job's end arrived first, so the hand-over is too late.
            let _ = self.rules.answered(&id, Answer::AlreadyFinished);
        }
    }

    /// Handles the key at the prompt.
    ///
    /// # Errors
    /// The daemon is gone.
    pub fn pressed(&mut self, link: &mut PolledClient) -> Result<(), ClientError> {
        match self.rules.pressed() {
            Press::Take(id) => self.hand_over(link, id),
            Press::Refuse(sentence) => {
                self.say(&sentence);
                Ok(())
            }
            Press::Nothing | Press::Ignore | Press::Pass => Ok(()),
        }
    }

    /// Notes a press of the key that the terminal made a signal, for what reads keys next. As with typed input, Ctrl-C
    /// drops it.
    pub fn caught(&mut self, caught: Caught) {
        if caught.is_key(self.key) {
            self.pressed_at = Some(Instant::now());
        } else if caught.signal == Signal::SIGINT {
            self.pressed_at = None;
        }
    }

    /// Acts at the prompt on a press that was noted. Without a job, it may be meant for a command whose line is on its
    /// way.
    ///
    /// # Errors
    /// The daemon is gone.
    pub fn act_on_press(&mut self, link: &mut PolledClient) -> Result<(), ClientError> {
        if self.rules.is_empty() || !self.takes_press() { Ok(()) } else { self.pressed(link) }
    }

    /// Drops a press that was noted long before this line was taken, so that it is not meant for its command.
    pub fn line_taken(&mut self) {
        self.pressed_at.take_if(|at| at.elapsed() > LINE_TAKES);
    }

    /// Reports whether the answer to a hand-over is pending.
    pub fn is_handing_over(&self) -> bool {
        self.calls.values().any(|purpose| matches!(purpose, Call::Detach(_)))
    }

    /// Sends the terminal size to all jobs next to the prompt.
    ///
    /// # Errors
    /// The daemon is gone.
    pub fn resize(&self, link: &mut PolledClient, size: TerminalSize) -> Result<(), ClientError> {
        for job in &self.beside {
            let size = ResizeParams { id: job.id.into(), rows: size.rows, cols: size.cols };
            link.call::<TaskResize>(&size)?;
        }
        Ok(())
    }

    /// Stops waiting for the answer to a call of this method. What the call still brings about is undone.
    pub fn give_up<M: Method>(&mut self, call: u64) {
        if M::NAME == TaskSubmit::NAME {
            self.calls.insert(call, Call::Submit);
        } else if M::NAME == TaskAttach::NAME {
            self.calls.insert(call, Call::Attach);
        }
    }

    /// Like [`Self::give_up`], for the submission of a task of the console's own, which is also kept out of lists.
    pub fn give_up_helper(&mut self, call: u64) {
        self.calls.insert(call, Call::SubmitHelper);
    }

    /// Ends a task of the console's own whose outcome is no longer awaited, and keeps it out of lists.
    pub fn drop_helper(&mut self, task: TaskId) {
        self.unwanted.push(Unwanted::Helper(task));
    }

    /// Returns the unanswered call that waits for the end of this task. There is at most one per task.
    fn end_call(&self, task: TaskId) -> Option<u64> {
        self.calls.iter().find_map(|(call, purpose)| match purpose {
            Call::End(id) if *id == task => Some(*call),
            _ => None,
        })
    }

    fn output(&mut self, news: OutputNews) -> Result<(), ClientError> {
        let Some(job) = self.beside.iter_mut().find(|job| job.id == news.id) else { return Ok(()) };
        if let Some(restore) = news.restore {
            job.restore = restore;
        }
        // A redraw repeats output that was shown before.
        if !news.redraw {
            let bytes = news.encoding.decode(news.data);
            job.lines.push(&bytes.map_err(|error| ClientError::Garbled(error.to_string()))?);
        }
        Ok(())
    }

    fn finished(&mut self, id: TaskId, task: Task) {
        let Some(place) = self.beside.iter().position(|job| job.id == id) else {
            // Otherwise the key would act on a job that is gone.
            return self.ended(id);
        };
        if self.rules.finished(&id) == Finished::Wait {
            self.beside[place].ended = Some(Box::new(task));
        } else {
            let mut job = self.beside.remove(place);
            self.say_lines(&mut job);
            self.say(&format!("[{}] {}  {}", job.number, how(&task), shown(&job.text)));
        }
    }

    /// Handles the daemon's refusal to report how this job ends.
    fn end_refused(&mut self, id: TaskId, error: &RpcError) {
        let Some(place) = self.beside.iter().position(|job| job.id == id) else { return };
        let why = clean(&error.message);
        if error.kind() == ErrorKind::TaskNotFound {
            let mut job = self.beside.remove(place);
            self.ended(id);
            self.say_lines(&mut job);
            self.say(&format!("[{}] gone: {why}", job.number));
        } else {
            let number = self.beside[place].number;
            self.say(&format!("[{number}] how it ended is unknown: {why}; `fg %{number}` asks again"));
        }
    }

    fn answered(&mut self, id: TaskId, answer: Answer) {
        match self.rules.answered(&id, answer) {
            Some(Outcome::Backgrounded(id, sentence)) => {
                if let Some(place) = self.beside.iter().position(|job| job.id == id) {
                    let mut job = self.beside.remove(place);
                    self.say_lines(&mut job);
                }
                self.say(&sentence);
            }
            Some(Outcome::Finished(id)) => {
                // Otherwise the report of the job's end has not arrived yet.
                let job = self.beside.iter_mut().find(|job| job.id == id);
                if let Some(task) = job.and_then(|job| job.ended.take()) {
                    self.finished(id, *task);
                }
            }
            Some(Outcome::Stays(_, sentence)) => self.say(&sentence),
            None => {}
        }
    }

    /// Shows the job's remaining output, before any message about the job.
    fn say_lines(&mut self, job: &mut Job) {
        job.lines.finish();
        self.said.push_str(&job.lines.take(job.number, &job.id.short()));
    }

    fn say(&mut self, sentence: &str) {
        self.said.push_str(sentence);
        self.said.push('\n');
    }
}

impl Host for Jobs {
    fn jobs(&mut self) -> &mut Foreground<TaskId> {
        &mut self.rules
    }

    /// A stopped job waits next to the prompt.
    fn leaves_stopped(&self) -> bool {
        true
    }

    fn hand_over(&mut self, link: &mut PolledClient, id: TaskId) -> Result<(), ClientError> {
        if self.beside.iter().any(|job| job.id == id && job.stopped) {
            continue_stopped(link, id)?;
        }
        let call = link.call::<TaskDetach>(&DetachParams { id: id.into(), background: true })?;
        self.calls.insert(call, Call::Detach(id));
        Ok(())
    }

    fn take_end_call(&mut self, task: TaskId) -> Option<u64> {
        let call = self.end_call(task)?;
        self.calls.remove(&call);
        Some(call)
    }

    fn keep_end_call(&mut self, task: TaskId, call: u64) {
        self.calls.insert(call, Call::End(task));
    }

    fn undo(&mut self, link: &mut PolledClient) -> Result<(), ClientError> {
        for unwanted in self.unwanted.drain(..) {
            let cancel = |id: TaskId| CancelParams { ids: vec![id.into()], ..CancelParams::default() };
            match unwanted {
                Unwanted::Job(id) => _ = link.call::<TaskCancel>(&cancel(id))?,
                Unwanted::Attachment(id) => {
                    link.call::<TaskDetach>(&DetachParams { id: id.into(), background: false })?;
                }
                Unwanted::Helper(id) => {
                    let call = link.call::<TaskCancel>(&cancel(id))?;
                    self.calls.insert(call, Call::EndHelper(id));
                }
                Unwanted::EndedHelper(id) => {
                    let clear = ClearParams { ids: Some(vec![id.into()]), ..ClearParams::default() };
                    link.call::<TaskClear>(&clear)?;
                }
            }
        }
        Ok(())
    }

    fn takes_press(&mut self) -> bool {
        self.pressed_at.take().is_some()
    }

    fn asked_to_end(&mut self, code: u8) {
        self.asked_to_end = Some(Code(code));
    }

    fn received(&mut self, received: Received) -> Result<(), ClientError> {
        match received {
            Received::Output(news) => self.output(*news)?,
            Received::Stopped(news) => {
                if let Some(job) = self.beside.iter_mut().find(|job| job.id == news.id)
                    && !std::mem::replace(&mut job.stopped, true)
                {
                    let sentence = format!("[{}] stopped  {}", job.number, shown(&job.text));
                    self.say(&sentence);
                }
            }
            Received::Answer { call, outcome } => match self.calls.remove(&call) {
                Some(Call::End(id)) => match Protocol::result::<TaskBlock>(outcome) {
                    Ok(mut result) => {
                        if let Some(task) = result.tasks.pop() {
                            self.finished(id, task);
                        }
                    }
                    // The other jobs continue.
                    Err(ClientError::Rpc(error)) => self.end_refused(id, &error),
                    Err(error) => return Err(error),
                },
                Some(Call::Detach(id)) => match Protocol::result::<TaskDetach>(outcome) {
                    Ok(result) => self.answered(id, Answer::Backgrounded(result.task.id)),
                    Err(ClientError::Rpc(error)) => self.answered(id, Answer::from(&error)),
                    Err(error) => return Err(error),
                },
                Some(Call::Submit) => {
                    let begun = Protocol::result::<TaskSubmit>(outcome).ok();
                    self.unwanted.extend(begun.map(|begun| Unwanted::Job(begun.task.id)));
                }
                Some(Call::SubmitHelper) => {
                    let begun = Protocol::result::<TaskSubmit>(outcome).ok();
                    self.unwanted.extend(begun.map(|begun| Unwanted::Helper(begun.task.id)));
                }
                // If it could not be cancelled, it is gone, or is kept until it has ended.
                Some(Call::EndHelper(id)) => self.unwanted.push(Unwanted::EndedHelper(id)),
                Some(Call::Attach) => {
                    let begun = Protocol::result::<TaskAttach>(outcome).ok();
                    self.unwanted.extend(begun.map(|begun| Unwanted::Attachment(begun.task.id)));
                }
                None => {}
            },
            Received::News(_) => {}
        }
        Ok(())
    }
}

/// Shows a background task from within the console, which keeps its own jobs. The key detaches from the task.
#[derive(Debug)]
pub struct Visit<'a> {
    jobs: &'a mut Jobs,
    alone: Foreground<TaskId>,
}

impl<'a> Visit<'a> {
    /// Starts a visit to this task.
    pub fn of(jobs: &'a mut Jobs, task: TaskId, key: Key) -> Self {
        let mut alone = Foreground::new(key);
        alone.started(task, Can::Yes);
        Self { jobs, alone }
    }
}

impl Host for Visit<'_> {
    fn jobs(&mut self) -> &mut Foreground<TaskId> {
        &mut self.alone
    }

    fn leaves_stopped(&self) -> bool {
        true
    }

    fn hand_over(&mut self, link: &mut PolledClient, job: TaskId) -> Result<(), ClientError> {
        self.jobs.hand_over(link, job)
    }

    fn take_end_call(&mut self, task: TaskId) -> Option<u64> {
        self.jobs.take_end_call(task)
    }

    fn keep_end_call(&mut self, task: TaskId, call: u64) {
        self.jobs.keep_end_call(task, call);
    }

    fn undo(&mut self, link: &mut PolledClient) -> Result<(), ClientError> {
        self.jobs.undo(link)
    }

    fn takes_press(&mut self) -> bool {
        self.jobs.takes_press()
    }

    fn asked_to_end(&mut self, code: u8) {
        self.jobs.asked_to_end(code);
    }

    fn received(&mut self, received: Received) -> Result<(), ClientError> {
        self.jobs.received(received)
    }
}

/// Continues a stopped job.
///
/// # Errors
/// The daemon is gone.
pub fn continue_stopped(link: &mut PolledClient, id: TaskId) -> Result<(), ClientError> {
    let signal = SignalParams { id: id.into(), signal: "CONT".to_owned(), tree: true };
    link.call::<TaskSignal>(&signal).map(drop)
}

/// Describes how a job ended, such as `completed` or `failed (2)`.
pub fn how(task: &Task) -> String {
    // The status of a task that timed out already includes that.
    let says_all = task.status == Status::Completed || task.timed_out;
    let remark = if says_all { None } else { ending::remark(task) };
    let remark = remark.map(|remark| format!(": {}", clean(&remark))).unwrap_or_default();
    format!("{}{remark}", table::status(task, &Clock::system(Timestamp::now())))
}

/// Shortens a job's command line for display.
pub fn shown(text: &str) -> String {
    bounded_line(text, SHOWN)
}

#[cfg(test)]
mod tests;
