//! Records a turn: appends its text to the task's output as it arrives, keeps the final answer as the task's result,
//! and reports facts to the core. It makes no decisions about the task.

mod last_message;
mod pending;
mod state;

use std::fs::File;
use std::io::{self, Write as _};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bgd_shared::agent::InputOption;
use bgd_shared::consumption::PlanStep;
use bgd_shared::id::TaskId;
use bgd_shared::request::Stream;
use bgd_shared::show;
use bgd_shared::text::beginning;
use serde::{Deserialize, Serialize};

use self::last_message::{LastMessage, Next};
use self::pending::PendingReports;
use super::connection::TurnEnd;
use super::earlier::Ending;
use super::signs::{self, Model};
use crate::core::{Fact, Note, Report};
use crate::exec::context::Context;
use crate::exec::output::OutputFolder;
use crate::exec::output::loss::Loss;
use crate::exec::output::place::write_all;
use crate::os::clock::sleep_until;

/// The shortest time between two reports of activity to the core.
const ACTIVITY_INTERVAL: Duration = Duration::from_millis(500);

/// The mark before text that arrives after the end of the turn.
const LATE: &str = "[late] ";

/// The maximum number of bytes of late text that are kept per turn; the rest is lost.
pub const LATE_BYTES: usize = 64 * 1024;

/// Why the rest is lost.
const TOO_LATE: &str = "an agent may write at most 64 KiB after its turn";

/// The record of a turn so far, as carried over an upgrade.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct RecorderState {
    task: TaskId,
    run: u32,
    split: bool,
    line_ended: bool,
    answer: LastMessage,
    model_error: Option<String>,
    last_report: Option<Report>,
    last_plan: Vec<PlanStep>,
    is_late: bool,
    late_bytes: usize,
    separate: Ending,
}

/// Records one turn.
#[derive(Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is about another thing")]
pub struct Recorder {
    task: TaskId,
    run: u32,
    split: bool,
    context: Context,
    /// `None` while no text is expected.
    file: Option<File>,
    /// Whether the last write ended with a newline.
    line_ended: bool,
    answer: LastMessage,
    /// Why the model failed, according to the agent's own fields.
    model_error: Option<String>,
    loss: Loss,
    /// Reports that the core does not have yet.
    pending: PendingReports,
    last_activity: Option<Instant>,
    last_report: Option<Report>,
    last_plan: Vec<PlanStep>,
    is_late: bool,
    /// How many bytes of text came after the end of the turn.
    late_bytes: usize,
    /// How the output of earlier runs ends, until a separator is written before this run's first text.
    separate: Ending,
}

impl Recorder {
    /// Starts recording a turn: creates the task's output, or appends to that of earlier runs. Does not track it, as a
    /// program that writes the output itself does so only once it runs.
    ///
    /// # Errors
    /// The output can't be created; the message says why.
    pub fn begin(task: TaskId, run: u32, split: bool, context: Context) -> Result<Self, String> {
        let file = open(&context.folder, task).map_err(|error| {
            format!("cannot create its output in {}: {error}", context.folder.path().display())
        })?;
        let loss = Loss::new(task, run, context.facts.clone());
        let before = Ending::of(&context.folder, task, split, Stream::Stdout);
        Ok(Self {
            task,
            run,
            split,
            context,
            file: Some(file),
            line_ended: true,
            answer: LastMessage::default(),
            model_error: None,
            loss,
            pending: PendingReports::default(),
            last_activity: None,
            last_report: None,
            last_plan: Vec::new(),
            is_late: false,
            late_bytes: 0,
            separate: before,
        })
    }

