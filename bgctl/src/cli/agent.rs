//! Arguments of the verbs about agents: `resume`, `agents` and `answer`.

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

The agent keeps the whole conversation so far. bgctl returns as soon as the agent has \
the prompt; the task is `resumed` until the answer arrives, and keeps its id. Only a \
completed task can be resumed, one prompt at a time; otherwise the exit code is 65, as \
it is when the agent no longer has the conversation.

The task keeps its mode, model and options; --mode, --model and --config change them \
for this prompt and later ones.

PROMPT is a single argument, so quote it; `-` reads it from standard input.")]
#[command(override_usage = "bgctl resume [OPTIONS] <ID> [--] <PROMPT>")]
pub struct ResumeArgs {
    /// Id of a completed agent task (at least its first 4 characters), or @ for the latest task
    #[arg(value_name = "ID", add = crate::candidates::tasks())]
    pub id: Name,
    /// Settings of the agent's session.
    #[command(flatten)]
    pub settings: SettingArgs,
    /// The follow-up prompt; `-` reads it from standard input
    #[arg(value_name = "PROMPT")]
    pub prompt: OsString,
    /// The rest of a prompt without quotes. Accepted only so that the error can explain what to do
    #[arg(hide = true)]
    pub more: Vec<OsString>,
}

impl ResumeArgs {
    /// Checks that the prompt is one argument.
    ///
    /// # Errors
    /// The kind of usage error, and how to correct it.
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

Lists the configured agents and those built into bgd; programs are looked up in your \
PATH. `(default)` marks the agent used for prompts that name no agent. Prints a table on a \
terminal, otherwise tab-separated columns: name, protocol, state, version, how a \
conversation continues after the agent's process has ended (resume, load or no), \
the reply to permission requests (deny, allow or ask), command or address. `-` marks \
values that are known only with --check.

--check starts each available agent and queries its version and capabilities; the exit code \
is 69 if one of them does not start, or if a NAME is not installed. It sends no prompt, but \
can take a few seconds per agent. \
An agent with protocol = \"template\" starts \
only for a prompt, so its program is only looked for (found, not started).")]
pub struct AgentsArgs {
    /// List only these agents
    #[arg(value_name = "NAME", add = crate::candidates::agents())]
    pub names: Vec<String>,
    /// Start each available agent to check that it works
    #[arg(long)]
    pub check: bool,
}

/// Arguments of `answer`.
#[derive(Args, Debug)]
#[command(after_help = "\
EXAMPLES:
  bgctl answer 3f2a                   show the question and the options
  bgctl answer 3f2a allow
  bgctl answer 3f2a 'Always allow git status'
  bgctl answer 3f2a deny --request 7  only if question 7 is still open
  bgctl answer 3f2a --wait            wait until it asks, or has ended

An agent asks if its `permissions` setting is `ask`; `bgctl list` then shows `(asks)`. \
allow and deny apply once if the agent offers that, otherwise always. An agent that \
offers no way to deny has its request cancelled instead, and may end its turn. The \
exit code is 65 if no question is open, or not the one given by --request.")]
pub struct AnswerArgs {
    /// Task id (at least its first 4 characters), or @ for the latest task
    #[arg(value_name = "ID", add = crate::candidates::tasks())]
    pub id: Name,
    /// Answer: an option's id or name, or allow or deny [default: only show the question]
    #[arg(value_name = "OPTION")]
    pub option: Option<String>,
    /// Wait until the task asks a question or has ended
    #[arg(long)]
    pub wait: bool,
    /// Number of the question to answer [default: the open one]
    #[arg(long, value_name = "N")]
    pub request: Option<u64>,
}
