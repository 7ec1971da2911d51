//! The executor of tasks on other machines (R145): each is a task of the daemon there, reached through ssh. One runtime
//! task looks after each machine. This module passes orders on; it decides nothing and makes no call itself.

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
use bgd_shared::request::{ExecutorCheck, Stdin, SubmitParams};
use bgd_shared::text::{Env, OsText};
use futures_util::future::LocalBoxFuture;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinSet;

use self::machine::Machine;
use self::order::Order;
use self::run::Run;
use self::sweep::Origin;
use super::context::Context;
use super::executor::{Ask, Asked, Close, Done, Executor, Start};
use super::host::{Host, Purpose};
use crate::core::{Begin, Control, Fact, On, Work};
use crate::remotes::{Remote, RemoteSettings, Remotes, Ssh};

/// The tasks there notify nobody: their notices come from here.
const NO_CHANNEL: &str = "none";

/// The executor of tasks on other machines.
#[derive(Debug)]
pub struct Machines {
    context: Context,
    host: Host,
    state: PathBuf,
    instance: String,
    remotes: Arc<Remotes>,
    /// Where the orders of each machine go.
    orders: HashMap<Arc<str>, mpsc::UnboundedSender<Order>>,
    served: JoinSet<()>,
    /// The machine of each task.
    tasks: HashMap<TaskId, Arc<str>>,
}

impl Machines {
    /// Creates the executor. `state` is the state folder, `instance` names this run of the daemon. Machines on which an
    /// earlier daemon may have left tasks are connected to, and those tasks ended.
    pub fn new(context: Context, state: PathBuf, instance: String, remotes: Arc<Remotes>) -> Self {
        let host = Host::new(context.reports.clone(), Purpose::Bridge);
        let mut machines = Self {
            context,
            host,
            state,
            instance,
            remotes,
            orders: HashMap::new(),
            served: JoinSet::new(),
            tasks: HashMap::new(),
        };
        let remotes = Arc::clone(&machines.remotes);
        for (name, ssh) in remotes.all().filter_map(|remote| ssh_of(remote)) {
            if machines.origin(name).is_remembered() {
                machines.serve(name, ssh, true);
            }
        }
        let is_known = |name: &str| remotes.get(name).is_some_and(|remote| ssh_of(remote).is_some());
        for (name, sessions) in sweep::unknown(&machines.state, &machines.context.socket, is_known) {
            let sessions = sessions.into_iter().collect::<Vec<_>>().join(" ");
            tracing::warn!(
                name,
                sessions,
                "an earlier daemon may have left tasks on a machine that is not configured any more: configure it \
                 again, or use `bgctl session end` there"
            );
        }
        machines
    }

    fn origin(&self, name: &str) -> Origin {
        Origin::new(&self.state, &self.context.socket, &self.instance, name)
    }

    fn serve(&mut self, name: &Arc<str>, ssh: &Ssh, sweeps: bool) -> &mpsc::UnboundedSender<Order> {
        let (sender, orders) = mpsc::unbounded_channel();
        let origin = Arc::new(self.origin(name));
        let machine = Machine::new(ssh.clone(), origin, self.context.clone(), self.host.clone(), orders);
        self.served.spawn(machine.run(sweeps));
        self.orders.entry(Arc::clone(name)).insert_entry(sender).into_mut()
    }

    /// Returns where the orders of a machine go. It is served from the first order on.
    fn machine(&mut self, name: &str) -> Option<&mpsc::UnboundedSender<Order>> {
        if self.orders.contains_key(name) {
            return self.orders.get(name);
        }
        let remotes = Arc::clone(&self.remotes);
        let (name, ssh) = remotes.get(name).and_then(|remote| ssh_of(remote))?;
        Some(self.serve(name, ssh, false))
    }

    fn order(&self, task: TaskId, order: Order) {
        if let Some(machine) = self.tasks.get(&task).and_then(|name| self.orders.get(name)) {
            // It lives as long as this executor.
            let _ = machine.send(order);
        }
    }

    fn try_start(&mut self, start: &Start) -> Result<(), String> {
        let (Some(on), Begin::Process { env, .. }) = (&start.spec.on, &start.begin) else {
            return Err("it has no machine to run on".to_owned());
        };
        let remotes = Arc::clone(&self.remotes);
        let gone = || format!("the executor {} is no longer configured", on.name);
        let (_, ssh) = remotes.get(&on.name).and_then(|remote| ssh_of(remote)).ok_or_else(gone)?;
        let origin = self.origin(&on.name);
        let params = params(start, on, env, ssh, &origin);
        let run = Box::new(Run::new(start.run, Arc::clone(&start.spec), params));
        let task = start.task;
        let machine = self.machine(&on.name).ok_or_else(gone)?;
        let _ = machine.send(Order::Start { task, run });
        self.tasks.insert(task, Arc::clone(&on.name));
        Ok(())
    }
}

fn ssh_of(remote: &Arc<Remote>) -> Option<(&Arc<str>, &Ssh)> {
    match &remote.settings {
        RemoteSettings::Ssh(ssh) => Some((&remote.name, ssh)),
        RemoteSettings::Slurm(_) => None,
    }
}

/// Returns what a run is submitted with there. Folder, environment and file mode mask are those of `bgctl dial` there,
/// except for what was chosen for the task or configured for the machine.
fn params(start: &Start, on: &On, env: &Env, ssh: &Ssh, origin: &Origin) -> SubmitParams {
    let spec = &*start.spec;
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
        channel: Some(NO_CHANNEL.to_owned()),
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
        // A submit whose answer was lost is sent again, and must not run twice.
        key: Some(format!("{}:{}", start.task, start.run)),
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
        let (done, is_done) = oneshot::channel();
        self.order(task, Order::Control { task, control, done });
        Some(is_done)
    }

    fn end(&mut self, task: TaskId, run: u32, signal: i32) {
        self.order(task, Order::End { task, run, signal });
    }

    fn forget(&mut self, task: TaskId) {
        self.order(task, Order::Forget { task });
        self.tasks.remove(&task);
    }

    fn ask(&mut self, asked: Asked) {
        match asked.what {
            Ask::Write { .. } if asked.task.elsewhere.is_some() => {
                self.order(asked.task.id, Order::Write { asked: Box::new(asked) });
            }
            Ask::Write { .. } | Ask::Attach { .. } | Ask::Leave | Ask::Resize { .. } => asked.refuse(),
        }
    }

    fn check(&mut self, remote: &Arc<Remote>) -> oneshot::Receiver<ExecutorCheck> {
        let (tell, result) = oneshot::channel();
        if let Some(machine) = self.machine(&remote.name) {
            let _ = machine.send(Order::Check { tell });
        }
        result
    }

    fn configure(&mut self, remotes: &Arc<Remotes>) {
        self.remotes = Arc::clone(remotes);
        for (name, ssh) in remotes.all().filter_map(|remote| ssh_of(remote)) {
            if let Some(machine) = self.orders.get(name) {
                let _ = machine.send(Order::Configure(Box::new(ssh.clone())));
            }
        }
    }

    fn attend(&mut self) -> LocalBoxFuture<'_, ()> {
        Box::pin(async {
            match self.served.join_next().await {
                Some(_) => {}
                None => std::future::pending().await,
            }
        })
    }

    fn close(&mut self, close: Close) {
        for machine in self.orders.values() {
            let _ = machine.send(Order::Close);
        }
        if close == Close::Forced {
            self.served.abort_all();
        }
    }

    fn is_busy(&self) -> bool {
        !self.served.is_empty()
    }
}
