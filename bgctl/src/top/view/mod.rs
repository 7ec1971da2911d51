//! Draws the state of the live view into cells. Lays out only what is visible; no I/O.

mod help;
mod list;
mod preview;
mod question;
mod scene;
mod text;

use std::fmt::Write as _;

use bgd_shared::show::count;
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::style::{Color, Modifier, Style};

pub use self::scene::{Frame, Panes, Scene};
pub use self::text::width;
use self::text::{line, put};
use super::model::{By, Model};
use super::row::Section;
use super::search::{MOST_MIB, State};
use super::task_key::HostNo;
use super::ui::{Line, Mode, Preview, Question, Ui};

/// Minimum width for showing the preview beside the list.
const BESIDE: u16 = 100;

/// Minimum width of a preview beside the list.
const PREVIEW: u16 = 35;

/// Minimum height for showing the preview below the list.
const BELOW: u16 = 12;

/// Maximum number of rows and of columns drawn.
const SIDE: u16 = 1000;

/// Draws everything.
pub fn draw(ui: &mut Ui, scene: &Scene<'_>, buffer: &mut Buffer) -> Frame {
    let area = buffer.area.intersection(Rect::new(0, 0, SIDE, SIDE));
    let mut frame = Frame::default();
    if area.is_empty() {
        return frame;
    }
    title(ui, scene, line(area, 0), buffer);
    let footer = u16::from(area.height > 2 && !ui.is_still);
    let body = Rect::new(area.x, area.y + 1, area.width, area.height - 1 - footer);
    let (below_title, preview) = parted(ui, body);
    list::draw(ui, scene, below_title, buffer, &mut frame);
    ui.question_shown = preview.and_then(|preview| preview::draw(ui, scene, preview, buffer, &mut frame));
    over(ui, body, buffer);
    if footer > 0 {
        frame.cursor = foot(ui, scene, line(area, area.height - 1), buffer);
    }
    frame
}

/// Draws what covers the list: the keys, a graph or a question.
fn over(ui: &mut Ui, body: Rect, buffer: &mut Buffer) {
    ui.rows = usize::from(body.height.saturating_sub(1));
    ui.question_drawn = None;
    if !matches!(ui.mode, Mode::List | Mode::Typing(..) | Mode::Confirm(..)) {
        // The preview is covered.
        ui.question_shown = None;
    }
    match &mut ui.mode {
        Mode::Help(at) => boxed("Keys", &help::lines(usize::from(body.width)), at, body, buffer),
        Mode::Graph(lines, at) => boxed("Dependencies", lines, at, body, buffer),
        Mode::Question(question) => {
            let Some(row) = ui.model.row(question.task) else { return };
            let asked = row.question.as_deref();
            if let Some(asked) = asked.filter(|asked| asked.request != question.request) {
                (question.request, question.at) = (asked.request, 0);
            }
            let lines =
                asked.map(|asked| question::lines(asked, usize::from(body.width))).unwrap_or_default();
            let title = format!("{} {} asks", question.task.short(), row.description);
            boxed(&title, &lines, &mut question.at, body, buffer);
            let shows_end = ui.rows > 0 && question.at + ui.rows >= lines.len();
            ui.question_shown = asked.filter(|_| shows_end).map(|_| (question.task, question.request));
            ui.question_drawn = Some(*question);
        }
        Mode::List | Mode::Typing(..) | Mode::Confirm(..) => {}
    }
}

/// Divides the screen into the list and the preview. The list gets half of the screen, or more if its columns need
/// that.
fn parted(ui: &mut Ui, body: Rect) -> (Rect, Option<Rect>) {
    let is_beside = body.width >= BESIDE && body.height >= 3;
    let is_below = body.height >= BELOW && body.width >= 20;
    match ui.preview {
        Preview::Auto | Preview::On if is_beside => {
            let list = list::full_width(ui, body).min(body.width - PREVIEW - 1).max(body.width / 2);
            let right = Rect::new(body.x + list + 1, body.y, body.width - list - 1, body.height);
            (Rect { width: list, ..body }, Some(right))
        }
        Preview::On if is_below => {
            let list = body.height / 2;
            let below = Rect::new(body.x, body.y + list, body.width, body.height - list);
            (Rect { height: list, ..body }, Some(below))
        }
        Preview::Auto | Preview::On | Preview::Off => (body, None),
    }
}

