//! The memory of tasks, in bytes: their texts, their environments and a fixed cost per task. Values shared by several
//! tasks count once.
//!
//! The total is updated as tasks come, change and go, so that a submit can be refused before memory runs out. Later
//! additions can't be refused: a task's error, an agent's questions and tools, inbox items. These have limits of their
//! own and count too, so that submits are refused sooner.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use bgd_shared::agent::AgentSettings;
use bgd_shared::consumption::PlanStep;
use bgd_shared::ready::Ready;
use bgd_shared::rlimit::Rlimits;
use bgd_shared::text::{Env, OsText};
use serde::ser::{Serialize, SerializeStruct as _, Serializer};

use super::agent::AgentPart;
use super::consumed::Consumed;
use super::elsewhere::{Elsewhere, Placement};
use super::plan::{Attempt, AttemptError, Dependency, Plan, Repetition, Rule};
use super::task::{Failure, Outcome, Resuming, SpawnFailure, Spec, State, SubmitterLocation, Task, Work};

/// Cost of a task besides its texts: the task, its spec and its index entries.
pub const TASK_BYTES: usize = 900;

/// Cost of a text besides its bytes: the pointer to it and the allocator's overhead.
const TEXT_BYTES: usize = 32;

/// Cost of one resource limit in a map.
const RLIMIT_BYTES: usize = 80;

/// Cost of a condition in the index of dependents.
const DEPENDENT_BYTES: usize = 64;

/// Returns the cost of a text.
pub fn text_bytes(text: &str) -> usize {
    TEXT_BYTES + text.len()
}

/// Returns the cost of this many conditions.
pub fn conditions_bytes(count: usize) -> usize {
    count * (size_of::<Dependency>() + DEPENDENT_BYTES)
}

/// Returns the cost of an agent's settings.
pub fn settings_bytes(settings: &AgentSettings) -> usize {
    settings.texts().map(text_bytes).sum()
}

fn os_text(text: &OsText) -> usize {
    TEXT_BYTES + text.as_bytes().len()
}

fn optional(some: Option<&str>) -> usize {
    some.map_or(0, text_bytes)
}

/// Returns the cost of an environment, regardless of how many tasks share it.
pub fn env_bytes(env: &Env) -> usize {
    env.0.iter().map(|(name, value)| text_bytes(name) + os_text(value)).sum()
}

/// Returns the cost of a command line.
pub fn argv_bytes(argv: &[OsText]) -> usize {
    argv.iter().map(os_text).sum()
}

fn place_bytes(place: &SubmitterLocation) -> usize {
    env_bytes(&place.env) + optional(place.terminal.as_ref().map(|terminal| terminal.path.as_str()))
}

fn ready_bytes(ready: &Ready) -> usize {
    TEXT_BYTES + size_of::<Ready>() + ready.text_bytes()
}

fn rlimits_bytes(rlimits: &Rlimits) -> usize {
    TEXT_BYTES + rlimits.len() * RLIMIT_BYTES
}

fn on_bytes(on: &Placement) -> usize {
    let texts = on.resources.options.iter().chain(&on.chosen.env).count() + 4;
    let chosen: usize = on.chosen.env.iter().map(String::len).sum();
    size_of::<Placement>() + texts * TEXT_BYTES + on.name.len() + on.resources.text_bytes() + chosen
}

impl Spec {
    /// Returns the cost of a task with this spec, without values that it may share with others.
    pub fn own_bytes(&self) -> usize {
        let work = match &self.work {
            Work::Argv(argv) => argv_bytes(argv),
            Work::Shell(line) => os_text(line),
            Work::Agent(agent) => {
                text_bytes(&agent.name) + settings_bytes(&agent.settings) + size_of::<AgentPart>()
            }
        };
        let labels: usize = self.tags.iter().map(|tag| text_bytes(tag)).sum();
        let labels = labels + optional(self.session.as_deref()) + optional(self.channel.as_deref());
        let file = self.output_file.as_deref().map_or(0, os_text);
        let ready = self.ready.as_deref().map_or(0, ready_bytes);
        TASK_BYTES + work + labels + file + ready + optional(self.description.as_deref())
    }

    /// Returns the cost of the values that it may share with other tasks.
    pub fn shared_bytes(&self) -> usize {
        self.shared().map(|shared| shared.bytes).sum()
    }

    /// Returns the values that it may share with other tasks.
    fn shared(&self) -> impl Iterator<Item = Shared> {
        let cwd = Shared::new(&self.cwd, os_text(&self.cwd));
        let rlimits = self.rlimits.as_ref().map(|rlimits| Shared::new(rlimits, rlimits_bytes(rlimits)));
        let place = self.place.as_ref().map(|place| Shared::new(place, place_bytes(place)));
        let on = self.on.as_ref().map(|on| Shared::new(on, on_bytes(on)));
        [Some(cwd), rlimits, place, on].into_iter().flatten()
    }
}

