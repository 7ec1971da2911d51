//! The socket's side of the daemon: bytes become frames, messages and calls, which wait in the mailbox for the
//! dispatcher; and what the core has decided becomes the wire's objects and words. It decides nothing about tasks.

pub mod calls;
pub mod connection;
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
