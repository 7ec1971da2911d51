//! Determines whether a cgroup v2 is delegated to the daemon, so that each task can have its own.
//!
//! A cgroup delegated by a service unit is used as it is. Any other daemon first asks the systemd user manager for a
//! scope of its own: the cgroup that it was started in belongs to its starter and may end with it. Tasks that must
//! outlive a unit are in a scope [apart] from it.

pub mod apart;

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Instant;

use bgd_shared::proc;

use crate::config::TreeMode;
use crate::exec::processes::cgroup;
use crate::startup::scope::{self, Unit};

/// The daemon's place in the cgroup hierarchy.
#[derive(Debug)]
pub struct Delegation {
    /// The daemon's cgroup, if it is delegated to the daemon.
    delegated: Option<PathBuf>,
    /// The reason for the choice, as a sentence without a full stop.
    pub reason: String,
}

/// The cgroup within the delegated one that the daemon moves to: controllers can be enabled for the tasks' cgroups only
/// while there is no process in the cgroup above them.
const LEAF: &str = "bgd";
/// The controllers that account for the resource usage of a whole tree. None of them limits anything by itself.
const ACCOUNTING: [&str; 2] = ["memory", "io"];

/// The name in `daemon.status` for process trees kept in cgroups.
const CGROUP: &str = "cgroup";
/// The name for process trees kept in sessions.
const SESSION: &str = "session";

/// Returns the tree mode of the program before an upgrade under its name in `daemon.status`.
pub fn tree_name(name: &str) -> &'static str {
    if name == CGROUP { CGROUP } else { SESSION }
}

impl Delegation {
    fn delegated(cgroup: PathBuf, reason: impl Into<String>) -> Self {
        Self { delegated: Some(cgroup), reason: reason.into() }
    }

    fn not_delegated(reason: impl Into<String>) -> Self {
        Self { delegated: None, reason: reason.into() }
    }

    /// Determines the daemon's place, and has the daemon moved if necessary. Takes at most [`scope::PATIENCE`].
    pub async fn find(mode: TreeMode, instance: &str) -> Self {
        if mode == TreeMode::Session {
            return Self::not_delegated("set in the configuration");
        }
        let Some(own) = unit_cgroup() else { return Self::not_delegated("no cgroup v2 is mounted here") };
        if is_service() {
            return if is_delegated(&own) {
                Self::delegated(own, "in the cgroup of the unit that started bgd")
            } else {
                Self::not_delegated("the unit that started bgd does not set Delegate=yes")
            };
        }
        let refusal = match scope::enter(instance, task_cgroup(&own).is_none()).await {
            Ok(Unit::Own(name)) => match unit_cgroup().filter(|own| own.ends_with(&name) && is_mine(own)) {
                Some(own) => {
                    return Self::delegated(own, format!("delegated by the systemd user manager as {name}"));
                }
                None => format!("the systemd user manager created {name}, but its cgroup can't be used here"),
            },
            Ok(Unit::Delegated) if is_mine(&own) => {
                return Self::delegated(own, "already delegated where bgd was started");
            }
            Ok(Unit::Delegated) => "the cgroup where bgd was started can't be used".to_owned(),
            Err(refusal) => refusal,
        };
        leave_task(&own);
        match unit_cgroup().filter(|own| is_delegated(own)) {
            Some(own) => Self::delegated(own, format!("already delegated where bgd was started; {refusal}")),
            None => Self::not_delegated(refusal),
        }
    }

    /// Creates the directory for the tasks' cgroups of this instance below the daemon's own cgroup; `None` if that is
    /// not delegated or can't be used. Has the kernel account for the tasks' resource usage as far as possible.
    /// `keeper` is the PID of the daemon's keeper.
    pub fn prepare(&mut self, instance: &str, keeper: Option<i32>) -> Option<PathBuf> {
        let unit = self.delegated.as_ref()?;
        let folder = unit.join(folder_name(instance));
        match make(&folder).and_then(|()| check(&folder)) {
            Ok(()) => {
                account(unit, &folder, keeper);
                Some(folder)
            }
            Err(error) => {
                tracing::info!(path = %folder.display(), %error, "no cgroups for tasks");
                let _ = fs::remove_dir(&folder);
                self.reason = format!("no cgroups can be used in {}: {error}", folder.display());
                self.delegated = None;
                None
            }
        }
    }

    /// Returns how process trees are tracked: `cgroup` or `session`.
    pub fn tree(&self) -> &'static str {
        if self.delegated.is_some() { CGROUP } else { SESSION }
    }
}

