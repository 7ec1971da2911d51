//! Data of agent tasks: the prompt, the agent's id for the conversation, its tool calls, its questions, and how long it
//! has been silent. When these change is decided in `machine/agent`.

use std::collections::VecDeque;
use std::sync::Arc;

use bgd_shared::agent::{AgentSettings, InputOption};
use bgd_shared::consumption::PlanStep;
use bgd_shared::limits::PROMPT_BYTES;
use bgd_shared::text::{Env, beginning};
use bgd_shared::time::Timestamp;
use serde::{Deserialize, Serialize};

use super::consumed::{Consumed, Report};
use super::time::{Mono, Now};

/// How much of a denied question is kept, in bytes.
const DENIED_BYTES: usize = 1024;

/// How many of the agent's latest tools are kept.
pub const LAST_TOOLS: usize = 3;

/// How many questions of one task may be pending. Further ones are denied at once.
pub const QUESTIONS: usize = 64;

/// The part of a spec that only agent tasks have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentWork {
    pub name: Arc<str>,
    /// How long the agent may be silent before it is marked as stalled, in milliseconds.
    pub stalled_after_ms: u64,
    /// How long its questions wait before they are denied, in milliseconds.
    pub ask_timeout_ms: u64,
    /// A warning known before the session opens; see [`Note::Warning`].
    pub warning: Option<Arc<str>>,
    /// Settings for its session, which a resume may change.
    pub settings: Arc<AgentSettings>,
}

/// A pending question.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Question {
    /// Its number within the task, from 1.
    pub request: u64,
    /// The executor's number for the question.
    pub key: u64,
    /// The question, for people.
    pub text: Box<str>,
    pub options: Arc<[InputOption]>,
    /// The time at which it is denied if it is not answered.
    pub deadline: Mono,
    /// The deadline on the wall clock, for people.
    pub expires_at: Timestamp,
}

/// A kind of note for people about an agent's turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Note {
    /// The agent's last message besides its answer: that it is retrying, or the last lines of its stderr.
    LastWords,
    /// Why a completed turn may not be a success.
    Suspect,
    /// The actions open to the agent that its configuration is meant to prevent.
    Warning,
}

/// The latest note of each kind on an agent task.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notes {
    /// See [`Note::LastWords`]. About the current run.
    pub last_words: Option<Box<str>>,
    /// See [`Note::Suspect`]. About the current run.
    pub suspect: Option<Box<str>>,
    /// See [`Note::Warning`]. About the current run.
    pub warning: Option<Box<str>>,
}

impl Notes {
    /// Returns the texts of the notes that are set.
    pub fn texts(&self) -> impl Iterator<Item = &str> {
        [&self.last_words, &self.suspect, &self.warning].into_iter().filter_map(|note| note.as_deref())
    }
}

/// Data of an agent task.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AgentPart {
    /// The prompt of the latest run.
    pub prompt: Arc<str>,
    /// The environment, kept for resumes. Dropped once none can follow.
    #[serde(with = "super::sharing::env")]
    pub env: Arc<Env>,
    pub settings: Arc<AgentSettings>,
    /// The agent's own id for the conversation, once known.
    pub session: Option<Arc<str>>,
    /// How many tools it has called.
    pub tool_calls: u64,
    /// The names of the latest tools, the latest last.
    pub last_tools: Vec<Box<str>>,
    /// Its plan for the current run.
    pub steps: Arc<[PlanStep]>,
    /// Its consumption; `None` unless it reports that.
    pub consumed: Option<Box<Consumed>>,
    /// The number of requests denied in the current run because of the configuration, for lack of an answer, or because
    /// too many questions were open.
    pub denied: u64,
    /// The request that was denied last.
    pub last_denied: Option<Box<str>>,
    /// Whether it has been silent for too long.
    pub stalled: bool,
    pub notes: Notes,
    /// The run that produced its latest answer; 0 without one.
    pub answered: u32,
    /// Its pending questions, oldest first.
    pub questions: VecDeque<Question>,
    /// How many questions it has asked.
    asked: u64,
    /// The number of the last question for which a notice was due; 0 for none.
    #[serde(rename = "told")]
    pub last_notified: u64,
    /// How long it may be silent, in milliseconds.
    stalled_after_ms: u64,
    /// When it is marked as stalled if it stays silent. `None` while it is not working.
    stalls_at: Option<Mono>,
}

