//! Foreground jobs as their clients see them, and processes that other programs hand over. This knowledge comes only
//! from requests and replies, not from the core or the model.

use std::collections::{BTreeMap, BTreeSet};

use crate::wire::failures;
use bgd_core::{Command, CoreError, Input, ReplyTo, Request, Snapshot, State, StopReason};
use bgd_shared::event::EventKind;
use bgd_shared::id::{TaskId, TaskRef};
use bgd_shared::task::Origin;
use bgd_shared::time::Timestamp;
use proptest::{prop_assert, prop_assert_eq};

use super::super::expected::{Answer, Expected};
use super::super::ops::CLIENTS;
use super::super::support::{HUP, KILL, command, env};
use super::procs::{Proc, ProcState};
use super::{Checked, Sim, fail_with, key_text, new_id, session_key};

/// Error of a job that was abandoned.
const ABANDONED: &str = "its terminal was closed or its client ended";

/// The knowledge of clients and other programs.
#[derive(Debug, Default)]
pub struct Jobs {
    known: BTreeMap<TaskId, Job>,
    backgrounded: BTreeSet<TaskId>,
    /// Jobs whose client has disconnected, until they end.
    orphans: BTreeMap<TaskId, Orphan>,
    /// The process that is offered in this step.
    offered: Option<TaskId>,
}

/// A job that began in the foreground.
#[derive(Debug)]
struct Job {
    client: u64,
    direct: bool,
    /// How it left the foreground.
    left: Option<Left>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Left {
    Ended,
    Backgrounded,
    Abandoned,
}

/// A job that must end soon, or gets SIGKILL.
#[derive(Debug)]
struct Orphan {
    grace_ms: u64,
    /// When SIGKILL comes at the latest, once the job runs.
    due: Option<u64>,
}

impl Sim {
    /// Submits a task. A foreground job starts at once, regardless of other running tasks.
    pub(super) fn submit_job(&mut self, client: usize, command: Command) -> Checked {
        let (id, foreground, direct) = (command.id, command.foreground, command.spec.direct);
        if foreground {
            let job = Job { client: self.clients[client], direct, left: None };
            self.jobs.known.insert(id, job);
        }
        self.request(client, Request::Submit(Box::new(command)))?;
        match self.core.get(&id.into()) {
            Ok(task) if foreground => {
                prop_assert!(
                    matches!(task.state, State::Starting { stop: None, .. }),
                    "a job waits: {:?}",
                    task
                );
                self.is_shown_rightly(&task)?;
            }
            Ok(_) => {}
            // The job was refused, or shares its key with another task.
            Err(_) => _ = self.jobs.known.remove(&id),
        }
        Ok(())
    }

    /// Presses the key once or twice. The job stays the same except for its place (R62), and a second press changes
    /// nothing at all (R67).
    pub(super) fn detach(&mut self, client: usize, id: &TaskRef, by_owner: bool, twice: bool) -> Checked {
        let before = self.core.get(id).ok();
        let owner = before.as_ref().and_then(|task| task.foreground);
        let owner = self.clients.iter().position(|client| Some(*client) == owner);
        let client = owner.filter(|_| by_owner).unwrap_or(client);
        self.request(client, Request::Detach { id: id.clone() })?;
        let after = self.core.get(id).ok();
        if let (Some(before), Some(after)) = (before, &after) {
            let mut same = before.clone();
            same.foreground = after.foreground;
            if let (Some(same), Some(after)) = (&mut same.agent, &after.agent) {
                same.last_notified = after.last_notified;
            }
            prop_assert_eq!(format!("{:?}", same), format!("{:?}", after), "the job is another one");
            if before.foreground != after.foreground {
                self.compare(after.id)?;
                if after.agent.as_ref().is_some_and(|agent| !agent.questions.is_empty()) {
                    self.reach("a question is told by a hand-over");
                }
                self.reach(match &after.state {
                    State::Starting { .. } => "hand-over of a starting job",
                    State::Stopping { .. } => "hand-over of a stopping job",
                    _ if after.agent.is_some() => "hand-over of an agent",
                    _ => "hand-over of a process",
                });
            }
        }
        if twice {
            let seq = self.seq;
            self.request(client, Request::Detach { id: id.clone() })?;
            let again = self.core.get(id).ok();
            prop_assert_eq!(format!("{:?}", after), format!("{:?}", again), "the second press did something");
            prop_assert_eq!(seq, self.seq, "the second press was told of");
        }
        Ok(())
    }

