//! Agents: programs that are given prompts. They live on a thread of their own, so that whatever they
//! say, and however much of it, delays nobody else. It is started with the first agent task.

pub mod acp;
mod asked;
pub mod connection;
pub mod last_words;
pub mod live;
pub mod manager;
pub mod opencode;
pub mod pool;
pub mod recorder;
pub mod sameness;
pub mod signs;
pub mod template;
pub mod turn;

use std::io;
use std::sync::Arc;
use std::thread;

use bgd_shared::agent::AgentInfo;
use bgd_shared::id::TaskId;
use bgd_shared::text::Env;
use tokio::sync::mpsc;

use self::manager::Manager;
use self::turn::{Control, TurnOrder};
use super::process::Surroundings;
use crate::agents::Agent;

/// What the agents' thread is told.
#[derive(Debug)]
pub enum Order {
    /// A prompt.
    Turn(Box<TurnOrder>),
    /// Something about a turn that goes on.
    Control {
        /// The task.
        task: TaskId,
        /// Its run.
        run: u32,
        /// What.
        control: Control,
    },
    /// A task was cleared.
    Forget {
        /// The task.
        task: TaskId,
    },
    /// Agents shall be started to see what they are.
    Check {
        /// Which, with what is known of them.
        agents: Vec<(Arc<Agent>, AgentInfo)>,
        /// In this environment.
        env: Arc<Env>,
        /// Takes what they are.
        tell: Tell,
    },
}

/// Takes the answer to a question about agents.
pub struct Tell(pub Box<dyn FnOnce(Vec<AgentInfo>) + Send>);

impl std::fmt::Debug for Tell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tell")
    }
}

/// The dispatcher's handle to the agents.
#[derive(Debug)]
pub struct AgentThread {
    around: Surroundings,
    orders: Option<mpsc::UnboundedSender<Order>>,
}

impl AgentThread {
    /// Without the thread, until there is something to do.
    pub fn new(around: Surroundings) -> Self {
        Self { around, orders: None }
    }

    /// Starts the thread, if it does not run. It does not end before this handle, unless something broke in
    /// it; then whoever waits for it is lost, and the next ones get another.
    ///
    /// # Errors
    /// The system allows no more threads.
    pub fn start(&mut self) -> io::Result<()> {
        if self.orders.as_ref().is_none_or(mpsc::UnboundedSender::is_closed) {
            self.orders = Some(start(self.around.clone())?);
        }
        Ok(())
    }

    /// Gives an order that means nothing if there is no thread.
    pub fn order_if_started(&self, order: Order) {
        if let Some(orders) = &self.orders {
            let _ = orders.send(order);
        }
    }
}

fn start(around: Surroundings) -> io::Result<mpsc::UnboundedSender<Order>> {
    let (orders, queue) = mpsc::unbounded_channel();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    thread::Builder::new().name("agents".to_owned()).spawn(move || {
        let local = tokio::task::LocalSet::new();
        local.block_on(&runtime, Manager::new(around).run(queue));
    })?;
    Ok(orders)
}
