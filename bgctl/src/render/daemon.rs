//! Renders the page of `daemon status`.

use bgd_shared::order::DEFAULT_GROUP;
use bgd_shared::request::{
    ChannelRetry, ChannelStatus, DaemonStatus, DurableStatus, InboxesStatus, ProgramState, ProgramStatus,
    Times,
};
use bgd_shared::show::{count, elapsed};
use bgd_shared::task::Status;
use bgd_shared::time::Timestamp;

use super::bytes;
use super::page::Page;

/// Renders the state of the daemon.
pub fn page(status: &DaemonStatus, now: Timestamp) -> String {
    let mut page = Page::default();
    page.line("daemon", &format!("bgd {}, pid {}", status.version, status.pid));
    page.maybe("ending", shutting_down(status).as_deref());
    page.maybe("program", status.program.as_ref().and_then(program).as_deref());
    page.line("up", &elapsed(status.uptime_ms));
    let counts: Vec<String> = Status::ALL
        .into_iter()
        .filter(|state| status.summary.count(*state) > 0)
        .map(|state| format!("{} {state}", status.summary.count(state)))
        .collect();
    let counts = if counts.is_empty() { "none".to_owned() } else { counts.join(", ") };
    page.line("tasks", &counts);
    // More can be active than there are slots: pending ones, those of other groups, and foreground jobs.
    let (active, slots) = (status.active, count(status.limits.max_concurrent_tasks, "slot"));
    page.line("active", &format!("{active} pending or running; the group {DEFAULT_GROUP} has {slots}"));
    page.maybe("waited", times(&status.waited).as_deref());
    page.maybe("ran", times(&status.ran).as_deref());
    for each in &status.channels {
        page.line("channel", &channel(each, now));
    }
    page.maybe("inboxes", inboxes(&status.inboxes).as_deref());
    if status.undelivered > 0 {
        let what = count(status.undelivered, "notification");
        let what = format!("{what} without a channel (set default_deliver_to)");
        page.line("not sent", &what);
    }
    let (held, limit) = (bytes(status.held_bytes), bytes(status.limits.memory));
    page.line("memory", &format!("{}, tasks use {held} of {limit}", bytes(status.memory_bytes)));
    page.line(
        "connections",
        &format!("{}, {}", status.connections, count(status.subscriptions, "subscription")),
    );
    page.line("last event", &status.seq.to_string());
    page.line("socket", &status.socket);
    page.line("state", &status.state_dir);
    let note = if status.config_loaded { "" } else { " (no file; using defaults)" };
    page.line("config", &format!("{}{note}", status.config));
    let why =
        if status.tree_reason.is_empty() { String::new() } else { format!(" ({})", status.tree_reason) };
    page.line("trees by", &format!("{}{why}", status.tree));
    if let Some(durable) = status.durable {
        page.line("durable", durability(durable));
    }
    page.line("instance", &status.instance);
    for warning in &status.warnings {
        page.line("warning", warning);
    }
    page.0
}

/// Describes the state of a daemon that is shutting down; `None` for any other.
pub fn shutting_down(status: &DaemonStatus) -> Option<String> {
    let tasks = || count(status.summary.active(), "active task");
    status.shutting_down.then(|| format!("the daemon is shutting down, with {} left", tasks()))
}

/// Describes what happens to tasks when the daemon ends.
const fn durability(durable: DurableStatus) -> &'static str {
    match durable {
        DurableStatus::No => "no: tasks end with the daemon",
        DurableStatus::Written => "yes: tasks outlive the daemon",
        DurableStatus::Synced => {
            "sync: tasks outlive the daemon, and changes are on the disk before each answer"
        }
        DurableStatus::Unknown => "unknown: only a newer version of bgctl knows this setting",
    }
}

/// Describes what to do about a program that is no longer the one on disk.
fn program(program: &ProgramStatus) -> Option<String> {
    let path = &program.path;
    match program.state {
        ProgramState::Current | ProgramState::Unknown => None,
        ProgramState::Replaced => Some(format!(
            "{path} was replaced since this daemon started; `bgctl daemon upgrade` switches to the new one without \
             ending any task"
        )),
        ProgramState::Removed => Some(format!("{path} was removed; install bgd again")),
    }
}

/// Summarises durations as count, mean and median; `None` if there are none.
fn times(times: &Times) -> Option<String> {
    let mean = times.sum_ms.checked_div(times.count)?;
    let half = times.buckets.iter().find(|bucket| bucket.count >= times.count.div_ceil(2));
    let half = half
        .map_or_else(|| "longer than a day".to_owned(), |bucket| format!("at most {}", short(bucket.le_ms)));
    if times.count == 1 {
        return Some(format!("once, {}", short(mean)));
    }
    Some(format!("{} times, {} on average, half of them {half}", times.count, short(mean)))
}

fn short(ms: u64) -> String {
    if ms < 1000 { format!("{ms}ms") } else { elapsed(ms) }
}

