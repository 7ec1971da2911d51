//! A single frame as text, for scripts and screenshots.

use std::collections::HashMap;
use std::fmt::Write as _;

use bgd_shared::id::TaskId;
use bgd_shared::limits::LIST_PAGE;
use bgd_shared::request::{ListParams, ListResult};
use bgd_shared::task::Task;
use ratatui::buffer::{Buffer, Cell};
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier};

use super::model::{Live, Model, Silence};
use super::task_key::HostNo;
use super::ui::{Preview, Ui};
use super::view::{Panes, Scene, draw, width as width_of};
use crate::failure::Failure;
use crate::render::columns::Measured;
use crate::render::wall::Clock;
use crate::state::Seen;

/// The size of the frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Size {
    pub rows: u16,
    pub cols: u16,
}

/// What the list does not have of running tasks.
#[derive(Debug, Default)]
pub struct Measurements {
    pub usages: Measured,
    pub percents: HashMap<TaskId, u8>,
}

/// A frame under construction.
pub struct Still(Ui);

impl Still {
    /// Starts a frame without tasks, of one host if there are no names. `last_seen`: the tasks that the user has looked at
    /// before.
    pub fn new(names: &[String], last_seen: Option<Seen>) -> Self {
        let mut model = Model::new(names.len().max(1), last_seen);
        model.name_hosts(names);
        let mut ui = Ui::new(model);
        (ui.preview, ui.is_still) = (Preview::Off, true);
        Self(ui)
    }

    /// Adds a page of a host's list.
    pub fn add(&mut self, host: HostNo, page: &ListResult, clock: &Clock) {
        self.0.model.make_room(host, usize::try_from(page.summary.total()).unwrap_or(0));
        for task in &page.tasks {
            self.0.model.put_listed(host, task, clock);
        }
    }

    /// Adds the measurements of a host's running tasks, which are in the list. There is only one measurement, so their
    /// CPU use is that since they started.
    pub fn measured(&mut self, host: HostNo, running: &[Task], measurements: &Measurements, clock: &Clock) {
        for task in running {
            let usage = measurements.usages.get(&task.id);
            let cpu_ms = usage.map(|usage| usage.user_ms.saturating_add(usage.system_ms));
            let ran_ms = task.run_time_ms(clock.now);
            let live = Live {
                percent: measurements.percents.get(&task.id).copied(),
                cpu: cpu_ms.zip(ran_ms).and_then(|(cpu, ran)| cpu.saturating_mul(100).checked_div(ran)),
                memory_bytes: usage.map(|usage| usage.memory_bytes),
                ..Live::default()
            };
            self.0.model.set_live(host.task(task.id), live);
        }
    }

    /// Records what a host did in place of a list, and why.
    pub fn silent(&mut self, host: HostNo, outcome: &str, why: &str) {
        let why = format!("{outcome}: {why}");
        self.0.model.set_silence(host, Some(Silence { since: None, why }));
    }

    pub fn draw(mut self, filter: &str, size: Size, colour: bool, clock: &Clock) -> String {
        for host in self.0.model.hosts() {
            self.0.model.end_listing(host);
        }
        self.0.model.set_filter(filter);
        let mut buffer = Buffer::empty(Rect::new(0, 0, size.cols, size.rows));
        draw(&mut self.0, &Scene { panes: Panes::default(), clock, colour }, &mut buffer);
        text(&buffer, colour)
    }
}

/// Lists all tasks, in as many calls as necessary.
///
/// # Errors
/// A call fails.
pub fn each_page(
    mut call: impl FnMut(&ListParams) -> Result<ListResult, Failure>,
    mut take: impl FnMut(ListResult) -> bool,
) -> Result<(), Failure> {
    let mut params = ListParams { limit: Some(LIST_PAGE), ..ListParams::default() };
    loop {
        let page = call(&params)?;
        params.after = page.next;
        if !take(page) || params.after.is_none() {
            return Ok(());
        }
    }
}

