//! Delivery of notices to the submitters of tasks: a queue per channel, and the adapters that deliver (R51 to R53).
//!
//! All of it runs on a separate thread, started with the first notice, so that a slow, dead or flooded channel delays
//! no task. Each channel has its own queue and worker, so that channels do not delay each other. This module must not
//! decide who is notified of what: the core and `channels` do.

mod adapter;
pub mod carried;
mod carry;
#[cfg_attr(not(feature = "chats"), path = "chats/absent.rs")]
mod chats;
mod counts;
mod delivery;
#[cfg_attr(not(feature = "desktop"), path = "desktop/absent.rs")]
mod desktop;
mod exec;
mod hook;
#[cfg(any(feature = "chats", feature = "desktop"))]
mod one_at_a_time;
mod orders;
mod outcomes;
mod progress;
mod removed;
mod secrets;
mod tty;
mod typing;
mod undelivered;
pub mod waiting;

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Instant;

use bgd_shared::id::TaskId;
use bgd_shared::request::ChannelStatus;
use serde_json::value::RawValue;
use tokio::sync::{mpsc, oneshot, watch};

pub use self::adapter::{Adapter, Notification, Signal};
use self::carried::Resumed;
use self::chats::TokenFiles;
use self::counts::Counts;
pub use self::exec::ExecProgram;
use self::orders::{Before, ChannelEvent, Frozen, Order, Served, ThreadOrder, TypingOrder};
use self::outcomes::RateLimiter;
pub use self::outcomes::{Outcomes, PendingReport};
use self::removed::RemovedChannels;
pub use self::tty::terminal_of;
pub use self::undelivered::Undelivered;
use self::waiting::{Changed, Entry, Waiting};
use crate::carry::standstill::Standstill;
use crate::channels::{Channel, ChannelKind, Channels, NONE};
use crate::core::durable::NoticeRow;
use crate::core::{Delivery, Notice, Spec, Tried};
use crate::exec::context::Context;
use crate::wire::mailbox::{Internal, Internals};

/// The sending side of a channel that has a worker.
#[derive(Debug)]
struct Queue {
    channel: Arc<Channel>,
    /// Unbounded, because [`Counts`] counts and bounds the notices: the limit can change at run time.
    orders: mpsc::UnboundedSender<Order>,
    /// One message per agent turn; turns are bounded themselves.
    typing: mpsc::UnboundedSender<TypingOrder>,
    /// One message per submission in a terminal, and per visit, ended turn or removed task while something waits;
    /// bounded by those.
    events: mpsc::UnboundedSender<ChannelEvent>,
}

/// An agent turn that is shown as typing, or would be if its channel supported it.
#[derive(Debug)]
struct TypingTurn {
    channel: Arc<str>,
    session: Option<Arc<str>>,
    /// Dropping it ends the indicator.
    _stop: Option<oneshot::Sender<()>>,
}

/// The dispatcher's handle to the channels.
#[derive(Debug)]
pub struct Notifier {
    channels: Channels,
    /// Maximum number of waiting notices per channel, including the one being delivered. Further ones are dropped and
    /// counted.
    queue_limit: usize,
    context: Context,
    internals: Internals,
    thread: Option<mpsc::UnboundedSender<ThreadOrder>>,
    queues: BTreeMap<Arc<str>, Queue>,
    /// The events of terminal channels that are none any more. Their workers may still hold lines.
    former: Vec<mpsc::UnboundedSender<ChannelEvent>>,
    /// By channel name, so that the counters survive changes of the channel.
    counts: BTreeMap<Arc<str>, Arc<Counts>>,
    removed: RemovedChannels,
    typing: HashMap<TaskId, TypingTurn>,
    /// The undelivered notices.
    waiting: Waiting,
    /// Tasks with notices that still need the task's output, with the number of those notices.
    unread: HashMap<TaskId, usize>,
    /// Whether notices outlive the daemon; their results may then have to be read again.
    is_durable: bool,
    /// Whether an upgrade is about to happen; `held_since` says since when.
    holds: watch::Sender<bool>,
    held_since: Option<Instant>,
    /// Freezes the thread for an upgrade.
    standstill: Standstill<Vec<Frozen>>,
    /// For each channel that had a worker, whether it was removed from the configuration.
    gone: BTreeMap<Arc<str>, watch::Sender<bool>>,
    token_files: TokenFiles,
    /// State taken over in an upgrade, until [`Self::resume_work`].
    resumed: Option<Box<Resumed>>,
    /// The channels' own states from before an upgrade.
    adapters_before: BTreeMap<Arc<str>, Box<RawValue>>,
    unreported: u64,
    unreported_log: RateLimiter,
    log_full: RateLimiter,
    is_closing: bool,
    is_busy: bool,
}

