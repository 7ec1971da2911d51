//! Follows how the output files of running tasks grow, without polling quiet tasks and without a wake-up per write:
//! it watches the folder for one write, then polls the files a few times a second until none has grown any more, and
//! then watches again. Quiet tasks cost no system call, busy ones a few per second. It never reads a file.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bgd_shared::id::TaskId;
use bgd_shared::request::Stream;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio::task::JoinSet;

use super::OutputFolder;
use super::writes::FirstWrite;
use crate::core::Fact;
use crate::exec::messages::Facts;
use crate::exec::workers::Workers;

/// The poll interval for growing files.
const TICK: Duration = Duration::from_millis(250);

/// Subscribers are notified of a task's growing output at most once in this many ticks.
const TELL_EVERY: u32 = 2;

/// A running task's files, as of the last look.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Tracked {
    run: u32,
    split: bool,
    /// The output file outside of the folder, if the process writes to one of its own.
    own: Option<Arc<Path>>,
    size: [u64; 2],
    dropped: [u64; 2],
    ticks_to_tell: u32,
    /// It has grown since subscribers were last notified.
    unreported: bool,
}

#[derive(Debug)]
struct Shared {
    folder: Arc<OutputFolder>,
    running: Mutex<HashMap<TaskId, Tracked>>,
    limit: AtomicU64,
    facts: Facts,
    workers: Workers,
    /// Signalled when a task was added; only needed while the folder can't be watched.
    added: Notify,
    /// Signalled when a file outside of the folder was added and must be watched, too.
    own_added: Notify,
    /// Whether inotify reports writes. Otherwise the files are polled as long as tasks run.
    is_watching: AtomicBool,
}

/// Follows the output files of running tasks, until the last copy of this is dropped.
#[derive(Clone, Debug)]
pub struct OutputWatch {
    shared: Arc<Shared>,
    _follower: Arc<JoinSet<()>>,
}

impl OutputWatch {
    /// Starts to watch; at most `limit` bytes are kept per task.
    pub fn start(folder: Arc<OutputFolder>, limit: u64, facts: Facts, workers: Workers) -> Self {
        let shared = Arc::new(Shared {
            folder,
            running: Mutex::default(),
            limit: limit.into(),
            facts,
            workers,
            added: Notify::new(),
            own_added: Notify::new(),
            is_watching: AtomicBool::new(true),
        });
        let mut follower = JoinSet::new();
        // A simulation has no files, and its runtime no I/O.
        if !shared.workers.are_simulated() {
            let watch = FirstWrite::new(shared.folder.path()).ok();
            shared.note_watching(watch.is_some());
            follower.spawn(follow(Arc::clone(&shared), watch));
        }
        Self { shared, _follower: Arc::new(follower) }
    }

    /// Whether inotify reports writes to outputs, so that quiet ones need not be polled.
    pub fn is_watching(&self) -> bool {
        self.shared.is_watching.load(Ordering::Relaxed)
    }

    /// Changes how many bytes of a task's output are kept.
    pub fn set_limit(&self, limit: u64) {
        self.shared.limit.store(limit, Ordering::Relaxed);
    }

    /// Follows the output of a task that has started to run.
    pub fn track(&self, task: TaskId, run: u32, split: bool) {
        self.insert(task, Tracked::new(run, split, None));
    }

    /// Like [`Self::track`], for a task whose output is a file outside of the folder.
    pub fn track_own(&self, task: TaskId, run: u32, file: &Path) {
        self.insert(task, Tracked::new(run, false, Some(file.into())));
        self.shared.own_added.notify_one();
    }

    /// Looks at the outputs soon, even if no write was reported: other machines may have written.
    pub fn look_soon(&self) {
        self.shared.own_added.notify_one();
    }

    /// Returns what is followed, for the program that takes over.
    pub fn tracked(&self) -> BTreeMap<TaskId, Tracked> {
        self.shared.lock().iter().map(|(task, tracked)| (*task, tracked.clone())).collect()
    }

    /// Follows again what another program has followed.
    pub fn track_again(&self, all: BTreeMap<TaskId, Tracked>) {
        for (task, tracked) in all {
            self.insert(task, tracked);
        }
        self.look_soon();
    }

    fn insert(&self, task: TaskId, tracked: Tracked) {
        self.shared.lock().insert(task, tracked);
        self.shared.added.notify_one();
    }

