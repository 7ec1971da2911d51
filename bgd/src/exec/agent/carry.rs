//! Carries agents over an upgrade in place: finds them quiet, saves their state, and resumes them.
//!
//! While an upgrade looks for a moment at which nothing is in progress, the output of agents is held back in their
//! pipes. The state is then saved while the whole thread is frozen, so that nothing changes meanwhile.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use serde_json::value::{RawValue, to_raw_value};
use tokio::sync::{mpsc, watch};

use super::connection::{UPDATES, Update};
use super::link::Connection;
use super::live::Live;
use super::manager::{Lease, Manager, Running, Seat};
use super::pool::ProcessId;
use super::recorder::Recorder;
use super::shown::Visible;
use super::start::Start;
use super::state::{AgentsState, FollowState, LateState, Resumed, SeatState, Taken, TurnState};
use super::template::Template;
use crate::carry::standstill::FreezeOrder;
use crate::carry::{CarriedFds, Obstacle};
use crate::core::{Fact, sharing};
use crate::exec::host::{Purpose, SIGKILL};
use crate::exec::messages::Report;

/// The receivers of the updates of sessions, by their processes and keys.
type Channels = HashMap<(ProcessId, Arc<str>), mpsc::Receiver<Update>>;

impl Manager {
    /// Subscribes to whether agents are held back.
    pub fn hold(&self) -> watch::Receiver<bool> {
        self.hold.subscribe()
    }

    /// Holds back the output of agents, or releases it.
    pub(super) fn hold_back(&self, holds: bool) {
        for seat in self.seats.borrow().values() {
            if let Some(Ok(live)) = &*seat.outcome.borrow() {
                live.connection.hold(holds);
            }
        }
        self.hold.send_if_modified(|held| std::mem::replace(held, holds) != holds);
    }

    /// Reports the state, and then freezes the whole thread.
    pub(super) fn freeze(&self, freeze: FreezeOrder<Box<RawValue>>) {
        // Some agents may have started since the others were held back.
        self.hold_back(true);
        freeze.report(self.frozen());
    }

    fn frozen(&self) -> Result<(Box<RawValue>, CarriedFds), Obstacle> {
        let mut named = CarriedFds::default();
        let state = self.state(&mut named)?;
        let written = sharing::written_once(|| to_raw_value(&state));
        let written =
            written.map_err(|error| Obstacle::lasting(format!("the agents can't be written: {error}")))?;
        Ok((written, named))
    }

    fn state(&self, named: &mut CarriedFds) -> Result<AgentsState, Obstacle> {
        // The ignored fields are created again.
        let Self {
            pool,
            seats: all,
            turns: running_turns,
            sessions: of_tasks,
            late: recorders,
            detached_jobs,
            host: _,
            context: _,
            folders: _,
            hold: _,
        } = self;
        if detached_jobs.get() > 0 {
            return Err(Obstacle::passing("a message is being sent to an agent"));
        }
        let (mut seats, mut running) = (Vec::new(), BTreeMap::new());
        for (seat, Seat { outcome, agent, keep_warm }) in &*all.borrow() {
            // A start in progress is repeated by the turns that wait for it.
            let Some(Ok(live)) = &*outcome.borrow() else { continue };
            let (seat, agent, keep_warm) = (*seat, Arc::clone(agent), *keep_warm);
            seats.push(SeatState { seat, agent, keep_warm, live: live.state(named)? });
            running.insert(seat, 0);
        }
        let mut turns = Vec::new();
        for Running { shown, run: _, control: _ } in running_turns.borrow().values() {
            let turn = shown.read(|visible| carried(visible, named))?;
            if let TurnState::Following(turn) = &turn
                && let Some(seat) = turn.seat
            {
                *running
                    .get_mut(&seat)
                    .ok_or_else(|| Obstacle::passing("the program of an agent is ending"))? += 1;
            }
            turns.push(turn);
        }
        let mut sessions = Vec::new();
        for (task, (seat, key)) in &*of_tasks.borrow() {
            if running.contains_key(seat) {
                sessions.push((*task, *seat, Arc::clone(key)));
            }
        }
        let mut late = Vec::new();
        for ((seat, key), recorder) in &*recorders.borrow() {
            if let Some(recorder) = recorder.upgrade().filter(|_| running.contains_key(seat)) {
                let recorder = recorder.borrow_mut().state();
                late.push(LateState { seat: *seat, key: Arc::clone(key), recorder });
            }
        }
        Ok(AgentsState { pool: pool.borrow().only(&running), seats, sessions, turns, late })
    }

