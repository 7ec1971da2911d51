//! A task without a terminal that is shown, such as an agent's in the foreground: its text goes to standard
//! output as it comes, until the task ends or is left.
//!
//! It has no terminal. So what is typed is for nobody, but for the key; and Ctrl-C is a signal as
//! ever, which cancels the task, unless it was only attached to.

mod heard;

use std::io::{self, IsTerminal as _, Write as _};
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use bgd_shared::client::{Client, ClientError, PolledClient};
use bgd_shared::foreground::{Can, Foreground, HOLD_MS, Key, KeyScanner, Piece, Press};
use bgd_shared::id::TaskId;
use bgd_shared::request::{
    BlockMode, BlockParams, CancelParams, DetachParams, DetachResult, EventsSubscribe, SubscribeParams,
    TaskBlock, TaskCancel, TaskDetach,
};
use bgd_shared::task::Task;
use nix::sys::signal::Signal;

use super::around::Around;
use super::keyboard::{Keyboard, Mode};
use super::show::{Role, leave_hint, way_out};
use super::signals::{Caught, Signals, stop_here};
use super::sink::Sink;
use super::turn::{Ready, Wants};
use super::ways_out::WaysOut;
use crate::exit::Code;
use crate::failure::Failure;
use crate::render::clean_lines;

/// The signals that are dealt with here.
pub const SIGNALS: &[Signal] = &[
    Signal::SIGHUP,
    Signal::SIGINT,
    Signal::SIGQUIT,
    Signal::SIGTERM,
    Signal::SIGTSTP,
    Signal::SIGCONT,
    Signal::SIGTTIN,
    Signal::SIGTTOU,
];

/// The bytes that are read from the keyboard at once.
const TYPED_BYTES: usize = 4096;

/// How it ended.
#[derive(Debug)]
pub enum Over {
    /// The task has ended.
    Ended(Box<Task>),
    /// It was cancelled because of a signal, and this is what a shell reports for that.
    Cancelled(Box<Task>, u8),
    /// The task was moved to the background.
    Backgrounded(Box<DetachResult>),
    /// The attachment was left by the key.
    Detached,
    /// The terminal is gone, or a second signal came; with what a shell reports for it.
    Signalled(u8),
}

/// A task without a terminal that is shown.
#[allow(clippy::struct_excessive_bools, reason = "each is known from another event")]
pub struct Talk<'a> {
    link: &'a mut PolledClient,
    around: &'a mut dyn Around,
    /// A connection that tells when there is more of the text. It ends with this, as no subscription does
    /// on its own.
    news: PolledClient,
    out: Sink,
    keyboard: Option<Keyboard>,
    signals: Signals,
    scanner: KeyScanner,
    key: Key,
    task: TaskId,
    role: Role,
    calls: Calls,
    /// Where the text goes on that was not asked for yet.
    next: u64,
    /// There may be more of it.
    has_more: bool,
    /// The task as it ended; the rest of its text may be still to come.
    ended: Option<Box<Task>>,
    /// The number of the last question that was shown.
    asked: Option<u64>,
    /// The signal that cancelled the task, as a shell reports it.
    cancelled: Option<u8>,
    /// This process is to be stopped.
    stops: bool,
    /// The user was told which key does what.
    is_hinted: bool,
    /// Finds out who wants to leave and does not know how.
    ways_out: WaysOut,
    /// When what is held of a key is given up.
    held_until: Option<Instant>,
    /// A hand-over is under way, and the terminal drops further presses by itself: the keyboard is not read.
    drops_presses: bool,
    over: Option<Result<Over, Failure>>,
}

/// The numbers of the calls whose answers are waited for.
struct Calls {
    block: u64,
    detach: Option<u64>,
    output: Option<u64>,
    /// Whether that was asked when the task had ended.
    is_last: bool,
}

impl<'a> Talk<'a> {
    /// Shows a task that is the only one of this process.
    ///
    /// # Errors
    /// As for [`Self::begin`] and [`Self::run`].
    pub fn alone(
        mut link: PolledClient,
        news: Client,
        task: TaskId,
        role: Role,
        key: Key,
    ) -> Result<Over, Failure> {
        let (key, can) = if role == Role::Direct { (Key::NONE, Can::Direct) } else { (key, Can::Yes) };
        let mut jobs = Foreground::new(key);
        jobs.started(task, can);
        Talk::begin(&mut link, &mut jobs, news, task, role, key)?.run()
    }

