//! `events`: prints events, one JSON object per line, until interrupted.

use bgd_shared::client::{Client, ClientError};
use bgd_shared::error::ErrorKind;
use bgd_shared::event::News;
use bgd_shared::id::TaskRef;
use bgd_shared::request::{
    BlockParams, EventsSubscribe, Hello, HelloParams, IdParams, ListParams, Matching, SubscribeParams,
    SubscribeResult, TaskBlock, TaskGet, TaskList,
};
use bgd_shared::task::Task;
use serde::Serialize;

use crate::cli::{EventsArgs, Since};
use crate::context::Context;
use crate::exit::Code;
use crate::failure::Failure;
use crate::link::is_lost;
use crate::pick;

/// A printed line: the wire object, and the cursor to continue after it.
#[derive(Serialize)]
struct Line<'a> {
    #[serde(flatten)]
    news: &'a News,
    cursor: String,
}

/// Prints events until interrupted.
pub fn run(args: EventsArgs, context: &mut Context) -> Result<Code, Failure> {
    let (instance, since) = match args.since {
        Some(Since { instance, seq }) => (instance, Some(seq)),
        None => (None, None),
    };
    let ids = fixed(pick::together(args.tasks, context)?, context)?;
    let wanted = pick::matching(args.select, context.link.is_remote())?.unwrap_or_default();
    check(&wanted, since.is_some(), context)?;
    let mut params = SubscribeParams { session: wanted.session.clone(), ids, since, instance };
    let begun = check_subscribed(
        context.recovering(|context| context.link.exchange(|client| subscribe(client, &params)))?,
    )?;
    context.link.remember();
    params.instance = Some(begun.instance.clone());
    params.since.get_or_insert(begun.seq);
    loop {
        let passed = match next(context) {
            Ok(news) => pass_on(&news, &begun.instance, &wanted, &mut params, context),
            Err(failure) => Err(failure),
        };
        match passed {
            Ok(()) => {}
            Err(failure) if is_lost(&failure) || context.link.is_remote() => {
                reconnect(failure, &params, context)?;
            }
            Err(failure) => return Err(failure),
        }
    }
}

/// Makes the daemon refuse a selection that no event can ever match, as for other verbs: events are selected here. Past
/// events may be those of a batch or a group that is gone.
fn check(wanted: &Matching, is_past: bool, context: &mut Context) -> Result<(), Failure> {
    let mut wanted = wanted.clone();
    if is_past {
        (wanted.batch, wanted.group) = (None, None);
    }
    if wanted == Matching::default() {
        return Ok(());
    }
    let params = ListParams { limit: Some(1), ..ListParams::from(wanted) };
    context.call::<TaskList>(&params).map(drop)
}

/// Subscribes. If the cursor belongs to a daemon other than the running one, returns the instance of the running daemon
/// as the inner error.
fn subscribe(
    client: &mut Client,
    params: &SubscribeParams,
) -> Result<Result<SubscribeResult, String>, ClientError> {
    if params.instance.is_some() {
        let instance = client.call::<Hello>(&HelloParams::default())?.instance;
        if params.instance.as_ref() != Some(&instance) {
            return Ok(Err(instance));
        }
    }
    match client.call::<EventsSubscribe>(params) {
        // Some were cleared meanwhile. Their last events may not have been printed yet, so subscribe to those of all tasks:
        // the others are not printed.
        Err(ClientError::Rpc(error))
            if error.kind() == ErrorKind::TaskNotFound
                && params.ids.len() > 1
                && is_any_left(&params.ids, client)? =>
        {
            let all = SubscribeParams { ids: Vec::new(), ..params.clone() };
            client.call::<EventsSubscribe>(&all).map(Ok)
        }
        outcome => outcome.map(Ok),
    }
}

/// Replaces several names by the ids of the tasks: once a task is cleared, a prefix could mean another one.
fn fixed(ids: Vec<TaskRef>, context: &mut Context) -> Result<Vec<TaskRef>, Failure> {
    if ids.len() < 2 {
        return Ok(ids);
    }
    let look = BlockParams::look(ids);
    let seen = context.recovering(|context| context.call::<TaskBlock>(&look))?;
    Ok(seen.tasks.iter().map(|task| task.id.into()).collect())
}