/// Removes the directory for the tasks' cgroups, and undoes the other changes of [`Delegation::prepare`]. Waits for
/// processes that have ended to leave it, until the deadline at most.
pub fn leave(folder: &Path, deadline: Instant) {
    cgroup::remove_by(folder, deadline);
    if let Some(unit) = folder.parent() {
        undo_accounting(unit, &[std::process::id().cast_signed()]);
    }
}

/// Creates the directory for the tasks' cgroups, unless it exists.
fn make(folder: &Path) -> io::Result<()> {
    fs::create_dir(folder).or_else(|error| match error.kind() {
        // It may still contain tasks left by a durable daemon.
        io::ErrorKind::AlreadyExists => Ok(()),
        _ => Err(error),
    })
}

/// Enables the available controllers that account for the tasks below `folder`.
fn account(unit: &Path, folder: &Path, keeper: Option<i32>) {
    // The daemon's processes in this unit; each may be in another one instead.
    let residents = [Some(std::process::id().cast_signed()), keeper].into_iter().flatten();
    let residents =
        residents.filter(|pid| proc::cgroup_folder(pid).is_some_and(|cgroup| unit_of(&cgroup) == unit));
    if let Err(error) = enable(unit, folder, &residents.collect::<Vec<_>>()) {
        tracing::info!(cgroup = %unit.display(), %error, "no controllers for the tasks' cgroups");
    }
}

/// Enables the controllers. `residents`, the daemon's processes in the unit, must move to a separate cgroup for that,
/// but only do so if there is any such controller.
fn enable(unit: &Path, folder: &Path, residents: &[i32]) -> io::Result<()> {
    let known = fs::read_to_string(unit.join("cgroup.controllers"))?;
    let controllers: Vec<&str> =
        ACCOUNTING.into_iter().filter(|name| known.split_whitespace().any(|known| known == *name)).collect();
    if controllers.is_empty() {
        return Ok(());
    }
    let leaf = leaf_of(unit)?;
    residents.iter().try_for_each(|pid| move_to(&leaf, *pid))?;
    let enable = |name: &&str| {
        let on = format!("+{name}");
        [unit, folder].into_iter().try_for_each(|path| fs::write(path.join(SUBTREE), &on))
    };
    let results: Vec<io::Result<()>> = controllers.iter().map(enable).collect();
    if results.iter().any(Result::is_ok) {
        return Ok(());
    }
    // Another process is in the delegated cgroup, such as the shell that started the daemon.
    undo_accounting(unit, residents);
    results.into_iter().collect()
}

/// The file with the controllers enabled for child cgroups.
const SUBTREE: &str = "cgroup.subtree_control";

/// Moves the daemon's processes back into the delegated cgroup. Steps that affect another daemon's needs fail, without
/// effect.
fn undo_accounting(unit: &Path, residents: &[i32]) {
    let leaf = unit.join(LEAF);
    let there = |pid: &&i32| proc::cgroup_folder(pid).is_some_and(|cgroup| cgroup == leaf);
    let residents: Vec<&i32> = residents.iter().filter(there).collect();
    if residents.is_empty() {
        return;
    }
    for name in ACCOUNTING {
        let _ = fs::write(unit.join(SUBTREE), format!("-{name}"));
    }
    if residents.into_iter().try_for_each(|pid| move_to(unit, *pid)).is_ok() {
        let _ = fs::remove_dir(leaf);
    }
}

/// Returns the daemon's own cgroup within the delegated one, creating it if necessary. It may be shared with another
/// daemon.
fn leaf_of(unit: &Path) -> io::Result<PathBuf> {
    let leaf = unit.join(LEAF);
    match fs::create_dir(&leaf) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(leaf),
    }
}

fn move_to(cgroup: &Path, pid: i32) -> io::Result<()> {
    fs::write(cgroup.join(PROCS), pid.to_string())
}

/// The file with the processes in a cgroup.
const PROCS: &str = "cgroup.procs";

fn folder_name(instance: &str) -> String {
    format!("bgd-{instance}")
}

/// Checks for `cgroup.kill` (Linux 5.14), without which a tree can't be ended at once.
fn check(folder: &Path) -> io::Result<()> {
    fs::metadata(folder.join("cgroup.kill")).map(drop)
}

