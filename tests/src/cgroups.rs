//! Cgroups that tests make.

use std::fs;
use std::path::{Path, PathBuf};

use crate::user::must_be_root;

/// Makes a cgroup inside the one of this process.
#[track_caller]
pub fn create(name: &str) -> PathBuf {
    must_be_root();
    let mounts = fs::read_to_string("/proc/self/mountinfo").expect("/proc is there");
    let mount = mounts.lines().find_map(|line| {
        let (fields, kind) = line.split_once(" - ")?;
        kind.starts_with("cgroup2 ").then(|| fields.split(' ').nth(4))?
    });
    let mount = mount.expect("no cgroup v2 is mounted, so cgroups can't be tested here");
    let own = fs::read_to_string("/proc/self/cgroup").expect("/proc is there");
    let own = own.lines().find_map(|line| line.strip_prefix("0::/")).expect("a cgroup v2");
    let path = Path::new(mount).join(own).join(name);
    fs::create_dir(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    path
}

/// The cgroups inside this one, at any depth, the deepest first.
pub fn inside(path: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in fs::read_dir(path).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            found.extend(inside(&entry.path()));
            found.push(entry.path());
        }
    }
    found
}

/// Removes a cgroup with all inside. Their processes have ended.
pub fn remove(path: &Path) {
    for path in inside(path) {
        let _ = fs::remove_dir(path);
    }
    let _ = fs::remove_dir(path);
}
