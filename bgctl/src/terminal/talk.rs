//! Shows a task without a terminal, such as an agent in the foreground: its text is copied to standard output as it is
//! written, until the task ends or is left.
//!
//! A terminal gets text, colours and the redrawing of lines only: what else a job writes, it does not write for this
//! terminal, which would be left in another mode. Typed input is discarded, except for the key. Ctrl-C remains a
//! signal, which cancels the task unless this process is only attached to it.

mod heard;

use std::io::{self, IsTerminal as _, Write as _};
use std::os::fd::AsFd as _;

use bgd_shared::client::{Client, ClientError, PolledClient, Received};
use bgd_shared::foreground::{Can, Foreground, Key, KeyScanner, Piece, Press};
use bgd_shared::id::TaskId;
use bgd_shared::request::{CancelParams, EventsSubscribe, SubscribeParams, TaskCancel};
use bgd_shared::task::Task;
use nix::sys::signal::Signal;

use super::attachment::{Attachment, AttachmentEnd, Output as _, Role, Subject, TYPED_BYTES, way_out};
use super::keyboard::{Keyboard, Mode};
use super::signals::{Caught, Signals, stop_here};
use super::sink::Sink;
use super::turn::{Ready, Wants};
use super::view::{self, DAEMON_ENDED, View};
use crate::failure::Failure;
use crate::output::replay::Replay;
use crate::output::seam::Seam;
use crate::render::clean_lines;

/// The signals handled here.
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

/// What was shown of a task's text so far, for a view on another connection to continue with.
#[derive(Default)]
pub struct TextShown {
    /// Offset of the next text to request.
    next: u64,
    /// Leaves out what a terminal must not get; `None` if standard output is none, or nothing was shown yet.
    replay: Option<Replay>,
    /// Where bytes of the text were dropped.
    seam: Seam,
}

/// A task without a terminal that is being shown.
pub struct TextView<'a> {
    job: Attachment<'a, Sink>,
    /// A connection that reports when there is more text. It is separate because a subscription only ends with its
    /// connection.
    news: PolledClient,
    scanner: KeyScanner,
    shown: TextShown,
    /// The call in flight for the next part of the text, and whether it was made after the task had ended.
    asked: Option<(u64, bool)>,
    /// Whether there may be more text.
    has_more: bool,
    /// The ended task; some of its text may still be missing.
    ended: Option<Box<Task>>,
    question: Option<u64>,
    /// The signal that cancelled the task, as the exit code that a shell reports for it.
    cancelled: Option<u8>,
}

impl<'a> TextView<'a> {
    /// Shows the only task of this process from where `shown` has got to, and advances that past the text shown.
    ///
    /// # Errors
    /// See [`Self::begin`] and [`Self::run`].
    pub fn alone(
        mut link: PolledClient,
        news: Client,
        (task, role, key): (TaskId, Role, Key),
        shown: &mut TextShown,
    ) -> Result<AttachmentEnd, Failure> {
        let (key, can) = if role == Role::Direct { (Key::NONE, Can::Direct) } else { (key, Can::Yes) };
        let mut jobs = Foreground::new(key);
        jobs.started(task, can);
        let mut text = TextView::begin(Subject { link: &mut link, host: &mut jobs, task, role, key }, news)?;
        text.resume(shown);
        let left = view::run(&mut text);
        *shown = std::mem::take(&mut text.shown);
        left
    }

    /// Takes over signals and the keyboard; `news` is a separate connection.
    ///
    /// # Errors
    /// A system call fails, or a connection is broken.
    pub fn begin(subject: Subject<'a>, news: Client) -> Result<Self, Failure> {
        let out = Sink::open()?;
        let shown = TextShown { next: 0, replay: Replay::onto(&out), seam: Seam::default() };
        let mut news = PolledClient::from(news);
        news.call::<EventsSubscribe>(&subscription(subject.task))?;
        let key = subject.key;
        // Without a key to detect, leave typed input to the next reader.
        let keyboard = |out: &Sink| {
            if out.is_screen() && key != Key::NONE { Keyboard::open(Mode::Keys(key)) } else { None }
        };
        let mut job = Attachment::begin(subject, out, SIGNALS, keyboard)?;
        job.gone = Some(DAEMON_ENDED);
        let mut talk = Self {
            news,
            scanner: KeyScanner::new(job.key),
            job,
            shown,
            asked: None,
            // Set by the answer to the subscription.
            has_more: false,
            ended: None,
            question: None,
            cancelled: None,
        };
        talk.come_back();
        Ok(talk)
    }

    /// Continues after what was shown on an earlier connection, which may have ended amid a character or a sequence.
    fn resume(&mut self, earlier: &mut TextShown) {
        self.shown.next = earlier.next;
        self.shown.seam = std::mem::take(&mut earlier.seam);
        if earlier.replay.is_some() {
            self.shown.replay = earlier.replay.take();
        }
    }

    /// Shows the text until the task ends or is left.
    ///
    /// # Errors
    /// The daemon is gone or sent an invalid message, or standard output was closed by its reader.
    pub fn run(mut self) -> Result<AttachmentEnd, Failure> {
        view::run(&mut self)
    }

    // The keyboard.

    fn read_keyboard(&mut self) -> Result<(), Failure> {
        let mut buffer = [0; TYPED_BYTES];
        while let Some(count) = self.job.read_keyboard(&mut buffer) {
            self.typed(&buffer[..count])?;
            // Read presses that arrived before the terminal began to drop them.
            if !self.job.drops_presses || !self.job.has_typed() {
                break;
            }
        }
        Ok(())
    }

