//! The event history: the latest events in serialised form, limited in bytes.
//!
//! Events are stored consecutively in blocks. A small allocation per event would use nearly twice the counted bytes,
//! and would fragment the heap.

use std::collections::VecDeque;
use std::sync::Arc;

use bgd_shared::id::TaskId;
use serde::{Deserialize, Serialize};

/// The size of an ordinary block in bytes. Blocks are dropped whole, so a history may be shorter than its
/// limit by one block.
const BLOCK_BYTES: usize = 64 * 1024;

/// The minimum number of blocks; a history with a small limit has smaller blocks.
const BLOCKS: usize = 16;

/// The allocator's approximate overhead per allocation, in bytes.
const ALLOCATION_BYTES: usize = 16;

/// A stored event.
#[derive(Debug)]
pub struct Kept<'a> {
    pub task: TaskId,
    /// The parent session of that task.
    pub session: Option<&'a str>,
    /// The serialised event object.
    pub json: &'a [u8],
}

/// The position of an event in its block, and the values that filters check.
#[derive(Debug)]
struct Entry {
    task: TaskId,
    session: Option<Arc<str>>,
    end: usize,
}

/// Consecutive events.
#[derive(Debug)]
struct Block {
    /// The sequence number of its first event.
    first: u64,
    entries: Vec<Entry>,
    json: Vec<u8>,
    /// Bytes of the parent sessions' names; this block may hold their last reference.
    session_bytes: usize,
}

impl Block {
    /// Returns its memory in bytes, including the overhead of its three allocations.
    fn bytes(&self) -> usize {
        let entries = self.entries.capacity() * size_of::<Entry>();
        size_of::<Self>() + entries + self.json.capacity() + self.session_bytes + 2 * ALLOCATION_BYTES
    }

    fn has_room(&self, json: usize) -> bool {
        self.json.capacity() - self.json.len() >= json
    }
}

/// The latest events.
#[derive(Debug)]
pub struct History {
    blocks: VecDeque<Block>,
    /// The memory of all blocks except the last, in bytes.
    full_bytes: usize,
    limit: usize,
    /// The sequence number of the latest event.
    seq: u64,
}

/// The history, for the program that takes over.
#[derive(Debug, Serialize, Deserialize)]
pub struct HistoryState {
    seq: u64,
    /// The events up to `seq`, without gaps.
    events: Vec<EventState>,
}

#[derive(Debug, Serialize, Deserialize)]
struct EventState {
    task: TaskId,
    session: Option<Arc<str>>,
    json: String,
}

