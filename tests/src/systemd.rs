//! A complete systemd in its own namespaces, with the system bus, logind, and a user `alice` who can log in and then
//! has a systemd user manager.
//!
//! It boots in less than a second, so each test has its own. Everything in it ends with its first process.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::os::fd::AsFd as _;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::fs::chown;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use crate::binaries::bgd_path;
use crate::cgroups;
use crate::outcome::Outcome;
use crate::process::{Process, living_processes};
use crate::user::must_be_root;
use crate::wait;

/// Script of the first process before it becomes systemd.
pub(crate) const BOOT: &str = include_str!("systemd.sh");

/// Number of machines that this process has booted, to make their names unique.
static BOOTED: AtomicU32 = AtomicU32::new(0);

/// The uid of the user `alice`. No other user of the machine has it.
pub const ALICE: u32 = 290_000;

/// A machine of its own, as far as systemd can tell.
#[derive(Debug)]
pub struct Systemd {
    unshare: Child,
    init: Process,
    /// The root of its cgroups, as this process sees it.
    cgroup: PathBuf,
}

impl Systemd {
    /// Boots a machine with the files of this one and the programs under test, and waits until it reports that it is
    /// ready.
    #[track_caller]
    pub fn boot() -> Self {
        Self::boot_from(None)
    }

    /// Boots a machine with the files in this folder, which contains only a Debian system.
    #[track_caller]
    pub fn boot_in(root: &Path) -> Self {
        Self::boot_from(Some(root))
    }

    #[track_caller]
    fn boot_from(root: Option<&Path>) -> Self {
        must_be_root();
        let name =
            format!("bgd-test-systemd-{}-{}", std::process::id(), BOOTED.fetch_add(1, Ordering::Relaxed));
        let word = SocketAddr::from_abstract_name(&name).expect("a name");
        let word = UnixDatagram::bind_addr(&word).expect("a socket that nobody has");
        word.set_read_timeout(Some(wait::PATIENCE)).expect("a socket");
        let cgroup = cgroups::create(&name);

        let mut command = Command::new("/bin/sh");
        let join = format!("echo $$ >{}/cgroup.procs && exec \"$@\"", cgroup.display());
        command.args([
            "-c",
            &join,
            "sh",
            "unshare",
            "-pfmuC",
            "--mount-proc",
            "--kill-child",
            "/bin/sh",
            "-c",
        ]);
        command.args([BOOT, "sh"]);
        match root {
            None => {
                let programs = bgd_path().parent().expect("a program is in a folder").canonicalize();
                command.arg(programs.expect("a folder")).arg(ALICE.to_string()).arg("");
            }
            Some(root) => {
                command.arg("").arg(ALICE.to_string()).arg(root);
            }
        }
        command.env("NOTIFY_SOCKET", format!("@{name}")).stdin(Stdio::null());
        let unshare = command.spawn().expect("/bin/sh can be run");
        let mut said = [0; 4096];
        loop {
            let length =
                word.recv(&mut said).unwrap_or_else(|error| panic!("systemd does not boot: {error}"));
            if said[..length].starts_with(b"READY=1") {
                break;
            }
        }
        let children = format!("/proc/{0}/task/{0}/children", unshare.id());
        let children = fs::read_to_string(children).expect("unshare runs");
        let init = children.trim().parse().ok().and_then(Process::open).expect("unshare has one child");
        Self { unshare, init, cgroup }
    }

    /// Returns a path of the machine, as this process sees it.
    pub fn path(&self, path: &str) -> PathBuf {
        self.init.proc("root").join(path.trim_start_matches('/'))
    }

