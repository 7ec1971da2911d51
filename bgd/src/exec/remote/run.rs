//! One run on another machine: its known state there, the orders for it, and the steps that follow from both. Pure: it
//! makes no call and holds no connection, so that an interruption at any moment leaves nothing but this state.

mod wanted;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bgd_shared::failure::FailureKind;
use bgd_shared::id::TaskId;
use bgd_shared::order::{CancelReason, WaitingFor};
use bgd_shared::request::{Stream, SubmitParams};
use bgd_shared::task::{Exit, Status, Task};

pub use self::wanted::want_same;
use self::wanted::{UnderWay, Wanted};
use crate::core::{
    Cause, Conclusion, Control, Elsewhere, Fact, KnownRun, KnownStop, PlaceFact, SpawnFailure, Spec, Verdict,
};
use crate::exec::host::SIGKILL;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Stage {
    Waiting,
    Running,
    Ended,
}

/// How much of a stream was copied.
#[derive(Clone, Copy, Debug, Default)]
struct Copied {
    /// The offset of the next read.
    next: u64,
    /// The number of bytes before `next` that are missing in the local file.
    missing: u64,
    /// Whether there may be more.
    is_behind: bool,
}

/// The next step for a run.
#[derive(Debug)]
pub enum Step {
    /// Submit the run.
    Submit(Box<SubmitParams>),
    /// Request the state of the task.
    Look(TaskId),
    /// Read its output.
    Read {
        /// The task's id on the machine.
        id: TaskId,
        stream: Stream,
        /// The offset of the first byte.
        offset: u64,
        /// The position of that byte in the local file.
        at: u64,
    },
    /// The run was ended before it was submitted, so it never will be.
    Withdraw,
    /// The run has ended, and all of its output has been copied.
    Conclude(Box<Task>),
}

/// How a run is to be ended.
#[derive(Clone, Copy, Debug)]
pub struct Stop {
    pub signal: i32,
    /// When SIGKILL follows.
    pub kill_at: Instant,
}

/// A run that its machine is ordered to end.
#[derive(Clone, Copy, Debug)]
pub struct Ending {
    pub task: TaskId,
    pub run: u32,
    /// Its id on the machine.
    pub there: TaskId,
}

/// A run on another machine.
#[derive(Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct Run {
    pub number: u32,
    /// Its place in the order in which the machine's runs were started here, which is that of their submissions.
    pub turn: u64,
    pub spec: Arc<Spec>,
    /// The offsets in the local files at which its output begins, as earlier attempts share them.
    pub base: [u64; 2],
    /// Its id on the machine, once known.
    pub there: Option<TaskId>,
    /// Whether a call for it is pending; each run makes one at a time.
    pub is_busy: bool,
    /// Whether it is noted here that it may exist, and where its output begins. Before that, it is not submitted.
    is_prepared: bool,
    /// How it is to be ended, if it is.
    pub stop: Option<Stop>,
    /// The signal that the machine was ordered to end it with.
    pub ordered: Option<i32>,
    /// The signal of such an order that may have been lost.
    sent: Option<i32>,
    /// Whether its end is no longer awaited, so that it only has to be ended on the machine.
    pub is_given_up: bool,
    /// Whether the dispatcher has been informed that the machine can't be asked.
    pub is_unknown: bool,
    /// The number of losses of its output that are not in the journal yet; nothing more is copied before they are.
    pub unwritten_losses: usize,
    /// Whether it was taken up from an earlier daemon or program.
    pub is_taken_up: bool,
    submit: Option<Box<SubmitParams>>,
    /// What is to be compared with the task's next state on the machine.
    wanted: Wanted,
    under_way: UnderWay,
    /// The orders that follow from that comparison.
    late: Vec<Control>,
    /// Whether a submit may have arrived without its answer being received, and whether that was so before the last.
    was_sent: bool,
    was_sent_before: bool,
    /// Whether its known state is as recent as the connection.
    is_current: bool,
    /// Whether an event has arrived since the last call was made, so that the call's answer may be older.
    has_news: bool,
    stage: Stage,
    is_ready: bool,
    /// Whether its processes are stopped, according to the machine.
    is_paused: bool,
    reason: Option<Box<str>>,
    /// The previous host whose tasks it waited for, according to the daemon or program that left it.
    awaited: Option<Box<str>>,
    streams: [Copied; 2],
    /// The highest number of output bytes that the machine has reported, of both streams.
    bytes: u64,
    end: Option<Box<Task>>,
    /// Whether its end is being reported.
    is_settling: bool,
}

