//! Renders lists of tasks: a table for people, tab-separated columns for programs.

use std::fmt::Write as _;
use std::ops::Range;

use bgd_shared::failure::{Failure, FailureKind};
use bgd_shared::id::TaskId;
use bgd_shared::show;
use bgd_shared::task::{Exit, Status, Task};
use bgd_shared::time::Timestamp;
use comfy_table::{Cell, Color, ColumnConstraint, ContentArrangement, Row, Table, presets};
use nix::errno::Errno;

use super::columns::{Field, context_percent, cost, cpu_ms, memory_bytes, tokens, written_bytes};
use super::list_format::ListFormat;
use super::order::waits_for;
use super::tree::{Lines, Node, nodes};
use super::wall::Clock;
use super::width::{cut, width};
use super::{bytes, clean, shortened};

/// A machine's outcome in place of a list.
#[derive(Clone, Copy)]
pub struct Missing<'a> {
    /// In place of a status.
    pub outcome: &'a str,
    /// The reason: one line, cleaned.
    pub reason: &'a str,
}

/// The answer of a machine.
#[derive(Clone, Copy)]
pub struct Listing<'a> {
    /// The machine, if several were asked.
    pub host: Option<&'a str>,
    /// The machine's tasks, or why there are none to show.
    pub tasks: Result<&'a [Task], Missing<'a>>,
}

/// The subject of a row.
struct Entry<'a> {
    host: Option<&'a str>,
    /// The task, or why the machine gave no list.
    task: Result<&'a Task, Missing<'a>>,
}

impl Entry<'_> {
    /// Returns this column of a task; `-` for a machine without an answer.
    fn of_task(&self, text: impl Fn(&Task) -> String) -> String {
        self.task.map_or_else(|_| "-".to_owned(), text)
    }
}

