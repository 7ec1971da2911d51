//! One run on a cluster: the notes of its job, the cluster's reports about it, and the consequences of both. Pure: it
//! runs no commands and reads no files.

mod conclusion;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use bgd_shared::id::TaskId;
use bgd_shared::pauses::pause_after;
use bgd_shared::task::Exit;
use bgd_shared::text::Env;
use bgd_shared::time::Timestamp;

use super::actions::Action;
use super::job::{self, JobId};
use super::parse::ScriptExit;
use super::script::{NoteKind, NotedExit};
use super::states::{self, End, Standing};
use crate::core::{Fact, KnownRun, PlaceFact, RunPlace, Spec};
use crate::exec::host::SIGKILL;

/// The first and the longest pause before an order to end a job is repeated that the cluster has refused: the reason may
/// never pass, but jobs cost money until it does.
const END_AGAIN: [Duration; 2] = [Duration::from_secs(5), Duration::from_secs(40)];

/// How long answers may show the processes as they were before a signal that the cluster has accepted: it passes the
/// signal on to the nodes afterwards.
const SIGNALLED_WITHIN: Duration = Duration::from_secs(2);

/// How many consecutive answers must lack a job before it counts as missing.
const MISSING: u32 = 2;

/// The content of a run.
#[derive(Debug)]
pub struct Job {
    pub spec: Arc<Spec>,
    pub env: Arc<Env>,
    /// Its place among other tasks, passed to it in variables.
    pub place: Box<RunPlace>,
    /// Where its output begins in each of its files, in bytes.
    base: [AtomicU64; 2],
}

impl Job {
    pub fn new(spec: Arc<Spec>, env: Arc<Env>, place: Box<RunPlace>) -> Self {
        Self { spec, env, place, base: Default::default() }
    }

    /// Sets the offsets at which its output begins: the sizes of its output files before it starts.
    pub fn set_base(&self, sizes: [u64; 2]) {
        for (base, size) in self.base.iter().zip(sizes) {
            base.store(size, Ordering::Relaxed);
        }
    }

    /// Returns the offsets at which its output begins.
    pub fn base(&self) -> [u64; 2] {
        self.base.each_ref().map(|base| base.load(Ordering::Relaxed))
    }
}

/// A run on a cluster.
#[derive(Debug)]
#[allow(clippy::struct_excessive_bools, reason = "each is a fact of its own")]
pub struct Run {
    pub number: u32,
    /// Its place in the order of submissions, assigned by the cluster's owner.
    pub turn: u64,
    pub job: Arc<Job>,
    /// The tasks of this cluster that must have succeeded before it starts.
    pub awaits: Box<[TaskId]>,
    /// The key of its submission, and its index in the submission; `None` until it is being submitted.
    pub place: Option<(Arc<str>, u32)>,
    /// Its id on the cluster, once known.
    pub id: Option<JobId>,
    /// The signal to end it with; `None` if it is not to be ended.
    pub stop: Option<i32>,
    /// The signal that the cluster was asked to end it with.
    pub ordered: Option<i32>,
    /// Whether to submit it held. Unused once it has an id.
    pub hold: bool,
    /// Its priority, -100 to 100. Unused once it has an id.
    pub priority: i32,
    /// Whether the core no longer waits for its end, so that it only has to be ended on the cluster.
    pub is_given_up: bool,
    /// Whether its task has started another attempt since it was given up.
    pub is_aside: bool,
    /// Why it was reported to the core as unknown; `None` if it was not.
    pub unknown: Option<Arc<str>>,
    /// Whether some of its notes can't be read, so that missing notes decide nothing.
    pub is_unread: bool,
    /// Whether its end is being reported.
    pub is_concluded: bool,
    /// Whether it was taken over from an earlier daemon or from before an upgrade, so that its orders must be compared
    /// with its state once the cluster reports that.
    pub is_to_compare: bool,
    /// How many bytes of its output, per stream, are known to be missing from the local files.
    pub missing_output: [u64; 2],
    /// Whether it was reported as ready before it was taken over.
    pub is_ready: bool,
    /// How many determinations of where its output begins are in progress.
    pub base_looks: u32,
    /// When it got its id.
    accepted: Option<Instant>,
    /// When it was first seen running; `None` while it waits.
    running: Option<Instant>,
    /// How often it was put back into the queue.
    restarts: u32,
    /// Whether a note of its current start was read, by this daemon or the previous one.
    has_start_note: bool,
    /// When it started, according to the note that the previous daemon has read.
    known_start: Option<Timestamp>,
    noted: Option<NotedEnd>,
    ended: Option<Ended>,
    /// Its last state reported by the cluster.
    standing: Option<Standing>,
    /// The start of the last query whose answer concerned it.
    answered: Option<Instant>,
    /// The start of the last query that listed it as this daemon's.
    listed: Option<Instant>,
    reason: Option<Box<str>>,
    missing: u32,
    /// Since when the cluster has forgotten it; its id may belong to another job.
    forgotten: Option<Instant>,
    /// Whether to wait for the accounting's record of a job that the queue no longer lists.
    awaits_record: bool,
    /// How many answers of the accounting in a row lacked its end.
    unfinished: u32,
    preempted: u32,
    /// Whether its processes were stopped, according to the cluster's last answer.
    is_stopped: bool,
    /// How many orders to stop or to continue its processes are under way.
    pauses: u32,
    /// When answers last ceased to show whether its processes are stopped: such an order is due, done or refused.
    distrusted_at: Option<Instant>,
    /// How its script has ended, if the cluster has reported that.
    script: Option<Exit>,
    /// Whether the cluster was asked how its script has ended.
    was_asked: bool,
    /// How often in a row the cluster has refused to end it, and the reason that was reported.
    refused_ends: (u32, Box<str>),
}

