//! Arguments of the verbs that change when tasks run: `hold`, `release`, `edit`, `pause`, `continue`, `rerun` and
//! `group`.

use bgd_shared::limits::GROUP_SLOTS;
use bgd_shared::time::Timestamp;
use clap::builder::NonEmptyStringValueParser;
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
  bgctl hold --group gpu              all pending tasks of the group
  bgctl hold --tag nightly
  bgctl hold @9c1e                    all pending tasks of a batch

A held task does not start before `bgctl release`, whatever else it waits for. A task \
given by its id must be pending; otherwise the exit code is 65 and nothing is held. \
When options select tasks, only the pending ones are held; the exit code is 0 even if \
there are none.")]
pub struct HoldArgs {
    /// The pending tasks to hold.
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

A released task still waits for its other conditions. Tasks that are not held stay as \
they are. A task given by its id must be pending; otherwise the exit code is 65. When \
options select tasks, the exit code is 0 even if there are none.")]
pub struct ReleaseArgs {
    /// The held tasks to release.
    #[command(flatten)]
    pub tasks: PendingArgs,
}

/// Arguments of `rerun`.
#[derive(Args, Debug)]
#[command(after_help = "\
EXAMPLES:
  bgctl rerun 3f2a
  bgctl rerun --failed @9c1e          the failed tasks of a batch
  bgctl rerun --with-dependents 3f2a  also tasks cancelled because 3f2a failed
  bgctl block -- $(bgctl rerun --failed --tag nightly)

Submits a task again with the same command or prompt, folder, environment, limits, tags, \
group, priority and --retry, but without --in, --at and --hold. It does not wait again \
for the tasks that it ran after, but still refers to them, as in {after.output}. Prints \
the new ids, one per line; the old tasks stay as they are. Tasks of a batch form a new batch, \
with the same --jobs and --max-fails. A task given by its id must have ended; when \
options select tasks, only ended ones are submitted again. --with-dependents adds the \
tasks that were cancelled because of --after, and their dependents, with the same \
dependencies among the new tasks.

Jobs that were started in a terminal, or got their input or output from the caller, \
can't be run again. The daemon keeps environments up to limits.environments; if a \
task's environment has been dropped since, rerun fails.")]
pub struct RerunArgs {
    /// Task ids (4 characters of each are enough), or @ for the latest task
    #[arg(value_name = "ID", add = finished_tasks(), conflicts_with_all = SELECTORS,
        required_unless_present_any = SELECTORS)]
    pub ids: Vec<Name>,
    /// Only tasks that have failed
    #[arg(long)]
    pub failed: bool,
    /// Include tasks that were cancelled because one of these failed
    #[arg(long)]
    pub with_dependents: bool,
    /// Options that select tasks, in place of ids.
    #[command(flatten)]
    pub select: SelectArgs,
}

/// Tasks that have not started.
#[derive(Args, Debug)]
pub struct PendingArgs {
    /// Task ids (4 characters of each are enough), or @ for the latest task
    #[arg(value_name = "ID", add = pending_tasks(), conflicts_with_all = SELECTORS,
        required_unless_present_any = SELECTORS)]
    pub ids: Vec<Name>,
    /// Options that select tasks, in place of ids.
    #[command(flatten)]
    pub select: SelectArgs,
}

/// Arguments of `pause`.
#[derive(Args, Debug)]
#[command(after_help = "\
EXAMPLES:
  bgctl pause 3f2a                    `bgctl list` then shows `(paused)`
  bgctl pause --group gpu             running tasks; `group pause` is for pending ones
  bgctl continue 3f2a

Stops every process of the task until `bgctl continue`: no signal and no `bgctl attach` \
continues it before. The task keeps its slots, and its time limit keeps counting. A task \
given by its id must be running; otherwise the exit code is 65 and nothing is paused. \
When options select tasks, only the running ones are paused; the exit code is 0 even if \
there are none.")]
pub struct PauseArgs {
    /// The running tasks to pause.
    #[command(flatten)]
    pub tasks: RunningArgs,
}

/// Arguments of `continue`.
#[derive(Args, Debug)]
#[command(after_help = "\
EXAMPLES:
  bgctl continue 3f2a
  bgctl continue --group gpu

Ends a pause; processes that had stopped before it stay stopped. In a task that is not \
paused, continues the processes that have stopped, as by Ctrl-Z before a handoff. A task \
given by its id must be running; otherwise the exit code is 65. When options select \
tasks, the exit code is 0 even if there are none.")]
pub struct ContinueArgs {
    /// The tasks to continue.
    #[command(flatten)]
    pub tasks: RunningArgs,
}

/// Running tasks.
#[derive(Args, Debug)]
pub struct RunningArgs {
    /// Task ids (4 characters of each are enough), or @ for the latest task
    #[arg(value_name = "ID", add = active_tasks(), conflicts_with_all = SELECTORS,
        required_unless_present_any = SELECTORS)]
    pub ids: Vec<Name>,
    /// Options that select tasks, in place of ids.
    #[command(flatten)]
    pub select: SelectArgs,
}

