//! The list: headings and tasks.

use std::fmt::Write as _;

use bgd_shared::task::Status;
use bgd_shared::time::Timestamp;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};

use super::text::{cut, line, put};
use super::{Frame, Scene};
use crate::duration::show_ms;
use crate::render::bytes;
use crate::render::table::between;
use crate::top::meter::INTERVAL_MS;
use crate::top::model::{Head, Live, Model, Spot};
use crate::top::row::{Row, Section};
use crate::top::task_key::TaskKey;
use crate::top::ui::Ui;

/// A column: its header, its width, the width of the list from which it is there, and its text.
struct Column {
    header: &'static str,
    width: u16,
    from: u16,
    text: fn(&Row, Option<&Live>, Timestamp) -> String,
}

/// The columns before the description. A new one is an entry here.
const COLUMNS: [Column; 7] = [
    Column { header: "ID", width: 8, from: 40, text: |row, _, _| row.id.short() },
    Column { header: "STATE", width: 16, from: 30, text: |row, _, _| row.state.to_string() },
    Column { header: "AGE", width: 7, from: 48, text: |row, _, now| show_ms(between(row.created_at, now)) },
    Column { header: "QUIET", width: 7, from: 64, text: |row, _, now| quiet(row, now) },
    Column { header: "CPU", width: 5, from: USAGE, text: |_, live, _| cpu(live) },
    Column { header: "MEMORY", width: 9, from: USAGE, text: |_, live, _| memory(live) },
    Column { header: "DONE", width: 4, from: 56, text: |_, live, _| done(live) },
];

/// The width of the list from which it shows what tasks use.
const USAGE: u16 = 84;

/// The width of the list from which the last line of the output is there.
const LAST_LINE: u16 = 76;

/// The width of the list from which it has room for a word besides the description.
const NAMED: u16 = 16;

/// The height of the list from which the columns have a header.
const HEADED: u16 = 6;

fn quiet(row: &Row, now: Timestamp) -> String {
    row.active_at.map_or_else(String::new, |at| show_ms(between(at, now)))
}

fn cpu(live: Option<&Live>) -> String {
    live.and_then(|live| live.cpu).map_or_else(String::new, |percent| format!("{percent}%"))
}

fn memory(live: Option<&Live>) -> String {
    live.and_then(|live| live.memory_bytes).map_or_else(String::new, bytes)
}

fn done(live: Option<&Live>) -> String {
    live.and_then(|live| live.percent).map_or_else(String::new, |percent| format!("{percent}%"))
}

/// Draws the visible part of the list.
pub fn draw(ui: &mut Ui, scene: &Scene<'_>, area: Rect, buffer: &mut Buffer, frame: &mut Frame) {
    let headed = u16::from(area.height >= HEADED && area.width >= COLUMNS[1].from);
    if headed > 0 {
        header(line(area, 0), buffer);
    }
    let rows = Rect::new(area.x, area.y + headed, area.width, area.height.saturating_sub(headed));
    let spots = ui.model.window(usize::from(rows.height));
    if spots.is_empty() && rows.height > 0 {
        let text = if !ui.is_listed {
            "listing the tasks"
        } else if ui.model.filter().is_empty() && ui.search.is_none() {
            "no tasks; `:submit -- COMMAND` starts one"
        } else {
            "no task matches; Esc shows all"
        };
        put(buffer, rows, 0, text, Style::new().add_modifier(Modifier::DIM));
    }
    for (number, spot) in spots.iter().enumerate() {
        let area = line(rows, u16::try_from(number).unwrap_or(u16::MAX));
        let is_selected = ui.model.selected() == Some(spot) && !ui.is_still;
        match spot {
            Spot::Head(head) => heading(&ui.model, head, area, buffer),
            Spot::Task(place) => {
                if let Some(row) = ui.model.row(place.task) {
                    task(&ui.model, row, place.section, scene, area, buffer);
                    frame.tasks.push(place.task);
                    changes(row, area.width, scene.now, frame);
                }
            }
        }
        if is_selected {
            buffer.set_style(area, Style::new().add_modifier(Modifier::REVERSED));
        }
    }
    ui.drawn = (rows.y, spots);
}

