//! A real terminal for a program under test: a terminal emulator reads the master of a pty, so that a test sees the
//! screen that a user would see.
//!
//! The program is the leader of its own session and has the pty as its controlling terminal, as in the window of a
//! terminal program. Nothing waits for a time: [`Terminal::wait`] checks the screen after each write to it.

use std::collections::VecDeque;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::num::NonZero;
use std::os::fd::AsFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Instant;

use nix::fcntl::OFlag;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{LocalModes, OptionalActions, Winsize, tcgetattr, tcgetpgrp, tcsetattr, tcsetwinsize};

use crate::daemon::TestDaemon;
use crate::process::Process;
use crate::wait::{PATIENCE, poll_until, readable};

/// The default size of a terminal: rows and columns.
pub const SIZE: (u16, u16) = (24, 80);

/// Number of the latest bytes that [`Terminal::shown`] keeps.
const SHOWN_BYTES: usize = 1 << 20;

/// A terminal with a program in it. Dropping it kills the program and closes the terminal.
pub struct Terminal {
    master: Option<File>,
    child: Child,
    emulator: vt100::Parser,
    shown: VecDeque<u8>,
}

impl Terminal {
    /// Runs a program in a new terminal. Uses only the program, arguments, folder and variables of the command; the
    /// program gets no other variables except `TERM`.
    #[track_caller]
    pub fn open(command: &Command) -> Self {
        Self::sized(command, SIZE)
    }

    /// Like [`Self::open`], in a terminal of this size.
    #[track_caller]
    pub fn sized(command: &Command, (rows, cols): (u16, u16)) -> Self {
        // Unlike those of `openpty`, none of these descriptors can leak into another child of this process.
        let flags = OpenptFlags::RDWR | OpenptFlags::NOCTTY | OpenptFlags::CLOEXEC;
        let master = openpt(flags).expect("a terminal");
        grantpt(&master).and_then(|()| unlockpt(&master)).expect("a terminal that can be opened");
        let name = ptsname(&master, Vec::new()).expect("a terminal with a name");
        let slave = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(OFlag::O_NOCTTY.bits())
            .open(std::ffi::OsStr::from_bytes(name.as_bytes()))
            .expect("the other side of the terminal");
        // Set before the program starts, because it may read the size at once.
        tcsetwinsize(&slave, window(rows, cols)).expect("a terminal has a size");
        Self {
            child: in_session(command, &slave).spawn().unwrap_or_else(|error| panic!("{command:?}: {error}")),
            master: Some(master.into()),
            emulator: vt100::Parser::new(side(rows), side(cols), 1000),
            shown: VecDeque::new(),
        }
    }

    /// Starts an interactive bash in the home of a daemon, at its prompt `$ `.
    #[track_caller]
    pub fn shell(daemon: &TestDaemon) -> Self {
        let mut bash = daemon.bgctl(&[]);
        bash.env("PS1", "$ ").env("PATH", path_with_programs());
        let mut command = Command::new("bash");
        command.args(["--norc", "--noprofile", "-i"]);
        copy_surroundings(&bash, &mut command);
        let mut shell = Self::open(&command);
        shell.wait_prompt();
        shell
    }

    /// Starts a `bgctl` in the home of a daemon.
    #[track_caller]
    pub fn bgctl(daemon: &TestDaemon, args: &[&str]) -> Self {
        Self::open(&daemon.bgctl(args))
    }

    fn master(&self) -> &File {
        self.master.as_ref().expect("the terminal was not closed")
    }

    /// Types these bytes, and keeps reading meanwhile.
    #[track_caller]
    pub fn type_keys(&mut self, keys: impl AsRef<[u8]>) {
        let mut keys = keys.as_ref();
        while !keys.is_empty() {
            let mut sources = [PollFd::new(self.master().as_fd(), PollFlags::POLLIN | PollFlags::POLLOUT)];
            let patience = PollTimeout::try_from(PATIENCE).expect("a short time");
            let count = poll(&mut sources, patience).expect("poll");
            assert!(count > 0, "nobody reads what is typed; {self:?}");
            let flags = sources[0].revents().unwrap_or(PollFlags::empty());
            if flags.contains(PollFlags::POLLOUT) {
                // Few enough at once that the write does not block.
                let (some, rest) = keys.split_at(keys.len().min(256));
                self.master().write_all(some).expect("a terminal takes keys");
                keys = rest;
            } else {
                assert!(self.read(), "the terminal was closed; {self:?}");
            }
        }
    }

