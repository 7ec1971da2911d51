//! What a turn leaves behind: its text in the task's output as it comes, the final answer as the task's
//! result, and the facts that the core is told. It decides nothing.

use std::fs::File;
use std::io::{self, Write as _};
use std::sync::Arc;
use std::time::{Duration, Instant};

use bgd_shared::agent::InputOption;
use bgd_shared::id::TaskId;
use bgd_shared::limits::AGENT_RESULT_BYTES;
use bgd_shared::request::Stream;
use bgd_shared::show;
use bgd_shared::text::beginning;

use super::connection::TurnEnd;
use super::signs::{self, Model};
use crate::core::{Fact, Note};
use crate::exec::context::Context;
use crate::exec::loss::Loss;
use crate::exec::output::{OutputFolder, read_part};

/// The bytes of an answer that are kept: its last ones.
#[allow(clippy::cast_possible_truncation, reason = "1 MiB")]
const ANSWER_BYTES: usize = AGENT_RESULT_BYTES as usize;

/// Of an agent that shows that it moves without a word, the core hears once in this time.
const MOVED_EVERY: Duration = Duration::from_millis(500);

/// What stands before text that comes when the turn is over.
const LATE: &str = "[late] ";

/// The bytes of late text that are kept of one turn; what comes behind them is dropped.
pub const LATE_BYTES: usize = 64 * 1024;

/// Writes down one turn.
#[derive(Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is about another thing")]
pub struct Recorder {
    task: TaskId,
    run: u32,
    split: bool,
    context: Context,
    /// Closed while nothing is expected.
    file: Option<File>,
    /// Whether what was written last ended its line.
    line_ended: bool,
    answer: Answer,
    /// Why the model fails, by the agent's own fields.
    model_error: Option<String>,
    /// The first write that failed.
    error: Option<String>,
    loss: Loss,
    last_moved: Option<Instant>,
    is_late: bool,
    /// How much came late.
    late_bytes: usize,
    /// What an earlier run left comes before the first text of this one.
    separate: Ending,
}

impl Recorder {
    /// For a turn that begins: makes the output, or goes on with that of earlier runs.
    ///
    /// # Errors
    /// What the system says, as a sentence.
    pub fn begin(task: TaskId, run: u32, split: bool, context: Context) -> Result<Self, String> {
        let file = open(&context.folder, task).map_err(|error| {
            format!("cannot create its output in {}: {error}", context.folder.path().display())
        })?;
        let loss = Loss::new(task, run, context.facts.clone());
        let before = ends(&context.folder, task, split);
        context.outputs.track(task, run, split);
        Ok(Self {
            task,
            run,
            split,
            context,
            file: Some(file),
            line_ended: true,
            answer: Answer::default(),
            model_error: None,
            error: None,
            loss,
            last_moved: None,
            is_late: false,
            late_bytes: 0,
            separate: before,
        })
    }

    /// The turn did not begin: the output stays as it was.
    pub async fn abandon(self) {
        self.context.outputs.settle(self.task, false).await;
    }

    /// Tells the core.
    pub fn tell(&self, fact: Fact) {
        self.context.facts.send(self.task, self.run, fact);
    }

