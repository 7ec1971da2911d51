//! Tracks which terminals have a new prompt: nothing was typed there since a program ended.
//!
//! When keys are read or output is written in a terminal, this module checks who has the terminal, and how many page
//! faults the ended children of its shell have had; every program causes some. If that number has changed, a program
//! has ended. If not, and keys were read, a line may be half typed. A shell may run programs for completion while a
//! line is edited: that looks like a new prompt until the next key. A command that the shell runs itself (`echo`) goes
//! unnoticed, unless a check happens while it runs.

use std::cell::RefCell;
use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use bgd_shared::proc;
use bgd_shared::request::OriginTerminal;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, WatchDescriptor};
use serde::{Deserialize, Serialize};
use tokio::io::unix::AsyncFd;

use super::device::{self, Shell};
use crate::exec::processes::members;
use crate::os::watch::{self, Changes};

/// Maximum number of watched terminals. Beyond that the oldest is dropped; its prompt is never considered new again.
const TERMINALS: usize = 16;

/// Keys read, or output written.
const EVENTS: AddWatchFlags = AddWatchFlags::IN_ACCESS.union(AddWatchFlags::IN_MODIFY);

/// The pause after each check: a program may write continuously.
const CHECK_INTERVAL: Duration = Duration::from_millis(20);

#[derive(Clone, Default)]
pub struct Keys(Rc<RefCell<Option<Watched>>>);

struct Watched {
    /// Shared with [`follow`], which waits for its events and ends once this one is dropped.
    inotify: Rc<AsyncFd<Changes>>,
    terminals: Vec<Terminal>,
}

struct Terminal {
    origin: OriginTerminal,
    watch: WatchDescriptor,
    /// The shell at the last check; `None` if another program had the terminal.
    shell: Option<Shell>,
    is_prompt_new: bool,
}

/// The state of a terminal's prompt, for an upgrade in place.
#[derive(Debug, Serialize, Deserialize)]
pub struct KeysState {
    terminal: OriginTerminal,
    shell: Option<Shell>,
    /// How often the shell may have gone to sleep without having read a key.
    sleeps: u64,
    is_prompt_new: bool,
}

impl Terminal {
    fn sleeps(&self) -> u64 {
        self.shell.as_ref().map_or(0, |shell| members::sleeps(shell.pid))
    }

    /// Returns how often the shell may have gone to sleep before it reads a key. A shell that is awake, because it has
    /// just written its prompt, goes to sleep once more to wait for a key. A key that has woken the shell at this very
    /// moment is missed.
    fn sleeps_without_key(&self) -> u64 {
        let sleeps = self.sleeps();
        let state = self.shell.as_ref().and_then(|shell| proc::state(shell.pid));
        // If the shell went to sleep in between, the lower number at worst makes a new prompt look old.
        let is_awake = state != Some('S') && self.sleeps() == sleeps;
        sleeps + u64::from(is_awake)
    }

    fn look(&mut self, was_read: bool) {
        let shell = device::shell_at(&self.origin);
        let has_changed = shell.is_none() || shell != self.shell;
        if has_changed && !self.is_prompt_new {
            tracing::debug!(path = self.origin.path, "a terminal has a new prompt");
        }
        self.is_prompt_new = has_changed || self.is_prompt_new && !was_read;
        self.shell = shell;
    }
}

impl Keys {
    /// Watches a terminal in which this process has submitted a task.
    pub fn watch(&self, origin: &OriginTerminal, submitter: Option<i32>) {
        let is_new = self.0.borrow().is_none();
        let watched = self.watched(origin, submitter);
        if let Err(error) = watched {
            tracing::debug!(path = origin.path, %error, "the keys of a terminal can't be watched");
        } else if is_new && let Some(watched) = &*self.0.borrow() {
            tokio::task::spawn_local(follow(self.clone(), Rc::clone(&watched.inotify)));
        }
    }