    /// Continues a record from before an upgrade. The output is already being tracked.
    pub fn restore(state: RecorderState, context: Context) -> Self {
        let RecorderState {
            task,
            run,
            split,
            line_ended,
            answer,
            model_error,
            last_report,
            last_plan,
            is_late,
            late_bytes,
            separate,
        } = state;
        let loss = Loss::new(task, run, context.facts.clone());
        let (file, last_activity, pending) = (None, None, PendingReports::default());
        Self {
            task,
            run,
            split,
            context,
            file,
            line_ended,
            answer,
            model_error,
            loss,
            pending,
            last_activity,
            last_report,
            last_plan,
            is_late,
            late_bytes,
            separate,
        }
    }

    /// Stops recording a turn that did not begin; the output remains unchanged.
    pub async fn abandon(self) {
        self.context.outputs.settle(self.task, self.run, false).await;
    }

    /// Reports a fact to the core.
    fn report(&self, fact: Fact) {
        self.context.facts.send(self.task, self.run, fact);
    }

    /// Waits until [`Self::send_pending`] is due for the reports pending now; never resolves if there are none.
    pub fn until_due(&self) -> impl Future<Output = ()> + use<> {
        sleep_until(self.pending.due())
    }

    /// Sends the pending reports to the core.
    pub fn send_pending(&mut self) {
        for fact in self.pending.take(Instant::now()) {
            self.report(fact);
        }
    }

    /// Sends the pending reports to the core if they are due: an agent may report far more than is read. After the end
    /// of the turn they are sent at once, because the next run may begin at any time.
    fn report_if_due(&mut self) {
        if self.is_late || self.pending.due().is_some_and(|at| at <= Instant::now()) {
            self.send_pending();
        }
    }

    /// Records a piece of the agent's answer.
    pub fn text(&mut self, text: &str) {
        if text.is_empty() {
            return;
        }
        if self.is_late {
            return self.late(text);
        }
        match std::mem::take(&mut self.separate) {
            Ending::Nothing => self.write(match (self.answer.next, self.line_ended) {
                (Next::Goes, _) | (Next::AfterTool, true) => "",
                (Next::AfterTool, false) | (Next::OtherPart | Next::OtherMessage, true) => "\n",
                (Next::OtherPart | Next::OtherMessage, false) => "\n\n",
            }),
            Ending::Line => self.write("\n"),
            Ending::Word => self.write("\n\n"),
        }
        self.answer.push(text);
        self.write(text);
    }

    /// Notes that the text that follows belongs to another message.
    pub fn message(&mut self) {
        self.answer.other_message();
    }

    /// Notes that the text that follows belongs to another part of the same message.
    pub fn part(&mut self) {
        self.answer.other_part();
    }

    /// Replaces the answer collected from the text with the one that the agent reported.
    pub fn answer(&mut self, answer: String) {
        self.answer.replace(answer);
    }

    /// Records a tool call.
    pub fn tool(&mut self, name: &str) {
        self.answer.tool_called();
        self.pending.tool(shortened(name).into());
        self.report_if_due();
    }

    /// Notes that a tool makes progress, or that the agent asks for permission to use one.
    pub fn worked(&mut self) {
        self.answer.any_tool = true;
        self.note_activity();
    }

    /// Notes that the agent reports its model as failing, or as working again.
    pub fn model(&mut self, of_model: Model) {
        self.note_activity();
        self.model_error = match of_model {
            Model::Failed(why) => Some(why),
            Model::Works => None,
        };
    }

    /// Returns how a turn that its agent calls completed really ended: some agents call it completed even if the model
    /// failed. With `must_speak`, a turn without text or a tool call counts as failed.
    pub fn verdict(&self, must_speak: bool) -> TurnEnd {
        match (&self.model_error, self.answer.error()) {
            (_, Some(error)) => TurnEnd::Failed(error.into()),
            (Some(why), None) => {
                // The agent's field alone explains little. The last line is the error, if the agent reports it at all.
                let line = self.answer.said.trim_end().lines().next_back().unwrap_or_default();
                let said = if line.is_empty() {
                    String::new()
                } else {
                    format!("; it said: {}", show::line(beginning(line, NOTE_BYTES)))
                };
                TurnEnd::Failed(format!("the model failed: {why}{said}").into())
            }
            (None, None) if must_speak && self.answer.is_nothing() => {
                TurnEnd::Failed("the agent ended its turn without an answer or a tool call".into())
            }
            (None, None) => TurnEnd::Completed,
        }
    }

