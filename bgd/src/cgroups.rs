//! Whether a cgroup v2 is delegated to the daemon, so that each task can have one of its own.

use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

/// The folder for the tasks' cgroups of one life of the daemon: a new one below the daemon's own
/// cgroup, if that is delegated to it. `None` otherwise.
pub fn prepare(instance: &str) -> Option<PathBuf> {
    let own = own_cgroup()?;
    if !is_delegated(&own) {
        return None;
    }
    let folder = own.join(format!("bgd-{instance}"));
    match fs::create_dir(&folder).and_then(|()| check(&folder)) {
        Ok(()) => Some(folder),
        Err(error) => {
            tracing::info!(path = %folder.display(), %error, "no cgroups for tasks");
            let _ = fs::remove_dir(&folder);
            None
        }
    }
}

/// Trees can only be ended at once where `cgroup.kill` is there (Linux 5.14).
fn check(folder: &Path) -> io::Result<()> {
    fs::metadata(folder.join("cgroup.kill")).map(drop)
}

/// The daemon's own cgroup in the unified hierarchy.
fn own_cgroup() -> Option<PathBuf> {
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let mount = mounts.lines().find_map(|line| {
        let (fields, kind) = line.split_once(" - ")?;
        kind.starts_with("cgroup2 ").then(|| fields.split(' ').nth(4))?
    })?;
    let groups = fs::read_to_string("/proc/self/cgroup").ok()?;
    let own = groups.lines().find_map(|line| line.strip_prefix("0::/"))?;
    Some(Path::new(mount).join(own))
}

/// A service manager delegates a cgroup by giving it to the user. To root everything belongs, so there
/// the mark that systemd leaves is asked for, and the root cgroup is never taken.
fn is_delegated(cgroup: &Path) -> bool {
    let Ok(meta) = fs::metadata(cgroup) else { return false };
    let me = nix::unistd::Uid::effective();
    if meta.uid() != me.as_raw() || !cgroup.join("cgroup.type").exists() {
        return false;
    }
    !me.is_root() || ["trusted.delegate", "user.delegate"].iter().any(|name| has_xattr(cgroup, name))
}

fn has_xattr(path: &Path, name: &str) -> bool {
    xattr::get(path, name).is_ok_and(|value| value.as_deref() == Some(b"1"))
}
