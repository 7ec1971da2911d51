//! The questions of a session: passes on each question, and sends its answer to the server. Withdraws questions that
//! the server no longer waits for.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use bgd_shared::agent::{InputOption, OptionKind};
use bgd_shared::mutex::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::super::asked;
use super::super::connection::{Ask, Update, Updates};
use super::api::{Api, ApiError};
use super::wire::{Permission, Questions, bounded};

/// How many questions are remembered, so that they are not asked twice. At the limit, all are forgotten.
const SEEN: usize = 4096;

/// How many questions may be open at a time. Further ones are asked when a poll finds them again.
const OPEN: usize = 64;

/// How often an answer is sent to a server that does not accept it.
const TRIES: u32 = 4;

/// The delay after the first failed attempt to send an answer. It grows by the same amount with every further attempt.
const WAIT: Duration = Duration::from_millis(200);

/// The message to the model when its request is not allowed. With a message, the model continues and can find another
/// way or report the obstacle; without one, the server ends the turn without an answer.
const DENIED: &str = "No user is available to allow this. Continue without it, or say what you could not do.";

/// The id of the option that dismisses a question of the model.
const DISMISS: &str = "dismiss";

/// How a question ended.
#[derive(Debug)]
struct Settled {
    id: String,
    /// Whether the server needs no more answer. If it does, the question may be found again.
    answered: bool,
}

/// The questions of a session.
#[derive(Debug)]
pub struct Asks {
    context: AskContext,
    seen: HashSet<String>,
    /// Unanswered questions by id.
    open: HashMap<String, Open>,
    jobs: JoinSet<Settled>,
}

/// An unanswered question.
#[derive(Debug)]
struct Open {
    asked: Asked,
    progress: Arc<Mutex<Progress>>,
    /// Dropping it withdraws the question.
    _withdraw: oneshot::Sender<()>,
}

/// The content of a question.
#[derive(Clone, Debug, Serialize, Deserialize)]
enum Asked {
    Permission(Permission),
    Questions(Questions),
}

/// The parts of a question that the user has answered.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
struct Progress {
    /// The name of its pending part; `None` while none is asked.
    #[serde(skip)]
    pending: Option<Arc<str>>,
    /// The answers to the earlier parts.
    answers: Vec<Vec<String>>,
}

/// Unanswered questions, as carried over an upgrade.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct AsksState {
    seen: HashSet<String>,
    open: Vec<(Asked, Progress)>,
    unanswered: Option<String>,
}

impl AsksState {
    /// Returns the names of the pending questions; `None` if one of them is being answered.
    pub fn references(&self) -> Option<Vec<String>> {
        self.open.iter().map(|(_, progress)| progress.pending.as_deref().map(str::to_owned)).collect()
    }
}

/// The resources of a question's job.
#[derive(Clone, Debug)]
struct AskContext {
    api: Arc<Api>,
    directory: Arc<str>,
    updates: Updates,
    /// The model's last unanswered question. Set before the server is notified, because the notification ends the turn.
    unanswered: Arc<Mutex<Option<String>>>,
    progress: Arc<Mutex<Progress>>,
}

impl Asks {
    /// Creates the state for a session without questions.
    pub fn new(api: Arc<Api>, directory: Arc<str>, updates: Updates) -> Self {
        let (unanswered, progress) = (Arc::default(), Arc::default());
        let context = AskContext { api, directory, updates, unanswered, progress };
        Self { context, seen: HashSet::new(), open: HashMap::new(), jobs: JoinSet::new() }
    }

    pub fn state(&self) -> AsksState {
        let lock = |progress: &Mutex<Progress>| progress.lock().clone();
        // Each open question gets a new job.
        let Self { context, seen, open, jobs: _ } = self;
        let open = open.values().map(|Open { asked, progress, _withdraw }| (asked.clone(), lock(progress)));
        let unanswered = context.unanswered.lock().clone();
        AsksState { seen: seen.clone(), open: open.collect(), unanswered }
    }

    /// Repeats the questions from before an upgrade, under the same names.
    pub fn restore(&mut self, state: AsksState) {
        let AsksState { seen, open, unanswered } = state;
        *self.context.unanswered.lock() = unanswered;
        for (asked, progress) in open {
            self.ask(asked, progress);
        }
        self.seen.extend(seen);
    }

    /// Asks for a permission, unless it was already asked for.
    pub fn permission(&mut self, asked: Permission) {
        self.ask(Asked::Permission(asked), Progress::default());
    }

    /// Asks the model's questions, unless they were already asked.
    pub fn questions(&mut self, asked: Questions) {
        self.ask(Asked::Questions(asked), Progress::default());
    }

    fn ask(&mut self, asked: Asked, progress: Progress) {
        let id = match &asked {
            Asked::Permission(asked) => asked.id.clone(),
            Asked::Questions(asked) => asked.id.clone(),
        };
        if self.open.len() >= OPEN || self.seen.contains(&id) {
            return;
        }
        if self.seen.len() >= SEEN {
            self.seen.clear();
        }
        self.seen.insert(id.clone());
        let (withdraw, taken_back) = oneshot::channel();
        let progress = Arc::new(Mutex::new(progress));
        let context = AskContext { progress: Arc::clone(&progress), ..self.context.clone() };
        self.open.insert(id, Open { asked: asked.clone(), progress, _withdraw: withdraw });
        match asked {
            Asked::Permission(asked) => self.jobs.spawn(context.permission(asked, taken_back)),
            Asked::Questions(asked) => self.jobs.spawn(context.questions(asked, taken_back)),
        };
    }

