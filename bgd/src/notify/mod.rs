//! Delivery of notices to whoever asked for a task: a queue per channel, and the adapters that deliver (R51 to R53).
//!
//! All of it runs on a separate thread, started with the first notice, so that a slow, dead or flooded channel
//! delays no task. Each channel has its own queue and worker, so that it delays no other channel. This module
//! must not decide who is told what: that is up to the core and `channels`.

#[cfg_attr(not(feature = "chats"), path = "chats/absent.rs")]
pub mod carry;
mod chats;
mod counts;
mod delivery;
#[cfg_attr(not(feature = "desktop"), path = "desktop/absent.rs")]
mod desktop;
mod exec;
mod secrets;
mod tty;
mod typing;
mod undelivered;

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, HashMap};
use std::io;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::{Duration, Instant};

use bgd_shared::id::TaskId;
use bgd_shared::notice::{Notice as Wire, NoticeKind};
use bgd_shared::request::{ChannelStatus, OriginTerminal};
use futures_util::future::LocalBoxFuture;
use tokio::sync::{mpsc, oneshot};

use self::counts::Counts;
use self::undelivered::Undelivered;
use crate::channels::{Channel, ChannelKind, Channels, NONE};
use crate::core::{Notice, Place, Spec};
use crate::exec::context::Context;
use crate::wire::mailbox::{Internal, Internals};

/// The adapter of one channel.
pub trait Adapter {
    /// Delivers a notice, with retries where they make sense. A channel's notices are delivered one after the
    /// other; a notice that can't be delivered yet may be held ([`Notification::hold`]), so that it delays none.
    fn notify<'a>(&'a self, notification: &'a Notification) -> LocalBoxFuture<'a, Result<(), Undelivered>>;

    /// Called when someone uses `bgctl` in the terminal whose session leader is this process.
    fn visited(&self, leader: i32) {
        let _ = leader;
    }

    /// Called when this process submits a task in this terminal, which will be told of the task's end.
    fn awaits(&self, terminal: &OriginTerminal, submitter: Option<i32>) {
        let _ = (terminal, submitter);
    }

    /// Called when a task was removed, so that clients can no longer ask for it.
    fn forget(&self, task: TaskId) {
        let _ = task;
    }

    /// Called when no more notices will come. Delivers or gives up the held ones, then returns.
    fn finish(&self) -> LocalBoxFuture<'_, ()> {
        Box::pin(async {})
    }

    /// Returns a signal that shows a parent session that an agent is working. `None` if the channel can't show it.
    fn start_typing(&self, session: Option<&str>) -> Option<Signal> {
        let _ = session;
        None
    }
}

/// A typing indicator in a chat.
pub struct Signal {
    /// The chat, which needs only one signal at a time.
    pub chat: String,
    /// Shows the indicator until it is dropped.
    pub shown: LocalBoxFuture<'static, ()>,
}

/// A notice with everything needed to deliver it.
pub struct Notification {
    /// The notice.
    pub notice: Wire,
    /// The submitter's environment and terminal.
    pub place: Option<Arc<Place>>,
    /// Whether the task was removed already.
    pub is_removed: bool,
    done: Rc<Cell<Option<Done>>>,
}

impl Notification {
    /// Takes over reporting the outcome later; the result of [`Adapter::notify`] is ignored then. `None` if it
    /// was taken over before.
    pub fn hold(&self) -> Option<Done> {
        let mut done = self.done.take()?;
        done.hold();
        Some(done)
    }
}

/// A parent session that is shown typing until the other end of the receiver is dropped.
type TypingOrder = (Option<Arc<str>>, oneshot::Receiver<()>);

/// What all notices of a channel need to report their outcomes.
struct Outcomes {
    channel: Arc<Channel>,
    counts: Arc<Counts>,
    log: RefCell<RateLimiter>,
}

/// Reports the outcome of one notice. Dropped without a report, it counts as not delivered.
pub struct Done {
    of: Rc<Outcomes>,
    is_held: bool,
    is_told: bool,
}

impl Done {
    fn new(of: &Rc<Outcomes>) -> Self {
        Self { of: Rc::clone(of), is_held: false, is_told: false }
    }

    /// Marks the notice as held by its channel, which frees its room in the queue.
    fn hold(&mut self) {
        self.is_held = true;
        Counts::add(&self.of.counts.held);
        tracing::debug!(channel = %self.of.channel.name, "a notice is held");
    }

    /// Reports whether the notice was delivered.
    pub fn tell(mut self, outcome: Result<(), Undelivered>) {
        self.take(outcome);
    }

