//! The input for drawing a frame, besides the state of the live view, and the outcome. Draws nothing itself.

use std::collections::HashMap;

use bgd_shared::id::TaskId;
use bgd_shared::time::Timestamp;
use ratatui::layout::Rect;
use ratatui::style::{Color, Style};

use crate::render::wall::Clock;
use crate::top::pane::Pane;
use crate::top::task_key::TaskKey;

/// The previews read so far, by host; `None`: the host is not connected.
#[derive(Default)]
pub struct Panes<'a>(pub Vec<Option<&'a HashMap<TaskId, Pane>>>);

impl Panes<'_> {
    /// Returns the preview of a task, if it was read.
    pub fn get(&self, key: TaskKey) -> Option<&Pane> {
        self.0.get(key.host.index())?.as_ref()?.get(&key.id)
    }
}

/// The input for a frame, besides the state.
pub struct Scene<'a> {
    pub panes: Panes<'a>,
    /// The current time, and the zone in which times are shown.
    pub clock: &'a Clock,
    pub colour: bool,
}

impl Scene<'_> {
    pub fn now(&self) -> Timestamp {
        self.clock.now
    }

    /// Returns a style with this colour, if colours are used.
    pub fn style(&self, colour: Color) -> Style {
        if self.colour { Style::new().fg(colour) } else { Style::new() }
    }
}

/// The outcome of drawing a frame.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Frame {
    /// The tasks that are visible in the list.
    pub tasks: Vec<TaskKey>,
    /// The tasks that have a preview, with the areas of the previews.
    pub previews: Vec<(TaskKey, Rect)>,
    /// Whether there are columns for the tasks' resource usage.
    pub shows_usage: bool,
    /// The number of milliseconds until something visible changes by itself.
    pub changes_in: Option<u64>,
    /// The position of the cursor while a line is being typed.
    pub cursor: Option<(u16, u16)>,
}

impl Frame {
    /// Records that something visible changes in this many milliseconds.
    pub fn changes_within(&mut self, ms: u64) {
        self.changes_in = Some(self.changes_in.map_or(ms, |known| known.min(ms)));
    }
}
