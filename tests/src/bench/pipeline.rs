//! A lean client for many submits over one connection: it builds lines once, writes them in batches, and
//! parses only the needed parts of the answers.

use std::io::{Read as _, Write as _};
use std::time::{Duration, Instant};

use bgd_shared::client::{Protocol, Received};
use bgd_shared::id::TaskId;
use bgd_shared::request::{
    BlockMode, BlockParams, DaemonStatusOf, Hello, HelloParams, ListParams, Method, NoParams, SubmitParams,
    TaskBlock, TaskList, TaskSubmit,
};
use bgd_shared::task::Status;
use bgd_shared::transport::{Stream, connect};
use serde::Deserialize;

use super::Result;
use crate::TestDaemon;

/// Half the maximum number of submits in flight.
const BATCH: usize = 128;

pub struct Pipeline {
    stream: Stream,
    protocol: Protocol,
    buffer: Vec<u8>,
    batch: usize,
}

/// Prepared submit lines, in batches.
pub struct Submits {
    batches: Vec<(usize, Vec<u8>)>,
}

#[derive(Deserialize)]
struct Lean {
    task: LeanTask,
}

#[derive(Deserialize)]
struct LeanTask {
    id: TaskId,
}

impl Pipeline {
    /// Connects, and queries how many requests may be in flight.
    pub fn connect(daemon: &TestDaemon) -> Result<Self> {
        let stream = connect(daemon.socket_path())?;
        let mut this =
            Self { stream, protocol: Protocol::default(), buffer: vec![0; 256 * 1024], batch: BATCH };
        let limits = this.call::<Hello>(&HelloParams::default())?.limits;
        this.batch = BATCH.min(usize::try_from(limits.requests / 2)?).max(1);
        Ok(this)
    }

    /// Builds the lines of `count` submits.
    pub fn prepare(&mut self, params: &SubmitParams, count: usize) -> Result<Submits> {
        let mut batches = Vec::new();
        let mut left = count;
        while left > 0 {
            let size = left.min(self.batch);
            let mut lines = Vec::new();
            for _ in 0..size {
                lines.extend(self.protocol.call::<TaskSubmit>(params)?.line);
            }
            batches.push((size, lines));
            left -= size;
        }
        Ok(Submits { batches })
    }

    /// Sends all submits and waits until every task has ended.
    pub fn run(&mut self, submits: &Submits) -> Result<()> {
        let latest = self.submit(submits)?;
        // Tasks start in order: once the latest have ended, the others have too, or nearly so.
        self.block(&latest)?;
        while self.call::<DaemonStatusOf>(&NoParams {})?.active > 0 {
            let status = Status::ALL.into_iter().filter(|status| status.is_active()).collect();
            let left = self.call::<TaskList>(&ListParams { status, ..ListParams::default() })?;
            let left: Vec<_> = left.tasks.iter().map(|task| task.id).collect();
            self.block(&left)?;
        }
        Ok(())
    }

    /// Sends all submits, with two batches in flight, and returns the ids of the last batch.
    pub fn submit(&mut self, submits: &Submits) -> Result<Vec<TaskId>> {
        let mut in_flight = 0;
        for (size, lines) in &submits.batches {
            self.stream.write_all(lines)?;
            in_flight += size;
            while in_flight > self.batch {
                self.answer()?;
                in_flight -= 1;
            }
        }
        let mut latest = Vec::new();
        while in_flight > 0 {
            let answer = self.answer()?;
            latest.push(serde_json::from_str::<Lean>(answer.get())?.task.id);
            in_flight -= 1;
        }
        Ok(latest.split_off(latest.len().saturating_sub(16)))
    }

    fn block(&mut self, ids: &[TaskId]) -> Result<()> {
        let ids = ids.iter().copied().map(Into::into).collect();
        let params =
            BlockParams { ids, timeout_ms: Some(600_000), mode: BlockMode::All, ..BlockParams::default() };
        if self.call::<TaskBlock>(&params)?.timed_out {
            return Err("the tasks do not end".into());
        }
        Ok(())
    }

    /// Makes one call and measures it, from the first byte of the request to the last byte of the answer.
    pub fn timed<M: Method>(&mut self, params: &M::Params) -> Result<(Duration, M::Result)> {
        let line = self.protocol.call::<M>(params)?.line;
        let begin = Instant::now();
        self.stream.write_all(&line)?;
        let answer = self.answer()?;
        let time = begin.elapsed();
        Ok((time, Protocol::result::<M>(Ok(answer))?))
    }

    /// Makes one call, with nothing else in flight.
    pub fn call<M: Method>(&mut self, params: &M::Params) -> Result<M::Result> {
        Ok(self.timed::<M>(params)?.1)
    }

    fn answer(&mut self) -> Result<Box<serde_json::value::RawValue>> {
        loop {
            match self.protocol.next_received()? {
                Some(Received::Answer { outcome, .. }) => return Ok(outcome?),
                Some(Received::News(_) | Received::Output(_) | Received::Stopped(_)) => {}
                None => {
                    let count = self.stream.read(&mut self.buffer)?;
                    if count == 0 {
                        return Err("the daemon closed the connection".into());
                    }
                    self.protocol.push(&self.buffer[..count]);
                }
            }
        }
    }
}

/// Returns the params of a trivial task with a small environment.
pub fn trivial(daemon: &TestDaemon) -> SubmitParams {
    command(daemon, &["/bin/true"])
}

/// Returns the params of a command with a small environment.
pub fn command(daemon: &TestDaemon, argv: &[&str]) -> SubmitParams {
    let small = |name: &str| matches!(name, "PATH" | "HOME");
    let mut params = daemon.params();
    params.argv = Some(argv.iter().map(|arg| (*arg).into()).collect());
    params.env = params.env.map(|env| env.0.into_iter().filter(|(name, _)| small(name)).collect());
    params
}
