//! Shows a job on the user's terminal and passes typed input to it, until the job ends or is left.

mod attempts;
mod heard;
mod missed;
mod pressed;

use std::io::{self, IsTerminal as _, Write as _};
use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use bgd_shared::client::{Client, ClientError, PolledClient, Received};
use bgd_shared::foreground::{Can, Foreground, Key, Press};
use bgd_shared::id::TaskId;
use bgd_shared::request::{
    AttachParams, Encoding, Hello, HelloParams, ResizeParams, SignalParams, TaskAttach, TaskResize,
    TaskSignal, TaskWrite, TerminalSize, WriteParams,
};
use bgd_shared::task::Task;
use nix::sys::signal::Signal;

use super::attachment::{Attachment, AttachmentEnd, Output as _, Role, Subject, TYPED_BYTES, way_out};
use super::gap::Gap;
use super::gauge::Gauge;
use super::input::{Input, PressEffect};
use super::keyboard::{Keyboard, Mode};
use super::screen::Screen;
use super::signals::{Caught, Signals, stop_group};
use super::turn::{Ready, Wants};
use super::typed_signals::TypedSignals;
use super::view::{self, DAEMON_ENDED, View};
use crate::failure::Failure;
use crate::remark::say;
use crate::render::clean;
use crate::render::list_format::is_dumb;

/// The signals handled here. The last two would stop bgctl if it touched the terminal just when it is put into the
/// background.
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

/// How long a note stays on top of a full-screen program while nothing is typed.
const NOTE_STAYS: Duration = Duration::from_secs(2);

/// The pause before resending typed input that the daemon has refused: no event indicates when it would be accepted.
const WRITE_PAUSE: Duration = Duration::from_millis(500);

/// A job on the user's terminal.
pub struct ScreenView<'a> {
    job: Attachment<'a, Screen>,
    input: Input,
    calls: Calls,
    typed_signals: TypedSignals,
    /// The size last reported to the daemon.
    size: TerminalSize,
    /// When to redraw the job, because a note covers it.
    noted_until: Option<Instant>,
    /// A note to show once the screen has been drawn, which would otherwise overwrite it.
    note_once_drawn: Option<String>,
    gauge: Gauge,
    /// Whether the terminal understands escape sequences instead of displaying them.
    reads_sequences: bool,
    /// Offset up to which the task's output was shown.
    shown_upto: u64,
    /// Offset up to which a previous connection has shown the output; set until the screen is drawn.
    resumes_from: Option<u64>,
    /// Whether the output shown before ended on the alternate screen.
    was_alternate: bool,
    /// Missed output, to be shown before the screen.
    gap: Option<Gap>,
    /// The ended job, which is left once all output has been shown.
    ended: Option<Box<Task>>,
    /// The attempt shown, if the task may have several.
    attempts: Option<Attempts>,
}

/// The attempt shown.
struct Attempts {
    /// Its number, from 1.
    shown: u32,
    /// Whether the user was notified that it has ended.
    has_ended: bool,
    /// A connection that reports the task's events. It is separate because a subscription only ends with its
    /// connection.
    news: PolledClient,
    /// The call that gets the task after subscribing to its events.
    look: Option<u64>,
    /// The call that attaches to the next attempt.
    attach: Option<u64>,
}

/// The state of showing a job on a connection that was lost.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Seen {
    /// Offset up to which the output was shown.
    pub upto: u64,
    /// Whether it ended on the alternate screen.
    pub is_alternate: bool,
    /// Whether typed input was in flight or still to be sent, so that it may not have arrived.
    pub lacks_typed: bool,
}

/// The numbers of the calls in flight.
#[derive(Default)]
struct Calls {
    /// Asks for the daemon's limits.
    hello: Option<u64>,
    write: Option<u64>,
    /// When to resend typed input that the daemon has refused.
    write_again: Option<Instant>,
    resize: Option<u64>,
    /// The call that continues the job. A key that stops the job must not overtake it.
    continue_job: Option<u64>,
    /// The call with the input that was not sent yet when the key was pressed.
    last_write: Option<u64>,
    /// The key was pressed, and the attachment is left once the daemon has received all input.
    leaving: Option<Leaving>,
}

