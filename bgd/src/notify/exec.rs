//! The channel `exec`: a user-defined command that receives each notice as one line of JSON on standard input.
//!
//! Its processes are helpers of the dispatcher's executor: the whole process tree is ended when the command exits, when
//! it times out, and when the daemon ends.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io;
use std::rc::Rc;
use std::time::Duration;

use bgd_shared::dirs;
use bgd_shared::notice::Notice;
use bgd_shared::show;
use bgd_shared::task::Exit;
use bgd_shared::text::{Env, OsText};
use futures_util::future::{FusedFuture as _, FutureExt as _, LocalBoxFuture};
use serde_json::value::RawValue;
use tokio::net::unix::pipe::Receiver;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::adapter::{Adapter, Notification};
use super::hook::Hook;
use super::secrets::Secrets;
use super::undelivered::Undelivered;
use crate::channels::{ChannelKind, Secret};
use crate::exec::context::Context;
use crate::exec::host::{Host, Launch, Leased, PipeEnd, Purpose, how_ended, pipe};
use crate::exec::input::feed::Feed;
use crate::exec::processes::members::{AGENT_MARK, BRIDGE_MARK, HOOK_MARK, INSTANCE_MARK, TASK_MARK};
use crate::os::search_path;

/// How long to wait for output left in the pipe once every writer has ended.
const ON_THE_WAY: Duration = Duration::from_millis(200);

/// Variables in the daemon's own environment that describe the process that started it. They do not apply to the
/// command.
const STARTER_VARIABLES: [&str; 6] =
    [TASK_MARK, AGENT_MARK, HOOK_MARK, BRIDGE_MARK, INSTANCE_MARK, "BGD_SESSION"];

/// Where the program of an `exec` channel is looked for.
#[derive(Debug)]
pub struct ExecProgram {
    name: String,
    /// The `PATH` of the command.
    path: Option<OsText>,
}

impl ExecProgram {
    /// Returns the program of a channel; `None` if it runs none.
    pub fn of(kind: &ChannelKind) -> Option<Self> {
        let ChannelKind::Exec { command, env, .. } = kind else { return None };
        let configured = env.get("PATH").map(|Secret(path)| OsText::from(path.as_str()));
        let path = configured.or_else(|| std::env::var_os("PATH").map(OsText::from));
        Some(Self { name: command.first()?.clone(), path })
    }

    /// Returns why it can't be started, as far as the files show. Blocks as long as a disk does.
    pub fn problem(&self) -> Option<String> {
        let problem = search_path::problem(&self.name, self.path.as_ref(), &dirs::home())?;
        // Equal to the error of a delivery that fails for the same reason.
        Some(show::plain(&problem).into_owned())
    }
}

/// The adapter that runs a command for each notice.
pub struct Exec {
    host: Host,
    command: Vec<OsText>,
    /// The daemon's environment, the configured variables, and the path of the daemon's socket.
    env: Env,
    /// The configured values, which are hidden in the command's output.
    secrets: Secrets,
    timeout: Duration,
    /// A start that timed out and is still pending.
    hung: RefCell<Option<JoinHandle<()>>>,
}

impl Exec {
    pub fn new(
        command: &[String],
        env: &BTreeMap<String, Secret>,
        timeout: Duration,
        context: &Context,
    ) -> Self {
        let inherited = Env::of_this_process();
        let mut all: BTreeMap<Box<str>, OsText> =
            inherited.0.iter().filter(|(name, _)| !STARTER_VARIABLES.contains(&&**name)).cloned().collect();
        all.extend(env.iter().map(|(name, value)| (name.as_str().into(), value.0.as_str().into())));
        all.insert("BGD_SOCKET".into(), context.socket.as_os_str().into());
        Self {
            host: Host::new(context.reports.clone(), Purpose::Hook),
            command: command.iter().map(|word| word.as_str().into()).collect(),
            env: all.into_iter().collect(),
            secrets: Secrets::new(env.values().map(|Secret(value)| value.clone())),
            timeout,
            hung: RefCell::default(),
        }
    }