/// The definition of a list column.
struct Column {
    field: Field,
    header: &'static str,
    text: fn(&Entry<'_>, &ListFormat) -> String,
    colour: fn(&Entry<'_>) -> Option<Color>,
    /// Whether the column is only shown if several machines were asked.
    only_with_hosts: bool,
    /// Whether the column is truncated in a table that is too wide, to [`LEAST`] characters at least.
    shrinks: bool,
    /// Its rank for being dropped from a table that is too wide: the lowest is dropped first, as the least missed.
    /// `None` for never. Of chosen columns, the last is dropped first.
    drop_rank: Option<u8>,
}

/// The columns of a list, one for each [`Field`].
const COLUMNS: [Column; 18] = [
    Column {
        field: Field::Host,
        header: "HOST",
        text: |entry, _| clean(entry.host.unwrap_or_default()),
        colour: |_| None,
        only_with_hosts: true,
        shrinks: true,
        drop_rank: None,
    },
    Column {
        field: Field::Id,
        header: "ID",
        text: |entry, _| entry.of_task(id),
        colour: |_| None,
        only_with_hosts: false,
        shrinks: false,
        drop_rank: None,
    },
    Column {
        field: Field::Status,
        header: "STATUS",
        text: |entry, format| {
            entry.task.map_or_else(|missing| missing.outcome.to_owned(), |task| status(task, &format.clock))
        },
        colour: |entry| Some(entry.task.map_or(Color::Red, |task| colour(task.status))),
        only_with_hosts: false,
        shrinks: true,
        drop_rank: None,
    },
    Column {
        field: Field::Age,
        header: "AGE",
        text: |entry, format| {
            entry.of_task(|task| show::elapsed(format.clock.now.millis_since(task.created_at)))
        },
        colour: |_| Some(Color::DarkGrey),
        only_with_hosts: false,
        shrinks: false,
        drop_rank: Some(0),
    },
    Column {
        field: Field::Time,
        header: "TIME",
        text: |entry, format| entry.of_task(|task| run_time(task, format.clock.now)),
        colour: |_| None,
        only_with_hosts: false,
        shrinks: false,
        drop_rank: Some(1),
    },
    Column {
        field: Field::Progress,
        header: "PROGRESS",
        text: |entry, format| entry.of_task(|task| progress(task, format)),
        colour: |_| None,
        only_with_hosts: false,
        shrinks: false,
        drop_rank: Some(2),
    },
    Column {
        field: Field::Cpu,
        header: "CPU",
        text: |entry, format| entry.of_task(|task| known(cpu_ms(task, &format.measured), show::elapsed)),
        colour: |_| None,
        only_with_hosts: false,
        shrinks: false,
        drop_rank: Some(9),
    },
    Column {
        field: Field::Memory,
        header: "MEMORY",
        text: |entry, format| entry.of_task(|task| known(memory_bytes(task, &format.measured), bytes)),
        colour: |_| None,
        only_with_hosts: false,
        shrinks: false,
        drop_rank: Some(10),
    },
    Column {
        field: Field::Written,
        header: "WRITTEN",
        text: |entry, _| entry.of_task(|task| known(written_bytes(task), bytes)),
        colour: |_| None,
        only_with_hosts: false,
        shrinks: false,
        drop_rank: Some(11),
    },
    Column {
        field: Field::Tokens,
        header: "TOKENS",
        text: |entry, _| entry.of_task(|task| known(tokens(task), show::tokens)),
        colour: |_| None,
        only_with_hosts: false,
        shrinks: false,
        drop_rank: Some(12),
    },
    Column {
        field: Field::Context,
        header: "CONTEXT",
        text: |entry, _| entry.of_task(|task| known(context_percent(task), |percent| format!("{percent}%"))),
        colour: |_| None,
        only_with_hosts: false,
        shrinks: false,
        drop_rank: Some(13),
    },
    Column {
        field: Field::Cost,
        header: "COST",
        text: |entry, _| {
            entry.of_task(|task| cost(task).map_or_else(|| "-".to_owned(), |cost| clean(&show::cost(cost))))
        },
        colour: |_| None,
        only_with_hosts: false,
        shrinks: false,
        drop_rank: Some(14),
    },
    Column {
        field: Field::Session,
        header: "SESSION",
        text: |entry, _| entry.of_task(|task| clean(task.session.as_deref().unwrap_or("-"))),
        colour: |_| None,
        only_with_hosts: false,
        shrinks: true,
        drop_rank: Some(4),
    },
    Column {
        field: Field::Group,
        header: "GROUP",
        text: |entry, _| entry.of_task(|task| clean(&task.group)),
        colour: |_| None,
        only_with_hosts: false,
        shrinks: true,
        drop_rank: Some(5),
    },
    Column {
        field: Field::Batch,
        header: "BATCH",
        text: |entry, _| entry.of_task(|task| task.batch.map_or_else(|| "-".to_owned(), TaskId::short)),
        colour: |_| None,
        only_with_hosts: false,
        shrinks: false,
        drop_rank: Some(6),
    },
    Column {
        field: Field::Tags,
        header: "TAGS",
        text: |entry, _| entry.of_task(|task| clean(&task.tags.join(","))),
        colour: |_| None,
        only_with_hosts: false,
        shrinks: true,
        drop_rank: Some(7),
    },
    Column {
        field: Field::Agent,
        header: "AGENT",
        text: |entry, _| entry.of_task(|task| clean(task.agent.as_deref().unwrap_or("-"))),
        colour: |_| None,
        only_with_hosts: false,
        shrinks: true,
        drop_rank: Some(8),
    },
    Column {
        field: Field::Description,
        header: "DESCRIPTION",
        text: |entry, _| {
            entry.task.map_or_else(|missing| missing.reason.to_owned(), |task| clean(&task.description))
        },
        colour: |_| None,
        only_with_hosts: false,
        shrinks: true,
        drop_rank: Some(3),
    },
];

/// Index of the column that contains the tree: that of the ids.
const TREE: usize = {
    let mut place = 0;
    while !matches!(COLUMNS[place].field, Field::Id) {
        place += 1;
    }
    place
};

/// Minimum width of a shrinking column, below which it would be useless.
const LEAST: usize = 11;

/// Number of terminal columns between two table columns, as set by `fitted`.
const GAP: usize = 2;

/// An entry with the texts of its columns.
type Cells<'a> = (Entry<'a>, OfColumns<String>);

/// One value for each column.
type OfColumns<T> = [T; COLUMNS.len()];

fn cells<'a>(entry: Entry<'a>, format: &ListFormat) -> Cells<'a> {
    let text = |column: Column| {
        let is_wanted = format.columns.contains(&column.field);
        if is_wanted { (column.text)(&entry, format) } else { String::new() }
    };
    let texts = COLUMNS.map(text);
    (entry, texts)
}

/// Returns the indices of the columns to show, in order. A tree needs the id column.
fn places(format: &ListFormat, has_hosts: bool) -> Vec<usize> {
    let place = |field: &Field| COLUMNS.iter().position(|column| column.field == *field);
    let places = format.columns.iter().filter_map(place);
    places.filter(|place| has_hosts || !COLUMNS[*place].only_with_hosts).collect()
}

