//! Naive model of executors' facts, of deadlines, and of the ends of tasks.

use bgd_core::{Fact, GIVE_UP_MS, Now, ReplyTo};
use bgd_shared::event::EventKind;
use bgd_shared::id::TaskId;
use bgd_shared::notice::NoticeKind;
use bgd_shared::task::Status;

use super::super::expected::{Answer, Expected};
use super::super::support::{KILL, TERM};
use super::{End, Kind, Known, Model, Phase, Why, number};

/// Something due. Tasks come before reads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Due {
    Task(u64),
    Block(Option<ReplyTo>),
    Read(ReplyTo),
}

impl Model {
    /// Returns what the core must do when it checks its timers.
    pub fn deadline(&mut self, now: Now) -> Expected {
        let at = now.mono.0;
        self.open_due(now);
        // Sorted by due time, which determines the order of everything that follows.
        let due = |number: u64, task: &Known| (task.deadline().unwrap_or(u64::MAX), Due::Task(number));
        let tasks = self.live.iter().map(|(number, task)| due(*number, task));
        let reads = self.post.reads.iter().map(|read| (read.due, Due::Read(read.to)));
        let blocks = self.calls.iter().filter_map(|call| match call.kind {
            Kind::Block { deadline: Some(due), .. } => Some((due, Due::Block(call.to))),
            _ => None,
        });
        let mut all: Vec<(u64, Due)> = tasks.chain(reads).chain(blocks).collect();
        all.sort();
        for (due, whose) in all {
            let number = match whose {
                Due::Task(number) => number,
                Due::Block(to) => {
                    self.block_is_due(to, due <= at);
                    continue;
                }
                Due::Read(to) => {
                    self.read_is_due(to, due <= at);
                    continue;
                }
            };
            let Some(task) = self.live.get_mut(&number) else { continue };
            if task.phase == Phase::Starting && task.hangs_at.is_some_and(|due| due <= at) {
                (task.stuck, task.end) = (true, End::Killed);
                self.expected.ends.push((task.id, KILL));
                self.done(now, number, &Ok(()));
                continue;
            }
            if let (Some(limit_ms), Some(due), End::NotBegun, Phase::Running) =
                (task.limit_ms, task.limit_at, task.end, task.phase)
                && due <= at
            {
                self.stop(now, number, Why::Time(limit_ms), TERM, self.limits.grace_ms);
            } else if (End::NotBegun, Phase::Running) == (task.end, task.phase) {
                self.look_at_agent(now, number);
            }
            let Some(task) = self.live.get_mut(&number) else { continue };
            if let End::Grace(due) = task.end
                && task.left
                && due <= at
            {
                task.end = End::Killed;
                self.expected.ends.push((task.id, KILL));
            }
        }
        self.settle(now);
        self.fill();
        self.forget_old(now);
        std::mem::take(&mut self.expected)
    }

    fn block_is_due(&mut self, to: Option<ReplyTo>, is_due: bool) {
        let call = self.calls.iter().position(|call| call.to == to);
        if let Some(call) = call.filter(|_| is_due).map(|index| self.calls.remove(index)) {
            let tasks = self.statuses(&call.tasks);
            self.reply(to, Answer::Blocked { tasks, timed_out: true });
        }
    }