/// Returns the title's text about hosts that do not answer.
fn silent(ui: &Ui) -> Option<String> {
    let silent: Vec<HostNo> = ui.model.hosts().filter(|host| is_lost(ui, *host)).collect();
    let [first, others @ ..] = &silent[..] else { return None };
    if !ui.model.is_several() {
        return ui.model.silence(*first).map(|silence| silence.why.clone());
    }
    if others.is_empty() {
        return Some(format!("{} does not answer", ui.model.host_name(*first)));
    }
    Some(format!("{} of {} hosts do not answer", silent.len(), ui.model.hosts().count()))
}

/// Reports whether a host has failed to answer, as opposed to not having answered yet.
fn is_lost(ui: &Ui, host: HostNo) -> bool {
    ui.model.silence(host).is_some_and(|silence| silence.since.is_some() || ui.is_still)
}

/// Returns the title's text about tasks waiting for the user: those that ask, and failures not looked at yet.
fn waiting(model: &Model) -> Option<String> {
    let counts = model.counts();
    let kinds = [(Section::Asks, "question"), (Section::Failed, "failure")];
    let words = kinds.into_iter().filter_map(|(section, kind)| match counts[section as usize] {
        0 => None,
        number => Some(count(number, kind)),
    });
    let words: Vec<String> = words.collect();
    let verb = if model.waiting() == 1 { "needs" } else { "need" };
    (!words.is_empty()).then(|| format!("{} {verb} you", words.join(" and ")))
}

/// Draws the title: first the tasks that wait for the user, then the other tasks, then how the list is folded and
/// filtered.
fn title(ui: &Ui, scene: &Scene<'_>, area: Rect, buffer: &mut Buffer) {
    let bold = |style: Style| style.add_modifier(Modifier::BOLD);
    let dim = Style::new().add_modifier(Modifier::DIM);
    let mut parts = Vec::new();
    parts.extend(silent(ui).map(|lost| (lost, bold(scene.style(Color::Red)))));
    parts.push(match waiting(&ui.model) {
        Some(words) => (words, bold(scene.style(Color::Yellow))),
        None => ("nothing needs you".to_owned(), bold(Style::new())),
    });
    let counts = ui.model.counts();
    let others = [Section::Running, Section::Pending, Section::Done];
    let others = others.into_iter().filter(|section| counts[*section as usize] > 0);
    let others: Vec<String> =
        others.map(|section| format!("{} {}", counts[section as usize], section.name())).collect();
    if !others.is_empty() {
        parts.push((others.join(", "), Style::new()));
    }
    if ui.model.by() != By::Section {
        parts.push((format!("by {}", ui.model.by().name()), dim));
    }
    if !ui.model.filter().is_empty() {
        parts.push((format!("/{} ({})", ui.model.filter(), ui.model.shown()), dim));
    }
    parts.extend(ui.search.as_ref().map(|search| (searched(search, &ui.model), dim)));
    let mut at = 0;
    for (number, (words, style)) in parts.iter().enumerate() {
        if number > 0 {
            at = put(buffer, area, at, " | ", dim);
        }
        at = put(buffer, area, at, words, *style);
    }
}

