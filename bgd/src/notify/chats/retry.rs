//! Retries for channels that speak HTTP: how often, and for how long.
//!
//! A notice is tried at most [`TRIES`] times, and no try begins later than [`LONGEST`] after the first. After
//! that it counts as failed, and the next notice has its turn. If a server asks to wait for longer than that,
//! nothing is sent by that route until then, and notices that arrive meanwhile fail at once.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBuilder};
use bgd_shared::request::ChannelRetry;
use bgd_shared::time::Timestamp;
use tokio::time::{Instant, sleep};

use super::http::DeliveryError;
use crate::notify::Undelivered;
use crate::notify::counts::Counts;

/// Maximum number of tries per notice.
const TRIES: usize = 5;

/// The time since the first try after which no retry begins.
const LONGEST: Duration = Duration::from_mins(2);

/// The maximum wait that a server can ask for.
const SILENCE: Duration = Duration::from_hours(1);

/// Maximum number of routes whose waits are remembered. Beyond that, the wait that ends first is forgotten: the
/// server is then asked too early and says so again.
const ROUTES: usize = 1024;

/// The waits that a server asked for. A server limits each route separately; routes are the messages to one chat,
/// and typing there. So a wait for one route does not affect the others.
#[derive(Debug, Default)]
pub struct RateLimits {
    /// The wait for all routes.
    all: Cell<Option<Instant>>,
    by_route: RefCell<HashMap<String, Instant>>,
}

impl RateLimits {
    /// Returns the remaining wait for a route, if any.
    fn left(&self, route: &str) -> Option<Duration> {
        let until = self.all.get().max(self.by_route.borrow().get(route).copied())?;
        until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
    }

    /// Waits until a route may be used.
    pub async fn over(&self, route: &str) {
        while let Some(left) = self.left(route) {
            sleep(left).await;
        }
    }

    /// Records the wait that a server asked for on a route.
    pub fn record_wait(&self, route: &str, trouble: &DeliveryError) {
        let now = Instant::now();
        let Some(until) = trouble.wait.and_then(|wait| now.checked_add(wait.min(SILENCE))) else { return };
        if trouble.is_for_all {
            self.all.set(self.all.get().max(Some(until)));
            return;
        }
        let mut by_route = self.by_route.borrow_mut();
        by_route.retain(|_, until| *until > now);
        if by_route.len() >= ROUTES
            && !by_route.contains_key(route)
            && let Some(first) = by_route.iter().min_by_key(|(_, until)| **until).map(|(of, _)| of.clone())
        {
            by_route.remove(&first);
        }
        let known = by_route.entry(route.to_owned()).or_insert(until);
        *known = until.max(*known);
    }
}

/// Tries a route until the delivery succeeds or further tries make no sense. While it waits for the next try,
/// `counts` hold the last failure.
///
/// # Errors
/// The notice was not delivered.
pub async fn deliver(
    silence: &RateLimits,
    route: &str,
    counts: &Counts,
    mut attempt: impl AsyncFnMut() -> Result<(), DeliveryError>,
) -> Result<(), Undelivered> {
    let begun = Instant::now();
    let is_too_late = |wait: Duration| begun.elapsed().saturating_add(wait) > LONGEST;
    let mut waits = ExponentialBuilder::new()
        .with_min_delay(Duration::from_secs(1))
        .with_factor(3.0)
        .with_max_delay(Duration::from_secs(30))
        .with_max_times(TRIES - 1)
        .with_jitter()
        .build();
    let mut tries = 0;
    let mut why = String::new();
    loop {
        if let Some(left) = silence.left(route) {
            if is_too_late(left) {
                return Err(Undelivered(silenced(&why, left)));
            }
            if tries == 0 {
                counts.tried(retried(0, "the server asked to wait", left));
            }
            sleep(left).await;
        }
        tries += 1;
        let Err(trouble) = attempt().await else { return Ok(()) };
        silence.record_wait(route, &trouble);
        let met = trouble.why.clone();
        why = if tries == 1 { trouble.why } else { format!("{} (tried {tries} times)", trouble.why) };
        match waits.next().filter(|wait| trouble.is_transient && !is_too_late(*wait)) {
            None => return Err(Undelivered(why)),
            Some(wait) => {
                // The loop's start waits for what the server asked for.
                let wait = if trouble.wait.is_some() { Duration::ZERO } else { wait };
                counts.tried(retried(tries, &met, wait.max(silence.left(route).unwrap_or_default())));
                tracing::debug!(%why, "it is tried again");
                sleep(wait).await;
            }
        }
    }
}