impl History {
    pub fn state(&self) -> HistoryState {
        let state = |kept: Kept<'_>| EventState {
            task: kept.task,
            session: kept.session.map(Arc::from),
            json: String::from_utf8_lossy(kept.json).into_owned(),
        };
        // The blocks are rebuilt, up to the configured limit.
        let Self { blocks: _, full_bytes: _, limit: _, seq: last } = self;
        let events = (self.first()..=*last).filter_map(|seq| self.get(seq)).map(state).collect();
        HistoryState { seq: *last, events }
    }

    /// Continues with the events of another program, within this history's limit.
    pub fn resume(&mut self, state: HistoryState) {
        let HistoryState { seq, events } = state;
        let first = (seq + 1).saturating_sub(events.len() as u64);
        for (seq, EventState { task, session, json }) in (first..).zip(events) {
            self.push(seq, task, session, json.as_bytes());
        }
        self.seq = seq;
        self.trim();
    }

    /// Creates an empty history with a limit in bytes.
    pub fn new(limit: usize) -> Self {
        Self { blocks: VecDeque::new(), full_bytes: 0, limit, seq: 0 }
    }

    /// Continues after this event, which is not kept.
    pub fn continue_numbering_after(&mut self, seq: u64) {
        self.seq = seq;
    }

    /// Returns the sequence number of the latest event.
    pub fn seq(&self) -> u64 {
        self.seq
    }

    /// Returns the sequence number of the oldest event kept.
    pub fn first(&self) -> u64 {
        self.blocks.front().map_or(self.seq + 1, |block| block.first)
    }

    /// Returns its memory in bytes, including overhead.
    pub fn bytes(&self) -> usize {
        self.full_bytes + self.blocks.back().map_or(0, Block::bytes)
    }

    /// Adds an event with the next sequence number. May exceed the limit until [`Self::trim`] is called.
    pub fn push(&mut self, seq: u64, task: TaskId, session: Option<Arc<str>>, json: &[u8]) {
        self.seq = seq;
        if !self.blocks.back().is_some_and(|block| block.has_room(json.len())) {
            self.full_bytes = self.bytes();
            let room = BLOCK_BYTES.min(self.limit / BLOCKS).max(json.len());
            // Most events have some hundred bytes.
            let entries = Vec::with_capacity(room / 1024 + 1);
            let json = Vec::with_capacity(room);
            self.blocks.push_back(Block { first: seq, entries, json, session_bytes: 0 });
        }
        if let Some(block) = self.blocks.back_mut() {
            block.json.extend_from_slice(json);
            block.session_bytes += session.as_deref().map_or(0, |session| session.len() + ALLOCATION_BYTES);
            block.entries.push(Entry { task, session, end: block.json.len() });
        }
    }

    /// Changes the limit in bytes.
    pub fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
        self.trim();
    }

    /// Drops the oldest events above the limit. Always keeps the last block, and so the latest event.
    pub fn trim(&mut self) {
        while self.bytes() > self.limit && self.blocks.len() > 1 {
            if let Some(oldest) = self.blocks.pop_front() {
                self.full_bytes -= oldest.bytes();
            }
        }
    }

    /// Returns an event by its sequence number, if it is kept.
    pub fn get(&self, seq: u64) -> Option<Kept<'_>> {
        let block = self.blocks.partition_point(|block| block.first <= seq).checked_sub(1)?;
        let block = self.blocks.get(block)?;
        let place = usize::try_from(seq - block.first).ok()?;
        let entry = block.entries.get(place)?;
        let before = place.checked_sub(1).and_then(|before| block.entries.get(before));
        let json = block.json.get(before.map_or(0, |before| before.end)..entry.end)?;
        Some(Kept { task: entry.task, session: entry.session.as_deref(), json })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn task(seq: u64) -> TaskId {
        TaskId::from_u128(seq.into())
    }

    fn json(seq: u64, bytes: usize) -> Vec<u8> {
        [seq.to_string().as_bytes(), &vec![b'x'; bytes]].concat()
    }

    proptest! {
        #[test]
        fn history_keeps_the_latest_events_unchanged(
            sizes in prop::collection::vec(0_usize..3000, 1..200), limit in 4096_usize..100_000,
        ) {
            let mut history = History::new(limit);
            let session = Arc::<str>::from("s");
            for (seq, bytes) in (1..).zip(&sizes) {
                history.push(seq, task(seq), Some(session.clone()), &json(seq, *bytes));
                history.trim();
                let all: usize = history.blocks.iter().map(Block::bytes).sum();
                prop_assert_eq!(history.bytes(), all);
                prop_assert!(all <= limit || history.blocks.len() == 1);
            }
            let (first, last) = (history.first(), history.seq());
            prop_assert_eq!(last, sizes.len() as u64);
            prop_assert!(first <= last);
            prop_assert!(history.get(first - 1).is_none() && history.get(last + 1).is_none());
            for (seq, bytes) in (1..).zip(&sizes).skip_while(|(seq, _)| *seq < first) {
                let kept = history.get(seq).expect("it is kept");
                prop_assert_eq!((kept.task, kept.session), (task(seq), Some("s")));
                prop_assert_eq!(kept.json, json(seq, *bytes));
            }
            let mut again = History::new(limit);
            again.resume(history.state());
            prop_assert_eq!((again.first(), again.seq()), (first, last));
            for seq in first..=last {
                let of = |history: &History| history.get(seq).map(|kept| kept.json.to_vec());
                prop_assert_eq!(of(&again), of(&history));
            }
            history.set_limit(0);
            prop_assert_eq!(history.blocks.len(), 1);
            prop_assert!(history.get(last).is_some(), "the latest one is always kept");
        }
    }

    #[test]
    fn history_uses_most_of_its_limit() {
        let mut history = History::new(8 << 20);
        for seq in 1..=20_000 {
            history.push(seq, task(seq), None, &json(seq, 900));
            history.trim();
        }
        assert!((8 << 20) - history.bytes() < 3 * BLOCK_BYTES, "{}", history.bytes());
        let kept = history.seq() + 1 - history.first();
        assert!(kept * 900 > 7 << 20, "{kept} events");
    }
}
