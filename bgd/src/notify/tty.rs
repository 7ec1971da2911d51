//! The channel `tty`: a line in the terminal that a task was submitted from, above the line being typed there.
//!
//! Writing is harmless only while a shell is at its prompt. While another program has the terminal, lines are held
//! until that program ends or is stopped; terminals do not wait for each other. Lines that arrive within
//! [`BATCH_WINDOW`] of the previous one are written together, so that many simultaneous ends do not fill the screen.
//! Lines for a closed terminal go to the next terminal in which someone uses `bgctl`. Held lines are lost when a
//! non-durable daemon ends: the inbox has their notices.

mod carry;
mod device;
mod held;
mod keys;
mod line;
mod lines;
mod program;
mod reports;

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::io;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bgd_shared::id::TaskId;
use bgd_shared::request::OriginTerminal;
use futures_util::future::LocalBoxFuture;
use serde_json::value::RawValue;
use tokio::sync::Notify;
use tokio::time::Instant;

pub use self::device::terminal_of;
use self::device::{Front, Writes, unusable};
use self::held::{Held, Partial, count_oldest, drop_oldest_missed};
use self::keys::Keys;
use self::lines::{LinePosition, Lines};
use self::reports::PendingReports;
use super::adapter::{Adapter, Notification, Successor};
use super::outcomes::{GIVEN_UP, Outcomes};
use super::undelivered::Undelivered;
use crate::core::Delivery;
use crate::os::pidfd::PidFd;
use crate::os::watch;

/// How long a terminal gets no more lines after a write at its prompt; does not apply to the last lines at shutdown.
const BATCH_WINDOW: Duration = Duration::from_millis(200);

/// How often to check whether a shell has taken its terminal back after a program ended. After the last check, the line
/// is written anyway if a shell has the terminal.
const MAX_CHECKS: u32 = 20;
const CHECK_INTERVAL: Duration = Duration::from_millis(50);

/// When to check again if nobody has taken the terminal back by then, and nothing has been written to it: no event
/// shows that a terminal was closed if its leader lives on.
const CHECK_AGAIN: Duration = Duration::from_secs(5);

/// The minimum interval between two checks of a terminal that a program writes to, as it may write a lot.
const PAUSE: Duration = Duration::from_secs(1);

/// The interval between checks of a terminal if inotify is not available.
const LOOK_EVERY: Duration = Duration::from_millis(250);

type Waiting = Rc<RefCell<HashMap<OriginTerminal, Held>>>;

/// The adapter for all terminals.
#[derive(Clone)]
pub struct Terminals {
    held: Waiting,
    /// Terminals written to within the last [`BATCH_WINDOW`], and when each may be written to again.
    resting: Rc<RefCell<HashMap<OriginTerminal, Instant>>>,
    /// Signals that a terminal has no more lines waiting.
    emptied: Rc<Notify>,
    /// Whether the daemon is shutting down, so that no more notices come.
    is_last: Rc<Cell<bool>>,
    /// Lines for closed terminals; they go to the next terminal in which someone uses `bgctl`.
    missed: Rc<RefCell<Lines>>,
    /// The numbers of the missed notices, oldest first, as far as a durable daemon keeps these until their lines are
    /// shown.
    missed_numbers: Rc<RefCell<VecDeque<u64>>>,
    /// Takes the missed lines if this channel was removed or has another type now.
    successor: Rc<RefCell<Option<Successor>>>,
    keys: Keys,
    outcomes: Rc<Outcomes>,
}

impl Adapter for Terminals {
    fn notify<'a>(&'a self, notification: &'a Notification) -> LocalBoxFuture<'a, Result<(), Undelivered>> {
        let outcome = self.write_or_hold(notification).map_err(Undelivered);
        let terminal = notification.place.as_ref().and_then(|place| place.terminal.as_ref());
        if let Err(why) = &outcome
            && let Some(terminal) = terminal
        {
            let mut lines = Lines::new();
            lines.push(notification);
            if self.miss(terminal, lines) {
                self.keep_missed(notification.miss(why.clone()));
            }
        }
        Box::pin(async { outcome })
    }

