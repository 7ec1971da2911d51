//! Tests that need root, or a user other than root. Without root, `tests/run` skips them by their names and reports
//! that, so a name that does not indicate the test's needs is a failure.

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use rustix::process::{Gid, Uid, geteuid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};
use tempfile::TempDir;

use crate::binaries::{bgctl_path, bgd_path};
use crate::daemon::TestDaemon;
use crate::{executable, parallel};

/// The suffix of the names of tests that need root.
const AS_ROOT: &str = "_as_root";

/// Part of the names of tests that need a disk of their own. Mounting it requires root or permission to create a user
/// namespace.
const FULL_DISK: &str = "full_disk";

/// Fails the test with a clear message unless root runs it.
#[track_caller]
pub fn must_be_root() {
    must_be_called(|test| test.ends_with(AS_ROOT), AS_ROOT);
    assert!(geteuid().is_root(), "this test changes users or makes cgroups: run it as root");
}

/// Fails a test whose name does not indicate its needs.
#[track_caller]
fn must_be_called(is_so: impl FnOnce(&str) -> bool, mark: &str) {
    // A test that runs alone runs in the main thread, which has another name.
    if let Some(test) = thread::current().name().filter(|name| name.contains("::")) {
        assert!(is_so(test), "{test} needs {mark} in its name, by which tests/run knows who can run it");
    }
}

/// Returns a uid that nothing on this machine runs as, a different one each time.
pub fn unused_uid() -> u32 {
    static TAKEN: AtomicU32 = AtomicU32::new(0);
    // A pid has at most 22 bits.
    200_000 + std::process::id() * UIDS + TAKEN.fetch_add(1, Ordering::Relaxed) % UIDS
}

/// Number of uids available to the tests of a process.
const UIDS: u32 = 64;

/// Copies of the programs that every user can run, regardless of the location of the build folder.
#[derive(Debug)]
pub struct Programs(TempDir);

impl Programs {
    #[track_caller]
    pub fn copy() -> Self {
        let folder = tempfile::Builder::new().prefix("bgd-programs-").tempdir_in("/tmp").expect("a folder");
        let open = |path: &Path| fs::set_permissions(path, fs::Permissions::from_mode(0o755));
        open(folder.path()).expect("a folder of this user");
        for program in [bgd_path(), bgctl_path()] {
            let copy = folder.path().join(program.file_name().expect("a program has a name"));
            executable::copy(&program, &copy);
        }
        Self(folder)
    }

    /// Returns the folder with `bgd` and `bgctl`.
    pub fn path(&self) -> &Path {
        self.0.path()
    }

    /// Returns the end of a prelude that runs the copied daemon instead of the built one.
    pub fn exec(&self) -> String {
        format!("exec {}/bgd \"$@\" 3>&1 >/dev/null", self.path().display())
    }
}

/// Runs a job as a user who is not root: as another user if necessary.
#[track_caller]
pub fn not_as_root<T: Send>(uid: u32, job: impl FnOnce() -> T + Send) -> T {
    if geteuid().is_root() { switch(uid, job) } else { job() }
}

/// Runs a job, and everything it starts, as another user: the kernel keeps the uid per thread.
#[track_caller]
pub fn as_user<T: Send>(uid: u32, job: impl FnOnce() -> T + Send) -> T {
    must_be_root();
    switch(uid, job)
}

#[track_caller]
fn switch<T: Send>(uid: u32, job: impl FnOnce() -> T + Send) -> T {
    // Building the programs, if necessary, needs the user who runs the tests.
    bgd_path();
    let switch_and_do = || {
        let (user, group) = (Uid::from_raw(uid), Gid::from_raw(uid));
        set_thread_groups(&[]).expect("root may leave groups");
        set_thread_res_gid(group, group, group).expect("root may change groups");
        set_thread_res_uid(user, user, user).expect("root may change users");
        job()
    };
    thread::scope(|scope| match parallel::namesake(scope, switch_and_do).join() {
        Ok(value) => value,
        Err(panic) => std::panic::resume_unwind(panic),
    })
}

/// Starts a daemon with a small disk of its own under its state folder. The disk is in a mount namespace, so it
/// disappears with the last process in there.
#[track_caller]
pub fn on_a_small_disk(options: &str) -> TestDaemon {
    on_a_small_disk_with(options, "")
}

/// Like [`on_a_small_disk`], with this configuration.
#[track_caller]
pub fn on_a_small_disk_with(options: &str, config: &str) -> TestDaemon {
    on_a_small_disk_as(options, config, "true")
}

/// Fills the small disk of a daemon. Returns the path of the file that does so.
#[track_caller]
pub fn fill_disk(daemon: &TestDaemon) -> PathBuf {
    let fill = filler_of(daemon);
    let mut filler = fs::File::create(&fill).expect("a file on the small disk");
    while filler.write_all(&[0; 4096]).is_ok() {}
    fill
}

/// Returns the path of the file that fills the disk, as seen by the running daemon.
pub fn filler_of(daemon: &TestDaemon) -> PathBuf {
    format!("/proc/{}/root{}/fill", daemon.pid(), daemon.state_dir().display()).into()
}

/// Makes later daemons in this home use the small disk of this one, which the process `kept_by` of a task keeps until
/// then.
#[track_caller]
pub fn keep_disk(daemon: &TestDaemon, kept_by: i32) {
    fs::write(daemon.home().join(INSIDE), kept_by.to_string()).expect("a file in the home of a test");
}

/// The file in a test's home that names the process whose disk the next daemon gets.
const INSIDE: &str = "inside";

/// Like [`on_a_small_disk_with`], after this line of shell without single quotes has run on the disk.
#[track_caller]
pub fn on_a_small_disk_as(options: &str, config: &str, line: &str) -> TestDaemon {
    must_be_called(|test| test.contains(FULL_DISK), FULL_DISK);
    let mount = format!(
        "mount -t tmpfs -o mode=700,{options} none \"$XDG_STATE_HOME\" && {line} && exec \"$0\" \"$@\""
    );
    // Without root, a user namespace makes this user root inside, where it may mount.
    let is_root = geteuid().is_root();
    let how = if is_root { "--mount" } else { "--map-root-user --mount" };
    let enter = if is_root { "--mount" } else { "--user --preserve-credentials --mount" };
    let prelude = format!(
        "if [ -e \"$HOME/{INSIDE}\" ]; then
            exec nsenter {enter} --target \"$(cat \"$HOME/{INSIDE}\")\" \"$0\" \"$@\" 3>&1 >/dev/null
        fi
        exec unshare {how} sh -c '{mount}' \"$0\" \"$@\" 3>&1 >/dev/null"
    );
    TestDaemon::builder().config(config).prelude(prelude).start()
}
