//! What the verb `mcp` takes.

use clap::Args;

use crate::duration::parse_ms;

/// Arguments of `mcp`.
#[derive(Args, Debug)]
#[command(after_help = "\
EXAMPLES:
  bgctl mcp                        what an AI agent's configuration names as the command
  bgctl mcp --keep                 the tasks go on when the agent ends
  bgctl mcp --max-block 5m         for an agent that waits that long for an answer
  bgctl mcp --all-sessions         the agent may look at all your tasks and their output
  claude mcp add --scope user bgd -- bgctl mcp
                                   tells Claude Code of it

It speaks the Model Context Protocol on standard input and output, and gives an agent the
tools background_task, background_command, background_output, background_block,
background_cancel, background_list and background_clear. A person has no use for it, but
`bgctl list` shows the agent's tasks as all others.

Whatever has ended since the last call is told at the head of the next answer of any tool, and
comes again until that answer was written. Clients that ask for log messages have it at once.
An idle Claude Code is woken if it was started as
`claude --dangerously-load-development-channels server:bgd` (a research preview of Claude Code
2.1.80 and newer); other agents learn of it at their next call of a tool. At the daemon's end
all tasks are gone; the next call starts a daemon again, and says so.

The tasks are of one parent session, which is a new one at each start. Unless --keep is given,
it ends with this process: tasks that still run are cancelled, and all are cleared with their
output. WARNING: if --session or an inherited $BGD_SESSION names a session that has other tasks,
these end and are cleared with it, also those that you have started yourself. Use --keep there.

An agent that was started as a task has one of these too if its configuration names it. There
it starts no tasks, unless --depth allows it: BGD_MCP_DEPTH counts in the environment of each
task that is started here, and is looked for in the processes above, too. A tmux server or a
shell that an agent starts in the background hands it on to all that is started in it later, by
you as well. `export BGD_MCP_DEPTH=0` there makes an agent the first one again; to unset it is
not enough, as the processes above still have it.

LIMITS:
  a request         16 MiB a line; a longer one is refused, as is any line that is no message;
                    a command or a prompt 1 MiB with the environment
  an answer         32 KiB of a task's output; 24 KiB of news, and about as much again of what it
                    reports itself; the rest comes with the next
  background_list   50 tasks, the newest first
  background_clear  1000 tasks at a time, the newest first
  task_ids          100 in one call
  waits             48 at a time; one more waits for its turn, and looks once a second meanwhile
  cancels, clears   16 at a time; one more is refused with what to do
  waits as tasks of the protocol (io.modelcontextprotocol/tasks)   64; the oldest one that is
                    over goes first, and if all are under way an answer comes after --max-block")]
pub struct McpArgs {
    /// The parent session of its tasks, which ends with the agent: all its tasks do, whoever started
    /// them [default: $BGD_SESSION, else one of its own, `mcp:` and 8 digits]
    #[arg(long, value_name = "KEY", add = crate::candidates::sessions())]
    pub session: Option<String>,
    /// Leave the parent session as it is at the end: its tasks go on
    #[arg(long)]
    pub keep: bool,
    /// Let background_block wait so long at most: many agents give a tool up after 60s
    #[arg(long, value_name = "DURATION", default_value = "50s", value_parser = parse_ms, allow_hyphen_values = true)]
    pub max_block: u64,
    /// How deep agents may start tasks: with 1 those that are tasks themselves may not, with 0 none may
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub depth: u32,
    /// Give each answer as structured content, too, and declare its schema: for programs. Many agents show their
    /// model both, or the JSON only
    #[arg(long)]
    pub structured: bool,
    /// Show the tasks of other sessions too: background_list with "all", and output by a full id. Only tasks of
    /// its own session are shown without it; those of others can never be cancelled, cleared or resumed
    #[arg(long)]
    pub all_sessions: bool,
}
