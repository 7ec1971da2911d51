//! Agents: programs that are given prompts. They live on a thread of their own, so that whatever they
//! say, and however much of it, delays nobody else. It is started with the first agent task.

pub mod acp;
mod asked;
pub mod connection;
pub mod last_words;
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
pub mod template;
pub mod turn;
mod turns;

use std::io;
use std::thread;

use tokio::sync::mpsc;

use self::manager::Manager;
pub use self::order::{Control, Order, Tell, TurnOrder};
use super::process::Surroundings;

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