impl Notifier {
    /// Creates a notifier. Its thread starts with the first notice.
    pub fn new(channels: Channels, queue_limit: usize, context: Context, internals: Internals) -> Self {
        let mut this = Self {
            channels,
            queue_limit,
            context,
            internals,
            thread: None,
            queues: BTreeMap::new(),
            former: Vec::new(),
            counts: BTreeMap::new(),
            removed: RemovedChannels::default(),
            typing: HashMap::new(),
            waiting: Waiting::default(),
            unread: HashMap::new(),
            is_durable: false,
            holds: watch::channel(false).0,
            held_since: None,
            standstill: Standstill::default(),
            gone: BTreeMap::new(),
            token_files: TokenFiles::default(),
            resumed: None,
            adapters_before: BTreeMap::new(),
            unreported: 0,
            unreported_log: RateLimiter::default(),
            log_full: RateLimiter::default(),
            is_closing: false,
            is_busy: false,
        };
        this.look_at_settings();
        this
    }

    /// Checks the channels' settings before the first notice.
    fn look_at_settings(&mut self) {
        let bots: Vec<_> = self.channels.iter().filter(|channel| channel.kind.is_bot()).cloned().collect();
        for channel in bots {
            self.counts_of(&channel.name);
        }
        let with_counts = |channel: &Arc<Channel>| {
            let counts = self.counts.get(&channel.name)?;
            Some((Arc::clone(channel), Arc::clone(counts)))
        };
        let channels = self.channels.iter().filter_map(with_counts).collect();
        chats::check_settings(channels, &self.token_files);
    }

    /// Returns the known channels.
    pub fn channels(&self) -> &Channels {
        &self.channels
    }

    /// Replaces the channels. Notices queued for a removed or changed channel are still delivered as configured before.
    /// Those for a removed channel are not retried, as they could not be carried over an upgrade. Typing continues on
    /// the new channel. Another terminal channel takes over the missed lines of one that is none any more.
    pub fn configure(&mut self, channels: Channels, queue_limit: usize) {
        // A worker does not depend on which kinds of notices it gets.
        let stays = |queue: &Queue| {
            channels.get(&queue.channel.name).is_some_and(|channel| channel.kind == queue.channel.kind)
        };
        let (queues, removed): (BTreeMap<_, _>, BTreeMap<_, _>) =
            std::mem::take(&mut self.queues).into_iter().partition(|(_, queue)| stays(queue));
        self.queues = queues;
        for (name, queue) in &mut self.queues {
            if let Some(channel) = channels.get(name) {
                queue.channel = Arc::clone(channel);
            }
        }
        let is_tty = |queue: &&Queue| queue.channel.kind == ChannelKind::Tty;
        let has_left =
            |queue: &&Queue| self.counts.get(&queue.channel.name).is_some_and(|counts| has_lines(counts));
        let left: Vec<_> = removed.values().filter(is_tty).filter(has_left).collect();
        self.unreported += self.removed.update(&mut self.counts, |name| channels.get(name).is_some());
        self.gone.retain(|_, gone| gone.receiver_count() > 0);
        for (name, gone) in &self.gone {
            gone.send_replace(channels.get(name).is_none());
        }
        for (name, counts) in &self.counts {
            if channels.get(name).is_some_and(|new| self.channels.get(name) != Some(new)) {
                counts.settings_changed();
            }
        }
        self.channels = channels;
        self.queue_limit = queue_limit;
        self.counts.values().for_each(|counts| counts.set_limit(queue_limit));
        self.look_at_settings();
        for queue in left {
            self.leave(&queue.events);
        }
        self.former.retain(|events| !events.is_closed());
        self.former.extend(removed.values().filter(is_tty).map(|queue| queue.events.clone()));
        // Their workers end now, so they must have received their orders before.
        drop(removed);
        let unserved = self.typing.iter().filter(|(_, turn)| !self.queues.contains_key(&turn.channel));
        let unserved: Vec<TaskId> = unserved.map(|(task, _)| *task).collect();
        for task in unserved {
            if let Some(turn) = self.typing.remove(&task) {
                self.show_typing(task, turn.channel, turn.session);
            }
        }
    }

    /// Has a terminal channel that is none any more leave its missed lines to one that is.
    fn leave(&mut self, events: &mpsc::UnboundedSender<ChannelEvent>) {
        let successor = self.channels.iter().find(|channel| channel.kind == ChannelKind::Tty).cloned();
        if let Some(successor) = successor.and_then(|successor| self.queue(&successor)) {
            _ = events.send(ChannelEvent::LeftTo(successor.events.clone()));
        } else {
            tracing::warn!("no channel shows the missed notices of a removed one");
        }
    }