impl Task {
    /// Returns the unshared cost that never changes.
    fn fixed_bytes(&self) -> usize {
        self.spec.own_bytes() + optional(self.key.as_deref())
    }

    /// Returns the unshared cost that changes over time.
    fn changing_bytes(&self) -> usize {
        let state = match &self.state {
            State::Queued { .. }
            | State::Starting { .. }
            | State::Running { .. }
            | State::Stopping { .. } => 0,
            State::Finished(finished) => outcome_bytes(&finished.outcome),
            State::Resuming(resuming) => {
                let Resuming { finished, prompt, settings, .. } = &**resuming;
                let texts = text_bytes(prompt) + settings_bytes(settings);
                size_of::<Resuming>() + outcome_bytes(&finished.outcome) + texts
            }
        };
        let plan = self.plan.as_deref().map_or(0, Plan::own_bytes);
        let elsewhere = self.elsewhere.as_deref();
        let elsewhere =
            elsewhere.map_or(0, |known| size_of::<Elsewhere>() + TEXT_BYTES * 3 + known.text_bytes());
        state + plan + elsewhere + self.agent.as_deref().map_or(0, AgentPart::own_bytes)
    }

    /// Returns its cost, without values shared with other tasks.
    pub fn own_bytes(&self) -> usize {
        self.fixed_bytes() + self.changing_bytes()
    }

    /// Returns the values that it may share with other tasks.
    pub fn shared(&self) -> impl Iterator<Item = Shared> {
        self.spec.shared().chain(self.envs().into_iter().flatten())
    }

    /// Returns the environments that it holds.
    fn envs(&self) -> [Option<Shared>; 3] {
        let unstarted = self.state.env().map(Shared::env);
        let again = self.plan().again.as_ref().map(|again| Shared::env(&again.env));
        [unstarted, again, self.agent.as_ref().map(|agent| Shared::env(&agent.env))]
    }
}

impl Plan {
    /// Returns its cost, without values shared with other tasks.
    pub fn own_bytes(&self) -> usize {
        let again = self.again.as_deref().map_or(0, |again| {
            let codes = if let Rule::Retry { codes, .. } = &again.rule { size_of_val(&**codes) } else { 0 };
            let attempts = again.attempts.iter().map(|attempt| size_of::<Attempt>() + attempt.text_bytes());
            size_of::<Repetition>() + codes + attempts.sum::<usize>()
        });
        size_of::<Self>() + conditions_bytes(self.after.len()) + optional(self.description.as_deref()) + again
    }
}

impl Failure {
    /// Returns its cost beyond its inline size in the task.
    fn own_bytes(&self) -> usize {
        match self {
            Self::Unstartable(_) | Self::Exit | Self::NotReady { .. } => 0,
            Self::CrashLoop { error, .. } => {
                error.as_ref().map_or(0, |error| size_of::<AttemptError>() + error.text_bytes())
            }
            Self::Spawn(failure) => TEXT_BYTES + size_of::<SpawnFailure>() + text_bytes(&failure.message),
            Self::Agent(text) | Self::Interrupted(text) => text_bytes(text),
            Self::TimedOut { last_words, .. } => optional(last_words.as_deref()),
            Self::Elsewhere { message, .. } => text_bytes(message),
        }
    }
}

fn outcome_bytes(outcome: &Outcome) -> usize {
    match outcome {
        Outcome::Completed | Outcome::Cancelled(_) => 0,
        Outcome::Failed(failure) => failure.own_bytes(),
    }
}

impl AgentPart {
    /// Returns its cost, without the environment.
    fn own_bytes(&self) -> usize {
        let of_option =
            |option: &bgd_shared::agent::InputOption| text_bytes(&option.id) + text_bytes(&option.name);
        let questions = self.questions.iter().map(|question| {
            text_bytes(&question.text) + question.options.iter().map(of_option).sum::<usize>()
        });
        let tools = self.last_tools.iter().map(|tool| text_bytes(tool));
        let steps = self.steps.iter().map(|step| size_of::<PlanStep>() + text_bytes(&step.text));
        let consumed =
            self.consumed.as_deref().map_or(0, |consumed| size_of::<Consumed>() + consumed.text_bytes());
        let session = optional(self.session.as_deref()) + optional(self.last_denied.as_deref());
        let notes = self.notes.texts().map(text_bytes);
        text_bytes(&self.prompt)
            + settings_bytes(&self.settings)
            + session
            + tools.sum::<usize>()
            + steps.sum::<usize>()
            + consumed
            + questions.sum::<usize>()
            + notes.sum::<usize>()
    }
}

/// A value that several tasks may hold, and its cost in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Shared {
    /// Its address, which is unique as long as any task holds the value.
    at: usize,
    bytes: usize,
}

