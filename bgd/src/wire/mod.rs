//! The protocol layer of the daemon: turns bytes into frames, messages and calls, which wait in the mailbox for the
//! dispatcher, and turns the core's decisions into wire objects and texts. It makes no decisions about tasks.

pub mod calls;
pub mod connection;
pub mod connections;
pub mod failures;
pub mod figures;
pub mod history;
pub mod mailbox;
pub mod reader;
pub mod refusals;
pub mod server;
pub mod status;
pub mod subscribers;
pub mod view;
