//! The state of terminals during an upgrade in place: the lines held for each, the rest of a partly written line, the
//! lines of closed terminals, and which prompts are new.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use bgd_shared::request::OriginTerminal;
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};

use super::held::{Held, Partial};
use super::keys::KeysState;
use super::{LinePosition, Lines, PendingReports, Terminals};
use crate::carry::bytes;

#[derive(Serialize, Deserialize)]
struct TerminalsState {
    held: Vec<HeldState>,
    missed: Lines,
    /// The numbers of the missed notices.
    #[serde(default)]
    missed_numbers: VecDeque<u64>,
    #[serde(default)]
    keys: Vec<KeysState>,
}

/// The lines held for one terminal.
#[derive(Serialize, Deserialize)]
struct HeldState {
    terminal: OriginTerminal,
    lines: Lines,
    /// The numbers of the lines' notices.
    numbers: Vec<u64>,
    /// How many more such notices are only counted.
    #[serde(default)]
    counted: u64,
    /// The numbers of the missed notices among them.
    #[serde(default)]
    missed: VecDeque<u64>,
    rest: Option<RestState>,
}

/// The rest of a partial write.
#[derive(Serialize, Deserialize)]
struct RestState {
    #[serde(with = "bytes")]
    bytes: Vec<u8>,
    /// The lines that the bytes belong to; `None` from an older daemon, which did not keep them.
    #[serde(default)]
    lines: Option<Lines>,
    numbers: Vec<u64>,
    #[serde(default)]
    counted: u64,
    #[serde(default)]
    missed: VecDeque<u64>,
}

/// The missed lines of a channel that was removed or has another type now.
#[derive(Serialize, Deserialize)]
struct LeftState {
    missed: Lines,
    /// The numbers of the missed notices.
    missed_numbers: VecDeque<u64>,
}

impl Terminals {
    /// Passes the missed lines to the channel's successor, if there is one.
    pub(super) fn pass_on_missed(&self) {
        let successor = self.successor.borrow();
        let Some(successor) = successor.as_ref().filter(|_| self.missed.borrow().count() > 0) else { return };
        let missed = std::mem::replace(&mut *self.missed.borrow_mut(), Lines::new());
        self.outcomes.counts.missed.store(0, Ordering::Relaxed);
        let left = to_raw_value(&LeftState { missed, missed_numbers: self.missed_numbers.take() });
        if let Ok(left) = left {
            successor(left);
        }
    }

    /// Takes over the missed lines of another channel.
    pub(super) fn take_left(&self, left: &RawValue) {
        let LeftState { missed, missed_numbers } = match serde_json::from_str(left.get()) {
            Ok(left) => left,
            Err(error) => return tracing::error!(%error, "the lines for terminals are lost"),
        };
        let mut all = self.missed.borrow_mut();
        all.absorb(missed);
        self.outcomes.counts.missed.store(all.count(), Ordering::Relaxed);
        drop(all);
        self.keep_missed(missed_numbers);
        tracing::debug!(channel = %self.outcomes.channel.name, "missed notices of another channel are taken over");
    }

    /// Returns the state for an upgrade; `None` if there is none.
    pub(super) fn carried(&self) -> Option<Box<RawValue>> {
        // Rest periods are shorter than an upgrade, and a daemon that is shutting down is not upgraded.
        // A channel with a successor has no missed lines.
        let Self {
            held,
            missed,
            missed_numbers,
            keys,
            successor: _,
            resting: _,
            emptied: _,
            is_last: _,
            outcomes: _,
        } = self;
        let held = held.borrow();
        let held = held.iter().map(|(terminal, held)| {
            let Held { lines, reports, partial, again: _ } = held;
            let rest = partial.as_ref().map(|Partial { rest, written, lines, reports }| RestState {
                bytes: rest.get(*written..).unwrap_or_default().to_vec(),
                lines: Some(lines.clone()),
                numbers: reports.numbers(),
                counted: reports.counted(),
                missed: reports.missed().clone(),
            });
            let (numbers, counted, missed) = (reports.numbers(), reports.counted(), reports.missed().clone());
            HeldState { terminal: terminal.clone(), lines: lines.clone(), numbers, counted, missed, rest }
        });
        let (missed, keys) = (missed.borrow().clone(), keys.state());
        let missed_numbers = missed_numbers.borrow().clone();
        let state = TerminalsState { held: held.collect(), missed, missed_numbers, keys };
        let is_any = !state.held.is_empty() || state.missed.count() > 0 || !state.keys.is_empty();
        is_any.then(|| to_raw_value(&state).ok()).flatten()
    }