    fn take(&mut self, outcome: Result<(), Undelivered>) {
        let Outcomes { channel, counts, log } = &*self.of;
        self.is_told = true;
        if self.is_held {
            Counts::subtract(&counts.held);
        }
        counts.done(outcome.clone());
        match outcome {
            Ok(()) => tracing::debug!(channel = %channel.name, "a notice was delivered"),
            Err(Undelivered(why)) => {
                if let Some(more) = log.borrow_mut().is_due() {
                    tracing::warn!(channel = %channel.name, %why, more, "a notice was not delivered");
                }
            }
        }
    }
}

impl Drop for Done {
    fn drop(&mut self) {
        if !self.is_told {
            self.take(Err(Undelivered("the adapter has panicked".to_owned())));
        }
    }
}

/// The sending side of a channel that has a worker.
#[derive(Debug)]
struct Queue {
    channel: Arc<Channel>,
    /// Unbounded, because [`Counts`] counts and bounds the notices: the limit can change at run time.
    orders: mpsc::UnboundedSender<Arc<Notice>>,
    /// One message per turn of an agent; turns are bounded themselves.
    typing: mpsc::UnboundedSender<TypingOrder>,
    /// One message per submission in a terminal, and per visit or removed task while something waits;
    /// bounded by those.
    signs: mpsc::UnboundedSender<ChannelEvent>,
}

/// Events that help a channel deliver, other than notices.
#[derive(Clone, Debug)]
enum ChannelEvent {
    /// Someone uses `bgctl` in the terminal whose session leader is this process.
    Visited(i32),
    /// This process submitted a task in this terminal, which will be told of the task's end.
    Awaited(OriginTerminal, Option<i32>),
    /// A task was removed.
    Forgotten(TaskId),
}

/// The receiving side of a channel, for its worker.
#[derive(Debug)]
pub struct Served {
    channel: Arc<Channel>,
    orders: mpsc::UnboundedReceiver<Arc<Notice>>,
    typing: mpsc::UnboundedReceiver<TypingOrder>,
    signs: mpsc::UnboundedReceiver<ChannelEvent>,
    counts: Arc<Counts>,
}

/// How often the same kind of event is logged per `LOG_EVERY`: a task without a channel, a full queue, a failing
/// channel. A hundred thousand tasks must not fill the log.
const LOG_BURST: u32 = 20;
const LOG_EVERY: Duration = Duration::from_secs(10);

/// Limits how often an event is logged, and counts the suppressed ones.
#[derive(Debug, Default)]
struct RateLimiter {
    begun: Option<Instant>,
    logged: u32,
    left_out: u64,
}

