//! What an upgrade in place carries of a record.

use super::{Recorder, RecorderState};

impl Recorder {
    /// Returns the record so far, after reporting what was lost and what the core was not told yet.
    pub fn state(&mut self) -> RecorderState {
        self.tell_untold();
        let Self {
            task,
            run,
            split,
            line_ended,
            answer,
            model_error,
            error,
            last_report,
            last_plan,
            is_late,
            late_bytes,
            separate,
            loss,
            // Told at once.
            untold: _,
            // Opened again, and told anew.
            context: _,
            file: _,
            last_moved: _,
        } = self;
        loss.tell();
        RecorderState {
            task: *task,
            run: *run,
            split: *split,
            line_ended: *line_ended,
            answer: answer.clone(),
            model_error: model_error.clone(),
            error: error.clone(),
            last_report: last_report.clone(),
            last_plan: last_plan.clone(),
            is_late: *is_late,
            late_bytes: *late_bytes,
            separate: *separate,
        }
    }
}
