//! Trying again: how often and for how long, for channels that speak HTTP.
//!
//! A notice is tried [`TRIES`] times at most, and no try begins later than [`LONGEST`] after the first: then
//! it counts as failed and the next one has its turn. A server that asks to be left alone for longer than
//! that gets nothing by that route meanwhile, and what comes in that time fails at once.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBuilder};
use bgd_shared::request::ChannelRetry;
use bgd_shared::time::Timestamp;
use tokio::time::{Instant, sleep};

use super::http::Trouble;
use crate::notify::Undelivered;
use crate::notify::counts::Counts;

/// How often a notice is tried.
const TRIES: usize = 5;

/// How long after the first try another one may begin.
const LONGEST: Duration = Duration::from_mins(2);

/// The longest time that a server is left alone, whatever it asks for.
const SILENCE: Duration = Duration::from_hours(1);

/// How many routes are remembered that want to be left alone. Of more, the one that is over first is
/// forgotten: it is asked too early then, and says so again.
const ROUTES: usize = 1024;

/// What a server has asked for. It limits each of its routes for itself, which are here the messages to one
/// chat and the typing there; so one route that is to be left alone does nothing to another.
#[derive(Debug, Default)]
pub struct Silence {
    /// For all routes.
    all: Cell<Option<Instant>>,
    by_route: RefCell<HashMap<String, Instant>>,
}

impl Silence {
    /// How long it lasts for a route.
    fn left(&self, route: &str) -> Option<Duration> {
        let until = self.all.get().max(self.by_route.borrow().get(route).copied())?;
        until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
    }

    /// Waits until it is over for a route.
    pub async fn over(&self, route: &str) {
        while let Some(left) = self.left(route) {
            sleep(left).await;
        }
    }

    /// Heeds what a server asked for when it was asked by a route.
    pub fn heed(&self, route: &str, trouble: &Trouble) {
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

/// Tries by a route until it is done, or until that makes no sense any more. While it waits for the next try,
/// `counts` know what the last one met.
///
/// # Errors
/// It is not delivered.
pub async fn deliver(
    silence: &Silence,
    route: &str,
    counts: &Counts,
    mut attempt: impl AsyncFnMut() -> Result<(), Trouble>,
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
        silence.heed(route, &trouble);
        let met = trouble.why.clone();
        why = if tries == 1 { trouble.why } else { format!("{} (tried {tries} times)", trouble.why) };
        match waits.next().filter(|wait| trouble.may_pass && !is_too_late(*wait)) {
            None => return Err(Undelivered(why)),
            Some(wait) => {
                // What the server wants is waited for above.
                let wait = if trouble.wait.is_some() { Duration::ZERO } else { wait };
                counts.tried(retried(tries, &met, wait.max(silence.left(route).unwrap_or_default())));
                tracing::debug!(%why, "it is tried again");
                sleep(wait).await;
            }
        }
    }
}

/// What was met so far, with the wait for the next try.
fn retried(tries: usize, error: &str, wait: Duration) -> ChannelRetry {
    let at = Timestamp::now();
    let next_at = at.plus_ms(u64::try_from(wait.as_millis()).unwrap_or(u64::MAX));
    ChannelRetry { tries: tries as u64, most: TRIES as u64, error: error.to_owned(), at, next_at }
}

/// That a server wants nothing for too long.
fn silenced(why: &str, left: Duration) -> String {
    let asked = format!("the server asked to wait for {} more seconds", left.as_secs());
    if why.is_empty() { asked } else { format!("{why}; {asked}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs without a clock of its own: nothing here may wait.
    fn run(silence: &Silence, attempt: impl AsyncFnMut() -> Result<(), Trouble>) -> Result<(), Undelivered> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
        runtime.block_on(deliver(silence, "route", &Counts::default(), attempt))
    }

    fn busy(wait: Duration) -> Trouble {
        Trouble { wait: Some(wait), ..Trouble::passing("busy") }
    }

    #[test]
    fn it_ends_with_the_last_try() {
        let mut tries = 0;
        let outcome = run(&Silence::default(), async || {
            tries += 1;
            Err(busy(Duration::ZERO))
        });
        assert_eq!((tries, outcome), (TRIES, Err(Undelivered("busy (tried 5 times)".to_owned()))));
    }

    #[test]
    fn what_lasts_is_tried_once_and_what_passes_again() {
        let mut tries = 0;
        let outcome = run(&Silence::default(), async || {
            tries += 1;
            Err(Trouble::lasting("no such chat"))
        });
        assert_eq!((tries, outcome), (1, Err(Undelivered("no such chat".to_owned()))));
        let mut tries = 0;
        let outcome = run(&Silence::default(), async || {
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
        let outcome = runtime.block_on(deliver(&Silence::default(), "route", &counts, async || {
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
        let silence = Silence::default();
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
        let silence = Silence::default();
        silence.heed("typing", &busy(Duration::from_mins(5)));
        // Nothing that comes later makes it shorter.
        silence.heed("typing", &busy(Duration::ZERO));
        assert!(silence.left("typing") > Some(Duration::from_mins(4)));
        assert_eq!(silence.left("messages"), None);
        silence.heed("typing", &Trouble { is_for_all: true, ..busy(Duration::from_mins(9)) });
        assert!(silence.left("messages") > Some(Duration::from_mins(8)));
        assert!(silence.left("typing") > Some(Duration::from_mins(8)));
    }

    #[test]
    fn of_too_many_routes_the_first_that_is_over_is_forgotten() {
        let silence = Silence::default();
        for (later, number) in (1..).zip(0..=ROUTES) {
            silence.heed(&number.to_string(), &busy(Duration::from_secs(60 + later)));
        }
        let route = |number: usize| silence.left(&number.to_string());
        assert_eq!((silence.by_route.borrow().len(), route(0)), (ROUTES, None));
        assert!(route(1).is_some() && route(ROUTES).is_some());
    }
}