    fn visited(&self, leader: i32) {
        let Some(terminal) = device::terminal_of(leader) else { return };
        let lines = std::mem::replace(&mut *self.missed.borrow_mut(), Lines::new());
        if lines.count() == 0 {
            return;
        }
        self.outcomes.counts.missed.store(0, Ordering::Relaxed);
        let numbers = self.missed_numbers.take();
        tracing::debug!(path = terminal.path, "missed notices are passed on to a terminal");
        let mut all = self.held.borrow_mut();
        if let Some(held) = all.get_mut(&terminal) {
            held.lines.absorb(lines);
            held.reports.add_missed(numbers);
            held.again.notify_one();
            return drop_oldest_missed(&mut all, self.outcomes.counts.held_limit());
        }
        drop(all);
        let mut reports = self.no_reports();
        reports.add_missed(numbers);
        self.hold(&terminal, Held::new(lines, reports), LinePosition::Top);
    }

    fn awaits(&self, terminal: &OriginTerminal, submitter: Option<i32>) {
        self.keys.watch(terminal, submitter);
    }

    fn forget(&self, task: TaskId) {
        self.held.borrow_mut().values_mut().for_each(|held| held.forget(task));
        self.missed.borrow_mut().each.iter_mut().for_each(|line| line.forget(task));
    }

    fn ended(&self, task: TaskId) {
        for held in self.held.borrow_mut().values_mut() {
            if held.drop_questions(task, &self.outcomes) == 0 {
                held.again.notify_one();
            }
        }
        let count = self.missed.borrow_mut().drop_questions(task);
        self.outcomes.counts.missed.store(count, Ordering::Relaxed);
        if count == 0 {
            // They asked what no longer matters.
            let mut reports = self.no_reports();
            reports.add_missed(self.missed_numbers.take());
            reports.report(&Ok(()));
        }
    }

    fn reported(&self, leader: i32, task: TaskId) {
        let mut all = self.held.borrow_mut();
        for (_, held) in all.iter_mut().filter(|(terminal, _)| terminal.leader == leader) {
            if held.lines.drop_ends(task) == 0 {
                held.again.notify_one();
            }
        }
    }

    fn leave_to(&self, successor: Successor) {
        self.successor.replace(Some(successor));
        self.pass_on_missed();
    }

    fn inherit(&self, left: &RawValue) {
        self.take_left(left);
    }

    fn state(&self) -> Option<Box<RawValue>> {
        self.carried()
    }

    fn resume(&self, state: &RawValue) {
        self.restore(state);
    }

    fn finish(&self) -> LocalBoxFuture<'_, ()> {
        Box::pin(async {
            self.is_last.set(true);
            self.held.borrow().values().for_each(|held| held.again.notify_one());
            let emptied = async {
                while !self.held.borrow().is_empty() {
                    self.emptied.notified().await;
                }
            };
            tokio::pin!(emptied);
            tokio::select! {
                () = &mut emptied => {}
                () = self.outcomes.until_held() => {
                    self.give_up_all();
                    emptied.await;
                }
            }
        })
    }
}

/// The result of a non-blocking write.
enum Written {
    All,
    /// All but this rest was written.
    UpTo(Vec<u8>),
    /// Nothing was written. The position applies if there is a prompt at the next check.
    Nothing(LinePosition),
}

impl Terminals {
    pub fn new(outcomes: Rc<Outcomes>) -> Self {
        Self {
            held: Waiting::default(),
            resting: Rc::default(),
            emptied: Rc::default(),
            is_last: Rc::default(),
            missed: Rc::new(RefCell::new(Lines::new())),
            missed_numbers: Rc::default(),
            successor: Rc::default(),
            keys: Keys::default(),
            outcomes,
        }
    }

    /// Keeps undeliverable lines for the user's next terminal, if this one is closed. Returns whether it is.
    fn miss(&self, terminal: &OriginTerminal, lines: Lines) -> bool {
        let is_missed = lines.is_missed || device::is_closed(terminal);
        if is_missed {
            let mut missed = self.missed.borrow_mut();
            missed.absorb(lines);
            self.outcomes.counts.missed.store(missed.count(), Ordering::Relaxed);
        }
        is_missed
    }

    /// Keeps missed notices in the journal until their lines are shown. Beyond the limit, the oldest are dropped from
    /// it.
    fn keep_missed(&self, numbers: impl IntoIterator<Item = u64>) {
        let most = usize::try_from(self.outcomes.counts.held_limit()).unwrap_or(usize::MAX);
        let mut kept = self.missed_numbers.borrow_mut();
        kept.extend(numbers);
        while kept.len() > most
            && let Some(oldest) = kept.pop_front()
        {
            self.outcomes.report(oldest, Delivery::Seen);
        }
        drop(kept);
        self.pass_on_missed();
    }

