//! The common part of showing a job's terminal ([`super::show`]) and showing a job's text ([`super::talk`]): the
//! connection, the keyboard with the key that leaves, the signals, and the end. It does not decide what is shown or how
//! input is used.

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

/// Maximum number of bytes to read from the keyboard at once.
pub const TYPED_BYTES: usize = 4096;

/// How the shown job relates to this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The foreground job of this process: the key moves it to the background, and signals are forwarded to it.
    Foreground,
    /// Like `Foreground`, but started directly by the user: the key belongs to the job (R64).
    Direct,
    /// A background task: the key detaches from it.
    Attached,
}

/// The job to show, and the context.
pub struct Subject<'a> {
    /// The connection that owns the job.
    pub link: &'a mut PolledClient,
    /// The program that shows the job and owns it, possibly among others.
    pub host: &'a mut dyn Host,
    pub task: TaskId,
    pub role: Role,
    /// The key that leaves.
    pub key: Key,
}

/// How showing a job ended.
#[derive(Debug)]
pub enum AttachmentEnd {
    Ended(Box<Task>),
    /// The signal of a key typed here ended the job.
    Interrupted(Box<Task>, Signal),
    /// The job was cancelled because of a signal. Includes the exit code that a shell reports for that signal.
    Cancelled(Box<Task>, u8),
    /// The job was moved to the background.
    Backgrounded(Box<DetachResult>),
    /// The key detached from the task.
    Detached,
    /// The job was stopped, and its host continues without it. Includes the sequence that restored the terminal.
    Stopped(String),
    /// A signal ended it, or the terminal is gone. Includes the exit code that a shell reports for that.
    Signalled(u8),
}

impl AttachmentEnd {
    /// The terminal is gone.
    pub const HUNG_UP: Self = Self::Signalled(Code::HUNG_UP.0);
}

/// The output on which a job is shown.
pub trait Output: AsFd {
    /// Reports whether output is pending.
    fn wants_write(&self) -> bool;

    /// Reports whether this process may stop now. A terminal must have been left first; other output may be stuck, as
    /// its reader is stopped by the same key.
    fn may_rest(&self) -> bool {
        !self.wants_write()
    }

    /// Writes as much as is accepted without blocking.
    ///
    /// # Errors
    /// The reader is gone.
    fn write(&mut self) -> io::Result<()>;

    /// Leaves the output in a usable state, with the cursor at the start of a line.
    ///
    /// # Errors
    /// As for [`Self::write`].
    fn leave(&mut self) -> io::Result<()>;

    /// Drops pending output.
    fn forget(&mut self);

    /// Converts a write error into a failure. `None`: the terminal is gone, so the failure can't be reported.
    fn lost(&self, error: io::Error) -> Option<Failure>;
}

/// A job that has the user's terminal.
pub struct Attachment<'a, O> {
    /// The connection that owns the job.
    pub link: &'a mut PolledClient,
    /// The program that shows the job.
    pub host: &'a mut dyn Host,
    pub out: O,
    /// `None` if nothing can be typed.
    pub keyboard: Option<Keyboard>,
    /// The signals handled here.
    pub signals: Signals,
    /// The key that leaves; [`Key::NONE`] if nothing can be typed.
    pub key: Key,
    pub task: TaskId,
    pub role: Role,
    /// Whether this process is to stop, as its job did.
    pub stops: bool,
    /// Detects users who want to leave but don't know how.
    pub ways_out: WaysOut,
    /// When to give up waiting for the rest of a key sequence and pass on its beginning.
    pub held_until: Option<Instant>,
    /// Whether a hand-over is in flight and the terminal itself drops further presses, so that the keyboard is not
    /// read.
    pub drops_presses: bool,
    /// The message to show if the connection breaks; `None` for the plain error.
    pub gone: Option<&'static str>,
    /// Whether the user was shown the hint on the keys.
    pub is_hinted: bool,
    /// The call that waits for the job's end, until it is answered.
    block: Option<u64>,
    detach: Option<u64>,
    left: Option<Result<AttachmentEnd, Failure>>,
}

