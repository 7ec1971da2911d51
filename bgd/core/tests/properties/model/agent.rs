//! Naive model of agent tasks.

use std::sync::Arc;

use bgd_core::{
    AgentPart, Command, Consumed, CoreError, Fact, Note, Notes, Now, Refusal, ReplyTo, Report, Work,
};
use bgd_shared::agent::{AgentSettings, InputOption};
use bgd_shared::consumption::{AgentUsage, Amount, Cost, PlanStep};
use bgd_shared::event::EventKind;
use bgd_shared::id::{TaskId, TaskRef};
use bgd_shared::task::Status;
use bgd_shared::time::Timestamp;

use super::super::expected::{Answer, Decision, Prompted};
use super::{End, Kind, Known, Model, Phase, Why};

/// Maximum number of open questions.
const QUESTIONS: usize = 64;

/// The conversation with an agent.
#[derive(Clone, Debug)]
pub struct Chat {
    prompt: Arc<str>,
    pub session: Option<Arc<str>>,
    /// The names of its tool calls, empty for those that were only counted.
    tools: Vec<Box<str>>,
    steps: Arc<[PlanStep]>,
    /// Its consumption reports in each run, and whether the run began a conversation.
    reports: Vec<(bool, Vec<Report>)>,
    /// Requests of the latest run that were denied without a client's answer.
    denied: Vec<Box<str>>,
    stalled: bool,
    /// Settings in effect in its session.
    pub settings: AgentSettings,
    /// Notes about the latest run.
    pub notes: Notes,
    pub questions: Vec<Question>,
    asked: u64,
    /// Questions for which a notice was sent.
    pub notified: Vec<u64>,
    silence_ms: u64,
    question_ms: u64,
    /// Time of its last activity, while it is at work.
    last_sign: Option<u64>,
}

/// An open question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Question {
    pub request: u64,
    pub key: u64,
    options: Vec<String>,
    due: u64,
    expires_at: Timestamp,
}

impl Chat {
    /// `None` for a command.
    pub fn new(command: &Command) -> Option<Self> {
        let Work::Agent(work) = &command.spec.work else { return None };
        Some(Self {
            prompt: command.prompt.clone().unwrap_or_default(),
            session: None,
            settings: AgentSettings::clone(&work.settings),
            tools: Vec::new(),
            steps: Arc::default(),
            reports: Vec::new(),
            denied: Vec::new(),
            stalled: false,
            notes: Notes { warning: work.warning.as_deref().map(Into::into), ..Notes::default() },
            questions: Vec::new(),
            asked: 0,
            notified: Vec::new(),
            silence_ms: work.stalled_after_ms,
            question_ms: work.ask_timeout_ms,
            last_sign: None,
        })
    }

    pub fn begin(&mut self, now: Now) {
        self.last_sign = Some(now.mono.0);
    }

    pub fn begin_run(&mut self, now: Now, is_new_session: bool) {
        self.reports.push((is_new_session, Vec::new()));
        (self.notes.last_words, self.notes.suspect) = (None, None);
        self.steps = Arc::default();
        self.denied.clear();
        self.begin(now);
    }

    /// Adds up its consumption, naively.
    fn consumed(&self) -> AgentUsage {
        let mut sum = AgentUsage::default();
        let mut session = 0.0;
        for (is_new, reports) in &self.reports {
            if *is_new {
                (session, sum.context_tokens, sum.context_size) = (0.0, None, None);
            }
            if let Some(tokens) = reports.iter().rev().find_map(|report| report.tokens) {
                *sum.input_tokens.get_or_insert_default() += tokens.input;
                *sum.output_tokens.get_or_insert_default() += tokens.output;
            }
            for report in reports {
                if let Some(context) = report.context {
                    (sum.context_tokens, sum.context_size) = (Some(context.tokens), context.size);
                }
                let Some((_, cost)) = &report.cost else { continue };
                let more = if cost.amount.units() < session { 0.0 } else { session };
                session = cost.amount.units();
                let before = sum.cost.map_or(0.0, |cost| cost.amount.units());
                let amount = Amount::of(before + session - more).unwrap();
                sum.cost = Some(Cost { amount, currency: cost.currency.clone() });
            }
        }
        sum
    }

    pub fn end(&mut self) {
        (self.stalled, self.last_sign) = (false, None);
        self.questions.clear();
    }

    /// Returns when the next question expires or, without open questions, when its silence becomes a stall.
    pub fn deadline(&self) -> Option<u64> {
        match self.questions.iter().map(|question| question.due).min() {
            Some(due) => Some(due),
            None if self.stalled => None,
            None => self.last_sign.map(|sign| sign + self.silence_ms),
        }
    }

