//! The preview: the output of the selected task and of pinned ones, with colours.

use bgd_shared::question::NeedsInput;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};

use super::question;
use super::scene::{Frame, Scene};
use super::text::{broken, line, put};
use crate::render::clean;
use crate::top::pane::Pane;
use crate::top::task_key::TaskKey;
use crate::top::ui::Ui;

/// Minimum number of rows of a preview, including the title.
const ROWS: u16 = 3;

/// Draws as many previews as there is room for, pinned ones first. Returns the selected task and the number of its
/// question if the whole question is visible.
pub fn draw(
    ui: &Ui,
    scene: &Scene<'_>,
    area: Rect,
    buffer: &mut Buffer,
    frame: &mut Frame,
) -> Option<(TaskKey, u64)> {
    let mut keys: Vec<TaskKey> = ui.model.pins().to_vec();
    keys.extend(ui.model.selected_task().filter(|key| !keys.contains(key)));
    keys.truncate(usize::from(area.height / ROWS).max(1));
    let count = u16::try_from(keys.len()).ok()?;
    let mut shown = None;
    for (number, key) in (0..count).zip(keys) {
        let top = area.height * number / count;
        let end = area.height * (number + 1) / count;
        let part = Rect::new(area.x, area.y + top, area.width, end - top);
        frame.previews.push((key, part));
        let question = one(ui, key, scene, part, buffer);
        if ui.model.selected_task() == Some(key) {
            shown = question.map(|request| (key, request));
        }
    }
    shown
}

/// Draws the preview of a task. Returns the number of its question if the whole question is visible.
fn one(ui: &Ui, key: TaskKey, scene: &Scene<'_>, area: Rect, buffer: &mut Buffer) -> Option<u64> {
    let row = ui.model.row(key)?;
    let how = if ui.model.pins().contains(&key) { " (follows)" } else { "" };
    let host = if ui.model.is_several() { ui.model.host_name(key.host) } else { "" };
    let blank = if host.is_empty() { "" } else { " " };
    let title = format!("{host}{blank}{}{how} {} {}", key.short(), row.state, row.description);
    put(buffer, area, 0, &title, Style::new().add_modifier(Modifier::BOLD | Modifier::UNDERLINED));
    let pane = scene.panes.get(key)?;
    let mut at = 1;
    let question = pane.question();
    let asked: Vec<String> = question.map(|asked| asks(asked, area.width)).unwrap_or_default();
    let shows_all = asked.len() <= usize::from(area.height / 2);
    for text in asked.into_iter().chain(pane.about()) {
        // At most half of the room, as the output matters more.
        if at > area.height / 2 {
            break;
        }
        put(buffer, line(area, at), 0, &text, scene.style(Color::Yellow));
        at += 1;
    }
    let rest = Rect::new(area.x, area.y + at, area.width, area.height.saturating_sub(at));
    if !rest.is_empty() {
        output(pane, scene, rest, buffer);
    }
    question.filter(|_| shows_all).map(|asked| asked.request)
}

/// Returns the whole question and the names of its options as lines of this many columns.
fn asks(asked: &NeedsInput, columns: u16) -> Vec<String> {
    let text = format!("asks: {}", question::text(asked));
    let options = asked.options.iter().map(|option| format!("  {}", clean(&option.name)));
    let lines: Vec<String> = text.lines().map(str::to_owned).chain(options).collect();
    lines.iter().flat_map(|line| broken(line, usize::from(columns))).collect()
}

fn output(pane: &Pane, scene: &Scene<'_>, area: Rect, buffer: &mut Buffer) {
    let drawn = pane.screen(area.height, area.width);
    let Some(screen) = drawn.screen else { return };
    for row in 0..area.height {
        for column in 0..area.width {
            let Some(cell) = screen.cell(drawn.from + row, column) else { continue };
            if cell.is_wide_continuation() || (cell.is_wide() && column + 1 == area.width) {
                continue;
            }
            let (x, y) = (area.x + column, area.y + row);
            if cell.has_contents() {
                buffer[(x, y)].set_symbol(&clean(cell.contents()));
            }
            buffer[(x, y)].set_style(style(cell, scene));
            if cell.is_wide() {
                buffer[(x + 1, y)].set_symbol("");
            }
        }
    }
}

fn style(cell: &vt100::Cell, scene: &Scene<'_>) -> Style {
    let mut style = Style::new();
    if scene.colour {
        style = style.fg(colour(cell.fgcolor())).bg(colour(cell.bgcolor()));
    }
    for (is_set, modifier) in [
        (cell.bold(), Modifier::BOLD),
        (cell.dim(), Modifier::DIM),
        (cell.italic(), Modifier::ITALIC),
        (cell.underline(), Modifier::UNDERLINED),
        (cell.inverse(), Modifier::REVERSED),
    ] {
        if is_set {
            style = style.add_modifier(modifier);
        }
    }
    style
}

const fn colour(colour: vt100::Color) -> Color {
    match colour {
        vt100::Color::Default => Color::Reset,
        vt100::Color::Idx(index) => Color::Indexed(index),
        vt100::Color::Rgb(red, green, blue) => Color::Rgb(red, green, blue),
    }
}
