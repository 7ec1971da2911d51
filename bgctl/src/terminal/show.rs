//! Shows a job of the daemon on the user's terminal, and gives it what is typed there, until it ends or is
//! left.

mod heard;

use std::io::{self, IsTerminal as _, Write as _};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use bgd_shared::client::{ClientError, PolledClient};
use bgd_shared::foreground::{Can, Foreground, HOLD_MS, Key, Press};
use bgd_shared::id::TaskId;
use bgd_shared::request::{
    AttachParams, BlockMode, BlockParams, DetachParams, DetachResult, Encoding, ResizeParams, SignalParams,
    TaskAttach, TaskBlock, TaskDetach, TaskResize, TaskSignal, TaskWrite, TerminalSize, WriteParams,
};
use bgd_shared::task::Task;
use nix::sys::signal::Signal;

use super::around::Around;
use super::input::{Does, Input};
use super::keyboard::{Keyboard, Mode};
use super::screen::Screen;
use super::signals::{Caught, Signals, stop_group};
use super::turn::{Ready, Wants};
use super::ways_out::WaysOut;
use crate::failure::Failure;
use crate::render::clean;

/// The signals that are dealt with here. The last two would stop bgctl where it touches the terminal just
/// when it is put into the background.
pub const SIGNALS: &[Signal] = &[
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGUSR1,
    Signal::SIGUSR2,
    Signal::SIGTSTP,
    Signal::SIGCONT,
    Signal::SIGWINCH,
    Signal::SIGTTIN,
    Signal::SIGTTOU,
];

/// The bytes that are read from the keyboard at once.
const TYPED_BYTES: usize = 4096;

/// How long a note stays over a full-screen program that nothing is typed to.
const NOTE_STAYS: Duration = Duration::from_secs(2);

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

/// How it ended.
#[derive(Debug)]
pub enum Left {
    /// The job has ended.
    Ended(Box<Task>),
    /// The job was moved to the background.
    Backgrounded(Box<DetachResult>),
    /// The attachment was left by the key.
    Detached,
    /// The job was stopped, and what is around it goes on without it. With what the terminal was restored by.
    Stopped(String),
    /// The terminal is gone.
    HungUp,
    /// A signal ended an attachment, and this is what a shell reports for it.
    Signalled(u8),
}

/// A job on the user's terminal.
pub struct Show<'a> {
    link: &'a mut PolledClient,
    around: &'a mut dyn Around,
    screen: Screen,
    keyboard: Option<Keyboard>,
    signals: Signals,
    input: Input,
    key: Key,
    task: TaskId,
    role: Role,
    calls: Calls,
    /// The size that the daemon knows.
    size: TerminalSize,
    /// This process is to be stopped, as the job was.
    stops: bool,
    /// The user was told which key does what.
    is_hinted: bool,
    /// When what is held of a key is given up.
    held_until: Option<Instant>,
    /// Finds out who wants to leave and does not know how.
    ways_out: WaysOut,
    /// When the job is drawn again, as a note is over it.
    noted_until: Option<Instant>,
    /// A hand-over is under way, and the terminal drops further presses by itself: the keyboard is not read.
    drops_presses: bool,
    left: Option<Result<Left, Failure>>,
}

/// The numbers of the calls whose answers are waited for.
struct Calls {
    block: u64,
    detach: Option<u64>,
    write: Option<u64>,
    resize: Option<u64>,
    /// That the job goes on. A key that stops it must not come before.
    go_on: Option<u64>,
}

impl<'a> Show<'a> {
    /// Shows a job that is the only one of this process.
    ///
    /// # Errors
    /// As for [`Self::begin`] and [`Self::run`].
    pub fn alone(
        mut link: PolledClient,
        task: TaskId,
        role: Role,
        key: Key,
        screen: Screen,
        size: TerminalSize,
    ) -> Result<Left, Failure> {
        let mut jobs = Foreground::new(key);
        jobs.started(task, Can::Yes);
        Show::begin(&mut link, &mut jobs, task, role, key, screen, size)?.run()
    }

