//! Supervises the processes of tasks, from the start of each to the end of its tree. It carries out orders and reports
//! facts: when a task starts, pauses or ends is decided elsewhere.

mod ending;
mod exits;
mod paused;
pub mod process;
pub mod progress;
mod rest;
pub(super) mod starting;
pub mod usage;
