//! Arguments for when a submitted task starts or restarts: groups, conditions, times, retries.

use bgd_shared::limits::{GROUP_SLOTS, RETRIES};
use bgd_shared::order::{Condition, PRIORITIES, Restart, Retry};
use bgd_shared::ready::Ready;
use bgd_shared::time::Timestamp;
use clap::Args;
use clap::builder::{NonEmptyStringValueParser, RangedI64ValueParser};

use crate::candidates::{groups, tasks};
use crate::duration::{parse_limit, parse_ms};
use crate::name::Name;
use crate::when::parse_at;

/// A condition on another task, as typed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AfterName {
    /// The other task or tasks.
    pub name: Name,
    /// The required state or outcome.
    pub condition: Condition,
}

/// Parses a condition on another task, such as `3f2a:fail`.
///
/// # Errors
/// The text names no task, or the condition is unknown.
pub fn parse_after(text: &str) -> Result<AfterName, String> {
    let (name, condition) = match text.split_once(':') {
        Some((name, condition)) => (name, condition.parse()?),
        None => (text, Condition::default()),
    };
    Ok(AfterName { name: name.parse()?, condition })
}

pub(super) fn priority_parser() -> RangedI64ValueParser<i32> {
    clap::value_parser!(i32).range(i64::from(*PRIORITIES.start())..=i64::from(*PRIORITIES.end()))
}

pub(super) fn slots_parser() -> RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(..=i64::from(GROUP_SLOTS))
}

/// The delays between attempts, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Delays {
    /// Maximum delay before the second attempt.
    first: u64,
    /// Maximum for all later delays.
    most: Option<u64>,
}

fn parse_delays(text: &str) -> Result<Delays, String> {
    let Some((first, most)) = text.split_once("..") else {
        return Ok(Delays { first: parse_ms(text)?, most: None });
    };
    let (first, most) = (parse_ms(first)?, parse_ms(most)?);
    if first > most {
        return Err("MIN is longer than MAX: use MIN..MAX, such as 1s..5m".to_owned());
    }
    Ok(Delays { first, most: Some(most) })
}

/// The kinds of failures after which a task is retried.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RetryOn {
    codes: Vec<i32>,
    signal: bool,
}

fn parse_retry_on(text: &str) -> Result<RetryOn, String> {
    let mut on = RetryOn::default();
    if text == "any" {
        return Ok(on);
    }
    for word in text.split(',').map(str::trim) {
        match (word, word.parse()) {
            ("signal", _) => on.signal = true,
            (_, Ok(code @ 1..=255)) => on.codes.push(code),
            (_, Ok(0)) => return Err("exit code 0 is not a failure".to_owned()),
            _ => {
                return Err(format!(
                    "{word:?} is neither an exit code from 1 to 255 nor `signal`; `any` must stand alone"
                ));
            }
        }
    }
    Ok(on)
}

fn parse_restart(text: &str) -> Result<Restart, String> {
    match text {
        "on-failure" => Ok(Restart::OnFailure),
        "always" => Ok(Restart::Always),
        _ => Err("use on-failure or always".to_owned()),
    }
}

/// The names of these options, for arguments that conflict with them.
pub const ORDER: [&str; 13] = [
    "order_group",
    "priority",
    "slots",
    "after",
    "delay",
    "at",
    "hold",
    "retry",
    "retry_delay",
    "retry_on",
    "restart",
    "ready",
    "ready_timeout",
];

