//! Follows the growth of the output files of running tasks, without polling quiet tasks and without a wake-up per
//! write: it watches the folder for one write, then polls the files a few times a second until none grows, and then
//! watches again. Quiet tasks cost no system call, busy ones a few per second. It never reads a file.
//!
//! Files outside the folder may be on a disk that hangs. They are checked separately, so that they delay no other task:
//! at most one such check is under way, and the end of a task waits for its own only for a limited time.

use std::collections::{BTreeMap, HashMap};
use std::fs;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use bgd_shared::id::TaskId;
use bgd_shared::mutex::Mutex;
use bgd_shared::request::Stream;
use bgd_shared::text::OsText;
use nix::errno::Errno;
use serde::{Deserialize, Serialize};
use tokio::sync::{Notify, oneshot};
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::OutputFolder;
use super::writes::FirstWrite;
use crate::core::Fact;
use crate::exec::messages::Facts;
use crate::exec::threads::workers::Workers;

/// The poll interval for growing files.
const TICK: Duration = Duration::from_millis(250);

/// Subscribers are notified of a task's growing output at most once in this many ticks.
const REPORT_TICKS: u32 = 2;

/// Why output is lost that was in a file when it was truncated.
const ERASED: &str = "its file was truncated, as by `>/dev/stderr`: write `>&2` or `>>/dev/stderr`";

/// Why output is lost that was in a file when it was removed.
const REMOVED: &str = "its file was removed while the task ran";

/// How long the end of a task waits for the size of an output outside the folder; then the last known size counts.
const PATIENCE: Duration = Duration::from_secs(5);

/// A running task's files, as of the last check.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Tracked {
    run: u32,
    split: bool,
    /// The output file outside the folder, if the process writes its own.
    own: Option<Arc<OsText>>,
    size: [u64; 2],
    dropped: [u64; 2],
    /// Bytes erased by truncating or removing a file, unless they were reported already.
    #[serde(default)]
    erased: [u64; 2],
    #[serde(rename = "ticks_to_tell")]
    ticks_to_report: u32,
    /// Whether the output has grown since subscribers were last notified.
    unreported: bool,
}

#[derive(Debug)]
struct Shared {
    folder: Arc<OutputFolder>,
    running: Mutex<HashMap<TaskId, Tracked>>,
    limit: AtomicU64,
    facts: Facts,
    workers: Workers,
    /// Why inotify does not report writes, if so: then the files are polled as long as tasks run.
    unwatched: Mutex<Option<Unwatched>>,
    /// Signalled when a task was added; only needed while the folder can't be watched.
    added: Notify,
    /// Signalled when a file outside the folder was added and must be watched, too.
    own_added: Notify,
}

/// Why the folder can't be watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unwatched {
    /// The user has no inotify instance or watch left.
    Exhausted,
    /// The folder was removed, with the outputs in it.
    Removed,
    Other(Errno),
}

impl From<io::Error> for Unwatched {
    fn from(error: io::Error) -> Self {
        match error.raw_os_error().map_or(Errno::UnknownErrno, Errno::from_raw) {
            Errno::EMFILE | Errno::ENFILE | Errno::ENOSPC | Errno::ENOMEM => Self::Exhausted,
            Errno::ENOENT | Errno::ENOTDIR => Self::Removed,
            other => Self::Other(other),
        }
    }
}

