//! What the verbs take that tell what happened: `events` and `inbox`.

use std::num::NonZeroUsize;

use clap::Args;

use super::select::SelectArgs;
use crate::candidates::{sessions, tasks};
use crate::duration::{Timeout, parse_timeout};
use crate::name::Name;

/// Arguments of `events`.
#[derive(Args, Debug)]
#[command(after_help = "\
EXAMPLES:
  bgctl events                        what happens from now on
  bgctl events --since 0 | jq -r '[.seq, .kind, .task.id] | @tsv'
  bgctl events --task 3f2a --task 91bc
  bgctl events --session .            of tasks that were submitted from here
  bgctl events --tag nightly --status failed
                                      of tasks with this label, as they fail
  bgctl events --since \"$cursor\"     go on behind the last line that was dealt with

It goes on until it is interrupted. Events that can't be had any more are told as
one object of kind `gap`. A connection that breaks is made again, and nothing is
lost by that.

Each line has a `cursor`, made of the daemon's `instance` and the event's `seq`. A
script that keeps the last one it has dealt with can be ended at any time, and goes
on with --since as if nothing had been. Its first one can be --since 0. All tasks
and events are gone with a daemon: if another one runs by then, the exit code is 69,
and the script begins again with --since 0. A plain number is taken as it is, of
whatever daemon runs.

EXIT CODES:
   69  the daemon has ended, or is not the one of the --since")]
pub struct EventsArgs {
    /// Replay what came after this first: a number, or a `cursor`
    #[arg(long, value_name = "PLACE", value_parser = parse_since)]
    pub since: Option<Since>,
    /// Only events of this task; may be repeated
    #[arg(long = "task", value_name = "ID", add = tasks())]
    pub tasks: Vec<Name>,
    /// Of which tasks; the status is the one that an event tells.
    #[command(flatten)]
    pub select: SelectArgs,
}

/// A place among the events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Since {
    /// The life of the daemon that it is of, if that was named.
    pub instance: Option<String>,
    /// The number of the last event that is not wanted any more.
    pub seq: u64,
}

fn parse_since(text: &str) -> Result<Since, String> {
    let (instance, seq) = match text.rsplit_once(':') {
        Some((instance, seq)) => (Some(instance.to_owned()), seq),
        None => (None, text),
    };
    let seq = seq.parse().map_err(|_| "write a number, or the `cursor` of an earlier line".to_owned())?;
    Ok(Since { instance, seq })
}

/// Arguments of `inbox`.
#[derive(Args, Debug)]
#[command(after_help = "\
EXAMPLES:
  bgctl inbox                         what was told and not acknowledged
  bgctl inbox --ack                   the same, and it does not come again
  bgctl inbox --wait none --ack       the oldest one; if there is none, the next
  bgctl inbox --follow --ack          all that comes, one after the other
  bgctl inbox --all-sessions          also what terminals that are closed now were not told
  bgctl inbox --session discord:4711 --json | jq -r .title

Every parent session has an inbox. The end of each run of its tasks is told there,
and what their agents ask, whether or not somebody waits. A notice comes again until
it is acknowledged. --ack does that when the notice has been written: if nobody reads
it any more it stays. `key` is the same when a notice comes twice.

--follow goes on when the daemon ends and another one is started, and says so on
standard error: what was not acknowledged is gone then. With --json that is an object
with the `instance` of the new daemon.

With --json one object a line. An agent's harness that is woken by the end of a
background command can run `bgctl inbox --wait none --ack` as such a command.

An inbox is in memory, and ends with the daemon and with `bgctl session end`. It has
room for 1000 notices (limits.inbox_items), all of them together for 100000; beyond
that the oldest go, and how many is told on standard error.

EXIT CODES:
    0  also if there is nothing, without --wait
   75  --wait: the time was over first")]
pub struct InboxArgs {
    /// The parent session [default: the one that this is, as `bgctl session key` prints it]
    #[arg(long, value_name = "KEY", add = sessions())]
    pub session: Option<String>,
    /// What every parent session was told, one session after the other
    #[arg(long, conflicts_with_all = ["session", "follow", "wait"])]
    pub all_sessions: bool,
    /// Go on with what comes, until it is interrupted
    #[arg(short, long)]
    pub follow: bool,
    /// Print one; if there is none, wait for it so long: 90s, 10m, or none for no limit
    #[arg(long, value_name = "DURATION", value_parser = parse_timeout, allow_hyphen_values = true, conflicts_with = "follow")]
    pub wait: Option<Timeout>,
    /// Acknowledge what was printed: it does not come again
    #[arg(long)]
    pub ack: bool,
    /// Print so many at most, the oldest first [default: all; with --wait one]
    #[arg(long, value_name = "N")]
    pub limit: Option<NonZeroUsize>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_is_a_number_or_a_cursor() {
        let of = |instance: Option<&str>, seq| Ok(Since { instance: instance.map(Into::into), seq });
        assert_eq!(parse_since("0"), of(None, 0));
        assert_eq!(parse_since("3f2a-91bc:42"), of(Some("3f2a-91bc"), 42));
        for wrong in ["", "x", "x:", "-1", "3f2a:-1", "1.5"] {
            assert!(parse_since(wrong).unwrap_err().contains("cursor"), "{wrong}");
        }
    }
}