    /// Writes a notice now, or holds it until its terminal can be written to.
    fn write_or_hold(&self, notification: &Notification) -> Result<(), String> {
        let terminal = notification.place.as_ref().and_then(|place| place.terminal.as_ref());
        let terminal = terminal.ok_or("the task was not submitted from a terminal")?;
        let mut all = self.held.borrow_mut();
        if let Some(held) = all.get_mut(terminal) {
            held.lines.push(notification);
            held.reports.extend(notification.hold());
            // The last wake-up for this terminal may have been missed.
            held.again.notify_one();
            count_oldest(&mut all, self.outcomes.counts.held_limit());
            return Ok(());
        }
        drop(all);
        let mut lines = Lines::new();
        lines.push(notification);
        let written = if self.rests_until(terminal).is_some() {
            Written::Nothing(LinePosition::Top)
        } else {
            self.write_at_prompt(terminal, &lines)?
        };
        match written {
            Written::All => self.rest(terminal),
            Written::Nothing(at) => {
                self.hold(terminal, Held::new(lines, self.reports_of(notification)), at);
            }
            Written::UpTo(rest) => {
                self.rest(terminal);
                let mut held = Held::new(Lines::new(), self.no_reports());
                held.partial = Some(Partial::new(&rest, lines, self.reports_of(notification)));
                self.hold(terminal, held, LinePosition::Top);
            }
        }
        Ok(())
    }

    /// Gives up all lines, as no more notices come although the daemon goes on: the channel was removed or changed, and
    /// the next program would not know what to do with them.
    fn give_up_all(&self) {
        for held in self.held.borrow_mut().values_mut() {
            let (_, reports) = held.take(&self.outcomes);
            reports.report(&Err(Undelivered(GIVEN_UP.to_owned())));
            held.again.notify_one();
        }
    }

    fn no_reports(&self) -> PendingReports {
        PendingReports::new(&self.outcomes)
    }

    /// Holds a notice. Returns its deferred report.
    fn reports_of(&self, notification: &Notification) -> PendingReports {
        let mut reports = self.no_reports();
        reports.extend(notification.hold());
        reports
    }

    /// Writes lines if a shell is editing a line right now.
    fn write_at_prompt(&self, terminal: &OriginTerminal, lines: &Lines) -> Result<Written, String> {
        let device::TerminalCheck { front, remembers_row, mut device } = device::look(terminal)?;
        match front {
            Front::Prompt => {}
            // The program may end before the next check, with the shell's new prompt already shown by then.
            Front::Bgctl(_) | Front::Program(_) => return Ok(Written::Nothing(LinePosition::Cursor)),
            Front::Shell | Front::Nobody => return Ok(Written::Nothing(LinePosition::Top)),
        }
        let at = if remembers_row { LinePosition::InPlace } else { self.place_at(terminal) };
        let bytes = lines.bytes(at, device.size());
        let count = device.write(&bytes).map_err(|error| unusable(&terminal.path, &error))?;
        Ok(match bytes.get(count..) {
            None | Some([]) => Written::All,
            Some(_) if count == 0 => Written::Nothing(LinePosition::Top),
            Some(rest) => Written::UpTo(rest.to_vec()),
        })
    }

    /// Returns where to put lines if a shell is editing a line right now.
    fn place_at(&self, terminal: &OriginTerminal) -> LinePosition {
        if self.keys.is_prompt_new(terminal) { LinePosition::Cursor } else { LinePosition::Top }
    }

    /// Records that a terminal was written to.
    fn rest(&self, terminal: &OriginTerminal) {
        let now = Instant::now();
        let mut resting = self.resting.borrow_mut();
        resting.retain(|_, until| *until > now);
        resting.insert(terminal.clone(), now + BATCH_WINDOW);
    }

    /// Returns when a terminal may be written to again; `None` if it may be written to now.
    fn rests_until(&self, terminal: &OriginTerminal) -> Option<Instant> {
        let until = self.resting.borrow().get(terminal).copied();
        until.filter(|until| *until > Instant::now() && !self.is_last.get())
    }

