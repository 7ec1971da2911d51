//! A question of a turn that waits for its answer. This neither asks nor answers.

use std::sync::Arc;

use tokio::sync::oneshot;

use super::state::AskedState;

/// An answer that came too early: the id of the option, or nothing to deny all of them.
pub struct Early(pub Option<String>);

/// A pending question.
pub struct Asked {
    /// What the agent calls it.
    pub reference: Arc<str>,
    /// Takes the answer; `None` until the question comes again after an upgrade.
    pub decide: Option<oneshot::Sender<Option<String>>>,
    /// The answer, if it came before that.
    pub early: Option<Early>,
    /// The ids of the options that deny the request.
    pub denials: Vec<String>,
}

impl Asked {
    /// Takes over a question with its number.
    pub fn again(state: AskedState) -> (u64, Self) {
        let AskedState { key, reference, denials } = state;
        (key, Self { reference, decide: None, early: None, denials })
    }

    /// Returns the state of the question with this number.
    pub fn state(&self, key: u64) -> AskedState {
        let Self { reference, decide: _, early: _, denials } = self;
        AskedState { key, reference: Arc::clone(reference), denials: denials.clone() }
    }
}