/// A job's note about its end.
#[derive(Debug)]
struct NotedEnd {
    end: Result<NotedExit, Box<str>>,
    at: Option<Timestamp>,
    seen: Instant,
}

/// The cluster's report of a job's end.
#[derive(Debug)]
struct Ended {
    end: End,
    reason: Box<str>,
    exit: Option<Exit>,
    seen: Instant,
}

impl Run {
    /// Creates a run that is not submitted yet.
    pub fn new(number: u32, job: Job) -> Self {
        let awaits = job.place.after.iter().filter(|other| other.is_awaited).map(|other| other.id).collect();
        Self {
            number,
            turn: 0,
            awaits,
            priority: job.place.priority,
            job: Arc::new(job),
            place: None,
            id: None,
            stop: None,
            ordered: None,
            hold: false,
            is_given_up: false,
            is_aside: false,
            unknown: None,
            is_unread: false,
            is_concluded: false,
            is_to_compare: false,
            missing_output: [0; 2],
            is_ready: false,
            base_looks: 0,
            accepted: None,
            running: None,
            restarts: 0,
            has_start_note: false,
            known_start: None,
            noted: None,
            ended: None,
            standing: None,
            answered: None,
            listed: None,
            reason: None,
            missing: 0,
            forgotten: None,
            awaits_record: false,
            unfinished: 0,
            preempted: 0,
            is_stopped: false,
            pauses: 0,
            distrusted_at: None,
            script: None,
            was_asked: false,
            refused_ends: Default::default(),
        }
    }

    /// Restores a run of an earlier daemon. A run with a place but no id may have been submitted.
    pub fn restore(now: Instant, known: &KnownRun, env: Arc<Env>) -> Self {
        let place = Box::new(RunPlace::clone(&known.place));
        let job = Job::new(Arc::clone(&known.spec), env, place);
        job.set_base(known.base);
        let elsewhere = &known.elsewhere;
        let id = elsewhere.id.as_deref().and_then(JobId::parse);
        Self {
            place: elsewhere.submission.clone(),
            id,
            stop: known.stop.map(|stop| stop.signal),
            hold: known.is_held,
            unknown: elsewhere.unknown.as_ref().map(|(_, why)| Arc::from(&**why)),
            is_to_compare: true,
            missing_output: elsewhere.missing,
            is_ready: known.is_ready,
            accepted: id.map(|_| now),
            running: known.has_started.then_some(now),
            restarts: elsewhere.requeued,
            has_start_note: known.has_started && elsewhere.started.is_some(),
            known_start: elsewhere.started.filter(|_| known.has_started),
            reason: elsewhere.reason.clone(),
            is_stopped: known.is_paused,
            ..Self::new(known.run, job)
        }
    }

