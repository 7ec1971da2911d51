//! The environments in a journal's file; each is stored once, regardless of how many rows need it.

use std::collections::HashMap;
use std::sync::Arc;

use bgd_shared::id::TaskId;
use bgd_shared::text::Env;
use rusqlite::types::Value;

/// The environments in the file, by number, and how many rows need each.
#[derive(Default)]
pub(super) struct Envs {
    /// The numbers of recently written environments, by address. The `Arc` is held so that its address can't be reused.
    known: HashMap<usize, (Arc<Env>, u32)>,
    /// The numbers, by the digest of the stored text.
    numbers: HashMap<Vec<u8>, u32>,
    digests: HashMap<u32, Vec<u8>>,
    /// How many rows need each environment.
    holders: HashMap<u32, usize>,
    /// The environments that each row needs.
    of_rows: HashMap<RowId, Box<[u32]>>,
    last: u32,
}

/// A row that may need environments.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum RowId {
    Task(u64),
    Entering(TaskId),
}

/// Maximum number of environments held only to know their numbers.
const KNOWN: usize = 64;

impl Envs {
    /// Returns the number of an environment, and whether it has yet to be written to the file.
    pub(super) fn number(&mut self, env: &Arc<Env>) -> (u32, bool) {
        let at = Arc::as_ptr(env).addr();
        if let Some((_, number)) = self.known.get(&at) {
            return (*number, false);
        }
        let digest = digest(&serde_json::to_vec(&**env).unwrap_or_default());
        let known = self.numbers.get(&digest).copied();
        let number = known.unwrap_or_else(|| {
            self.last += 1;
            self.numbers.insert(digest.clone(), self.last);
            self.digests.insert(self.last, digest);
            self.last
        });
        if self.known.len() >= KNOWN {
            self.known.clear();
        }
        self.known.insert(at, (Arc::clone(env), number));
        (number, known.is_none())
    }

    /// Records an environment that is in the file.
    pub(super) fn insert(&mut self, number: u32, value: &Value) {
        let Value::Blob(value) = value else { return };
        let digest = digest(value);
        self.numbers.insert(digest.clone(), number);
        self.digests.insert(number, digest);
        self.holders.entry(number).or_default();
        self.last = self.last.max(number);
    }

    pub(super) fn hold(&mut self, id: RowId, numbers: Vec<u32>) {
        for number in &numbers {
            *self.holders.entry(*number).or_default() += 1;
        }
        let before = if numbers.is_empty() {
            self.of_rows.remove(&id)
        } else {
            self.of_rows.insert(id, numbers.into())
        };
        self.release(&before.unwrap_or_default());
    }

    pub(super) fn let_go(&mut self, id: &RowId) {
        let before = self.of_rows.remove(id).unwrap_or_default();
        self.release(&before);
    }

    fn release(&mut self, numbers: &[u32]) {
        for number in numbers {
            if let Some(holders) = self.holders.get_mut(number) {
                *holders = holders.saturating_sub(1);
            }
        }
    }

    /// Forgets the environments that no row needs. Returns their numbers.
    pub(super) fn unneeded(&mut self) -> Vec<u32> {
        let numbers: Vec<u32> =
            self.holders.iter().filter(|(_, holders)| **holders == 0).map(|(number, _)| *number).collect();
        for number in &numbers {
            self.holders.remove(number);
            if let Some(digest) = self.digests.remove(number) {
                self.numbers.remove(&digest);
            }
        }
        if !numbers.is_empty() {
            self.known.retain(|_, (_, number)| self.digests.contains_key(number));
        }
        numbers
    }
}

fn digest(bytes: &[u8]) -> Vec<u8> {
    use sha2::{Digest as _, Sha256};
    Sha256::digest(bytes).to_vec()
}
