//! Renders lists of tasks: a table for people, tab-separated columns for programs.

use std::fmt::Write as _;

use bgd_shared::show;
use bgd_shared::task::{Exit, Status, Task};
use bgd_shared::time::Timestamp;
use comfy_table::{Cell, Color, ColumnConstraint, ContentArrangement, Row, Table, presets};

use super::clean;
use super::look::Look;
use super::order::waits_for;
use super::tree::{Lines, Node, nodes};
use super::wall::Clock;
use crate::duration::show_ms;

/// What a machine answered.
#[derive(Clone, Copy)]
pub struct Listing<'a> {
    /// The machine, if several were asked.
    pub host: Option<&'a str>,
    /// Its tasks, or why there are none to show: one line, cleaned.
    pub tasks: Result<&'a [Task], &'a str>,
}

/// What one row is about.
struct Entry<'a> {
    host: Option<&'a str>,
    /// The task, or why the machine gave no list.
    task: Result<&'a Task, &'a str>,
}

impl Entry<'_> {
    /// Returns this column of a task; `-` for a machine without an answer.
    fn of_task(&self, text: impl Fn(&Task) -> String) -> String {
        self.task.map_or_else(|_| "-".to_owned(), text)
    }
}

/// Everything that makes up one column of a list.
struct Column {
    header: &'static str,
    text: fn(&Entry<'_>, &Clock) -> String,
    colour: fn(&Entry<'_>) -> Option<Color>,
    /// Whether it is only shown if several machines were asked.
    tells_hosts: bool,
    /// Whether it is truncated in a table that is too wide, to [`LEAST`] characters at least.
    shrinks: bool,
    /// When it is dropped from a table that is too wide: the lowest number first. `None`: never.
    dropped: Option<u8>,
}

/// The columns of a list. A new one is an entry here.
const COLUMNS: [Column; 6] = [
    Column {
        header: "HOST",
        text: |entry, _| clean(entry.host.unwrap_or_default()),
        colour: |_| None,
        tells_hosts: true,
        shrinks: true,
        dropped: None,
    },
    Column {
        header: "ID",
        text: |entry, _| entry.of_task(id),
        colour: |_| None,
        tells_hosts: false,
        shrinks: false,
        dropped: None,
    },
    Column {
        header: "STATUS",
        text: |entry, clock| entry.task.map_or_else(|_| "no answer".to_owned(), |task| status(task, clock)),
        colour: |entry| Some(entry.task.map_or(Color::Red, |task| colour(task.status))),
        tells_hosts: false,
        shrinks: true,
        dropped: None,
    },
    Column {
        header: "AGE",
        text: |entry, clock| entry.of_task(|task| show_ms(between(task.created_at, clock.now))),
        colour: |_| Some(Color::DarkGrey),
        tells_hosts: false,
        shrinks: false,
        dropped: Some(0),
    },
    Column {
        header: "TIME",
        text: |entry, clock| entry.of_task(|task| run_time(task, clock.now)),
        colour: |_| None,
        tells_hosts: false,
        shrinks: false,
        dropped: Some(1),
    },
    Column {
        header: "DESCRIPTION",
        text: |entry, _| entry.task.map_or_else(str::to_owned, |task| clean(&task.description)),
        colour: |_| None,
        tells_hosts: false,
        shrinks: true,
        dropped: Some(2),
    },
];

/// The column that a tree is drawn in.
const TREE: usize = 1;

/// The minimum width of a column that shrinks, below which it is useless.
const LEAST: usize = 11;

/// Characters between two columns, as set by `fitted`.
const GAP: usize = 2;

/// An entry with the texts of its columns.
type Cells<'a> = (Entry<'a>, OfColumns<String>);

/// One value for each column.
type OfColumns<T> = [T; COLUMNS.len()];

fn cells<'a>(entry: Entry<'a>, look: &Look) -> Cells<'a> {
    let texts = COLUMNS.map(|column| (column.text)(&entry, &look.clock));
    (entry, texts)
}

/// Lists the tasks in the given order.
pub fn list(tasks: &[Task], look: &Look) -> String {
    listings(&[Listing { host: None, tasks: Ok(tasks) }], None, look)
}

/// Renders the tasks as a tree by the tasks that they start after.
pub fn tree(tasks: &[Task], lines: Lines, look: &Look) -> String {
    listings(&[Listing { host: None, tasks: Ok(tasks) }], Some(lines), look)
}

