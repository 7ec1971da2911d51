//! The dispatcher's part in an upgrade in place (R120 to R123): tries the next program, freezes everything for a
//! moment, and executes that program.
//!
//! Nothing is taken apart: while requests are held back and no work is in progress, the state is serialized without
//! changing it. If anything fails, the gate is reopened, and nothing has changed.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bgd_shared::error::{ErrorKind, RpcError};
use bgd_shared::holder;
use bgd_shared::request::UpgradeParams;

use super::Dispatcher;
use super::state::State;
use super::upgrading::{Phase, Upgrade, refusal, shutting_down};
use crate::carry::program::{Candidate, Found, Trial};
use crate::carry::{CarriedFds, Obstacle, handover};
use crate::client::answer::Answer;
use crate::exec::output::OutputFolder;
use crate::journal::{self, JournalFile};
use crate::os::clock::Stamp;
use crate::os::{memory, pidfd};
use crate::wire::connection::ConnectionsState;
use crate::wire::mailbox::{Internal, Mailbox};

/// How long requests are initially held back for work to end. On a busy machine that is too short, so a hold may last
/// up to half of the total wait.
const HOLD: Duration = Duration::from_millis(250);

/// The interval between checks for ongoing work while requests are held back.
const LOOK: Duration = Duration::from_millis(1);

/// Upper estimate for the rest of the state, in bytes: connections, executors, queues.
const STATE_REST: usize = 8 << 20;

/// The pause between two holds.
const REST: Duration = Duration::from_millis(100);

/// How long pending answers from other machines may delay the upgrade before they are given up.
const MACHINES: Duration = Duration::from_secs(2);

/// How long all of that may take, once before the trial and once after it; the time of the trial itself is not counted.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long a worker may take to check the program, or to try it: longer than the program itself may take for either.
/// Its disk, or that of the daemon's files, may hang.
const CHECK: Duration = Duration::from_secs(15);
const TRY: Duration = Duration::from_secs(75);

/// Why an upgrade is refused for which that is not long enough.
const HANGS: &str = "the disk of the program, or of the daemon's files, does not answer: try again later";

/// What else replaces the program if an upgrade must wait for something for too long.
const INSTEAD: &str = "`bgctl daemon restart` replaces the program without waiting for that; only a durable daemon keeps \
                       its tasks running meanwhile";

/// Checks that a program that takes over finds the folder of the outputs, which is recreated if it was removed, and the
/// journal.
fn has_files(outputs: &OutputFolder, journal: Option<&JournalFile>) -> Result<(), String> {
    outputs.ensure().map_err(|error| {
        let path = outputs.path().display();
        format!("the output folder {path} was removed and can't be recreated: {error}")
    })?;
    journal.map_or(Ok(()), JournalFile::check)
}

impl Dispatcher {
    /// Begins an upgrade by having a worker check the program.
    pub(super) fn upgrade(&mut self, answer: Answer, params: &UpgradeParams) {
        if self.upgrade.is_some() {
            return answer.refuse(&refusal("another upgrade is under way"));
        }
        if self.is_shutting_down() {
            return answer.refuse(&shutting_down());
        }
        if self.has_panicked_journal() {
            return answer.refuse(&refusal(&self.trouble_words()));
        }
        if self.upgrade_context.is_none() {
            return answer.refuse(&refusal("this daemon can't be upgraded in place"));
        }
        let own = || self.identity.program.as_ref().map(|program| program.path().to_owned());
        let path = params.binary.as_ref().map(|path| PathBuf::from(path.as_os_str())).or_else(own);
        let Some(path) = path else {
            return answer
                .refuse(&refusal("the location of the daemon's program is unknown").hint("name it"));
        };
        if !path.is_absolute() {
            return answer
                .refuse(&RpcError::new(ErrorKind::InvalidParams, "`binary` is not an absolute path"));
        }
        let (held, phase, trial) = (Duration::ZERO, Phase::OnWorker, Trial::default());
        self.upgrade =
            Some(Upgrade { answer, waits_since: Instant::now(), held, phase, trial: trial.clone() });
        let journal = self.durable.as_ref().map(|_| journal::FORMAT);
        self.look_at_program(false, move || {
            let opened = Candidate::open(&path, journal, trial);
            opened.map(Box::new).map_err(|why| format!("{}: {why}", path.display()))
        });
    }

