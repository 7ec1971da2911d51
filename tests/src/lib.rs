//! The foundation of the suites and the bench: real programs, in a home of their own.
//!
//! ```no_run
//! use bgd_tests::TestDaemon;
//!
//! let daemon = TestDaemon::builder().config("max_concurrent_tasks = 2").start();
//! let task = daemon.submit(&["echo", "hello"]);
//! daemon.block(&[task]);
//! assert_eq!(daemon.output(task), b"hello\n");
//! let listed = daemon.run(&["list", "-q"]).success();
//! assert_eq!(listed.stdout_text().trim(), task.to_string());
//! // Dropping `daemon` ends the real one, and fails the test if a process of its home is left.
//! ```
//!
//! Nothing here waits for a time: [`TestDaemon`] waits for the daemon to report that it is listening, [`Watch`]
//! for events, [`wait`] for changes of files and [`Process`] for deaths. [`wait::PATIENCE`] is only a watchdog; a
//! test that runs into it has failed.

pub mod agents;
pub mod bench;
mod binaries;
mod calls;
pub mod cgroups;
pub mod chats;
pub mod clock;
mod daemon;
pub mod docs;
pub mod executable;
pub mod fake_acp;
pub mod far;
pub mod handed;
pub mod hooks;
pub mod http;
pub mod hung_disk;
pub mod kernel;
pub mod mcp;
pub mod model;
mod outcome;
pub mod packages;
pub mod parallel;
pub mod pictures;
pub mod ports;
mod process;
pub mod prompts;
pub mod proxy;
pub mod raw;
pub mod real;
mod relay;
pub mod releases;
pub mod root;
pub mod slurm;
pub mod soak;
pub mod svg;
pub mod systemd;
pub mod templates;
mod terminal;
mod tmux;
pub mod tracer;
pub mod upgrades;
pub mod user;
mod viewer;
pub mod wait;
mod watch;
mod watchdog;
pub mod wire;

pub use self::binaries::{bgctl_path, bgd_path, example_path, helper_path, target_folder};
pub use self::daemon::{Builder, StartFailure, TestDaemon, Word};
pub use self::outcome::Outcome;
pub use self::process::{Process, processes_of};
pub use self::prompts::FakeDaemon;
pub use self::raw::Raw;
pub use self::relay::Relay;
pub use self::terminal::Terminal;
pub use self::tmux::Tmux;
pub use self::viewer::Viewer;
pub use self::watch::Watch;
pub use bgd_shared as shared;
