//! A job that has the user's terminal: what showing its terminal ([`super::show`]) and showing its text
//! ([`super::talk`]) have in common. That is the connection, the keyboard with the key that leaves, the signals, and
//! the end. It decides nothing about what is shown or typed.

use std::io::{self, IsTerminal as _};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use bgd_shared::client::{ClientError, PolledClient};
use bgd_shared::foreground::{HOLD_MS, Key, Outcome};
use bgd_shared::id::TaskId;
use bgd_shared::request::{BlockParams, DetachParams, DetachResult, Method, TaskBlock, TaskDetach};
use bgd_shared::task::Task;
use nix::sys::signal::Signal;

use super::answers;
use super::host::Host;
use super::keyboard::Keyboard;
use super::signals::Signals;
use super::turn::{Ready, Wants};
use super::ways_out::WaysOut;
use crate::exit::Code;
use crate::failure::Failure;

/// The most bytes that are read from the keyboard at once.
pub const TYPED_BYTES: usize = 4096;

/// Whose job it is that is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The foreground job of this process: the key moves it to the background, signals go to it.
    Foreground,
    /// The same, but the user started it directly: the key is its own (R64).
    Direct,
    /// A task of the background: the key leaves it alone again.
    Attached,
}

/// What is shown, and for whom.
pub struct Subject<'a> {
    /// The connection that the job is of.
    pub link: &'a mut PolledClient,
    /// The program that shows it; the job is one of its.
    pub host: &'a mut dyn Host,
    /// The job.
    pub task: TaskId,
    /// Whose it is.
    pub role: Role,
    /// The key that leaves.
    pub key: Key,
}

/// How it ended.
#[derive(Debug)]
pub enum Left {
    /// The job has ended.
    Ended(Box<Task>),
    /// The job was cancelled because of a signal, and this is what a shell reports for that.
    Cancelled(Box<Task>, u8),
    /// The job was moved to the background.
    Backgrounded(Box<DetachResult>),
    /// The attachment was left by the key.
    Detached,
    /// The job was stopped, and its host goes on without it. With what the terminal was restored by.
    Stopped(String),
    /// A signal ended it, or the terminal is gone; with what a shell reports for that.
    Signalled(u8),
}

impl Left {
    /// The terminal is gone.
    pub const HUNG_UP: Self = Self::Signalled(Code::HUNG_UP.0);
}

/// Where a job is shown.
pub trait Output: AsFd {
    /// Whether something waits to be written.
    fn wants_write(&self) -> bool;

    /// Writes what is taken now.
    ///
    /// # Errors
    /// Nobody takes it any more.
    fn write(&mut self) -> io::Result<()>;

    /// Leaves it usable, with the cursor at the beginning of a line.
    ///
    /// # Errors
    /// As for [`Self::write`].
    fn leave(&mut self) -> io::Result<()>;

    /// Drops what waits to be written.
    fn forget(&mut self);

    /// What it means that nothing is taken any more. `None`: the terminal is gone, so that there is nobody to be
    /// told.
    fn lost(&self, error: io::Error) -> Option<Failure>;
}

/// A job that has the user's terminal.
pub struct Attachment<'a, O> {
    /// The connection that the job is of.
    pub link: &'a mut PolledClient,
    /// The program that shows it.
    pub host: &'a mut dyn Host,
    /// Where it is shown.
    pub out: O,
    /// `None`: nothing can be typed.
    pub keyboard: Option<Keyboard>,
    /// The signals that are taken.
    pub signals: Signals,
    /// The key that leaves, or none where nothing can be typed.
    pub key: Key,
    /// The job.
    pub task: TaskId,
    /// Whose it is.
    pub role: Role,
    /// This process is to be stopped, as the job was.
    pub stops: bool,
    /// Finds out who wants to leave and does not know how.
    pub ways_out: WaysOut,
    /// When what is held back of a key is given up.
    pub held_until: Option<Instant>,
    /// A hand-over is under way, and the terminal drops further presses by itself: the keyboard is not read.
    pub drops_presses: bool,
    /// What the user reads if the connection breaks; the plain error if it is `None`.
    pub gone: Option<&'static str>,
    /// The user was told which key does what.
    pub is_hinted: bool,
    block: u64,
    detach: Option<u64>,
    left: Option<Result<Left, Failure>>,
}