    /// Has a worker check or try the program. Each look at a disk that hangs occupies a thread: few are allowed.
    fn look_at_program(
        &self,
        was_tried: bool,
        look: impl FnOnce() -> Result<Box<Candidate>, String> + Send + 'static,
    ) {
        let (workers, internals) = (self.context.workers.clone(), self.internals.clone());
        tokio::spawn(async move {
            let looked = workers.program(if was_tried { TRY } else { CHECK }, look).await;
            let program = looked.unwrap_or_else(|| Err(HANGS.to_owned()));
            internals.send(Internal::Upgrade { program, was_tried });
        });
    }

    /// Continues after a worker has checked or tried the program.
    pub(super) fn upgrade_looked_at(&mut self, program: Result<Box<Candidate>, String>, was_tried: bool) {
        match program {
            Ok(program) => {
                if let Some(upgrade) = &mut self.upgrade {
                    upgrade.waits_since = Instant::now();
                }
                self.hold(program, was_tried);
            }
            Err(why) => self.refuse_upgrade(&why),
        }
    }

    fn hold(&mut self, program: Box<Candidate>, was_tried: bool) {
        let (Some(upgrade), Some(upgrade_context)) = (&mut self.upgrade, &self.upgrade_context) else {
            return;
        };
        upgrade_context.connections.gate.close();
        upgrade.phase = Phase::Holding { since: Stamp::now(), program, was_tried };
        self.executors.all().for_each(|executor| executor.hold_starts(true));
        // Until the state is written, even while requests pass: sending notices may take longer than a hold.
        self.notifier.hold(true);
    }

    /// Stops holding back requests and starts, which began at `since`.
    fn end_hold_since(&mut self, since: Stamp) {
        if let Some(upgrade) = &mut self.upgrade {
            upgrade.held += since.elapsed();
        }
        self.end_hold();
    }

    /// Stops holding back requests and starts.
    fn end_hold(&mut self) {
        if let Some(upgrade_context) = &self.upgrade_context {
            upgrade_context.connections.gate.open();
        }
        self.executors.all().for_each(|executor| executor.hold_starts(false));
        self.notifier.release();
    }

    fn refuse_upgrade(&mut self, why: &str) {
        self.give_up_upgrade(&refusal(why));
    }

    fn give_up_upgrade(&mut self, why: &RpcError) {
        self.end_hold();
        self.notifier.hold(false);
        if let Some(upgrade) = self.upgrade.take() {
            upgrade.trial.give_up();
            tracing::warn!(why = why.message, "not upgraded");
            upgrade.answer.refuse(why);
        }
    }

    pub(super) fn is_shutting_down(&self) -> bool {
        self.core.is_closing() || self.ended
    }

    /// Returns when to call [`Self::upgrade_step`] again, even if nothing happens.
    pub(super) fn upgrade_due(&self) -> Option<Instant> {
        match &self.upgrade.as_ref()?.phase {
            Phase::OnWorker => None,
            Phase::Holding { .. } => Some(Instant::now() + LOOK),
            Phase::Resting { until, .. } => Some(*until),
        }
    }

    /// Writes the state if no work is in progress: first for the program to try, then for it to take over.
    pub(super) fn upgrade_step(&mut self, mailbox: &Mailbox) {
        if self.upgrade.is_some() && self.is_shutting_down() {
            // A shutdown can't be continued by the next program.
            return self.give_up_upgrade(&shutting_down());
        }
        let Some(upgrade) = &mut self.upgrade else { return };
        let (waits, phase) =
            (upgrade.waits_since.elapsed(), std::mem::replace(&mut upgrade.phase, Phase::OnWorker));
        let (since, program, was_tried) = match phase {
            Phase::OnWorker => return,
            Phase::Resting { until, program, was_tried } if until > Instant::now() => {
                upgrade.phase = Phase::Resting { until, program, was_tried };
                return;
            }
            Phase::Resting { program, was_tried, .. } => return self.hold(program, was_tried),
            Phase::Holding { since, program, was_tried } => (since, program, was_tried),
        };
        if let Err(why) = memory::room(self.state_bytes()) {
            return self.refuse_upgrade(&why);
        }
        let mut named = CarriedFds::default();
        // A mere trial does not need the outcome of notices being sent.
        let state = self.whole_state(mailbox, &program, (since, was_tried), &mut named);
        if state.is_err() {
            self.executors.all().for_each(|executor| executor.release());
            self.notifier.release();
        }
        match state {
            Ok(state) if was_tried => self.take_over(&state, &named, &program),
            Ok(state) => self.try_program(&state, &named, since, program),
            Err(Obstacle::Passing(what)) if waits > PATIENCE || self.has_panicked_journal() => {
                // A journal that can't be written keeps more than its own writes from ending.
                if self.has_trouble() {
                    return self.refuse_upgrade(&self.trouble_words());
                }
                let why = format!("{what}, and does not end: try again later");
                self.give_up_upgrade(&refusal(&why).hint(INSTEAD));
            }
            Err(Obstacle::Passing(_)) => {
                if waits > MACHINES {
                    self.context.waits.give_up();
                }
                let is_over = since.elapsed() > HOLD.max(waits / 2);
                let phase = if is_over {
                    self.end_hold_since(since);
                    Phase::Resting { until: Instant::now() + REST, program, was_tried }
                } else {
                    Phase::Holding { since, program, was_tried }
                };
                if let Some(upgrade) = &mut self.upgrade {
                    upgrade.phase = phase;
                }
            }
            Err(Obstacle::Lasting(what)) => {
                self.refuse_upgrade(&format!("{what}, which this version can't preserve in an upgrade"));
            }
        }
    }

