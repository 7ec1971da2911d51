//! The line that the user types. rustyline edits it and keeps the history, on a separate thread because it blocks on
//! keys. Another thread prints above the prompt meanwhile, because printing may block too.
//!
//! No other module uses rustyline. Nothing else touches the terminal while a line is typed.

use std::collections::VecDeque;
use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, SyncSender};
use std::thread;
use std::time::{Duration, Instant};

use bgd_shared::dirs;
use bgd_shared::foreground::Key;
use bgd_shared::owned;
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
use crate::link::time_left;

/// Maximum number of lines of history.
const HISTORY_LINES: usize = 1000;

/// Maximum number of queued messages from the other threads. Further ones block their senders.
const HEARD: usize = 1024;

/// Number of bytes that may wait to be printed above the prompt before no more output is read from the jobs there.
const PENDING_BYTES: usize = 64 * 1024;

/// How long a completed line waits for text that is being printed above it.
const QUIET: Duration = Duration::from_millis(20);

/// Turns off bracketed paste, which rustyline turns on, and ends the line.
const NO_PASTE: &str = "\x1b[?2004l\r\n";

type Reader = rustyline::Editor<(), FileHistory>;

/// A message from another thread.
#[derive(Debug)]
pub enum Heard {
    /// A line was typed. The terminal is free.
    Line(String),
    /// Ctrl-D on an empty line.
    End,
    /// Reading lines has failed.
    Broken(String),
    /// The key was pressed at the prompt.
    Pressed,
    /// A text was printed; the next one may follow.
    Printed,
    /// A notification to be printed above the prompt.
    News(String),
    /// The connection for notifications was lost.
    NewsLost,
}

/// Sends messages to the console's main thread.
#[derive(Clone, Debug)]
pub struct MessageSender {
    heard: SyncSender<Heard>,
    wake: Arc<EventFd>,
}

impl MessageSender {
    /// Sends a message. Returns false if the receiver is gone.
    pub fn say(&self, what: Heard) -> bool {
        self.heard.send(what).is_ok() && self.wake.write(1).is_ok()
    }
}

/// The prompt.
#[derive(Debug)]
pub struct Editor {
    prompts: Sender<String>,
    texts: Sender<String>,
    speaker: MessageSender,
    heard: Receiver<Heard>,
    /// Messages received out of turn.
    early: VecDeque<Heard>,
    wake: Arc<EventFd>,
    /// Whole lines to be printed.
    pending: String,
    /// Whether a text is being printed above the prompt.
    is_printing: bool,
    is_open: bool,
    /// The terminal modes before this editor changed them.
    modes: Termios,
}

impl Editor {
    /// Starts the threads, with the history in this file, if given. At the prompt, `key` does not edit but is reported.
    /// A problem with the history is not fatal; it is returned as the second value.
    ///
    /// # Errors
    /// The terminal does not support line editing, or a thread can't be started.
    pub fn start(key: Key, history: Option<PathBuf>) -> Result<(Self, Option<String>), Failure> {
        let wake = EventFd::from_flags(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)
            .map_err(|error| Failure::io("can't start reading lines", &error.into()))?;
        let wake = Arc::new(wake);
        let (to_hear, heard) = mpsc::sync_channel(HEARD);
        let speaker = MessageSender { heard: to_hear, wake: Arc::clone(&wake) };
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

    /// Returns a sender of messages to this editor.
    pub fn speaker(&self) -> MessageSender {
        self.speaker.clone()
    }

    pub fn is_open(&self) -> bool {
        self.is_open
    }

    /// Lets the user type a line.
    pub fn open(&mut self, prompt: String) {
        self.is_open = self.prompts.send(prompt).is_ok();
        if !self.is_open {
            self.early.push_back(Heard::Broken("the thread that reads lines has ended".to_owned()));
        }
        self.print_pending();
    }

    /// Prints whole lines above the prompt. Without a prompt they wait for the next one.
    pub fn print(&mut self, lines: &str) {
        self.pending.push_str(lines);
        self.print_pending();
    }

    /// Takes the lines not printed yet, to print them elsewhere.
    pub fn take_pending(&mut self) -> String {
        std::mem::take(&mut self.pending)
    }

    /// Reports whether more lines may be queued.
    pub fn has_room(&self) -> bool {
        self.pending.len() < PENDING_BYTES
    }

    /// Returns the next message, if there is one.
    pub fn next_heard(&mut self) -> Option<Heard> {
        // Reset the event before looking, so that a message that arrives afterwards wakes us again.
        let _ = self.wake.read();
        let heard = self.early.pop_front().or_else(|| self.heard.try_recv().ok())?;
        // The caller may stop here, and those that are left would not wake it again.
        let _ = self.wake.write(1);
        match heard {
            Heard::Printed => {
                self.is_printing = false;
                self.print_pending();
            }
            Heard::Line(_) | Heard::End | Heard::Broken(_) => {
                self.is_open = false;
                self.finish_printing();
            }
            Heard::Pressed | Heard::News(_) | Heard::NewsLost => {}
        }
        Some(heard)
    }

    /// Reports whether the user has pressed Ctrl-D on an empty line. All messages stay for [`Self::next_heard`].
    pub fn asks_to_end(&mut self) -> bool {
        // As in `next_heard`.
        let _ = self.wake.read();
        self.early.extend(self.heard.try_iter());
        self.early.iter().any(|heard| matches!(heard, Heard::End))
    }

    fn print_pending(&mut self) {
        if self.is_open && !self.is_printing && !self.pending.is_empty() {
            let text = self.take_pending();
            self.is_printing = self.texts.send(text).is_ok();
        }
    }

    /// Waits briefly for text that is being printed while the line is completed. If that takes longer, the text appears
    /// at the next prompt.
    fn finish_printing(&mut self) {
        let until = Instant::now() + QUIET;
        while self.is_printing {
            match self.heard.recv_timeout(time_left(until)) {
                Ok(Heard::Printed) => self.is_printing = false,
                Ok(other) => self.early.push_back(other),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return,
            }
        }
    }
}

/// Leaves the typed line as it is, but restores the terminal.
impl Drop for Editor {
    fn drop(&mut self) {
        if self.is_open {
            let _ = tcsetattr(io::stdin(), OptionalActions::Now, &self.modes);
            let mut out = io::stdout().lock();
            let _ = out.write_all(NO_PASTE.as_bytes()).and_then(|()| out.flush());
        }
    }
}

/// Readable when there are messages.
impl AsFd for Editor {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }
}