    pub(super) fn fact(&mut self, now: Now, id: TaskId, run: u32, fact: &Fact) {
        let number = number(id);
        let Some(task) = self.live.get_mut(&number).filter(|task| task.run == run) else { return };
        match (fact, task.phase) {
            (Fact::Started { .. }, Phase::Starting | Phase::Resuming) => self.started(now, id),
            (Fact::StartFailed { failure }, Phase::Starting) => {
                self.done(now, number, &Err(failure.message.to_string()));
            }
            (Fact::Exited { exit, others, at }, Phase::Running) if !task.leader_gone => {
                task.leader_gone = true;
                task.left = *others;
                task.order.exit = Some(exit.clone());
                // A task that is being ended ends with the last process of its tree.
                if task.end == End::NotBegun || !others {
                    task.order.attempt.ends(now, *at);
                }
                if *others && task.end == End::NotBegun && self.goes_on(now, number) {
                    return self.end_rest(now, number);
                }
                let Some(task) = self.live.get_mut(&number) else { return };
                if task.end == End::NotBegun || !others {
                    let result = task.order.result();
                    self.done(now, number, &result);
                }
            }
            (Fact::TreeEmpty, Phase::Running) if task.leader_gone => {
                task.left = false;
                let result = task.order.result();
                self.done(now, number, &result);
            }
            (Fact::TreeEmpty, Phase::Done) if task.left || task.stuck => {
                (task.left, task.stuck) = (false, false);
                self.settled(id);
            }
            (Fact::GaveUp { .. }, Phase::Running) if task.end == End::Killed => {
                (task.left, task.stuck, task.leader_gone) = (false, true, true);
                let result = task.order.result();
                self.done(now, number, &result);
            }
            (Fact::GaveUp { .. }, Phase::Done) if task.end == End::Killed && task.left => {
                (task.left, task.stuck) = (false, true);
                self.settled(id);
            }
            (Fact::Exited { others: false, .. } | Fact::StartFailed { .. }, Phase::Done) if task.stuck => {
                task.stuck = false;
                self.settled(id);
            }
            (Fact::Ready | Fact::NotReady, _) => self.fact_of_readiness(now, id, fact),
            (Fact::Output { .. } | Fact::Lost { .. } | Fact::Erased { .. } | Fact::Used(_), _) => {
                self.fact_of_output(now, id, fact);
            }
            _ => self.fact_of_agent(now, number, fact),
        }
    }

    /// Nothing is left to wait for of a task that had ended before.
    fn settled(&mut self, id: TaskId) {
        self.expected.events.push((id, EventKind::Progress));
        self.answer();
    }

    fn started(&mut self, now: Now, id: TaskId) {
        let number = number(id);
        let Some(task) = self.live.get_mut(&number) else { return };
        let is_new = task.phase == Phase::Starting;
        task.phase = Phase::Running;
        task.left = true;
        task.order.begins(now);
        task.limit_at = task.limit_ms.map(|limit| now.mono.plus_ms(limit).0);
        if let Some(chat) = &mut task.chat {
            chat.begin_run(now, is_new);
        }
        if is_new {
            self.notify_dependents(id);
            self.expected.events.push((id, EventKind::Started));
            if self.get(id).is_some_and(|task| task.order.ended == 0) {
                self.notify(now, number, NoticeKind::Started);
            }
        } else {
            self.accepted(number);
        }
        let Some(task) = self.live.get_mut(&number) else { return };
        if task.paused {
            self.expected.pauses.push((id, true));
        }
        if let (Some((signal, grace)), Some(why)) = (task.stop_order, task.why) {
            self.stop(now, number, why, signal, grace);
        }
    }

    /// Readiness counts once, while a process is running and not being ended.
    fn fact_of_readiness(&mut self, now: Now, id: TaskId, fact: &Fact) {
        let Some(task) = self.live.get_mut(&number(id)) else { return };
        if task.phase != Phase::Running || task.end != End::NotBegun || task.ready_at.is_some() {
            return;
        }
        match (fact, task.becomes_ready, task.ready_ms) {
            (Fact::Ready, true, _) => {
                task.ready_at = Some(now.wall);
                self.notify_dependents(id);
                self.expected.events.push((id, EventKind::Ready));
                self.answer();
            }
            (Fact::NotReady, _, Some(limit_ms)) => {
                self.stop(now, number(id), Why::NotReady(limit_ms), TERM, self.limits.grace_ms);
            }
            _ => {}
        }
    }

