//! The hosts whose tasks are listed: their names, and which of them answer.

use std::rc::Rc;

use bgd_shared::time::Timestamp;

use crate::top::task_key::HostNo;

/// Why a host does not answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Silence {
    /// Since when it has not answered. `None`: still connecting for the first time.
    pub since: Option<Timestamp>,
    /// The reason, cleaned for display on one line.
    pub why: String,
}

/// A host whose tasks are listed.
#[derive(Clone, Debug, Default)]
struct Host {
    /// The name, shown if there are several hosts.
    name: Rc<str>,
    silence: Option<Silence>,
    /// Whether all its tasks are known.
    is_listed: bool,
    round: u32,
    /// The number of its tasks, as last reported.
    tasks: usize,
}

#[derive(Debug)]
pub struct Hosts(Vec<Host>);

impl Hosts {
    /// Creates this number of hosts, without names.
    pub fn new(count: usize) -> Self {
        Self(vec![Host::default(); count])
    }

    /// Sets the names, in the order of the hosts.
    pub fn set_names(&mut self, names: &[String]) {
        for (host, name) in self.0.iter_mut().zip(names) {
            host.name = crate::render::clean(name).into();
        }
    }

    pub fn all(&self) -> impl Iterator<Item = HostNo> + use<> {
        (0..=u8::MAX).take(self.0.len()).map(HostNo)
    }

    /// Reports whether there are several hosts to tell apart.
    pub fn is_several(&self) -> bool {
        self.0.len() > 1
    }

    pub fn name(&self, host: HostNo) -> &str {
        &self.0[host.index()].name
    }

    /// Returns why a host does not answer; `None` if it does.
    pub fn silence(&self, host: HostNo) -> Option<&Silence> {
        self.0[host.index()].silence.as_ref()
    }

    /// Records that a host does not answer, or answers again.
    pub fn set_silence(&mut self, host: HostNo, silence: Option<Silence>) {
        self.0[host.index()].silence = silence;
    }

    /// Reports whether all tasks of the hosts that answer are known.
    pub fn is_listed(&self) -> bool {
        let is_silent = |host: &Host| host.silence.as_ref().is_some_and(|silence| silence.since.is_some());
        self.0.iter().all(|host| host.is_listed || is_silent(host))
    }

    /// Begins a new listing of a host.
    pub fn begin_listing(&mut self, host: HostNo) {
        let host = &mut self.0[host.index()];
        host.round = host.round.wrapping_add(1);
    }

    /// Records that all tasks of a host are known.
    pub fn end_listing(&mut self, host: HostNo) {
        self.0[host.index()].is_listed = true;
    }

    /// Returns the number of a host's latest listing.
    pub fn round(&self, host: HostNo) -> u32 {
        self.0[host.index()].round
    }

    /// Sets the number of a host's tasks, and returns the total of all hosts.
    pub fn set_tasks(&mut self, host: HostNo, tasks: usize) -> usize {
        self.0[host.index()].tasks = tasks;
        self.0.iter().map(|host| host.tasks).fold(0, usize::saturating_add)
    }
}