    /// Takes signals and terminal. The task is among the jobs `around` it. `size` is what the daemon was told.
    ///
    /// # Errors
    /// The system refuses, or the connection is broken.
    pub fn begin(
        link: &'a mut PolledClient,
        around: &'a mut dyn Around,
        task: TaskId,
        role: Role,
        key: Key,
        screen: Screen,
        size: TerminalSize,
    ) -> Result<Self, Failure> {
        let block = BlockParams {
            ids: vec![task.into()],
            timeout_ms: None,
            mode: BlockMode::All,
            ..BlockParams::default()
        };
        let calls = Calls {
            block: link.call::<TaskBlock>(&block)?,
            detach: None,
            write: None,
            resize: None,
            go_on: None,
        };
        let signals = Signals::take(SIGNALS)?;
        // A keyboard that another job in the foreground reads is none for this one.
        let keyboard =
            Keyboard::open(Mode::Raw).and_then(|mut keyboard| (!keyboard.is_anothers()).then_some(keyboard));
        let key = if keyboard.is_some() { key } else { Key::NONE };
        let mut show = Self {
            link,
            around,
            screen,
            keyboard,
            signals,
            input: Input::new(key),
            key,
            task,
            role,
            calls,
            size,
            stops: false,
            is_hinted: false,
            held_until: None,
            ways_out: WaysOut::default(),
            noted_until: None,
            drops_presses: false,
            left: None,
        };
        if let Some(keyboard) = &mut show.keyboard {
            keyboard.take();
        }
        show.hint();
        show.tell_size();
        if role == Role::Attached {
            // It may have been stopped where it was shown before, and nobody else would let it go on.
            show.calls.go_on = show.send_signal("CONT", true);
        }
        Ok(show)
    }

    /// Tells which key does what (R60), as soon as it does: in the background of a shell no key comes here.
    fn hint(&mut self) {
        let is_taken = self.keyboard.as_ref().is_some_and(Keyboard::is_taken);
        if self.is_hinted || !is_taken {
            return;
        }
        self.is_hinted = true;
        let hint = match self.role {
            Role::Foreground => self.around.jobs().hint(),
            Role::Direct => None,
            Role::Attached => leave_hint(self.key),
        };
        if let Some(hint) = hint
            && io::stderr().is_terminal()
        {
            let _ = write!(io::stderr(), "{hint}\r\n");
        }
    }

    /// Shows the job until it ends or is left.
    ///
    /// # Errors
    /// The daemon is gone, or says what makes no sense.
    pub fn run(mut self) -> Result<Left, Failure> {
        // It may have come together with the answers before, so that the connection has nothing to wait for.
        self.hear();
        loop {
            if !self.screen.wants_write() {
                if let Some(left) = self.left.take() {
                    return left;
                }
                if self.stops {
                    self.stop();
                }
            }
            self.send_typed();
            match self.wants().wait() {
                Ok(ready) => self.turn(ready),
                Err(error) => self.leave(Err(Failure::io("can't wait", &error))),
            }
        }
    }