impl Shared {
    fn new<T>(value: &Arc<T>, bytes: usize) -> Self {
        Self { at: Arc::as_ptr(value).addr(), bytes }
    }

    pub fn env(env: &Arc<Env>) -> Self {
        Self::new(env, env_bytes(env))
    }
}

/// The cost of values that several tasks hold: each counts once.
#[derive(Clone, Debug, Default)]
pub struct SharedBytes {
    bytes: usize,
    /// How many hold each value, by address.
    holders: HashMap<usize, usize>,
}

impl SharedBytes {
    /// Returns the total, in bytes.
    pub fn total(&self) -> usize {
        self.bytes
    }

    fn contains(&self, shared: Shared) -> bool {
        self.holders.contains_key(&shared.at)
    }

    /// Counts one more holder.
    pub fn hold(&mut self, shared: Shared) {
        let holders = self.holders.entry(shared.at).or_default();
        *holders += 1;
        if *holders == 1 {
            self.bytes += shared.bytes;
        }
    }

    /// Uncounts a holder.
    pub fn release(&mut self, shared: Shared) {
        let Some(holders) = self.holders.get_mut(&shared.at) else { return };
        *holders -= 1;
        if *holders == 0 {
            self.holders.remove(&shared.at);
            self.bytes = self.bytes.saturating_sub(shared.bytes);
        }
    }
}

/// Finds the values that go with their holders, while one holder after another goes.
#[derive(Debug)]
pub struct Release<'a> {
    all: &'a SharedBytes,
    stays: &'a HashSet<Shared>,
    /// How many holders of each value have gone, by address.
    gone: HashMap<usize, usize>,
}

impl<'a> Release<'a> {
    /// The values that `all` holds, except those in `stays`.
    pub fn new(all: &'a SharedBytes, stays: &'a HashSet<Shared>) -> Self {
        Self { all, stays, gone: HashMap::new() }
    }

    /// Counts a holder that goes. Returns how many bytes go with it: none unless it is the last one.
    pub fn release(&mut self, shared: Shared) -> usize {
        let gone = self.gone.entry(shared.at).or_default();
        *gone += 1;
        let is_last = self.all.holders.get(&shared.at) == Some(&*gone);
        if is_last && !self.stays.contains(&shared) { shared.bytes } else { 0 }
    }
}

/// The part of a task's cost that may change.
#[derive(Clone, Copy, Debug)]
pub struct Changing {
    own: usize,
    envs: [Option<Shared>; 3],
}

impl Changing {
    /// Returns the current variable cost of a task.
    pub fn of(task: &Task) -> Self {
        Self { own: task.changing_bytes(), envs: task.envs() }
    }
}

/// The cost of all tasks together. Written for the curious only: a reader counts again.
#[derive(Debug, Default)]
pub struct Held {
    /// The cost that tasks do not share.
    own: usize,
    shared: SharedBytes,
}

impl Held {
    /// Returns the total.
    pub fn bytes(&self) -> usize {
        self.own + self.shared.total()
    }

    /// Returns the values that tasks hold.
    pub fn shared(&self) -> &SharedBytes {
        &self.shared
    }

    /// Returns by how much adding these tasks would raise the total.
    pub fn more_with<'a>(&self, tasks: impl IntoIterator<Item = &'a Task>) -> usize {
        let mut own = 0;
        let mut new: HashSet<Shared> = HashSet::new();
        for task in tasks {
            own += task.own_bytes();
            new.extend(task.shared().filter(|shared| !self.shared.contains(*shared)));
        }
        own + new.iter().map(|shared| shared.bytes).sum::<usize>()
    }

    /// Counts a new task.
    pub fn add(&mut self, task: &Task) {
        self.own += task.fixed_bytes();
        task.spec.shared().for_each(|shared| self.shared.hold(shared));
        self.begin(Changing::of(task));
    }

    /// Uncounts a task that is removed.
    pub fn remove(&mut self, task: &Task) {
        self.own = self.own.saturating_sub(task.fixed_bytes());
        task.spec.shared().for_each(|shared| self.shared.release(shared));
        self.end(Changing::of(task));
    }

    /// Replaces a task's former variable cost with its current one.
    pub fn change(&mut self, before: Changing, after: Changing) {
        // Add the new part first: a value that stays must not drop to zero holders in between.
        self.begin(after);
        self.end(before);
    }

    fn begin(&mut self, changing: Changing) {
        self.own += changing.own;
        changing.envs.into_iter().flatten().for_each(|shared| self.shared.hold(shared));
    }

    fn end(&mut self, changing: Changing) {
        self.own = self.own.saturating_sub(changing.own);
        changing.envs.into_iter().flatten().for_each(|shared| self.shared.release(shared));
    }
}

impl Serialize for Held {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut total = serializer.serialize_struct("Held", 1)?;
        total.serialize_field("bytes", &self.bytes())?;
        total.end()
    }
}
