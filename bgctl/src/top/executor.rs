//! The loop of the live view: sleeps until a daemon, the keyboard or a signal has something or a visible time changes,
//! updates the state, and redraws. When idle, it makes no calls and draws nothing.

use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use bgd_shared::client::PolledClient;
use bgd_shared::time::Timestamp;
use nix::sys::signal::Signal;
use ratatui::buffer::Buffer;

use super::canvas::Canvas;
use super::environment::Environment;
use super::keys::Keys;
use super::links::Links;
use super::task_key::HostNo;
use super::ui::{Ui, Want};
use super::view::{Frame, Scene, draw};
use crate::exit::Code;
use crate::failure::Failure;
use crate::render::wall::Clock;
use crate::terminal::{Caught, LinkReady, Ready, Signals, Wants};

/// Minimum time between two frames.
const FRAME: Duration = Duration::from_millis(16);

/// How long to wait for an Escape to turn out to be the start of a sequence.
const ESCAPE: Duration = Duration::from_millis(50);

/// Minimum time between two frames drawn only because time passes.
const TICK: Duration = Duration::from_secs(1);

const SIGNALS: [Signal; 7] = [
    Signal::SIGINT,
    Signal::SIGTERM,
    Signal::SIGHUP,
    Signal::SIGQUIT,
    Signal::SIGTSTP,
    Signal::SIGCONT,
    Signal::SIGWINCH,
];

/// The running live view.
pub struct Executor<'a> {
    environment: &'a dyn Environment,
    ui: Ui,
    links: Links<'a>,
    clock: Clock,
    canvas: Canvas,
    signals: Signals,
    keys: Keys,
    frame: Frame,
    /// Whether something may have changed since the last frame.
    is_dirty: bool,
    drawn_at: Option<Instant>,
    escape_until: Option<Instant>,
}

impl<'a> Executor<'a> {
    /// Takes over the terminal and starts listing, on the connection to the only host, or else on connections to all
    /// hosts that this opens.
    ///
    /// # Errors
    /// There is no terminal, or the connection is broken.
    pub fn begin(
        environment: &'a dyn Environment,
        client: Option<PolledClient>,
        mut ui: Ui,
    ) -> Result<Self, Failure> {
        let signals = Signals::take(&SIGNALS)?;
        let links = Links::begin(environment, client, &mut ui)?;
        Ok(Self {
            environment,
            ui,
            links,
            clock: Clock::system(Timestamp::now()),
            canvas: Canvas::open()?,
            signals,
            keys: Keys::default(),
            frame: Frame::default(),
            is_dirty: true,
            drawn_at: None,
            escape_until: None,
        })
    }

    /// Runs until the user leaves.
    ///
    /// # Errors
    /// The terminal is gone.
    pub fn run(mut self) -> Result<Code, Failure> {
        let code = self.turns()?;
        // Failures on several hosts are not recorded on this machine.
        if !self.ui.model.is_several() {
            self.leave()?;
        }
        Ok(code)
    }

    /// Reports what the user has not seen.
    fn leave(&mut self) -> Result<(), Failure> {
        // While a pager had the terminal, nothing was read: tasks may have failed that were never on the screen.
        let at = Timestamp::now();
        let is_complete = self.links.catch_up(HostNo::default(), &mut self.ui)?;
        // Without a complete list, the unseen failures are unknown.
        let model = &self.ui.model;
        if is_complete && model.is_listed() && model.silence(HostNo::default()).is_none() {
            self.environment.left(at, model.unseen());
        }
        Ok(())
    }

    fn turns(&mut self) -> Result<Code, Failure> {
        loop {
            self.draw()?;
            self.tend()?;
            let (ready, links) = self.wait()?;
            if let Some(code) = self.signalled()? {
                return Ok(code);
            }
            if ready.hung_up {
                return Ok(Code::HUNG_UP);
            }
            if ready.screen {
                self.canvas.write()?;
            }
            if let Some(code) = self.typed(ready)? {
                return Ok(code);
            }
            self.is_dirty |= self.links.ready(&links, &mut self.ui)?;
        }
    }

    /// Draws a frame if something has changed and the terminal has accepted the previous one.
    fn draw(&mut self) -> Result<(), Failure> {
        let is_due = self.drawn_at.is_none_or(|at| at.elapsed() >= FRAME);
        if !self.is_dirty || !is_due || !self.canvas.is_free() {
            return Ok(());
        }
        self.clock.now = Timestamp::now();
        let scene =
            Scene { panes: self.links.panes(), clock: &self.clock, colour: self.environment.colour() };
        let mut buffer = Buffer::empty(self.canvas.area());
        self.frame = draw(&mut self.ui, &scene, &mut buffer);
        self.ui.model.note_visible(&self.frame.tasks);
        self.canvas.draw(buffer, self.frame.cursor)?;
        (self.is_dirty, self.drawn_at) = (false, Some(Instant::now()));
        Ok(())
    }

    /// Requests the data that the last frame lacked.
    fn tend(&mut self) -> Result<(), Failure> {
        self.is_dirty |= self.links.tend(&mut self.ui, &self.frame)?;
        Ok(())
    }