impl Unwatched {
    /// Describes the consequence for a user, and what to do.
    fn describe(self, folder: &Path) -> String {
        match self {
            Self::Exhausted => "no inotify instance or watch is left for this user, so outputs are polled \
                4 times a second while tasks run; raise fs.inotify.max_user_instances or max_user_watches"
                .to_owned(),
            Self::Removed => format!(
                "{} was removed, and the outputs of all tasks with it; the next task recreates it",
                folder.display()
            ),
            Self::Other(error) => format!(
                "{} can't be watched ({}), so outputs are polled 4 times a second while tasks run",
                folder.display(),
                error.desc()
            ),
        }
    }
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
            unwatched: Mutex::default(),
        });
        let mut follower = JoinSet::new();
        // A simulation has no files, and its runtime no I/O.
        if !shared.workers.are_simulated() {
            let (watch, unwatched) = match FirstWrite::new(shared.folder.path()) {
                Ok(watch) => (Some(watch.into()), None),
                Err(error) => (None, Some(error.into())),
            };
            shared.note_watching(unwatched);
            follower.spawn(Follower { shared: Arc::clone(&shared), elsewhere: None }.run(watch));
        }
        Self { shared, _follower: Arc::new(follower) }
    }

    /// Returns why outputs were not limited at the last attempt: those in the folder, and those elsewhere.
    pub fn limit_errors(&self) -> [Option<String>; 2] {
        self.shared.folder.limit_errors()
    }

    /// Describes why inotify does not report writes to outputs, if so, and what to do.
    pub fn unwatched(&self) -> Option<String> {
        let unwatched = *self.shared.unwatched.lock();
        unwatched.map(|why| why.describe(self.shared.folder.path()))
    }

    /// Changes the number of bytes kept of a task's output.
    pub fn set_limit(&self, limit: u64) {
        self.shared.limit.store(limit, Ordering::Relaxed);
    }

    /// Starts following the output of a task that has started to run.
    pub fn track(&self, task: TaskId, run: u32, split: bool) {
        self.insert(task, Tracked::new(run, split, None));
    }

    /// Like [`Self::track`], for a task whose output is a file outside the folder.
    pub fn track_own(&self, task: TaskId, run: u32, file: &Path) {
        let own = OsText::from(file.as_os_str());
        self.insert(task, Tracked::new(run, false, Some(own.into())));
        self.shared.own_added.notify_one();
    }

    /// Has the outputs checked soon, even if no write was reported: other machines may have written to them.
    pub fn look_soon(&self) {
        self.shared.own_added.notify_one();
    }

    /// Returns the tracked files, for the program that takes over.
    pub fn tracked(&self) -> BTreeMap<TaskId, Tracked> {
        self.shared.running.lock().iter().map(|(task, tracked)| (*task, tracked.clone())).collect()
    }

    /// Resumes following the files that another program has tracked.
    pub fn resume_tracking(&self, all: BTreeMap<TaskId, Tracked>) {
        for (task, tracked) in all {
            self.insert(task, tracked);
        }
        self.look_soon();
    }

    fn insert(&self, task: TaskId, tracked: Tracked) {
        self.shared.running.lock().insert(task, tracked);
        self.shared.added.notify_one();
    }

    /// Returns the final size of a task's output and how much of it was dropped, after the leader of this run has
    /// ended; `None` if the run isn't tracked, as an abandoned run may end after the next one has begun. Continues to
    /// follow its files if processes of the run live on.
    pub async fn settle(&self, task: TaskId, run: u32, lives_on: bool) -> Option<Fact> {
        let mut tracked = {
            let mut running = self.shared.running.lock();
            let tracked = running.get(&task).filter(|known| known.run == run)?.clone();
            if !lives_on {
                running.remove(&task);
            }
            tracked
        };
        tracked = self.last_look(task, tracked).await;
        if let Some(fact) = tracked.take_erased(&self.shared.folder, task) {
            self.shared.facts.send(task, run, fact);
        }
        if let Some(known) = self.shared.running.lock().get_mut(&task).filter(|known| known.run == run) {
            (known.size, known.dropped) = (tracked.size, tracked.dropped);
        }
        Some(Fact::Output { bytes: tracked.size, dropped: tracked.dropped, publish: false })
    }

    /// Checks a task's files once more, for a limited time.
    async fn last_look(&self, task: TaskId, mut tracked: Tracked) -> Tracked {
        let limit = self.shared.limit();
        let here = tracked.sizes_here(&self.shared.folder, task);
        if let Some(sizes) = here.filter(|sizes| sizes.iter().sum::<u64>() <= limit / 2) {
            // Nothing has to be dropped, which might take a moment.
            for (index, size) in sizes.into_iter().enumerate() {
                tracked.resized(index, size);
            }
            return tracked;
        }
        let (shared, before) = (&self.shared, tracked.clone());
        let folder = Arc::clone(&shared.folder);
        let look = move || look(&folder, task, &mut tracked, limit).map(|_| tracked);
        let looked = match here {
            Some(_) => shared.workers.run(look).await.flatten(),
            None => shared.workers.elsewhere(PATIENCE, look).await.unwrap_or_else(|| {
                tracing::warn!(%task, "the disk of its output does not answer: its last known size is used");
                None
            }),
        };
        looked.unwrap_or(before)
    }
}

