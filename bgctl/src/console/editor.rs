//! The line that the user types: editing and history by rustyline, in a thread of its own, as it waits for
//! keys; and what is printed above the prompt meanwhile, in another one, as that may have to wait too.
//!
//! Nothing else names rustyline. Nobody but this touches the terminal while a line is typed.

use std::collections::VecDeque;
use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, SyncSender};
use std::thread;
use std::time::{Duration, Instant};

use bgd_shared::foreground::Key;
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::signal::{SigSet, Signal};
use rustix::termios::{OptionalActions, Termios, tcgetattr, tcsetattr};
use rustyline::error::ReadlineError;
use rustyline::history::FileHistory;
use rustyline::{
    Cmd, ConditionalEventHandler, Config, Event, EventContext, EventHandler, ExternalPrinter, KeyEvent,
    Modifiers, RepeatCount,
};

use crate::failure::Failure;

/// Lines of the history that are kept.
const HISTORY_LINES: usize = 1000;

/// Words of other threads that wait to be heard. One more makes its thread wait.
const HEARD: usize = 1024;

/// Bytes that wait to be printed above the prompt before no more are taken from the jobs there.
const PENDING_BYTES: usize = 64 * 1024;

/// How long a line that was typed waits for what is printed above it at that moment.
const QUIET: Duration = Duration::from_millis(20);

/// Ends what rustyline begins, and the line: pastes are marked no more.
const NO_PASTE: &str = "\x1b[?2004l\r\n";

type Reader = rustyline::Editor<(), FileHistory>;

/// What the other threads say.
#[derive(Debug)]
pub enum Heard {
    /// A line was typed. The terminal is free.
    Line(String),
    /// Ctrl-D on an empty line.
    End,
    /// No line can be read any more.
    Broken(String),
    /// The key was pressed at the prompt.
    Pressed,
    /// Something was printed, and there may be more.
    Printed,
    /// News to be printed above the prompt.
    News(String),
}

/// Says something to the thread that listens.
#[derive(Clone, Debug)]
pub struct Speaker {
    heard: SyncSender<Heard>,
    wake: Arc<EventFd>,
}

impl Speaker {
    /// False: nobody listens any more.
    pub fn say(&self, what: Heard) -> bool {
        self.heard.send(what).is_ok() && self.wake.write(1).is_ok()
    }
}

/// The prompt.
#[derive(Debug)]
pub struct Editor {
    prompts: Sender<String>,
    texts: Sender<String>,
    speaker: Speaker,
    heard: Receiver<Heard>,
    /// What was heard out of turn.
    early: VecDeque<Heard>,
    wake: Arc<EventFd>,
    /// What is to be printed, in whole lines.
    pending: String,
    /// A text is on its way above the prompt.
    is_printing: bool,
    /// A line is being typed.
    is_open: bool,
    /// How the terminal was before.
    modes: Termios,
}

impl Editor {
    /// Begins, with the history in this file, if it is to be kept. `key`, pressed at the prompt, edits nothing but is heard.
    /// What is wrong with the history is no reason not to begin: it comes as the second value.
    ///
    /// # Errors
    /// The terminal can't be used for this.
    pub fn start(key: Key, history: Option<PathBuf>) -> Result<(Self, Option<String>), Failure> {
        let wake = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
            .map_err(|error| Failure::io("can't start reading lines", &error.into()))?;
        let wake = Arc::new(wake);
        let (to_hear, heard) = mpsc::sync_channel(HEARD);
        let speaker = Speaker { heard: to_hear, wake: Arc::clone(&wake) };
        let modes = tcgetattr(io::stdin()).map_err(|error| Failure::io("the terminal", &error.into()))?;
        let mut reader = reader(key, &speaker).map_err(|error| unusable(&error))?;
        let printer = reader.create_external_printer().map_err(|error| unusable(&error))?;
        let trouble = history.as_deref().and_then(|history| remember(&mut reader, history).err());
        let (prompts, to_read) = mpsc::channel();
        let (texts, to_print) = mpsc::channel();
        let history = history.filter(|_| trouble.is_none());
        let read = {
            let speaker = speaker.clone();
            move || read_lines(reader, history.as_deref(), &to_read, &speaker)
        };
        let print = {
            let speaker = speaker.clone();
            move || print_texts(printer, &to_print, &speaker)
        };
        spawn("lines", read)?;
        spawn("above the prompt", print)?;
        let editor = Self {
            prompts,
            texts,
            speaker,
            heard,
            early: VecDeque::new(),
            wake,
            pending: String::new(),
            is_printing: false,
            is_open: false,
            modes,
        };
        Ok((editor, trouble))
    }

    /// Who says something to this one.
    pub fn speaker(&self) -> Speaker {
        self.speaker.clone()
    }

    /// Lets the user type a line.
    pub fn open(&mut self, prompt: String) {
        self.is_open = self.prompts.send(prompt).is_ok();
        if !self.is_open {
            self.early.push_back(Heard::Broken("the thread that reads lines has ended".to_owned()));
        }
        self.print_pending();
    }

    /// Prints whole lines above the prompt; while none is there they are kept for the next one.
    pub fn print(&mut self, lines: &str) {
        self.pending.push_str(lines);
        self.print_pending();
    }

    /// Takes what is to be printed and could not be yet, to print it elsewhere.
    pub fn take_pending(&mut self) -> String {
        std::mem::take(&mut self.pending)
    }

