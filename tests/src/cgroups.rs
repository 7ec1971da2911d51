//! Cgroups that tests make.

use std::fs;
use std::path::{Path, PathBuf};

use bgd_shared::proc;
use rustix::fs::{XattrFlags, setxattr};

use crate::daemon::TestDaemon;
use crate::user::must_be_root;

/// A cgroup delegated the way a service manager does it.
#[derive(Debug)]
pub struct Delegated(PathBuf);

impl Delegated {
    /// Creates a cgroup below that of this process.
    #[track_caller]
    pub fn new() -> Self {
        let name =
            tempfile::tempdir().expect("a folder").path().file_name().map(std::ffi::OsStr::to_os_string);
        let path = create(&format!("bgd-test-{}", name.unwrap_or_default().display()));
        setxattr(&path, "user.delegate", b"1", XattrFlags::empty()).expect("a mark on a cgroup");
        Self(path)
    }

    pub fn path(&self) -> &Path {
        &self.0
    }

    #[track_caller]
    pub fn daemon(&self, config: &str) -> TestDaemon {
        let join = format!("echo $$ > {}/cgroup.procs", self.0.display());
        TestDaemon::builder().prelude(join).config(config).start()
    }

    /// Returns the cgroups below this one, at any depth.
    pub fn inside(&self) -> Vec<PathBuf> {
        inside(&self.0)
    }
}

impl Default for Delegated {
    fn default() -> Self {
        Self::new()
    }
}

impl Drop for Delegated {
    fn drop(&mut self) {
        // A failed test may leave further cgroups in it. They are empty, because the harness has killed all processes.
        remove(&self.0);
    }
}

/// Creates a cgroup below that of this process.
#[track_caller]
pub fn create(name: &str) -> PathBuf {
    must_be_root();
    let own = proc::cgroup_folder("self").expect("no cgroup v2 is mounted, so cgroups can't be tested here");
    let path = own.join(name);
    fs::create_dir(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    path
}

/// Returns the cgroups below this one, at any depth, each after those nested in it.
pub fn inside(path: &Path) -> Vec<PathBuf> {
    let mut found = vec![path.to_owned()];
    let mut next = 0;
    while let Some(path) = found.get(next) {
        let entries = fs::read_dir(path).into_iter().flatten().flatten();
        let nested = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        let nested: Vec<PathBuf> = nested.map(|entry| entry.path()).collect();
        found.extend(nested);
        next += 1;
    }
    found.drain(1..).rev().collect()
}

/// Removes a cgroup and all below it. Their processes must have ended.
pub fn remove(path: &Path) {
    for path in inside(path) {
        let _ = fs::remove_dir(path);
    }
    let _ = fs::remove_dir(path);
}
