//! Executors run tasks and report facts. They make no decisions and may not touch the core. Each implements
//! [`executor::Executor`] and has a line in [`table`]; `man/contributing.md` lists what else a new one needs.
//!
//! The executors are in [`local`], [`agent`], [`remote`] and [`slurm`], and the rest is what they share. [`processes`]
//! and [`threads`] are the lowest layer.

pub mod agent;
pub mod awaited;
pub mod carried;
pub mod context;
pub mod elsewhere;
pub mod executor;
pub mod handed;
pub mod helper;
pub mod host;
pub mod http;
pub mod input;
pub mod left;
pub mod local;
pub mod messages;
pub mod output;
pub mod processes;
pub mod ready;
pub mod remote;
pub mod silence;
pub mod slurm;
pub mod spawner;
pub mod strays;
pub mod supervise;
mod task_variables;
pub mod terminal;
pub mod threads;
pub mod tree;

use bgd_shared::resources::ExecutorKind;

use self::agent::AgentThread;
use self::elsewhere::PlaceExecutor;
use self::elsewhere::places::Elsewhere;
use self::executor::Executors;
use self::local::Local;
use self::remote::Machines;
use self::slurm::Clusters;
use crate::core::ExecutorName;

/// Returns the daemon's executors.
pub fn table(local: Local, agents: AgentThread, elsewhere: &Elsewhere) -> Executors {
    Executors::default()
        .with(ExecutorName::LOCAL, local)
        .with(ExecutorName::AGENT, agents)
        .with(ExecutorKind::Ssh.into(), PlaceExecutor::<Machines>::new(elsewhere))
        .with(ExecutorKind::Slurm.into(), PlaceExecutor::<Clusters>::new(elsewhere))
}