/// A press of the key that leaves an attachment.
#[derive(Clone, Copy)]
struct Leaving {
    /// A call after all input: its answer shows that the daemon has received that.
    fence: u64,
    /// How many bytes the terminal sent for the press.
    length: usize,
}

impl<'a> ScreenView<'a> {
    /// Shows the only job of this process, which is in the foreground.
    ///
    /// # Errors
    /// See [`Self::begin`] and [`Self::run`].
    pub fn alone(
        mut link: PolledClient,
        task: TaskId,
        key: Key,
        screen: Screen,
        size: TerminalSize,
    ) -> Result<AttachmentEnd, Failure> {
        let mut jobs = Foreground::new(key);
        jobs.started(task, Can::Yes);
        let subject = Subject { link: &mut link, host: &mut jobs, task, role: Role::Foreground, key };
        ScreenView::begin(subject, screen, size)?.run()
    }

    /// Like [`Self::alone`], for a job that keeps running without this connection. `seen` is the state of the previous
    /// connection, and is updated to the state of this one. `is_again`: the daemon is about to draw the screen.
    ///
    /// # Errors
    /// See [`Self::begin`] and [`Self::run`].
    pub fn resumable(
        mut link: PolledClient,
        task: TaskId,
        key: Key,
        screen: Screen,
        size: TerminalSize,
        seen: &mut Seen,
        is_again: bool,
    ) -> Result<AttachmentEnd, Failure> {
        let mut jobs = Foreground::new(key);
        jobs.started(task, Can::Yes);
        let subject = Subject { link: &mut link, host: &mut jobs, task, role: Role::Foreground, key };
        let mut show = ScreenView::begin(subject, screen, size)?;
        (show.shown_upto, show.was_alternate) = (seen.upto, seen.is_alternate);
        if is_again {
            show.resumes_from = Some(seen.upto);
            // The job may have been stopped when the connection was lost, and nothing else would continue it.
            show.calls.continue_job = Some(show.send_signal("CONT", true)?);
        }
        let left = view::run(&mut show);
        *seen = Seen {
            upto: show.shown_upto,
            is_alternate: show.was_last_alternate(),
            lacks_typed: show.calls.last_write.is_some() || show.input.has_typed(),
        };
        left
    }

    /// Takes over signals and the terminal. `size` is the size last reported to the daemon.
    ///
    /// # Errors
    /// A system call fails, or the connection is broken.
    pub fn begin(subject: Subject<'a>, screen: Screen, size: TerminalSize) -> Result<Self, Failure> {
        // Don't use a keyboard that another foreground job reads.
        let keyboard = |_: &Screen| {
            Keyboard::open(Mode::Raw)
                .and_then(|mut keyboard| (!keyboard.is_held_by_other()).then_some(keyboard))
        };
        let mut job = Attachment::begin(subject, screen, SIGNALS, keyboard)?;
        job.gone = (job.role != Role::Attached).then_some(DAEMON_ENDED);
        if let Some(keyboard) = &mut job.keyboard {
            keyboard.take();
        }
        let input = Input::new(job.key);
        let mut show = Self {
            job,
            input,
            calls: Calls::default(),
            typed_signals: TypedSignals::default(),
            size,
            noted_until: None,
            note_once_drawn: None,
            gauge: Gauge::default(),
            reads_sequences: !is_dumb(),
            shown_upto: 0,
            resumes_from: None,
            was_alternate: false,
            gap: None,
            ended: None,
            attempts: None,
        };
        // An attachment shows its hint once the screen is drawn, which scrolls away what was shown before.
        if show.job.role != Role::Attached {
            show.hint();
        }
        show.tell_size()?;
        Ok(show)
    }