fn is_any_left(ids: &[TaskRef], client: &mut Client) -> Result<bool, ClientError> {
    for id in ids {
        match client.call::<TaskGet>(&IdParams { id: id.clone() }) {
            Err(ClientError::Rpc(error)) if error.kind() == ErrorKind::TaskNotFound => {}
            outcome => return outcome.map(|_| true),
        }
    }
    Ok(false)
}

fn check_subscribed(outcome: Result<SubscribeResult, String>) -> Result<SubscribeResult, Failure> {
    outcome.map_err(|instance| {
        let message =
            format!("the daemon that had these events has ended; another one is running, {instance}");
        Failure::new(Code::NO_DAEMON, "other_instance", message)
            .hint("it was not durable, so its tasks and events are lost: start over with --since 0")
    })
}

fn next(context: &mut Context) -> Result<News, Failure> {
    if let Some(received) = context.link.client()?.received_news()? {
        return Ok(received.news);
    }
    // The reader of a pipe wants each event as it happens.
    context.flush()?;
    context.link.wait(None)?;
    Ok(context.link.client()?.next_news()?.news)
}

/// Resumes after the last printed line if the same daemon is still running (R26), or another one has taken over its
/// tasks.
fn reconnect(mut lost: Failure, params: &SubscribeParams, context: &mut Context) -> Result<(), Failure> {
    let ended = loop {
        let kind = lost.kind;
        match context.link.recover(lost) {
            // This failure explains more than that the connection is lost.
            Err(failure) if context.link.is_remote() || failure.kind != kind => return Err(failure),
            Err(failure) => break failure,
            Ok(()) => {}
        }
        match context.link.exchange(|client| subscribe(client, params)) {
            // The connection may break again at once.
            Err(failure) => lost = failure,
            Ok(outcome) => return check_subscribed(outcome).map(drop),
        }
    };
    if let Some(outcome) = context.link.exchange_again(|client| subscribe(client, params))? {
        return check_subscribed(outcome).map(drop);
    }
    if context.link.was_stopped() {
        return Err(ended);
    }
    let message = "the daemon has ended";
    Err(Failure::lost(message).hint(
        "if it was durable, continue with --since and the last cursor; otherwise its tasks and events are lost",
    ))
}

fn pass_on(
    news: &News,
    instance: &str,
    wanted: &Matching,
    params: &mut SubscribeParams,
    context: &mut Context,
) -> Result<(), Failure> {
    let seq = match news {
        News::Event(event) => event.seq,
        News::Gap(gap) if gap.ended => {
            // This client read too slowly, so the subscription was ended. The history may still contain the missed
            // events; the daemon reports those it lacks as a separate gap.
            params.since = Some(gap.from.saturating_sub(1));
            return check_subscribed(context.link.exchange(|client| subscribe(client, params))?).map(drop);
        }
        News::Gap(gap) => gap.to,
    };
    let is_named =
        |task: &Task| params.ids.is_empty() || params.ids.iter().any(|id| id.range().contains(&task.id));
    if !matches!(news, News::Event(event) if !is_named(&event.task) || !is_of(&event.task, wanted)) {
        context.print_json(&Line { news, cursor: format!("{instance}:{seq}") })?;
    }
    params.since = Some(seq);
    Ok(())
}

/// Reports whether a task matches the filter, except for the parent session, by which the daemon filters.
fn is_of(task: &Task, wanted: &Matching) -> bool {
    let Matching { session: _, group, batch, tags, status } = wanted;
    group.as_ref().is_none_or(|group| task.group == *group)
        && batch.as_ref().is_none_or(|batch| task.batch.is_some_and(|of| batch.range().contains(&of)))
        && tags.iter().all(|tag| task.tags.contains(tag))
        && (status.is_empty() || status.contains(&task.status))
}
