//! The journal of a simulated durable daemon: rows as texts, which a write changes completely or not at all.

use std::collections::BTreeMap;

use bgd::core::Ordinal;
use bgd::core::durable::{Changes, Kept};
use bgd::journal::{Recorded, Trouble};
use bgd::os::clock::Stamp;
use bgd_shared::id::TaskId;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// The free space.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Room {
    #[default]
    Enough,
    /// The disk is full, except for the space that the journal has reserved.
    Ahead,
    None,
}

impl Room {
    pub fn is_full(self) -> bool {
        self != Self::Enough
    }
}

/// The written rows, and the changes still to be written.
#[derive(Default)]
pub struct Disk {
    /// The start of the core's clock, once a daemon has written.
    pub epoch: Option<Stamp>,
    /// Whether a write is in progress or to be retried.
    pub is_due: bool,
    /// Whether the last write failed.
    pub is_troubled: bool,
    /// Whether nothing may start, according to the last write.
    pub holds_starts: bool,
    tasks: BTreeMap<Ordinal, String>,
    items: BTreeMap<u64, String>,
    losses: BTreeMap<u64, String>,
    notices: BTreeMap<u64, String>,
    batches: BTreeMap<TaskId, String>,
    entering: BTreeMap<TaskId, String>,
    groups: Option<String>,
    counters: Option<String>,
    unwritten: Vec<Changes>,
    upto: u64,
}

fn text(row: &impl Serialize) -> String {
    serde_json::to_string(row).unwrap()
}

fn parsed<T: DeserializeOwned>(row: &str) -> T {
    serde_json::from_str(row).unwrap()
}

fn change<K: Ord, V: Serialize>(rows: &mut BTreeMap<K, String>, changes: Vec<(K, Option<V>)>) {
    for (key, row) in changes {
        match row {
            Some(row) => _ = rows.insert(key, text(&row)),
            None => _ = rows.remove(&key),
        }
    }
}

impl Disk {
    /// Accepts the changes of a step.
    pub fn order(&mut self, number: u64, changes: Changes) {
        self.upto = number;
        self.unwritten.push(changes);
    }

    /// Reports whether everything is written.
    pub fn is_written(&self) -> bool {
        self.unwritten.is_empty()
    }

    /// Writes everything, if there is space.
    pub fn write(&mut self, room: Room) -> Recorded {
        let trouble = room.is_full().then(|| Trouble::of_disk("the disk is full"));
        let is_written = room != Room::None;
        (self.is_troubled, self.holds_starts) = (!is_written, room.is_full());
        for changes in if is_written { std::mem::take(&mut self.unwritten) } else { Vec::new() } {
            let Changes { tasks, items, losses, notices, batches, entering, groups, counters, added: _ } =
                changes;
            change(&mut self.tasks, tasks);
            change(&mut self.items, items);
            change(&mut self.losses, losses);
            change(&mut self.notices, notices);
            change(&mut self.batches, batches);
            change(&mut self.entering, entering);
            self.groups = groups.as_ref().map(text).or(self.groups.take());
            self.counters = Some(text(&counters));
        }
        Recorded { upto: self.upto, is_written, trouble }
    }

    /// The daemon is gone: its unwritten changes are lost.
    pub fn drop_unwritten(&mut self) {
        self.unwritten.clear();
        (self.upto, self.is_due, self.is_troubled, self.holds_starts) = (0, false, false, false);
    }

    /// Returns the state that the next daemon reads.
    pub fn kept(&self) -> Kept {
        let mut kept = Kept {
            tasks: self.tasks.iter().map(|(ordinal, row)| (*ordinal, parsed(row))).collect(),
            items: self.items.iter().map(|(number, row)| (*number, parsed(row))).collect(),
            losses: self.losses.iter().map(|(number, row)| (*number, parsed(row))).collect(),
            notices: self.notices.iter().map(|(number, row)| (*number, parsed(row))).collect(),
            batches: self.batches.iter().map(|(id, row)| (*id, parsed(row))).collect(),
            entering: self.entering.values().map(|row| parsed(row)).collect(),
            ..Kept::default()
        };
        kept.groups = self.groups.as_deref().map(parsed).unwrap_or_default();
        kept.counters = self.counters.as_deref().map(parsed).unwrap_or_default();
        kept
    }
}