impl Run {
    /// Creates a run that was not submitted yet.
    pub fn new(number: u32, spec: Arc<Spec>, submit: SubmitParams) -> Self {
        Self {
            number,
            turn: 0,
            spec,
            base: [0; 2],
            there: None,
            is_busy: false,
            is_prepared: false,
            stop: None,
            ordered: None,
            sent: None,
            is_given_up: false,
            is_unknown: false,
            unwritten_losses: 0,
            is_taken_up: false,
            wanted: Wanted {
                held: Some(false),
                priority: Some(submit.priority.unwrap_or_default()),
                paused: None,
            },
            under_way: UnderWay::default(),
            submit: Some(Box::new(submit)),
            late: Vec::new(),
            was_sent: false,
            was_sent_before: false,
            is_current: false,
            has_news: false,
            stage: Stage::Waiting,
            is_ready: false,
            is_paused: false,
            reason: None,
            awaited: None,
            streams: [Copied::default(); 2],
            bytes: 0,
            end: None,
            is_settling: false,
        }
    }

    /// Continues a run that another daemon or program has left. If its id is not known, `submit` may have been
    /// submitted, or be on its way.
    pub fn restore(now: Instant, known: &KnownRun, submit: SubmitParams) -> Self {
        let there = known.elsewhere.id.as_deref().and_then(|id| id.parse().ok());
        let missing = known.elsewhere.missing;
        Self {
            base: known.base,
            sent: known.stop.map(|stop| stop.signal),
            there,
            stop: known.stop.map(|KnownStop { signal, grace_ms }| Stop {
                signal,
                kill_at: now + Duration::from_millis(grace_ms),
            }),
            is_unknown: known.elsewhere.unknown.is_some(),
            is_taken_up: true,
            wanted: Wanted {
                held: Some(known.is_held),
                priority: Some(known.place.priority),
                paused: known.has_started.then_some(known.is_paused),
            },
            submit: there.is_none().then(|| Box::new(submit.clone())),
            was_sent: true,
            stage: if known.has_started { Stage::Running } else { Stage::Waiting },
            is_ready: known.is_ready,
            is_paused: known.is_paused,
            reason: known.elsewhere.reason.clone(),
            awaited: awaited(&known.elsewhere),
            streams: missing.map(|missing| Copied { missing, ..Copied::default() }),
            ..Self::new(known.run, Arc::clone(&known.spec), submit)
        }
    }

    /// Sets the offsets from which output is copied; the output of a new run begins there. `sizes` are those of the
    /// local files.
    pub fn prepared(&mut self, sizes: [u64; 2]) {
        self.is_prepared = true;
        if !self.is_taken_up {
            self.base = sizes;
            return;
        }
        // Bytes already written, and bytes lost before them, are not read again.
        for (stream, copied) in self.streams.iter_mut().enumerate() {
            copied.next = sizes[stream].saturating_sub(self.base[stream]).saturating_add(copied.missing);
        }
    }

    /// Reports whether it may exist on the machine: it has an id there, or a submit was sent.
    pub const fn may_exist(&self) -> bool {
        self.there.is_some() || self.was_sent
    }

    /// Reports whether its next step is a submit.
    pub const fn is_to_be_submitted(&self) -> bool {
        self.there.is_none() && (self.stop.is_none() || self.was_sent)
    }

    /// Notes that the machine has refused the last submit, but may accept another one.
    pub const fn was_put_off(&mut self) {
        self.was_sent = self.was_sent_before;
    }

    /// Notes why it waits. Returns whether that is news.
    pub fn note_reason(&mut self, reason: &str) -> bool {
        let is_news = self.reason.as_deref() != Some(reason);
        if is_news {
            self.reason = Some(reason.into());
        }
        is_news
    }

    /// Notes that it was never submitted if it waits for the tasks on this previous host, according to the daemon that
    /// left it.
    pub fn unsend_if_it_awaits(&mut self, host: &str) {
        let is_unsent = self.awaited.as_deref() == Some(host);
        self.was_sent &= self.there.is_some() || !is_unsent;
    }

    /// Reports whether it is not known to have started.
    pub fn is_waiting(&self) -> bool {
        self.stage == Stage::Waiting
    }

