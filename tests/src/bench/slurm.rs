//! Tasks of a real Slurm cluster: how long it takes to hand over many, and how often it is asked while they are there.
//! Needs root and Slurm's programs.

use std::fs;
use std::time::{Duration, Instant};

use bgd_shared::task::Status;

use super::report::{Figure, Row, Target, Unit};
use super::stats::float;
use super::timing::timed;
use super::{Bench, Result};
use crate::slurm::{Builder, Site};

/// How long the queries are counted.
const WINDOW: Duration = Duration::from_secs(20);

pub fn measure(bench: &Bench) -> Result<Vec<Row>> {
    if !nix::unistd::Uid::effective().is_root() || !std::path::Path::new("/usr/sbin/slurmctld").exists() {
        return Ok(vec![
            Row::new("tasks of a Slurm cluster").note("needs root and the packages slurmctld, slurmd"),
        ]);
    }
    let count = bench.of(1000, 10_000);
    let mut rows = of(&Site::of(Builder::default(), ""), "", count)?;
    rows.extend(of(&Site::far(Builder::default()), " by a login node", count)?);
    rows.extend(to_the_end(&Site::of(Builder::default(), ""), count)?);
    Ok(rows)
}

/// Tasks that end at once, until all of them have ended.
fn to_the_end(site: &Site, count: usize) -> Result<Vec<Row>> {
    let (items, printed) = (site.daemon.home().join("items"), site.daemon.home().join("printed"));
    fs::write(&items, "x\n".repeat(count))?;
    let items = items.to_str().ok_or("a path that is no text")?;
    let begin = Instant::now();
    let submit = ["submit", "--on", "hpc", "--each", items, "--", "true"];
    let (_, batch) = timed(&mut site.daemon.bgctl(&submit), &printed)?;
    timed(&mut site.daemon.bgctl(&["block", "--timeout", "none", "--batch", batch.trim()]), &printed)?;
    let seconds = begin.elapsed().as_secs_f64();
    let completed = site.daemon.status().summary.count(Status::Completed);
    if completed != count as u64 {
        return Err(format!("{completed} of {count} tasks have completed").into());
    }
    let asked = float(queries(site));
    Ok(vec![
        Row::new(format!("{count} tasks of a Slurm cluster to their end"))
            .bgd(Figure::new(float(count as u64) / seconds, Unit::PerSecond))
            .note(format!("{seconds:.0} s; the cluster starts 16 at a time")),
        Row::new(format!("queries while {count} tasks of a Slurm cluster end"))
            .bgd(Figure::new(asked / seconds, Unit::PerSecond))
            .target(Target::AtMost(1.0, Unit::PerSecond)),
    ])
}

/// Returns how often the cluster was asked for jobs so far, by any command.
fn queries(site: &Site) -> u64 {
    ["squeue", "sacct"].map(|name| site.cluster.programs().calls(name).len() as u64).iter().sum()
}

fn of(site: &Site, how: &str, count: usize) -> Result<Vec<Row>> {
    let (items, printed) = (site.daemon.home().join("items"), site.daemon.home().join("printed"));
    fs::write(&items, "x\n".repeat(count))?;
    let items = items.to_str().ok_or("a path that is no text")?;
    let begin = Instant::now();
    timed(
        &mut site.daemon.bgctl(&["submit", "--on", "hpc", "--each", items, "--", "sleep", "1000"]),
        &printed,
    )?;
    let submitted = begin.elapsed();
    crate::wait::poll_until("all jobs", || (site.cluster.jobs().len() >= count).then_some(()));
    let accepted = begin.elapsed();
    let (before, begin) = (queries(site), Instant::now());
    crate::wait::poll_until("the end of the window", || (begin.elapsed() >= WINDOW).then_some(()));
    let rate = float(queries(site) - before) / begin.elapsed().as_secs_f64();
    let sbatch = site.cluster.programs().calls("sbatch").len();
    let seconds = |time: Duration| Figure::new(time.as_secs_f64(), Unit::Seconds);
    Ok(vec![
        Row::new(format!("{count} tasks to a Slurm cluster{how}, until it has all"))
            .bgd(seconds(accepted))
            .target(Target::AtMost(20.0, Unit::Seconds))
            .note(format!(
                "{:.1} s until bgctl has ended; {sbatch} calls of sbatch",
                submitted.as_secs_f64()
            )),
        Row::new(format!("queries with {count} tasks of a Slurm cluster{how}"))
            .bgd(Figure::new(rate, Unit::PerSecond))
            .target(Target::AtMost(1.0, Unit::PerSecond)),
    ])
}
