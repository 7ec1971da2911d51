//! The history of events: the latest ones as they are sent, in as many bytes as they may have.
//!
//! They lie one behind the other in blocks. A small allocation for each would take nearly twice the bytes that are
//! counted, and would leave holes among everything else that is allocated meanwhile.

use std::collections::VecDeque;
use std::sync::Arc;

use bgd_shared::id::TaskId;

/// The bytes of an ordinary block. Blocks are dropped whole, so a history is by one of them shorter than it may be.
const BLOCK_BYTES: usize = 64 * 1024;

/// A history that may have less has smaller blocks: so many make up what it may have.
const BLOCKS: usize = 16;

/// What the allocator keeps beside each allocation, about.
const ALLOCATION_BYTES: usize = 16;

/// An event that is kept.
#[derive(Debug)]
pub struct Kept<'a> {
    /// Its task.
    pub task: TaskId,
    /// The parent session of that.
    pub session: Option<&'a str>,
    /// The event object.
    pub json: &'a [u8],
}

/// Where an event is in its block, and what filters look at.
#[derive(Debug)]
struct Entry {
    task: TaskId,
    session: Option<Arc<str>>,
    end: usize,
}

/// Events one behind the other.
#[derive(Debug)]
struct Block {
    /// The number of its first event.
    first: u64,
    entries: Vec<Entry>,
    json: Vec<u8>,
    /// The parent sessions may be held by nobody else any more.
    session_bytes: usize,
}

impl Block {
    /// What it costs. The two parts and the block itself are allocations.
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
    /// What all blocks but the last cost.
    full_bytes: usize,
    limit: usize,
    /// The number of the latest event.
    seq: u64,
}

impl History {
    /// No events yet, and room for this many bytes of them.
    pub fn new(limit: usize) -> Self {
        Self { blocks: VecDeque::new(), full_bytes: 0, limit, seq: 0 }
    }

    /// The number of the latest event.
    pub fn seq(&self) -> u64 {
        self.seq
    }

    /// The number of the oldest event that is kept.
    pub fn first(&self) -> u64 {
        self.blocks.front().map_or(self.seq + 1, |block| block.first)
    }

    /// What it costs, everything counted.
    pub fn bytes(&self) -> usize {
        self.full_bytes + self.blocks.back().map_or(0, Block::bytes)
    }

    /// Keeps an event, whose number is the next. What is too much by it is dropped by [`Self::trim`].
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

    /// Changes how many bytes it may have.
    pub fn set_limit(&mut self, limit: usize) {
        self.limit = limit;
        self.trim();
    }

    /// Drops the oldest events that are too many. The latest one is always kept.
    pub fn trim(&mut self) {
        while self.bytes() > self.limit && self.blocks.len() > 1 {
            if let Some(oldest) = self.blocks.pop_front() {
                self.full_bytes -= oldest.bytes();
            }
        }
    }

    /// An event by its number, if it is kept.
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
        fn the_latest_are_kept_and_are_what_came(
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
            history.set_limit(0);
            prop_assert_eq!(history.blocks.len(), 1);
            prop_assert!(history.get(last).is_some(), "the latest one is always kept");
        }
    }

    #[test]
    fn little_of_what_it_may_have_is_lost_by_its_blocks() {
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
