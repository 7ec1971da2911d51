//! The real dispatcher with its core in a simulated world: it starts, is stopped at any moment, and continues in
//! another dispatcher from its written state, as after an upgrade in place, or from its journal, as a durable daemon
//! does.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use bgd::carry::{CarriedFds, Obstacle, ReceivedFds};
use bgd::client::Client;
use bgd::client::answer::Answer;
use bgd::config::Config;
use bgd::core::ExecutorName;
use bgd::dispatcher::Dispatcher;
use bgd::dispatcher::state::DispatcherState;
use bgd::exec::context::Context;
use bgd::exec::executor::Executors;
use bgd::exec::messages;
use bgd::exec::output::OutputFolder;
use bgd::exec::threads::workers::Workers;
use bgd::journal::Journal;
use bgd::os::clock::Clock;
use bgd::os::wall_clock::WallClock;
use bgd::wire::mailbox::{Calls, Mailbox};
use bgd::wire::server::ServerLimits;
use tokio::sync::watch;

use super::life::Kind;
use super::world::{Due, Simulated, World};

/// How many tasks may run at once.
pub const SLOTS: usize = 4;

pub struct Daemon {
    pub dispatcher: Dispatcher,
    pub mailbox: Mailbox,
    pub wall_clock: WallClock,
    pub calls: Calls,
    clock: Clock,
}

impl Daemon {
    /// Starts a daemon without tasks.
    pub fn new(world: &Arc<World>, clock: Clock, state: &Path, instance: String) -> Self {
        let config = Config { max_concurrent_tasks: SLOTS, ..Config::default() };
        let (calls, facts, internals, mailbox) = bgd::wire::mailbox::new();
        let jobs = Arc::clone(world);
        let workers = Workers::simulated(move |job| jobs.job(job));
        let folder = Arc::new(OutputFolder::open(state.to_owned()).unwrap());
        let (reports, _) = messages::reports();
        world.begin(facts.clone(), internals.clone());
        let context = Context::new(folder, u64::MAX, workers, facts, reports, state.into());
        let executors = Executors::default().with(ExecutorName::LOCAL, Simulated(Arc::clone(world)));
        let (limits, _) = watch::channel(ServerLimits::from(&config));
        let identity = crate::identity(instance, state, state, clock.now());
        let dispatcher = Dispatcher::new(config, identity, executors, context, internals, limits);
        let mut dispatcher = dispatcher.with_clock(clock);
        if world.kind == Kind::Durable {
            let disk = Arc::clone(world);
            let journal = Journal::simulated(move |number, changes| disk.order(number, changes));
            dispatcher.make_durable(journal, None, true);
        }
        Self { dispatcher, mailbox, wall_clock: WallClock::simulated(clock), calls, clock }
    }

    /// Continues from the state that an earlier durable daemon has persisted, and with the runs that its keeper holds.
    pub fn begin_again(&mut self, world: &World, why: &str) {
        let (mut kept, epoch) = {
            let state = world.state();
            (state.disk.kept(), state.disk.epoch)
        };
        let epoch = self.dispatcher.resume_clock(&mut kept, epoch);
        world.state().disk.epoch = Some(epoch);
        let left = world.left_runs(&kept);
        self.dispatcher.begin_again(kept, left, why);
    }

    /// Reports whether it has no pending work from its executors and its journal.
    pub fn is_idle(&self) -> bool {
        self.mailbox.facts.is_empty() && self.mailbox.internals.is_empty()
    }

    /// Writes its state, if nothing is in progress; `asked` is the call that requests it.
    pub fn frozen(&mut self, asked: &Answer) -> Result<String, Obstacle> {
        let mut named = CarriedFds::default();
        let state = self.dispatcher.freeze(&self.mailbox, asked, true, &mut named)?;
        assert!(named.numbers().is_empty(), "nothing here has descriptors");
        Ok(serde_json::to_string(&state).unwrap())
    }

    /// Starts a daemon that continues from this state.
    pub fn thawed(
        &self,
        state: &str,
        clients: HashMap<u64, Arc<Client>>,
        (world, folder, instance): (&Arc<World>, &Path, String),
    ) -> Self {
        let mut next = Self::new(world, self.clock, folder, instance);
        let state: DispatcherState = serde_json::from_str(state).unwrap();
        next.dispatcher.resume(state, clients, &mut ReceivedFds::new(&[]).unwrap()).unwrap();
        next
    }
}

impl World {
    /// Accepts a blocking job: a thread completes it after a while.
    fn job(&self, job: bgd::exec::threads::workers::Job) {
        let ms = self.job_takes();
        self.after(ms, Due::Job(job));
    }
}