    fn typed(&mut self, mut bytes: &[u8]) -> Result<(), Failure> {
        let wants_out = self.job.ways_out.typed(bytes);
        self.scanner.note_read(bytes);
        while let Some(piece) = self.scanner.scan(&mut bytes) {
            let Piece::Pressed(sent) = piece else { continue };
            let length = sent.len();
            match self.job.host.jobs().pressed() {
                Press::Take(job) if job == self.job.task => self.job.pressed(length)?,
                Press::Take(job) => self.job.hand_over_other(job)?,
                Press::Refuse(message) => self.note(&format!("bgctl: {message}\n")),
                Press::Nothing | Press::Ignore | Press::Pass => {}
            }
        }
        if wants_out && self.job.explains_leaving() {
            self.note(&format!("bgctl: {}\n", way_out(self.job.key)));
        }
        self.job.hold(self.scanner.is_holding());
        Ok(())
    }

    /// Handles a press of the key that did not arrive as typed input, as if it had.
    fn press(&mut self) -> Result<(), Failure> {
        self.job.key.byte().map_or(Ok(()), |byte| self.typed(&[byte]))
    }

    // Signals.

    fn cancel(&mut self, code: u8) -> Result<(), Failure> {
        if self.cancelled.replace(code).is_some() {
            // The second request: don't wait. Closing the connection also cancels the task.
            self.job.out.forget();
            self.job.leave(Ok(AttachmentEnd::Signalled(code)));
            return Ok(());
        }
        let params = CancelParams { ids: vec![self.job.task.into()], ..CancelParams::default() };
        self.job.call::<TaskCancel>(&params).map(drop)
    }

    /// Stops this process until the shell continues it.
    fn stop(&mut self) {
        self.job.give_back();
        stop_here();
        self.come_back();
    }

    /// Takes over the terminal again if this process is in its foreground.
    fn come_back(&mut self) {
        if !self.job.is_over()
            && let Some(keyboard) = &mut self.job.keyboard
        {
            keyboard.take();
            if let Some(hint) = self.job.next_hint() {
                self.note(&format!("{hint}\n"));
            }
        }
    }

    /// Shows a note on lines of its own.
    fn note(&mut self, text: &str) {
        let text = &clean_lines(text);
        let out = &mut self.job.out;
        if !out.is_screen() || !io::stderr().is_terminal() {
            let _ = io::stderr().write_all(text.as_bytes());
        } else if let Err(error) = out.leave().and_then(|()| out.show(text.as_bytes())) {
            self.job.lose_output(error);
        }
    }
}

impl View for TextView<'_> {
    type End = AttachmentEnd;

    fn link(&mut self) -> &mut PolledClient {
        self.job.link
    }

    fn signals(&self) -> &Signals {
        &self.job.signals
    }

    fn wants(&self) -> Wants<'_> {
        Wants { news: (!self.job.is_over()).then(|| self.news.as_fd()), ..self.job.wants() }
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
            self.stop();
        }
        if !self.job.is_over() && self.job.host.takes_press() {
            self.press()?;
        }
        self.ask()
    }

    fn signal(&mut self, caught: Caught) -> Result<(), Failure> {
        if caught.signal == Signal::SIGTERM {
            self.job.host.asked_to_end(caught.shell_code());
        }
        match caught.signal {
            Signal::SIGHUP => self.job.hang_up(),
            Signal::SIGCONT => {
                // The process may have been stopped without time to restore the terminal.
                self.job.retake();
                self.come_back();
            }
            Signal::SIGTTIN | Signal::SIGTTOU => {}
            // Pressed before the keyboard was taken.
            _ if caught.is_key(self.job.key) && !self.job.is_over() => self.press()?,
            // The agent keeps running: it is not a process of this terminal.
            Signal::SIGTSTP if self.job.host.leaves_stopped() => {}
            // The remaining output is written once this process continues.
            Signal::SIGTSTP if self.job.is_over() => self.stop(),
            // Don't wait any longer for a reader that accepts nothing.
            _ if self.job.is_over() => self.job.out.forget(),
            Signal::SIGTSTP => {
                self.job.stops = true;
                self.job.leave_screen();
            }
            _ if self.job.role == Role::Attached => {
                self.job.leave(Ok(AttachmentEnd::Signalled(caught.shell_code())));
            }
            _ => self.cancel(caught.shell_code())?,
        }
        Ok(())
    }

    fn ready(&mut self, ready: Ready) -> Result<(), Failure> {
        self.job.ready(ready);
        if ready.keyboard {
            self.read_keyboard()?;
        }
        if self.job.is_behind() {
            self.come_back();
        }
        if self.job.is_hold_over() {
            self.scanner.flush();
        }
        if ready.news {
            self.read_news().map_err(|error| self.job.lost(error))?;
        }
        Ok(())
    }

    fn received(&mut self, received: Received) -> Result<(), Failure> {
        self.hear(received)
    }

    fn lost(&self, error: ClientError) -> Failure {
        self.job.lost(error)
    }

    /// Ends only after pending output has been shown.
    fn fail(&mut self, failure: Failure) -> Result<(), Failure> {
        self.job.leave(Err(failure));
        Ok(())
    }
}

fn subscription(task: TaskId) -> SubscribeParams {
    SubscribeParams { ids: vec![task.into()], ..SubscribeParams::default() }
}
