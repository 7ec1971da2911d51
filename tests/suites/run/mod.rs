//! `bgctl run` and `bgctl attach`: jobs in the foreground (R60 to R71), in real terminals and without one.

mod attach;
mod ends;
mod key;
mod own;
mod shell;
mod streams;
mod terminal;

use std::fs;
use std::path::PathBuf;

use bgd_tests::{Process, TestDaemon};
use nix::sys::stat::Mode;
use nix::unistd::mkfifo;
use rustix::process::Signal;

/// Reads 10,003 bytes of input, but only once somebody has written to the FIFO `gate`, and shows the last five.
const READS_LATE: &str = "stty raw opost -echo; echo up; read go < gate; head -c 10003 | tail -c 5; echo";

/// Creates a FIFO `gate` that a job can wait for, once: as long as the writer has it open, the next reader reads its end.
fn gate(daemon: &TestDaemon) -> PathBuf {
    fifo(daemon, "gate")
}

fn fifo(daemon: &TestDaemon, name: &str) -> PathBuf {
    let path = daemon.home().join(name);
    mkfifo(&path, Mode::S_IRWXU).unwrap();
    path
}

/// Returns `()` once a process holds this signal back. Only that shows that it waits for the answer to its request.
fn holds(process: &Process, signal: Signal) -> Option<()> {
    let status = fs::read_to_string(process.proc("status")).ok()?;
    let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:"))?;
    let mask = u64::from_str_radix(mask.trim(), 16).ok()?;
    (mask & (1 << (signal.as_raw() - 1)) != 0).then_some(())
}
