//! Attempts to reach a host again after its connection was lost, with the same rules for every caller.

use std::thread;
use std::time::{Duration, Instant};

use bgd_shared::pauses::next_pause;

use super::ssh_failure::{REFUSED, UNREACHABLE};
use super::wait::time_left;
use crate::failure::Failure;

/// Reports whether the host could not be reached. Any other failure stays the same for a caller that waits for a task
/// there.
pub fn is_unreachable(failure: &Failure) -> bool {
    failure.kind == UNREACHABLE
}

/// Pauses between attempts: the first one, and the longest.
const PAUSES: [Duration; 2] = [Duration::from_millis(100), Duration::from_secs(2)];

/// Makes attempts until one succeeds; each gets the time left until the deadline. Blocks.
///
/// # Errors
/// The failure of the last attempt that was not cut short by the deadline, or the first failure that is not accepted by
/// `may_pass`. A refused login is never retried: further attempts would look like an attack.
pub fn reach<T>(
    deadline: Instant,
    may_pass: impl Fn(&Failure) -> bool,
    mut attempt: impl FnMut(Duration) -> Result<T, Failure>,
) -> Result<T, Failure> {
    let mut pause = PAUSES[0];
    let mut reason = None;
    loop {
        let failure = match attempt(time_left(deadline)) {
            Ok(made) => return Ok(made),
            Err(failure) => failure,
        };
        let now = Instant::now();
        if failure.kind == REFUSED || !may_pass(&failure) {
            return Err(failure);
        }
        if now >= deadline {
            // The failure of an attempt cut short by the deadline explains less than the one before.
            return Err(reason.unwrap_or(failure));
        }
        if now + pause > deadline {
            return Err(failure);
        }
        reason = Some(failure);
        // Nothing notifies this process when a host is back.
        thread::sleep(pause);
        pause = next_pause(pause, PAUSES);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Code;
    use crate::link::REFUSED;

    fn failure(kind: &'static str, message: &str) -> Failure {
        Failure::new(Code::NO_DAEMON, kind, message)
    }

    /// Returns the outcome, and the number of attempts made.
    fn reached(within: Duration, outcomes: &[Result<u8, &'static str>]) -> (Result<u8, Failure>, usize) {
        let mut attempts = 0;
        let outcome = reach(Instant::now() + within, is_unreachable, |_| {
            attempts += 1;
            outcomes[attempts - 1].map_err(|kind| failure(kind, &attempts.to_string()))
        });
        (outcome, attempts)
    }

    #[test]
    fn connecting_is_retried_only_if_host_is_unreachable() {
        let minute = Duration::from_mins(1);
        assert_eq!(reached(minute, &[Err(UNREACHABLE), Ok(7)]), (Ok(7), 2));
        for kind in [REFUSED, "no_daemon", "connection_lost"] {
            assert_eq!(reached(minute, &[Err(kind), Ok(7)]), (Err(failure(kind, "1")), 1));
            assert_eq!(reached(minute, &[Err(UNREACHABLE), Err(kind)]), (Err(failure(kind, "2")), 2));
        }
    }

    #[test]
    fn reconnecting_retries_any_failure_but_a_refused_login() {
        let attempts = |outcomes: &[Result<u8, &'static str>]| {
            let mut made = 0;
            let outcome = reach(
                Instant::now() + Duration::from_mins(1),
                |_| true,
                |_| {
                    made += 1;
                    outcomes[made - 1].map_err(|kind| failure(kind, "it"))
                },
            );
            (outcome.map_err(|failure| failure.kind), made)
        };
        assert_eq!(attempts(&[Err("no_daemon"), Err(UNREACHABLE), Ok(7)]), (Ok(7), 3));
        assert_eq!(attempts(&[Err("no_daemon"), Err(REFUSED), Ok(7)]), (Err(REFUSED), 2));
    }

    #[test]
    fn attempts_end_at_the_deadline() {
        let none = Duration::ZERO;
        assert_eq!(reached(none, &[Err(UNREACHABLE)]), (Err(failure(UNREACHABLE, "1")), 1));
        let short = Duration::from_millis(50);
        assert_eq!(reached(short, &[Err(UNREACHABLE), Ok(7)]), (Err(failure(UNREACHABLE, "1")), 1));
    }
}
