//! The services that the daemon works with: agents, notification channels, and remote executors.

use std::time::{Duration, Instant};

use bgd_shared::agent::{AgentInfo, AgentListParams};
use bgd_shared::id::TaskId;
use bgd_shared::order::WaitingFor;
use bgd_shared::request::{
    AgentList, BlockParams, ChannelStatus, ClearParams, DaemonStatus, DaemonStatusOf, ExecutorList,
    ExecutorListParams, NoParams, SubmitParams, TaskBlock, TaskClear, TaskSubmit,
};
use bgd_shared::time::Timestamp;

use super::failed::failed;
use super::logins::{self, UserEnv};
use crate::context::Context;
use crate::failure::Failure;
use crate::job;
use crate::render::doctor::Check;
use crate::render::table::status;
use crate::render::wall::Clock;
use crate::render::{daemon, quoted};

/// Timeout for a channel to deliver the test notification.
const DELIVERY: Duration = Duration::from_secs(20);

/// Polling interval for the delivery, which no event reports.
const LOOK: Duration = Duration::from_millis(200);

/// The kinds of channels that send nothing outside the daemon.
const LOCAL_KINDS: [&str; 2] = ["inbox", "gone"];

/// The kind of the channel to the user's desktop.
const DESKTOP: &str = "desktop";

/// The kind of the channels that run a program.
const EXEC: &str = "exec";

/// Starts each agent that is installed.
pub fn agents(checks: &mut Vec<Check>, context: &mut Context) {
    const PART: &str = "agents";
    let params = AgentListParams { check: true, ..job::agents(context.link.is_remote()) };
    let agents = match context.call::<AgentList>(&params) {
        Ok(result) => result.agents,
        Err(failure) => return checks.push(failed(PART, "list", &failure)),
    };
    let (installed, absent): (Vec<_>, Vec<_>) = agents.iter().partition(|agent| agent.available);
    let is_remote = context.link.is_remote();
    checks.extend(installed.into_iter().map(|agent| started(PART, agent, is_remote)));
    for agent in absent.iter().filter(|agent| agent.configured) {
        let correct = || format!("install it, or correct `command` of [agents.{}]", agent.name);
        let hint = agent.install.clone().unwrap_or_else(correct);
        checks.push(Check::fails(PART, &agent.name, "is configured, but its program was not found", hint));
    }
    let others: Vec<&str> =
        absent.iter().filter(|agent| !agent.configured).map(|agent| agent.name.as_str()).collect();
    if !others.is_empty() {
        checks.push(Check::ok(PART, "others", format!("not installed: {}", others.join(", "))));
    }
}

fn started(part: &'static str, agent: &AgentInfo, is_remote: bool) -> Check {
    if let Some(error) = &agent.error {
        let hint = format!(
            "run `{}` yourself to see what it says; [agents.{}] is its configuration",
            quoted(&agent.command),
            agent.name
        );
        return Check::fails(part, &agent.name, error, hint);
    }
    let check = agent.check.as_ref();
    let version = check.and_then(|check| check.version.as_deref());
    let version = version.map(|version| format!(" (version {version})")).unwrap_or_default();
    let has_started = check.is_some_and(|check| check.started_in_ms.is_some());
    // A template agent starts only for a prompt.
    let starts =
        if has_started { format!("starts{version}") } else { "was found, but not started".to_owned() };
    // The evidence of a login is on the machine where the agent runs.
    let program = agent.command.first().filter(|_| !is_remote && agent.url.is_none());
    let Some(known) = program.and_then(|program| logins::of(&program.to_string_lossy())) else {
        return Check::ok(
            part,
            &agent.name,
            format!("{starts}; its first prompt shows whether it {}", first_prompt(has_started)),
        );
    };
    match known.found(&UserEnv::own()) {
        Some(place) => Check::ok(part, &agent.name, format!("{starts}, logged in ({place})")),
        None => {
            Check::note(part, &agent.name, format!("{starts}, but no login was found ({})", known.places()))
                .hint(format!("{}, unless [agents.{}.env] has a key", known.how, agent.name))
        }
    }
}

