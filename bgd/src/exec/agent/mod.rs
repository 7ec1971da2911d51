//! Agents: programs that accept prompts. They run on a dedicated thread, so that a chatty agent can't delay the rest of
//! the daemon. The thread starts with the first order.

#[cfg_attr(not(feature = "acp"), path = "acp/absent.rs")]
pub mod acp;
mod after;
mod asked;
mod carry;
pub mod connection;
mod earlier;
mod far;
mod folders;
mod key;
mod late;
mod link;
pub mod live;
pub mod manager;
pub mod opencode;
mod order;
mod patience;
mod pending;
pub mod pool;
pub mod recorder;
mod refusals;
pub mod sameness;
mod session_id;
mod shown;
pub mod signs;
mod start;
pub mod state;
pub mod stderr_tail;
pub mod template;
pub mod turn;
mod turn_order;
mod turns;

use std::collections::HashMap;
use std::io;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use bgd_shared::error::ErrorKind;
use bgd_shared::id::TaskId;
use serde_json::value::RawValue;
use tokio::sync::mpsc;

use self::manager::Manager;
use self::order::{Control, Order, TurnOrder};
use self::state::{AgentsState, Resumed, Taken};
use super::carried::Carried;
use super::context::Context;
use super::executor::{Check, Done, Executor, SpecOf, Start};
use crate::agents::{Agent, Agents};
use crate::carry::standstill::Standstill;
use crate::carry::{CarriedFds, Obstacle, ReceivedFds};
use crate::client::Client;
use crate::core::{self, Begin, Fact, Refusal, Spec, Work, sharing};
use crate::os::pidfd::SIGKILL;
use crate::remotes::Remotes;

/// The executor of agent tasks: a handle to the agents' thread.
#[derive(Debug)]
pub struct AgentThread {
    /// The configured agents and the built-in ones.
    known: Arc<Agents>,
    context: Context,
    orders: Option<mpsc::UnboundedSender<Order>>,
    /// Freezes the thread for an upgrade.
    standstill: Standstill<Box<RawValue>>,
    /// The agents carried over an upgrade, until they are resumed.
    resumed: Option<Box<Resumed>>,
}

impl AgentThread {
    /// Creates the handle. The thread starts with the first order.
    pub fn new(known: Arc<Agents>, context: Context) -> Self {
        Self { known, context, orders: None, standstill: Standstill::default(), resumed: None }
    }

    /// Returns the channel to the thread, starting the thread if it isn't running. The thread lives as long as this
    /// handle unless it breaks down: then everything that waits for it is lost, and later orders go to a new thread.
    ///
    /// # Errors
    /// The thread can't be started, for example because the system allows no more threads.
    fn thread(&mut self) -> io::Result<&mpsc::UnboundedSender<Order>> {
        let orders = match self.orders.take() {
            Some(orders) if !orders.is_closed() => orders,
            Some(_) | None => start(self.context.clone()).map_err(|error| {
                io::Error::new(error.kind(), format!("cannot start a thread for agents: {error}"))
            })?,
        };
        Ok(self.orders.insert(orders))
    }

    /// Sends an order that has no effect without a running thread.
    fn order_if_started(&self, order: Order) {
        if let Some(orders) = &self.orders {
            let _ = orders.send(order);
        }
    }

    fn prompt(&mut self, start: Start) -> Result<(), Refusal> {
        let Start { task, run, spec, begin, inherited: _, owner: _ } = start;
        let Begin::Prompt { env, prompt, settings, session, after } = begin else {
            return Err(Refusal::new(ErrorKind::Internal, "agents run no processes of tasks"));
        };
        let agent = self.agent_of(&spec)?;
        let order = TurnOrder { task, run, agent, spec, env, prompt, settings, session, after };
        let thread = self.thread().map_err(|error| Refusal::new(ErrorKind::Internal, error.to_string()))?;
        let _ = thread.send(Order::Turn(Box::new(order)));
        Ok(())
    }