/// Notes when a visible time changes next.
fn changes(row: &Row, width: u16, now: Timestamp, frame: &mut Frame) {
    let shown = |place: usize| width >= COLUMNS[place].from;
    let times = [Some(row.created_at).filter(|_| shown(2)), row.active_at.filter(|_| shown(3))];
    for at in times.into_iter().flatten() {
        let ms = between(at, now);
        let unit = match ms {
            ..=3_599_999 => 1000,
            3_600_000..=86_399_999 => 60_000,
            _ => 3_600_000,
        };
        frame.changes_within(unit - ms % unit);
    }
    if width >= USAGE && matches!(row.status, Status::Running | Status::Resumed) {
        frame.shows_usage = true;
        frame.changes_within(INTERVAL_MS);
    }
}

fn header(area: Rect, buffer: &mut Buffer) {
    let style = Style::new().add_modifier(Modifier::DIM);
    let mut at = 1;
    for column in COLUMNS.iter().filter(|column| area.width >= column.from) {
        put(buffer, area, at, column.header, style);
        at += column.width + 1;
    }
    put(buffer, area, at, "DESCRIPTION", style);
}

/// The name of a heading.
fn name(model: &Model, head: &Head) -> String {
    match head {
        Head::Section(section) => section.name().to_owned(),
        Head::Named(name) => name.to_string(),
        Head::Task(key) => match model.row(*key) {
            Some(row) => format!("{} {}", key.short(), row.description),
            None => key.short(),
        },
        Head::Rest => "others".to_owned(),
    }
}

fn heading(model: &Model, head: &Head, area: Rect, buffer: &mut Buffer) {
    let counts = model.counts_below(head);
    let mut text = String::from(if model.is_folded(head) { "+ " } else { "- " });
    let name = name(model, head);
    match head {
        Head::Section(section) => {
            // Writing to a string can't fail.
            let _ = write!(text, "{name} {}", counts[*section as usize]);
        }
        Head::Named(_) | Head::Task(_) | Head::Rest => {
            let words = Section::ALL.into_iter().filter(|section| counts[*section as usize] > 0);
            let words: Vec<String> =
                words.map(|section| format!("{} {}", counts[section as usize], section.name())).collect();
            let words = words.join(", ");
            let room = usize::from(area.width).saturating_sub(words.len() + 4).max(8);
            let _ = write!(text, "{}: {words}", cut(&name, room));
        }
    }
    put(buffer, area, 0, &text, Style::new().add_modifier(Modifier::BOLD));
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

fn task(model: &Model, row: &Row, section: Section, scene: &Scene<'_>, area: Rect, buffer: &mut Buffer) {
    let live = model.live(row.key());
    let style = scene.style(colour(row.status, section));
    put(buffer, area, 0, mark(model, row.key()), Style::new().add_modifier(Modifier::BOLD));
    let mut at = 1;
    for column in COLUMNS.iter().filter(|column| area.width >= column.from) {
        let text = cut(&(column.text)(row, live, scene.now), usize::from(column.width));
        let style = if column.header == "STATE" { style } else { Style::new() };
        put(buffer, area, at, &text, style);
        at += column.width + 1;
    }
    let last = live.map(|live| live.line.as_str()).filter(|line| !line.is_empty());
    let Some(last) = last.filter(|_| area.width >= LAST_LINE) else {
        // Where the state has no column, the colour alone would say it.
        let is_needed = (NAMED..COLUMNS[1].from).contains(&area.width);
        let state = if is_needed { format!("{} ", row.status) } else { String::new() };
        at = put(buffer, area, at, &state, style);
        put(buffer, area, at, &row.description, Style::new());
        return;
    };
    let half = area.width.saturating_sub(at) / 2;
    put(buffer, Rect { width: at + half.saturating_sub(1), ..area }, at, &row.description, Style::new());
    put(buffer, area, at + half, last, Style::new().add_modifier(Modifier::DIM));
}