    /// Reports whether it is to be ended without a grace: it may have started since that was ordered, and then has one.
    pub fn has_no_grace(&self) -> bool {
        self.stop.is_some_and(|stop| self.is_waiting() || stop.signal == SIGKILL)
    }

    /// Notes that the connection broke: calls got no answers, and the known state is outdated.
    pub fn cut(&mut self) {
        // The preparation makes no call, and goes on.
        self.is_busy &= !self.is_prepared;
        self.is_current = false;
        self.sent = self.ordered.take().or(self.sent);
        self.wanted = self.wanted.then(self.under_way.lost());
        // A read may have been pending.
        self.bytes = 0;
    }

    /// Notes that its state must be requested, as an order for it was refused.
    pub const fn look_again(&mut self) {
        self.is_current = false;
    }

    /// Notes that it is to be ended. SIGKILL stays the last signal, and can only come sooner.
    pub fn stop_by(&mut self, Stop { signal, kill_at }: Stop) {
        let (before, ordered) = (self.stop, self.ordered);
        let signal = before.map_or(signal, |stop| if stop.signal == SIGKILL { SIGKILL } else { signal });
        let is_sooner = before.is_some_and(|stop| kill_at < stop.kill_at);
        let kill_at = before.map_or(kill_at, |stop| stop.kill_at.min(kill_at));
        self.stop = Some(Stop { signal, kill_at });
        // The machine must be sent the shorter grace.
        self.ordered = ordered.filter(|ordered| *ordered == SIGKILL || !is_sooner);
        self.sent = self.sent.filter(|_| !is_sooner);
    }

    /// Finds out whether a possibly lost order to end it has arrived, so that its processes get no second signal.
    fn note_ending(&mut self, task: &Task) {
        if task.ending && self.ordered.is_none() {
            let signal = self.stop.map(|stop| stop.signal).filter(|signal| *signal != SIGKILL);
            self.ordered = self.sent.filter(|sent| signal == Some(*sent));
        }
    }

    /// Accepts an order for a run whose state on the machine is not known. Returns whether the order is carried out with
    /// the submission, or once the state is known.
    pub const fn takes(&mut self, control: &Control) -> bool {
        self.wanted.take(control)
    }

    /// Notes that an order for it was sent to the machine.
    pub const fn ordered(&mut self, control: &Control) {
        self.under_way.sent(control);
    }

    /// Notes that the machine has answered an order.
    pub fn answered(&mut self) {
        self.under_way.answered();
    }

    /// Reports whether it is on the machine, and its state there is to be requested: that shows what orders that were
    /// given without a connection have left to do, so that a new one must not overtake them.
    pub const fn is_outdated(&self) -> bool {
        self.there.is_some() && !self.is_current
    }

    pub fn take_late(&mut self) -> Vec<Control> {
        std::mem::take(&mut self.late)
    }

    /// Finds the orders that the task does not reflect: the received submission does not contain them, a killed daemon
    /// left them undone, or there was no connection.
    fn compare(&mut self, task: &Task) {
        let wanted = std::mem::take(&mut self.wanted);
        if self.stop.is_some() || !task.status.is_active() {
            return;
        }
        let orders = wanted.orders(task);
        if orders.iter().any(|order| matches!(order, Control::Pause | Control::Continue)) {
            // What is shown here already is as it was ordered.
            self.is_paused = task.paused;
        }
        self.late.extend(orders);
    }

    /// Returns the next step; `None` if there is none, or a call is pending.
    pub fn next(&mut self) -> Option<Step> {
        if self.is_busy || self.is_settling {
            return None;
        }
        self.has_news = false;
        let Some(id) = self.there else {
            if self.stop.is_some() && !self.was_sent {
                return Some(Step::Withdraw);
            }
            // If the run is to end, the submit only finds it by its key. If it never arrived, it must not start now.
            let hold = self.wanted.held == Some(true) || self.stop.is_some();
            let priority = self.wanted.priority.filter(|priority| *priority != 0);
            self.was_sent_before = std::mem::replace(&mut self.was_sent, true);
            return self
                .submit
                .clone()
                .map(|params| Step::Submit(Box::new(SubmitParams { hold, priority, ..*params })));
        };
        if !self.is_current {
            return Some(Step::Look(id));
        }
        if self.unwritten_losses > 0 && !self.is_given_up {
            return None;
        }
        let behind = Stream::of(self.spec.split).find(|stream| self.streams[stream.index()].is_behind);
        if let Some(stream) = behind.filter(|_| !self.is_given_up) {
            let Copied { next: offset, missing, .. } = self.streams[stream.index()];
            let at = (self.base[stream.index()] + offset).saturating_sub(missing);
            return Some(Step::Read { id, stream, offset, at });
        }
        let end = self.end.take()?;
        self.is_settling = true;
        Some(Step::Conclude(end))
    }