    /// Prepares a command that runs in the machine as root, without a login session.
    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["-t", &self.init.pid().to_string(), "-p", "-m", "-C", "--"]).args(words);
        command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
        command
    }

    /// Runs a command in the machine as root.
    #[track_caller]
    pub fn run(&self, words: &[&str]) -> Outcome {
        Outcome::of(&mut self.command(words))
    }

    /// Logs alice in and waits until she can type.
    #[track_caller]
    pub fn login(&self) -> Session<'_> {
        let mut command = self.command(&["su", "-l", "alice", "-c", "exec sh"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut su = command.spawn().expect("nsenter can be run");
        let mut input = su.stdin.take().expect("a pipe");
        let answers = BufReader::new(su.stdout.take().expect("a pipe"));
        input.write_all(b"export PATH=/run/programs:$PATH; echo in\n").expect("su runs");
        let mut session = Session { machine: self, su, input: Some(input), answers };
        assert_eq!(session.answer(), "in", "alice can't log in");
        session
    }

    /// Waits until alice's runtime folder is gone, which happens when her last session has ended.
    #[track_caller]
    pub fn logged_out(&self) {
        wait::for_no_file(&self.path(&runtime_folder()));
    }

    pub fn processes(&self) -> Vec<Process> {
        let namespace = |pid: i32| fs::read_link(format!("/proc/{pid}/ns/pid")).ok();
        let own = namespace(self.init.pid());
        living_processes(|process| {
            namespace(process.pid()) == own && process.status_value("Uid") == Some(ALICE.into())
        })
    }

    /// Returns the process of alice with this pid inside the machine.
    #[track_caller]
    pub fn process(&self, inside: i32) -> Process {
        let is_it = |process: &Process| number_inside(process) == Some(inside);
        self.processes().into_iter().find(is_it).unwrap_or_else(|| panic!("alice has no process {inside}"))
    }
}

/// Returns the pid of a process in its innermost namespace.
fn number_inside(process: &Process) -> Option<i32> {
    let status = fs::read_to_string(process.proc("status")).ok()?;
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    numbers.split_whitespace().last()?.parse().ok()
}

pub fn runtime_folder() -> String {
    format!("/run/user/{ALICE}")
}

impl Drop for Systemd {
    fn drop(&mut self) {
        // The end of `unshare` ends the first process, and that ends everything.
        let _ = self.unshare.kill().and_then(|()| self.unshare.wait());
        let ended = self.init.wait_gone(wait::PATIENCE);
        cgroups::remove(&self.cgroup);
        assert!(ended || std::thread::panicking(), "systemd does not end");
    }
}

/// A shell of alice in a logind session. It ends when it is dropped.
#[derive(Debug)]
pub struct Session<'a> {
    machine: &'a Systemd,
    su: Child,
    input: Option<ChildStdin>,
    answers: BufReader<ChildStdout>,
}

impl Session<'_> {
    /// Runs shell commands to their end, without input.
    #[track_caller]
    pub fn run(&mut self, lines: &str) -> Outcome {
        let home = self.machine.path("/run/home/alice");
        let script = home.join("step");
        fs::write(&script, lines).and_then(|()| chown(&script, Some(ALICE), Some(ALICE))).expect("a file");
        self.say("sh ~/step </dev/null >~/stdout 2>~/stderr; echo $?");
        let line = self.answer();
        let read = |name: &str| fs::read(home.join(name)).expect("a file in alice's home");
        Outcome {
            code: line.parse().unwrap_or_else(|_| panic!("alice's shell has ended: {line:?}")),
            stdout: read("stdout"),
            stderr: String::from_utf8_lossy(&read("stderr")).into_owned(),
        }
    }

    /// Returns the next line that the shell prints.
    #[track_caller]
    fn answer(&mut self) -> String {
        let mut line = String::new();
        assert!(wait::readable(self.answers.get_ref().as_fd(), wait::PATIENCE), "alice's shell says nothing");
        self.answers.read_line(&mut line).expect("a pipe can be read");
        line.trim().to_owned()
    }

    fn say(&mut self, line: &str) {
        let input = self.input.as_mut().expect("the shell runs");
        input.write_all(format!("{line}\n").as_bytes()).expect("the shell runs");
    }

    /// Ends the shell, and with it the session.
    #[track_caller]
    pub fn logout(mut self) {
        self.input.take();
        let process = Process::open(self.su.id().cast_signed()).expect("a child that was not waited for");
        assert!(process.wait_gone(wait::PATIENCE), "the session does not end");
        self.su.wait().expect("a child can be waited for");
    }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        if self.input.take().is_some() {
            let _ = self.su.kill().and_then(|()| self.su.wait());
        }
    }
}
