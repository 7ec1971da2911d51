//! `events`: prints events, one JSON object per line, until interrupted.

use bgd_shared::client::{Client, ClientError};
use bgd_shared::error::{ErrorKind, RpcError};
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

/// What to print, and where it continues after a lost connection.
struct Wanted {
    /// The tasks, and the position.
    params: SubscribeParams,
    matching: Matching,
    /// If all tasks have been cleared.
    end: Option<End>,
}

/// The end of the events of tasks that have all been cleared.
struct End {
    /// The last event that can be theirs.
    seq: u64,
    /// The failure to report after it.
    refusal: RpcError,
}

/// A new subscription, or the instance of the running daemon if that is not the one of the cursor.
type SubscribeOutcome = Result<(SubscribeResult, Option<End>), String>;

/// Prints events until interrupted.
pub fn run(args: EventsArgs, context: &mut Context) -> Result<Code, Failure> {
    let (instance, since) = match args.since {
        Some(Since { instance, seq }) => (instance, Some(seq)),
        None => (None, None),
    };
    let ids = fixed(pick::together(args.tasks, context)?, context)?;
    let matching = pick::matching(args.select, context.link.is_remote())?.unwrap_or_default();
    check(&matching, since.is_some(), context)?;
    let params = SubscribeParams { session: matching.session.clone(), ids, since, instance };
    let mut wanted = Wanted { params, matching, end: None };
    let begun = context.recovering(|context| context.link.exchange(|client| wanted.subscribe(client)))?;
    context.link.remember();
    wanted.begin(begun)?;
    if let Some(End { refusal, .. }) = wanted.end {
        return Err(ClientError::Rpc(refusal).into());
    }
    loop {
        wanted.check()?;
        let passed = match next(context) {
            Ok(news) => wanted.pass_on(&news, context),
            Err(failure) => Err(failure),
        };
        match passed {
            Ok(()) => {}
            Err(failure) if is_lost(&failure) || context.link.is_remote() => {
                wanted.reconnect(failure, context)?;
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

/// Replaces prefixes by the ids of the tasks: once a task is cleared or another one is submitted, a prefix could mean
/// another one.
fn fixed(ids: Vec<TaskRef>, context: &mut Context) -> Result<Vec<TaskRef>, Failure> {
    if ids.len() < 2 && ids.iter().all(|id| id.exact().is_some()) {
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

fn next(context: &mut Context) -> Result<News, Failure> {
    if let Some(received) = context.link.client()?.received_news()? {
        return Ok(received.news);
    }
    // The reader of a pipe wants each event as it happens.
    context.flush()?;
    loop {
        context.link.wait(None)?;
        // Without news, the daemon has only answered a probe.
        if let Some(arrived) = context.link.client()?.arrived_news()? {
            return Ok(arrived.news);
        }
    }
}

impl Wanted {
    /// Fails if nothing more can come.
    fn check(&self) -> Result<(), Failure> {
        match &self.end {
            Some(End { seq, refusal }) if self.params.since >= Some(*seq) => {
                Err(ClientError::Rpc(refusal.clone()).into())
            }
            _ => Ok(()),
        }
    }

    fn subscribe(&self, client: &mut Client) -> Result<SubscribeOutcome, ClientError> {
        let params = &self.params;
        if params.instance.is_some() {
            let instance = client.call::<Hello>(&HelloParams::default())?.instance;
            if params.instance.as_ref() != Some(&instance) {
                return Ok(Err(instance));
            }
        }
        match client.call::<EventsSubscribe>(params) {
            // Some were cleared meanwhile. Their last events may not have been printed yet, so subscribe to those of all
            // tasks: the others are not printed.
            Err(ClientError::Rpc(refusal)) if refusal.kind() == ErrorKind::TaskNotFound => {
                let is_any_left = is_any_left(&params.ids, client)?;
                let all = SubscribeParams { ids: Vec::new(), session: None, ..params.clone() };
                let begun = client.call::<EventsSubscribe>(&all)?;
                let end = (!is_any_left).then_some(End { seq: begun.seq, refusal });
                Ok(Ok((begun, end)))
            }
            outcome => outcome.map(|begun| Ok((begun, None))),
        }
    }

    /// Takes the outcome of [`Self::subscribe`].
    fn begin(&mut self, begun: SubscribeOutcome) -> Result<(), Failure> {
        let (begun, end) = begun.map_err(|instance| {
            let message =
                format!("the daemon that had these events has ended; another one is running, {instance}");
            Failure::new(Code::NO_DAEMON, "other_instance", message)
                .hint("start over with --since 0; unless it was durable, its tasks and events are lost")
        })?;
        self.params.since.get_or_insert(begun.seq);
        self.params.instance = Some(begun.instance);
        self.end = end;
        Ok(())
    }

    /// Resumes after the last printed line if the same daemon is still running (R26), or another one has taken over its
    /// tasks.
    fn reconnect(&mut self, mut lost: Failure, context: &mut Context) -> Result<(), Failure> {
        let ended = loop {
            let kind = lost.kind;
            match context.link.recover(lost) {
                // This failure explains more than that the connection is lost.
                Err(failure) if context.link.is_remote() || failure.kind != kind => return Err(failure),
                Err(failure) => break failure,
                Ok(()) => {}
            }
            match context.link.exchange(|client| self.subscribe(client)) {
                // The connection may break again at once.
                Err(failure) => lost = failure,
                Ok(begun) => return self.begin(begun),
            }
        };
        match context.link.exchange_again(|client| self.subscribe(client)) {
            Ok(Some(begun)) => return self.begin(begun),
            Ok(None) => {}
            // It accepts connections a moment longer than calls.
            Err(failure) if failure.kind == ErrorKind::ShuttingDown.as_str() => {}
            Err(failure) => return Err(failure),
        }
        if context.link.was_stopped() {
            return Err(ended);
        }
        let message = "the daemon has ended";
        Err(Failure::lost(message).hint(
            "if it was durable, continue with --since and the last cursor; otherwise its tasks and events are lost",
        ))
    }

    fn pass_on(&mut self, news: &News, context: &mut Context) -> Result<(), Failure> {
        let seq = match news {
            News::Event(event) => event.seq,
            News::Gap(gap) if gap.ended => {
                // This client read too slowly, so the subscription was ended. The history may still contain the missed
                // events; the daemon reports those it lacks as a separate gap.
                self.params.since = Some(gap.from.saturating_sub(1));
                let begun = context.link.exchange(|client| self.subscribe(client))?;
                return self.begin(begun);
            }
            News::Gap(gap) => gap.to,
        };
        if !matches!(news, News::Event(event) if !self.is_named(&event.task) || !is_of(&event.task, &self.matching))
        {
            let instance = self.params.instance.as_deref().unwrap_or_default();
            context.print_json(&Line { news, cursor: format!("{instance}:{seq}") })?;
        }
        self.params.since = Some(seq);
        Ok(())
    }

    fn is_named(&self, task: &Task) -> bool {
        let ids = &self.params.ids;
        let is_of_session = self.params.session.as_ref().is_none_or(|of| task.session.as_ref() == Some(of));
        is_of_session && (ids.is_empty() || ids.iter().any(|id| id.range().contains(&task.id)))
    }
}

/// Reports whether a task matches the filter, except for the parent session, by which the daemon filters.
fn is_of(task: &Task, wanted: &Matching) -> bool {
    let Matching { session: _, group, batch, tags, status } = wanted;
    group.as_ref().is_none_or(|group| task.group == *group)
        && batch.as_ref().is_none_or(|batch| task.batch.is_some_and(|of| batch.range().contains(&of)))
        && tags.iter().all(|tag| task.tags.contains(tag))
        && (status.is_empty() || status.contains(&task.status))
}
