//! `block`: waits for tasks; the exit code reflects how they ended.

mod remaining;
mod seen;

use std::cell::Cell;
use std::collections::BTreeMap;
use std::io::IsTerminal as _;
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use bgd_shared::client::{Client, ClientError, Protocol};
use bgd_shared::id::TaskId;
use bgd_shared::order::CancelReason;
use bgd_shared::request::{
    BlockMode, BlockParams, BlockResult, BlockUntil, Hello, HelloParams, Method, OutputParams, TaskBlock,
    TaskOutput,
};
use bgd_shared::show;
use bgd_shared::task::{Exit, Status, Task};
use bgd_shared::time::Timestamp;

use self::seen::Seen;
use super::line::{self, Wanted};
use crate::cli::BlockArgs;
use crate::context::Context;
use crate::exit::Code;
use crate::failure::Failure;
use crate::link::{Heard, Listener, sleep, time_left};
use crate::name::Name;
use crate::pick::{self, Chosen};
use crate::progress::bar::{self, Bar};
use crate::progress::percent::{LINE_BYTES, in_output};
use crate::remark::say;
use crate::render::clean;
use crate::render::json;
use crate::render::page::denied;
use crate::render::signs::ellipsis;
use crate::render::table::{status, summary_line, was_not_ready};
use crate::render::wall::Clock;
use crate::terminal::{ENDING, Taken, end_by};

/// Maximum number of tasks to name in a request, and to show progress for: with more ids, the request would be too
/// long.
const NAMED: usize = 20_000;

/// Waits, then prints one line per task.
pub fn run(args: BlockArgs, context: &mut Context) -> Result<Code, Failure> {
    if let Some(pattern) = args.line {
        let several = || Failure::usage("--line takes exactly one task");
        let mut names = args.ids;
        let name = names.pop();
        if !names.is_empty() {
            return Err(several());
        }
        let mut ids = pick::each(name, args.select, context)?;
        let (Some(id), true) = (ids.pop(), ids.is_empty()) else { return Err(several()) };
        return line::run(Wanted { id, pattern, since: args.since, timeout_ms: args.timeout.0 }, context);
    }
    let is_one = matches!(&args.ids[..], [Name::Id(_) | Name::Latest(_)]);
    let is_implied = args.ids.is_empty() && args.select.is_empty();
    if args.exit_code && !is_one && !is_implied {
        return Err(Failure::usage("--exit-code takes exactly one id"));
    }
    let mode = if args.any { BlockMode::Any } else { BlockMode::All };
    let names = args.ids.clone();
    let chosen = if is_implied {
        Chosen::Ids(vec![pick::implied(context)?])
    } else {
        pick::chosen(args.ids, args.select, context)?
    };
    let (ids, matching) = chosen.split();
    let has_status = matching.as_ref().is_none_or(|matching| !matching.status.is_empty());
    let mut params = BlockParams { ids, matching, timeout_ms: args.timeout.0, mode, until: args.until };
    // Progress is for people; scripts need not pay for it.
    let is_shown = args.timeout.0 != Some(0) && std::io::stderr().is_terminal() && !context.json();
    let is_fixed = matches!(&params.ids[..], [id] if id.exact().is_some());
    let mut seen = if !is_fixed && params.timeout_ms != Some(0) {
        fix_selection(&mut params, context)?
    } else {
        Seen::default()
    };
    if names.len() > 1 {
        seen.note_cleared(context.recovering(|context| pick::cleared(&names, context))?);
    }
    let (result, unknown) = waited(params, seen, is_shown, context)?;
    if result.tasks.is_empty() && !has_status {
        return Err(Failure::new(Code::NO_TASK, "task_not_found", "no task matches")
            .hint("`bgctl list` with the same options shows the matching tasks"));
    }
    let clock = Clock::system(Timestamp::now());
    context.print_bytes(&shown(&result, context.json(), &clock)?)?;
    if !context.json() {
        context.flush()?;
        for remark in remarks(&result) {
            say(format_args!("{remark}"));
        }
        if args.until == BlockUntil::Ready {
            // The line of a task that was not ready in time says so.
            let is_unsaid = |task: &&Task| was_never_ready(task) && !was_not_ready(task);
            for task in result.tasks.iter().filter(is_unsaid) {
                say(format_args!("bgctl: {} ended without being ready: {}", task.id, status(task, &clock)));
            }
        }
        // A timeout of 0 only asks for the current state.
        if let (true, Some(ms @ 1..)) = (result.timed_out, args.timeout.0) {
            say(format_args!("bgctl: timed out after {}", show::duration(ms)));
        }
    }
    let code = match args.until {
        BlockUntil::Ready => code_of_ready(&result),
        BlockUntil::Ended if args.exit_code => own_code(&result),
        BlockUntil::Ended => code(&result),
    };
    if unknown.is_empty() { Ok(code) } else { Err(seen::unknown(&unknown, code)) }
}