impl RateLimiter {
    /// Returns how many events were suppressed since the last logged one. `None` if this one is to be suppressed.
    fn is_due(&mut self) -> Option<u64> {
        if self.begun.is_none_or(|begun| begun.elapsed() >= LOG_EVERY) {
            (self.begun, self.logged) = (Some(Instant::now()), 0);
        }
        if self.logged >= LOG_BURST {
            self.left_out += 1;
            return None;
        }
        self.logged += 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

/// A turn of an agent that is shown as typing, or would be if its channel could show it.
#[derive(Debug)]
struct Turn {
    channel: Arc<str>,
    session: Option<Arc<str>>,
    /// Dropping it ends the indicator.
    _stop: Option<oneshot::Sender<()>>,
}

/// The dispatcher's handle to the channels.
#[derive(Debug)]
pub struct Notifier {
    channels: Channels,
    /// Maximum number of waiting notices per channel, including the one in delivery. Further ones are
    /// dropped and counted.
    queue_limit: usize,
    context: Context,
    internals: Internals,
    thread: Option<mpsc::UnboundedSender<Served>>,
    queues: BTreeMap<Arc<str>, Queue>,
    /// By channel name, so that the counters survive a change of the channel.
    counts: BTreeMap<Arc<str>, Arc<Counts>>,
    typing: HashMap<TaskId, Turn>,
    /// Tasks with notices whose results are not read yet, with the number of those notices.
    unread: HashMap<TaskId, usize>,
    unreported: u64,
    log_untold: RateLimiter,
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
            counts: BTreeMap::new(),
            typing: HashMap::new(),
            unread: HashMap::new(),
            unreported: 0,
            log_untold: RateLimiter::default(),
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
        chats::check_settings(self.channels.iter().filter_map(with_counts).collect());
    }

    /// Returns the known channels.
    pub fn channels(&self) -> &Channels {
        &self.channels
    }

    /// Replaces the channels. Notices queued for a removed or changed channel are still delivered the old way;
    /// typing continues on the new channel.
    pub fn configure(&mut self, channels: Channels, queue_limit: usize) {
        self.queues.retain(|name, queue| channels.get(name) == Some(&queue.channel));
        self.counts.retain(|name, counts| channels.get(name).is_some() || counts.waiting() > 0);
        self.channels = channels;
        self.queue_limit = queue_limit;
        self.look_at_settings();
        let unheard = self.typing.iter().filter(|(_, turn)| !self.queues.contains_key(&turn.channel));
        let unheard: Vec<TaskId> = unheard.map(|(task, _)| *task).collect();
        for task in unheard {
            if let Some(turn) = self.typing.remove(&task) {
                self.show_typing(task, turn.channel, turn.session);
            }
        }
    }

    /// Queues a notice on the task's channel.
    pub fn tell(&mut self, notice: Arc<Notice>) {
        let name = match notice.task.spec.channel.as_deref() {
            None => return self.nobody_told(&notice, "the task has no channel"),
            Some(NONE) => return,
            Some(name) => name,
        };
        let Some(channel) = self.channels.get(name).cloned() else {
            return self.nobody_told(&notice, "the channel of the task is not configured");
        };
        if channel.kind == ChannelKind::Inbox || (notice.kind == NoticeKind::Started && !channel.started) {
            return;
        }
        let counts = self.counts_of(&channel.name);
        let has_room = counts.in_queue() < self.queue_limit as u64;
        if has_room && let Some(queue) = self.queue(&channel) {
            Counts::add(&counts.queued);
            let task = notice.task.id;
            if queue.orders.send(notice).is_ok() {
                *self.unread.entry(task).or_default() += 1;
                return;
            }
            Counts::subtract(&counts.queued);
        }
        Counts::add(&counts.dropped);
        if let Some(more) = self.log_full.is_due() {
            let why = if has_room { "nobody serves its queue" } else { "its queue is full" };
            let limit = self.queue_limit;
            tracing::warn!(channel = %channel.name, limit, more, "a notice was dropped: {why}");
        }
    }

    /// Reports that someone uses `bgctl` in the terminal whose session leader is this process. Notices missed at
    /// closed terminals go there.
    pub fn visited(&self, leader: i32) {
        self.sign(&ChannelEvent::Visited(leader), |counts| counts.missed.load(Ordering::Relaxed) > 0);
    }

    /// Reports that this process submitted a task whose terminal will be told of its end.
    pub fn awaits(&mut self, spec: &Spec, submitter: Option<i32>) {
        let name = spec.channel.as_deref().filter(|name| self.channels.is_tty(name));
        let terminal = spec.place.as_ref().and_then(|place| place.terminal.clone());
        let channel = name.and_then(|name| self.channels.get(name).cloned());
        if let (Some(channel), Some(terminal)) = (channel, terminal)
            && let Some(queue) = self.queue(&channel)
        {
            let _ = queue.signs.send(ChannelEvent::Awaited(terminal, submitter));
        }
    }

    /// Reports that a task was removed and none of its notices is still to be read. Waiting lines must not refer
    /// to it any more.
    pub fn forget(&self, task: TaskId) {
        let waits = |counts: &Counts| counts.waiting() > 0 || counts.missed.load(Ordering::Relaxed) > 0;
        self.sign(&ChannelEvent::Forgotten(task), waits);
    }

    /// Sends an event to the terminal channels whose counters satisfy the condition.
    fn sign(&self, sign: &ChannelEvent, is_so: impl Fn(&Counts) -> bool) {
        for (name, queue) in self.queues.iter().filter(|(_, queue)| queue.channel.kind == ChannelKind::Tty) {
            if self.counts.get(name).is_some_and(|counts| is_so(counts)) {
                // If there is no worker, no line is waiting either.
                let _ = queue.signs.send(sign.clone());
            }
        }
    }

    /// Whether the output of a task must still be read for a notice.
    pub fn reads(&self, task: TaskId) -> bool {
        self.unread.contains_key(&task)
    }

    /// Records that the result for a notice was read. Returns true if no other notice of the task needs its output.
    pub fn was_read(&mut self, task: TaskId) -> bool {
        let Some(count) = self.unread.get_mut(&task) else { return true };
        *count -= 1;
        let is_last = *count == 0;
        if is_last {
            self.unread.remove(&task);
        }
        is_last
    }

    fn counts_of(&mut self, name: &Arc<str>) -> Arc<Counts> {
        Arc::clone(self.counts.entry(Arc::clone(name)).or_default())
    }

    /// Logs a warning with a hint if the end of a run is reported to nobody (R52); other notices are
    /// skipped silently.
    fn nobody_told(&mut self, notice: &Notice, why: &str) {
        if !notice.kind.is_end() {
            return;
        }
        self.unreported += 1;
        if let Some(more) = self.log_untold.is_due() {
            tracing::warn!(
                task = %notice.task.id,
                channel = notice.task.spec.channel.as_deref(),
                more,
                "no notification of its end was sent: {why}; set default_deliver_to, or add the channel, in the \
                 configuration (bgd-config(5))"
            );
        }
    }

    /// Starts the typing indicator if the task's channel has one (R53).
    pub fn begin_typing(&mut self, task: TaskId, spec: &Spec) {
        if let Some(channel) = spec.channel.clone() {
            self.show_typing(task, channel, spec.session.clone());
        }
    }

    fn show_typing(&mut self, task: TaskId, name: Arc<str>, session: Option<Arc<str>>) {
        let channel = self.channels.get(&name).cloned();
        let can_show = |kind: &ChannelKind| matches!(kind, ChannelKind::Chat(chat, _) if chat.shows_typing());
        let queue =
            channel.filter(|channel| can_show(&channel.kind)).and_then(|channel| self.queue(&channel));
        let stop = queue.map(|queue| {
            let (stop, stopped) = oneshot::channel();
            let _ = queue.typing.send((session.clone(), stopped));
            stop
        });
        self.typing.insert(task, Turn { channel: name, session, _stop: stop });
    }

    /// Stops the typing indicator.
    pub fn end_typing(&mut self, task: TaskId) {
        self.typing.remove(&task);
    }

    /// Returns the queue of a channel, creating it on first use. `None` during shutdown, or if the thread
    /// can't be started.
    fn queue(&mut self, channel: &Arc<Channel>) -> Option<&Queue> {
        // A queue whose worker is gone, with the whole thread, does not count.
        let has_one = self.queues.get(&channel.name).is_some_and(|queue| !queue.orders.is_closed());
        if !has_one {
            if self.is_closing {
                return None;
            }
            let (orders, waiting) = mpsc::unbounded_channel();
            let (typing, typing_orders) = mpsc::unbounded_channel();
            let (signs, signs_given) = mpsc::unbounded_channel();
            let counts = self.counts_of(&channel.name);
            let channel_too = Arc::clone(channel);
            let served = Served {
                channel: channel_too,
                orders: waiting,
                typing: typing_orders,
                signs: signs_given,
                counts,
            };
            if let Err(error) = self.serve(served) {
                tracing::error!(%error, "cannot start a thread for channels");
                return None;
            }
            let queue = Queue { channel: Arc::clone(channel), orders, typing, signs };
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
            let _ = thread.send(served);
        }
        Ok(())
    }

    /// Returns the status of the configured channels, of built-in ones that were used, and of removed ones with
    /// waiting notices.
    pub fn status(&self) -> Vec<ChannelStatus> {
        let none = Counts::default();
        let known = self.channels.iter().filter_map(|channel| match self.counts.get(&channel.name) {
            Some(counts) => Some(counts.status(&channel.name, channel.kind.as_str())),
            None if crate::channels::BUILT_IN.contains(&&*channel.name) => None,
            None => Some(none.status(&channel.name, channel.kind.as_str())),
        });
        let gone = self
            .counts
            .iter()
            .filter(|(name, counts)| self.channels.get(name).is_none() && counts.waiting() > 0);
        known.chain(gone.map(|(name, counts)| counts.status(name, "gone"))).collect()
    }

    /// Returns the number of ends of runs that were reported to no channel.
    pub fn unreported(&self) -> u64 {
        self.unreported
    }

    /// Starts the shutdown: waiting notices are still delivered if that does not take long, then
    /// [`Internal::ChannelsDone`] follows.
    pub fn close(&mut self) {
        self.is_closing = true;
        self.typing.clear();
        self.queues.clear();
        self.thread = None;
    }

    /// Records that everything is delivered.
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

    /// Whether notices are still to be delivered.
    pub fn is_busy(&self) -> bool {
        self.is_busy
    }
}

/// Starts the thread. It ends once its handle is dropped and every queue is empty.
fn start(context: Context, internals: Internals) -> io::Result<mpsc::UnboundedSender<Served>> {
    let (served, waiting) = mpsc::unbounded_channel();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    thread::Builder::new().name("channels".to_owned()).spawn(move || {
        let local = tokio::task::LocalSet::new();
        local.block_on(&runtime, delivery::serve_all(waiting, context, internals.clone()));
        internals.send(Internal::ChannelsDone);
    })?;
    Ok(served)
}
