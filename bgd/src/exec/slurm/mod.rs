//! The executor of tasks that a Slurm cluster runs, driven by Slurm's own commands.

pub mod commands;
pub mod job;
pub mod pace;
pub mod parse;
pub mod script;
pub mod states;
pub mod trouble;