/// Renders the text for standard output.
fn shown(result: &BlockResult, json: bool, clock: &Clock) -> Result<Vec<u8>, Failure> {
    if json {
        return Ok(json::line(result)?);
    }
    let mut text = Vec::new();
    for task in &result.tasks {
        text.extend_from_slice(summary_line(task, clock).as_bytes());
    }
    Ok(text)
}

/// A sample answer, as for a command that has succeeded.
const SAMPLE: &[u8] = br#"{"jsonrpc":"2.0","id":1,"result":{"tasks":[{"id":"724fede0-9209-4435-bc37-e308e63f1f21","kind":"process","origin":"submit","foreground":false,"status":"completed","description":"make test","argv":["make","test"],"cwd":"/","pid":21330,"run":1,"resume_count":0,"created_at":"2026-01-01T00:00:00.000Z","started_at":"2026-01-01T00:00:00.004Z","completed_at":"2026-01-01T00:00:02.004Z","exit":{"code":0},"lingering":false,"usage":{"user_ms":0,"system_ms":0,"written_bytes":0},"progress":{"output_bytes":0,"tool_calls":0},"output":{"path":"/724fede0-9209-4435-bc37-e308e63f1f21.out","bytes":0,"dropped_bytes":0}}],"timed_out":false,"finished":["724fede0-9209-4435-bc37-e308e63f1f21"],"active":[]}}
"#;

/// Processes a sample answer without printing it. While waiting there is time to load all code that the real answer
/// needs, which would otherwise be loaded after the task has ended, while the caller waits.
fn warm_up(json: bool) -> Result<(Vec<u8>, Code), Failure> {
    let result = Protocol::parse_for_warm_up::<TaskBlock>(SAMPLE)?;
    let text = shown(&result, json, &Clock::system(Timestamp::now()))?;
    drop(remarks(&result));
    Ok((text, code(&result)))
}

/// Waits, across lost connections, and shows progress if requested. Returns those tasks separately that were cleared
/// meanwhile, and of which the end is not known.
fn waited(
    params: BlockParams,
    seen: Seen,
    is_shown: bool,
    context: &mut Context,
) -> Result<(BlockResult, Vec<TaskId>), Failure> {
    let (mut params, mut seen) = (params, seen);
    let waits = params.timeout_ms != Some(0);
    if waits {
        context.link.remember();
    }
    // A call with timeout 0 has no time for the rehearsal, and one rehearsal is enough.
    let warms_up = Cell::new(waits);
    let deadline = params.timeout_ms.and_then(|ms| Instant::now().checked_add(Duration::from_millis(ms)));
    let json = context.json();
    loop {
        let takes = params.timeout_ms.map(Duration::from_millis);
        let outcome = if is_shown {
            watched(&params, takes, context)
        } else {
            let meanwhile = || {
                if warms_up.take() {
                    drop(warm_up(json));
                }
            };
            // No exchange here: a client that waits for a daemon which is stopped must not start it again.
            let client = context.link.client();
            client.and_then(|client| Ok(client.call_meanwhile::<TaskBlock>(&params, takes, meanwhile)?))
        };
        match outcome {
            // The timeout has expired. Reconnecting would only drop a connection that others share.
            Err(failure) if deadline.is_some_and(|deadline| deadline <= Instant::now()) => {
                return Err(failure);
            }
            Err(failure) => {
                if let Err(failure) = seen.drop_cleared(failure, &mut params, context) {
                    context.link.recover_until(failure, deadline)?;
                }
            }
            Ok(result) => return Ok(seen.complete(result, params.mode)),
        }
        let deadline = if seen.is_over(params.mode) { Some(Instant::now()) } else { deadline };
        let left = deadline.map(time_left);
        params.timeout_ms = left.and_then(|left| u64::try_from(left.as_millis()).ok());
    }
}