    /// Like [`Self::begin`], for a background task that the connection has attached to. All of its attempts are shown,
    /// if it may have several and `news` is a separate connection.
    ///
    /// # Errors
    /// As for [`Self::begin`].
    pub fn attached(
        subject: Subject<'a>,
        task: &Task,
        news: Option<Client>,
        screen: Screen,
        size: TerminalSize,
    ) -> Result<Self, Failure> {
        let mut show = Self::begin(subject, screen, size)?;
        if task.paused {
            let note = format!("the task is paused; `bgctl continue {}` continues it", task.id.short());
            show.note_once_drawn = Some(note);
        }
        // The task may have been stopped where it was shown before, and nothing else would continue it.
        show.calls.continue_job = Some(show.send_signal("CONT", true)?);
        if let (Some(attempt), Some(news)) = (task.attempt, news) {
            show.follow_attempts(attempt, news)?;
        }
        Ok(show)
    }

    /// Shows the job until it ends or is left.
    ///
    /// # Errors
    /// The daemon is gone, or sent an invalid message.
    pub fn run(mut self) -> Result<AttachmentEnd, Failure> {
        view::run(&mut self)
    }

    fn hint(&mut self) {
        if let Some(hint) = self.job.next_hint() {
            write_hint(&hint);
        }
    }

    // The keyboard.

    fn read_keyboard(&mut self) -> Result<(), Failure> {
        let mut buffer = [0; TYPED_BYTES];
        while let Some(count) = self.job.read_keyboard(&mut buffer) {
            self.typed(&buffer[..count])?;
            // Read presses that arrived before the terminal began to drop them.
            let reads_on = self.job.drops_presses || self.job.is_detached();
            if !reads_on || !self.job.has_typed() {
                break;
            }
        }
        Ok(())
    }

    fn typed(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        let was_leaving = self.calls.leaving.is_some();
        let is_leaving = self.is_leaving() || self.job.is_over();
        let wants_out = self.job.ways_out.typed(bytes);
        self.typed_signals.typed(bytes);
        let (mut refusal, mut other, mut is_pressed_again) = (None, None, false);
        let begun = self.input.push(bytes, is_leaving, || match self.job.host.jobs().pressed() {
            Press::Take(job) if job == self.job.task => PressEffect::Begin,
            Press::Take(job) => {
                other = Some(job);
                PressEffect::Nothing
            }
            Press::Pass => PressEffect::Pass,
            Press::Refuse(message) => {
                refusal = Some(message);
                PressEffect::Nothing
            }
            Press::Nothing | Press::Ignore => {
                is_pressed_again = was_leaving;
                PressEffect::Nothing
            }
        });
        self.job.hold(self.input.is_holding());
        if let Some(message) = refusal {
            self.note(&message);
        }
        if let Some(job) = other {
            self.job.hand_over_other(job)?;
        }
        if let Some(length) = begun {
            self.pressed(length)?;
        } else if is_pressed_again {
            self.leave_at_once();
        } else if wants_out {
            self.tell_way_out();
        } else if !self.job.ways_out.is_in_row() {
            self.end_note()?;
        }
        Ok(())
    }

    /// Handles a press of the key that did not arrive as typed input, as if it had.
    fn press(&mut self) -> Result<(), Failure> {
        self.job.key.byte().map_or(Ok(()), |byte| self.typed(&[byte]))
    }

    /// Explains how to leave to a user who seems to want to; the keys they tried still go to the job.
    fn tell_way_out(&mut self) {
        if self.job.explains_leaving() {
            self.note_for_a_while(&way_out(self.job.key));
        }
    }

    /// Shows a note, which does not stay on top of a full-screen program.
    fn note_for_a_while(&mut self, text: &str) {
        self.note(text);
        self.noted_until = self.job.out.is_changed().then(|| Instant::now() + NOTE_STAYS);
    }

    /// Redraws the job if a note covers it.
    fn end_note(&mut self) -> Result<(), Failure> {
        if self.noted_until.take().is_some() { self.draw_again() } else { Ok(()) }
    }

    /// Requests a redraw if the job uses the whole screen, as the job does not know that something else was drawn
    /// there.
    fn draw_again(&mut self) -> Result<(), Failure> {
        if !self.job.out.is_changed() || self.job.is_over() {
            return Ok(());
        }
        self.ask_for_screen()
    }