impl<'a, O: Output> Attachment<'a, O> {
    /// Asks for the job's end, and takes the signals, before the keyboard is opened.
    ///
    /// # Errors
    /// The system refuses, or the connection is broken.
    pub fn begin(
        subject: Subject<'a>,
        out: O,
        signals: &[Signal],
        keyboard: impl FnOnce(&O) -> Option<Keyboard>,
    ) -> Result<Self, Failure> {
        let Subject { link, host, task, role, key } = subject;
        let block = link.call::<TaskBlock>(&BlockParams::until_ended(task))?;
        let signals = Signals::take(signals)?;
        let keyboard = keyboard(&out);
        let key = if keyboard.is_some() { key } else { Key::NONE };
        Ok(Self {
            link,
            host,
            out,
            keyboard,
            signals,
            key,
            task,
            role,
            stops: false,
            ways_out: WaysOut::default(),
            held_until: None,
            drops_presses: false,
            gone: None,
            is_hinted: false,
            block,
            detach: None,
            left: None,
        })
    }

    /// Makes a call; its answer is heard later.
    ///
    /// # Errors
    /// The connection is broken.
    pub fn call<M: Method>(&mut self, params: &M::Params) -> Result<u64, Failure> {
        self.link.call::<M>(params).map_err(|error| self.lost(error))
    }

    /// What a broken connection means to the user.
    pub fn lost(&self, error: ClientError) -> Failure {
        match self.gone {
            Some(message) => Failure::of_link(error, message),
            None => error.into(),
        }
    }

    // What a turn waits for, and what has come.

