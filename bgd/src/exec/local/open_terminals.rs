//! The open terminals and their viewers. A dedicated thread follows the terminals.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::sync::Arc;

use bgd_shared::error::{ErrorKind, RpcError};
use bgd_shared::id::TaskId;
use bgd_shared::limits::TERMINAL_VIEWERS;
use bgd_shared::request::{DetachResult, TaskResult, TerminalSize, WriteResult};
use tokio::sync::oneshot;

use crate::carry::CarriedFds;
use crate::client::Client;
use crate::client::answer::{AnswerState, write_error};
use crate::core::SpawnFailure;
use crate::exec::carried::{JobState, TerminalState};
use crate::exec::executor::{Ask, Asked, not_shown};
use crate::exec::input::owed::Owed;
use crate::exec::input::unread::{Unread, UnreadBytes};
use crate::exec::output::loss::Loss;
use crate::exec::terminal::still::{Before, Hold, Taken};
use crate::exec::terminal::viewers::{Gate, Viewer};
use crate::exec::terminal::{Opening, Resting, Terminal, Terminals, written};
use crate::exec::threads::job::Job;

/// An open terminal and its viewers.
#[derive(Debug)]
struct Shown {
    terminal: Terminal,
    viewers: BTreeMap<u64, Seat>,
    /// The answers owed for typed input.
    owed: Owed,
    /// Continues the job if it is stopped by input typed before the last viewer left.
    goes_on: Option<Job>,
}

/// The state of a viewer.
#[derive(Debug)]
struct Seat {
    gate: Gate,
    /// Whether the job is the viewer's foreground job.
    is_owner: bool,
    /// Whether the viewer has typed anything, such as a key that stops the job.
    has_typed: bool,
    /// The session in whose terminal the viewer shows the job, if it has a terminal.
    shown_in: Option<i32>,
}

impl Seat {
    fn new(viewer: &Viewer) -> Self {
        let Viewer { client, gate, size, is_owner } = viewer;
        Self { gate: gate.clone(), is_owner: *is_owner, has_typed: false, shown_in: size.and(client.leader) }
    }

    /// Reports whether the viewer would notice that the job stops, and continue it.
    const fn would_continue_job(&self) -> bool {
        self.is_owner || self.has_typed
    }
}

/// All terminals of the daemon.
#[derive(Debug, Default)]
pub(super) struct OpenTerminals {
    thread: Terminals,
    open: HashMap<TaskId, Shown>,
    /// Hold the terminals for an upgrade.
    holds: HashMap<TaskId, Hold>,
    /// Terminals of the previous program that are not followed yet.
    resting: Vec<CarriedTerminal>,
    /// Jobs that no viewer would continue if they stopped now.
    unseen: Vec<TaskId>,
}

/// A terminal of the previous program.
#[derive(Debug)]
struct CarriedTerminal {
    task: TaskId,
    taken: Taken,
    loss: Loss,
    owed: Vec<(u64, AnswerState)>,
    /// The clients that have typed anything.
    typists: Vec<u64>,
    resting: Resting,
}

impl OpenTerminals {
    /// Starts the terminal thread, before a process is started in a terminal.
    pub(super) fn prepare(&mut self) -> Result<(), SpawnFailure> {
        self.thread.start().map_err(|error| format!("cannot start a thread for terminals: {error}").into())
    }

    /// Starts following a terminal; its owner is shown it from the first byte on.
    pub(super) fn open(&mut self, opening: Opening) -> io::Result<Terminal> {
        let task = opening.task;
        let owner = opening.owner.as_ref().map(|owner| (owner.client.id, Seat::new(owner)));
        let terminal = self.thread.open(opening)?;
        let viewers = owner.into_iter().collect();
        self.open.insert(task, Shown::new(terminal.clone(), viewers));
        Ok(terminal)
    }