    /// A piece of the agent's answer.
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
                (Next::AfterTool, false) | (Next::OtherMessage, true) => "\n",
                (Next::OtherMessage, false) => "\n\n",
            }),
            Ending::Line => self.write("\n"),
            Ending::Word => self.write("\n\n"),
        }
        self.answer.push(text);
        self.write(text);
    }

    /// What comes now is another message.
    pub fn message(&mut self) {
        self.answer.other_message();
    }

    /// The whole answer, where it is not the text.
    pub fn answer(&mut self, answer: String) {
        self.answer = Answer { said: answer, any_tool: self.answer.any_tool, ..Answer::default() };
        self.answer.bound();
    }

    /// The agent calls a tool.
    pub fn tool(&mut self, name: &str) {
        self.answer.tool_called();
        self.tell(Fact::Tool { name: shortened(name).into() });
    }

    /// A tool goes on, or the agent asks for leave to use one.
    pub fn worked(&mut self) {
        self.answer.any_tool = true;
        self.note_activity();
    }

    /// The agent says that its model fails, or works again.
    pub fn model(&mut self, of_model: Model) {
        self.note_activity();
        self.model_error = match of_model {
            Model::Failed(why) => Some(why),
            Model::Works => None,
        };
    }

    /// What a turn comes to that its agent calls completed. Some say so, too, of one in which the model failed.
    pub fn verdict(&self, must_speak: bool) -> TurnEnd {
        match (&self.model_error, self.answer.error()) {
            (_, Some(error)) => TurnEnd::Failed(error.into()),
            (Some(why), None) => {
                // The sign alone says little; the last line is the error, if the agent tells it at all.
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

    /// Why a turn that is completed may have come to nothing all the same. It is only a guess.
    pub fn suspicion(&self) -> Option<String> {
        let said = self.answer.said.trim();
        if self.answer.any_tool && said.is_empty() && self.answer.before.is_none() {
            return Some("the agent ended its turn without an answer after its last tool call".to_owned());
        }
        let is_error = signs::error_as_answer(said).is_some() || signs::looks_like_error(said);
        is_error.then(|| format!("its answer looks like an error: {}", shortened(said)))
    }

    /// People should know this of the agent.
    pub fn note(&self, note: Note, text: &str) {
        let text = beginning(text, NOTE_BYTES);
        self.tell(Fact::Noted { note, text: text.into() });
    }

    /// The agent moves.
    pub fn note_activity(&mut self) {
        let now = Instant::now();
        if self.last_moved.is_none_or(|last| now.duration_since(last) >= MOVED_EVERY) {
            self.last_moved = Some(now);
            self.tell(Fact::Activity);
        }
    }

    /// The agent was denied something.
    pub fn denied(&self, what: &str) {
        self.tell(Fact::Denied { what: shortened(what).into() });
    }

    /// The agent asks.
    pub fn asked(&self, key: u64, question: &str, options: Vec<InputOption>) {
        self.tell(Fact::Asked { key, question: question.into(), options: options.into() });
    }

    /// The turn is over: what it said can be read before anybody hears of its end.
    pub async fn end(&mut self, result: Result<(), Box<str>>) {
        if !self.line_ended {
            self.write("\n");
        }
        self.file = None;
        self.is_late = true;
        let (cut, answer) = std::mem::take(&mut self.answer).last();
        let folder = Arc::clone(&self.context.folder);
        let (task, run) = (self.task, self.run);
        let kept = match &result {
            Ok(()) => {
                let kept = self
                    .context
                    .workers
                    .run(move || folder.keep_result(task, run, cut, answer.as_bytes()))
                    .await;
                kept.unwrap_or_else(|| Err(io::Error::other("internal error in the daemon")))
            }
            Err(_) => Ok(()),
        };
        if let Err(error) = kept {
            self.failed(&error);
        }
        if let Some(fact) = self.context.outputs.settle(self.task, false).await {
            self.tell(fact);
        }
        self.loss.tell();
        let result = match self.error.take() {
            Some(error) => result.and(Err(error.into())),
            None => result,
        };
        self.tell(Fact::TurnEnded { result });
    }

    /// Text after the end of the turn is kept, marked, and changes nothing.
    fn late(&mut self, text: &str) {
        // The output is not bounded any more, as that is done while it is followed.
        self.late_bytes = self.late_bytes.saturating_add(text.len());
        if self.late_bytes > LATE_BYTES {
            return;
        }
        if self.line_ended {
            self.write(LATE);
        }
        self.write(text);
        // The size is told at once: nobody follows the output of a task that is over.
        self.file = None;
        self.loss.tell();
        let bytes = self.context.folder.sizes(self.task, self.split);
        self.tell(Fact::Output { bytes, dropped: [0; 2], tell: false });
    }

    fn write(&mut self, text: &str) {
        let file = match &mut self.file {
            Some(file) => file,
            None => match open(&self.context.folder, self.task) {
                Ok(file) => self.file.insert(file),
                Err(error) => return self.lose(text, &error),
            },
        };
        if text.is_empty() {
            return;
        }
        match file.write_all(text.as_bytes()) {
            Ok(()) => self.line_ended = text.ends_with('\n'),
            Err(error) => self.lose(text, &error),
        }
    }

    fn lose(&mut self, text: &str, error: &io::Error) {
        self.loss.add(text.len(), error);
        self.failed(error);
    }

    fn failed(&mut self, error: &io::Error) {
        tracing::warn!(task = %self.task, %error, "an agent's text can't be written");
        self.error.get_or_insert_with(|| format!("its output can't be written: {error}"));
    }
}

/// How the output of earlier runs ends.
#[derive(Clone, Copy, Debug, Default)]
enum Ending {
    /// There is none.
    #[default]
    Nothing,
    /// With a line.
    Line,
    /// Within one.
    Word,
}

fn ends(folder: &OutputFolder, task: TaskId, split: bool) -> Ending {
    let files = folder.files(task, split);
    match read_part(files.path(Stream::Stdout), false, -1, 1, 0) {
        Ok(part) if part.bytes.is_empty() => Ending::Nothing,
        Ok(part) if part.bytes == b"\n" => Ending::Line,
        Ok(_) | Err(_) => Ending::Word,
    }
}

fn open(folder: &OutputFolder, task: TaskId) -> io::Result<File> {
    folder.append(task, Stream::Stdout).map(File::from)
}

/// The longest note, in bytes.
const NOTE_BYTES: usize = 1000;

/// The longest name of a tool that is told, in characters.
const TOOL_CHARS: usize = 100;

/// A tool's name on one line.
fn shortened(name: &str) -> String {
    let line = name.lines().next().unwrap_or_default().trim();
    show::line(line).chars().take(TOOL_CHARS).collect()
}

/// How the next piece of an answer goes with what was said before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Next {
    /// It goes on.
    #[default]
    Goes,
    /// A tool was called.
    AfterTool,
    /// It is of another message.
    OtherMessage,
}

/// How the notices of adapters begin, which they send as messages of the agent. One behind the answer is not the
/// answer. Seen with codex-acp.
const NOTICES: [&str; 3] = ["**Warning:**", "Warning: ", "Config warning: "];

/// The last message since the last tool; if there is none yet, that before it.
#[derive(Debug, Default)]
struct Answer {
    said: String,
    /// How many bytes of it are not kept any more.
    cut: u64,
    /// The message before it, which is the answer if this one is a notice.
    before: Option<(u64, String)>,
    next: Next,
    any_tool: bool,
}

impl Answer {
    fn push(&mut self, text: &str) {
        match std::mem::take(&mut self.next) {
            Next::Goes => {}
            Next::AfterTool => *self = Self { any_tool: self.any_tool, ..Self::default() },
            Next::OtherMessage => {
                self.bound();
                let before = (self.cut, std::mem::take(&mut self.said));
                if !is_notice(&before.1) && !before.1.trim().is_empty() {
                    self.before = Some(before);
                }
                self.cut = 0;
            }
        }
        self.said.push_str(text);
        if self.said.len() > 2 * ANSWER_BYTES {
            self.bound();
        }
    }

    fn tool_called(&mut self) {
        self.next = Next::AfterTool;
        self.any_tool = true;
    }

    fn other_message(&mut self) {
        // A tool takes away more. Before the first word there is no other message.
        if self.next == Next::Goes && !self.said.is_empty() {
            self.next = Next::OtherMessage;
        }
    }

    fn error(&self) -> Option<&str> {
        // An agent that has done work may quote one.
        signs::error_as_answer(&self.said).filter(|_| !self.any_tool)
    }

    /// Whether the turn has come to nothing that anybody could see.
    fn is_nothing(&self) -> bool {
        let is_blank = |said: &str| said.trim().is_empty();
        !self.any_tool && is_blank(&self.said) && self.before.is_none()
    }

    /// Cuts off what is too old.
    fn bound(&mut self) {
        let surplus = self.said.len().saturating_sub(ANSWER_BYTES);
        let cut = (surplus..self.said.len()).find(|at| self.said.is_char_boundary(*at)).unwrap_or(surplus);
        if surplus > 0 {
            self.said.drain(..cut);
            self.cut += cut as u64;
        }
    }

    /// What is kept, and how many bytes came before it.
    fn last(mut self) -> (u64, String) {
        self.bound();
        match self.before {
            Some(before) if is_notice(&self.said) => before,
            Some(_) | None => (self.cut, self.said),
        }
    }
}

fn is_notice(said: &str) -> bool {
    NOTICES.iter().any(|begin| said.trim_start().starts_with(begin))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_is_what_was_said_after_the_last_tool() {
        let mut answer = Answer::default();
        answer.push("Let me ");
        answer.push("look.");
        answer.tool_called();
        answer.push("It is ");
        answer.push("here.");
        answer.tool_called();
        assert_eq!(answer.last(), (0, "It is here.".to_owned()));
    }

    #[test]
    fn the_answer_is_the_last_message_but_no_notice_behind_it() {
        let answer = |messages: &[&str]| {
            let mut answer = Answer::default();
            for message in messages {
                answer.other_message();
                answer.push(&message[..1]);
                answer.push(&message[1..]);
            }
            answer
        };
        let last = |messages: &[&str]| answer(messages).last().1;
        assert_eq!(last(&["I look.", "It is here."]), "It is here.");
        assert_eq!(last(&["It is here.", "**Warning:** old model"]), "It is here.");
        assert_eq!(last(&["**Warning:** old model", "It is here."]), "It is here.");
        assert_eq!(last(&["It is here.", "Warning: a", "Config warning: b"]), "It is here.");
        assert_eq!(last(&["Warning: a", "Warning: b"]), "Warning: b", "better than nothing");
        let mut after_tool = answer(&["It is here."]);
        after_tool.tool_called();
        after_tool.other_message();
        after_tool.push("Warning: a");
        assert_eq!(after_tool.last().1, "Warning: a");
    }

    #[test]
    fn an_error_of_the_model_is_no_answer() {
        let answer = |text: &str| Answer { said: text.to_owned(), ..Answer::default() };
        assert_eq!(answer(" API Error: 400 bad\n").error(), Some("API Error: 400 bad"));
        assert_eq!(answer("The API Error is in line 3").error(), None);
        let after_work = Answer { any_tool: true, ..answer("API Error: 400") };
        assert_eq!(after_work.error(), None);
    }

    #[test]
    fn a_long_answer_keeps_its_end_in_whole_characters() {
        let mut answer = Answer::default();
        for _ in 0..3 * ANSWER_BYTES / 3 {
            answer.push("€");
        }
        answer.push("end");
        let (cut, last) = answer.last();
        assert_eq!(cut + last.len() as u64, 3 * ANSWER_BYTES as u64 / 3 * 3 + 3);
        assert!(last.len() <= ANSWER_BYTES && last.len() > ANSWER_BYTES - 4, "{}", last.len());
        assert!(last.starts_with('€') && last.ends_with("end"));
    }

    #[test]
    fn names_of_tools_are_short_and_clean() {
        assert_eq!(shortened("read \u{1b}[1mfile\n and more"), "read \u{fffd}[1mfile");
        assert_eq!(shortened(&"x".repeat(1000)).len(), TOOL_CHARS);
    }
}