impl AgentPart {
    pub fn new(work: &AgentWork, prompt: Arc<str>, env: Arc<Env>) -> Self {
        Self {
            prompt,
            env,
            settings: Arc::clone(&work.settings),
            session: None,
            tool_calls: 0,
            last_tools: Vec::new(),
            steps: Arc::default(),
            consumed: None,
            denied: 0,
            last_denied: None,
            stalled: false,
            notes: Notes { warning: work.warning.as_deref().map(Into::into), ..Notes::default() },
            answered: 0,
            questions: VecDeque::new(),
            asked: 0,
            last_notified: 0,
            stalled_after_ms: work.stalled_after_ms,
            stalls_at: None,
        }
    }

    /// Returns the size of its texts in lists.
    pub fn text_bytes(&self) -> usize {
        let of_option = |option: &InputOption| option.id.len() + option.name.len();
        let of_question =
            |question: &Question| question.text.len() + question.options.iter().map(of_option).sum::<usize>();
        let tools: usize = self.last_tools.iter().map(|name| name.len()).sum();
        let steps: usize = self.steps.iter().map(|step| step.text.len()).sum();
        let consumed = self.consumed.as_deref().map_or(0, Consumed::text_bytes);
        let session = self.session.as_deref().map_or(0, str::len);
        let denied = self.last_denied.as_deref().map_or(0, str::len);
        let asked = self.questions.front().map_or(0, of_question);
        let notes: usize = self.notes.texts().map(str::len).sum();
        let settings: usize = self.settings.texts().map(str::len).sum();
        self.prompt.len().min(PROMPT_BYTES)
            + session
            + tools
            + steps
            + consumed
            + denied
            + asked
            + notes
            + settings
    }

    /// Changes how long it may be silent, from its next activity on.
    pub fn limit_silence(&mut self, stalled_after_ms: u64) {
        self.stalled_after_ms = stalled_after_ms;
    }

    /// Starts the first run. Keeps the warning known before it.
    pub fn begin_run(&mut self, now: Now) {
        self.notes = Notes { warning: self.notes.warning.take(), ..Notes::default() };
        self.begin_count(true);
        self.begin(now);
    }

    /// Starts another run with this prompt and these settings. Drops the notes on the previous run.
    pub fn begin_again(&mut self, now: Now, prompt: Arc<str>, settings: Arc<AgentSettings>) {
        (self.prompt, self.settings) = (prompt, settings);
        self.notes = Notes::default();
        self.begin_count(false);
        self.begin(now);
    }

    /// Starts counting another run's consumption and denied requests, without a plan.
    fn begin_count(&mut self, is_new_session: bool) {
        self.steps = Arc::default();
        (self.denied, self.last_denied) = (0, None);
        if let Some(consumed) = &mut self.consumed {
            consumed.begin_run(is_new_session);
        }
    }

    pub fn consume(&mut self, report: &Report) {
        self.consumed.get_or_insert_default().take(report);
    }

    /// Stores a note, replacing an earlier one of the same kind.
    pub fn note(&mut self, note: Note, text: Box<str>) {
        let place = match note {
            Note::LastWords => &mut self.notes.last_words,
            Note::Suspect => &mut self.notes.suspect,
            Note::Warning => &mut self.notes.warning,
        };
        *place = Some(text);
    }

    /// Starts a turn, and with it the clock for silence.
    pub fn begin(&mut self, now: Now) {
        self.stalls_at = Some(now.mono.plus_ms(self.stalled_after_ms));
    }

    /// Ends the turn, and drops its questions.
    pub fn end(&mut self) {
        self.stalls_at = None;
        self.stalled = false;
        self.questions.clear();
    }

    /// Drops the environment, as no resume can follow.
    pub fn drop_env(&mut self) {
        self.env = Arc::default();
    }

