//! `task.submit_many`: one part of a batch.

use std::os::fd::OwnedFd;

use bgd_shared::error::RpcError;
use bgd_shared::id::TaskId;
use bgd_shared::limits;
use bgd_shared::params::parse_params;
use bgd_shared::request::{Method as _, SubmitManyParams, SubmitParams, TaskSubmitMany};
use bgd_shared::text::OsText;
use serde_json::value::RawValue;

use super::body::Body;
use super::checks::{check_no_nul, invalid};
use super::inherit;
use super::submit::{common, environment, on_request};
use crate::core::{BatchItem, BatchLimits, Command, Part};
use crate::remotes::OnRequest;

/// Parses a part. An error becomes [`Body::PartRefused`].
pub fn read(params: Option<&RawValue>, fds: Vec<OwnedFd>, peer: Option<i32>) -> Body {
    let params = parse_params(TaskSubmitMany::NAME, params);
    params.and_then(|params| part(params, fds, peer)).unwrap_or_else(Body::PartRefused)
}

/// Checks a part like the submission of a single task.
fn part(params: SubmitManyParams, fds: Vec<OwnedFd>, peer: Option<i32>) -> Result<Body, RpcError> {
    let SubmitManyParams { task, batch, argvs, jobs, max_fails, more } = params;
    let mut on = OnRequest::default();
    let first = match (task, batch) {
        (Some(mut task), None) => {
            on = on_request(&mut task)?;
            let limits = BatchLimits {
                jobs: limit("jobs", jobs, limits::GROUP_SLOTS)?,
                max_fails: limit("max_fails", max_fails, u32::MAX)?,
            };
            Some((Box::new(template(inherit::complete(*task, peer)?, fds)?), limits))
        }
        (None, Some(_)) if jobs.is_some() || max_fails.is_some() => {
            return Err(invalid("`jobs` and `max_fails` belong in the first part, with `task`"));
        }
        (None, Some(_)) => None,
        (Some(_), Some(_)) => {
            return Err(invalid(
                "`task` and `batch` can't be combined: the first part has `task`, others `batch`",
            ));
        }
        (None, None) => {
            return Err(invalid(
                "`task` is missing: give what the tasks have in common (or `batch` in a further part)",
            ));
        }
    };
    let items = items(argvs)?;
    let batch = batch.unwrap_or_else(TaskId::random);
    Ok(Body::Many(Box::new(Part { batch, first, items, more }), Box::new(on)))
}

fn limit(name: &str, limit: Option<u32>, most: u32) -> Result<Option<u32>, RpcError> {
    match limit {
        Some(number) if number == 0 || number > most => {
            Err(invalid(format!("`{name}` is {number}; it must be 1 to {most}")))
        }
        limit => Ok(limit),
    }
}

/// Builds the command that all tasks have in common. Its `argv` is a placeholder until each task gets its own.
fn template(task: SubmitParams, fds: Vec<OwnedFd>) -> Result<Command, RpcError> {
    let has_work =
        task.argv.is_some() || task.shell.is_some() || task.prompt.is_some() || task.resume.is_some();
    if has_work || task.agent.is_some() || !task.settings.is_empty() {
        return Err(invalid(
            "`task` says what the tasks have in common, and `argvs` what each one runs: omit `argv`, \
             `shell`, `prompt`, `resume`, `agent` and `settings`",
        ));
    }
    let is_one_process = task.foreground || task.direct || task.pty.is_some();
    if is_one_process || task.stdin.is_some() || task.stdout.is_some() || task.stderr.is_some() {
        return Err(invalid(
            "`foreground`, `direct`, `pty`, `stdin`, `stdout` and `stderr` are not allowed in a batch",
        ));
    }
    let env = environment(task.env, task.env_fd, &mut fds.into_iter())?;
    let argv = Some(vec![OsText::from("true")]);
    common(SubmitParams { env, env_fd: false, argv, ..task })
}

fn items(argvs: Vec<Vec<OsText>>) -> Result<Vec<BatchItem>, RpcError> {
    if argvs.is_empty() {
        return Err(invalid("`argvs` is empty: a batch has one task or more"));
    }
    if argvs.len() > limits::BATCH_PART {
        let (given, most) = (argvs.len(), limits::BATCH_PART);
        return Err(invalid(format!("`argvs` has {given} commands; a part has at most {most}"))
            .hint("send further parts: `more` in this one, `batch` in those"));
    }
    let item = |(place, argv): (usize, Vec<OsText>)| {
        if argv.first().is_none_or(|program| program.as_bytes().is_empty()) {
            return Err(invalid(format!("`argvs[{place}]` has no program")));
        }
        argv.iter().try_for_each(|text| check_no_nul(format_args!("argvs[{place}]"), text))?;
        Ok(BatchItem { id: TaskId::random(), argv: argv.into() })
    };
    argvs.into_iter().enumerate().map(item).collect()
}