impl Tracked {
    fn new(run: u32, split: bool, own: Option<Arc<OsText>>) -> Self {
        Self {
            run,
            split,
            own,
            size: [0; 2],
            dropped: [0; 2],
            erased: [0; 2],
            ticks_to_report: 0,
            unreported: false,
        }
    }

    /// Records the size of a stream's file in the folder. Returns whether it has changed. A file that shrank was
    /// truncated: its earlier content is gone. The daemon itself never shortens one that is tracked.
    fn resized(&mut self, index: usize, size: u64) -> bool {
        let before = std::mem::replace(&mut self.size[index], size);
        if size < before {
            self.erased[index] += before;
            self.dropped[index] = 0;
        }
        size != before
    }

    /// Returns what to report of truncated and removed files, once.
    fn take_erased(&mut self, folder: &OutputFolder, task: TaskId) -> Option<Fact> {
        let bytes = std::mem::take(&mut self.erased);
        let mut streams = [Stream::Stdout, Stream::Stderr].into_iter().zip(bytes);
        let is_removed = streams.any(|(stream, bytes)| bytes > 0 && folder.is_missing(task, stream));
        let why = if is_removed { REMOVED } else { ERASED };
        (bytes != [0; 2]).then(|| Fact::Erased { bytes, why: why.into() })
    }

    /// Returns the sizes of its files; `None` if one is outside the folder.
    fn sizes_here(&self, folder: &OutputFolder, task: TaskId) -> Option<[u64; 2]> {
        if self.own.is_some() { None } else { folder.sizes_unless_linked(task, self.split) }
    }

    fn own_file(&self) -> Option<&Path> {
        self.own.as_ref().map(|own| Path::new(own.as_os_str()))
    }
}

impl Shared {
    fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Notes why the folder is not watched, or that it is. Logs each change.
    fn note_watching(&self, unwatched: Option<Unwatched>) {
        let mut known = self.unwatched.lock();
        if std::mem::replace(&mut *known, unwatched) == unwatched {
            return;
        }
        if let Some(why) = unwatched {
            tracing::warn!("{}", why.describe(self.folder.path()));
        } else {
            tracing::info!("outputs are watched by inotify again");
        }
    }

    /// Checks the running tasks' files in the folder. Returns whether any has grown, and the tasks whose files are
    /// elsewhere.
    fn tick(&self) -> (bool, Vec<(TaskId, Tracked)>) {
        let running =
            self.running.lock().iter().map(|(task, known)| (*task, known.clone())).collect::<Vec<_>>();
        let is_here = |(task, tracked): &(TaskId, Tracked)| tracked.sizes_here(&self.folder, *task).is_some();
        let (here, elsewhere) = running.into_iter().partition(is_here);
        (self.look(here), elsewhere)
    }

    /// Checks the files of these tasks and reports growth. Returns whether there is any.
    fn look(&self, tasks: Vec<(TaskId, Tracked)>) -> bool {
        let mut any = false;
        for (task, mut tracked) in tasks {
            let before = (tracked.size, tracked.dropped);
            let Some(grown) = look(&self.folder, task, &mut tracked, self.limit()) else { continue };
            if !grown && !tracked.unreported {
                continue;
            }
            any = true;
            // Growth is always reported, if only a tick later: a subscriber may wait for the last bytes.
            let publish = tracked.ticks_to_report == 0;
            tracked.ticks_to_report = tracked.ticks_to_report.checked_sub(1).unwrap_or(REPORT_TICKS - 1);
            tracked.unreported = !publish;
            let fact = Fact::Output { bytes: tracked.size, dropped: tracked.dropped, publish };
            // If the run has ended meanwhile, `settle` reports its final size; another run has its own entry.
            let run = tracked.run;
            let is_current = |known: &&mut Tracked| known.run == run && (known.size, known.dropped) == before;
            if let Some(known) = self.running.lock().get_mut(&task).filter(is_current) {
                let erased = tracked.take_erased(&self.folder, task);
                *known = tracked;
                for fact in erased.into_iter().chain([fact]) {
                    self.facts.send(task, run, fact);
                }
            }
        }
        any
    }
}

