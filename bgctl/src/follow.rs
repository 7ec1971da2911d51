//! Following an output: the kernel tells when the file grows, the daemon tells when the task has ended.
//! Nothing is polled in turns; the process sleeps until one of them speaks.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::Path;
use std::time::Instant;

use bgd_shared::client::{Client, ClientError};
use bgd_shared::event::News;
use bgd_shared::id::TaskId;
use bgd_shared::request::{
    BlockMode, BlockParams, EventsSubscribe, IdParams, SubscribeParams, TaskBlock, TaskGet,
};
use bgd_shared::task::Task;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};

use crate::copy::Copier;
use crate::failure::Failure;

/// Waits until a task is so, on a connection of its own, and returns it.
///
/// # Errors
/// The task or the daemon is gone.
pub fn wait_until(mut client: Client, id: TaskId, is_so: impl Fn(&Task) -> bool) -> Result<Task, Failure> {
    let subscribe = SubscribeParams { ids: vec![id.into()], ..SubscribeParams::default() };
    loop {
        client.call::<EventsSubscribe>(&subscribe)?;
        // It may have become so before the subscription was there.
        loop {
            let task = client.call::<TaskGet>(&IdParams { id: id.into() })?.task;
            if is_so(&task) {
                return Ok(task);
            }
            if let News::Gap(gap) = client.next_news()?.news
                && gap.ended
            {
                break;
            }
        }
    }
}

/// Copies what is there and what comes until the task has ended, and returns the task as it is then.
///
/// # Errors
/// The daemon went away (all that was written until then has been copied), or nobody reads standard
/// output any more.
pub fn follow(
    client: &mut Client,
    id: TaskId,
    path: &Path,
    copier: &mut Copier,
) -> Result<Option<Task>, Failure> {
    let changes = Changes::of(path).map_err(|error| Failure::io(path.display(), &error))?;
    let block = BlockParams {
        ids: vec![id.into()],
        timeout_ms: None,
        mode: BlockMode::All,
        ..BlockParams::default()
    };
    let call = client.send::<TaskBlock>(&block, &[])?;
    loop {
        copier.copy_growing()?;
        if wait(client, &changes, copier)? {
            let answer = match client.answered::<TaskBlock>(call) {
                // It has only said that it lives.
                Ok(None) => continue,
                Ok(Some(ended)) => Ok(ended),
                Err(error) => Err(error),
            };
            copier.copy_growing()?;
            return match answer {
                Ok(ended) => Ok(ended.tasks.into_iter().next()),
                Err(ClientError::Closed | ClientError::Io(_)) => Err(Failure::new(
                    crate::exit::Code::NO_DAEMON,
                    "connection_lost",
                    "the daemon went away; this is the output until then",
                )),
                Err(error) => Err(error.into()),
            };
        }
    }
}

/// How often a file is looked at that the kernel tells nothing of, in milliseconds.
pub const LOOK_EVERY_MS: u8 = 250;

/// What tells that a file has grown.
pub struct Changes(Option<Inotify>);

impl Changes {
    /// Watches this file.
    ///
    /// # Errors
    /// It is gone, or the system has no watch to give for another reason than that there are too many.
    pub fn of(path: &Path) -> io::Result<Self> {
        let watched = Inotify::init(InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK).and_then(|changes| {
            changes.add_watch(path, AddWatchFlags::IN_MODIFY)?;
            Ok(changes)
        });
        match watched {
            Ok(changes) => Ok(Self(Some(changes))),
            Err(error) if is_exhausted(error) => Ok(Self(None)),
            Err(error) => Err(error.into()),
        }
    }

    /// What can be read when the file has grown; nothing where it has to be looked.
    pub fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        self.0.as_ref().map(AsFd::as_fd)
    }

    /// Takes what was told, so that the next growth is told anew.
    ///
    /// # Errors
    /// What the system says.
    pub fn take(&self) -> Result<(), Failure> {
        match self.0.as_ref().map(Inotify::read_events) {
            None | Some(Ok(_) | Err(Errno::EAGAIN | Errno::EINTR)) => Ok(()),
            Some(Err(error)) => Err(Failure::io("can't wait", &error.into())),
        }
    }
}

/// Whether the system has no inotify instance or watch left for this user.
pub fn is_exhausted(error: Errno) -> bool {
    matches!(error, Errno::EMFILE | Errno::ENFILE | Errno::ENOSPC | Errno::ENOMEM)
}

/// Sleeps until the file may have changed (`false`) or the daemon has said something (`true`).
fn wait(client: &mut Client, changes: &Changes, copier: &Copier) -> Result<bool, Failure> {
    let until = client.until().map(left_until);
    let timeout = match changes.0 {
        Some(_) => until.unwrap_or(PollTimeout::NONE),
        None => until.unwrap_or(PollTimeout::MAX).min(PollTimeout::from(LOOK_EVERY_MS)),
    };
    let mut sources = vec![
        PollFd::new(client.as_fd(), PollFlags::POLLIN),
        // Without flags only a reader who went away is told.
        PollFd::new(copier.out(), PollFlags::empty()),
    ];
    sources.extend(changes.descriptor().map(|changes| PollFd::new(changes, PollFlags::POLLIN)));
    loop {
        match poll(&mut sources, timeout) {
            Ok(_) => break,
            Err(Errno::EINTR) => {}
            Err(error) => return Err(Failure::io("can't wait", &error.into())),
        }
    }
    let met = |place: usize| sources.get(place).and_then(PollFd::revents).unwrap_or(PollFlags::empty());
    let [daemon, reader, file] = [0, 1, 2].map(met);
    if reader.intersects(PollFlags::POLLERR | PollFlags::POLLHUP) {
        return Err(io::Error::from(io::ErrorKind::BrokenPipe).into());
    }
    if !file.is_empty() {
        changes.take()?;
    }
    if daemon.is_empty() {
        client.keep_up()?;
    }
    Ok(!daemon.is_empty())
}

/// How long to wait until then. Rounded up, so that it does not end too early.
pub fn left_until(until: Instant) -> PollTimeout {
    let left = until.saturating_duration_since(Instant::now());
    PollTimeout::try_from(left.as_millis().saturating_add(1)).unwrap_or(PollTimeout::MAX)
}
