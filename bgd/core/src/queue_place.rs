//! A task's place in the queue, and why it is blocked there.

use serde::{Deserialize, Serialize};

/// A task's place in the queue when its snapshot was taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "RecordedPlace", into = "RecordedPlace")]
pub enum QueuePlace {
    /// It does not wait in the queue and has no slots.
    #[default]
    Out,
    /// It has slots. This is the lowest of them.
    Slot(u32),
    /// It waits for nothing, and is the next to start.
    Next,
    Blocked(Blocked),
}

/// Why a task that waits in the queue does not start. With several reasons, the first one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocked {
    /// It waits for other tasks of its batch (`--jobs`).
    Batch,
    /// Its group is paused.
    Paused,
    /// Its start could not be persisted ([`crate::Input::HoldStarts`]).
    Journal,
    /// It waits for free slots.
    Slots,
}

impl QueuePlace {
    /// Returns the lowest of its slots, if it has any.
    pub const fn slot(self) -> Option<u32> {
        match self {
            Self::Slot(slot) => Some(slot),
            Self::Out | Self::Next | Self::Blocked(_) => None,
        }
    }
}

/// The recorded form, which other releases read. It can't tell a task that waits for slots from one that is not in the
/// queue; only snapshots have places, and whoever shows one takes a new snapshot.
#[derive(Default, Serialize, Deserialize)]
#[allow(clippy::struct_excessive_bools, reason = "the form of earlier releases")]
struct RecordedPlace {
    slot: Option<u32>,
    is_paused: bool,
    is_parked: bool,
    #[serde(default)]
    is_stalled: bool,
    #[serde(default)]
    is_next: bool,
}

impl From<QueuePlace> for RecordedPlace {
    fn from(place: QueuePlace) -> Self {
        let recorded = Self::default();
        match place {
            QueuePlace::Out | QueuePlace::Blocked(Blocked::Slots) => recorded,
            QueuePlace::Slot(slot) => Self { slot: Some(slot), ..recorded },
            QueuePlace::Next => Self { is_next: true, ..recorded },
            QueuePlace::Blocked(Blocked::Batch) => Self { is_parked: true, ..recorded },
            QueuePlace::Blocked(Blocked::Paused) => Self { is_paused: true, ..recorded },
            QueuePlace::Blocked(Blocked::Journal) => Self { is_stalled: true, ..recorded },
        }
    }
}

impl From<RecordedPlace> for QueuePlace {
    fn from(recorded: RecordedPlace) -> Self {
        let RecordedPlace { slot, is_paused, is_parked, is_stalled, is_next } = recorded;
        if let Some(slot) = slot {
            Self::Slot(slot)
        } else if is_next {
            Self::Next
        } else if is_parked {
            Self::Blocked(Blocked::Batch)
        } else if is_paused {
            Self::Blocked(Blocked::Paused)
        } else if is_stalled {
            Self::Blocked(Blocked::Journal)
        } else {
            Self::Out
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r123_place_keeps_the_form_of_earlier_releases() {
        let json = |place: QueuePlace| serde_json::to_string(&place).unwrap();
        let plain = r#"{"slot":null,"is_paused":false,"is_parked":false,"is_stalled":false,"is_next":false}"#;
        assert_eq!(json(QueuePlace::Out), plain);
        for (place, recorded) in [
            (QueuePlace::Slot(7), plain.replace("null", "7")),
            (QueuePlace::Next, plain.replace("is_next\":false", "is_next\":true")),
            (QueuePlace::Blocked(Blocked::Batch), plain.replace("is_parked\":false", "is_parked\":true")),
            (QueuePlace::Blocked(Blocked::Paused), plain.replace("is_paused\":false", "is_paused\":true")),
            (QueuePlace::Blocked(Blocked::Journal), plain.replace("is_stalled\":false", "is_stalled\":true")),
        ] {
            assert_eq!(json(place), recorded);
            assert_eq!(serde_json::from_str::<QueuePlace>(&recorded).unwrap(), place);
        }
        let oldest = r#"{"slot":null,"is_paused":true,"is_parked":true}"#;
        let place = serde_json::from_str::<QueuePlace>(oldest).unwrap();
        assert_eq!(place, QueuePlace::Blocked(Blocked::Batch), "the first reason");
    }
}
