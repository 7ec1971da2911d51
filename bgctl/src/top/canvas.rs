//! The user's terminal as a canvas. Takes over the terminal, writes only the cells that have changed, never blocks on
//! writing, and restores the terminal on every exit path, even a panic.

use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::panic;
use std::sync::Once;
use std::time::{Duration, Instant};

use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::signal::Signal;
use ratatui::backend::{Backend as _, CrosstermBackend};
use ratatui::buffer::Buffer;
use ratatui::layout::Rect;

use crate::exit::Code;
use crate::failure::Failure;
use crate::link::poll_timeout;
use crate::terminal::{Caught, Keyboard, Output as _, RawMode, Screen, Signals, stop_here};

/// Enters the alternate screen, hides the cursor, and enables the mouse and bracketed paste.
const ENTER: &str = "\x1b[?1049h\x1b[m\x1b[2J\x1b[?25l\x1b[?1000h\x1b[?1006h\x1b[?2004h";

/// Undoes [`ENTER`].
const LEAVE: &str = "\x1b[m\x1b[?2004l\x1b[?1006l\x1b[?1000l\x1b[?25h\x1b[?1049l";

/// What is shown while the output of another program can be read.
const PAUSED: &[u8] = b"\r\n[press a key to return to bgctl top]";

/// How long to wait at the end for a terminal that accepts no more output.
const FLUSH: Duration = Duration::from_secs(1);

/// The terminal.
pub struct Canvas {
    screen: Screen,
    keyboard: Keyboard,
    shown: Buffer,
    cursor: Option<(u16, u16)>,
    is_entered: bool,
}

impl Canvas {
    /// Takes over the terminal.
    ///
    /// # Errors
    /// There is no terminal, or another program controls it.
    pub fn open() -> Result<Self, Failure> {
        let refuse = |what: &str| Failure::usage(format!("`bgctl top` needs a terminal: {what}"));
        let keyboard = Keyboard::open(RawMode::Raw).ok_or_else(|| refuse("nobody can type"))?;
        let screen = Screen::open()?;
        let shown = Buffer::empty(Rect::ZERO);
        let mut canvas = Self { screen, keyboard, shown, cursor: None, is_entered: false };
        leave_before_panics();
        canvas.enter()?;
        Ok(canvas)
    }

    /// Takes over the terminal, at the start or after another program had it.
    ///
    /// # Errors
    /// Another program controls it.
    pub fn enter(&mut self) -> Result<(), Failure> {
        if !self.keyboard.take() {
            if self.keyboard.is_held_by_other() {
                return Err(Failure::usage("another bgctl is using this terminal"));
            }
            // In the background of a shell: stops until it is brought to the foreground, as other programs do.
            stop_here();
            if !self.keyboard.take() {
                return Err(Failure::usage(
                    "`bgctl top` needs a terminal, and is in the background of this one",
                ));
            }
        }
        self.is_entered = true;
        self.show(ENTER.as_bytes(), Some(LEAVE.to_owned()))?;
        self.shown = Buffer::empty(self.area());
        self.cursor = None;
        Ok(())
    }

    /// Takes over the terminal again after this process was continued. `kill -STOP` leaves no time to restore it, so a
    /// shell may have restored its own modes and written over the frame.
    ///
    /// # Errors
    /// As for [`Self::enter`].
    pub fn retake(&mut self) -> Result<(), Failure> {
        self.keyboard.retake();
        self.enter()
    }

    /// Restores the terminal. Waits a moment for a slow one.
    pub fn leave(&mut self) {
        if !std::mem::take(&mut self.is_entered) {
            return;
        }
        let end = Instant::now() + FLUSH;
        // If the terminal is gone, errors don't matter.
        let mut outcome = self.screen.leave();
        while outcome.is_ok() && self.screen.wants_write() && Instant::now() < end {
            let mut sources = [PollFd::new(self.screen.as_fd(), PollFlags::POLLOUT)];
            let _ = poll(&mut sources, poll_timeout(end));
            outcome = self.screen.write();
        }
        self.screen.forget();
        self.keyboard.give_back();
    }

    /// Returns the area to draw on, from the terminal's current size.
    pub fn area(&self) -> Rect {
        let size = self.screen.size();
        Rect::new(0, 0, size.cols, size.rows)
    }

    /// Makes the next frame redraw everything, as the terminal may show something else.
    ///
    /// # Errors
    /// The terminal is gone.
    pub fn forget(&mut self) -> Result<(), Failure> {
        self.shown = Buffer::empty(self.area());
        self.cursor = None;
        self.show(b"\x1b[m\x1b[2J\x1b[?25l", None)
    }

    /// Reports whether a frame can be drawn now: the terminal has accepted the one before.
    pub fn is_free(&self) -> bool {
        !self.screen.wants_write()
    }

