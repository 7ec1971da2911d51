//! Whose a task is: the live view may show several hosts, and an id says nothing about the host. Two hosts may even have
//! equal ids, as with a copied disk.

use bgd_shared::id::TaskId;

/// The number of a host, in the order in which they were given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostNo(pub u8);

impl HostNo {
    /// The number as an index.
    pub fn index(self) -> usize {
        usize::from(self.0)
    }

    /// The task of this host with this id.
    pub const fn task(self, id: TaskId) -> TaskKey {
        TaskKey { host: self, id }
    }
}

/// A task of one of the hosts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TaskKey {
    /// The host whose daemon has it.
    pub host: HostNo,
    /// Its id there.
    pub id: TaskId,
}

impl TaskKey {
    /// The beginning of its id, as it is shown.
    pub fn short(self) -> String {
        self.id.short()
    }
}