/// A rendered list.
#[derive(Debug)]
pub struct Drawn {
    pub text: String,
    /// The chosen columns that have no room.
    pub left_out: Vec<Field>,
}

impl Drawn {
    /// Describes the columns that are left out; `None` if all are there.
    pub fn remark(&self) -> Option<String> {
        let names: Vec<String> = self.left_out.iter().map(|field| field.name()).collect();
        let names = Some(names.join(", ")).filter(|names| !names.is_empty())?;
        Some(format!("no room for {names}: choose fewer columns, or widen the terminal"))
    }
}

/// Lists the tasks in the given order.
pub fn list(tasks: &[Task], format: &ListFormat) -> String {
    listings(&[Listing { host: None, tasks: Ok(tasks) }], None, format).text
}

/// Renders the answers of several machines as one list, or as one tree each, in which each task is below a task that it
/// starts after.
pub fn listings(all: &[Listing<'_>], tree: Option<Lines>, format: &ListFormat) -> Drawn {
    let rows = all.iter().flat_map(|Listing { host, tasks }| {
        let row = |task| cells(Entry { host: *host, task }, format);
        match (tasks, tree) {
            (Err(missing), _) => vec![row(Err(*missing))],
            (Ok(tasks), None) => tasks.iter().map(|task| row(Ok(task))).collect(),
            (Ok(tasks), Some(lines)) => nodes(tasks, lines)
                .into_iter()
                .map(|node| drawn_at(&node, row(Ok(&tasks[node.place]))))
                .collect(),
        }
    });
    drawn(rows.collect(), tree.is_some(), format)
}

/// Draws the branches of a tree into a row.
fn drawn_at<'a>(node: &Node, (entry, mut cells): Cells<'a>) -> Cells<'a> {
    let shown = &mut cells[TREE];
    shown.insert_str(0, &node.before);
    if !node.others.is_empty() {
        let others: Vec<String> = node.others.iter().map(|id| id.short()).collect();
        // Writing to a string can't fail.
        let _ = write!(shown, " (also after {})", others.join(", "));
    }
    (entry, cells)
}

/// Renders rows as a table or as tab-separated columns.
fn drawn(rows: Vec<Cells<'_>>, is_tree: bool, format: &ListFormat) -> Drawn {
    let has_hosts = rows.iter().any(|(entry, _)| entry.host.is_some());
    let places = places(format, has_hosts);
    if format.table {
        return table(rows, &places, is_tree, format);
    }
    let line = |(_, cells): Cells<'_>| {
        let shown = places.iter().map(|place| cells[*place].as_str());
        shown.collect::<Vec<_>>().join("\t") + "\n"
    };
    Drawn { text: rows.into_iter().map(line).collect(), left_out: Vec::new() }
}

fn table(rows: Vec<Cells<'_>>, places: &[usize], is_tree: bool, format: &ListFormat) -> Drawn {
    let widest: OfColumns<Option<usize>> = std::array::from_fn(|place| {
        let cells = rows.iter().map(|(_, cells)| width(&cells[place]));
        places.contains(&place).then(|| cells.max().unwrap_or(0).max(COLUMNS[place].header.len()))
    });
    let widths = widths(&widest, &droppable(places, is_tree, format.is_chosen), format);
    let row = |(entry, cells): Cells<'_>| {
        let shown = places.iter().filter_map(|place| {
            let cell = Cell::new(cut(&cells[*place], widths[*place]?));
            let colour = (COLUMNS[*place].colour)(&entry).filter(|_| format.colour);
            Some(match colour {
                Some(colour) => cell.fg(colour),
                None => cell,
            })
        });
        Row::from(shown.collect::<Vec<_>>())
    };
    let (shown, hidden): (Vec<usize>, Vec<usize>) =
        places.iter().copied().partition(|place| widths[*place].is_some());
    let header = shown.into_iter().map(|place| COLUMNS[place].header);
    let text = fitted(header, rows.into_iter().map(row), format);
    let hidden = hidden.into_iter().filter(|_| format.is_chosen);
    Drawn { text, left_out: hidden.map(|place| COLUMNS[place].field).collect() }
}