    /// Returns the settings in effect after applying these.
    fn with(&self, named: &AgentSettings) -> AgentSettings {
        let mut all = self.settings.clone();
        if named.mode.is_some() {
            all.mode.clone_from(&named.mode);
        }
        if named.model.is_some() {
            all.model.clone_from(&named.model);
        }
        for (name, value) in &named.config {
            all.config.insert(name.clone(), value.clone());
        }
        all
    }

    pub fn agrees(&self, agent: &AgentPart) -> bool {
        let questions = agent.questions.iter().map(|question| Question {
            request: question.request,
            key: question.key,
            options: question.options.iter().map(|option| option.id.clone()).collect(),
            due: question.deadline.0,
            expires_at: question.expires_at,
        });
        let last = self.tools.len().saturating_sub(3);
        self.prompt == agent.prompt
            && self.session == agent.session
            && self.settings == *agent.settings
            && self.tools.len() as u64 == agent.tool_calls
            && self.tools[last..] == agent.last_tools[..]
            && self.denied.len() as u64 == agent.denied
            && self.denied.last() == agent.last_denied.as_ref()
            && self.steps == agent.steps
            && self.consumed() == agent.consumed.as_deref().map(Consumed::total).unwrap_or_default()
            && self.stalled == agent.stalled
            && self.notes == agent.notes
            && questions.eq(self.questions.iter().cloned())
    }
}

impl Model {
    pub(super) fn resume(
        &mut self,
        to: ReplyTo,
        id: &TaskRef,
        prompt: &Arc<str>,
        settings: &AgentSettings,
    ) -> Result<(), CoreError> {
        if self.closing {
            return Err(CoreError::ShuttingDown);
        }
        let task = self.find(id)?;
        let (id, number, status) = (task.id, super::number(task.id), task.status());
        if task.chat.is_none() {
            return Err(CoreError::NoAgent(id));
        }
        if task.phase == Phase::Resuming || status == Status::Resumed {
            return Err(CoreError::BeingResumed(id));
        }
        if status != Status::Completed {
            return Err(CoreError::NotResumable(id, status));
        }
        let removes = |kind: Kind| matches!(kind, Kind::Clear | Kind::EndSession { .. });
        if self.calls.iter().any(|call| removes(call.kind) && call.tasks.contains(&id)) {
            return Err(CoreError::BeingCleared(id));
        }
        let Some(task) = self.live.get(&number) else { return Ok(()) };
        let settings = task.chat.as_ref().map(|chat| chat.with(settings)).unwrap_or_default();
        let Some(session) = task.chat.as_ref().and_then(|chat| chat.session.clone()) else {
            return Err(CoreError::NoSession { id, is_complete: true });
        };
        let texts = settings.texts().map(|text| super::TEXT_BYTES + text.len());
        self.memory_for(super::TEXT_BYTES + prompt.len() + texts.sum::<usize>())?;
        let Some(task) = self.live.get_mut(&number) else { return Ok(()) };
        task.order.stays_in(&self.groups);
        task.phase = Phase::Resuming;
        task.run += 1;
        task.resume = Some((to, prompt.clone(), settings.clone()));
        let (run, prompt, settings) = (task.run, prompt.clone(), Arc::new(settings));
        self.expected.prompts.push(Prompted { task: id, run, prompt, settings, session: Some(session) });
        Ok(())
    }

    /// Handles a client's answer to a question of an agent.
    pub(super) fn decide(
        &mut self,
        now: Now,
        to: ReplyTo,
        id: &TaskRef,
        request: u64,
        option: Option<&str>,
    ) -> Result<(), CoreError> {
        let task = self.find(id)?;
        let (id, status) = (task.id, task.status());
        let Some(chat) = &mut task.chat else { return Err(CoreError::NotAsked(id, request, None)) };
        let Some(place) = chat.questions.iter().position(|question| question.request == request) else {
            let oldest = chat.questions.first().map(|question| question.request);
            return Err(CoreError::NotAsked(id, request, oldest));
        };
        let known = &chat.questions[place].options;
        if let Some(option) = option
            && !known.iter().any(|known| known == option)
        {
            let known = known.iter().map(|known| known.as_str().into()).collect();
            return Err(CoreError::NoSuchOption(id, option.into(), known));
        }
        let key = chat.questions.remove(place).key;
        chat.begin(now);
        self.expected.decisions.push(Decision { task: id, key, option: option.map(Into::into) });
        self.report_questions(now, super::number(id));
        self.reply(Some(to), Answer::Task(id, status));
        Ok(())
    }

