//! Checks whether a task's process is ready (R110) and reports that, by events where they exist. It decides nothing.
//! A check ends with its [`Job`], which is kept for as long as the leader lives.

mod file;
mod line;
mod net;
mod notify;

use std::time::Duration;

use bgd_shared::id::TaskId;
use bgd_shared::ready::Ready;

use self::line::Streams;
use super::awaited::Awaited;
use super::context::Context;
use super::job::Job;
use super::output::OutputFiles;
use super::tree::Tree;
use crate::core::Fact;

/// Waits until a process is ready or its time is over, and reports the outcome to the dispatcher.
pub fn watch(awaited: Awaited, run: u32, tree: Tree, context: Context) -> Job {
    Job::start(async move {
        let until_ready = until_ready(&awaited, &tree, &context);
        let is_ready = if let Some(timeout) = awaited.timeout {
            tokio::time::timeout(timeout, until_ready).await.is_ok()
        } else {
            until_ready.await;
            true
        };
        context.facts.send(tree.task, run, if is_ready { Fact::Ready } else { Fact::NotReady });
        if let Some(socket) = &awaited.socket {
            notify::drain(socket).await;
        }
    })
}

/// Waits for a line in the output of a run on another machine, which shares its files with this one, or until its time
/// is over, and reports the outcome to the dispatcher. `sizes` is where the output of the run begins in its files.
pub fn watch_line(
    pattern: &str,
    (files, sizes): (OutputFiles, [u64; 2]),
    timeout: Option<Duration>,
    (task, run): (TaskId, u32),
    context: Context,
) -> Job {
    let pattern = Box::<str>::from(pattern);
    Job::start(async move {
        let streams = Streams::new(&files, sizes);
        let found = line::until_found_from_afar(&pattern, streams, &context.workers);
        let is_ready = if let Some(timeout) = timeout {
            tokio::time::timeout(timeout, found).await.is_ok()
        } else {
            found.await;
            true
        };
        context.facts.send(task, run, if is_ready { Fact::Ready } else { Fact::NotReady });
    })
}

async fn until_ready(awaited: &Awaited, tree: &Tree, context: &Context) {
    match &awaited.ready {
        Ready::Line(pattern) => {
            let streams = Streams::new(&tree.files, awaited.sizes);
            line::until_found(pattern, streams, &context.workers).await;
        }
        Ready::Tcp { host, port } => net::until_connected(host.as_deref(), *port).await,
        Ready::Http(url) => net::until_answered(url).await,
        Ready::File(path) => file::until_there(awaited.folder.join(&**path), &context.workers).await,
        Ready::Notify => match &awaited.socket {
            Some(socket) => notify::until_told(socket, tree, &context.workers).await,
            None => std::future::pending().await,
        },
    }
}

/// The delays between looks where no event exists: 100 ms at first, growing to 1 s.
#[derive(Debug)]
struct Pauses(Duration);

impl Pauses {
    const FIRST: Duration = Duration::from_millis(100);
    const LAST: Duration = Duration::from_secs(1);

    fn new() -> Self {
        Self(Self::FIRST)
    }

    async fn pause(&mut self) {
        tokio::time::sleep(self.0).await;
        self.0 = (self.0 * 3 / 2).min(Self::LAST);
    }
}