    /// What every turn waits for.
    pub fn wants(&self) -> Wants<'_> {
        let goes_on = !self.is_over();
        Wants {
            link: goes_on.then(|| self.link.as_fd()),
            reads_link: true,
            writes_link: self.link.wants_write(),
            link_until: self.link.until(),
            keyboard: self.keyboard.as_ref().map(AsFd::as_fd),
            reads_keyboard: goes_on && !self.drops_presses && self.is_taken(),
            screen: self.out.wants_write().then(|| self.out.as_fd()),
            until: self.until(),
            ..Wants::new(self.signals.as_fd())
        }
    }

    /// When to look without having been told.
    fn until(&self) -> Option<Instant> {
        let look = self.keyboard.as_ref().filter(|_| !self.is_over()).and_then(Keyboard::next_look);
        self.held_until.into_iter().chain(look).min()
    }

    /// Writes what the screen takes, and notices that the terminal is gone.
    pub fn ready(&mut self, ready: Ready) {
        if ready.screen
            && let Err(error) = self.out.write()
        {
            self.lose_output(error);
        }
        if ready.hung_up {
            self.hang_up();
        }
    }

    /// Reads what was typed, at most [`TYPED_BYTES`]; `None` if that is nothing.
    pub fn read_keyboard(&mut self, buffer: &mut [u8; TYPED_BYTES]) -> Option<usize> {
        match self.keyboard.as_ref()?.read(buffer) {
            Ok(count @ 1..) => return Some(count),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            // Whatever the error, there is nobody to be told.
            Ok(0) | Err(_) => self.hang_up(),
        }
        None
    }

    /// Whether more was typed than was read.
    pub fn has_typed(&self) -> bool {
        self.keyboard.as_ref().is_some_and(|keyboard| keyboard.waiting() > 0)
    }

    // The terminal.

    /// Whether what is typed comes here.
    pub fn is_taken(&self) -> bool {
        self.keyboard.as_ref().is_some_and(Keyboard::is_taken)
    }

    /// Whether there is a keyboard that is another job's at this moment.
    pub fn is_behind(&self) -> bool {
        self.keyboard.as_ref().is_some_and(|keyboard| !keyboard.is_taken())
    }

    /// Which key does what (R60), once, as soon as it does: in the background of a shell no key comes here.
    pub fn next_hint(&mut self) -> Option<String> {
        if self.is_hinted || !self.is_taken() {
            return None;
        }
        self.is_hinted = true;
        let hint = match self.role {
            Role::Foreground => self.host.jobs().hint(),
            Role::Direct => None,
            Role::Attached => leave_hint(self.key),
        };
        hint.filter(|_| io::stderr().is_terminal())
    }

    /// Puts the terminal back while this process is stopped.
    pub fn give_back(&mut self) {
        // What was on the screen before is far up when it goes on.
        self.is_hinted &= self.role != Role::Attached;
        if let Some(keyboard) = &mut self.keyboard {
            keyboard.give_back();
        }
    }

    /// What was typed may be the beginning of a key: it is held back for a moment.
    pub fn hold(&mut self, is_holding: bool) {
        let hold = Duration::from_millis(HOLD_MS.into());
        self.held_until = is_holding.then(|| Instant::now() + hold);
    }

    /// Whether what is held back of a key is to be given up now.
    pub fn is_hold_over(&mut self) -> bool {
        self.held_until.take_if(|until| *until <= Instant::now()).is_some()
    }

    /// Whether somebody who has tried other keys is to be told how to leave.
    pub fn explains_leaving(&self) -> bool {
        self.role == Role::Attached && self.key != Key::NONE && !self.is_over()
    }

    // The hand-over.

    /// Whether one is under way.
    pub fn is_handing_over(&self) -> bool {
        self.detach.is_some()
    }

    /// The key was pressed, for which the terminal sent so many bytes.
    ///
    /// # Errors
    /// The connection is broken.
    pub fn pressed(&mut self, length: usize) -> Result<(), Failure> {
        if self.role == Role::Attached {
            self.leave(Ok(Left::Detached));
        } else {
            let params = DetachParams { id: self.task.into(), background: true };
            self.detach = Some(self.call::<TaskDetach>(&params)?);
        }
        // A terminal knows bytes only, not the longer forms of a key.
        let drops = |keyboard: &Keyboard| length == 1 && keyboard.drop_presses(self.key);
        self.drops_presses = self.keyboard.as_ref().is_some_and(drops);
        Ok(())
    }

    /// The key takes another job of the host.
    ///
    /// # Errors
    /// The connection is broken.
    pub fn hand_over_other(&mut self, job: TaskId) -> Result<(), Failure> {
        self.host.hand_over(self.link, job).map_err(|error| self.lost(error))
    }

    /// Whether this is the answer to the hand-over.
    pub fn is_hand_over(&self, call: u64) -> bool {
        self.detach == Some(call)
    }

    /// Takes that answer. If the job stays there may be a sentence about it.
    pub fn detached(&mut self, outcome: Result<DetachResult, ClientError>) -> Option<String> {
        self.detach = None;
        let answer = answers::of_press(&outcome);
        let stays = match (self.host.jobs().answered(&self.task, answer), outcome) {
            (Some(Outcome::Backgrounded(..)), Ok(result)) => {
                self.leave(Ok(Left::Backgrounded(Box::new(result))));
                return None;
            }
            (Some(Outcome::Stays(_, message)), _) => Some(message),
            // It finished first, and its real end comes by the other call (R66).
            _ => None,
        };
        if std::mem::take(&mut self.drops_presses)
            && let Some(keyboard) = &self.keyboard
        {
            keyboard.take_presses();
        }
        stays
    }

    // The end.

    /// Whether this is the answer that tells how the job ended.
    pub fn is_end(&self, call: u64) -> bool {
        self.block == call
    }

    /// Whether it has ended, but for what is still to be written.
    pub fn is_over(&self) -> bool {
        self.left.is_some()
    }

    /// Whether it was left by the key.
    pub fn is_detached(&self) -> bool {
        matches!(self.left, Some(Ok(Left::Detached)))
    }

    /// How it ended, once all is written.
    pub fn end(&mut self) -> Option<Result<Left, Failure>> {
        if self.out.wants_write() { None } else { self.left.take() }
    }

    /// Whether this process is to be stopped now.
    pub fn takes_stop(&mut self) -> bool {
        !self.out.wants_write() && !self.is_over() && std::mem::take(&mut self.stops)
    }

    /// Ends it; what came first counts.
    pub fn leave(&mut self, left: Result<Left, Failure>) {
        if self.is_over() {
            return;
        }
        self.left = Some(left);
        self.leave_screen();
    }

    /// Leaves the screen usable.
    pub fn leave_screen(&mut self) {
        if let Err(error) = self.out.leave() {
            self.lose_output(error);
        }
    }

    /// The terminal is gone.
    pub fn hang_up(&mut self) {
        self.left = Some(Ok(Left::HUNG_UP));
        self.out.forget();
    }

    /// The output takes nothing any more.
    pub fn lose_output(&mut self, error: io::Error) {
        self.left = Some(self.out.lost(error).map_or(Ok(Left::HUNG_UP), Err));
        self.out.forget();
    }
}

/// Tells at the beginning of an attachment how it is left; `None` for no key.
fn leave_hint(key: Key) -> Option<String> {
    (key != Key::NONE).then(|| format!("[{key}] Detach (the task keeps running)"))
}

/// The same for somebody who has tried other keys.
pub fn way_out(key: Key) -> String {
    format!("{key} detaches; the task keeps running")
}
