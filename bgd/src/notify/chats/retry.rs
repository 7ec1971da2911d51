//! Retries for channels that use HTTP: how often, and for how long.
//!
//! A notice is tried at most [`TRIES`] times, and no try begins later than [`LONGEST`] after the first. After that the
//! notice counts as failed, and the next one has its turn. If a server asks for a longer wait, nothing is sent on that
//! route until the wait is over, and notices that arrive meanwhile fail at once.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use backon::{BackoffBuilder as _, ExponentialBuilder};
use bgd_shared::request::ChannelRetry;
use bgd_shared::show::count;
use bgd_shared::time::Timestamp;
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use tokio::time::{Instant, sleep};

use super::http::DeliveryError;
use crate::core::Tried;
use crate::notify::progress::Progress;
use crate::notify::undelivered::Undelivered;
use crate::os::clock::Stamp;

/// Maximum number of tries per notice.
const TRIES: usize = 5;

/// The time since the first try after which no retry begins.
const LONGEST: Duration = Duration::from_mins(2);

/// The maximum wait that a server can request.
const SILENCE: Duration = Duration::from_hours(1);

/// Maximum number of routes whose waits are remembered. Beyond that, the wait that ends first is forgotten: the server
/// is then contacted too early and repeats its request to wait.
const ROUTES: usize = 1024;

/// The waits requested by a server. A server limits each route separately; a route is the messages to one chat, or
/// typing in it. So a notice waits only for its own route and for its turn: as a channel's notices are delivered one
/// after another, those behind a waiting one wait with it.
#[derive(Debug, Default)]
pub struct RateLimits {
    /// The wait for all routes.
    all: Cell<Option<Instant>>,
    by_route: RefCell<HashMap<String, Instant>>,
}

/// The waits requested by a server, as data.
#[derive(Debug, Serialize, Deserialize)]
struct RateLimitsState {
    all: Option<Stamp>,
    by_route: BTreeMap<String, Stamp>,
}

impl RateLimits {
    /// Returns the state for an upgrade in place; `None` if there are no pending waits.
    pub fn state(&self) -> Option<Box<RawValue>> {
        let now = Instant::now();
        let stamp = |until: Instant| (until > now).then(|| Stamp::of(until.into_std()));
        let Self { all, by_route } = self;
        let by_route = by_route.borrow();
        let by_route = by_route.iter().filter_map(|(route, until)| Some((route.clone(), stamp(*until)?)));
        let state = RateLimitsState { all: all.get().and_then(stamp), by_route: by_route.collect() };
        let is_any = state.all.is_some() || !state.by_route.is_empty();
        is_any.then(|| to_raw_value(&state).ok()).flatten()
    }

    /// Restores the state from before an upgrade.
    pub fn resume(&self, state: &RawValue) {
        let Ok(RateLimitsState { all, by_route }) = serde_json::from_str(state.get()) else { return };
        self.all.set(all.map(|until| until.instant().into()));
        let by_route =
            by_route.into_iter().take(ROUTES).map(|(route, until)| (route, until.instant().into()));
        self.by_route.replace(by_route.collect());
    }

    /// Returns the remaining wait for a route, if any.
    fn remaining_wait(&self, route: &str) -> Option<Duration> {
        let until = self.all.get().max(self.by_route.borrow().get(route).copied())?;
        until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())
    }

    /// Waits until a route may be used.
    pub async fn until_allowed(&self, route: &str) {
        while let Some(left) = self.remaining_wait(route) {
            sleep(left).await;
        }
    }

    /// Records the wait that a server requested for a route.
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

