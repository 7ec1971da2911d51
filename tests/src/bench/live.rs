//! What `bgctl top` costs: its first frame, and its memory with many tasks (R163).

use super::report::{Figure, Row, Target, Unit};
use super::stats::{float, micros};
use super::timing::timed;
use super::{Bench, Result};
use crate::{Terminal, TestDaemon};

/// Times one frame against a list of the same tasks, as whole processes.
pub fn frame(daemon: &TestDaemon, tasks: usize, bench: &Bench) -> Result<Row> {
    let output = daemon.home().join("printed");
    let (mut list, mut top) = (Vec::new(), Vec::new());
    for _ in 0..bench.of(5, 20) {
        list.push(micros(timed(&mut daemon.bgctl(&["list", "--all"]), &output)?.0));
        top.push(micros(timed(&mut daemon.bgctl(&["top", "--once"]), &output)?.0));
    }
    Ok(Row::new(format!("bgctl top --once with {tasks} tasks, whole process"))
        .peer_samples("bgctl list --all", &list, Unit::Micros)
        .bgd_samples(&top, Unit::Micros)
        .target(Target::RatioAtMost(2.0)))
}

/// Measures the memory of a live view that has listed all tasks.
pub fn memory(daemon: &TestDaemon, tasks: usize) -> Result<Row> {
    let mut top = Terminal::bgctl(daemon, &["top"]);
    let title = format!("{tasks} done");
    top.wait_text(&title);
    let most = top.process().status_value("VmHWM").ok_or("the view has ended")?;
    Ok(Row::new(format!("memory of bgctl top with {tasks} tasks, at most"))
        .bgd(Figure::new(float(most * 1024), Unit::Bytes))
        .target(Target::AtMost(60e6, Unit::Bytes)))
}