    /// Returns the actions that bring a restored run into the ordered state, if the cluster's report differs from that.
    /// Returns none after the first comparison.
    pub fn compare(&mut self, state: &str, reason: &str) -> Vec<Action> {
        let standing = states::standing(state);
        let can_tell = matches!(standing, Standing::Waiting | Standing::Running | Standing::Stopped);
        if !can_tell || !std::mem::take(&mut self.is_to_compare) || self.stop.is_some() {
            return Vec::new();
        }
        let mut actions = Vec::new();
        if standing == Standing::Waiting {
            if states::is_held(reason) != self.hold {
                actions.push(Action::Hold { held: self.hold, is_again: false });
            }
            // The cluster does not say which priority it has so far, so a refusal changes nothing here.
            let nice = Action::Nice { nice: self.nice(), before: self.priority };
            actions.extend((self.nice() > 0).then_some(nice));
        } else if self.running.is_some() && (standing == Standing::Stopped) != self.is_stopped {
            actions.push(Action::Pause(self.is_stopped));
        }
        actions
    }

    /// Returns how far its priority is lowered. Users of a cluster can't raise it.
    pub const fn nice(&self) -> u32 {
        if self.priority < 0 { self.priority.unsigned_abs() } else { 0 }
    }

    /// Returns whether it is not known to be running.
    pub const fn is_waiting(&self) -> bool {
        self.running.is_none()
    }

    /// Reports whether it is to be ended without a grace: it may have started since that was ordered, and then has one.
    pub fn has_no_grace(&self) -> bool {
        self.stop.is_some_and(|signal| self.is_waiting() || signal == SIGKILL)
    }

    /// Returns whether it has ended, according to its notes or to the cluster.
    pub const fn is_ending(&self) -> bool {
        self.noted.is_some() || self.ended.is_some() || self.missing > 0
    }

    /// Returns whether other runs can still depend on its success.
    pub const fn can_be_followed(&self) -> bool {
        !self.is_concluded && !self.is_given_up && !self.is_ending() && self.stop.is_none()
    }

    /// Returns whether the cluster has reported its end, of any kind.
    pub const fn is_reported_ended(&self) -> bool {
        self.ended.is_some()
    }

    /// Returns whether, according to the cluster, its dependency can never be satisfied.
    pub fn follows_nothing(&self) -> bool {
        self.ended.as_ref().is_some_and(|ended| &*ended.reason == states::NEVER)
    }

    /// Returns the start of the last query that listed it.
    pub const fn listed_at(&self) -> Option<Instant> {
        self.listed
    }

    /// Returns the key of its submission; `None` until it is being submitted.
    pub fn key(&self) -> Option<&Arc<str>> {
        self.place.as_ref().map(|(key, _)| key)
    }

    /// Returns whether a listed job with this key may be its job: the keys are equal, or the job's comment was changed.
    pub fn may_have_key(&self, key: &str) -> bool {
        self.key().is_some_and(|own| **own == *key) || !job::is_key(key)
    }

    /// Returns how often it was put back into the queue.
    pub const fn restarts(&self) -> u32 {
        self.restarts
    }

    /// Notes that the cluster has accepted it.
    pub fn accepted(&mut self, now: Instant, id: JobId) -> Fact {
        (self.id, self.accepted) = (Some(id), Some(now));
        Fact::Elsewhere(PlaceFact::Accepted { id: id.to_string().into() })
    }

    /// Handles a note. Returns the resulting facts.
    pub fn noted(
        &mut self,
        now: Instant,
        (kind, restarts): (NoteKind, u32),
        text: &[u8],
        at: Option<Timestamp>,
    ) -> Vec<Fact> {
        if restarts < self.restarts {
            return Vec::new();
        }
        let mut facts = Vec::new();
        // The cluster also counts launches that failed before the script ran: those are not known here, and left no note.
        // The previous daemon has read the note of its start, which may be read again, or may not.
        let is_known = self.known_start.is_some() && (kind != NoteKind::Start || at == self.known_start);
        if restarts > self.restarts && self.running.is_some() && self.has_start_note && !is_known {
            facts.push(self.requeue("it was put back into the queue"));
        }
        self.restarts = restarts;
        let is_first_start = kind == NoteKind::Start && !self.has_start_note;
        self.has_start_note |= kind == NoteKind::Start;
        let words = || String::from_utf8_lossy(text).trim().into();
        let end = match kind {
            NoteKind::Start => None,
            NoteKind::Exit => Some(
                NotedExit::parse(text)
                    .ok_or_else(|| format!("its job recorded no exit, but {:?}", words()).into()),
            ),
            NoteKind::Fail => Some(Err(words())),
        };
        let started = self.start(now, if end.is_none() { at } else { None });
        // The start may be known already: from the cluster, or, among many notes, from the note of the end. Its time is
        // news even then.
        let time = || (is_first_start && at.is_some()).then_some(Fact::Elsewhere(PlaceFact::Started { at }));
        facts.extend(started.or_else(time));
        if let Some(end) = end {
            self.noted = Some(NotedEnd { end, at, seen: now });
        }
        facts
    }

