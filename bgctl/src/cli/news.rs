//! Arguments of the verbs that report news: `events` and `inbox`.

use std::num::NonZeroUsize;

use bgd_shared::id::TaskId;
use clap::Args;
use clap::builder::NonEmptyStringValueParser;

use super::select::SelectArgs;
use crate::candidates::{sessions, tasks};
use crate::duration::{Timeout, parse_timeout};
use crate::name::Name;

/// Arguments of `events`.
#[derive(Args, Debug)]
#[command(after_help = "\
EXAMPLES:
  bgctl events                        new events
  bgctl events --since 0 | jq -r '[.seq, .kind, .task.id] | @tsv'
  bgctl events --task 3f2a --task 91bc
  bgctl events --session .            events of the current session's tasks
  bgctl events --tag nightly --status failed
                                      failures of tasks with this tag
  bgctl events --since \"$cursor\"     continue after the last line you processed

Runs until it is interrupted. If events are no longer available, one object of kind `gap` \
takes their place: look the tasks up then, with `bgctl list`. A broken connection to \
another machine is re-established without losing events; when a durable daemon is killed \
or restarted, a gap may take the place of the last ones.

Each line has a `cursor`, made of the daemon's `instance` and the event's `seq`. A \
script that saves the cursor of the last line it processed can stop at any time and \
continue later with --since; start with --since 0. A durable daemon keeps its tasks across \
a restart, but not past events: --since begins with a gap then. If a daemon that was not \
durable has been replaced by then, the exit code is 69, and the script must start over with \
--since 0. A plain number works with any daemon, unless it is above that of the latest event.

EXIT CODES:
    2  also: the number in --since is above that of the latest event
   69  the daemon has ended, or is not the one in --since")]
pub struct EventsArgs {
    /// Replay events after this one, then continue: a number, or a `cursor`
    #[arg(long, value_name = "PLACE", value_parser = parse_since)]
    pub since: Option<Since>,
    /// Show only events of this task; may be repeated
    #[arg(long = "task", value_name = "ID", add = tasks())]
    pub tasks: Vec<Name>,
    /// Options that select tasks; the status is the one in the event.
    #[command(flatten)]
    pub select: SelectArgs,
}

/// A position in the sequence of events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Since {
    /// The daemon instance of the position, if it was given.
    pub instance: Option<String>,
    /// The number of the last event to skip.
    pub seq: u64,
}

fn parse_since(text: &str) -> Result<Since, String> {
    let (instance, seq) = match text.rsplit_once(':') {
        Some((instance, seq)) => (Some(instance.to_owned()), seq),
        None => (None, text),
    };
    let wrong = || "give a number, or the `cursor` of an earlier line".to_owned();
    // An instance is a UUID, as a task's id is.
    if instance.as_ref().is_some_and(|instance| instance.parse::<TaskId>().is_err()) {
        return Err(wrong());
    }
    let seq = seq.parse().map_err(|_| wrong())?;
    Ok(Since { instance, seq })
}

/// Arguments of `inbox`.
#[derive(Args, Debug)]
#[command(after_help = "\
EXAMPLES:
  bgctl inbox                         unacknowledged notifications
  bgctl inbox --ack                   print and acknowledge them
  bgctl inbox --wait none --ack       the oldest one, or wait for the next
  bgctl inbox --follow --ack          print what waits, then new ones as they arrive
  bgctl inbox --all-sessions          include sessions whose terminals are closed
  bgctl inbox --session discord:4711 --json | jq -r .title

Every parent session has an inbox. It gets a notification for the end of each run of \
its tasks and for each question of their agents. Notifications wait until you read \
them, and are repeated until they are acknowledged. --ack acknowledges each one after \
printing it, but not if the reader has closed the pipe. Duplicates have the same `key`.

Several readers of a session without --ack all print the same notifications, except those that \
a reader with --ack or a `bgctl mcp` has reserved. With --ack, each \
prints only those that no other such reader and no `bgctl mcp` reports, and with --wait it waits on if \
another was faster; a notification whose reader is killed before acknowledging it goes to another one.

--follow survives a restart of the daemon, and reports it on standard error, or with \
--json as an object with the `instance` of the new daemon. Unacknowledged notifications \
are lost then, unless the daemon is durable.

With --json, one object per line is printed. If an agent harness wakes up at the end of \
a background command, run `bgctl inbox --wait none --ack` as that command.

An inbox ends with the daemon, unless that is durable, or with `bgctl session end`. It \
holds up to 1000 notifications (limits.inbox_items), all inboxes together 100000. \
Beyond that the oldest are dropped, and standard error says how many.

EXIT CODES:
    0  also if the inbox is empty, without --wait
   75  --wait: timed out")]
pub struct InboxArgs {
    /// Parent session [default: the current one, see `bgctl session key`]
    #[arg(long, value_name = "KEY", add = sessions(), value_parser = NonEmptyStringValueParser::new())]
    pub session: Option<String>,
    /// Print the notifications of every parent session, one session after the other
    #[arg(long, conflicts_with_all = ["session", "follow", "wait"])]
    pub all_sessions: bool,
    /// Keep printing new notifications until interrupted
    #[arg(short, long)]
    pub follow: bool,
    /// Print one, waiting for it up to this long if there is none: 90s, 10m, or none for no limit
    #[arg(long, value_name = "DURATION", value_parser = parse_timeout, allow_hyphen_values = true, conflicts_with = "follow")]
    pub wait: Option<Timeout>,
    /// Acknowledge printed notifications, so that they are not repeated
    #[arg(long)]
    pub ack: bool,
    /// Print at most N, oldest first [default: all; with --wait one]
    #[arg(long, value_name = "N")]
    pub limit: Option<NonZeroUsize>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn since_accepts_number_or_cursor() {
        let of = |instance: Option<&str>, seq| Ok(Since { instance: instance.map(Into::into), seq });
        assert_eq!(parse_since("0"), of(None, 0));
        let instance = "724fede0-9209-4435-bc37-e308e63f1f21";
        assert_eq!(parse_since(&format!("{instance}:42")), of(Some(instance), 42));
        let negative = format!("{instance}:-1");
        for wrong in ["", "x", "x:", "-1", "3f2a:-1", "1.5", "aaa:3", "3f2a-91bc:42", ":3", &negative] {
            assert!(parse_since(wrong).unwrap_err().contains("cursor"), "{wrong}");
        }
    }
}