    /// Shows a frame by writing the differences from the one before. Writes nothing if there are none.
    ///
    /// # Errors
    /// The terminal is gone.
    pub fn draw(&mut self, frame: Buffer, cursor: Option<(u16, u16)>) -> Result<(), Failure> {
        let mut bytes = Vec::new();
        if frame.area != self.shown.area {
            bytes.extend_from_slice(b"\x1b[m\x1b[2J");
            self.shown = Buffer::empty(frame.area);
        }
        let changed = self.shown.diff(&frame);
        if !changed.is_empty() {
            bytes.extend_from_slice(b"\x1b[?25l");
            let drawn = CrosstermBackend::new(&mut bytes).draw(changed.into_iter());
            drawn.map_err(|error| Failure::io("can't draw", &error))?;
        }
        if let Some((x, y)) = cursor.filter(|_| cursor != self.cursor || !bytes.is_empty()) {
            bytes.extend_from_slice(format!("\x1b[{};{}H\x1b[?25h", y + 1, x + 1).as_bytes());
        } else if cursor.is_none() && self.cursor.is_some() {
            bytes.extend_from_slice(b"\x1b[?25l");
        }
        (self.shown, self.cursor) = (frame, cursor);
        if bytes.is_empty() { Ok(()) } else { self.show(&bytes, None) }
    }

    /// Waits for a key or a signal after another program has run, so that its output can be read. Returns the signal,
    /// which is still to be handled. A new size of the terminal does not end the wait.
    ///
    /// # Errors
    /// The terminal is gone.
    pub fn pause(&mut self, signals: &Signals) -> Result<Option<Caught>, Failure> {
        self.keyboard.take();
        self.show(PAUSED, None)?;
        let caught = loop {
            if let Some(caught) = self.next_ending(signals)? {
                break Some(caught);
            }
            let mut sources = [
                PollFd::new(self.keyboard.as_fd(), PollFlags::POLLIN),
                PollFd::new(signals.as_fd(), PollFlags::POLLIN),
            ];
            let waited = poll(&mut sources, PollTimeout::NONE);
            if sources[0].any().unwrap_or(false) {
                // Any key will do. If the terminal is gone, the loop notices.
                let _ = self.keyboard.read(&mut [0; 64]);
                break None;
            }
            if waited.is_err() {
                break None;
            }
        };
        self.show(b"\r\n", None)?;
        Ok(caught)
    }

    /// Returns the next signal that ends a pause.
    fn next_ending(&mut self, signals: &Signals) -> Result<Option<Caught>, Failure> {
        while let Some(caught) = signals.next_caught() {
            match caught.signal {
                Signal::SIGWINCH => {}
                Signal::SIGCONT => {
                    // A shell may have set its own modes, and written over the words.
                    self.keyboard.retake();
                    self.show(PAUSED, None)?;
                }
                _ => return Ok(Some(caught)),
            }
        }
        Ok(None)
    }

    fn show(&mut self, bytes: &[u8], restore: Option<String>) -> Result<(), Failure> {
        self.screen.show(bytes, restore).map_err(gone)
    }

    /// Writes output that the terminal has not accepted yet.
    ///
    /// # Errors
    /// The terminal is gone.
    pub fn write(&mut self) -> Result<(), Failure> {
        self.screen.write().map_err(gone)
    }

    /// Returns the descriptor to poll for writing; `None` if no output is pending.
    pub fn pending(&self) -> Option<BorrowedFd<'_>> {
        self.screen.wants_write().then(|| self.screen.as_fd())
    }

    pub fn keyboard(&self) -> &Keyboard {
        &self.keyboard
    }

    /// Stops this process, as Ctrl-Z does, and takes over the terminal again when continued.
    ///
    /// # Errors
    /// Another program controls the terminal.
    pub fn stop(&mut self) -> Result<(), Failure> {
        self.leave();
        stop_here();
        self.enter()
    }
}

impl Drop for Canvas {
    fn drop(&mut self) {
        self.leave();
    }
}

/// Creates the failure of a write. A closed terminal may reject a frame before its SIGHUP is read; both end alike.
fn gone(error: io::Error) -> Failure {
    match error.raw_os_error() {
        Some(code) if code == Errno::EIO as i32 => {
            Failure::new(Code::HUNG_UP, "io", format!("the terminal is gone: {error}"))
        }
        _ if error.kind() == io::ErrorKind::BrokenPipe => error.into(),
        _ => Failure::io("the terminal is gone", &error),
    }
}

/// Makes a panic leave the alternate screen before it is reported, so that the report can be read.
fn leave_before_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = panic::take_hook();
        panic::set_hook(Box::new(move |what| {
            let mut out = io::stdout().lock();
            let _ = out.write_all(LEAVE.as_bytes()).and_then(|()| out.flush());
            before(what);
        }));
    });
}