/// Returns the cells as lines, without trailing blanks and without empty lines at the end.
fn text(buffer: &Buffer, colour: bool) -> String {
    let width = usize::from(buffer.area.width).max(1);
    let mut out = String::new();
    let mut kept = 0;
    for row in buffer.content().chunks(width) {
        let blank = |cell: &Cell| cell.symbol() == " ";
        let end = row.iter().rposition(|cell| !blank(cell)).map_or(0, |last| last + 1);
        let mut style = String::new();
        let mut covered = 0;
        for cell in &row[..end] {
            if covered > 0 {
                covered -= 1;
                continue;
            }
            covered = width_of(cell.symbol()).saturating_sub(1);
            let wanted = if colour { codes(cell) } else { String::new() };
            if wanted != style {
                // Writing to a string can't fail.
                let _ = write!(out, "\x1b[0{wanted}m");
                style = wanted;
            }
            out.push_str(cell.symbol());
        }
        if !style.is_empty() {
            out.push_str("\x1b[0m");
        }
        out.push('\n');
        if end > 0 {
            kept = out.len();
        }
    }
    out.truncate(kept);
    out
}

/// Returns the codes of a cell's style, each preceded by a semicolon.
fn codes(cell: &Cell) -> String {
    let mut codes = String::new();
    for (modifier, code) in [
        (Modifier::BOLD, ";1"),
        (Modifier::DIM, ";2"),
        (Modifier::UNDERLINED, ";4"),
        (Modifier::REVERSED, ";7"),
    ] {
        if cell.modifier.contains(modifier) {
            codes.push_str(code);
        }
    }
    codes.push_str(match cell.fg {
        Color::Red => ";31",
        Color::Green => ";32",
        Color::Yellow => ";33",
        Color::Blue => ";34",
        Color::DarkGray => ";90",
        _ => "",
    });
    codes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::samples;
    use bgd_shared::task::{Status, Summary, Task};

    fn still(task: Task, last_seen: Option<Seen>, colour: bool) -> String {
        let summary = Summary { running: 1, ..Summary::default() };
        let page = ListResult { tasks: vec![task], next: None, summary, cleared: None };
        let (clock, mut still) = (Clock::of_tests(), Still::new(&[], last_seen));
        let take = |page| {
            still.add(HostNo::default(), &page, &clock);
            true
        };
        each_page(|_| Ok(page.clone()), take).unwrap();
        still.draw("", Size { rows: 24, cols: 60 }, colour, &clock)
    }

    fn frame(colour: bool) -> String {
        still(Task { status: Status::Running, ..samples::task() }, None, colour)
    }

    #[test]
    fn r163_frame_is_plain_text() {
        let lines = ["nothing needs you | 1 running", " ID       STATE            AGE     DONE DESCRIPTION"];
        let rows = ["- running 1", " 3f2a9c1e running          1m 40s       make -j8"];
        assert_eq!(frame(false), format!("{}\n", [lines, rows].concat().join("\n")));
    }

    #[test]
    fn r163_seen_failure_counts_as_done() {
        let ended = Clock::of_tests().now;
        let task = Task { status: Status::Failed, completed_at: Some(ended), ..samples::task() };
        let frame = |last_seen| still(task.clone(), last_seen, false);
        assert!(frame(None).starts_with("1 failure needs you\n"));
        let last_seen = Seen { at: ended, unseen: std::collections::BTreeSet::new() };
        assert!(frame(Some(last_seen)).starts_with("nothing needs you | 1 done\n"));
    }

    #[test]
    fn r163_coloured_lines_end_in_the_default_colour() {
        let coloured = frame(true);
        assert!(coloured.contains("\x1b[0;34mrunning"), "{coloured:?}");
        let last = |line: &str| line.rfind('\x1b').is_none_or(|at| line[at..].starts_with("\x1b[0m"));
        assert!(coloured.lines().all(last), "{coloured:?}");
    }
}