    /// Guesses why a completed turn may have failed nevertheless; `None` if nothing looks suspicious.
    pub fn suspicion(&self) -> Option<String> {
        let said = self.answer.said.trim();
        if self.answer.any_tool && said.is_empty() && self.answer.before.is_none() {
            return Some("the agent ended its turn without an answer after its last tool call".to_owned());
        }
        let is_error = signs::error_as_answer(said).is_some() || signs::looks_like_error(said);
        is_error.then(|| format!("its answer looks like an error: {}", shortened(said)))
    }

    /// Records the agent's consumption, unless it is unchanged since the last report.
    pub fn consumed(&mut self, report: Report) {
        if report.is_empty() || self.last_report.as_ref() == Some(&report) {
            return self.note_activity();
        }
        self.pending.consumed(&report);
        self.last_report = Some(report);
        self.report_if_due();
    }

    /// Records the agent's plan, unless it is unchanged.
    pub fn plan(&mut self, steps: Vec<PlanStep>) {
        if self.last_plan == steps {
            return self.note_activity();
        }
        self.pending.planned(steps.as_slice().into());
        self.last_plan = steps;
        self.report_if_due();
    }

    /// Reports a note about the agent, for people.
    pub fn note(&mut self, note: Note, text: &str) {
        let text = beginning(text, NOTE_BYTES).into();
        match note {
            Note::LastWords => {
                self.pending.last_words(text);
                self.report_if_due();
            }
            Note::Suspect | Note::Warning => self.report(Fact::Noted { note, text }),
        }
    }

    /// Reports activity, at most once per [`ACTIVITY_INTERVAL`].
    pub fn note_activity(&mut self) {
        let now = Instant::now();
        if self.last_activity.is_none_or(|last| now.duration_since(last) >= ACTIVITY_INTERVAL) {
            self.last_activity = Some(now);
            self.report(Fact::Activity);
        }
    }

    /// Reports that the agent was denied something.
    pub fn denied(&mut self, what: &str) {
        self.pending.denied(shortened(what).into());
        self.report_if_due();
    }

    /// Reports a question of the agent, after the pending reports. It needs no rate limit, as the number of open
    /// questions is limited.
    pub fn asked(&mut self, key: u64, question: &str, options: Vec<InputOption>) {
        self.send_pending();
        self.report(Fact::Asked { key, question: question.into(), options: options.into() });
    }

    /// Ends the turn. Its output and result can be read before the end is reported.
    pub async fn end(&mut self, result: Result<(), Box<str>>) {
        if !self.line_ended {
            self.write("\n");
        }
        self.file = None;
        self.is_late = true;
        self.send_pending();
        let (cut, answer) = std::mem::take(&mut self.answer).last();
        let folder = Arc::clone(&self.context.folder);
        let (task, run) = (self.task, self.run);
        let result = match result {
            Ok(()) => {
                let keep = move || folder.keep_result(task, run, cut, answer.as_bytes());
                let kept = self.context.workers.run(keep).await;
                let kept = kept.unwrap_or_else(|| Err(io::Error::other("internal error in the daemon")));
                kept.map_err(|error| format!("its answer can't be written: {error}").into())
            }
            failed => failed,
        };
        if let Some(fact) = self.context.outputs.settle(self.task, self.run, false).await {
            self.report(fact);
        }
        self.loss.report();
        self.report(Fact::TurnEnded { result });
    }

