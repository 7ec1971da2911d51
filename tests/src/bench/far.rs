//! Another machine, by a real ssh and sshd on loopback: a submit against ssh itself over the same shared connection,
//! and tasks on another machine's daemon against the same tasks here; and that local tasks pay nothing for it.

use std::time::{Duration, Instant};

use bgd_shared::id::{TaskId, TaskRef};
use bgd_shared::request::SubmitParams;

use super::idle;
use super::memory::Memory;
use super::pipeline::trivial;
use super::report::{Figure, Row, Target, Unit};
use super::stats::{float, micros};
use super::timing::timed;
use super::{Bench, Result};
use crate::TestDaemon;
use crate::far::{Far, HOST};

/// The same concurrency here and on the remote machine.
const SLOTS: &str = "max_concurrent_tasks = 2";

/// Tasks per sample.
const TASKS: usize = 200;

/// Two executors that no task uses.
const EXECUTORS: &str = "[executors.far]\ntype = \"ssh\"\nhost = \"far.invalid\"\n\
                         [executors.hpc]\ntype = \"slurm\"\nhost = \"login.invalid\"\nwork_folder = \"/var/tmp\"\n";

pub fn measure(bench: &Bench) -> Result<Vec<Row>> {
    let mut rows = local(bench)?;
    let mut far = Far::of(TestDaemon::builder().config(SLOTS).start());
    far.start_here(SLOTS);
    rows.extend([submit(bench, &far)?, tasks(bench, &mut far)?]);
    Ok(rows)
}

/// Measures the cost of unused executors for a local task: none.
fn local(bench: &Bench) -> Result<Vec<Row>> {
    let with = TestDaemon::builder().config(format!("{SLOTS}\n{EXECUTORS}")).start();
    let without = TestDaemon::builder().config(SLOTS).start();
    let params = |daemon: &TestDaemon| SubmitParams { cwd: Some("/".into()), ..trivial(daemon) };
    let (mut bgd, mut peer) = (Vec::new(), Vec::new());
    for daemon in [&with, &without] {
        rate(daemon, &params(daemon))?;
    }
    // Measured before the tasks run, as their number would affect memory more than the configuration does.
    let memory = [&with, &without].map(|daemon| Memory::of(&daemon.process()));
    let [with_rss, without_rss] = memory;
    for _ in 0..bench.of(3, 10) {
        bgd.push(rate(&with, &params(&with))?);
        peer.push(rate(&without, &params(&without))?);
    }
    let (calls, how) = idle::count(&with, Duration::from_secs(bench.of(3, 10)))?;
    let bytes = |memory: Memory| Figure::new(memory.rss(), Unit::Bytes);
    Ok(vec![
        Row::new(format!("{TASKS} local tasks, two executors configured"))
            .bgd_samples(&bgd, Unit::PerSecond)
            .peer_samples("the same without executors", &peer, Unit::PerSecond)
            .paired()
            .target(Target::RatioAtLeast(0.95)),
        Row::new("resident memory, two executors configured")
            .bgd(bytes(with_rss?))
            .peer("the same without executors", bytes(without_rss?))
            .target(Target::RatioAtMost(1.05)),
        Row::new("system calls while idle, two executors configured")
            .bgd(Figure::new(float(calls), Unit::Calls))
            .target(Target::AtMost(0.0, Unit::Calls))
            .note(how),
    ])
}

fn submit(bench: &Bench, far: &Far) -> Result<Row> {
    let printed = far.path("printed");
    // Opens the shared connection.
    far.run(&["list"]).success();
    let (mut bgd, mut ssh) = (Vec::new(), Vec::new());
    for _ in 0..bench.of(20, 200) {
        let (time, id) = timed(&mut far.bgctl(&["submit", "--", "true"]), &printed)?;
        bgd.push(micros(time));
        // Each sample starts on an idle machine.
        far.daemon.block(&[id.trim().parse::<TaskRef>()?.exact().ok_or("no id was printed")?]);
        ssh.push(micros(timed(&mut far.ssh("true"), &printed)?.0));
    }
    let row = Row::new("bgctl -H far submit -- true, whole process").bgd_samples(&bgd, Unit::Micros);
    Ok(row.peer_samples("ssh far true, same connection", &ssh, Unit::Micros).target(Target::RatioAtMost(1.5)))
}

fn tasks(bench: &Bench, far: &mut Far) -> Result<Row> {
    let here = SubmitParams { cwd: Some("/".into()), ..trivial(far.here()) };
    let there = SubmitParams { on: Some(HOST.to_owned()), ..here.clone() };
    let (mut bgd, mut local) = (Vec::new(), Vec::new());
    // Connects, and warms up.
    rate(far.here(), &there)?;
    for _ in 0..bench.of(3, 10) {
        local.push(rate(far.here(), &here)?);
        bgd.push(rate(far.here(), &there)?);
    }
    let row = Row::new(format!("{TASKS} tasks --on far")).bgd_samples(&bgd, Unit::PerSecond);
    Ok(row
        .peer_samples("the same tasks here", &local, Unit::PerSecond)
        .paired()
        .target(Target::RatioAtLeast(0.5)))
}

/// Submits the tasks one after the other, and waits until all of them have ended. Returns tasks per second.
fn rate(daemon: &TestDaemon, params: &SubmitParams) -> Result<f64> {
    let begin = Instant::now();
    let ids: Vec<TaskId> = (0..TASKS).map(|_| daemon.submit_with(params).id).collect();
    let ended = daemon.block(&ids);
    let time = begin.elapsed();
    // Tasks that failed to start would have been quick, too.
    if let Some(task) = ended.iter().find(|task| task.error.is_some()) {
        return Err(format!("a task has failed: {:?}", task.error).into());
    }
    Ok(float(TASKS as u64) / time.as_secs_f64())
}