    /// Offers a process started by another program.
    pub(super) fn adopt(
        &mut self,
        client: usize,
        session: Option<u8>,
        key: Option<u8>,
        time_limit: Option<u16>,
    ) -> Checked {
        self.submitted += 1;
        let id = new_id(self.submitted);
        let mut command = command(id);
        command.env = env(9);
        command.key = key.map(key_text);
        command.spec.origin = Origin::Handoff;
        command.spec.session = session.map(session_key);
        command.spec.time_limit_ms = time_limit.map(u64::from);
        let pid = 5000 + i32::try_from(self.submitted).unwrap_or_default();
        let started_at = Timestamp::from_unix_ms(self.now.wall.unix_ms() - 1500);
        self.jobs.offered = Some(id);
        self.request(client, Request::Adopt { command: Box::new(command), pid, started_at })?;
        self.jobs.offered = None;
        if let Ok(task) = self.core.get(&id.into()) {
            let limit = time_limit.map(|limit| self.now.mono.plus_ms(limit.into()));
            let state = State::Running { pid: Some(pid), started_at, time_limit: limit };
            prop_assert_eq!(&task.state, &state);
            prop_assert!(self.procs.iter().any(|proc| proc.task == id), "nobody looks after {id}");
            self.reach("adopted");
        } else {
            self.reach("not adopted");
        }
        Ok(())
    }

    /// Disconnects a client. It then has no foreground jobs, and each of its former ones is being ended (R71).
    pub(super) fn disconnect(&mut self, client: usize) -> Checked {
        let gone = self.clients[client];
        let resumes = &self.resumes;
        self.open.retain(|to| to.client != gone || resumes.contains(to));
        self.clients[client] += CLIENTS as u64;
        let mut left = Vec::new();
        for (id, job) in &mut self.jobs.known {
            if job.client == gone && job.left.is_none() {
                job.left = Some(Left::Abandoned);
                left.push(*id);
            }
        }
        let before: Vec<Snapshot> = left.iter().filter_map(|id| self.core.get(&(*id).into()).ok()).collect();
        prop_assert_eq!(before.len(), left.len(), "a job of the foreground was forgotten");
        let (sessions, is_shared) = self.post.leaves(gone);
        if is_shared {
            self.reach("one owner of two goes");
        }
        let others = self.untouched_by_ends(gone, &sessions, &left);
        self.input(&Input::Disconnected { client: gone })?;
        self.r54_only_those_sessions_have_ended(&sessions, &others)?;
        for before in &before {
            self.is_being_ended(before)?;
        }
        for task in self.model.live.keys().copied().collect::<Vec<_>>() {
            self.compare(self.model.live[&task].id)?;
        }
        if left.len() > 1 {
            self.reach("several jobs are abandoned");
        }
        Ok(())
    }

    /// Checks that an abandoned job was sent SIGHUP, and gets SIGKILL after the grace period at the latest.
    fn is_being_ended(&mut self, before: &Snapshot) -> Checked {
        let (id, grace_ms) = (before.id, self.model.limits.grace_ms);
        let Ok(task) = self.core.get(&id.into()) else { return fail_with(format!("{id} is gone")) };
        let Some(proc) = self.procs.iter().find(|proc| proc.task == id) else {
            return fail_with(format!("{id} has no process"));
        };
        let was_free = matches!(before.state, State::Running { .. } | State::Starting { stop: None, .. });
        let (due, place) = match &task.state {
            State::Starting { stop: Some(order), .. } => {
                prop_assert!(matches!(order.signal, HUP | KILL) && order.grace_ms <= grace_ms);
                prop_assert!(order.reason == StopReason::Abandoned || !was_free);
                prop_assert!(!proc.is_agent || proc.ends.last() == Some(&HUP));
                (None, "abandoned while starting")
            }
            State::Stopping { kill_at: None, .. } => {
                prop_assert!(proc.is_killed() && !was_free);
                (None, "abandoned while killed")
            }
            State::Stopping { kill_at: Some(at), reason, .. } => {
                prop_assert_eq!(proc.ends.last(), Some(&HUP));
                prop_assert!(at.0 <= self.now.mono.plus_ms(grace_ms).0, "SIGKILL comes too late");
                prop_assert!(!was_free || (*reason, proc.ends.len()) == (StopReason::Abandoned, 1));
                (Some(at.0), if was_free { "abandoned" } else { "abandoned while stopping" })
            }
            state => return fail_with(format!("nobody sees {id}, and it goes on: {state:?}")),
        };
        self.jobs.orphans.insert(id, Orphan { grace_ms, due });
        self.reach(place);
        Ok(())
    }

    /// Checks that abandoned jobs were sent SIGKILL at the end of their grace period.
    pub(super) fn nobody_outlives_the_grace(&self) -> Checked {
        for (id, orphan) in &self.jobs.orphans {
            if orphan.due.is_some_and(|due| due <= self.now.mono.0) {
                let killed = self.procs.iter().any(|proc| proc.task == *id && proc.is_killed());
                prop_assert!(killed, "{id} has outlived its client's grace");
            }
        }
        Ok(())
    }

    /// Lets an executor adopt a process of another program, which must be the one offered in this step.
    pub(super) fn take_over(&mut self, task: TaskId, run: u32) -> Checked {
        prop_assert_eq!((self.jobs.offered, run), (Some(task), 1), "nobody has offered that");
        prop_assert!(self.procs.iter().all(|proc| proc.task != task), "{task} runs already");
        let mut proc = Proc::new(task, run, false, 0);
        proc.state = ProcState::Alive;
        self.procs.push(proc);
        Ok(())
    }