    fn fact_of_output(&mut self, now: Now, id: TaskId, fact: &Fact) {
        let number = number(id);
        let Some(task) = self.live.get_mut(&number) else { return };
        let event = match fact {
            Fact::Output { bytes, publish, .. } => {
                let (bytes, active) = (bytes.iter().sum(), task.status().is_active());
                let grew = bytes > task.bytes;
                task.bytes = bytes;
                if grew {
                    self.moved(now, number);
                }
                (*publish && active).then_some(EventKind::Output)
            }
            Fact::Lost { bytes, .. } => {
                task.lost += *bytes;
                task.status().is_active().then_some(EventKind::Output)
            }
            Fact::Erased { bytes, .. } => {
                task.bytes = 0;
                task.lost += bytes[0];
                task.status().is_active().then_some(EventKind::Output)
            }
            Fact::Used(usage) if matches!(task.phase, Phase::Running | Phase::Done) => {
                let is_new = task.usage.replace(*usage) != Some(*usage);
                (is_new && task.phase == Phase::Done).then_some(EventKind::Progress)
            }
            _ => None,
        };
        self.expected.events.extend(event.map(|kind| (id, kind)));
    }

    pub(super) fn stop_all(&mut self, now: Now, tasks: &[TaskId], why: Why, signal: i32, grace: u64) {
        for id in tasks {
            self.stop(now, number(*id), why, signal, grace);
        }
    }

    /// Stops a task. The first reason counts; a second stop can only bring SIGKILL forward.
    pub(super) fn stop(&mut self, now: Now, number: u64, why: Why, signal: i32, grace: u64) {
        let Some(task) = self.live.get_mut(&number) else { return };
        if task.phase != Phase::Done {
            // A stop before the next attempt yields to a stop for good.
            let is_for_next = matches!(task.why, Some(Why::NotReady(_))) && task.order.is_kept_alive();
            task.why = task.why.filter(|_| !is_for_next).or(Some(why));
            task.paused = false;
        }
        match task.phase {
            Phase::Pending => self.done(now, number, &Ok(())),
            Phase::Starting | Phase::Resuming => {
                if task.chat.is_some() {
                    self.expected.ends.push((task.id, signal));
                } else {
                    let wait = if signal == KILL { GIVE_UP_MS } else { grace + GIVE_UP_MS };
                    let at = now.mono.plus_ms(wait).0;
                    task.hangs_at = Some(task.hangs_at.map_or(at, |before| before.min(at)));
                }
                let (first, before) = task.stop_order.unwrap_or((signal, grace));
                task.stop_order = Some((if first == KILL { KILL } else { signal }, grace.min(before)));
            }
            Phase::Running | Phase::Done => {
                let before = match task.end {
                    End::NotBegun => u64::MAX,
                    End::Grace(at) => at,
                    End::Killed => return,
                };
                if task.left {
                    let kill_at = now.mono.plus_ms(grace).0.min(before);
                    task.end = if signal == KILL { End::Killed } else { End::Grace(kill_at) };
                    self.expected.ends.push((task.id, signal));
                    self.deny(now, number, |_| true);
                }
            }
        }
    }

