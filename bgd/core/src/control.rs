//! What a user may want of a run, other than its end. Only words: each executor does with them what it can.

/// What to do about a run, other than ending it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Control {
    /// Send a signal to a process.
    Signal {
        /// The signal's number.
        signal: i32,
        /// Whether every process of the tree gets it, or only the leader.
        tree: bool,
    },
    /// Give an agent the answer that it waits for.
    Answer {
        /// The executor's number for the question.
        key: u64,
        /// The chosen option; `None` denies.
        option: Option<Box<str>>,
    },
    /// Stop every process of the tree, including those that it starts meanwhile.
    Pause,
    /// Continue the tree.
    Continue,
    /// Keep the run from starting in the queue that it waits in elsewhere, or no longer.
    Hold {
        /// Whether to keep it.
        held: bool,
    },
    /// Change its priority in the queue that it waits in elsewhere.
    Priority {
        /// The new one, -100 to 100; higher starts first.
        priority: i32,
    },
    /// The task is no longer a foreground job of this client: stop showing it the task's terminal.
    Detach { client: u64 },
}
