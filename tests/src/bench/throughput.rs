//! Trivial tasks per second over one connection, two at once, against a bare loop of `posix_spawn` and `waitpid`.

use std::process::Command;
use std::time::{Duration, Instant};

use bgd_shared::request::{DaemonStatusOf, NoParams};

use super::peers::{Pueue, Tsp};
use super::pipeline::{Pipeline, trivial};
use super::report::{Row, Target, Unit};
use super::stats::float;
use super::{Bench, Result};
use crate::{TestDaemon, helper_path};

pub fn measure(bench: &Bench) -> Result<Vec<Row>> {
    let count = bench.of(500, 4000);
    let daemon = TestDaemon::builder().config("max_concurrent_tasks = 2").start();
    let tsp = Tsp::start()?;
    let pueue = Pueue::start()?;
    let (mut one, mut two, mut bgd) = (Vec::new(), Vec::new(), Vec::new());
    let (mut tsp_rates, mut pueue_rates) = (Vec::new(), Vec::new());
    of_bgd(&daemon, count / 10)?; // warm up, so that no first page faults are measured
    for _ in 0..bench.of(3, 7) {
        one.push(of_bare(&daemon, count, 1)?);
        bgd.push(of_bgd(&daemon, count)?);
        two.push(of_bare(&daemon, count, 2)?);
        if let Some(tsp) = &tsp {
            tsp_rates.push(of_tsp(tsp, count / 8)?);
        }
    }
    for _ in 0..bench.of(1, 3) {
        if let Some(pueue) = &pueue {
            pueue_rates.push(of_pueue(pueue, 12)?);
        }
    }
    let row = |what: &str| Row::new(what).bgd_samples(&bgd, Unit::PerSecond);
    let against = |what: &str, peer: &str, samples: &[f64]| {
        if samples.is_empty() {
            row(what).no_peer(peer)
        } else {
            row(what).peer_samples(peer, samples, Unit::PerSecond).note("to know")
        }
    };
    Ok(vec![
        row("trivial tasks, one connection, 2 at once")
            .peer_samples("posix_spawn + wait, 1 at once", &one, Unit::PerSecond)
            .paired()
            .target(Target::RatioAtLeast(0.9)),
        against("the same", "posix_spawn + wait, 2 at once", &two).paired(),
        against("the same", "task-spooler", &tsp_rates),
        against("the same", "pueue", &pueue_rates),
    ])
}

fn rate(count: usize, time: Duration) -> f64 {
    float(count as u64) / time.as_secs_f64()
}

pub fn of_bgd(daemon: &TestDaemon, count: usize) -> Result<f64> {
    let mut pipeline = Pipeline::connect(daemon)?;
    let submits = pipeline.prepare(&trivial(daemon), count)?;
    let before = pipeline.call::<DaemonStatusOf>(&NoParams {})?.summary.completed;
    let begin = Instant::now();
    pipeline.run(&submits)?;
    let time = begin.elapsed();
    // Tasks that failed to start would have been quick, too.
    let completed = pipeline.call::<DaemonStatusOf>(&NoParams {})?.summary.completed - before;
    if completed != count as u64 {
        return Err(format!("{count} tasks were run, {completed} have ended well").into());
    }
    // Do not clear the tasks between the rounds: after some thousand deletions, ext4 passes over the freed
    // inodes one by one for a minute or more, which would be measured instead.
    Ok(rate(count, time))
}

fn of_bare(daemon: &TestDaemon, count: usize, width: u32) -> Result<f64> {
    let mut command = Command::new(helper_path("bare"));
    command.env_clear().envs(daemon.environment()).current_dir(daemon.home());
    let output = command.args([count.to_string(), width.to_string()]).output()?;
    let nanos: u64 = String::from_utf8(output.stdout)?.trim().parse()?;
    Ok(rate(count, Duration::from_nanos(nanos)))
}

/// Runs the tasks without a persistent connection, which the peers lack: each task is a call of their program.
fn of_tsp(tsp: &Tsp, count: usize) -> Result<f64> {
    let begin = Instant::now();
    let mut latest = [String::new(), String::new()];
    for _ in 0..count {
        latest.rotate_left(1);
        latest[1] = tsp.add(&["/bin/true"])?;
    }
    for id in &latest {
        tsp.wait(id)?;
    }
    Ok(rate(count, begin.elapsed()))
}

fn of_pueue(pueue: &Pueue, count: usize) -> Result<f64> {
    let begin = Instant::now();
    for _ in 0..count {
        pueue.command(&["add", "--", "true"]).status()?;
    }
    pueue.command(&["wait"]).status()?;
    Ok(rate(count, begin.elapsed()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bare_loop_and_peer_are_measured() {
        let home = TestDaemon::home_only();
        for width in [1, 2] {
            assert!(of_bare(&home, 20, width).unwrap() > 0.0);
        }
        if let Some(tsp) = Tsp::start().unwrap() {
            assert!(of_tsp(&tsp, 10).unwrap() > 0.0);
        }
    }
}
