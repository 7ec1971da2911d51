//! An agent's unanswered questions. This module is independent of who decides them.

use std::collections::BTreeMap;

use agent_client_protocol::RawJsonRpcId;
use bgd_shared::mutex::Mutex;
use tokio::sync::oneshot;

use super::asks::Question;

/// The open questions, by the text of their request ids.
#[derive(Debug, Default)]
pub struct Questions(Mutex<BTreeMap<String, Open>>);

#[derive(Debug)]
struct Open {
    id: RawJsonRpcId,
    question: Question,
    /// Dropping it withdraws the question.
    _withdraw: oneshot::Sender<()>,
}

impl Questions {
    /// Adds a question. The receiver resolves when the agent withdraws it.
    pub fn open(&self, reference: &str, id: &RawJsonRpcId, question: &Question) -> oneshot::Receiver<()> {
        let (withdraw, withdrawn) = oneshot::channel();
        let open = Open { id: id.clone(), question: question.clone(), _withdraw: withdraw };
        self.0.lock().insert(reference.to_owned(), open);
        withdrawn
    }

    /// Removes a question that is being answered.
    pub fn close(&self, reference: &str) {
        self.0.lock().remove(reference);
    }

    /// Notes that the agent no longer waits for an answer.
    pub fn withdraw(&self, reference: &str) {
        self.close(reference);
    }

    pub fn all(&self) -> Vec<(RawJsonRpcId, Question)> {
        self.0.lock().values().map(|open| (open.id.clone(), open.question.clone())).collect()
    }

    /// Returns the request ids of a session's questions, as text.
    pub fn of(&self, session: &str) -> Vec<String> {
        let all = self.0.lock();
        let own = all.iter().filter(|(_, open)| open.question.session == session);
        own.map(|(reference, _)| reference.clone()).collect()
    }
}