    /// Reduces it to what a notice needs: no environment, only the beginning of the prompt, only the first question.
    pub fn shorten(&mut self) {
        self.drop_env();
        self.questions.truncate(1);
        // Slightly more than is shown, to make it evident that something was cut off.
        let kept = beginning(&self.prompt, PROMPT_BYTES + 4);
        if kept.len() < self.prompt.len() {
            self.prompt = kept.into();
        }
    }

    /// Returns whether the first question still needs a notice, and marks it as notified.
    pub fn take_notification_due(&mut self) -> bool {
        let Some(question) = self.questions.front() else { return false };
        let is_new = question.request > self.last_notified;
        self.last_notified = question.request;
        is_new
    }

    /// Records activity. Returns whether the agent was marked as stalled.
    pub fn note_activity(&mut self, now: Now) -> bool {
        if self.stalls_at.is_some() {
            self.stalls_at = Some(now.mono.plus_ms(self.stalled_after_ms));
        } else if self.stalled {
            self.begin(now);
        }
        std::mem::take(&mut self.stalled)
    }

    /// Records tool calls, with the names of the latest ones.
    pub fn tools(&mut self, calls: u64, latest: Vec<Box<str>>) {
        self.tool_calls = self.tool_calls.saturating_add(calls);
        self.last_tools.extend(latest);
        let surplus = self.last_tools.len().saturating_sub(LAST_TOOLS);
        self.last_tools.drain(..surplus);
    }

    /// Records denied requests, and the last of them.
    pub fn deny(&mut self, times: u64, what: Box<str>) {
        self.denied = self.denied.saturating_add(times);
        self.last_denied = Some(what);
    }

    /// Adds a question. Returns false if too many are already pending.
    pub fn ask(
        &mut self,
        now: Now,
        wait_ms: u64,
        key: u64,
        text: Box<str>,
        options: Arc<[InputOption]>,
    ) -> bool {
        if self.questions.len() >= QUESTIONS {
            return false;
        }
        self.asked += 1;
        self.questions.push_back(Question {
            request: self.asked,
            key,
            text,
            options,
            deadline: now.mono.plus_ms(wait_ms),
            expires_at: now.wall.plus_ms(wait_ms),
        });
        true
    }

    /// Marks the agent as stalled if it has been silent for too long. Returns whether it was marked.
    pub fn mark_if_stalled(&mut self, now: Now) -> bool {
        let is_due = self.silence_ends().is_some_and(|at| at <= now.mono);
        if is_due {
            self.stalls_at = None;
            self.stalled = true;
        }
        is_due
    }

    /// Removes a question that the agent no longer asks. Returns whether it was pending.
    pub fn withdrawn(&mut self, now: Now, key: u64) -> bool {
        let before = self.questions.len();
        self.questions.retain(|question| question.key != key);
        let gone = self.questions.len() < before;
        if gone {
            self.note_activity(now);
        }
        gone
    }

    /// Removes the expired questions, counts them as denied and returns them. The clock for silence starts over, as the
    /// agent was waiting for the daemon.
    pub fn expired(&mut self, now: Now) -> Vec<Question> {
        let is_over = |question: &Question| question.deadline <= now.mono;
        let over: Vec<Question> =
            self.questions.iter().filter(|question| is_over(question)).cloned().collect();
        self.questions.retain(|question| !is_over(question));
        if !over.is_empty() {
            self.note_activity(now);
        }
        for question in &over {
            self.deny(1, first_line(&question.text).into());
        }
        over
    }

    /// Returns when the core must check it again.
    pub fn deadline(&self) -> Option<Mono> {
        self.questions.iter().map(|question| question.deadline).chain(self.silence_ends()).min()
    }

    /// Returns when it becomes stalled. `None` while a question is pending: an agent that waits for an answer may be
    /// silent.
    fn silence_ends(&self) -> Option<Mono> {
        self.stalls_at.filter(|_| self.questions.is_empty())
    }
}