    /// Handles an agent's acceptance of a follow-up prompt.
    pub(super) fn accepted(&mut self, number: u64) {
        let Some(task) = self.live.get_mut(&number) else { return };
        let (Some((to, prompt, settings)), Some(chat)) = (task.resume.take(), &mut task.chat) else { return };
        (chat.prompt, chat.settings, chat.notes) = (prompt, settings, Notes::default());
        task.resumes += 1;
        (task.verdict, task.retrieved_at) = (None, None);
        let id = task.id;
        self.expected.events.push((id, EventKind::Resumed));
        self.reply(Some(to), Answer::Task(id, Status::Resumed));
    }

    pub(super) fn fact_of_agent(&mut self, now: Now, number: u64, fact: &Fact) {
        let Some(task) = self.live.get_mut(&number) else { return };
        let (id, phase, end, session) = (task.id, task.phase, task.end, task.chat.as_mut());
        let Some(chat) = session else { return };
        match (fact, phase) {
            (Fact::Refused(refusal), Phase::Starting | Phase::Resuming) => self.refused(now, number, refusal),
            (Fact::Limits { stalled_after_ms, ask_timeout_ms }, Phase::Starting | Phase::Resuming) => {
                (chat.silence_ms, chat.question_ms) = (*stalled_after_ms, *ask_timeout_ms);
                if phase == Phase::Starting {
                    chat.notes.warning = None;
                }
            }
            (Fact::Session { id }, Phase::Starting | Phase::Running) => chat.session = Some(id.clone()),
            (Fact::Tools { calls, latest }, Phase::Running) => {
                let unnamed = usize::try_from(*calls).unwrap_or(usize::MAX) - latest.len();
                chat.tools.extend(std::iter::repeat_n(Box::default(), unnamed));
                chat.tools.extend(latest.iter().cloned());
                (chat.last_sign, chat.stalled) = (Some(now.mono.0), false);
                self.expected.events.push((id, EventKind::Progress));
            }
            (Fact::Planned { .. } | Fact::Consumed(_), _) => self.reported_work(now, number, fact),
            (Fact::Denied { times, what }, Phase::Running) => {
                chat.denied.extend((0..*times).map(|_| what.clone()));
                (chat.last_sign, chat.stalled) = (Some(now.mono.0), false);
                self.expected.events.push((id, EventKind::Progress));
            }
            (Fact::Noted { note: Note::LastWords, text }, Phase::Running) => {
                chat.notes.last_words = Some(text.clone());
                self.expected.events.push((id, EventKind::Progress));
            }
            (Fact::Noted { note: Note::Suspect, text }, Phase::Running) => {
                chat.notes.suspect = Some(text.clone());
            }
            (Fact::Noted { note: Note::Warning, text }, Phase::Starting | Phase::Running) => {
                chat.notes.warning = Some(text.clone());
                if phase == Phase::Running {
                    self.expected.events.push((id, EventKind::Progress));
                }
            }
            (Fact::Activity, _) => self.moved(now, number),
            (Fact::Asked { key, options, .. }, Phase::Running) if end == End::NotBegun => {
                self.asked(now, number, *key, options);
            }
            (Fact::Asked { key, .. }, Phase::Starting | Phase::Resuming | Phase::Running) => {
                self.expected.decisions.push(Decision { task: id, key: *key, option: None });
            }
            (Fact::Withdrawn { key }, _) => {
                let before = chat.questions.len();
                chat.questions.retain(|question| question.key != *key);
                if chat.questions.len() < before {
                    chat.begin(now);
                    self.report_questions(now, number);
                }
            }
            (Fact::TurnEnded { result, .. }, Phase::Running) => {
                task.left = false;
                self.done(now, number, &result.clone().map_err(String::from));
            }
            _ => {}
        }
    }

    /// Handles a question of an agent at work. Too many open questions count as denied.
    fn asked(&mut self, now: Now, number: u64, key: u64, options: &[InputOption]) {
        let Some(task) = self.live.get_mut(&number) else { return };
        let (id, Some(chat)) = (task.id, &mut task.chat) else { return };
        (chat.last_sign, chat.stalled) = (Some(now.mono.0), false);
        if chat.questions.len() == QUESTIONS {
            chat.denied.push("may I?".into());
            self.expected.events.push((id, EventKind::Progress));
            return self.expected.decisions.push(Decision { task: id, key, option: None });
        }
        chat.asked += 1;
        chat.questions.push(Question {
            request: chat.asked,
            key,
            options: options.iter().map(|option| option.id.clone()).collect(),
            due: now.mono.plus_ms(chat.question_ms).0,
            expires_at: now.wall.plus_ms(chat.question_ms),
        });
        self.expected.events.push((id, EventKind::NeedsInput));
        self.notify_question(now, number);
        self.answer();
    }

