//! Completion candidates: task ids with descriptions, parent sessions, agent names, programs.
//!
//! The shell asks for them on every press of the completion key. Nothing here may start a daemon: without a reachable
//! daemon there are no candidates.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use bgd_shared::agent::AgentListParams;
use bgd_shared::client::Client;
use bgd_shared::limits::LIST_PAGE;
use bgd_shared::request::{
    AgentList, ExecutorList, ExecutorListParams, GroupList, ListParams, NoParams, TaskList,
};
use bgd_shared::socket::SocketPath;
use bgd_shared::task::{Status, Task};
use clap_complete::engine::{CompletionCandidate, PathCompleter, ValueCompleter as _};
use clap_complete::{ArgValueCandidates, ArgValueCompleter};

use crate::hosts::{self, Named};
use crate::link::Way;
use crate::render::clean;

/// How long the shell waits for an unresponsive daemon.
const PATIENCE: Duration = Duration::from_secs(1);

/// How long the shell waits for a remote machine.
const FAR_PATIENCE: Duration = Duration::from_secs(2);

/// Maximum number of tasks to offer, of those that start with the word typed so far; the newest win.
const TASKS: usize = 200;

/// Ids of all tasks.
pub fn tasks() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| of_tasks(&[], current))
}

/// Ids of tasks that have not ended.
pub fn active_tasks() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| {
        of_tasks(&[Status::Pending, Status::Running, Status::Resumed], current)
    })
}

/// Ids of tasks that have not started.
pub fn pending_tasks() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| of_tasks(&[Status::Pending], current))
}

/// Ids of tasks that have ended.
pub fn finished_tasks() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| {
        of_tasks(&[Status::Completed, Status::Failed, Status::Cancelled], current)
    })
}

/// Parent sessions of the newest tasks.
pub fn sessions() -> ArgValueCandidates {
    ArgValueCandidates::new(|| of_newest(|task| task.session))
}

/// Labels of the newest tasks.
pub fn tags() -> ArgValueCandidates {
    ArgValueCandidates::new(|| of_newest(|task| task.tags))
}

/// Batches of the newest tasks, with the number of those tasks in each.
pub fn batches() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let mut counts: BTreeMap<String, usize> = BTreeMap::new();
        for task in newest() {
            if let Some(batch) = task.batch {
                *counts.entry(batch.to_string()).or_default() += 1;
            }
        }
        let candidates = counts.into_iter().map(|(batch, count)| {
            CompletionCandidate::new(batch).help(Some(format!("{count} of the newest tasks").into()))
        });
        candidates.collect()
    })
}

/// Names of groups, with their slot usage.
pub fn groups() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let Some(Ok(result)) = daemon().map(|mut client| client.call::<GroupList>(&NoParams::default()))
        else {
            return Vec::new();
        };
        let candidates = result.groups.into_iter().map(|group| {
            let about = format!("{} of {} slots used", group.used, group.slots);
            CompletionCandidate::new(group.name).help(Some(about.into()))
        });
        candidates.collect()
    })
}

/// Names of agents.
pub fn agents() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        // Their names do not depend on the environment.
        let params = AgentListParams::default();
        let Some(Ok(result)) = daemon().map(|mut client| client.call::<AgentList>(&params)) else {
            return Vec::new();
        };
        result.agents.into_iter().map(|agent| CompletionCandidate::new(agent.name)).collect()
    })
}

/// Names of executors, with their types.
pub fn executors() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let params = ExecutorListParams::default();
        let Some(Ok(result)) = daemon().map(|mut client| client.call::<ExecutorList>(&params)) else {
            return Vec::new();
        };
        let elsewhere = result.executors.into_iter().filter(|executor| executor.kind != "local");
        elsewhere
            .map(|executor| CompletionCandidate::new(executor.name).help(Some(executor.kind.into())))
            .collect()
    })
}

/// The names of remote machines in the user's ssh configuration, and of those with known host keys.
pub fn machines() -> ArgValueCandidates {
    ArgValueCandidates::new(|| hosts::known().into_iter().map(CompletionCandidate::new).collect())
}

