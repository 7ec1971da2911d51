//! What the operating system gives: descriptors and their limits, the user's folders, locks, the log, the clock, and
//! what no safe crate offers. Nothing here decides anything.
//!
//! The daemon's only `unsafe` is in `inherited`, `memory`, `mirror`, `pidfd`, `signals`, `spawn` and `watch`; each block
//! says why it is sound.

pub mod descriptors;
pub mod dirs;
pub mod inherited;
pub mod lock;
pub mod log;
pub mod memory;
pub mod mirror;
pub mod missing;
pub mod pidfd;
pub mod signals;
pub mod spawn;
pub mod wall_clock;
pub mod watch;
