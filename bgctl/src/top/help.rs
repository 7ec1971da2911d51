//! The keys, as shown by the live view, `bgctl top --help` and the man page.

/// The most important keys, in display order.
pub const SHORT: [&str; 8] =
    ["F1 help", "q quit", "Enter open", "o output", "/ filter", "Tab fold", "x cancel", "y n answer"];

/// All keys with their descriptions.
pub const KEYS: [(&str, &str); 24] = [
    ("Up Down k j", "select a task; PageUp, PageDown, Home, End, the wheel and clicks work too"),
    ("Left Right", "fold or unfold the tasks below a heading"),
    ("Tab", "fold by status, host (if there are several), session, group, batch or dependency"),
    ("/", "filter: words of the description, s:failed, tag:x, g:group, b:batch, session:key, host:name"),
    ("?", "search in the outputs of all tasks, in each up to its last 64 MiB"),
    ("Enter", "attach to a running task; show the output of another; try again to reach a host"),
    ("o", "show the output in the pager ($PAGER, else less -R)"),
    ("v", "show or hide the preview"),
    ("f", "pin the preview of a task, so that it follows the output (at most 4)"),
    ("Space", "mark a task; the keys below then apply to all marked tasks"),
    ("y n", "allow or deny what an agent asks; a question not visible to its end is shown first"),
    ("p", "send a follow-up prompt to the agent of a completed task"),
    ("r", "rerun"),
    ("x", "cancel"),
    ("X", "kill: cancel with SIGKILL"),
    ("h", "hold or release"),
    ("g", "show the dependencies of a task"),
    (":", "run a verb of bgctl for the host of the task, as in :submit -- make"),
    ("Esc", "end a search, remove marks, remove the filter"),
    ("Ctrl-L", "draw everything again"),
    ("Ctrl-Z", "stop; fg continues"),
    ("F1", "show the keys"),
    ("q", "quit"),
    ("", "Actions that end work ask for confirmation."),
];