    /// Returns the final size of a task's output and how much of it was dropped, after the task's leader has ended;
    /// `None` if the task isn't tracked. Continues to follow its files if processes of the task live on.
    pub async fn settle(&self, task: TaskId, lives_on: bool) -> Option<Fact> {
        let mut tracked = self.shared.lock().get(&task)?.clone();
        if !lives_on {
            self.shared.lock().remove(&task);
        }
        let limit = self.shared.limit();
        // A file outside of our folder may be on a disk that is slow or hangs.
        if tracked.own.is_none()
            && let Some(bytes) = self.shared.folder.sizes_unless_linked(task, tracked.split)
            && bytes.iter().sum::<u64>() <= limit / 2
        {
            return Some(Fact::Output { bytes, dropped: tracked.dropped, tell: false });
        }
        let (folder, before) = (Arc::clone(&self.shared.folder), tracked.clone());
        let looked =
            self.shared.workers.run(move || look(&folder, task, &mut tracked, limit).map(|_| tracked)).await;
        let tracked = looked.flatten().unwrap_or(before);
        Some(Fact::Output { bytes: tracked.size, dropped: tracked.dropped, tell: false })
    }
}

impl Tracked {
    fn new(run: u32, split: bool, own: Option<Arc<Path>>) -> Self {
        Self { run, split, own, size: [0; 2], dropped: [0; 2], ticks_to_tell: 0, unreported: false }
    }
}

impl Shared {
    /// Returns the output files of running tasks that are outside of the folder.
    fn own_files(&self) -> Vec<Arc<Path>> {
        self.lock().values().filter_map(|tracked| tracked.own.clone()).collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<TaskId, Tracked>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    fn note_watching(&self, is_watching: bool) {
        let before = self.is_watching.swap(is_watching, Ordering::Relaxed);
        match (before, is_watching) {
            (true, false) => tracing::warn!("no inotify is left: outputs are looked at while tasks run"),
            (false, true) => tracing::info!("outputs are watched by inotify again"),
            (true, true) | (false, false) => {}
        }
    }

    /// Looks at every running task's files. Returns whether any has grown.
    fn tick(&self) -> bool {
        let running: Vec<(TaskId, Tracked)> =
            self.lock().iter().map(|(task, known)| (*task, known.clone())).collect();
        let mut any = false;
        for (task, mut tracked) in running {
            let Some(grown) = look(&self.folder, task, &mut tracked, self.limit()) else { continue };
            if !grown && !tracked.unreported {
                continue;
            }
            any = true;
            // Growth is always reported, if only a tick later: a subscriber may wait for the last of it.
            let tell = tracked.ticks_to_tell == 0;
            tracked.ticks_to_tell = tracked.ticks_to_tell.checked_sub(1).unwrap_or(TELL_EVERY - 1);
            tracked.unreported = !tell;
            let fact = Fact::Output { bytes: tracked.size, dropped: tracked.dropped, tell };
            // The run may have ended meanwhile; then `settle` reports its final size. Another one has its own.
            let run = tracked.run;
            if let Some(known) = self.lock().get_mut(&task).filter(|known| known.run == run) {
                *known = tracked;
                self.facts.send(task, run, fact);
            }
        }
        any
    }
}

/// Looks at a task's files and bounds them. Returns whether they have grown; `None` if they are gone.
fn look(folder: &OutputFolder, task: TaskId, tracked: &mut Tracked, limit: u64) -> Option<bool> {
    if let Some(own) = &tracked.own {
        let size = fs::metadata(own).ok()?.len();
        return Some(std::mem::replace(&mut tracked.size[0], size) != size);
    }
    let mut grown = false;
    // The limit is per task, so two streams share it.
    let (streams, limit): (&[Stream], u64) = if tracked.split {
        (&[Stream::Stdout, Stream::Stderr], limit / 2)
    } else {
        (&[Stream::Stdout], limit)
    };
    for (index, stream) in streams.iter().enumerate() {
        let size = folder.stat(task, *stream)?.st_size.cast_unsigned();
        grown |= size != tracked.size[index];
        tracked.size[index] = size;
        if size > limit {
            match folder.bound(task, *stream, size, tracked.dropped[index], limit) {
                Ok(dropped) => tracked.dropped[index] = dropped,
                Err(error) => tracing::warn!(%task, %error, "cannot bound the output"),
            }
        }
    }
    Some(grown)
}

/// Waits for a first write, then ticks until nothing grows any more. Pauses after every write, so that writes to
/// untracked files cost no more than others. Without a watch, ticks as long as tasks run.
async fn follow(shared: Arc<Shared>, mut watch: Option<FirstWrite>) {
    loop {
        // Other processes of this user may have released an inotify instance.
        watch = watch.or_else(|| FirstWrite::new(shared.folder.path()).ok());
        let armed = match watch.take() {
            Some(watch) => arm(&shared, watch).await,
            None => None,
        };
        let is_armed = armed.as_ref().is_some_and(|(_, is_armed)| *is_armed);
        watch = armed.map(|(watch, _)| watch);
        shared.note_watching(is_armed);
        match watch.as_ref().filter(|_| is_armed) {
            // A write between the last look and arming would go unseen, so look once more.
            Some(watch) => {
                let quiet = !tick_on_worker(&shared).await;
                if quiet {
                    tokio::select! {
                        told = watch.wait() => if told.is_err() { return },
                        () = shared.own_added.notified() => {}
                        () = shared.folder.kept.renewed() => {}
                    }
                }
            }
            None if shared.lock().is_empty() => shared.added.notified().await,
            None => {}
        }
        while tick_on_worker(&shared).await {
            tokio::time::sleep(TICK).await;
        }
        tokio::time::sleep(TICK).await;
    }
}

/// Arms a watch, on a worker if there are files elsewhere: their disk may hang. Returns whether that is done.
async fn arm(shared: &Shared, mut watch: FirstWrite) -> Option<(FirstWrite, bool)> {
    let elsewhere = shared.own_files();
    let is_near = elsewhere.is_empty();
    let arm = move || {
        let is_armed = watch.arm(&elsewhere);
        (watch, is_armed)
    };
    if is_near { Some(arm()) } else { shared.workers.run(arm).await }
}

async fn tick_on_worker(shared: &Arc<Shared>) -> bool {
    let job = Arc::clone(shared);
    shared.workers.run(move || job.tick()).await.unwrap_or(false)
}

#[cfg(test)]
mod tests {
    //! Where outputs are looked at.

