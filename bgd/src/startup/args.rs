//! The arguments of the daemon's program.

use std::os::fd::RawFd;
use std::path::PathBuf;

use clap::Parser;

use crate::os::log;

/// Background daemon: runs tasks for one user, controlled over a Unix socket.
#[derive(Debug, Parser)]
#[allow(clippy::doc_markdown, reason = "these texts are shown to users as they are")]
#[allow(clippy::struct_excessive_bools, reason = "an option is a flag")]
#[command(name = "bgd", version, after_help = HELP, max_term_width = 100)]
pub struct Args {
    /// Socket to listen on [default: $BGD_SOCKET, else $XDG_RUNTIME_DIR/bgd/bgd.sock, else /tmp/bgd-UID/bgd.sock]
    #[arg(long, value_name = "PATH")]
    pub socket: Option<PathBuf>,

    /// Configuration file [default: $XDG_CONFIG_HOME/bgd/config.toml]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,

    /// Log target [default: stderr under a service manager, else bgd.log in the state folder]
    #[arg(long, value_enum, value_name = "TARGET")]
    pub log: Option<LogTarget>,

    /// Check the configuration and exit, with 0 if it is valid, else with 78
    #[arg(long, conflicts_with = "ready_fd")]
    pub check: bool,

    /// Probe the kernel's features and print the result as JSON
    #[arg(long, hide = true)]
    pub probe_kernel: bool,

    /// Print the state formats that this program reads, as JSON
    #[arg(long, hide = true)]
    pub carried_formats: bool,

    /// Read a state from standard input and print a summary as JSON
    #[arg(long, hide = true)]
    pub try_carried: bool,

    /// Take over from the program that this process ran before, with the state in this descriptor
    #[arg(long, value_name = "FD", hide = true)]
    pub carried: Option<RawFd>,

    /// Why the next program could not take over
    #[arg(long, value_name = "WHY", requires = "carried", hide = true)]
    pub refused: Option<String>,

    /// Detach, and report to this descriptor: `ready` (and `lost COUNT` if a killed daemon lost tasks), `taken`, or `error CODE MESSAGE` (and `hint TEXT`)
    #[arg(long, value_name = "FD")]
    pub ready_fd: Option<RawFd>,
}

/// Where to log.
#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub enum LogTarget {
    /// bgd.log in the state folder
    File,
    /// Standard error
    Stderr,
}

const HELP: &str = "\
You rarely start bgd yourself: bgctl starts it when needed.

Examples:
  bgd                                  run in the foreground on the default socket
  bgd --log stderr                     the same, logging to the terminal
  BGD_LOG=debug bgd --log stderr       with a more detailed log
  bgd --check                          check the configuration

Signals: TERM and INT stop the daemon and cancel every task (a second one skips the grace
period); a durable daemon leaves its tasks running for the next one. HUP reloads the
configuration. Under systemd, bgd supports socket activation and readiness notification.";

impl Args {
    pub(super) fn log_target(&self) -> log::Target {
        match self.log {
            Some(LogTarget::File) => log::Target::File,
            Some(LogTarget::Stderr) => log::Target::Stderr,
            None => log::Target::detect(),
        }
    }
}
