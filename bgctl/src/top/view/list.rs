//! The list: headings and tasks.

use std::borrow::Cow;
use std::fmt::Write as _;

use bgd_shared::show::{self, elapsed, elapsed_changes_in};
use bgd_shared::task::Status;
use bgd_shared::time::Timestamp;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};

use super::scene::{Frame, Scene};
use super::text::{cut, line, put, width as text_width};
use crate::render::{bytes, clean};
use crate::top::meter::INTERVAL_MS;
use crate::top::model::filter::unknown_status;
use crate::top::model::{Head, Live, Model, Silence, Spot};
use crate::top::row::{Row, Section};
use crate::top::task_key::TaskKey;
use crate::top::ui::Ui;

/// The content of a column.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Of {
    Host,
    Id,
    State,
    Age,
    Quiet,
    Cpu,
    Memory,
    Tokens,
    Context,
    Cost,
    Done,
}

impl Of {
    /// Reports whether only agents have this.
    const fn is_of_agents(self) -> bool {
        matches!(self, Self::Tokens | Self::Context | Self::Cost)
    }
}

/// The data for a row of the list.
struct Cell<'a> {
    row: &'a Row,
    live: Option<&'a Live>,
    host: &'a str,
    now: Timestamp,
}

/// A column of the list.
struct Column {
    of: Of,
    header: &'static str,
    width: u16,
    /// Minimum width of the list for this column to be shown.
    from: u16,
    /// Its rank for being dropped for a long state: the lowest is dropped first, as the least missed. `None` for never.
    drop_rank: Option<u8>,
    text: fn(&Cell<'_>) -> String,
}

/// The columns before the description, one for each [`Of`].
static COLUMNS: [Column; 11] = [
    Column {
        of: Of::Host,
        header: "HOST",
        width: 4,
        from: HOST,
        drop_rank: Some(8),
        text: |cell| cell.host.to_owned(),
    },
    Column {
        of: Of::Id,
        header: "ID",
        width: 8,
        from: 40,
        drop_rank: None,
        text: |cell| cell.row.id.short(),
    },
    Column {
        of: Of::State,
        header: "STATE",
        width: 16,
        from: STATE,
        drop_rank: None,
        text: |cell| cell.row.state.to_string(),
    },
    Column {
        of: Of::Age,
        header: "AGE",
        width: 7,
        from: 48,
        drop_rank: Some(7),
        text: |cell| age(cell.row, cell.now).0,
    },
    Column {
        of: Of::Quiet,
        header: "QUIET",
        width: 7,
        from: 64,
        drop_rank: Some(0),
        text: |cell| quiet(cell.row, cell.now),
    },
    Column {
        of: Of::Cpu,
        header: "CPU",
        width: 7,
        from: USAGE,
        drop_rank: Some(3),
        text: |cell| cpu(cell.row, cell.live),
    },
    Column {
        of: Of::Memory,
        header: "MEMORY",
        width: 9,
        from: USAGE,
        drop_rank: Some(2),
        text: |cell| memory(cell.row, cell.live),
    },
    Column {
        of: Of::Tokens,
        header: "TOKENS",
        width: 6,
        from: CONSUMED,
        drop_rank: Some(6),
        text: |cell| tokens(cell.row),
    },
    Column {
        of: Of::Context,
        header: "CONTEXT",
        width: 7,
        from: CONSUMED,
        drop_rank: Some(5),
        text: |cell| context(cell.row),
    },
    Column {
        of: Of::Cost,
        header: "COST",
        width: 11,
        from: CONSUMED,
        drop_rank: Some(4),
        text: |cell| cost(cell.row),
    },
    Column {
        of: Of::Done,
        header: "DONE",
        width: 4,
        from: 56,
        drop_rank: Some(1),
        text: |cell| done(cell.live),
    },
];

/// Maximum width of the host column.
const HOST_MOST: u16 = 16;

/// Minimum width of the list for a host column, if there are several hosts.
const HOST: u16 = 40;

/// Minimum width of the list for showing resource usage.
const USAGE: u16 = 84;

/// Minimum width of the list for a state column.
const STATE: u16 = 30;

/// Maximum width of the state column: enough for what a pending task waits for, such as the ids of two tasks.
const STATE_MOST: u16 = 48;

/// The width that a long state leaves for the description.
const DESCRIPTION: u16 = 12;

/// Minimum width of the list for showing what agents have consumed, if there are any.
const CONSUMED: u16 = 110;

/// Minimum width of the list for showing the last line of the output.
const LAST_LINE: u16 = 76;

/// Minimum width of a description with the last line of the output. With less, neither could be read: a list beside a
/// preview has as little.
const BOTH: u16 = 30;

/// Minimum width of the list for a word beside the description.
const NAMED: u16 = 16;

/// Minimum height of the list for a header.
const HEADED: u16 = 6;

/// The columns and widths that the visible tasks need.
#[derive(Clone, Copy, Debug, Default)]
struct Needs {
    /// The width of the widest state.
    state: usize,
    /// The width of the longest host name, including hosts without visible tasks; `None` if there is only one host.
    host: Option<usize>,
    /// Whether there are agents that report their consumption.
    agents: bool,
}

impl Needs {
    fn of(model: &Model, spots: &[Spot]) -> Self {
        let rows = || spots.iter().filter_map(|spot| model.row(spot.task()?));
        let hosts = model.hosts().map(|host| text_width(model.host_name(host)));
        Self {
            state: rows().map(|row| text_width(&row.state)).max().unwrap_or(0),
            host: hosts.max().filter(|_| model.is_several()),
            agents: rows().any(|row| row.consumed.is_some()),
        }
    }

