//! `daemon`: start, stop, restart, upgrade, status, reload, install and uninstall. Only `start` and `restart` start a
//! daemon.

use std::path::Path;
use std::thread;

use bgd_shared::client::{Client, ClientError};
use bgd_shared::request::{
    DaemonReload, DaemonStatus, DaemonStatusOf, DaemonUpgrade, DurableStatus, Hello, HelloParams,
    HelloResult, NoParams, ProgramState, ReloadResult, ShutdownParams, ShutdownResult, UpgradeParams,
    UpgradeResult,
};
use bgd_shared::show::{count, missing_journal};
use bgd_shared::time::Timestamp;

use super::{install, stop};
use crate::cli::{DaemonArgs, DaemonVerb};
use crate::context::Context;
use crate::exit::Code;
use crate::failure::Failure;
use crate::link::{self, Started};
use crate::remark::report;
use crate::render::{clean, daemon as page, metrics};

/// Runs the subcommand.
pub fn run(args: &DaemonArgs, context: &mut Context) -> Result<Code, Failure> {
    match args.verb {
        DaemonVerb::Start => start(context),
        DaemonVerb::Stop { grace, cancel } => stop::run(ShutdownParams { grace_ms: grace, cancel }, context),
        DaemonVerb::Restart { grace } => restart(grace, context),
        DaemonVerb::Upgrade { ref binary } => upgrade(binary.as_deref(), context),
        DaemonVerb::Status { openmetrics } => status(openmetrics, context),
        DaemonVerb::Reload => reload(context),
        DaemonVerb::Install => install::run(context),
        DaemonVerb::Uninstall => install::undo(context),
    }
}

fn start(context: &mut Context) -> Result<Code, Failure> {
    let mut pauses = link::pauses();
    let (hello, started, mut client) = loop {
        let (mut client, started) = find_or_start(context)?;
        match (hello(&mut client), pauses.next()) {
            // The daemon was killed, and is not quite gone.
            (Err(failure), Some(pause))
                if failure.kind == link::CONNECTION_LOST && !context.link.is_remote() =>
            {
                thread::sleep(pause);
            }
            (hello, _) => break (hello?, started, client),
        }
    };
    context.link.report_loss(started);
    context.link.report_unused(&mut client, started);
    if context.json() {
        context.print_json(&hello)?;
    } else if started != Started::Before {
        context.print(&format!("started, pid {}\n", hello.pid))?;
    } else {
        let status = client.call::<DaemonStatusOf>(&NoParams {}).ok();
        let but = status.as_ref().and_then(page::shutting_down).map(|what| format!("; {what}"));
        context.print(&format!("already running, pid {}{}\n", hello.pid, but.unwrap_or_default()))?;
    }
    Ok(Code::OK)
}

/// Connects to the daemon, and starts one if none is running.
fn find_or_start(context: &Context) -> Result<(Client, Started), Failure> {
    Ok(match context.link.running()? {
        Some(client) => (client, Started::Before),
        None => match context.link.host() {
            // Dialling starts the daemon.
            Some(_) => (context.link.connect()?, Started::ByUs { lost: 0 }),
            None => link::start_daemon(&context.link.socket()?)?,
        },
    })
}

fn hello(client: &mut Client) -> Result<HelloResult, Failure> {
    let client_name = concat!("bgctl ", env!("CARGO_PKG_VERSION")).to_owned();
    let params = HelloParams {
        client: Some(client_name),
        protocol: Some(bgd_shared::PROTOCOL),
        ..HelloParams::default()
    };
    Ok(client.call::<Hello>(&params)?)
}