/// Whether the word to complete comes after the first word of a command.
static IS_ARGUMENT: OnceLock<bool> = OnceLock::new();

/// Stores whether the word to complete is an argument of the command to run.
pub fn take_argument(is_argument: bool) {
    // Only the first value counts: a process completes one word.
    let _ = IS_ARGUMENT.set(is_argument);
}

/// Completes the words of a command. The first word: programs on `PATH` and folders that may lead to one, or files if
/// it contains a slash; later words: files.
pub fn commands() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| {
        let begin = current.to_string_lossy();
        let is_argument = IS_ARGUMENT.get().copied().unwrap_or_default();
        if is_argument || begin.is_empty() || begin.contains('/') {
            return PathCompleter::any().complete(current);
        }
        let mut found = PathCompleter::dir().complete(current);
        found.extend(programs(&begin).into_iter().map(CompletionCandidate::new));
        found
    })
}

/// Returns the file names on `PATH` that start with `begin`.
fn programs(begin: &str) -> BTreeSet<String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).filter_map(|folder| std::fs::read_dir(folder).ok());
    let names = folders.flatten().filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names.filter(|name| name.starts_with(begin)).collect()
}

/// Connects to the daemon that the command line names so far, within the time that a user waits at the prompt.
fn daemon() -> Option<Client> {
    let here = |socket| Some((Client::connect_within(&socket, PATIENCE).ok()?, PATIENCE));
    let (mut client, patience) = match hosts::of_line().ok()? {
        Some(Named::Host(host)) => (Way::remote(host, FAR_PATIENCE, false).client().ok()?, FAR_PATIENCE),
        Some(Named::Socket(path)) => here(SocketPath::new(std::path::absolute(path).ok()?).ok()?)?,
        None => here(SocketPath::from_env().ok()?)?,
    };
    client.wait_at_most(patience);
    Some(client)
}

/// Returns the distinct values that `what` extracts from the newest tasks.
fn of_newest<T: IntoIterator<Item = String>>(what: impl Fn(Task) -> T) -> Vec<CompletionCandidate> {
    let words: BTreeSet<String> = newest().into_iter().flat_map(what).collect();
    words.into_iter().map(CompletionCandidate::new).collect()
}

fn newest() -> Vec<Task> {
    let params = ListParams { limit: Some(TASKS), ..ListParams::default() };
    let page = daemon().and_then(|mut client| client.call::<TaskList>(&params).ok());
    page.map_or_else(Vec::new, |page| page.tasks)
}

/// Returns the ids that start with `begin`. Looks through all tasks for them, for as long as a user waits at the prompt.
fn of_tasks(statuses: &[Status], begin: &OsStr) -> Vec<CompletionCandidate> {
    let (Some(begin), Some(mut client)) = (begin.to_str(), daemon()) else { return Vec::new() };
    let until = Instant::now() + PATIENCE;
    // Every id starts with nothing, so the newest tasks are enough then.
    let limit = if begin.is_empty() { TASKS } else { LIST_PAGE };
    let mut params = ListParams { status: statuses.to_vec(), limit: Some(limit), ..ListParams::default() };
    let mut tasks = Vec::new();
    while let Ok(page) = client.call::<TaskList>(&params) {
        tasks.extend(page.tasks.into_iter().filter(|task| task.id.to_string().starts_with(begin)));
        params.after = page.next;
        if tasks.len() >= TASKS || params.after.is_none() || Instant::now() >= until {
            break;
        }
    }
    tasks.truncate(TASKS);
    let shorts: Vec<String> = tasks.iter().map(|task| task.id.short()).collect();
    let is_alone = |short: &String| shorts.iter().filter(|other| *other == short).count() == 1;
    let candidates = tasks.iter().zip(&shorts).enumerate().map(|(place, (task, short))| {
        let is_enough = short.starts_with(begin) && is_alone(short);
        let id = if is_enough { short.clone() } else { task.id.to_string() };
        let about = format!("{}: {}", task.status, clean(&task.description));
        CompletionCandidate::new(id).help(Some(about.into())).display_order(Some(place))
    });
    candidates.collect()
}