    /// Types a line.
    #[track_caller]
    pub fn type_line(&mut self, line: &str) {
        self.type_keys(format!("{line}\r"));
    }

    /// Types a line to a program such as `cat`, which repeats it, and waits for that: by then, everything written to
    /// the terminal before has been read.
    #[track_caller]
    pub fn repeat_line(&mut self, line: &str) {
        let end = format!("{line}\r\n").into_bytes();
        let times = |shown: &[u8]| shown.windows(end.len()).filter(|part| *part == end).count();
        let wanted = times(&self.shown()) + 2;
        self.type_line(line);
        self.wait_shown(&format!("{line:?} and its repetition"), |shown| times(shown) >= wanted);
    }

    /// Reads what is there already.
    #[track_caller]
    pub fn catch_up(&mut self) {
        while readable(self.master().as_fd(), std::time::Duration::ZERO) && self.read() {}
    }

    /// Reads once from the terminal. Returns false if the program has closed it.
    #[track_caller]
    fn read(&mut self) -> bool {
        let mut buffer = vec![0; 64 * 1024];
        match self.master().read(&mut buffer) {
            Ok(0) => false,
            Ok(count) => {
                let bytes = &buffer[..count];
                self.emulator.process(bytes);
                self.shown.extend(bytes);
                let too_many = self.shown.len().saturating_sub(SHOWN_BYTES);
                self.shown.drain(..too_many);
                true
            }
            Err(error) if error.raw_os_error() == Some(nix::errno::Errno::EIO as i32) => false,
            Err(error) => panic!("the terminal can't be read: {error}"),
        }
    }

    /// Waits until `is_so` holds for the screen.
    #[track_caller]
    pub fn wait(&mut self, what: &str, is_so: impl Fn(&vt100::Screen) -> bool) {
        self.read_until(what, |terminal| is_so(terminal.emulator.screen()));
    }

    /// Waits until `is_so` holds for all output, including overwritten parts.
    #[track_caller]
    pub fn wait_shown(&mut self, what: &str, is_so: impl Fn(&[u8]) -> bool) {
        self.read_until(what, |terminal| is_so(&terminal.shown()));
    }

    #[track_caller]
    fn read_until(&mut self, what: &str, is_so: impl Fn(&Self) -> bool) {
        let end = Instant::now() + PATIENCE;
        while !is_so(self) {
            let left = end.saturating_duration_since(Instant::now());
            assert!(readable(self.master().as_fd(), left), "waited for {what}; {self:?}");
            assert!(self.read(), "the terminal was closed before {what}; {self:?}");
        }
    }

    /// Waits until this text is on the screen. A wrapped line counts as one, and every line ends with a
    /// newline, without trailing blanks.
    #[track_caller]
    pub fn wait_text(&mut self, text: &str) {
        self.wait(&format!("{text:?}"), |screen| lines(screen).contains(text));
    }

    /// Waits until the cursor's line equals this one.
    #[track_caller]
    pub fn wait_line(&mut self, line: &str) {
        self.wait(&format!("the line {line:?}"), |screen| cursor_line(screen) == line.trim_end());
    }

    /// Waits until the program is in the alternate screen, or out of it.
    #[track_caller]
    pub fn wait_alternate(&mut self, is_in: bool) {
        self.wait(&format!("alternate screen: {is_in}"), |screen| screen.alternate_screen() == is_in);
    }

    /// Waits for the prompt of [`Self::shell`] on an otherwise empty line.
    #[track_caller]
    pub fn wait_prompt(&mut self) {
        self.wait_line("$");
    }

    /// Types a command to the shell, waits for its end and returns the exit code.
    #[track_caller]
    pub fn run_line(&mut self, line: &str) -> i32 {
        // Quoted, so that the echo of the typed line does not match.
        self.type_line(&format!("{line}; echo \"<$?>\""));
        self.wait_code()
    }

    /// Waits for an exit code printed as `<3>` at the beginning of a line, and returns it.
    #[track_caller]
    pub fn wait_code(&mut self) -> i32 {
        let code = |screen: &vt100::Screen| {
            screen
                .contents()
                .lines()
                .rev()
                .find_map(|line| line.strip_prefix('<')?.strip_suffix('>')?.parse().ok())
        };
        self.wait("an exit code", |screen| code(screen).is_some());
        let code = code(self.emulator.screen()).expect("it was there");
        self.wait_prompt();
        self.clear();
        code
    }

