//! Which tasks a request is about that names none: those for which something holds.

use std::sync::Arc;

use bgd_shared::id::TaskRef;
use bgd_shared::task::Status;

/// Tasks for which all of this holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// The parent session.
    pub session: Option<Arc<str>>,
    /// The group.
    pub group: Option<Arc<str>>,
    /// The batch: its id, or the beginning of it.
    pub batch: Option<TaskRef>,
    /// Labels, all of which it has.
    pub tags: Box<[String]>,
    /// Statuses, one of which it is in; empty for any.
    pub status: Box<[Status]>,
}