/// Checks a task's files and bounds them. Returns whether they have grown; `None` if they are gone.
fn look(folder: &OutputFolder, task: TaskId, tracked: &mut Tracked, limit: u64) -> Option<bool> {
    if let Some(own) = tracked.own_file() {
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
        grown |= tracked.resized(index, size);
        if size > limit {
            match folder.bound(task, *stream, size, tracked.dropped[index], limit) {
                Ok(dropped) => tracked.dropped[index] = dropped,
                Err(error) => tracing::warn!(%task, %error, "cannot limit the output"),
            }
        }
    }
    Some(grown)
}

/// The result of a check of the files outside the folder.
#[derive(Clone, Copy, Debug, Default)]
struct Elsewhere {
    has_grown: bool,
    /// Whether the system has no watch left.
    lacks_watches: bool,
}

/// Does the checks.
struct Follower {
    shared: Arc<Shared>,
    /// The pending check outside the folder.
    elsewhere: Option<oneshot::Receiver<Elsewhere>>,
}

impl Follower {
    /// Waits for a first write, then ticks until nothing grows any more. Pauses after every write, so that writes to
    /// untracked files cost no more than others. Without a watch, ticks as long as tasks run.
    async fn run(mut self, mut watch: Option<Arc<FirstWrite>>) {
        let shared = Arc::clone(&self.shared);
        loop {
            let armed = arm(&mut watch, shared.folder.path());
            // A write between the last check and arming would go unnoticed, so check once more.
            let (has_grown, lacks_watches) = self.tick(armed.as_ref().ok()).await;
            let armed = if lacks_watches { Err(Unwatched::Exhausted) } else { armed };
            shared.note_watching(armed.as_ref().err().copied());
            match armed {
                Ok(_) if has_grown => {}
                Ok(watch) => tokio::select! {
                    result = watch.wait() => if result.is_err() { return },
                    () = until_answered(&mut self.elsewhere) => self.elsewhere = None,
                    () = shared.own_added.notified() => {}
                    () = shared.folder.kept.renewed() => {}
                },
                Err(_) if shared.running.lock().is_empty() => tokio::select! {
                    () = shared.added.notified() => {}
                    () = shared.folder.kept.renewed() => {}
                },
                Err(_) => {}
            }
            while self.tick(None).await.0 {
                tokio::time::sleep(TICK).await;
            }
            tokio::time::sleep(TICK).await;
        }
    }

    /// Checks the files of all running tasks. Returns whether any has grown, and whether a watch could not be armed for
    /// those outside the folder.
    async fn tick(&mut self, arm: Option<&Arc<FirstWrite>>) -> (bool, bool) {
        let job = Arc::clone(&self.shared);
        let looked = self.shared.workers.run(move || job.tick()).await;
        let (has_grown, elsewhere) = looked.unwrap_or_default();
        let there = self.look_elsewhere(elsewhere, arm.cloned()).await;
        (has_grown || there.has_grown, there.lacks_watches)
    }

    /// Checks the files of these tasks, after arming the watch for them, and waits for the result for at most a tick.
    /// If a check is already pending, only takes its result if it has finished.
    async fn look_elsewhere(
        &mut self,
        tasks: Vec<(TaskId, Tracked)>,
        arm: Option<Arc<FirstWrite>>,
    ) -> Elsewhere {
        let mut patience = Duration::ZERO;
        let was_under_way = self.elsewhere.is_some();
        let wants_watch = arm.is_some();
        if !was_under_way {
            let is_needed = !tasks.is_empty() || arm.as_ref().is_some_and(|watch| watch.is_elsewhere());
            if !is_needed {
                return Elsewhere::default();
            }
            let (answer, answered) = oneshot::channel();
            let shared = Arc::clone(&self.shared);
            self.shared.workers.later(move || {
                let own = tasks.iter().filter_map(|(_, tracked)| tracked.own_file());
                let lacks_watches = arm.is_some_and(|watch| !watch.arm_elsewhere(own));
                let has_grown = shared.look(tasks);
                let _ = answer.send(Elsewhere { has_grown, lacks_watches });
            });
            (self.elsewhere, patience) = (Some(answered), TICK);
        }
        let Some(answered) = &mut self.elsewhere else { return Elsewhere::default() };
        let Ok(answer) = timeout(patience, answered).await else { return Elsewhere::default() };
        self.elsewhere = None;
        let mut answer = answer.unwrap_or_default();
        // The check that was pending has armed no watch, so another one is needed.
        answer.has_grown |= was_under_way && wants_watch;
        answer
    }
}