    /// Notes that it is ordered to end: what follows is news.
    pub fn is_to_end(&mut self, signal: i32) {
        if self.stop != Some(SIGKILL) {
            self.stop = Some(signal);
        }
        self.refused_ends = Default::default();
    }

    /// Notes that the cluster has refused to end it. Returns the pause before that is ordered again, and whether the
    /// reason is news.
    pub fn end_refused(&mut self, why: &str) -> (Duration, bool) {
        let (count, known) = &mut self.refused_ends;
        *count = count.saturating_add(1);
        let pause = pause_after(*count, END_AGAIN);
        self.ordered = None;
        let is_news = **known != *why;
        if is_news {
            *known = why.into();
        }
        (pause, is_news)
    }

    /// Notes that it is reported as unknown for this reason. Returns whether that is news.
    pub fn note_unknown(&mut self, why: &Arc<str>) -> bool {
        let is_news = self.unknown.as_ref() != Some(why);
        if is_news {
            self.unknown = Some(Arc::clone(why));
        }
        is_news
    }

    /// Notes that it is reported as waiting for this reason. Returns whether that is news.
    pub fn note_reason(&mut self, reason: &str) -> bool {
        let is_news = self.reason.as_deref() != Some(reason);
        if is_news {
            self.reason = Some(reason.into());
        }
        is_news
    }

    /// Notes that its processes are ordered to stop or to continue.
    pub const fn orders_pause(&mut self) {
        self.pauses = self.pauses.saturating_add(1);
    }

    /// Notes that such an order was carried out, which leaves the processes stopped or not, or refused (`None`). Returns
    /// the consequence, unless another order is under way.
    pub fn pause_settled(&mut self, now: Instant, stopped: Option<bool>) -> Option<Fact> {
        self.pauses = self.pauses.saturating_sub(1);
        self.distrust_answers(now);
        self.is_stopped = stopped.filter(|_| self.pauses == 0)?;
        // What the cluster reported before the order may have come after the order had changed the task.
        Some(Fact::Elsewhere(PlaceFact::Paused { paused: self.is_stopped }))
    }

    /// Ignores whether its processes are stopped in answers to queries that begin until shortly after this time.
    pub const fn distrust_answers(&mut self, now: Instant) {
        self.distrusted_at = Some(now);
    }

    /// Notes whether its processes are stopped, according to an answer to a query that began at `asked`.
    fn stopped(&mut self, asked: Instant, is_stopped: bool) -> Option<Fact> {
        // Until the last order has had its effect, answers may show the state before it.
        let is_changing =
            self.pauses > 0 || self.distrusted_at.is_some_and(|at| asked < at + SIGNALLED_WITHIN);
        if is_changing || self.is_stopped == is_stopped {
            return None;
        }
        self.is_stopped = is_stopped;
        Some(Fact::Elsewhere(PlaceFact::Paused { paused: is_stopped }))
    }

    fn start(&mut self, now: Instant, at: Option<Timestamp>) -> Option<Fact> {
        let was_running = self.running.is_some();
        self.running.get_or_insert(now);
        if !was_running && let Some(why) = &mut self.unknown {
            // To the core, its start makes it known, so any reason is news again.
            *why = "".into();
        }
        self.reason = None;
        if self.forgotten.is_none() {
            self.missing = 0;
        }
        (!was_running).then_some(Fact::Elsewhere(PlaceFact::Started { at }))
    }

    /// Notes that it is in the queue again.
    fn requeue(&mut self, reason: &str) -> Fact {
        (self.running, self.known_start, self.noted, self.ended) = (None, None, None, None);
        (self.preempted, self.standing) = (0, None);
        (self.is_stopped, self.was_asked, self.has_start_note) = (false, false, false);
        self.restarts = self.restarts.saturating_add(1);
        self.reason = Some(reason.into());
        Fact::Elsewhere(PlaceFact::Requeued { reason: reason.into() })
    }

