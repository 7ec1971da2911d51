//! What the verbs take that change what pending tasks wait for, and whether others go on: `hold`, `release`, `edit`,
//! `pause`, `continue`, `rerun` and `group`.

use bgd_shared::limits::GROUP_SLOTS;
use bgd_shared::time::Timestamp;
use clap::error::ErrorKind;
use clap::{Args, Subcommand};

use super::order::{AfterName, parse_after, priority_parser, slots_parser};
use super::select::{SELECTORS, SelectArgs};
use crate::candidates::{active_tasks, finished_tasks, groups, pending_tasks, tasks};
use crate::duration::parse_ms;
use crate::name::Name;
use crate::when::parse_at;

/// Arguments of `hold`.
#[derive(Args, Debug)]
#[command(after_help = "\
EXAMPLES:
  bgctl hold 3f2a
  bgctl hold --group gpu              all that are pending there
  bgctl hold --tag nightly
  bgctl hold @9c1e                    what has not started of a batch

A pending task that is held does not start before `bgctl release`, whatever else it
waits for. Named by its id it must be pending, else the exit code is 65 and nothing
is held; of those that are selected only the pending ones are.")]
pub struct HoldArgs {
    /// Which tasks.
    #[command(flatten)]
    pub tasks: PendingArgs,
}

/// Arguments of `release`.
#[derive(Args, Debug)]
#[command(after_help = "\
EXAMPLES:
  bgctl release 3f2a
  bgctl release --tag nightly
  id=$(bgctl submit --hold -- ./deploy); bgctl status \"$id\"; bgctl release \"$id\"

A released task still waits for all else that it waits for. One that is not held
stays as it is.")]
pub struct ReleaseArgs {
    /// Which tasks.
    #[command(flatten)]
    pub tasks: PendingArgs,
}

/// Arguments of `rerun`.
#[derive(Args, Debug)]
#[command(after_help = "\
EXAMPLES:
  bgctl rerun 3f2a
  bgctl rerun --failed @9c1e          what has failed of a batch
  bgctl rerun --with-dependents 3f2a  and what was cancelled because 3f2a failed
  bgctl block $(bgctl rerun --failed --tag nightly)

Submits the same again: command or prompt, folder, environment, limits, labels, group,
priority and --retry; not --after, --in, --at and --hold. It prints the new ids, a line
each, and the old tasks stay as they are. Tasks of a batch are a new batch, with the
same --jobs and --max-fails. Of tasks that are selected only those that have ended are
submitted again; one that is named must have ended. With --with-dependents those follow
that were cancelled because of --after, and those after them: each comes after the new
tasks as it came after the old ones.

A job that was started in a terminal can't be run again, nor one that was handed its
input or output. The daemon keeps environments up to limits.environments; a task whose
environment had to go for later ones is an error.")]
pub struct RerunArgs {
    /// The tasks: ids, or the first 4 characters of them or more, or @
    #[arg(value_name = "ID", add = finished_tasks(), conflicts_with_all = SELECTORS,
        required_unless_present_any = SELECTORS)]
    pub ids: Vec<Name>,
    /// Which tasks.
    #[command(flatten)]
    pub select: SelectArgs,
    /// Only those of them that have failed
    #[arg(long)]
    pub failed: bool,
    /// Those too that were cancelled because one of them failed
    #[arg(long)]
    pub with_dependents: bool,
}

/// Tasks that have not started.
#[derive(Args, Debug)]
pub struct PendingArgs {
    /// The tasks: ids, or the first 4 characters of them or more, or @
    #[arg(value_name = "ID", add = pending_tasks(), conflicts_with_all = SELECTORS,
        required_unless_present_any = SELECTORS)]
    pub ids: Vec<Name>,
    /// Which tasks.
    #[command(flatten)]
    pub select: SelectArgs,
}

/// Arguments of `pause`.
#[derive(Args, Debug)]
#[command(after_help = "\
EXAMPLES:
  bgctl pause 3f2a                    `(paused)` behind its status
  bgctl pause --group gpu             what runs there; `group pause` stops what is pending
  bgctl continue 3f2a

Every process of the task stands still until `bgctl continue`. It keeps its slots, and
its time limit goes on. Named by its id it must be running, else the exit code is 65
and nothing is paused; of those that are selected only the running ones are.")]
pub struct PauseArgs {
    /// Which tasks.
    #[command(flatten)]
    pub tasks: RunningArgs,
}

/// Arguments of `continue`.
#[derive(Args, Debug)]
#[command(after_help = "\
EXAMPLES:
  bgctl continue 3f2a
  bgctl continue --group gpu

One that is not paused goes on as it is.")]
pub struct ContinueArgs {
    /// Which tasks.
    #[command(flatten)]
    pub tasks: RunningArgs,
}

/// Tasks that run.
#[derive(Args, Debug)]
pub struct RunningArgs {
    /// The tasks: ids, or the first 4 characters of them or more, or @
    #[arg(value_name = "ID", add = active_tasks(), conflicts_with_all = SELECTORS,
        required_unless_present_any = SELECTORS)]
    pub ids: Vec<Name>,
    /// Which tasks.
    #[command(flatten)]
    pub select: SelectArgs,
}

/// The tasks that one starts after, in place of those before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NewAfter {
    /// None.
    None,
    /// This one.
    Name(AfterName),
}

