//! Telling whoever asked for a task: a queue for each channel, and the adapters that deliver (R51 to R53).
//!
//! All of it lives on a thread of its own, started with the first notice, so that a channel that is slow,
//! dead or flooded delays no task; and each channel has a queue and a worker of its own, so that it delays
//! no other channel. It may not decide what is told to whom: that comes from the core and `channels`.

#[cfg_attr(not(feature = "chats"), path = "chats/absent.rs")]
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

/// An adapter to one channel.
pub trait Adapter {
    /// Delivers a notice, with as many tries as make sense there. Notices of one channel are delivered one
    /// after the other; one that can't be delivered yet may be held ([`Notification::hold`]), so that it delays none.
    fn notify<'a>(&'a self, notification: &'a Notification) -> LocalBoxFuture<'a, Result<(), Undelivered>>;

    /// Somebody uses `bgctl` in the terminal that this process leads.
    fn visited(&self, leader: i32) {
        let _ = leader;
    }

    /// A task was submitted by this process in this terminal, which will be told of its end.
    fn awaits(&self, terminal: &OriginTerminal, submitter: Option<i32>) {
        let _ = (terminal, submitter);
    }

    /// A task is gone: nobody can ask for it any more.
    fn forget(&self, task: TaskId) {
        let _ = task;
    }

    /// No more notices come: what it still holds is to be delivered, or given up. Then this is over.
    fn finish(&self) -> LocalBoxFuture<'_, ()> {
        Box::pin(async {})
    }

    /// How it is shown to a parent session that somebody works on an answer. `None`: it can't be.
    fn start_typing(&self, session: Option<&str>) -> Option<Signal> {
        let _ = session;
        None
    }
}

/// What shows in a chat that somebody works.
pub struct Signal {
    /// The chat: one signal at a time is enough for it.
    pub chat: String,
    /// Shows it until it is dropped.
    pub shown: LocalBoxFuture<'static, ()>,
}

/// A notice with what it takes to deliver it.
pub struct Notification {
    /// What is told.
    pub notice: Wire,
    /// Where the submitter is.
    pub place: Option<Arc<Place>>,
    /// Whether the task is removed already.
    pub is_removed: bool,
    done: Rc<Cell<Option<Done>>>,
}

impl Notification {
    /// Takes over to tell what becomes of it, later; what [`Adapter::notify`] gives now says nothing then.
    /// `None` if that was done before.
    pub fn hold(&self) -> Option<Done> {
        let mut done = self.done.take()?;
        done.hold();
        Some(done)
    }
}

/// A parent session that is shown that somebody works, until the other end is dropped.
type TypingOrder = (Option<Arc<str>>, oneshot::Receiver<()>);

/// What the notices of a channel have in common when it is told what became of them.
struct Outcomes {
    channel: Arc<Channel>,
    counts: Arc<Counts>,
    log: RefCell<RateLimiter>,
}

/// Takes what became of one notice. One of which nobody tells that was not delivered.
pub struct Done {
    of: Rc<Outcomes>,
    is_held: bool,
    is_told: bool,
}

impl Done {
    fn new(of: &Rc<Outcomes>) -> Self {
        Self { of: Rc::clone(of), is_held: false, is_told: false }
    }

    /// It is held by its channel, so that its room in the queue is free for others.
    fn hold(&mut self) {
        self.is_held = true;
        Counts::add(&self.of.counts.held);
        tracing::debug!(channel = %self.of.channel.name, "a notice is held");
    }

