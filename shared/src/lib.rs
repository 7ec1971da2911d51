//! Everything that a program needs to talk to `bgd`: the wire types, the frame codec, the transport and three clients
//! (one blocking, one for poll loops, one on tokio) built on the same protocol implementation.
//!
//! This crate depends on no other crate of the workspace. It may not keep state about tasks, decide anything about
//! them, or start processes.
//!
//! ```no_run
//! use bgd_shared::client::Client;
//! use bgd_shared::request::{ListParams, TaskList};
//!
//! let socket = bgd_shared::socket::SocketPath::from_env()?;
//! let mut client = Client::connect(&socket)?;
//! let page = client.call::<TaskList>(&ListParams::default())?;
//! println!("{} tasks are active", page.summary.active());
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod agent;
pub mod client;
pub mod consumption;
pub mod dirs;
pub mod encoding;
pub mod error;
pub mod error_line;
pub mod event;
pub mod failure;
pub mod fds;
pub mod foreground;
pub mod frame;
pub mod handoff;
pub mod holder;
pub mod hole;
pub mod id;
mod lenient;
pub mod limits;
pub mod long_env;
pub mod message;
pub mod mutex;
pub mod notice;
pub mod order;
pub mod owned;
pub mod params;
pub mod pauses;
pub mod proc;
pub mod question;
pub mod quote;
pub mod ready;
pub mod replace;
pub mod request;
pub mod resources;
pub mod rlimit;
mod settings;
pub mod show;
pub mod small_file;
pub mod socket;
pub mod splitmix;
pub mod ssh;
pub mod strict;
pub mod task;
pub mod text;
pub mod time;
pub mod titles;
pub mod transport;
pub mod usage;
pub mod width;

/// Version of the wire protocol. Only changes that are not additions increase it.
pub const PROTOCOL: u32 = 1;
