//! What tasks hold, in bytes: their texts, their environments, and what it costs to keep them at all. What several
//! tasks share counts once.
//!
//! It is counted as tasks come, change and go, so that a submit can be refused before the memory is gone. What comes
//! later can't be refused: the error of a task, an agent's questions and tools, the items of inboxes. All of that is
//! bounded by itself, it counts too, and so the next submits are refused the sooner.

use std::collections::HashMap;
use std::sync::Arc;

use bgd_shared::agent::AgentSettings;
use bgd_shared::ready::Ready;
use bgd_shared::rlimit::Rlimits;
use bgd_shared::text::{Env, OsText};
use serde::Serialize;

use super::agent::AgentPart;
use super::plan::{Again, Attempt, AttemptError, Dependency, Plan, Rule};
use super::task::{Failure, Outcome, Place, SpawnFailure, Spec, State, Task, Work};

/// What a task costs beside its texts: itself, its spec and its places in the indexes.
pub const TASK_BYTES: usize = 900;

/// What a text costs beside its bytes: the pointer to it, and what the allocator adds.
const TEXT_BYTES: usize = 32;

/// What a resource limit costs in a map of them.
const RLIMIT_BYTES: usize = 80;

/// What a condition on another task costs where those are kept that come after it.
const DEPENDENT_BYTES: usize = 64;

/// What a text costs.
pub fn text_bytes(text: &str) -> usize {
    TEXT_BYTES + text.len()
}

/// What an agent's settings cost.
pub fn settings_bytes(settings: &AgentSettings) -> usize {
    settings.texts().map(text_bytes).sum()
}

fn os_text(text: &OsText) -> usize {
    TEXT_BYTES + text.as_bytes().len()
}

fn optional(some: Option<&str>) -> usize {
    some.map_or(0, text_bytes)
}

/// What an environment costs, however many tasks share it.
pub fn env_bytes(env: &Env) -> usize {
    env.0.iter().map(|(name, value)| text_bytes(name) + os_text(value)).sum()
}

/// What the words of a command cost.
pub fn argv_bytes(argv: &[OsText]) -> usize {
    argv.iter().map(os_text).sum()
}

fn place_bytes(place: &Place) -> usize {
    env_bytes(&place.env) + optional(place.terminal.as_ref().map(|terminal| terminal.path.as_str()))
}

fn ready_bytes(ready: &Ready) -> usize {
    TEXT_BYTES + size_of::<Ready>() + ready.text_bytes()
}

fn rlimits_bytes(rlimits: &Rlimits) -> usize {
    TEXT_BYTES + rlimits.len() * RLIMIT_BYTES
}

impl Spec {
    /// What a task costs that was submitted so, without what it may share with others.
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

    /// What it costs that others may share.
    pub fn shared_bytes(&self) -> usize {
        self.shared().map(|shared| shared.bytes).sum()
    }

    /// What others may share of it: where that is, and what it costs.
    fn shared(&self) -> impl Iterator<Item = Shared> {
        let cwd = Shared::new(&self.cwd, os_text(&self.cwd));
        let rlimits = self.rlimits.as_ref().map(|rlimits| Shared::new(rlimits, rlimits_bytes(rlimits)));
        let place = self.place.as_ref().map(|place| Shared::new(place, place_bytes(place)));
        [Some(cwd), rlimits, place].into_iter().flatten()
    }
}

impl Task {
    /// What it costs for itself and never changes.
    fn fixed_bytes(&self) -> usize {
        self.spec.own_bytes() + optional(self.key.as_deref())
    }

    /// What it costs for itself, and changes.
    fn changing_bytes(&self) -> usize {
        let state = match &self.state {
            State::Queued { .. }
            | State::Starting { .. }
            | State::Running { .. }
            | State::Stopping { .. } => 0,
            State::Finished(finished) => outcome_bytes(&finished.outcome),
            State::Resuming { finished, prompt, settings, .. } => {
                outcome_bytes(&finished.outcome) + text_bytes(prompt) + settings_bytes(settings)
            }
        };
        let plan = self.plan.as_deref().map_or(0, Plan::own_bytes);
        state + plan + self.agent.as_deref().map_or(0, AgentPart::own_bytes)
    }

    /// What it costs, without what it shares with others.
    pub fn own_bytes(&self) -> usize {
        self.fixed_bytes() + self.changing_bytes()
    }

    /// The environments that it holds.
    fn envs(&self) -> [Option<Shared>; 3] {
        let shared = |env: &Arc<Env>| Shared::new(env, env_bytes(env));
        let queued = match &self.state {
            State::Queued { env } => Some(shared(env)),
            State::Starting { .. }
            | State::Running { .. }
            | State::Stopping { .. }
            | State::Finished(_)
            | State::Resuming { .. } => None,
        };
        let again = self.plan().again.as_ref().map(|again| shared(&again.env));
        [queued, again, self.agent.as_ref().map(|agent| shared(&agent.env))]
    }
}

