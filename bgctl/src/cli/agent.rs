//! What the verbs about agents take: `resume`, `agents` and `answer`.

use std::ffi::OsString;

use clap::Args;
use clap::error::ErrorKind;

use super::job::{SettingArgs, too_many};
use crate::name::Name;

/// Arguments of `resume`.
#[derive(Args, Debug)]
#[command(after_help = "\
EXAMPLES:
  bgctl resume 3f2a 'now add a test for it'
  bgctl resume 3f2a - < review.txt
  bgctl resume 3f2a -- '-O3 made it slower: why?'
  bgctl resume 3f2a --mode default 'the plan is good: do it'
  bgctl block \"$(bgctl resume 3f2a 'go on')\" --timeout none

The agent has the whole conversation so far. bgctl returns as soon as the prompt is
with the agent; the task is `resumed` until the answer is there, and its id stays
what it was. Only a completed task can be resumed, one prompt at a time; else the
exit code is 65, as it is if the agent has forgotten the conversation.

The mode, model and options that the task was submitted with hold again; --mode,
--model and --config name others, for this prompt and those after it.

PROMPT is one argument, so quote it; `-` reads it from standard input.")]
#[command(override_usage = "bgctl resume [OPTIONS] <ID> [--] <PROMPT>")]
pub struct ResumeArgs {
    /// The completed agent task: its id, or the first 4 characters of it or more, or @
    #[arg(value_name = "ID", add = crate::candidates::tasks())]
    pub id: Name,
    /// What is set in the agent's session.
    #[command(flatten)]
    pub settings: SettingArgs,
    /// What the agent is told next; `-` reads it from standard input
    #[arg(value_name = "PROMPT")]
    pub prompt: OsString,
    /// What a prompt without quotes leaves over. It is taken only so that the message can say what to do
    #[arg(hide = true)]
    pub more: Vec<OsString>,
}

impl ResumeArgs {
    /// Whether the prompt is one argument.
    ///
    /// # Errors
    /// The kind of wrong usage, and what to do about it.
    pub fn check(&self) -> Result<(), (ErrorKind, String)> {
        match self.more.len() {
            0 => Ok(()),
            more => Err((ErrorKind::TooManyValues, too_many(1 + more))),
        }
    }
}

/// Arguments of `agents`.
#[derive(Args, Debug, Default)]
#[command(after_help = "\
EXAMPLES:
  bgctl agents
  bgctl agents --check
  bgctl agents --check opencode
  bgctl --json agents | jq -r '.agents[] | select(.available) | .name'

Programs are looked for in your PATH. Agents are those of the configuration and
those that bgd knows by itself; `(default)` marks the one that gets a prompt which
names none. On a terminal it is a table, else columns with tabs between them: name,
protocol, state, version, what continues a conversation when the agent's process is
gone (resume, load or no), what happens when it asks for a permission (deny, allow
or ask), command or address. `-` stands for what is known only with --check.

--check starts each agent that is there and asks what it is and what it can do. No
prompt is sent, but it may take some seconds each.")]
pub struct AgentsArgs {
    /// Only these agents
    #[arg(value_name = "NAME", add = crate::candidates::agents())]
    pub names: Vec<String>,
    /// Start each one that is there, to see whether that works
    #[arg(long)]
    pub check: bool,
}

/// Arguments of `answer`.
#[derive(Args, Debug)]
#[command(after_help = "\
EXAMPLES:
  bgctl answer 3f2a                   show what it asks, and the options
  bgctl answer 3f2a allow
  bgctl answer 3f2a 'Always allow git status'
  bgctl answer 3f2a deny --request 7  only if it still asks its question 7
  bgctl answer 3f2a --wait            as soon as it asks, or has ended

A task asks if its agent's `permissions` are `ask`; `bgctl list` shows `(asks)` then.
allow and deny mean this one time where the agent has such an option, else always.
If the task asks nothing, or another question than --request names, the exit code
is 65.")]
pub struct AnswerArgs {
    /// The task: its id, or the first 4 characters of it or more, or @
    #[arg(value_name = "ID", add = crate::candidates::tasks())]
    pub id: Name,
    /// The answer: an option's id or name, or allow or deny [default: only show the question]
    #[arg(value_name = "OPTION")]
    pub option: Option<String>,
    /// Wait until the task asks something, or has ended
    #[arg(long)]
    pub wait: bool,
    /// The number of the question that this answers [default: the one that is asked now]
    #[arg(long, value_name = "N")]
    pub request: Option<u64>,
}
