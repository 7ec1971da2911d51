//! Completion candidates: task ids with descriptions, parent sessions, agent names, programs.
//!
//! The shell asks for them on every press of the completion key. Nothing here may start a daemon: without a reachable
//! daemon there are no candidates.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsStr;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use bgd_shared::agent::AgentListParams;
use bgd_shared::client::Client;
use bgd_shared::limits::LIST_PAGE;
use bgd_shared::request::{
    AgentList, ExecutorList, ExecutorListParams, GroupList, ListParams, NoParams, TaskList,
};
use bgd_shared::show;
use bgd_shared::socket::SocketPath;
use bgd_shared::task::{Status, Task};
use clap_complete::engine::{CompletionCandidate, PathCompleter, ValueCompleter as _};
use clap_complete::{ArgValueCandidates, ArgValueCompleter};

use crate::hosts::{self, Named};
use crate::link::DaemonAddress;
use crate::render::clean;

/// How long the shell waits for an unresponsive daemon.
const PATIENCE: Duration = Duration::from_secs(1);

/// How long the shell waits for a remote machine.
const FAR_PATIENCE: Duration = Duration::from_secs(2);

/// Maximum number of tasks to offer, of those that start with the word typed so far; the newest win.
const TASKS: usize = 200;

/// Maximum number of sessions, tags or batches to offer; those of the newest tasks win.
const WORDS: usize = 1000;

/// Maximum number of bytes of all sessions, tags or batches to offer.
const WORDS_BYTES: usize = 64 * 1024;

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

/// Parent sessions of tasks.
pub fn sessions() -> ArgValueCandidates {
    ArgValueCandidates::new(|| of_all(|task| task.session))
}

/// Labels of tasks.
pub fn tags() -> ArgValueCandidates {
    ArgValueCandidates::new(|| of_all(|task| task.tags))
}