    /// Returns the command's environment for a notice.
    fn environment(&self, notice: &Notice) -> Env {
        let own = [("BGD_NOTICE_KEY", &*notice.key), ("BGD_NOTICE_KIND", notice.kind.as_str())];
        let others = self.env.0.iter().filter(|(name, _)| own.iter().all(|(own, _)| **name != **own));
        others.cloned().chain(own.map(|(name, value)| (name.into(), value.into()))).collect()
    }

    /// Runs the command for a notice, or follows the one that the program before the upgrade started for it.
    async fn run(&self, notification: &Notification) -> Result<(), Undelivered> {
        let progress = &notification.progress;
        let (hook, output) = match progress.take_left() {
            Some(left) => left.resume().map_err(|error| {
                Undelivered(format!("its command was lost in an upgrade of the daemon: {error}"))
            })?,
            None => progress.start(self.begin(&notification.notice)).await?,
        };
        let hook = Rc::new(hook);
        progress.show(Some(Rc::clone(&hook)));
        let ended = self.follow(&hook, output).await;
        progress.show(None);
        let name = self.name();
        let words = hook.words.borrow().output_suffix(&self.secrets);
        match ended {
            Some(Exit::Code(0)) => Ok(()),
            Some(exit) => Err(Undelivered(format!("{name} {}{words}", how_ended(&exit)))),
            None => {
                let timeout = humantime::format_duration(self.timeout);
                Err(Undelivered(format!("{name} was ended: it ran longer than {timeout}{words}")))
            }
        }
    }

    fn name(&self) -> String {
        self.command.first().map(|word| word.to_string_lossy().into_owned()).unwrap_or_default()
    }

    /// Starts the command and begins to write the notice to its standard input. Returns the command and its output.
    async fn begin(&self, notice: &Notice) -> Result<(Hook, Option<Rc<Receiver>>), Undelivered> {
        let name = self.name();
        let unmade = |error: io::Error| Undelivered(format!("{name}: can't create pipes: {error}"));
        let (their_in, stdin) = pipe(PipeEnd::Reading).map_err(unmade)?;
        let (their_out, output) = pipe(PipeEnd::Writing).map_err(unmade)?;
        let their_err = their_out.try_clone().map_err(unmade)?;
        let output = Rc::new(Receiver::from_owned_fd(output).map_err(unmade)?);
        // Standard output and error combined, in their true order.
        let streams = [their_in, their_out, their_err];
        let launch = Launch {
            cwd: dirs::home().into_os_string().into(),
            ..Launch::of_daemon(self.command.clone(), self.environment(notice), streams)
        };
        let process = self.start(launch).await?;
        let mut line = serde_json::to_vec(notice).unwrap_or_default();
        line.push(b'\n');
        let hook = Hook {
            process,
            feed: Feed::begin(stdin, line).map_err(unmade)?,
            output: Rc::downgrade(&output),
            words: RefCell::default(),
            deadline: Instant::now().checked_add(self.timeout).unwrap_or_else(Instant::now),
        };
        Ok((hook, Some(output)))
    }

    /// Starts the command's process. Its folder or program may be on a file system that hangs. As each start occupies
    /// one of the threads that start all processes, a start that timed out is awaited before the next one; its process
    /// is ended as soon as it does start.
    async fn start(&self, launch: Launch) -> Result<Leased, Undelivered> {
        let late = || {
            let (name, timeout) = (self.name(), humantime::format_duration(self.timeout));
            Undelivered(format!("{name} could not be started within {timeout}"))
        };
        let deadline = Instant::now().checked_add(self.timeout).unwrap_or_else(Instant::now);
        let mut earlier = self.hung.take();
        if let Some(start) = &mut earlier
            && tokio::time::timeout_at(deadline, start).await.is_err()
        {
            self.hung.replace(earlier);
            return Err(late());
        }
        let host = self.host.clone();
        let start = async move { host.start(launch).await.map(Leased).map_err(String::from) };
        // It goes on if this delivery is given up, so that the process is ended even then.
        let mut start = tokio::task::spawn_local(start);
        if let Ok(started) = tokio::time::timeout_at(deadline, &mut start).await {
            return started.unwrap_or_else(|lost| Err(lost.to_string())).map_err(Undelivered);
        }
        // Without its notice and its deadline the command must not run.
        self.hung.replace(Some(tokio::task::spawn_local(async move { drop(start.await) })));
        Err(late())
    }

