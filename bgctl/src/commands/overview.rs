//! Bare `bgctl` on a terminal: which agents ask, what runs, what has ended since the user last looked, and what to do
//! next (R167).

use std::fmt::Write as _;

use bgd_shared::id::TaskId;
use bgd_shared::limits::LIST_PAGE;
use bgd_shared::request::{ListParams, ListResult, TaskList};
use bgd_shared::show;
use bgd_shared::task::{Status, Task};
use bgd_shared::time::Timestamp;

use crate::context::Context;
use crate::exit::Code;
use crate::failure::Failure;
use crate::render::list_format::ListFormat;
use crate::render::table::list;
use crate::state::{self, Seen};

/// Maximum number of tasks shown of each kind.
const SHOWN: usize = 10;

/// Maximum number of pages read of each kind, so that bare `bgctl` answers quickly however many tasks there are.
const PAGES: usize = 10;

/// The statuses to read, each kind by itself, so that a task is found however many tasks of other kinds are newer.
const KINDS: [&[Status]; 4] = [
    &[Status::Running, Status::Resumed],
    &[Status::Pending],
    &[Status::Failed],
    &[Status::Completed, Status::Cancelled],
];

/// Prints the overview. Never starts a daemon: without one nothing runs.
pub fn run(context: &mut Context) -> Result<Code, Failure> {
    let Some(mut client) = context.link.running()? else {
        context.print("nothing is running, and there is no daemon yet\n\n")?;
        context.print(&next(&[], &[]))?;
        return Ok(Code::OK);
    };
    let format = ListFormat::of_output(context.colours());
    let known = Known::read(|params| Ok(client.call::<TaskList>(params)?))?;
    // The notes of this machine do not cover tasks of a remote daemon.
    let here = if context.link.is_remote() { None } else { Some(context.link.socket()?) };
    let last_seen = here.as_ref().and_then(state::last_seen);
    let (text, unseen) = text(known, last_seen.as_ref(), &format);
    context.print(&text)?;
    if let Some(socket) = &here {
        state::record_seen(socket, format.clock.now, unseen);
    }
    Ok(Code::OK)
}

/// The tasks by kind, each newest first.
#[derive(Default)]
struct Known {
    tasks: [Vec<Task>; KINDS.len()],
    /// Whether any were left out.
    is_cut: bool,
    /// Number of pending tasks: only the first ones are read.
    pending: usize,
}

impl Known {
    fn read(mut call: impl FnMut(&ListParams) -> Result<ListResult, Failure>) -> Result<Self, Failure> {
        let mut known = Self::default();
        for (kind, tasks) in KINDS.iter().zip(&mut known.tasks) {
            let is_pending = kind.contains(&Status::Pending);
            let limit = Some(if is_pending { SHOWN } else { LIST_PAGE });
            let mut params = ListParams { status: kind.to_vec(), limit, ..ListParams::default() };
            for _ in 0..if is_pending { 1 } else { PAGES } {
                let page = call(&params)?;
                tasks.extend(page.tasks);
                known.pending = usize::try_from(page.summary.pending).unwrap_or(usize::MAX);
                params.after = page.next;
                if params.after.is_none() {
                    break;
                }
            }
            known.is_cut |= params.after.is_some() && !is_pending;
        }
        Ok(known)
    }
}

/// Returns the overview, and the failures for which it has no room, with their end times.
fn text(known: Known, last_seen: Option<&Seen>, format: &ListFormat) -> (String, Vec<(TaskId, Timestamp)>) {
    let Known { tasks: [running, pending, failed, others], is_cut, pending: all_pending } = known;
    let (asks, mut quiet): (Vec<Task>, Vec<Task>) =
        running.into_iter().partition(|task| task.progress.needs_input.is_some());
    let not_read = all_pending.saturating_sub(pending.len());
    quiet.extend(pending);
    let is_new = |task: &Task| state::is_news(last_seen, task);
    // Failures first, so that only less important tasks are left out for lack of room.
    let mut news: Vec<Task> = failed.into_iter().filter(is_new).collect();
    let ended_at = |task: &Task| Some((task.id, task.completed_at?));
    let unseen = news.iter().skip(SHOWN).filter_map(ended_at).collect();
    news.extend(others.into_iter().filter(is_new));
    let since = last_seen.map_or_else(
        || "ended:".to_owned(),
        |last_seen| {
            format!(
                "ended since you looked {} ago:",
                show::elapsed(format.clock.now.millis_since(last_seen.at))
            )
        },
    );
    let mut text = String::new();
    for (title, tasks, more) in [
        ("asks you:", &asks[..], 0),
        ("running and pending:", &quiet[..], not_read),
        (since.as_str(), &news[..], 0),
    ] {
        part(&mut text, title, tasks, more, format);
    }
    if is_cut {
        text.push_str("There are too many tasks to check them all here; `bgctl list --all` shows all.\n\n");
    }
    if text.is_empty() {
        text.push_str("nothing is running, and nothing has ended in the background since you looked\n\n");
    }
    (text + &next(&asks, &news), unseen)
}