/// A new dependency of a pending task, replacing all previous ones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NewAfter {
    /// No dependency.
    None,
    /// This task, once it meets the condition.
    Name(AfterName),
}

fn parse_new_after(text: &str) -> Result<NewAfter, String> {
    if text == "none" { Ok(NewAfter::None) } else { parse_after(text).map(NewAfter::Name) }
}

/// Arguments of `edit`.
#[derive(Args, Debug)]
#[command(after_help = "\
EXAMPLES:
  bgctl edit 3f2a --priority 50       start before others of its group
  bgctl edit 3f2a --group gpu --slots 2
  bgctl edit 3f2a --after 91bc --after 7d3e:any
  bgctl edit 3f2a --after none        remove its dependencies
  bgctl edit @ --at 22:00             the latest task of this session
  bgctl edit 3f2a --in 0              remove its delay

Only a pending task can be edited; otherwise the exit code is 65. Settings that are not \
given stay. --after replaces all previous dependencies; --in and --at replace each other.")]
pub struct EditArgs {
    /// Id of a pending task (at least its first 4 characters), or @ for the latest task
    #[arg(value_name = "ID", add = pending_tasks())]
    pub id: Name,
    /// Priority from -100 to 100; higher starts first within the group
    #[arg(long, value_name = "N", value_parser = priority_parser(), allow_negative_numbers = true)]
    pub priority: Option<i32>,
    /// Group to run in
    #[arg(long, value_name = "NAME", add = groups(), value_parser = NonEmptyStringValueParser::new())]
    pub group: Option<String>,
    /// Slots it takes in its group
    #[arg(long, value_name = "N", value_parser = slots_parser(), allow_negative_numbers = true)]
    pub slots: Option<u32>,
    /// Start after this task, replacing all previous dependencies; may be repeated. `none` removes them
    #[arg(long, value_name = "ID[:ok|any|fail|start|ready]", value_parser = parse_new_after, add = tasks())]
    pub after: Vec<NewAfter>,
    /// Start after this delay: 90s, 10m, 1h30m; 0 for no delay
    #[arg(long = "in", id = "delay", value_name = "DURATION", value_parser = parse_ms, allow_hyphen_values = true)]
    pub delay: Option<u64>,
    /// Start at this time: 14:30 (today or tomorrow), '2026-03-01 14:30' (if that occurs twice, the first time), or RFC 3339
    #[arg(long, value_name = "TIME", value_parser = parse_at, conflicts_with = "delay")]
    pub at: Option<Timestamp>,
    /// Description for lists; if empty, they show the command
    #[arg(short, long, value_name = "TEXT")]
    pub description: Option<String>,
}

impl EditArgs {
    /// Checks that there is something to change, and that `none` is the only `--after`.
    ///
    /// # Errors
    /// The kind of usage error, and how to correct it.
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
  bgctl group set gpu --slots 2       create it, or change its number of slots
  bgctl group pause gpu               start none of its pending tasks
  bgctl group continue gpu
  bgctl group remove gpu
  bgctl submit --group gpu -- sh -c 'CUDA_VISIBLE_DEVICES=$((BGD_SLOT - 1)) exec ./train'

A task waits only for free slots of its own group. A new number of slots applies at once
and ends no task: with fewer slots, nothing starts until enough tasks have ended. A pending
task that now takes more slots than the group has is not refused: it starts once no other
task of the group has slots, runs alone, and has the number of slots that it was submitted
with. `set` warns of such tasks; `bgctl edit ID --slots N` changes them. Tasks without a
group are in `default`, with `max_concurrent_tasks` slots. Set permanent groups in the
configuration:

  [groups.gpu]
  slots = 2

A removed group that the configuration still sets is there again after the next \
`bgctl daemon reload`, which says so, or restart.

`list` prints a table on a terminal, otherwise tab-separated columns: name, used and \
total slots, `paused` or `-`, pending, running, finished. Foreground jobs and follow-ups \
do not wait for slots, so the used slots can exceed the total.

EXIT CODES:
    2  unknown group, or too many slots
   65  remove: some of its tasks have not ended")]
pub struct GroupArgs {
    /// The action to take.
    #[command(subcommand)]
    pub verb: GroupVerb,
}

/// Actions on groups.
#[derive(Subcommand, Debug)]
pub enum GroupVerb {
    /// List groups with their slots and tasks
    List,
    /// Create a group, or change its number of slots
    Set {
        /// Name of the group: letters, digits, `.`, `_` and `-`
        #[arg(value_name = "NAME", add = groups())]
        name: String,
        /// Number of slots
        #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(GROUP_SLOTS)),
            allow_negative_numbers = true)]
        slots: u32,
    },
    /// Stop starting its pending tasks; running ones continue
    Pause {
        /// Name of the group
        #[arg(value_name = "NAME", add = groups())]
        name: String,
    },
    /// Resume starting its pending tasks
    Continue {
        /// Name of the group
        #[arg(value_name = "NAME", add = groups())]
        name: String,
    },
    /// Remove a group; all its tasks must have ended
    Remove {
        /// Name of the group
        #[arg(value_name = "NAME", add = groups())]
        name: String,
    },
}
