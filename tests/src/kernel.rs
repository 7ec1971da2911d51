//! A machine with a kernel of its own (user-mode Linux), for features that the kernel of the tests may lack: in it
//! every controller of cgroups can be delegated, and its power can be cut. It has the files of this machine, a systemd
//! like that of [`crate::systemd`], and a disk of its own in `/run/disk`.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use tempfile::TempDir;

use crate::binaries::bgd_path;
use crate::outcome::Outcome;
use crate::process::Process;
use crate::systemd::{ALICE, BOOT};
use crate::user::must_be_root;
use crate::wait;

/// Script of the first process.
const FIRST: &str = include_str!("kernel.sh");

/// Library needed on a processor with a larger state than user-mode Linux supports.
const LARGE_STATE: &str = include_str!("kernel_ptrace.c");

const MEMORY: &str = "mem=768M";

/// How a machine ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Turned off, with all data on its disk.
    TurnedOff,
    /// By a power cut at the script's end, while everything runs: data that was not flushed is not on its disk.
    Cut,
}

/// A machine that can be booted more than once. Only its disk persists.
#[derive(Debug)]
pub struct Machine(TempDir);

impl Machine {
    /// Creates a machine with an empty disk.
    #[track_caller]
    #[allow(clippy::new_without_default, reason = "it makes files")]
    pub fn new() -> Self {
        must_be_root();
        let own = tempfile::Builder::new().prefix("bgd-kernel-").tempdir_in("/tmp").expect("a folder");
        make_disk(&own.path().join("disk"));
        Self(own)
    }

    /// Boots the machine, runs a shell script in a session of alice, whose `PATH` has the programs under test, and ends
    /// the machine.
    #[track_caller]
    pub fn run_as_alice(&self, script: &str, end: End) -> Outcome {
        let path = self.0.path();
        let put = |name: &str, text: &str| fs::write(path.join(name), text).expect("a file");
        let cut = if end == End::Cut { "\necho >/run/cut; exec sleep 1000" } else { "" };
        put("script", &format!("{script}{cut}"));
        // The part that sets up the machine; the other script decides what to start in it.
        let (boot, _) = BOOT.rsplit_once("\nexec ").expect("it ends with the start of systemd");
        put("boot", boot);
        let programs =
            bgd_path().parent().expect("a program is in a folder").canonicalize().expect("a folder");
        let (programs, folder) = (programs.display(), path.display());
        put("first", &format!("#!/bin/sh\nset -- {programs} {ALICE} '' {folder}/boot {folder}\n{FIRST}"));
        // Existing files are from the previous boot.
        for said in ["code", "stdout", "stderr"] {
            let _ = fs::remove_file(path.join(said));
        }
        let console = turn_on(path);
        let read = |name: &str| fs::read(path.join(name)).unwrap_or_default();
        let code = String::from_utf8_lossy(&read("code")).trim().parse();
        Outcome {
            code: code.unwrap_or_else(|_| panic!("the machine did not run the script: {console}")),
            stdout: read("stdout"),
            stderr: String::from_utf8_lossy(&read("stderr")).into_owned(),
        }
    }
}

/// Runs a script in a machine of its own, which is turned off afterwards.
#[track_caller]
pub fn run_as_alice(script: &str) -> Outcome {
    Machine::new().run_as_alice(script, End::TurnedOff)
}

fn make_disk(path: &Path) {
    File::create(path).and_then(|disk| disk.set_len(64 << 20)).expect("a file");
    Outcome::of(Command::new("/sbin/mkfs.ext4").arg("-q").arg(path)).success();
}

/// Builds the library that the machine must preload, if it needs one.
#[track_caller]
fn make_preloaded(folder: &Path) -> Option<PathBuf> {
    let about = fs::read_to_string("/proc/cpuinfo").expect("the kernel tells of its processors");
    if !about.contains(" amx_tile") {
        return None;
    }
    let (source, library) = (folder.join("ptrace.c"), folder.join("ptrace.so"));
    fs::write(&source, LARGE_STATE).expect("a file");
    let mut cc = Command::new("cc");
    Outcome::of(cc.args(["-O2", "-shared", "-fPIC", "-o"]).args([&library, &source])).success();
    Some(library)
}

/// Runs the machine until it is off. Returns its console output.
#[track_caller]
fn turn_on(folder: &Path) -> String {
    let make = |name: &str| File::create(folder.join(name)).expect("a file");
    fs::set_permissions(folder, std::os::unix::fs::PermissionsExt::from_mode(0o755)).expect("own folder");
    fs::set_permissions(folder.join("first"), std::os::unix::fs::PermissionsExt::from_mode(0o755))
        .expect("own file");
    let mut command = Command::new("linux.uml");
    command.args([MEMORY, "root=/dev/root", "rootfstype=hostfs", "rootflags=/", "rw", "quiet"]);
    command.args(["con=null", "con0=fd:0,fd:1"]).arg(format!("umid={}", std::process::id()));
    command.arg(format!("ubd0={}", folder.join("disk").display()));
    command.arg(format!("uml_dir={}", folder.display()));
    command.arg(format!("init={}", folder.join("first").display()));
    command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("TMPDIR", folder);
    command.envs(make_preloaded(folder).map(|library| ("LD_PRELOAD", library)));
    command.stdin(Stdio::null()).stdout(make("console")).stderr(make("errors"));
    let mut kernel = command.spawn().expect("linux.uml, which tests/run installs");
    let process = Process::open(kernel.id().cast_signed()).expect("a child that was not waited for");
    let is_off = process.wait_gone(wait::PATIENCE);
    if !is_off {
        let _ = kernel.kill();
    }
    kernel.wait().expect("a child can be waited for");
    let said = ["console", "errors"].map(|name| fs::read(folder.join(name)).unwrap_or_default());
    let said = said.map(|text| String::from_utf8_lossy(&text).into_owned()).join("\n");
    assert!(is_off, "the machine does not turn itself off: {said}");
    said
}