    /// Makes notices outlive the daemon.
    pub fn make_durable(&mut self) {
        self.is_durable = true;
    }

    /// Reports whether a notice is for a channel that delivers it.
    pub fn takes(&self, notice: &Notice) -> bool {
        let name = notice.task.spec.channel.as_deref().filter(|name| *name != NONE);
        name.and_then(|name| self.channels.get(name)).is_some_and(|channel| channel.wants(notice.kind))
    }

    /// Queues a notice on the task's channel. Returns whether it was queued.
    pub fn notify(&mut self, notice: Arc<Notice>) -> bool {
        let name = match notice.task.spec.channel.as_deref() {
            None => return self.warn_unreported(&notice, "the task has no channel"),
            Some(NONE) => return false,
            Some(name) => name,
        };
        let Some(channel) = self.channels.get(name).cloned() else {
            return self.warn_unreported(&notice, "the channel of the task is not configured");
        };
        if !channel.wants(notice.kind) {
            return false;
        }
        let counts = self.counts_of(&channel.name);
        let has_room = counts.in_queue() < self.queue_limit as u64;
        if has_room && self.enqueue(&channel, Order { notice, before: Before::default() }, true) {
            return true;
        }
        Counts::add(&counts.dropped);
        if let Some(more) = self.log_full.is_due() {
            let why = if has_room { "nothing is serving its queue" } else { "its queue is full" };
            let limit = self.queue_limit;
            tracing::warn!(channel = %channel.name, limit, more, "a notice was dropped: {why}");
        }
        false
    }

    /// Queues a notice that an earlier daemon did not deliver, regardless of the queue's limit. Returns whether it was
    /// queued.
    pub fn notify_again(&mut self, row: NoticeRow) -> bool {
        let NoticeRow { notice, tried } = row;
        let name = notice.task.spec.channel.as_deref().unwrap_or(NONE);
        let Some(channel) = self.channels.get(name).cloned() else {
            return self.warn_unreported(&notice, "the channel of the task is no longer configured");
        };
        let before = Before { tried, ..Before::default() };
        channel.wants(notice.kind) && self.enqueue(&channel, Order { notice, before }, true)
    }

    /// Passes a notice to the worker of its channel. Returns whether there is one.
    fn enqueue(&mut self, channel: &Arc<Channel>, order: Order, reads: bool) -> bool {
        let counts = self.counts_of(&channel.name);
        let (notice, tried) = (Arc::clone(&order.notice), order.before.tried.clone());
        let Some(queue) = self.queue(channel) else { return false };
        Counts::add(&counts.queued);
        if queue.orders.send(order).is_err() {
            Counts::subtract(&counts.queued);
            return false;
        }
        self.record(channel, notice, tried, reads);
        true
    }

    /// Records an undelivered notice.
    fn record(&mut self, channel: &Channel, notice: Arc<Notice>, tried: Option<Tried>, reads: bool) {
        let (number, task) = (notice.number, notice.task.id);
        if reads {
            *self.unread.entry(task).or_default() += 1;
        }
        // Lines in a terminal do not contain the result.
        let reads_again = reads && self.is_durable && channel.kind != ChannelKind::Tty;
        let channel = Arc::clone(&channel.name);
        self.waiting.add(number, Entry { channel, notice: Some(notice), tried, reads, reads_again });
    }

    /// Records the progress of a notice's delivery.
    pub fn note(&mut self, number: u64, delivery: Delivery) -> Changed {
        let mut changed = self.waiting.note(number, delivery, self.queue_limit);
        changed.was_read = changed.was_read.filter(|task| self.was_read(*task));
        changed
    }

    /// Returns the numbers of the undelivered notices.
    pub fn undelivered(&self) -> impl Iterator<Item = u64> {
        self.waiting.all.keys().copied()
    }

    /// Reports that someone uses `bgctl` in the terminal whose session leader is this process. Notices missed at closed
    /// terminals are shown there.
    pub fn visited(&self, leader: i32) {
        self.send_event(&ChannelEvent::Visited(leader), |counts| counts.missed.load(Ordering::Relaxed) > 0);
    }

    /// Reports that this process submitted a task whose end will be reported in its terminal.
    pub fn awaits(&mut self, spec: &Spec, submitter: Option<i32>) {
        let name = spec.channel.as_deref().filter(|name| self.channels.is_tty(name));
        let terminal = spec.place.as_ref().and_then(|place| place.terminal.clone());
        let channel = name.and_then(|name| self.channels.get(name).cloned());
        if let (Some(channel), Some(terminal)) = (channel, terminal)
            && let Some(queue) = self.queue(&channel)
        {
            let _ = queue.events.send(ChannelEvent::Awaited(terminal, submitter));
        }
    }