/// Returns the columns that may be dropped from a table that is too wide, in the order in which they are. Of chosen ones,
/// the first stays, and so does that of the tree.
fn droppable(places: &[usize], is_tree: bool, is_chosen: bool) -> Vec<usize> {
    if is_chosen {
        let stays = |place: &usize| Some(place) == places.first() || is_tree && *place == TREE;
        return places.iter().rev().copied().filter(|place| !stays(place)).collect();
    }
    let mut spare: Vec<usize> =
        (0..COLUMNS.len()).filter(|place| COLUMNS[*place].drop_rank.is_some()).collect();
    spare.sort_by_key(|place| COLUMNS[*place].drop_rank);
    spare
}

/// Returns the maximum width of each column in a table of this format's width, given the widest cells; `None` for a
/// column that is hidden, or was dropped as one of `droppable`.
fn widths(
    widest: &OfColumns<Option<usize>>,
    droppable: &[usize],
    format: &ListFormat,
) -> OfColumns<Option<usize>> {
    let mut widths = *widest;
    let Some(width) = format.width.map(usize::from) else { return widths };
    let least = |column: &Column, width: usize| {
        // A chosen column is not to take more room than it needs from the others.
        if !column.shrinks || format.is_chosen && width < LEAST { width } else { LEAST }
    };
    let needed = |widths: &OfColumns<Option<usize>>| {
        let needed = |(column, width): (&Column, &Option<usize>)| Some(GAP + least(column, (*width)?));
        COLUMNS.iter().zip(widths).filter_map(needed).sum::<usize>().saturating_sub(GAP)
    };
    for place in droppable {
        if needed(&widths) > width {
            widths[*place] = None;
        }
    }
    // The width left over when each column has its minimum goes to the first columns that need it.
    let mut left = width.saturating_sub(needed(&widths));
    for (column, shown) in COLUMNS.iter().zip(&mut widths) {
        if let Some(shown) = shown.as_mut().filter(|_| column.shrinks) {
            let most = least(column, *shown) + left;
            left = most - most.min(*shown);
            *shown = most;
        }
    }
    widths
}

/// Renders a table like [`fitted`], without some columns, whose column `state` has the colour of its row.
pub fn coloured(
    header: [&'static str; 7],
    left_out: Option<&Range<usize>>,
    state: usize,
    rows: impl Iterator<Item = ([String; 7], Color)>,
    format: &ListFormat,
) -> String {
    let is_shown = |place: usize| left_out.is_none_or(|places| !places.contains(&place));
    let header = (0..header.len()).filter(|place| is_shown(*place)).map(|place| header[place]);
    let rows = rows.map(|(columns, colour)| {
        let cells = columns.into_iter().enumerate().filter(|(place, _)| is_shown(*place));
        let cells = cells.map(|(place, text)| match Cell::new(text) {
            cell if place == state && format.colour => cell.fg(colour),
            cell => cell,
        });
        Row::from(cells.collect::<Vec<_>>())
    });
    fitted(header, rows, format)
}

/// Renders a table that fits the width: each row and the header take one line, and the last column is truncated to
/// the remaining width.
pub fn fitted(
    header: impl IntoIterator<Item = &'static str>,
    rows: impl Iterator<Item = Row>,
    format: &ListFormat,
) -> String {
    let mut header = Row::from(header);
    header.max_height(1);
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_width(format.width.unwrap_or(u16::MAX))
        .set_header(header);
    if format.colour {
        table.enforce_styling();
    }
    for mut row in rows {
        row.max_height(1);
        table.add_row(row);
    }
    let last = table.column_count().saturating_sub(1);
    for (place, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, if place < last { 2 } else { 0 }));
        if place < last {
            column.set_constraint(ColumnConstraint::ContentWidth);
        }
    }
    table.trim_fmt() + "\n"
}

/// Formats the progress of a task, if it was looked up.
fn progress(task: &Task, format: &ListFormat) -> String {
    format.percents.get(&task.id).map_or_else(|| "-".to_owned(), |percent| format!("{percent}%"))
}

/// Formats a number; `-` if it is unknown.
fn known(number: Option<u64>, text: fn(u64) -> String) -> String {
    number.map_or_else(|| "-".to_owned(), text)
}

fn colour(status: Status) -> Color {
    match status {
        Status::Pending => Color::DarkGrey,
        Status::Running | Status::Resumed => Color::Blue,
        Status::Completed => Color::Green,
        Status::Failed => Color::Red,
        Status::Cancelled => Color::Yellow,
    }
}

/// Returns the short id; a trailing `(resumed)` marks a task that had further prompts (R38).
fn id(task: &Task) -> String {
    let mut text = task.id.short();
    if task.resume_count > 0 {
        text.push_str(" (resumed)");
    }
    text
}

