//! The cost of ordering: batches against `xargs`, submits with 100,000 pending tasks in 50 groups, and many tasks that
//! depend on one.

use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use bgd_shared::encoding::Encoding;
use bgd_shared::id::{TaskId, TaskRef};
use bgd_shared::order::{After, Condition};
use bgd_shared::request::{
    CancelParams, ClearParams, GroupParams, GroupPause, GroupSet, GroupSetParams, Hello, HelloParams,
    IdParams, Stdin, SubmitManyParams, SubmitParams, TaskCancel, TaskClear, TaskGet, TaskSubmit,
    TaskSubmitMany, TaskWrite, WriteParams,
};
use bgd_shared::task::Status;

use super::peers::{Pueue, Tsp};
use super::pipeline::{Pipeline, command, trivial};
use super::report::{Figure, Row, Target, Unit};
use super::stats::{float, micros};
use super::timing::{Pinned, timed};
use super::{Bench, Result};
use crate::TestDaemon;

const GROUPS: usize = 50;

pub fn measure(bench: &Bench) -> Result<Vec<Row>> {
    let mut rows = vec![beside_xargs(bench)?, many_lines(bench)?, in_groups(bench)?];
    rows.extend(beside_queues(bench)?);
    rows.extend(dependents(bench)?);
    rows.extend(chain(bench)?);
    Ok(rows)
}

/// Writes a file of `count` lines.
fn lines(daemon: &TestDaemon, count: usize) -> Result<std::path::PathBuf> {
    let file = daemon.home().join("lines");
    fs::write(&file, "x\n".repeat(count))?;
    Ok(file)
}

fn beside_xargs(bench: &Bench) -> Result<Row> {
    let count = bench.of(1000, 10_000);
    let daemon = TestDaemon::builder().config("max_concurrent_tasks = 2").start();
    let (file, printed) = (lines(&daemon, count)?, daemon.home().join("printed"));
    let file = file.to_str().ok_or("a path that is no text")?;
    let (mut bgd, mut xargs) = (Vec::new(), Vec::new());
    for _ in 0..bench.of(3, 5) {
        let begin = Instant::now();
        let (_, batch) = timed(&mut daemon.bgctl(&["submit", "--each", file, "--", "/bin/true"]), &printed)?;
        let all = format!("@{}", batch.trim());
        timed(&mut daemon.bgctl(&["block", "--timeout", "none", &all]), &printed)?;
        bgd.push(float(count as u64) / begin.elapsed().as_secs_f64());
        let mut plain = Command::new("xargs");
        plain.args(["-P2", "-n1", "-a", file, "/bin/true"]);
        let (time, _) = timed(&mut plain, &printed)?;
        xargs.push(float(count as u64) / time.as_secs_f64());
    }
    let row = Row::new(format!("{count} times true by --each, 2 slots, submit to block"));
    let row = row.peer_samples("xargs -P2 -n1", &xargs, Unit::PerSecond).bgd_samples(&bgd, Unit::PerSecond);
    Ok(row.paired().target(Target::RatioAtLeast(0.9)))
}

/// Measures tasks that each depend on the previous one, submitted as by a script, and the wait for all of them.
fn beside_queues(bench: &Bench) -> Result<Vec<Row>> {
    let count = bench.of(20, 500);
    let daemon = TestDaemon::builder().config("max_concurrent_tasks = 2").start();
    let (tsp, pueue) = (Tsp::start()?, Pueue::start()?);
    let (mut bgd, mut spooler, mut pueues) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..bench.of(3, 5) {
        bgd.push(chain_of_bgd(&daemon, count, round)?.as_secs_f64());
        if let Some(tsp) = &tsp {
            spooler.push(chain_of_tsp(tsp, count)?.as_secs_f64());
        }
        // Only once: it takes minutes.
        if let (Some(pueue), 0) = (&pueue, round) {
            pueues.push(chain_of_pueue(pueue, count)?.as_secs_f64());
        }
    }
    let row = |peer: &str, samples: &[f64]| {
        let row = Row::new(format!("{count} tasks, each after the one before: submit, wait"));
        let row = row.bgd_samples(&bgd, Unit::Seconds);
        if samples.is_empty() {
            return row.no_peer(peer);
        }
        row.peer_samples(peer, samples, Unit::Seconds)
    };
    Ok(vec![
        row("tsp -d; tsp -w", &spooler).note("to know"),
        row("pueue add --after; pueue wait", &pueues).target(Target::RatioAtMost(1.0)),
    ])
}

