//! `bgctl run` against running commands without it: startup, throughput, and the time from the key to the prompt.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::report::{Figure, Row, Target, Unit};
use super::stats::{float, micros, percentile};
use super::timing::timed;
use super::{Bench, Result};
use crate::{Terminal, TestDaemon, bgctl_path};

/// Ctrl-B.
const KEY: [u8; 1] = [2];

pub fn measure(bench: &Bench) -> Result<Vec<Row>> {
    let daemon = TestDaemon::start();
    let mut rows = vec![start(bench, &daemon)?];
    rows.extend(pipes(bench, &daemon)?);
    rows.push(terminal(bench, &daemon)?);
    rows.extend(key(bench, &daemon));
    Ok(rows)
}

/// Times the whole process, from spawn to exit.
fn start(bench: &Bench, daemon: &TestDaemon) -> Result<Row> {
    let output = daemon.home().join("printed");
    let (mut alone, mut run) = (Vec::new(), Vec::new());
    timed(&mut daemon.bgctl(&["run", "--", "true"]), &output)?;
    for _ in 0..bench.of(60, 500) {
        alone.push(micros(timed(Command::new("/bin/sh").args(["-c", "/bin/true; exit"]), &output)?.0));
        run.push(micros(timed(&mut daemon.bgctl(&["run", "--", "true"]), &output)?.0));
    }
    let row = Row::new("bgctl run -- true without a terminal, whole process");
    let row = row.peer_samples("sh -c true", &alone, Unit::Micros).bgd_samples(&run, Unit::Micros);
    Ok(row.paired().target(Target::RatioAtMost(1.6)))
}

/// Measures the throughput from a command through a pipe to another program.
fn pipes(bench: &Bench, daemon: &TestDaemon) -> Result<Vec<Row>> {
    let bytes: u64 = bench.of(200_000_000, 2_000_000_000);
    let speed = |time: Duration| float(bytes) / time.as_secs_f64();
    let (mut plain, mut run) = (Vec::new(), Vec::new());
    for _ in 0..bench.of(5, 9) {
        let head = format!("head -c {bytes} /dev/zero");
        plain.push(speed(to_null(shell(daemon, &format!("{head} | cat")))?));
        run.push(speed(to_null(shell(daemon, &format!("bgctl run -- {head} | cat")))?));
    }
    let row = Row::new(format!("{:.1} GB through a pipe: bgctl run -- head | cat", float(bytes) / 1e9));
    let row = row.peer_samples("head | cat", &plain, Unit::BytesPerSecond);
    Ok(vec![row.bgd_samples(&run, Unit::BytesPerSecond).paired().target(Target::RatioAtLeast(0.8))])
}

/// Measures lines of text through the job's own terminal into another terminal, as in a terminal window.
fn terminal(bench: &Bench, daemon: &TestDaemon) -> Result<Row> {
    let line = "x".repeat(79) + "\n";
    let text = line.repeat(bench.of(200_000, 600_000));
    let path = daemon.home().join("text");
    fs::write(&path, &text)?;
    let speed = |time: Duration| float(text.len() as u64) / time.as_secs_f64();
    let inner = |command: &str| format!("script -qc \"{command}\" /dev/null");
    let cat = format!("cat {}", path.display());
    let (mut script, mut run) = (Vec::new(), Vec::new());
    for _ in 0..bench.of(5, 9) {
        let peer = inner(&format!("script -qc '{cat}' /dev/null"));
        script.push(speed(to_null(shell(daemon, &peer))?));
        run.push(speed(to_null(shell(daemon, &inner(&format!("bgctl run -- {cat}"))))?));
    }
    let row =
        Row::new(format!("{:.0} MB of lines through a terminal: bgctl run", float(text.len() as u64) / 1e6));
    let row = row.peer_samples("script -qc", &script, Unit::BytesPerSecond);
    Ok(row.bgd_samples(&run, Unit::BytesPerSecond).paired().target(Target::RatioAtLeast(0.5)))
}

/// Measures the time from the key to the shell's prompt, in a terminal.
fn key(bench: &Bench, daemon: &TestDaemon) -> Vec<Row> {
    let mut terminal = Terminal::shell(daemon);
    terminal.wait_prompt();
    let mut samples = Vec::new();
    for _ in 0..bench.of(30, 300) {
        terminal.clear();
        terminal.type_line("bgctl run -- sleep 1000");
        terminal.wait_text("[Ctrl-B] Background");
        let begin = Instant::now();
        terminal.type_keys(KEY);
        terminal.wait_prompt();
        samples.push(micros(begin.elapsed()));
    }
    let what = "from Ctrl-B to the shell's prompt";
    let row = Row::new(format!("{what}, median")).bgd_samples(&samples, Unit::Micros);
    let p99 = Row::new(format!("{what}, p99"));
    vec![
        row,
        p99.bgd(Figure::new(percentile(&samples, 99), Unit::Micros))
            .target(Target::AtMost(20_000.0, Unit::Micros)),
    ]
}

/// Returns a shell command that finds this `bgctl`, run in the daemon's home.
fn shell(daemon: &TestDaemon, line: &str) -> Command {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", line]).env_clear().envs(daemon.environment()).current_dir(daemon.home());
    let folder = bgctl_path().parent().map(Path::to_path_buf).unwrap_or_default();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::iter::once(folder).chain(std::env::split_paths(&path));
    if let Ok(path) = std::env::join_paths(folders) {
        command.env("PATH", path);
    }
    command
}

fn to_null(mut command: Command) -> Result<Duration> {
    command.stdin(Stdio::null()).stdout(Stdio::null());
    let begin = Instant::now();
    let status = command.status()?;
    let time = begin.elapsed();
    if status.success() { Ok(time) } else { Err(format!("{command:?}: {status}").into()) }
}
