//! What only agent tasks have: the prompt, the agent's own name for the conversation, its tools, its
//! questions, and how long it has been silent.

use std::collections::VecDeque;
use std::sync::Arc;

use bgd_shared::agent::{AgentSettings, InputOption};
use bgd_shared::limits::PROMPT_BYTES;
use bgd_shared::text::Env;
use bgd_shared::time::Timestamp;
use serde::{Deserialize, Serialize};

use super::time::{Mono, Now};

/// How many of the agent's last tools are remembered.
const LAST_TOOLS: usize = 3;

/// How many questions of one task may wait. The agent is denied what it asks beyond that.
pub const QUESTIONS: usize = 64;

/// The part of an agent task's order that never changes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentWork {
    /// The agent.
    pub name: Arc<str>,
    /// How long it may be silent before it is marked, in milliseconds.
    pub stalled_after_ms: u64,
    /// How long a question of its waits before it is denied, in milliseconds.
    pub ask_timeout_ms: u64,
    /// What is known of the agent from before; see [`Note::Warning`].
    pub warning: Option<Arc<str>>,
    /// What is set in its session, until a resume says otherwise.
    pub settings: Arc<AgentSettings>,
}

/// A question that waits for its answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Question {
    /// Its number within the task.
    pub request: u64,
    /// The executor's number for it.
    pub key: u64,
    /// What is asked, for people.
    pub text: Box<str>,
    /// The answers that are taken.
    pub options: Arc<[InputOption]>,
    /// When it is denied.
    pub deadline: Mono,
    /// The same, for people.
    pub expires_at: Timestamp,
}

/// Something that people should know of an agent's turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Note {
    /// What it last said beside its answer: that it tries again, or the last lines of its stderr.
    LastWords,
    /// Why its success may be none.
    Suspect,
    /// What it can do that its configuration means to keep it from.
    Warning,
}

/// The notes on an agent task, one of a kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Notes {
    /// See [`Note::LastWords`]; of this run.
    pub last_words: Option<Box<str>>,
    /// See [`Note::Suspect`]; of this run.
    pub suspect: Option<Box<str>>,
    /// See [`Note::Warning`]; of this run.
    pub warning: Option<Box<str>>,
}

impl Notes {
    /// The texts of those that there are.
    pub fn texts(&self) -> impl Iterator<Item = &str> {
        [&self.last_words, &self.suspect, &self.warning].into_iter().filter_map(|note| note.as_deref())
    }
}

/// What only agent tasks have.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct AgentPart {
    /// The prompt of the latest run.
    pub prompt: Arc<str>,
    /// The environment, which a resume needs again. Dropped when none can come any more.
    pub env: Arc<Env>,
    /// What is set in the session.
    pub settings: Arc<AgentSettings>,
    /// The agent's own name for the conversation, once it has one.
    pub session: Option<Arc<str>>,
    /// How many tools it has called.
    pub tool_calls: u64,
    /// The last of them, the latest last.
    pub last_tools: Vec<Box<str>>,
    /// How often it was denied something because of the configuration, or because nobody answered.
    pub denied: u64,
    /// What that was the last time.
    pub last_denied: Option<Box<str>>,
    /// Whether it has been silent for too long.
    pub stalled: bool,
    /// What people should know of it.
    pub notes: Notes,
    /// The run that its latest answer is of; 0 if it has none.
    pub answered: u32,
    /// What it asks, the oldest first.
    pub questions: VecDeque<Question>,
    /// How many it has asked.
    asked: u64,
    /// The last of them that was told to those who don't look at it.
    pub told: u64,
    /// How long it may be silent, in milliseconds.
    stalled_after_ms: u64,
    /// When it is marked, if it stays silent. `None` while it does not work.
    stalls_at: Option<Mono>,
}