impl Plan {
    /// What it costs, without what it shares with others.
    pub fn own_bytes(&self) -> usize {
        let again = self.again.as_deref().map_or(0, |again| {
            let codes = if let Rule::Retry { codes, .. } = &again.rule { size_of_val(&**codes) } else { 0 };
            let attempts = again.attempts.iter().map(|attempt| size_of::<Attempt>() + attempt.text_bytes());
            size_of::<Again>() + codes + attempts.sum::<usize>()
        });
        size_of::<Self>()
            + self.after.len() * (size_of::<Dependency>() + DEPENDENT_BYTES)
            + optional(self.description.as_deref())
            + again
    }
}

impl Failure {
    /// What it costs besides the place that it has in its task.
    fn own_bytes(&self) -> usize {
        match self {
            Self::Exit | Self::NotReady { .. } => 0,
            Self::CrashLoop { error, .. } => {
                error.as_ref().map_or(0, |error| size_of::<AttemptError>() + error.text_bytes())
            }
            Self::Spawn(failure) => TEXT_BYTES + size_of::<SpawnFailure>() + text_bytes(&failure.message),
            Self::Agent(text) => text_bytes(text),
            Self::TimedOut { last_words, .. } => optional(last_words.as_deref()),
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
    /// What it costs without the environment.
    fn own_bytes(&self) -> usize {
        let of_option =
            |option: &bgd_shared::agent::InputOption| text_bytes(&option.id) + text_bytes(&option.name);
        let questions = self.questions.iter().map(|question| {
            text_bytes(&question.text) + question.options.iter().map(of_option).sum::<usize>()
        });
        let tools = self.last_tools.iter().map(|tool| text_bytes(tool));
        let session = optional(self.session.as_deref()) + optional(self.last_denied.as_deref());
        let notes = self.notes.texts().map(text_bytes);
        text_bytes(&self.prompt)
            + settings_bytes(&self.settings)
            + session
            + tools.sum::<usize>()
            + questions.sum::<usize>()
            + notes.sum::<usize>()
    }
}

/// Something that several tasks may hold.
#[derive(Clone, Copy, Debug)]
struct Shared {
    /// Where it is. It stays there, and nothing else is there, as long as any task holds it.
    at: usize,
    bytes: usize,
}

impl Shared {
    fn new<T>(value: &Arc<T>, bytes: usize) -> Self {
        Self { at: Arc::as_ptr(value).addr(), bytes }
    }
}

/// What a task holds at one moment that may be different at the next.
#[derive(Clone, Copy, Debug)]
pub struct Changing {
    own: usize,
    envs: [Option<Shared>; 3],
}

impl Changing {
    /// What this task holds so.
    pub fn of(task: &Task) -> Self {
        Self { own: task.changing_bytes(), envs: task.envs() }
    }
}

/// What all tasks hold together.
#[derive(Debug, Default, Serialize)]
pub struct Held {
    bytes: usize,
    /// How many hold what is shared, by where it is.
    #[serde(skip)]
    shared: HashMap<usize, usize>,
}

impl Held {
    /// All of it.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// How much more it would be with this task.
    pub fn more_with(&self, task: &Task) -> usize {
        let mut new: Vec<Shared> = Vec::new();
        for shared in task.spec.shared().chain(task.envs().into_iter().flatten()) {
            if !self.shared.contains_key(&shared.at) && new.iter().all(|known| known.at != shared.at) {
                new.push(shared);
            }
        }
        task.own_bytes() + new.iter().map(|shared| shared.bytes).sum::<usize>()
    }

    /// A task is added.
    pub fn add(&mut self, task: &Task) {
        self.bytes += task.fixed_bytes();
        task.spec.shared().for_each(|shared| self.hold(shared));
        self.begin(Changing::of(task));
    }

    /// A task is removed.
    pub fn remove(&mut self, task: &Task) {
        self.bytes = self.bytes.saturating_sub(task.fixed_bytes());
        task.spec.shared().for_each(|shared| self.let_go(shared));
        self.end(Changing::of(task));
    }

    /// A task has changed.
    pub fn change(&mut self, before: Changing, after: Changing) {
        // First what is new: what stays must not be let go of meanwhile.
        self.begin(after);
        self.end(before);
    }

    fn begin(&mut self, changing: Changing) {
        self.bytes += changing.own;
        changing.envs.into_iter().flatten().for_each(|shared| self.hold(shared));
    }

    fn end(&mut self, changing: Changing) {
        self.bytes = self.bytes.saturating_sub(changing.own);
        changing.envs.into_iter().flatten().for_each(|shared| self.let_go(shared));
    }

    fn hold(&mut self, shared: Shared) {
        let holders = self.shared.entry(shared.at).or_default();
        *holders += 1;
        if *holders == 1 {
            self.bytes += shared.bytes;
        }
    }

    fn let_go(&mut self, shared: Shared) {
        let Some(holders) = self.shared.get_mut(&shared.at) else { return };
        *holders -= 1;
        if *holders == 0 {
            self.shared.remove(&shared.at);
            self.bytes = self.bytes.saturating_sub(shared.bytes);
        }
    }
}
