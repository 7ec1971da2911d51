//! Waits for a file to exist.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify};
use tokio::io::unix::AsyncFd;
use tokio::time::timeout;

use super::looks::Looks;
use super::pauses::Pauses;
use crate::exec::threads::workers::Workers;
use crate::os::watch::{self, Changes};

/// How often to look without an event: there is none if a folder further up or a link in the path is replaced, or if
/// another machine creates the file.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Waits until there is a file at this path. Watches its folder as soon as the folder exists. Reports to `looks` when
/// there is none.
pub async fn until_there(path: PathBuf, workers: &Workers, looks: &Looks) {
    let mut pauses = Pauses::new();
    loop {
        let folder = path.parent().unwrap_or(&path).to_path_buf();
        // The file may be on a disk that does not respond.
        let watched = workers.ready_file(move || inotify_of(&folder)).await;
        let watched = watched.and_then(Result::ok).and_then(|inotify| watch::changes(inotify).ok());
        if is_there(&path, workers, looks).await {
            return;
        }
        let Some(changes) = watched else {
            pauses.pause_unless_due(looks).await;
            continue;
        };
        while may_have_come(&changes, looks).await {
            if is_there(&path, workers, looks).await {
                return;
            }
        }
        // The folder is gone or was replaced, which may repeat forever.
        pauses.pause_unless_due(looks).await;
    }
}

async fn is_there(path: &Path, workers: &Workers, looks: &Looks) -> bool {
    let (look, path) = (looks.begin(), path.to_path_buf());
    let is_there = workers.ready_file(move || path.exists()).await == Some(true);
    if !is_there {
        looks.note_vain(look);
    }
    is_there
}

/// Waits until it is time to look. Returns false if the folder is no longer watched.
async fn may_have_come(changes: &AsyncFd<Changes>, looks: &Looks) -> bool {
    tokio::select! {
        goes_on = timeout(LOOK_EVERY, wait_for_change(changes)) => goes_on != Ok(false),
        () = looks.until_due() => true,
    }
}

fn inotify_of(folder: &Path) -> io::Result<Inotify> {
    let inotify = Inotify::init(InitFlags::IN_NONBLOCK | InitFlags::IN_CLOEXEC)?;
    let comes = AddWatchFlags::IN_CREATE | AddWatchFlags::IN_MOVED_TO;
    let goes = AddWatchFlags::IN_DELETE_SELF | AddWatchFlags::IN_MOVE_SELF;
    inotify.add_watch(folder, comes | goes | AddWatchFlags::IN_ONLYDIR)?;
    Ok(inotify)
}

/// Waits until an entry is added to the folder. Returns false if the folder was moved or removed, after which no more
/// events come.
async fn wait_for_change(changes: &AsyncFd<Changes>) -> bool {
    let Ok(mut ready) = changes.readable().await else { return false };
    let ends = AddWatchFlags::IN_DELETE_SELF
        | AddWatchFlags::IN_MOVE_SELF
        | AddWatchFlags::IN_IGNORED
        | AddWatchFlags::IN_UNMOUNT;
    let mut goes_on = true;
    while let Ok(events) = changes.get_ref().0.read_events() {
        goes_on &= !events.iter().any(|event| event.mask.intersects(ends));
    }
    ready.clear_ready();
    goes_on
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use super::*;
    use crate::exec::threads::workers::Job;

    #[tokio::test]
    async fn files_on_hanging_disk_occupy_few_workers() {
        // Jobs that never end.
        let hung = Arc::new(Mutex::new(Vec::<Job>::new()));
        let all = Arc::clone(&hung);
        let workers = Workers::simulated(move |job| all.lock().unwrap().push(job));
        let looks = Looks::default();
        let mut conditions: Vec<_> =
            (0..40).map(|_| Box::pin(until_there("/nothing/here".into(), &workers, &looks))).collect();
        for condition in &mut conditions {
            assert!(timeout(Duration::ZERO, condition).await.is_err());
        }
        let count = hung.lock().unwrap().len();
        assert!((1..20).contains(&count), "{count} workers are taken");
        assert_eq!(workers.elsewhere(Duration::ZERO, || ()).await, None);
        assert_eq!(hung.lock().unwrap().len(), count + 1, "output files elsewhere are still read");
    }
}
