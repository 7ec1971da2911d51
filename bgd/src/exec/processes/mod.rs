//! Reads, marks, signals and reaps processes of this machine, one by one or by cgroup. Nothing here may use another
//! part of the executors: which processes are a task's, and when they end, is decided elsewhere.

pub mod adopted;
pub mod ancestry;
pub mod cgroup;
pub mod forked;
pub mod mark;
pub mod members;
pub mod reaper;
