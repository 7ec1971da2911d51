//! The root of a small Debian system without bgd. `tests/run` makes it and each test gets a copy, so that comparing its
//! files shows the effects of a package.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use tempfile::TempDir;

use crate::binaries::target_folder;
use crate::outcome::Outcome;
use crate::user::must_be_root;

/// Files that change even if no package remains: the records of dpkg, and the index of man.
const RECORDS: &[&str] = &[
    "var/lib/dpkg/lock",
    "var/lib/dpkg/lock-frontend",
    "var/lib/dpkg/status",
    "var/lib/dpkg/status-old",
    "var/lib/dpkg/diversions-old",
    "var/lib/dpkg/statoverride-old",
    "var/lib/dpkg/triggers",
    "var/log/dpkg.log",
    "var/cache/man",
    "var/lib/systemd/timers",
    "var/lib/systemd/random-seed",
    "var/log/journal",
];

/// Enters a root: its folder, a script, and files for its `/tmp`.
const ENTER: &str = "root=$1 script=$2; shift 2
    mount -t tmpfs none $root/tmp
    mkdir -p $root/tmp/run
    [ $# -eq 0 ] || cp -r \"$@\" $root/tmp
    path=/root/.cargo/bin:/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin
    exec chroot $root /usr/bin/env -i HOME=/root PATH=$path SHELL=/bin/bash \\
        XDG_RUNTIME_DIR=/tmp/run XDG_STATE_HOME=/tmp/state /bin/sh -euc \"$script\"";

/// A copy of the system's files, which is removed when it is dropped.
#[derive(Debug)]
pub struct Root(TempDir);

impl Root {
    #[track_caller]
    pub fn unpack() -> Self {
        must_be_root();
        let archive = target_folder().join("root/root.tar");
        assert!(archive.is_file(), "{} is missing; tests/run makes it as root", archive.display());
        let folder = tempfile::Builder::new().prefix("bgd-root-").tempdir_in("/tmp").expect("a folder");
        let mut tar = Command::new("tar");
        tar.arg("-C").arg(folder.path()).arg("-xpf").arg(archive);
        Outcome::of(&mut tar).success();
        Self(folder)
    }

    /// Returns the folder of the copy.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Returns every file with the properties that show whether it was written: its kind, mode, owner, size and time; a
    /// folder without a time, which changes with its entries.
    pub fn files(&self) -> BTreeMap<PathBuf, String> {
        let mut files = BTreeMap::new();
        let mut folders = vec![self.path().to_owned()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(&folder).expect("a folder").flatten() {
                let path = entry.path();
                let name = path.strip_prefix(self.path()).expect("it is in here").to_owned();
                if RECORDS.iter().any(|record| name == Path::new(record)) {
                    continue;
                }
                let Ok(status) = entry.metadata() else { continue };
                let of = (status.mode(), status.uid(), status.gid());
                let text = if status.is_dir() {
                    folders.push(path);
                    format!("{of:?}")
                } else {
                    format!("{of:?} {} {}.{}", status.size(), status.mtime(), status.mtime_nsec())
                };
                files.insert(name, text);
            }
        }
        files
    }

    /// Asserts that the files have not changed.
    #[track_caller]
    pub fn expect_files(&self, before: &BTreeMap<PathBuf, String>) {
        let after = self.files();
        let differs = |path: &&PathBuf| before.get(*path) != after.get(*path);
        let mut paths: Vec<_> = before.keys().chain(after.keys()).filter(differs).collect();
        paths.sort();
        paths.dedup();
        assert!(paths.is_empty(), "a trace is left: {paths:?}");
    }

    /// Runs a shell script in the copy as root, as on a machine with nothing but these files. `/tmp` is new, contains
    /// `files`, and disappears at the end, together with all processes.
    #[track_caller]
    pub fn run(&self, files: &[&Path], script: &str) -> Outcome {
        must_be_root();
        let mut command = Command::new("unshare");
        command.arg("-pfm").arg(format!("--mount-proc={}", self.path().join("proc").display()));
        command.args(["--kill-child", "/bin/sh", "-euc", ENTER, "sh"]);
        command.arg(self.path()).arg(script).args(files);
        Outcome::of(&mut command)
    }
}
