//! The part of a record that is carried over an upgrade in place.

use super::{Recorder, RecorderState};

impl Recorder {
    /// Returns the record so far, after reporting lost output and all pending reports.
    pub fn state(&mut self) -> RecorderState {
        self.send_pending();
        let Self {
            task,
            run,
            split,
            line_ended,
            answer,
            model_error,
            last_report,
            last_plan,
            is_late,
            late_bytes,
            separate,
            loss,
            // Reported above.
            pending: _,
            // Created again after the upgrade.
            context: _,
            file: _,
            last_activity: _,
        } = self;
        loss.report();
        RecorderState {
            task: *task,
            run: *run,
            split: *split,
            line_ended: *line_ended,
            answer: answer.clone(),
            model_error: model_error.clone(),
            last_report: last_report.clone(),
            last_plan: last_plan.clone(),
            is_late: *is_late,
            late_bytes: *late_bytes,
            separate: *separate,
        }
    }
}