    /// Requests the daemon to draw the screen.
    fn ask_for_screen(&mut self) -> Result<(), Failure> {
        let TerminalSize { rows, cols } = self.size;
        let params = AttachParams { id: self.job.task.into(), rows: Some(rows), cols: Some(cols) };
        self.job.call::<TaskAttach>(&params).map(drop)
    }

    /// Reports whether typed input may be sent, not considering the pause after a refusal.
    fn may_write(&self) -> bool {
        !self.job.is_over() && self.calls.write.is_none() && self.calls.continue_job.is_none()
    }

    fn send_typed(&mut self) -> Result<(), Failure> {
        if !self.may_write() || self.calls.write_again.is_some_and(|at| at > Instant::now()) {
            return Ok(());
        }
        if self.input.wants_limit() && self.calls.hello.is_none() {
            self.calls.hello = Some(self.job.call::<Hello>(&HelloParams::default())?);
        }
        if let Some(bytes) = self.input.next_bytes() {
            let (data, encoding) = Encoding::encode(bytes);
            let params = WriteParams { id: self.job.task.into(), data, encoding, eof: false };
            self.calls.write = Some(self.job.call::<TaskWrite>(&params)?);
        }
        Ok(())
    }

    /// Reports the terminal size to the daemon if it has changed.
    fn tell_size(&mut self) -> Result<(), Failure> {
        let size = self.job.out.size();
        if size != self.size && self.calls.resize.is_none() && !self.job.is_over() {
            let params = ResizeParams { id: self.job.task.into(), rows: size.rows, cols: size.cols };
            self.calls.resize = Some(self.job.call::<TaskResize>(&params)?);
            self.size = size;
        }
        Ok(())
    }

    // Signals.

    /// Sends a signal to the job. Returns the call, which is answered once the signal was sent.
    fn send_signal(&mut self, signal: &str, tree: bool) -> Result<u64, Failure> {
        let params = SignalParams { id: self.job.task.into(), signal: signal.to_owned(), tree };
        self.job.call::<TaskSignal>(&params)
    }

    /// Handles a stop of the job. During a hand-over, the answer to that decides: a job that moves to the background is
    /// continued.
    fn stopped(&mut self) {
        if self.job.is_handing_over() {
            self.job.stops = true;
            return;
        }
        // The daemon continues a job whose viewer has left.
        if self.calls.leaving.is_some() {
            return;
        }
        if self.job.host.leaves_stopped() {
            let restore = self.job.out.restore().to_owned();
            return self.job.leave(Ok(AttachmentEnd::Stopped(restore)));
        }
        self.job.stops = true;
        self.job.leave_screen();
    }

    /// Stops this process with the job, until the shell continues it.
    fn stop(&mut self) -> Result<(), Failure> {
        self.job.give_back();
        stop_group();
        while let Some(caught) = self.job.signals.next_caught() {
            if caught.signal != Signal::SIGCONT {
                self.signal(caught)?;
            }
        }
        self.continue_job()
    }

    /// Continues the job, and takes over the terminal again if this process is in its foreground.
    fn continue_job(&mut self) -> Result<(), Failure> {
        if self.job.is_over() {
            return Ok(());
        }
        self.calls.continue_job = Some(self.send_signal("CONT", true)?);
        let is_back = self.job.retake();
        self.shown_again(is_back)
    }

    /// Takes over the terminal again if this process is in its foreground.
    fn come_back(&mut self) -> Result<(), Failure> {
        let Some(keyboard) = &mut self.job.keyboard else { return self.tell_size() };
        let is_back = !keyboard.is_taken() && keyboard.take();
        self.shown_again(is_back)
    }

    /// Updates the terminal. `is_back`: something else may have been shown there meanwhile. That stays on the main
    /// screen, as without bgctl: a full-screen program that left its screen for the stop draws it again by itself.
    fn shown_again(&mut self, is_back: bool) -> Result<(), Failure> {
        self.hint();
        self.tell_size()?;
        if !is_back || self.job.is_over() {
            return Ok(());
        }
        if self.job.out.is_alternate() {
            return self.ask_for_screen();
        }
        if let Err(error) = self.job.out.set_modes_again() {
            self.job.lose_output(error);
        }
        Ok(())
    }