    /// Holds all terminals until [`Self::release`]. Returns whether they have been still since the previous call, so
    /// that everything they had sent has arrived.
    pub(super) fn keep_still(&mut self) -> bool {
        let Self { open, holds, .. } = self;
        let were_still = open.keys().all(|task| holds.get(task).is_some_and(Hold::is_still));
        for (task, shown) in open {
            holds.entry(*task).or_insert_with(|| shown.terminal.hold()).look();
        }
        were_still
    }

    /// Releases the terminals.
    pub(super) fn release(&mut self) {
        self.holds.clear();
    }

    /// Returns the state of a task's terminal, which is held; `None` if the task has none.
    pub(super) fn state(
        &self,
        task: TaskId,
        job: Option<JobState>,
        named: &mut CarriedFds,
    ) -> Option<TerminalState> {
        // Resting terminals are followed before the daemon does anything else.
        let Self { open, holds, thread: _, resting: _, unseen: _ } = self;
        // The terminal's own state shows that a stop is awaited.
        let Shown { terminal: _, viewers, owed, goes_on: _ } = open.get(&task)?;
        let followed = holds.get(&task).and_then(Hold::still).map(|still| still.state(named));
        let typists = viewers.iter().filter(|(_, seat)| seat.has_typed).map(|(client, _)| *client).collect();
        Some(TerminalState { job, followed, owed: owed.state(), typists })
    }

    /// Adds a terminal of the previous program, which is followed from [`Self::resume`] on.
    pub(super) fn add_carried(
        &mut self,
        task: TaskId,
        taken: Option<Taken>,
        (owed, typists): (Vec<(u64, AnswerState)>, Vec<u64>),
        loss: Loss,
    ) -> io::Result<Terminal> {
        self.thread.start()?;
        let resting = Resting::default();
        let terminal = resting.terminal.clone();
        self.open.insert(task, Shown::new(terminal.clone(), BTreeMap::new()));
        if let Some(taken) = taken {
            self.resting.push(CarriedTerminal { task, taken, loss, owed, typists, resting });
        }
        Ok(terminal)
    }

    /// Starts following the terminals of the previous program.
    pub(super) fn resume(&mut self, clients: &HashMap<u64, Arc<Client>>, unread: &Unread) {
        for CarriedTerminal { task, taken, loss, owed, typists, resting } in std::mem::take(&mut self.resting)
        {
            let Some(shown) = self.open.get_mut(&task) else { continue };
            let Taken { mut state, master, slave, leader_news, output } = taken;
            let writes = std::mem::take(&mut state.writes);
            let (mut viewers, mut left) = (Vec::new(), Vec::new());
            for viewer in std::mem::take(&mut state.viewers) {
                let (has_typed, is_owner) = (typists.contains(&viewer.client), viewer.is_owner);
                match clients.get(&viewer.client) {
                    Some(client) => {
                        let again = new_viewer(client, viewer.size, is_owner);
                        shown.viewers.insert(client.id, Seat { has_typed, ..Seat::new(&again) });
                        viewers.push((again, viewer));
                    }
                    None => left.push(Seat { gate: Gate::open(), is_owner, has_typed, shown_in: None }),
                }
            }
            shown.owed.restore(owed, clients);
            for write in writes {
                let (number, unread) = (write.number, unread.count_unlimited(write.data.len()));
                shown.answer_write(task, number, unread, written(shown.terminal.continue_writing(write)));
            }
            if state.is_stop_awaited || left.iter().any(|seat| shown.is_unattended_without(seat)) {
                self.unseen.push(task);
            }
            let (size, owner) = (state.size(), None);
            let before = Some(Box::new(Before { state, viewers }));
            let opening = Opening { task, master, slave, size, output, loss, leader_news, owner, before };
            if let Err(error) = self.thread.follow(opening, resting) {
                tracing::error!(%task, %error, "cannot follow a terminal");
            }
        }
    }

    /// Adds the number of answers owed to each client.
    pub(super) fn count_owed(&self, clients: &mut HashMap<u64, usize>) {
        self.open.values().for_each(|shown| shown.owed.count(clients));
    }

    /// Returns the open terminal of a task.
    pub(super) fn get(&self, task: TaskId) -> Option<&Terminal> {
        self.open.get(&task).map(|shown| &shown.terminal)
    }