    /// Takes signals and keyboard. The task is among the jobs `around` it; `news` is a connection of its own.
    ///
    /// # Errors
    /// The system refuses, or a connection is broken.
    pub fn begin(
        link: &'a mut PolledClient,
        around: &'a mut dyn Around,
        news: Client,
        task: TaskId,
        role: Role,
        key: Key,
    ) -> Result<Self, Failure> {
        let out = Sink::open()?;
        let mut news = PolledClient::from(news);
        news.call::<EventsSubscribe>(&subscription(task))?;
        let block = BlockParams {
            ids: vec![task.into()],
            timeout_ms: None,
            mode: BlockMode::All,
            ..BlockParams::default()
        };
        let block = link.call::<TaskBlock>(&block)?;
        let signals = Signals::take(SIGNALS)?;
        // Without a key to look for, all that is typed is for whoever reads next.
        let has_key = out.is_screen() && key != Key::NONE;
        let keyboard = if has_key { Keyboard::open(Mode::Keys) } else { None };
        let key = if keyboard.is_some() { key } else { Key::NONE };
        let mut shown = Self {
            link,
            around,
            news,
            out,
            keyboard,
            signals,
            scanner: KeyScanner::new(key),
            key,
            task,
            role,
            calls: Calls { block, detach: None, output: None, is_last: false },
            next: 0,
            // The answer to the subscription says so.
            has_more: false,
            ended: None,
            asked: None,
            cancelled: None,
            stops: false,
            is_hinted: false,
            ways_out: WaysOut::default(),
            held_until: None,
            drops_presses: false,
            over: None,
        };
        shown.come_back();
        Ok(shown)
    }

    /// Tells which key does what (R60), as soon as it does.
    fn hint(&mut self) {
        let is_taken = self.keyboard.as_ref().is_some_and(Keyboard::is_taken);
        if self.is_hinted || !is_taken {
            return;
        }
        self.is_hinted = true;
        let hint = match self.role {
            Role::Foreground | Role::Direct => self.around.jobs().hint(),
            Role::Attached => leave_hint(self.key),
        };
        if let Some(hint) = hint
            && io::stderr().is_terminal()
        {
            self.note(&format!("{hint}\n"));
        }
    }

    /// Shows the text until the task ends or is left.
    ///
    /// # Errors
    /// The daemon is gone, or says what makes no sense; or nobody reads standard output any more.
    pub fn run(mut self) -> Result<Over, Failure> {
        // It may have come together with the answers before.
        self.hear();
        loop {
            if !self.out.wants_write() {
                if let Some(over) = self.over.take() {
                    return over;
                }
                if std::mem::take(&mut self.stops) {
                    self.stop();
                }
            }
            self.ask();
            match self.wants().wait() {
                Ok(ready) => self.turn(ready),
                Err(error) => self.leave(Err(Failure::io("can't wait", &error))),
            }
        }
    }

