//! What the dispatcher orders of a machine, and the calls that carry it out there.

use std::sync::Arc;
use std::time::Instant;

use bgd_shared::client::ClientError;
use bgd_shared::encoding::Encoding;
use bgd_shared::error::{ErrorKind, RpcError};
use bgd_shared::id::TaskId;
use bgd_shared::request::{
    DaemonStatusOf, EditParams, ExecutorCheck, NoParams, SelectParams, SignalParams, TaskContinue, TaskEdit,
    TaskHold, TaskPause, TaskRelease, TaskSignal, TaskWrite, WriteParams,
};

use super::bridge::{self, Bridge};
use super::run::Run;
use crate::core::Control;
use crate::exec::executor::{Ask, Asked};
use crate::exec::host::Host;
use crate::exec::places;
use crate::remotes::{Shell, Ssh};

/// An order for a machine.
pub type Order = places::Order<Run, Ssh>;

/// Applies a control operation to a task there.
///
/// # Errors
/// The daemon's refusal, or a broken connection.
pub async fn control(bridge: &Bridge, id: TaskId, control: Control) -> Result<(), ClientError> {
    let one = || SelectParams { ids: vec![id.into()], matching: None };
    match control {
        Control::Signal { signal, tree } => {
            let params = SignalParams { id: id.into(), signal: signal.to_string(), tree };
            bridge.call::<TaskSignal>(&params).await.map(drop)
        }
        Control::Pause => bridge.call::<TaskPause>(&one()).await.map(drop),
        Control::Continue => bridge.call::<TaskContinue>(&one()).await.map(drop),
        Control::Hold { held: true } => bridge.call::<TaskHold>(&one()).await.map(drop),
        Control::Hold { held: false } => bridge.call::<TaskRelease>(&one()).await.map(drop),
        Control::Priority { priority } => {
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
        // A process asks nothing, and has no terminal here.
        Control::Answer { .. } | Control::Detach { .. } => Ok(()),
    }
}

/// Writes to the standard input of a task there, and answers the client.
pub fn write(asked: Asked, bridge: Option<Arc<Bridge>>, id: Option<TaskId>) {
    let (Ask::Write { .. }, Some(id)) = (&asked.what, id) else { return asked.refuse() };
    let Some(bridge) = bridge else {
        let on = asked.task.on.as_deref().unwrap_or("its machine");
        let message = format!("task {} can't be written to now: {on} can't be reached", asked.task.id);
        let error = RpcError::new(ErrorKind::Unsupported, message);
        return asked.answer.refuse(&error.hint("`bgctl status` says since when; write again later"));
    };
    let Asked { answer, what: Ask::Write { data, eof }, .. } = asked else { return };
    let (data, encoding) = Encoding::encode(data);
    let params = WriteParams { id: id.into(), data, encoding, eof };
    tokio::spawn(async move {
        match bridge.wait::<TaskWrite>(&params).await {
            Ok(result) => answer.give(&result),
            Err(ClientError::Rpc(error)) => answer.refuse(&error),
            Err(error) => answer.refuse(&RpcError::new(ErrorKind::Internal, error.to_string())),
        }
    });
}

/// Tries whether a machine works, by its connection if there is one.
pub async fn check(host: &Host, shell: &Shell, bridge: Option<Arc<Bridge>>) -> ExecutorCheck {
    let bridge = match bridge {
        Some(bridge) => bridge,
        None => match bridge::connect(host, shell, None).await {
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
    let status = match bridge.call::<DaemonStatusOf>(&NoParams::default()).await {
        Ok(status) => status,
        Err(error) => return ExecutorCheck { problem: Some(error.to_string()), ..ExecutorCheck::default() },
    };
    let fact = |name: &str, value: String| (name.to_owned(), value);
    let limits = &bridge.hello.limits;
    ExecutorCheck {
        ok: true,
        version: Some(bridge.hello.version.clone()),
        facts: vec![
            fact("answer", format!("{} ms", asked_at.elapsed().as_millis())),
            fact("max_concurrent_tasks", limits.max_concurrent_tasks.to_string()),
            fact("tasks", format!("{} running, {} pending", status.summary.running, status.summary.pending)),
            fact("output_bytes", limits.output_bytes.to_string()),
        ],
        ..ExecutorCheck::default()
    }
}
