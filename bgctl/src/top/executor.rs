//! The loop of the live view: sleeps until the daemon, the keyboard, a signal or a visible time has something, tells
//! the state, and draws what has changed. Idle, it makes no call and draws nothing.

use std::os::fd::AsFd as _;
use std::time::{Duration, Instant};

use bgd_shared::client::{ClientError, PolledClient};
use bgd_shared::id::TaskId;
use bgd_shared::time::Timestamp;
use nix::sys::signal::Signal;
use ratatui::buffer::Buffer;

use super::canvas::Canvas;
use super::connector::Connector;
use super::keys::Keys;
use super::task_key::{HostNo, TaskKey};
use super::ui::{Ui, Want};
use super::view::{Frame, Panes, Scene, draw};
use super::wire::Wire;
use crate::exit::Code;
use crate::failure::Failure;
use crate::link::Link;
use crate::terminal::{Ready, Signals, Wants};

/// The shortest time between two frames.
const FRAME: Duration = Duration::from_millis(16);

/// How long an Escape may still become a longer sequence.
const ESCAPE: Duration = Duration::from_millis(50);

/// The shortest time between two frames that are drawn only because time passes.
const TICK: Duration = Duration::from_secs(1);

/// The signals that the loop handles.
const SIGNALS: [Signal; 6] =
    [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT, Signal::SIGTSTP, Signal::SIGWINCH];

/// What the view needs from its surroundings.
pub trait Environment {
    /// A link for another connection to the same daemon, which prints nothing and asks nothing.
    fn link(&self) -> Link;

    /// Runs a verb for a host in the terminal. Returns its exit code.
    ///
    /// # Errors
    /// It can't be started.
    fn verb(&self, host: HostNo, args: &[String], signals: &[Signal]) -> Result<u8, Failure>;

    /// Shows the output of a task in the pager. Returns its exit code.
    ///
    /// # Errors
    /// It can't be started.
    fn page(&self, task: TaskKey, signals: &[Signal]) -> Result<u8, Failure>;

    /// Whether to use colours.
    fn colour(&self) -> bool;

    /// The user leaves now, and has not seen these failures, with the times of their ends.
    fn left(&self, unseen: Vec<(TaskId, Timestamp)>);
}

/// The connection, or the attempt to make one.
enum Connection {
    Live(Box<Wire>),
    Lost(Connector),
}

