//! The cost of 100,000 finished tasks: for a submit, a list, and memory.

use bgd_shared::id::TaskRef;
use bgd_shared::request::{
    CancelParams, ClearParams, Hello, HelloParams, ListParams, TaskCancel, TaskClear, TaskList, TaskSubmit,
};

use super::live;
use super::memory::{self, Memory};
use super::pipeline::{Pipeline, command, trivial};
use super::report::{Figure, Row, Target, Unit};
use super::stats::{median, micros};
use super::timing::{Pinned, timed};
use super::{Bench, Result};
use crate::TestDaemon;

/// A daemon that keeps finished tasks.
struct Filled {
    daemon: TestDaemon,
    pipeline: Pipeline,
}

/// Times of calls, in microseconds.
#[derive(Default)]
struct Submits {
    submit: Vec<f64>,
    hello: Vec<f64>,
}

impl Submits {
    fn add(&mut self, other: Self) {
        self.submit.extend(other.submit);
        self.hello.extend(other.hello);
    }
}

impl Filled {
    fn empty() -> Result<Self> {
        let daemon = TestDaemon::builder().config("max_concurrent_tasks = 2").start();
        let pipeline = Pipeline::connect(&daemon)?;
        Ok(Self { daemon, pipeline })
    }

    /// Runs `count` trivial tasks, a thousand at a time, so that no long queue inflates the memory.
    fn add(&mut self, mut count: usize) -> Result<()> {
        let params = trivial(&self.daemon);
        while count > 0 {
            let now = count.min(1000);
            let submits = self.pipeline.prepare(&params, now)?;
            self.pipeline.run(&submits)?;
            count -= now;
        }
        Ok(())
    }

    /// Fills both slots, so that later submits only queue and nothing but the submit itself is measured.
    fn occupy(&mut self) -> Result<()> {
        for _ in 0..2 {
            let params = command(&self.daemon, &["sleep", "100000"]);
            self.pipeline.call::<TaskSubmit>(&params)?;
        }
        Ok(())
    }

    /// Times `count` submits in a row, each next to a call that does almost nothing, in microseconds. Removes
    /// the tasks again.
    fn submits(&mut self, count: usize) -> Result<Submits> {
        let params = trivial(&self.daemon);
        let mut pipeline = Pipeline::connect(&self.daemon)?;
        let mut times = Submits::default();
        let mut ids = Vec::new();
        for _ in 0..count {
            times.hello.push(micros(pipeline.timed::<Hello>(&HelloParams::default())?.0));
            let (time, result) = pipeline.timed::<TaskSubmit>(&params)?;
            times.submit.push(micros(time));
            ids.push(TaskRef::from(result.task.id));
        }
        pipeline.call::<TaskCancel>(&CancelParams { ids: ids.clone(), ..CancelParams::default() })?;
        pipeline.call::<TaskClear>(&ClearParams { ids: Some(ids), ..ClearParams::default() })?;
        Ok(times)
    }

    /// Times `bgctl list` as a whole process, in microseconds.
    fn list(&self) -> Result<f64> {
        let output = self.daemon.home().join("printed");
        Ok(micros(timed(&mut self.daemon.bgctl(&["list"]), &output)?.0))
    }

    /// Times the call alone, in microseconds.
    fn list_call(&mut self) -> Result<f64> {
        Ok(micros(self.pipeline.timed::<TaskList>(&ListParams::default())?.0))
    }

    fn memory(&self) -> Result<Memory> {
        Memory::of(&self.daemon.process())
    }
}

pub fn measure(bench: &Bench) -> Result<Vec<Row>> {
    let most = bench.of(20_000, 100_000);
    let tenth = most / 10;
    let mut empty = Filled::empty()?;
    let mut few = Filled::empty()?;
    let mut many = Filled::empty()?;
    let idle = many.memory()?;
    few.add(100)?;
    many.add(tenth)?;
    let some = many.memory()?;
    let first = [live::frame(&many.daemon, tenth, bench)?, live::start(&many.daemon, tenth, bench)?];
    many.add(most - tenth)?;
    let full = many.memory()?;
    let live = live::many(&many.daemon, most, bench)?;

    let (mut list_empty, mut list_many) = (Vec::new(), Vec::new());
    let (mut call_empty, mut call_many) = (Vec::new(), Vec::new());
    for _ in 0..bench.of(30, 150) {
        list_empty.push(empty.list()?);
        list_many.push(many.list()?);
        call_empty.push(empty.list_call()?);
        call_many.push(many.list_call()?);
    }
    few.occupy()?;
    many.occupy()?;
    let pinned = Pinned::with(&[few.daemon.process(), many.daemon.process()])?;
    let (mut at_few, mut at_many) = (Submits::default(), Submits::default());
    for _ in 0..bench.of(10, 40) {
        at_few.add(few.submits(50)?);
        at_many.add(many.submits(50)?);
    }
    drop(pinned);
    let hello = |times: &Submits| Figure::new(median(&times.hello), Unit::Micros);
    let mut rows = vec![
        Row::new(format!("one submit with {most} finished tasks"))
            .peer_samples("the same with 100", &at_few.submit, Unit::Micros)
            .bgd_samples(&at_many.submit, Unit::Micros)
            .target(Target::RatioAtMost(1.2))
            .note(format!("on one processor; a hello takes {} and {}", hello(&at_few), hello(&at_many))),
        Row::new(format!("bgctl list of {most} tasks, first page, whole process"))
            .peer_samples("of none", &list_empty, Unit::Micros)
            .bgd_samples(&list_many, Unit::Micros)
            .target(Target::RatioAtMost(3.0)),
        Row::new("task.list, the call alone")
            .peer_samples("of none", &call_empty, Unit::Micros)
            .bgd_samples(&call_many, Unit::Micros)
            .note("to know: 100 tasks against an empty page"),
    ];
    rows.extend(memory::rows(idle, (tenth, some), (most, full)));
    rows.extend(first);
    rows.extend(live);
    rows.push(live::burst(bench)?);
    Ok(rows)
}
