//! The daemon of bgd.
//!
//! `wire` turns bytes into frames, messages and calls and puts them into the mailbox of the `dispatcher`. The
//! dispatcher is the sole owner of the `core`, which makes the decisions. The core's effects go to the executors
//! in `exec`, which report back through the mailbox, and to clients, subscribers and the channels of `notify`.

pub mod agents;
pub mod carry;
pub mod channels;
pub mod client;
pub mod config;
pub mod dispatcher;
pub mod exec;
pub mod features;
pub mod http;
pub mod journal;
pub mod keeper;
pub mod notice;
pub mod notify;
pub mod os;
pub mod remotes;
pub mod startup;
pub mod wire;

pub use bgd_core as core;
