//! Tests whether a cluster works: `bgctl executors --check`.

use std::time::Instant;

use bgd_shared::request::ExecutorCheck;

use super::commands;
use super::error::CommandError;
use super::remote_files;
use super::tools::Tools;
use super::work;
use crate::remotes::Slurm;

/// Queries a cluster's settings, and tests whether files can be written for it and whether it would accept a task
/// without requests of its own.
pub async fn check(tools: Tools, asked: &Slurm) -> ExecutorCheck {
    let problem = |problem: String, hint: &str| ExecutorCheck {
        problem: Some(problem),
        hint: Some(hint.to_owned()),
        ..ExecutorCheck::default()
    };
    let asked_at = Instant::now();
    let settings = match work::settings(&tools.programs).await {
        Ok(settings) => settings,
        Err(CommandError::Refused(why)) => return problem(why, "`scontrol show config` must work there"),
        Err(CommandError::NoAccess(why)) => return problem(why, "tasks that are submitted meanwhile fail"),
        Err(CommandError::Unreachable(why) | CommandError::Unanswered(why) | CommandError::Full(why)) => {
            return problem(
                why,
                "`scontrol ping` says whether the controller runs; tasks wait until it does",
            );
        }
        Err(CommandError::Gone) => {
            return problem("the cluster has no settings".to_owned(), "look at its log");
        }
    };
    let answer = asked_at.elapsed().as_millis();
    if let Err(error) = try_folder(&tools).await {
        let why = format!("cannot write to {}: {error}", tools.folder.path().display());
        let who = if tools.programs.login().is_some() { "the login node" } else { "this machine" };
        let hint = format!("`work_folder` names a folder that {who} shares with the cluster's nodes");
        return problem(why, &hint);
    }
    let nodes = match try_commands(&tools, asked).await {
        Ok(nodes) => nodes,
        Err(CommandError::Refused(why)) => {
            let hint = format!("correct [executors.{}], see bgd-executors(7)", tools.name);
            return problem(why, &hint);
        }
        Err(trouble) => return problem(trouble.to_string(), "tasks wait until it works"),
    };
    let mut facts = vec![("answer".to_owned(), format!("{answer} ms"))];
    let mut add = |name: &str, value: Option<String>| {
        facts.extend(value.map(|value| (name.to_owned(), value)));
    };
    let keeps_costs = settings.keeps_costs();
    add("nodes", nodes);
    add("cluster", settings.cluster);
    add("max_array_size", settings.max_array_size.map(|size| size.to_string()));
    add("ended_jobs_known_for", settings.min_job_age.map(|age| format!("{age} s")));
    add("accounting", Some(if settings.has_accounting { "yes" } else { "no" }.to_owned()));
    let costs = if keeps_costs { "yes" } else { "no" };
    add("usage_of_ended_jobs", Some(costs.to_owned()));
    add("host", tools.programs.login().map(|login| login.host().to_owned()));
    add("work_folder", Some(tools.folder.path().display().to_string()));
    ExecutorCheck { ok: true, version: settings.version, facts, ..ExecutorCheck::default() }
}

/// Slurm's message about a job that it accepts although no node could run it now.
const NO_NODE_NOW: &str = "Required node not available";

/// Tries the commands that tasks need. Returns the problem with the nodes if it only delays tasks.
async fn try_commands(tools: &Tools, asked: &Slurm) -> Result<Option<String>, CommandError> {
    tools.programs.run(commands::queue(&[&tools.origin.job_name])).await?;
    tools.programs.run(commands::can_cancel()).await?;
    match tools.programs.run(commands::trial(&asked.resources, asked.time_limit_ms)).await {
        Ok(_) => Ok(None),
        Err(CommandError::Refused(why)) if why.contains(NO_NODE_NOW) => Ok(Some(why)),
        Err(trouble) => Err(trouble),
    }
}

/// Tests whether files can be written for jobs. Leaves no files behind.
async fn try_folder(tools: &Tools) -> Result<(), String> {
    if let Some(login) = tools.programs.login() {
        return remote_files::check(tools, login).await.map_err(|trouble| trouble.to_string());
    }
    let folder = tools.folder.for_check();
    let written = tools.context.workers.run(move || {
        let prepared = folder.prepare();
        let removed = folder.remove();
        prepared.and(removed)
    });
    written.await.map_or(Ok(()), |written| written.map_err(|error| error.to_string()))
}