    /// Reports that a task was removed and that its notices no longer need its output. Waiting lines must not refer to
    /// it any more.
    pub fn forget(&mut self, task: TaskId) {
        self.send_event_to_all(&ChannelEvent::Forgotten(task));
    }

    /// Reports that the run of an agent's task has ended. Waiting lines must not ask its questions any more.
    pub fn ended(&mut self, task: TaskId) {
        self.send_event_to_all(&ChannelEvent::Ended(task));
    }

    /// Reports that the end of a task was reported in the terminal whose session leader is this process. No line that
    /// waits for that terminal must report it again.
    pub fn reported(&mut self, leader: i32, task: TaskId) {
        self.send_event_to_all(&ChannelEvent::Reported(leader, task));
    }

    /// Sends an event to all terminal channels with lines, and to those that were removed.
    fn send_event_to_all(&mut self, event: &ChannelEvent) {
        self.send_event(event, has_lines);
        self.former.retain(|events| events.send(event.clone()).is_ok());
    }

    /// Sends an event to the terminal channels whose counters satisfy the condition.
    fn send_event(&self, event: &ChannelEvent, is_so: impl Fn(&Counts) -> bool) {
        for (name, queue) in self.queues.iter().filter(|(_, queue)| queue.channel.kind == ChannelKind::Tty) {
            if self.counts.get(name).is_some_and(|counts| is_so(counts)) {
                // If there is no worker, no line is waiting either.
                let _ = queue.events.send(event.clone());
            }
        }
    }

    /// Reports whether the output of a task must still be read for a notice.
    pub fn reads(&self, task: TaskId) -> bool {
        self.unread.contains_key(&task)
    }

    /// Records that the result for a notice was read. Returns the task if no other notice needs its output any more.
    pub fn read(&mut self, number: u64) -> Option<TaskId> {
        self.waiting.read(number).filter(|task| self.was_read(*task))
    }

    fn was_read(&mut self, task: TaskId) -> bool {
        let Some(count) = self.unread.get_mut(&task) else { return true };
        *count -= 1;
        let is_last = *count == 0;
        if is_last {
            self.unread.remove(&task);
        }
        is_last
    }

    fn counts_of(&mut self, name: &Arc<str>) -> Arc<Counts> {
        let counts = self.counts.entry(Arc::clone(name)).or_default();
        counts.set_limit(self.queue_limit);
        Arc::clone(counts)
    }

    /// Logs a warning with a hint if the end of a run is not reported anywhere (R52); other notices are skipped
    /// silently. Always returns false, as the notice is not delivered.
    fn warn_unreported(&mut self, notice: &Notice, why: &str) -> bool {
        if !notice.kind.is_end() {
            return false;
        }
        self.unreported += 1;
        if let Some(more) = self.unreported_log.is_due() {
            tracing::warn!(
                task = %notice.task.id,
                channel = notice.task.spec.channel.as_deref(),
                more,
                "no notification of its end was sent: {why}; set default_deliver_to, or add the channel, in the \
                 configuration (bgd-config(5))"
            );
        }
        false
    }

    /// Starts the typing indicator if the task's channel has one (R53).
    pub fn begin_typing(&mut self, task: TaskId, spec: &Spec) {
        if let Some(channel) = spec.channel.clone() {
            self.show_typing(task, channel, spec.session.clone());
        }
    }

    fn show_typing(&mut self, task: TaskId, name: Arc<str>, session: Option<Arc<str>>) {
        let channel = self.channels.get(&name).cloned();
        let can_show =
            |kind: &ChannelKind| matches!(kind, ChannelKind::Chat(chat, _) if chat.descriptor().shows_typing);
        let queue =
            channel.filter(|channel| can_show(&channel.kind)).and_then(|channel| self.queue(&channel));
        let stop = queue.map(|queue| {
            let (stop, stopped) = oneshot::channel();
            let _ = queue.typing.send((session.clone(), stopped));
            stop
        });
        self.typing.insert(task, TypingTurn { channel: name, session, _stop: stop });
    }

    /// Stops the typing indicator.
    pub fn end_typing(&mut self, task: TaskId) {
        self.typing.remove(&task);
    }