/// Describes the progress of a search, what it has found, and how many of these tasks the filter hides.
fn searched(search: &State, model: &Model) -> String {
    let State { text, done, all, cut } = search;
    let mut words = format!("?{text} (");
    // Writing to a string can't fail.
    if search.continues() {
        let _ = write!(words, "searching {done}/{all}, ");
    }
    let (found, shown) = (model.found(), model.shown());
    let _ = write!(words, "found {found}");
    if shown < found {
        let _ = write!(words, ", {} hidden by the filter", found - shown);
    }
    if *cut > 0 {
        let _ = write!(words, "; of {} the last {MOST_MIB} MiB", count(*cut, "long output"));
    }
    words + ")"
}

/// Draws the last line: the typed line, a question or a message, else the keys. Returns the position of the cursor.
fn foot(ui: &Ui, scene: &Scene<'_>, area: Rect, buffer: &mut Buffer) -> Option<(u16, u16)> {
    let before = match &ui.mode {
        Mode::Typing(Line::Filter, _) => "/".to_owned(),
        Mode::Typing(Line::Search, _) => "search outputs: ".to_owned(),
        Mode::Typing(Line::Prompt(_), _) => "prompt: ".to_owned(),
        Mode::Typing(Line::Verb(Some(host)), _) => format!("{}:", ui.model.host_name(*host)),
        Mode::Typing(Line::Verb(None), _) => ":".to_owned(),
        Mode::Confirm(question, _) => {
            put(buffer, area, 0, question, scene.style(Color::Yellow).add_modifier(Modifier::BOLD));
            return None;
        }
        Mode::Question(Question { task, .. })
            if let Some(asked) = ui.model.row(*task).and_then(|row| row.question.as_deref()) =>
        {
            let shows_end = ui.question_shown == Some((*task, asked.request));
            let keys = question::keys(asked, shows_end);
            put(buffer, area, 0, &keys, scene.style(Color::Yellow).add_modifier(Modifier::BOLD));
            return None;
        }
        Mode::List | Mode::Help(_) | Mode::Graph(..) | Mode::Question(..) => {
            let dim = Style::new().add_modifier(Modifier::DIM);
            match &ui.note {
                Some(note) => put(buffer, area, 0, note, Style::new()),
                None => put(buffer, area, 0, &help::short(usize::from(area.width)), dim),
            };
            return None;
        }
    };
    let Mode::Typing(_, text) = &ui.mode else { return None };
    let at = put(buffer, area, 0, &before, Style::new().add_modifier(Modifier::BOLD));
    // Of a long text, the end is visible, where the user types.
    let room = usize::from(area.width.saturating_sub(at + 1));
    let mut shown = text.as_str();
    while text::width(shown) > room {
        let first = shown.chars().next().map_or(1, char::len_utf8);
        shown = &shown[first..];
    }
    let end = put(buffer, area, at, shown, Style::new());
    Some((area.x + end.min(area.width.saturating_sub(1)), area.y))
}

/// Draws lines over everything else, starting with the line `from`, which is reduced to avoid empty rows at the end.
fn boxed(title: &str, lines: &[String], from: &mut usize, area: Rect, buffer: &mut Buffer) {
    let rows = usize::from(area.height.saturating_sub(1));
    *from = (*from).min(lines.len().saturating_sub(rows));
    let mut title = title.to_owned();
    if (1..lines.len()).contains(&rows) {
        // Writing to a string can't fail.
        let _ = write!(title, " {}-{} of {}", *from + 1, *from + rows, lines.len());
        title.push_str(": Up and Down scroll, any other key returns");
    }
    for row in 0..area.height {
        let area = line(area, row);
        for column in 0..area.width {
            buffer[(area.x + column, area.y)].reset();
        }
        match usize::from(row).checked_sub(1) {
            None => {
                let style = Style::new().add_modifier(Modifier::BOLD | Modifier::UNDERLINED);
                put(buffer, area, 0, &title, style);
            }
            Some(number) => {
                let text = lines.get(*from + number).map_or("", String::as_str);
                put(buffer, area, 0, text, Style::new());
            }
        }
    }
}

#[cfg(test)]
mod tests;