    /// Looks up the agent that a task names.
    fn agent_of(&self, spec: &Spec) -> Result<Arc<Agent>, Refusal> {
        let name = match &spec.work {
            Work::Agent(agent) => Some(&*agent.name),
            Work::Argv(_) | Work::Shell(_) => None,
        };
        // A configuration reload may have removed the agent since the task was submitted.
        self.known.find(name).map(Arc::clone).map_err(Refusal::from)
    }
}

impl Executor for AgentThread {
    fn start(&mut self, start: Start) {
        let (task, run) = (start.task, start.run);
        if let Err(refusal) = self.prompt(start) {
            self.context.facts.send(task, run, Fact::Refused(Box::new(refusal)));
        }
    }

    fn control(&mut self, task: TaskId, run: u32, control: core::Control) -> Option<Done> {
        match control {
            core::Control::Answer { key, option, by_user } => {
                let control = Control::Answer { key, option, by_user };
                self.order_if_started(Order::Control { task, run, control });
            }
            core::Control::Signal { .. } => tracing::error!(%task, "an agent does not accept signals"),
            core::Control::Pause | core::Control::Continue => {
                tracing::error!(%task, "an agent is not paused");
            }
            core::Control::Hold { .. } | core::Control::Priority { .. } => {
                tracing::error!(%task, "an agent waits in no queue of its own");
            }
            // An agent has no terminal to detach from.
            core::Control::Detach { .. } => {}
        }
        None
    }

    fn end(&mut self, task: TaskId, run: u32, signal: i32, _: Duration) {
        let control = Control::Stop { force: signal == SIGKILL };
        self.order_if_started(Order::Control { task, run, control });
    }

    fn forget(&mut self, task: TaskId) {
        self.order_if_started(Order::Forget { task });
    }

    fn check(&mut self, check: Check) {
        let Check::Agents { agents, env, done } = check else { return };
        match self.thread() {
            Ok(thread) => _ = thread.send(Order::Check { agents, env, done }),
            Err(error) => _ = done.send(Err(error)),
        }
    }

    fn hold_starts(&mut self, holds: bool) {
        self.order_if_started(Order::Hold(holds));
        self.release();
    }

    fn carry(&mut self, named: &mut CarriedFds) -> Result<Carried, Obstacle> {
        let Some(orders) = self.orders.as_ref().filter(|orders| !orders.is_closed()) else {
            return Ok(Carried::Nothing);
        };
        let state = self.standstill.freeze("an agent is at work", named, |order| {
            let _ = orders.send(Order::Freeze(order));
        });
        state.map(Carried::Other)
    }

    fn release(&mut self) {
        self.standstill.release();
    }

    fn resume(&mut self, carried: Carried, received: &mut ReceivedFds, _: &SpecOf<'_>) -> io::Result<()> {
        let state = match carried {
            Carried::Nothing => return Ok(()),
            Carried::Local(_) => return Err(io::Error::other("the state of another executor")),
            Carried::Other(state) => state,
        };
        let state = read(&state)?;
        let taken = Taken::all(&state, received)?;
        self.orders = Some(start(self.context.clone())?);
        self.resumed = Some(Box::new(Resumed { state, taken }));
        Ok(())
    }

    fn activate(&mut self, _: &HashMap<u64, Arc<Client>>) {
        if let Some(resumed) = self.resumed.take() {
            self.order_if_started(Order::Resume(resumed));
        }
    }

    fn configure(&mut self, agents: &Arc<Agents>, _: &Arc<Remotes>) {
        self.known = Arc::clone(agents);
    }
}

/// Parses the state of the agents.
///
/// # Errors
/// The state is damaged.
pub fn read(state: &RawValue) -> serde_json::Result<AgentsState> {
    sharing::read_once(|| serde_json::from_str(state.get()))
}

fn start(context: Context) -> io::Result<mpsc::UnboundedSender<Order>> {
    let (orders, queue) = mpsc::unbounded_channel();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    thread::Builder::new().name("agents".to_owned()).spawn(move || {
        let local = tokio::task::LocalSet::new();
        local.block_on(&runtime, Manager::new(context).run(queue));
    })?;
    Ok(orders)
}