/// The live view at work.
pub struct Executor<'a> {
    environment: &'a dyn Environment,
    ui: Ui,
    connection: Connection,
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
    /// Takes the terminal, and begins to list.
    ///
    /// # Errors
    /// There is no terminal, or the connection is broken.
    pub fn begin(
        environment: &'a dyn Environment,
        client: PolledClient,
        mut ui: Ui,
    ) -> Result<Self, Failure> {
        let signals = Signals::take(&SIGNALS)?;
        let connection = Connection::Live(Box::new(Wire::begin(HostNo::default(), client, &mut ui)?));
        Ok(Self {
            environment,
            ui,
            connection,
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
        // Of what is not known nobody can tell whether it was seen.
        if self.ui.is_listed && self.ui.lost.is_none() {
            self.environment.left(self.ui.model.unseen());
        }
        Ok(code)
    }

    fn turns(&mut self) -> Result<Code, Failure> {
        self.hear()?;
        loop {
            self.draw()?;
            self.tend()?;
            let ready = self.wait()?;
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
            self.linked(ready)?;
        }
    }

    /// Draws a frame if something has changed and the terminal has taken the one before.
    fn draw(&mut self) -> Result<(), Failure> {
        let is_due = self.drawn_at.is_none_or(|at| at.elapsed() >= FRAME);
        if !self.is_dirty || !is_due || !self.canvas.is_free() {
            return Ok(());
        }
        let panes = match &self.connection {
            Connection::Live(wire) => Some(&wire.panes),
            Connection::Lost(_) => None,
        };
        let scene =
            Scene { panes: Panes(vec![panes]), now: Timestamp::now(), colour: self.environment.colour() };
        let mut buffer = Buffer::empty(self.canvas.area());
        self.frame = draw(&mut self.ui, &scene, &mut buffer);
        self.ui.model.shown_now(&self.frame.tasks);
        self.canvas.draw(buffer, self.frame.cursor)?;
        (self.is_dirty, self.drawn_at) = (false, Some(Instant::now()));
        Ok(())
    }

    /// Asks for what the last frame lacked.
    fn tend(&mut self) -> Result<(), Failure> {
        self.ui.model.keep_live(&self.frame.tasks);
        if let Connection::Live(wire) = &mut self.connection
            && let Err(error) = wire.tend(&mut self.ui, &self.frame)
        {
            return self.lost(error);
        }
        Ok(())
    }

    fn wait(&self) -> Result<Ready, Failure> {
        let mut wants = Wants::new(self.signals.as_fd());
        match &self.connection {
            Connection::Live(wire) => {
                wants.link = Some(wire.client.as_fd());
                wants.reads_link = true;
                wants.writes_link = wire.client.wants_write();
                wants.link_until = wire.client.until();
            }
            Connection::Lost(connector) => wants.changes = Some(connector.descriptor()),
        }
        wants.keyboard = Some(self.canvas.keyboard().as_fd());
        wants.reads_keyboard = true;
        wants.screen = self.canvas.pending();
        let next_frame =
            self.drawn_at.filter(|_| self.is_dirty && self.canvas.is_free()).map(|at| at + FRAME);
        wants.until = [next_frame, self.ticks_at(), self.escape_until].into_iter().flatten().min();
        wants.wait().map_err(|error| Failure::io("can't wait", &error))
    }

    /// When a visible time changes.
    fn ticks_at(&self) -> Option<Instant> {
        let changes_in = Duration::from_millis(self.frame.changes_in?);
        let drawn_at = self.drawn_at?;
        Some((drawn_at + changes_in).max(drawn_at + TICK))
    }

    fn signalled(&mut self) -> Result<Option<Code>, Failure> {
        while let Some(caught) = self.signals.next_caught() {
            match caught.signal {
                Signal::SIGWINCH => self.is_dirty = true,
                Signal::SIGTSTP => self.stop()?,
                Signal::SIGHUP => return Ok(Some(Code::HUNG_UP)),
                _ => return Ok(Some(Code(caught.shell_code()))),
            }
        }
        if self.ticks_at().is_some_and(|at| at <= Instant::now()) {
            self.is_dirty = true;
        }
        Ok(None)
    }

    fn stop(&mut self) -> Result<(), Failure> {
        self.is_dirty = true;
        self.canvas.stop()
    }

    /// Handles what was typed. Returns the exit code at the end.
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
                // What a user attaches to shows its end itself; of other verbs the output is to be read.
                let returns_at_once = args.first().is_some_and(|verb| verb == "attach");
                self.lend(returns_at_once, |environment| environment.verb(host, &args, &SIGNALS))?;
            }
            Want::Page(task) => self.lend(true, |environment| environment.page(task, &SIGNALS))?,
            Want::Search(text) => match &mut self.connection {
                Connection::Live(wire) => wire.search(&text, &mut self.ui),
                Connection::Lost(_) => self.ui.note = Some("there is no daemon to ask".to_owned()),
            },
            Want::Call(act) => match &mut self.connection {
                Connection::Live(wire) => {
                    let mut parts = act.by_host().into_iter();
                    if let Err(error) = parts.try_for_each(|(_, part)| wire.act(&part, &mut self.ui)) {
                        self.lost(error)?;
                    }
                }
                Connection::Lost(_) => self.ui.note = Some("there is no daemon to ask".to_owned()),
            },
        }
        Ok(None)
    }

    /// Gives the terminal to another program until that ends.
    fn lend(
        &mut self,
        returns_at_once: bool,
        run: impl FnOnce(&dyn Environment) -> Result<u8, Failure>,
    ) -> Result<(), Failure> {
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
        if let Err(failure) = ended {
            self.ui.note = Some(failure.message);
        } else if !(is_well && returns_at_once) {
            self.canvas.pause(&self.signals)?;
        }
        self.is_dirty = true;
        self.canvas.enter()
    }

    /// Reads from the connection, or takes a new one.
    fn linked(&mut self, ready: Ready) -> Result<(), Failure> {
        match &mut self.connection {
            Connection::Lost(connector) => {
                if let Some(client) = connector.made() {
                    self.ui.lost = None;
                    self.is_dirty = true;
                    match Wire::begin(HostNo::default(), client, &mut self.ui) {
                        Ok(wire) => self.connection = Connection::Live(Box::new(wire)),
                        Err(error) => self.lost(error)?,
                    }
                }
                Ok(())
            }
            Connection::Live(wire) => {
                let tended = ready.tend(&mut wire.client);
                let read = if ready.reads_link { wire.client.read() } else { Ok(()) };
                // What the daemon sent before it went away comes first.
                if ready.reads_link {
                    self.hear()?;
                }
                match tended.and(read) {
                    Ok(()) => Ok(()),
                    Err(error) => self.lost(error),
                }
            }
        }
    }

    /// Handles everything that has arrived.
    fn hear(&mut self) -> Result<(), Failure> {
        while let Connection::Live(wire) = &mut self.connection {
            let outcome = match wire.client.next_received() {
                Ok(None) => return Ok(()),
                Ok(Some(received)) => wire.received(received, &mut self.ui),
                Err(error) => Err(error),
            };
            self.is_dirty = true;
            if let Err(error) = outcome {
                return self.lost(error);
            }
        }
        Ok(())
    }

    /// Connects again. What was known stays visible until then.
    fn lost(&mut self, error: ClientError) -> Result<(), Failure> {
        if matches!(self.connection, Connection::Lost(_)) {
            return Ok(());
        }
        let link = self.environment.link();
        let what = match error {
            ClientError::Closed | ClientError::Io(_) if link.is_remote() => {
                "the connection is lost; connecting again".to_owned()
            }
            ClientError::Closed | ClientError::Io(_) => "the daemon is gone; waiting for it".to_owned(),
            error => format!("{}; connecting again", Failure::from(error).message),
        };
        self.ui.lost = Some(what);
        self.ui.search = None;
        self.ui.model.set_found(None);
        self.is_dirty = true;
        self.connection = Connection::Lost(Connector::begin(link)?);
        Ok(())
    }
}
