//! Completion of what only the daemon knows: ids of tasks with their descriptions, names of agents.
//!
//! A shell calls `bgctl` at each press of its completion key. Nothing here may start a daemon, or print
//! anything but candidates: where the daemon can't be asked, there are none.

use std::collections::BTreeSet;
use std::ffi::{OsStr, OsString};
use std::io;
use std::path::Path;
use std::time::Duration;

use bgd_shared::agent::AgentListParams;
use bgd_shared::client::Client;
use bgd_shared::request::{AgentList, ListParams, TaskList};
use bgd_shared::socket::SocketPath;
use bgd_shared::task::{Status, Task};
use bgd_shared::text::Env;
use clap::Command;
use clap_complete::engine::{CompletionCandidate, PathCompleter, ValueCompleter as _};
use clap_complete::env::{Bash, EnvCompleter, Fish, Shells, Zsh};
use clap_complete::{ArgValueCandidates, ArgValueCompleter, CompleteEnv};

use crate::cli::{self, ShellName};
use crate::render::clean;

/// The variable that says which shell wants candidates; set by the scripts that `completions` prints.
pub const VARIABLE: &str = "BGCTL_COMPLETE";

/// How long a shell is kept waiting for a daemon that does not answer.
const PATIENCE: Duration = Duration::from_secs(1);

/// The most tasks that are offered: the newest.
const TASKS: usize = 200;

/// Answers a shell that wants candidates. False: this is an ordinary call.
///
/// # Errors
/// The shell is none that is known.
pub fn answer(args: &[OsString]) -> Result<bool, clap::Error> {
    if std::env::var_os(VARIABLE).is_none() {
        return Ok(false);
    }
    let folder = std::env::current_dir().ok();
    let shells = Shells(&[&DescribingBash, &Zsh, &Fish]);
    CompleteEnv::with_factory(cli::command).var(VARIABLE).shells(shells).try_complete(args, folder.as_deref())
}

/// Ids of all tasks.
pub fn tasks() -> ArgValueCandidates {
    ArgValueCandidates::new(|| of_tasks(&[]))
}

/// Ids of tasks that have not ended.
pub fn active_tasks() -> ArgValueCandidates {
    ArgValueCandidates::new(|| of_tasks(&[Status::Pending, Status::Running, Status::Resumed]))
}

/// Ids of tasks that have ended.
pub fn finished_tasks() -> ArgValueCandidates {
    ArgValueCandidates::new(|| of_tasks(&[Status::Completed, Status::Failed, Status::Cancelled]))
}

/// Parent sessions of the newest tasks.
pub fn sessions() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let params = ListParams { limit: Some(TASKS), ..ListParams::default() };
        let page = daemon().and_then(|mut client| client.call::<TaskList>(&params).ok());
        let tasks = page.into_iter().flat_map(|page| page.tasks);
        let keys: BTreeSet<String> = tasks.filter_map(|task| task.session).collect();
        keys.into_iter().map(CompletionCandidate::new).collect()
    })
}

/// Names of agents.
pub fn agents() -> ArgValueCandidates {
    ArgValueCandidates::new(|| {
        let params = AgentListParams { env: Some(Env::of_this_process()), ..AgentListParams::default() };
        let Some(Ok(result)) = daemon().map(|mut client| client.call::<AgentList>(&params)) else {
            return Vec::new();
        };
        result.agents.into_iter().map(|agent| CompletionCandidate::new(agent.name)).collect()
    })
}

/// Programs by name, and files.
pub fn commands() -> ArgValueCompleter {
    ArgValueCompleter::new(|current: &OsStr| {
        let mut found = PathCompleter::any().complete(current);
        let begin = current.to_string_lossy();
        if !begin.is_empty() && !begin.contains('/') {
            found.extend(programs(&begin).into_iter().map(CompletionCandidate::new));
        }
        found
    })
}

/// The names on PATH that begin like this.
fn programs(begin: &str) -> BTreeSet<String> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).filter_map(|folder| std::fs::read_dir(folder).ok());
    let names = folders.flatten().filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names.filter(|name| name.starts_with(begin)).collect()
}

fn daemon() -> Option<Client> {
    let mut client = Client::connect_within(&SocketPath::from_env().ok()?, PATIENCE).ok()?;
    client.wait_at_most(PATIENCE);
    Some(client)
}

fn of_tasks(statuses: &[Status]) -> Vec<CompletionCandidate> {
    let params = ListParams { status: statuses.to_vec(), limit: Some(TASKS), ..ListParams::default() };
    let Some(Ok(page)) = daemon().map(|mut client| client.call::<TaskList>(&params)) else {
        return Vec::new();
    };
    let is_alone =
        |task: &Task| page.tasks.iter().filter(|other| other.id.short() == task.id.short()).count() == 1;
    let candidates = page.tasks.iter().enumerate().map(|(place, task)| {
        let id = if is_alone(task) { task.id.short() } else { task.id.to_string() };
        let about = format!("{}: {}", task.status, clean(&task.description));
        CompletionCandidate::new(id).help(Some(about.into())).display_order(Some(place))
    });
    candidates.collect()
}

/// The script that makes a shell ask here.
///
/// # Errors
/// It can't be written to memory.
pub fn script(shell: ShellName) -> io::Result<Vec<u8>> {
    let shell: &dyn EnvCompleter = match shell {
        ShellName::Bash => &DescribingBash,
        ShellName::Zsh => &Zsh,
        ShellName::Fish => &Fish,
    };
    let mut script = Vec::new();
    shell.write_registration(VARIABLE, "bgctl", "bgctl", "bgctl", &mut script)?;
    Ok(script)
}

/// Bash, with descriptions. It has no place for them but the list that a second press of the key shows,
/// and from that list nothing is inserted.
struct DescribingBash;

/// The `COMP_TYPE` of that list.
const LISTING: &str = "63";

impl EnvCompleter for DescribingBash {
    fn name(&self) -> &'static str {
        Bash.name()
    }

    fn is(&self, name: &str) -> bool {
        Bash.is(name)
    }

    fn write_registration(
        &self,
        var: &str,
        name: &str,
        bin: &str,
        completer: &str,
        out: &mut dyn io::Write,
    ) -> io::Result<()> {
        Bash.write_registration(var, name, bin, completer, out)
    }

    fn write_complete(
        &self,
        command: &mut Command,
        args: Vec<OsString>,
        folder: Option<&Path>,
        out: &mut dyn io::Write,
    ) -> io::Result<()> {
        let variable = |name: &str| std::env::var(name).unwrap_or_default();
        if variable("_CLAP_COMPLETE_COMP_TYPE") != LISTING {
            return Bash.write_complete(command, args, folder, out);
        }
        let place = variable("_CLAP_COMPLETE_INDEX").parse().unwrap_or_default();
        let candidates = clap_complete::engine::complete(command, args, place, folder)?;
        let is_alone = candidates.len() == 1;
        let lines = candidates.iter().map(|candidate| {
            let value = candidate.get_value().to_string_lossy();
            match candidate.get_help().filter(|_| !is_alone) {
                Some(help) => format!("{value}  ({})", help.to_string().replace(['\n', '\x0b'], " ")),
                None => value.into_owned(),
            }
        });
        let separator = std::env::var("_CLAP_IFS").unwrap_or_else(|_| "\n".to_owned());
        out.write_all(lines.collect::<Vec<_>>().join(&separator).as_bytes())
    }
}