/// Reports whether a service manager started this very process; in that case its place is up to that unit.
pub(super) fn is_service() -> bool {
    let is_me = |name: &str| std::env::var(name).is_ok_and(|pid| pid == std::process::id().to_string());
    // `NOTIFY_SOCKET` covers managers that do not set `SYSTEMD_EXEC_PID` (systemd before 248).
    is_me("SYSTEMD_EXEC_PID") || is_me("LISTEN_PID") || std::env::var_os("NOTIFY_SOCKET").is_some()
}

/// Returns the daemon's own cgroup in the unified hierarchy.
fn own_cgroup() -> Option<PathBuf> {
    proc::cgroup_folder("self")
}

/// Returns the cgroup that may be delegated to the daemon: its own, or the parent if a daemon has moved its processes
/// into a leaf.
fn unit_cgroup() -> Option<PathBuf> {
    own_cgroup().map(|own| unit_of(&own).to_owned())
}

fn unit_of(own: &Path) -> &Path {
    match own.parent() {
        Some(unit) if own.ends_with(LEAF) => unit,
        _ => own,
    }
}

/// Reports whether a cgroup is delegated to the daemon. A service manager delegates a cgroup by giving it to the user.
/// As root owns everything, systemd's mark is also required for root; the root cgroup is never used.
fn is_delegated(cgroup: &Path) -> bool {
    let is_root = nix::unistd::Uid::effective().is_root();
    is_mine(cgroup)
        && (!is_root || ["trusted.delegate", "user.delegate"].iter().any(|name| has_xattr(cgroup, name)))
}

/// Reports whether cgroups can be created in this one.
fn is_mine(cgroup: &Path) -> bool {
    let Ok(meta) = fs::metadata(cgroup) else { return false };
    meta.uid() == nix::unistd::Uid::effective().as_raw() && cgroup.join("cgroup.type").exists()
}

fn has_xattr(path: &Path, name: &str) -> bool {
    xattr::get(path, name).is_ok_and(|value| value.as_deref() == Some(b"1"))
}

/// Returns the cgroup `…/bgd-INSTANCE/TASK` of another daemon's task, if this process is inside one.
fn task_cgroup(own: &Path) -> Option<&Path> {
    let is_uuid = |text: &str| uuid::Uuid::try_parse(text).is_ok();
    let name = |path: &Path| path.file_name().and_then(|name| name.to_str()).map(str::to_owned);
    own.ancestors().find(|path| {
        name(path).is_some_and(|name| is_uuid(&name))
            && path.parent().and_then(name).is_some_and(|name| name.strip_prefix("bgd-").is_some_and(is_uuid))
    })
}

/// Leaves the cgroup of another daemon's task: a daemon started from within a task is not part of it.
fn leave_task(own: &Path) {
    let Some(outside) = task_cgroup(own).and_then(Path::parent).and_then(Path::parent) else { return };
    // While controllers are enabled there, processes can only be in child cgroups.
    let pid = std::process::id().cast_signed();
    let leave = || move_to(outside, pid).or_else(|_| move_to(&leaf_of(outside)?, pid));
    if let Err(error) = leave() {
        tracing::warn!(path = %outside.display(), %error, "cannot leave the cgroup of another daemon's task");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn daemon_leaf_cgroup_belongs_to_its_unit() {
        for (own, unit) in [
            ("/sys/fs/cgroup/user/x.scope/bgd", "/sys/fs/cgroup/user/x.scope"),
            ("/sys/fs/cgroup/user/x.scope", "/sys/fs/cgroup/user/x.scope"),
            ("/sys/fs/cgroup/bgd.service", "/sys/fs/cgroup/bgd.service"),
        ] {
            assert_eq!(unit_of(Path::new(own)), Path::new(unit));
        }
    }

    #[test]
    fn task_cgroup_of_another_daemon_is_recognized() {
        let id = "3f2a8c1e-0d5b-4a77-9b1c-5d3e2f1a0b9c";
        let tasks = format!("/sys/fs/cgroup/user/x.service/bgd-{id}");
        let task = format!("{tasks}/{id}");
        assert_eq!(task_cgroup(Path::new(&task)), Some(Path::new(&task)));
        assert_eq!(task_cgroup(Path::new(&format!("{task}/deep/er"))), Some(Path::new(&task)));
        for other in
            [tasks.as_str(), "/sys/fs/cgroup", "/sys/fs/cgroup/bgd-x/y", &format!("/a/bgd-{id}.scope/{id}")]
        {
            assert_eq!(task_cgroup(Path::new(other)), None, "{other}");
        }
    }
}