/// Returns what only the first prompt of an agent shows.
const fn first_prompt(has_started: bool) -> &'static str {
    if has_started { "is logged in" } else { "works" }
}

/// Checks each channel; with `notify`, sends a notification through each.
pub fn channels(checks: &mut Vec<Check>, status: &DaemonStatus, notify: bool, context: &mut Context) {
    const PART: &str = "channels";
    let mut channels =
        status.channels.iter().filter(|channel| !LOCAL_KINDS.contains(&&*channel.kind)).peekable();
    if channels.peek().is_none() {
        return checks.push(Check::note(PART, "notifications", without_channel(status)).hint(
            "for desktop notifications, set default_deliver_to = [\"desktop\"]; for others, see bgd-config(5)",
        ));
    }
    for channel in channels {
        let mut check = known(PART, channel, Timestamp::now());
        // The test is not submitted from a terminal, so it would appear at no prompt.
        if notify && channel.kind != "tty" {
            check = match delivered(&channel.name, context) {
                Ok(Trial::Delivered) => Check::ok(PART, &channel.name, "the test notification was delivered"),
                Ok(Trial::Failed(why)) => Check::fails(PART, &channel.name, why, if_well(channel)),
                Ok(Trial::NotTried(why, hint)) => Check::fails(PART, &channel.name, why, hint),
                Err(failure) => failed(PART, &channel.name, &failure),
            };
        }
        checks.push(check);
    }
}

/// Judges a channel by what the daemon knows of it.
fn known(part: &'static str, channel: &ChannelStatus, now: Timestamp) -> Check {
    let name = &channel.name;
    if let Some(problem) = &channel.problem {
        return Check::fails(part, name, problem, settle(channel));
    }
    // A server may ask to wait before the first try: then nothing has failed.
    if let Some(retry) = channel.retry.as_ref().filter(|retry| retry.tries > 0) {
        return Check::fails(part, name, daemon::retry(retry, now), again(channel));
    }
    if let Some(error) = daemon::last_error(channel, now).filter(|_| channel.is_failing()) {
        let found = format!("the latest notification failed: {error}");
        return Check::fails(part, name, found, again(channel));
    }
    let found = format!("{}, {} sent, {} failed", channel.kind, channel.sent, channel.failed);
    Check::ok(part, name, found)
}

/// Returns what to do about a problem with a channel's settings. That of `exec` is always its program.
fn settle(channel: &ChannelStatus) -> String {
    if channel.kind == EXEC {
        return format!("install the program, or make it executable; or {}", correct(channel));
    }
    correct(channel)
}

/// Returns what to do about a channel that has failed: its settings may be right, and the other side mended by now.
fn again(channel: &ChannelStatus) -> String {
    if channel.kind == DESKTOP {
        return correct(channel);
    }
    format!(
        "`bgctl doctor --notify` tries it again; if it still fails{}, {}",
        and_well(channel),
        correct(channel)
    )
}

/// Returns what to do about a delivery that failed: the settings are wrong only if the server is not down or busy.
fn if_well(channel: &ChannelStatus) -> String {
    let correct = correct(channel);
    if has_server(channel) { format!("unless its server is down or busy, {correct}") } else { correct }
}

/// Returns the same condition for another sentence.
fn and_well(channel: &ChannelStatus) -> &'static str {
    if has_server(channel) { " and its server is not down or busy" } else { "" }
}

fn has_server(channel: &ChannelStatus) -> bool {
    ![DESKTOP, EXEC, "tty"].contains(&&*channel.kind)
}

/// Describes where notifications go if no channel delivers them.
fn without_channel(status: &DaemonStatus) -> &'static str {
    match status.default_deliver_to.as_deref().map(<[_]>::first) {
        None => "no channel is configured: you are notified only in your terminal, above the prompt",
        Some(None) => {
            "default_deliver_to is empty: you are not notified, but sessions have inboxes (bgctl inbox)"
        }
        Some(Some(_)) => "default_deliver_to is an inbox: notices wait there only (bgctl inbox)",
    }
}