fn part(text: &mut String, title: &str, tasks: &[Task], more: usize, format: &ListFormat) {
    if tasks.is_empty() {
        return;
    }
    let shown = &tasks[..tasks.len().min(SHOWN)];
    // Writing to a string can't fail.
    let _ = write!(text, "{title}\n{}", list(shown, format));
    let more = more + tasks.len() - shown.len();
    if more > 0 {
        let _ = writeln!(text, "and {more} more: bgctl list");
    }
    text.push('\n');
}

/// Returns the most suitable next commands.
fn next(asks: &[Task], ended: &[Task]) -> String {
    let mut lines = Vec::new();
    if let Some(task) = asks.first() {
        lines.push((format!("bgctl answer {}", task.id.short()), "see the question, and answer it"));
    }
    if let Some(task) = ended.iter().find(|task| task.status == Status::Failed) {
        lines.push((format!("bgctl output {}", task.id.short()), "see why it failed"));
    }
    lines.push(("bgctl top".to_owned(), "watch all tasks, with their output"));
    lines.push(("bgctl run -- COMMAND".to_owned(), "run something; Ctrl-B moves it to the background"));
    lines.push(("bgctl --help".to_owned(), "all verbs"));
    let mut text = String::from("next:\n");
    for (command, what) in lines {
        let _ = writeln!(text, "  {command:<22} {what}");
    }
    text
}

#[cfg(test)]
mod tests {
    use bgd_shared::task::Summary;

    use super::*;
    use crate::render::samples;

    #[test]
    fn r167_overview_lists_what_matters_with_next_commands() {
        let at = |second: i64| Timestamp::from_unix_ms(second * 1000);
        let ended = |status, second| Task { status, completed_at: Some(at(second)), ..samples::task() };
        let mut asks = Task { status: Status::Running, ..samples::task() };
        asks.progress.needs_input = Some(samples::question());
        let last_seen = Seen { at: at(1_040), unseen: std::collections::BTreeSet::new() };
        let of = |running: Vec<Task>, pending: Vec<Task>, failed: Vec<Task>, others: Vec<Task>| {
            let known =
                Known { pending: pending.len(), tasks: [running, pending, failed, others], is_cut: false };
            text(known, Some(&last_seen), &ListFormat::of_tests())
        };
        let (shown, unseen) = of(
            vec![asks],
            vec![samples::task()],
            vec![ended(Status::Failed, 1_090)],
            vec![ended(Status::Completed, 1_010)],
        );
        assert_eq!(unseen, []);
        let lines: Vec<&str> = shown.lines().collect();
        assert_eq!(
            (lines[0], lines[3], lines[6]),
            ("asks you:", "running and pending:", "ended since you looked 1m 00s ago:")
        );
        assert!(lines[7].contains("failed") && lines[8].is_empty(), "{shown}");
        assert_eq!(
            lines[9..12],
            [
                "next:",
                "  bgctl answer 3f2a9c1e  see the question, and answer it",
                "  bgctl output 3f2a9c1e  see why it failed",
            ]
        );
        let seen = Task { ended_in_foreground: true, ..ended(Status::Failed, 1_090) };
        let (shown, _) = of(vec![], vec![], vec![seen], vec![ended(Status::Completed, 1_010)]);
        assert!(
            shown.starts_with(
                "nothing is running, and nothing has ended in the background since you looked\n\nnext:\n  \
                 bgctl top"
            ),
            "{shown}"
        );
        let many = |task: Task| std::iter::repeat_n(task, 30).collect::<Vec<Task>>();
        let (shown, unseen) = of(many(samples::task()), vec![], many(ended(Status::Failed, 1_090)), vec![]);
        assert_eq!(shown.matches("and 20 more: bgctl list\n").count(), 2, "{shown}");
        assert_eq!(unseen.len(), 20, "what was not shown was not looked at");
    }

    #[test]
    fn r167_overview_reads_all_pages_of_each_status() {
        let mut asked = Vec::new();
        let known = Known::read(|params| {
            asked.push((params.status[0], params.limit, params.after));
            let next = params.after.map_or(Some(1), |after| (after < 2).then_some(after + 1));
            let task = Task { status: params.status[0], ..samples::task() };
            Ok(ListResult {
                tasks: vec![task],
                next,
                summary: Summary { pending: 70, ..Summary::default() },
                cleared: None,
            })
        })
        .unwrap();
        assert_eq!(known.tasks.each_ref().map(Vec::len), [3, 1, 3, 3]);
        assert_eq!((known.pending, known.is_cut), (70, false));
        assert_eq!(asked[..3].iter().map(|asked| asked.2).collect::<Vec<_>>(), [None, Some(1), Some(2)]);
        assert!(
            text(known, None, &ListFormat::of_tests()).0.contains("and 69 more"),
            "of those not read, too"
        );
        let endless = |_: &ListParams| {
            Ok(ListResult { tasks: Vec::new(), next: Some(1), summary: Summary::default(), cleared: None })
        };
        assert!(Known::read(endless).unwrap().is_cut);
    }
}
