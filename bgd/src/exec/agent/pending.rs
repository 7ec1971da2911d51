//! A question of a turn that waits for its answer. This module neither asks nor answers.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::state::AskedState;

/// An answer that came before the agent repeated its question: the id of the option; `None` denies.
pub struct Early(pub Option<String>);

/// A pending question.
pub struct Asked {
    /// The agent's name for the question.
    pub reference: Arc<str>,
    /// Receives the answer; after an upgrade, `None` until the agent repeats the question.
    pub decide: Option<oneshot::Sender<Option<String>>>,
    /// The answer, if it came while `decide` was `None`.
    pub early: Option<Early>,
    /// The ids of the options that deny the request.
    pub denials: Vec<String>,
}

impl Asked {
    /// Restores a question, and returns it with its number.
    pub fn restore(state: AskedState) -> (u64, Self) {
        let AskedState { key, reference, denials } = state;
        (key, Self { reference, decide: None, early: None, denials })
    }

    /// Returns the state of the question with this number.
    pub fn state(&self, key: u64) -> AskedState {
        let Self { reference, decide: _, early: _, denials } = self;
        AskedState { key, reference: Arc::clone(reference), denials: denials.clone() }
    }
}