/// Replaces a selection, names or a prefix by the ids of the tasks: after a lost connection (R126, R142), tasks that have
/// ended meanwhile would no longer match, and a prefix could mean another task. A selection of no tasks, or of too many,
/// is left as it is.
fn fix_selection(params: &mut BlockParams, context: &mut Context) -> Result<Seen, Failure> {
    let look = BlockParams { timeout_ms: Some(0), ..params.clone() };
    let seen = context.recovering(|context| context.call::<TaskBlock>(&look))?;
    if !(1..=NAMED).contains(&seen.tasks.len()) {
        return Ok(Seen::default());
    }
    let ids: Vec<_> = seen.tasks.iter().map(|task| task.id.into()).collect();
    if !context.recovering(|context| pick::fits(&ids, context))? {
        return Ok(Seen::default());
    }
    params.ids = ids;
    params.matching = None;
    Ok(Seen::new(seen, params.until))
}

/// Waits while showing progress. Progress is queried on a separate connection; only the wait itself decides the
/// result, since its answer includes tasks that are cleared or no longer match in the meantime.
fn watched(
    params: &BlockParams,
    takes: Option<Duration>,
    context: &mut Context,
) -> Result<BlockResult, Failure> {
    // Make sure that this daemon is not shutting down before opening further connections to it.
    context.call::<Hello>(&HelloParams::default())?;
    let (aside, news) = (context.link.existing()?, context.link.existing()?);
    let mut aside = ProgressConnection {
        client: aside,
        until: takes.and_then(|takes| Instant::now().checked_add(takes)),
    };
    let client = context.link.client()?;
    let call = client.send_within::<TaskBlock>(params, takes)?;
    let mut progress = Progress::begin(params, &mut aside, news);
    loop {
        if let Some(progress) = &progress {
            progress.bar.draw();
        }
        let tick = progress.is_some().then(|| Instant::now() + bar::TICK);
        let until = client.until().into_iter().chain(tick).min();
        let news = progress.as_ref().map(|progress| progress.news.as_fd());
        let signals = progress.as_ref().map(|progress| progress.signals.as_fd());
        let [is_answered, has_news, is_caught] = sleep([Some(client.as_fd()), news, signals], until)?;
        if is_caught
            && let Some(caught) = progress.as_ref().and_then(|progress| progress.signals.next_caught())
        {
            // Resets the progress shown by the terminal.
            drop(progress.take());
            end_by(caught)?;
        }
        if !is_answered {
            client.keep_up()?;
        } else if let Some(result) = client.answered::<TaskBlock>(call)? {
            return Ok(result);
        }
        // A failure here only ends the progress display: the answer still arrives.
        if has_news && progress.as_mut().is_some_and(|progress| progress.hear(&mut aside).is_err()) {
            progress = None;
        }
    }
}

/// Timeout of calls for the progress display. After a timeout, nothing more is shown.
const LOOK: Duration = Duration::from_secs(3);

/// The connection for the progress display. Its calls must not outlast the wait.
struct ProgressConnection {
    client: Client,
    /// The latest time at which the wait ends.
    until: Option<Instant>,
}

impl ProgressConnection {
    fn call<M: Method>(&mut self, params: &M::Params) -> Result<M::Result, ClientError> {
        let left = self.until.map(time_left);
        self.client.call_within::<M>(params, left)
    }
}

