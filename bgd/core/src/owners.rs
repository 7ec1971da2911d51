//! The owners of parent sessions: a session ends when its last owner disconnects (R54). This module only keeps track of
//! owners; it does not end anything.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use serde::{Deserialize, Serialize};

/// Clients and the parent sessions that they own.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Owners {
    by_client: BTreeSet<(u64, Arc<str>)>,
    /// The number of owners of each session, at least one.
    counts: BTreeMap<Arc<str>, u64>,
}

impl Owners {
    /// Makes a client an owner of a session. Idempotent. Returns false if the client already owns `limit` others.
    pub fn insert(&mut self, client: u64, session: Arc<str>, limit: usize) -> bool {
        let own = (client, session);
        if self.by_client.contains(&own) {
            return true;
        }
        if self.of(client).count() >= limit {
            return false;
        }
        *self.counts.entry(Arc::clone(&own.1)).or_default() += 1;
        self.by_client.insert(own)
    }

    /// Reports whether a client owns a session.
    pub fn owns(&self, client: u64, session: &str) -> bool {
        self.by_client.contains(&(client, Arc::from(session)))
    }

    /// Reports whether a session has an owner.
    pub fn has_owner(&self, session: &str) -> bool {
        self.counts.contains_key(session)
    }

    fn of(&self, client: u64) -> impl Iterator<Item = &(u64, Arc<str>)> {
        self.by_client.range((client, Arc::from(""))..).take_while(move |(owner, _)| *owner == client)
    }

    /// Removes a client. Returns the sessions of which it was the last owner, ordered by key.
    pub fn leave(&mut self, client: u64) -> Vec<Arc<str>> {
        let theirs: Vec<(u64, Arc<str>)> = self.of(client).cloned().collect();
        let mut ended = Vec::new();
        for own in theirs {
            self.by_client.remove(&own);
            let (_, session) = own;
            let Some(count) = self.counts.get_mut(&session) else { continue };
            *count -= 1;
            if *count == 0 {
                self.counts.remove(&session);
                ended.push(session);
            }
        }
        ended
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r54_session_ends_with_its_last_owner() {
        let mut owners = Owners::default();
        for (client, session) in [(1, "b"), (1, "a"), (1, "a"), (2, "a"), (3, "c")] {
            assert!(owners.insert(client, session.into(), 2));
        }
        assert!(!owners.insert(1, "d".into(), 2), "it owns two");
        assert!(
            owners.owns(1, "a") && !owners.owns(2, "b") && owners.has_owner("b") && !owners.has_owner("d")
        );
        assert_eq!(owners.leave(1), [Arc::from("b")], "another one owns the other");
        assert!(owners.leave(1).is_empty(), "it has gone already");
        assert_eq!(owners.leave(2), [Arc::from("a")], "owned twice by one is owned once");
        assert!(owners.leave(4).is_empty());
        assert_eq!(owners.leave(3), [Arc::from("c")]);
        assert!(owners.by_client.is_empty() && owners.counts.is_empty(), "{owners:?}");
    }

    #[test]
    fn ten_thousand_owners_are_handled() {
        let mut owners = Owners::default();
        for client in 0..10_000 {
            assert!(owners.insert(client, "shared".into(), 2));
            assert!(owners.insert(client, format!("{client}").into(), 2));
        }
        let ended: usize = (0..10_000).map(|client| owners.leave(client).len()).sum();
        assert_eq!(ended, 10_001);
    }
}