    fn hold(&self, terminal: &OriginTerminal, held: Held, at: LinePosition) {
        let serving = Serving {
            all: self.clone(),
            terminal: terminal.clone(),
            again: Rc::clone(&held.again),
            writes: Writes::new()
                .inspect_err(
                    |error| tracing::warn!(%error, "no inotify: a terminal is polled while a notice is waiting"),
                )
                .ok(),
        };
        let mut all = self.held.borrow_mut();
        all.insert(terminal.clone(), held);
        count_oldest(&mut all, self.outcomes.counts.held_limit());
        drop_oldest_missed(&mut all, self.outcomes.counts.held_limit());
        drop(all);
        tokio::task::spawn_local(async move {
            let served = match serving.write_rest().await {
                Ok(()) => serving.serve(at).await,
                failed => failed,
            };
            if let Err(why) = served {
                serving.give_up(&why);
            }
        });
    }
}

/// A terminal that is ready for a write.
struct Ready {
    at: LinePosition,
    /// Whether its shell leaves line editing to the terminal.
    never_edits: bool,
}

/// Serves one terminal with held lines. Dropping it, even in a panic, removes the terminal's held lines.
struct Serving {
    all: Terminals,
    terminal: OriginTerminal,
    again: Rc<Notify>,
    writes: Option<Writes>,
}

impl Drop for Serving {
    fn drop(&mut self) {
        let left = self.all.held.borrow_mut().remove(&self.terminal);
        drop(left);
        self.all.emptied.notify_one();
    }
}

