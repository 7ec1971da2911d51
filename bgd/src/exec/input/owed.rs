//! Answers that an executor owes clients for pending operations, such as writing to a process. Each has a number that
//! identifies it in the program that takes over.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use bgd_shared::mutex::Mutex;

use crate::client::Client;
use crate::client::answer::{Answer, AnswerState};

#[derive(Clone, Debug, Default)]
pub struct Owed(Arc<Mutex<Answers>>);

#[derive(Debug, Default)]
struct Answers {
    latest: u64,
    all: BTreeMap<u64, Answer>,
}

impl Owed {
    /// Stores an answer until it is given. Returns its number.
    pub fn keep(&self, answer: Answer) -> u64 {
        let mut answers = self.0.lock();
        answers.latest += 1;
        let number = answers.latest;
        answers.all.insert(number, answer);
        number
    }

    /// Takes an answer in order to give it.
    pub fn take(&self, number: u64) -> Option<Answer> {
        self.0.lock().all.remove(&number)
    }

    /// Adds the number of answers owed to each client.
    pub fn count(&self, clients: &mut HashMap<u64, usize>) {
        self.0.lock().all.values().for_each(|answer| *clients.entry(answer.client().id).or_default() += 1);
    }

    pub fn state(&self) -> Vec<(u64, AnswerState)> {
        self.0.lock().all.iter().map(|(number, answer)| (*number, answer.state())).collect()
    }

    /// Restores the answers that another program owed to clients that are still connected.
    pub fn restore(&self, owed: Vec<(u64, AnswerState)>, clients: &HashMap<u64, Arc<Client>>) {
        let mut answers = self.0.lock();
        for (number, state) in owed {
            answers.latest = answers.latest.max(number);
            answers.all.extend(state.resume(clients).map(|answer| (number, answer)));
        }
    }
}