/// Renders what several machines answered as one list, or as one tree each.
pub fn listings(all: &[Listing<'_>], tree: Option<Lines>, look: &Look) -> String {
    let rows = all.iter().flat_map(|Listing { host, tasks }| {
        let row = |task| cells(Entry { host: *host, task }, look);
        match (tasks, tree) {
            (Err(why), _) => vec![row(Err(why))],
            (Ok(tasks), None) => tasks.iter().map(|task| row(Ok(task))).collect(),
            (Ok(tasks), Some(lines)) => nodes(tasks, lines)
                .into_iter()
                .map(|node| drawn_at(&node, row(Ok(&tasks[node.place]))))
                .collect(),
        }
    });
    drawn(rows.collect(), look)
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
fn drawn(rows: Vec<Cells<'_>>, look: &Look) -> String {
    let has_hosts = rows.iter().any(|(entry, _)| entry.host.is_some());
    let is_shown = |place: usize| has_hosts || !COLUMNS[place].tells_hosts;
    if look.table {
        return table(rows, is_shown, look);
    }
    let line = |(_, cells): Cells<'_>| {
        let shown = cells.into_iter().enumerate().filter(|(place, _)| is_shown(*place));
        shown.map(|(_, text)| text).collect::<Vec<_>>().join("\t") + "\n"
    };
    rows.into_iter().map(line).collect()
}

fn table(rows: Vec<Cells<'_>>, is_shown: impl Fn(usize) -> bool, look: &Look) -> String {
    let widest: OfColumns<Option<usize>> = std::array::from_fn(|place| {
        let cells = rows.iter().map(|(_, cells)| cells[place].chars().count());
        is_shown(place).then(|| cells.max().unwrap_or(0).max(COLUMNS[place].header.len()))
    });
    let widths = widths(widest, look.width);
    let row = |(entry, cells): Cells<'_>| {
        let shown = cells.into_iter().zip(&COLUMNS).zip(&widths).filter_map(|((text, column), width)| {
            let cell = Cell::new(cut(text, (*width)?));
            let colour = (column.colour)(&entry).filter(|_| look.colour);
            Some(match colour {
                Some(colour) => cell.fg(colour),
                None => cell,
            })
        });
        Row::from(shown.collect::<Vec<_>>())
    };
    let header = COLUMNS.iter().zip(&widths).filter_map(|(column, width)| width.map(|_| column.header));
    fitted(header, rows.into_iter().map(row), look)
}

/// The maximum width of each column in a table of this width, given the widest cells; `None` for a column that is not
/// shown, or dropped.
fn widths(widest: OfColumns<Option<usize>>, width: Option<u16>) -> OfColumns<Option<usize>> {
    let mut widths = widest;
    let Some(width) = width.map(usize::from) else { return widths };
    let needed = |widths: &OfColumns<Option<usize>>| {
        let least = |(column, width): (&Column, &Option<usize>)| {
            width.map(|width| GAP + if column.shrinks { LEAST } else { width })
        };
        COLUMNS.iter().zip(widths).filter_map(least).sum::<usize>().saturating_sub(GAP)
    };
    let mut spare: Vec<usize> =
        (0..COLUMNS.len()).filter(|place| COLUMNS[*place].dropped.is_some()).collect();
    spare.sort_by_key(|place| COLUMNS[*place].dropped);
    for place in spare {
        if needed(&widths) > width {
            widths[place] = None;
        }
    }
    // What is left when each column has its minimum goes to the first ones that need it.
    let mut left = width.saturating_sub(needed(&widths));
    for (column, shown) in COLUMNS.iter().zip(&mut widths) {
        if let Some(shown) = shown.as_mut().filter(|_| column.shrinks) {
            let most = LEAST + left;
            left = most - most.min(*shown);
            *shown = most;
        }
    }
    widths
}

/// Truncates a text with more than `most` characters.
fn cut(text: String, most: usize) -> String {
    match text.chars().nth(most) {
        Some(_) => text.chars().take(most - 1).chain(['…']).collect(),
        None => text,
    }
}

