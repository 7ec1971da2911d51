//! Checks whether a task's process is ready (R110) and reports that, by events where they exist. It decides nothing. A
//! check ends with its [`Job`], which is kept for as long as the leader lives.

mod file;
mod line;
mod looks;
mod net;
mod notify;
mod pauses;

use std::io;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bgd_shared::id::TaskId;
use bgd_shared::ready::Ready;
use bgd_shared::text::OsText;
use futures_util::FutureExt as _;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until, timeout_at};

use self::line::Streams;
pub use self::looks::LastLook;
use self::looks::{LastLookRequest, Looks};
use super::awaited::{Awaited, NotifySocket};
use super::context::Context;
use super::output::OutputFiles;
use super::threads::job::Job;
use super::tree::Tree;
use crate::carry::{Fd, ReceivedFds};
use crate::core::Fact;
use crate::os::clock::Stamp;

/// How long a check that another program began may take to look once although its deadline has passed: what it looks
/// at may be on a disk that hangs.
const LOOK_PATIENCE: Duration = Duration::from_mins(1);

/// How late a deadline is noticed only by a daemon that stood still.
const STANDSTILL: Duration = Duration::from_secs(1);

/// How long to wait for a look after a standstill. Where nothing has changed, no look may follow.
const LAST_LOOK: Duration = Duration::from_secs(5);

/// A check of whether a process is ready. Dropping it ends it.
#[derive(Debug)]
pub struct Probe {
    awaited: Arc<Awaited>,
    deadline: Option<Instant>,
    /// Whether the outcome was reported.
    is_reported: Arc<AtomicBool>,
    _job: Job,
}

/// The state of a check, for the program that takes over, which starts again at the process's first output.
#[derive(Debug, Serialize, Deserialize)]
pub struct ProbeState {
    ready: Ready,
    deadline: Option<Stamp>,
    #[serde(rename = "is_told")]
    is_reported: bool,
    folder: Arc<OsText>,
    sizes: [u64; 2],
    socket: Option<(OsText, Fd)>,
}

impl ProbeState {
    /// Creates the check of a process that is about to start. `name` names its socket.
    pub fn of_new<'a>(awaited: &'a Awaited, name: impl FnOnce(&'a UnixDatagram) -> Fd) -> Self {
        let Awaited { ready, timeout, folder, sizes, socket } = awaited;
        Self {
            ready: ready.clone(),
            deadline: timeout.map(|timeout| Stamp::of(std::time::Instant::now() + timeout)),
            is_reported: false,
            folder: Arc::clone(folder),
            sizes: *sizes,
            socket: socket.as_ref().map(|socket| (socket.path().as_os_str().into(), name(&socket.socket))),
        }
    }

    /// Returns the path of its socket, if it has one.
    pub fn notify_socket(&self) -> Option<&Path> {
        self.socket.as_ref().map(|(path, _)| Path::new(path.as_os_str()))
    }

    /// Notes that the outcome was reported.
    pub fn note_reported(&mut self) {
        self.is_reported = true;
    }
}

/// Waits until a process is ready or the timeout expires, and reports the outcome to the dispatcher. The second value
/// asks for a last look when the process has ended.
pub fn watch(awaited: Awaited, run: u32, tree: Tree, context: Context) -> (Probe, LastLook) {
    let deadline = awaited.timeout.map(|timeout| Instant::now() + timeout);
    Probe::start(awaited, deadline, Before::Nothing, (run, tree, context))
}

/// What another program has done of a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Before {
    Nothing,
    Begun,
    /// It has reported the outcome.
    Reported,
}