impl Serving {
    /// Writes held lines until none are left. `at` is the position if the first check finds a prompt.
    async fn serve(&self, mut at: LinePosition) -> Result<(), String> {
        let unusable = |error: io::Error| unusable(&self.terminal.path, &error);
        let mut refused = None;
        while self.has_lines() {
            self.until_rested().await;
            let ready = self.until_ready(std::mem::replace(&mut at, LinePosition::Top)).await?;
            if !self.has_lines() {
                break;
            }
            // There is no await between this last check and the write, so nothing can change in between.
            let device::TerminalCheck { front, remembers_row, mut device } = device::look(&self.terminal)?;
            if !(self.can_write(&front) || ready.never_edits && matches!(front, Front::Shell)) {
                continue;
            }
            let size = device.size();
            let at = match ready.at {
                _ if remembers_row => LinePosition::InPlace,
                LinePosition::Top => self.all.place_at(&self.terminal),
                at => at,
            };
            let bytes = self.all.held.borrow().get(&self.terminal).map(|held| held.lines.bytes(at, size));
            let Some(bytes) = bytes else { break };
            let count = device.write(&bytes).map_err(unusable)?;
            if let Some(rest) = bytes.get(count..).filter(|_| count > 0) {
                self.all.rest(&self.terminal);
                self.with_held(|held| {
                    let (lines, reports) = held.take(&self.all.outcomes);
                    held.partial = Some(Partial::new(rest, lines, reports));
                });
                self.write_rest().await?;
                refused = None;
                continue;
            }
            // Check again once there is room.
            device.room(*refused.get_or_insert_with(Instant::now)).await.map_err(unusable)?;
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
        // Those of questions that no longer matter.
        self.take().1.report(&Ok(()));
        Ok(())
    }

    /// Waits out [`BATCH_WINDOW`] since the last write. Lines that arrive meanwhile are written together.
    async fn until_rested(&self) {
        while let Some(until) = self.all.rests_until(&self.terminal) {
            tokio::select! {
                () = tokio::time::sleep_until(until) => {}
                // Also woken at shutdown, which ends the wait.
                () = self.again.notified() => {}
            }
        }
    }

    fn has_lines(&self) -> bool {
        self.all.held.borrow().get(&self.terminal).is_some_and(|held| held.lines.count() > 0)
    }

    /// Takes the held lines, and their reports for the outcome.
    fn take(&self) -> (Lines, PendingReports) {
        self.with_held(|held| held.take(&self.all.outcomes))
            .unwrap_or_else(|| (Lines::new(), self.all.no_reports()))
    }

    /// Calls a function with what is held for the terminal.
    fn with_held<T>(&self, then: impl FnOnce(&mut Held) -> T) -> Option<T> {
        self.all.held.borrow_mut().get_mut(&self.terminal).map(then)
    }

    /// Writes the rest of a partial write, if there is one, regardless of the terminal's current program: half a
    /// sequence would do more harm. If that fails, the lines are held again, as nobody has seen them whole.
    async fn write_rest(&self) -> Result<(), String> {
        let rest = self.with_held(|held| held.partial.as_ref().map(|partial| Rc::clone(&partial.rest)));
        let Some(rest) = rest.flatten() else { return Ok(()) };
        let note = |count| {
            self.with_held(|held| held.partial.iter_mut().for_each(|partial| partial.written += count));
        };
        let written = if rest.is_empty() {
            Ok(())
        } else {
            match device::look(&self.terminal) {
                Ok(device::TerminalCheck { device, .. }) => device.write_all(&rest, note).await,
                Err(why) => Err(io::Error::other(why)),
            }
        };
        let written = written.map_err(|error| unusable(&self.terminal.path, &error));
        self.with_held(|held| {
            let Some(partial) = held.partial.take() else { return };
            match &written {
                Ok(()) => partial.reports.report(&Ok(())),
                Err(_) => held.put_back(partial),
            }
        });
        written
    }

    fn give_up(&self, why: &str) {
        let (lines, reports) = self.take();
        let why = Undelivered(why.to_owned());
        if lines.count() > 0 && self.all.miss(&self.terminal, lines) {
            self.all.keep_missed(reports.miss(&why));
        } else {
            reports.report(&Err(why));
        }
    }

    /// Reports whether a line does no harm now.
    fn can_write(&self, front: &Front) -> bool {
        match front {
            Front::Prompt => true,
            // This `bgctl daemon stop` shows nothing and ends only after this daemon.
            Front::Bgctl(_) => self.all.is_last.get(),
            Front::Shell | Front::Nobody | Front::Program(_) => false,
        }
    }

    /// Waits until a shell has the terminal and edits a line, or merely has it if it never edits.
    ///
    /// `at` becomes [`LinePosition::Cursor`] once a program was seen there, as a new prompt follows it.
    async fn until_ready(&self, mut at: LinePosition) -> Result<Ready, String> {
        let mut looks = 0;
        loop {
            if !self.has_lines() {
                return Ok(Ready { at, never_edits: false });
            }
            if let Some(writes) = &self.writes {
                writes.arm(&self.terminal);
            }
            let device::TerminalCheck { front, .. } = device::look(&self.terminal)?;
            let looked_at = Instant::now();
            match front {
                Front::Bgctl(_) if self.can_write(&front) => {
                    return Ok(Ready { at: LinePosition::Cursor, never_edits: false });
                }
                Front::Prompt => {
                    if at == LinePosition::Cursor {
                        // The shell is about to show its prompt.
                        tokio::time::sleep(CHECK_INTERVAL).await;
                    }
                    return Ok(Ready { at, never_edits: false });
                }
                Front::Shell if looks == MAX_CHECKS => return Ok(Ready { at, never_edits: true }),
                Front::Nobody if looks == MAX_CHECKS => {
                    // The shell is stopped, or slow. It writes its prompt after it has taken the terminal back.
                    looks = 0;
                    self.until_change(None, looked_at).await?;
                }
                Front::Shell | Front::Nobody => {
                    looks += 1;
                    tokio::time::sleep(CHECK_INTERVAL).await;
                }
                Front::Bgctl(program) | Front::Program(program) => {
                    (looks, at) = (1, LinePosition::Cursor);
                    self.until_change(Some(program), looked_at).await?;
                }
            }
        }
    }

    /// Waits for an event that may give the terminal back to its shell. `program` has the terminal; if nobody has it, waits
    /// for [`CHECK_AGAIN`] at most.
    async fn until_change(&self, program: Option<PidFd>, looked_at: Instant) -> Result<(), String> {
        let path = &self.terminal.path;
        let leader =
            PidFd::open(self.terminal.leader).map_err(|_| format!("the terminal {path} is closed"))?;
        let written = async {
            match &self.writes {
                Some(writes) => writes.next().await,
                None => tokio::time::sleep(LOOK_EVERY).await,
            }
            tokio::time::sleep_until(looked_at + PAUSE).await;
        };
        let left = async {
            if let Some(program) = program {
                return ended(program).await;
            }
            tokio::time::sleep(CHECK_AGAIN).await;
            Ok(())
        };
        tokio::select! {
            ended = left => ended,
            ended = ended(leader) => ended,
            () = written => Ok(()),
            () = self.again.notified() => Ok(()),
        }
        .map_err(|error| format!("cannot wait for the terminal {path}: {error}"))
    }
}

/// Waits until a process ends.
async fn ended(process: PidFd) -> io::Result<()> {
    watch::process(process)?.readable().await.map(drop)
}