    /// Shows a note amid the job's output.
    fn note(&mut self, text: &str) {
        let text = &clean(text);
        if !io::stderr().is_terminal() {
            say(format_args!("bgctl: {text}"));
        } else if let Err(error) = self.job.out.show(format!("\r\nbgctl: {text}\r\n").as_bytes(), None) {
            self.job.lose_output(error);
        }
    }
}

fn write_hint(hint: &str) {
    let _ = write!(io::stderr(), "{hint}\r\n");
}

impl View for ScreenView<'_> {
    type End = AttachmentEnd;

    fn link(&mut self) -> &mut PolledClient {
        self.job.link
    }

    fn signals(&self) -> &Signals {
        &self.job.signals
    }

    fn wants(&self) -> Wants<'_> {
        let wants = self.job.wants();
        let noted = self.noted_until.filter(|_| !self.job.is_over());
        let write_again = self.calls.write_again.filter(|_| self.may_write());
        let news = self.attempts.as_ref().filter(|_| !self.job.is_over());
        Wants {
            news: news.map(|attempts| attempts.news.as_fd()),
            reads_link: self.job.out.has_room(),
            reads_keyboard: wants.reads_keyboard && self.input.has_room(),
            until: wants.until.into_iter().chain(noted).chain(write_again).min(),
            ..wants
        }
    }

    fn end(&mut self) -> Option<Result<AttachmentEnd, Failure>> {
        self.job.end()
    }

    fn is_listening(&self) -> bool {
        !self.job.is_over()
    }

    fn prepare(&mut self) -> Result<(), Failure> {
        self.job.undo()?;
        if self.job.takes_stop() {
            self.stop()?;
        }
        if !self.job.is_over() && self.job.host.takes_press() {
            self.press()?;
        }
        self.send_typed()
    }

    fn signal(&mut self, caught: Caught) -> Result<(), Failure> {
        if caught.signal == Signal::SIGTERM {
            self.job.host.asked_to_end(caught.shell_code());
        }
        match (caught.signal, self.job.role) {
            (Signal::SIGWINCH, _) => self.tell_size()?,
            (Signal::SIGCONT, _) => self.continue_job()?,
            (Signal::SIGTTIN | Signal::SIGTTOU, _) => {}
            (Signal::SIGHUP, _) => self.job.hang_up(),
            // Don't wait any longer for a terminal that accepts nothing.
            _ if self.job.is_over() => self.job.out.forget(),
            // Pressed before the keyboard was taken.
            _ if caught.is_key(self.job.key) => self.press()?,
            (Signal::SIGTSTP, Role::Attached) => self.stopped(),
            (_, Role::Attached) => self.job.leave(Ok(AttachmentEnd::Signalled(caught.shell_code()))),
            // The daemon reports when the job has stopped; then this process stops too.
            (Signal::SIGTSTP, _) => drop(self.send_signal("TSTP", true)?),
            _ => drop(self.send_signal(caught.name(), caught.is_for_all())?),
        }
        Ok(())
    }

    fn ready(&mut self, ready: Ready) -> Result<(), Failure> {
        self.job.ready(ready);
        if ready.keyboard {
            self.read_keyboard()?;
        }
        if self.job.is_behind() && !self.job.is_over() {
            self.come_back()?;
        }
        if self.job.is_hold_over() {
            self.input.give_up(self.is_leaving());
        }
        if self.noted_until.is_some_and(|until| until <= Instant::now()) {
            self.end_note()?;
        }
        if ready.news { self.read_news() } else { Ok(()) }
    }

    fn received(&mut self, received: Received) -> Result<(), Failure> {
        self.hear(received)
    }

    fn lost(&self, error: ClientError) -> Failure {
        self.job.lost(error)
    }

    /// Ends only after pending output has been shown.
    fn fail(&mut self, failure: Failure) -> Result<(), Failure> {
        if self.calls.leaving.is_some() {
            self.leave_at_once();
        }
        self.job.leave(Err(failure));
        Ok(())
    }
}