    /// What this turn waits for.
    fn wants(&self) -> Wants<'_> {
        let goes_on = self.over.is_none();
        let may_read = goes_on && !self.drops_presses;
        Wants {
            link: goes_on.then(|| self.link.as_fd()),
            reads_link: true,
            writes_link: self.link.wants_write(),
            link_until: self.link.until(),
            news: goes_on.then(|| self.news.as_fd()),
            keyboard: self.keyboard.as_ref().map(|keyboard| keyboard.as_fd()),
            reads_keyboard: may_read && self.keyboard.as_ref().is_some_and(Keyboard::is_taken),
            screen: self.out.wants_write().then(|| self.out.as_fd()),
            until: self.until(),
            ..Wants::new(self.signals.as_fd())
        }
    }

    /// When to look without having been told.
    fn until(&self) -> Option<Instant> {
        let look = self.keyboard.as_ref().filter(|_| self.over.is_none()).and_then(Keyboard::next_look);
        self.held_until.into_iter().chain(look).min()
    }

    fn turn(&mut self, ready: Ready) {
        while let Some(caught) = self.signals.next_caught() {
            self.signal(caught);
        }
        if ready.screen
            && let Err(error) = self.out.write()
        {
            self.lose_reader(error);
        }
        if ready.hung_up {
            self.hang_up();
        } else if ready.keyboard {
            self.read_keyboard();
        }
        if self.keyboard.as_ref().is_some_and(|keyboard| !keyboard.is_taken()) {
            self.come_back();
        }
        if self.held_until.is_some_and(|until| until <= Instant::now()) {
            self.held_until = None;
            self.scanner.flush();
        }
        if let Err(error) = ready.tend(self.link) {
            self.lose_daemon(error);
        }
        if ready.news
            && let Err(error) = self.read_news()
        {
            self.lose_daemon(error);
        }
        if ready.reads_link {
            let read = self.link.read();
            // What it said before it went comes first.
            self.hear();
            if let Err(error) = read {
                self.lose_daemon(error);
            }
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
                Err(_) => return self.hang_up(),
            }
            // Presses that came before the terminal began to drop them.
            if !self.drops_presses || self.keyboard.as_ref().is_none_or(|keyboard| keyboard.waiting() == 0) {
                return;
            }
        }
    }

    fn typed(&mut self, mut bytes: &[u8]) {
        let wants_out = self.ways_out.typed(bytes);
        while let Some(piece) = self.scanner.scan(&mut bytes) {
            let Piece::Pressed(sent) = piece else { continue };
            let length = sent.len();
            let outcome = match self.around.jobs().pressed() {
                Press::Take(job) if job == self.task => self.hand_over(length),
                Press::Take(job) => self.around.hand_over(self.link, job),
                Press::Refuse(message) => {
                    self.note(&format!("bgctl: {message}\n"));
                    Ok(())
                }
                Press::Nothing | Press::Ignore | Press::Pass => Ok(()),
            };
            if let Err(error) = outcome {
                return self.lose_daemon(error);
            }
        }
        if wants_out && self.role == Role::Attached && self.over.is_none() {
            self.note(&format!("bgctl: {}\n", way_out(self.key)));
        }
        let hold = Duration::from_millis(HOLD_MS.into());
        self.held_until = self.scanner.is_holding().then(|| Instant::now() + hold);
    }

    /// The key was pressed, for which the terminal sent so many bytes.
    fn hand_over(&mut self, length: usize) -> Result<(), ClientError> {
        if self.role == Role::Attached {
            self.leave(Ok(Over::Detached));
        } else {
            let params = DetachParams { id: self.task.into(), background: true };
            self.calls.detach = Some(self.link.call::<TaskDetach>(&params)?);
        }
        // A terminal knows bytes only, not the longer forms of a key.
        let drops = |keyboard: &Keyboard| length == 1 && keyboard.drop_presses(self.key);
        self.drops_presses = self.keyboard.as_ref().is_some_and(drops);
        Ok(())
    }

    // Signals.

    fn signal(&mut self, caught: Caught) {
        match caught.signal {
            Signal::SIGHUP => self.hang_up(),
            Signal::SIGCONT => self.come_back(),
            Signal::SIGTTIN | Signal::SIGTTOU => {}
            // Nobody waits any longer for a reader that takes nothing.
            _ if self.over.is_some() => self.out.forget(),
            // The agent goes on meanwhile: it is no process of this terminal.
            Signal::SIGTSTP if self.around.leaves_stopped() => {}
            Signal::SIGTSTP => {
                self.stops = true;
                if let Err(error) = self.out.leave() {
                    self.lose_reader(error);
                }
            }
            _ if self.role == Role::Attached => self.leave(Ok(Over::Signalled(caught.shell_code()))),
            _ => self.cancel(caught.shell_code()),
        }
    }

    fn cancel(&mut self, code: u8) {
        if self.cancelled.replace(code).is_some() {
            // Whoever asks twice does not want to wait. The end of the connection cancels, too.
            self.out.forget();
            return self.leave(Ok(Over::Signalled(code)));
        }
        let params = CancelParams { ids: vec![self.task.into()], ..CancelParams::default() };
        if let Err(error) = self.link.call::<TaskCancel>(&params) {
            self.lose_daemon(error);
        }
    }

    /// Stops this process until its shell lets it go on.
    fn stop(&mut self) {
        if let Some(keyboard) = &mut self.keyboard {
            keyboard.give_back();
        }
        // What was on the screen before is far up when it goes on.
        self.is_hinted &= self.role != Role::Attached;
        stop_here();
        self.come_back();
    }

    /// Takes the terminal again, if this process is in its foreground.
    fn come_back(&mut self) {
        if self.over.is_none()
            && let Some(keyboard) = &mut self.keyboard
        {
            keyboard.take();
            self.hint();
        }
    }

    // The end.

    fn leave(&mut self, over: Result<Over, Failure>) {
        if self.over.is_some() {
            return;
        }
        self.over = Some(over);
        if let Err(error) = self.out.leave() {
            self.lose_reader(error);
        }
    }

    fn hang_up(&mut self) {
        self.over = Some(Ok(Over::Signalled(Code::HUNG_UP.0)));
        self.out.forget();
    }

    /// Standard output takes nothing any more.
    fn lose_reader(&mut self, error: io::Error) {
        if self.out.is_screen() {
            return self.hang_up();
        }
        self.out.forget();
        self.over = Some(Err(error.into()));
    }

    fn lose_daemon(&mut self, error: ClientError) {
        let failure = Failure::of_link(error, "the daemon is gone, and the task with it");
        self.leave(Err(failure));
    }

    /// Says something in lines of its own beside the text.
    fn note(&mut self, text: &str) {
        let text = &clean_lines(text);
        if !self.out.is_screen() || !io::stderr().is_terminal() {
            let _ = io::stderr().write_all(text.as_bytes());
        } else if let Err(error) = self.out.leave().and_then(|()| self.out.show(text.as_bytes())) {
            self.lose_reader(error);
        }
    }
}

fn subscription(task: TaskId) -> SubscribeParams {
    SubscribeParams { ids: vec![task.into()], ..SubscribeParams::default() }
}