struct Progress {
    ids: Vec<TaskId>,
    look: BlockParams,
    news: Listener,
    bar: Bar,
    /// The signals that end this process, taken over while something is drawn.
    signals: Taken,
}

impl Progress {
    /// Starts the display. Returns `None` if the wait is over already or nothing can be drawn; in the latter case
    /// prints a message instead.
    fn begin(params: &BlockParams, aside: &mut ProgressConnection, mut news: Client) -> Option<Self> {
        let look = BlockParams { timeout_ms: Some(0), ..params.clone() };
        let seen = aside.call::<TaskBlock>(&look).ok().filter(|seen| seen.timed_out)?;
        if !bar::is_drawable() || seen.tasks.len() > NAMED || params.until != BlockUntil::Ended {
            let text = waiting_for(seen.active.len(), seen.tasks.len());
            say(format_args!("{text}"));
            return None;
        }
        let ids: Vec<TaskId> = seen.tasks.iter().map(|task| task.id).collect();
        // Follow the tasks by id: they may stop matching the filter.
        let named = ids.iter().map(|id| (*id).into()).collect();
        let look = BlockParams { ids: named, matching: None, ..look };
        let left = aside.until.map(time_left);
        news.wait_at_most(left.map_or(LOOK, |left| left.min(LOOK)));
        let news = Listener::of(news, &ids).ok()?;
        let signals = Taken::new(ENDING).ok()?;
        // Signals are only read between calls.
        aside.client.wait_at_most(LOOK);
        let mut progress = Self { ids, look, news, bar: Bar::begin(&seen.tasks), signals };
        // Catch up on changes before the subscription began.
        progress.look(aside).ok()?;
        Some(progress)
    }

    fn hear(&mut self, aside: &mut ProgressConnection) -> Result<(), Failure> {
        for heard in self.news.heard()? {
            match heard {
                Heard::Event(event) => self.bar.update([&event.task]),
                Heard::Gap => self.look(aside)?,
            }
        }
        self.show_line(aside)
    }

    fn look(&mut self, aside: &mut ProgressConnection) -> Result<(), Failure> {
        self.bar.update(&aside.call::<TaskBlock>(&self.look)?.tasks);
        self.show_line(aside)
    }

    /// For a single task, fetches the last line, which neither events nor `task.block` contain.
    fn show_line(&mut self, aside: &mut ProgressConnection) -> Result<(), Failure> {
        if let [id] = self.ids[..] {
            let params = OutputParams {
                id: id.into(),
                offset: Some(-LINE_BYTES),
                limit: u64::try_from(LINE_BYTES).ok(),
                stream: None,
            };
            let answer = aside.call::<TaskOutput>(&params)?;
            self.bar.update([&answer.task]);
            self.bar.set_percent(in_output(answer));
        }
        Ok(())
    }
}

/// Returns remarks to the user on the tasks, in addition to their lines. The tasks of a batch that were cancelled
/// before they started all have the same reason, so they share one remark.
fn remarks(result: &BlockResult) -> Vec<String> {
    let mut remarks: Vec<String> = Vec::new();
    remarks.extend(result.cleared.map(|cleared| format!("bgctl: {}", pick::cleared_words(cleared))));
    let mut skipped: BTreeMap<TaskId, usize> = BTreeMap::new();
    for batch in result.tasks.iter().filter_map(skipped_in) {
        *skipped.entry(batch).or_default() += 1;
    }
    // A single one keeps its own remark.
    skipped.retain(|_, number| *number > 1);
    for task in &result.tasks {
        match skipped_in(task).and_then(|batch| Some((batch, skipped.get_mut(&batch)?))) {
            Some((batch, number)) => {
                let number = std::mem::take(number);
                let why = "were cancelled after too many failures (--max-fails)";
                remarks.extend((number > 0).then(|| format!("bgctl: {number} tasks of batch {batch} {why}")));
            }
            None if line_says_why(task) => {}
            None => remarks.extend(failure_of(task)),
        }
        remarks.extend(task.output.loss().map(|loss| format!("bgctl: {}: {}", task.id, clean(&loss))));
    }
    remarks
}