    pub(super) fn is_open(&self, task: TaskId) -> bool {
        self.open.contains_key(&task)
    }

    /// Closes the terminal of a task whose processes are gone.
    pub(super) fn close(&mut self, task: TaskId) {
        self.open.remove(&task);
    }

    /// Stops showing a terminal to a client, which receives no further byte. Returns whether the client was shown it.
    pub(super) fn leave(&mut self, task: TaskId, client: u64) -> bool {
        let Some(shown) = self.open.get_mut(&task) else { return false };
        let Some(seat) = shown.viewers.remove(&client) else { return false };
        seat.gate.close();
        shown.terminal.leave(client);
        if shown.is_unattended_without(&seat) {
            self.unseen.push(task);
        }
        // The terminal must be held again, without the viewer.
        self.holds.remove(&task);
        true
    }

    /// Takes the tasks whose jobs no viewer would continue if they stopped now.
    pub(super) fn take_unseen(&mut self) -> Vec<TaskId> {
        std::mem::take(&mut self.unseen)
    }

    /// Has a job continued if it stops unseen: `wait` receives a future that resolves when the job stops, and waits for
    /// it.
    pub(super) fn keep_going(&mut self, task: TaskId, wait: impl FnOnce(oneshot::Receiver<()>) -> Job) {
        if let Some(shown) = self.open.get_mut(&task) {
            shown.goes_on = Some(wait(shown.terminal.once_stopped()));
        }
    }

    /// Allows a job to stop: a client has sent a command, or watches the job. Returns whether the job would have been
    /// continued.
    pub(super) fn may_stop(&mut self, task: TaskId) -> bool {
        self.open.get_mut(&task).is_some_and(|shown| shown.goes_on.take().is_some())
    }

    /// Removes a client that has disconnected from all terminals.
    pub(super) fn disconnect(&mut self, client: u64) {
        for (task, shown) in self.open.iter_mut().filter(|(_, shown)| shown.viewers.contains_key(&client)) {
            let seat = shown.viewers.remove(&client);
            shown.terminal.leave(client);
            // A foreground job may stay in the background (R142). If it is ended instead, this does no harm.
            if seat.is_some_and(|seat| shown.is_unattended_without(&seat)) {
                self.unseen.push(*task);
            }
            self.holds.remove(task);
        }
    }

    /// Serves and answers a client's request on a terminal. `session_of` returns the session whose terminal a task's
    /// terminal is.
    pub(super) fn ask(&mut self, asked: Asked, session_of: impl Fn(TaskId) -> Option<i32>) {
        if let Ask::Attach { size: Some(_), .. } = asked.what
            && self.would_show_itself(asked.task.id, asked.answer.client(), session_of)
        {
            return asked.answer.refuse(&shows_itself(asked.task.id));
        }
        let Some(shown) = self.open.get_mut(&asked.task.id) else { return asked.refuse() };
        match asked.what {
            Ask::Attach { owns, size } => shown.attach(&asked, owns, size),
            Ask::Resize { size } => shown.resize(&asked, size),
            Ask::Write { .. } => shown.write(asked),
            Ask::Leave => {
                let client = asked.answer.client().id;
                if !self.leave(asked.task.id, client) {
                    return asked.refuse();
                }
                let message = format!("Detached from task {}", asked.task.id);
                asked.answer.give(&DetachResult { task: *asked.task, message });
            }
        }
    }

    /// Reports whether a task's terminal would be shown in itself if this client showed it in its own terminal, directly
    /// or through the terminals of other tasks: its output would be its input, without end.
    fn would_show_itself(
        &self,
        task: TaskId,
        client: &Client,
        session_of: impl Fn(TaskId) -> Option<i32>,
    ) -> bool {
        let sessions: HashMap<i32, TaskId> =
            self.open.keys().filter_map(|open| Some((session_of(*open)?, *open))).collect();
        let (mut known, mut next) = (HashSet::new(), client.leader.into_iter().collect::<Vec<_>>());
        while let Some(session) = next.pop() {
            let Some(outer) = sessions.get(&session) else { continue };
            if *outer == task {
                return true;
            }
            if known.insert(*outer)
                && let Some(shown) = self.open.get(outer)
            {
                next.extend(shown.viewers.values().filter_map(|seat| seat.shown_in));
            }
        }
        false
    }
}