/// Arms the watch of the folder; prepares it first if that has failed so far, as other processes of this user may have
/// released an inotify instance.
fn arm(watch: &mut Option<Arc<FirstWrite>>, folder: &Path) -> Result<Arc<FirstWrite>, Unwatched> {
    let prepared = match watch.take() {
        Some(prepared) => prepared,
        None => FirstWrite::new(folder)?.into(),
    };
    let armed = prepared.arm();
    *watch = Some(Arc::clone(&prepared));
    armed?;
    Ok(prepared)
}

/// Waits for the end of the pending check; forever if there is none.
async fn until_answered(elsewhere: &mut Option<oneshot::Receiver<Elsewhere>>) {
    match elsewhere {
        Some(answer) => drop(answer.await),
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    //! Tests of where outputs are checked.

    use super::*;
    use crate::exec::messages;

    #[tokio::test]
    async fn outputs_linked_outside_the_folder_are_read_by_workers_only() {
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
            let settled = watch.settle(task, 1, false).await;
            let Some(Fact::Output { bytes, .. }) = settled else { panic!("{settled:?}") };
            assert_eq!((bytes, jobs.swap(0, Ordering::Relaxed)), ([size, 0], looks));
        }
        let mut follower = Follower { shared: Arc::clone(&watch.shared), elsewhere: None };
        let first = Arc::new(FirstWrite::new(home.path()).unwrap());
        watch.track(plain, 1, false);
        first.arm().unwrap();
        assert_eq!(follower.tick(Some(&first)).await, (true, false));
        assert_eq!(jobs.swap(0, Ordering::Relaxed), 1);
        watch.track_own(plain, 1, &target);
        first.arm().unwrap();
        assert_eq!(follower.tick(Some(&first)).await, (true, false));
        assert_eq!(jobs.swap(0, Ordering::Relaxed), 2);
        fs::write(&target, "more").unwrap();
        first.wait().await.unwrap();
    }

    /// An attempt whose processes survive SIGKILL is abandoned: the next one begins while they live.
    #[tokio::test]
    async fn r108_late_end_of_an_attempt_keeps_the_next_one_followed() {
        let home = tempfile::tempdir().unwrap();
        let folder = Arc::new(OutputFolder::open(home.path().to_path_buf()).unwrap());
        let (facts, _reports) = messages::facts();
        let watch = OutputWatch::start(Arc::clone(&folder), 1 << 20, facts, Workers::simulated(|job| job()));
        let task = TaskId::random();
        folder.create(task, Stream::Stdout).unwrap();
        fs::write(folder.files(task, false).path(Stream::Stdout), "123").unwrap();
        watch.track(task, 1, false);
        watch.track(task, 2, false);
        for lives_on in [true, false] {
            let late = watch.settle(task, 1, lives_on).await;
            assert!(late.is_none(), "{late:?}");
            assert!(watch.tracked().contains_key(&task));
        }
        let settled = watch.settle(task, 2, false).await;
        assert!(matches!(settled, Some(Fact::Output { bytes: [3, 0], .. })), "{settled:?}");
        assert!(watch.tracked().is_empty());
    }

    #[test]
    fn r121_output_path_that_is_not_utf8_is_carried() {
        use std::os::unix::ffi::OsStrExt as _;
        for path in [&b"/tmp/caf\xe9"[..], b"/tmp/out"] {
            let path = Path::new(std::ffi::OsStr::from_bytes(path));
            let tracked = Tracked::new(1, false, Some(Arc::new(path.as_os_str().into())));
            let state = serde_json::to_string(&tracked).unwrap();
            let carried: Tracked = serde_json::from_str(&state).unwrap();
            assert_eq!(carried.own_file(), Some(path));
        }
    }
}