    /// Whether more should be printed.
    pub fn has_room(&self) -> bool {
        self.pending.len() < PENDING_BYTES
    }

    /// What was said, if there is something.
    pub fn next_heard(&mut self) -> Option<Heard> {
        // Before the look, so that what comes behind the look wakes again.
        let _ = self.wake.read();
        let heard = self.early.pop_front().or_else(|| self.heard.try_recv().ok())?;
        match heard {
            Heard::Printed => {
                self.is_printing = false;
                self.print_pending();
            }
            Heard::Line(_) | Heard::End | Heard::Broken(_) => {
                self.is_open = false;
                self.fall_silent();
            }
            Heard::Pressed | Heard::News(_) => {}
        }
        Some(heard)
    }

    fn print_pending(&mut self) {
        if self.is_open && !self.is_printing && !self.pending.is_empty() {
            let text = self.take_pending();
            self.is_printing = self.texts.send(text).is_ok();
        }
    }

    /// The line has been typed while something was printed. Either that is done in a moment, or it waits
    /// for the next prompt.
    fn fall_silent(&mut self) {
        let until = Instant::now() + QUIET;
        while self.is_printing {
            match self.heard.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok(Heard::Printed) => self.is_printing = false,
                Ok(other) => self.early.push_back(other),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return,
            }
        }
    }
}

/// The line that is typed is left as it is, but not the terminal.
impl Drop for Editor {
    fn drop(&mut self) {
        if self.is_open {
            let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.modes);
            let mut out = io::stdout().lock();
            let _ = out.write_all(NO_PASTE.as_bytes()).and_then(|()| out.flush());
        }
    }
}

/// It can be read when something was said.
impl AsFd for Editor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

/// Where the history is kept: `$XDG_STATE_HOME/bgd/console_history`, else below `~/.local/state`. `None`: the
/// user has no home.
pub fn history_path() -> Option<PathBuf> {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let state = absolute("XDG_STATE_HOME").or_else(|| Some(absolute("HOME")?.join(".local/state")))?;
    Some(state.join("bgd/console_history"))
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<(), Failure> {
    let thread = thread::Builder::new().name(name.to_owned()).spawn(run);
    thread.map(drop).map_err(|error| Failure::io("can't start a thread", &error))
}

fn unusable(error: &ReadlineError) -> Failure {
    let kind = std::env::var("TERM").unwrap_or_default();
    Failure::usage(format!("this terminal does not support line editing (TERM={kind}): {error}"))
        .hint("use `bgctl run` and `bgctl submit` instead")
}

fn reader(key: Key, speaker: &Speaker) -> rustyline::Result<Reader> {
    let config = Config::builder()
        .max_history_size(HISTORY_LINES)?
        .history_ignore_dups(true)?
        .history_ignore_space(true)
        .build();
    let mut reader = Reader::with_config(config)?;
    if let Some(byte) = key.byte() {
        let press: Box<dyn ConditionalEventHandler> = Box::new(Press(speaker.clone()));
        let key = KeyEvent::new(char::from(byte), Modifiers::NONE);
        reader.bind_sequence(key, EventHandler::Conditional(press));
    }
    // A shell does not stop either.
    reader.bind_sequence(KeyEvent::ctrl('Z'), Cmd::Noop);
    Ok(reader)
}

/// The key at the prompt: it edits nothing (R65).
struct Press(Speaker);

impl ConditionalEventHandler for Press {
    fn handle(&self, _: &Event, _: RepeatCount, _: bool, _: &EventContext<'_>) -> Option<Cmd> {
        self.0.say(Heard::Pressed);
        Some(Cmd::Noop)
    }
}

/// Reads the history, from a file that nobody else may read.
fn remember(reader: &mut Reader, history: &Path) -> Result<(), String> {
    let tell =
        |error: &dyn std::fmt::Display| format!("history not available: {}: {error}", history.display());
    let open = || {
        if let Some(folder) = history.parent() {
            DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
        }
        OpenOptions::new().append(true).create(true).mode(0o600).open(history)
    };
    open().map_err(|error: io::Error| tell(&error))?;
    reader.load_history(history).map_err(|error| tell(&error))
}

fn read_lines(mut reader: Reader, history: Option<&Path>, prompts: &Receiver<String>, speaker: &Speaker) {
    let mut winch = SigSet::empty();
    winch.add(Signal::SIGWINCH);
    while let Ok(prompt) = prompts.recv() {
        // The signal is this thread's while it reads, and the other one's while a job has the terminal.
        let _ = winch.thread_unblock();
        let typed = loop {
            match reader.readline(&prompt) {
                Err(ReadlineError::Interrupted) => {}
                typed => break typed,
            }
        };
        let _ = winch.thread_block();
        let heard = match typed {
            Ok(line) => {
                // A line that can't be kept is still a line.
                let is_new = reader.add_history_entry(line.as_str()).unwrap_or(false);
                if let (true, Some(history)) = (is_new, history) {
                    let _ = reader.append_history(history);
                }
                Heard::Line(line)
            }
            Err(ReadlineError::Eof) => Heard::End,
            Err(error) => Heard::Broken(error.to_string()),
        };
        if !speaker.say(heard) {
            return;
        }
    }
}

fn print_texts(mut printer: impl ExternalPrinter, texts: &Receiver<String>, speaker: &Speaker) {
    while let Ok(text) = texts.recv() {
        if printer.print(text).is_err() || !speaker.say(Heard::Printed) {
            return;
        }
    }
}
