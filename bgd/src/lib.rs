//! The daemon of bgd.
//!
//! Bytes become frames, messages and calls (`connection`, `calls`), which wait in the `mailbox` for the
//! `dispatcher`. It alone owns the `core`, which decides; its effects go to the executors in `exec`,
//! whose facts come back through the mailbox, and to clients, `subscribers` and the channels of `notify`.

pub mod address;
pub mod agents;
pub mod answer;
pub mod calls;
pub mod cgroups;
pub mod channels;
pub mod client;
pub mod config;
pub mod connection;
pub mod core;
pub mod descriptors;
pub mod dirs;
pub mod dispatcher;
pub mod exec;
pub mod failures;
pub mod features;
pub mod figures;
pub mod history;
pub mod http;
pub mod instance;
pub mod lock;
pub mod log;
pub mod mailbox;
pub mod missing;
pub mod notice;
pub mod notify;
pub mod reader;
pub mod refusals;
#[cfg_attr(not(feature = "systemd"), path = "scope/absent.rs")]
pub mod scope;
pub mod server;
pub mod signals;
pub mod startup;
pub mod status;
pub mod subscribers;
pub mod sys;
pub mod view;
pub mod wall_clock;