    fn wait(&self) -> Result<(Ready, Vec<LinkReady>), Failure> {
        let mut wants = Wants::new(self.signals.as_fd());
        wants.keyboard = Some(self.canvas.keyboard().as_fd());
        wants.reads_keyboard = true;
        wants.screen = self.canvas.pending();
        let next_frame =
            self.drawn_at.filter(|_| self.is_dirty && self.canvas.is_free()).map(|at| at + FRAME);
        wants.until = [next_frame, self.ticks_at(), self.escape_until].into_iter().flatten().min();
        wants.wait_with(&self.links.wants()).map_err(|error| Failure::io("can't wait", &error))
    }

    /// Returns the time at which something visible changes by itself.
    fn ticks_at(&self) -> Option<Instant> {
        let changes_in = Duration::from_millis(self.frame.changes_in?);
        let drawn_at = self.drawn_at?;
        Some((drawn_at + changes_in).max(drawn_at + TICK))
    }

    fn signalled(&mut self) -> Result<Option<Code>, Failure> {
        while let Some(caught) = self.signals.next_caught() {
            if let Some(code) = self.caught(caught)? {
                return Ok(Some(code));
            }
        }
        if self.ticks_at().is_some_and(|at| at <= Instant::now()) {
            self.is_dirty = true;
        }
        Ok(None)
    }

    /// Handles a signal. Returns the exit code if it ends this program.
    fn caught(&mut self, caught: Caught) -> Result<Option<Code>, Failure> {
        match caught.signal {
            Signal::SIGWINCH => self.is_dirty = true,
            Signal::SIGTSTP => self.stop()?,
            Signal::SIGCONT => {
                self.is_dirty = true;
                self.canvas.retake()?;
            }
            Signal::SIGHUP => return Ok(Some(Code::HUNG_UP)),
            _ => return Ok(Some(Code(caught.shell_code()))),
        }
        Ok(None)
    }

    fn stop(&mut self) -> Result<(), Failure> {
        self.is_dirty = true;
        self.canvas.stop()
    }

    /// Handles typed keys. Returns the exit code when the user leaves.
    fn typed(&mut self, ready: Ready) -> Result<Option<Code>, Failure> {
        let mut keys = Vec::new();
        if ready.keyboard {
            let mut buffer = [0; 4096];
            match self.canvas.keyboard().read(&mut buffer) {
                Ok(0) => return Ok(Some(Code::HUNG_UP)),
                Ok(count) => keys = self.keys.push(&buffer[..count]),
                Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(Failure::io("the terminal is gone", &error)),
            }
            self.escape_until = self.keys.is_holding().then(|| Instant::now() + ESCAPE);
        } else if self.escape_until.is_some_and(|until| until <= Instant::now()) {
            self.escape_until = None;
            keys.extend(self.keys.give_up());
        }
        for key in keys {
            self.is_dirty = true;
            if let Some(want) = self.ui.key(key)
                && let Some(code) = self.wanted(want)?
            {
                return Ok(Some(code));
            }
        }
        Ok(None)
    }

    fn wanted(&mut self, want: Want) -> Result<Option<Code>, Failure> {
        match want {
            Want::Quit => return Ok(Some(Code::OK)),
            Want::Stop => self.stop()?,
            Want::Redraw => self.canvas.forget()?,
            Want::Verb(host, args) => {
                // An attached task shows its end itself; the output of other verbs should stay readable.
                let returns_at_once = args.first().is_some_and(|verb| verb == "attach");
                return self.lend(returns_at_once, |environment| environment.verb(host, &args, &SIGNALS));
            }
            Want::Page(task) => return self.lend(true, |environment| environment.page(task, &SIGNALS)),
            Want::Search(text) => self.links.search(&text, &mut self.ui),
            Want::Call(act) => self.links.act(act, &mut self.ui)?,
            Want::Retry(host) => self.links.retry(host, &mut self.ui),
        }
        Ok(None)
    }

    /// Lends the terminal to another program until it ends. Returns the exit code if a signal then ends this one.
    fn lend(
        &mut self,
        returns_at_once: bool,
        run: impl FnOnce(&dyn Environment) -> Result<u8, Failure>,
    ) -> Result<Option<Code>, Failure> {
        self.canvas.leave();
        let ended = run(self.environment);
        // Ctrl-C was meant for that program.
        while let Some(caught) = self.signals.next_caught() {
            match caught.signal {
                Signal::SIGTERM | Signal::SIGHUP => {
                    return Err(Failure::new(Code(caught.shell_code()), "signalled", "ended by a signal"));
                }
                _ => {}
            }
        }
        let is_well = matches!(ended, Ok(0));
        let mut caught = None;
        if let Err(failure) = ended {
            self.ui.note = Some(failure.message);
        } else if !(is_well && returns_at_once) {
            caught = self.canvas.pause(&self.signals)?;
        }
        self.is_dirty = true;
        self.links.read_again();
        self.canvas.enter()?;
        caught.map_or(Ok(None), |caught| self.caught(caught))
    }
}
