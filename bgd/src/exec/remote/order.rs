//! The dispatcher's orders for a machine, and the calls that carry them out.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bgd_shared::client::ClientError;
use bgd_shared::encoding::Encoding;
use bgd_shared::error::{ErrorKind, RpcError};
use bgd_shared::id::TaskId;
use bgd_shared::request::{
    BlockParams, ClearParams, DaemonStatusOf, EditParams, ExecutorCheck, NoParams, SelectParams,
    SignalParams, SubmitParams, TaskBlock, TaskClear, TaskContinue, TaskEdit, TaskHold, TaskPause,
    TaskRelease, TaskSignal, TaskSubmit, TaskWrite, WriteParams,
};
use bgd_shared::task::Status;
use tokio::time::timeout;

use super::bridge::{self, Bridge};
use super::run::Run;
use crate::core::Control;
use crate::exec::elsewhere::places;
use crate::exec::executor::{Ask, Asked};
use crate::exec::host::Host;
use crate::exec::silence::{self, Wait};
use crate::remotes::Ssh;

pub type Order = places::Order<Run, Ssh>;

/// Applies a control operation to a task on the machine.
///
/// # Errors
/// Returns the daemon's refusal, or an error if the connection is broken.
pub async fn control(bridge: &Bridge, id: TaskId, control: Control) -> Result<(), ClientError> {
    let one = || SelectParams { ids: vec![id.into()], matching: None };
    match control {
        Control::Signal { signal, tree } => {
            let params = SignalParams { id: id.into(), signal: signal.to_string(), tree };
            bridge.call::<TaskSignal>(&params).await.map(drop)
        }
        Control::Pause => bridge.call::<TaskPause>(&one()).await.map(drop),
        Control::Continue => bridge.call::<TaskContinue>(&one()).await.map(drop),
        Control::Hold { held: true, .. } => bridge.call::<TaskHold>(&one()).await.map(drop),
        Control::Hold { held: false, .. } => bridge.call::<TaskRelease>(&one()).await.map(drop),
        Control::Priority { priority, .. } => {
            let params = EditParams {
                id: id.into(),
                description: None,
                group: None,
                priority: Some(priority),
                slots: None,
                after: None,
                delay_ms: None,
                start_at: None,
            };
            bridge.call::<TaskEdit>(&params).await.map(drop)
        }
        // A process asks no questions, and has no terminal here.
        Control::Answer { .. } | Control::Detach { .. } => Ok(()),
    }
}

/// Writes to the standard input of a task on the machine, and answers the client, even if the wait is abandoned.
pub fn write(asked: Asked, bridge: Option<Arc<Bridge>>, id: Option<TaskId>, mut wait: Wait) {
    let (Ask::Write { .. }, Some(id)) = (&asked.what, id) else { return asked.refuse() };
    let Some(bridge) = bridge else {
        let on = asked.task.on.as_deref().unwrap_or("its machine");
        let message = format!("task {} can't be written to now: {on} can't be reached", asked.task.id);
        let error = RpcError::new(ErrorKind::Unsupported, message);
        return asked.answer.refuse(&error.hint("`bgctl status` says since when; write again later"));
    };
    let Asked { answer, task, what: Ask::Write { data, eof, unread } } = asked else { return };
    let place = task.on.unwrap_or_else(|| "its machine".to_owned());
    let (data, encoding) = Encoding::encode_short(data);
    let params = WriteParams { id: id.into(), data, encoding, eof };
    tokio::spawn(async move {
        let result = wait.until(bridge.wait::<TaskWrite>(&params)).await;
        drop(unread);
        match result {
            None => answer.refuse(&silence::given_up("it was written")),
            Some(Ok(result)) => answer.give(&result),
            Some(Err(ClientError::Rpc(error))) => answer.refuse(&error),
            Some(Err(error)) => answer.refuse(&cut_off(&place, &error)),
        }
    });
}

/// Returns the error for a write whose connection failed. The words of `error` are about a daemon, and the client would
/// take that for this one.
fn cut_off(place: &str, error: &ClientError) -> RpcError {
    tracing::debug!(place, %error, "a write was not answered");
    silence::cut(place, "it was written, or a part of it").hint(
        "only the task itself can show that, for example by its output: check it before you write again",
    )
}