    /// Handles an agent's plan and consumption.
    fn reported_work(&mut self, now: Now, number: u64, fact: &Fact) {
        let Some(task) = self.live.get_mut(&number) else { return };
        let (id, is_running, is_done) = (task.id, task.phase == Phase::Running, task.phase == Phase::Done);
        let Some(chat) = &mut task.chat else { return };
        match fact {
            Fact::Planned { steps } if is_running => chat.steps = steps.clone(),
            Fact::Consumed(report) if is_running || is_done => {
                if let Some((_, reports)) = chat.reports.last_mut() {
                    reports.push(Report::clone(report));
                }
            }
            _ => {}
        }
        if is_running {
            (chat.last_sign, chat.stalled) = (Some(now.mono.0), false);
            self.expected.events.push((id, EventKind::Progress));
        }
    }

    /// Handles the refusal of a prompt. A task that was to be resumed stays as it was.
    fn refused(&mut self, now: Now, number: u64, refusal: &Refusal) {
        let Some(task) = self.live.get_mut(&number) else { return };
        let Some((to, ..)) = task.resume.take() else {
            let hint = refusal.hint.as_ref().map(|hint| format!(" ({hint})")).unwrap_or_default();
            return self.done(now, number, &Err(format!("{}{hint}", refusal.message)));
        };
        let (id, why) = (task.id, task.why.take());
        task.stop_order = None;
        task.phase = Phase::Done;
        let error = match why {
            None => CoreError::Refused(id, Box::new(refusal.clone())),
            Some(Why::Shutdown) => CoreError::ShuttingDown,
            Some(
                Why::Cancelled
                | Why::Session
                | Why::Abandoned
                | Why::Time(_)
                | Why::NotReady(_)
                | Why::MaxFails(_),
            ) => CoreError::Withdrawn(id),
        };
        self.reply(Some(to), Answer::Error(error));
        self.answer();
    }

    pub(super) fn moved(&mut self, now: Now, number: u64) {
        let Some(task) = self.live.get_mut(&number).filter(|task| task.phase == Phase::Running) else {
            return;
        };
        let Some(chat) = &mut task.chat else { return };
        chat.last_sign = Some(now.mono.0);
        if std::mem::take(&mut chat.stalled) {
            self.expected.events.push((task.id, EventKind::Progress));
        }
    }

    /// Denies the questions that match.
    pub(super) fn deny(&mut self, now: Now, number: u64, which: impl Fn(&Question) -> bool) {
        let Some(task) = self.live.get_mut(&number) else { return };
        let (id, Some(chat)) = (task.id, &mut task.chat) else { return };
        let denied: Vec<Question> = chat.questions.extract_if(.., |question| which(question)).collect();
        for question in &denied {
            self.expected.decisions.push(Decision { task: id, key: question.key, option: None });
        }
        if !denied.is_empty() {
            self.report_questions(now, number);
        }
    }

    /// Denies questions that have expired, and marks an agent as stalled after too long a silence.
    pub(super) fn look_at_agent(&mut self, now: Now, number: u64) {
        let at = now.mono.0;
        let asked = |model: &Self| {
            model.live.get(&number).and_then(|task| task.chat.as_ref()).map_or(0, |chat| chat.questions.len())
        };
        let before = asked(self);
        self.deny(now, number, |question| question.due <= at);
        let denied = before - asked(self);
        let Some(task) = self.live.get_mut(&number) else { return };
        let (id, Some(chat)) = (task.id, &mut task.chat) else { return };
        if denied > 0 {
            chat.begin(now);
            chat.denied.extend(std::iter::repeat_n(Box::from("may I?"), denied));
        }
        if chat.questions.is_empty() && chat.deadline().is_some_and(|due| due <= at) {
            chat.stalled = true;
            self.expected.events.push((id, EventKind::Progress));
        }
    }

    fn report_questions(&mut self, now: Now, number: u64) {
        let Some(task) = self.live.get(&number) else { return };
        let asks = task.chat.as_ref().is_some_and(|chat| !chat.questions.is_empty());
        let kind = if asks { EventKind::NeedsInput } else { EventKind::Progress };
        self.expected.events.push((task.id, kind));
        self.notify_question(now, number);
    }

    /// Returns the tasks that an agent has completed, with a conversation that can continue.
    pub fn completed_by_agents(&self) -> Vec<TaskId> {
        let named = |task: &&Known| task.chat.as_ref().is_some_and(|chat| chat.session.is_some());
        let completed = self.live.values().filter(named).filter(|task| {
            matches!(task.phase, Phase::Done | Phase::Resuming) && task.status() == Status::Completed
        });
        completed.map(|task| task.id).collect()
    }

    /// Returns the tasks whose agents wait for an answer.
    pub fn asking(&self) -> Vec<TaskId> {
        let asks = |chat: &Chat| !chat.questions.is_empty();
        self.live.values().filter(|task| task.chat.as_ref().is_some_and(asks)).map(|task| task.id).collect()
    }
}
