//! Descriptors that are kept back: tasks leave some to clients, so that one can still come in and end
//! them, and both leave some to the daemon's own work, such as walking trees and reading outputs.
//!
//! The system gives the lowest number that is free, so the number of a new descriptor tells how many are
//! in use at least.

use std::os::fd::{AsFd, AsRawFd as _};

use nix::sys::resource::{Resource, getrlimit};

/// Who uses a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum User {
    /// A task that is to be started.
    Task,
    /// A client.
    Client,
    /// A client that speaks with the daemon about itself only.
    Control,
}

/// How many are kept back at each step; a quarter where the limit is very low.
const RESERVE: u64 = 16;

/// Whether so many descriptors are in use that what is left is kept back from this user. `open` is any
/// open one: its copy gets the number that the next new one would have.
pub fn are_reserved(open: &impl AsFd, user: User) -> bool {
    let Ok((limit, _)) = getrlimit(Resource::RLIMIT_NOFILE) else { return false };
    let reserve = RESERVE.min(limit / 4);
    let usable = limit
        - match user {
            User::Control => reserve * 3 / 4,
            User::Client => reserve,
            User::Task => reserve * 2,
        };
    match open.as_fd().try_clone_to_owned() {
        Ok(copy) => u64::try_from(copy.as_raw_fd()).is_ok_and(|number| number >= usable),
        Err(_) => true,
    }
}

/// The word for it.
pub const NONE_LEFT: &str = "no file descriptors left (RLIMIT_NOFILE of the daemon)";