    /// Reports whether its end is known, so that only its last output can still be lost.
    pub const fn has_ended(&self) -> bool {
        self.end.is_some() || self.is_settling
    }

    /// Notes that the machine no longer has the ended task. Returns how many bytes of its output are lost, and of which
    /// stream; of two, the machine has only reported the sum.
    pub fn miss_rest(&mut self) -> Option<(Stream, u64)> {
        let known = self.end.as_ref()?.output.bytes;
        let lost = known.saturating_sub(self.streams.iter().map(|stream| stream.next).sum());
        let stream = Stream::of(self.spec.split).find(|stream| self.streams[stream.index()].is_behind);
        let stream = stream.unwrap_or(Stream::Stdout);
        self.copied(stream, self.streams[stream.index()].next.saturating_add(lost), lost);
        self.streams.iter_mut().for_each(|stream| stream.is_behind = false);
        // There is no newer state to ask for.
        self.is_current = true;
        (lost > 0).then_some((stream, lost))
    }

    /// Updates the run from an event of its task. Returns the facts that follow.
    pub fn learn(&mut self, task: &Task) -> Vec<Fact> {
        self.has_news = true;
        self.update(task, true)
    }

    /// Updates the run from the answer to its call. Returns the facts that follow. Output that was read is written
    /// before its answer is handled, so events that were sent later may have been handled before.
    pub fn learn_answer(&mut self, task: &Task) -> Vec<Fact> {
        let is_latest = !self.has_news;
        self.update(task, is_latest)
    }

    /// Updates the run from a state of its task; from one that may not be the latest, only by what never changes back.
    fn update(&mut self, task: &Task, is_latest: bool) -> Vec<Fact> {
        let mut facts = Vec::new();
        self.is_current = true;
        self.compare(task);
        self.note_ending(task);
        if self.there.is_none() {
            (self.there, self.submit) = (Some(task.id), None);
            facts.push(Fact::Elsewhere(PlaceFact::Accepted { id: task.id.to_string().into() }));
        }
        if std::mem::take(&mut self.is_unknown) {
            facts.push(Fact::Elsewhere(PlaceFact::Known));
        }
        let stage = match task.status {
            Status::Pending => Stage::Waiting,
            // Its process is still being started, which is reported later.
            Status::Running | Status::Resumed if task.started_at.is_none() => Stage::Waiting,
            Status::Running | Status::Resumed => Stage::Running,
            Status::Completed | Status::Failed | Status::Cancelled => Stage::Ended,
        };
        if is_latest && stage == Stage::Waiting && self.stage == Stage::Waiting {
            let reason = why_it_waits(task);
            if self.note_reason(&reason) {
                facts.push(Fact::Elsewhere(PlaceFact::Waiting { reason }));
            }
        }
        if self.stage == Stage::Waiting && stage > Stage::Waiting && task.started_at.is_some() {
            facts.push(Fact::Elsewhere(PlaceFact::Started { at: task.started_at }));
        }
        if task.ready_at.is_some() && !std::mem::replace(&mut self.is_ready, task.ready_at.is_some()) {
            facts.push(Fact::Ready);
        }
        let shows_pause = is_latest && stage == Stage::Running;
        if shows_pause && std::mem::replace(&mut self.is_paused, task.paused) != task.paused {
            facts.push(Fact::Elsewhere(PlaceFact::Paused { paused: task.paused }));
        }
        self.note_output(task.output.bytes);
        if stage == Stage::Ended && self.stage < Stage::Ended {
            facts.extend(task.usage.map(Fact::Used));
            // The number of bytes of an ended task is final.
            self.end = Some(Box::new(task.clone()));
        }
        self.stage = self.stage.max(stage);
        facts
    }

    /// Notes the number of output bytes on the machine, of both streams.
    fn note_output(&mut self, bytes: u64) {
        // Output reported so far is read in any case. Later growth is reported again.
        if bytes > self.bytes {
            self.bytes = bytes;
            self.streams.iter_mut().for_each(|stream| stream.is_behind = true);
        }
    }

