//! The page about the daemon.

use bgd_shared::request::{ChannelStatus, DaemonStatus, InboxesStatus, Times};
use bgd_shared::task::Status;

use super::bytes;
use super::page::Page;
use crate::duration::show_ms;

/// How the daemon is.
pub fn page(status: &DaemonStatus) -> String {
    let mut page = Page::default();
    page.line("daemon", &format!("bgd {}, pid {}", status.version, status.pid));
    page.line("up", &show_ms(status.uptime_ms));
    let counts: Vec<String> = Status::ALL
        .into_iter()
        .filter(|state| status.summary.count(*state) > 0)
        .map(|state| format!("{} {state}", status.summary.count(state)))
        .collect();
    let counts = if counts.is_empty() { "none".to_owned() } else { counts.join(", ") };
    page.line("tasks", &counts);
    page.line("active", &format!("{}, {} at once", status.active, status.limits.max_concurrent_tasks));
    page.maybe("waited", times(&status.waited).as_deref());
    page.maybe("ran", times(&status.ran).as_deref());
    for each in &status.channels {
        page.line("channel", &channel(each));
    }
    page.maybe("inboxes", inboxes(&status.inboxes).as_deref());
    if status.untold > 0 {
        let what = format!("{} ends of tasks without a channel (default_deliver_to sets one)", status.untold);
        page.line("untold", &what);
    }
    page.line("memory", &bytes(status.memory_bytes));
    page.line("connections", &format!("{}, {} subscriptions", status.connections, status.subscriptions));
    page.line("last event", &status.seq.to_string());
    page.line("socket", &status.socket);
    page.line("state", &status.state_dir);
    let note = if status.config_loaded { "" } else { " (not in force; all values are the defaults)" };
    page.line("config", &format!("{}{note}", status.config));
    page.line("trees by", &status.tree);
    page.line("instance", &status.instance);
    for warning in &status.warnings {
        page.line("warning", warning);
    }
    page.0
}

/// How long something took, if it ever did: how often, the mean, and what half of them did not exceed.
fn times(times: &Times) -> Option<String> {
    let mean = times.sum_ms.checked_div(times.count)?;
    let half = times.buckets.iter().find(|bucket| bucket.count >= times.count.div_ceil(2));
    let half = half.map_or_else(
        || "took longer than a day".to_owned(),
        |bucket| format!("took {} at most", short(bucket.le_ms)),
    );
    if times.count == 1 {
        return Some(format!("once, {}", short(mean)));
    }
    Some(format!("{} times, {} on average, half of them {half}", times.count, short(mean)))
}

fn short(ms: u64) -> String {
    if ms < 1000 { format!("{ms}ms") } else { show_ms(ms) }
}

fn channel(channel: &ChannelStatus) -> String {
    let ChannelStatus { name, kind, queued, sent, failed, dropped, last_error } = channel;
    let what = if name == kind { name.clone() } else { format!("{name} ({kind})") };
    let mut counts = vec![format!("{sent} sent")];
    for (count, word) in [(failed, "failed"), (dropped, "dropped"), (queued, "queued")] {
        if *count > 0 {
            counts.push(format!("{count} {word}"));
        }
    }
    let why = last_error.as_ref().map(|why| format!("; last error: {why}")).unwrap_or_default();
    format!("{what}: {}{why}", counts.join(", "))
}

fn inboxes(inboxes: &InboxesStatus) -> Option<String> {
    let InboxesStatus { sessions, items, lost } = *inboxes;
    let plural = |count: u64| if count == 1 { "" } else { "s" };
    let lost = if lost > 0 { format!(", {lost} lost (limits.inbox_items)") } else { String::new() };
    let text = format!("{items} notice{} for {sessions} session{}{lost}", plural(items), plural(sessions));
    (items > 0 || !lost.is_empty()).then_some(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::render::samples;

    #[test]
    fn the_page_tells_how_those_are_told_who_asked() {
        let page = page(&samples::daemon());
        for line in [
            "waited:      3 times, 4ms on average, half of them took 3ms at most",
            "ran:         2 times, 1d 00h on average, half of them took longer than a day",
            "channel:     ops (exec): 5 sent, 2 failed, 1 dropped, 4 queued; last error: it \u{fffd}exited with 3",
            "channel:     tty: 0 sent",
            "inboxes:     1 notice for 1 session, 2 lost (limits.inbox_items)",
            "untold:      7 ends of tasks without a channel (default_deliver_to sets one)",
            "tasks:       1 pending, 2 running",
        ] {
            assert!(page.lines().any(|known| known == line), "{line} is not in\n{page}");
        }
    }

    #[test]
    fn a_daemon_without_work_has_a_short_page() {
        let idle = DaemonStatus {
            waited: Times::default(),
            ran: Times::default(),
            channels: Vec::new(),
            inboxes: InboxesStatus::default(),
            untold: 0,
            ..samples::daemon()
        };
        let page = page(&idle);
        for name in ["waited", "ran", "channel:", "inboxes", "untold"] {
            assert!(!page.contains(&format!("\n{name}")), "{page}");
        }
    }
}
