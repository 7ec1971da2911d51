//! Prepares a turn for its prompt: finds a process, and opens the session in it.

use std::cell::OnceCell;
use std::rc::Rc;

use bgd_shared::error::ErrorKind;
use bgd_shared::limits::AGENT_SESSION_BYTES;
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::{Ready, Turn, Unopened};
use crate::core::Refusal;
use crate::exec::agent::connection::UPDATES;
use crate::exec::agent::live::too_slow;
use crate::exec::agent::manager::{Manager, gone};
use crate::exec::agent::order::Control;
use crate::exec::agent::refusals::{broken, no_folder, too_long};

impl Turn {
    /// Finds a process and opens the session. Fails when the deadline passes or the turn is stopped.
    pub(super) async fn open(&mut self, manager: &Rc<Manager>, deadline: Instant) -> Result<Ready, Unopened> {
        let (sender, updates) = mpsc::channel(UPDATES);
        let order = &self.order;
        let wanted = order.wanted();
        // Outside of the future, so that the lease is known even if opening is abandoned.
        let leased = OnceCell::new();
        let opening = async {
            // For an agent on another machine, the path is a folder on that machine, and the agent checks it.
            if order.agent.on.is_none() {
                let found = manager.folders.check(&order.spec.cwd).await;
                found.map_err(|why| no_folder(&order.spec, &why))?;
            }
            // The configuration may have been reloaded since the task was submitted.
            order.agent.takes(&order.settings).map_err(Refusal::from)?;
            let lease = manager.lease(order).await?;
            let lease = leased.get_or_init(|| lease);
            let opened = tokio::select! {
                biased;
                opened = lease.live().connection.open(&wanted, sender) => opened,
                why = lease.live().lost() => Err(broken(lease, &why).await),
            };
            let opened = match opened {
                Err(_) if lease.was_warm && lease.live().is_dead() => {
                    manager.retire(lease);
                    return Err(Unopened::TooLate);
                }
                // The running process may not notice a later login.
                Err(refusal) if refusal.kind == ErrorKind::AuthenticationRequired => {
                    manager.retire(lease);
                    return Err(refusal.into());
                }
                opened => opened?,
            };
            if opened.session.as_ref().is_some_and(|session| session.len() > AGENT_SESSION_BYTES) {
                return Err(too_long(&order.agent).into());
            }
            manager.opened(lease, order.task, &opened.key);
            Ok(opened)
        };
        let stopped = async {
            while let Some(control) = self.control.recv().await {
                if matches!(control, Control::Stop { .. }) {
                    return;
                }
            }
        };
        let opened = tokio::select! {
            biased;
            () = stopped => Err(Refusal::new(ErrorKind::NotRunning, "it was cancelled before it began")),
            opened = tokio::time::timeout_at(deadline, opening) => match opened {
                Ok(opened) => Ok(opened?),
                Err(_) => Err(too_slow(&order.agent, "opened no session")),
            },
        };
        match (opened, leased.into_inner()) {
            (Ok(opened), Some(lease)) => Ok(Ready { lease, opened, updates }),
            (Ok(_), None) => Err(gone().into()),
            (Err(refusal), lease) => {
                // The process may hang and delay later prompts; and the session that it may still open would stay
                // unused.
                if let Some(lease) = &lease {
                    manager.retire(lease);
                }
                Err(refusal.into())
            }
        }
    }
}
