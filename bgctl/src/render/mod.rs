//! Rendering: functions from wire objects to text. Only `list_format`, `signs` and `wall` read the environment
//! (terminal, variables, time zone); nothing here prints.

pub mod agents;
pub mod columns;
pub mod daemon;
pub mod doctor;
pub mod executors;
pub mod group;
pub mod json;
pub mod list_format;
pub mod metrics;
pub mod order;
pub mod page;
pub mod question;
pub mod signs;
pub mod table;
pub mod tree;
pub mod wall;
pub mod width;

use std::borrow::Cow;

use bgd_shared::quote;
pub use bgd_shared::show::{bytes, line as clean, lines as clean_lines};
use bgd_shared::task::{Status, Task};
use bgd_shared::text::{OsText, shortened_with};

/// Truncates text after `most` characters, and appends its full length if truncated.
pub fn bounded(text: &str, most: usize) -> Cow<'_, str> {
    match text.char_indices().nth(most) {
        None => Cow::Borrowed(text),
        Some((end, _)) => {
            let sign = signs::ellipsis();
            Cow::Owned(format!("{} {sign} ({} characters)", &text[..end], text.chars().count()))
        }
    }
}

/// Makes a text safe to show on one line, and truncates it as [`bounded`] does.
pub fn bounded_line(text: &str, most: usize) -> String {
    bounded(&clean(text), most).into_owned()
}

/// Shortens a text to at most `most` characters, as `bgd_shared::text::shortened` does, in the characters of the locale.
pub fn shortened(text: &str, most: usize) -> String {
    shortened_with(text, most, signs::ellipsis())
}

/// What is left of a task if nothing ends its processes.
pub const UNKILLABLE: &str = "some of its processes do not end after SIGKILL";

/// Says what may be left of a task that was cancelled, or ran for too long, although the end of its processes could not
/// be confirmed, in which case nothing more can be done about them. `None` for any other task.
pub fn survivors(task: &Task) -> Option<String> {
    let was_ended = task.status == Status::Cancelled || task.timed_out;
    match (&task.on, was_ended) {
        _ if !task.lingering => None,
        (Some(on), _) => {
            Some(format!("it may still run on {}, and will be ended there as soon as possible", clean(on)))
        }
        (None, true) => Some(UNKILLABLE.to_owned()),
        (None, false) => None,
    }
}

/// Lists the first `most` of these names, and counts the rest.
pub fn listed(names: impl ExactSizeIterator<Item = String>, most: usize) -> String {
    let rest = names.len().saturating_sub(most);
    let listed = names.take(most).collect::<Vec<_>>().join(", ");
    if rest > 0 { format!("{listed} and {rest} more") } else { listed }
}

/// Formats the words of a command as a line that a shell reads back.
pub fn quoted(words: &[OsText]) -> String {
    let mut quoted: Vec<String> = words.iter().map(|word| quote::quoted(word.as_bytes())).collect();
    // A shell would take the program's name for an assignment.
    if let Some(program) = quoted.first_mut().filter(|name| name.contains('=') && !name.contains('\'')) {
        *program = format!("'{program}'");
    }
    quoted.join(" ")
}

#[cfg(test)]
pub mod samples {
    //! Sample objects for tests: a task, a question and a daemon.

    use bgd_shared::agent::{InputOption, NeedsInput, OptionKind};
    use bgd_shared::id::TaskId;
    use bgd_shared::request::{
        ChannelRetry, ChannelStatus, DaemonStatus, InboxesStatus, Limits, TimeBucket, Times,
    };
    use bgd_shared::resources::Resources;
    use bgd_shared::task::{Kind, Origin, Output, Progress, Status, Summary, Task};
    use bgd_shared::time::Timestamp;

    /// A task that has just been submitted, at second 1000.
    pub fn task() -> Task {
        Task {
            id: TaskId::from_u128(0x3f2a_9c1e_0000_4000_8000_0000_0000_0001),
            kind: Kind::Process,
            origin: Origin::Submit,
            foreground: false,
            ended_in_foreground: false,
            pty: false,
            status: Status::Pending,
            paused: false,
            description: "make -j8".into(),
            argv: Some(vec!["make".into(), "-j8".into()]),
            shell: None,
            prompt: None,
            agent: None,
            settings: bgd_shared::agent::AgentSettings::default(),
            agent_session: None,
            session: None,
            channel: None,
            key: None,
            time_limit_ms: None,
            ready: None,
            ready_timeout_ms: None,
            on: None,
            resources: Resources::default(),
            elsewhere: None,
            tags: Vec::new(),
            cwd: "/src".into(),
            pid: None,
            run: 1,
            resume_count: 0,
            created_at: Timestamp::from_unix_ms(1_000_000),
            started_at: None,
            ready_at: None,
            completed_at: None,
            run_ms: None,
            retrieved_at: None,
            exit: None,
            error: None,
            failure: None,
            timed_out: false,
            ending: false,
            lingering: false,
            suspect: None,
            warning: None,
            group: bgd_shared::order::DEFAULT_GROUP.into(),
            batch: None,
            rerun_of: None,
            priority: 0,
            slots: 1,
            slot: None,
            after: Vec::new(),
            waiting: None,
            start_at: None,
            retry: None,
            restart: None,
            attempt: None,
            attempts: Vec::new(),
            cancel_reason: None,
            usage: None,
            agent_usage: None,
            progress: Progress::default(),
            output: Output::default(),
        }
    }

