//! Commands of a user to a run, other than ending it. Plain data: each executor carries them out as far as it can.

/// A command to a run, other than to end it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Control {
    /// Send a signal to a process.
    Signal {
        signal: i32,
        /// Whether every process of the tree gets the signal, or only the leader.
        tree: bool,
    },
    /// Give an agent the answer to its question.
    Answer {
        /// The executor's number for the question.
        key: u64,
        /// The chosen option; `None` denies.
        option: Option<Box<str>>,
        /// Whether a user has answered, not the time limit of the question or the end of the turn.
        by_user: bool,
    },
    /// Stop every process of the tree, including those started meanwhile.
    Pause,
    /// Continue the tree.
    Continue,
    /// Hold or release the run in the queue in which it waits elsewhere.
    Hold {
        /// True to hold, false to release.
        held: bool,
        /// Whether the task counts as held, or as released, already. It is ordered again if the place has refused an
        /// operation, as it may have carried that out.
        is_again: bool,
    },
    /// Change the run's priority in the queue in which it waits elsewhere.
    Priority {
        /// -100 to 100; higher starts first.
        priority: i32,
        /// The priority that the run keeps if the place refuses; if it has refused that one, too, the one before.
        before: i32,
    },
    /// The task is no longer a foreground job of this client: stop showing it the task's terminal.
    Detach { client: u64 },
}
