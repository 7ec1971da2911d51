//! What only the operating system can do and no safe crate offers. `unsafe` lives here and nowhere
//! else in the daemon; each block says why it is sound. Nothing here decides anything.

pub mod inherited;
pub mod memory;
pub mod mirror;
pub mod pidfd;
pub mod signals;
pub mod spawn;
pub mod watch;