/// Reports whether the line of a task with an exit says all that is known about its end.
fn line_says_why(task: &Task) -> bool {
    let Some(exit) = &task.exit else { return false };
    // The line shows a code or a signal, but not why an exit is unknown.
    let is_shown = |error: &String| !matches!(exit, Exit::Unknown(_)) && *error == exit.words();
    let is_late = task.timed_out || was_not_ready(task);
    task.error.as_ref().is_none_or(|error| is_late || is_shown(error))
}

/// Returns the batch of a task that was cancelled before it started because others of its batch had failed.
fn skipped_in(task: &Task) -> Option<TaskId> {
    let is_skipped = task.cancel_reason == Some(CancelReason::MaxFails) && task.started_at.is_none();
    task.batch.filter(|_| is_skipped)
}

/// Reports why a task failed if its exit status doesn't show it, why its success is doubtful, and which permissions its
/// agent was denied: even a successful task may lack something because of that.
pub fn report_failure(task: &Task) {
    for remark in failure_of(task) {
        say(format_args!("{remark}"));
    }
}

fn failure_of(task: &Task) -> impl Iterator<Item = String> {
    let denied = denied(&task.progress).map(|denied| format!("the agent was denied permission {denied}"));
    let suspect = task.suspect.as_deref().map(|why| format!("suspect: {}", clean(why)));
    let error = task.error.as_deref().map(clean);
    [denied, suspect, error].into_iter().flatten().map(|what| format!("bgctl: {}: {what}", task.id))
}

fn waiting_for(active: usize, all: usize) -> String {
    match (active, all) {
        (_, 1) => format!("waiting for the task {}", ellipsis()),
        _ => format!("waiting for {active} of {all} tasks {}", ellipsis()),
    }
}

/// Returns 0, 1 or 75, depending on the tasks that have ended, even if they were cleared since.
fn code(result: &BlockResult) -> Code {
    let ended = |task: &&Task| !task.status.is_active();
    let is_completed = |task: &Task| task.status == Status::Completed;
    code_unless(result, !result.tasks.iter().filter(ended).all(is_completed))
}

/// Returns 75 after a timeout; 1 if a task has failed, or was cleared from its batch without having completed; else 0.
fn code_unless(result: &BlockResult, has_failed: bool) -> Code {
    if result.timed_out {
        Code::TIMED_OUT
    } else if has_failed || result.cleared.is_some_and(|cleared| cleared.not_completed > 0) {
        Code::TASK_FAILED
    } else {
        Code::OK
    }
}

/// Returns 0, 1 or 75, depending on which tasks became ready; of those cleared since, only their end is known.
fn code_of_ready(result: &BlockResult) -> Code {
    code_unless(result, result.tasks.iter().any(was_never_ready))
}

/// Reports whether a task has ended without being ready. One that was ready may be starting again, and with `--any`,
/// others may still become ready.
fn was_never_ready(task: &Task) -> bool {
    task.ready_at.is_none() && !task.status.is_active()
}

