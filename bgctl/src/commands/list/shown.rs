//! How `list` shows tasks, with their resource usage and progress where needed.

use bgd_shared::request::{TaskOutput, TaskUsage};
use bgd_shared::task::Task;
use bgd_shared::time::Timestamp;

use crate::context::Context;
use crate::failure::Failure;
use crate::measure::{measured, percents};
use crate::remark::report;
use crate::render::columns::{Field, Measured, Sort};
use crate::render::list_format::{ListFormat, lines};
use crate::render::table::{Drawn, Listing, listings};

/// Prints a list; reports on standard error the chosen columns that it lacks.
///
/// # Errors
/// Standard output can't be written.
pub fn print(drawn: &Drawn, context: &mut Context) -> Result<(), Failure> {
    context.print(&drawn.text)?;
    if let Some(remark) = drawn.remark() {
        context.flush()?;
        report(&remark);
    }
    Ok(())
}

/// How the tasks are shown.
pub struct Shown {
    /// The columns; empty for the default ones.
    pub columns: Vec<Field>,
    /// The sort order; `None` to keep the tasks as they came.
    pub sort: Option<Sort>,
    /// Whether to draw a tree.
    pub tree: bool,
    /// Maximum number of tasks.
    pub most: usize,
}

impl Shown {
    /// Sorts the tasks as requested.
    pub fn sort(&self, tasks: &mut [Task], measured: &Measured) {
        if let Some(sort) = self.sort {
            sort.apply(tasks, measured, Timestamp::now());
        }
    }

    /// Measures the usage of running tasks, if it is shown or sorted by.
    pub fn measured(&self, tasks: &[Task], context: &mut Context) -> Result<Measured, Failure> {
        if self.is_measured() {
            measured(tasks, |params| context.call::<TaskUsage>(params))
        } else {
            Ok(Measured::new())
        }
    }

    /// Reports whether the usage of running tasks is shown or sorted by.
    pub fn is_measured(&self) -> bool {
        self.columns.iter().copied().any(Field::is_measured) || self.sort.is_some_and(Sort::is_measured)
    }

    /// Sets the columns, and adds that of the progress if any is known.
    pub fn set_columns(&self, format: &mut ListFormat) {
        if !self.columns.is_empty() {
            format.columns.clone_from(&self.columns);
            format.is_chosen = true;
            // A tree is drawn in the id column.
            if self.tree && !format.columns.contains(&Field::Id) {
                format.columns.insert(0, Field::Id);
            }
        } else if !format.percents.is_empty() {
            let at = format.columns.iter().position(|field| *field == Field::Description);
            format.columns.insert(at.unwrap_or(0), Field::Progress);
        }
    }

    /// Renders the tasks, with their progress if it is visible.
    pub fn drawn(
        &self,
        tasks: &mut [Task],
        format: &mut ListFormat,
        context: &mut Context,
    ) -> Result<Drawn, Failure> {
        format.measured = self.measured(tasks, context)?;
        self.sort(tasks, &format.measured);
        if format.table || self.columns.contains(&Field::Progress) {
            format.percents = percents(tasks, |all| context.link.call_together::<TaskOutput>(all))?;
        }
        self.set_columns(format);
        let all = [Listing { host: None, tasks: Ok(tasks) }];
        Ok(listings(&all, self.tree.then(lines), format))
    }
}