/// Renders a table that fits the width: each row and the header take one line, and the last column is truncated to
/// the remaining width.
pub fn fitted(
    header: impl IntoIterator<Item = &'static str>,
    rows: impl Iterator<Item = Row>,
    look: &Look,
) -> String {
    let mut header = Row::from(header);
    header.max_height(1);
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_width(look.width.unwrap_or(u16::MAX))
        .set_header(header);
    if look.colour {
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
        // Showing the signal that the time limit sent would suggest that somebody killed the task.
        (_, Status::Failed) if task.timed_out => format!(" ({})", timed_out(task)),
        (Some(Exit::Code(code)), Status::Failed) => format!(" ({code})"),
        (Some(Exit::Signal(signal)), Status::Failed) => format!(" ({})", signal_name(*signal)),
        (Some(Exit::Unknown(_)), Status::Failed | Status::Completed) => " (exit unknown)".to_owned(),
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

/// Describes that the time limit ended the task, and which limit.
fn timed_out(task: &Task) -> String {
    let after = task.time_limit_ms.map(|limit| format!(" after {}", show::duration(limit)));
    format!("timed out{}", after.unwrap_or_default())
}

/// Describes why an active task may need attention. An agent with an open question is silent because of it, not
/// stalled.
fn attention(task: &Task) -> String {
    match (&task.progress.needs_input, task.progress.stalled, &task.progress.last_words) {
        (Some(_), _, _) => " (asks)".to_owned(),
        (None, true, Some(words)) => format!(" (stalled: {})", show::shortened(&clean(words), WORDS_CHARS)),
        (None, true, None) => " (stalled)".to_owned(),
        (None, false, _) => String::new(),
    }
}

/// The longest part of an agent's last words in a list, in characters.
const WORDS_CHARS: usize = 40;

/// Returns the name of a signal.
pub fn signal_name(number: i32) -> String {
    show::signal_name(number).map_or_else(|| format!("signal {number}"), str::to_owned)
}

/// Returns how long the task has run so far or in total; `-` if it never started.
pub fn run_time(task: &Task, now: Timestamp) -> String {
    match task.started_at {
        Some(started) => show_ms(between(started, task.completed_at.unwrap_or(now))),
        None => "-".to_owned(),
    }
}

/// Returns the milliseconds between two times; 0 if the clock was set back in between.
pub fn between(from: Timestamp, to: Timestamp) -> u64 {
    u64::try_from(to.unix_ms().saturating_sub(from.unix_ms())).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bgd_shared::id::TaskId;
    use bgd_shared::order::{Condition, Dependency, Waiting, WaitingFor};
    use bgd_shared::task::{Kind, Progress};

    use crate::render::samples::{question, task};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_unix_ms(second * 1000)
    }

    fn plain() -> Look {
        Look { table: false, colour: false, width: None, clock: Clock::of_tests() }
    }

    fn status_of_task(task: &Task) -> String {
        status(task, &Clock::of_tests())
    }

    #[test]
    fn programs_get_columns_with_tabs_and_no_header() {
        let failed = Task {
            status: Status::Failed,
            exit: Some(Exit::Code(3)),
            started_at: Some(at(1_010)),
            completed_at: Some(at(1_075)),
            ..task()
        };
        assert_eq!(
            list(&[task(), failed], &plain()),
            "3f2a9c1e\tpending\t1m 40s\t-\tmake -j8\n3f2a9c1e\tfailed (3)\t1m 40s\t1m 05s\tmake -j8\n"
        );
    }

    #[test]
    fn a_table_is_readable_however_narrow_it_is() {
        let late = Task {
            status: Status::Failed,
            error: Some("timed out after 10s".into()),
            timed_out: true,
            time_limit_ms: Some(10_000),
            description: "a description of some length".into(),
            ..task()
        };
        let table = |width| {
            let text = list(std::slice::from_ref(&late), &Look { table: true, width, ..plain() });
            let most = width.map_or(usize::MAX, usize::from);
            assert!(text.lines().all(|line| line.chars().count() <= most), "{most}: {text}");
            text
        };
        let all = "3f2a9c1e  failed (timed out after 10s)  1m 40s  -     a description of some length";
        for width in [None, Some(200), Some(100)] {
            assert_eq!(table(width).lines().nth(1), Some(all));
        }
        for (width, row) in [
            (80, "3f2a9c1e  failed (timed out after 10s)  1m 40s  -     a description of some len…"),
            (50, "3f2a9c1e  failed (time…  1m 40s  -     a descript…"),
            (40, "3f2a9c1e  failed (ti…  -     a descript…"),
            (36, "3f2a9c1e  failed (time…  a descript…"),
            (30, "3f2a9c1e  failed (timed out a…"),
        ] {
            assert_eq!(table(Some(width)).lines().nth(1), Some(row), "{width}");
        }
    }

    #[test]
    fn r144_tasks_of_several_hosts_say_where_they_are() {
        let tasks = [task()];
        let all = [
            Listing { host: Some("far"), tasks: Ok(&tasks) },
            Listing { host: Some("me@gone"), tasks: Err("no route") },
        ];
        assert_eq!(
            listings(&all, None, &plain()),
            "far\t3f2a9c1e\tpending\t1m 40s\t-\tmake -j8\nme@gone\t-\tno answer\t-\t-\tno route\n"
        );
        let table = listings(&all, None, &Look { table: true, ..plain() });
        assert_eq!(
            table.lines().map(str::trim_end).collect::<Vec<_>>(),
            [
                "HOST     ID        STATUS     AGE     TIME  DESCRIPTION",
                "far      3f2a9c1e  pending    1m 40s  -     make -j8",
                "me@gone  -         no answer  -       -     no route"
            ]
        );
    }

    #[test]
    fn r38_a_resumed_task_says_so_behind_its_id() {
        let resumed = Task { resume_count: 2, status: Status::Completed, ..task() };
        for look in [plain(), Look { table: true, ..plain() }] {
            assert!(list(std::slice::from_ref(&resumed), &look).contains("3f2a9c1e (resumed)"));
            assert!(!list(&[task()], &look).contains("resumed"));
        }
    }

    #[test]
    fn the_status_tells_how_it_ended_and_what_lives_on() {
        let status_of = |status, exit, lingering| status_of_task(&Task { status, exit, lingering, ..task() });
        assert_eq!(status_of(Status::Completed, Some(Exit::Code(0)), true), "completed +lingering");
        assert_eq!(status_of(Status::Failed, Some(Exit::Signal(9)), false), "failed (SIGKILL)");
        assert_eq!(status_of(Status::Failed, Some(Exit::Signal(40)), false), "failed (signal 40)");
        assert_eq!(status_of(Status::Failed, None, false), "failed");
        assert_eq!(status_of(Status::Cancelled, Some(Exit::Signal(15)), false), "cancelled");
        let late = Task {
            status: Status::Failed,
            exit: Some(Exit::Signal(15)),
            error: Some("timed out after 10s; its agent said nothing".into()),
            timed_out: true,
            time_limit_ms: Some(10_000),
            ..task()
        };
        assert_eq!(status_of_task(&late), "failed (timed out after 10s)");
        let mut incomplete = Task { status: Status::Completed, lingering: true, ..task() };
        incomplete.output.lost_bytes = 1;
        assert_eq!(status_of_task(&incomplete), "completed +lingering +output-lost");
        let unknown = Some(Exit::Unknown("not a pidfd".into()));
        assert_eq!(status_of(Status::Completed, unknown, false), "completed (exit unknown)");
    }

    #[test]
    fn an_agent_that_waits_for_somebody_is_seen_in_the_list() {
        let agent = |status, needs_input, stalled| {
            let progress = Progress { needs_input, stalled, ..Progress::default() };
            status_of_task(&Task { kind: Kind::Agent, status, progress, ..task() })
        };
        assert_eq!(agent(Status::Running, None, false), "running");
        assert_eq!(agent(Status::Running, None, true), "running (stalled)");
        assert_eq!(agent(Status::Resumed, Some(question()), true), "resumed (asks)");
        assert_eq!(agent(Status::Completed, Some(question()), true), "completed");
        let last_words = Some(format!("429,\n{}", "try again ".repeat(10)));
        let progress = Progress { stalled: true, last_words, ..Progress::default() };
        let stalled = status_of_task(&Task { status: Status::Running, progress, ..task() });
        assert!(stalled.starts_with("running (stalled: 429, try again") && stalled.len() < 70, "{stalled}");
        let suspect = Task { status: Status::Completed, suspect: Some("an error".into()), ..task() };
        assert_eq!(status_of_task(&suspect), "completed (suspect)");
    }

    #[test]
    fn a_task_is_one_line_whatever_it_is_called() {
        let odd = Task { description: "two\nlines\tand \x1b[31mred ".repeat(50), ..task() };
        assert_eq!(list(std::slice::from_ref(&odd), &plain()).matches('\n').count(), 1);
        let table = list(&[odd], &Look { table: true, ..plain() });
        assert!(table.starts_with("ID"));
        assert_eq!(table.lines().count(), 2);
        assert!(!table.contains('\x1b'));
    }

    #[test]
    fn r115_a_pending_task_says_why_it_waits_and_a_tree_what_it_comes_after() {
        let first = Task { status: Status::Running, ..task() };
        let other = TaskId::from_u128(0x91bc_04d2 << 96);
        let on = |id| Dependency { id, condition: Condition::Ok, met: false };
        let waiting = Waiting { reason: WaitingFor::After, ids: vec![first.id, other], until: None };
        let second = Task {
            id: TaskId::from_u128(2 << 96),
            after: vec![on(first.id), on(other)],
            waiting: Some(waiting),
            ..task()
        };
        assert_eq!(status_of_task(&Task { paused: true, ..first.clone() }), "running (paused)");
        let held = Waiting { reason: WaitingFor::Held, ids: Vec::new(), until: None };
        assert_eq!(status_of_task(&Task { waiting: Some(held), ..task() }), "pending (held)");
        assert_eq!(status_of_task(&second), "pending (after 3f2a9c1e, 91bc04d2)");
        let shown = tree(&[second, first], crate::render::tree::ASCII, &plain());
        let lines: Vec<&str> = shown.lines().collect();
        assert!(lines[0].starts_with("3f2a9c1e\trunning\t"), "{shown}");
        assert!(lines[1].starts_with("`- 00000002 (also after 91bc04d2)\tpending (after "), "{shown}");
    }

    #[test]
    fn a_clock_that_was_set_back_makes_no_age() {
        assert_eq!(between(at(10), at(5)), 0);
    }
}
