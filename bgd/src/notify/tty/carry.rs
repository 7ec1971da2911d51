//! The state of terminals during an upgrade in place: the lines held for each, the rest of a partly written line, the
//! lines of closed terminals, and which prompts are new.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use bgd_shared::request::OriginTerminal;
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};

use super::held::{Held, Partial, Rest};
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

impl Terminals {
    /// Returns the state for an upgrade; `None` if there is none.
    pub(super) fn carried(&self) -> Option<Box<RawValue>> {
        // Rest periods are shorter than an upgrade, and a daemon that is shutting down is not upgraded.
        let Self { held, missed, missed_numbers, keys, resting: _, emptied: _, is_last: _, outcomes: _ } =
            self;
        let held = held.borrow();
        let held = held.iter().map(|(terminal, held)| {
            let Held { lines, reports, rest, again: _ } = held;
            let rest = rest.borrow();
            let rest =
                rest.as_ref().map(|Rest { bytes, written, lines, numbers, counted, missed }| RestState {
                    bytes: bytes.get(*written..).unwrap_or_default().to_vec(),
                    lines: Some(lines.clone()),
                    numbers: numbers.clone(),
                    counted: *counted,
                    missed: missed.clone(),
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
            let rest = rest.map(|RestState { bytes, lines, numbers, counted, missed }| Partial {
                rest: bytes,
                lines: lines.unwrap_or_else(Lines::new),
                reports: again(numbers, counted, missed),
            });
            self.hold(&terminal, Held::new(lines, again(numbers, counted, missed)), LinePosition::Top, rest);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::channels::ChannelKind;
    use crate::core::Delivery;
    use crate::notify::adapter::Adapter as _;
    use crate::notify::counts::Counts;
    use crate::notify::outcomes::Outcomes;
    use crate::notify::tty::line::Line;
    use crate::wire::mailbox::{self, Internal};

    #[test]
    fn partly_written_line_goes_to_next_terminal_if_its_own_is_closed() {
        let counts = Arc::new(Counts::default());
        let (_calls, _facts, internals, mut mailbox) = mailbox::new();
        let outcomes = Outcomes::of(ChannelKind::Tty, &counts, internals);
        counts.set_limit(10);
        for count in [&counts.queued, &counts.held] {
            (0..2).for_each(|_| Counts::add(count));
        }
        let lines = |first| Lines::of_tests(first..first + 1);
        let rest = RestState {
            bytes: b"the rest".to_vec(),
            lines: Some(lines(1)),
            numbers: vec![1],
            counted: 0,
            missed: VecDeque::new(),
        };
        let held = HeldState {
            // No process has this number.
            terminal: OriginTerminal { path: "/dev/pts/1".to_owned(), leader: i32::MAX },
            lines: lines(2),
            numbers: vec![2],
            counted: 0,
            missed: VecDeque::new(),
            rest: Some(rest),
        };
        let (missed, missed_numbers, keys) = (Lines::new(), VecDeque::new(), Vec::new());
        let state = to_raw_value(&TerminalsState { held: vec![held], missed, missed_numbers, keys }).unwrap();
        let terminals = Terminals::new(outcomes);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        tokio::task::LocalSet::new().block_on(&runtime, async {
            terminals.restore(&state);
            tokio::time::timeout(Duration::from_mins(1), terminals.finish()).await.expect("it gives up");
        });
        let missed = terminals.missed.borrow();
        assert_eq!(missed.each.iter().map(Line::text).collect::<Vec<_>>(), ["[line 1]", "[line 2]"]);
        let mut reported = Vec::new();
        while let Ok(internal) = mailbox.internals.try_recv() {
            if let Internal::Notice { number, delivery } = internal {
                reported.push((number, delivery));
            }
        }
        assert_eq!(reported, [(1, Delivery::Missed), (2, Delivery::Missed)], "a durable daemon keeps both");
    }
}