/// Returns the history file: `$XDG_STATE_HOME/bgd/console_history`, else below `~/.local/state`. `None` if the user has
/// no home.
pub fn history_path() -> Option<PathBuf> {
    Some(dirs::known_state()?.join("console_history"))
}

fn spawn(name: &str, run: impl FnOnce() + Send + 'static) -> Result<(), Failure> {
    let thread = thread::Builder::new().name(name.to_owned()).spawn(run);
    thread.map(drop).map_err(|error| Failure::io("can't start a thread", &error))
}

fn unusable(error: &ReadlineError) -> Failure {
    let kind = std::env::var("TERM").unwrap_or_default();
    // For these, the library reports that this is no terminal, which would mislead.
    let is_known = ["dumb", "cons25", "emacs"].iter().any(|name| name.eq_ignore_ascii_case(&kind));
    let why = if is_known { String::new() } else { format!(": {error}") };
    Failure::usage(format!("this terminal does not support line editing (TERM={kind}){why}"))
        .hint("use `bgctl run` and `bgctl submit`; or set TERM, for example to xterm-256color")
}

fn reader(key: Key, speaker: &MessageSender) -> rustyline::Result<Reader> {
    let config = Config::builder()
        .max_history_size(HISTORY_LINES)?
        .history_ignore_dups(true)?
        .history_ignore_space(true)
        .build();
    let mut reader = Reader::with_config(config)?;
    // Shells ignore Ctrl-Z at their prompts, too. The key comes after it, as it may be Ctrl-Z itself.
    reader.bind_sequence(KeyEvent::ctrl('Z'), Cmd::Noop);
    if let Some(byte) = key.byte() {
        let press: Box<dyn ConditionalEventHandler> = Box::new(Press(speaker.clone()));
        let key = KeyEvent::new(char::from(byte), Modifiers::NONE);
        reader.bind_sequence(key, EventHandler::Conditional(press));
    }
    Ok(reader)
}

/// Handles the key at the prompt, where it edits nothing (R65).
struct Press(MessageSender);

impl ConditionalEventHandler for Press {
    fn handle(&self, _: &Event, _: RepeatCount, _: bool, _: &EventContext<'_>) -> Option<Cmd> {
        self.0.say(Heard::Pressed);
        Some(Cmd::Noop)
    }
}

/// Loads the history from a file that only the user may read, creating the file if necessary.
fn remember(reader: &mut Reader, history: &Path) -> Result<(), String> {
    let describe =
        |error: &dyn std::fmt::Display| format!("history not available: {}: {error}", history.display());
    let open = || {
        if let Some(folder) = history.parent() {
            owned::folders(folder, 0o700)?;
        }
        owned::file(OpenOptions::new().append(true), history, 0o600)
    };
    open().map_err(|error: io::Error| describe(&error))?;
    reader.load_history(history).map_err(|error| describe(&error))
}

fn read_lines(
    mut reader: Reader,
    history: Option<&Path>,
    prompts: &Receiver<String>,
    speaker: &MessageSender,
) {
    let mut winch = SigSet::empty();
    winch.add(Signal::SIGWINCH);
    while let Ok(prompt) = prompts.recv() {
        // While this thread reads a line, it handles the signal; while a job has the terminal, the main thread does.
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
                // A failure to record the line must not lose it.
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

fn print_texts(mut printer: impl ExternalPrinter, texts: &Receiver<String>, speaker: &MessageSender) {
    while let Ok(text) = texts.recv() {
        if printer.print(text).is_err() || !speaker.say(Heard::Printed) {
            return;
        }
    }
}