    /// Reads the command's output until it has ended. Returns its exit status; `None` if it timed out and was ended.
    async fn follow(&self, hook: &Hook, output: Option<Rc<Receiver>>) -> Option<Exit> {
        let reading = async {
            if let Some(output) = output {
                hook.read(&output).await;
            }
        };
        let reading = reading.fuse();
        tokio::pin!(reading);
        let ending = hook.end();
        tokio::pin!(ending);
        let ended = tokio::select! {
            biased;
            ended = &mut ending => ended,
            // The command has closed its output, but may still run.
            () = &mut reading => (&mut ending).await,
        };
        if !reading.is_terminated() {
            // No writer is left, but the pipe may still hold output.
            let _ = tokio::time::timeout(ON_THE_WAY, reading).await;
        }
        ended
    }
}

impl Adapter for Exec {
    fn notify<'a>(&'a self, notification: &'a Notification) -> LocalBoxFuture<'a, Result<(), Undelivered>> {
        Box::pin(self.run(notification))
    }

    fn state(&self) -> Option<Box<RawValue>> {
        // The commands are carried with their notices.
        let Self { host: _, command: _, env: _, secrets: _, timeout: _, hung: _ } = self;
        None
    }

    fn resume(&self, _: &RawValue) {}
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exec::host::{Alive, SIGKILL};
    use crate::exec::messages::{Report, reports};

    #[test]
    fn program_is_looked_for_in_path_of_its_command() {
        let of = |name: &str, env: &[(&str, &str)]| {
            let env = env.iter().map(|(name, value)| ((*name).to_owned(), Secret((*value).to_owned())));
            let (command, timeout) = (vec![name.to_owned()], Duration::from_secs(1));
            ExecProgram::of(&ChannelKind::Exec { command, env: env.collect(), timeout }).unwrap().problem()
        };
        assert_eq!(of("sh", &[]), None, "the daemon's");
        let missing = of("sh", &[("PATH", "/nowhere")]);
        assert_eq!(missing.as_deref(), Some("sh: command not found in PATH"));
        assert_eq!(of("/bin/sh", &[("PATH", "/nowhere")]), None);
        assert!(ExecProgram::of(&ChannelKind::Tty).is_none());
    }

    #[test]
    fn command_that_starts_too_late_is_ended_without_another_notice() {
        let (reports, mut received) = reports();
        let exec = Exec {
            host: Host::new(reports, Purpose::Hook),
            command: vec!["a-command".into()],
            env: Env::default(),
            secrets: Secrets::new(std::iter::empty()),
            timeout: Duration::from_millis(1),
            hung: RefCell::default(),
        };
        let streams = [(); 3].map(|()| pipe(PipeEnd::Reading).unwrap().0);
        let launch = Launch::of_daemon(exec.command.clone(), Env::default(), streams);
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        tokio::task::LocalSet::new().block_on(&runtime, async {
            let Err(Undelivered(why)) = exec.start(launch).await else { panic!("it has not started") };
            assert_eq!(why, "a-command could not be started within 1ms");
            let Some(Report::StartHelper { order, mut watcher, .. }) = received.recv().await else {
                panic!("a helper is started")
            };
            watcher.begun(Ok(Alive { pid: 1, handle: None }));
            let ended = tokio::time::timeout(Duration::from_mins(1), received.recv()).await;
            let Ok(Some(Report::EndHelper { process, signal })) = ended else { panic!("it is ended") };
            assert_eq!((process, signal), (order.task, SIGKILL));
        });
    }
}