    /// Withdraws a question that the server no longer waits for.
    pub fn take_back(&mut self, id: &str) {
        self.open.remove(id);
    }

    /// Withdraws all questions except those that the server still waits for. The withdrawn ones may be asked again.
    pub fn keep(&mut self, waiting: &HashSet<String>) {
        let gone = self.open.extract_if(|id, _| !waiting.contains(id));
        for (id, _) in gone {
            self.seen.remove(&id);
        }
    }

    /// Withdraws all questions, as the server no longer waits for any.
    pub fn take_all_back(&mut self) {
        self.open.clear();
    }

    /// Takes the model's last unanswered question.
    pub fn unanswered(&self) -> Option<String> {
        self.context.unanswered.lock().take()
    }

    /// Waits for the next question that ends. Never returns while no question is open.
    pub async fn next(&mut self) {
        match self.jobs.join_next().await {
            Some(Ok(settled)) => {
                self.open.remove(&settled.id);
                if !settled.answered {
                    self.seen.remove(&settled.id);
                }
            }
            Some(Err(error)) => tracing::warn!(%error, "a question of an opencode server was dropped"),
            None => std::future::pending().await,
        }
    }
}

/// The outcome of a question.
enum Chosen {
    /// The option with this id was chosen.
    Option(String),
    /// There will be no answer.
    Nothing,
    /// The server no longer waits for an answer.
    TakenBack,
}

impl AskContext {
    async fn permission(self, asked: Permission, mut taken_back: oneshot::Receiver<()>) -> Settled {
        let mut always = "Always allow".to_owned();
        if !asked.always.is_empty() {
            always.push(' ');
            always.push_str(&bounded(&asked.always.join(", ")));
        }
        let options = vec![
            option("once", "Allow once", OptionKind::AllowOnce),
            option("always", &always, OptionKind::AllowAlways),
            option("reject", "Reject", OptionKind::RejectOnce),
        ];
        let question = asked::permission(&asked.action, &asked.patterns, &asked.metadata);
        let reference = asked.id.as_str().into();
        let chosen = match self.ask(reference, question, options, &mut taken_back).await {
            Chosen::Option(chosen) => Some(chosen),
            Chosen::Nothing => None,
            Chosen::TakenBack => return Settled { id: asked.id, answered: true },
        };
        let (reply, message) = match chosen.as_deref() {
            Some(chosen @ ("once" | "always" | "reject")) => (chosen, None),
            Some(_) | None => ("reject", Some(DENIED)),
        };
        let give = || self.api.permit(&asked.id, &self.directory, reply, message);
        let answered = with_retries(give).await;
        Settled { id: asked.id, answered }
    }

    async fn questions(self, asked: Questions, mut taken_back: oneshot::Receiver<()>) -> Settled {
        let mut answers = self.progress.lock().answers.clone();
        for (number, question) in asked.list.iter().enumerate().skip(answers.len()) {
            let choices = question.options.iter().map(|choice| choice.label.as_str());
            let mut options: Vec<InputOption> =
                choices.map(|label| option(label, label, OptionKind::Other)).collect();
            options.push(option(DISMISS, "Dismiss", OptionKind::RejectOnce));
            let reference = format!("{}#{number}", asked.id).into();
            match self.ask(reference, bounded(&question.question).into(), options, &mut taken_back).await {
                Chosen::Option(chosen) if question.options.iter().any(|choice| choice.label == chosen) => {
                    answers.push(vec![chosen]);
                    self.progress.lock().answers.clone_from(&answers);
                }
                Chosen::Option(_) => break,
                Chosen::Nothing => {
                    let words = bounded(&question.question).into();
                    *self.unanswered.lock() = Some(words);
                    break;
                }
                Chosen::TakenBack => return Settled { id: asked.id, answered: true },
            }
        }
        let all = (answers.len() == asked.list.len()).then_some(answers.as_slice());
        let answered = with_retries(|| self.api.answer(&asked.id, &self.directory, all)).await;
        Settled { id: asked.id, answered }
    }

    async fn ask(
        &self,
        reference: Arc<str>,
        question: String,
        options: Vec<InputOption>,
        taken_back: &mut oneshot::Receiver<()>,
    ) -> Chosen {
        let (answer, chosen) = oneshot::channel();
        self.progress.lock().pending = Some(Arc::clone(&reference));
        let asking = async {
            // If the receiver was dropped, the answer's sender is dropped with the question.
            let _ = self.updates.send(Update::Ask(Ask { reference, question, options, answer })).await;
            chosen.await.ok().flatten()
        };
        let chosen = tokio::select! {
            biased;
            _ = taken_back => Chosen::TakenBack,
            chosen = asking => chosen.map_or(Chosen::Nothing, Chosen::Option),
        };
        self.progress.lock().pending = None;
        chosen
    }
}

fn option(id: &str, name: &str, kind: OptionKind) -> InputOption {
    InputOption { id: id.to_owned(), name: name.to_owned(), kind }
}

/// Sends an answer until the server accepts it or no longer waits for it. Returns `false` after [`TRIES`] failures.
async fn with_retries<W: Future<Output = Result<(), ApiError>>>(mut give: impl FnMut() -> W) -> bool {
    for try_number in 1..=TRIES {
        match give().await {
            Ok(()) | Err(ApiError::NotFound(_)) => return true,
            Err(error) => tracing::debug!(%error, try_number, "an opencode server did not accept an answer"),
        }
        tokio::time::sleep(WAIT * try_number).await;
    }
    false
}
