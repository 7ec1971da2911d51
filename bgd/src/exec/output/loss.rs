//! Reports output that the daemon could not write: readers of the task must see that its output is incomplete, as the
//! job itself gets no error.

use std::io;
use std::time::{Duration, Instant};

use bgd_shared::id::TaskId;
use nix::errno::Errno;

use crate::core::Fact;
use crate::exec::messages::Facts;

/// The minimum interval between reports of an ongoing loss to the core; the first loss and the last are reported at
/// once.
const REPORT_INTERVAL: Duration = Duration::from_millis(500);

/// Counts the bytes that one stream of a task loses.
#[derive(Debug)]
pub struct Loss {
    task: TaskId,
    run: u32,
    facts: Facts,
    unreported: u64,
    why: Box<str>,
    reported_at: Option<Instant>,
}

impl Loss {
    /// Creates a counter for one stream of a run.
    pub fn new(task: TaskId, run: u32, facts: Facts) -> Self {
        Self { task, run, facts, unreported: 0, why: Box::default(), reported_at: None }
    }

    /// Creates a counter for another stream of the same run.
    #[must_use]
    pub fn of_another_stream(&self) -> Self {
        Self::new(self.task, self.run, self.facts.clone())
    }

    /// Adds lost bytes.
    pub fn add(&mut self, bytes: usize, error: &io::Error) {
        if bytes == 0 {
            return;
        }
        self.unreported = self.unreported.saturating_add(bytes as u64);
        self.why = reason(error);
        if self.reported_at.is_none_or(|at| at.elapsed() >= REPORT_INTERVAL) {
            self.report();
        }
    }

    /// Reports everything lost so far to the core.
    pub fn report(&mut self) {
        let bytes = std::mem::take(&mut self.unreported);
        if bytes == 0 {
            return;
        }
        self.reported_at = Some(Instant::now());
        let fact = Fact::Lost { bytes, why: self.why.clone() };
        self.facts.send(self.task, self.run, fact);
    }
}

impl Drop for Loss {
    fn drop(&mut self) {
        self.report();
    }
}

fn reason(error: &io::Error) -> Box<str> {
    match error.raw_os_error().map(Errno::from_raw) {
        Some(errno) => errno.desc().into(),
        None => error.to_string().into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::messages::{ExecutorMessage, facts};
    use tokio::sync::mpsc;

    fn losses(reports: &mut mpsc::UnboundedReceiver<ExecutorMessage>) -> Vec<(u64, String)> {
        std::iter::from_fn(|| reports.try_recv().ok())
            .map(|seen| match seen {
                ExecutorMessage::Fact { fact: Fact::Lost { bytes, why }, .. } => (bytes, why.into()),
                other => panic!("{other:?}"),
            })
            .collect()
    }

    #[test]
    fn first_loss_is_reported_at_once_and_all_bytes_are_counted() {
        let (facts, mut reports) = facts();
        let mut loss = Loss::new(TaskId::random(), 1, facts);
        let full = io::Error::from_raw_os_error(Errno::ENOSPC as i32);
        loss.add(0, &full);
        assert!(losses(&mut reports).is_empty());
        loss.add(3, &full);
        assert_eq!(losses(&mut reports), [(3, "No space left on device".to_owned())]);
        for _ in 0..1000 {
            loss.add(5, &io::ErrorKind::WriteZero.into());
        }
        drop(loss);
        let rest = losses(&mut reports);
        assert_eq!(rest.iter().map(|(bytes, _)| bytes).sum::<u64>(), 5000);
        assert_eq!(rest.last().unwrap().1, io::Error::from(io::ErrorKind::WriteZero).to_string());
    }
}
