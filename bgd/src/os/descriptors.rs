//! Reserves file descriptors. Tasks leave some for clients, so that a client can still connect and end tasks; both
//! leave some for the daemon's own work, such as walking process trees and reading outputs.
//!
//! The kernel assigns the lowest free number, so the number of a new descriptor is a lower bound for the number in use.

use std::os::fd::{AsFd, AsRawFd as _};

use nix::sys::resource::{Resource, getrlimit};

/// Who needs a descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum User {
    /// A task about to be started.
    Task,
    Client,
    /// A client that may only use `hello` and `daemon.*`.
    Control,
}

/// How many descriptors are reserved at each level; a quarter of the limit if that is less.
const RESERVE: u64 = 16;

/// The fewest descriptors that a daemon starts with. About 30 are its own; below this number, the reserves would leave
/// none to tasks, and soon none to a client that would stop it.
const FEWEST: u64 = 64;

/// Checks that this process may have enough descriptors. The daemon raises its own soft limit, so the hard one counts.
///
/// # Errors
/// There are too few.
pub fn check_limit() -> Result<(), String> {
    match getrlimit(Resource::RLIMIT_NOFILE) {
        Ok((_, hard)) if hard < FEWEST => Err(format!(
            "the limit of open files is {hard} (`ulimit -Hn`), and the daemon needs at least {FEWEST}"
        )),
        Ok(_) | Err(_) => Ok(()),
    }
}

/// Reports whether the remaining descriptors are reserved from this user. `open` is any open descriptor; duplicating it
/// shows which number the next new one would get.
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

/// The error text when no descriptors are left.
pub const NONE_LEFT: &str = "no file descriptors left (RLIMIT_NOFILE of the daemon)";

/// The error text of a task that can't start because no descriptors are left for it: nobody else can give a hint.
pub const NONE_LEFT_FOR_TASK: &str = "no file descriptors left (RLIMIT_NOFILE of the daemon): restart the daemon where \
                                      `ulimit -Hn` shows more (LimitNOFILE= in a systemd unit), or give its groups \
                                      fewer slots";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn task_without_descriptors_is_explained_like_a_client_and_with_advice() {
        assert!(NONE_LEFT_FOR_TASK.starts_with(NONE_LEFT));
    }
}