/// Stops the daemon and starts another one. First prints what this does to the tasks.
fn restart(grace: Option<u64>, context: &mut Context) -> Result<Code, Failure> {
    // Must come first: later the tasks would be gone and no daemon could start.
    context.link.check_config().map_err(|failure| Failure {
        message: format!("nothing was stopped: {}", failure.message),
        ..failure
    })?;
    // Only a durable daemon leaves tasks running, and which ones is known only once it has ended.
    let (mut is_said_after, mut may_end) = (false, false);
    // An unresponsive daemon can't report its tasks; stopping it reports the problem.
    if let Ok(Some(mut client)) = context.link.running()
        && !context.json()
        && let Ok(status) = client.call::<DaemonStatusOf>(&NoParams {})
    {
        is_said_after = is_durable(&status);
        // The next daemon would read the configuration anyway.
        let reloaded = is_said_after.then(|| client.call::<DaemonReload>(&NoParams {}).ok()).flatten();
        let reloaded = reloaded.unwrap_or_default();
        may_end = reloaded.needs_restart.iter().any(|key| key == "durable");
        // The program on a remote machine is not known here.
        let with = (!context.link.is_remote()).then(|| program(&status, &link::program_path()));
        let with = with.map(|program| format!(" with {program}")).unwrap_or_default();
        let will = will_restart(&status, &with, reloaded.cleared);
        let unless =
            if may_end { "; but if `durable` is false in the configuration now, it ends them" } else { "" };
        report(&format!("{will}{unless}"));
        if let Some(cleared) = exceeding(reloaded.cleared) {
            report(&cleared);
        }
        if let Some(what) = page::shutting_down(&status) {
            report(&format!("waiting: {what}"));
        }
    }
    // Clients that wait for tasks of a durable daemon see from the turn that another daemon is about to come.
    let turn = if context.link.is_remote() { None } else { Some(link::take_turn(&context.link.socket()?)?) };
    let stopped = stop::stop(ShutdownParams { grace_ms: grace, cancel: false }, context)?;
    let has_lost = |stopped: &ShutdownResult| stopped.lost_because.is_some();
    let has_tasks = |stopped: &ShutdownResult| stopped.cancelled + stopped.left > 0;
    let stopped = stopped.filter(|stopped| is_said_after && (has_tasks(stopped) || has_lost(stopped)));
    if let Some(stopped) = stopped.as_ref().filter(|_| !may_end) {
        report(stop::words(stopped).trim_end());
    }
    let connected = if let Some(turn) = &turn {
        link::start_in_turn(turn, &context.link.socket()?, &[])
    } else {
        context.link.expect_another();
        // Dialling starts the daemon.
        context.link.connect_starting().map(|client| (client, Started::ByUs { lost: 0 }))
    };
    if let Some(stopped) = stopped.filter(|_| may_end) {
        report_ended(stopped, connected.is_ok(), context);
    }
    let (mut client, started) = connected?;
    context.link.report_loss(started);
    let hello = hello(&mut client)?;
    context.link.report_unused(&mut client, started);
    // Where a service manager listens, the next daemon has not answered before this point.
    drop(turn);
    if context.json() {
        context.print_json(&hello)?;
    } else {
        context.print(&format!("restarted, pid {}\n", hello.pid))?;
    }
    Ok(Code::OK)
}

/// Reports the fate of a durable daemon's tasks if the next daemon may not be durable.
fn report_ended(mut stopped: ShutdownResult, has_next: bool, context: &Context) {
    let next = if has_next { context.link.running().ok().flatten() } else { None };
    let status = next.and_then(|mut client| client.call::<DaemonStatusOf>(&NoParams {}).ok());
    let ends = status.is_some_and(|status| !is_durable(&status));
    let ended = if ends { std::mem::take(&mut stopped.left) } else { 0 };
    report(stop::words(&stopped).trim_end());
    if let Some(tasks) = counted(ended, "task") {
        report(&format!("the next daemon is not durable, and has ended {tasks}"));
    }
}

/// Reports whether pending and ended tasks outlive the daemon.
fn is_durable(status: &DaemonStatus) -> bool {
    matches!(status.durable, Some(DurableStatus::Written | DurableStatus::Synced))
}

