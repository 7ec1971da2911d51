//! Resident memory of the daemon: idle, and per finished task that it keeps.

use super::Result;
use super::report::{Figure, Row, Target, Unit};
use super::stats::float;
use crate::Process;

/// Resident memory in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Memory {
    /// Total resident set size.
    rss: f64,
    /// Proportional set size: shared pages are divided by the number of their users.
    pss: f64,
}

impl Memory {
    pub fn of(process: &Process) -> Result<Self> {
        let rss = process.status_value("VmRSS").ok_or("no VmRSS")?;
        let pss = process.memory_kb("Pss").ok_or("no Pss")?;
        Ok(Self { rss: float(rss * 1024), pss: float(pss * 1024) })
    }

    pub fn rss(self) -> f64 {
        self.rss
    }
}

/// Returns the rows: idle memory, and the slope between two counts of finished tasks.
pub fn rows(idle: Memory, some: (usize, Memory), full: (usize, Memory)) -> Vec<Row> {
    let added = float((full.0 - some.0) as u64);
    let a_task = (full.1.rss - some.1.rss) / added;
    let megabytes = |bytes: f64| Figure::new(bytes, Unit::Bytes);
    vec![
        Row::new("resident memory, idle")
            .bgd(megabytes(idle.rss))
            .target(Target::AtMost(5e6, Unit::Bytes))
            .note(format!("Pss {}", megabytes(idle.pss))),
        Row::new("resident memory, each finished task")
            .bgd(megabytes(a_task))
            .target(Target::AtMost(1024.0, Unit::Bytes))
            .note(format!(
                "{} with {} tasks, {} with {}",
                megabytes(some.1.rss),
                some.0,
                megabytes(full.1.rss),
                full.0
            )),
    ]
}
