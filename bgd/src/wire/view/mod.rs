//! Conversion of tasks to wire objects.

mod order;

pub use self::order::group;
use bgd_shared::agent::{AgentSettings, NeedsInput};
use bgd_shared::id::is_made_up_key;
use bgd_shared::limits::PROMPT_BYTES;
use bgd_shared::resources::Elsewhere as WireElsewhere;
use bgd_shared::task::{Exit, Output, Progress, Status, Task as WireTask};
use bgd_shared::text::{OsText, truncated, truncated_to_bytes};

use crate::core::{
    AgentPart, Consumed, Elsewhere, Finished, Lingering, Snapshot, Spec, State, StopReason, Work,
};
use crate::exec::output::OutputFolder;
use crate::wire::failures;
use bgd_shared::request::Stream;

/// The maximum length of a description derived from a command, in characters.
const DESCRIPTION_CHARS: usize = 200;

/// Builds the task object of a snapshot.
pub fn task(snapshot: &Snapshot, folder: &OutputFolder) -> WireTask {
    let spec = &*snapshot.spec;
    let (argv, shell, agent) = work(&spec.work);
    let (error, failure) = snapshot.finished().map(failures::wire).unwrap_or_default();
    let (part, plan, life) = (snapshot.agent.as_deref(), snapshot.plan(), Life::of(&snapshot.state));
    let (notes, is_success) = (part.map(|part| &part.notes), snapshot.status() == Status::Completed);
    WireTask {
        id: snapshot.id,
        kind: spec.kind(),
        origin: spec.origin,
        foreground: snapshot.foreground.is_some(),
        ended_in_foreground: snapshot.finished().is_some_and(|finished| finished.in_foreground),
        pty: spec.pty.is_some(),
        status: snapshot.status(),
        paused: snapshot.paused,
        ending: is_ending(&snapshot.state),
        description: description(spec, plan.description.as_deref()),
        argv,
        shell,
        prompt: part.map(|part| truncated_to_bytes(&part.prompt, PROMPT_BYTES)),
        agent,
        settings: part.map(|part| AgentSettings::clone(&part.settings)).unwrap_or_default(),
        agent_session: part.and_then(|part| part.session.as_deref()).map(Into::into),
        session: spec.session.as_deref().map(Into::into),
        channel: spec.channel.as_deref().map(Into::into),
        key: key(snapshot).map(Into::into),
        time_limit_ms: spec.time_limit_ms,
        ready: spec.ready.as_deref().cloned(),
        ready_timeout_ms: spec.ready_timeout_ms,
        on: spec.on.as_ref().map(|on| on.name.to_string()),
        resources: spec.on.as_ref().map(|on| on.resources.clone()).unwrap_or_default(),
        elsewhere: snapshot.elsewhere.as_deref().filter(|known| !known.has_no_reports()).map(elsewhere),
        tags: spec.tags.iter().map(std::string::ToString::to_string).collect(),
        cwd: OsText::clone(&spec.cwd),
        pid: life.pid,
        run: snapshot.resume_count + 1,
        resume_count: snapshot.resume_count,
        created_at: snapshot.created_at,
        started_at: life.started_at,
        ready_at: snapshot.ready_at,
        completed_at: life.completed_at,
        run_ms: snapshot.finished().and_then(|finished| finished.started_at.and(snapshot.run_time.ms())),
        retrieved_at: snapshot.retrieved_at,
        exit: life.exit,
        error,
        failure,
        timed_out: snapshot.timed_out(),
        lingering: life.lingering,
        suspect: notes.and_then(|notes| notes.suspect.as_deref()).filter(|_| is_success).map(Into::into),
        warning: notes.and_then(|notes| notes.warning.as_deref()).map(Into::into),
        group: plan.group().to_owned(),
        batch: plan.batch,
        rerun_of: plan.rerun_of,
        priority: plan.priority,
        slots: plan.slots,
        slot: snapshot.place.slot(),
        after: order::after(plan),
        waiting: order::waiting(snapshot),
        start_at: order::start_at(snapshot),
        retry: order::retry(plan),
        restart: order::restart(plan),
        attempt: plan.again.as_ref().map(|again| again.attempt),
        attempts: order::attempts(snapshot),
        cancel_reason: snapshot.finished().and_then(failures::cancel_reason),
        usage: snapshot.usage,
        agent_usage: part.and_then(|part| part.consumed.as_deref()).map(Consumed::total),
        progress: progress(snapshot),
        output: output(snapshot, folder),
    }
}

/// Returns a task's arguments, its command line, or the name of its agent.
fn work(work: &Work) -> (Option<Vec<OsText>>, Option<OsText>, Option<String>) {
    match work {
        Work::Argv(argv) => (Some(argv.to_vec()), None, None),
        Work::Shell(command) => (None, Some(command.clone()), None),
        Work::Agent(agent) => (None, None, Some(agent.name.to_string())),
    }
}

/// Returns the idempotency key that a task's user gave. Neither does a user know a key that a client made up, nor what
/// the core derives from the key of a rerun.
fn key(snapshot: &Snapshot) -> Option<&str> {
    let is_rerun = snapshot.plan().rerun_of.is_some();
    snapshot.key.as_deref().filter(|key| !is_rerun && !is_made_up_key(key))
}