    /// Restores the state from before an upgrade.
    pub(super) fn restore(&self, state: &RawValue) {
        let TerminalsState { held, missed, missed_numbers, keys } = match serde_json::from_str(state.get()) {
            Ok(state) => state,
            Err(error) => return tracing::error!(%error, "the lines for terminals are lost"),
        };
        self.outcomes.counts.missed.store(missed.count(), Ordering::Relaxed);
        self.missed.replace(missed);
        self.missed_numbers.replace(missed_numbers);
        self.keys.restore(keys);
        for HeldState { terminal, lines, numbers, counted, missed, rest } in held {
            let again =
                |numbers, counted, missed| PendingReports::restore(&self.outcomes, numbers, counted, missed);
            let mut held = Held::new(lines, again(numbers, counted, missed));
            held.partial = rest.map(|RestState { bytes, lines, numbers, counted, missed }| {
                Partial::new(&bytes, lines.unwrap_or_else(Lines::new), again(numbers, counted, missed))
            });
            self.hold(&terminal, held, LinePosition::Top);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use bgd_shared::id::TaskId;

    use super::*;
    use crate::channels::ChannelKind;
    use crate::core::Delivery;
    use crate::notify::adapter::Adapter as _;
    use crate::notify::counts::Counts;
    use crate::notify::outcomes::Outcomes;
    use crate::notify::tty::line::Line;
    use crate::wire::mailbox::{self, Internal};

    /// Returns what waits for a terminal of which this line was written in part, and another one waits.
    fn partly_written(first: Lines, second: Lines) -> Box<RawValue> {
        let rest = RestState {
            bytes: b"the rest".to_vec(),
            lines: Some(first),
            numbers: vec![1],
            counted: 0,
            missed: VecDeque::new(),
        };
        let held = HeldState {
            // No process has this number.
            terminal: OriginTerminal { path: "/dev/pts/1".to_owned(), leader: i32::MAX },
            lines: second,
            numbers: vec![2],
            counted: 0,
            missed: VecDeque::new(),
            rest: Some(rest),
        };
        let (missed, missed_numbers, keys) = (Lines::new(), VecDeque::new(), Vec::new());
        to_raw_value(&TerminalsState { held: vec![held], missed, missed_numbers, keys }).unwrap()
    }

    /// Restores a state with two notices, calls `then`, and waits until nothing is held. Returns the missed lines and
    /// the reports.
    fn missed_after(
        state: &RawValue,
        then: impl FnOnce(&Terminals),
    ) -> (Vec<String>, Vec<(u64, Delivery)>, Arc<Counts>) {
        let counts = Arc::new(Counts::default());
        let (_calls, _facts, internals, mut mailbox) = mailbox::new();
        let outcomes = Outcomes::of(ChannelKind::Tty, &counts, internals);
        counts.set_limit(10);
        for count in [&counts.queued, &counts.held] {
            (0..2).for_each(|_| Counts::add(count));
        }
        let terminals = Terminals::new(outcomes);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        tokio::task::LocalSet::new().block_on(&runtime, async {
            terminals.restore(state);
            then(&terminals);
            tokio::time::timeout(Duration::from_mins(1), terminals.finish()).await.expect("it gives up");
        });
        let missed = terminals.missed.borrow().each.iter().map(Line::text).collect();
        let mut reported = Vec::new();
        while let Ok(internal) = mailbox.internals.try_recv() {
            if let Internal::Notice { number, delivery } = internal {
                reported.push((number, delivery));
            }
        }
        (missed, reported, counts)
    }

    #[test]
    fn partly_written_line_goes_to_next_terminal_if_its_own_is_closed() {
        let lines = |first| Lines::of_tests(first..first + 1);
        let (missed, reported, _) = missed_after(&partly_written(lines(1), lines(2)), |_| {});
        assert_eq!(missed, ["[line 1]", "[line 2]"]);
        assert_eq!(reported, [(1, Delivery::Missed), (2, Delivery::Missed)], "a durable daemon keeps both");
    }

    #[test]
    fn partly_written_question_of_ended_run_is_not_shown_again() {
        let task = TaskId::from_u128(1);
        let state = partly_written(Lines::question_of_tests(task), Lines::of_tests(2..3));
        let (missed, reported, counts) = missed_after(&state, |terminals| terminals.ended(task));
        assert_eq!(missed, ["[line 2]"]);
        assert_eq!(reported, [(1, Delivery::Over), (2, Delivery::Missed)]);
        let status = counts.status("c", "tty");
        assert_eq!((status.queued, status.sent, status.failed), (0, 1, 1));
        // Neither is it in an upgrade after that.
        let carried = std::cell::OnceCell::new();
        missed_after(&state, |terminals| {
            terminals.ended(task);
            let _ = carried.set(terminals.carried().expect("its other line"));
        });
        let (missed, ..) = missed_after(carried.get().unwrap(), |_| {});
        assert_eq!(missed, ["[line 2]"]);
    }
}