    /// Clears the shell's screen at its prompt, so that no old text is found.
    #[track_caller]
    pub fn clear(&mut self) {
        self.type_keys("\x0c");
        // A notice may follow immediately.
        let is_old = |row: &str| !row.is_empty() && !row.starts_with("[BACKGROUND");
        self.wait("a clear screen", |screen| {
            screen.contents().lines().map(str::trim_end).filter(|row| is_old(row)).eq(["$"])
        });
    }

    /// Makes the shell bring its stopped or background job to the foreground.
    #[track_caller]
    pub fn fg(&mut self) {
        self.clear();
        self.type_line("fg");
        self.wait_text("$ fg\nbgctl run ");
        // The shell prints this before it acts, and nothing reports when it is done.
        let shell = self.child.id().cast_signed();
        poll_until("the shell's leave of the terminal", || {
            let group = tcgetpgrp(self.master()).ok().map(|group| group.as_raw_nonzero().get());
            (group != Some(shell)).then_some(())
        });
    }

    /// Returns the text on the screen, without trailing blanks and trailing empty lines.
    pub fn screen(&self) -> String {
        lines(self.emulator.screen()).trim_end().to_owned()
    }

    pub fn emulated(&self) -> &vt100::Screen {
        self.emulator.screen()
    }

    /// Returns the last bytes written to the terminal, at most 1 MiB, verbatim.
    pub fn shown(&self) -> Vec<u8> {
        self.shown.iter().copied().collect()
    }

    /// Reads without feeding the emulator, until `wants_more` returns false or the program closes the
    /// terminal. For floods.
    #[track_caller]
    pub fn drain(&mut self, mut wants_more: impl FnMut(&[u8]) -> bool) {
        let mut buffer = vec![0; 64 * 1024];
        loop {
            assert!(readable(self.master().as_fd(), PATIENCE), "nothing is shown any more");
            match self.master().read(&mut buffer) {
                Ok(0) => return,
                Ok(count) if !wants_more(&buffer[..count]) => return,
                Ok(_) => {}
                Err(error) if error.raw_os_error() == Some(nix::errno::Errno::EIO as i32) => return,
                Err(error) => panic!("the terminal can't be read: {error}"),
            }
        }
    }

    /// Resizes the terminal to these rows and columns.
    pub fn resize(&mut self, (rows, cols): (u16, u16)) {
        tcsetwinsize(self.master(), window(rows, cols)).expect("a terminal has a size");
        self.emulator.screen_mut().set_size(side(rows), side(cols));
    }

    /// Reports whether the terminal is in the state that shells expect: lines, echo and Ctrl-C work.
    pub fn is_sane(&self) -> bool {
        let modes = tcgetattr(self.master()).expect("a terminal has modes");
        modes.local_modes.contains(LocalModes::ICANON | LocalModes::ECHO | LocalModes::ISIG)
    }

    /// Makes Ctrl-C, Ctrl-\\ and Ctrl-Z send signals, whatever the program has chosen.
    pub fn let_keys_signal(&self) {
        let mut modes = tcgetattr(self.master()).expect("a terminal has modes");
        modes.local_modes.insert(LocalModes::ISIG);
        tcsetattr(self.master(), OptionalActions::Now, &modes).expect("modes can be set");
    }

    #[track_caller]
    pub fn process(&self) -> Process {
        Process::open(self.child.id().cast_signed()).expect("it was not waited for yet")
    }

    /// Reads until the program ends, and returns its exit status.
    #[track_caller]
    pub fn ended(&mut self) -> ExitStatus {
        let process = self.process();
        let end = Instant::now() + PATIENCE;
        while process.is_alive() {
            let mut sources = [
                PollFd::new(self.master().as_fd(), PollFlags::POLLIN),
                PollFd::new(process.as_fd(), PollFlags::POLLIN),
            ];
            let left = end.saturating_duration_since(Instant::now());
            let left = PollTimeout::try_from(left).expect("a short time");
            assert!(poll(&mut sources, left).expect("poll") > 0, "the program does not end; {self:?}");
            let flags = sources[0].revents().unwrap_or(PollFlags::empty());
            if flags.contains(PollFlags::POLLIN) {
                self.read();
            } else if flags.contains(PollFlags::POLLHUP) {
                process.gone();
            }
        }
        // The rest of its output.
        self.catch_up();
        self.child.wait().expect("a child can be waited for")
    }