/// Returns the error for a client that would show a terminal in itself.
fn shows_itself(task: TaskId) -> RpcError {
    let message =
        format!("the terminal of task {task} would show itself: this is its own, or one that it shows");
    RpcError::new(ErrorKind::OwnTerminal, message).hint("attach from a terminal outside of the task")
}

impl Shown {
    fn new(terminal: Terminal, viewers: BTreeMap<u64, Seat>) -> Self {
        Self { terminal, viewers, owed: Owed::default(), goes_on: None }
    }

    /// Reports whether no viewer would continue the job, now that the viewer with this seat has left.
    fn is_unattended_without(&self, seat: &Seat) -> bool {
        seat.is_owner || seat.has_typed && !self.viewers.values().any(Seat::would_continue_job)
    }

    fn attach(&mut self, asked: &Asked, owns: bool, size: Option<TerminalSize>) {
        let client = asked.answer.client();
        let is_shown = self.viewers.contains_key(&client.id);
        if !is_shown && self.viewers.len() >= TERMINAL_VIEWERS {
            let message = format!("{TERMINAL_VIEWERS} clients show the terminal of task {}", asked.task.id);
            let error = RpcError::new(ErrorKind::TooManyRequests, format!("{message}, which is the limit"));
            return asked.answer.refuse(&error.hint("detach one of them"));
        }
        asked.answer.give(&TaskResult { task: (*asked.task).clone() });
        if is_shown {
            return self.terminal.draw_again(client.id, size);
        }
        let viewer = new_viewer(client, size, owns);
        let seat = Seat::new(&viewer);
        // A viewer that only looks, as `top` does, would leave the job stopped.
        if seat.would_continue_job() {
            self.goes_on = None;
        }
        self.viewers.insert(client.id, seat);
        self.terminal.attach(viewer);
    }

    fn resize(&self, asked: &Asked, size: TerminalSize) {
        let client = asked.answer.client().id;
        if !self.viewers.contains_key(&client) {
            return asked.answer.refuse(&not_shown(asked.task.id));
        }
        self.terminal.resize(client, size);
        asked.answer.give(&TaskResult { task: (*asked.task).clone() });
    }

    fn write(&mut self, asked: Asked) {
        let Asked { answer, task, what: Ask::Write { data, eof, unread } } = asked else {
            return asked.refuse();
        };
        let id = task.id;
        if eof {
            let message = format!("`eof`: task {id} reads from a terminal, which can't be closed");
            let error = RpcError::new(ErrorKind::InvalidParams, message);
            return answer
                .refuse(&error.hint("send the end-of-file character instead, as Ctrl-D does: \"\\u0004\""));
        }
        if let Some(seat) = self.viewers.get_mut(&answer.client().id) {
            seat.has_typed = true;
            self.goes_on = None;
        }
        let number = self.owed.keep(answer);
        self.answer_write(id, number, unread, self.terminal.write(number, data));
    }

    /// Answers once typed input is written.
    fn answer_write(
        &self,
        task: TaskId,
        number: u64,
        unread: UnreadBytes,
        written: impl Future<Output = io::Result<u64>> + Send + 'static,
    ) {
        let owed = self.owed.clone();
        tokio::spawn(async move {
            let result = written.await;
            drop(unread);
            match (owed.take(number), result) {
                (Some(answer), Ok(written)) => answer.give(&WriteResult { written }),
                (Some(answer), Err(error)) => answer.refuse(&write_error(task, &error)),
                (None, _) => {}
            }
        });
    }
}

pub(super) fn new_viewer(client: &Arc<Client>, size: Option<TerminalSize>, is_owner: bool) -> Viewer {
    Viewer { client: Arc::clone(client), gate: Gate::open(), size, is_owner }
}