    /// It was delivered, or not.
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

/// A channel that has a worker.
#[derive(Debug)]
struct Queue {
    channel: Arc<Channel>,
    /// How many wait is counted, and bounded, by [`Counts`]: the limit may change meanwhile.
    orders: mpsc::UnboundedSender<Arc<Notice>>,
    /// One for each turn of an agent, which are bounded themselves.
    typing: mpsc::UnboundedSender<TypingOrder>,
    /// One for each visit or end of a task while something waits; none else.
    signs: mpsc::UnboundedSender<Sign>,
}

/// What is of use to a channel beside its notices.
#[derive(Clone, Debug)]
enum Sign {
    /// Somebody uses `bgctl` in the terminal that this process leads.
    Visited(i32),
    /// A task was submitted by this process in this terminal, which will be told of its end.
    Awaited(OriginTerminal, Option<i32>),
    /// A task is gone.
    Forgotten(TaskId),
}

/// A channel that is to be served.
#[derive(Debug)]
pub struct Served {
    channel: Arc<Channel>,
    orders: mpsc::UnboundedReceiver<Arc<Notice>>,
    typing: mpsc::UnboundedReceiver<TypingOrder>,
    signs: mpsc::UnboundedReceiver<Sign>,
    counts: Arc<Counts>,
}

/// How often the same thing is logged within this time: that a task has no channel, that a queue is full,
/// that a channel fails. A hundred thousand tasks must not fill the log.
const LOG_BURST: u32 = 20;
const LOG_EVERY: Duration = Duration::from_secs(10);

/// What may come so often that not all of it is logged, with how often it was left out.
#[derive(Debug, Default)]
struct RateLimiter {
    begun: Option<Instant>,
    logged: u32,
    left_out: u64,
}

impl RateLimiter {
    /// How often it was left out since it was logged last, if it may be logged.
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

/// A turn of an agent that is shown, or could be if its channel were another.
#[derive(Debug)]
struct Turn {
    channel: Arc<str>,
    session: Option<Arc<str>>,
    /// Dropped, it ends what is shown.
    _stop: Option<oneshot::Sender<()>>,
}

/// The dispatcher's handle to the channels.
#[derive(Debug)]
pub struct Notifier {
    channels: Channels,
    /// How many notices of a channel wait at most, the one that is being delivered included. Those that
    /// come when there are so many are dropped, and counted.
    queue_limit: usize,
    context: Context,
    internals: Internals,
    thread: Option<mpsc::UnboundedSender<Served>>,
    queues: BTreeMap<Arc<str>, Queue>,
    /// By the channel's name, so that they outlive a change of it.
    counts: BTreeMap<Arc<str>, Arc<Counts>>,
    typing: HashMap<TaskId, Turn>,
    /// Tasks with notices whose results were not read yet, and how many these are.
    unread: HashMap<TaskId, usize>,
    untold: u64,
    log_untold: RateLimiter,
    log_full: RateLimiter,
    is_closing: bool,
    is_busy: bool,
}

impl Notifier {
    /// Without the thread, until there is something to tell.
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
            untold: 0,
            log_untold: RateLimiter::default(),
            log_full: RateLimiter::default(),
            is_closing: false,
            is_busy: false,
        };
        this.look_at_settings();
        this
    }

    /// Looks for what is wrong with the settings of channels before there is anything to tell.
    fn look_at_settings(&mut self) {
        let bots: Vec<_> = self.channels.iter().filter(|channel| channel.kind.is_bot()).cloned().collect();
        for channel in bots {
            self.counts_of(&channel.name);
        }
        let with_counts = |channel: &Arc<Channel>| {
            let counts = self.counts.get(&channel.name)?;
            Some((Arc::clone(channel), Arc::clone(counts)))
        };
        chats::look_at(self.channels.iter().filter_map(with_counts).collect());
    }

    /// The channels that are known.
    pub fn channels(&self) -> &Channels {
        &self.channels
    }

    /// Takes over other channels. What waits for one that is gone or has changed is still delivered, as it
    /// was to be then; whoever types there goes on in the new one.
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

    /// Tells the channel of a task.
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

    /// Somebody uses `bgctl` in the terminal that this process leads: what was missed elsewhere goes there.
    pub fn visited(&self, leader: i32) {
        self.sign(&Sign::Visited(leader), |counts| counts.missed.load(Ordering::Relaxed) > 0);
    }

