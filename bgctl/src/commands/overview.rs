//! `bgctl` alone on a terminal: what asks, what runs, what has ended since the user looked, and what to do next (R167).

use std::fmt::Write as _;

use bgd_shared::limits::LIST_PAGE;
use bgd_shared::request::{ListParams, TaskList};
use bgd_shared::task::{Status, Task};
use bgd_shared::time::Timestamp;

use crate::context::Context;
use crate::duration::show_ms;
use crate::exit::Code;
use crate::failure::Failure;
use crate::render::look::Look;
use crate::render::table::{between, list};
use crate::state;

/// The most tasks of each kind.
const SHOWN: usize = 10;

/// Prints the overview. Never starts a daemon: without one nothing runs.
pub fn run(context: &mut Context) -> Result<Code, Failure> {
    let Some(mut client) = context.link.running()? else {
        context.print("nothing is running, and there is no daemon yet\n\n")?;
        context.print(&next(&[], &[]))?;
        return Ok(Code::OK);
    };
    let params = ListParams { limit: Some(LIST_PAGE), ..ListParams::default() };
    let tasks = client.call::<TaskList>(&params)?.tasks;
    // What was seen there is not known here.
    let is_remote = context.link.is_remote();
    let looked_at = if is_remote { None } else { state::last_look() };
    let look = Look::of_output(context.colours());
    context.print(&text(&tasks, looked_at, &look))?;
    if !is_remote {
        state::note_look();
    }
    Ok(Code::OK)
}

fn text(tasks: &[Task], looked_at: Option<Timestamp>, look: &Look) -> String {
    let now = look.clock.now;
    let (active, ended): (Vec<Task>, Vec<Task>) =
        tasks.iter().cloned().partition(|task| task.status.is_active());
    let (asks, quiet): (Vec<Task>, Vec<Task>) =
        active.into_iter().partition(|task| task.progress.needs_input.is_some());
    let is_new = |task: &Task| task.completed_at.is_some_and(|at| looked_at.is_none_or(|looked| at > looked));
    let news: Vec<Task> = ended.into_iter().filter(is_new).collect();
    let since = looked_at.map_or_else(
        || "ended:".to_owned(),
        |at| format!("ended since you looked {} ago:", show_ms(between(at, now))),
    );
    let mut text = String::new();
    for (title, tasks) in
        [("asks you:", &asks[..]), ("running and pending:", &quiet[..]), (since.as_str(), &news[..])]
    {
        part(&mut text, title, tasks, look);
    }
    if text.is_empty() {
        text.push_str("nothing is running, and nothing has ended since you looked\n\n");
    }
    text + &next(&asks, &news)
}

fn part(text: &mut String, title: &str, tasks: &[Task], look: &Look) {
    if tasks.is_empty() {
        return;
    }
    let shown = &tasks[..tasks.len().min(SHOWN)];
    // Writing to a string can't fail.
    let _ = write!(text, "{title}\n{}", list(shown, look));
    if tasks.len() > SHOWN {
        let _ = writeln!(text, "and {} more", tasks.len() - SHOWN);
    }
    text.push('\n');
}

/// The commands that fit best.
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
    use super::*;
    use crate::render::samples;

    #[test]
    fn r167_what_matters_comes_with_what_to_do() {
        let at = |second: i64| Timestamp::from_unix_ms(second * 1000);
        let ended = |status, second| Task { status, completed_at: Some(at(second)), ..samples::task() };
        let mut asks = Task { status: Status::Running, ..samples::task() };
        asks.progress.needs_input = Some(samples::question());
        let tasks = [asks, samples::task(), ended(Status::Failed, 1_090), ended(Status::Completed, 1_010)];
        let shown = text(&tasks, Some(at(1_040)), &Look::of_tests());
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
        let shown = text(&tasks[3..], Some(at(1_040)), &Look::of_tests());
        assert!(
            shown.starts_with(
                "nothing is running, and nothing has ended since you looked\n\nnext:\n  bgctl top"
            ),
            "{shown}"
        );
        let many: Vec<Task> = std::iter::repeat_n(samples::task(), 30).collect();
        assert!(text(&many, None, &Look::of_tests()).contains("and 20 more\n"));
    }
}
