//! Another machine, by a real ssh and sshd on loopback: a submit against ssh itself by the same shared connection, and
//! tasks that another machine's daemon runs against the same tasks here.

use std::time::Instant;

use bgd_shared::id::{TaskId, TaskRef};
use bgd_shared::request::SubmitParams;

use super::pipeline::trivial;
use super::report::{Row, Target, Unit};
use super::stats::{float, micros};
use super::timing::timed;
use super::{Bench, Result};
use crate::TestDaemon;
use crate::far::{Far, HOST};

/// As many at once here and there.
const SLOTS: &str = "max_concurrent_tasks = 2";

/// The tasks of one sample.
const TASKS: usize = 200;

pub fn measure(bench: &Bench) -> Result<Vec<Row>> {
    let mut far = Far::of(TestDaemon::builder().config(SLOTS).start());
    far.start_here(SLOTS);
    Ok(vec![submit(bench, &far)?, tasks(bench, &mut far)?])
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

/// Submits the tasks one after the other, and waits for the end of all of them: how many there were in a second.
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
