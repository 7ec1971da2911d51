//! A task that writes a lot, against the same command with a redirect to the same disk.

use std::fs::{self, File};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use bgd_shared::request::{ClearParams, TaskClear};
use bgd_shared::task::Status;
use nix::sys::statvfs::statvfs;

use super::report::{Figure, Row, Target, Unit};
use super::stats::float;
use super::{Bench, Result};
use crate::TestDaemon;

pub fn measure(bench: &Bench) -> Result<Vec<Row>> {
    let daemon = TestDaemon::builder().config("[limits]\noutput_bytes = \"20GiB\"").start();
    let wanted = bench.of(1_000_000_000, 10_000_000_000);
    let bytes = wanted.min(room(daemon.home())? / 2);
    let folder = beside_output(&daemon)?;
    let (mut plain, mut bgd) = (Vec::new(), Vec::new());
    let mut cpu = Duration::ZERO;
    let speed = |time: Duration| float(bytes) / time.as_secs_f64();
    plain_run(&folder, bytes / 10)?;
    for round in 0..bench.of(4, 6) {
        // The order alternates, so that each goes first equally often.
        if round % 2 == 0 {
            plain.push(speed(plain_run(&folder, bytes)?));
        }
        let (time, used) = task_run(&daemon, bytes)?;
        bgd.push(speed(time));
        cpu += used;
        if round % 2 == 1 {
            plain.push(speed(plain_run(&folder, bytes)?));
        }
    }
    let short = if bytes < wanted { "; the disk has no room for more" } else { "" };
    let row = Row::new(format!("a task that writes {:.1} GB", float(bytes) / 1e9))
        .peer_samples("head -c … /dev/zero > file", &plain, Unit::BytesPerSecond)
        .bgd_samples(&bgd, Unit::BytesPerSecond)
        .paired()
        .target(Target::RatioAtLeast(0.95))
        .note(format!("medians of {} rounds{short}", bgd.len()));
    let used = Row::new("processor time of the daemon for it")
        .bgd(Figure::new(cpu.as_secs_f64() / float(bgd.len() as u64), Unit::Seconds))
        .note("a round; ~0 is wanted");
    Ok(vec![row, used])
}

fn room(folder: &Path) -> Result<u64> {
    let stat = statvfs(folder)?;
    Ok(stat.blocks_available() * stat.fragment_size())
}

/// Returns a folder on the file system of the daemon's output folder, but not that folder itself: the daemon may watch
/// it, and its work would slow down the plain redirect.
fn beside_output(daemon: &TestDaemon) -> Result<PathBuf> {
    let task = daemon.block(&[daemon.submit(&["echo"])]).remove(0);
    let folder = daemon.home().join("plain");
    fs::create_dir(&folder)?;
    if fs::metadata(&task.output.path)?.dev() != fs::metadata(&folder)?.dev() {
        return Err("output and home are on different file systems".into());
    }
    Ok(folder)
}

/// Flushes the data of earlier rounds, so that this round does not pay for it.
fn settle(folder: &Path) -> Result<()> {
    Ok(nix::unistd::syncfs(File::open(folder)?)?)
}

fn plain_run(folder: &Path, bytes: u64) -> Result<Duration> {
    settle(folder)?;
    let path = folder.join("plain");
    let mut command = Command::new("head");
    command.args(["-c", &bytes.to_string(), "/dev/zero"]).stdin(Stdio::null());
    let begin = Instant::now();
    let status = command.stdout(File::create(&path)?).status()?;
    let time = begin.elapsed();
    fs::remove_file(&path)?;
    if status.success() { Ok(time) } else { Err(format!("{command:?}: {status}").into()) }
}

fn task_run(daemon: &TestDaemon, bytes: u64) -> Result<(Duration, Duration)> {
    settle(daemon.home())?;
    let process = daemon.process();
    let cpu = process.cpu_time().ok_or("no processor time")?;
    let begin = Instant::now();
    let id = daemon.submit(&["head", "-c", &bytes.to_string(), "/dev/zero"]);
    let task = daemon.block(&[id]).remove(0);
    let time = begin.elapsed();
    let used = process.cpu_time().ok_or("no processor time")?.saturating_sub(cpu);
    if task.status != Status::Completed || task.output.bytes != bytes {
        return Err(format!("the task is {}: {:?}, {:?}", task.status, task.error, task.output).into());
    }
    daemon.client().call::<TaskClear>(&ClearParams::default())?;
    Ok((time, used))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_redirect_is_measured() {
        let folder = tempfile::tempdir().unwrap();
        assert!(plain_run(folder.path(), 10_000_000).unwrap() > Duration::ZERO);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
        assert!(room(folder.path()).unwrap() > 0);
    }
}
