//! Lists of tasks: a table for people, columns with tabs for programs.

use bgd_shared::task::{Exit, Status, Task};
use bgd_shared::time::Timestamp;
use comfy_table::{Cell, Color, ColumnConstraint, ContentArrangement, Row, Table, presets};
use nix::sys::signal::Signal;

use super::clean;
use crate::duration::show_ms;

/// How a list is to look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Look {
    /// As a table with a header that fits the terminal.
    pub table: bool,
    /// With colours.
    pub colour: bool,
    /// The time that ages are counted to.
    pub now: Timestamp,
}

impl Look {
    /// A table on a terminal, coloured unless `NO_COLOR` is set; else plain columns.
    pub fn of_terminal(is_terminal: bool) -> Self {
        let no_colour = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        Self { table: is_terminal, colour: is_terminal && !no_colour, now: Timestamp::now() }
    }
}

const HEADER: [&str; 5] = ["ID", "STATUS", "AGE", "TIME", "DESCRIPTION"];

/// The tasks in the order given.
pub fn list(tasks: &[Task], look: &Look) -> String {
    if look.table {
        return table(tasks, look);
    }
    let mut text = String::with_capacity(tasks.len() * 64);
    for task in tasks {
        text.push_str(&columns(task, look.now).join("\t"));
        text.push('\n');
    }
    text
}

fn table(tasks: &[Task], look: &Look) -> String {
    let rows = tasks.iter().map(|task| {
        let columns = columns(task, look.now);
        let cells = columns.into_iter().enumerate().map(|(place, text)| {
            let cell = Cell::new(text);
            match (look.colour, place) {
                (true, 1) => cell.fg(colour(task.status)),
                (true, 2) => cell.fg(Color::DarkGrey),
                _ => cell,
            }
        });
        Row::from(cells.collect::<Vec<_>>())
    });
    fitted(HEADER, rows)
}

/// A table that fits the terminal: a row is one line, its header too, and the last column is cut to what
/// is left.
pub fn fitted(header: impl IntoIterator<Item = &'static str>, rows: impl Iterator<Item = Row>) -> String {
    let mut header = Row::from(header);
    header.max_height(1);
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Dynamic)
        .set_header(header);
    for mut row in rows {
        row.max_height(1);
        table.add_row(row);
    }
    let last = table.column_count().saturating_sub(1);
    for (place, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
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

/// Id, status, age, run time, description.
fn columns(task: &Task, now: Timestamp) -> [String; 5] {
    let age = show_ms(between(task.created_at, now));
    [id(task), status(task), age, run_time(task, now), clean(&task.description)]
}

/// The short id; `(resumed)` behind it tells that the task is more than its first prompt (R38).
fn id(task: &Task) -> String {
    let mut text = task.id.short();
    if task.resume_count > 0 {
        text.push_str(" (resumed)");
    }
    text
}

/// One task on a line: complete id, status, run time, description.
pub fn summary_line(task: &Task, now: Timestamp) -> String {
    format!("{}\t{}\t{}\t{}\n", task.id, status(task), run_time(task, now), clean(&task.description))
}

/// The status with what is worth knowing at a glance: how a failed task ended, what lives on, and whether
/// an agent waits for somebody.
pub fn status(task: &Task) -> String {
    let how = match (&task.exit, task.status) {
        // The signal that the limit sent would read as if somebody had killed it.
        (_, Status::Failed) if task.timed_out => format!(" ({})", timed_out(task)),
        (Some(Exit::Code(code)), Status::Failed) => format!(" ({code})"),
        (Some(Exit::Signal(signal)), Status::Failed) => format!(" ({})", signal_name(*signal)),
        (Some(Exit::Unknown(_)), Status::Failed | Status::Completed) => " (exit unknown)".to_owned(),
        (_, status) if status.is_active() => attention(task).to_owned(),
        _ => String::new(),
    };
    let lingering = if task.lingering { " +lingering" } else { "" };
    let lost = if task.output.lost_bytes > 0 { " +output-lost" } else { "" };
    format!("{}{how}{lingering}{lost}", task.status)
}

/// That the time limit ended a task, and which one. Its error may say more behind that.
fn timed_out(task: &Task) -> String {
    let error = task.error.as_deref().unwrap_or("timed out");
    clean(error.split([';', ':', ',']).next().unwrap_or(error))
}

/// Why somebody may want to look at a task that goes on. One that asks is silent because it asks.
fn attention(task: &Task) -> &'static str {
    match (&task.progress.needs_input, task.progress.stalled) {
        (Some(_), _) => " (asks)",
        (None, true) => " (stalled)",
        (None, false) => "",
    }
}

/// A signal as people know it.
pub fn signal_name(number: i32) -> String {
    Signal::try_from(number).map_or_else(|_| format!("signal {number}"), |signal| signal.as_str().to_owned())
}

/// How long the task has run, or ran; `-` if it never did.
pub fn run_time(task: &Task, now: Timestamp) -> String {
    match task.started_at {
        Some(started) => show_ms(between(started, task.completed_at.unwrap_or(now))),
        None => "-".to_owned(),
    }
}

/// The milliseconds from one time to another; none if the clock was set back in between.
pub fn between(from: Timestamp, to: Timestamp) -> u64 {
    u64::try_from(to.unix_ms().saturating_sub(from.unix_ms())).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use bgd_shared::task::{Kind, Progress};

    use crate::render::samples::{question, task};

    fn at(second: i64) -> Timestamp {
        Timestamp::from_unix_ms(second * 1000)
    }

    fn plain() -> Look {
        Look { table: false, colour: false, now: at(1_100) }
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
    fn r38_a_resumed_task_says_so_behind_its_id() {
        let resumed = Task { resume_count: 2, status: Status::Completed, ..task() };
        for look in [plain(), Look { table: true, ..plain() }] {
            assert!(list(std::slice::from_ref(&resumed), &look).contains("3f2a9c1e (resumed)"));
            assert!(!list(&[task()], &look).contains("resumed"));
        }
    }

    #[test]
    fn the_status_tells_how_it_ended_and_what_lives_on() {
        let status_of = |status, exit, lingering| super::status(&Task { status, exit, lingering, ..task() });
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
            ..task()
        };
        assert_eq!(super::status(&late), "failed (timed out after 10s)");
        let mut incomplete = Task { status: Status::Completed, lingering: true, ..task() };
        incomplete.output.lost_bytes = 1;
        assert_eq!(super::status(&incomplete), "completed +lingering +output-lost");
        let unknown = Some(Exit::Unknown("no pidfd".into()));
        assert_eq!(status_of(Status::Completed, unknown, false), "completed (exit unknown)");
    }

    #[test]
    fn an_agent_that_waits_for_somebody_is_seen_in_the_list() {
        let agent = |status, needs_input, stalled| {
            let progress = Progress { needs_input, stalled, ..Progress::default() };
            super::status(&Task { kind: Kind::Agent, status, progress, ..task() })
        };
        assert_eq!(agent(Status::Running, None, false), "running");
        assert_eq!(agent(Status::Running, None, true), "running (stalled)");
        assert_eq!(agent(Status::Resumed, Some(question()), true), "resumed (asks)");
        assert_eq!(agent(Status::Completed, Some(question()), true), "completed");
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
    fn a_clock_that_was_set_back_makes_no_age() {
        assert_eq!(between(at(10), at(5)), 0);
    }
}