    /// Ends a task. The reason of a stop outweighs how the process ended.
    pub(super) fn done(&mut self, now: Now, number: u64, result: &Result<(), String>) {
        if self.begins_again(now, number, result) {
            return;
        }
        let tries_again = self.tries_again();
        let Some(task) = self.live.get_mut(&number) else { return };
        let loops = task.loops(now, result);
        let is_unstarted = task.phase == Phase::Starting || task.order.exit.is_none();
        task.phase = Phase::Done;
        (task.completed_at, task.paused) = (task.order.attempt.ended_at().unwrap_or(now.wall), false);
        let is_looked_at = task.foreground.take().is_some();
        if let Some(chat) = &mut task.chat {
            chat.end();
        }
        let verdict = match (task.why, result) {
            _ if task.order.blame.is_some() => (Status::Cancelled, task.order.blame.clone()),
            (why, _) if loops && tries_again => {
                let is_late = matches!(why, Some(Why::NotReady(_)));
                let early = if is_late { "before it was ready" } else { "within a minute of its start" };
                let last = match (why, result) {
                    (Some(Why::NotReady(limit)), _) => format!(": not ready after {}", shown(limit)),
                    (_, Err(error)) if is_unstarted => format!(": {error}"),
                    (_, Err(error)) => format!(" it {error}"),
                    (_, Ok(())) => " it exited with code 0".to_owned(),
                };
                let error = format!("crash loop: ended 10 times in a row {early}; the last time{last}");
                (Status::Failed, Some(error))
            }
            (None, Ok(())) => (Status::Completed, None),
            (None, Err(error)) => (Status::Failed, Some(error.clone())),
            (Some(Why::Cancelled), _) => (Status::Cancelled, None),
            (Some(Why::Session), _) => (Status::Cancelled, Some("its parent session ended".to_owned())),
            (Some(Why::Abandoned), _) => {
                (Status::Cancelled, Some("its terminal was closed or its client ended".to_owned()))
            }
            (Some(Why::Shutdown), _) => (Status::Cancelled, Some("the daemon was shut down".to_owned())),
            (Some(Why::MaxFails(1)), _) => {
                (Status::Cancelled, Some("a task of its batch failed (--max-fails)".to_owned()))
            }
            (Some(Why::MaxFails(failed)), _) => {
                (Status::Cancelled, Some(format!("{failed} tasks of its batch failed (--max-fails)")))
            }
            (Some(Why::NotReady(limit)), _) => {
                (Status::Failed, Some(format!("not ready after {}", shown(limit))))
            }
            (Some(Why::Time(limit)), _) => {
                let limit = shown(limit);
                let words = task.chat.as_ref().and_then(|chat| chat.notes.last_words.as_deref());
                let words =
                    words.map(|words| format!("; the agent's last output: {words}")).unwrap_or_default();
                (Status::Failed, Some(format!("timed out after {limit}{words}")))
            }
        };
        let (kind, news) = match verdict.0 {
            Status::Completed => (EventKind::Completed, NoticeKind::Completed),
            Status::Cancelled => (EventKind::Cancelled, NoticeKind::Cancelled),
            _ => (EventKind::Failed, NoticeKind::Failed),
        };
        (task.verdict, task.seen) = (Some(verdict), is_looked_at);
        let id = task.id;
        self.expected.events.push((id, kind));
        self.notify_dependents(id);
        if kind == EventKind::Failed {
            self.count_failure(number);
        }
        if !is_looked_at {
            self.notify(now, number, news);
        }
        self.answer();
    }
}

impl Known {
    /// Reports whether its rule applies to the end of this attempt.
    pub(super) fn may_begin_again(&self) -> bool {
        let is_late = self.order.is_kept_alive() && matches!(self.why, Some(Why::NotReady(_)));
        let is_gone = self.order.is_kept_alive() && self.order.ended > 0;
        match self.phase {
            Phase::Running => self.resumes == 0 && (self.why.is_none() || is_late),
            Phase::Starting => self.resumes == 0 && self.why.is_none() && is_gone,
            Phase::Pending | Phase::Resuming | Phase::Done => false,
        }
    }

    /// Reports whether it ended early once too often.
    pub(super) fn loops(&self, now: Now, result: &Result<(), String>) -> bool {
        let is_late = matches!(self.why, Some(Why::NotReady(_)));
        let failed = Err(String::new());
        self.may_begin_again() && self.order.loops(now, if is_late { &failed } else { result }, is_late)
    }
}

fn shown(ms: u64) -> String {
    match (ms / 1000, ms % 1000) {
        (0, ms) => format!("{ms}ms"),
        (seconds, 0) => format!("{seconds}s"),
        (seconds, ms) => format!("{seconds}.{ms:03}s"),
    }
}