    /// What this turn waits for.
    fn wants(&self) -> Wants<'_> {
        let goes_on = self.left.is_none();
        let may_read = goes_on && !self.drops_presses && self.input.has_room();
        Wants {
            link: goes_on.then(|| self.link.as_fd()),
            reads_link: self.screen.has_room(),
            writes_link: self.link.wants_write(),
            link_until: self.link.until(),
            keyboard: self.keyboard.as_ref().map(AsFd::as_fd),
            reads_keyboard: may_read && self.keyboard.as_ref().is_some_and(Keyboard::is_taken),
            screen: self.screen.wants_write().then(|| self.screen.as_fd()),
            until: self.until(),
            ..Wants::new(self.signals.as_fd())
        }
    }

    /// When to look without having been told.
    fn until(&self) -> Option<Instant> {
        let look = self.keyboard.as_ref().filter(|_| self.left.is_none()).and_then(Keyboard::next_look);
        let noted = self.noted_until.filter(|_| self.left.is_none());
        self.held_until.into_iter().chain(noted).chain(look).min()
    }

    /// Whether there is a keyboard that is another job's at this moment.
    fn is_behind(&self) -> bool {
        self.keyboard.as_ref().is_some_and(|keyboard| !keyboard.is_taken())
    }

    fn turn(&mut self, ready: Ready) {
        while let Some(caught) = self.signals.next_caught() {
            self.signal(caught);
        }
        if ready.screen
            && let Err(error) = self.screen.write()
        {
            self.lose_terminal(&error);
        }
        if ready.hung_up {
            self.hang_up();
        } else if ready.keyboard {
            self.read_keyboard();
        }
        if self.is_behind() && self.left.is_none() {
            self.come_back();
        }
        if self.held_until.is_some_and(|until| until <= Instant::now()) {
            self.held_until = None;
            self.input.give_up(self.calls.detach.is_some());
        }
        if self.noted_until.is_some_and(|until| until <= Instant::now()) {
            self.end_note();
        }
        if let Err(error) = ready.tend(self.link) {
            self.lose_daemon(error);
        }
        if ready.reads_link {
            self.read_link();
        }
    }

    // The keyboard.

    fn read_keyboard(&mut self) {
        loop {
            let mut buffer = [0; TYPED_BYTES];
            let Some(keyboard) = &self.keyboard else { return };
            match keyboard.read(&mut buffer) {
                Ok(0) => return self.hang_up(),
                Ok(count) => self.typed(&buffer[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => return self.lose_terminal(&error),
            }
            // Presses that came before the terminal began to drop them.
            let reads_on = self.drops_presses || matches!(self.left, Some(Ok(Left::Detached)));
            if !reads_on || self.keyboard.as_ref().is_none_or(|keyboard| keyboard.waiting() == 0) {
                return;
            }
        }
    }

    fn typed(&mut self, bytes: &[u8]) {
        let is_leaving = self.calls.detach.is_some() || self.left.is_some();
        let wants_out = self.ways_out.typed(bytes);
        let (mut refusal, mut other) = (None, None);
        let begun = self.input.push(bytes, is_leaving, || match self.around.jobs().pressed() {
            Press::Take(job) if job == self.task => Does::Begin,
            Press::Take(job) => {
                other = Some(job);
                Does::Nothing
            }
            Press::Pass => Does::Pass,
            Press::Refuse(message) => {
                refusal = Some(message);
                Does::Nothing
            }
            Press::Nothing | Press::Ignore => Does::Nothing,
        });
        let hold = Duration::from_millis(HOLD_MS.into());
        self.held_until = self.input.is_holding().then(|| Instant::now() + hold);
        if let Some(message) = refusal {
            self.note(&message);
        }
        if let Some(job) = other
            && let Err(error) = self.around.hand_over(self.link, job)
        {
            return self.lose_daemon(error);
        }
        if let Some(length) = begun {
            self.pressed(length);
        } else if wants_out {
            self.tell_way_out();
        } else if !self.ways_out.is_in_row() {
            self.end_note();
        }
    }

    /// Tells somebody who wants to leave how to; the keys that were tried are the job's all the same.
    fn tell_way_out(&mut self) {
        if self.role != Role::Attached || self.key == Key::NONE || self.left.is_some() {
            return;
        }
        self.note(&way_out(self.key));
        self.noted_until = self.screen.is_changed().then(|| Instant::now() + NOTE_STAYS);
    }

    /// Draws the job again, if a note is over it.
    fn end_note(&mut self) {
        if self.noted_until.take().is_some() {
            self.draw_again();
        }
    }

    /// Draws a job again that draws the whole screen: it need not know that somebody else has drawn there.
    fn draw_again(&mut self) {
        if !self.screen.is_changed() || self.left.is_some() {
            return;
        }
        let TerminalSize { rows, cols } = self.size;
        let params = AttachParams { id: self.task.into(), rows: Some(rows), cols: Some(cols) };
        if let Err(error) = self.link.call::<TaskAttach>(&params) {
            self.lose_daemon(error);
        }
    }

    /// The key was pressed, for which the terminal sent so many bytes.
    fn pressed(&mut self, length: usize) {
        if self.role == Role::Attached {
            self.leave(Ok(Left::Detached));
        } else {
            let params = DetachParams { id: self.task.into(), background: true };
            match self.link.call::<TaskDetach>(&params) {
                Ok(call) => self.calls.detach = Some(call),
                Err(error) => return self.lose_daemon(error),
            }
        }
        // A terminal knows bytes only, not the longer forms of a key.
        let drops = |keyboard: &Keyboard| length == 1 && keyboard.drop_presses(self.key);
        self.drops_presses = self.keyboard.as_ref().is_some_and(drops);
    }

    fn send_typed(&mut self) {
        if self.left.is_some() || self.calls.write.is_some() || self.calls.go_on.is_some() {
            return;
        }
        let Some(bytes) = self.input.next_bytes() else { return };
        let (data, encoding) = Encoding::encode(bytes);
        let params = WriteParams { id: self.task.into(), data, encoding, eof: false };
        match self.link.call::<TaskWrite>(&params) {
            Ok(call) => self.calls.write = Some(call),
            Err(error) => self.lose_daemon(error),
        }
    }

    /// Tells the daemon the size of the terminal, if it has changed.
    fn tell_size(&mut self) {
        let size = self.screen.size();
        if size == self.size || self.calls.resize.is_some() || self.left.is_some() {
            return;
        }
        let params = ResizeParams { id: self.task.into(), rows: size.rows, cols: size.cols };
        match self.link.call::<TaskResize>(&params) {
            Ok(call) => {
                self.size = size;
                self.calls.resize = Some(call);
            }
            Err(error) => self.lose_daemon(error),
        }
    }

    // Signals.

    fn signal(&mut self, caught: Caught) {
        match (caught.signal, self.role) {
            (Signal::SIGWINCH, _) => self.tell_size(),
            (Signal::SIGCONT, _) => self.go_on(),
            (Signal::SIGTTIN | Signal::SIGTTOU, _) => {}
            (Signal::SIGHUP, _) => self.hang_up(),
            // Nobody waits any longer for a terminal that takes nothing.
            _ if self.left.is_some() => self.screen.forget(),
            (Signal::SIGTSTP, Role::Attached) => self.stopped(),
            (_, Role::Attached) => self.leave(Ok(Left::Signalled(caught.shell_code()))),
            // When the job has stopped, the daemon tells, and this process stops too.
            (Signal::SIGTSTP, _) => drop(self.send_signal("TSTP", true)),
            _ => drop(self.send_signal(caught.name(), caught.by_terminal)),
        }
    }

    /// Signals the job. Returns the call, whose answer comes when that is done.
    fn send_signal(&mut self, signal: &str, tree: bool) -> Option<u64> {
        let params = SignalParams { id: self.task.into(), signal: signal.to_owned(), tree };
        let call = self.link.call::<TaskSignal>(&params);
        call.map_err(|error| self.lose_daemon(error)).ok()
    }

    /// Stops this process with the job, until its shell lets it go on.
    fn stop(&mut self) {
        self.stops = false;
        // What was on the screen before is far up by then.
        self.is_hinted &= self.role != Role::Attached;
        if let Some(keyboard) = &mut self.keyboard {
            keyboard.give_back();
        }
        stop_group();
        while let Some(caught) = self.signals.next_caught() {
            if caught.signal != Signal::SIGCONT {
                self.signal(caught);
            }
        }
        self.go_on();
    }

    /// Lets the job go on, and takes the terminal again if this process is in its foreground.
    fn go_on(&mut self) {
        if self.left.is_some() {
            return;
        }
        self.calls.go_on = self.send_signal("CONT", true);
        self.come_back();
    }

    /// Takes the terminal again, if this process is in its foreground.
    fn come_back(&mut self) {
        let Some(keyboard) = &mut self.keyboard else { return self.tell_size() };
        let is_back = !keyboard.is_taken() && keyboard.take();
        self.hint();
        self.tell_size();
        if is_back {
            self.draw_again();
        }
    }

    // The end.

    fn leave(&mut self, left: Result<Left, Failure>) {
        if self.left.is_some() {
            return;
        }
        self.left = Some(left);
        if let Err(error) = self.screen.leave() {
            self.lose_terminal(&error);
        }
    }

    fn hang_up(&mut self) {
        self.left = Some(Ok(Left::HungUp));
        self.screen.forget();
    }

    /// The terminal takes nothing any more. Whatever the error, there is nobody to be told.
    fn lose_terminal(&mut self, _error: &io::Error) {
        self.hang_up();
    }

    fn lose_daemon(&mut self, error: ClientError) {
        let failure = match self.role {
            Role::Foreground | Role::Direct => {
                Failure::of_link(error, "the daemon is gone, and the job with it")
            }
            Role::Attached => error.into(),
        };
        self.leave(Err(failure));
    }

    /// Says something beside the job.
    fn note(&mut self, text: &str) {
        let text = &clean(text);
        if !io::stderr().is_terminal() {
            let _ = writeln!(io::stderr(), "bgctl: {text}");
        } else if let Err(error) = self.screen.show(format!("\r\nbgctl: {text}\r\n").as_bytes(), None) {
            self.lose_terminal(&error);
        }
    }
}

/// Tells at the beginning of an attachment how it is left; `None` for no key.
pub fn leave_hint(key: Key) -> Option<String> {
    (key != Key::NONE).then(|| format!("[{key}] Leave (the task goes on)"))
}

/// The same for somebody who has tried other keys.
pub fn way_out(key: Key) -> String {
    format!("{key} leaves; the task goes on")
}
