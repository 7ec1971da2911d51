//! Agent tasks: resumes, questions and answers, the end of a turn, silence.

use std::sync::Arc;

use bgd_shared::agent::{AgentSettings, InputOption};
use bgd_shared::consumption::PlanStep;
use bgd_shared::event::EventKind;
use bgd_shared::id::{TaskId, TaskRef};
use bgd_shared::task::Kind;

use super::stop::verdict_of_stop;
use super::{Core, Phase, commands};
use crate::agent::{AgentPart, Note, Question, first_line};
use crate::caller::ReplyTo;
use crate::consumed::Report;
use crate::control::Control;
use crate::effect::{Begin, CoreError, Reply};
use crate::held::{settings_bytes, text_bytes};
use crate::input::Refusal;
use crate::room::{GivesWay, Stays};
use crate::task::{Failure, Finished, Lingering, Ordinal, Outcome, Resuming, State, StopReason, Task, Work};
use crate::time::{Now, RunTime};
use crate::waiters::Until;

impl Core {
    /// Gives a follow-up prompt to the session of a completed task. The reply comes when the agent has received the
    /// prompt. A resume occupies a slot but does not wait for one, so that it can't block its caller.
    pub(super) fn resume(
        &mut self,
        to: ReplyTo,
        id: &TaskRef,
        prompt: Arc<str>,
        settings: &AgentSettings,
    ) -> Result<(), CoreError> {
        if self.phase != Phase::Open {
            return Err(CoreError::ShuttingDown);
        }
        let ordinal = self.find(id)?;
        let Some(task) = self.registry.get(ordinal) else { return Ok(()) };
        let (id, finished) = resumable(task)?;
        // A pending clear would remove this task while its agent is working.
        if self.waiters.will_remove(ordinal) {
            return Err(CoreError::BeingCleared(id));
        }
        let Some(agent) = task.agent.as_deref() else {
            return Err(CoreError::NoAgent(id));
        };
        let Some(session) = agent.session.clone() else {
            let is_complete = finished.outcome == Outcome::Completed;
            return Err(CoreError::NoSession { id, is_complete });
        };
        let settings = if settings.is_empty() {
            Arc::clone(&agent.settings)
        } else {
            Arc::new(settings.over(&agent.settings))
        };
        self.check_memory(text_bytes(&prompt) + settings_bytes(&settings), &Stays::of([ordinal]))?;
        let (env, session) = (agent.env.clone(), Some(session));
        self.give_way(GivesWay::TO_TEXTS);
        self.leave_removed_group(ordinal);
        let begin = Begin::Prompt {
            env,
            prompt: prompt.clone(),
            settings: settings.clone(),
            session,
            after: Box::default(),
        };
        let started = self.registry.change(ordinal, |task| {
            task.run += 1;
            commands::start(task, begin)
        });
        self.effects.extend(started);
        let resuming = Resuming { finished, prompt, settings, to, stop: None };
        self.set_state(ordinal, State::Resuming(Box::new(resuming)));
        Ok(())
    }

    pub(super) fn answer(
        &mut self,
        now: Now,
        to: ReplyTo,
        id: &TaskRef,
        request: u64,
        option: Option<Box<str>>,
    ) -> Result<(), CoreError> {
        let ordinal = self.find(id)?;
        let Some(task) = self.registry.get(ordinal) else { return Ok(()) };
        let id = task.id;
        let Some(agent) = task.agent.as_deref() else { return Err(CoreError::NotAsked(id, request, None)) };
        let Some(place) = agent.questions.iter().position(|question| question.request == request) else {
            let current = agent.questions.front().map(|question| question.request);
            return Err(CoreError::NotAsked(id, request, current));
        };
        let question = &agent.questions[place];
        if let Some(option) = &option
            && !question.options.iter().any(|known| *known.id == **option)
        {
            let known = question.options.iter().map(|option| option.id.as_str().into()).collect();
            return Err(CoreError::NoSuchOption(id, option.clone(), known));
        }
        let answer = commands::control(task, Control::Answer { key: question.key, option, by_user: true });
        self.effects.push(answer);
        self.change_agent(ordinal, |agent| {
            agent.questions.remove(place);
            agent.note_activity(now);
        });
        self.publish_questions(now, ordinal);
        if let Some(snapshot) = self.snapshot(ordinal) {
            self.reply(Some(to), Reply::Task(snapshot));
        }
        Ok(())
    }

