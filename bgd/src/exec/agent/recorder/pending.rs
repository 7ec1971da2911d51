//! Collects reports for the core. An agent may report far more than is read, so the core is notified only every
//! [`PAUSE`], with the latest report of each kind and the number of reports. This module sends nothing itself.

use std::sync::Arc;
use std::time::{Duration, Instant};

use bgd_shared::consumption::PlanStep;

use crate::core::{Fact, LAST_TOOLS, Note, Report};

/// The shortest time between two reports to the core.
const PAUSE: Duration = Duration::from_millis(250);

#[derive(Debug, Default)]
pub struct PendingReports {
    tool_calls: u64,
    /// The names of the latest tool calls, in order.
    latest_tools: Vec<Box<str>>,
    /// How often something was denied, and the last thing that was denied.
    denied: Option<(u64, Box<str>)>,
    report: Report,
    plan: Option<Arc<[PlanStep]>>,
    last_words: Option<Box<str>>,
    reported_at: Option<Instant>,
}

impl PendingReports {
    pub fn tool(&mut self, name: Box<str>) {
        self.tool_calls += 1;
        if self.latest_tools.len() == LAST_TOOLS {
            self.latest_tools.remove(0);
        }
        self.latest_tools.push(name);
    }

    pub fn denied(&mut self, what: Box<str>) {
        let times = self.denied.take().map_or(0, |(times, _)| times);
        self.denied = Some((times + 1, what));
    }

    /// Merges a report of the agent's consumption.
    pub fn consumed(&mut self, report: &Report) {
        self.report.update(report);
    }

    /// Sets the plan, replacing a pending one.
    pub fn planned(&mut self, steps: Arc<[PlanStep]>) {
        self.plan = Some(steps);
    }

    /// Sets the agent's last message besides its answer, replacing a pending one.
    pub fn last_words(&mut self, text: Box<str>) {
        self.last_words = Some(text);
    }

    /// Returns when the pending reports are due; `None` if there are none.
    pub fn due(&self) -> Option<Instant> {
        let Self { tool_calls, latest_tools: _, denied, report, plan, last_words, reported_at } = self;
        let is_empty = *tool_calls == 0
            && denied.is_none()
            && report.is_empty()
            && plan.is_none()
            && last_words.is_none();
        if is_empty { None } else { Some(reported_at.map_or_else(Instant::now, |at| at + PAUSE)) }
    }

    /// Takes all pending reports as facts to be sent at `now`.
    pub fn take(&mut self, now: Instant) -> Vec<Fact> {
        let reported_at = if self.due().is_some() { Some(now) } else { self.reported_at };
        let pending = std::mem::replace(self, Self { reported_at, ..Self::default() });
        let Self {
            tool_calls: calls,
            latest_tools: latest,
            denied,
            report,
            plan,
            last_words,
            reported_at: _,
        } = pending;
        let tools = (calls > 0).then_some(Fact::Tools { calls, latest });
        let denied = denied.map(|(times, what)| Fact::Denied { times, what });
        let consumed = (!report.is_empty()).then(|| Fact::Consumed(Box::new(report)));
        let planned = plan.map(|steps| Fact::Planned { steps });
        let noted = last_words.map(|text| Fact::Noted { note: Note::LastWords, text });
        tools.into_iter().chain(denied).chain(consumed).chain(planned).chain(noted).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flood_of_updates_is_batched_without_loss() {
        let (mut pending, begin) = (PendingReports::default(), Instant::now());
        assert_eq!((pending.due(), pending.take(begin)), (None, vec![]));
        pending.tool("first".into());
        assert!(pending.due().is_some_and(|at| at <= Instant::now()), "the first one is reported at once");
        assert_eq!(pending.take(begin), [Fact::Tools { calls: 1, latest: vec!["first".into()] }]);
        for number in 0..10_000 {
            pending.tool(format!("tool {number}").into());
            pending.denied(format!("write {number}").into());
            pending.planned([].into());
            pending.last_words(format!("try {number}").into());
        }
        assert_eq!(pending.due(), Some(begin + PAUSE));
        let later = begin + PAUSE;
        assert_eq!(
            pending.take(later),
            [
                Fact::Tools {
                    calls: 10_000,
                    latest: ["tool 9997", "tool 9998", "tool 9999"].map(Into::into).into()
                },
                Fact::Denied { times: 10_000, what: "write 9999".into() },
                Fact::Planned { steps: [].into() },
                Fact::Noted { note: Note::LastWords, text: "try 9999".into() },
            ]
        );
        assert_eq!((pending.due(), pending.take(later)), (None, vec![]));
    }
}
