//! Agents: programs that take prompts. They run on a dedicated thread, so that a chatty agent can't delay the
//! rest of the daemon. The thread starts with the first order.

#[cfg_attr(not(feature = "acp"), path = "acp/absent.rs")]
pub mod acp;
mod after;
mod asked;
pub mod connection;
mod far;
mod link;
pub mod live;
pub mod manager;
pub mod opencode;
mod order;
pub mod pool;
pub mod recorder;
pub mod sameness;
pub mod signs;
mod start;
pub mod stderr_tail;
pub mod template;
pub mod turn;
mod turns;

use std::cell::RefCell;
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::thread;

use bgd_shared::error::ErrorKind;
use bgd_shared::id::TaskId;
use tokio::sync::mpsc;

use self::manager::Manager;
pub use self::order::{Control, Order, Tell, TurnOrder};
use super::carried::Carried;
use super::context::Context;
use super::executor::{Done, Executor, Start};
use crate::agents::{Agent, Agents};
use crate::carry::{Named, Obstacle};
use crate::core::{self, Begin, Fact, Refusal, Spec, Work};
use crate::os::pidfd::SIGKILL;

/// The executor of agent tasks: a handle to the agents' thread.
#[derive(Clone, Debug)]
pub struct AgentThread(Rc<RefCell<Handle>>);

#[derive(Debug)]
struct Handle {
    /// The configured agents and the built-in ones.
    known: Arc<Agents>,
    context: Context,
    orders: Option<mpsc::UnboundedSender<Order>>,
}

impl AgentThread {
    /// Creates the handle. The thread starts with the first order.
    pub fn new(known: Arc<Agents>, context: Context) -> Self {
        Self(Rc::new(RefCell::new(Handle { known, context, orders: None })))
    }

    /// Returns the agents that prompts can be sent to.
    pub fn known(&self) -> Arc<Agents> {
        Arc::clone(&self.0.borrow().known)
    }

    /// Replaces the known agents for all later prompts.
    pub fn configure(&self, known: Arc<Agents>) {
        self.0.borrow_mut().known = known;
    }

    /// Sends an order to the thread, and starts the thread if it isn't running. The thread lives as long as this
    /// handle unless it breaks down: then everything that waits for it is lost, and later orders go to a new thread.
    ///
    /// # Errors
    /// The thread can't be started, for example because the system allows no more threads.
    pub fn order(&self, order: Order) -> io::Result<()> {
        let mut handle = self.0.borrow_mut();
        let context = handle.context.clone();
        let orders = match handle.orders.take() {
            Some(orders) if !orders.is_closed() => orders,
            Some(_) | None => start(context)?,
        };
        let _ = handle.orders.insert(orders).send(order);
        Ok(())
    }

    /// Sends an order that would have no effect without a running thread.
    fn order_if_started(&self, order: Order) {
        if let Some(orders) = &self.0.borrow().orders {
            let _ = orders.send(order);
        }
    }

    fn prompt(&self, start: Start) -> Result<(), Refusal> {
        let Start { task, run, spec, begin, inherited: _, owner: _ } = start;
        let Begin::Prompt { env, prompt, settings, session, after } = begin else {
            return Err(Refusal::new(ErrorKind::Internal, "agents run no processes of tasks"));
        };
        let agent = self.agent_of(&spec)?;
        let order = TurnOrder { task, run, agent, spec, env, prompt, settings, session, after };
        self.order(Order::Turn(Box::new(order))).map_err(|error| {
            Refusal::new(ErrorKind::Internal, format!("cannot start a thread for agents: {error}"))
        })
    }

    /// Looks up the agent that a task names.
    fn agent_of(&self, spec: &Spec) -> Result<Arc<Agent>, Refusal> {
        let name = match &spec.work {
            Work::Agent(agent) => Some(&*agent.name),
            Work::Argv(_) | Work::Shell(_) => None,
        };
        // A configuration reload may have removed the agent since the task was submitted.
        self.0.borrow().known.find(name).map(Arc::clone).map_err(Refusal::from)
    }
}

impl Executor for AgentThread {
    fn carry(&mut self, _named: &mut Named) -> Result<Carried, Obstacle> {
        if self.0.borrow().orders.is_some() {
            return Err(Obstacle::lasting("an agent has had a prompt, and its conversations would end"));
        }
        Ok(Carried::Nothing)
    }

    fn start(&mut self, start: Start) {
        let (task, run) = (start.task, start.run);
        if let Err(refusal) = self.prompt(start) {
            self.0.borrow().context.facts.send(task, run, Fact::Refused(Box::new(refusal)));
        }
    }

    fn control(&mut self, task: TaskId, run: u32, control: core::Control) -> Option<Done> {
        match control {
            core::Control::Answer { key, option } => {
                self.order_if_started(Order::Control { task, run, control: Control::Answer { key, option } });
            }
            core::Control::Signal { .. } => tracing::error!(%task, "an agent takes no signals"),
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

    fn end(&mut self, task: TaskId, run: u32, signal: i32) {
        let control = Control::Stop { force: signal == SIGKILL };
        self.order_if_started(Order::Control { task, run, control });
    }

    fn forget(&mut self, task: TaskId) {
        self.order_if_started(Order::Forget { task });
    }
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
