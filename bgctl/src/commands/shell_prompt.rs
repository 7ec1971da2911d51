//! `shell-prompt`: the numbers of running, asking and failed tasks, in a few characters for a shell prompt (R169). It
//! runs before each prompt: it starts no daemon, makes one round trip, and is silent about every failure.

use std::time::{Duration, Instant};

use bgd_shared::client::{Client, ClientError};
use bgd_shared::request::{ListParams, ListResult, TaskList};
use bgd_shared::socket::SocketPath;
use bgd_shared::task::{Status, Task};

use crate::cli::ShellPromptArgs;
use crate::context::Context;
use crate::exit::Code;
use crate::failure::Failure;
use crate::render::signs;
use crate::state::{self, Seen};

/// Maximum number of tasks counted of each kind, so that the answer stays short.
const COUNTED: usize = 99;

/// The signs for running and for failed tasks.
type Signs = [&'static str; 2];

const SYMBOLS: Signs = ["\u{25b6}", "\u{2717}"];
const ASCII: Signs = [">", "x"];

/// Prints the text, if there is one.
pub fn run(args: &ShellPromptArgs, context: &mut Context) -> Result<Code, Failure> {
    // Reaching a remote machine takes longer than a prompt may.
    if context.link.is_remote() {
        return Ok(Code::OK);
    }
    // Errors do not belong in a prompt; other verbs report them.
    let Ok(socket) = context.link.socket() else { return Ok(Code::OK) };
    if let Ok([running, failed]) = ask(&socket, Duration::from_millis(args.timeout)) {
        let signs = if signs::is_utf8() { SYMBOLS } else { ASCII };
        context.print(&text(&running, &failed, state::last_seen(&socket).as_ref(), signs))?;
    }
    Ok(Code::OK)
}

/// Returns the running and the failed tasks, unless that takes longer than `patience`. Both calls are sent before the
/// first answer is read.
fn ask(socket: &SocketPath, patience: Duration) -> Result<[ListResult; 2], ClientError> {
    let begin = Instant::now();
    let mut client = Client::connect_within(socket, patience)?;
    let of = |status| ListParams { status, limit: Some(COUNTED), ..ListParams::default() };
    let running = client.send::<TaskList>(&of(vec![Status::Running, Status::Resumed]), &[])?;
    let failed = client.send::<TaskList>(&of(vec![Status::Failed]), &[])?;
    let mut answer = |call| {
        client.wait_at_most(patience.saturating_sub(begin.elapsed()));
        client.answer::<TaskList>(call)
    };
    Ok([answer(running)?, answer(failed)?])
}

fn text(running: &ListResult, failed: &ListResult, last_seen: Option<&Seen>, signs: Signs) -> String {
    let count =
        |list: &ListResult, fits: &dyn Fn(&Task) -> bool| list.tasks.iter().filter(|task| fits(task)).count();
    let asks = |task: &Task| task.progress.needs_input.is_some();
    let is_new = |task: &Task| state::is_news(last_seen, task);
    let parts: Vec<String> = [
        (count(running, &|task| !asks(task)), signs[0], running),
        (count(running, &asks), "?", running),
        (count(failed, &is_new), signs[1], failed),
    ]
    .into_iter()
    .filter(|(count, ..)| *count > 0)
    .map(|(count, sign, of)| {
        // Failures beyond the page do not add to the count if some of this page were already seen.
        let countable = || of.tasks.iter().filter(|task| !task.ended_in_foreground).count();
        let is_cut = of.next.is_some() && (sign != signs[1] || count == countable());
        format!("{count}{}{sign}", if is_cut { "+" } else { "" })
    })
    .collect();
    // The space separates the text from the rest of the prompt; `$(…)` would strip a line break.
    if parts.is_empty() { String::new() } else { format!("bgd:{} ", parts.join(" ")) }
}

#[cfg(test)]
mod tests {
    use bgd_shared::task::Summary;
    use bgd_shared::time::Timestamp;

    use super::*;
    use crate::render::samples;

    fn list(tasks: Vec<Task>, next: Option<u64>) -> ListResult {
        ListResult { tasks, next, summary: Summary::default(), cleared: None }
    }

    #[test]
    fn r169_prompt_counts_running_asking_and_newly_failed_tasks() {
        let at = |second: i64| Timestamp::from_unix_ms(second * 1000);
        let failed =
            |second| Task { status: Status::Failed, completed_at: Some(at(second)), ..samples::task() };
        let mut asks = samples::task();
        asks.progress.needs_input = Some(samples::question());
        let running = list(vec![samples::task(), asks, samples::task()], None);
        let failures = list(vec![failed(20), failed(10)], Some(1));
        let nothing = list(Vec::new(), None);
        let seen = |second| Seen { at: at(second), unseen: std::collections::BTreeSet::new() };
        let shown = |running, failed, last_seen: Option<i64>| {
            text(running, failed, last_seen.map(seen).as_ref(), SYMBOLS)
        };
        assert_eq!(shown(&running, &failures, Some(15)), "bgd:2▶ 1? 1✗ ");
        assert_eq!(shown(&nothing, &failures, None), "bgd:2+✗ ");
        assert_eq!(shown(&nothing, &failures, Some(20)), "");
        let before_its_user = Task { ended_in_foreground: true, ..failed(30) };
        let with_seen = list(vec![before_its_user, failed(20)], Some(1));
        assert_eq!(shown(&nothing, &with_seen, Some(15)), "bgd:1+✗ ");
        assert_eq!(text(&running, &failures, Some(&seen(15)), ASCII), "bgd:2> 1? 1x ");
        assert_eq!(shown(&list(vec![samples::task()], Some(1)), &nothing, None), "bgd:1+▶ ");
    }
}
