//! The executor of tasks on other machines (R145): each is a task of the machine's daemon, reached through ssh. One
//! runtime task serves each machine. This module passes orders on; it decides nothing and makes no call itself.

mod bridge;
mod copy;
mod link;
mod machine;
mod order;
pub mod program;
mod run;
mod sweep;

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;

use bgd_shared::id::TaskId;
use bgd_shared::request::{Stdin, SubmitParams};
use bgd_shared::text::{Env, OsText};
use futures_util::future::LocalBoxFuture;

use self::machine::Machine;
use self::run::Run;
use self::sweep::Origin;
use super::carried::Carried;
use super::context::Context;
use super::executor::{
    Ask, Asked, Check, Close, Done, Durable, Executor, Interactive, Lifecycle, Start, Upgradable,
};
use super::host::{Host, Purpose};
use super::left::Spared;
use super::places::{self, Elsewhere, Places};
use crate::agents::Agents;
use crate::carry::{Named, Obstacle};
use crate::client::Client;
use crate::core::{Begin, Control, Fact, KnownRun, On, Spec, Work};
use crate::remotes::{Remotes, Ssh};

/// The executor of tasks on other machines.
#[derive(Debug)]
pub struct Machines {
    context: Context,
    host: Host,
    state: PathBuf,
    instance: String,
    is_durable: bool,
    remotes: Arc<Remotes>,
    /// The identity of this daemon on each served machine.
    origins: HashMap<Arc<str>, Arc<Origin>>,
    places: Places<Run, Ssh>,
}

impl Machines {
    /// Creates the executor. Connects to machines on which an earlier daemon may have left tasks, and ends those tasks,
    /// except those that are taken up at once.
    pub fn new(elsewhere: Elsewhere) -> Self {
        let Elsewhere { context, state, instance, remotes, is_durable } = elsewhere;
        let host = Host::new(context.reports.clone(), Purpose::Bridge);
        let places = Places::default();
        let origins = HashMap::new();
        let mut machines = Self { context, host, state, instance, is_durable, remotes, origins, places };
        let remotes = Arc::clone(&machines.remotes);
        for (name, ssh) in remotes.all().filter_map(|remote| remote.ssh()) {
            if machines.origin(name).is_remembered() {
                machines.serve(name, ssh);
            }
        }
        let is_known = |name: &str| remotes.get(name).is_some_and(|remote| remote.ssh().is_some());
        for (name, sessions) in sweep::unknown(&machines.state, &machines.context.socket, is_known) {
            let sessions = sessions.into_iter().collect::<Vec<_>>().join(" ");
            tracing::warn!(
                name,
                sessions,
                "an earlier daemon may have left tasks on a machine that is no longer configured: configure it \
                 again, or use `bgctl session end` there"
            );
        }
        machines
    }

    fn origin(&self, name: &str) -> Origin {
        Origin::new(&self.state, &self.context.socket, &self.instance, name)
    }

    fn serve(&mut self, name: &Arc<str>, ssh: &Ssh) {
        let origin = Arc::new(self.origin(name));
        let sweeps = origin.is_remembered();
        self.origins.insert(Arc::clone(name), Arc::clone(&origin));
        let (ssh, context, host, is_durable) =
            (ssh.clone(), self.context.clone(), self.host.clone(), self.is_durable);
        self.places
            .serve(name, |orders| Machine::new(ssh, origin, context, host, orders, is_durable).run(sweeps));
    }

    /// Starts serving a machine, at the first order for it. `None` if it is not configured.
    fn serve_by_name(&mut self, name: &str) -> Option<()> {
        if !self.places.is_served(name) {
            let remotes = Arc::clone(&self.remotes);
            let (name, ssh) = remotes.get(name).and_then(|remote| remote.ssh())?;
            self.serve(name, ssh);
        }
        Some(())
    }

    fn try_start(&mut self, start: &Start) -> Result<(), String> {
        let (Some(on), Begin::Process { env, place }) = (&start.spec.on, &start.begin) else {
            return Err("it has no machine to run on".to_owned());
        };
        let params = SubmitParams {
            priority: Some(place.priority).filter(|priority| *priority != 0),
            ..self.params((start.task, start.run), &start.spec, on, env)?
        };
        self.places.start(&on.name, start.task, Run::new(start.run, Arc::clone(&start.spec), params));
        Ok(())
    }

    /// Returns the parameters for submitting a run to its machine, and starts serving that machine.
    fn params(
        &mut self,
        run: (TaskId, u32),
        spec: &Spec,
        on: &On,
        env: &Env,
    ) -> Result<SubmitParams, String> {
        let remotes = Arc::clone(&self.remotes);
        let gone = || format!("the executor {} is no longer configured", on.name);
        let (_, ssh) = remotes.get(&on.name).and_then(|remote| remote.ssh()).ok_or_else(gone)?;
        self.serve_by_name(&on.name).ok_or_else(gone)?;
        let origin = self.origins.get(&on.name).ok_or_else(gone)?;
        Ok(params(run, spec, on, env, ssh, origin))
    }