impl<'a, O: Output> Attachment<'a, O> {
    /// Waits for the job's end and takes over the signals, then opens the keyboard.
    ///
    /// # Errors
    /// A system call fails, or the connection is broken.
    pub fn begin(
        subject: Subject<'a>,
        out: O,
        signals: &[Signal],
        keyboard: impl FnOnce(&O) -> Option<Keyboard>,
    ) -> Result<Self, Failure> {
        let Subject { link, host, task, role, key } = subject;
        let block = match host.take_end_call(task) {
            Some(call) => call,
            None => link.call::<TaskBlock>(&BlockParams::until_ended(task))?,
        };
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
            block: Some(block),
            detach: None,
            left: None,
        })
    }

    /// Makes a call whose answer arrives later.
    ///
    /// # Errors
    /// The connection is broken.
    pub fn call<M: Method>(&mut self, params: &M::Params) -> Result<u64, Failure> {
        self.link.call::<M>(params).map_err(|error| self.lost(error))
    }

    /// Converts the error of a broken connection into a failure for the user.
    pub fn lost(&self, error: ClientError) -> Failure {
        match self.gone {
            Some(message) => Failure::of_link(error, message),
            None => error.into(),
        }
    }

    // The events that a turn waits for, and those that have happened.

    /// Returns the events that every turn waits for.
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

    /// Returns when to wake up without an event.
    fn until(&self) -> Option<Instant> {
        let look = self.keyboard.as_ref().filter(|_| !self.is_over()).and_then(Keyboard::next_look);
        self.held_until.into_iter().chain(look).min()
    }

    /// Writes pending output, and handles the loss of the terminal.
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

    /// Reads at most [`TYPED_BYTES`] of typed input; `None` if there is none.
    pub fn read_keyboard(&mut self, buffer: &mut [u8; TYPED_BYTES]) -> Option<usize> {
        match self.keyboard.as_ref()?.read(buffer) {
            Ok(count @ 1..) => return Some(count),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            // On any other error, the terminal is gone.
            Ok(0) | Err(_) => self.hang_up(),
        }
        None
    }

    /// Reports whether typed input remains to be read.
    pub fn has_typed(&self) -> bool {
        self.keyboard.as_ref().is_some_and(|keyboard| keyboard.waiting() > 0)
    }

    // The terminal.

    /// Reports whether this process currently receives typed input.
    pub fn is_taken(&self) -> bool {
        self.keyboard.as_ref().is_some_and(Keyboard::is_taken)
    }

    /// Reports whether there is a keyboard, but another job has it at the moment.
    pub fn is_behind(&self) -> bool {
        self.keyboard.as_ref().is_some_and(|keyboard| !keyboard.is_taken())
    }

    /// Returns the hint on the keys (R60), once, as soon as this process has the keyboard: in the background of a shell
    /// it receives no keys.
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

    /// Restores the terminal while this process is stopped.
    pub fn give_back(&mut self) {
        // By the time the process continues, an earlier hint has scrolled away.
        self.is_hinted &= self.role != Role::Attached;
        if let Some(keyboard) = &mut self.keyboard {
            keyboard.give_back();
        }
    }

    /// Sets the terminal's mode again after this process was continued. Returns whether this process has the terminal.
    pub fn retake(&mut self) -> bool {
        let Some(keyboard) = &mut self.keyboard else { return false };
        let is_taken = keyboard.retake();
        self.drops_presses = self.drops_presses && keyboard.drop_presses(self.key);
        is_taken
    }

    /// Starts or clears the delay during which a possible key sequence is held back.
    pub fn hold(&mut self, is_holding: bool) {
        let hold = Duration::from_millis(HOLD_MS.into());
        self.held_until = is_holding.then(|| Instant::now() + hold);
    }

    /// Returns whether the delay has expired, and if so, clears it.
    pub fn is_hold_over(&mut self) -> bool {
        self.held_until.take_if(|until| *until <= Instant::now()).is_some()
    }

    /// Reports whether a user who tries other keys should be shown how to leave.
    pub fn explains_leaving(&self) -> bool {
        self.role == Role::Attached && self.key != Key::NONE && !self.is_over()
    }

    // The hand-over.

    /// Reports whether a hand-over is in flight.
    pub fn is_handing_over(&self) -> bool {
        self.detach.is_some()
    }

    /// Handles a press of the key, for which the terminal sent `length` bytes.
    ///
    /// # Errors
    /// The connection is broken.
    pub fn pressed(&mut self, length: usize) -> Result<(), Failure> {
        if self.role == Role::Attached {
            self.leave(Ok(AttachmentEnd::Detached));
        } else {
            let params = DetachParams { id: self.task.into(), background: true };
            self.detach = Some(self.call::<TaskDetach>(&params)?);
        }
        // The terminal can only drop single bytes, not longer key sequences.
        let drops = |keyboard: &Keyboard| length == 1 && keyboard.drop_presses(self.key);
        self.drops_presses = self.keyboard.as_ref().is_some_and(drops);
        Ok(())
    }

    /// Hands over another job of the host.
    ///
    /// # Errors
    /// The connection is broken.
    pub fn hand_over_other(&mut self, job: TaskId) -> Result<(), Failure> {
        self.host.hand_over(self.link, job).map_err(|error| self.lost(error))
    }

    /// Undoes what has come of calls that the user gave up before this job began, such as a command that would run
    /// beside it unseen.
    ///
    /// # Errors
    /// The connection is broken.
    pub fn undo(&mut self) -> Result<(), Failure> {
        self.host.undo(self.link).map_err(|error| self.lost(error))
    }

    /// Reports whether this is the answer to the hand-over.
    pub fn is_hand_over(&self, call: u64) -> bool {
        self.detach == Some(call)
    }

    /// Handles the answer to the hand-over. Returns a message for the user if the job stays.
    pub fn detached(&mut self, outcome: Result<DetachResult, ClientError>) -> Option<String> {
        self.detach = None;
        let answer = answers::of_press(&outcome);
        let stays = match (self.host.jobs().answered(&self.task, answer), outcome) {
            (Some(Outcome::Backgrounded(..)), Ok(result)) => {
                self.leave(Ok(AttachmentEnd::Backgrounded(Box::new(result))));
                return None;
            }
            (Some(Outcome::Stays(_, message)), _) => Some(message),
            // The job ended first; its outcome arrives with the answer to the other call (R66).
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

    /// Reports whether this is the answer with the job's outcome. It arrives only once.
    pub fn takes_end(&mut self, call: u64) -> bool {
        self.block.take_if(|block| *block == call).is_some()
    }

    /// Reports whether showing the job is over, except for pending output.
    pub fn is_over(&self) -> bool {
        self.left.is_some()
    }

    /// Reports whether the key detached from the task.
    pub fn is_detached(&self) -> bool {
        matches!(self.left, Some(Ok(AttachmentEnd::Detached)))
    }

    /// Returns how showing the job ended, once all output is written.
    pub fn end(&mut self) -> Option<Result<AttachmentEnd, Failure>> {
        if self.out.wants_write() {
            return None;
        }
        let left = self.left.take()?;
        if let Some(call) = self.block.take() {
            self.host.keep_end_call(self.task, call);
        }
        Some(left)
    }

    /// Returns whether this process is to stop now, and clears the request.
    pub fn takes_stop(&mut self) -> bool {
        // This includes the case that the end came together with the key, and there is text left to write.
        let goes_on = !self.is_over() || self.out.wants_write();
        let may_stop = self.out.may_rest() && !self.is_handing_over() && goes_on;
        may_stop && std::mem::take(&mut self.stops)
    }

    /// Ends showing the job; the first call wins.
    pub fn leave(&mut self, left: Result<AttachmentEnd, Failure>) {
        if self.is_over() {
            return;
        }
        self.left = Some(left);
        self.leave_screen();
    }

    /// Leaves the screen in a usable state.
    pub fn leave_screen(&mut self) {
        if let Err(error) = self.out.leave() {
            self.lose_output(error);
        }
    }

    /// Handles the loss of the terminal.
    pub fn hang_up(&mut self) {
        self.left = Some(Ok(AttachmentEnd::HUNG_UP));
        self.out.forget();
    }

    /// Handles a write error.
    pub fn lose_output(&mut self, error: io::Error) {
        self.left = Some(self.out.lost(error).map_or(Ok(AttachmentEnd::HUNG_UP), Err));
        self.out.forget();
    }
}

/// Returns the hint shown when attaching; `None` without a key.
fn leave_hint(key: Key) -> Option<String> {
    (key != Key::NONE).then(|| format!("[{key}] Detach (the task keeps running)"))
}

/// Returns the hint for a user who tries other keys.
pub fn way_out(key: Key) -> String {
    format!("{key} detaches; the task keeps running")
}