    /// The time at which [`daemon`] was sampled.
    pub fn now() -> Timestamp {
        Timestamp::from_unix_ms(1_000_000)
    }

    fn limits() -> Limits {
        Limits {
            frame_bytes: 1 << 20,
            connections: 1024,
            requests: 256,
            write_queue_bytes: 1 << 18,
            tasks: 1_000_000,
            memory: 256 << 20,
            output_bytes: 1 << 30,
            event_history_bytes: 1 << 23,
            max_concurrent_tasks: 4,
        }
    }

    /// A daemon with some activity.
    pub fn daemon() -> DaemonStatus {
        let bucket = |le_ms, count| TimeBucket { le_ms, count };
        let at = |seconds: i64| Timestamp::from_unix_ms(now().unix_ms() + seconds * 1000);
        let idle = ChannelStatus { name: "tty".into(), kind: "tty".into(), ..ChannelStatus::default() };
        let busy = ChannelStatus {
            name: "ops".into(),
            kind: "exec".into(),
            queued: 4,
            sent: 5,
            failed: 2,
            dropped: 1,
            last_error: Some("it \x07exited with 3".into()),
            last_error_at: Some(at(-5)),
            ..ChannelStatus::default()
        };
        let error = "http://h answers with 500".into();
        let retry = ChannelRetry { tries: 2, most: 5, error, at: at(-1), next_at: at(3) };
        let tried = ChannelStatus {
            name: "web".into(),
            kind: "webhook".into(),
            queued: 2,
            sent: 1,
            retry: Some(retry),
            ..ChannelStatus::default()
        };
        let wrong = ChannelStatus {
            name: "slack".into(),
            kind: "slack".into(),
            problem: Some("no chat is set".into()),
            ..ChannelStatus::default()
        };
        DaemonStatus {
            active: 3,
            shutting_down: false,
            summary: Summary { pending: 1, running: 2, ..Summary::default() },
            uptime_ms: 90_500,
            memory_bytes: 1 << 20,
            held_bytes: 1 << 19,
            connections: 2,
            subscriptions: 1,
            seq: 12,
            instance: "3f2a".into(),
            version: "0.1.0".into(),
            pid: 17,
            socket: "/run/bgd.sock".into(),
            state_dir: "/state".into(),
            config: "/config.toml".into(),
            config_loaded: true,
            config_modified: None,
            private_files: Vec::new(),
            tree: "session".into(),
            program: None,
            tree_reason: "no cgroup v2 is mounted here".into(),
            durable: None,
            missing_journal: None,
            limits: limits(),
            waited: Times { count: 3, sum_ms: 12, buckets: vec![bucket(3, 2), bucket(10, 3)] },
            ran: Times { count: 2, sum_ms: 2 * 86_400_000, buckets: vec![bucket(3, 0), bucket(10, 0)] },
            inboxes: InboxesStatus { sessions: 1, items: 1, lost: 2 },
            default_deliver_to: None,
            channels: vec![busy, tried, wrong, idle],
            undelivered: 7,
            warnings: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// Question 7 of an agent, which is denied automatically at second 1300.
    pub fn question() -> NeedsInput {
        let option = |id: &str, name: &str, kind| InputOption { id: id.into(), name: name.into(), kind };
        NeedsInput {
            request: 7,
            question: "Run `make`?".into(),
            options: vec![
                option("once", "Allow once", OptionKind::AllowOnce),
                option("reject", "No", OptionKind::RejectOnce),
            ],
            expires_at: Some(Timestamp::from_unix_ms(1_300_000)),
            waiting: 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_characters_are_replaced() {
        assert_eq!(clean("a\x1b[2Jb\tc\nd"), "a\u{fffd}[2Jb c d");
        assert_eq!(clean_lines("a\x07\nb"), "a\u{fffd}\nb");
    }

    #[test]
    fn truncated_text_states_full_length() {
        assert_eq!(bounded("äöü", 3), "äöü");
        assert_eq!(bounded("äöü", 2), "äö … (3 characters)");
    }

    #[test]
    fn sizes_are_shown_in_binary_units() {
        let shown = [0, 1023, 1024, 1536, 1 << 20, 5 << 30, u64::MAX].map(bytes);
        assert_eq!(shown, ["0 B", "1023 B", "1.0 KiB", "1.5 KiB", "1.0 MiB", "5.0 GiB", "15.9 EiB"]);
    }
}