/// Summarises a channel: its delivery counts, and its current problems.
fn channel(channel: &ChannelStatus, now: Timestamp) -> String {
    let ChannelStatus { name, kind, queued, sent, failed, dropped, .. } = channel;
    let what = if name == kind { name.clone() } else { format!("{name} ({kind})") };
    let mut counts = vec![format!("{sent} sent")];
    for (count, word) in [(failed, "failed"), (dropped, "dropped"), (queued, "queued")] {
        if *count > 0 {
            counts.push(format!("{count} {word}"));
        }
    }
    let problem = channel.problem.as_ref().map(|what| format!("needs fixing: {what}"));
    let retry = channel.retry.as_ref().map(|met| retry(met, now));
    // Settings that are wrong are also why the last notification failed.
    let is_said = channel.last_error.as_ref().zip(channel.problem.as_ref());
    let is_said = is_said.is_some_and(|(error, problem)| problem.contains(error.as_str()));
    let last_error = last_error(channel, now).filter(|_| !is_said).map(|why| format!("last error: {why}"));
    let parts = [Some(format!("{what}: {}", counts.join(", "))), problem, retry, last_error];
    parts.into_iter().flatten().collect::<Vec<_>>().join("; ")
}

/// Describes the error of the last notification that failed.
pub fn last_error(channel: &ChannelStatus, now: Timestamp) -> Option<String> {
    let ago = channel.last_error_at.map(|at| format!(" ({} ago)", elapsed(now.millis_since(at))));
    channel.last_error.as_ref().map(|why| format!("{why}{}", ago.unwrap_or_default()))
}

/// Describes the state of a notification that is being retried.
pub fn retry(retry: &ChannelRetry, now: Timestamp) -> String {
    let ChannelRetry { tries, most, error, at, next_at } = retry;
    let next =
        if *next_at > now { format!(" in {}", elapsed(next_at.millis_since(now))) } else { String::new() };
    let ago = elapsed(now.millis_since(*at));
    match tries {
        0 => format!("first try{next}: {error} ({ago} ago)"),
        _ => format!("trying again{next}, {tries} of {most} tries done, last: {error} ({ago} ago)"),
    }
}

fn inboxes(inboxes: &InboxesStatus) -> Option<String> {
    let InboxesStatus { sessions, items, lost } = *inboxes;
    let lost = if lost > 0 { format!(", {lost} lost (limits.inbox_items)") } else { String::new() };
    let text = format!("{} for {}{lost}", count(items, "notice"), count(sessions, "session"));
    (items > 0 || !lost.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::samples;

    #[test]
    fn daemon_page_shows_times_channels_inboxes_and_memory() {
        let page = page(&samples::daemon(), samples::now());
        for line in [
            "waited:      3 times, 4ms on average, half of them at most 3ms",
            "ran:         2 times, 1d 00h on average, half of them longer than a day",
            "channel:     ops (exec): 5 sent, 2 failed, 1 dropped, 4 queued; last error: it \u{fffd}exited with 3 (5s ago)",
            "channel:     web (webhook): 1 sent, 2 queued; trying again in 3s, 2 of 5 tries done, last: http://h answers with 500 (1s ago)",
            "channel:     slack: 0 sent; needs fixing: no chat is set",
            "channel:     tty: 0 sent",
            "inboxes:     1 notice for 1 session, 2 lost (limits.inbox_items)",
            "memory:      1.0 MiB, tasks use 512.0 KiB of 256.0 MiB",
            "not sent:    7 notifications without a channel (set default_deliver_to)",
            "tasks:       1 pending, 2 running",
            "active:      3 pending or running; the group default has 4 slots",
            "trees by:    session (no cgroup v2 is mounted here)",
        ] {
            assert!(page.lines().any(|known| known == line), "{line} is not in\n{page}");
        }
    }

    #[test]
    fn problem_that_is_also_the_last_error_is_shown_once() {
        let slack = ChannelStatus {
            name: "slack".into(),
            kind: "slack".into(),
            failed: 1,
            problem: Some("no chat is set; no token".into()),
            last_error: Some("no token".into()),
            last_error_at: Some(samples::now()),
            ..ChannelStatus::default()
        };
        let shown = |slack: &ChannelStatus| channel(slack, samples::now());
        assert_eq!(shown(&slack), "slack: 0 sent, 1 failed; needs fixing: no chat is set; no token");
        let other = ChannelStatus { last_error: Some("no network".into()), ..slack };
        assert!(shown(&other).ends_with("no token; last error: no network (0.0s ago)"), "{}", shown(&other));
    }

    #[test]
    fn channel_retry_line_covers_ongoing_try_and_requested_delay() {
        let mut web = samples::daemon().channels.remove(1).retry.unwrap();
        let later = web.next_at.plus_ms(1);
        assert!(retry(&web, later).starts_with("trying again, 2 of 5 tries done, last: http://h "));
        (web.tries, web.error) = (0, "the server asked to wait".into());
        assert_eq!(retry(&web, samples::now()), "first try in 3s: the server asked to wait (1s ago)");
    }

    #[test]
    fn page_of_idle_daemon_omits_empty_sections() {
        let idle = DaemonStatus {
            waited: Times::default(),
            ran: Times::default(),
            channels: Vec::new(),
            inboxes: InboxesStatus::default(),
            undelivered: 0,
            ..samples::daemon()
        };
        let page = page(&idle, samples::now());
        for name in ["waited", "ran", "channel:", "inboxes", "not sent"] {
            assert!(!page.contains(&format!("\n{name}")), "{page}");
        }
    }
}