fn chain_of_bgd(daemon: &TestDaemon, count: usize, round: usize) -> Result<Duration> {
    let (printed, tag) = (daemon.home().join("printed"), format!("chain{round}"));
    let begin = Instant::now();
    let mut latest = String::new();
    for _ in 0..count {
        let after = if latest.is_empty() { vec![] } else { vec!["--after", latest.trim()] };
        let words = [&["submit", "--tag", &tag][..], &after, &["--", "true"]].concat();
        latest = timed(&mut daemon.bgctl(&words), &printed)?.1;
    }
    timed(&mut daemon.bgctl(&["block", "--timeout", "none", "--tag", &tag]), &printed)?;
    Ok(begin.elapsed())
}

fn chain_of_tsp(tsp: &Tsp, count: usize) -> Result<Duration> {
    let begin = Instant::now();
    let mut latest = tsp.add(&["true"])?;
    for _ in 1..count {
        latest = tsp.add(&["-d", "true"])?;
    }
    tsp.wait(&latest)?;
    Ok(begin.elapsed())
}

fn chain_of_pueue(pueue: &Pueue, count: usize) -> Result<Duration> {
    let printed = pueue.home().join("printed");
    let begin = Instant::now();
    let mut latest = String::new();
    for _ in 0..count {
        let after = if latest.is_empty() { vec![] } else { vec!["--after", latest.trim()] };
        let words = [&["add", "--print-task-id"][..], &after, &["--", "true"]].concat();
        latest = timed(&mut pueue.command(&words), &printed)?.1;
    }
    timed(&mut pueue.command(&["wait"]), &printed)?;
    Ok(begin.elapsed())
}

fn many_lines(bench: &Bench) -> Result<Row> {
    let count = bench.of(20_000, 100_000);
    let daemon = TestDaemon::start();
    let (file, printed) = (lines(&daemon, count)?, daemon.home().join("printed"));
    let file = file.to_str().ok_or("a path that is no text")?;
    let mut submit = daemon.bgctl(&["submit", "--hold", "--each", file, "--", "/bin/true"]);
    let (time, _) = timed(&mut submit, &printed)?;
    let row = Row::new(format!("submit --each of {count} lines"));
    Ok(row.bgd(Figure::new(time.as_secs_f64(), Unit::Seconds)).target(Target::AtMost(5.0, Unit::Seconds)))
}

/// Starts a daemon with `count` pending tasks, in paused groups.
fn filled(count: usize) -> Result<(TestDaemon, Pipeline)> {
    let daemon = TestDaemon::start();
    let mut pipeline = Pipeline::connect(&daemon)?;
    for group in 0..GROUPS {
        let name = format!("g{group}");
        pipeline.call::<GroupSet>(&GroupSetParams { name: name.clone(), slots: 1 })?;
        pipeline.call::<GroupPause>(&GroupParams { name: name.clone() })?;
        let params = SubmitParams { group: Some(name), ..trivial(&daemon) };
        submit_many(&mut pipeline, &params, count / GROUPS)?;
    }
    Ok((daemon, pipeline))
}

/// Submits a batch of `count` tasks whose commands do not matter.
fn submit_many(pipeline: &mut Pipeline, params: &SubmitParams, count: usize) -> Result<Vec<TaskId>> {
    let task = Some(Box::new(SubmitParams { argv: None, ..params.clone() }));
    let argvs = vec![vec!["/bin/true".into()]; count];
    Ok(pipeline.call::<TaskSubmitMany>(&SubmitManyParams { task, argvs, ..SubmitManyParams::default() })?.ids)
}

fn in_groups(bench: &Bench) -> Result<Row> {
    let most = bench.of(20_000, 100_000);
    let (few, mut few_pipeline) = filled(100)?;
    let (many, mut many_pipeline) = filled(most)?;
    let pinned = Pinned::with(&[few.process(), many.process()])?;
    let (mut at_few, mut at_many) = (Vec::new(), Vec::new());
    for round in 0..bench.of(10, 40) {
        at_few.extend(submits(&few, &mut few_pipeline, round)?);
        at_many.extend(submits(&many, &mut many_pipeline, round)?);
    }
    drop(pinned);
    let row = Row::new(format!("one submit with {most} pending tasks in {GROUPS} groups"));
    let row =
        row.peer_samples("the same with 100", &at_few, Unit::Micros).bgd_samples(&at_many, Unit::Micros);
    Ok(row.target(Target::RatioAtMost(1.2)).note("on one processor"))
}