fn correct(channel: &ChannelStatus) -> String {
    if channel.kind == DESKTOP {
        // This channel has no settings: only a desktop can be missing.
        return "run `bgctl doctor --notify` in a desktop session ($DBUS_SESSION_BUS_ADDRESS names its bus), or set \
                default_deliver_to to another channel, see bgd-config(5)"
            .to_owned();
    }
    format!("correct [channels.{}] in the configuration, then bgctl daemon reload", channel.name)
}

/// The outcome of a test notification, with the reason if it did not arrive.
enum Trial {
    Delivered,
    Failed(String),
    /// Also has what to do about it.
    NotTried(String, &'static str),
}

impl Trial {
    fn removed() -> Self {
        Self::Failed("the channel was removed meanwhile".to_owned())
    }
}

/// Sends a notification through a channel: that of a task that does nothing and is cleared afterwards.
fn delivered(name: &str, context: &mut Context) -> Result<Trial, Failure> {
    // Other notices may have failed since the checks began.
    let Some(before) = current(name, context)? else { return Ok(Trial::removed()) };
    let params = SubmitParams::trial("test notification of bgctl doctor", name);
    let id = context.call::<TaskSubmit>(&params)?.task.id;
    let outcome = still_waits(id, context).and_then(|waits| match waits {
        None => notice_of(&before, context),
        Some((why, hint)) => Ok(Trial::NotTried(why, hint)),
    });
    let clear = ClearParams { ids: Some(vec![id.into()]), all: true, ..ClearParams::default() };
    let cleared = context.call::<TaskClear>(&clear);
    outcome.and_then(|outcome| cleared.map(|_| outcome))
}

/// Waits until the task has ended. Returns its status, and what to do, if it has not.
fn still_waits(id: TaskId, context: &mut Context) -> Result<Option<(String, &'static str)>, Failure> {
    let timeout_ms = u64::try_from(DELIVERY.as_millis()).ok();
    let params = BlockParams { ids: vec![id.into()], timeout_ms, ..BlockParams::default() };
    let result = context.call::<TaskBlock>(&params)?;
    Ok(result.tasks.first().filter(|task| task.status.is_active()).map(|task| {
        let status = status(task, &Clock::system(Timestamp::now()));
        let reason = task.waiting.as_ref().map(|waiting| waiting.reason);
        (format!("not tried: the task that sends it is {status}"), unblocks(reason))
    }))
}

/// Returns what lets a test task start: it needs no slot and waits behind no other task.
const fn unblocks(reason: Option<WaitingFor>) -> &'static str {
    match reason {
        Some(WaitingFor::Paused) => "bgctl group continue default",
        Some(WaitingFor::Journal) => "free space on the disk of the journal, or make it writable",
        Some(
            WaitingFor::Held
            | WaitingFor::After
            | WaitingFor::Until
            | WaitingFor::Retry
            | WaitingFor::Batch
            | WaitingFor::Slot
            | WaitingFor::Elsewhere
            | WaitingFor::Unknown,
        )
        | None => "run `bgctl doctor --notify` again when the machine is less busy",
    }
}

/// Returns the current status of a channel; `None` if it was removed.
fn current(name: &str, context: &mut Context) -> Result<Option<ChannelStatus>, Failure> {
    let status = context.call::<DaemonStatusOf>(&NoParams {})?;
    Ok(status.channels.into_iter().find(|channel| channel.name == name))
}

/// Waits until the channel has nothing left to deliver, or one notification has failed.
fn notice_of(before: &ChannelStatus, context: &mut Context) -> Result<Trial, Failure> {
    let end = Instant::now() + DELIVERY;
    loop {
        let Some(now) = current(&before.name, context)? else { return Ok(Trial::removed()) };
        if now.failed > before.failed {
            return Ok(Trial::Failed(now.last_error.unwrap_or_else(|| "it failed".to_owned())));
        }
        if now.dropped > before.dropped {
            return Ok(Trial::Failed("dropped, as the channel's queue is full".to_owned()));
        }
        // Others may send through the channel, too.
        if now.sent > before.sent && now.queued == 0 {
            return Ok(Trial::Delivered);
        }
        if Instant::now() >= end {
            let why = now.retry.map(|retry| format!(": {}", retry.error)).unwrap_or_default();
            let why = format!("not delivered within {} seconds{why}", DELIVERY.as_secs());
            return Ok(Trial::Failed(why));
        }
        std::thread::sleep(LOOK);
    }
}

