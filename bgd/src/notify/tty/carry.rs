//! The state of terminals during an upgrade in place: the lines held for each, the rest of a partly written line, the
//! lines of closed terminals, and which prompts are new.

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use bgd_shared::request::OriginTerminal;
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};

use super::keys::KeysState;
use super::{Held, LinePosition, Lines, PendingReports, Rest, Terminals};
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
            let rest = rest.as_ref().map(|Rest { bytes, written, numbers, counted, missed }| RestState {
                bytes: bytes.get(*written..).unwrap_or_default().to_vec(),
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
            let rest = rest.map(|rest| (rest.bytes, again(rest.numbers, rest.counted, rest.missed)));
            self.hold(&terminal, Held::new(lines, again(numbers, counted, missed)), LinePosition::Top, rest);
        }
    }
}
