//! All connections, and the gate that holds their requests back while the daemon upgrades itself. This module reads and
//! writes nothing.

use std::collections::BTreeMap;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, AtomicUsize, Ordering};

use bgd_shared::mutex::Mutex;
use tokio::sync::Notify;

/// All connections, by the numbers of their clients.
#[derive(Debug)]
pub struct Connections<C> {
    all: Mutex<BTreeMap<u64, Arc<C>>>,
    /// Holds back the requests of all connections.
    pub gate: Gate,
    /// The number of the latest client.
    latest: AtomicU64,
    /// The number of the listening descriptor.
    listener: AtomicI32,
}

impl<C> Default for Connections<C> {
    fn default() -> Self {
        Self::restore(0)
    }
}

impl<C> Connections<C> {
    /// Creates the owner of connections taken over from another program; `latest` is the number of its latest client.
    pub fn restore(latest: u64) -> Self {
        Self { all: Mutex::default(), gate: Gate::default(), latest: latest.into(), listener: (-1).into() }
    }

    /// Returns a number for a new client.
    pub fn next_client(&self) -> u64 {
        self.latest.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Records the listening descriptor.
    pub fn listens(&self, number: RawFd) {
        self.listener.store(number, Ordering::Relaxed);
    }

    /// Returns the data that an upgrade carries besides the connections: the numbers of the latest client and of the
    /// listening descriptor.
    pub fn state(&self) -> (u64, RawFd) {
        let Self { latest, listener, all: _, gate: _ } = self;
        (latest.load(Ordering::Relaxed), listener.load(Ordering::Relaxed))
    }

    /// Adds a connection that was accepted.
    pub fn add(&self, client: u64, connection: &Arc<C>) {
        self.all.lock().insert(client, Arc::clone(connection));
    }

    /// Removes a connection that has ended.
    pub fn remove(&self, client: u64) {
        self.all.lock().remove(&client);
    }

    /// Returns the connection of a client.
    pub fn get(&self, client: u64) -> Option<Arc<C>> {
        self.all.lock().get(&client).cloned()
    }

    /// Returns all connections, oldest first.
    pub fn list(&self) -> Vec<Arc<C>> {
        self.all.lock().values().cloned().collect()
    }
}

/// Holds requests back while it is closed. They stay in the buffers of their connections and sockets.
#[derive(Debug, Default)]
pub struct Gate {
    is_closed: AtomicBool,
    opened: Notify,
    /// Requests on their way to the dispatcher.
    passing: AtomicUsize,
}

impl Gate {
    /// Lets no further request pass.
    pub fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
    }

    /// Lets requests pass again.
    pub fn open(&self) {
        self.is_closed.store(false, Ordering::Relaxed);
        self.opened.notify_waiters();
    }

    /// Reports whether no request is on its way.
    pub fn is_idle(&self) -> bool {
        self.passing.load(Ordering::Relaxed) == 0
    }

    /// Waits until a request may pass. The request is on its way until the guard is dropped.
    pub async fn pass(&self) -> Passing<'_> {
        loop {
            let opened = self.opened.notified();
            if !self.is_closed.load(Ordering::Relaxed) {
                self.passing.fetch_add(1, Ordering::Relaxed);
                return Passing(self);
            }
            opened.await;
        }
    }
}

/// A request on its way to the dispatcher.
#[derive(Debug)]
pub struct Passing<'a>(&'a Gate);

impl Drop for Passing<'_> {
    fn drop(&mut self) {
        self.0.passing.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn r122_nothing_passes_a_closed_gate() {
        let gate = Gate::default();
        let passing = gate.pass().await;
        gate.close();
        assert!(!gate.is_idle(), "one is on its way");
        drop(passing);
        assert!(gate.is_idle());
        tokio::select! {
            biased;
            _ = gate.pass() => panic!("it is closed"),
            () = std::future::ready(()) => {}
        }
        gate.open();
        drop(gate.pass().await);
    }
}