/// Batches of tasks, with the number of tasks in each.
pub fn batches() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let (found, is_complete) = words(|task| task.batch.map(|batch| batch.to_string()));
        let candidates = found.into_iter().enumerate().map(|(place, (batch, count))| {
            let at_least = if is_complete { "" } else { "at least " };
            let about = format!("{at_least}{}", show::count(count, "task"));
            CompletionCandidate::new(batch).help(Some(about.into())).display_order(Some(place))
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

/// The words of the line other than the one to complete.
static OTHER_WORDS: OnceLock<Vec<String>> = OnceLock::new();

/// Stores the words of the line other than the one to complete: ids among them are not offered again.
pub fn take_other_words(words: Vec<String>) {
    let _ = OTHER_WORDS.set(words);
}

/// Reports whether one of these words names the task by its id, in whole or in the short form at least.
fn is_named(task: &Task, words: &[String]) -> bool {
    let (whole, short) = (task.id.to_string(), task.id.short());
    words.iter().any(|word| word.starts_with(&short) && whole.starts_with(word.as_str()))
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
        Some(Named::Host(host)) => {
            (DaemonAddress::remote(host, FAR_PATIENCE, false).client().ok()?, FAR_PATIENCE)
        }
        Some(Named::Socket(path)) => here(SocketPath::new(std::path::absolute(path).ok()?).ok()?)?,
        None => here(SocketPath::from_env().ok()?)?,
    };
    client.wait_at_most(patience);
    Some(client)
}

/// Returns the distinct values that `what` extracts from the tasks, those of the newest tasks first.
fn of_all<T: IntoIterator<Item = String>>(what: impl Fn(Task) -> T) -> Vec<CompletionCandidate> {
    let words = words(what).0.into_iter().enumerate();
    words.map(|(place, (word, _))| CompletionCandidate::new(word).display_order(Some(place))).collect()
}

/// Returns the distinct values that `what` extracts from the tasks, newest first, each with the number of its tasks, and
/// whether these are all.
fn words<T: IntoIterator<Item = String>>(what: impl Fn(Task) -> T) -> (Vec<(String, usize)>, bool) {
    let (mut found, mut is_room) = (Found::default(), true);
    let params = ListParams { limit: Some(LIST_PAGE), ..ListParams::default() };
    let is_at_end = each_page(params, |tasks| {
        is_room = tasks.into_iter().flat_map(&what).all(|word| found.takes(word));
        is_room
    });
    (found.words, is_at_end && is_room)
}

/// Lists the tasks by pages, newest first, while `wants` more and for as long as a user waits at the prompt. Returns
/// whether that was the whole list.
fn each_page(mut params: ListParams, mut wants: impl FnMut(Vec<Task>) -> bool) -> bool {
    let Some(mut client) = daemon() else { return false };
    let until = Instant::now() + PATIENCE;
    while let Ok(page) = client.call::<TaskList>(&params) {
        params.after = page.next;
        let wants_more = wants(page.tasks);
        if params.after.is_none() {
            return true;
        }
        if !wants_more || Instant::now() >= until {
            break;
        }
    }
    false
}

/// Distinct words in the order in which they came, each with how often it came.
#[derive(Default)]
struct Found {
    words: Vec<(String, usize)>,
    places: HashMap<String, usize>,
    bytes: usize,
}

impl Found {
    /// Counts a word. Returns whether there is room for another one.
    fn takes(&mut self, word: String) -> bool {
        if let Some(place) = self.places.get(&word) {
            self.words[*place].1 += 1;
            return true;
        }
        self.bytes += word.len();
        if self.words.len() == WORDS || self.bytes > WORDS_BYTES {
            return false;
        }
        self.places.insert(word.clone(), self.words.len());
        self.words.push((word, 1));
        true
    }
}

/// Returns the ids that start with `begin`. Looks through all tasks for them, for as long as a user waits at the prompt.
fn of_tasks(statuses: &[Status], begin: &OsStr) -> Vec<CompletionCandidate> {
    let Some(begin) = begin.to_str() else { return Vec::new() };
    // Every id starts with nothing, so the newest tasks are enough then.
    let limit = if begin.is_empty() { TASKS } else { LIST_PAGE };
    let params = ListParams { status: statuses.to_vec(), limit: Some(limit), ..ListParams::default() };
    let mut tasks = Vec::new();
    each_page(params, |page| {
        tasks.extend(page.into_iter().filter(|task| task.id.to_string().starts_with(begin)));
        tasks.len() < TASKS
    });
    tasks.truncate(TASKS);
    let shorts: Vec<String> = tasks.iter().map(|task| task.id.short()).collect();
    let is_alone = |short: &String| shorts.iter().filter(|other| *other == short).count() == 1;
    let named = OTHER_WORDS.get().map_or(&[][..], Vec::as_slice);
    let offered = tasks.iter().zip(&shorts).filter(|(task, _)| !is_named(task, named));
    let candidates = offered.enumerate().map(|(place, (task, short))| {
        let is_enough = short.starts_with(begin) && is_alone(short);
        let id = if is_enough { short.clone() } else { task.id.to_string() };
        let about = format!("{}: {}", task.status, clean(&task.description));
        CompletionCandidate::new(id).help(Some(about.into())).display_order(Some(place))
    });
    candidates.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r169_words_are_counted_in_their_order_up_to_a_limit() {
        let mut found = Found::default();
        assert!(["new", "old", "new"].into_iter().all(|word| found.takes(word.to_owned())));
        assert_eq!(found.words, [("new".to_owned(), 2), ("old".to_owned(), 1)]);
        assert!((2..WORDS).all(|number| found.takes(number.to_string())));
        assert!(!found.takes("more".to_owned()), "there are enough");
        assert!(found.takes("old".to_owned()), "it is one of them");
        let mut long = Found::default();
        assert!(long.takes("x".repeat(WORDS_BYTES)) && !long.takes("y".to_owned()));
        assert_eq!(long.words.len(), 1);
    }
}