/// Returns a message on the effect of a restart on the daemon's tasks, of which `cleared` are cleared by their limits.
/// `with` names the program to be started.
fn will_restart(status: &DaemonStatus, with: &str, cleared: u64) -> String {
    let (version, tasks) = (&status.version, &status.summary);
    let active = tasks.active();
    let finished = (tasks.total() - active).saturating_sub(cleared);
    let whose = if finished == 1 { "its" } else { "their" };
    let kept = match active {
        0 => None,
        1 => Some("1 active task if it can outlive the daemon".to_owned()),
        _ => Some(format!("those of {active} active tasks that can outlive the daemon")),
    };
    let active = counted(active, "active task");
    let finished = counted(finished, "finished task").map(|text| format!("{text} with {whose} output"));
    let missing = status.missing_journal.as_deref().map(|path| clean(&missing_journal(path)));
    let parts = if missing.is_some() {
        let lost: Vec<String> = [active, finished].into_iter().flatten().collect();
        [(!lost.is_empty()).then(|| format!("loses {}", lost.join(" and "))), None]
    } else if is_durable(status) {
        // Which tasks can't outlive it, such as foreground jobs, is known only once the daemon has ended.
        let kept = [kept, finished];
        let kept: Vec<String> = kept.into_iter().flatten().collect();
        [(!kept.is_empty()).then(|| format!("keeps {}", kept.join(" and "))), None]
    } else {
        let cancelled = active.map(|text| format!("cancels {text}"));
        [cancelled, finished.map(|text| format!("removes {text}"))]
    };
    let parts: Vec<String> = parts.into_iter().flatten().collect();
    let does = if parts.is_empty() { "affects no task".to_owned() } else { parts.join(" and ") };
    let why = missing.map(|why| format!(": {why}")).unwrap_or_default();
    format!("restarting bgd {version}{with} {does}{why}")
}

/// Returns a message on finished tasks that the limits clear; `None` if there are none.
fn exceeding(cleared: u64) -> Option<String> {
    let (tasks, whose) = (counted(cleared, "finished task")?, if cleared == 1 { "its" } else { "their" });
    Some(format!(
        "clears {tasks} with {whose} output, beyond [history] or three quarters of limits.tasks or limits.memory: \
         see bgd-config(5)"
    ))
}

/// Formats the path of a program, with its version if it is the running one.
fn program(status: &DaemonStatus, path: &Path) -> String {
    let runs = status.program.as_ref().is_some_and(|program| {
        program.state == ProgramState::Current
            && path
                .canonicalize()
                .is_ok_and(|path| Path::new(&program.path).canonicalize().is_ok_and(|is| is == path))
    });
    let version = if runs { format!(" ({})", status.version) } else { String::new() };
    format!("{}{version}", path.display())
}

/// Formats a number of things in words; `None` for 0.
fn counted(number: u64, what: &str) -> Option<String> {
    (number > 0).then(|| count(number, what))
}

/// The message if no answer arrives: the program was tried, and died at a point where the cause is not visible.
const DIED_UPGRADING: &str = "the daemon ended during the upgrade: the new program died while taking over";

/// The fate of the tasks in that case.
const AFTER_DEATH: &str = "its tasks are still running; with `durable = true` the next daemon takes them over, otherwise it ends them";

/// Replaces the running daemon by another program (R120).
fn upgrade(binary: Option<&Path>, context: &mut Context) -> Result<Code, Failure> {
    let binary = binary.map(|path| match context.link.host() {
        // A path on the remote machine.
        Some(_) => Ok(path.to_owned()),
        None => std::path::absolute(path),
    });
    let binary = binary.transpose().map_err(|error| Failure::usage(format!("--binary: {error}")))?;
    let mut client = context.link.existing()?;
    if !context.json()
        && let Ok(status) = client.call::<DaemonStatusOf>(&NoParams {})
        // Otherwise it is about to refuse.
        && !status.shutting_down
    {
        let own = || status.program.as_ref().map(|program| Path::new(&program.path));
        let to = match binary.as_deref().or_else(own) {
            // The path means another file on this machine.
            Some(path) if context.link.is_remote() => format!(" to {}", path.display()),
            Some(path) => format!(" to {}", program(&status, path)),
            None => String::new(),
        };
        report(&will_upgrade(&status.version, &to, status.summary.active()));
    }
    let params = UpgradeParams { binary: binary.map(|path| path.into_os_string().into()) };
    let result = client.call::<DaemonUpgrade>(&params).map_err(|error| match error {
        ClientError::Closed | ClientError::Io(_) => Failure::lost(DIED_UPGRADING).hint(AFTER_DEATH),
        error => error.into(),
    })?;
    if context.json() {
        context.print_json(&result)?;
    } else {
        context.print(&upgraded(&result))?;
    }
    Ok(Code::OK)
}

