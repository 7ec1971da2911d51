//! Carries the channels over an upgrade in place: the undelivered notices with their attempts and running commands, the
//! channels' own states, the counters, and the typing indicators.
//!
//! A notice that is being sent over a network can't be carried. The server has a moment to answer; after that the
//! notice is sent again under the same key, as if the answer had been lost. So has a command whose channel now has
//! another type; after that it is ended, and the notice is delivered by that type. Notices of a removed channel that
//! are not delivered within a moment are given up.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use super::Notifier;
use super::carried::{LeftFds, NotifierState, Resumed, UndeliveredState};
use super::counts::Counts;
use super::hook::{HookLeft, HookState};
use super::orders::{Before, Freeze, Frozen, Order, ThreadOrder};
use super::progress::ProgressState;
use super::undelivered::Undelivered;
use super::waiting::Entry;
use crate::carry::{CarriedFds, Obstacle, ReceivedFds};
use crate::channels::ChannelKind;
use crate::core::Delivery;
use crate::exec::host::{Leased, Process, Purpose, SIGKILL};
use crate::exec::messages::Report;
use crate::wire::mailbox::Internal;

/// How long an upgrade waits for answers to notices being sent.
const ANSWERS: Duration = Duration::from_secs(1);

impl Notifier {
    /// While held, the channels begin nothing new, so that an upgrade can find them idle.
    pub fn hold(&mut self, holds: bool) {
        self.held_since = holds.then(|| self.held_since.unwrap_or_else(Instant::now));
        self.holds.send_if_modified(|held| std::mem::replace(held, holds) != holds);
    }

    /// Lets the frozen channels' thread continue.
    pub fn release(&mut self) {
        self.standstill.release();
    }

    /// Freezes the channels' thread and returns the state. Waits for notices being sent only if `waits`, and only for a
    /// moment.
    ///
    /// # Errors
    /// Something is in progress that ends within moments.
    pub fn state(&mut self, waits: bool, named: &mut CarriedFds) -> Result<NotifierState, Obstacle> {
        if self.resumed.is_some() {
            return Err(Obstacle::passing("the previous upgrade is being completed"));
        }
        let mut waiting = self.waiting.all.values();
        if let Some(entry) = waiting.find(|entry| self.channels.get(&entry.channel).is_none()) {
            let channel = &entry.channel;
            let what =
                format!("a notice is waiting for the channel {channel}, which is no longer configured");
            return Err(Obstacle::passing(what));
        }
        let waits = waits && self.held_since.is_some_and(|since| since.elapsed() < ANSWERS);
        let frozen = self.freeze(waits, named)?;
        let mut all: BTreeMap<u64, UndeliveredState> = self
            .waiting
            .all
            .iter()
            .map(|(number, entry)| (*number, UndeliveredState::of(*number, entry)))
            .collect();
        let mut adapters = BTreeMap::new();
        for Frozen { channel, current, adapter } in frozen {
            adapters.extend(adapter.map(|adapter| (channel, adapter)));
            if let Some((number, read, ProgressState { tried, hook })) = current
                && let Some(state) = all.get_mut(&number)
            {
                (state.read, state.tried, state.hook) = (read, tried, hook);
            }
        }
        let Self {
            counts,
            typing,
            unreported,
            // Waiting notices, and those being sent, are included above.
            waiting: _,
            queues: _,
            former: _,
            unread: _,
            thread: _,
            holds: _,
            gone: _,
            removed: _,
            token_files: _,
            held_since: _,
            standstill: _,
            // State left by the previous upgrade has been taken over.
            resumed: _,
            adapters_before: _,
            // Configured or rebuilt.
            channels: _,
            queue_limit: _,
            context: _,
            internals: _,
            is_durable: _,
            unreported_log: _,
            log_full: _,
            // A daemon that is shutting down is not upgraded.
            is_closing: _,
            is_busy: _,
        } = self;
        let counts = counts.iter().map(|(name, counts)| (Arc::clone(name), counts.state()));
        let typing = typing.iter();
        let typing = typing.map(|(task, turn)| (*task, Arc::clone(&turn.channel), turn.session.clone()));
        Ok(NotifierState {
            counts: counts.collect(),
            unreported: *unreported,
            typing: typing.collect(),
            undelivered: all.into_values().collect(),
            adapters,
        })
    }

