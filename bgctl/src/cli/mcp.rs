//! Arguments of `mcp`.

use clap::Args;

use crate::duration::parse_ms;

/// Arguments of `mcp`.
#[derive(Args, Debug)]
#[command(after_help = "\
EXAMPLES:
  bgctl mcp                        the command for an AI agent's MCP configuration
  bgctl mcp --keep                 keep the tasks running when the agent ends
  bgctl mcp --max-block 5m         for agents that wait that long for a reply
  bgctl mcp --all-sessions         let the agent read all your tasks and their output
  claude mcp add --scope user bgd -- bgctl mcp
                                   add it to Claude Code

Speaks the Model Context Protocol on standard input and output, and gives an agent the \
tools background_task, background_command, background_output, background_block, \
background_cancel, background_list and background_clear. Not meant to be run by hand; \
`bgctl list` shows the agent's tasks like all others.

Each tool reply starts with a report of the tasks that have ended since the last call; the \
report is repeated until a reply with it has been written. Clients that subscribe to log \
messages get it at once. An idle Claude Code wakes up if it was started as \
`claude --dangerously-load-development-channels server:bgd` (a research preview in Claude Code \
2.1.80 and later); other agents see the report on their next tool call. If the daemon ends, all \
tasks are lost, unless it is durable; the next call starts a new daemon, and says so.

All tasks belong to one parent session, a new one at each start. Unless --keep is given, it ends \
with this process: running tasks are cancelled, and all tasks and their output are deleted. \
WARNING: if --session or an inherited $BGD_SESSION names a session with other tasks, those are \
cancelled and deleted too, even if you started them yourself. Use --keep in that case.

An agent that was started with these tools also has them if they are in its configuration, but \
can't start tasks unless --depth allows it: BGD_MCP_DEPTH in the environment of each task, and of \
the processes above it, counts the levels. An agent that you start as a task yourself can. A tmux server or a shell that an agent starts in the \
background passes the variable on to everything started in it later, including your own programs. \
`export BGD_MCP_DEPTH=0` resets it there; unsetting it is not enough, as the processes above \
still have it.

LIMITS:
  request           16 MiB per line; longer lines and lines that are not messages are rejected;
                    a command less than 128 KiB; a prompt 1 MiB, including the environment
  reply             32 KiB of a task's output; 24 KiB of reports on ended tasks, and about as much
                    for its own content; the rest follows in the next reply
  background_list   50 tasks, newest first
  background_clear  1000 tasks at a time, newest first
  task_ids          100 per call
  waits             48 at a time; further ones queue, and poll once a second meanwhile
  cancels, clears   16 at a time; further ones are rejected with advice
  waits as protocol tasks (io.modelcontextprotocol/tasks)   64; the oldest finished one is dropped
                    first; if all are unfinished, the reply comes after --max-block")]
pub struct McpArgs {
    /// Parent session of its tasks; it ends with the agent, along with all its tasks, whoever started
    /// them [default: $BGD_SESSION, else a new one, `mcp:` and 8 digits]
    #[arg(long, value_name = "KEY", add = crate::candidates::sessions())]
    pub session: Option<String>,
    /// Keep the parent session and its tasks when the agent ends
    #[arg(long)]
    pub keep: bool,
    /// Maximum wait of background_block; many agents abort a tool call after 60s
    #[arg(long, value_name = "DURATION", default_value = "50s", value_parser = parse_ms, allow_hyphen_values = true)]
    pub max_block: u64,
    /// Levels of agents that may start tasks: 1: only agents that no agent has started; 0: none
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub depth: u32,
    /// Also return each reply as structured content, and declare its schema; for programs. Many agents pass both to
    /// their model, or only the JSON
    #[arg(long)]
    pub structured: bool,
    /// Also show tasks of other sessions: background_list with "all", and output by full id. Tasks of other
    /// sessions can never be cancelled, cleared or resumed
    #[arg(long)]
    pub all_sessions: bool,
}