    /// Notes that a stream was copied up to this offset, with so many more bytes missing.
    pub fn copied(&mut self, stream: Stream, next: u64, missing: u64) {
        let copied = &mut self.streams[stream.index()];
        let was_any = next > copied.next;
        (copied.next, copied.missing) = (next, copied.missing.saturating_add(missing));
        let has_all = self.streams.iter().map(|stream| stream.next).sum::<u64>() >= self.bytes;
        if has_all {
            self.streams.iter_mut().for_each(|stream| stream.is_behind = false);
        } else {
            // The rest may belong to the other stream.
            self.streams[stream.index()].is_behind = was_any;
        }
    }
}

/// Returns the key that ensures that a run is submitted only once, and by which it is found again.
pub fn key_of(task: TaskId, run: u32) -> String {
    format!("{task}:{run}")
}

/// Describes in a few words why a task waits on its machine.
fn why_it_waits(task: &Task) -> Box<str> {
    let reason = task.waiting.as_ref().map(|waiting| waiting.reason);
    let text = match reason {
        Some(WaitingFor::Held) => "held there",
        Some(WaitingFor::Paused) => "its group is paused there",
        Some(WaitingFor::Slot) => "for a free slot there",
        Some(WaitingFor::Journal) => "for room on the disk there",
        Some(
            WaitingFor::After
            | WaitingFor::Until
            | WaitingFor::Retry
            | WaitingFor::Batch
            | WaitingFor::Elsewhere
            | WaitingFor::Unknown,
        )
        | None => "pending there",
    };
    text.into()
}

/// Returns the previous host whose tasks a run waited for.
fn awaited(known: &Elsewhere) -> Option<Box<str>> {
    known.awaits.clone().or_else(|| {
        // Earlier versions recorded only the reason, in these words.
        let reason = known.reason.as_deref()?.strip_prefix("for the end of the tasks on ")?;
        reason.strip_suffix(", the previous host").map(Into::into)
    })
}

/// Returns the reason why a run waits that will be submitted to the next host, once the tasks on this previous one have
/// ended.
pub fn why_it_awaits(host: &str) -> String {
    format!("for the end of the tasks on {host}, the previous host")
}

/// Returns the last fact about a run, from its task's end on the machine `host`.
pub fn conclusion(end: &Task, host: &str) -> Fact {
    let concluded = |verdict, exit: Option<Exit>| {
        let conclusion = Conclusion { exit, verdict, at: end.completed_at };
        Fact::Elsewhere(PlaceFact::Concluded(conclusion))
    };
    let failed = |cause, message: &str| concluded(Verdict::Failed(cause, message.into()), end.exit.clone());
    let message = end.error.as_deref().unwrap_or("it failed there");
    match end.status {
        Status::Completed => concluded(Verdict::ByExit, Some(end.exit.clone().unwrap_or(Exit::Code(0)))),
        Status::Cancelled => match end.cancel_reason {
            Some(CancelReason::Shutdown) => {
                failed(Cause::Node, &format!("the daemon of {host} was shut down"))
            }
            _ => concluded(Verdict::Cancelled, end.exit.clone()),
        },
        Status::Failed => match end.failure.as_ref() {
            Some(failure) if failure.kind == FailureKind::Spawn => {
                let (errno, code) = (failure.errno, failure.code);
                Fact::StartFailed { failure: SpawnFailure { errno, code, message: message.into() } }
            }
            Some(failure) => match failure.kind {
                FailureKind::Timeout if end.timed_out => failed(Cause::Timeout, message),
                FailureKind::Timeout => concluded(Verdict::NotReady(message.into()), end.exit.clone()),
                FailureKind::Memory => failed(Cause::Memory, message),
                FailureKind::Node => failed(Cause::Node, message),
                FailureKind::Lost => failed(Cause::Lost, message),
                FailureKind::Exit | FailureKind::Signal => concluded(Verdict::ByExit, end.exit.clone()),
                FailureKind::Unknown if end.exit.is_some() => concluded(Verdict::ByExit, end.exit.clone()),
                FailureKind::Spawn | FailureKind::Agent | FailureKind::Interrupted | FailureKind::Unknown => {
                    failed(Cause::Other, message)
                }
            },
            None => failed(Cause::Other, message),
        },
        Status::Pending | Status::Running | Status::Resumed => {
            failed(Cause::Other, "how it ended is unknown")
        }
    }
}

#[cfg(test)]
mod tests;