impl AgentPart {
    /// The part of a new task.
    pub fn new(work: &AgentWork, prompt: Arc<str>, env: Arc<Env>) -> Self {
        Self {
            prompt,
            env,
            settings: Arc::clone(&work.settings),
            session: None,
            tool_calls: 0,
            last_tools: Vec::new(),
            denied: 0,
            last_denied: None,
            stalled: false,
            notes: Notes { warning: work.warning.as_deref().map(Into::into), ..Notes::default() },
            answered: 0,
            questions: VecDeque::new(),
            asked: 0,
            told: 0,
            stalled_after_ms: work.stalled_after_ms,
            stalls_at: None,
        }
    }

    /// The bytes of its texts as lists show them.
    pub fn text_bytes(&self) -> usize {
        let of_option = |option: &InputOption| option.id.len() + option.name.len();
        let of_question =
            |question: &Question| question.text.len() + question.options.iter().map(of_option).sum::<usize>();
        let tools: usize = self.last_tools.iter().map(|name| name.len()).sum();
        let session = self.session.as_deref().map_or(0, str::len);
        let denied = self.last_denied.as_deref().map_or(0, str::len);
        let asked = self.questions.front().map_or(0, of_question);
        let notes: usize = self.notes.texts().map(str::len).sum();
        let settings: usize = self.settings.texts().map(str::len).sum();
        self.prompt.len().min(PROMPT_BYTES) + session + tools + denied + asked + notes + settings
    }

    /// Its first run begins. What it was warned of before stays.
    pub fn begin_run(&mut self, now: Now) {
        self.notes = Notes { warning: self.notes.warning.take(), ..Notes::default() };
        self.begin(now);
    }

    /// Another run of its begins: what was noted on the one before is no more.
    pub fn begin_again(&mut self, now: Now, prompt: Arc<str>, settings: Arc<AgentSettings>) {
        (self.prompt, self.settings) = (prompt, settings);
        self.notes = Notes::default();
        self.begin(now);
    }

    /// Takes a note.
    pub fn note(&mut self, note: Note, text: Box<str>) {
        let place = match note {
            Note::LastWords => &mut self.notes.last_words,
            Note::Suspect => &mut self.notes.suspect,
            Note::Warning => &mut self.notes.warning,
        };
        *place = Some(text);
    }

    /// Its turn begins.
    pub fn begin(&mut self, now: Now) {
        self.stalls_at = Some(now.mono.plus_ms(self.stalled_after_ms));
    }

    /// Its turn is over: nothing of it waits any more.
    pub fn end(&mut self) {
        self.stalls_at = None;
        self.stalled = false;
        self.questions.clear();
    }

    /// It will not be resumed any more.
    pub fn drop_env(&mut self) {
        self.env = Arc::default();
    }

    /// What news of it needs: no environment, no more of the prompt than is shown, no later questions.
    pub fn shorten(&mut self) {
        self.drop_env();
        self.questions.truncate(1);
        // A little more than is shown, so that it shows that this is not all.
        let end = self.prompt.floor_char_boundary(PROMPT_BYTES + 4);
        if end < self.prompt.len() {
            self.prompt = self.prompt[..end].into();
        }
    }

    /// Whether its question has not been told yet. From now on it has.
    pub fn is_to_be_told(&mut self) -> bool {
        let Some(question) = self.questions.front() else { return false };
        let is_new = question.request > self.told;
        self.told = question.request;
        is_new
    }

    /// It has shown that it moves. True: it was taken for stalled.
    pub fn note_activity(&mut self, now: Now) -> bool {
        if self.stalls_at.is_some() {
            self.stalls_at = Some(now.mono.plus_ms(self.stalled_after_ms));
        } else if self.stalled {
            self.begin(now);
        }
        std::mem::take(&mut self.stalled)
    }

    /// It calls a tool.
    pub fn tool(&mut self, name: Box<str>) {
        self.tool_calls += 1;
        if self.last_tools.len() == LAST_TOOLS {
            self.last_tools.remove(0);
        }
        self.last_tools.push(name);
    }

    /// It was denied something.
    pub fn deny(&mut self, what: Box<str>) {
        self.denied += 1;
        self.last_denied = Some(what);
    }

    /// It asks something. False: too many questions wait already.
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