    /// Notes that the agent has received a resume's prompt: the task is now in a new run.
    pub(super) fn resumed(&mut self, now: Now, ordinal: Ordinal, pid: Option<i32>) {
        let Some(task) = self.registry.get(ordinal) else { return };
        let State::Resuming(resuming) = &task.state else { return };
        let Resuming { finished: _, prompt, settings, to, stop } = (**resuming).clone();
        let time_limit = task.spec.time_limit_ms.map(|limit| now.mono.plus_ms(limit));
        self.set_state(ordinal, State::Running { pid, started_at: now.wall, time_limit });
        self.registry.change(ordinal, |task| {
            task.resume_count += 1;
            task.retrieved_at = None;
            task.updated_at = Some(now.wall);
            task.run_time = RunTime::Since(now.mono);
        });
        self.change_agent(ordinal, |agent| agent.begin_again(now, prompt, settings));
        self.event(now, EventKind::Resumed, ordinal);
        if let Some(snapshot) = self.snapshot(ordinal) {
            self.reply(Some(to), Reply::Task(snapshot));
        }
        if let Some(order) = stop {
            self.stop(now, ordinal, order);
        }
    }

    pub(super) fn refused(&mut self, now: Now, ordinal: Ordinal, refusal: Box<Refusal>) {
        let Some(task) = self.registry.get(ordinal) else { return };
        let id = task.id;
        match &task.state {
            State::Starting { stop: None, .. } => {
                let error = match refusal.hint {
                    Some(hint) => format!("{} ({hint})", refusal.message).into(),
                    None => refusal.message,
                };
                let outcome = Outcome::Failed(Failure::Agent(error));
                self.finish(now, ordinal, self.failed_start(now, ordinal, outcome));
            }
            State::Starting { stop: Some(order), .. } => {
                let outcome = verdict_of_stop(order.reason);
                self.finish_unstarted(now, ordinal, outcome);
            }
            State::Resuming(resuming) => {
                let Resuming { finished, to, stop, .. } = (**resuming).clone();
                let error = match stop.map(|order| order.reason) {
                    None => CoreError::Refused(id, refusal),
                    Some(StopReason::Shutdown) => CoreError::ShuttingDown,
                    Some(
                        StopReason::Cancelled
                        | StopReason::SessionEnded
                        | StopReason::Abandoned
                        | StopReason::TimedOut(_)
                        | StopReason::NotReady(_)
                        | StopReason::Dependency(..)
                        | StopReason::MaxFails(_)
                        | StopReason::Elsewhere
                        | StopReason::NextAttempt,
                    ) => CoreError::Withdrawn(id),
                };
                self.reply(Some(to), Reply::Error(error));
                self.set_state(ordinal, State::Finished(finished));
                self.wake(now, ordinal, Until::Finished);
                self.wake(now, ordinal, Until::Settled);
            }
            State::Queued { .. } | State::Running { .. } | State::Stopping { .. } | State::Finished(_) => {}
        }
    }

    /// Applies the limits of a run that is about to start. A warning that was known before is dropped: if it still
    /// holds, it is reported again.
    pub(super) fn limited(&mut self, ordinal: Ordinal, stalled_after_ms: u64, ask_timeout_ms: u64) {
        let Some(task) = self.registry.get(ordinal) else { return };
        let is_first_prompt = match &task.state {
            State::Starting { .. } => true,
            State::Resuming(_) => false,
            State::Queued { .. } | State::Running { .. } | State::Stopping { .. } | State::Finished(_) => {
                return;
            }
        };
        let (Work::Agent(work), Some(agent)) = (&task.spec.work, &task.agent) else { return };
        let is_new = (work.stalled_after_ms, work.ask_timeout_ms) != (stalled_after_ms, ask_timeout_ms);
        if is_first_prompt && agent.notes.warning.is_some() {
            self.change_agent(ordinal, |agent| agent.notes.warning = None);
        }
        if !is_new {
            return;
        }
        self.registry.change(ordinal, |task| {
            if let Some(agent) = task.agent.as_deref_mut() {
                agent.limit_silence(stalled_after_ms);
            }
            if let Work::Agent(work) = &mut Arc::make_mut(&mut task.spec).work {
                (work.stalled_after_ms, work.ask_timeout_ms) = (stalled_after_ms, ask_timeout_ms);
            }
        });
    }

    pub(super) fn session_named(&mut self, ordinal: Ordinal, id: Arc<str>) {
        if self.is_at_work(ordinal) || self.is_starting(ordinal) {
            self.change_agent(ordinal, |agent| agent.session = Some(id));
        }
    }

    pub(super) fn tools_called(&mut self, now: Now, ordinal: Ordinal, calls: u64, latest: Vec<Box<str>>) {
        if self.is_at_work(ordinal) {
            self.change_agent(ordinal, |agent| agent.tools(calls, latest));
            self.note_progress(now, ordinal);
        }
    }