impl Probe {
    fn start(
        awaited: Awaited,
        deadline: Option<Instant>,
        before: Before,
        (run, tree, context): (u32, Tree, Context),
    ) -> (Self, LastLook) {
        let (last_look, mut ended) = LastLook::new();
        let was_reported = before == Before::Reported;
        let (awaited, is_reported) = (Arc::new(awaited), Arc::new(AtomicBool::new(was_reported)));
        let (about, reported) = (Arc::clone(&awaited), Arc::clone(&is_reported));
        let job = Job::start(async move {
            if !was_reported {
                let looks = Looks::default();
                let is_ready = until_ready(&about, &tree, &context, &looks);
                let is_late = until_late(deadline, before, &looks);
                let (fact, requester) = outcome(is_ready, is_late, &mut ended, &about.ready, &looks).await;
                // In this order, as the dispatcher may receive the report twice, but must not miss it.
                if let Some(fact) = fact {
                    context.facts.send(tree.task, run, fact);
                    reported.store(true, Ordering::Relaxed);
                }
                // Not before the report, which thus precedes that of the end.
                drop(requester);
            }
            drop(ended);
            if let Some(socket) = &about.socket {
                notify::drain(socket).await;
            }
        });
        (Self { awaited, deadline, is_reported, _job: job }, last_look)
    }

    /// Returns the socket on which the process reports that it is ready, if it has one.
    pub fn socket(&self) -> Option<&UnixDatagram> {
        self.awaited.socket.as_ref().map(|socket| &socket.socket)
    }

    /// Sets whether another program goes on with the check, so that the socket's file must stay.
    pub fn set_left(&self, is_left: bool) {
        if let Some(socket) = &self.awaited.socket {
            socket.set_left(is_left);
        }
    }

    /// Returns the state, with this name for the socket.
    pub fn state(&self, name: Option<Fd>) -> ProbeState {
        let Self { awaited, deadline, is_reported, _job } = self;
        let Awaited { ready, timeout: _, folder, sizes, socket } = &**awaited;
        let socket = socket.as_ref().and_then(|socket| Some((socket.path().as_os_str().into(), name?)));
        ProbeState {
            ready: ready.clone(),
            deadline: deadline.map(|deadline| Stamp::of(deadline.into_std())),
            is_reported: is_reported.load(Ordering::Relaxed),
            folder: Arc::clone(folder),
            sizes: *sizes,
            socket,
        }
    }

    /// Resumes the check of another program, which may go on with it until [`Self::set_left`] says otherwise.
    ///
    /// # Errors
    /// Its socket did not arrive.
    pub fn restore(
        state: ProbeState,
        received: &mut ReceivedFds,
        (run, tree, context): (u32, Tree, Context),
    ) -> io::Result<(Self, LastLook)> {
        let ProbeState { ready, deadline, is_reported, folder, sizes, socket } = state;
        let socket = socket.map(|(path, fd)| {
            Ok::<_, io::Error>(NotifySocket::restore(path.as_os_str().into(), received.take(fd)?))
        });
        let awaited = Awaited { ready, timeout: None, folder, sizes, socket: socket.transpose()? };
        let deadline = deadline.map(|deadline| Instant::from_std(deadline.instant()));
        let before = if is_reported { Before::Reported } else { Before::Begun };
        Ok(Self::start(awaited, deadline, before, (run, tree, context)))
    }
}

/// Waits for the deadline, and then for a look if nobody has looked for a time: the process may have become ready in
/// time. That is so after the check was taken over from another program, and after the daemon stood still.
async fn until_late(deadline: Option<Instant>, before: Before, looks: &Looks) {
    let Some(deadline) = deadline else { return std::future::pending().await };
    until_passed(deadline, before, looks).await;
    if looks.is_over() {
        std::future::pending::<()>().await;
    }
}

async fn until_passed(deadline: Instant, before: Before, looks: &Looks) {
    let begin = Instant::now();
    let latest = deadline.max(begin + LOOK_PATIENCE);
    sleep_until(deadline).await;
    let now = Instant::now();
    let stood_still = now > deadline.max(begin) + STANDSTILL;
    // A look before the standstill says nothing about it.
    let has_looked = stood_still && looks.until_vain().now_or_never().is_some();
    let until = if before == Before::Begun && !has_looked {
        latest
    } else if stood_still {
        now + LAST_LOOK
    } else {
        return;
    };
    let _ = timeout_at(until, looks.until_vain()).await;
}