    /// Returns the width of the host column in a list of this width, if there is one.
    fn host_width(&self, width: u16) -> Option<u16> {
        let longest = self.host.filter(|_| width >= HOST)?;
        Some(u16::try_from(longest).unwrap_or(HOST_MOST).clamp(4, HOST_MOST.min(width / 5)))
    }
}

/// The columns of a frame.
struct Layout {
    columns: Vec<(&'static Column, u16)>,
    /// The width of the list without the host column.
    room: u16,
}

impl Layout {
    /// Lays out the columns in a list of this width. The state column is as wide as the widest visible state needs.
    fn of(width: u16, needs: &Needs) -> Self {
        let host = needs.host_width(width);
        let room = width - host.map_or(0, |host| host + 1);
        let columns = COLUMNS.iter().filter_map(|column| match column.of {
            Of::Host => host.map(|host| (column, host)),
            of => (room >= column.from && (needs.agents || !of.is_of_agents()))
                .then_some((column, column.width)),
        });
        let mut columns: Vec<(&'static Column, u16)> = columns.collect();
        let taken = |columns: &[(&Column, u16)]| 1 + columns.iter().map(|(_, width)| width + 1).sum::<u16>();
        let Some(at) = columns.iter().position(|(column, _)| column.of == Of::State) else {
            return Self { columns, room };
        };
        let usual = columns[at].1;
        columns[at].1 = u16::try_from(needs.state).unwrap_or(STATE_MOST).clamp(usual, STATE_MOST);
        let is_wide = columns[at].1 > usual;
        while is_wide && taken(&columns) + DESCRIPTION > width {
            let ranks =
                columns.iter().enumerate().filter_map(|(at, (column, _))| Some((column.drop_rank?, at)));
            let Some((_, least)) = ranks.min() else { break };
            columns.remove(least);
        }
        let at = columns.iter().position(|(column, _)| column.of == Of::State).unwrap_or(at);
        let too_much = (taken(&columns) + DESCRIPTION).saturating_sub(width);
        columns[at].1 = columns[at].1.saturating_sub(too_much).max(usual);
        Self { columns, room }
    }

    fn has(&self, of: Of) -> bool {
        self.columns.iter().any(|(column, _)| column.of == of)
    }
}

/// Returns the age of a task, and the number of milliseconds until it changes. Seconds are shown only for running
/// tasks, so that a list in which nothing runs is redrawn at most once a minute.
fn age(row: &Row, now: Timestamp) -> (String, u64) {
    let ms = now.millis_since(row.created_at);
    match ms {
        ..=59_999 if !is_running(row) => ("<1m".to_owned(), 60_000 - ms),
        ..=3_599_999 if !is_running(row) => (format!("{}m", ms / 60_000), 60_000 - ms % 60_000),
        ms => (elapsed(ms), elapsed_changes_in(ms)),
    }
}

fn is_running(row: &Row) -> bool {
    matches!(row.status, Status::Running | Status::Resumed)
}

fn quiet(row: &Row, now: Timestamp) -> String {
    row.active_at().map_or_else(String::new, |at| elapsed(now.millis_since(at)))
}

/// Formats the current CPU use, or the total CPU time of an ended run.
fn cpu(row: &Row, live: Option<&Live>) -> String {
    if let Some(used) = row.used {
        return elapsed(used.cpu_ms);
    }
    live.and_then(|live| live.cpu).map_or_else(String::new, |percent| format!("{percent}%"))
}

/// Formats the current memory use, or the peak memory use of an ended run.
fn memory(row: &Row, live: Option<&Live>) -> String {
    let now = || live.and_then(|live| live.memory_bytes);
    let number = row.used.map_or_else(now, |used| used.peak_memory_bytes);
    number.map_or_else(String::new, bytes)
}

fn tokens(row: &Row) -> String {
    row.consumed.as_ref().and_then(|usage| usage.tokens()).map_or_else(String::new, show::tokens)
}

fn context(row: &Row) -> String {
    let percent = row.consumed.as_ref().and_then(|usage| usage.context_percent());
    percent.map_or_else(String::new, |percent| format!("{percent}%"))
}

fn cost(row: &Row) -> String {
    row.consumed
        .as_ref()
        .and_then(|usage| usage.cost.as_ref())
        .map_or_else(String::new, |cost| clean(&show::cost(cost)))
}

fn done(live: Option<&Live>) -> String {
    live.and_then(|live| live.percent).map_or_else(String::new, |percent| format!("{percent}%"))
}

/// Returns the part of the list's area below the header.
fn rows_of(area: Rect) -> Rect {
    let headed = u16::from(area.height >= HEADED && area.width >= STATE);
    Rect::new(area.x, area.y + headed, area.width, area.height.saturating_sub(headed))
}

/// Returns the width of a list with all columns for the tasks that are visible in this area.
pub fn full_width(ui: &mut Ui, area: Rect) -> u16 {
    let spots = ui.model.window(usize::from(rows_of(area).height));
    let needs = Needs::of(&ui.model, &spots);
    let width = if needs.agents { CONSUMED } else { USAGE };
    width + needs.host_width(width).map_or(0, |host| host + 1)
}

/// Draws the visible part of the list.
pub fn draw(ui: &mut Ui, scene: &Scene<'_>, area: Rect, buffer: &mut Buffer, frame: &mut Frame) {
    let rows = rows_of(area);
    let spots = ui.model.window(usize::from(rows.height));
    let layout = Layout::of(area.width, &Needs::of(&ui.model, &spots));
    if rows.height < area.height {
        header(&layout, line(area, 0), buffer);
    }
    let has_room = usize::from(rows.height) > spots.len();
    if ui.model.shown() == 0 && has_room {
        let text: Cow<'_, str> = if !ui.model.is_listed() {
            "listing the tasks".into()
        } else if ui.model.filter().is_empty() && ui.search.is_none() {
            "no tasks; `:submit -- COMMAND` starts one".into()
        } else {
            unknown_status(ui.model.filter()).map_or("no task matches; Esc shows all".into(), Cow::Owned)
        };
        let below = line(rows, u16::try_from(spots.len()).unwrap_or(u16::MAX));
        put(buffer, below, 0, &text, Style::new().add_modifier(Modifier::DIM));
    }
    for (number, spot) in spots.iter().enumerate() {
        let area = line(rows, u16::try_from(number).unwrap_or(u16::MAX));
        let is_selected = ui.model.selected() == Some(spot) && !ui.is_still;
        match spot {
            Spot::Head(head) => heading(&ui.model, head, scene, area, buffer),
            Spot::Task(place) => {
                if let Some(row) = ui.model.row(place.task) {
                    task(&ui.model, (row, place.section), &layout, scene, area, buffer);
                    if ui.model.is_several() && ui.model.silence(row.host).is_some() {
                        // The state may be outdated.
                        buffer.set_style(area, Style::new().add_modifier(Modifier::DIM));
                    }
                    frame.tasks.push(place.task);
                    changes(row, &layout, scene.now(), frame);
                }
            }
        }
        if is_selected {
            buffer.set_style(area, Style::new().add_modifier(Modifier::REVERSED));
        }
    }
    ui.drawn = (rows.y, spots);
}

/// Records when something visible of a task changes by itself.
fn changes(row: &Row, layout: &Layout, now: Timestamp, frame: &mut Frame) {
    if layout.has(Of::Age) {
        frame.changes_within(age(row, now).1);
    }
    if let Some(at) = row.active_at().filter(|_| layout.has(Of::Quiet)) {
        let ms = now.millis_since(at);
        frame.changes_within(elapsed_changes_in(ms));
    }
    if layout.has(Of::Cpu) && is_running(row) {
        frame.shows_usage = true;
        frame.changes_within(INTERVAL_MS);
    }
}

fn header(layout: &Layout, area: Rect, buffer: &mut Buffer) {
    let style = Style::new().add_modifier(Modifier::DIM);
    let mut at = 1;
    for (column, width) in &layout.columns {
        put(buffer, area, at, column.header, style);
        at += width + 1;
    }
    put(buffer, area, at, "DESCRIPTION", style);
}

/// Returns the name of a heading.
fn name(model: &Model, head: &Head) -> String {
    match head {
        Head::Section(section) => section.name().to_owned(),
        Head::Host(host) => model.host_name(*host).to_owned(),
        Head::Named(name) => name.to_string(),
        Head::Task(key) => match model.row(*key) {
            Some(row) => format!("{} {}", key.short(), row.description),
            None => key.short(),
        },
        Head::Rest => "others".to_owned(),
    }
}

/// Describes why a host does not answer.
fn silence(silence: &Silence, scene: &Scene<'_>) -> String {
    match silence.since {
        Some(since) => format!("no answer since {}: {}", scene.clock.near(since), silence.why),
        None => silence.why.clone(),
    }
}

fn heading(model: &Model, head: &Head, scene: &Scene<'_>, area: Rect, buffer: &mut Buffer) {
    let counts = model.counts_below(head);
    let mut text = String::from(if model.is_folded(head) { "+ " } else { "- " });
    let name = name(model, head);
    match head {
        Head::Section(section) => {
            // Writing to a string can't fail.
            let _ = write!(text, "{name} {}", counts[*section as usize]);
        }
        Head::Host(_) | Head::Named(_) | Head::Task(_) | Head::Rest => {
            let words = Section::ALL.into_iter().filter(|section| counts[*section as usize] > 0);
            let words: Vec<String> =
                words.map(|section| format!("{} {}", counts[section as usize], section.name())).collect();
            let mut words = words.join(", ");
            if let Head::Host(host) = head {
                let silence = model.silence(*host).map(|known| silence(known, scene));
                let parts = [Some(words).filter(|words| !words.is_empty()), silence];
                words = parts.into_iter().flatten().collect::<Vec<_>>().join("; ");
                if words.is_empty() {
                    words.push_str("no tasks");
                }
            }
            // A reason means nothing without the host's name.
            let least = if matches!(head, Head::Host(_)) { 32 } else { 8 };
            let room = usize::from(area.width).saturating_sub(words.len() + 4).max(least);
            let _ = write!(text, "{}: {words}", cut(&name, room));
        }
    }
    let is_silent = matches!(head, Head::Host(host) if model.silence(*host).is_some());
    let style = if is_silent { scene.style(Color::Red) } else { Style::new() };
    put(buffer, area, 0, &text, style.add_modifier(Modifier::BOLD));
}

fn colour(status: Status, section: Section) -> Color {
    match (section, status) {
        (Section::Asks, _) | (_, Status::Cancelled) => Color::Yellow,
        (_, Status::Running | Status::Resumed) => Color::Blue,
        (_, Status::Completed) => Color::Green,
        (_, Status::Failed) => Color::Red,
        (_, Status::Pending) => Color::DarkGray,
    }
}

fn mark(model: &Model, key: TaskKey) -> &'static str {
    match (model.is_marked(key), model.pins().contains(&key)) {
        (true, _) => "*",
        (false, true) => ">",
        (false, false) => " ",
    }
}

fn task(
    model: &Model,
    (row, section): (&Row, Section),
    layout: &Layout,
    scene: &Scene<'_>,
    area: Rect,
    buffer: &mut Buffer,
) {
    let live = model.live(row.key());
    let style = scene.style(colour(row.status, section));
    put(buffer, area, 0, mark(model, row.key()), Style::new().add_modifier(Modifier::BOLD));
    let cell = Cell { row, live, host: model.host_name(row.host), now: scene.now() };
    let mut at = 1;
    for (column, width) in &layout.columns {
        let text = cut(&(column.text)(&cell), usize::from(*width));
        let style = if column.of == Of::State { style } else { Style::new() };
        put(buffer, area, at, &text, style);
        at += width + 1;
    }
    let last = live.map(|live| live.line.as_str()).filter(|line| !line.is_empty());
    let left = area.width.saturating_sub(at);
    let Some(last) = last.filter(|_| layout.room >= LAST_LINE && left >= BOTH) else {
        // If the state has no column, only the colour would show it.
        let is_needed = (NAMED..STATE).contains(&layout.room);
        let state = if is_needed { format!("{} ", row.status) } else { String::new() };
        at = put(buffer, area, at, &state, style);
        put(buffer, area, at, &row.description, Style::new());
        return;
    };
    let half = left / 2;
    put(buffer, Rect { width: at + half.saturating_sub(1), ..area }, at, &row.description, Style::new());
    put(buffer, area, at + half, last, Style::new().add_modifier(Modifier::DIM));
}