    /// Records what the agent has consumed. Reports may also come after its turn, but then publish no event.
    pub(super) fn consumed(&mut self, now: Now, ordinal: Ordinal, report: &Report) {
        let is_at_work = self.is_at_work(ordinal);
        if is_at_work || self.registry.get(ordinal).is_some_and(Task::is_finished) {
            self.change_agent(ordinal, |agent| agent.consume(report));
        }
        if is_at_work {
            self.note_progress(now, ordinal);
        }
    }

    pub(super) fn planned(&mut self, now: Now, ordinal: Ordinal, steps: Arc<[PlanStep]>) {
        if self.is_at_work(ordinal) {
            self.change_agent(ordinal, |agent| agent.steps = steps);
            self.note_progress(now, ordinal);
        }
    }

    /// Records activity that subscribers see.
    fn note_progress(&mut self, now: Now, ordinal: Ordinal) {
        self.change_agent(ordinal, |agent| agent.note_activity(now));
        self.registry.change(ordinal, |task| task.updated_at = Some(now.wall));
        self.event(now, EventKind::Progress, ordinal);
    }

    pub(super) fn denied(&mut self, now: Now, ordinal: Ordinal, times: u64, what: Box<str>) {
        if self.is_at_work(ordinal) {
            self.change_agent(ordinal, |agent| agent.deny(times, what));
            self.note_progress(now, ordinal);
        }
    }

    /// Stores a note. A note that casts doubt on success publishes no event: it is shown at the end of the turn.
    pub(super) fn noted(&mut self, now: Now, ordinal: Ordinal, note: Note, text: Box<str>) {
        let is_early = note == Note::Warning && self.is_starting(ordinal);
        if self.is_at_work(ordinal) || is_early {
            self.change_agent(ordinal, |agent| agent.note(note, text));
            // No event may precede the start event, which includes the note.
            if note != Note::Suspect && !is_early {
                self.event(now, EventKind::Progress, ordinal);
            }
        }
    }

    /// Records activity. Publishes an event only if the agent was marked as stalled.
    pub(super) fn note_activity(&mut self, now: Now, ordinal: Ordinal) {
        let Some(task) = self.registry.get(ordinal).filter(|_| self.is_at_work(ordinal)) else { return };
        let before = task.deadline();
        // Comes several times a second, and no turn of an agent outlives the daemon.
        let was_stalled = self.registry.change_unnoted(ordinal, |task| {
            task.updated_at = Some(now.wall);
            task.agent.as_deref_mut().is_some_and(|agent| agent.note_activity(now))
        });
        self.retime(ordinal, before);
        if was_stalled == Some(true) {
            self.event(now, EventKind::Progress, ordinal);
        }
    }

    pub(super) fn asked(
        &mut self,
        now: Now,
        ordinal: Ordinal,
        key: u64,
        question: Box<str>,
        options: Arc<[InputOption]>,
    ) {
        let Some(task) = self.registry.get(ordinal) else { return };
        let denial = commands::deny(task, key);
        let Work::Agent(work) = &task.spec.work else { return };
        let wait_ms = work.ask_timeout_ms;
        let is_running = match &task.state {
            State::Running { .. } => true,
            // Deny at once, so that the agent does not wait forever: a turn that is being ended gets no more
            // permissions, and one that has not started gets none yet.
            State::Stopping { .. } | State::Starting { .. } | State::Resuming(_) => false,
            State::Queued { .. } | State::Finished(_) => return,
        };
        if !is_running {
            return self.effects.push(denial);
        }
        let what = first_line(&question).into();
        let waits = self.change_agent(ordinal, |agent| {
            agent.note_activity(now);
            agent.ask(now, wait_ms, key, question, options)
        });
        if waits == Some(true) {
            self.registry.change(ordinal, |task| task.updated_at = Some(now.wall));
            self.event(now, EventKind::NeedsInput, ordinal);
            self.notify_question(now, ordinal);
            self.wake_by_question(now, ordinal);
        } else {
            // Too many questions are open.
            self.effects.push(denial);
            self.change_agent(ordinal, |agent| agent.deny(1, what));
            self.note_progress(now, ordinal);
        }
    }

    pub(super) fn withdrawn(&mut self, now: Now, ordinal: Ordinal, key: u64) {
        if self.change_agent(ordinal, |agent| agent.withdrawn(now, key)) == Some(true) {
            self.publish_questions(now, ordinal);
        }
    }

