//! `bgctl console` in a real terminal: what its user sees, by the seed and requirements R60 to R71.

mod ends;
mod key;
mod prompt;

use std::fs::{File, OpenOptions};

use bgd_shared::id::TaskId;
use bgd_shared::request::{ListParams, TaskList};
use bgd_shared::task::Task;
use bgd_tests::{Process, Terminal, TestDaemon, processes_of, wait};
use rustix::process::Signal;

#[track_caller]
fn console(daemon: &TestDaemon) -> Terminal {
    let mut console = Terminal::bgctl(daemon, &["console", "--session", "here"]);
    at_prompt(&mut console);
    console
}

/// Waits for the prompt on an otherwise empty line.
#[track_caller]
fn at_prompt(console: &mut Terminal) {
    console.wait_line("~>");
}

#[track_caller]
fn run_line(console: &mut Terminal, line: &str) {
    console.type_keys("\x0c");
    console.wait("a clear screen", |screen| screen.contents().trim_end() == "~>");
    console.type_line(line);
    console.wait("the next prompt", |screen| {
        let shown = screen.contents();
        shown.matches("~>").count() > 1 && shown.trim_end().ends_with("\n~>")
    });
}

/// Returns the ids in the sentences of R61, each alone on its line.
fn moved(console: &Terminal) -> Vec<TaskId> {
    let screen = console.screen();
    let ids = screen.lines().filter_map(|line| {
        let id = line.strip_prefix("Command was manually backgrounded by user with ID ")?;
        Some(id.trim_end().parse().unwrap_or_else(|_| panic!("{line:?}")))
    });
    ids.collect()
}

#[track_caller]
fn task_of(daemon: &TestDaemon, description: &str) -> Task {
    let tasks = daemon.client().call::<TaskList>(&ListParams::default()).unwrap().tasks;
    let task = tasks.into_iter().find(|task| task.description == description);
    daemon.task(task.unwrap_or_else(|| panic!("there is no task {description:?}")).id)
}

/// Returns the process with this command line that a console has started without a task.
#[track_caller]
fn hanging(daemon: &TestDaemon, line: &str) -> Process {
    wait::poll_until("the process that hangs", || {
        processes_of(daemon.home()).into_iter().find(|process| process.cmdline() == line)
    })
}

/// Makes a FIFO in the home for the test to write to.
fn fifo(daemon: &TestDaemon) -> File {
    let path = daemon.home().join("fifo");
    nix::unistd::mkfifo(&path, nix::sys::stat::Mode::S_IRWXU).unwrap();
    // Opened for reading too, so that opening does not block.
    OpenOptions::new().read(true).write(true).open(path).unwrap()
}

/// Interrupts the console until this holds, as Ctrl-C does once a line was taken. At the prompt it has no effect.
#[track_caller]
pub(crate) fn interrupt_until(console: &Terminal, is_over: impl Fn() -> bool) {
    let process = console.process();
    wait::poll_until("the line was taken", || console.is_sane().then_some(()));
    wait::poll_until("the end of the wait", || {
        // It may have ended.
        let _ = process.signal(Signal::INT);
        is_over().then_some(())
    });
}
