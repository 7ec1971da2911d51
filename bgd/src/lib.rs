//! The daemon of bgd.
//!
//! Bytes become frames, messages and calls in `wire`, where they wait in the mailbox for the `dispatcher`. It alone owns
//! the `core`, which decides; its effects go to the executors in `exec`, whose facts come back through the mailbox, and
//! to clients, subscribers and the channels of `notify`.

pub mod agents;
pub mod channels;
pub mod client;
pub mod config;
pub mod core;
pub mod dispatcher;
pub mod exec;
pub mod features;
pub mod http;
pub mod notice;
pub mod notify;
pub mod os;
pub mod startup;
pub mod wire;