    /// Ends the task with its agent's turn. A turn ended by the daemon did not complete, whatever the agent reports.
    pub(super) fn turn_ended(&mut self, now: Now, ordinal: Ordinal, result: Result<(), Box<str>>) {
        let Some(task) = self.registry.get(ordinal) else { return };
        let (pid, started_at, outcome) = match &task.state {
            State::Running { pid, started_at, .. } => {
                let outcome = match result {
                    Ok(()) => Outcome::Completed,
                    Err(error) => Outcome::Failed(Failure::Agent(error)),
                };
                (*pid, *started_at, outcome)
            }
            State::Stopping { pid, started_at, reason, .. } => {
                (*pid, *started_at, verdict_with_words(task, *reason))
            }
            State::Queued { .. } | State::Starting { .. } | State::Finished(_) | State::Resuming(_) => {
                return;
            }
        };
        let finished = Finished {
            outcome,
            pid,
            started_at: Some(started_at),
            completed_at: now.wall,
            exit: None,
            lingering: Lingering::No,
            in_foreground: false,
        };
        self.finish(now, ordinal, finished);
    }

    /// Denies questions that have expired, and marks the agent as stalled if it has been silent for too long.
    pub(super) fn agent_deadline(&mut self, now: Now, ordinal: Ordinal) {
        let change = |agent: &mut AgentPart| (agent.expired(now), agent.mark_if_stalled(now));
        let Some((expired, stalled)) = self.change_agent(ordinal, change) else { return };
        self.deny(now, ordinal, &expired);
        if stalled {
            self.event(now, EventKind::Progress, ordinal);
        }
    }

    /// Denies all pending questions of a turn that is being ended.
    pub(super) fn deny_all(&mut self, now: Now, ordinal: Ordinal) {
        let questions = self.change_agent(ordinal, |agent| std::mem::take(&mut agent.questions));
        self.deny(now, ordinal, &Vec::from(questions.unwrap_or_default()));
    }

    /// Denies these questions, which are no longer pending.
    fn deny(&mut self, now: Now, ordinal: Ordinal, questions: &[Question]) {
        let Some(task) = self.registry.get(ordinal).filter(|_| !questions.is_empty()) else { return };
        let denied = questions.iter().map(|question| commands::deny(task, question.key));
        self.effects.extend(denied);
        self.publish_questions(now, ordinal);
    }

    /// Publishes a change of the pending questions: the next one, or that there is none.
    fn publish_questions(&mut self, now: Now, ordinal: Ordinal) {
        let kind = if self.asks(ordinal) { EventKind::NeedsInput } else { EventKind::Progress };
        self.event(now, kind, ordinal);
        self.notify_question(now, ordinal);
    }

    fn is_starting(&self, ordinal: Ordinal) -> bool {
        self.registry.get(ordinal).is_some_and(|task| matches!(task.state, State::Starting { .. }))
    }

    fn is_at_work(&self, ordinal: Ordinal) -> bool {
        self.registry
            .get(ordinal)
            .is_some_and(|task| matches!(task.state, State::Running { .. } | State::Stopping { .. }))
    }

    /// Changes a task's agent data, if it has any, and updates the task's timer.
    pub(super) fn change_agent<T>(
        &mut self,
        ordinal: Ordinal,
        change: impl FnOnce(&mut AgentPart) -> T,
    ) -> Option<T> {
        let before = self.registry.get(ordinal)?.deadline();
        let result = self.registry.change(ordinal, |task| task.agent.as_deref_mut().map(change)).flatten();
        self.retime(ordinal, before);
        result
    }
}

/// Returns the outcome of a turn ended by the daemon. If it timed out, this includes the agent's last words.
fn verdict_with_words(task: &Task, reason: StopReason) -> Outcome {
    let last_words = task.agent.as_deref().and_then(|agent| agent.notes.last_words.as_deref());
    match (verdict_of_stop(reason), last_words) {
        (Outcome::Failed(Failure::TimedOut { limit_ms, .. }), Some(words)) => {
            Outcome::Failed(Failure::TimedOut { limit_ms, last_words: Some(words.into()) })
        }
        (outcome, _) => outcome,
    }
}

/// Returns the id and the end of a task that can be resumed: a completed one, or one whose turn was cut short.
fn resumable(task: &Task) -> Result<(TaskId, Finished), CoreError> {
    match task.spec.kind() {
        Kind::Agent => {}
        Kind::Process | Kind::Unknown => return Err(CoreError::NoAgent(task.id)),
    }
    match &task.state {
        State::Resuming(_) => Err(CoreError::BeingResumed(task.id)),
        State::Finished(finished) if finished.outcome.is_resumable() => Ok((task.id, finished.clone())),
        State::Running { .. } | State::Stopping { .. } if task.resume_count > 0 => {
            Err(CoreError::BeingResumed(task.id))
        }
        State::Queued { .. }
        | State::Starting { .. }
        | State::Running { .. }
        | State::Stopping { .. }
        | State::Finished(_) => Err(CoreError::NotResumable(task.id, task.status())),
    }
}