/// Returns the line of a question that names the command, or whatever else the agent asked to do; of a long one the
/// beginning.
pub fn first_line(question: &str) -> &str {
    beginning(question.lines().next().unwrap_or_default(), DENIED_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates an agent that may be silent for one second, and whose questions wait for ten.
    fn agent() -> AgentPart {
        let work = AgentWork {
            name: "fake".into(),
            stalled_after_ms: 1000,
            ask_timeout_ms: 10_000,
            warning: None,
            settings: Arc::default(),
        };
        let mut agent = AgentPart::new(&work, "do it".into(), Arc::default());
        agent.begin(at(0));
        agent
    }

    fn at(ms: u64) -> Now {
        Now { mono: Mono(ms), wall: Timestamp::from_unix_ms(0) }
    }

    fn ask(agent: &mut AgentPart, ms: u64, key: u64) -> bool {
        agent.note_activity(at(ms));
        agent.ask(at(ms), 10_000, key, "may I?".into(), [].into())
    }

    #[test]
    fn silent_agent_is_marked_stalled_once_until_it_moves() {
        let mut agent = agent();
        assert!(!agent.mark_if_stalled(at(999)));
        assert!(agent.mark_if_stalled(at(1000)));
        assert!(!agent.mark_if_stalled(at(9000)), "it is marked already");
        assert_eq!(agent.deadline(), None);
        assert!(agent.note_activity(at(9000)));
        assert!(!agent.note_activity(at(9500)), "it was not stalled any more");
        assert_eq!((agent.stalled, agent.deadline()), (false, Some(Mono(10_500))));
    }

    #[test]
    fn agent_with_open_question_is_not_stalled() {
        let mut agent = agent();
        assert!(ask(&mut agent, 500, 1) && ask(&mut agent, 700, 2));
        assert!(!agent.mark_if_stalled(at(9000)));
        assert_eq!(agent.deadline(), Some(Mono(10_500)), "the first question's");
        assert_eq!(agent.expired(at(10_500)).len(), 1);
        assert!(agent.withdrawn(at(10_600), 2) && !agent.withdrawn(at(10_600), 2));
        assert_eq!(agent.deadline(), Some(Mono(11_600)), "its silence begins when nothing waits");
    }

    #[test]
    fn zero_silence_limit_marks_agent_once() {
        let mut agent = agent();
        agent.stalled_after_ms = 0;
        assert!(ask(&mut agent, 5, 1));
        assert_eq!(agent.expired(at(20_000)).len(), 1);
        assert!(agent.mark_if_stalled(at(20_000)));
        assert_eq!(agent.deadline(), None);
    }

    #[test]
    fn number_of_open_questions_is_limited() {
        let mut agent = agent();
        assert!((0..QUESTIONS as u64).all(|key| ask(&mut agent, 1, key)));
        assert!(!ask(&mut agent, 1, 1000));
        assert!(agent.withdrawn(at(2), 0) && ask(&mut agent, 2, 1001));
        let last = agent.questions.back().map(|question| (question.request, question.key));
        assert_eq!(last, Some((QUESTIONS as u64 + 1, 1001)), "one that was denied at once has no number");
    }

    #[test]
    fn last_tools_are_kept_and_all_counted() {
        let mut agent = agent();
        let names = |names: &[&str]| names.iter().map(|name| Box::from(*name)).collect::<Vec<_>>();
        agent.tools(1, names(&["read"]));
        agent.tools(2, names(&["write", "run"]));
        assert_eq!((agent.tool_calls, &agent.last_tools), (3, &names(&["read", "write", "run"])));
        agent.tools(1, names(&["read"]));
        assert_eq!(agent.last_tools, names(&["write", "run", "read"]));
        agent.tools(1000, names(&["a", "b", "c"]));
        assert_eq!((agent.tool_calls, agent.last_tools), (1004, names(&["a", "b", "c"])));
    }

    #[test]
    fn end_of_turn_clears_questions_and_deadline() {
        let mut agent = agent();
        assert!(ask(&mut agent, 1, 1));
        agent.end();
        assert_eq!((agent.deadline(), agent.questions.len(), agent.stalled), (None, 0, false));
        assert!(!agent.note_activity(at(5)));
        assert_eq!(agent.deadline(), None);
    }
}