/// Returns the task's own exit code; that of timeout(1) if its time limit ended it; or, if it has none, the same code
/// as without `--exit-code`.
fn own_code(result: &BlockResult) -> Code {
    if !result.timed_out && result.tasks.first().is_some_and(|task| task.timed_out) {
        return Code::TIME_LIMIT;
    }
    let own = result.tasks.first().and_then(|task| task.exit.as_ref()).and_then(Exit::shell_code);
    match own.and_then(|code| u8::try_from(code).ok()) {
        // A task that failed although it exited with 0 is not a success.
        Some(0) | None => code(result),
        Some(_) if result.timed_out => Code::TIMED_OUT,
        Some(own) => Code(own),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::samples::task;
    use bgd_shared::failure::{Failure, FailureKind};
    use bgd_shared::request::ClearedTasks;

    fn result(tasks: Vec<Task>, timed_out: bool) -> BlockResult {
        BlockResult { tasks, timed_out, finished: Vec::new(), active: Vec::new(), cleared: None }
    }

    fn ended(status: Status, exit: Option<Exit>) -> Task {
        Task { status, exit, ..task() }
    }

    #[test]
    fn exit_code_reflects_task_outcomes() {
        let completed = || ended(Status::Completed, Some(Exit::Code(0)));
        let failed = || ended(Status::Failed, Some(Exit::Code(3)));
        let running = || ended(Status::Running, None);
        assert_eq!(code(&result(vec![], false)), Code::OK);
        assert_eq!(code(&result(vec![completed(), completed()], false)), Code::OK);
        assert_eq!(code(&result(vec![completed(), failed()], false)), Code::TASK_FAILED);
        assert_eq!(code(&result(vec![failed(), running()], true)), Code::TIMED_OUT);
        // With `--any`, only ended tasks count.
        assert_eq!(code(&result(vec![completed(), running()], false)), Code::OK);
        assert_eq!(code(&result(vec![ended(Status::Cancelled, None)], false)), Code::TASK_FAILED);
    }

    #[test]
    fn r112_block_reports_tasks_of_a_batch_that_were_cleared_before_without_having_completed() {
        let ready =
            Task { ready_at: Some(Timestamp::now()), ..ended(Status::Completed, Some(Exit::Code(0))) };
        let gone = |not_completed| BlockResult {
            cleared: Some(ClearedTasks { tasks: 2, not_completed }),
            ..result(vec![ready.clone()], false)
        };
        for code in [code, code_of_ready] {
            assert_eq!((code(&gone(0)), code(&gone(1))), (Code::OK, Code::TASK_FAILED));
            assert_eq!(code(&BlockResult { timed_out: true, ..gone(1) }), Code::TIMED_OUT);
        }
        let expected = "bgctl: 2 tasks of the batch, 1 of which had not completed, were already cleared";
        assert_eq!(remarks(&gone(1)), [expected]);
    }

    #[test]
    fn rehearsal_prints_sample_answer_as_line_and_json() {
        let (line, code) = warm_up(false).unwrap();
        assert_eq!(line, b"724fede0-9209-4435-bc37-e308e63f1f21\tcompleted\t2s\tmake test\n");
        assert_eq!(code, Code::OK);
        assert!(warm_up(true).unwrap().0.starts_with(b"{\"tasks\":[{\"id\":\"724fede0"));
    }

    #[test]
    fn reason_that_the_line_of_a_task_lacks_is_a_remark() {
        let remark = |status, exit: Exit, error: &str, kind: Option<FailureKind>| {
            let failure = kind.map(|kind| Failure::new(kind, error));
            let task = Task { error: Some(error.to_owned()), failure, ..ended(status, Some(exit)) };
            remarks(&result(vec![task], false))
                .pop()
                .map(|remark| remark.split_once(": ").unwrap().1.to_owned())
        };
        let (failed, cancelled) = (Status::Failed, Status::Cancelled);
        let id = task().id;
        for (status, exit, error, kind) in [
            (failed, Exit::Signal(9), "out of memory: it had requested 1 GiB", Some(FailureKind::Memory)),
            (failed, Exit::Code(1), "crash loop: ended 5 times in a row", Some(FailureKind::Exit)),
            (failed, Exit::Unknown("gone".into()), "its exit status is unknown: gone", None),
            (cancelled, Exit::Signal(15), "its parent session ended", None),
            (cancelled, Exit::Code(0), "3 tasks of its batch failed (--max-fails)", None),
        ] {
            assert_eq!(remark(status, exit, error, kind), Some(format!("{id}: {error}")));
        }
        for (exit, error) in
            [(Exit::Code(3), "exited with code 3"), (Exit::Signal(9), "ended by signal 9 (SIGKILL)")]
        {
            assert_eq!(remark(failed, exit, error, Some(FailureKind::Exit)), None);
        }
        let late = Task {
            timed_out: true,
            error: Some("timed out after 1s".into()),
            ..ended(failed, Some(Exit::Signal(15)))
        };
        assert_eq!(remarks(&result(vec![late, ended(cancelled, Some(Exit::Signal(15)))], false)).len(), 0);
        let doubtful = Task { suspect: Some("an error".into()), ..ended(Status::Completed, None) };
        assert_eq!(remarks(&result(vec![doubtful], false)), [format!("bgctl: {id}: suspect: an error")]);
    }

    #[test]
    fn r112_tasks_skipped_after_failures_share_one_remark_per_batch() {
        let id = |number: u128| TaskId::from_u128(number << 96);
        let skipped = |number, batch| Task {
            id: id(number),
            batch: Some(id(batch)),
            cancel_reason: Some(CancelReason::MaxFails),
            error: Some("a task of its batch failed (--max-fails)".to_owned()),
            started_at: None,
            ..ended(Status::Cancelled, None)
        };
        let failed = Task { batch: Some(id(90)), ..ended(Status::Failed, Some(Exit::Code(1))) };
        let tasks = vec![failed, skipped(1, 90), skipped(2, 91), skipped(3, 90), skipped(4, 90)];
        let expected = [
            format!(
                "bgctl: 3 tasks of batch {} were cancelled after too many failures (--max-fails)",
                id(90)
            ),
            format!("bgctl: {}: a task of its batch failed (--max-fails)", id(2)),
        ];
        assert_eq!(remarks(&result(tasks, false)), expected);
    }

    #[test]
    fn r110_block_until_ready_succeeds_for_tasks_that_were_ready_even_if_ended() {
        let task =
            |status, is_ready: bool| Task { ready_at: is_ready.then(Timestamp::now), ..ended(status, None) };
        let code = |tasks, timed_out| code_of_ready(&result(tasks, timed_out));
        let (ready, never) = (|| task(Status::Running, true), || task(Status::Completed, false));
        assert_eq!(code(vec![ready(), task(Status::Failed, true)], false), Code::OK);
        assert_eq!(code(vec![ready(), never()], false), Code::TASK_FAILED);
        // One that is not ready any more is starting again; with --any, it may still become ready.
        assert_eq!(code(vec![ready(), task(Status::Pending, false)], false), Code::OK);
        assert_eq!(code(vec![task(Status::Running, false)], true), Code::TIMED_OUT);
    }

    #[test]
    fn own_exit_code_of_task_is_passed_through() {
        let own = |status, exit| own_code(&result(vec![ended(status, exit)], false));
        assert_eq!(own(Status::Completed, Some(Exit::Code(0))), Code::OK);
        assert_eq!(own(Status::Failed, Some(Exit::Code(75))), Code(75));
        assert_eq!(own(Status::Failed, Some(Exit::Signal(9))), Code(137));
        assert_eq!(own(Status::Failed, Some(Exit::Code(0))), Code::TASK_FAILED);
        assert_eq!(own(Status::Failed, Some(Exit::Unknown("why".into()))), Code::TASK_FAILED);
        assert_eq!(own(Status::Failed, None), Code::TASK_FAILED);
        assert_eq!(own_code(&result(vec![ended(Status::Running, None)], true)), Code::TIMED_OUT);
        for exit in [Some(Exit::Signal(15)), Some(Exit::Code(0)), Some(Exit::Code(3)), None] {
            let late = Task { timed_out: true, ..ended(Status::Failed, exit) };
            assert_eq!(own_code(&result(vec![late.clone()], false)), Code(124));
            assert_eq!(code(&result(vec![late], false)), Code::TASK_FAILED);
        }
    }

    #[test]
    fn agent_task_exit_code_reflects_only_its_status() {
        let own = |status| {
            let task = Task { kind: bgd_shared::task::Kind::Agent, ..ended(status, None) };
            own_code(&result(vec![task], false))
        };
        assert_eq!(own(Status::Completed), Code::OK);
        assert_eq!(own(Status::Failed), Code::TASK_FAILED);
        assert_eq!(own(Status::Cancelled), Code::TASK_FAILED);
    }
}