/// Checks whether a machine works, through its connection if there is one, by running a task in this session that does
/// nothing.
pub async fn check(host: &Host, ssh: &Ssh, session: String, bridge: Option<Arc<Bridge>>) -> ExecutorCheck {
    let bridge = match bridge {
        Some(bridge) => bridge,
        None => match bridge::connect(host, &ssh.shell, None).await {
            Ok(bridge) => Arc::new(bridge),
            Err(trouble) => {
                return ExecutorCheck {
                    problem: Some(trouble.message.into()),
                    hint: trouble.hint.map(Into::into),
                    ..ExecutorCheck::default()
                };
            }
        },
    };
    let asked_at = Instant::now();
    let broken = |error: ClientError| ExecutorCheck {
        problem: Some(match error {
            ClientError::Closed | ClientError::Io(_) => {
                "the connection was lost before it answered".to_owned()
            }
            error => error.to_string(),
        }),
        hint: Some(format!(
            "`bgctl -H {} daemon status` shows the state of the daemon there",
            ssh.shell.host
        )),
        ..ExecutorCheck::default()
    };
    let status = match bridge.call::<DaemonStatusOf>(&NoParams::default()).await {
        Ok(status) => status,
        Err(error) => return broken(error),
    };
    let answer = asked_at.elapsed().as_millis();
    match try_task(&bridge, ssh, session).await {
        Ok(None) => {}
        Ok(Some(problem)) => return ExecutorCheck { problem: Some(problem), ..ExecutorCheck::default() },
        Err(error) => return broken(error),
    }
    let fact = |name: &str, value: String| (name.to_owned(), value);
    let limits = &bridge.hello.limits;
    ExecutorCheck {
        ok: true,
        version: Some(bridge.hello.version.clone()),
        facts: vec![
            fact("answer", format!("{answer} ms")),
            fact("max_concurrent_tasks", limits.max_concurrent_tasks.to_string()),
            fact("tasks", format!("{} running, {} pending", status.summary.running, status.summary.pending)),
            fact("output_bytes", limits.output_bytes.to_string()),
        ],
        ..ExecutorCheck::default()
    }
}

/// The notification channel of tasks on the machine: none, because this daemon sends their notices.
pub const NO_CHANNEL: &str = "none";

/// How long the task of [`try_task`] may take, in milliseconds.
const TRIAL_MS: u64 = 5000;

/// Has the machine run a task that does nothing, with the folder and the environment of other tasks. Returns the reason
/// if it failed. `None` if it can't start yet because the machine currently starts no tasks. Leaves no task.
async fn try_task(bridge: &Bridge, ssh: &Ssh, session: String) -> Result<Option<String>, ClientError> {
    let env = ssh.env.iter().map(|(name, value)| (name.as_str().into(), value.as_str().into()));
    let submit = SubmitParams {
        session: Some(session),
        cwd: ssh.folder.as_deref().map(Into::into),
        env: Some(env.collect()),
        ..SubmitParams::trial("bgctl executors --check", NO_CHANNEL)
    };
    let ids = vec![bridge.call::<TaskSubmit>(&submit).await?.task.id.into()];
    let block = BlockParams { ids: ids.clone(), timeout_ms: Some(TRIAL_MS), ..BlockParams::default() };
    let within = 2 * Duration::from_millis(TRIAL_MS);
    let ended = timeout(within, bridge.wait::<TaskBlock>(&block)).await;
    bridge.call::<TaskClear>(&ClearParams { ids: Some(ids), all: true, ..ClearParams::default() }).await?;
    let Ok(ended) = ended else {
        return Ok(Some(format!("it has not answered about a task within {} s", within.as_secs())));
    };
    let task = ended?.tasks.into_iter().next();
    let failed = task.filter(|task| !task.status.is_active() && task.status != Status::Completed);
    Ok(failed.map(|task| {
        let why = task.error.unwrap_or_else(|| "it gives no reason".to_owned());
        format!("a task that does nothing fails there: {why}")
    }))
}
