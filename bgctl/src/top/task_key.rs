//! Tasks with their hosts: the live view may show several hosts, and an id does not identify the host. Two hosts may
//! even have the same ids, as with a copied disk.

use bgd_shared::id::TaskId;

/// The number of a host, in the order in which they were given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostNo(pub u8);

impl HostNo {
    /// Returns the number as an index.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }

    /// Returns the task of this host with this id.
    pub const fn task(self, id: TaskId) -> TaskKey {
        TaskKey { host: self, id }
    }
}

/// A task of one of the hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskKey {
    /// The host whose daemon has the task.
    pub host: HostNo,
    /// The id on that host.
    pub id: TaskId,
}

impl TaskKey {
    /// Returns the beginning of the id, for display.
    pub fn short(self) -> String {
        self.id.short()
    }
}