/// When a task starts, and when it starts again.
#[derive(Args, Clone, Debug, Default, PartialEq, Eq)]
#[command(next_help_heading = "When to run")]
pub struct OrderArgs {
    /// Group to run in, see `bgctl group` [default: default]
    #[arg(long = "group", id = "order_group", value_name = "NAME", add = groups(), value_parser = NonEmptyStringValueParser::new())]
    pub group: Option<String>,
    /// Priority from -100 to 100; higher starts first within the group [default: 0]
    #[arg(long, value_name = "N", value_parser = priority_parser(), allow_negative_numbers = true)]
    pub priority: Option<i32>,
    /// Slots it takes in its group; with 0 it waits only for its turn [default: 1]
    #[arg(long, value_name = "N", value_parser = slots_parser(), allow_negative_numbers = true)]
    pub slots: Option<u32>,
    /// Start after this task has completed (ok), ended (any), failed (fail), started (start) or become ready; may be repeated, for at most 1000 tasks
    #[arg(long, value_name = "ID[:ok|any|fail|start|ready]", value_parser = parse_after, add = tasks())]
    pub after: Vec<AfterName>,
    /// Start after this delay: 90s, 10m, 1h30m; time while the machine sleeps does not count, see --at
    #[arg(long = "in", id = "delay", value_name = "DURATION", value_parser = parse_ms, allow_hyphen_values = true)]
    pub delay: Option<u64>,
    /// Start at this time: 14:30 (today or tomorrow), '2026-03-01 14:30' (if that occurs twice, the first time), or RFC 3339
    #[arg(long, value_name = "TIME", value_parser = parse_at, conflicts_with = "delay")]
    pub at: Option<Timestamp>,
    /// Hold the task until `bgctl release`
    #[arg(long)]
    pub hold: bool,
    /// Retry a failed task up to N times, at most 1000; 0 is the same as without --retry
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(..=i64::from(RETRIES)),
        allow_negative_numbers = true)]
    pub retry: Option<u32>,
    /// Maximum random delay before the first retry; doubles with each retry, up to MAX [default: 1s..5m]
    #[arg(long, value_name = "MIN[..MAX]", value_parser = parse_delays, allow_hyphen_values = true, requires = "retry")]
    pub retry_delay: Option<Delays>,
    /// Failures to retry: any, or exit codes and `signal`, comma-separated, as in 1,75,signal [default: any]
    #[arg(long, value_name = "WHAT", value_parser = parse_retry_on, requires = "retry")]
    pub retry_on: Option<RetryOn>,
    /// Restart the task until it is cancelled: after failures (on-failure), or whenever it ends (always)
    #[arg(long, value_name = "WHEN", value_parser = parse_restart, conflicts_with = "retry")]
    pub restart: Option<Restart>,
    /// How to tell that it is ready: line:REGEX (in its output), tcp:[HOST:]PORT, http:URL, file:PATH, or notify (sd_notify)
    #[arg(long, value_name = "WHEN")]
    pub ready: Option<Ready>,
    /// Fail the task if it is not ready within this time
    #[arg(long, value_name = "DURATION", value_parser = parse_limit, allow_hyphen_values = true, requires = "ready")]
    pub ready_timeout: Option<u64>,
}

impl OrderArgs {
    /// Returns the retry policy in its wire form, if it retries at all.
    pub fn retry(&self) -> Option<Retry> {
        let RetryOn { codes, signal } = self.retry_on.clone().unwrap_or_default();
        self.retry.filter(|times| *times > 0).map(|times| Retry {
            times,
            delay_ms: self.retry_delay.map(|delays| delays.first),
            max_delay_ms: self.retry_delay.and_then(|delays| delays.most),
            codes,
            signal,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r103_after_accepts_condition_after_any_kind_of_name() {
        let read = |text: &str| parse_after(text).map(|after| (after.name, after.condition));
        assert_eq!(read("@"), Ok((Name::Latest(1), Condition::Ok)));
        assert_eq!(read("@2:fail"), Ok((Name::Latest(2), Condition::Fail)));
        assert_eq!(read("@9c1e:any"), Ok((Name::Batch("9c1e".parse().unwrap()), Condition::Any)));
        assert_eq!(read("3f2a:ready"), Ok((Name::Id("3f2a".parse().unwrap()), Condition::Ready)));
        let wrong = read("3f2a:done").unwrap_err();
        assert_eq!(wrong, "unknown condition \"done\": one of ok, any, fail, start, ready");
        assert!(read("3f:ok").unwrap_err().contains("too short"));
    }

    #[test]
    fn r108_retry_0_is_the_same_as_no_retry() {
        let retry = |times| OrderArgs { retry: Some(times), ..OrderArgs::default() }.retry();
        assert_eq!(retry(0), None);
        assert_eq!(retry(1).map(|retry| retry.times), Some(1));
    }

    #[test]
    fn r108_retry_delays_and_retry_on_are_parsed_and_errors_name_the_value() {
        assert_eq!(parse_delays("1s..5m"), Ok(Delays { first: 1000, most: Some(300_000) }));
        assert_eq!(parse_delays("30s"), Ok(Delays { first: 30_000, most: None }));
        assert!(parse_delays("5m..1s").unwrap_err().contains("MIN..MAX"));
        assert!(
            parse_delays("soon").is_err() && parse_delays("1s..").is_err() && parse_delays("..1s").is_err()
        );
        assert_eq!(parse_retry_on("any"), Ok(RetryOn::default()));
        assert_eq!(parse_retry_on("1,75,signal"), Ok(RetryOn { codes: vec![1, 75], signal: true }));
        assert_eq!(parse_retry_on("signal"), Ok(RetryOn { codes: Vec::new(), signal: true }));
        for (text, expected) in [
            ("0", "exit code 0 is not a failure"),
            ("256", "\"256\" is neither an exit code from 1 to 255"),
            ("1,,2", "\"\" is neither"),
            ("any,1", "\"any\" is neither"),
            ("-1", "\"-1\" is neither"),
        ] {
            assert!(parse_retry_on(text).unwrap_err().contains(expected), "{text}");
        }
        assert!(parse_restart("never").is_err());
    }
}