    use super::*;
    use crate::exec::messages;

    #[tokio::test]
    async fn paths_that_lead_out_of_the_folder_are_followed_by_workers_alone() {
        let home = tempfile::tempdir().unwrap();
        let folder = OutputFolder::open(home.path().to_path_buf()).unwrap();
        let jobs = Arc::new(AtomicU64::new(0));
        let pushed = Arc::clone(&jobs);
        let workers = Workers::simulated(move |job| {
            pushed.fetch_add(1, Ordering::Relaxed);
            job();
        });
        let (facts, _reports) = messages::facts();
        let folder = Arc::new(folder);
        let watch = OutputWatch::start(Arc::clone(&folder), 1 << 20, facts, workers);
        let elsewhere = tempfile::tempdir().unwrap();
        let target = elsewhere.path().join("out");
        fs::write(&target, "12345").unwrap();
        let (plain, linked) = (TaskId::random(), TaskId::random());
        folder.create(plain, Stream::Stdout).unwrap();
        fs::write(folder.files(plain, false).path(Stream::Stdout), "123").unwrap();
        folder.link(linked, Stream::Stdout, &target).unwrap();
        assert_eq!(folder.sizes_unless_linked(plain, false), Some([3, 0]));
        assert_eq!(folder.sizes_unless_linked(linked, false), None);
        for (task, size, looks) in [(plain, 3, 0), (linked, 5, 1)] {
            watch.track(task, 1, false);
            let settled = watch.settle(task, false).await;
            let Some(Fact::Output { bytes, .. }) = settled else { panic!("{settled:?}") };
            assert_eq!((bytes, jobs.swap(0, Ordering::Relaxed)), ([size, 0], looks));
        }
        let arm = |first| arm(&watch.shared, first);
        let (first, is_armed) = arm(FirstWrite::new(home.path()).unwrap()).await.unwrap();
        assert_eq!((is_armed, jobs.swap(0, Ordering::Relaxed)), (true, 0));
        watch.track_own(plain, 1, &target);
        let (first, is_armed) = arm(first).await.unwrap();
        assert_eq!((is_armed, jobs.swap(0, Ordering::Relaxed)), (true, 1));
        fs::write(&target, "more").unwrap();
        first.wait().await.unwrap();
    }
}