    /// Appends text that arrives after the end of the turn, marked as late. Nothing else changes.
    fn late(&mut self, text: &str) {
        // The output limit no longer applies, because it is enforced only while the output is tracked; so limit late
        // text here.
        let kept = beginning(text, LATE_BYTES.saturating_sub(self.late_bytes));
        self.late_bytes = self.late_bytes.saturating_add(text.len());
        if kept.len() < text.len() {
            self.loss.add(text.len() - kept.len(), &io::Error::other(TOO_LATE));
            self.loss.report();
        }
        if kept.is_empty() {
            return;
        }
        let text = kept;
        match self.context.folder.append_existing(self.task, Stream::Stdout) {
            Ok(file) => self.file = Some(file.into()),
            // The task was cleared, and nothing would remove a new file.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return,
            Err(error) => {
                self.lose(text.len(), &error);
                return self.loss.report();
            }
        }
        if self.line_ended {
            self.write(LATE);
        }
        self.write(text);
        // Report the size at once: the output of a finished task is not tracked.
        self.file = None;
        self.loss.report();
        let bytes = self.context.folder.sizes(self.task, self.split);
        self.report(Fact::Output { bytes, dropped: [0; 2], publish: false });
    }

    fn write(&mut self, text: &str) {
        let file = match &mut self.file {
            Some(file) => file,
            None => match open(&self.context.folder, self.task) {
                Ok(file) => self.file.insert(file),
                Err(error) => return self.lose(text.len(), &error),
            },
        };
        let lost = write_all(text.as_bytes(), 0, |bytes, _| (&*file).write(bytes)).err();
        let left = lost.as_ref().map_or(0, |(left, _)| *left);
        if let Some(last) = text.as_bytes()[..text.len() - left].last() {
            self.line_ended = *last == b'\n';
        }
        if let Some((left, error)) = lost {
            self.lose(left, &error);
        }
    }

    /// Notes that bytes of the text were not written. The turn goes on: its answer is kept apart from its output.
    fn lose(&mut self, bytes: usize, error: &io::Error) {
        tracing::warn!(task = %self.task, %error, "an agent's text can't be written");
        self.loss.add(bytes, error);
    }
}

fn open(folder: &OutputFolder, task: TaskId) -> io::Result<File> {
    folder.append(task, Stream::Stdout).map(File::from)
}

/// The maximum length of a note, in bytes.
const NOTE_BYTES: usize = 1000;

/// The maximum length of a reported tool name, in characters.
const TOOL_CHARS: usize = 100;

/// Returns the first line of a name, sanitized and cut to [`TOOL_CHARS`].
fn shortened(name: &str) -> String {
    let line = name.lines().next().unwrap_or_default().trim();
    show::line(line).chars().take(TOOL_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::exec::messages;
    use crate::exec::threads::workers::Workers;

    #[tokio::test]
    async fn late_text_does_not_create_the_output_of_a_cleared_task_again() {
        let home = tempfile::tempdir().unwrap();
        let folder = Arc::new(OutputFolder::open(home.path().to_path_buf()).unwrap());
        let ((facts, _facts), (reports, _reports)) = (messages::facts(), messages::reports());
        let workers = Workers::simulated(|job| job());
        let context =
            Context::new(Arc::clone(&folder), u64::MAX, workers, facts, reports, home.path().into());
        let task = TaskId::random();
        let mut recorder = Recorder::begin(task, 1, false, context).unwrap();
        recorder.text("It is here.");
        recorder.end(Ok(())).await;
        recorder.text("And there.");
        let path = folder.files(task, false).path(Stream::Stdout).to_path_buf();
        assert_eq!(fs::read_to_string(&path).unwrap(), "It is here.\n[late] And there.");
        folder.remove(task, 1);
        recorder.text("Or not.");
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0);
    }

    #[test]
    fn tool_names_are_shortened_and_sanitized() {
        assert_eq!(shortened("read \u{1b}[1mfile\n and more"), "read \u{fffd}[1mfile");
        assert_eq!(shortened(&"x".repeat(1000)).len(), TOOL_CHARS);
    }
}