    fn watched(&self, origin: &OriginTerminal, submitter: Option<i32>) -> io::Result<()> {
        if !device::is_tty(&origin.path) {
            return Err(io::Error::other("it is not a terminal"));
        }
        let mut watched = self.0.borrow_mut();
        let Watched { inotify, terminals } = match &mut *watched {
            Some(watched) => watched,
            None => watched.insert(Watched::new()?),
        };
        if terminals.iter().any(|terminal| terminal.origin == *origin) {
            return Ok(());
        }
        let watch = inotify.get_ref().0.add_watch(OsStr::new(&origin.path), EVENTS)?;
        // An earlier session used the same device.
        terminals.retain(|terminal| terminal.watch != watch);
        if terminals.len() == TERMINALS {
            let _ = inotify.get_ref().0.rm_watch(terminals.remove(0).watch);
        }
        // If the submitting command has ended already, assume that it was typed there, so that the prompt is new.
        let is_elsewhere = submitter.is_some_and(|pid| device::is_in_background(pid, origin));
        let shell = device::shell_at(origin);
        terminals.push(Terminal { origin: origin.clone(), watch, shell, is_prompt_new: !is_elsewhere });
        tracing::debug!(path = origin.path, "the keys of a terminal are watched");
        Ok(())
    }

    /// Returns the state of all prompts for an upgrade.
    pub fn state(&self) -> Vec<KeysState> {
        let mut watched = self.0.borrow_mut();
        let Some(watched) = &mut *watched else { return Vec::new() };
        // Must come first, so that keys read from here on count as read afterwards.
        let slept: HashMap<WatchDescriptor, u64> = watched
            .terminals
            .iter()
            .map(|terminal| (terminal.watch, terminal.sleeps_without_key()))
            .collect();
        watched.read();
        let state = |Terminal { origin, watch, shell, is_prompt_new }: &Terminal| KeysState {
            terminal: origin.clone(),
            shell: shell.clone(),
            sleeps: slept.get(watch).copied().unwrap_or_default(),
            is_prompt_new: *is_prompt_new,
        };
        watched.terminals.iter().map(state).collect()
    }

    /// Restores the state of prompts from before an upgrade. The sleeps of a shell show whether keys were read
    /// meanwhile.
    pub fn restore(&self, states: Vec<KeysState>) {
        for KeysState { terminal: origin, shell, sleeps, is_prompt_new } in states {
            self.watch(&origin, None);
            let mut watched = self.0.borrow_mut();
            let terminals = watched.as_mut().map(|watched| &mut watched.terminals);
            let found = terminals.and_then(|all| all.iter_mut().find(|terminal| terminal.origin == origin));
            if let Some(terminal) = found {
                (terminal.shell, terminal.is_prompt_new) = (shell, is_prompt_new);
                let was_read = terminal.sleeps() > sleeps;
                terminal.look(was_read);
            }
        }
    }

    /// Reports whether nothing was typed in a terminal since a program ended there, as far as is known.
    pub fn is_prompt_new(&self, origin: &OriginTerminal) -> bool {
        let mut watched = self.0.borrow_mut();
        let Some(watched) = &mut *watched else { return false };
        watched.read();
        let terminal = watched.terminals.iter_mut().find(|terminal| terminal.origin == *origin);
        terminal.is_some_and(|terminal| {
            terminal.look(false);
            terminal.is_prompt_new
        })
    }
}

impl Watched {
    fn new() -> io::Result<Self> {
        let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
        Ok(Self { inotify: Rc::new(watch::changes(inotify)?), terminals: Vec::new() })
    }

    /// Reads all pending events and checks the terminals they concern.
    fn read(&mut self) {
        let mut were_read = HashMap::new();
        while let Ok(events) = self.inotify.get_ref().0.read_events() {
            for event in events {
                let is_gone = event.mask.contains(AddWatchFlags::IN_IGNORED);
                self.terminals.retain(|terminal| !is_gone || terminal.watch != event.wd);
                *were_read.entry(event.wd).or_default() |= event.mask.contains(AddWatchFlags::IN_ACCESS);
            }
        }
        for terminal in &mut self.terminals {
            if let Some(was_read) = were_read.get(&terminal.watch) {
                terminal.look(*was_read);
            }
        }
    }
}

/// Checks terminals when events arrive.
async fn follow(keys: Keys, inotify: Rc<AsyncFd<Changes>>) {
    while let Ok(mut ready) = inotify.readable().await {
        ready.clear_ready();
        if let Some(watched) = &mut *keys.0.borrow_mut() {
            watched.read();
        }
        tokio::time::sleep(CHECK_INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_terminals_are_watched() {
        let home = tempfile::tempdir().unwrap();
        let leader = std::process::id().cast_signed();
        let keys = Keys::default();
        for path in [home.path().to_str().unwrap(), "/dev/pts/../null", "/dev/null"] {
            let origin = OriginTerminal { path: path.to_owned(), leader };
            assert!(keys.watched(&origin, None).is_err(), "{path}");
        }
        assert!(keys.0.borrow().is_none());
    }
}