/// Returns a message on the effect of an upgrade. `to` names the program that takes over.
fn will_upgrade(version: &str, to: &str, active: u64) -> String {
    let keep = if active == 1 { "keeps" } else { "keep" };
    let tasks = counted(active, "active task");
    let tasks = tasks.map_or_else(|| "no task is active".to_owned(), |text| format!("{text} {keep} running"));
    format!("upgrading bgd {version}{to}; {tasks}")
}

fn upgraded(result: &UpgradeResult) -> String {
    let UpgradeResult { from, to, pause_ms, active, connections } = result;
    let versions =
        if from == to { format!("bgd {to} replaced") } else { format!("bgd {from} upgraded to {to}") };
    let (active, connections) = (count(*active, "active task"), count(*connections, "connection"));
    format!("{versions} in {pause_ms} ms; {active} and {connections} were kept\n")
}

fn status(openmetrics: bool, context: &mut Context) -> Result<Code, Failure> {
    if openmetrics && context.json() {
        return Err(Failure::usage("--json and --openmetrics can't be combined: give one of them"));
    }
    let status = context.link.existing()?.call::<DaemonStatusOf>(&NoParams {})?;
    if context.json() {
        context.print_json(&status)?;
    } else if openmetrics {
        context.print(&metrics::text(status))?;
    } else {
        context.print(&page::page(&status, Timestamp::now()))?;
    }
    Ok(Code::OK)
}

fn reload(context: &mut Context) -> Result<Code, Failure> {
    let result = context.link.existing()?.call::<DaemonReload>(&NoParams {})?;
    if context.json() {
        context.print_json(&result)?;
    } else {
        context.print(&reloaded(&result))?;
    }
    Ok(Code::OK)
}

/// Formats the result of a reload, one key per line, as an agent may have many.
fn reloaded(result: &ReloadResult) -> String {
    let ReloadResult { changed, defaulted, recreated_groups, needs_restart, cleared } = result;
    let is_set = |key: &&String| !defaulted.contains(key);
    let lines = (changed.iter().filter(is_set).map(|key| format!("changed: {key}\n")))
        .chain(defaulted.iter().map(|key| format!("{}: {key}\n", no_longer_set(key))))
        .chain(recreated_groups.iter().map(|name| {
            format!("created again: group {}, which the configuration still sets\n", clean(name))
        }))
        .chain(needs_restart.iter().map(|key| format!("needs a restart: {key}\n")))
        .chain(exceeding(*cleared).map(|text| text + "\n"));
    let text: String = lines.collect();
    if text.is_empty() { "nothing has changed\n".to_owned() } else { text }
}

/// Describes a key that the file no longer sets. In tables with names that users choose, no key has a default of its own.
fn no_longer_set(key: &str) -> &'static str {
    let is_named =
        ["agents.", "channels.", "executors.", "groups."].iter().any(|table| key.starts_with(table));
    if is_named { "removed" } else { "back to default" }
}

#[cfg(test)]
mod tests {
    use bgd_shared::task::Summary;

    use super::*;
    use crate::render::samples;

    /// Returns the status of a daemon with these tasks.
    fn restarted(summary: Summary, is_durable: bool) -> DaemonStatus {
        let durable = Some(if is_durable { DurableStatus::Written } else { DurableStatus::No });
        DaemonStatus { version: "0.1.0".into(), summary, durable, ..samples::daemon() }
    }