/// Waits for the outcome of a check: no fact if the process ends first. Also returns what the requester of the last look
/// waits for: it is to be dropped once the fact is reported.
async fn outcome(
    is_ready: impl Future<Output = ()>,
    is_late: impl Future<Output = ()>,
    ended: &mut LastLookRequest,
    ready: &Ready,
    looks: &Looks,
) -> (Option<Fact>, Option<oneshot::Sender<()>>) {
    let mut requester = None;
    let fact = tokio::select! {
        biased;
        () = is_ready => Some(Fact::Ready),
        () = is_late => Some(Fact::NotReady),
        () = until_ended(ended, &mut requester, ready, looks) => None,
    };
    (fact, requester)
}

/// Waits until the process has ended and a look after that was in vain. Notes who requested that look, and waits.
async fn until_ended(
    ended: &mut LastLookRequest,
    requester: &mut Option<oneshot::Sender<()>>,
    ready: &Ready,
    looks: &Looks,
) {
    match ended.await {
        Ok(done) => *requester = Some(done),
        Err(_) => return std::future::pending().await,
    }
    match ready {
        Ready::Line(_) | Ready::File(_) | Ready::Notify => looks.look_once_more().await,
        // Nothing answers for a process that has ended.
        Ready::Tcp { .. } | Ready::Http(_) => {}
    }
}

/// Waits for a line in the output of a run on another machine, which shares its files with this one, or until the
/// timeout expires, and reports the outcome to the dispatcher. `sizes` are the offsets at which the output of the run
/// begins in its files.
pub fn watch_line(
    pattern: &str,
    (files, sizes): (OutputFiles, [u64; 2]),
    timeout: Option<Duration>,
    (task, run): (TaskId, u32),
    context: Context,
) -> LineWatch {
    let ready = Ready::Line(pattern.into());
    let pattern = Box::<str>::from(pattern);
    let (last_look, mut ended) = LastLook::new();
    let looks = Arc::new(Looks::default());
    let of_watch = Arc::clone(&looks);
    let job = Job::start(async move {
        let streams = Streams::new(&files, sizes);
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        let is_ready = line::until_found_from_afar(&pattern, streams, &context.workers, &looks);
        let is_late = until_late(deadline, Before::Nothing, &looks);
        let (fact, requester) = outcome(is_ready, is_late, &mut ended, &ready, &looks).await;
        if let Some(fact) = fact {
            context.facts.send(task, run, fact);
        }
        // Not before the report, which thus precedes that of the end.
        drop(requester);
    });
    LineWatch { _job: job, looks: of_watch, last_look }
}

/// A watch for a line in the output of a run elsewhere. Dropping it ends it.
#[derive(Debug)]
pub struct LineWatch {
    _job: Job,
    looks: Arc<Looks>,
    last_look: LastLook,
}

impl LineWatch {
    /// Notes that the run has ended, though some of its output may still have to come here: it can't be late any more.
    pub fn stop_clock(&self) {
        self.looks.stop_clock();
    }

    /// Looks once more, as the run has ended and its output is complete.
    pub async fn finish(self) {
        self.last_look.take().await;
    }
}

/// Waits until a process is ready. Reports each look in vain to `looks`.
async fn until_ready(awaited: &Awaited, tree: &Tree, context: &Context, looks: &Looks) {
    match &awaited.ready {
        Ready::Line(pattern) => {
            let streams = Streams::new(&tree.files, awaited.sizes);
            line::until_found(pattern, streams, &context.workers, looks).await;
        }
        Ready::Tcp { host, port } => net::until_connected(host.as_deref(), *port, looks).await,
        Ready::Http(url) => net::until_answered(url, looks).await,
        Ready::File(path) => {
            let folder = Path::new(awaited.folder.as_os_str());
            file::until_there(folder.join(&**path), &context.workers, looks).await;
        }
        Ready::Notify => {
            if let Some(socket) = &awaited.socket {
                notify::until_notified(socket, tree, &context.workers, looks).await;
            } else {
                looks.give_up::<()>().await;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::time::timeout;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn r110_ended_run_is_not_late_while_its_output_is_fetched() {
        let looks = Looks::default();
        let deadline = Some(Instant::now() + Duration::from_secs(1));
        until_late(deadline, Before::Nothing, &looks).await;
        looks.stop_clock();
        let late = until_late(deadline, Before::Nothing, &looks);
        assert!(timeout(Duration::from_mins(10), late).await.is_err());
    }
}