    /// Returns an upper estimate of the bytes needed to write the state: tasks and events as text, and again in the
    /// parts of the state.
    fn state_bytes(&self) -> usize {
        // Input is copied once, then encoded in base64.
        let input = 2 * self.context.unread.bytes();
        2 * (self.core.held() + self.subscribers.bytes() + input) + STATE_REST
    }

    fn whole_state(
        &mut self,
        mailbox: &Mailbox,
        next: &Candidate,
        (since, waits): (Stamp, bool),
        named: &mut CarriedFds,
    ) -> Result<State, Obstacle> {
        let gone = || Obstacle::lasting("the upgrade was abandoned");
        let upgrade = self.upgrade.take().ok_or_else(gone)?;
        let dispatcher = self.freeze(mailbox, &upgrade.answer, waits, named);
        let upgrade = self.upgrade.insert(upgrade);
        // The remaining fields end with the upgrade.
        let Upgrade { answer, waits_since: _, held, trial: _, phase: _ } = upgrade;
        let (held, asked) = (*held, answer.state());
        let upgrade_context = self.upgrade_context.as_ref().ok_or_else(gone)?;
        Ok(State {
            since,
            held,
            peak_kib: pidfd::daemon_peak_kib().unwrap_or(0),
            from: env!("CARGO_PKG_VERSION").to_owned(),
            asked,
            next: Some(next.path.as_os_str().into()),
            dispatcher: dispatcher?,
            resources: (upgrade_context.state)(named)?,
            connections: ConnectionsState::of(&upgrade_context.connections, named)?,
        })
    }

    /// Has a worker test whether the program can read the state, while everything else continues.
    fn try_program(&mut self, state: &State, named: &CarriedFds, since: Stamp, program: Box<Candidate>) {
        let written = handover::write(state, named, &program);
        self.end_hold_since(since);
        self.notifier.hold(false);
        let (file, digest) = match written {
            Ok(written) => written,
            Err(why) => return self.refuse_upgrade(&why),
        };
        // The content that the next program must find. It is not parsed here, which would block all clients.
        let (tasks, connections) = (self.core.summary().total(), state.connections.all.len() as u64);
        let expected = Found { digest, tasks, connections };
        let outputs = Arc::clone(&self.context.folder);
        let journal = self.durable.as_ref().and_then(|durable| durable.journal.file().cloned());
        self.look_at_program(true, move || {
            let tried = program.try_with(&file, &expected);
            let tried = tried.map_err(|why| format!("the program was tried: {why}"));
            // Checked as late as possible: after this, neither the next program nor this one can do without them.
            tried.and_then(|()| has_files(&outputs, journal.as_ref())).map(|()| program)
        });
    }

    /// Executes the program. Returns only if that fails, with everything unchanged.
    fn take_over(&mut self, state: &State, named: &CarriedFds, program: &Candidate) {
        tracing::info!(to = program.formats.bgd, "the next program takes over");
        // If that program hangs, this one continues only after more time than clients wait for a daemon that is ready.
        self.record_phase(holder::Phase::Starting);
        let why = handover::hand_over(state, named, program);
        self.record_phase(holder::Phase::Ready);
        self.refuse_upgrade(&why);
    }

    /// Records the daemon's phase in the lock file.
    pub(super) fn record_phase(&self, phase: holder::Phase) {
        if let Some(upgrade_context) = &self.upgrade_context {
            (upgrade_context.says)(phase);
        }
    }

    /// Tells the service manager when the shutdown is over at the latest.
    pub(super) fn announce_stop(&self) {
        if let (Some(upgrade_context), Some(at)) = (&self.upgrade_context, self.ending.over_at()) {
            (upgrade_context.stopping)(at.saturating_duration_since(self.clock.now()));
        }
    }
}