    /// Closes the terminal, as a user closes its window, and waits for the program's exit.
    #[track_caller]
    pub fn close(&mut self) -> ExitStatus {
        self.master = None;
        self.process().gone();
        self.child.wait().expect("a child can be waited for")
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // The program may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl fmt::Debug for Terminal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (row, col) = self.emulator.screen().cursor_position();
        let last: Vec<u8> = self.shown.iter().rev().take(1000).rev().copied().collect();
        let last = String::from_utf8_lossy(&last);
        write!(f, "the cursor is in row {row}, column {col} of\n{}\nlast was {last:?}", self.screen())
    }
}

fn window(rows: u16, cols: u16) -> Winsize {
    Winsize { ws_row: rows, ws_col: cols, ws_xpixel: 0, ws_ypixel: 0 }
}

fn side(length: u16) -> NonZero<u16> {
    NonZero::new(length).expect("a terminal has rows and columns")
}

fn lines(screen: &vt100::Screen) -> String {
    screen.contents().lines().flat_map(|line| [line.trim_end(), "\n"]).collect()
}

/// Returns the line that the cursor is on.
fn cursor_line(screen: &vt100::Screen) -> String {
    let row = usize::from(screen.cursor_position().0);
    let (_, cols) = screen.size();
    screen.rows(0, cols.get()).nth(row).unwrap_or_default().trim_end().to_owned()
}

/// Prepares the same program with the same arguments, folder and variables, in a session with this controlling
/// terminal.
fn in_session(command: &Command, terminal: &File) -> Command {
    let stream = || Stdio::from(terminal.as_fd().try_clone_to_owned().expect("a copy"));
    let mut inside = Command::new("setsid");
    inside.arg("--ctty").arg(command.get_program()).args(command.get_args());
    copy_surroundings(command, &mut inside);
    inside.env("TERM", "xterm-256color").stdin(stream()).stdout(stream()).stderr(stream());
    inside
}

fn copy_surroundings(from: &Command, to: &mut Command) {
    to.env_clear();
    for (name, value) in from.get_envs() {
        if let Some(value) = value {
            to.env(name, value);
        }
    }
    if let Some(folder) = from.get_current_dir() {
        to.current_dir(folder);
    }
}

/// Returns `PATH` with the programs under test in front.
fn path_with_programs() -> std::ffi::OsString {
    let bgctl = crate::bgctl_path();
    let mut path = bgctl.parent().expect("a program is in a folder").as_os_str().to_owned();
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap_or_else(|| "/usr/bin:/bin".into()));
    path
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open(program: &str, args: &[&str]) -> Terminal {
        let mut command = Command::new(program);
        command.args(args).env("PATH", "/usr/bin:/bin");
        Terminal::open(&command)
    }

    #[test]
    fn program_gets_its_own_terminal() {
        let mut terminal =
            open("sh", &["-c", "tty; stty size; ps -o tpgid= -o pgid= -p $$; read line; exit $line"]);
        terminal.wait_text("24 80");
        assert!(terminal.screen().starts_with("/dev/pts/"), "{terminal:?}");
        assert!(terminal.is_sane());
        terminal.type_line("7");
        assert_eq!(terminal.ended().code(), Some(7));
    }

    #[test]
    fn foreground_process_gets_resize_and_hangup_signals() {
        let script = "trap 'stty size' WINCH; trap 'exit 9' HUP; echo up; while :; do sleep 0.01; done";
        let mut terminal = open("bash", &["-c", script]);
        terminal.wait_text("up");
        terminal.resize((30, 100));
        terminal.wait_text("30 100");
        assert_eq!(terminal.close().code(), Some(9));
    }

    #[test]
    fn repeated_line_is_read_after_everything_before() {
        let mut terminal = open("sh", &["-c", "echo up; cat"]);
        terminal.wait_text("up");
        let tty = std::fs::read_link(terminal.process().proc("fd/0")).unwrap();
        for number in 1..=50 {
            std::fs::write(&tty, format!("text {number}\n")).unwrap();
            terminal.repeat_line("mark");
            assert!(String::from_utf8_lossy(&terminal.shown()).contains(&format!("text {number}\r\n")));
        }
    }

    #[test]
    fn screen_matches_what_a_user_sees() {
        let mut terminal =
            open("sh", &["-c", r"printf 'wrong\rright\n\033[?1049hfull'; read x; printf '\033[?1049l'"]);
        terminal.wait_alternate(true);
        terminal.wait_text("full");
        terminal.type_line("");
        terminal.wait_alternate(false);
        assert_eq!(terminal.screen(), "right");
        assert!(terminal.ended().success());
    }
}