/// Checks whether each remote executor works.
pub fn executors(checks: &mut Vec<Check>, context: &mut Context) {
    const PART: &str = "executors";
    let params = ExecutorListParams { check: true, ..ExecutorListParams::default() };
    let executors = match context.call::<ExecutorList>(&params) {
        Ok(result) => result.executors,
        Err(failure) => return checks.push(failed(PART, "list", &failure)),
    };
    for executor in executors {
        let Some(result) = executor.check else { continue };
        let version = result.version.map(|version| format!(" (version {version})")).unwrap_or_default();
        checks.push(if result.ok {
            Check::ok(PART, executor.name, format!("works{version}"))
        } else {
            let hint = result
                .hint
                .unwrap_or_else(|| format!("correct [executors.{}], see bgd-executors(7)", executor.name));
            let problem = result.problem.unwrap_or_else(|| "fails".to_owned());
            Check::fails(PART, executor.name, problem, hint)
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::doctor::State;
    use bgd_shared::request::ChannelRetry;

    #[test]
    fn r168_channel_is_judged_by_its_latest_notification() {
        let now = Timestamp::from_unix_ms(1_000_000);
        let failed = ChannelStatus {
            name: "ops".into(),
            kind: "exec".into(),
            sent: 2,
            failed: 1,
            last_error: Some("it exited with 3".into()),
            last_error_at: Some(Timestamp::from_unix_ms(995_000)),
            ..ChannelStatus::default()
        };
        let check = known("channels", &failed, now);
        assert_eq!(check, Check::ok("channels", "ops", "exec, 2 sent, 1 failed"), "others were sent since");
        let hint = "`bgctl doctor --notify` tries it again; if it still fails, correct [channels.ops] in the \
                    configuration, then bgctl daemon reload";
        let fails = |found| Check::fails("channels", "ops", found, hint);
        let words = "the latest notification failed: it exited with 3 (5s ago)";
        let failing = ChannelStatus { failing: true, ..failed.clone() };
        assert_eq!(known("channels", &failing, now), fails(words));
        let never_sent = ChannelStatus { sent: 0, ..failed.clone() };
        assert_eq!(known("channels", &never_sent, now), fails(words), "as an older daemon reports it");
        let missing = ChannelStatus { problem: Some("nop: no such program".into()), ..failing.clone() };
        let hint = known("channels", &missing, now).hint.unwrap();
        assert!(hint.starts_with("install the program, ") && hint.contains("[channels.ops]"), "{hint}");
        let ntfy = ChannelStatus { kind: "ntfy".into(), ..failing.clone() };
        assert!(if_well(&ntfy).starts_with("unless its server is down or busy, correct [channels.ops]"));
        let of_server = known("channels", &ntfy, now);
        assert!(
            of_server
                .hint
                .unwrap()
                .contains("; if it still fails and its server is not down or busy, correct [channels.ops]")
        );
        let of_terminals = ChannelStatus { kind: "tty".into(), ..failing };
        assert_eq!(known("channels", &of_terminals, now).state, State::Ok);
        let retry = |tries| {
            let retry =
                ChannelRetry { tries, most: 5, error: "http://h is down".into(), at: now, next_at: now };
            known("channels", &ChannelStatus { retry: Some(retry), ..failed.clone() }, now)
        };
        assert_eq!(retry(2), fails("trying again, 2 of 5 tries done, last: http://h is down (0.0s ago)"));
        assert_eq!(retry(0).state, State::Ok, "it only has to wait");
    }

    #[test]
    fn advice_for_waiting_test_task_fits_its_reason() {
        assert_eq!(unblocks(Some(WaitingFor::Paused)), "bgctl group continue default");
        assert!(unblocks(Some(WaitingFor::Journal)).contains("disk of the journal"));
        assert!(!unblocks(None).contains("group") && !unblocks(Some(WaitingFor::Slot)).contains("group"));
    }
}
