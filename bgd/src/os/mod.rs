//! Operating system services: descriptors and their limits, locks, the log, the clock, and functions that no safe crate
//! offers. Nothing here makes decisions.
//!
//! The daemon's only `unsafe` code is in `inherited`, `limit`, `memory`, `mirror`, `pidfd`, `signals`, `spawn` and
//! `watch`; each block explains why it is sound.

pub mod clock;
pub mod descriptors;
pub mod files;
pub mod inherited;
pub mod limit;
pub mod lock;
pub mod log;
pub mod memory;
pub mod mirror;
pub mod path_watch;
pub mod pidfd;
pub mod program;
pub mod pty;
pub mod scheduling;
pub mod search_path;
pub mod signals;
pub mod spawn;
pub mod wall_clock;
pub mod watch;
