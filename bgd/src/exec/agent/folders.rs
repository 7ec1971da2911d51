//! Looks at folders that users have chosen, which may be on disks that hang. Nothing waits for a disk longer than it
//! must, and prompts for the same folder wait for the same look, so that they occupy one thread only.

use std::cell::RefCell;
use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bgd_shared::text::OsText;
use tokio::sync::{Notify, watch};

use crate::exec::threads::workers::{self, Workers};

/// How long to wait for the disk of a home directory before an agent starts elsewhere, and for other looks to end.
const PATIENCE: Duration = Duration::from_secs(3);

/// How many looks may be under way: as many as have a thread.
const LOOKS: usize = workers::ELSEWHERE;

/// Whether something is a folder, and why not if it isn't.
type Found = Result<(), Arc<str>>;

/// The looks under way.
#[derive(Clone, Debug)]
pub struct Folders {
    workers: Workers,
    looks: Rc<RefCell<HashMap<OsText, watch::Receiver<Option<Found>>>>>,
    /// Notified when a look has ended.
    ended: Rc<Notify>,
}

impl Folders {
    pub fn new(workers: Workers) -> Self {
        Self { workers, looks: Rc::default(), ended: Rc::default() }
    }

    /// Checks that a path leads to a folder. Waits as long as its disk does: set a deadline. If too many other looks
    /// hang, takes it for a folder: the agent reports if it isn't.
    ///
    /// # Errors
    /// There is no such folder; the message says why.
    pub async fn check(&self, path: &OsText) -> Found {
        self.look(path).await.unwrap_or(Ok(()))
    }

    /// Returns whether this is the path of a folder whose disk answers soon.
    pub async fn is_home(&self, path: &OsText) -> bool {
        path.as_bytes().starts_with(b"/")
            && tokio::time::timeout(PATIENCE, self.look(path)).await.is_ok_and(|found| found == Some(Ok(())))
    }

    /// Returns what is found at a path; `None` if too many other looks hang.
    async fn look(&self, path: &OsText) -> Option<Found> {
        let under_way = || self.looks.borrow().get(path).cloned();
        if under_way().is_none() {
            tokio::time::timeout(PATIENCE, self.until_there_is_room()).await.ok()?;
        }
        let mut look = under_way().unwrap_or_else(|| self.begin(path));
        let found = look.wait_for(Option::is_some).await.ok().and_then(|found| found.clone());
        Some(found.unwrap_or_else(|| Err("internal error in the daemon".into())))
    }

    async fn until_there_is_room(&self) {
        loop {
            let mut ended = pin!(self.ended.notified());
            // Looks that end from now on count.
            ended.as_mut().enable();
            if self.looks.borrow().len() < LOOKS {
                return;
            }
            ended.await;
        }
    }

    fn begin(&self, path: &OsText) -> watch::Receiver<Option<Found>> {
        let (done, look) = watch::channel(None);
        self.looks.borrow_mut().insert(path.clone(), look.clone());
        let (folders, path) = (self.clone(), path.clone());
        // Goes on when nobody waits for it any more: the next prompt for this folder may.
        tokio::task::spawn_local(async move {
            let place = path.clone();
            let found = folders.workers.agent_folder(move || examine(Path::new(place.as_os_str()))).await;
            folders.looks.borrow_mut().remove(&path);
            folders.ended.notify_waiters();
            // Without a result, the sender is dropped.
            if found.is_some() {
                done.send_replace(found);
            }
        });
        look
    }
}

fn examine(path: &Path) -> Found {
    match fs::metadata(path) {
        Ok(found) if found.is_dir() => Ok(()),
        Ok(_) => Err("it is not a folder".into()),
        Err(error) => Err(error.to_string().into()),
    }
}