/// Reports whether a run is being ended, other than to begin again.
fn is_ending(state: &State) -> bool {
    matches!(state, State::Stopping { reason, .. } if *reason != StopReason::NextAttempt)
}

fn elsewhere(known: &Elsewhere) -> WireElsewhere {
    let text = |text: &Option<Box<str>>| text.as_deref().map(str::to_owned);
    let (since, why) = known.unknown.as_ref().map(|(since, why)| (*since, why.to_string())).unzip();
    WireElsewhere {
        id: text(&known.id),
        reason: text(&known.reason),
        unknown_since: since,
        unknown_because: why,
        refused: text(&known.refused),
        requeued: known.requeued,
    }
}

fn progress(snapshot: &Snapshot) -> Progress {
    let part = snapshot.agent.as_deref();
    let notes = part.map(|part| &part.notes);
    Progress {
        output_bytes: snapshot.output_bytes.iter().sum(),
        updated_at: snapshot.updated_at,
        last_line: None,
        tool_calls: part.map_or(0, |part| part.tool_calls),
        last_tools: part.map(last_tools).unwrap_or_default(),
        plan: part.map(|part| part.steps.to_vec()).unwrap_or_default(),
        denied: part.map_or(0, |part| part.denied),
        last_denied: part.and_then(|part| part.last_denied.as_deref()).map(Into::into),
        stalled: part.is_some_and(|part| part.stalled),
        last_words: notes.and_then(|notes| notes.last_words.as_deref()).map(Into::into),
        needs_input: part.and_then(needs_input),
    }
}

fn output(snapshot: &Snapshot, folder: &OutputFolder) -> Output {
    let spec = &*snapshot.spec;
    let files = folder.files_of(snapshot.id, spec);
    let path = |stream| files.path(stream).to_string_lossy().into_owned();
    let lost = snapshot.lost.as_ref();
    Output {
        path: path(Stream::Stdout),
        stderr_path: spec.split.then(|| path(Stream::Stderr)),
        bytes: snapshot.output_bytes.iter().sum(),
        dropped_bytes: snapshot.dropped[0],
        stderr_dropped_bytes: snapshot.dropped[1],
        lost_bytes: lost.map_or(0, |lost| lost.bytes),
        lost_because: lost.map(|lost| lost.why.to_string()),
    }
}

fn last_tools(agent: &AgentPart) -> Vec<String> {
    agent.last_tools.iter().map(ToString::to_string).collect()
}

/// Returns the question that an agent waits for; further ones are only counted.
fn needs_input(agent: &AgentPart) -> Option<NeedsInput> {
    let question = agent.questions.front()?;
    Some(NeedsInput {
        request: question.request,
        question: question.text.to_string(),
        options: question.options.to_vec(),
        expires_at: Some(question.expires_at),
        waiting: agent.questions.len() as u64 - 1,
    })
}

/// Data of the process, from the task's state.
#[derive(Default)]
struct Life {
    pid: Option<i32>,
    started_at: Option<bgd_shared::time::Timestamp>,
    completed_at: Option<bgd_shared::time::Timestamp>,
    exit: Option<Exit>,
    lingering: bool,
}

impl Life {
    fn of(state: &State) -> Self {
        match state {
            State::Queued { .. } | State::Starting { .. } => Self::default(),
            State::Running { pid, started_at, .. } => {
                Self { pid: *pid, started_at: Some(*started_at), ..Self::default() }
            }
            State::Stopping { pid, started_at, exit, .. } => Self {
                pid: *pid,
                started_at: Some(*started_at),
                exit: exit.clone(),
                lingering: exit.is_some(),
                ..Self::default()
            },
            State::Finished(finished) => Self::after(finished),
            State::Resuming(resuming) => Self::after(&resuming.finished),
        }
    }

    fn after(finished: &Finished) -> Self {
        let Finished { pid, started_at, completed_at, exit, lingering, .. } = finished;
        Self {
            pid: *pid,
            started_at: *started_at,
            completed_at: Some(*completed_at),
            exit: exit.clone(),
            lingering: *lingering != Lingering::No,
        }
    }
}

/// Returns a task's description; without one, or if an edit has emptied it, its command.
fn description(spec: &Spec, edited: Option<&str>) -> String {
    if let Some(description) = edited.or(spec.description.as_deref()).filter(|text| !text.is_empty()) {
        return description.to_owned();
    }
    let command = match &spec.work {
        Work::Argv(argv) => {
            let words: Vec<_> = argv.iter().map(OsText::to_string_lossy).collect();
            words.join(" ")
        }
        Work::Shell(line) => line.to_string_lossy().into_owned(),
        // Unreachable: an agent task always has a description.
        Work::Agent(agent) => agent.name.to_string(),
    };
    match command.chars().nth(DESCRIPTION_CHARS) {
        None => command,
        Some(_) => truncated(&command, DESCRIPTION_CHARS - 1),
    }
}
