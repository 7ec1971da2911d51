//! Channels that have left the configuration. Their counts are kept if they show a loss, which people would otherwise
//! not find out about, for a bounded number of channels.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::counts::Counts;

/// The maximum number of removed channels without waiting notices whose losses are kept by name.
const KEPT: usize = 64;

/// The removed channels with counts, in the order in which they were removed.
#[derive(Debug, Default)]
pub struct RemovedChannels(VecDeque<Arc<str>>);

impl RemovedChannels {
    /// Drops the counts of channels that are not configured and of which nobody needs to know. Returns the losses of
    /// the channels that were removed too long ago to be kept.
    pub fn update(
        &mut self,
        counts: &mut BTreeMap<Arc<str>, Arc<Counts>>,
        is_configured: impl Fn(&str) -> bool,
    ) -> u64 {
        counts.retain(|name, counts| is_configured(name) || counts.matter());
        self.0.retain(|name| counts.contains_key(name) && !is_configured(name));
        let is_new = |name: &&Arc<str>| !is_configured(name) && !self.0.contains(*name);
        let new: Vec<Arc<str>> = counts.keys().filter(is_new).cloned().collect();
        self.0.extend(new);
        let mut forgotten = 0;
        while self.0.len() > KEPT {
            let is_idle = |name: &Arc<str>| counts.get(name).is_none_or(|counts| counts.waiting() == 0);
            let Some(oldest) = self.0.iter().position(is_idle) else { break };
            let removed = self.0.remove(oldest).and_then(|name| counts.remove(&name));
            forgotten += removed.map_or(0, |counts| counts.lost());
        }
        forgotten
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn r51_losses_of_removed_channels_are_kept_within_bounds_and_never_forgotten() {
        let mut counts: BTreeMap<Arc<str>, Arc<Counts>> = BTreeMap::new();
        let mut removed = RemovedChannels::default();
        let name = |number: usize| -> Arc<str> { format!("c{number:04}").into() };
        for number in 0..KEPT + 10 {
            let lossy = Counts::default();
            Counts::add(&lossy.dropped);
            counts.insert(name(number), Arc::new(lossy));
        }
        let waits = Counts::default();
        Counts::add(&waits.queued);
        counts.insert("waits".into(), Arc::new(waits));
        counts.insert("fine".into(), Arc::default());
        counts.insert("stays".into(), Arc::default());
        // The last ones are removed first.
        let is_configured = |one: &str| one == "stays" || one < &*name(KEPT);
        assert_eq!(removed.update(&mut counts, is_configured), 0);
        assert!(!counts.contains_key("fine") && counts.contains_key("waits") && counts.contains_key("stays"));
        assert_eq!(removed.update(&mut counts, |one| one == "stays"), 11);
        assert_eq!(counts.len(), KEPT + 1, "that many, and the configured one");
        assert!(counts.contains_key("waits") && !counts.contains_key(&name(KEPT + 9)));
        // One that is configured again counts on.
        let back = counts.keys().next().cloned().unwrap();
        assert_eq!(removed.update(&mut counts, |one| one == "stays" || one == &*back), 0);
        assert_eq!(counts[&back].lost(), 1);
    }
}
