//! The executor of tasks on other machines (R145): each is a task of the machine's daemon, reached through ssh. One
//! runtime task serves each machine. This module passes orders on; it decides nothing and makes no call itself.

mod bridge;
mod copy;
mod known;
mod link;
mod machine;
mod order;
pub mod program;
mod room;
mod run;
mod sweep;

use std::collections::HashMap;
use std::ffi::CString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use bgd_shared::id::TaskId;
use bgd_shared::request::{Stdin, SubmitParams};
use bgd_shared::text::{Env, OsText};

use self::known::KnownRuns;
use self::machine::Machine;
use self::run::Run;
use self::sweep::Origin;
use super::context::Context;
use super::elsewhere::places::{Elsewhere, Places};
use super::elsewhere::{Kind, New, NotConfigured};
use super::host::Host;
use super::task_variables;
use crate::core::{KnownRun, Placement, RunPlace, Spec, Work};
use crate::remotes::{Remote, Remotes, Ssh};

/// Machines that are reached through ssh.
#[derive(Debug)]
pub struct Machines {
    context: Context,
    host: Host,
    state: PathBuf,
    instance: String,
    is_durable: bool,
    /// The identity of this daemon on each served machine.
    origins: HashMap<Arc<str>, Arc<Origin>>,
    /// The runs of all machines.
    known: KnownRuns,
}

impl Machines {
    fn origin(&self, name: &str) -> Origin {
        Origin::new(&self.state, &self.context.socket, &self.instance, name)
    }

    /// Returns the parameters for submitting a run.
    fn params(
        &self,
        run: (TaskId, u32),
        spec: &Spec,
        on: &Placement,
        (env, place): (&Env, &RunPlace),
        ssh: Option<&Ssh>,
    ) -> Result<SubmitParams, NotConfigured> {
        let (ssh, origin) = ssh.zip(self.origins.get(&on.name)).ok_or(NotConfigured)?;
        let variables = task_variables::variables(place, &self.context.folder);
        Ok(params(run, spec, on, environment(on, env, ssh, &variables), ssh, origin))
    }
}

impl Kind for Machines {
    const NOUN: &'static str = "machine";

    type Run = Run;
    type Settings = Ssh;

    fn new(elsewhere: &Elsewhere, host: &Host) -> Self {
        let Elsewhere { context, state, instance, is_durable, .. } = elsewhere.clone();
        let (host, origins, known) = (host.clone(), HashMap::new(), KnownRuns::default());
        Self { context, host, state, instance, is_durable, origins, known }
    }

    fn settings(remote: &Remote) -> Option<(&Arc<str>, &Ssh)> {
        remote.ssh()
    }

    fn sweep(&mut self, places: &mut Places<Run, Ssh>, remotes: &Remotes) {
        for (name, ssh) in remotes.all().filter_map(|remote| remote.ssh()) {
            if self.origin(name).is_remembered() {
                self.serve(places, name, ssh);
            }
        }
        let is_known = |name: &str| remotes.get(name).is_some_and(|remote| remote.ssh().is_some());
        for (name, sessions) in sweep::unknown(&self.state, &self.context.socket, is_known) {
            tracing::warn!(
                name,
                sessions,
                "an earlier daemon may have left tasks on a machine that is no longer configured: configure it \
                 again, or use `bgctl session end` there"
            );
        }
    }

    fn serve(&mut self, places: &mut Places<Run, Ssh>, name: &Arc<str>, ssh: &Ssh) {
        let origin = Arc::new(self.origin(name));
        let sweeps = origin.is_remembered();
        self.origins.insert(Arc::clone(name), Arc::clone(&origin));
        let (ssh, context, host, is_durable) =
            (ssh.clone(), self.context.clone(), self.host.clone(), self.is_durable);
        let known = self.known.clone();
        places.serve(name, |orders| {
            Machine::new(ssh, origin, context, host, orders, is_durable, known).run(sweeps)
        });
    }

    fn run(&self, new: New<'_>, ssh: Option<&Ssh>) -> Result<Run, NotConfigured> {
        let New { task, number, spec, on, env, place } = new;
        let params = SubmitParams {
            priority: Some(place.priority).filter(|priority| *priority != 0),
            ..self.params((task, number), spec, on, (&env, &place), ssh)?
        };
        self.known.add(task, number);
        Ok(Run::new(number, Arc::clone(spec), params))
    }

    fn run_again(&self, known: &KnownRun, on: &Placement, ssh: Option<&Ssh>) -> Result<Run, NotConfigured> {
        let env = known.env.clone().unwrap_or_default();
        let params = self.params((known.task, known.run), &known.spec, on, (&env, &known.place), ssh)?;
        self.known.add(known.task, known.run);
        Ok(Run::restore(Instant::now(), known, params))
    }

    fn needs_env(on: &Placement) -> bool {
        !on.chosen.env.is_empty()
    }

    fn accepts_input() -> bool {
        true
    }

    fn keeps_orders() -> bool {
        true
    }
}

/// Returns the variables that are set for a run: those configured for the machine, those chosen for the task, and those
/// that describe its place among the tasks of this daemon, except for paths on this machine.
fn environment(on: &Placement, env: &Env, ssh: &Ssh, place: &[CString]) -> Env {
    let is_chosen = |name: &str| on.chosen.env.iter().any(|chosen| chosen == name);
    let configured = ssh.env.iter().filter(|(name, _)| !is_chosen(name));
    let configured = configured.map(|(name, value)| (name.as_str().into(), value.as_str().into()));
    let chosen = env.0.iter().filter(|(name, _)| is_chosen(name)).cloned();
    let place = place.iter().filter_map(|variable| variable.to_str().ok()?.split_once('='));
    let place = place.filter(|(name, _)| !task_variables::is_path(name));
    let others = configured.chain(chosen).filter(|(name, _)| !task_variables::is_variable(name));
    others.chain(place.map(|(name, value)| (name.into(), value.into()))).collect()
}

/// Returns the parameters for submitting a run. Folder, environment and file mode mask are those of `bgctl dial` on the
/// machine, except for values chosen for the task or configured for the machine.
fn params(
    (task, run): (TaskId, u32),
    spec: &Spec,
    on: &Placement,
    env: Env,
    ssh: &Ssh,
    origin: &Origin,
) -> SubmitParams {
    let (argv, shell) = match &spec.work {
        Work::Argv(argv) => (Some(argv.to_vec()), None),
        Work::Shell(line) => (None, Some(line.clone())),
        Work::Agent(_) => (None, None),
    };
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
        env: Some(env),
        stdin: spec.stdin.filter(|stdin| stdin.is_pipe()).map(|_| Stdin::Pipe),
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