    /// Ends the foreground of a job: it must be the client's own, must not have ended, and must not be direct (R64,
    /// R66).
    pub(super) fn hide(&mut self, task: TaskId, client: u64) -> Checked {
        let Some(job) = self.jobs.known.get_mut(&task) else {
            return fail_with(format!("{task} was never in the foreground"));
        };
        prop_assert!((job.client, job.direct, job.left) == (client, false, None), "{:?} by {}", job, client);
        job.left = Some(Left::Backgrounded);
        Ok(())
    }

    /// Checks that the effect and the event come before the reply, and that the caller is the detached client (R61). A
    /// job that has ended is not reported as backgrounded, and vice versa (R66).
    pub(super) fn hand_over_is_reported_truly(
        &self,
        to: ReplyTo,
        answer: &Answer,
        done: &Expected,
    ) -> Checked {
        match answer {
            Answer::Backgrounded(id, _) => {
                let adopted = done.adopts.contains(id);
                prop_assert!(
                    adopted != done.detached.contains(&(*id, to.client)),
                    "{id} is not where it was"
                );
                prop_assert!(done.events.contains(&(*id, EventKind::Backgrounded)), "answered too early");
                let left = self.jobs.known.get(id).and_then(|job| job.left);
                prop_assert!(adopted || left == Some(Left::Backgrounded), "{:?}", left);
            }
            Answer::Error(CoreError::EndedFirst(id, _)) => {
                let goes_on = self.jobs.known.get(id).is_some_and(|job| job.left.is_none());
                prop_assert!(!goes_on, "{id} has not ended");
            }
            _ => {}
        }
        Ok(())
    }

    /// Checks that `backgrounded` comes once, with a hand-over; that a job that ends in the foreground is never
    /// handed over; and that an abandoned one never completes.
    pub(super) fn job_goes_on(&mut self, kind: EventKind, task: &Snapshot, done: &Expected) -> Checked {
        let id = task.id;
        let jobs = &mut self.jobs;
        let mut job = jobs.known.get_mut(&id);
        if kind == EventKind::Submitted {
            prop_assert_eq!(task.foreground, job.map(|job| job.client));
        } else if kind == EventKind::Backgrounded {
            let moved = done.adopts.contains(&id) || done.detached.iter().any(|(task, _)| *task == id);
            prop_assert!(moved && jobs.backgrounded.insert(id), "{id} is handed over twice, or by nobody");
            prop_assert_eq!(task.foreground, None);
        } else if let (EventKind::Started, Some(orphan)) = (kind, jobs.orphans.get_mut(&id)) {
            orphan.due = Some(self.now.mono.plus_ms(orphan.grace_ms).0);
        } else if kind.is_terminal() {
            prop_assert_eq!(task.foreground, None);
            jobs.orphans.remove(&id);
            let place = match job.as_mut().map(|job| job.left.get_or_insert(Left::Ended)) {
                Some(Left::Abandoned) => {
                    prop_assert!(kind != EventKind::Completed, "nobody was there to see it");
                    (failures::error(task).as_deref() == Some(ABANDONED)).then_some("ends abandoned")
                }
                Some(Left::Backgrounded) => Some("ends in the background"),
                Some(Left::Ended) => Some("ends in the foreground"),
                None => None,
            };
            prop_assert!(
                place == Some("ends abandoned") || failures::error(task).as_deref() != Some(ABANDONED)
            );
            if let Some(place) = place {
                self.reach(place);
            }
        }
        Ok(())
    }

    /// Reports whether a job ended where its client saw it.
    pub(super) fn ended_in_the_foreground(&self, id: TaskId) -> bool {
        self.jobs.known.get(&id).is_some_and(|job| job.left == Some(Left::Ended))
    }

    /// Checks that a running task is in the foreground of exactly the client that shows it, and that this client is
    /// connected.
    pub(super) fn is_shown_rightly(&self, task: &Snapshot) -> Checked {
        let job = self.jobs.known.get(&task.id).filter(|job| job.left.is_none());
        prop_assert_eq!(task.foreground, job.map(|job| job.client), "{:?}", task);
        let Some(client) = task.foreground else { return Ok(()) };
        prop_assert!(self.clients.contains(&client), "{client} is gone, and shows {}", task.id);
        let runs =
            matches!(task.state, State::Starting { .. } | State::Running { .. } | State::Stopping { .. });
        prop_assert!(runs, "{:?}", task);
        Ok(())
    }

    /// Checks the core's index of each client's jobs against the tasks.
    pub(super) fn index_of_jobs_is_true(&self, core: &serde_json::Value) -> Checked {
        let tasks = core["registry"]["tasks"].as_object().into_iter().flatten();
        let of_tasks: BTreeSet<(u64, u64)> = tasks
            .filter_map(|(ordinal, task)| Some((task["foreground"].as_u64()?, ordinal.parse().ok()?)))
            .collect();
        let index = core["foreground"].as_array().into_iter().flatten();
        let index: Vec<(u64, u64)> =
            index.filter_map(|entry| Some((entry[0].as_u64()?, entry[1].as_u64()?))).collect();
        prop_assert_eq!(of_tasks.len(), self.model.jobs().len());
        prop_assert_eq!(index, of_tasks.into_iter().collect::<Vec<_>>());
        Ok(())
    }
}