    /// Marks it if it has been silent for too long.
    pub fn mark_if_stalled(&mut self, now: Now) -> bool {
        let is_due = self.silence_ends().is_some_and(|at| at <= now.mono);
        if is_due {
            self.stalls_at = None;
            self.stalled = true;
        }
        is_due
    }

    /// It does not wait for this decision any more. True: it did.
    pub fn withdrawn(&mut self, now: Now, key: u64) -> bool {
        let before = self.questions.len();
        self.questions.retain(|question| question.key != key);
        let gone = self.questions.len() < before;
        if gone {
            self.note_activity(now);
        }
        gone
    }

    /// Takes out the questions whose time is over. Only then its silence begins: it has waited for us.
    pub fn expired(&mut self, now: Now) -> Vec<Question> {
        let is_over = |question: &Question| question.deadline <= now.mono;
        let over: Vec<Question> =
            self.questions.iter().filter(|question| is_over(question)).cloned().collect();
        self.questions.retain(|question| !is_over(question));
        if !over.is_empty() {
            self.note_activity(now);
        }
        for question in &over {
            // Its first line: the command, or what else would have been done.
            self.deny(question.text.lines().next().unwrap_or_default().into());
        }
        over
    }

    /// When it wants to be looked at again.
    pub fn deadline(&self) -> Option<Mono> {
        self.questions.iter().map(|question| question.deadline).chain(self.silence_ends()).min()
    }

    /// When it is marked, if it stays silent. Whoever waits for an answer may be silent.
    fn silence_ends(&self) -> Option<Mono> {
        self.stalls_at.filter(|_| self.questions.is_empty())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// It may be silent for a second, and its questions wait for ten.
    fn agent() -> AgentPart {
        let work = AgentWork {
            name: "fake".into(),
            stalled_after_ms: 1000,
            ask_timeout_ms: 10_000,
            ..AgentWork::default()
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
    fn it_is_marked_once_and_until_it_moves() {
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
    fn whoever_waits_for_an_answer_may_be_silent() {
        let mut agent = agent();
        assert!(ask(&mut agent, 500, 1) && ask(&mut agent, 700, 2));
        assert!(!agent.mark_if_stalled(at(9000)));
        assert_eq!(agent.deadline(), Some(Mono(10_500)), "the first question's");
        assert_eq!(agent.expired(at(10_500)).len(), 1);
        assert!(agent.withdrawn(at(10_600), 2) && !agent.withdrawn(at(10_600), 2));
        assert_eq!(agent.deadline(), Some(Mono(11_600)), "its silence begins when nothing waits");
    }

    #[test]
    fn where_no_silence_is_allowed_it_is_marked_once() {
        let mut agent = agent();
        agent.stalled_after_ms = 0;
        assert!(ask(&mut agent, 5, 1));
        assert_eq!(agent.expired(at(20_000)).len(), 1);
        assert!(agent.mark_if_stalled(at(20_000)));
        assert_eq!(agent.deadline(), None);
    }

    #[test]
    fn only_so_many_questions_wait() {
        let mut agent = agent();
        assert!((0..QUESTIONS as u64).all(|key| ask(&mut agent, 1, key)));
        assert!(!ask(&mut agent, 1, 1000));
        assert!(agent.withdrawn(at(2), 0) && ask(&mut agent, 2, 1001));
        let last = agent.questions.back().map(|question| (question.request, question.key));
        assert_eq!(last, Some((QUESTIONS as u64 + 1, 1001)), "one that was denied at once has no number");
    }

    #[test]
    fn the_last_tools_are_kept_and_all_are_counted() {
        let mut agent = agent();
        for name in ["read", "write", "run", "read"] {
            agent.tool(name.into());
        }
        assert_eq!(agent.last_tools, ["write", "run", "read"].map(Box::from));
        assert_eq!(agent.tool_calls, 4);
    }

    #[test]
    fn nothing_waits_when_the_turn_is_over() {
        let mut agent = agent();
        assert!(ask(&mut agent, 1, 1));
        agent.end();
        assert_eq!((agent.deadline(), agent.questions.len(), agent.stalled), (None, 0, false));
        assert!(!agent.note_activity(at(5)));
        assert_eq!(agent.deadline(), None);
    }
}
