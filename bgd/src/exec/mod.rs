//! Executors run tasks and report facts. They make no decisions and may not touch the core. Each implements
//! [`executor::Executor`] and has a line in [`table`]; `man/contributing.md` lists what else a new one needs.

pub mod adopted;
pub mod agent;
pub mod awaited;
pub mod carried;
pub mod cgroup;
pub mod context;
pub mod due;
pub mod elsewhere;
mod ending;
pub mod executor;
mod exits;
pub mod feed;
pub mod handed;
pub mod helper;
pub mod hold;
pub mod host;
pub mod http;
pub mod input;
pub mod job;
pub mod kin;
pub mod left;
pub mod local;
pub mod loss;
pub mod mark;
pub mod members;
pub mod messages;
pub mod newborn;
pub mod output;
pub mod owed;
mod paused;
pub mod places;
pub mod process;
pub mod progress;
pub mod pty;
pub mod ready;
pub mod reaper;
pub mod remote;
mod rest;
pub mod results;
pub mod silence;
pub mod slurm;
pub mod spawner;
mod starting;
pub mod strays;
mod task_variables;
pub mod terminal;
pub mod thread_pool;
pub mod tree;
pub mod unread;
pub mod usage;
pub mod workers;

use bgd_shared::resources::ExecutorKind;

use self::agent::AgentThread;
use self::elsewhere::PlaceExecutor;
use self::executor::Executors;
use self::local::Local;
use self::places::Elsewhere;
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