    /// Returns the queue of a channel, creating it on first use. `None` during shutdown, or if the thread
    /// can't be started.
    fn queue(&mut self, channel: &Arc<Channel>) -> Option<&Queue> {
        // A queue whose worker is gone, along with the whole thread, does not count.
        let has_one = self.queues.get(&channel.name).is_some_and(|queue| !queue.orders.is_closed());
        if !has_one {
            if self.is_closing {
                return None;
            }
            let (orders, waiting) = mpsc::unbounded_channel();
            let (typing, typing_orders) = mpsc::unbounded_channel();
            let (events, event_receiver) = mpsc::unbounded_channel();
            let counts = self.counts_of(&channel.name);
            let channel_too = Arc::clone(channel);
            let served = Served {
                channel: channel_too,
                before: self.adapters_before.remove(&channel.name),
                holds: self.holds.subscribe(),
                gone: self.gone.entry(Arc::clone(&channel.name)).or_default().subscribe(),
                orders: waiting,
                typing: typing_orders,
                events: event_receiver,
                counts,
            };
            if let Err(error) = self.serve(served) {
                tracing::error!(%error, "cannot start a thread for channels");
                return None;
            }
            let queue = Queue { channel: Arc::clone(channel), orders, typing, events };
            self.queues.insert(Arc::clone(&channel.name), queue);
        }
        self.queues.get(&channel.name)
    }

    fn serve(&mut self, served: Served) -> io::Result<()> {
        if self.thread.as_ref().is_none_or(mpsc::UnboundedSender::is_closed) {
            self.thread = Some(start(self.context.clone(), self.internals.clone())?);
            self.is_busy = true;
        }
        if let Some(thread) = &self.thread {
            let _ = thread.send(ThreadOrder::Serve(Box::new(served)));
        }
        Ok(())
    }

    /// Returns the status of the configured channels, of built-in channels that were used or are the default, and of
    /// removed channels with waiting or lost notices.
    pub fn status(&self) -> Vec<ChannelStatus> {
        let none = Counts::default();
        let known = self.channels.iter().filter_map(|channel| match self.counts.get(&channel.name) {
            Some(counts) => Some(counts.status(&channel.name, channel.kind.as_str())),
            None if self.channels.is_unset(&channel.name) => None,
            None => Some(none.status(&channel.name, channel.kind.as_str())),
        });
        let gone =
            self.counts.iter().filter(|(name, counts)| self.channels.get(name).is_none() && counts.matter());
        known.chain(gone.map(|(name, counts)| counts.status(name, "gone"))).collect()
    }

    /// Returns the programs of the channels that run one.
    pub fn programs(&self) -> Vec<(Arc<str>, ExecProgram)> {
        let program =
            |channel: &Arc<Channel>| Some((Arc::clone(&channel.name), ExecProgram::of(&channel.kind)?));
        self.channels.iter().filter_map(program).collect()
    }

    /// Returns the number of runs whose end was reported on no channel, and of notices that were lost by channels that
    /// were removed too long ago to be listed.
    pub fn unreported(&self) -> u64 {
        self.unreported
    }

    /// Starts the shutdown: waiting notices are still delivered if that does not take long, then
    /// [`Internal::ChannelsDone`] follows.
    pub fn close(&mut self) {
        self.is_closing = true;
        self.hold(false);
        self.release();
        self.typing.clear();
        self.queues.clear();
        self.former.clear();
        self.thread = None;
    }

    /// Records that the channels' thread has ended.
    pub fn is_done(&mut self) {
        self.is_busy = false;
    }

    /// Ends the grace period: logs and abandons the undelivered notices.
    pub fn give_up(&mut self) {
        for (name, counts) in &self.counts {
            let undelivered = counts.waiting();
            if self.is_busy && undelivered > 0 {
                tracing::warn!(channel = %name, undelivered, "the daemon ends before its notices are delivered");
            }
        }
        self.is_busy = false;
    }

    /// Reports whether the channels' thread is running.
    pub fn is_busy(&self) -> bool {
        self.is_busy
    }
}

/// Starts the thread. It ends once its handle is dropped and every queue is empty.
fn start(context: Context, internals: Internals) -> io::Result<mpsc::UnboundedSender<ThreadOrder>> {
    let (orders, waiting) = mpsc::unbounded_channel();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    thread::Builder::new().name("channels".to_owned()).spawn(move || {
        let local = tokio::task::LocalSet::new();
        local.block_on(&runtime, delivery::serve_all(waiting, context, internals.clone()));
        internals.send(Internal::ChannelsDone);
    })?;
    Ok(orders)
}

/// Reports whether lines of a channel wait, or are for closed terminals.
fn has_lines(counts: &Counts) -> bool {
    counts.waiting() > 0 || counts.missed.load(Ordering::Relaxed) > 0
}