    /// Handles an answer of the cluster to a query that began at `asked`. All notes that existed when the query ended
    /// were handled before. Returns the resulting facts.
    pub fn listed(&mut self, now: Instant, asked: Instant, state: &str, reason: &str) -> Vec<Fact> {
        let (standing, mut facts) = (states::standing(state), Vec::new());
        (self.missing, self.awaits_record, self.unfinished) = (0, false, 0);
        (self.answered, self.listed) = (Some(asked), Some(asked));
        self.standing = Some(standing.clone());
        match standing {
            Standing::Waiting => {
                // A start noted after the query began is more recent than the answer.
                if self.running.is_some_and(|since| since < asked) {
                    facts.push(self.requeue(reason));
                } else if self.running.is_none() && self.note_reason(reason) {
                    facts.push(Fact::Elsewhere(PlaceFact::Waiting { reason: reason.into() }));
                }
            }
            Standing::Running | Standing::Stopped => {
                let is_stopped = self.standing == Some(Standing::Stopped);
                facts.extend(self.start(now, None));
                facts.extend(self.stopped(asked, is_stopped));
            }
            Standing::Unknown => facts.extend(self.start(now, None)),
            Standing::Leaving => {
                let end = states::end_by_reason(reason).filter(|_| self.noted.is_some());
                if let Some(end) = end {
                    self.end(now, end, reason, None);
                }
            }
            Standing::Preempted => self.preempted = self.preempted.saturating_add(1),
            Standing::Ended(end) => self.end(now, end, reason, None),
        }
        facts
    }

    /// Notes how its script has ended; `None` if the cluster does not report it.
    pub fn script_ended(&mut self, exit: Option<ScriptExit>) {
        (self.script, self.was_asked) = (exit.map(exit_of), true);
    }

    /// Handles the accounting's record of it: its state and exit, or `None` if there is no record.
    pub fn recorded(&mut self, now: Instant, record: Option<(&str, Option<ScriptExit>)>) {
        let ended = record.and_then(|(state, exit)| match states::standing(state) {
            Standing::Ended(end) => Some((end, exit)),
            _ => None,
        });
        if let Some((end, exit)) = ended {
            self.awaits_record = false;
            self.end(now, end, "", exit.map(exit_of));
        } else {
            // The accounting learns of names and ends with a delay, and of no end from a controller that was reset.
            self.unfinished = self.unfinished.saturating_add(1);
            self.awaits_record &= self.unfinished < MISSING;
        }
    }

    /// Returns whether its end depends on the accounting's answer.
    pub const fn awaits_record(&self) -> bool {
        self.awaits_record && self.missing >= MISSING
    }

    fn end(&mut self, now: Instant, end: End, reason: &str, exit: Option<Exit>) {
        self.ended.get_or_insert_with(|| Ended { end, reason: reason.into(), exit, seen: now });
    }

    /// Notes that an answer to a query that began at `asked` lacks it. Returns whether that is significant. If there is
    /// accounting, that is asked before the job counts as lost.
    pub fn unlisted(&mut self, asked: Instant, has_accounting: bool) -> bool {
        let says_something = self.ended.is_none() && self.accepted.is_some_and(|since| since < asked);
        if says_something {
            self.awaits_record = has_accounting && (self.missing == 0 || self.awaits_record);
            self.missing = self.missing.saturating_add(1);
            self.answered = Some(asked);
        }
        says_something
    }

    /// Returns whether it has an id, or has noted its start.
    pub const fn is_there(&self) -> bool {
        self.id.is_some() || self.running.is_some()
    }

    /// Notes that the cluster has forgotten it, and that its id may belong to another job.
    pub fn is_forgotten(&mut self, now: Instant) {
        (self.id, self.forgotten) = (None, Some(now));
        // Nothing can be queried about it any more.
        (self.missing, self.awaits_record) = (MISSING, false);
    }
}

const fn exit_of(script: ScriptExit) -> Exit {
    match script.signal {
        0 => Exit::Code(script.code),
        signal => Exit::Signal(signal),
    }
}

#[cfg(test)]
mod tests;