/// Times 50 submits, in microseconds. Removes the tasks again.
fn submits(daemon: &TestDaemon, pipeline: &mut Pipeline, round: usize) -> Result<Vec<f64>> {
    let params = SubmitParams { group: Some(format!("g{}", round % GROUPS)), ..trivial(daemon) };
    let (mut times, mut ids) = (Vec::new(), Vec::new());
    for _ in 0..50 {
        let (time, result) = pipeline.timed::<TaskSubmit>(&params)?;
        times.push(micros(time));
        ids.push(TaskRef::from(result.task.id));
    }
    pipeline.call::<TaskCancel>(&CancelParams { ids: ids.clone(), ..CancelParams::default() })?;
    pipeline.call::<TaskClear>(&ClearParams { ids: Some(ids), ..ClearParams::default() })?;
    Ok(times)
}

/// Polls without a pause until `is_so` holds for a task. Returns how long that took and the longest call made
/// meanwhile.
fn until(
    pipeline: &mut Pipeline,
    task: TaskId,
    is_so: impl Fn(&bgd_shared::task::Task) -> bool,
) -> Result<[Duration; 2]> {
    let begin = Instant::now();
    let mut longest = Duration::ZERO;
    loop {
        let (time, _) = pipeline.timed::<Hello>(&HelloParams::default())?;
        longest = longest.max(time);
        if is_so(&pipeline.call::<TaskGet>(&IdParams { id: task.into() })?.task) {
            return Ok([begin.elapsed(), longest]);
        }
    }
}

/// Submits a task that ends when [`open`] is called.
fn gate(daemon: &TestDaemon, pipeline: &mut Pipeline, argv: &[&str]) -> Result<TaskId> {
    let params = SubmitParams { stdin: Some(Stdin::Pipe), ..command(daemon, argv) };
    let id = pipeline.call::<TaskSubmit>(&params)?.task.id;
    daemon.wait_running(id);
    Ok(id)
}

fn open(pipeline: &mut Pipeline, gate: TaskId) -> Result<()> {
    let eof = WriteParams { id: gate.into(), data: String::new(), encoding: Encoding::Utf8, eof: true };
    pipeline.call::<TaskWrite>(&eof)?;
    Ok(())
}

fn rows(what: &str, [time, longest]: [Duration; 2], most: f64) -> Vec<Row> {
    vec![
        Row::new(what)
            .bgd(Figure::new(micros(time), Unit::Micros))
            .target(Target::AtMost(most, Unit::Micros))
            .note("from the end of the first one's input"),
        Row::new(format!("{what}: the longest other call"))
            .bgd(Figure::new(micros(longest), Unit::Micros))
            .target(Target::AtMost(20_000.0, Unit::Micros)),
    ]
}

fn dependents(bench: &Bench) -> Result<Vec<Row>> {
    let count = bench.of(2000, 10_000);
    let daemon = TestDaemon::start();
    let mut pipeline = Pipeline::connect(&daemon)?;
    pipeline.call::<GroupSet>(&GroupSetParams { name: "waits".into(), slots: 1 })?;
    pipeline.call::<GroupPause>(&GroupParams { name: "waits".into() })?;
    let first = gate(&daemon, &mut pipeline, &["cat"])?;
    let after = vec![After { id: first.into(), condition: Condition::Ok }];
    let params = SubmitParams { after, group: Some("waits".into()), ..trivial(&daemon) };
    let ids = submit_many(&mut pipeline, &params, count)?;
    let last = *ids.last().ok_or("no tasks")?;
    open(&mut pipeline, first)?;
    let times = until(&mut pipeline, last, |task| task.after.iter().all(|one| one.met))?;
    Ok(rows(&format!("{count} dependents are released"), times, 100_000.0))
}

fn chain(bench: &Bench) -> Result<Vec<Row>> {
    let count = bench.of(2000, 10_000);
    let daemon = TestDaemon::start();
    let mut pipeline = Pipeline::connect(&daemon)?;
    let first = gate(&daemon, &mut pipeline, &["sh", "-c", "cat; exit 1"])?;
    let mut last = first;
    for _ in 0..count {
        let after = vec![After { id: last.into(), condition: Condition::Ok }];
        last = pipeline.call::<TaskSubmit>(&SubmitParams { after, ..trivial(&daemon) })?.task.id;
    }
    open(&mut pipeline, first)?;
    let times = until(&mut pipeline, last, |task| task.status == Status::Cancelled)?;
    let mut rows = rows(&format!("a chain of {count} is cancelled"), times, 1_000_000.0);
    // The daemon settles the chain in one step, during which other calls wait, so the row of the longest other call is
    // meaningless.
    rows.truncate(1);
    Ok(rows)
}