    /// Resumes the agents carried over an upgrade.
    pub(super) fn resume(self: &Rc<Self>, resumed: Resumed) {
        let Resumed { state, mut taken } = resumed;
        let AgentsState { pool, seats, sessions, turns, late } = state;
        self.pool.replace(pool);
        let sessions = sessions.into_iter().map(|(task, seat, key)| (task, (seat, key)));
        self.sessions.replace(sessions.collect());
        let mut channels = Channels::new();
        for SeatState { seat, agent, keep_warm, live } in seats {
            let updates = |key: &Arc<str>| {
                let (sender, receiver) = mpsc::channel(UPDATES);
                channels.insert((seat, Arc::clone(key)), receiver);
                Some(sender)
            };
            match Live::restore(live, &mut |fd| taken.take(fd), &self.context, updates) {
                Ok(live) => {
                    let live = Rc::new(live);
                    let outcome = watch::channel(Some(Ok(Rc::clone(&live)))).1;
                    self.seats
                        .borrow_mut()
                        .insert(seat, Seat { outcome, agent: Arc::clone(&agent), keep_warm });
                    let manager = Rc::clone(self);
                    tokio::task::spawn_local(async move { manager.watch_over(seat, live, &agent).await });
                }
                Err(error) => {
                    tracing::error!(%agent, %error, "an agent is lost");
                    self.pool.borrow_mut().remove(seat);
                }
            }
        }
        for turn in turns {
            match turn {
                TurnState::Opening(order) => self.begin(*order),
                TurnState::Following(turn) => {
                    let (task, run) = (turn.order.task, turn.order.run);
                    if let Err(error) = self.follow_again(*turn, &mut channels, &mut taken) {
                        tracing::error!(%task, %error, "a turn of an agent is lost");
                        let result = Err("its agent was lost in an upgrade of the daemon".into());
                        let context = self.context.clone();
                        self.spawn_detached(async move {
                            context.outputs.settle(task, run, false).await;
                            context.facts.send(task, run, Fact::TurnEnded { result });
                        });
                    }
                }
            }
        }
        for LateState { seat, key, recorder } in late {
            if let Some(updates) = channels.remove(&(seat, Arc::clone(&key))) {
                let (manager, recorder) =
                    (Rc::clone(self), Recorder::restore(recorder, self.context.clone()));
                tokio::task::spawn_local(async move {
                    manager.keep_late(recorder, updates, Some((seat, key))).await;
                });
            }
        }
        let idle = self.pool.borrow().idle();
        for (seat, rest) in idle {
            let keep_warm = self.seats.borrow().get(&seat).map(|seat| seat.keep_warm);
            self.close_later(seat, rest, keep_warm.unwrap_or_default());
        }
        // End the processes of starts that are repeated.
        for process in self.context.helpers.take_unclaimed(Purpose::Agent) {
            self.context.reports.send(Report::EndHelper { process, signal: SIGKILL });
        }
    }

    fn follow_again(
        self: &Rc<Self>,
        mut turn: FollowState,
        channels: &mut Channels,
        taken: &mut Taken,
    ) -> io::Result<()> {
        if let Some(template) = turn.template.take() {
            let (sender, updates) = mpsc::channel(UPDATES);
            let template = Template::new(self.host.clone(), Start::of(&turn.order), self.context.clone())
                .restore(template, |fd| taken.take(fd))?;
            let opened = template.open(&turn.order.wanted(), sender);
            opened.map_err(|refusal| io::Error::other(refusal.message.to_string()))?;
            self.begin_again(turn, Lease::of(Live::of(Connection::Template(template))), updates);
            return Ok(());
        }
        let gone = || io::Error::other("its process is missing");
        let seat = turn.seat.ok_or_else(gone)?;
        let updates = channels.remove(&(seat, Arc::clone(&turn.opened.key))).ok_or_else(gone)?;
        let (keep_warm, live) = {
            let seats = self.seats.borrow();
            let Seat { outcome, keep_warm, .. } = seats.get(&seat).ok_or_else(gone)?;
            (*keep_warm, outcome.borrow().clone().and_then(Result::ok).ok_or_else(gone)?)
        };
        self.begin_again(turn, self.lease_again(seat, keep_warm, live), updates);
        Ok(())
    }
}

/// Returns the state of a turn.
fn carried(visible: Option<&Visible>, named: &mut CarriedFds) -> Result<TurnState, Obstacle> {
    let busy = || Obstacle::passing("a turn of an agent is beginning or ending");
    match visible {
        None => Err(busy()),
        Some(Visible::Opening(order)) => Ok(TurnState::Opening(order.clone())),
        Some(Visible::Following { live, state }) => {
            if let Connection::Template(template) = &live.connection {
                let template = Some(template.state(named).ok_or_else(busy)?);
                return Ok(TurnState::Following(Box::new(FollowState {
                    template,
                    ..FollowState::clone(state)
                })));
            }
            // While a question is being asked or answered, only one side has it.
            let mut known: Vec<&str> = state.asked.iter().map(|asked| &*asked.reference).collect();
            let mut asking = live.connection.asking(&state.opened.key);
            known.sort_unstable();
            asking.sort_unstable();
            if known == asking { Ok(TurnState::Following(state.clone())) } else { Err(busy()) }
        }
    }
}
