//! Executors: they act and report facts. They decide nothing, and they may not touch the core.

pub mod agent;
pub mod handed;
pub mod host;
pub mod input;
pub mod kin;
pub mod loss;
pub mod mark;
pub mod newborn;
pub mod output;
pub mod process;
pub mod reaper;
pub mod spawner;
pub mod strays;
pub mod terminal;
pub mod tree;
pub mod workers;