    #[test]
    fn r131_restart_message_says_that_tasks_of_a_missing_journal_are_lost() {
        let tasks = Summary { running: 2, failed: 1, ..Summary::default() };
        let status = DaemonStatus { missing_journal: Some("/journal.db".into()), ..restarted(tasks, true) };
        assert_eq!(
            will_restart(&status, "", 0),
            "restarting bgd 0.1.0 loses 2 active tasks and 1 finished task with its output: the journal /journal.db was \
             removed, moved or replaced"
        );
    }

    #[test]
    fn restart_message_states_effect_on_tasks() {
        let of = |running, failed, is_durable| {
            let status = restarted(Summary { running, failed, ..Summary::default() }, is_durable);
            will_restart(&status, " with /bgd (0.1.0)", 0)
        };
        let with = "restarting bgd 0.1.0 with /bgd (0.1.0)";
        for (tasks, does, does_if_durable) in [
            ((0, 0), "affects no task", "affects no task"),
            ((1, 0), "cancels 1 active task", "keeps 1 active task if it can outlive the daemon"),
            (
                (2, 1),
                "cancels 2 active tasks and removes 1 finished task with its output",
                "keeps those of 2 active tasks that can outlive the daemon and 1 finished task with its output",
            ),
            (
                (0, 6),
                "removes 6 finished tasks with their output",
                "keeps 6 finished tasks with their output",
            ),
        ] {
            assert_eq!(of(tasks.0, tasks.1, false), format!("{with} {does}"));
            assert_eq!(of(tasks.0, tasks.1, true), format!("{with} {does_if_durable}"));
        }
    }

    #[test]
    fn r129_restart_and_reload_messages_do_not_promise_to_keep_what_limits_clear() {
        let status = restarted(Summary { completed: 85, ..Summary::default() }, true);
        let will = will_restart(&status, "", 48);
        assert_eq!(will, "restarting bgd 0.1.0 keeps 37 finished tasks with their output");
        let result = ReloadResult { cleared: 48, ..ReloadResult::default() };
        let text = reloaded(&result);
        assert!(text.starts_with("clears 48 finished tasks with their output, beyond [history]"), "{text}");
        assert_eq!(exceeding(0), None);
    }

    #[test]
    fn r120_upgrade_messages_state_plan_and_result() {
        let will = |active| will_upgrade("0.1.0", " to /bgd", active);
        assert_eq!(will(0), "upgrading bgd 0.1.0 to /bgd; no task is active");
        assert_eq!(will(1), "upgrading bgd 0.1.0 to /bgd; 1 active task keeps running");
        assert_eq!(will(2), "upgrading bgd 0.1.0 to /bgd; 2 active tasks keep running");
        let result = UpgradeResult {
            from: "0.1.0".into(),
            to: "0.2.0".into(),
            pause_ms: 12,
            active: 1,
            connections: 3,
        };
        let text = upgraded(&result);
        assert_eq!(text, "bgd 0.1.0 upgraded to 0.2.0 in 12 ms; 1 active task and 3 connections were kept\n");
        let same = UpgradeResult { from: "0.2.0".into(), ..result };
        assert!(upgraded(&same).starts_with("bgd 0.2.0 replaced in 12 ms;"), "{}", upgraded(&same));
    }

    #[test]
    fn reload_message_lists_changed_keys() {
        assert_eq!(reloaded(&ReloadResult::default()), "nothing has changed\n");
        let keys = |keys: &str| keys.split_whitespace().map(str::to_owned).collect();
        let (changed, defaulted, needs_restart) = (keys("a b c"), keys("b"), keys("d"));
        let result = ReloadResult { changed, defaulted, needs_restart, ..ReloadResult::default() };
        assert_eq!(reloaded(&result), "changed: a\nchanged: c\nback to default: b\nneeds a restart: d\n");
        let gone = keys("channels.x.url default_agent");
        let result = ReloadResult { changed: gone.clone(), defaulted: gone, ..ReloadResult::default() };
        assert_eq!(reloaded(&result), "removed: channels.x.url\nback to default: default_agent\n");
        let result = ReloadResult { recreated_groups: keys("gpu"), ..ReloadResult::default() };
        assert_eq!(reloaded(&result), "created again: group gpu, which the configuration still sets\n");
    }
}
