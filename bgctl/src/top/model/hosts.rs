//! The hosts whose tasks are listed: their names, and which of them answer.

use std::rc::Rc;

use bgd_shared::time::Timestamp;

use crate::top::task_key::HostNo;

/// Why a host tells nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Silence {
    /// Since when it was silent. `None`: nobody has heard of it yet.
    pub since: Option<Timestamp>,
    /// Why, safe to show on a line.
    pub why: String,
}

/// A host whose tasks are listed.
#[derive(Clone, Debug, Default)]
struct Host {
    /// Its name, which is shown if there are several.
    name: Rc<str>,
    silence: Option<Silence>,
    /// Whether all its tasks are known.
    is_listed: bool,
    /// The number of its latest listing.
    round: u32,
    /// How many tasks it has, as far as it has told.
    tasks: usize,
}

#[derive(Debug)]
pub struct Hosts(Vec<Host>);

impl Hosts {
    /// So many hosts without names.
    pub fn new(count: usize) -> Self {
        Self(vec![Host::default(); count])
    }

    /// Takes their names in their order.
    pub fn set_names(&mut self, names: &[String]) {
        for (host, name) in self.0.iter_mut().zip(names) {
            host.name = crate::render::clean(name).into();
        }
    }

    /// All of them.
    pub fn all(&self) -> impl Iterator<Item = HostNo> + use<> {
        (0..=u8::MAX).take(self.0.len()).map(HostNo)
    }

    /// Whether there are several to tell apart.
    pub fn is_several(&self) -> bool {
        self.0.len() > 1
    }

    pub fn name(&self, host: HostNo) -> &str {
        &self.0[host.index()].name
    }

    /// Why a host tells nothing, if so.
    pub fn silence(&self, host: HostNo) -> Option<&Silence> {
        self.0[host.index()].silence.as_ref()
    }

    /// A host does not answer, or answers again.
    pub fn set_silence(&mut self, host: HostNo, silence: Option<Silence>) {
        self.0[host.index()].silence = silence;
    }

    /// Whether all tasks of the hosts that answer are known.
    pub fn is_listed(&self) -> bool {
        let is_silent = |host: &Host| host.silence.as_ref().is_some_and(|silence| silence.since.is_some());
        self.0.iter().all(|host| host.is_listed || is_silent(host))
    }

    /// Begins a new listing of a host.
    pub fn begin_listing(&mut self, host: HostNo) {
        let host = &mut self.0[host.index()];
        host.round = host.round.wrapping_add(1);
    }

    /// All tasks of a host are known.
    pub fn end_listing(&mut self, host: HostNo) {
        self.0[host.index()].is_listed = true;
    }

    /// The number of a host's latest listing.
    pub fn round(&self, host: HostNo) -> u32 {
        self.0[host.index()].round
    }

    /// Takes how many tasks a host has, and returns how many all have.
    pub fn set_tasks(&mut self, host: HostNo, tasks: usize) -> usize {
        self.0[host.index()].tasks = tasks;
        self.0.iter().map(|host| host.tasks).fold(0, usize::saturating_add)
    }
}