/// Renders a task on one line: full id, status, run time, description.
pub fn summary_line(task: &Task, clock: &Clock) -> String {
    let (status, time) = (status(task, clock), run_time(task, clock.now));
    format!("{}\t{status}\t{time}\t{}\n", task.id, clean(&task.description))
}

/// Returns the status with the details that matter at a glance: what a pending task waits for, how a failed one
/// ended, whether processes linger, and whether an agent waits for an answer.
pub fn status(task: &Task, clock: &Clock) -> String {
    let how = match (&task.exit, task.status) {
        // Showing the signal sent by the time limit would suggest that the task was killed by hand.
        (_, Status::Failed) if task.timed_out => too_late("timed out", task.time_limit_ms),
        // As for the time limit.
        (_, Status::Failed) if was_not_ready(task) => too_late("not ready", task.ready_timeout_ms),
        (Some(Exit::Code(code)), Status::Failed) => format!(" ({code})"),
        (Some(Exit::Signal(signal)), Status::Failed) => format!(" ({})", signal_name(*signal)),
        (Some(Exit::Unknown(_)), Status::Failed | Status::Completed) => " (exit unknown)".to_owned(),
        (None, Status::Failed) => {
            task.failure.as_ref().and_then(unstarted).map_or_else(String::new, |why| format!(" ({why})"))
        }
        (_, Status::Pending) => waits_for(task, clock).map_or_else(String::new, |what| format!(" ({what})")),
        (_, status) if status.is_active() && task.paused => " (paused)".to_owned(),
        (_, status) if status.is_active() => attention(task),
        (_, Status::Completed) if task.suspect.is_some() => " (suspect)".to_owned(),
        _ => String::new(),
    };
    let lingering = if task.lingering { " +lingering" } else { "" };
    let lost = if task.output.lost_bytes > 0 { " +output-lost" } else { "" };
    format!("{}{how}{lingering}{lost}", task.status)
}

/// Describes a task ended by a limit: `what`, and the limit in milliseconds, if known.
fn too_late(what: &str, limit_ms: Option<u64>) -> String {
    let after = limit_ms.map(|limit| format!(" after {}", show::duration(limit)));
    format!(" ({what}{})", after.unwrap_or_default())
}

/// Describes why a process was not started, in a word or two; `None` if it was.
fn unstarted(failure: &Failure) -> Option<&'static str> {
    // As in shells: 127 and 126 blame the program itself.
    let why = match (failure.code, failure.errno.map(Errno::from_raw)) {
        (Some(127), _) => "not found",
        (Some(126), Some(Errno::EACCES | Errno::EPERM)) => "no permission",
        (Some(126), Some(Errno::ENOEXEC)) => "not executable",
        (Some(126), Some(Errno::EISDIR)) => "is a directory",
        _ => "not started",
    };
    (failure.kind == FailureKind::Spawn).then_some(why)
}

/// Reports whether a task has failed because it was not ready in time. A cluster's own time limit may end a task
/// earlier.
pub fn was_not_ready(task: &Task) -> bool {
    let is_late = task.failure.as_ref().is_some_and(|failure| failure.kind == FailureKind::Timeout);
    let ran = || Some(task.completed_at?.millis_since(task.started_at?));
    let has_waited = || task.ready_timeout_ms.is_some_and(|limit| ran().is_none_or(|ran| ran >= limit));
    is_late && task.ready.is_some() && task.ready_at.is_none() && (task.on.is_none() || has_waited())
}

/// Describes why an active task may need attention. An agent with an open question is silent because of it, not
/// stalled.
fn attention(task: &Task) -> String {
    match (&task.progress.needs_input, task.progress.stalled, &task.progress.last_words) {
        (Some(_), _, _) => " (asks)".to_owned(),
        (None, true, Some(words)) => format!(" (stalled: {})", shortened(&clean(words), WORDS_CHARS)),
        (None, true, None) => " (stalled)".to_owned(),
        (None, false, _) => String::new(),
    }
}

/// Maximum length of an agent's last words in a list, in characters.
const WORDS_CHARS: usize = 40;

/// Returns the name of a signal, or its number if it has none.
pub fn signal_name(number: i32) -> String {
    show::signal_name(number).map_or_else(|| format!("signal {number}"), str::to_owned)
}

/// Returns how long the task has run so far or in total; `-` if it never started.
pub fn run_time(task: &Task, now: Timestamp) -> String {
    task.run_time_ms(now).map_or_else(|| "-".to_owned(), show::elapsed)
}

#[cfg(test)]
mod tests;