fn parse_new_after(text: &str) -> Result<NewAfter, String> {
    if text == "none" { Ok(NewAfter::None) } else { parse_after(text).map(NewAfter::Name) }
}

/// Arguments of `edit`.
#[derive(Args, Debug)]
#[command(after_help = "\
EXAMPLES:
  bgctl edit 3f2a --priority 50       in front of the others of its group
  bgctl edit 3f2a --group gpu --slots 2
  bgctl edit 3f2a --after 91bc --after 7d3e:any
  bgctl edit 3f2a --after none        what it started after counts no more
  bgctl edit @ --at 22:00             this session's latest task
  bgctl edit 3f2a --in 0              its time has come

Only a pending task can be edited; else the exit code is 65. What is not named stays.
--after takes the place of all that it started after; --in and --at that of each
other.")]
pub struct EditArgs {
    /// The pending task: its id, or the first 4 characters of it or more, or @
    #[arg(value_name = "ID", add = pending_tasks())]
    pub id: Name,
    /// From -100 to 100: higher starts first in its group
    #[arg(long, value_name = "N", value_parser = priority_parser(), allow_negative_numbers = true)]
    pub priority: Option<i32>,
    /// The group that it waits and runs in
    #[arg(long, value_name = "NAME", add = groups())]
    pub group: Option<String>,
    /// How many slots of its group it takes
    #[arg(long, value_name = "N", value_parser = slots_parser(), allow_negative_numbers = true)]
    pub slots: Option<u32>,
    /// Start it after this task, in place of those before; may be repeated. `none`: after none
    #[arg(long, value_name = "ID[:ok|any|fail|start|ready]", value_parser = parse_new_after, add = tasks())]
    pub after: Vec<NewAfter>,
    /// Start it in so long: 90s, 10m, 1h30m; 0 for no delay
    #[arg(long = "in", id = "delay", value_name = "DURATION", value_parser = parse_ms, allow_hyphen_values = true)]
    pub delay: Option<u64>,
    /// Start it then: 14:30 (the next one), '2026-03-01 14:30', or RFC 3339
    #[arg(long, value_name = "TIME", value_parser = parse_at, conflicts_with = "delay")]
    pub at: Option<Timestamp>,
    /// What lists show for it
    #[arg(short, long, value_name = "TEXT")]
    pub description: Option<String>,
}

impl EditArgs {
    /// Whether there is something to change, and only one thing that it starts after.
    ///
    /// # Errors
    /// The kind of wrong usage, and what to do about it.
    pub fn check(&self) -> Result<(), (ErrorKind, String)> {
        let Self { id: _, priority, group, slots, after, delay, at, description } = self;
        let has_none = after.contains(&NewAfter::None);
        if has_none && after.len() > 1 {
            let what = "`--after none` can't be combined with another --after";
            return Err((ErrorKind::ArgumentConflict, what.to_owned()));
        }
        let changes = [
            priority.is_some(),
            group.is_some(),
            slots.is_some(),
            !after.is_empty(),
            delay.is_some(),
            at.is_some(),
            description.is_some(),
        ];
        if changes.contains(&true) {
            return Ok(());
        }
        let what =
            "nothing to change: give --priority, --group, --slots, --after, --in, --at or --description";
        Err((ErrorKind::MissingRequiredArgument, what.to_owned()))
    }
}

/// Arguments of `group`.
#[derive(Args, Debug)]
#[command(after_help = "\
EXAMPLES:
  bgctl group list
  bgctl group set gpu --slots 2       make it, or give it another number of slots
  bgctl group pause gpu               what is pending there does not start
  bgctl group continue gpu
  bgctl group remove gpu
  bgctl submit --group gpu -- sh -c 'CUDA_VISIBLE_DEVICES=$((BGD_SLOT - 1)) exec ./train'

A task waits for free slots of its own group and for no other. A new number of slots
holds at once and ends nothing: with fewer, no task starts until enough have ended.
`default` is where tasks are that name no group; its slots are `max_concurrent_tasks`
of the configuration, where other groups can be set for good:

  [groups.gpu]
  slots = 2

On a terminal the list is a table, else columns with tabs between them: name, used
and all slots, paused or -, pending, running, finished. Foreground jobs and follow-ups
wait for no slot, so more can be used than there are.

EXIT CODES:
    2  no group has this name, or it has more slots than there can be
   65  remove: it has tasks that have not ended")]
pub struct GroupArgs {
    /// What to do with groups.
    #[command(subcommand)]
    pub verb: GroupVerb,
}

/// What can be done with groups.
#[derive(Subcommand, Debug)]
pub enum GroupVerb {
    /// Show the groups, with their slots and tasks
    List,
    /// Make a group, or give it another number of slots
    Set {
        /// Its name: letters, digits, `.`, `_` and `-`
        #[arg(value_name = "NAME", add = groups())]
        name: String,
        /// How many slots it has
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(GROUP_SLOTS)),
            allow_negative_numbers = true)]
        slots: u32,
    },
    /// Start none of its pending tasks any more; those that run go on
    Pause {
        /// The group
        #[arg(value_name = "NAME", add = groups())]
        name: String,
    },
    /// Start its pending tasks again
    Continue {
        /// The group
        #[arg(value_name = "NAME", add = groups())]
        name: String,
    },
    /// Remove it; all of its tasks must have ended
    Remove {
        /// The group
        #[arg(value_name = "NAME", add = groups())]
        name: String,
    },
}
