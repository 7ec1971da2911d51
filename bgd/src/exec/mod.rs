//! Executors: they act and report facts. They decide nothing, and they may not touch the core.

pub mod agent;
pub mod cgroup;
mod exits;
pub mod handed;
pub mod helper;
pub mod host;
pub mod input;
pub mod kin;
pub mod loss;
pub mod mark;
pub mod messages;
pub mod newborn;
pub mod output;
pub mod proc;
pub mod process;
pub mod pty;
pub mod reaper;
pub mod spawner;
pub mod strays;
pub mod terminal;
pub mod tree;
pub mod workers;
