//! What a frame is drawn from, besides the state of the live view, and what became of it. It draws nothing.

use std::collections::HashMap;

use bgd_shared::id::TaskId;
use bgd_shared::time::Timestamp;
use ratatui::layout::Rect;
use ratatui::style::{Color, Style};

use crate::render::wall::Clock;
use crate::top::pane::Pane;
use crate::top::task_key::TaskKey;

/// The previews that were read, of each host those of its tasks; `None`: it is not connected.
#[derive(Default)]
pub struct Panes<'a>(pub Vec<Option<&'a HashMap<TaskId, Pane>>>);

impl Panes<'_> {
    /// The preview of a task, if it was read.
    pub fn get(&self, key: TaskKey) -> Option<&Pane> {
        self.0.get(key.host.index())?.as_ref()?.get(&key.id)
    }
}

/// What a frame is drawn from, besides the state.
pub struct Scene<'a> {
    /// The previews that were read.
    pub panes: Panes<'a>,
    /// The current time, and the zone in which times are shown.
    pub clock: &'a Clock,
    /// Whether to use colours.
    pub colour: bool,
}

impl Scene<'_> {
    /// The current time.
    pub fn now(&self) -> Timestamp {
        self.clock.now
    }

    /// This colour, if colours are used.
    pub fn style(&self, colour: Color) -> Style {
        if self.colour { Style::new().fg(colour) } else { Style::new() }
    }
}

/// What became of a frame.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Frame {
    /// The tasks that are visible in the list.
    pub tasks: Vec<TaskKey>,
    /// The tasks that have a preview, with the size of each.
    pub previews: Vec<(TaskKey, Rect)>,
    /// Whether there are columns for what tasks use.
    pub shows_usage: bool,
    /// In how many milliseconds something visible changes by itself.
    pub changes_in: Option<u64>,
    /// Where the cursor is, if something is typed.
    pub cursor: Option<(u16, u16)>,
}

impl Frame {
    /// Notes that something visible changes in so many milliseconds.
    pub fn changes_within(&mut self, ms: u64) {
        self.changes_in = Some(self.changes_in.map_or(ms, |known| known.min(ms)));
    }
}
