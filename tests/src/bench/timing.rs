//! Timing of processes from outside, and the clock that tasks and waiters share.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use rustix::time::{ClockId, clock_gettime};

use super::Result;
use super::stats::float;
use crate::{Process, helper_path, wait};

/// Returns the monotonic time in nanoseconds, the same in all processes.
pub fn now_ns() -> i64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec * 1_000_000_000 + now.tv_nsec
}

/// Runs a program to its end and returns the time from spawn to exit and its output. The output goes to a file, so that
/// a process that inherits it cannot delay the end.
pub fn timed(command: &mut Command, output: &Path) -> Result<(Duration, String)> {
    let errors = output.with_extension("err");
    command.stdin(Stdio::null()).stdout(File::create(output)?).stderr(File::create(&errors)?);
    let begin = Instant::now();
    let status = command.spawn()?.wait()?;
    let time = begin.elapsed();
    if !status.success() {
        return Err(format!("{command:?}: {status} {}", fs::read_to_string(errors)?).into());
    }
    Ok((time, fs::read_to_string(output)?))
}

/// Pins this thread and some processes to one processor until it is dropped (the processes stay pinned).
///
/// A call and its answer cost either one context switch or, across two processors, two wake-ups. The scheduler picks
/// one of these once per pair of processes and sticks to it. On one processor all pairs are alike, so the remaining
/// difference is the work.
pub struct Pinned {
    before: CpuSet,
}

impl Pinned {
    /// Pins this thread and all threads of these processes.
    pub fn with(processes: &[Process]) -> Result<Self> {
        let before = sched_getaffinity(None)?;
        let processor = (0..CpuSet::MAX_CPU).find(|place| before.is_set(*place)).ok_or("no processor")?;
        let mut one = CpuSet::new();
        one.set(processor);
        for thread in processes.iter().flat_map(Process::threads) {
            match sched_setaffinity(Pid::from_raw(thread), &one) {
                // The thread has ended since it was listed.
                Ok(()) | Err(rustix::io::Errno::SRCH) => {}
                Err(error) => return Err(error.into()),
            }
        }
        sched_setaffinity(None, &one)?;
        Ok(Self { before })
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        // Restore the affinity this thread had before.
        let _ = sched_setaffinity(None, &self.before);
    }
}

/// A task (the program `stamp`) that ends on request and records when that was.
pub struct Stamp {
    fifo: PathBuf,
    trigger: File,
    folder: PathBuf,
    count: usize,
}

impl Stamp {
    /// Creates the FIFO in this folder, which also gets the task's files.
    pub fn new(folder: &Path) -> Result<Self> {
        let fifo = folder.join("fifo");
        nix::unistd::mkfifo(&fifo, nix::sys::stat::Mode::S_IRWXU)?;
        // Open for reading too, so that opening does not block.
        let trigger = File::options().read(true).write(true).open(&fifo)?;
        Ok(Self { fifo, trigger, folder: folder.to_owned(), count: 0 })
    }

    /// Returns the command of the next task.
    pub fn next_argv(&mut self) -> Vec<String> {
        self.count += 1;
        let argv = [helper_path("stamp"), self.fifo.clone(), self.file()];
        argv.map(|path| path.to_string_lossy().into_owned()).into()
    }

    fn file(&self) -> PathBuf {
        self.folder.join(format!("stamp-{}", self.count))
    }

    /// Waits until the task runs.
    pub fn wait_started(&self) {
        wait::for_file(&self.file());
    }

    /// Lets the task end.
    pub fn trigger(&mut self) -> Result<()> {
        use std::io::Write as _;
        Ok(self.trigger.write_all(b"x")?)
    }

    /// Microseconds from the task's last act to `then_ns`.
    pub fn micros_until(&self, then_ns: i64) -> Result<f64> {
        let ended: i64 = fs::read_to_string(self.file())?.trim().parse()?;
        let nanos = u64::try_from(then_ns - ended)
            .map_err(|_| format!("the task ended {} ns after what its end should cause", ended - then_ns))?;
        Ok(float(nanos) / 1000.0)
    }
}