    fn freeze(&mut self, waits: bool, named: &mut CarriedFds) -> Result<Vec<Frozen>, Obstacle> {
        let Some(thread) = self.thread.as_ref().filter(|thread| !thread.is_closed()) else {
            return Ok(Vec::new());
        };
        let channels = self.channels.clone();
        self.standstill.freeze("a notice is being processed", named, |order| {
            let _ = thread.send(ThreadOrder::Freeze(Freeze { waits, channels, order }));
        })
    }

    /// Takes over the previous program's state, without acting on it before [`Self::resume_work`].
    ///
    /// # Errors
    /// A file descriptor is missing.
    pub fn resume(&mut self, state: NotifierState, received: &mut ReceivedFds) -> io::Result<()> {
        let NotifierState { counts, unreported, typing, undelivered, adapters } = state;
        for (name, counts) in counts {
            self.counts_of(&name).resume(counts);
        }
        self.unreported = unreported;
        self.adapters_before = adapters;
        let with_fds = |state: UndeliveredState| {
            let fds = state.hook.as_ref().map(|hook| LeftFds::take(hook, received)).transpose()?;
            Ok((state, fds))
        };
        let undelivered = undelivered.into_iter().map(with_fds).collect::<io::Result<_>>()?;
        self.resumed = Some(Box::new(Resumed { typing, undelivered }));
        Ok(())
    }

    /// Resumes the state taken over in an upgrade.
    pub fn resume_work(&mut self) {
        let Some(resumed) = self.resumed.take() else { return };
        let Resumed { typing, undelivered } = *resumed;
        for (state, fds) in undelivered {
            self.restore(state, fds);
        }
        for name in self.adapters_before.keys().cloned().collect::<Vec<_>>() {
            if let Some(channel) = self.channels.get(&name).cloned() {
                let _ = self.queue(&channel);
            }
        }
        self.adapters_before.clear();
        for (task, channel, session) in typing {
            self.show_typing(task, channel, session);
        }
        for process in self.context.helpers.take_unclaimed(Purpose::Hook) {
            self.context.reports.send(Report::EndHelper { process, signal: SIGKILL });
        }
    }

    fn restore(&mut self, state: UndeliveredState, fds: Option<LeftFds>) {
        let UndeliveredState { number, channel: name, notice, reads, tried, read, hook } = state;
        let over = Internal::Notice { number, delivery: Delivery::Over };
        let Some(channel) = self.channels.get(&name).cloned() else { return };
        let Some(notice) = notice else {
            let entry = Entry { channel: name, notice: None, tried: None, reads: false, reads_again: false };
            if channel.kind != ChannelKind::Tty {
                // Changed to a type that does not know the line.
                let counts = self.counts_of(&entry.channel);
                Counts::add(&counts.queued);
                counts.done(Err(Undelivered("its channel is no longer a terminal".to_owned())));
                self.waiting.add(number, entry);
                return self.internals.send(over);
            }
            let counts = self.counts_of(&entry.channel);
            Counts::add(&counts.queued);
            Counts::add(&counts.held);
            return self.waiting.add(number, entry);
        };
        if !channel.wants(notice.kind) {
            // The channel was changed. The dispatcher gets the report like any other, and forgets the notice.
            self.record(&channel, notice, tried, reads);
            return self.internals.send(over);
        }
        // A command of another type's channel is ended with those that nothing claims.
        let hook = hook.filter(|_| matches!(channel.kind, ChannelKind::Exec { .. }));
        let left = hook.zip(fds).map(|(hook, LeftFds { stdin, output })| {
            let HookState { process, words, deadline, feed: _, output: _ } = hook;
            let process = Leased(Process::restore(process, &self.context));
            HookLeft { process, stdin, output, words, deadline }
        });
        let before = Before { tried, read, left };
        if !self.enqueue(&channel, Order { notice, before }, reads) {
            tracing::error!(channel = %name, "a notice is lost: nothing is serving its queue");
        }
    }
}
