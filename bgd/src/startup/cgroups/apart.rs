//! The place for the tasks of a durable daemon started by a service manager. All processes in the unit's cgroup end
//! with the unit, so the keeper and the tasks are in a separate scope. The scope lives as long as one of them does; the
//! next daemon finds it through the keeper in it.

use std::io;
use std::path::{Path, PathBuf};

use bgd_shared::proc;
use rustix::fs::{Access, access};

use super::{Delegation, LEAF, PROCS, account, is_mine, is_service, make, move_to, own_cgroup, unit_of};
use crate::config::TreeMode;
use crate::keeper::client::Keeper;
use crate::startup::scope;

impl Delegation {
    /// Moves the tasks' place if the daemon is a service: to the scope that its keeper is in, or a new one. If there is
    /// none, the tasks stay in the unit, and `reason` explains that. `life` is the ID of this run of the daemon. Takes
    /// at most [`scope::PATIENCE`].
    pub async fn move_apart(&mut self, mode: TreeMode, keeper: &Keeper, life: &str) {
        if !is_service() {
            return;
        }
        match find(mode, keeper.socket().pid, life).await {
            Ok(scope) => {
                let name = scope.file_name().unwrap_or_default().display();
                let reason = format!("in {name}, which outlives the unit that started bgd");
                *self = Self::delegated(scope, reason);
            }
            Err(why) => {
                tracing::warn!(why, "the tasks can't outlive the unit that started bgd");
                self.reason = format!("{}, whose end ends the tasks here: {why}", self.reason);
            }
        }
    }
}

/// Reports whether tasks with cgroups in this folder outlive the daemon's unit, if it is in any.
pub fn can_leave(folder: Option<&Path>) -> bool {
    !is_service() || folder.is_some_and(is_apart)
}

fn is_apart(folder: &Path) -> bool {
    own_cgroup().is_some_and(|own| !folder.starts_with(unit_of(&own)))
}

/// Has every keeper that replaces this one moved to the scope that contains this folder of the tasks' cgroups, if the
/// scope is apart from the daemon's unit.
pub fn keep(keeper: &Keeper, folder: Option<&Path>) {
    let Some(folder) = folder.filter(|folder| is_service() && is_apart(folder)).map(Path::to_owned) else {
        return;
    };
    keeper.place_next(move |pid| place(pid, &folder));
}

fn place(keeper: i32, folder: &Path) -> io::Result<()> {
    let scope = folder.parent().ok_or(io::ErrorKind::InvalidInput)?;
    let name = scope.file_name().and_then(|name| name.to_str()).ok_or(io::ErrorKind::InvalidInput)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    match runtime.block_on(scope::is_active(name)).map_err(io::Error::other)? {
        Some(true) => [&*scope.join(LEAF), scope]
            .into_iter()
            .map(|cgroup| move_to(cgroup, keeper))
            .find(Result::is_ok)
            .unwrap_or_else(|| Err(io::Error::other(format!("cannot move it to {name}"))))?,
        // A process moved there now would end with the scope.
        Some(false) => return Err(io::Error::other(format!("{name} is about to end"))),
        None => runtime
            .block_on(scope::put(keeper.cast_unsigned(), name, own_unit().as_deref()))
            .map_err(io::Error::other)?,
    }
    make(folder)?;
    account(scope, folder, Some(keeper));
    Ok(())
}

/// Returns the cgroup of the scope for the tasks.
async fn find(mode: TreeMode, keeper: i32, life: &str) -> Result<PathBuf, String> {
    if mode == TreeMode::Session {
        return Err("only tasks with cgroups can be separate from it".to_owned());
    }
    if let Some(scope) = scope_of(keeper) {
        return usable(scope);
    }
    let name = format!("bgd-tasks-{life}.scope");
    scope::put(keeper.cast_unsigned(), &name, own_unit().as_deref()).await?;
    let scope = scope_of(keeper).filter(|scope| scope.ends_with(&name));
    scope.ok_or_else(|| format!("its keeper is not in {name}")).and_then(usable)
}

/// Returns the name of the service that this process is in.
fn own_unit() -> Option<String> {
    let own = own_cgroup()?;
    let name = unit_of(&own).file_name()?.to_str()?;
    name.ends_with(".service").then(|| name.to_owned())
}

/// Returns the scope that a keeper is in, if a daemon created it.
fn scope_of(keeper: i32) -> Option<PathBuf> {
    let cgroup = proc::cgroup_folder(keeper)?;
    let scope = unit_of(&cgroup);
    let name = scope.file_name()?.to_str()?;
    name.strip_suffix(".scope").filter(|name| name.starts_with("bgd-")).map(|_| scope.to_owned())
}

/// Checks that the daemon's processes can be moved to a scope: the kernel also requires that the common ancestor cgroup
/// is writable.
fn usable(scope: PathBuf) -> Result<PathBuf, String> {
    let own = own_cgroup().ok_or("no cgroup v2 is mounted here")?;
    let above = own.ancestors().find(|above| scope.starts_with(above)).unwrap_or(&own);
    let procs = above.join(PROCS);
    match access(&procs, Access::WRITE_OK) {
        Ok(()) if is_mine(&scope) => Ok(scope),
        Ok(()) => Err(format!("{} belongs to another user", scope.display())),
        Err(error) => Err(format!("{}: {error}", procs.display())),
    }
}
