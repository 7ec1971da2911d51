//! Upgrades in place for the suites: to the same program, and to failing ones.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bgd_shared::id::TaskId;
use bgd_shared::request::{DaemonUpgrade, UpgradeParams, UpgradeResult};
use bgd_shared::task::Exit;

use crate::binaries::helper_path;
use crate::daemon::TestDaemon;
use crate::executable;
use crate::wait;

/// Upgrades to the same program.
#[track_caller]
pub fn upgrade(daemon: &TestDaemon) -> UpgradeResult {
    daemon.client().call::<DaemonUpgrade>(&UpgradeParams::default()).expect("it is upgraded")
}

/// Returns whether an upgrade was refused only because requests were in progress for too long, as they may be while all
/// processors are busy. Nothing has changed then.
pub fn is_too_busy(why: &str) -> bool {
    why.contains("does not end: try again later")
}

/// Upgrades to the same program under load: tries again if the daemon was too busy.
#[track_caller]
pub fn upgrade_under_load(daemon: &TestDaemon) -> UpgradeResult {
    wait::poll_until("an upgrade", || {
        match daemon.client().call::<DaemonUpgrade>(&UpgradeParams::default()) {
            Ok(upgraded) => Some(upgraded),
            Err(error) if is_too_busy(&error.to_string()) => None,
            Err(error) => panic!("{error}"),
        }
    })
}

/// Tries to upgrade to this program. Returns the reason of the refusal.
#[track_caller]
pub fn refused(daemon: &TestDaemon, binary: &Path) -> String {
    let binary = binary.to_str().expect("a path in UTF-8");
    let outcome = daemon.run(&["daemon", "upgrade", "--binary", binary]).expect_code(65);
    let text = outcome.stderr.clone();
    assert!(text.contains("not upgraded, and nothing has changed: "), "{text}");
    text
}

pub fn params(binary: &Path) -> UpgradeParams {
    UpgradeParams { binary: Some(binary.as_os_str().into()) }
}

/// Creates a program in the daemon's home that fails in the way that its name indicates.
pub fn failing(daemon: &TestDaemon, name: &str) -> PathBuf {
    let path = daemon.home().join(name);
    executable::copy(&helper_path("next_bgd"), &path);
    path
}

/// Submits a task that runs until a line is written to the pipe of this name in its folder, and then exits with this
/// code.
#[track_caller]
pub fn until(daemon: &TestDaemon, name: &str, code: u8) -> TaskId {
    let line = format!("echo begun; mkfifo {name}; read line < {name}; echo \"$line\"; exit {code}");
    let task = daemon.submit_shell(&line);
    wait::for_file(&daemon.home().join(name));
    task
}

/// Upgrades again and again until a task has ended: a clock that starts over with each daemon would never end it.
/// Returns the number of upgrades that the task has outlived.
#[track_caller]
pub fn upgrade_until_ended(daemon: &TestDaemon, task: TaskId) -> usize {
    let mut outlived = 0;
    wait::poll_until("the end of the task", || {
        upgrade(daemon);
        let is_active = daemon.task(task).status.is_active();
        outlived += usize::from(is_active);
        (!is_active).then_some(())
    });
    outlived
}

/// Tries with longer and longer times, as a busy machine may upgrade too late for a short one.
#[track_caller]
pub fn in_time(mut attempt: impl FnMut(Duration) -> bool) {
    let mut times = (0..5).map(|doubled| Duration::from_secs(2 << doubled));
    assert!(times.any(&mut attempt), "what was to come in time was always too late");
}

/// Returns the sorted names of the daemon's threads, once all have one, without those that come only when they are
/// needed: the guard of an upgrade, and the watchers of thread pools.
#[track_caller]
pub fn lasting_threads(daemon: &TestDaemon) -> Vec<String> {
    let process = daemon.process();
    let first = fs::read_to_string(process.proc("comm")).expect("the daemon lives");
    wait::poll_until("the names of all threads", || {
        let mut names = process.thread_names();
        // Until it gives itself a name, a thread has that of the one that started it.
        let is_unnamed = names.iter().filter(|name| **name == first.trim_end()).count() > 1;
        names.retain(|name| !is_occasional(name));
        (!is_unnamed).then_some(names)
    })
}

fn is_occasional(name: &str) -> bool {
    name == "guard" || name.ends_with("-watch")
}

fn is_of_pool(name: &str) -> bool {
    name.rsplit_once('-').is_some_and(|(_, number)| number.parse::<usize>().is_ok())
}

/// Waits until the daemon has no more threads than these of [`lasting_threads`] before. Besides them, the guard of the
/// last upgrade and one watcher of each pool may be there. May upgrade it again.
#[track_caller]
pub fn has_only_threads(daemon: &TestDaemon, before: &[String]) {
    let mut upgrades = 0;
    wait::poll_until(&format!("only the threads {before:?}"), || {
        let mut surplus = lasting_threads(daemon);
        for name in before {
            if let Some(at) = surplus.iter().position(|other| other == name) {
                surplus.remove(at);
            }
        }
        // A pool keeps the spare threads that it starts while the machine is busy, but an upgrade ends them. What a
        // program leaks comes back.
        if !surplus.is_empty() && surplus.iter().all(|name| is_of_pool(name)) && upgrades < 3 {
            upgrade_under_load(daemon);
            upgrades += 1;
            return None;
        }
        surplus.is_empty().then_some(())
    });
    let names = daemon.process().thread_names();
    let occasional: Vec<_> = names.iter().filter(|name| is_occasional(name)).collect();
    assert!(occasional.windows(2).all(|two| two[0] != two[1]), "one of them is there twice: {names:?}");
}

/// Lets the task of [`until`] end.
#[track_caller]
pub fn release(daemon: &TestDaemon, name: &str) {
    wait::for_reader(&daemon.home().join(name), "released\n");
}

/// Waits for the end of a task. Returns its exit.
#[track_caller]
pub fn exit_of(daemon: &TestDaemon, task: TaskId) -> Exit {
    daemon.block(&[task])[0].exit.clone().expect("it has ended")
}