    fn try_take_up(&mut self, known: &KnownRun) -> Result<(), Fact> {
        let Some(on) = &known.spec.on else { return Err(places::lost("it has no machine to run on")) };
        // The run may never have been submitted, and would now be submitted with another environment.
        if known.env.is_none() && known.elsewhere.id.is_none() && !on.chosen.env.is_empty() {
            return Err(places::no_environment());
        }
        let env = known.env.clone().unwrap_or_default();
        let params =
            self.params((known.task, known.run), &known.spec, on, &env).map_err(|why| places::lost(&why))?;
        self.places.start(&on.name, known.task, Run::again(known, params));
        Ok(())
    }
}

/// Returns the parameters for submitting a run. Folder, environment and file mode mask are those of `bgctl dial` on the
/// machine, except for values chosen for the task or configured for the machine.
fn params(
    (task, run): (TaskId, u32),
    spec: &Spec,
    on: &On,
    env: &Env,
    ssh: &Ssh,
    origin: &Origin,
) -> SubmitParams {
    let (argv, shell) = match &spec.work {
        Work::Argv(argv) => (Some(argv.to_vec()), None),
        Work::Shell(line) => (None, Some(line.clone())),
        Work::Agent(_) => (None, None),
    };
    let is_chosen = |name: &str| on.chosen.env.iter().any(|chosen| chosen == name);
    let configured = ssh.env.iter().filter(|(name, _)| !is_chosen(name));
    let configured = configured.map(|(name, value)| (name.as_str().into(), value.as_str().into()));
    let chosen = env.0.iter().filter(|(name, _)| is_chosen(name)).cloned();
    SubmitParams {
        argv,
        shell,
        description: spec.description.as_deref().map(str::to_owned),
        session: Some(origin.session.clone()),
        channel: Some(order::NO_CHANNEL.to_owned()),
        inherit: true,
        cwd: if on.chosen.cwd {
            Some(OsText::clone(&spec.cwd))
        } else {
            ssh.folder.as_deref().map(Into::into)
        },
        env: Some(configured.chain(chosen).collect()),
        stdin: spec.stdin.filter(|stdin| *stdin == Stdin::Pipe),
        split: spec.split,
        time_limit_ms: spec.time_limit_ms,
        tags: vec![origin.tag.clone()],
        // If the answer to a submit is lost, the submit is sent again, and must not start a second task.
        key: Some(run::key_of(task, run)),
        ready: spec.ready.as_deref().cloned(),
        ready_timeout_ms: spec.ready_timeout_ms,
        ..SubmitParams::default()
    }
}

impl Executor for Machines {
    fn start(&mut self, start: Start) {
        if let Err(why) = self.try_start(&start) {
            let failure = why.as_str().into();
            self.context.facts.send(start.task, start.run, Fact::StartFailed { failure });
        }
    }

    fn control(&mut self, task: TaskId, _run: u32, control: Control) -> Option<Done> {
        Some(self.places.control(task, control))
    }

    fn end(&mut self, task: TaskId, run: u32, signal: i32) {
        self.places.end(task, run, signal);
    }

    fn forget(&mut self, task: TaskId) {
        self.places.forget(task);
    }
}

impl Interactive for Machines {
    fn ask(&mut self, asked: Asked) {
        match asked.what {
            Ask::Write { .. } if asked.task.elsewhere.is_some() => {
                self.places.write(asked);
            }
            Ask::Write { .. } | Ask::Attach { .. } | Ask::Leave | Ask::Resize { .. } => asked.refuse(),
        }
    }

    fn check(&mut self, check: Check) {
        let Check::Place { remote, tell } = check else { return };
        // A machine that is no longer configured is not served; the check's `tell` is then dropped.
        let _ = self.serve_by_name(&remote.name);
        self.places.check(&remote.name, tell);
    }
}

impl Durable for Machines {
    fn adopt_elsewhere(&mut self, known: KnownRun) {
        if let Err(fact) = self.try_take_up(&known) {
            self.context.facts.send(known.task, known.run, fact);
        }
    }

    fn end_recorded(&mut self, task: TaskId, run: u32) {
        self.places.over(task, run);
    }

    fn report_recorded(&mut self, task: TaskId, run: u32) {
        self.places.written(task, run);
    }

    fn leave(&mut self, _left: &mut Spared) {
        self.places.leave();
    }
}

impl Upgradable for Machines {
    fn hold_starts(&mut self, holds: bool) {
        self.places.hold(holds);
    }

    /// Carries nothing: the state of the runs is in the core, and connections are made again.
    fn carry(&mut self, _named: &mut Named) -> Result<Carried, Obstacle> {
        Ok(Carried::Nothing)
    }

    fn activate(&mut self, _clients: &HashMap<u64, Arc<Client>>) {
        self.host.end_rest(&self.context);
    }
}

impl Lifecycle for Machines {
    fn configure(&mut self, _: &Arc<Agents>, remotes: &Arc<Remotes>) {
        self.remotes = Arc::clone(remotes);
        for (name, ssh) in remotes.all().filter_map(|remote| remote.ssh()) {
            self.places.configure(name, ssh.clone());
        }
    }

    fn attend(&mut self) -> LocalBoxFuture<'_, ()> {
        Box::pin(self.places.attend())
    }

    fn close(&mut self, close: Close) {
        self.places.close(close);
    }

    fn is_busy(&self) -> bool {
        self.places.is_busy()
    }
}