/// Tries a route until the delivery succeeds or further tries make no sense. While waiting for the next try, `progress`
/// holds the last failure; tries recorded there by an earlier daemon are continued.
///
/// # Errors
/// The notice was not delivered.
pub async fn deliver(
    rate_limits: &RateLimits,
    route: &str,
    progress: &Progress,
    mut attempt: impl AsyncFnMut() -> Result<(), DeliveryError>,
) -> Result<(), Undelivered> {
    let before = progress.tried();
    let spent = before.as_ref().map_or(Duration::ZERO, |tried| Duration::from_millis(tried.spent_ms));
    let begun = Instant::now().checked_sub(spent.min(LONGEST)).unwrap_or_else(Instant::now);
    let is_too_late = |wait: Duration| begun.elapsed().saturating_add(wait) > LONGEST;
    let note = |retry: ChannelRetry| {
        let spent_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        progress.note(Tried { retry, spent_ms });
    };
    let mut tries = before.as_ref().map_or(0, |tried| usize::try_from(tried.retry.tries).unwrap_or(TRIES));
    let mut waits = ExponentialBuilder::new()
        .with_min_delay(Duration::from_secs(1))
        .with_factor(3.0)
        .with_max_delay(Duration::from_secs(30))
        .with_max_times(TRIES - 1)
        .with_jitter()
        .build()
        .skip(tries);
    let met = before.as_ref().filter(|tried| tried.retry.tries > 0);
    let mut why = met.map(|tried| with_tries(&tried.retry.error, tries)).unwrap_or_default();
    if let Some(Tried { retry, .. }) = before {
        // The next try happens even if it is the last one.
        progress.wait(until_next_try(&retry).min(LONGEST.saturating_sub(begun.elapsed()))).await;
    }
    loop {
        if let Some(left) = rate_limits.remaining_wait(route) {
            if is_too_late(left) {
                return Err(Undelivered(silenced(&why, left)));
            }
            if tries == 0 {
                note(retried(0, "the server asked to wait", left));
            }
            if !progress.wait(left).await {
                return Err(Undelivered(removed_message(&silenced(&why, left))));
            }
        }
        tries += 1;
        let Err(trouble) = progress.send(attempt()).await else { return Ok(()) };
        rate_limits.record_wait(route, &trouble);
        why = with_tries(&trouble.why, tries);
        match waits.next().filter(|wait| trouble.is_transient && !is_too_late(*wait)) {
            None => return Err(Undelivered(why)),
            Some(wait) => {
                // A server may ask for a longer wait, which is handled at the start of the loop, but not for a shorter
                // one: a request to come back at once would use up all tries at once.
                note(retried(
                    tries,
                    &trouble.why,
                    wait.max(rate_limits.remaining_wait(route).unwrap_or_default()),
                ));
                tracing::debug!(%why, "it is tried again");
                if !progress.wait(wait).await {
                    return Err(Undelivered(removed_message(&why)));
                }
            }
        }
    }
}

/// Appends the number of tries to an error message.
fn with_tries(met: &str, tries: usize) -> String {
    if tries <= 1 { met.to_owned() } else { format!("{met} (tried {tries} times)") }
}

/// Returns the time until the next try, according to the wall clock.
fn until_next_try(retry: &ChannelRetry) -> Duration {
    let ms = retry.next_at.unix_ms().saturating_sub(Timestamp::now().unix_ms());
    Duration::from_millis(u64::try_from(ms).unwrap_or(0))
}

/// Describes the failure so far and the time of the next try.
fn retried(tries: usize, error: &str, wait: Duration) -> ChannelRetry {
    let at = Timestamp::now();
    let next_at = at.plus_ms(u64::try_from(wait.as_millis()).unwrap_or(u64::MAX));
    ChannelRetry { tries: tries as u64, most: TRIES as u64, error: error.to_owned(), at, next_at }
}

/// Returns the message for a channel that was removed before another try.
fn removed_message(why: &str) -> String {
    format!("{why}; it is not tried again, as the channel is no longer configured")
}