/// Describes the failure so far and the time of the next try.
fn retried(tries: usize, error: &str, wait: Duration) -> ChannelRetry {
    let at = Timestamp::now();
    let next_at = at.plus_ms(u64::try_from(wait.as_millis()).unwrap_or(u64::MAX));
    ChannelRetry { tries: tries as u64, most: TRIES as u64, error: error.to_owned(), at, next_at }
}

/// Returns the message for a server that asks to wait too long.
fn silenced(why: &str, left: Duration) -> String {
    let asked = format!("the server asked to wait for {} more seconds", left.as_secs());
    if why.is_empty() { asked } else { format!("{why}; {asked}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Uses the real clock: nothing here may wait.
    fn run(
        silence: &RateLimits,
        attempt: impl AsyncFnMut() -> Result<(), DeliveryError>,
    ) -> Result<(), Undelivered> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(deliver(silence, "route", &Counts::default(), attempt))
    }

    fn busy(wait: Duration) -> DeliveryError {
        DeliveryError { wait: Some(wait), ..DeliveryError::passing("busy") }
    }

    #[test]
    fn it_ends_with_the_last_try() {
        let mut tries = 0;
        let outcome = run(&RateLimits::default(), async || {
            tries += 1;
            Err(busy(Duration::ZERO))
        });
        assert_eq!((tries, outcome), (TRIES, Err(Undelivered("busy (tried 5 times)".to_owned()))));
    }

    #[test]
    fn what_lasts_is_tried_once_and_what_passes_again() {
        let mut tries = 0;
        let outcome = run(&RateLimits::default(), async || {
            tries += 1;
            Err(DeliveryError::lasting("no such chat"))
        });
        assert_eq!((tries, outcome), (1, Err(Undelivered("no such chat".to_owned()))));
        let mut tries = 0;
        let outcome = run(&RateLimits::default(), async || {
            tries += 1;
            if tries < 3 { Err(busy(Duration::ZERO)) } else { Ok(()) }
        });
        assert_eq!((tries, outcome), (3, Ok(())));
    }

    #[test]
    fn what_was_met_is_known_while_it_is_tried_again() {
        let counts = Counts::default();
        let retry = || counts.status("c", "webhook").retry;
        let mut seen = Vec::new();
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        let outcome = runtime.block_on(deliver(&RateLimits::default(), "route", &counts, async || {
            seen.push(retry().map(|retry| (retry.tries, retry.most, retry.error)));
            if seen.len() < 3 { Err(busy(Duration::ZERO)) } else { Ok(()) }
        }));
        counts.queued.store(1, std::sync::atomic::Ordering::Relaxed);
        counts.done(outcome);
        let met = |tries| Some((tries, TRIES as u64, "busy".to_owned()));
        assert_eq!((seen, retry()), (vec![None, met(1), met(2)], None));
    }

    #[test]
    fn a_server_that_wants_a_long_silence_gets_it() {
        let silence = RateLimits::default();
        let mut tries = 0;
        for _ in 0..2 {
            let outcome = run(&silence, async || {
                tries += 1;
                Err(busy(Duration::from_hours(9)))
            });
            let Undelivered(why) = outcome.unwrap_err();
            assert!(why.contains("asked to wait for 3"), "{why}");
        }
        assert_eq!(tries, 1);
    }
    #[test]
    fn a_silence_is_for_one_route_or_for_all() {
        let silence = RateLimits::default();
        silence.record_wait("typing", &busy(Duration::from_mins(5)));
        // A later, shorter wait does not shorten it.
        silence.record_wait("typing", &busy(Duration::ZERO));
        assert!(silence.left("typing") > Some(Duration::from_mins(4)));
        assert_eq!(silence.left("messages"), None);
        silence.record_wait("typing", &DeliveryError { is_for_all: true, ..busy(Duration::from_mins(9)) });
        assert!(silence.left("messages") > Some(Duration::from_mins(8)));
        assert!(silence.left("typing") > Some(Duration::from_mins(8)));
    }

    #[test]
    fn of_too_many_routes_the_first_that_is_over_is_forgotten() {
        let silence = RateLimits::default();
        for (later, number) in (1..).zip(0..=ROUTES) {
            silence.record_wait(&number.to_string(), &busy(Duration::from_secs(60 + later)));
        }
        let route = |number: usize| silence.left(&number.to_string());
        assert_eq!((silence.by_route.borrow().len(), route(0)), (ROUTES, None));
        assert!(route(1).is_some() && route(ROUTES).is_some());
    }
}