    /// A task was submitted by this process: its terminal will be told of its end.
    pub fn awaits(&mut self, spec: &Spec, submitter: Option<i32>) {
        let name = spec.channel.as_deref().filter(|name| self.channels.is_terminals(name));
        let terminal = spec.place.as_ref().and_then(|place| place.terminal.clone());
        let channel = name.and_then(|name| self.channels.get(name).cloned());
        if let (Some(channel), Some(terminal)) = (channel, terminal)
            && let Some(queue) = self.queue(&channel)
        {
            let _ = queue.signs.send(Sign::Awaited(terminal, submitter));
        }
    }

    /// A task is gone, and no notice of it is still to be read: a line that waits must not send anybody there.
    pub fn forget(&self, task: TaskId) {
        let waits = |counts: &Counts| counts.waiting() > 0 || counts.missed.load(Ordering::Relaxed) > 0;
        self.sign(&Sign::Forgotten(task), waits);
    }

    /// Gives it to the terminals of which this is so.
    fn sign(&self, sign: &Sign, is_so: impl Fn(&Counts) -> bool) {
        for (name, queue) in self.queues.iter().filter(|(_, queue)| queue.channel.kind == ChannelKind::Tty) {
            if self.counts.get(name).is_some_and(|counts| is_so(counts)) {
                // If nobody serves it, nothing waits there any more.
                let _ = queue.signs.send(sign.clone());
            }
        }
    }

    /// Whether the output of a task is still to be read for a notice of it.
    pub fn reads(&self, task: TaskId) -> bool {
        self.unread.contains_key(&task)
    }

    /// The result for a notice was read. True: no other notice of the task needs its output.
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

    /// R52: a warning with a hint for the end of a run; a start is skipped in silence.
    fn nobody_told(&mut self, notice: &Notice, why: &str) {
        if !notice.kind.is_end() {
            return;
        }
        self.untold += 1;
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

    /// R53: shows that an agent works, where the channel of its task can.
    pub fn begin_typing(&mut self, task: TaskId, spec: &Spec) {
        if let Some(channel) = spec.channel.clone() {
            self.show_typing(task, channel, spec.session.clone());
        }
    }

    fn show_typing(&mut self, task: TaskId, name: Arc<str>, session: Option<Arc<str>>) {
        let channel = self.channels.get(&name).cloned();
        let can_show =
            |kind: &ChannelKind| matches!(kind, ChannelKind::Telegram(_) | ChannelKind::Discord(_));
        let queue =
            channel.filter(|channel| can_show(&channel.kind)).and_then(|channel| self.queue(&channel));
        let stop = queue.map(|queue| {
            let (stop, stopped) = oneshot::channel();
            let _ = queue.typing.send((session.clone(), stopped));
            stop
        });
        self.typing.insert(task, Turn { channel: name, session, _stop: stop });
    }

    /// The agent works no more.
    pub fn end_typing(&mut self, task: TaskId) {
        self.typing.remove(&task);
    }

    /// The queue of a channel, made with the first notice; `None` if there can be no more.
    fn queue(&mut self, channel: &Arc<Channel>) -> Option<&Queue> {
        // One whose worker is gone, with the whole thread, is none.
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

    /// How the channels do: those that are configured, and those that were told something.
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

    /// How many ends of runs were told to no channel.
    pub fn untold(&self) -> u64 {
        self.untold
    }

    /// The daemon ends: what waits is delivered, if that does not take long; [`Internal::ChannelsDone`]
    /// follows then.
    pub fn close(&mut self) {
        self.is_closing = true;
        self.typing.clear();
        self.queues.clear();
        self.thread = None;
    }

    /// Everything is delivered.
    pub fn is_done(&mut self) {
        self.is_busy = false;
    }

    /// The grace is over: who could not be told by now is not told.
    pub fn give_up(&mut self) {
        for (name, counts) in &self.counts {
            let undelivered = counts.waiting();
            if self.is_busy && undelivered > 0 {
                tracing::warn!(channel = %name, undelivered, "the daemon ends before its notices are delivered");
            }
        }
        self.is_busy = false;
    }

    /// Whether something is still to be delivered.
    pub fn is_busy(&self) -> bool {
        self.is_busy
    }
}

/// Starts the thread. It ends when its handle is dropped and every queue is empty.
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