/// Returns the message for a server that asks to wait too long.
fn silenced(why: &str, left: Duration) -> String {
    let asked = format!("the server asked to wait for {}", count(left.as_secs(), "more second"));
    if why.is_empty() { asked } else { format!("{why}; {asked}") }
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;
    use std::sync::Arc;

    use tokio::runtime::Runtime;
    use tokio::sync::watch;

    use super::*;
    use crate::channels::{Channel, ChannelKind};
    use crate::notify::outcomes::Outcomes;
    use crate::wire::mailbox;

    /// Creates a runtime whose clock moves on by itself when everything waits.
    fn runtime() -> Runtime {
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap()
    }

    fn run(
        rate_limits: &RateLimits,
        attempt: impl AsyncFnMut() -> Result<(), DeliveryError>,
    ) -> Result<(), Undelivered> {
        runtime().block_on(deliver(rate_limits, "route", &progress(None), attempt))
    }

    fn progress(tried: Option<Tried>) -> Progress {
        progress_of(tried, watch::channel(false).1)
    }

    fn progress_of(tried: Option<Tried>, gone: watch::Receiver<bool>) -> Progress {
        let kind = ChannelKind::Desktop;
        let channel = Arc::new(Channel { name: "c".into(), kind, started: true });
        let (_, _, internals, _) = mailbox::new();
        let (counts, log, holds) = (Arc::default(), RefCell::default(), watch::channel(false).1);
        Progress::new(&Rc::new(Outcomes { channel, counts, log, internals, holds, gone }), 1, tried, None)
    }

    fn busy(wait: Duration) -> DeliveryError {
        DeliveryError { wait: Some(wait), ..DeliveryError::passing("busy") }
    }

    #[test]
    fn r122_removed_channel_tries_each_notice_once() {
        let runtime = runtime();
        for removed_before in [true, false] {
            let (remove, gone) = watch::channel(removed_before);
            let (rate_limits, mut tries) = (RateLimits::default(), 0);
            let progress = progress_of(None, gone);
            let outcome = runtime.block_on(deliver(&rate_limits, "route", &progress, async || {
                tries += 1;
                // Removal also ends the wait for the next try.
                remove.send_replace(true);
                Err(busy(LONGEST / 2))
            }));
            let why = "busy; it is not tried again, as the channel is no longer configured";
            assert_eq!((tries, outcome), (1, Err(Undelivered(why.to_owned()))), "{removed_before}");
        }
    }

    #[test]
    fn delivery_gives_up_after_the_last_try() {
        let mut tries = 0;
        let outcome = run(&RateLimits::default(), async || {
            tries += 1;
            Err(busy(Duration::ZERO))
        });
        assert_eq!((tries, outcome), (TRIES, Err(Undelivered("busy (tried 5 times)".to_owned()))));
    }

    #[test]
    fn tries_back_off_also_if_the_server_asks_for_no_wait() {
        let mut tries = Vec::new();
        let outcome = run(&RateLimits::default(), async || {
            tries.push(Instant::now());
            Err(busy(Duration::ZERO))
        });
        assert!(outcome.is_err());
        for (pair, least) in tries.windows(2).zip([1, 3, 9, 27]) {
            assert!(pair[1] - pair[0] >= Duration::from_secs(least), "{tries:?}");
        }
    }

    #[test]
    fn permanent_error_is_tried_once_and_transient_one_retried() {
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
    fn error_is_reported_while_delivery_is_retried() {
        let progress = progress(None);
        let mut seen = Vec::new();
        let runtime = runtime();
        let outcome = runtime.block_on(deliver(&RateLimits::default(), "route", &progress, async || {
            seen.push(progress.tried().map(|tried| (tried.retry.tries, tried.retry.most, tried.retry.error)));
            if seen.len() < 3 { Err(busy(Duration::ZERO)) } else { Ok(()) }
        }));
        let met = |tries| Some((tries, TRIES as u64, "busy".to_owned()));
        assert_eq!((seen, outcome), (vec![None, met(1), met(2)], Ok(())));
    }

    /// The tries of an earlier daemon.
    fn tried(tries: u64, spent: Duration) -> Tried {
        let retry = retried(usize::try_from(tries).unwrap(), "busy", Duration::ZERO);
        Tried { retry, spent_ms: u64::try_from(spent.as_millis()).unwrap() }
    }

    #[test]
    fn r127_retries_of_an_earlier_daemon_keep_count_and_deadline() {
        let runtime = runtime();
        let run = |before: Tried, wait: Duration| {
            let mut tries = 0;
            let progress = progress(Some(before));
            let outcome = runtime.block_on(deliver(&RateLimits::default(), "route", &progress, async || {
                tries += 1;
                Err(busy(wait))
            }));
            let Undelivered(why) = outcome.unwrap_err();
            (tries, why)
        };
        // The last of five tries.
        assert_eq!(run(tried(4, Duration::ZERO), Duration::ZERO), (1, "busy (tried 5 times)".to_owned()));
        assert_eq!(run(tried(2, Duration::ZERO), Duration::ZERO), (3, "busy (tried 5 times)".to_owned()));
        // There is time for the next try but for none after it.
        let (tries, why) = run(tried(1, Duration::from_secs(111)), Duration::from_mins(1));
        assert_eq!(tries, 1, "{why}");
        assert!(why.contains("(tried 2 times); the server asked to wait"), "{why}");
    }

    #[test]
    fn r121_rate_limit_survives_an_upgrade() {
        let rate_limits = RateLimits::default();
        assert!(rate_limits.state().is_none());
        rate_limits.record_wait("messages", &busy(Duration::from_mins(5)));
        rate_limits.record_wait("", &DeliveryError { is_for_all: true, ..busy(Duration::from_mins(2)) });
        let again = RateLimits::default();
        again.resume(&rate_limits.state().unwrap());
        assert!(again.remaining_wait("messages") > Some(Duration::from_mins(4)));
        assert!(again.remaining_wait("typing") > Some(Duration::from_mins(1)));
        assert!(again.remaining_wait("typing") <= Some(Duration::from_mins(2)));
    }

    #[test]
    fn long_retry_after_fails_further_notices_untried() {
        let rate_limits = RateLimits::default();
        let mut tries = 0;
        for _ in 0..2 {
            let outcome = run(&rate_limits, async || {
                tries += 1;
                Err(busy(Duration::from_hours(9)))
            });
            let Undelivered(why) = outcome.unwrap_err();
            assert!(why.contains("asked to wait for 3"), "{why}");
        }
        assert_eq!(tries, 1);
    }
    #[test]
    fn rate_limit_covers_one_route_or_all() {
        let rate_limits = RateLimits::default();
        rate_limits.record_wait("typing", &busy(Duration::from_mins(5)));
        // A later, shorter wait does not shorten it.
        rate_limits.record_wait("typing", &busy(Duration::ZERO));
        assert!(rate_limits.remaining_wait("typing") > Some(Duration::from_mins(4)));
        assert_eq!(rate_limits.remaining_wait("messages"), None);
        rate_limits
            .record_wait("typing", &DeliveryError { is_for_all: true, ..busy(Duration::from_mins(9)) });
        assert!(rate_limits.remaining_wait("messages") > Some(Duration::from_mins(8)));
        assert!(rate_limits.remaining_wait("typing") > Some(Duration::from_mins(8)));
    }

    #[test]
    fn excess_routes_forget_the_earliest_expiring_limit() {
        let rate_limits = RateLimits::default();
        for (later, number) in (1..).zip(0..=ROUTES) {
            rate_limits.record_wait(&number.to_string(), &busy(Duration::from_secs(60 + later)));
        }
        let route = |number: usize| rate_limits.remaining_wait(&number.to_string());
        assert_eq!((rate_limits.by_route.borrow().len(), route(0)), (ROUTES, None));
        assert!(route(1).is_some() && route(ROUTES).is_some());
    }
}
